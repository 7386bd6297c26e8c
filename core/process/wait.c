/* SPDX-License-Identifier: MIT */
/* Waiting for tracees, with a deadline: a task in uninterruptible sleep must not hang us. */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <string.h>
#include <time.h>

#include "process/set.h"
#include "process/uapi.h"

#define STEP_TIMEOUT_MS 10000

uint64_t now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

int wait_stop(struct keeper *tracer, pid_t tid, int timeout_ms, int *status)
{
	uint64_t start = now_us(), passed = 0;

	for (;;) {
		/* a look after the time is over is the last: what has happened meanwhile counts */
		const bool last = passed >= (uint64_t)timeout_ms * 1000;
		pid_t r = (pid_t)INSIST(tracer_wait(tracer, tid, status));

		if (r == tid)
			return WIFSTOPPED(*status) ? 0 : -ESRCH;
		if (r < 0 && errno != EINTR)
			return errno == ECHILD ? -ESRCH : -errno;
		if (last)
			return -ETIMEDOUT;
		/* it may be waiting for this very processor */
		sched_yield();
		passed = now_us() - start;
		/* a stop takes some 20 us; whoever needs much longer gets polled slowly */
		if (passed > 200) {
			struct timespec nap = { 0, passed > 20000 ? 1000000 : 50000 };

			nanosleep(&nap, NULL);
		}
	}
}

bool is_event_stop(int status)
{
	return status >> 16 == PTRACE_EVENT_STOP;
}

int interrupt(struct ckpt_agent *a, bool from_stop, struct ckpt_error *err)
{
	pid_t tid = a->th->tid;

	if (INSIST(ckpt_ptrace(a->th, PTRACE_INTERRUPT, NULL, NULL)) ||
	    (from_stop && INSIST(ckpt_ptrace(a->th, PTRACE_CONT, NULL, 0L))))
		return ckpt_fail_sys(err, errno, "thread %d: PTRACE_INTERRUPT", (int)tid);
	return 0;
}

int wait_event_stop(struct ckpt_agent *a, int timeout_ms, struct ckpt_error *err)
{
	pid_t tid = a->th->tid;
	int status, r;

	for (;;) {
		long sig;

		r = wait_stop(a->tracer, tid, timeout_ms, &status);
		if (r == -ESRCH)
			a->state = THREAD_GONE;
		if (r)
			return ckpt_fail_sys(err, r, "thread %d does not stop", (int)tid);
		if (is_event_stop(status))
			break;
		/*
		 * A signal came first. Delivered now, its handler's frame becomes part
		 * of what is saved; the interrupt is still pending and stops the
		 * thread before it runs. A stop signal that meets a thread in the
		 * agent has to wait.
		 */
		sig = status >> 16 ? 0 : WSTOPSIG(status);
		if (a->seat && sig == SIGSTOP) {
			a->stop_pending = true;
			sig = 0;
		}
		if (INSIST(ckpt_ptrace(a->th, PTRACE_CONT, NULL, sig)))
			return ckpt_fail_sys(err, errno, "thread %d: PTRACE_CONT", (int)tid);
	}
	a->state = THREAD_STOPPED;
	return 0;
}

int interrupt_and_wait(struct ckpt_agent *a, bool from_stop, int timeout_ms, struct ckpt_error *err)
{
	int r = interrupt(a, from_stop, err);

	return r ? r : wait_event_stop(a, timeout_ms, err);
}

int step_syscall(struct ckpt_agent *a, struct user_regs_struct *regs, struct ckpt_error *err)
{
	int status, r;

	do {
		if (INSIST(ckpt_ptrace(a->th, PTRACE_SETREGS, NULL, regs)) ||
		    INSIST(ckpt_ptrace(a->th, PTRACE_SINGLESTEP, NULL, 0L)))
			return ckpt_fail_sys(err, errno, "thread %d: single step", (int)a->th->tid);
		r = wait_stop(a->tracer, a->th->tid, STEP_TIMEOUT_MS, &status);
		if (r)
			return ckpt_fail_sys(err, r, "thread %d: single step", (int)a->th->tid);
	} while (status >> 16 == PTRACE_EVENT_STOP);
	if (WSTOPSIG(status) != SIGTRAP)
		return ckpt_fail(err, EFAULT, "thread %d: %s in a single step", (int)a->th->tid,
				 strsignal(WSTOPSIG(status)));
	if (INSIST(ckpt_ptrace(a->th, PTRACE_GETREGS, NULL, regs)))
		return ckpt_fail_sys(err, errno, "thread %d: registers", (int)a->th->tid);
	return 0;
}

int call_start(struct ckpt_agent *a, const struct user_regs_struct *regs, struct ckpt_error *err)
{
	const uint64_t all = ~0ULL;
	pid_t tid = a->th->tid;

	/*
	 * Registers before mask: a thread that goes on with all signals blocked must
	 * already be on its way to the agent, which gives the mask back when it leaves.
	 */
	if (INSIST(ckpt_ptrace(a->th, PTRACE_SETREGS, NULL, regs)) ||
	    INSIST(ckpt_ptrace(a->th, PTRACE_SETSIGMASK, sizeof(all), &all)) ||
	    INSIST(ckpt_ptrace(a->th, PTRACE_SYSCALL, NULL, 0L)))
		return ckpt_fail_sys(err, errno, "thread %d: registers", (int)tid);
	return 0;
}

int call_entered(struct ckpt_agent *a, struct ckpt_error *err)
{
	pid_t tid = a->th->tid;
	int status, r;

	for (;;) {
		r = wait_stop(a->tracer, tid, STEP_TIMEOUT_MS, &status);
		if (r)
			return ckpt_fail_sys(err, r, "thread %d: a system call in its place",
					     (int)tid);
		if (!(status >> 16) && WSTOPSIG(status) == (SIGTRAP | 0x80))
			break;
		if (!(status >> 16) && WSTOPSIG(status) != SIGSTOP)
			return ckpt_fail(err, EFAULT, "thread %d: %s in a system call in its place",
					 (int)tid, strsignal(WSTOPSIG(status)));
		a->stop_pending |= !(status >> 16);
		if (INSIST(ckpt_ptrace(a->th, PTRACE_SYSCALL, NULL, 0L)))
			return ckpt_fail_sys(err, errno, "thread %d: PTRACE_SYSCALL", (int)tid);
	}
	/* the call is made; the stop comes before user code, where all other threads are */
	return interrupt(a, true, err);
}

int call_end(struct ckpt_agent *a, struct user_regs_struct *regs, struct ckpt_error *err)
{
	int r = wait_event_stop(a, STEP_TIMEOUT_MS, err);

	if (!r && INSIST(ckpt_ptrace(a->th, PTRACE_GETREGS, NULL, regs)))
		r = ckpt_fail_sys(err, errno, "thread %d: registers", (int)a->th->tid);
	return r;
}
