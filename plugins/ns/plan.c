/* SPDX-License-Identifier: MIT */
/* Check the records against each other, and tell the engine what they say. */
#include <stdlib.h>

#include "internal.h"

/* The kernel nests user and pid namespaces 32 deep. */
#define MAX_DEPTH 33

static int type_of(const char *name)
{
	for (int type = 0; type < CKPT_NS_TYPES; type++)
		if (!strcmp(name, ckpt_ns_type_name((enum ckpt_ns_type)type)))
			return type;
	return -1;
}

static unsigned depth(const struct ckpt_ns *ns)
{
	unsigned n = 0;

	for (; ns && !ns->own; ns = ns->parent)
		n++;
	return n;
}

static int add(struct ckpt_run *run, const Ckpt__Ns__Namespace *rec, struct ckpt_error *err)
{
	struct ckpt_ns ns = { .id = rec->id, .fd = -1 };
	int type = type_of(rec->type);
	const char *plugin;

	if (type < 0 || rec->id <= CKPT_NS_TYPES)
		return ckpt_fail_image(err, "namespace %u: no type \"%.20s\"", rec->id, rec->type);
	ns.type = (enum ckpt_ns_type)type;
	ns.owner = ckpt_ns_by_id(run, rec->owner);
	if (!ns.owner || ns.owner->type != CKPT_NS_USER)
		return ckpt_fail_image(err, "namespace %u: no owner %u before it", rec->id,
				       rec->owner);
	if (type == CKPT_NS_USER || type == CKPT_NS_PID) {
		ns.parent = ckpt_ns_by_id(run, rec->parent);
		if (!ns.parent || ns.parent->type != ns.type || depth(ns.parent) >= MAX_DEPTH ||
		    (type == CKPT_NS_USER && ns.parent != ns.owner))
			return ckpt_fail_image(err, "namespace %u: bad parent %u", rec->id,
					       rec->parent);
	} else if (rec->parent) {
		return ckpt_fail_image(err, "namespace %u: its type has no parents", rec->id);
	}
	/* the kernel's rule (create_pid_namespace()) */
	if (type == CKPT_NS_PID && !ckpt_ns_below(ns.owner, ns.parent->owner) && !ns.parent->own)
		return ckpt_fail_image(err, "namespace %u: its owner is not below its parent's",
				       rec->id);
	if (type != CKPT_NS_PID && !ns_kind(run, ns.type, &plugin))
		ckpt_unmet(run, CKPT_EXIT_FAILED, "switch the plugin on",
			   "namespace %u: no plugin that is on makes %s namespaces", rec->id,
			   rec->type);
	return ckpt_ns_add(run, &ns, err) ? 0 : -err->err;
}

static int seat_at(struct ckpt_run *run, uint32_t task, uint32_t id, enum ckpt_ns_type type,
		   struct ckpt_ns **out, struct ckpt_error *err)
{
	*out = id ? ckpt_ns_by_id(run, id) : ckpt_ns_own(run, type);
	if (!*out || (*out)->type != type)
		return ckpt_fail_image(err, "task %u: no %s namespace %u", task,
				       ckpt_ns_type_name(type), id);
	return 0;
}

static int load_seat(struct ckpt_run *run, uint32_t task, const Ckpt__Ns__Seat *rec,
		     struct ckpt_ns_seat *seat, struct ckpt_error *err)
{
	const uint32_t ids[CKPT_NS_TYPES] = {
		[CKPT_NS_USER] = rec->user,	[CKPT_NS_PID] = rec->pid,
		[CKPT_NS_MNT] = rec->mnt,	[CKPT_NS_IPC] = rec->ipc,
		[CKPT_NS_NET] = rec->net,	[CKPT_NS_UTS] = rec->uts,
		[CKPT_NS_CGROUP] = rec->cgroup, [CKPT_NS_TIME] = rec->time,
	};
	int r = 0;

	for (int type = 0; type < CKPT_NS_TYPES && r == 0; type++)
		r = seat_at(run, task, ids[type], (enum ckpt_ns_type)type, &seat->ns[type], err);
	if (r == 0)
		r = seat_at(run, task, rec->pid_for_children, CKPT_NS_PID, &seat->pid_for_children,
			    err);
	return r < 0 ? r
		     : seat_at(run, task, rec->time_for_children, CKPT_NS_TIME,
			       &seat->time_for_children, err);
}

/* It is born where the first one is, when that is in its user namespace, and moves then. */
static void check_thread(struct ckpt_run *run, uint32_t task, size_t k,
			 const struct ckpt_ns_seat *first, const struct ckpt_ns_seat *seat)
{
	static const enum ckpt_ns_type types[] = { CKPT_NS_NET, CKPT_NS_IPC, CKPT_NS_UTS,
						   CKPT_NS_TIME, CKPT_NS_CGROUP };
	const struct ckpt_ns *user = first->ns[CKPT_NS_USER];

	for (size_t i = 0; i < CKPT_ARRAY_SIZE(types) && !user->own; i++) {
		const struct ckpt_ns *ns = seat->ns[types[i]];

		if (ns == first->ns[types[i]] || (ns->owner && ckpt_ns_below(ns->owner, user)))
			continue;
		ckpt_unmet(
			run, CKPT_EXIT_REFUSED,
			"let the main thread stay in that namespace, and others leave it",
			"task %u: thread %zu is in a %s namespace that its main thread has left, "
			"and that is not its user namespace's",
			task, k, ckpt_ns_type_name(types[i]));
	}
}

static int place(struct ckpt_run *run, const Ckpt__Ns__Task *rec, struct ckpt_error *err)
{
	CKPT_AUTO_FREE struct ckpt_ns_seat *seats =
		calloc(rec->n_seats ? rec->n_seats : 1, sizeof(*seats));
	int r = 0;

	if (!seats)
		return ckpt_fail_sys(err, ENOMEM, "namespaces of task %u", rec->id);
	if (!rec->n_seats || rec->n_seats > CKPT_MAX_THREADS)
		return ckpt_fail_image(err, "task %u: in %zu namespaces", rec->id, rec->n_seats);
	for (size_t k = 0; k < rec->n_seats && r == 0; k++)
		r = load_seat(run, rec->id, rec->seats[k], &seats[k], err);
	for (size_t k = 1; k < rec->n_seats && r == 0; k++)
		if (seats[k].ns[CKPT_NS_USER] != seats[0].ns[CKPT_NS_USER] ||
		    seats[k].ns[CKPT_NS_PID] != seats[0].ns[CKPT_NS_PID])
			r = ckpt_fail_image(err,
					    "task %u: threads cannot be in different user or "
					    "pid namespaces",
					    rec->id);
	/* setns(2) wants a thread that shares its root and cwd with nobody, and resets both */
	for (size_t k = 1; k < rec->n_seats && r == 0; k++)
		if (seats[k].ns[CKPT_NS_MNT] != seats[0].ns[CKPT_NS_MNT])
			ckpt_unmet(run, CKPT_EXIT_REFUSED,
				   "let the thread stay in the mount namespace of its process",
				   "task %u: thread %zu is in another mount namespace", rec->id, k);
	for (size_t k = 1; k < rec->n_seats && r == 0; k++)
		check_thread(run, rec->id, k, &seats[0], &seats[k]);
	return r < 0 ? r : ckpt_ns_place_task(run, rec->id, seats, rec->n_seats, err);
}

int ns_plan(struct ckpt_run *run, struct ckpt_error *err)
{
	int r = ckpt_record_order(run, "ns.namespace", err);

	if (r == 0)
		r = ckpt_record_order(run, "ns.task", err);
	for (size_t i = 0; i < ckpt_record_count(run, "ns.namespace") && r == 0; i++)
		r = add(run, ckpt_record_at(run, "ns.namespace", i), err);
	for (size_t i = 0; i < ckpt_record_count(run, "ns.task") && r == 0; i++)
		r = place(run, ckpt_record_at(run, "ns.task", i), err);
	for (size_t i = 0; i < ckpt_ns_count(run) && r == 0; i++)
		if (!ckpt_ns_at(run, i)->own)
			r = ns_call(run, NS_PLAN, ckpt_ns_at(run, i), err);
	return r;
}
