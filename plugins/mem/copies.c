/* SPDX-License-Identifier: MIT */
/*
 * Memory of several copies, made and filled once by ckpt itself at scratch addresses,
 * before the copies are started: their roots inherit it by fork.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static bool read_limit(const char *dir, const char *file, uint64_t *value)
{
	char path[PATH_MAX], text[32] = "";
	CKPT_AUTO_FILE FILE *f = NULL;

	snprintf(path, sizeof(path), "%s/%s", dir, file);
	f = fopen(path, "re");
	/* "max" is none */
	if (!f || !fgets(text, sizeof(text), f) || text[0] < '0' || text[0] > '9')
		return false;
	*value = strtoull(text, NULL, 10);
	return true;
}

/* Has the group at that directory, or one above it, less than that to give? */
static bool is_group_short(const char *top, const char *group, uint64_t need)
{
	static const char *const files[][2] = {
		{ "memory.max", "memory.current" },
		{ "memory.limit_in_bytes", "memory.usage_in_bytes" },
	};
	const size_t least = strlen(top);
	char dir[PATH_MAX];
	uint64_t max, used;

	snprintf(dir, sizeof(dir), "%s%s", top, group);
	for (char *slash; strlen(dir) > least; *slash = '\0') {
		for (size_t i = 0; i < CKPT_ARRAY_SIZE(files); i++)
			if (read_limit(dir, files[i][0], &max) &&
			    read_limit(dir, files[i][1], &used) &&
			    (used > max || max - used < need))
				return true;
		slash = strrchr(dir, '/');
	}
	return false;
}

/* All memory is charged to ckpt's group, which may be a smaller one than the copies'. */
static bool is_memory_short(uint64_t need)
{
	CKPT_AUTO_FILE FILE *f = fopen("/proc/self/cgroup", "re");
	char line[PATH_MAX];

	while (f && fgets(line, sizeof(line), f)) {
		char *group = strrchr(line, ':'), *kind = strchr(line, ':');
		bool v2 = group && group == kind + 1;

		if (!group || (!v2 && !strstr(kind, "memory")))
			continue;
		group++;
		group[strcspn(group, "\n")] = '\0';
		if (is_group_short(v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory", group, need))
			return true;
	}
	return false;
}

/*
 * Each stretch has the gap before it, and the root has all of them while its own mappings
 * are made.
 */
static bool are_mappings_few(const struct mem_family *f)
{
	uint64_t limit = 0, most = 0;

	for (size_t i = 0; i < f->im->n_tasks; i++)
		if (f->im->tasks[i].vmas->n_vma > most)
			most = f->im->tasks[i].vmas->n_vma;
	return read_limit("/proc/sys/vm", "max_map_count", &limit) &&
	       2 * f->n_stretches + 2 * most + 1000 < limit;
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

static int map(uint64_t start, uint64_t len, int prot, int flags, int fd, uint64_t offset,
	       struct ckpt_error *err)
{
	void *at = mmap((void *)(uintptr_t)start, len, prot, flags, fd, (off_t)offset);

	if (at == MAP_FAILED)
		return ckpt_fail_sys(err, errno, "mmap(2) of %llu bytes for the copies",
				     (unsigned long long)len);
	return 0;
}

static int make_stretch(const struct mem_family *f, const struct mem_stretch *s, int *fds,
			struct ckpt_error *err)
{
	const uint64_t len = (s->hi - s->lo) * MEM_PAGE;
	const int flags = mem_map_flags(s->like) | MAP_FIXED;
	uint64_t offset = 0;
	int fd = -1, r;

	if (s->like->kind == MEM_FILE_PRIVATE) {
		int *open = &fds[s->like->object - 1];

		/* one description for all of a file, as its program has mapped it */
		if (*open < 0)
			*open = mem_early_open(f, s->like->object, err);
		if (*open < 0)
			return *open;
		fd = *open;
		offset = (s->lo + s->file) * MEM_PAGE;
	}
	r = map(s->at, len, PROT_READ | PROT_WRITE, flags, fd, offset, err);
	for (const struct mem_advice *a = mem_advices; !r && a->flag; a++)
		if (s->like->flags & a->flag & (MEM_HUGEPAGE | MEM_NOHUGEPAGE) &&
		    madvise((void *)(uintptr_t)s->at, len, a->advice))
			r = ckpt_fail_sys(err, errno, "madvise(2)");
	return r;
}

/* All of the range is taken, so that nothing else of ckpt's comes to lie between. */
static int make(const struct mem_family *f, struct ckpt_copies_memory *out, struct ckpt_error *err)
{
	const int none = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
	CKPT_AUTO_FREE int *fds = malloc((f->im->n_files + 1) * sizeof(*fds));
	int r;

	if (!fds)
		return ckpt_fail(err, ENOMEM, "out of memory");
	memset(fds, -1, (f->im->n_files + 1) * sizeof(*fds));
	r = map(f->start, f->end - f->start, PROT_NONE, none, -1, 0, err);
	if (r < 0)
		return r;
	out->start = f->start;
	out->end = f->end;
	for (size_t i = 0; !r && i < f->n_stretches; i++)
		if (f->stretch[i].at)
			r = make_stretch(f, &f->stretch[i], fds, err);
	for (size_t i = 0; i < f->im->n_files; i++)
		if (fds[i] >= 0)
			close(fds[i]);
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
	if (!is_memory_short(f->n_entries * MEM_PAGE) && are_mappings_few(f))
		r = place(f, err);
	if (!r && f->start)
		r = make(f, out, err);
	mem_early_done(f);
	if (r < 0 || !f->start)
		return r;
	r = mem_family_fill(f, 0, getpid(), err);
	out->plan = f;
	return r;
}

const struct ckpt_copies_kind mem_copies_kind = {
	.size = sizeof(mem_copies_kind),
	.prepare = prepare,
};
