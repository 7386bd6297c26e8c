/* SPDX-License-Identifier: MIT */
/* What of a task's state cannot be saved: looked at from outside, refused by name. */
#include <linux/kcmp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>

#include "task.h"

static int elf_class(struct ckpt_run *run, const struct ckpt_task *t)
{
	struct ckpt_error ignored = { 0 };
	const struct ckpt_blocker b = {
		"32-bit", t, "program", "32-bit programs are not supported", "use its 64-bit build",
		true
	};

	if (ckpt_proc_is_64bit(t, &ignored) == 0)
		ckpt_refuse(run, &b);
	return 0;
}

static void policies(struct ckpt_run *run, const struct ckpt_task *t)
{
	for (size_t k = 0; k < t->n_threads; k++) {
		int policy = sched_getscheduler(t->threads[k]->tid) & ~SCHED_RESET_ON_FORK;
		char object[64];

		if (policy != SCHED_DEADLINE && policy != TASK_SCHED_EXT)
			continue;
		snprintf(object, sizeof(object), "thread %d", t->threads[k]->tid);
		task_refuse(run, t, "deadline", object,
			    policy == TASK_SCHED_EXT ? "SCHED_EXT is not saved"
						     : "SCHED_DEADLINE is not saved",
			    "give it another scheduling policy");
	}
}

/* Tables that tasks share beyond what threads do. */
static const struct {
	int type;
	const char *feature, *object;
} shared[] = {
	{ KCMP_VM, "shared-memory", "address space" },
	{ KCMP_SIGHAND, "shared-handlers", "signal handlers" },
};

static int by_table(const void *a, const void *b, void *type)
{
	const struct ckpt_task *x = *(struct ckpt_task *const *)a;
	const struct ckpt_task *y = *(struct ckpt_task *const *)b;
	int order = ckpt_kcmp(x, y, *(int *)type);

	if (order == 1 || order == 2)
		return order == 1 ? -1 : 1;
	/* equal tables next to each other, in a repeatable order */
	return x->id < y->id ? -1 : x->id > y->id;
}

/* Sorted by the kernel's own order, so that n tasks need n log n comparisons. */
static int sharing(struct ckpt_run *run, struct ckpt_error *err)
{
	size_t n = 0;
	CKPT_AUTO_FREE struct ckpt_task **tasks = calloc(ckpt_task_count(run) + 1, sizeof(*tasks));

	if (!tasks)
		return ckpt_fail_sys(err, ENOMEM, "%zu tasks", ckpt_task_count(run));
	for (size_t i = 0; i < ckpt_task_count(run); i++)
		if (!ckpt_task_at(run, i)->zombie)
			tasks[n++] = ckpt_task_at(run, i);
	for (size_t s = 0; s < CKPT_ARRAY_SIZE(shared); s++) {
		int type = shared[s].type;

		qsort_r(tasks, n, sizeof(*tasks), by_table, &type);
		for (size_t i = 1; i < n; i++) {
			char object[96];

			if (ckpt_kcmp(tasks[i - 1], tasks[i], type) != 0)
				continue;
			snprintf(object, sizeof(object), "%s shared with task %u (%.15s)",
				 shared[s].object, tasks[i - 1]->id, tasks[i - 1]->comm);
			task_refuse(run, tasks[i], shared[s].feature, object,
				    "tasks made with vfork(2) or clone(2) flags that share it are "
				    "not saved yet",
				    "dump when the child has called execve(2)");
		}
	}
	return 0;
}

int task_survey(struct ckpt_run *run, struct ckpt_error *err)
{
	int r;

	for (size_t i = 0; i < ckpt_task_count(run); i++) {
		const struct ckpt_task *t = ckpt_task_at(run, i);

		if (t->zombie)
			continue;
		elf_class(run, t);
		policies(run, t);
		if (t->stopped)
			task_want(run, TASK_STOPPED, t, "stopped by a signal");
	}
	r = task_labels_survey(run, err);
	if (!r)
		r = task_places_survey(run, err);
	return r < 0 ? r : sharing(run, err);
}
