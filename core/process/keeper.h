/* SPDX-License-Identifier: MIT */
/* A child that keeps the agents' segments attached while threads are sent to them. */
#ifndef CKPT_PROCESS_KEEPER_H
#define CKPT_PROCESS_KEEPER_H

#include <sys/types.h>

#include <ckpt/error.h>

struct keeper {
	pid_t pid;
	int pipe;
};

int keeper_start(struct keeper *k, struct ckpt_error *err);
void keeper_stop(struct keeper *k);

static inline void keeper_cleanup(struct keeper *k)
{
	keeper_stop(k);
}
#define AUTO_KEEPER __attribute__((cleanup(keeper_cleanup)))

#endif
