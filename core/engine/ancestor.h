/* SPDX-License-Identifier: MIT */
/*
 * What all copies have from ckpt itself, by fork: the image, read and checked once, and
 * memory that was filled once.
 */
#ifndef CKPT_ENGINE_ANCESTOR_H
#define CKPT_ENGINE_ANCESTOR_H

#include "engine/run.h"
#include "process/copy.h"

struct ancestor {
	struct ckpt_run run; /* no step of it is run */
	struct ckpt_copies_memory memory;
};

/* The image. Blockers and losses go to *res. To be closed after a failure too. */
int ancestor_open(struct ancestor *a, struct ckpt *c, const char *dir, struct ckpt_result *res,
		  struct ckpt_error *err);
/* The memory, if copies can share it. */
void ancestor_prepare(struct ancestor *a, unsigned copies);
/* When all copies have been started. */
void ancestor_close(struct ancestor *a);

#endif
