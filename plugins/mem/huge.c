/* SPDX-License-Identifier: MIT */
/* Memory of huge page pools: is there enough of it, and how it is written to from outside. */
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>

#include "mem.h"

/* In how many huge pages of a range are the pages that are stored? */
static uint64_t stored_in(const uint64_t *start, const uint64_t *pages, size_t n, uint64_t from,
			  uint64_t to)
{
	uint64_t count = 0, next = from / MEM_HUGE;

	for (size_t i = 0; i < n; i++) {
		uint64_t first = start[i] * MEM_PAGE, end = first + pages[i] * MEM_PAGE;

		if (end <= from || first >= to)
			continue;
		first = (first < from ? from : first) / MEM_HUGE;
		end = ((end > to ? to : end) + MEM_HUGE - 1) / MEM_HUGE;
		if (first < next)
			first = next;
		if (end > first) {
			count += end - first;
			next = end;
		}
	}
	return count;
}

bool mem_is_noreserve(const struct mem_image *im, uint32_t object)
{
	for (size_t i = 0; i < im->n_tasks; i++)
		for (size_t k = 0; k < im->tasks[i].vmas->n_vma; k++) {
			const mem_vma_rec *v = im->tasks[i].vmas->vma[k];
			uint32_t is = v->kind == MEM_SHARED_ANON ? v->object
				      : v->kind == MEM_FILE_SHARED
					      ? im->files[v->object - 1]->content
					      : 0;

			if (is == object && v->flags & MEM_NORESERVE)
				return true;
		}
	return false;
}

static uint64_t needed(const struct mem_image *im)
{
	uint64_t count = 0;

	for (size_t i = 0; i < im->n_tasks; i++) {
		const mem_pages_rec *g = im->tasks[i].pages;

		for (size_t k = 0; k < im->tasks[i].vmas->n_vma; k++) {
			const mem_vma_rec *v = im->tasks[i].vmas->vma[k];

			if (!(v->flags & MEM_HUGETLB) || v->kind != MEM_PRIVATE_ANON)
				continue;
			/* the others take theirs from the pool when they are made */
			if (v->flags & MEM_NORESERVE)
				count += stored_in(g->start, g->pages, g->n_start, v->start,
						   v->end) +
					 stored_in(g->again, g->agains, g->n_again, v->start,
						   v->end);
			else
				count += (v->end - v->start) / MEM_HUGE;
		}
	}
	for (size_t i = 0; i < im->n_shared; i++) {
		const mem_shared_rec *o = im->shared[i];

		if (!o || !o->huge)
			continue;
		count += mem_is_noreserve(im, o->id)
				 ? stored_in(o->start, o->pages, o->n_start, 0, o->size)
				 : o->size / MEM_HUGE;
	}
	return count;
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

int mem_huge_plan(struct ckpt_run *run, const struct mem_image *im)
{
	uint64_t need = needed(im), there, taken;

	/* while the tree is there it has them */
	if (!need || ckpt_plan_only(run))
		return 0;
	there = pool("free_hugepages") + pool("nr_overcommit_hugepages");
	taken = pool("resv_hugepages") + pool("surplus_hugepages");
	if (taken > there)
		taken = there;
	if (there - taken >= need)
		return 0;
	return ckpt_unmet(run, CKPT_EXIT_FAILED, "raise /proc/sys/vm/nr_hugepages",
			  "%llu huge pages of 2 MiB are needed, and %llu are free",
			  (unsigned long long)need, (unsigned long long)(there - taken));
}

bool mem_is_huge(int fd)
{
	struct statfs fs;

	return !fstatfs(fd, &fs) && fs.f_type == HUGETLBFS_MAGIC;
}

int mem_huge_write(int fd, const void *buf, size_t len, uint64_t at, struct ckpt_error *err)
{
	const uint64_t from = at / MEM_HUGE * MEM_HUGE;
	const size_t size = (size_t)((at + len + MEM_HUGE - 1) / MEM_HUGE * MEM_HUGE - from);
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
