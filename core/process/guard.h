/* SPDX-License-Identifier: MIT */
/*
 * Between the first task that is let go, or killed, and the last: a child that kills all of them
 * if ckpt dies meanwhile. The tree is there whole, or not at all.
 */
#ifndef CKPT_PROCESS_GUARD_H
#define CKPT_PROCESS_GUARD_H

#include "process/set.h"

struct guard {
	pid_t pid;  /* 0: not running */
	int engine; /* a pidfd of ckpt */
	size_t n;
	struct guarded *tasks;
	void *stack;
};

/* What is done one after the other. */
enum guard_steps { GUARD_TASKS, GUARD_THREADS };

int guard_start(struct guard *g, const struct proc_set *ps, enum guard_steps steps,
		struct ckpt_error *err);
/* From here on a death of ckpt changes nothing any more. */
void guard_end(struct guard *g);

#define AUTO_GUARD __attribute__((cleanup(guard_end)))

#endif
