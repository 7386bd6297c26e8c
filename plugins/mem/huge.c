/* SPDX-License-Identifier: MIT */
/* Memory of huge page pools: is there enough of it? */
#include <stdio.h>

#include "mem.h"

/* In how many huge pages of a mapping are the pages that are stored? */
static uint64_t stored_in(const uint64_t *start, const uint64_t *pages, size_t n,
			  const mem_vma_rec *v)
{
	uint64_t count = 0, next = v->start / MEM_HUGE;

	for (size_t i = 0; i < n; i++) {
		uint64_t first = start[i] * MEM_PAGE, end = first + pages[i] * MEM_PAGE;

		if (end <= v->start || first >= v->end)
			continue;
		first = (first < v->start ? v->start : first) / MEM_HUGE;
		end = ((end > v->end ? v->end : end) + MEM_HUGE - 1) / MEM_HUGE;
		if (first < next)
			first = next;
		if (end > first) {
			count += end - first;
			next = end;
		}
	}
	return count;
}

static uint64_t needed(const struct mem_image *im)
{
	uint64_t count = 0;

	for (size_t i = 0; i < im->n_tasks; i++) {
		const mem_pages_rec *g = im->tasks[i].pages;

		for (size_t k = 0; k < im->tasks[i].vmas->n_vma; k++) {
			const mem_vma_rec *v = im->tasks[i].vmas->vma[k];

			if (!(v->flags & MEM_HUGETLB))
				continue;
			/* the others take theirs from the pool when they are made */
			if (v->flags & MEM_NORESERVE)
				count += stored_in(g->start, g->pages, g->n_start, v) +
					 stored_in(g->again, g->agains, g->n_again, v);
			else
				count += (v->end - v->start) / MEM_HUGE;
		}
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
