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

/* Write context and extended state of a stopped thread; the pointer between them is left open. */
void frame_fill(uint8_t *frame, const struct ckpt_thread *th, const void *xstate, size_t len);

#endif
