/* SPDX-License-Identifier: MIT */
/*
 * Looking at many objects with all processors. Steps run one after the other in one
 * thread; inside of one, this divides a loop.
 */
#ifndef CKPT_PARALLEL_H
#define CKPT_PARALLEL_H

#include <stddef.h>

#include <ckpt/error.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Call fn for 0 to n - 1, in no particular order and by several threads at once, and
 * return when all calls have returned. It must keep to what is the object's own: read
 * files and /proc, compute, write to its own element of an array. The functions of the
 * SDK that take a run, ptrace(2), and scripts belong to the thread of the step; those
 * about a task that take none (ckpt_proc_read(), ckpt_get_fd(), ckpt_kcmp_file()) may be
 * called. Of several failures the one with the lowest index is reported. Few
 * objects, or a machine with one processor, are done by the calling thread alone. Since 0.1.
 */
CKPT_API int ckpt_parallel(size_t n, int (*fn)(void *arg, size_t i, struct ckpt_error *err),
			   void *arg, struct ckpt_error *err);

/*
 * The same, given out in portions of so many objects, which are worth a thread (some 100 us):
 * 1 for objects that take long each.
 */
CKPT_API int ckpt_parallel_by(size_t n, size_t portion,
			      int (*fn)(void *arg, size_t i, struct ckpt_error *err), void *arg,
			      struct ckpt_error *err);

#ifdef __cplusplus
}
#endif
#endif
