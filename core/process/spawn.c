/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>

#include "process/spawn.h"

/* The child finds a stack without a return address, so it is sent to fn from here. */
static int64_t clone_to(struct clone_args *args, void (*fn)(void *arg), void *arg)
{
	register void (*to)(void *) __asm__("r12") = fn;
	register void *with __asm__("r13") = arg;
	int64_t ret;

	__asm__ volatile("syscall\n\t"
			 "test %%rax, %%rax\n\t"
			 "jnz 1f\n\t"
			 "xor %%ebp, %%ebp\n\t"
			 "mov %%r13, %%rdi\n\t"
			 "call *%%r12\n\t"
			 "hlt\n"
			 "1:"
			 : "=a"(ret)
			 : "0"((int64_t)SYS_clone3), "D"(args), "S"(sizeof(*args)), "r"(to),
			   "r"(with)
			 : "rcx", "r11", "memory");
	return ret;
}

static pid_t clone_blocked(struct clone_args *args, void *stack, void (*fn)(void *arg), void *arg)
{
	sigset_t all, old;
	int64_t r;

	args->stack = (uint64_t)(uintptr_t)stack;
	args->stack_size = SPAWN_STACK;
	/* a handler of ours must not run in the child, which has our memory */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = clone_to(args, fn, arg);
	if (r == -EINVAL && args->flags & CLONE_VM) {
		/* memory cannot be shared across time namespaces: a copy will do */
		args->flags &= ~(uint64_t)CLONE_VM;
		r = clone_to(args, fn, arg);
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return (pid_t)r;
}

pid_t spawn(struct clone_args *args, void *stack, void (*fn)(void *arg), void *arg)
{
	args->flags |= CLONE_VM;
	return clone_blocked(args, stack, fn, arg);
}

pid_t spawn_apart(struct clone_args *args, void *stack, void (*fn)(void *arg), void *arg)
{
	return clone_blocked(args, stack, fn, arg);
}
