/* SPDX-License-Identifier: MIT */
/*
 * Timers go on while the tree stands still. One that goes off once, after the queues were read
 * and before it was asked how much is left, would be neither armed nor pending in the image. So
 * the queues are read again when the agents are out.
 */
#include <stdio.h>
#include <stdlib.h>

#include "task.h"

/* By signal: the interval timers of setitimer(2). */
static const struct {
	int signo;
	unsigned which;
} interval[] = { { SIGALRM, 0 }, { SIGVTALRM, 1 }, { SIGPROF, 2 } };

static bool is_in(const siginfo_t *list, size_t n, const siginfo_t *s)
{
	for (size_t i = 0; i < n; i++)
		if (list[i].si_signo == s->si_signo && list[i].si_code == s->si_code &&
		    (s->si_code != SI_TIMER || list[i].si_timerid == s->si_timerid))
			return true;
	return false;
}

static const Ckpt__Task__Process *record_of(struct ckpt_run *run, uint32_t id)
{
	for (size_t i = 0; i < ckpt_record_count(run, "task.process"); i++) {
		const Ckpt__Task__Process *rec = ckpt_record_at(run, "task.process", i);

		if (rec->id == id)
			return rec;
	}
	return NULL;
}

/* Does a timer's signal come from one that the image has unarmed, or has not got? */
static bool is_lost(struct ckpt_run *run, const Ckpt__Task__Process *rec, const siginfo_t *s)
{
	if (s->si_code == SI_TIMER) {
		for (size_t i = 0; i < rec->n_timers; i++)
			if (rec->timers[i]->number == s->si_timerid)
				return !rec->timers[i]->value_ns;
		return false;
	}
	for (size_t k = 0; k < CKPT_ARRAY_SIZE(interval); k++) {
		if (s->si_code != SI_KERNEL || s->si_signo != interval[k].signo)
			continue;
		for (size_t i = 0; i < rec->n_itimers; i++)
			if (rec->itimers[i]->which == interval[k].which)
				return false;
		return ckpt_feature_on(run, task_features[TASK_ITIMERS].name);
	}
	return false;
}

/* One queue, as it is and as it was. */
static int compare(struct ckpt_run *run, const struct ckpt_thread *th,
		   const Ckpt__Task__Process *rec, uint32_t flags, const siginfo_t *was,
		   size_t n_was, struct ckpt_error *err)
{
	CKPT_AUTO_FREE siginfo_t *now = NULL;
	size_t n = 0;
	int r = task_queue(th, flags, &now, &n, err);

	for (size_t i = 0; i < n && r == 0; i++) {
		char object[64];

		if (is_in(was, n_was, &now[i]) || !is_lost(run, rec, &now[i]))
			continue;
		snprintf(object, sizeof(object), "timer's signal %d", now[i].si_signo);
		task_refuse(run, th->task, "timer-due", object,
			    "the timer went off while the task was looked at", "dump again");
	}
	return r;
}

int task_due(struct ckpt_run *run, struct ckpt_error *err)
{
	const struct task_state *st = task_state(run, err);
	int r = 0;

	for (size_t i = 0; st && i < ckpt_task_count(run) && r == 0; i++) {
		const struct ckpt_task *t = ckpt_task_at(run, i);
		const Ckpt__Task__Process *rec = t->zombie ? NULL : record_of(run, t->id);

		for (size_t k = 0; rec && k < t->n_threads && r == 0; k++) {
			const struct ckpt_thread *th = t->threads[k];
			const struct task_peek *p = th->dead ? NULL : task_peeked(st, th->tid);

			if (!p)
				continue;
			r = compare(run, th, rec, 0, p->own, p->n_own, err);
			if (r == 0 && k == 0)
				r = compare(run, th, rec, PTRACE_PEEKSIGINFO_SHARED, p->shared,
					    p->n_shared, err);
		}
	}
	return st ? r : -err->err;
}
