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

/* A process, or a thread of it that has a table of its own. */
struct holder {
	struct ckpt_task *task;
	uint32_t thread; /* its index; 0: the process */
};

static long kcmp_files(pid_t a, pid_t b)
{
	long r = syscall(SYS_kcmp, a, b, KCMP_FILES, 0, 0);

	return r < 0 ? -errno : r;
}

/* Processes first, by id. */
static int by_id(const void *va, const void *vb)
{
	const struct holder *a = va, *b = vb;

	if (!a->thread != !b->thread)
		return a->thread ? 1 : -1;
	if (a->task != b->task)
		return a->task->id > b->task->id ? 1 : -1;
	return (a->thread > b->thread) - (a->thread < b->thread);
}

static int by_table(const void *va, const void *vb, void *failed)
{
	const struct holder *a = va, *b = vb;
	long c = kcmp_files(a->task->threads[a->thread]->tid, b->task->threads[b->thread]->tid);

	if (c < 0 || c > 2) {
		if (!*(int *)failed)
			*(int *)failed = c < 0 ? (int)c : -EPROTO;
		return by_id(a, b);
	}
	return c == 0 ? 0 : c == 1 ? -1 : 1;
}

/* Those threads of a process whose table is not its. */
static int add_threads(struct ckpt_run *run, struct ckpt_task *t, struct holder *list, size_t *n,
		       struct ckpt_error *err)
{
	for (size_t i = 1; i < t->n_threads; i++) {
		long c;

		c = kcmp_files(ckpt_task_tid(t), t->threads[i]->tid);
		if (c < 0 && !(ckpt_is_live(run) && c == -ESRCH))
			return ckpt_fail_sys(err, (int)c, "task %u (%s): kcmp(2) of thread %d",
					     t->id, t->comm, t->threads[i]->tid);
		if (c > 0)
			list[(*n)++] = (struct holder){ t, (uint32_t)i };
	}
	return 0;
}

static void note_thread(struct ckpt_run *run, struct fd_state *st, const struct holder *h,
			const struct holder *first)
{
	char object[64];

	snprintf(object, sizeof(object), "descriptor table of thread %d",
		 h->task->threads[h->thread]->tid);
	if (first)
		ckpt_refuse(run, &(struct ckpt_blocker){
					 .feature = "thread-tables",
					 .task = h->task,
					 .object = object,
					 .reason = "the thread shares a table with others than its "
						   "own process",
					 .hint = "let the thread call unshare(CLONE_FILES)",
					 .no_loss = true,
				 });
	else if (ckpt_refuse_off(run, "thread-tables", h->task, object) > 0)
		st->own[st->n_own++] =
			(struct fd_own_table){ .task = h->task, .thread = h->thread };
}

/* All that have one table: the first task of them has it, the others share it. */
static void note_sharers(struct ckpt_run *run, struct fd_state *st, struct holder *list, size_t n)
{
	char object[96];

	qsort(list, n, sizeof(*list), by_id);
	for (size_t i = 0; i < n; i++) {
		if (list[i].thread) {
			note_thread(run, st, &list[i], n > 1 ? &list[0] : NULL);
			continue;
		}
		if (!i)
			continue;
		st->holders[list[i].task->id - 1] = list[0].task;
		snprintf(object, sizeof(object), "descriptor table shared with task %u (%.15s)",
			 list[0].task->id, list[0].task->comm);
		ckpt_refuse_off(run, "shared-tables", list[i].task, object);
	}
}

static int by_owner(const void *va, const void *vb)
{
	const struct fd_own_table *a = va, *b = vb;

	if (a->task != b->task)
		return a->task->id > b->task->id ? 1 : -1;
	return (a->thread > b->thread) - (a->thread < b->thread);
}

static int list_holders(struct ckpt_run *run, struct fd_state *st, struct holder *list, size_t *n,
			struct ckpt_error *err)
{
	for (size_t i = 0; i < ckpt_task_count(run); i++) {
		struct ckpt_task *t = ckpt_task_at(run, i);
		int r = t->zombie ? 0 : add_threads(run, t, list, n, err);

		if (r)
			return r;
		st->holders[t->id - 1] = t;
		if (!t->zombie)
			list[(*n)++] = (struct holder){ t, 0 };
	}
	return 0;
}

int fd_find_tables(struct ckpt_run *run, struct fd_state *st, struct ckpt_error *err)
{
	size_t count = ckpt_task_count(run), most = 0, n = 0;
	CKPT_AUTO_FREE struct holder *list = NULL;
	int failed = 0, r;

	for (size_t i = 0; i < count; i++)
		most += ckpt_task_at(run, i)->n_threads;
	list = calloc(count + most + 1, sizeof(*list));
	free(st->holders);
	free(st->own);
	st->holders = calloc(count + 1, sizeof(struct ckpt_task *));
	st->own = calloc(most + 1, sizeof(*st->own));
	st->n_own = 0;
	if (!list || !st->holders || !st->own)
		return ckpt_fail(err, ENOMEM, "out of memory");
	r = list_holders(run, st, list, &n, err);
	if (r)
		return r;
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
	if (st->n_own)
		qsort(st->own, st->n_own, sizeof(*st->own), by_owner);
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
