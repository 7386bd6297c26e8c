/* SPDX-License-Identifier: MIT */
/* Scripts under way: each a thread's, with the part of the script area that it is in. */
#ifndef CKPT_PROCESS_FLIGHT_H
#define CKPT_PROCESS_FLIGHT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ckpt/script.h>

/*
 * Some for each processor. Each takes a part of the script area of its own, and the first
 * touch of a page costs more than a short script.
 */
#define MAX_FLIGHTS 16

struct flight {
	struct ckpt_script *s; /* NULL: none */
	struct ckpt_thread *th;
	bool owned;	 /* the script is freed at its end */
	uint64_t turn;	 /* the oldest has the lowest */
	size_t from, to; /* the portion: operations [from, to) */
	size_t at, len;	 /* where it is in the script area; len 0: it is not posted */
	size_t used;	 /* of it, while it is encoded */
};

struct flights {
	struct flight list[MAX_FLIGHTS];
	uint64_t turn;
	struct ckpt_error failed; /* the first failure of one that nobody waited for */
};

/* execute.c */
/* The next portion: from `to` on, as much as may be sent at once. */
void portion_cut(struct flight *f);
/* Write it into the script area, at `at`. */
void portion_encode(struct flight *f);
/* Take results and buffers of the first `executed` operations back. */
void portion_decode(struct flight *f, uint32_t executed);
int portion_failed(const struct flight *f, uint32_t executed, struct ckpt_error *err);

#endif
