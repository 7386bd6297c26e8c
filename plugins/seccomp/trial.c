/* SPDX-License-Identifier: MIT */
/*
 * Does the kernel take a program? Nothing but installing it tells. That cannot be
 * undone, so a child does it, which from then on makes no system call: it shares our
 * memory, says there how it went, and is killed.
 */
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "seccomp.h"

#define STACK	(64u << 10)
#define PENDING 1 /* no result of seccomp(2) */

struct trial {
	struct sock_fprog program;
	int result;
};

/* Without the C library: its errno is that of the thread that runs beside us. */
static inline long call3(long nr, long a, long b, long c)
{
	long r;

	__asm__ volatile("syscall"
			 : "=a"(r)
			 : "a"(nr), "D"(a), "S"(b), "d"(c)
			 : "rcx", "r11", "memory");
	return r;
}

static __attribute__((noreturn, no_sanitize("address", "undefined"))) void install(struct trial *t)
{
	long r;

	call3(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0);
	r = call3(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW,
		  (long)&t->program);
	__atomic_store_n(&t->result, (int)r, __ATOMIC_RELEASE);
	for (;;)
		__builtin_ia32_pause();
}

static __attribute__((no_sanitize("address", "undefined"))) int child(void *arg)
{
	install(arg);
}

static pid_t reap(pid_t pid, int options)
{
	pid_t r;

	do
		r = waitpid(pid, NULL, options | __WALL);
	while (r < 0 && errno == EINTR);
	return r;
}

int seccomp_trial(const struct sock_filter *insns, size_t n, struct ckpt_error *err)
{
	const struct timespec nap = { 0, 20000 };
	CKPT_AUTO_FREE char *stack = aligned_alloc(64, STACK);
	struct trial t = { { (unsigned short)n, (struct sock_filter *)(uintptr_t)insns }, PENDING };
	bool gone = false;
	pid_t pid;

	if (!stack)
		return ckpt_fail_sys(err, ENOMEM, "stack of a child");
	pid = clone(child, stack + STACK, CLONE_VM | SIGCHLD, &t);
	if (pid < 0)
		return ckpt_fail_sys(err, errno, "clone(2)");
	while (!gone && __atomic_load_n(&t.result, __ATOMIC_ACQUIRE) == PENDING) {
		gone = reap(pid, WNOHANG) != 0;
		nanosleep(&nap, NULL);
	}
	if (!gone) {
		kill(pid, SIGKILL);
		reap(pid, 0);
	}
	return t.result == PENDING ? ckpt_fail(err, ECHILD, "a child that tries filters died")
				   : t.result;
}
