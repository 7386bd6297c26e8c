/* SPDX-License-Identifier: MIT */
/* Make the namespaces, and let tasks and threads join them. */
#include "internal.h"

static int each(struct ckpt_run *run, enum ns_call what, struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; i < ckpt_ns_count(run) && r == 0; i++) {
		struct ckpt_ns *ns = ckpt_ns_at(run, i);

		/* a pid namespace is made when the first process of its parent is there */
		if (!ns->own && (ns->type != CKPT_NS_PID || what == NS_SETTLE))
			r = ns_call(run, what, ns, err);
	}
	return r;
}

int ns_make(struct ckpt_run *run, struct ckpt_error *err)
{
	size_t made = 0;
	int r = each(run, NS_MAKE, err);

	if (r == 0)
		r = each(run, NS_FILL, err);
	for (size_t i = 0; i < ckpt_ns_count(run); i++)
		made += !ckpt_ns_at(run, i)->own;
	if (made)
		ckpt_count(run, "namespaces", made);
	return r;
}

int ns_settle(struct ckpt_run *run, struct ckpt_error *err)
{
	return each(run, NS_SETTLE, err);
}

/* A mount namespace comes last: until then paths mean what they mean to ckpt. */
static const enum ckpt_ns_type order[] = {
	CKPT_NS_NET, CKPT_NS_IPC, CKPT_NS_UTS, CKPT_NS_TIME, CKPT_NS_CGROUP, CKPT_NS_MNT,
};

/* From one seat to another. */
static int move(struct ckpt_run *run, struct ckpt_thread *th, const struct ckpt_ns_seat *from,
		const struct ckpt_ns_seat *to, struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; i < CKPT_ARRAY_SIZE(order) && r == 0; i++) {
		const struct ckpt_ns *ns = to->ns[order[i]];

		/* one that a task has yet to make for its children comes with the user namespace */
		if (!from && ns->type == CKPT_NS_TIME && ns->fd < 0)
			continue;
		if (from ? ns != from->ns[order[i]] : !ns->own)
			r = ckpt_ns_enter(run, th, ns, err);
	}
	return r;
}

int ns_join(struct ckpt_run *run, struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; i < ckpt_task_count(run) && r == 0; i++) {
		struct ckpt_task *t = ckpt_task_at(run, i);

		if (!t->zombie)
			r = move(run, t->threads[0], NULL, ckpt_ns_seat(run, t->id, 0), err);
	}
	return r;
}

/* Threads are born where the first one is. */
int ns_join_threads(struct ckpt_run *run, struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; i < ckpt_task_count(run) && r == 0; i++) {
		struct ckpt_task *t = ckpt_task_at(run, i);
		size_t n = t->zombie ? 0 : ckpt_ns_seats(run, t->id);

		if (n > 1 && n != t->n_threads)
			return ckpt_fail_image(err, "task %u: %zu threads, namespaces of %zu",
					       t->id, t->n_threads, n);
		for (size_t k = 1; k < n && r == 0; k++)
			r = move(run, t->threads[k], ckpt_ns_seat(run, t->id, 0),
				 ckpt_ns_seat(run, t->id, k), err);
	}
	return r;
}
