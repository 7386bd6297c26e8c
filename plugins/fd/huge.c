/* SPDX-License-Identifier: MIT */
/* Memfds of huge pages: they know no write(2), and take their pages from a pool. */
#include "internal.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/vfs.h>

#define POOL "/sys/kernel/mm/hugepages/hugepages-2048kB/"

bool fd_is_huge(int fd)
{
	struct statfs fs;

	return !fstatfs(fd, &fs) && fs.f_type == HUGETLBFS_MAGIC;
}

static uint64_t pool(const char *path)
{
	CKPT_AUTO_FILE FILE *f = fopen(path, "re");
	unsigned long long n = 0;

	return f && fscanf(f, "%llu", &n) == 1 ? n : 0;
}

int fd_huge_plan(struct ckpt_run *run, const Ckpt__Fd__Ghost *g)
{
	uint64_t need = 0, there, next = 0;

	/* while the tree is there it has them */
	if (!g->huge || ckpt_plan_only(run))
		return 0;
	for (size_t i = 0; i < g->n_extents; i++) {
		const Ckpt__Fd__Extent *e = g->extents[i];
		uint64_t first = e->offset / FD_HUGE;
		uint64_t end = (e->offset + e->len + FD_HUGE - 1) / FD_HUGE;

		if (first < next)
			first = next;
		need += end - first;
		next = end;
	}
	there = pool(POOL "free_hugepages") + pool(POOL "nr_overcommit_hugepages");
	if (there >= need)
		return 0;
	return ckpt_unmet(run, CKPT_EXIT_FAILED, "raise /proc/sys/vm/nr_hugepages",
			  "memfd %u needs %llu huge pages of 2 MiB, and %llu are free", g->id,
			  (unsigned long long)need, (unsigned long long)there);
}

int fd_huge_write(int fd, const void *buf, size_t len, uint64_t at, struct ckpt_error *err)
{
	const uint64_t from = at / FD_HUGE * FD_HUGE;
	const size_t size = (size_t)((at + len + FD_HUGE - 1) / FD_HUGE * FD_HUGE - from);
	char *to;

	/* pages that are missing are an error here, and would be a SIGBUS below */
	if (fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)from, (off_t)size))
		return ckpt_fail_sys(err, errno, "huge pages of a pool");
	to = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, (off_t)from);
	if (to == MAP_FAILED)
		return ckpt_fail_sys(err, errno, "mmap of huge pages");
	memcpy(to + (at - from), buf, len);
	munmap(to, size);
	return 0;
}
