/* SPDX-License-Identifier: MIT */
/*
 * Descriptor tables: one for a process, shared by several (CLONE_FILES), or one of a
 * single thread. What is shared is looked at and saved once, with the first task
 * that has it.
 */
#include "internal.h"

#include <linux/kcmp.h>
#include <sched.h>
#include <stdio.h>
#include <sys/syscall.h>

static int by_table(const void *va, const void *vb, void *failed)
{
	const struct ckpt_task *a = *(struct ckpt_task *const *)va;
	const struct ckpt_task *b = *(struct ckpt_task *const *)vb;
	int c = ckpt_kcmp(a, b, KCMP_FILES);

	if (c < 0 || c > 2) {
		if (!*(int *)failed)
			*(int *)failed = c < 0 ? c : -EPROTO;
		return (a->id > b->id) - (a->id < b->id);
	}
	return c == 0 ? 0 : c == 1 ? -1 : 1;
}

static int by_id(const void *va, const void *vb)
{
	const struct ckpt_task *a = *(struct ckpt_task *const *)va;
	const struct ckpt_task *b = *(struct ckpt_task *const *)vb;

	return (a->id > b->id) - (a->id < b->id);
}

static int check_threads(struct ckpt_run *run, const struct ckpt_task *t, struct ckpt_error *err)
{
	for (size_t i = 1; i < t->n_threads; i++) {
		char object[48];
		long c;

		if (t->threads[0]->dead || t->threads[i]->dead)
			continue;
		c = syscall(SYS_kcmp, t->pid, t->threads[i]->tid, KCMP_FILES, 0, 0);
		if (c < 0 && !(ckpt_is_live(run) && errno == ESRCH))
			return ckpt_fail_sys(err, errno, "task %u (%s): kcmp(2) of thread %d",
					     t->id, t->comm, t->threads[i]->tid);
		if (c <= 0)
			continue;
		snprintf(object, sizeof(object), "descriptor table of thread %d",
			 t->threads[i]->tid);
		ckpt_refuse(run,
			    &(struct ckpt_blocker){
				    .feature = "thread-tables",
				    .task = t,
				    .object = object,
				    .reason = "the thread has a table of its own",
				    .hint = "unshare(CLONE_FILES) in a thread is not saved yet",
				    .no_loss = true,
			    });
	}
	return 0;
}

/* The first of these tasks has the table, the others share it. */
static void note_sharers(struct ckpt_run *run, struct fd_state *st, struct ckpt_task **list,
			 size_t n)
{
	char object[96];

	qsort(list, n, sizeof(*list), by_id);
	for (size_t i = 1; i < n; i++) {
		st->holders[list[i]->id - 1] = list[0];
		snprintf(object, sizeof(object), "descriptor table shared with task %u (%.15s)",
			 list[0]->id, list[0]->comm);
		ckpt_refuse_off(run, "shared-tables", list[i], object);
	}
}

int fd_find_tables(struct ckpt_run *run, struct fd_state *st, struct ckpt_error *err)
{
	size_t count = ckpt_task_count(run), n = 0;
	CKPT_AUTO_FREE struct ckpt_task **list = calloc(count + 1, sizeof(struct ckpt_task *));
	int failed = 0;

	free(st->holders);
	st->holders = calloc(count + 1, sizeof(struct ckpt_task *));
	if (!list || !st->holders)
		return ckpt_fail(err, ENOMEM, "out of memory");
	for (size_t i = 0; i < count; i++) {
		struct ckpt_task *t = ckpt_task_at(run, i);
		int r = t->zombie ? 0 : check_threads(run, t, err);

		if (r)
			return r;
		st->holders[t->id - 1] = t;
		if (!t->zombie && !t->threads[0]->dead)
			list[n++] = t;
	}
	if (n > 1)
		qsort_r(list, n, sizeof(*list), by_table, &failed);
	for (size_t i = 0, j; i < n && !failed; i = j) {
		for (j = i + 1; j < n && !by_table(&list[i], &list[j], &failed); j++)
			;
		if (!failed)
			note_sharers(run, st, list + i, j - i);
	}
	if (failed && !ckpt_is_live(run))
		return ckpt_fail_sys(err, failed, "comparing descriptor tables");
	return 0;
}

/* ---- restore ---------------------------------------------------------------------- */

static uint32_t shares_with(struct ckpt_run *run, uint32_t task)
{
	const Ckpt__Fd__Table *t = ckpt_record_by_id(run, "fd.table", task);

	return t ? t->shares : 0;
}

const struct ckpt_share_kind fd_share = {
	.size = sizeof(struct ckpt_share_kind),
	.flag = CLONE_FILES,
	.with = shares_with,
	.what = "descriptor table",
};
