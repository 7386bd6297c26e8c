/* SPDX-License-Identifier: MIT */
/*
 * Keeping a tree from going on after the engine's death, for as long as somebody who outlives it
 * has something of the tree's in his hands.
 */
#include <errno.h>

#include "engine/run.h"
#include "process/set.h"

static void add_to_all(const struct proc_set *ps, uint32_t by)
{
	for (size_t i = 0; i < ps->n; i++)
		if (ps->tasks[i]->seg)
			__atomic_add_fetch(&segment_header(ps->tasks[i]->seg)->hold, by,
					   __ATOMIC_SEQ_CST);
}

int ckpt_hold_tree(struct ckpt_run *run)
{
	const struct proc_set *ps = run_procs(run);
	uint32_t died = 0;

	/* an agent looks the other way round: at the owner, then at the hold */
	add_to_all(ps, 1);
	for (size_t i = 0; i < ps->n; i++)
		if (ps->tasks[i]->seg)
			died |= __atomic_load_n(&segment_header(ps->tasks[i]->seg)->owner,
						__ATOMIC_SEQ_CST) &
				AGENT_OWNER_DIED;
	if (!died)
		return 0;
	add_to_all(ps, (uint32_t)-1);
	return -ESRCH;
}

void ckpt_unhold_tree(struct ckpt_run *run)
{
	add_to_all(run_procs(run), (uint32_t)-1);
}
