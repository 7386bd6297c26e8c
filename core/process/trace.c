/* SPDX-License-Identifier: MIT */
/*
 * ptrace(2) and waitpid(2) of a thread are its tracer's alone: that is the engine, or the keeper
 * for those that must not be without a tracer for a moment (rescue.c). The keeper has the engine's
 * memory, so that a request is the same for both.
 */
#include <errno.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ckpt/plugin.h>

#include "engine/run.h"
#include "process/set.h"

static long give(long r)
{
	if (r >= 0)
		return r;
	errno = (int)-r;
	return -1;
}

/*
 * Without its tracer a thread has lost the suspension of its filters: it must not be left in an
 * agent for longer than it takes to notice.
 */
static long ask(struct keeper *k, long nr, long a, long b, long c, long d)
{
	const long r = keeper_call(k, nr, a, b, c, d);

	if (keeper_is_gone(r))
		rescue_alone((struct proc_set *)((char *)k - offsetof(struct proc_set, keeper)));
	return r;
}

long ckpt_trace_request(const struct ckpt_thread *th, int request, unsigned long addr,
			unsigned long data)
{
	struct keeper *tracer = th->agent->tracer;

	if (tracer)
		return give(ask(tracer, SYS_ptrace, request, th->tid, (long)addr, (long)data));
	/* not by ptrace(3), whose answer to the peeking ones may be -1 without an error */
	return syscall(SYS_ptrace, request, th->tid, addr, data);
}

pid_t tracer_wait(struct keeper *tracer, pid_t tid, int *status)
{
	if (tracer)
		return (pid_t)give(
			ask(tracer, SYS_wait4, tid, (long)(uintptr_t)status, __WALL | WNOHANG, 0));
	return waitpid(tid, status, __WALL | WNOHANG);
}

static bool keeps_one(const struct proc_set *ps)
{
	for (size_t i = 0; i < ps->n; i++)
		for (size_t k = 0; k < ps->tasks[i]->pub.n_threads; k++)
			if (ps->tasks[i]->pub.threads[k]->agent->tracer)
				return true;
	return false;
}

int proc_check_whole(struct proc_set *ps, struct ckpt_error *err)
{
	if (keeps_one(ps))
		ask(&ps->keeper, SYS_getpid, 0, 0, 0, 0);
	if (!ps->keeper.lost)
		return 0;
	ckpt_fail(err, EPIPE,
		  "ckpt-keeper, which kept a part of the tree from going on, was killed");
	return ckpt_hint(err, "dump again");
}

bool ckpt_is_tracer(struct ckpt_run *run, pid_t pid)
{
	const struct proc_set *ps = run_procs(run);

	return pid == (pid_t)syscall(SYS_gettid) || (ps && pid == ps->keeper.pid);
}

void proc_end_process(struct proc_set *ps, int status)
{
	keeper_end_process(&ps->keeper, status);
}
