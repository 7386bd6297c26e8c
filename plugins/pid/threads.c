/* SPDX-License-Identifier: MIT */
/*
 * Make the threads of the plan. They are made when their task has joined its user
 * namespace, which wants a single thread. On levels that belong to a user namespace
 * further up the task may not choose their numbers then: the next one is set from
 * outside, the task takes it, and it is looked at whether somebody else was faster.
 * So that nobody is there first, a dead child of the task keeps each number until
 * the very moment.
 */
#include <stdio.h>
#include <time.h>

#include "pid.h"

/* Whoever forks between setting and taking spoils a try; he may be gone soon. */
#define FAST_TRIES 50
#define SLOW_TRIES 2000

struct making {
	struct ckpt_run *run;
	const struct pid_plan *p;
	struct pid_node *n;
	size_t levels;
	size_t inner; /* levels on which the task may choose */
};

/* How many of the innermost levels belong to the task's user namespace, or one below it? */
static size_t inner_levels(struct ckpt_run *run, const struct pid_plan *p, const struct pid_node *n)
{
	const struct ckpt_ns *user = ckpt_ns_seat(run, n->id, 0)->ns[CKPT_NS_USER];
	const struct ckpt_ns *ns = p->nsfs[n->ns];
	size_t levels = p->ns[n->ns]->level + 1, inner = 0;

	if (user->own)
		return levels;
	while (inner < levels && ckpt_ns_below(ns->owner, user)) {
		ns = ns->parent;
		inner++;
	}
	return inner;
}

static int reserve(struct ckpt_run *run, const struct pid_node *n, const Ckpt__Pid__Thread *rec,
		   uint32_t id, struct ckpt_error *err)
{
	pid_t set_tid[PID_MAX_LEVELS];
	/* without a signal: its end is nothing to its parent */
	const struct ckpt_birth b = pid_birth(set_tid, rec->tids, rec->n_tids, rec->n_tids);
	struct ckpt_task *keeper;
	int r = ckpt_make_child(run, n->task, id, &b, &keeper, err);

	return r < 0 ? r : ckpt_end_task(run, keeper, 0, err);
}

int pid_reserve(struct ckpt_run *run, struct ckpt_error *err)
{
	struct pid_plan *p = ckpt_state(run);
	uint32_t id = p->nodes[p->n - 1].id;

	for (size_t i = 0; i < p->n_tasks; i++) {
		const struct pid_node *n = &p->nodes[i];
		bool told = false;

		for (size_t k = pid_first_thread(n->rec); k < n->rec->n_threads; k++) {
			const Ckpt__Pid__Thread *rec = n->rec->threads[k];
			int r = 0;

			if (inner_levels(run, p, n) >= rec->n_tids)
				continue;
			if (!told)
				r = pid_birth_cloning(run, n->task, id + 1, err);
			told = true;
			if (!r)
				r = reserve(run, n, rec, ++id, err);
			if (r < 0)
				return ckpt_wrap(err, "task %u: number of thread %zu", n->id, k);
		}
	}
	return 0;
}

/* Outermost level last: the helpers for the others take numbers there. */
static int set_next(const struct making *m, const int32_t *tids, struct ckpt_error *err)
{
	const struct ckpt_ns *ns = m->p->nsfs[m->n->ns];
	int r = 0;

	for (size_t level = m->levels; level > 0 && r == 0; level--, ns = ns->parent)
		if (m->levels - level >= m->inner)
			r = pid_write_last(m->run, ns, (uint32_t)tids[level - 1] - 1, err);
	return r;
}

/* How many of a thread's innermost numbers are right? */
static ssize_t right_numbers(const struct ckpt_thread *th, const int32_t *tids, size_t n,
			     struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *text = NULL;
	struct pid_numbers nr;
	char path[64];
	size_t right = 0;

	pid_thread_path(path, sizeof(path), th, "status");
	if (ckpt_proc_read(th->task, path, &text, err) < 0)
		return -err->err;
	if (pid_status_numbers(text, "NSpid", &nr) < 0 || nr.n != n)
		return ckpt_fail(err, EINVAL, "/proc/%d/%s: no NSpid", th->task->pid, path);
	while (right < n && nr.nr[n - 1 - right] == tids[n - 1 - right])
		right++;
	return (ssize_t)right;
}

/* 1: as it should be, or as good as can be had; 0: not, and it is gone again. */
static int try_one(const struct making *m, const Ckpt__Pid__Thread *rec, int tries,
		   struct ckpt_error *err)
{
	pid_t set_tid[PID_MAX_LEVELS];
	struct ckpt_birth b = pid_birth(set_tid, rec->tids, rec->n_tids, m->inner);
	struct ckpt_thread *th;
	ssize_t right;
	int r = set_next(m, rec->tids, err);

	if (!tries)
		b.reap = rec->tids[rec->n_tids - 1];
	if (r == 0)
		r = ckpt_make_thread(m->run, m->n->task, &b, &th, err);
	if (r < 0)
		return r;
	right = right_numbers(th, rec->tids, rec->n_tids, err);
	if (right < 0 || (size_t)right == rec->n_tids)
		return right < 0 ? (int)right : 1;
	if (right && tries >= FAST_TRIES) {
		/* what the task itself knows is right: only somebody outside sees another number */
		ckpt_log(
			m->run, CKPT_LOG_WARN,
			"task %u: id %d of a thread is taken by somebody else: it is %d outside of "
			"its pid namespace",
			m->n->id, rec->tids[0], th->tid);
		return 1;
	}
	return ckpt_end_thread(m->run, th, err);
}

static int make_one(const struct making *m, const Ckpt__Pid__Thread *rec, struct ckpt_error *err)
{
	const struct timespec nap = { 0, 5000000 };
	int r = 0;

	if (!rec->n_tids) {
		const struct ckpt_birth any = { 0 };
		struct ckpt_thread *th;

		return ckpt_make_thread(m->run, m->n->task, &any, &th, err);
	}
	for (int tries = 0; tries < SLOW_TRIES && r == 0; tries++) {
		if (tries > FAST_TRIES)
			nanosleep(&nap, NULL);
		r = try_one(m, rec, tries, err);
	}
	if (r)
		return r < 0 ? r : 0;
	return ckpt_fail(err, EEXIST, "id %d is taken by somebody else", rec->tids[0]);
}

/* Those that may choose all their numbers, with one script. */
static int make_together(const struct making *m, struct ckpt_error *err)
{
	const Ckpt__Pid__Task *rec = m->n->rec;
	CKPT_AUTO_FREE pid_t *tids = calloc(rec->n_threads * m->levels, sizeof(*tids));
	CKPT_AUTO_FREE struct ckpt_birth *b = calloc(rec->n_threads, sizeof(*b));
	size_t n = 0;

	if (!tids || !b)
		return ckpt_fail_sys(err, ENOMEM, "threads");
	for (size_t k = pid_first_thread(rec); k < rec->n_threads; k++, n++)
		b[n] = pid_birth(tids + n * m->levels, rec->threads[k]->tids, m->levels, m->levels);
	return ckpt_make_threads(m->run, m->n->task, b, n, err);
}

static int make_threads(const struct making *m, struct ckpt_error *err)
{
	const Ckpt__Pid__Task *rec = m->n->rec;
	const size_t first = pid_first_thread(rec);

	if (rec->n_threads > first && rec->threads[0]->n_tids && m->inner >= m->levels)
		return make_together(m, err);
	for (size_t k = first; k < rec->n_threads; k++)
		if (make_one(m, rec->threads[k], err) < 0)
			return ckpt_wrap(err, "thread %zu", k);
	return 0;
}

int pid_threads(struct ckpt_run *run, struct ckpt_error *err)
{
	struct pid_plan *p = ckpt_state(run);

	for (size_t i = 0; i < p->n_tasks; i++) {
		struct pid_node *n = &p->nodes[i];
		const struct making m = { run, p, n, p->ns[n->ns]->level + 1,
					  inner_levels(run, p, n) };

		if (make_threads(&m, err) < 0 ||
		    (n->rec->ended && pid_ended_end(run, n->task, n->rec->ended, err) < 0))
			return ckpt_wrap(err, "task %u", n->id);
		ckpt_count(run, "threads", n->rec->n_threads);
	}
	return 0;
}

/* The user namespace that a task is in has no say there, so the task goes before it is in it. */
static bool is_outer(struct ckpt_run *run, const struct ckpt_task *t, const struct ckpt_ns *ns)
{
	return !ckpt_ns_below(ns->owner, ckpt_ns_of_task(run, t, CKPT_NS_USER));
}

static int enter_children_ns(struct ckpt_run *run, bool outer, struct ckpt_error *err)
{
	struct pid_plan *p = ckpt_state(run);
	int r = 0;

	for (size_t i = 0; i < p->n_tasks; i++) {
		struct pid_node *n = &p->nodes[i];

		for (size_t k = 0; k < n->rec->n_threads && !n->rec->zombie && r == 0; k++) {
			uint32_t ns = n->rec->threads[k]->children_ns - 1;

			if (ns != n->ns && is_outer(run, n->task, p->nsfs[ns]) == outer)
				r = ckpt_ns_enter(run, n->task->threads[k], p->nsfs[ns], err);
		}
	}
	return r;
}

int pid_outer_children_ns(struct ckpt_run *run, struct ckpt_error *err)
{
	return enter_children_ns(run, true, err);
}

int pid_children_ns(struct ckpt_run *run, struct ckpt_error *err)
{
	return enter_children_ns(run, false, err);
}
