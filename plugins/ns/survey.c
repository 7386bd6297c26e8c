/* SPDX-License-Identifier: MIT */
/* Which namespaces of a tree cannot be saved: refused by name, once a task and type. */
#include <stdio.h>

#include "internal.h"

struct refusal {
	struct ckpt_ns *ns;
	const struct ckpt_task *task; /* NULL: no task is in it */
	char object[96];
};

static int refuse(struct ckpt_run *run, const struct refusal *r, const char *reason,
		  const char *hint)
{
	const struct ckpt_blocker b = {
		.feature = ckpt_ns_type_name(r->ns->type),
		.task = r->task,
		.object = r->object,
		.reason = reason,
		.hint = hint,
		/* its tasks would come back with their capabilities in that of ckpt */
		.no_loss = r->ns->type == CKPT_NS_USER,
	};

	return ckpt_refuse(run, &b);
}

static int if_off(struct ckpt_run *run, void *arg, struct ckpt_error *err)
{
	const struct refusal *r = arg;
	const char *plugin;
	const struct ckpt_ns_kind *kind = ns_kind(run, r->ns->type, &plugin);

	(void)err;
	if (kind->feature && r->ns->type == CKPT_NS_USER && !ckpt_feature_on(run, kind->feature)) {
		const struct ckpt_blocker b = {
			.feature = kind->feature,
			.task = r->task,
			.object = r->object,
			.reason = "the feature is switched off",
			.hint = "do not switch it off: its tasks would have their capabilities "
				"outside of it",
			.no_loss = true,
		};

		return ckpt_refuse(run, &b);
	}
	return kind->feature ? ckpt_refuse_off(run, kind->feature, r->task, r->object) : 1;
}

/* Would the children of some thread be born there? */
static bool is_for_children(struct ckpt_run *run, const struct ckpt_ns *ns)
{
	for (size_t i = 0; i < ckpt_task_count(run); i++) {
		uint32_t id = ckpt_task_at(run, i)->id;

		for (size_t k = 0; k < ckpt_ns_seats(run, id); k++)
			if (ckpt_ns_seat(run, id, k)->pid_for_children == ns)
				return true;
	}
	return false;
}

/* 1: it will be saved. 0: lost by permission. -ECANCELED: a blocker is listed. */
static int decide(struct ckpt_run *run, struct refusal *r)
{
	const struct ckpt_ns *ns = r->ns;
	bool nested = ns->type == CKPT_NS_USER || ns->type == CKPT_NS_PID;
	const char *plugin;
	char reason[128], hint[192];

	snprintf(r->object, sizeof(r->object), "%s namespace %s:[%llu]",
		 ckpt_ns_type_name(ns->type), ckpt_ns_type_name(ns->type),
		 (unsigned long long)ns->ino);
	/* pid itself says what of those that it knows it cannot save */
	if (ns->type == CKPT_NS_PID)
		return ns->member || is_for_children(run, ns)
			       ? 1
			       : refuse(run, r, "no process of the tree is in it",
					"close its descriptors, or dump the tree of its first "
					"process");
	if (!ns_kind(run, ns->type, &plugin)) {
		snprintf(reason, sizeof(reason),
			 "it is not the one that ckpt runs in, and no plugin that is on saves %s "
			 "namespaces",
			 ckpt_ns_type_name(ns->type));
		snprintf(hint, sizeof(hint),
			 ns->type == CKPT_NS_USER
				 ? "switch the plugin %s on"
				 : "run ckpt inside the namespace, or give --allow-loss ns.%s: its "
				   "tasks come back in the one of ckpt",
			 ckpt_ns_type_name(ns->type));
		return refuse(run, r, reason, hint);
	}
	if (!ns->owner || (nested && !ns->parent))
		return refuse(run, r, "it is not owned by the user namespace of ckpt or one below",
			      "run ckpt in the user namespace that owns it, or above");
	return ckpt_call_as(run, plugin, if_off, r, NULL);
}

/* What one task is in: each type is named once, whatever its threads do. */
static void of_task(struct ckpt_run *run, const struct ckpt_task *t)
{
	unsigned named = 0;

	for (size_t k = 0; k < ckpt_ns_seats(run, t->id); k++) {
		const struct ckpt_ns_seat *seat = ckpt_ns_seat(run, t->id, k);

		for (unsigned type = 0; type <= CKPT_NS_TYPES; type++) {
			struct ckpt_ns *ns =
				type < CKPT_NS_TYPES ? seat->ns[type] : seat->time_for_children;
			struct refusal r = { .ns = ns, .task = t };

			if (ns->own || ns->lost)
				continue;
			/* a second one of a type goes the way of the first */
			if (!(named & (1U << ns->type)) && decide(run, &r) == 1)
				continue;
			named |= 1U << ns->type;
			ns->lost = true;
		}
	}
}

int ns_decide(struct ckpt_run *run, struct ckpt_error *err)
{
	(void)err;
	for (size_t i = 0; i < ckpt_task_count(run); i++)
		of_task(run, ckpt_task_at(run, i));
	/* owners, and what only descriptors hold */
	for (size_t i = 0; i < ckpt_ns_count(run); i++) {
		struct ckpt_ns *ns = ckpt_ns_at(run, i);
		struct refusal r = { .ns = ns };

		if (!ns->own && !ns->lost && !ns->member && decide(run, &r) != 1)
			ns->lost = true;
	}
	return 0;
}

int ns_survey(struct ckpt_run *run, struct ckpt_error *err)
{
	int r = ns_decide(run, err);

	if (r == 0)
		r = ns_outside(run, err);
	for (size_t i = 0; i < ckpt_ns_count(run) && (r == 0 || r == -ECANCELED); i++)
		if (ns_is_saved(ckpt_ns_at(run, i)))
			r = ns_call(run, NS_SURVEY, ckpt_ns_at(run, i), err);
	return r;
}
