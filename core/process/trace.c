/* SPDX-License-Identifier: MIT */
/*
 * ptrace(2) and waitpid(2) of a thread are its tracer's alone: that is the engine, or the keeper
 * for those that must not be without a tracer for a moment (rescue.c). The keeper has the engine's
 * memory, so that a request is the same for both.
 */
#include <errno.h>
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

long ckpt_trace_request(const struct ckpt_thread *th, int request, unsigned long addr,
			unsigned long data)
{
	struct keeper *tracer = th->agent->tracer;

	if (tracer)
		return give(
			keeper_call(tracer, SYS_ptrace, request, th->tid, (long)addr, (long)data));
	/* not by ptrace(3), whose answer to the peeking ones may be -1 without an error */
	return syscall(SYS_ptrace, request, th->tid, addr, data);
}

pid_t tracer_wait(struct keeper *tracer, pid_t tid, int *status)
{
	if (tracer)
		return (pid_t)give(keeper_call(tracer, SYS_wait4, tid, (long)(uintptr_t)status,
					       __WALL | WNOHANG, 0));
	return waitpid(tid, status, __WALL | WNOHANG);
}

bool ckpt_is_tracer(struct ckpt_run *run, pid_t pid)
{
	const struct proc_set *ps = run_procs(run);

	return pid == (pid_t)syscall(SYS_gettid) || (ps && pid == ps->keeper.pid);
}
