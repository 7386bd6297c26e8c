/* SPDX-License-Identifier: MIT */
/*
 * The memory of every task, made by scripts in it: clear everything but the
 * agent, map, fill, protect, advise, lock, and tell the kernel the layout.
 */
#include <asm/prctl.h>
#include <fcntl.h>
#include <linux/prctl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>

#include "mem.h"

#ifndef ARCH_MAP_VDSO_64
#define ARCH_MAP_VDSO_64 0x2003
#endif

/* Numbers under which files are lent to the task: read-only ones, then writable ones. */
struct lent {
	int *num; /* -1: not lent */
	size_t n;
};

struct mapper {
	struct mem_job j;
	struct lent files, shared;
	const int *shared_fds; /* of the engine */
	uint64_t agent_start, agent_end;
	uint64_t scratch; /* room for one piece of memory to be moved into place; 0: none */
	int exe_num;
};

/* ---- lending ----------------------------------------------------------------- */

static int lent_init(struct lent *l, size_t n, struct ckpt_error *err)
{
	l->n = n;
	l->num = calloc(n + 1, sizeof(*l->num));
	if (!l->num)
		return ckpt_fail(err, ENOMEM, "out of memory");
	for (size_t i = 0; i < n; i++)
		l->num[i] = -1;
	return 0;
}

static int take_back(struct mapper *m, struct lent *l, struct ckpt_error *err)
{
	for (size_t i = 0; i < l->n; i++) {
		int r = l->num[i] < 0 ? 0 : ckpt_return_fd(m->j.run, m->j.task, l->num[i], err);

		if (r < 0)
			return r;
		l->num[i] = -1;
	}
	return 0;
}

static int lend_file(struct mapper *m, uint32_t id, bool write, struct ckpt_error *err)
{
	const char *path = m->j.im->files[id - 1]->path;
	int *num = &m->files.num[id - 1 + (write ? m->j.im->n_files : 0)];
	CKPT_AUTO_FD int fd = -1;

	if (*num >= 0)
		return *num;
	fd = open(path, (write ? O_RDWR : O_RDONLY) | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return ckpt_fail_sys(err, errno, "open %s for %s", path,
				     write ? "writing" : "reading");
	*num = ckpt_lend_fd(m->j.run, m->j.task, fd, err);
	return *num;
}

static int lend_shared(struct mapper *m, uint32_t id, struct ckpt_error *err)
{
	int *num = &m->shared.num[id - 1];

	if (*num < 0)
		*num = ckpt_lend_fd(m->j.run, m->j.task, m->shared_fds[id - 1], err);
	return *num;
}

/* ---- places ---------------------------------------------------------------------- */

/* A stretch of `len` bytes that touches neither a mapping nor the agent. */
static uint64_t find_hole(const struct mapper *m, uint64_t len)
{
	const mem_vmas_rec *v = m->j.ti->vmas;
	const uint64_t gap = 256 * MEM_PAGE;
	uint64_t at = 1ull << 32;

	for (size_t i = 0; i <= v->n_vma; i++) {
		uint64_t end = i < v->n_vma ? v->vma[i]->start : MEM_TASK_SIZE;

		if (at + len + gap > m->agent_start && at < m->agent_end + gap) {
			if (m->agent_start > at && at + len + gap <= end &&
			    at + len + gap <= m->agent_start)
				return at;
			at = m->agent_end + gap > at ? m->agent_end + gap : at;
		}
		if (end > at && end - at >= len + gap)
			return at;
		if (i < v->n_vma && v->vma[i]->end + gap > at)
			at = v->vma[i]->end + gap;
	}
	return 0;
}

static uint64_t longest_seam_piece(const mem_vmas_rec *m)
{
	uint64_t max = MEM_PAGE;
	size_t v = 0;

	for (size_t i = 0; i < m->n_seam; i++) {
		uint64_t end;

		while (v < m->n_vma && m->vma[v]->end <= m->seam[i])
			v++;
		if (v == m->n_vma)
			break;
		end = m->vma[v]->end;
		if (i + 1 < m->n_seam && m->seam[i + 1] < end)
			end = m->seam[i + 1];
		if (end - m->seam[i] > max)
			max = end - m->seam[i];
	}
	return max;
}

/* ---- mapping ------------------------------------------------------------------------ */

static void clear(struct mapper *m)
{
	struct ckpt_script *s = m->j.s;
	uint64_t end = m->agent_end;

	if (m->agent_start)
		ckpt_script_add(s, SYS_munmap, CKPT_C(0), CKPT_C(m->agent_start));
	ckpt_script_add(s, SYS_munmap, CKPT_C(end), CKPT_C(MEM_TASK_SIZE_LA57 - end));
	/* without five levels of page tables: */
	ckpt_script_allow(s, EINVAL);
	if (end < MEM_TASK_SIZE)
		ckpt_script_add(s, SYS_munmap, CKPT_C(end), CKPT_C(MEM_TASK_SIZE - end));
}

static void advise(struct ckpt_script *s, uint64_t start, uint64_t len, const mem_vma_rec *v)
{
	for (const struct mem_advice *a = mem_advices; a->flag; a++)
		/* these two follow from the kind of mapping */
		if (v->flags & a->flag &&
		    !(v->flags & MEM_DROPPABLE && a->flag & (MEM_WIPEONFORK | MEM_DONTDUMP)))
			ckpt_script_add(s, SYS_madvise, CKPT_C(start), CKPT_C(len),
					CKPT_C(a->advice));
	if (v->name[0]) {
		ckpt_script_add(s, SYS_prctl, CKPT_C(PR_SET_VMA), CKPT_C(PR_SET_VMA_ANON_NAME),
				CKPT_C(start), CKPT_C(len), CKPT_STR(v->name));
		/* names are an option of the kernel's */
		ckpt_script_allow(s, EINVAL);
	}
}

static void map_at(struct ckpt_script *s, uint64_t start, uint64_t len, int prot, int flags, int fd,
		   uint64_t offset)
{
	/* never over something: the agent would be the first victim of a bad image */
	ckpt_script_add(s, SYS_mmap, CKPT_C(start), CKPT_C(len), CKPT_C(prot),
			CKPT_C(flags | MAP_FIXED_NOREPLACE), CKPT_C(fd), CKPT_C(offset));
	ckpt_script_expect(s, (int64_t)start);
}

static int map_flags(const mem_vma_rec *v)
{
	int flags = v->kind == MEM_SHARED_ANON || v->kind == MEM_FILE_SHARED ? MAP_SHARED
		    : v->flags & MEM_DROPPABLE				     ? MAP_DROPPABLE
									     : MAP_PRIVATE;

	if (v->kind == MEM_PRIVATE_ANON)
		flags |= MAP_ANONYMOUS;
	if (v->flags & MEM_NORESERVE && !(v->flags & MEM_DROPPABLE))
		flags |= MAP_NORESERVE;
	if (v->flags & MEM_GROWSDOWN)
		flags |= MAP_GROWSDOWN;
	return flags;
}

/*
 * A piece of anonymous memory that the kernel shall not merge with its
 * predecessor: it gets its first page elsewhere, which fixes where its pages
 * count from, and is moved into place.
 */
static void map_apart(struct mapper *m, uint64_t start, uint64_t len, int prot,
		      const mem_vma_rec *v)
{
	struct ckpt_script *s = m->j.s;
	uint64_t at = m->scratch;

	map_at(s, at, len, prot, map_flags(v), -1, 0);
	ckpt_script_add(s, SYS_madvise, CKPT_C(at), CKPT_C(MEM_PAGE), CKPT_C(MADV_POPULATE_WRITE));
	ckpt_script_allow(s, EINVAL);
	advise(s, at, len, v);
	ckpt_script_add(s, SYS_mremap, CKPT_C(at), CKPT_C(len), CKPT_C(len),
			CKPT_C(MREMAP_MAYMOVE | MREMAP_FIXED), CKPT_C(start));
	ckpt_script_expect(s, (int64_t)start);
	ckpt_script_add(s, SYS_madvise, CKPT_C(start), CKPT_C(MEM_PAGE), CKPT_C(MADV_DONTNEED));
}

static void map_anon(struct mapper *m, const mem_vma_rec *v, int prot, size_t *seam)
{
	const mem_vmas_rec *all = m->j.ti->vmas;
	uint64_t at = v->start;
	bool apart = false;

	while (*seam < all->n_seam && all->seam[*seam] <= v->start)
		++*seam;
	while (at < v->end) {
		uint64_t end = v->end;

		/* memory that cannot be touched has nothing to keep it apart by */
		if (m->scratch && *seam < all->n_seam && all->seam[*seam] < v->end &&
		    prot & PROT_WRITE)
			end = all->seam[(*seam)++];
		if (apart) {
			map_apart(m, at, end - at, prot, v);
		} else {
			map_at(m->j.s, at, end - at, prot, map_flags(v), -1, 0);
			advise(m->j.s, at, end - at, v);
		}
		apart = true;
		at = end;
	}
}

struct ext_call {
	const struct ckpt_vma_kind *kind;
	struct mapper *m;
	uint64_t start;
};

static int ask_map(struct ckpt_run *run, void *arg, struct ckpt_error *err)
{
	struct ext_call *c = arg;

	return c->kind->map(run, c->m->j.task, c->start, c->m->j.s, err);
}

static int map_extension(struct mapper *m, const mem_vma_rec *v, struct ckpt_error *err)
{
	const char *plugin;
	const struct ckpt_extension *e = mem_extension(m->j.run, v->name, &plugin);
	struct ext_call c = { e ? e->ops : NULL, m, v->start };

	if (!e)
		return ckpt_fail(err, ENOENT, "no plugin has the kind '%s'", v->name);
	return ckpt_call_as(m->j.run, plugin, ask_map, &c, err);
}

/* `own`: it has pages of its own to be filled. */
static int first_prot(const mem_vma_rec *v, bool own)
{
	bool is_private = v->kind == MEM_PRIVATE_ANON || v->kind == MEM_FILE_PRIVATE;
	int prot = (int)v->prot;

	/* accounting begins when a private mapping is first writable */
	if (is_private && (v->flags & MEM_ACCOUNT || (own && !mem_is_forced(v))))
		prot |= PROT_WRITE;
	return prot;
}

static int map_vma(struct mapper *m, const mem_vma_rec *v, int prot, size_t *seam,
		   struct ckpt_error *err)
{
	int fd = -1;

	switch (v->kind) {
	case MEM_SPECIAL:
		return 0;
	case MEM_EXTENSION:
		return map_extension(m, v, err);
	case MEM_PRIVATE_ANON:
		map_anon(m, v, prot, seam);
		return 0;
	case MEM_SHARED_ANON:
		fd = lend_shared(m, v->object, err);
		break;
	default:
		fd = lend_file(m, v->object, v->flags & MEM_MAYWRITE, err);
	}
	if (fd < 0)
		return fd;
	map_at(m->j.s, v->start, v->end - v->start, prot, map_flags(v), fd, v->offset);
	advise(m->j.s, v->start, v->end - v->start, v);
	return 0;
}

static void map_vdso(struct mapper *m)
{
	const mem_vmas_rec *v = m->j.ti->vmas;

	for (size_t i = 0; i < v->n_vma; i++) {
		if (v->vma[i]->kind != MEM_SPECIAL)
			continue;
		/* comes in one piece; the address is only a hint, the check below tells */
		ckpt_script_add(m->j.s, SYS_arch_prctl, CKPT_C(ARCH_MAP_VDSO_64),
				CKPT_C(v->vma[i]->start));
		return;
	}
}

static int map_all(struct mapper *m, struct ckpt_error *err)
{
	const struct mem_task_image *ti = m->j.ti;
	const mem_pages_rec *g = ti->pages;
	CKPT_AUTO_FREE int *prots = calloc(ti->vmas->n_vma + 1, sizeof(*prots));
	char name[MEM_NAME_MAX];
	size_t run = 0, seam = 0;
	int r;

	if (!prots)
		return ckpt_fail(err, ENOMEM, "out of memory");
	clear(m);
	map_vdso(m);
	for (size_t i = 0; i < ti->vmas->n_vma; i++) {
		const mem_vma_rec *v = ti->vmas->vma[i];

		while (run < g->n_start && (g->start[run] + g->pages[run]) * MEM_PAGE <= v->start)
			run++;
		prots[i] = first_prot(v, run < g->n_start && g->start[run] * MEM_PAGE < v->end);
		r = map_vma(m, v, prots[i], &seam, err);
		if (r < 0)
			return ckpt_wrap(err, "%s", mem_rec_name(m->j.im, v, name, sizeof(name)));
	}
	r = mem_fill_script(&m->j, err);
	for (size_t i = 0; !r && i < ti->vmas->n_vma; i++) {
		const mem_vma_rec *v = ti->vmas->vma[i];

		if (prots[i] != (int)v->prot)
			ckpt_script_add(m->j.s, SYS_mprotect, CKPT_C(v->start),
					CKPT_C(v->end - v->start), CKPT_C(v->prot));
	}
	return r;
}

/* ---- afterwards: the layout, locks ---------------------------------------------------- */

static void lock_all(struct mapper *m)
{
	const mem_vmas_rec *all = m->j.ti->vmas;

	for (size_t i = 0; i < all->n_vma; i++) {
		const mem_vma_rec *v = all->vma[i];

		if (!(v->flags & MEM_LOCKED))
			continue;
		ckpt_script_add(m->j.s, SYS_mlock2, CKPT_C(v->start), CKPT_C(v->end - v->start),
				CKPT_C(v->flags & MEM_ONFAULT ? MLOCK_ONFAULT : 0));
		/* locked, but there is nothing that could be brought in: PROT_NONE, past a file */
		ckpt_script_allow(m->j.s, ENOMEM);
	}
}

/*
 * The auxiliary vector is a pointer within the structure; its buffer rides along
 * as a sixth argument, which prctl(2) does not look at.
 */
static void set_layout(struct mapper *m)
{
	const mem_space_rec *sp = m->j.ti->space;
	struct prctl_mm_map map = {
		.start_code = sp->start_code,
		.end_code = sp->end_code,
		.start_data = sp->start_data,
		.end_data = sp->end_data,
		.start_brk = sp->start_brk,
		.brk = sp->brk,
		.start_stack = sp->start_stack,
		.arg_start = sp->arg_start,
		.arg_end = sp->arg_end,
		.env_start = sp->env_start,
		.env_end = sp->env_end,
		.auxv_size = (uint32_t)sp->auxv.len,
		.exe_fd = (uint32_t)m->exe_num,
	};
	int op;

	if (!sp->start_code)
		return;
	op = ckpt_script_add(m->j.s, SYS_prctl, CKPT_C(PR_SET_MM), CKPT_C(PR_SET_MM_MAP),
			     CKPT_IN(&map, sizeof(map)), CKPT_C(sizeof(map)), CKPT_C(0),
			     CKPT_IN(sp->auxv.data, sp->auxv.len));
	if (sp->auxv.len)
		ckpt_script_pointer(m->j.s, op, 2, offsetof(struct prctl_mm_map, auxv), op, 5, 0);
}

/* ---- one task --------------------------------------------------------------------------- */

static int run_script(struct mapper *m, struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(m->j.run, "mem.map");
	int r;

	m->j.s = s;
	r = map_all(m, err);
	if (r < 0)
		return r;
	set_layout(m);
	lock_all(m);
	r = ckpt_script_run(s, m->j.task->threads[0], err);
	return r < 0 ? r : mem_fill_forced(&m->j, err);
}

static int map_with(struct mapper *m, struct ckpt_error *err)
{
	const mem_space_rec *sp = m->j.ti->space;
	int r;

	ckpt_agent_range(m->j.run, &m->agent_start, &m->agent_end);
	if (m->j.ti->vmas->n_seam)
		m->scratch = find_hole(m, longest_seam_piece(m->j.ti->vmas));
	if (m->j.pages_fd >= 0 && m->j.ti->pages->n_start) {
		m->j.pages_num = ckpt_lend_fd(m->j.run, m->j.task, m->j.pages_fd, err);
		if (m->j.pages_num < 0)
			return m->j.pages_num;
	}
	m->exe_num = sp->exe && sp->start_code ? lend_file(m, sp->exe, false, err) : -1;
	if (sp->exe && sp->start_code && m->exe_num < 0)
		return m->exe_num;
	r = run_script(m, err);
	if (!r && m->j.pages_num >= 0)
		r = ckpt_return_fd(m->j.run, m->j.task, m->j.pages_num, err);
	if (!r)
		r = take_back(m, &m->files, err);
	if (!r)
		r = take_back(m, &m->shared, err);
	return r ? r : mem_map_check(&m->j, err);
}

static int map_task(struct ckpt_run *run, const struct mem_image *im, struct ckpt_task *t,
		    int pages_fd, const int *shared_fds, struct ckpt_error *err)
{
	struct mapper m = { .j = { .run = run,
				   .im = im,
				   .ti = mem_image_task(im, t->id),
				   .task = t,
				   .pages_fd = pages_fd,
				   .pages_num = -1 },
			    .shared_fds = shared_fds };
	int r;

	if (!m.j.ti)
		return 0;
	r = lent_init(&m.files, im->n_files * 2, err);
	if (!r)
		r = lent_init(&m.shared, im->n_shared, err);
	if (!r)
		r = map_with(&m, err);
	free(m.files.num);
	free(m.shared.num);
	return r;
}

int mem_map(struct ckpt_run *run, struct ckpt_error *err)
{
	CKPT_AUTO_FD int pages_fd = -1;
	CKPT_AUTO_FREE int *shared = NULL;
	struct mem_state *st;
	uint64_t size;
	char name[64];
	int r = mem_state_get(run, &st, err);

	if (r < 0)
		return r;
	r = ckpt_pages_open(run, MEM_PAGES_NAME, &pages_fd, &size, err);
	shared = calloc(st->image->n_shared + 1, sizeof(*shared));
	if (!r && !shared)
		r = ckpt_fail(err, ENOMEM, "out of memory");
	if (r < 0)
		return r;
	memset(shared, -1, st->image->n_shared * sizeof(*shared));
	r = mem_shared_make(st->image, pages_fd, shared, err);
	for (size_t i = 0; !r && i < ckpt_task_count(run); i++) {
		struct ckpt_task *t = ckpt_task_at(run, i);

		r = t->zombie ? 0 : map_task(run, st->image, t, pages_fd, shared, err);
		if (r < 0)
			ckpt_wrap(err, "%s", mem_task_name(t, name, sizeof(name)));
	}
	for (size_t i = 0; i < st->image->n_shared; i++)
		if (shared[i] >= 0)
			close(shared[i]);
	return r;
}
