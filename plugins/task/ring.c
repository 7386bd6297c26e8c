/* SPDX-License-Identifier: MIT */
/*
 * Rings of io_uring that a thread knows by a number of its own (IORING_REGISTER_RING_FDS): without
 * a descriptor, and in memory that the program brings along, nothing else shows them.
 */
#include <errno.h>
#include <stdio.h>
#include <sys/syscall.h>

#include "task.h"

#define REGISTERED  (1u << 31) /* the number is such a one; Linux 6.3 */
#define ASK	    8	       /* IORING_REGISTER_PROBE */
#define MOST_RINGS  16
#define PROBE_BYTES 24 /* with room for one */

static int ask(struct ckpt_script *s, int number)
{
	int op = ckpt_script_add(s, SYS_io_uring_register, CKPT_C(number), CKPT_C(ASK | REGISTERED),
				 CKPT_OUT(PROBE_BYTES), CKPT_C(1));

	ckpt_script_any(s);
	return op;
}

int task_ring_ask(struct ckpt_script *s)
{
	return ask(s, 0);
}

int task_ring_check(struct ckpt_run *run, struct ckpt_thread *th, int64_t first,
		    struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = NULL;
	bool found = first == 0;
	char object[64];
	int r;

	/* EINVAL is said of threads that have never used any: of nearly all */
	if (first == -EBADF) {
		s = ckpt_script_new(run, "task.ring");
		for (int i = 1; i < MOST_RINGS; i++)
			ask(s, i);
		r = ckpt_script_run(s, th, err);
		if (r < 0)
			return r;
		for (int i = 0; i < MOST_RINGS - 1; i++)
			found |= ckpt_script_result(s, i) == 0;
	}
	snprintf(object, sizeof(object), "thread %d: a registered ring", (int)th->tid);
	if (found)
		task_refuse(run, th->task, "io-uring", object, "io_uring is not saved",
			    "run the program without io_uring");
	return 0;
}
