/* SPDX-License-Identifier: MIT */
/* Are tasks dead, and is what is left of them gone? */
#include <poll.h>
#include <stdio.h>

#include "process/set.h"

#define PF_EXITING 0x4 /* field 9 of /proc/PID/stat, include/linux/sched.h */
#define REAPER_US  3000000

/* Are there threads that we still have to reap, as their tracer? */
static bool reap_threads(const struct ckpt_task *t)
{
	bool left = false;
	int status;

	for (size_t i = t->n_threads; i-- > 0;) {
		const struct ckpt_thread *th = t->threads[i];
		pid_t r;

		do
			r = tracer_wait(th->agent->tracer, th->tid, &status);
		while (r > 0);
		left |= !r;
	}
	return left;
}

/*
 * Is it dead, or dying for certain? The init of a pid namespace stays until all
 * that were in it are reaped, maybe by somebody who waits for us to end first.
 * We reap as a tracer must, so that the real parents hear of the deaths.
 */
static bool is_dead(const struct ckpt_task *t)
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

size_t await_deaths(const struct proc_set *ps)
{
	const struct ckpt_task *one = NULL;
	size_t alive = 0;

	for (size_t i = 0; i < ps->n; i++) {
		if (is_dead(&ps->tasks[i]->pub))
			continue;
		one = &ps->tasks[i]->pub;
		alive++;
	}
	if (one) {
		struct pollfd end = { .fd = one->pidfd, .events = POLLIN };

		(void)poll(&end, 1, 1);
	}
	return alive;
}

/*
 * A restore needs the numbers free, and pid 1 may take its time. Any other parent may be
 * waiting for us to end before it reaps.
 */
void wait_for_reaper(const struct proc_set *ps)
{
	const uint64_t end = now_us() + REAPER_US;

	do {
		const struct ckpt_task *waiting = NULL;
		struct pollfd p = { .fd = -1 };

		for (size_t k = 0; k < ps->n; k++) {
			const struct ckpt_task *t = &ps->tasks[k]->pub;
			/* one dies after the other, the main thread may have been the first */
			const bool ours = reap_threads(t);

			if (!awaits_init(t))
				continue;
			waiting = t;
			p.events = ours ? POLLIN : 0;
		}
		if (!waiting)
			return;
		/*
		 * Since Linux 6.9 a pidfd tells of the reaping too (POLLHUP). That of a thread
		 * which stood for the task tells of the thread.
		 */
		if (!waiting->ended)
			p.fd = waiting->pidfd;
		(void)poll(&p, 1, p.events ? 1 : 5);
	} while (now_us() < end);
}
