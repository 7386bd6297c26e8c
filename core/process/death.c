/* SPDX-License-Identifier: MIT */
/* Are tasks dead, and is what is left of them gone? */
#include <stdio.h>
#include <time.h>

#include "process/set.h"

#define PF_EXITING 0x4 /* field 9 of /proc/PID/stat, include/linux/sched.h */

static void reap_threads(const struct ckpt_task *t)
{
	int status;

	for (size_t i = t->n_threads; i-- > 0;)
		while (tracer_wait(t->threads[i]->agent->tracer, t->threads[i]->tid, &status) > 0)
			;
}

/*
 * Is it dead, or dying for certain? The init of a pid namespace stays until all
 * that were in it are reaped, maybe by somebody who waits for us to end first.
 * We reap as a tracer must, so that the real parents hear of the deaths.
 */
bool is_dead(const struct ckpt_task *t)
{
	struct ckpt_error why = { 0 };
	CKPT_AUTO_FREE char *stat = NULL;
	int64_t state = 0, flags = 0;

	reap_threads(t);
	if (ckpt_proc_read(t, "stat", &stat, &why) < 0)
		return why.err == ENOENT || why.err == ESRCH;
	ckpt_proc_stat_field(stat, 3, &state);
	ckpt_proc_stat_field(stat, 9, &flags);
	return state == 'Z' || state == 'X' || flags & PF_EXITING;
}

/* Is it a zombie that pid 1 has still to reap? */
static bool awaits_init(const struct ckpt_task *t)
{
	struct ckpt_error ignored = { 0 };
	CKPT_AUTO_FREE char *stat = NULL;
	int64_t parent = 0;
	char path[32];

	/* the thread that stood for the task is gone before its main one is reaped */
	snprintf(path, sizeof(path), "/proc/%d/stat", (int)t->pid);
	return ckpt_proc_read(t, t->ended ? path : "stat", &stat, &ignored) >= 0 &&
	       !ckpt_proc_stat_field(stat, 4, &parent) && parent == 1;
}

/*
 * A restore needs the numbers free, and pid 1 may take its time. Any other parent may be
 * waiting for us to end before it reaps.
 */
void wait_for_reaper(const struct proc_set *ps)
{
	struct timespec nap = { 0, 5000000 };

	for (int i = 0; i < 600; i++) {
		size_t waiting = 0;

		for (size_t k = 0; k < ps->n; k++) {
			/* one dies after the other, the main thread may have been the first */
			reap_threads(&ps->tasks[k]->pub);
			waiting += awaits_init(&ps->tasks[k]->pub);
		}
		if (!waiting)
			return;
		nanosleep(&nap, NULL);
	}
}
