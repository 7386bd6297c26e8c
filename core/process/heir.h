/* SPDX-License-Identifier: MIT */
/*
 * The root of a copy that inherits memory: a fork of the engine that executes nothing,
 * since execve(2) would give it fresh memory. What execve(2) would have taken from it is
 * taken by a script.
 */
#ifndef CKPT_PROCESS_HEIR_H
#define CKPT_PROCESS_HEIR_H

#include <ckpt/copies.h>

#include "process/set.h"

/* What to keep of the engine's descriptors, and at which number; the last is the highest. */
struct heir_fd {
	int fd, target;
};

/* Is the root to be one? */
static inline bool heir_wanted(const struct ckpt_run *run)
{
	return ckpt_copies_memory(run) != NULL;
}

/* Keep the agent's place, which is looked for next, out of the engine's own mappings. */
int heir_reserve(struct proc_set *ps, struct ckpt_error *err);
/* In the child: waits for its tracer, at the first end of a pipe that nobody writes to. */
void heir_wait(void *arg) __attribute__((noreturn));
/* It is seized: stop it where a system call can be made, the first of which is to map the segment.
 */
int heir_stop(struct ckpt_agent *a, struct ckpt_error *err);
/* A system call instruction of its own. */
uint64_t heir_syscall(void);
/* The agent is in: take what is not to be inherited; and from the engine, what is. */
int heir_strip(struct ckpt_agent *a, const struct heir_fd keep[2], struct ckpt_error *err);

#endif
