/* SPDX-License-Identifier: MIT */
/* The pool of 2 MiB pages, see <ckpt/huge.h>. */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>

#include <ckpt/cleanup.h>
#include <ckpt/huge.h>
#include <ckpt/plugin.h>

bool ckpt_is_huge(int fd)
{
	struct statfs fs;

	return !fstatfs(fd, &fs) && fs.f_type == HUGETLBFS_MAGIC;
}

static uint64_t pool(const char *name)
{
	char path[96];
	unsigned long long n = 0;
	CKPT_AUTO_FILE FILE *f = NULL;

	snprintf(path, sizeof(path), "/sys/kernel/mm/hugepages/hugepages-2048kB/%s", name);
	f = fopen(path, "re");
	return f && fscanf(f, "%llu", &n) == 1 ? n : 0;
}

int ckpt_huge_need(struct ckpt_run *run, uint64_t pages, const char *what)
{
	uint64_t there, taken;

	/* while the tree is there it has them */
	if (!pages || ckpt_plan_only(run))
		return 0;
	there = pool("free_hugepages") + pool("nr_overcommit_hugepages");
	taken = pool("resv_hugepages") + pool("surplus_hugepages");
	if (taken > there)
		taken = there;
	if (there - taken >= pages)
		return 0;
	return ckpt_unmet(run, CKPT_EXIT_FAILED, "raise /proc/sys/vm/nr_hugepages",
			  "%s: %llu huge pages of 2 MiB are needed, and %llu are free", what,
			  (unsigned long long)pages, (unsigned long long)(there - taken));
}

int ckpt_huge_write(int fd, const void *buf, size_t len, uint64_t at, struct ckpt_error *err)
{
	const uint64_t from = at / CKPT_HUGE_PAGE * CKPT_HUGE_PAGE;
	const uint64_t end = (at + len + CKPT_HUGE_PAGE - 1) / CKPT_HUGE_PAGE * CKPT_HUGE_PAGE;
	const size_t size = (size_t)(end - from);
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
