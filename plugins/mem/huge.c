/* SPDX-License-Identifier: MIT */
/* Memory of huge page pools: is there enough of it? */
#include <ckpt/huge.h>

#include "mem.h"

/* In how many huge pages of a range are the pages that are stored? */
static uint64_t stored_in(const uint64_t *start, const uint64_t *pages, size_t n, uint64_t from,
			  uint64_t to)
{
	uint64_t count = 0, next = from / CKPT_HUGE_PAGE;

	for (size_t i = 0; i < n; i++) {
		uint64_t first = start[i] * MEM_PAGE, end = first + pages[i] * MEM_PAGE;

		if (end <= from || first >= to)
			continue;
		first = (first < from ? from : first) / CKPT_HUGE_PAGE;
		end = ((end > to ? to : end) + CKPT_HUGE_PAGE - 1) / CKPT_HUGE_PAGE;
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
				count += (v->end - v->start) / CKPT_HUGE_PAGE;
		}
	}
	for (size_t i = 0; i < im->n_shared; i++) {
		const mem_shared_rec *o = im->shared[i];

		if (!o || !o->huge)
			continue;
		count += mem_is_noreserve(im, o->id)
				 ? stored_in(o->start, o->pages, o->n_start, 0, o->size)
				 : o->size / CKPT_HUGE_PAGE;
	}
	return count;
}

int mem_huge_plan(struct ckpt_run *run, const struct mem_image *im)
{
	return ckpt_huge_need(run, needed(im), "the tree's memory");
}
