/* SPDX-License-Identifier: MIT */
/* A child that makes the agents' segments and keeps them while threads are sent to them. */
#ifndef CKPT_PROCESS_KEEPER_H
#define CKPT_PROCESS_KEEPER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <ckpt/error.h>

struct segments;

enum { KEEPER_ARGS = 4 };

/*
 * A system call for the keeper, in the memory that it shares. To put it into a socket, to be woken
 * and to do the same with the answer takes ten times as long as most of these calls.
 */
struct keeper_slot {
	int64_t nr, args[KEEPER_ARGS], result;
	/* numbers of requests */
	uint32_t posted, answered;
	uint32_t awaited; /* its answer is to be sent by the socket as well */
	uint32_t sleeps;  /* the keeper, until something comes by the socket */
	/* how often the engine looks for an answer before it sleeps, and the keeper for a request
	 */
	int looks, keeper_looks;
};

struct keeper {
	pthread_mutex_t asking;
	uint32_t asked; /* requests so far */
	bool left;	/* there are threads that only the keeper can take out of their agents */
	struct segments *segments; /* for the day of the engine's death; NULL: none */
	struct rescue *rescue;	   /* rescue.h */
	bool lost;		   /* it has died, and we have noticed */
	bool shares;		   /* our memory */
	bool spins;		   /* who waits for a slot does not sleep at once */
	struct keeper_slot slot;
	pid_t pid; /* 0: not running */
	int socket, theirs;
	char engine_status[32]; /* a file of /proc */
	/* not 0: a thread is about to end the process, and the kernel clears it when that is so */
	pid_t ending;
	void *stack; /* its own, in our memory */
};

int keeper_start(struct keeper *k, struct ckpt_error *err);
/*
 * A new segment that only effective uid `uid` can attach, marked for removal: its shmid, in
 * the ipc namespace of process `member`; 0: in that of ckpt. The keeper has attached it: over what
 * is `at`, if the memory is the engine's too; NULL: anywhere.
 */
int keeper_make(struct keeper *k, uint64_t length, void *at, uid_t uid, pid_t member,
		struct ckpt_error *err);
/* A system call in the keeper, with pointers into the memory that both have: as the kernel answers.
 */
long keeper_call(struct keeper *k, long nr, long a, long b, long c, long d);
/* Does this answer say that there is no keeper any more? */
bool keeper_is_gone(long answer);
void keeper_stop(struct keeper *k);
/*
 * End the process, though its main thread, which is stuck, will not: the keeper lets go of what is
 * its own.
 */
void keeper_end_process(struct keeper *k, int status) __attribute__((noreturn));

static inline void keeper_cleanup(struct keeper *k)
{
	keeper_stop(k);
}
#define AUTO_KEEPER __attribute__((cleanup(keeper_cleanup)))

#endif
