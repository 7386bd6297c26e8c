/* SPDX-License-Identifier: MIT */
/* After mapping: does the kernel now say what the image says? And what `ckpt check` asks. */
#include <fcntl.h>
#include <linux/prctl.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

#include "mem.h"

static bool same_kind(const mem_vma_rec *v, const struct mem_vma *live)
{
	bool shared = v->kind == MEM_SHARED_ANON || v->kind == MEM_FILE_SHARED;

	switch (v->kind) {
	case MEM_EXTENSION:
		return true;
	case MEM_SPECIAL:
		return !strcmp(live->path, v->name);
	case MEM_PRIVATE_ANON:
		return !live->shared && live->prot == (int)v->prot &&
		       (v->flags & MEM_HUGETLB ? !strcmp(live->path, "/anon_hugepage (deleted)")
					       : !live->ino);
	default:
		return live->shared == shared && live->ino && live->prot == (int)v->prot &&
		       live->offset == v->offset + (live->start - v->start);
	}
}

/* One mapping of the image may be several of the kernel's (seams). */
static bool covers(const mem_vma_rec *v, const struct mem_maps *m, size_t *i)
{
	uint64_t at = v->start;

	while (*i < m->n && at < v->end) {
		const struct mem_vma *live = &m->vma[*i];

		if (live->start != at || live->end > v->end || !same_kind(v, live))
			return false;
		at = live->end;
		++*i;
	}
	return at == v->end;
}

int mem_map_check(const struct mem_job *j, struct ckpt_error *err)
{
	MEM_AUTO_MAPS struct mem_maps m = { 0 };
	char want[MEM_NAME_MAX], got[MEM_NAME_MAX] = "nothing";
	uint64_t start, end;
	size_t i = 0, n = 0;
	int r = mem_maps_read(j->task, "maps", &m, err);

	if (r < 0)
		return r;
	ckpt_agent_range(j->run, &start, &end);
	for (size_t k = 0; k < m.n; k++)
		if (m.vma[k].end <= start || m.vma[k].start >= end)
			m.vma[n++] = m.vma[k];
	m.n = n;
	for (size_t k = 0; k < j->ti->vmas->n_vma; k++) {
		const mem_vma_rec *v = j->ti->vmas->vma[k];

		if (covers(v, &m, &i))
			continue;
		if (i < m.n)
			mem_vma_name(&m.vma[i], got, sizeof(got));
		return ckpt_fail(err, EIO, "%s did not come back as it was: there is %s",
				 mem_rec_name(j->im, v, want, sizeof(want)), got);
	}
	if (i < m.n)
		return ckpt_fail(err, EIO, "there is a mapping too many: %s",
				 mem_vma_name(&m.vma[i], got, sizeof(got)));
	return 0;
}

/* ---- needs ---------------------------------------------------------------------- */

static int need_map_files(struct ckpt_error *err)
{
	void *at = mmap(NULL, MEM_PAGE, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	char path[64];
	int fd, e;

	if (at == MAP_FAILED)
		return ckpt_fail_sys(err, errno, "mmap");
	snprintf(path, sizeof(path), "/proc/self/map_files/%llx-%llx",
		 (unsigned long long)(uintptr_t)at, (unsigned long long)(uintptr_t)at + MEM_PAGE);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	e = errno;
	munmap(at, MEM_PAGE);
	if (fd < 0) {
		ckpt_fail_sys(err, e, "open %s", path);
		return ckpt_hint(err,
				 "needs CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN in the initial "
				 "user namespace");
	}
	close(fd);
	return 0;
}

static int need_set_mm(struct ckpt_error *err)
{
	unsigned size = 0;

	if (prctl(PR_SET_MM, PR_SET_MM_MAP_SIZE, &size, 0, 0) < 0)
		return ckpt_fail_sys(err, errno, "prctl(PR_SET_MM_MAP_SIZE)");
	if (size != sizeof(struct prctl_mm_map))
		return ckpt_fail(err, ENOTSUP, "the kernel's prctl_mm_map has %u bytes", size);
	return 0;
}

static int need_vm_writev(struct ckpt_error *err)
{
	char from = 1, to = 0;
	struct iovec source = { &from, 1 }, place = { &to, 1 };

	if (process_vm_writev(getpid(), &source, 1, &place, 1, 0) != 1)
		return ckpt_fail_sys(err, errno, "process_vm_writev(2)");
	return 0;
}

const struct ckpt_need mem_needs[] = {
	{ "map_files", true, need_map_files },
	{ "PR_SET_MM_MAP", true, need_set_mm },
	{ "PAGEMAP_SCAN", false, mem_scan_probe },
	{ "process_vm_writev", true, need_vm_writev },
	{ NULL, false, NULL },
};
