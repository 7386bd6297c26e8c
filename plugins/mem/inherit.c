/* SPDX-License-Identifier: MIT */
/*
 * Memory shared by fork, in the tasks: made and filled in the common ancestor as soon as
 * it is born, kept out of the clones that have no use for it, moved into place by those
 * that have. mremap(2) moves page tables: what is shared stays so.
 */
#include <fcntl.h>
#include <sys/syscall.h>

#include "family.h"

#define LOWEST	((uint64_t)1 << 32)
#define HIGHEST 0x7e0000000000ull /* below where the kernel puts a skeleton's stack and vdso */
/* Page tables are moved whole if both places lie alike in them. */
#define LARGE	((uint64_t)2 << 20)
#define LARGEST ((uint64_t)1 << 30)

/* ---- places ------------------------------------------------------------------------ */

static int by_start(const void *a, const void *b)
{
	const struct mem_range *x = a, *y = b;

	return (x->start > y->start) - (x->start < y->start);
}

/* A stretch of `len` bytes outside of the ranges, at a multiple of LARGEST; 0: none. */
static uint64_t find_room(struct mem_range *r, size_t n, uint64_t len)
{
	uint64_t at = LOWEST;

	qsort(r, n, sizeof(*r), by_start);
	for (size_t i = 0; i < n; i++) {
		if (r[i].start > at && r[i].start - at >= len + LARGEST)
			break;
		if (r[i].end > at)
			at = (r[i].end + 2 * LARGEST - 1) & ~(LARGEST - 1);
	}
	return at < HIGHEST && HIGHEST - at >= len ? at : 0;
}

static uint64_t room_for_tasks(const struct mem_image *im, const struct mem_range *keep,
			       size_t n_keep, uint64_t len, struct ckpt_error *err)
{
	CKPT_AUTO_FREE struct mem_range *r = NULL;
	size_t n = n_keep;

	for (size_t i = 0; i < im->n_tasks; i++)
		n += im->tasks[i].vmas->n_vma;
	r = calloc(n + 1, sizeof(*r));
	if (!r)
		return (uint64_t)ckpt_fail(err, ENOMEM, "out of memory");
	for (n = 0; n < n_keep; n++)
		r[n] = keep[n];
	for (size_t i = 0; i < im->n_tasks; i++)
		for (size_t k = 0; k < im->tasks[i].vmas->n_vma; k++) {
			const mem_vma_rec *v = im->tasks[i].vmas->vma[k];

			r[n++] = (struct mem_range){ v->start, v->end };
		}
	return find_room(r, n, len);
}

/* Their distances from the first; returns the length of all. */
static uint64_t line_up(struct mem_stretch *s, size_t n)
{
	uint64_t len = 0;

	for (; n; s++, n--) {
		uint64_t size = (s->hi - s->lo) * MEM_PAGE;
		uint64_t like = size < LARGEST ? LARGE : LARGEST;

		if (s->maker == UINT32_MAX)
			continue;
		/* a stack that grows keeps its distance from what is below it */
		len = (len + LARGE + like - 1) & ~(like - 1);
		s->at = len + s->lo * MEM_PAGE % like;
		len = s->at + size;
		if (len > HIGHEST)
			return UINT64_MAX;
	}
	return len;
}

int mem_family_place(struct mem_family *f, const struct mem_range *keep, size_t n,
		     struct ckpt_error *err)
{
	const size_t there = f->before ? f->before->n_stretches : 0;
	uint64_t len = line_up(f->stretch + there, f->n_stretches - there), base = 0;

	if (len && len <= HIGHEST)
		base = room_for_tasks(f->im, keep, n, len, err);
	if (base > HIGHEST)
		return -err->err;
	for (size_t i = there; i < f->n_stretches; i++)
		if (f->stretch[i].maker != UINT32_MAX)
			f->stretch[i].at = base ? f->stretch[i].at + base : 0;
	f->start = base;
	f->end = base ? base + len : 0;
	return 0;
}

static int family(struct ckpt_run *run, const struct ckpt_kin *kin, size_t n,
		  struct ckpt_error *err)
{
	struct mem_range keep[2] = { { 0 } };
	struct mem_state *st;
	int r = mem_state_get(run, &st, err);

	if (!r)
		r = mem_family_plan(run, st->image, kin, n, &st->family, err);
	if (r < 0 || !st->family)
		return r;
	ckpt_agent_range(run, &keep[0].start, &keep[0].end);
	if (st->family->before)
		keep[1] = (struct mem_range){ st->family->before->start, st->family->before->end };
	r = mem_family_place(st->family, keep, st->family->before ? 2 : 1, err);
	if (r < 0 || st->family->start || st->family->before)
		return r;
	mem_family_free(st->family);
	st->family = NULL;
	return 0;
}

/* ---- making ---------------------------------------------------------------------------- */

static void advise_huge(struct ckpt_script *s, const struct mem_stretch *st)
{
	const uint32_t huge = MEM_HUGEPAGE | MEM_NOHUGEPAGE;

	for (const struct mem_advice *a = mem_advices; a->flag; a++)
		if (st->like->flags & a->flag & huge)
			ckpt_script_add(s, SYS_madvise, CKPT_C(st->at),
					CKPT_C((st->hi - st->lo) * MEM_PAGE), CKPT_C(a->advice));
}

static int make_stretch(struct mem_family *f, const struct mem_stretch *st, struct mem_lender *lend,
			struct ckpt_script *s, struct ckpt_error *err)
{
	struct ckpt_arg fd = CKPT_C(-1);
	uint64_t offset = 0;

	if (st->like->kind == MEM_FILE_PRIVATE) {
		const uint32_t id = st->like->object;
		const mem_file_rec *file = f->im->files[id - 1];
		int op = file->mnt ? mem_early_lend(f, id, lend, id - 1, s, err)
				   : mem_lend_file(lend, s, id - 1, f->im, file, O_RDONLY, err);

		if (op < 0)
			return op;
		fd = CKPT_R(op);
		offset = (st->lo + st->file) * MEM_PAGE;
	}
	ckpt_script_add(s, SYS_mmap, CKPT_C(st->at), CKPT_C((st->hi - st->lo) * MEM_PAGE),
			CKPT_C(PROT_READ | PROT_WRITE),
			CKPT_C(mem_map_flags(st->like) | MAP_FIXED_NOREPLACE), fd, CKPT_C(offset));
	ckpt_script_expect(s, (int64_t)st->at);
	advise_huge(s, st);
	return 0;
}

static int make_stretches(struct ckpt_run *run, struct mem_family *f, uint32_t kin,
			  struct ckpt_task *t, struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "mem.inherit");
	struct mem_lender lend;
	const size_t first = f->before ? f->before->n_stretches : 0;
	bool any = false;
	int r = 0;

	for (size_t i = first; i < f->n_stretches; i++)
		any |= f->stretch[i].at && f->stretch[i].maker == kin;
	if (!any)
		return 0;
	r = mem_lend_init(&lend, run, f->im->n_files + 1, err);
	for (size_t i = first; !r && i < f->n_stretches; i++) {
		if (!f->stretch[i].at || f->stretch[i].maker != kin)
			continue;
		r = make_stretch(f, &f->stretch[i], &lend, s, err);
		/* descriptors are few */
		if (!r && lend.open >= MEM_MAX_OPEN) {
			mem_lend_end(&lend, s);
			r = ckpt_script_run(s, t->threads[0], err);
			mem_lend_drop(&lend);
			ckpt_script_free(s);
			s = ckpt_script_new(run, "mem.inherit");
		}
	}
	mem_lend_end(&lend, s);
	if (!r)
		r = ckpt_script_run(s, t->threads[0], err);
	mem_lend_free(&lend);
	return r;
}

int mem_family_fill(struct mem_family *f, uint32_t kin, pid_t pid, struct ckpt_error *err)
{
	MEM_AUTO_FILLER struct mem_filler fill = { .pages_fd = f->pages_fd };
	size_t next;
	int r = 0;

	for (size_t i = 0; !r && i < f->n_entries; i = next) {
		const struct mem_entry *e = &f->entry[i];
		const struct mem_stretch *st = &f->stretch[e->stretch];

		for (next = i + 1; next < f->n_entries; next++) {
			const struct mem_entry *n = &f->entry[next];

			if (n->kin != e->kin || n->stretch != e->stretch ||
			    n->slot - e->slot != next - i || n->place - e->place != next - i)
				break;
		}
		if (e->kin == kin && st->at)
			r = mem_fill_note(&fill, pid, -1, st->at + (e->slot - st->lo) * MEM_PAGE,
					  (next - i) * MEM_PAGE, e->place * MEM_PAGE, err);
	}
	return r < 0 ? r : mem_fill_run(&fill, err);
}

static int born(struct ckpt_run *run, struct ckpt_task *t, struct ckpt_error *err)
{
	struct mem_state *st;
	struct mem_kin *k;
	uint32_t kin;
	int r = mem_state_get(run, &st, err);

	k = r < 0 ? NULL : mem_family_kin(st->family, t->id);
	if (!k || !k->fills)
		return r;
	kin = (uint32_t)(k - st->family->kin);
	r = make_stretches(run, st->family, kin, t, err);
	if (!r)
		r = mem_family_fill(st->family, kin, t->pid, err);
	return r < 0 ? ckpt_wrap(err, "memory that its descendants share") : 0;
}

/* ---- handing down ------------------------------------------------------------------------- */

static bool is_wanted(const struct mem_family *f, uint32_t stretch, const struct mem_kin *child)
{
	size_t lo = 0, hi = f->n_uses;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;
		const struct mem_use *u = &f->use[f->by_stretch[mid]];

		if (u->stretch < stretch ||
		    (u->stretch == stretch && f->kin[u->kin].rank < child->rank))
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < f->n_uses && f->use[f->by_stretch[lo]].stretch == stretch &&
	       mem_kin_covers(child, &f->kin[f->use[f->by_stretch[lo]].kin]);
}

/* Has that task the stretch: made by itself, or not hidden from it on the way? */
static bool has_stretch(const struct mem_family *f, const struct mem_kin *k, size_t stretch)
{
	const struct mem_stretch *s = &f->stretch[stretch];

	/* it was hidden unless the task or a descendant has a use for it */
	return s->at && mem_kin_covers(&f->kin[s->maker], k) &&
	       (&f->kin[s->maker] == k || is_wanted(f, (uint32_t)stretch, k));
}

static int cloning(struct ckpt_run *run, struct ckpt_task *maker, uint32_t id,
		   struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = NULL;
	struct mem_kin *k, *child;
	struct mem_state *st;
	struct mem_family *f;
	int r = mem_state_get(run, &st, err);

	f = r < 0 ? NULL : st->family;
	k = mem_family_kin(f, maker->id);
	child = mem_family_kin(f, id);
	if (!k)
		return r;
	if (!k->hidden)
		k->hidden = calloc(f->n_stretches, 1);
	if (!k->hidden)
		return ckpt_fail(err, ENOMEM, "out of memory");
	for (size_t i = 0; i < f->n_stretches; i++) {
		const struct mem_stretch *at = &f->stretch[i];
		uint8_t hide;

		if (!has_stretch(f, k, i))
			continue;
		/* who is no member of the family has no use for any: each costs a fork time */
		hide = !child || !is_wanted(f, (uint32_t)i, child);
		if (hide == k->hidden[i])
			continue;
		if (!s)
			s = ckpt_script_new(run, "mem.inherit");
		ckpt_script_add(s, SYS_madvise, CKPT_C(at->at),
				CKPT_C((at->hi - at->lo) * MEM_PAGE),
				CKPT_C(hide ? MADV_DONTFORK : MADV_DOFORK));
		k->hidden[i] = hide;
	}
	return s ? ckpt_script_run(s, maker->threads[0], err) : 0;
}

const struct ckpt_birth_kind mem_birth_kind = {
	.size = sizeof(mem_birth_kind),
	.born = born,
	.family = family,
	.cloning = cloning,
};

/* ---- moving into place ------------------------------------------------------------------------
 */

const struct mem_use *mem_inherited(const struct mem_family *f, const struct mem_kin *k,
				    uint64_t start)
{
	size_t lo = 0, hi = k ? k->n_uses : 0;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;
		const struct mem_use *u = &f->use[k->use + mid];

		if (u->start == start / MEM_PAGE)
			return f->stretch[u->stretch].at && !u->gone ? u : NULL;
		if (u->start < start / MEM_PAGE)
			lo = mid + 1;
		else
			hi = mid;
	}
	return NULL;
}

void mem_inherit(const struct mem_family *f, const struct mem_kin *k, const struct mem_use *u,
		 struct ckpt_script *s)
{
	const struct mem_stretch *st = &f->stretch[u->stretch];
	uint64_t at = st->at + (u->start + u->shift - st->lo) * MEM_PAGE;
	uint64_t len = (u->end - u->start) * MEM_PAGE;
	const struct mem_runs *drop = &k->drop;
	size_t i = 0, hi = drop->n;

	if (k->hidden && k->hidden[u->stretch])
		ckpt_script_add(s, SYS_madvise, CKPT_C(at), CKPT_C(len), CKPT_C(MADV_DOFORK));
	ckpt_script_add(s, SYS_mremap, CKPT_C(at), CKPT_C(len), CKPT_C(len),
			CKPT_C(MREMAP_MAYMOVE | MREMAP_FIXED), CKPT_C(u->start * MEM_PAGE));
	ckpt_script_expect(s, (int64_t)(u->start * MEM_PAGE));
	while (i < hi) {
		size_t mid = (i + hi) / 2;

		if (drop->start[mid] < u->start)
			i = mid + 1;
		else
			hi = mid;
	}
	for (; i < drop->n && drop->start[i] < u->end; i++)
		ckpt_script_add(s, SYS_madvise, CKPT_C(drop->start[i] * MEM_PAGE),
				CKPT_C(drop->pages[i] * MEM_PAGE), CKPT_C(MADV_DONTNEED));
}
