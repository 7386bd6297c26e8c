/* SPDX-License-Identifier: MIT */
/*
 * Memory of several copies, made and filled once by ckpt itself at scratch addresses,
 * before the copies are started: their roots inherit it by fork.
 */
#include <stdio.h>
#include <stdlib.h>

#include "family.h"

const struct mem_family *mem_before_copies(struct ckpt_run *run)
{
	const struct ckpt_copies_memory *m = ckpt_copies_memory(run);

	return m ? m->plan : NULL;
}

/* Every fork of a large memory would count as much again. */
static bool is_strictly_counted(void)
{
	CKPT_AUTO_FILE FILE *f = fopen("/proc/sys/vm/overcommit_memory", "re");

	return !f || fgetc(f) == '2';
}

/* ckpt's own mappings, with room for them to grow. */
static int own_ranges(struct mem_range **out, size_t *n, struct ckpt_error *err)
{
	const uint64_t slack = 1ull << 30;
	CKPT_AUTO_FREE struct mem_range *list = NULL;
	CKPT_AUTO_FILE FILE *f = fopen("/proc/self/maps", "re");
	char line[8192];
	size_t cap = 0;

	*n = 0;
	if (!f)
		return ckpt_fail_sys(err, errno, "/proc/self/maps");
	while (fgets(line, sizeof(line), f)) {
		struct mem_range *all = mem_grow(list, *n, &cap, sizeof(*all));
		unsigned long long start, end;

		if (!all)
			return ckpt_fail(err, ENOMEM, "out of memory");
		list = all;
		if (sscanf(line, "%llx-%llx", &start, &end) != 2)
			continue;
		list[*n].start = start > slack ? start - slack : 0;
		list[(*n)++].end = end < UINT64_MAX - slack ? end + slack : end;
	}
	*out = ckpt_steal_ptr(&list);
	return 0;
}

static int place(struct mem_family *f, struct ckpt_error *err)
{
	CKPT_AUTO_FREE struct mem_range *own = NULL;
	size_t n;
	int r = own_ranges(&own, &n, err);

	return r < 0 ? r : mem_family_place(f, own, n, err);
}

static int map(uint64_t start, uint64_t len, int prot, int flags, struct ckpt_error *err)
{
	void *at = mmap((void *)(uintptr_t)start, len, prot, flags, -1, 0);

	if (at == MAP_FAILED)
		return ckpt_fail_sys(err, errno, "mmap(2) of %llu bytes for the copies",
				     (unsigned long long)len);
	return 0;
}

/* All of the range is taken, so that nothing else of ckpt's comes to lie between. */
static int make(const struct mem_family *f, struct ckpt_copies_memory *out, struct ckpt_error *err)
{
	const int none = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
	int r = map(f->start, f->end - f->start, PROT_NONE, none, err);

	if (r < 0)
		return r;
	out->start = f->start;
	out->end = f->end;
	for (size_t i = 0; !r && i < f->n_stretches; i++) {
		const struct mem_stretch *s = &f->stretch[i];
		const uint64_t len = (s->hi - s->lo) * MEM_PAGE;

		if (!s->at)
			continue;
		r = map(s->at, len, PROT_READ | PROT_WRITE, mem_map_flags(s->like) | MAP_FIXED,
			err);
		for (const struct mem_advice *a = mem_advices; !r && a->flag; a++)
			if (s->like->flags & a->flag & (MEM_HUGEPAGE | MEM_NOHUGEPAGE) &&
			    madvise((void *)(uintptr_t)s->at, len, a->advice))
				r = ckpt_fail_sys(err, errno, "madvise(2)");
	}
	return r;
}

static int prepare(struct ckpt_run *run, unsigned copies, struct ckpt_copies_memory *out,
		   struct ckpt_error *err)
{
	struct mem_state *st;
	struct mem_family *f;
	int r;

	if (copies < 2 || !ckpt_opt_bool(run, "share-copies") || is_strictly_counted())
		return 0;
	/* what is missing on this machine is listed by the copies, who ask the same */
	r = mem_plan(run, err);
	if (!r)
		r = mem_state_get(run, &st, err);
	if (!r)
		r = mem_family_plan_copies(run, st->image, copies, &st->family, err);
	if (r < 0)
		return r;
	f = st->family;
	r = place(f, err);
	if (r < 0 || !f->start)
		return r;
	r = make(f, out, err);
	if (!r)
		r = mem_family_fill(f, 0, getpid(), err);
	out->plan = f;
	return r;
}

const struct ckpt_copies_kind mem_copies_kind = {
	.size = sizeof(mem_copies_kind),
	.prepare = prepare,
};
