/* SPDX-License-Identifier: MIT */
/* The shared memory segment between engine and agent (see agent/agent.h). */
#ifndef CKPT_PROCESS_SEGMENT_H
#define CKPT_PROCESS_SEGMENT_H

#include <stdbool.h>
#include <stdint.h>
#include <linux/futex.h>
#include <sys/types.h>

#include <ckpt/error.h>

#include "agent/agent.h"
#include "process/keeper.h"

/* Instructions in a task's own text that the agent's exit needs. */
struct gadgets {
	uint64_t syscall_ret;
	uint64_t sigreturn; /* 0 if there is none */
	uint64_t pop_rax;   /* looked for only if there is no sigreturn */
};

/* Where tasks are that attach a segment. */
struct segment_users {
	uid_t uid;    /* effective one: nobody else can attach it */
	pid_t member; /* of their ipc namespace; 0: it is that of ckpt */
	int ns;	      /* descriptors of that one, and of ckpt's own */
	int own_ns;
};

/*
 * Those of one run, on a robust list of ours: the kernel marks their owner words when the thread
 * that made them dies. While there is one, the list of the C library has no effect for that thread.
 */
struct segments {
	struct robust_list_head head;
	struct robust_list_head *before; /* the C library's */
	size_t n;
};

/*
 * What is in the segment may be changed by whoever may change the memory of its tasks, so nothing
 * that it holds is believed, and it holds no pointer of ours. This is in the page before the place
 * where it is attached, so that the kernel finds each owner word at the same distance.
 */
struct segment {
	struct robust_list owned; /* first member; the next of the run */
	struct robust_list *prev;
	struct segments *all;
	struct segment_users users;
	int shmid;
	uint32_t attached; /* by ckpt, how often */
	uint8_t *base;	   /* in the engine */
	uint64_t addr;	   /* in the task(s) */
	uint64_t length;
	uint32_t seat_size;
	uint32_t n_seats, used_seats;
	uint32_t *given_back; /* numbers of seats of threads that have ended; owned */
	uint32_t n_given_back;
};
#define SEGMENT_PAGE 4096u

/*
 * Make a segment for n seats with `frame` bytes after each. The calling thread must
 * live until it is freed.
 */
int segment_new(struct segments *all, struct keeper *keeper, uint32_t n_seats, uint32_t frame,
		const struct segment_users *users, struct segment **out, struct ckpt_error *err);
uint64_t segment_length(uint32_t n_seats, uint32_t frame);
/*
 * The task has attached it, and has not yet executed anything in it: from now on nobody can. Fails
 * if somebody else has, who may have changed what the task would execute.
 */
int segment_shut(const struct segment *seg, struct ckpt_error *err);
void segment_free(struct segment *seg);
/* The next free seat: engine's pointer, and the task's address in *addr. */
struct agent_seat *segment_seat(struct segment *seg, uint64_t *addr);
/* Give the seat of a thread that is dead to the next one. */
void segment_give_back(struct segment *seg, const struct agent_seat *seat);

static inline struct agent_header *segment_header(const struct segment *seg)
{
	return agent_header(seg->base);
}

static inline uint8_t *segment_script(const struct segment *seg)
{
	return seg->base + AGENT_CODE_SIZE + AGENT_HEADER_SIZE;
}

static inline uint64_t segment_script_addr(const struct segment *seg)
{
	return seg->addr + AGENT_CODE_SIZE + AGENT_HEADER_SIZE;
}

/*
 * A gap of `length` bytes between the task's mappings, away from what grows;
 * `maps` is the text of /proc/PID/maps.
 */
int find_gap(const char *maps, uint64_t length, uint64_t *addr, struct ckpt_error *err);

/* How many writable bytes there are below an address of the task's. */
uint64_t room_below(const char *maps, uint64_t addr);

/* Are these the right addresses in this task too? They are where it was forked, not executed. */
bool same_gadgets(int memfd, const char *maps, const struct gadgets *g);
/* Search the executable mappings. -ENOENT if there is no "syscall; ret" or no way to sigreturn. */
int find_gadgets(int memfd, const char *maps, struct gadgets *g, struct ckpt_error *err);
/* Address of a system call instruction, for single steps; not in the mapping that starts at
 * `not_in`. */
int find_syscall(int memfd, const char *maps, uint64_t not_in, uint64_t *addr,
		 struct ckpt_error *err);
/* Is there one at that address too? */
bool same_syscall(int memfd, const char *maps, uint64_t at);

#endif
