/* SPDX-License-Identifier: MIT */
/*
 * Children that share the engine's memory until they execute something or end:
 * no page tables are copied, no page is copied on write afterwards.
 */
#ifndef CKPT_PROCESS_SPAWN_H
#define CKPT_PROCESS_SPAWN_H

#include <linux/sched.h>
#include <sys/types.h>

#include "agent/syscall.h"

#define SPAWN_STACK (16u << 10)

/*
 * Such a child runs beside the engine with the engine's thread-local storage: it
 * makes system calls by sys6() only, and gets no instrumentation that would call
 * into a run-time library.
 */
#define SPAWN_PART  __attribute__((no_sanitize("address", "undefined", "thread")))
#define SPAWN_CHILD __attribute__((noreturn, noinline)) SPAWN_PART

/*
 * clone3(2) of a child that calls fn(arg) with all signals blocked. `stack` has
 * SPAWN_STACK bytes and must be there until the child has executed something or
 * is dead. Returns the pid or a negative errno.
 */
pid_t spawn(struct clone_args *args, void *stack, void (*fn)(void *arg), void *arg);
/* The same with a copy of the engine's memory. */
pid_t spawn_apart(struct clone_args *args, void *stack, void (*fn)(void *arg), void *arg);

#endif
