/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ckpt/cleanup.h>

#include "process/guard.h"
#include "process/spawn.h"
#include "process/uapi.h"

struct guarded {
	int pidfd;
	unsigned flags; /* of pidfd_send_signal(2) */
};

/*
 * The pidfd tells of our end after exit_ptrace() has killed or freed the tracees: those that are
 * free run for as long as the wake-up takes. In a session of its own: whoever kills our process
 * group leaves it alone.
 */
static SPAWN_CHILD void stand_guard(void *arg)
{
	const struct guard *g = arg;
	struct pollfd end = { .fd = g->engine, .events = POLLIN };

	sys6(SYS_setsid, 0, 0, 0, 0, 0, 0);
	sys6(SYS_prctl, PR_SET_NAME, (int64_t)(uintptr_t) "ckpt-guard", 0, 0, 0, 0);
	while (sys6(SYS_poll, (int64_t)(uintptr_t)&end, 1, -1, 0, 0, 0) != 1)
		;
	for (size_t i = 0; i < g->n; i++)
		sys6(SYS_pidfd_send_signal, g->tasks[i].pidfd, SIGKILL, 0, g->tasks[i].flags, 0, 0);
	for (;;)
		sys6(SYS_exit_group, 0, 0, 0, 0, 0, 0);
}

static size_t count_steps(const struct proc_set *ps, enum guard_steps steps)
{
	size_t n = 0;

	for (size_t i = 0; i < ps->n; i++)
		if (!ps->tasks[i]->pub.zombie)
			n += steps == GUARD_THREADS ? ps->tasks[i]->pub.n_threads : 1;
	return n;
}

int guard_start(struct guard *g, const struct proc_set *ps, enum guard_steps steps,
		struct ckpt_error *err)
{
	struct clone_args args = { .exit_signal = SIGCHLD };

	*g = (struct guard){ .engine = -1 };
	/* what is one step is done or not anyway */
	if (count_steps(ps, steps) < 2)
		return 0;
	g->engine = (int)syscall(SYS_pidfd_open, getpid(), 0);
	if (g->engine < 0)
		return ckpt_fail_sys(err, errno, "pidfd_open(2) of ckpt itself");
	g->tasks = calloc(ps->n, sizeof(*g->tasks));
	g->stack = malloc(SPAWN_STACK);
	if (!g->tasks || !g->stack)
		return ckpt_fail_sys(err, ENOMEM, "guard of %zu tasks", ps->n);
	for (size_t i = 0; i < ps->n; i++) {
		const struct ckpt_task *t = &ps->tasks[i]->pub;

		if (!t->zombie)
			g->tasks[g->n++] =
				(struct guarded){ t->pidfd,
						  t->ended ? PIDFD_SIGNAL_THREAD_GROUP : 0 };
	}
	g->pid = spawn(&args, g->stack, stand_guard, g);
	if (g->pid > 0)
		return 0;
	ckpt_fail_sys(err, g->pid, "clone3(2) of a guard");
	g->pid = 0;
	return -err->err;
}

void guard_end(struct guard *g)
{
	if (g->pid > 0 && ckpt_end_child(g->pid))
		return; /* it is in our memory still */
	g->pid = 0;
	if (g->engine >= 0)
		close(ckpt_steal_fd(&g->engine));
	free(ckpt_steal_ptr(&g->tasks));
	free(ckpt_steal_ptr(&g->stack));
}
