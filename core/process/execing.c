/* SPDX-License-Identifier: MIT */
/*
 * Tasks in execve(2). It waits until all other threads are gone, those that are traced not before
 * their tracer has taken note of their end; and PTRACE_SEIZE of any thread of the task waits for
 * it, for no signal gives that up. So while we ask, a timer lets us take note of ends.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "process/execing.h"
#include "process/set.h"
#include "process/uapi.h"

#define TICK_NS 10000000
/* The library's for the time of a seizure, and whoever embeds it gets it back. */
#define SIGNAL (SIGRTMAX - 1)

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

void execing_reap(const struct ckpt_task *t)
{
	for (size_t i = 0; i < t->n_threads; i++) {
		const id_t tid = (id_t)t->threads[i]->tid;
		siginfo_t info = { 0 };

		/* of a tracee's stop the kernel tells whoever waits for anything, and only once */
		if (!waitid(P_PID, tid, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) &&
		    info.si_code && info.si_code <= CLD_DUMPED)
			waitid(P_PID, tid, &info, WEXITED | WNOHANG | __WALL);
	}
}

/*
 * A thread that is still the same as a tick ago may have to be waited for. Others are stopped in
 * microseconds, and to look at hundreds of siblings meanwhile takes longer than that.
 */
static void on_tick(int sig, siginfo_t *info, void *context)
{
	struct execing *x = info->si_value.sival_ptr;
	const struct ckpt_thread *th = x->asking;
	const int before = errno;

	if (info->si_code == SI_TIMER && th) {
		if (th == x->late) {
			execing_reap(th->task);
			/* which waits for our requests, and takes note when it gets that (keeper.c)
			 */
			if (x->keeper > 0)
				kill(x->keeper, SIGALRM);
		}
		x->late = th;
	}
	errno = before;
}

int execing_begin(struct execing *x, struct ckpt_error *err)
{
	struct sigaction action = { .sa_sigaction = on_tick, .sa_flags = SA_SIGINFO | SA_RESTART };
	const struct itimerspec ticks = { { 0, TICK_NS }, { 0, TICK_NS } };
	struct sigevent event = { .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGNAL };
	sigset_t only;

	event.sigev_value.sival_ptr = x;
	event.sigev_notify_thread_id = (pid_t)syscall(SYS_gettid);
	sigfillset(&action.sa_mask);
	sigemptyset(&only);
	sigaddset(&only, SIGNAL);
	if (sigaction(SIGNAL, &action, &x->action))
		return ckpt_fail_sys(err, errno, "sigaction(2)");
	x->begun = true;
	if (pthread_sigmask(SIG_UNBLOCK, &only, &x->mask))
		return ckpt_fail(err, EINVAL, "pthread_sigmask(3)");
	x->unblocked = true;
	if (timer_create(CLOCK_MONOTONIC, &event, &x->timer))
		return ckpt_fail_sys(err, errno, "timer_create(2)");
	x->ticks = true;
	return timer_settime(x->timer, 0, &ticks, NULL)
		       ? ckpt_fail_sys(err, errno, "timer_settime(2)")
		       : 0;
}

void execing_end(struct execing *x)
{
	if (x->ticks)
		timer_delete(x->timer);
	if (x->unblocked)
		pthread_sigmask(SIG_SETMASK, &x->mask, NULL);
	if (x->begun)
		sigaction(SIGNAL, &x->action, NULL);
	*x = (struct execing){ 0 };
}

bool execing_has_gone(const struct ckpt_task *t)
{
	const struct ckpt_thread *leader = t->threads[0];
	struct user_regs_struct now;

	if (leader->agent->state != THREAD_STOPPED)
		return false;
	/* whoever executes takes the leader's number, and not its tracer */
	if (INSIST(ckpt_ptrace(leader, PTRACE_GETREGS, NULL, &now)))
		return errno == ESRCH;
	/* it may have been seized under its own number, and stand already: at another place */
	return now.rip != leader->regs.rip || now.rsp != leader->regs.rsp;
}
