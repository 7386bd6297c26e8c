/* SPDX-License-Identifier: MIT */
/*
 * Check an image before anything is done with it. What is wrong with the image
 * itself ends the run; what this machine lacks is listed.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>

#include <ckpt/huge.h>

#include "family.h"

struct plan {
	struct ckpt_run *run;
	const struct mem_image *im;
	struct mem_vdso own;
	uint64_t page_file; /* its size */
};

#define LLX(v) ((unsigned long long)(v))

static bool aligned(uint64_t v)
{
	return !(v & (MEM_PAGE - 1));
}

/* ---- files ------------------------------------------------------------------- */

/* Files that the tree itself writes to through a mapping. */
static bool is_written(const struct mem_image *im, uint32_t file)
{
	for (size_t i = 0; i < im->n_tasks; i++)
		for (size_t k = 0; k < im->tasks[i].vmas->n_vma; k++) {
			const mem_vma_rec *v = im->tasks[i].vmas->vma[k];

			if (v->kind == MEM_FILE_SHARED && v->object == file &&
			    v->flags & MEM_MAYWRITE)
				return true;
		}
	return false;
}

const char *mem_file_differs(struct ckpt_run *run, const struct mem_image *im,
			     const mem_file_rec *f, const struct stat *st)
{
	if (!S_ISREG(st->st_mode))
		return "it is not a regular file";
	/* a filesystem of the tree's own is made anew */
	if (f->mnt || !ckpt_opt_bool(run, "check-files"))
		return NULL;
	if ((uint64_t)st->st_size != f->size)
		return "its size is another";
	if (st->st_mtim.tv_sec * 1000000000ll + st->st_mtim.tv_nsec != f->mtime_ns &&
	    !is_written(im, f->id))
		return "it was written since";
	/* the copy's own, with what the image has of it */
	if (ckpt_layer_brings(run, f->path))
		return NULL;
	return st->st_ino != f->ino ? "it was replaced (another inode)" : NULL;
}

static int plan_file(struct plan *p, const mem_file_rec *f, struct ckpt_error *err)
{
	struct stat st;
	const char *what;
	int r;

	if (f->ghost)
		return mem_ghost_plan(p->run, p->im, f, err);
	if (f->path[0] != '/')
		return ckpt_fail_image(err, "file %u: '%s' is not an absolute path", f->id,
				       f->path);
	if (is_written(p->im, f->id) && ckpt_copies_share(p->run, f->mnt, f->path))
		return ckpt_unmet(
			p->run, CKPT_EXIT_REFUSED,
			"lay a layer over it (--layer), or say that it is meant (--shared)",
			"%s is mapped for writing, and all copies would write to it", f->path);
	r = ckpt_stat_in(p->run, f->mnt, f->path, true, &st);
	if (r == -EINPROGRESS)
		return 0;
	if (r == -ELOOP)
		return ckpt_link_unmet(p->run, f->path);
	if (r < 0)
		return ckpt_unmet(p->run, CKPT_EXIT_FAILED,
				  "bring the file back as it was at the dump", "mapped file %s: %s",
				  f->path, ckpt_errno_name(r));
	what = mem_file_differs(p->run, p->im, f, &st);
	if (what)
		return ckpt_unmet(p->run, CKPT_EXIT_FAILED,
				  "bring the file back as it was at the dump, or say "
				  "-o mem.check-files=no if it is the same to the program",
				  "mapped file %s is not the one of the dump: %s", f->path, what);
	return 0;
}

/* ---- runs of pages ----------------------------------------------------------------- */

struct runs {
	const uint64_t *start, *pages;
	size_t n;
	uint64_t offset;
};

/* Rising, not overlapping, within the limit (in pages) and within the page file. */
static int check_runs(const struct plan *p, const char *what, uint32_t id, const struct runs *r,
		      size_t n_pages, uint64_t limit, struct ckpt_error *err)
{
	uint64_t at = r->offset, next = 0;

	if (r->n != n_pages)
		return ckpt_fail_image(err, "%s %u: its runs are incomplete", what, id);
	if (!aligned(r->offset))
		return ckpt_fail_image(err, "%s %u: its pages are not aligned", what, id);
	for (size_t i = 0; i < r->n; i++) {
		if (r->start[i] < next || !r->pages[i] || r->start[i] >= limit ||
		    r->pages[i] > limit - r->start[i])
			return ckpt_fail_image(err, "%s %u: page %llx is out of place", what, id,
					       LLX(r->start[i]));
		next = r->start[i] + r->pages[i];
		at += r->pages[i] * MEM_PAGE;
		if (at < r->pages[i] * MEM_PAGE || at > p->page_file)
			return ckpt_fail_image(err, "%s %u: page %llx lies beyond the page file",
					       what, id, LLX(r->start[i]));
	}
	return 0;
}

static bool has_pages(const mem_vma_rec *v, bool guards)
{
	return v->kind == MEM_PRIVATE_ANON || v->kind == MEM_FILE_PRIVATE ||
	       (guards && v->kind != MEM_SPECIAL && !(v->flags & MEM_HUGETLB));
}

/* Each run lies in mappings that can have pages of their own, or guards; both lists rise. */
static int check_cover(const struct mem_task_image *t, const uint64_t *start, const uint64_t *pages,
		       size_t n, bool guards, struct ckpt_error *err)
{
	size_t v = 0;

	for (size_t i = 0; i < n; i++) {
		uint64_t at = start[i] * MEM_PAGE, end = at + pages[i] * MEM_PAGE;

		while (at < end) {
			const mem_vma_rec *m;

			while (v < t->vmas->n_vma && t->vmas->vma[v]->end <= at)
				v++;
			m = v < t->vmas->n_vma ? t->vmas->vma[v] : NULL;
			if (!m || m->start > at || !has_pages(m, guards))
				return ckpt_fail_image(err, "page at %llx belongs to no mapping",
						       LLX(at));
			at = m->end;
		}
	}
	return 0;
}

/* Pages that are stored for another task. */
static int plan_again(const struct plan *p, const struct mem_task_image *t, struct ckpt_error *err)
{
	const mem_pages_rec *g = t->pages;
	struct runs again = { g->again, g->agains, g->n_again, 0 };
	struct plan no_file = *p;
	uint64_t limit = p->page_file / MEM_PAGE;
	int r;

	no_file.page_file = UINT64_MAX;
	r = check_runs(&no_file, "task", t->id, &again, g->n_agains, MEM_TASK_SIZE_LA57 / MEM_PAGE,
		       err);
	if (!r && g->n_place != g->n_again)
		r = ckpt_fail_image(err, "task %u: its runs are incomplete", t->id);
	/* whoever fills memory goes through both lists as one */
	for (size_t a = 0, b = 0; !r && a < g->n_start && b < g->n_again;) {
		if (g->start[a] + g->pages[a] <= g->again[b])
			a++;
		else if (g->again[b] + g->agains[b] <= g->start[a])
			b++;
		else
			r = ckpt_fail_image(err, "task %u: page %llx is stored twice", t->id,
					    LLX(g->again[b]));
	}
	for (size_t i = 0; !r && i < g->n_again; i++)
		if (g->place[i] > limit || g->agains[i] > limit - g->place[i])
			r = ckpt_fail_image(err, "task %u: page %llx lies beyond the page file",
					    t->id, LLX(g->again[i]));
	return r < 0 ? r : check_cover(t, g->again, g->agains, g->n_again, false, err);
}

static int plan_pages(struct plan *p, const struct mem_task_image *t, struct ckpt_error *err)
{
	const mem_pages_rec *g = t->pages;
	struct runs pages = { g->start, g->pages, g->n_start, g->offset };
	struct runs guards = { g->guard, g->guards, g->n_guard, 0 };
	struct plan no_file = *p;
	int r = check_runs(p, "task", t->id, &pages, g->n_pages, MEM_TASK_SIZE_LA57 / MEM_PAGE,
			   err);

	/* guard pages have no content */
	no_file.page_file = UINT64_MAX;
	if (!r)
		r = check_runs(&no_file, "task", t->id, &guards, g->n_guards,
			       MEM_TASK_SIZE_LA57 / MEM_PAGE, err);
	if (!r)
		r = check_cover(t, g->start, g->pages, g->n_start, false, err);
	if (!r)
		r = check_cover(t, g->guard, g->guards, g->n_guard, true, err);
	return r < 0 ? r : plan_again(p, t, err);
}

static int plan_shared(struct plan *p, const mem_shared_rec *s, struct ckpt_error *err)
{
	struct runs runs = { s->start, s->pages, s->n_start, s->offset };

	if ((!s->size && !p->im->ghost[s->id - 1]) || !aligned(s->size) ||
	    s->size > MEM_TASK_SIZE_LA57 || (s->huge && s->size % CKPT_HUGE_PAGE))
		return ckpt_fail_image(err, "shared memory %u: bad size %llu", s->id, LLX(s->size));
	return check_runs(p, "shared memory", s->id, &runs, s->n_pages, s->size / MEM_PAGE, err);
}

/* ---- mappings ----------------------------------------------------------------------- */

/* Is what is mapped one of the pool of huge pages? */
static bool is_huge(const struct mem_image *im, const mem_vma_rec *v)
{
	uint32_t content = v->kind == MEM_SHARED_ANON	? v->object
			   : v->kind == MEM_FILE_SHARED ? im->files[v->object - 1]->content
							: 0;

	return content && content <= im->n_shared && im->shared[content - 1] &&
	       im->shared[content - 1]->huge;
}

static int check_object(const struct plan *p, const mem_vma_rec *v, struct ckpt_error *err)
{
	const char *what = "file";
	bool there = true;

	switch (v->kind) {
	case MEM_SHARED_ANON:
		what = "shared memory";
		there = v->object && v->object <= p->im->n_shared && p->im->shared[v->object - 1];
		break;
	case MEM_FILE_PRIVATE:
	case MEM_FILE_SHARED:
		there = v->object && v->object <= p->im->n_files && p->im->files[v->object - 1];
		break;
	default:
		there = !v->object;
	}
	if (!there)
		return ckpt_fail_image(err, "mapping %llx: there is no %s %u", LLX(v->start), what,
				       v->object);
	if (v->kind != MEM_PRIVATE_ANON && is_huge(p->im, v) != !!(v->flags & MEM_HUGETLB))
		return ckpt_fail_image(err, "mapping %llx: its pages are not those of %s %u",
				       LLX(v->start), what, v->object);
	return 0;
}

static int check_vma(const struct plan *p, const mem_vma_rec *v, uint64_t floor,
		     struct ckpt_error *err)
{
	if (!aligned(v->start) || !aligned(v->end) || v->start < floor || v->start >= v->end ||
	    v->end > MEM_TASK_SIZE_LA57)
		return ckpt_fail_image(err, "mapping %llx-%llx is out of place", LLX(v->start),
				       LLX(v->end));
	if (v->prot & ~(uint32_t)(PROT_READ | PROT_WRITE | PROT_EXEC) ||
	    v->flags & ~(uint32_t)MEM_ATTRS)
		return ckpt_fail_image(err, "mapping %llx has flags that are not known",
				       LLX(v->start));
	if (v->flags & MEM_HUGETLB && ((v->start | v->end | v->offset) % CKPT_HUGE_PAGE ||
				       v->flags & (MEM_GROWSDOWN | MEM_DROPPABLE)))
		return ckpt_fail_image(err, "mapping %llx cannot be of huge pages", LLX(v->start));
	if (!aligned(v->offset) || v->offset > INT64_MAX - (v->end - v->start))
		return ckpt_fail_image(err, "mapping %llx: bad offset %llx", LLX(v->start),
				       LLX(v->offset));
	return check_object(p, v, err);
}

/* The extension that owns a mapping, and the plugin that has it. */
const struct ckpt_extension *mem_extension(struct ckpt_run *run, const char *name,
					   const char **plugin)
{
	const struct ckpt_extension *e;

	for (size_t i = 0; (e = ckpt_extension_at(run, CKPT_VMA_POINT, i, plugin)); i++)
		if (!strcmp(e->name, name))
			return e;
	return NULL;
}

/* Sealing comes last and must not fail then. */
static void plan_seal(struct plan *p, const mem_vma_rec *v)
{
	if (v->flags & MEM_SEALED && syscall(SYS_mseal, 0, 0, 0) < 0 && errno == ENOSYS)
		ckpt_unmet(p->run, CKPT_EXIT_FAILED, "restore on Linux 6.10 or later",
			   "mapping %llx is sealed, and this kernel has no mseal(2)",
			   LLX(v->start));
}

static int plan_vmas(struct plan *p, const struct mem_task_image *t, struct ckpt_error *err)
{
	uint64_t floor = 0, from = 0, to = 0;
	const char *plugin;
	int r;

	for (size_t i = 0; i < t->vmas->n_vma; i++) {
		const mem_vma_rec *v = t->vmas->vma[i];

		r = check_vma(p, v, floor, err);
		if (r < 0)
			return r;
		floor = v->end;
		plan_seal(p, v);
		if (v->kind == MEM_EXTENSION && !mem_extension(p->run, v->name, &plugin))
			ckpt_unmet(p->run, CKPT_EXIT_FAILED, "load the plugin that saved it",
				   "mapping %llx of task %u is of the kind '%s', which no plugin "
				   "here has",
				   LLX(v->start), t->id, v->name);
		/* neighbours are reserved in one go: reservations are compared with each other */
		if (v->start != to) {
			r = from == to ? 0 : ckpt_reserve(p->run, from, to, err);
			if (r < 0)
				return r;
			from = v->start;
		}
		to = v->end;
	}
	for (size_t i = 0; i < t->vmas->n_seam; i++)
		if (!aligned(t->vmas->seam[i]) || (i && t->vmas->seam[i] <= t->vmas->seam[i - 1]))
			return ckpt_fail_image(err, "seam %llx is out of place",
					       LLX(t->vmas->seam[i]));
	return from == to ? 0 : ckpt_reserve(p->run, from, to, err);
}

/* ---- the vdso and the layout ---------------------------------------------------------- */

static bool vdso_fits(const struct plan *p, const struct mem_task_image *t, size_t *n)
{
	uint64_t first = 0;

	*n = 0;
	for (size_t i = 0; i < t->vmas->n_vma; i++) {
		const mem_vma_rec *v = t->vmas->vma[i];

		if (v->kind != MEM_SPECIAL)
			continue;
		if (!*n)
			first = v->start;
		if (*n == p->own.n || strcmp(v->name, p->own.part[*n].name) ||
		    v->start - first != p->own.part[*n].offset ||
		    v->end - v->start != p->own.part[*n].size)
			return false;
		++*n;
	}
	return !*n || (*n == p->own.n && t->space->vdso == p->own.hash);
}

static int plan_vdso(struct plan *p, const struct mem_task_image *t)
{
	size_t n;

	if (vdso_fits(p, t, &n))
		return 0;
	return ckpt_unmet(p->run, CKPT_EXIT_IMAGE,
			  "restore on the kernel that the dump was made on",
			  "the vdso of task %u is that of another kernel", t->id);
}

/* The kernel's own rules (validate_prctl_map_addr), so that PR_SET_MM cannot fail half-way. */
static int check_space(const struct plan *p, const mem_space_rec *m, struct ckpt_error *err)
{
	const uint64_t addr[] = { m->start_code, m->end_code,  m->start_data,  m->end_data,
				  m->start_brk,	 m->brk,       m->start_stack, m->arg_start,
				  m->arg_end,	 m->env_start, m->env_end };
	bool none = true;

	for (size_t i = 0; i < CKPT_ARRAY_SIZE(addr); i++)
		none &= !addr[i];
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(addr) && !none; i++)
		if (addr[i] < MEM_PAGE || addr[i] >= MEM_TASK_SIZE_LA57)
			return ckpt_fail_image(err, "memory layout: %llx is no address",
					       LLX(addr[i]));
	if (!none &&
	    (m->start_code >= m->end_code || m->start_data > m->end_data || m->start_brk > m->brk ||
	     m->arg_start > m->arg_end || m->env_start > m->env_end))
		return ckpt_fail_image(err, "memory layout: ends before beginnings");
	if (m->auxv.len > MEM_PAGE || m->auxv.len % 16)
		return ckpt_fail_image(err, "auxiliary vector of %zu bytes", m->auxv.len);
	if (m->exe && (m->exe > p->im->n_files || !p->im->files[m->exe - 1]))
		return ckpt_fail_image(err, "there is no file %u", m->exe);
	if (m->lock_future && (m->lock_future & ~(uint32_t)MCL_ONFAULT) != MCL_FUTURE)
		return ckpt_fail_image(err, "mlockall(2) with %#x", m->lock_future);
	return 0;
}

static int plan_task(struct plan *p, const struct mem_task_image *t, struct ckpt_error *err)
{
	int r = plan_vmas(p, t, err);

	if (!r)
		r = mem_policies_plan(p->run, t->vmas, err);
	if (!r)
		r = plan_pages(p, t, err);
	if (!r)
		r = check_space(p, t->space, err);
	if (!r)
		r = plan_vdso(p, t);
	return r < 0 ? ckpt_wrap(err, "task %u", t->id) : 0;
}

static int page_file_size(struct plan *p, struct ckpt_error *err)
{
	int fd, r = ckpt_pages_open(p->run, MEM_PAGES_NAME, &fd, &p->page_file, err);

	if (r < 0)
		return r == -ENOENT ? ckpt_fail_image(err, "the page file of the memory is missing")
				    : r;
	close(fd);
	return 0;
}

int mem_plan(struct ckpt_run *run, struct ckpt_error *err)
{
	const struct mem_family *before = mem_before_copies(run);
	struct plan p = { .run = run };
	struct mem_state *st;
	int r = mem_state_get(run, &st, err);

	if (r < 0)
		return r;
	mem_image_free(st->image);
	st->image = NULL;
	r = mem_image_load(run, &st->image, err);
	if (!r)
		r = mem_vdso_own(&p.own, err);
	if (!r)
		r = page_file_size(&p, err);
	p.im = st->image;
	for (size_t i = 0; !r && i < p.im->n_files; i++)
		if (p.im->files[i])
			r = plan_file(&p, p.im->files[i], err);
	for (size_t i = 0; !r && i < p.im->n_shared; i++)
		if (p.im->shared[i])
			r = plan_shared(&p, p.im->shared[i], err);
	for (size_t i = 0; !r && i < p.im->n_tasks; i++)
		r = plan_task(&p, &p.im->tasks[i], err);
	if (!r && before)
		r = ckpt_reserve(run, before->start, before->end, err);
	return r < 0 ? r : mem_huge_plan(run, p.im);
}
