/* SPDX-License-Identifier: MIT */
/*
 * Taking agents out by ptrace, though the engine is dead: for tasks that would not survive without
 * a tracer. Prepared by the engine, done by the keeper; or by the engine, if that is dead.
 */
#ifndef CKPT_PROCESS_RESCUE_H
#define CKPT_PROCESS_RESCUE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <ckpt/error.h>

struct agent_seat;
struct ckpt_task;
struct ckpt_thread;
struct proc_set;
struct task_node;

/* Known to the keeper by the memory that it shares with the engine. */
struct rescue_thread {
	pid_t tid;
	uint32_t kept;		       /* its tracer is the keeper */
	const struct agent_seat *seat; /* in the engine's memory */
	uint32_t sent; /* 1 from before it gets the agent's registers until it has its own */
	uint32_t last; /* it unmaps the segment */
	uint32_t held; /* the keeper's: it is in a stop */
	uint64_t word_at, word; /* of its stack, what the way in overwrote */
	uint64_t sigmask;
	const void *regs; /* its own */
};

struct rescue {
	struct rescue *next;
	void *header;  /* of the segment, in the engine's memory */
	uint64_t addr; /* of the segment, in the task */
	uint64_t length;
	uint64_t gadget; /* a system call instruction in the task's text */
	size_t n;
	struct rescue_thread threads[];
};

/*
 * A task that has a filter while it still runs will have it when it stands: nobody loses one. That
 * it shows none means nothing.
 */
bool rescue_shows_filter(const struct ckpt_task *t);
/* Has this thread a seccomp filter, or must that be assumed? Others of its task may yet give it
 * one. */
bool rescue_is_filtered(const struct ckpt_thread *th);
/* The same of all threads of a task that stand and are the engine's, noted with each. */
int rescue_ask_filters(struct ckpt_task *t, struct ckpt_error *err);
/* If the task has such threads, note what the keeper needs. The segment is made and placed. */
int rescue_prepare(struct task_node *t, struct ckpt_error *err);
/* Before its agents are gone for good. */
void rescue_forget(struct task_node *t);
/* In the keeper. */
void rescue_all(struct rescue *list);
/* In the engine, when it is the keeper that has died: who was the keeper's goes on as it was. */
void rescue_alone(struct proc_set *ps);

#endif
