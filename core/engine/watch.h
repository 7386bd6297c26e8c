/* SPDX-License-Identifier: MIT */
/* A thread that notices when a run waits for a filesystem and cannot even be cancelled. */
#ifndef CKPT_ENGINE_WATCH_H
#define CKPT_ENGINE_WATCH_H

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct ckpt_run;

enum { WATCH_MOST = 64 };

struct watch {
	struct ckpt_run *run;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	bool started, over;
	sigset_t mask; /* of whoever has begun the run */
	/* threads and children of ckpt that have not run since */
	struct sleeper {
		pid_t process, tid;
		uint64_t switches; /* how often it has left its processor */
		uint64_t since;	   /* clock_us() */
	} list[WATCH_MOST];
	size_t n;
};

/* Nothing, if nobody wants to be told (ckpt_on_hang()). */
void watch_start(struct watch *w, struct ckpt_run *run);
void watch_stop(struct watch *w);

#endif
