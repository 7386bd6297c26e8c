/* SPDX-License-Identifier: MIT */
/* Tasks that execute another program while they are being stopped. */
#ifndef CKPT_PROCESS_EXECING_H
#define CKPT_PROCESS_EXECING_H

#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>
#include <time.h>

#include <ckpt/error.h>

struct ckpt_task;
struct ckpt_thread;

struct execing {
	const struct ckpt_thread *volatile asking; /* that is being seized */
	const struct ckpt_thread *volatile late;   /* that was so at the last tick */
	volatile pid_t keeper;			   /* the tracer of some of its others, or 0 */
	struct sigaction action;		   /* what was there before */
	sigset_t mask;
	timer_t timer;
	bool begun, unblocked, ticks;
};

/* Until execing_end(), which also follows a failure, by the thread that seizes. */
int execing_begin(struct execing *x, struct ckpt_error *err);
void execing_end(struct execing *x);
/* Take note of the ends of its threads. */
void execing_reap(const struct ckpt_task *t);
/* Is it another program by now, which we have not seized? */
bool execing_has_gone(const struct ckpt_task *t);

#endif
