/* SPDX-License-Identifier: MIT */
/*
 * What engine and agent agree on: the layout of the segment that both have
 * mapped. Included by the engine and by the freestanding agent.
 *
 * The segment is SysV shared memory, because one shmat(2) maps code and data
 * executable without a descriptor, a path or a write into the task, in any
 * mount namespace and under any credentials; it is marked for removal before
 * anyone attaches, so it cannot outlive its users.
 *
 *     code | header | script area | seat 0 | seat 1 | ...
 *
 * If the engine dies while a thread sits in the agent, the kernel marks the
 * owner word (it is a robust futex of the engine's), and the thread leaves by
 * itself: see agent.c.
 */
#ifndef CKPT_AGENT_AGENT_H
#define CKPT_AGENT_AGENT_H

#include <stdint.h>

#define AGENT_CODE_SIZE	  8192u
#define AGENT_HEADER_SIZE 4096u
#define AGENT_SCRIPT_SIZE (256u << 10)
#define AGENT_SEATS_AT	  (AGENT_CODE_SIZE + AGENT_HEADER_SIZE + AGENT_SCRIPT_SIZE)
#define AGENT_STACK_SIZE  2048u
#define AGENT_MAX_ARGS	  6u

enum agent_command {
	AGENT_RUN = 1, /* execute ops[0..n_ops) */
	AGENT_PREPARE, /* build what the thread needs to leave; its registers for that are in `way`
			*/
};

enum agent_check {
	AGENT_CHECK_ERROR, /* -4095..-1 stop the script, but for -allow */
	AGENT_CHECK_ANY,
	AGENT_CHECK_EXACT, /* only `expect` is fine */
};

struct agent_op {
	int32_t nr;
	uint8_t refs;	/* bit i: args[i] is the index of an earlier operation, take its result */
	uint8_t check;	/* enum agent_check */
	uint16_t allow; /* an errno that is fine, 0: none */
	int64_t args[AGENT_MAX_ARGS];
	int64_t expect;
	int64_t result;
};

/* The registers of a system call in the task's own text: agent_jump() loads them. */
enum agent_way {
	WAY_RAX,
	WAY_RDI,
	WAY_RSI,
	WAY_RDX,
	WAY_R10,
	WAY_R8,
	WAY_R9,
	WAY_RSP,
	WAY_RIP,
	WAY_N
};

/* How a thread gets out when nobody helps it. Filled in by the engine. */
struct agent_exit {
	uint64_t sp;	     /* the thread's stack pointer */
	uint64_t gadget;     /* address of "syscall; ret" in the task's own text */
	uint64_t sigreturn;  /* of "mov $15,%eax; syscall", or 0 */
	uint64_t pop_rax;    /* of "pop %rax; ret", used if there is no sigreturn */
	uint32_t uc_len;     /* size of the ucontext at `frame` */
	uint32_t fp_len;     /* size of the extended state after it */
	uint32_t uc_fpstate; /* offset in the ucontext of the pointer to the extended state */
	uint32_t last;	     /* 1: this thread unmaps the segment */
};

struct agent_seat {
	uint32_t seq;  /* posted by the engine, with `command` */
	uint32_t done; /* set to seq by the agent */
	uint32_t command;
	uint32_t n_ops;
	uint32_t executed; /* operations that ran; the failed one included */
	uint32_t failed;   /* 1: the last of them failed */
	uint32_t taken;	   /* 1 from before the thread is sent here until it has left */
	uint32_t busy;	   /* 1 while a script runs */
	uint64_t base;	   /* address of the segment in the task */
	uint64_t ops;	   /* of what it is to execute */
	struct agent_exit exit;
	uint64_t way[WAY_N];
	uint8_t stack[AGENT_STACK_SIZE] __attribute__((aligned(64)));
	uint8_t frame[]; /* ucontext and extended state for `exit` */
};

struct agent_header {
	uint32_t owner; /* robust futex of the engine's, see above */
	uint32_t seat_size;
	uint32_t n_seats;
	uint64_t length;  /* of the segment */
	uint32_t hold;	  /* not 0: though the engine is dead, nobody leaves yet (hold.c) */
	uint32_t guarded; /* 1: the keeper takes the threads out, they stand still (rescue.c) */
};

static inline struct agent_header *agent_header(void *base)
{
	return (struct agent_header *)((uint8_t *)base + AGENT_CODE_SIZE);
}

#define AGENT_OWNER_DIED 0x40000000u /* FUTEX_OWNER_DIED */

#endif
