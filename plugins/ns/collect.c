/* SPDX-License-Identifier: MIT */
/* Namespaces and who is in them, as records. */
#include <stdlib.h>

#include "internal.h"

/* The nearest user namespace upwards that will be there. */
static const struct ckpt_ns *saved_owner(struct ckpt_run *run, const struct ckpt_ns *ns)
{
	const struct ckpt_ns *o = ns->owner;

	while (o && o->lost)
		o = o->owner;
	return o ? o : ckpt_ns_own(run, CKPT_NS_USER);
}

static int put_namespace(struct ckpt_run *run, struct ckpt_ns *ns, struct ckpt_error *err)
{
	Ckpt__Ns__Namespace rec = CKPT__NS__NAMESPACE__INIT;
	int r;

	rec.id = ns->id;
	rec.type = (char *)(uintptr_t)ckpt_ns_type_name(ns->type);
	rec.owner = saved_owner(run, ns)->id;
	if (ns->type == CKPT_NS_USER)
		rec.parent = rec.owner;
	if (ns->type == CKPT_NS_PID && ns->parent)
		rec.parent = ns->parent->id;
	r = ckpt_record_put(run, NS_REC_NAMESPACE, &rec.base, err);
	return r < 0 ? r : ns_call(run, NS_COLLECT, ns, err);
}

static uint32_t id_of(const struct ckpt_ns *ns)
{
	return ns_is_saved(ns) ? ns->id : 0;
}

/* False: nothing but ckpt's own. */
static bool fill_seat(const struct ckpt_ns_seat *seat, Ckpt__Ns__Seat *rec)
{
	ckpt__ns__seat__init(rec);
	rec->user = id_of(seat->ns[CKPT_NS_USER]);
	rec->pid = id_of(seat->ns[CKPT_NS_PID]);
	rec->mnt = id_of(seat->ns[CKPT_NS_MNT]);
	rec->ipc = id_of(seat->ns[CKPT_NS_IPC]);
	rec->net = id_of(seat->ns[CKPT_NS_NET]);
	rec->uts = id_of(seat->ns[CKPT_NS_UTS]);
	rec->cgroup = id_of(seat->ns[CKPT_NS_CGROUP]);
	rec->time = id_of(seat->ns[CKPT_NS_TIME]);
	rec->pid_for_children = id_of(seat->pid_for_children);
	rec->time_for_children = id_of(seat->time_for_children);
	return rec->user || rec->pid || rec->mnt || rec->ipc || rec->net || rec->uts ||
	       rec->cgroup || rec->time || rec->pid_for_children || rec->time_for_children;
}

static int put_task(struct ckpt_run *run, const struct ckpt_task *t, struct ckpt_error *err)
{
	size_t n = ckpt_ns_seats(run, t->id);
	CKPT_AUTO_FREE Ckpt__Ns__Seat *seats = calloc(n, sizeof(*seats));
	CKPT_AUTO_FREE Ckpt__Ns__Seat **list = calloc(n, sizeof(Ckpt__Ns__Seat *));
	Ckpt__Ns__Task rec = CKPT__NS__TASK__INIT;
	bool any = false;

	if (!seats || !list)
		return ckpt_fail_sys(err, ENOMEM, "namespaces of task %u", t->id);
	for (size_t k = 0; k < n; k++) {
		any |= fill_seat(ckpt_ns_seat(run, t->id, k), &seats[k]);
		list[k] = &seats[k];
	}
	rec.id = t->id;
	rec.n_seats = n;
	rec.seats = list;
	return any ? ckpt_record_put(run, NS_REC_TASK, &rec.base, err) : 0;
}

int ns_collect(struct ckpt_run *run, struct ckpt_error *err)
{
	/* a verify has no survey: what the image lost is lost again */
	int r = ckpt_run_kind(run) == CKPT_VERIFY ? ns_decide(run, err) : 0;

	for (size_t i = 0; i < ckpt_ns_count(run) && r == 0; i++)
		if (ns_is_saved(ckpt_ns_at(run, i)))
			r = put_namespace(run, ckpt_ns_at(run, i), err);
	for (size_t i = 0; i < ckpt_task_count(run) && r == 0; i++)
		r = put_task(run, ckpt_task_at(run, i), err);
	return r;
}
