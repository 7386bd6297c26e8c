/* SPDX-License-Identifier: MIT */
/*
 * Making our own stop invisible: system calls that return a visible EINTR when
 * a stop interrupts them are rolled back in the registers, those that need not be
 * restart_syscall(2) afterwards are not, and a thread inside
 * a restartable sequence is put on its abort path, where the kernel would have
 * put it.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ckpt/plugin.h>

#include "process/set.h"
#include "process/uapi.h"

/*
 * Calls that answer a stop with EINTR (signal(7)) instead of one of the
 * kernel's internal restart codes; the socket calls do so if they have a timeout.
 */
static const long not_restarted[] = {
	SYS_epoll_wait,	     SYS_epoll_pwait,  SYS_epoll_pwait2, SYS_semop,   SYS_semtimedop,
	SYS_rt_sigtimedwait, SYS_io_getevents, SYS_msgrcv,	 SYS_msgsnd,  SYS_recvfrom,
	SYS_recvmsg,	     SYS_recvmmsg,     SYS_sendto,	 SYS_sendmsg, SYS_sendmmsg,
	SYS_accept,	     SYS_accept4,      SYS_connect,	 SYS_read,    SYS_readv,
	SYS_write,	     SYS_writev,
};

static bool shows_eintr(const struct user_regs_struct *regs)
{
	if ((int64_t)regs->orig_rax < 0 || (int64_t)regs->rax != -EINTR)
		return false;
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(not_restarted); i++)
		if ((long)regs->orig_rax == not_restarted[i])
			return true;
	return false;
}

#define RESTART_NOHAND	  514
#define RESTART_BLOCK	  516
#define FUTEX_BITSET_WAIT 9
#define FUTEX_COMMAND	  0x7f

/*
 * A call that would go on as restart_syscall(2), though its own arguments say as well when it ends.
 * Called again as itself it can be told the next time: its number may be nowhere but in a register.
 */
static bool restarts_as_itself(const struct user_regs_struct *regs)
{
	if ((int64_t)regs->orig_rax < 0 || (int64_t)regs->rax != -RESTART_BLOCK)
		return false;
	return ((long)regs->orig_rax == SYS_poll && (int)regs->rdx < 0) ||
	       ((long)regs->orig_rax == SYS_futex &&
		(regs->rsi & FUTEX_COMMAND) == FUTEX_BITSET_WAIT);
}

#define BIT(sig) (1ULL << ((sig)-1))

/* What is ignored if nobody catches it, signal(7). */
static const uint64_t ignored_signals = BIT(SIGCHLD) | BIT(SIGCONT) | BIT(SIGURG) | BIT(SIGWINCH);

static uint64_t signals(const char *status, const char *key)
{
	char value[32];

	return ckpt_proc_field(status, key, value, sizeof(value)) ? 0 : strtoull(value, NULL, 16);
}

/*
 * Is a signal waiting that the thread does not block? Then the EINTR is a real one. Of ignored
 * signals none would be there without us: the kernel keeps them since PTRACE_SEIZE.
 */
static bool has_signal(const struct ckpt_thread *th)
{
	char path[40];
	CKPT_AUTO_FREE char *text = NULL;
	struct ckpt_error ignored = { 0 };
	uint64_t dropped;

	snprintf(path, sizeof(path), "task/%d/status", (int)th->tid);
	/* it is there: the task stands still. Without the answer it would see our stop */
	if (INSIST(ckpt_proc_read(th->task, path, &text, &ignored)) < 0)
		return true;
	dropped = signals(text, "SigIgn") | (ignored_signals & ~signals(text, "SigCgt"));
	return (signals(text, "SigPnd") | signals(text, "ShdPnd")) & ~dropped & ~th->sigmask;
}

struct rseq_section {
	uint32_t version, flags;
	uint64_t start, length, abort;
};

static int peek(const struct ckpt_thread *th, uint64_t at, uint64_t *word)
{
	return INSIST(ckpt_ptrace(th, PTRACE_PEEKDATA, at, word)) ? -errno : 0;
}

static int leave_rseq(struct ckpt_thread *th)
{
	struct rseq_configuration conf = { 0 };
	struct rseq_section cs;
	CKPT_AUTO_FD int mem = -1;
	struct ckpt_error ignored = { 0 };
	uint64_t at;

	if (INSIST(ckpt_ptrace(th, PTRACE_GET_RSEQ_CONFIGURATION, sizeof(conf), &conf)) <
		    (long)sizeof(conf) ||
	    !conf.pointer)
		return 0;
	/* struct rseq: cpu_id_start, cpu_id, then the pointer to the section */
	if (peek(th, conf.pointer + 8, &at) || !at)
		return 0;
	mem = (int)INSIST(ckpt_open_mem(th->task, &ignored));
	if (mem < 0)
		return 0;
	if (INSIST(pread(mem, &cs, sizeof(cs), (off_t)at)) != sizeof(cs) ||
	    th->regs.rip - cs.start >= cs.length)
		return 0;
	th->regs.rip = cs.abort;
	th->regs.orig_rax = (uint64_t)-1;
	return 1;
}

int rollback(struct ckpt_thread *th, struct ckpt_error *err)
{
	bool changed = false;

	if (INSIST(ckpt_ptrace(th, PTRACE_GETREGS, NULL, &th->regs)) ||
	    INSIST(ckpt_ptrace(th, PTRACE_GETSIGMASK, sizeof(th->sigmask), &th->sigmask)))
		return ckpt_fail_sys(err, errno, "thread %d: registers", (int)th->tid);
	if (shows_eintr(&th->regs) && !has_signal(th)) {
		th->regs.rax = th->regs.orig_rax;
		th->regs.rip -= 2; /* the length of the system call instruction */
		th->regs.orig_rax = (uint64_t)-1;
		changed = true;
	}
	if (restarts_as_itself(&th->regs)) {
		th->regs.rax = (uint64_t)-RESTART_NOHAND; /* a handler makes it EINTR, as before */
		changed = true;
	}
	changed |= leave_rseq(th);
	if (changed && INSIST(ckpt_ptrace(th, PTRACE_SETREGS, NULL, &th->regs)))
		return ckpt_fail_sys(err, errno, "thread %d: PTRACE_SETREGS", (int)th->tid);
	return 0;
}
