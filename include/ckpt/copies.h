/* SPDX-License-Identifier: MIT */
/*
 * What the copies of `ckpt branch` get from ckpt by fork. Each copy is restored by a
 * descendant of ckpt, and its root is a fork of that one if there is memory to be
 * inherited: so private memory that ckpt has filled once is shared by all copies, and
 * still follows every rule of anonymous memory.
 *
 * The extension point "copies", owned by the engine, which asks the first plugin that has one.
 * Since 0.1.
 */
#ifndef CKPT_COPIES_H
#define CKPT_COPIES_H

#include <stdint.h>

#include <ckpt/error.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ckpt_run;

struct ckpt_copies_memory {
	/* ckpt's own addresses: every root has them, and nothing else of ckpt's memory */
	uint64_t start, end;
	const void *plan; /* what the copies' runs have to know of it */
};

struct ckpt_copies_kind {
	uint32_t size; /* sizeof(struct ckpt_copies_kind) */
	/*
	 * In ckpt itself, before there are copies: the image is loaded, and no step has run.
	 * Makes and fills memory; the plan must stay until the state of this run is freed.
	 * The engine unmaps the memory, also after a failure; then, and if start and end
	 * are equal, each copy fills its own.
	 */
	int (*prepare)(struct ckpt_run *run, unsigned copies, struct ckpt_copies_memory *out,
		       struct ckpt_error *err);
};

#define CKPT_COPIES_POINT "copies"

/* restore of a copy: what was prepared; NULL: nothing. */
CKPT_API const struct ckpt_copies_memory *ckpt_copies_memory(const struct ckpt_run *run);

#ifdef __cplusplus
}
#endif
#endif
