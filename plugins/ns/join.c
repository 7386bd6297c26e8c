/* SPDX-License-Identifier: MIT */
/*
 * Tasks join their user namespaces, and make and join what can only be had from within one: a
 * task that has another time namespace for its children than for itself got it from its own
 * unshare(2), which gives the new one to the user namespace that the task is in.
 */
#include <stdlib.h>

#include "internal.h"

/* A machine without time namespaces has none of its own either. */
static bool is_missing(const struct ckpt_ns *ns)
{
	return !ns->own && ns->fd < 0;
}

struct joining {
	struct ckpt_task *t;
	const struct ckpt_ns_seat *seat;
	bool late; /* its time namespace was not made yet when it joined the others */
	bool done;
};

/* For its children: its own is joined by now, since setns(2) would set both. */
static int make_for_children(struct ckpt_run *run, const struct joining *j, struct ckpt_error *err)
{
	struct ckpt_ns *ns = j->seat->time_for_children;
	int r = 0;

	if (ns == j->seat->ns[CKPT_NS_TIME] || !is_missing(ns))
		return 0;
	/* the owner is on the way down to the task's own */
	if (!ns->owner->own && ns->owner != j->seat->ns[CKPT_NS_USER])
		r = ckpt_ns_enter(run, j->t->threads[0], ns->owner, err);
	return r < 0 ? r : ns_make_in(run, ns, j->t, err);
}

static int join(struct ckpt_run *run, const struct joining *j, struct ckpt_error *err)
{
	const struct ckpt_ns_seat *seat = j->seat;
	const struct ckpt_ns *user = seat->ns[CKPT_NS_USER];
	bool first = seat->time_for_children->owner != user;
	struct ckpt_thread *th = j->t->threads[0];
	int r = j->late ? ckpt_ns_enter(run, th, seat->ns[CKPT_NS_TIME], err) : 0;

	if (r == 0 && first)
		r = make_for_children(run, j, err);
	if (r == 0 && !user->own)
		r = ckpt_ns_enter(run, th, user, err);
	return r < 0 || first ? r : make_for_children(run, j, err);
}

static size_t list(struct ckpt_run *run, struct joining *all)
{
	size_t n = 0;

	for (size_t i = 0; i < ckpt_task_count(run); i++) {
		struct ckpt_task *t = ckpt_task_at(run, i);
		const struct ckpt_ns_seat *seat = ckpt_ns_seat(run, t->id, 0);
		bool late = is_missing(seat->ns[CKPT_NS_TIME]);

		if (!t->zombie &&
		    (late || !seat->ns[CKPT_NS_USER]->own || is_missing(seat->time_for_children)))
			all[n++] = (struct joining){ .t = t, .seat = seat, .late = late };
	}
	return n;
}

/*
 * The last that needs ckpt's power has been done for these tasks: from here on they
 * have what their own user namespace gives. Who made a time namespace comes before
 * those that are in it, which need not be its descendants.
 */
int ns_join_user(struct ckpt_run *run, struct ckpt_error *err)
{
	CKPT_AUTO_FREE struct joining *all = calloc(ckpt_task_count(run) + 1, sizeof(*all));
	size_t n, left, before;
	int r = 0;

	if (!all)
		return ckpt_fail_sys(err, ENOMEM, "user namespaces of tasks");
	left = n = list(run, all);
	do {
		before = left;
		for (size_t i = 0; i < n && r == 0; i++) {
			struct joining *j = &all[i];

			if (j->done || is_missing(j->seat->ns[CKPT_NS_TIME]))
				continue;
			r = join(run, j, err);
			j->done = true;
			left--;
		}
	} while (r == 0 && left && left < before);
	return r < 0 || !left
		       ? r
		       : ckpt_fail_image(err, "time namespaces that nobody can have made first");
}
