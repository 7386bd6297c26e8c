/* SPDX-License-Identifier: MIT */
/* What mappings are made with, and which of them are made in one go. */
#include "mem.h"

int mem_map_flags(const mem_vma_rec *v)
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
	if (v->flags & MEM_HUGETLB)
		flags |= MAP_HUGETLB | 21 << MAP_HUGE_SHIFT;
	return flags;
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

void mem_first_prots(const struct mem_task_image *ti, int *prots)
{
	const mem_pages_rec *g = ti->pages;
	size_t run = 0, again = 0;

	for (size_t i = 0; i < ti->vmas->n_vma; i++) {
		const mem_vma_rec *v = ti->vmas->vma[i];

		while (run < g->n_start && (g->start[run] + g->pages[run]) * MEM_PAGE <= v->start)
			run++;
		while (again < g->n_again &&
		       (g->again[again] + g->agains[again]) * MEM_PAGE <= v->start)
			again++;
		prots[i] = first_prot(
			v, (run < g->n_start && g->start[run] * MEM_PAGE < v->end) ||
				   (again < g->n_again && g->again[again] * MEM_PAGE < v->end));
	}
}

size_t mem_group_end(const mem_vmas_rec *m, const int *prots, size_t i)
{
	const mem_vma_rec *v = m->vma[i];

	for (i++; i < m->n_vma; i++) {
		mem_vma_rec next = *m->vma[i], last = *m->vma[i - 1];

		next.prot = last.prot = 0;
		if (v->kind != MEM_PRIVATE_ANON || prots[i] != prots[i - 1] ||
		    !mem_rec_mergeable(&last, &next))
			break;
	}
	return i;
}

uint64_t mem_seam_after(const mem_vmas_rec *m, uint64_t at, uint64_t end)
{
	size_t lo = 0, hi = m->n_seam;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;

		if (m->seam[mid] <= at)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < m->n_seam && m->seam[lo] < end ? m->seam[lo] : end;
}
