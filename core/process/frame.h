/* SPDX-License-Identifier: MIT */
/* The signal frame by which a thread leaves the agent on its own: rt_sigreturn(2) takes it. */
#ifndef CKPT_PROCESS_FRAME_H
#define CKPT_PROCESS_FRAME_H

#include <stddef.h>
#include <stdint.h>

#include <ckpt/task.h>

#define FRAME_CONTEXT_SIZE 304 /* struct ucontext, followed by the extended state */
#define FRAME_FPSTATE_AT   224 /* where it points at that */
#define FRAME_XSTATE_EXTRA 4   /* the closing magic number */

/* Where components of the extended state end, as far as asked for: the question is a slow one. */
struct xstate_ends {
	uint32_t at[63]; /* 0: not known yet */
};

/* How much of an extended state tells something: without what is in its initial state anyway. */
size_t frame_xstate_length(const void *xstate, size_t len, struct xstate_ends *ends);
/* Write context and extended state of a stopped thread; the pointer between them is left open. */
void frame_fill(uint8_t *frame, const struct ckpt_thread *th, const void *xstate, size_t len);

#endif
