/* SPDX-License-Identifier: MIT */
/* Memfds of huge pages: is there enough of these? */
#include <ckpt/huge.h>

#include "internal.h"

int fd_huge_plan(struct ckpt_run *run, const Ckpt__Fd__Ghost *g)
{
	uint64_t need = 0, next = 0;
	char what[32];

	for (size_t i = 0; g->huge && i < g->n_extents; i++) {
		const Ckpt__Fd__Extent *e = g->extents[i];
		uint64_t first = e->offset / CKPT_HUGE_PAGE;
		uint64_t end = (e->offset + e->len + CKPT_HUGE_PAGE - 1) / CKPT_HUGE_PAGE;

		if (first < next)
			first = next;
		need += end - first;
		next = end;
	}
	snprintf(what, sizeof(what), "memfd %u", g->id);
	return ckpt_huge_need(run, need, what);
}
