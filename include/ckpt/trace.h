/* SPDX-License-Identifier: MIT */
/* dump, verify: asking a stopped thread by ptrace(2). In the thread of the step only. */
#ifndef CKPT_TRACE_H
#define CKPT_TRACE_H

#include <stdbool.h>
#include <sys/types.h>

#include <ckpt/error.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ckpt_run;
struct ckpt_thread;

/*
 * ptrace(2) of a stopped thread by its tracer, which is not always the process that the plugin is
 * in. Pointers are good for both. As the system call does it: what a request peeks at goes to
 * where `data` points. Returns -1 with errno.
 */
CKPT_API long ckpt_trace_request(const struct ckpt_thread *th, int request, unsigned long addr,
				 unsigned long data);
/* With pointers or numbers. */
#define ckpt_ptrace(th, request, addr, data) \
	ckpt_trace_request(th, request, (unsigned long)(addr), (unsigned long)(data))

/* Is it one of those? */
CKPT_API bool ckpt_is_tracer(struct ckpt_run *run, pid_t pid);

#ifdef __cplusplus
}
#endif
#endif
