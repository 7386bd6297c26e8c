/* SPDX-License-Identifier: MIT */
/*
 * Installing filters. Nothing of them is in force before ckpt lets go of the threads
 * (PTRACE_O_SUSPEND_SECCOMP). What several threads have is installed in the one that
 * they are cloned from, so that it is one object again: its listener hears of all of
 * them, and threads can be synchronised (SECCOMP_FILTER_FLAG_TSYNC).
 */
#include <linux/prctl.h>
#include <sys/syscall.h>

#include "seccomp.h"

static const Ckpt__Seccomp__Filter *filter(struct ckpt_run *run, uint32_t id)
{
	return ckpt_record_at(run, "seccomp.filter", id - 1);
}

/* Speculation is set by the plugin task: installing a filter shall not. */
static int add(struct ckpt_script *s, const Ckpt__Seccomp__Filter *f, bool listen)
{
	const struct sock_fprog program = {
		.len = (unsigned short)(f->program.len / sizeof(struct sock_filter)),
	};
	uint64_t flags = SECCOMP_FILTER_FLAG_SPEC_ALLOW;
	int op;

	if (f->log)
		flags |= SECCOMP_FILTER_FLAG_LOG;
	if (listen)
		flags |= SECCOMP_FILTER_FLAG_NEW_LISTENER;
	op = ckpt_script_add(s, SYS_seccomp, CKPT_C(SECCOMP_SET_MODE_FILTER), CKPT_C(flags),
			     CKPT_IN(&program, sizeof(program)),
			     CKPT_IN(f->program.data, f->program.len));
	ckpt_script_pointer(s, op, 2, offsetof(struct sock_fprog, filter), op, 3, 0);
	return op;
}

/* The engine keeps the listener; in the task its number may belong to another file. */
static int take_listener(struct ckpt_run *run, struct seccomp_state *st, struct ckpt_thread *th,
			 int num, struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "seccomp.listener");

	st->listener = ckpt_get_fd(th->task, num, err);
	if (st->listener < 0)
		return st->listener;
	ckpt_script_add(s, SYS_close, CKPT_C(num));
	return ckpt_script_run(s, th, err);
}

/* Filters after `from` up to `to`, oldest first. */
static int install(struct ckpt_run *run, struct ckpt_thread *th, uint32_t from, uint32_t to,
		   struct ckpt_error *err)
{
	struct seccomp_state *st = seccomp_state(run, err);
	uint32_t path[SECCOMP_MAX_DEPTH];
	size_t n = 0;

	if (!st)
		return -ENOMEM;
	for (uint32_t f = to; f != from; f = filter(run, f)->before)
		path[n++] = f;
	while (n > 0) {
		CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "seccomp.install");
		const Ckpt__Seccomp__Filter *f = filter(run, path[--n]);
		bool listen = f->id == st->listens && st->listener < 0;
		int op = add(s, f, listen);
		int r = ckpt_script_run(s, th, err);

		if (r == 0 && listen)
			r = take_listener(run, st, th, (int)ckpt_script_result(s, op), err);
		if (r < 0)
			return ckpt_wrap(err, "seccomp filter %u", f->id);
	}
	return 0;
}

static int advance(struct ckpt_run *run, struct ckpt_task *t, struct seccomp_task *st, uint32_t to,
		   struct ckpt_error *err)
{
	int r = install(run, t->threads[0], st->installed, to, err);

	st->installed = to;
	return r < 0 ? ckpt_wrap(err, "task %u", t->id) : 0;
}

/* What it and all that will be cloned from it have. */
int seccomp_born(struct ckpt_run *run, struct ckpt_task *t, struct ckpt_error *err)
{
	struct seccomp_state *st = seccomp_state(run, err);
	struct seccomp_task *self = st ? seccomp_task(st, t->id) : NULL, *maker;

	if (!self)
		return st ? 0 : -ENOMEM;
	maker = seccomp_task(st, self->maker);
	self->installed = maker ? maker->installed : 0;
	if (self->zombie || !ckpt_feature_on(run, "shared"))
		return 0;
	return advance(run, t, self, self->inherited, err);
}

/* What all its threads have, before they are cloned. */
int seccomp_place(struct ckpt_run *run, struct ckpt_error *err)
{
	struct seccomp_state *st = seccomp_state(run, err);
	int r = st ? 0 : -ENOMEM;

	for (size_t i = 0; r == 0 && i < st->n_tasks; i++) {
		struct seccomp_task *self = &st->tasks[i];
		struct ckpt_task *t = ckpt_task_by_id(run, self->id);

		if (self->zombie || !t || self->common == self->installed)
			continue;
		/* without the feature nothing is shared, but a listener has to be there in time */
		if (!ckpt_feature_on(run, "shared") &&
		    (!st->listens || seccomp_common(run, self->common, st->listens) != st->listens))
			continue;
		r = advance(run, t, self, self->common, err);
	}
	return r;
}

/* The rest, of each thread by itself. */
int seccomp_seal(struct ckpt_run *run, struct ckpt_error *err)
{
	struct seccomp_state *st = seccomp_state(run, err);
	int r = st ? 0 : -ENOMEM;

	for (size_t i = 0; r == 0 && i < ckpt_record_count(run, "seccomp.thread"); i++) {
		const Ckpt__Seccomp__Thread *rec = ckpt_record_at(run, "seccomp.thread", i);
		const struct ckpt_task *t = ckpt_task_by_id(run, rec->id);

		if (!t || rec->index >= t->n_threads)
			return ckpt_fail(err, ESRCH, "task %u, thread %u was not made", rec->id,
					 rec->index);
		if (rec->strict) {
			CKPT_AUTO_SCRIPT struct ckpt_script *s =
				ckpt_script_new(run, "seccomp.strict");

			ckpt_script_add(s, SYS_prctl, CKPT_C(PR_SET_SECCOMP),
					CKPT_C(SECCOMP_MODE_STRICT), CKPT_C(0), CKPT_C(0),
					CKPT_C(0));
			r = ckpt_script_run(s, t->threads[rec->index], err);
		} else {
			r = install(run, t->threads[rec->index],
				    seccomp_task(st, rec->id)->installed, rec->filter, err);
		}
		if (r < 0)
			ckpt_wrap(err, "task %u, thread %u", rec->id, rec->index);
	}
	return r;
}

const struct ckpt_birth_kind seccomp_birth = {
	.size = sizeof(struct ckpt_birth_kind),
	.planned = seccomp_planned,
	.born = seccomp_born,
};
