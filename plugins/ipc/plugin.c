/* SPDX-License-Identifier: MIT */
/* The plugin ipc: ipc namespaces with their System V objects; segments in ckpt's own. */
#include <stdio.h>

#include "ipc.h"

#define LIST(...) ((const char *const[]){ __VA_ARGS__, NULL })

static const struct ckpt_feature features[] = {
	{ "namespaces", "ipc namespaces" },
	{ "shm", "System V shared memory with its content, and its mappings" },
	{ "sem", "System V semaphores with their values" },
	{ "undo", "what is given back to semaphores when a process ends (SEM_UNDO)" },
	{ "msg", "System V message queues with their messages" },
	{ "own", "semaphores and queues of ckpt's own namespace that only the tree uses" },
	{ "mqueue", "POSIX message queues with their messages" },
	{ "settings", "limits of ipc namespaces" },
	{ "counters", "which number the next System V object gets" },
	{ NULL, NULL },
};

static const struct ckpt_record_type records[] = {
	{ IPC_REC_NAMESPACE, "namespace", &ckpt__ipc__namespace__descriptor },
	{ IPC_REC_SEGMENT, "segment", &ckpt__ipc__segment__descriptor },
	{ IPC_REC_ATTACHMENT, "attachment", &ckpt__ipc__attachment__descriptor },
	{ IPC_REC_SEMAPHORES, "semaphores", &ckpt__ipc__semaphores__descriptor },
	{ IPC_REC_QUEUE, "queue", &ckpt__ipc__queue__descriptor },
	{ IPC_REC_UNDO, "undo", &ckpt__ipc__undo__descriptor },
	{ IPC_REC_MQUEUE, "mqueue", &ckpt__ipc__mqueue__descriptor },
	{ IPC_REC_DESCRIPTOR, "descriptor", &ckpt__ipc__descriptor__descriptor },
	{ IPC_REC_COUNTERS, "counters", &ckpt__ipc__counters__descriptor },
	{ 0, NULL, NULL },
};

/* Where content lies in the page file is no state. Only a tree that ends is asked for numbers. */
static const struct ckpt_field_rule rules[] = {
	{ "Segment", "runs", CKPT_EQ_VOLATILE },
	{ "Counters", "shm", CKPT_EQ_DIFF },
	{ "Counters", "sem", CKPT_EQ_DIFF },
	{ "Counters", "msg", CKPT_EQ_DIFF },
	{ NULL, NULL, 0 },
};

/* ---- the kind of namespace ---------------------------------------------------------------- */

/* Looking at its content would remove it, as would the restore, where its creator has ended. */
static void refuse_fleeting(struct ckpt_run *run, const struct ipc_state *st,
			    const struct ckpt_ns *ns)
{
	for (size_t i = 0; i < st->n_segments; i++) {
		const struct ipc_segment *s = &st->segments[i];
		char object[48];

		if (s->ns != ns || !s->fleeting)
			continue;
		snprintf(object, sizeof(object), "segment %d", s->number);
		ckpt_refuse(run, &(struct ckpt_blocker){
					 .feature = "unattached",
					 .task = ns->member,
					 .object = object,
					 .reason = "nobody has it attached, and with "
						   "kernel.shm_rmid_forced=1 it goes when somebody "
						   "detaches it",
					 .hint = "write 0 to kernel.shm_rmid_forced in that ipc "
						 "namespace, or let a process attach it",
				 });
	}
}

/* Features that are off, if there is what they save. */
static int survey_off(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err)
{
	struct ipc_state *st = ipc_state(run, err);
	size_t sets = 0, queues = 0;
	bool segments = false;
	int r = st ? ipc_look(run, err) : -ENOMEM;

	if (r == 0)
		r = ipc_count_semaphores(run, ns, &sets, err);
	if (r == 0)
		r = ipc_count_queues(run, ns, &queues, err);
	if (r < 0)
		return r;
	for (size_t i = 0; i < st->n_segments; i++)
		segments |= st->segments[i].ns == ns;
	if (segments && ckpt_refuse_off(run, "shm", ns->member, ns->name) == 1)
		refuse_fleeting(run, st, ns);
	if (sets)
		ckpt_refuse_off(run, "sem", ns->member, ns->name);
	if (queues)
		ckpt_refuse_off(run, "msg", ns->member, ns->name);
	ckpt_refuse_off(run, "settings", ns->member, ns->name);
	ckpt_refuse_off(run, "counters", ns->member, ns->name);
	return 0;
}

static int survey(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err)
{
	int r = survey_off(run, ns, err);

	return r < 0 ? r : ipc_survey_mqueues(run, ns, err);
}

static int collect(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err)
{
	int r = ipc_put_namespace(run, ns, err);

	if (r == 0 && ckpt_feature_on(run, "shm"))
		r = ipc_put_segments(run, ns, err);
	if (r == 0 && ckpt_feature_on(run, "sem"))
		r = ipc_put_semaphores(run, ns, err);
	if (r == 0 && ckpt_feature_on(run, "msg"))
		r = ipc_put_queues(run, ns, err);
	if (r == 0 && ckpt_feature_on(run, "mqueue"))
		r = ipc_put_mqueues(run, ns, err);
	return r;
}

static int plan(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err)
{
	return ckpt_record_need(run, "ipc.namespace", ns->id, err) ? 0 : -err->err;
}

static int fill(struct ckpt_run *run, struct ckpt_ns *ns, struct ckpt_error *err)
{
	int r = ipc_set(run, ns, false, err);

	if (r == 0)
		r = ipc_set_counters(run, ns, err);
	for (size_t i = 0; i < ckpt_record_count(run, "ipc.segment") && r == 0; i++) {
		const Ckpt__Ipc__Segment *rec = ckpt_record_at(run, "ipc.segment", i);

		if (rec->object->ns == ns->id)
			r = ipc_make_segment(run, rec, err);
	}
	for (size_t i = 0; i < ckpt_record_count(run, "ipc.semaphores") && r == 0; i++) {
		const Ckpt__Ipc__Semaphores *rec = ckpt_record_at(run, "ipc.semaphores", i);

		if (rec->object->ns == ns->id)
			r = ipc_make_semaphores(run, rec, err);
	}
	for (size_t i = 0; i < ckpt_record_count(run, "ipc.queue") && r == 0; i++) {
		const Ckpt__Ipc__Queue *rec = ckpt_record_at(run, "ipc.queue", i);

		if (rec->object->ns == ns->id)
			r = ipc_make_queue(run, rec, err);
	}
	return r < 0 ? r : ipc_make_mqueues(run, ns, err);
}

/* All have attached by now what they had. */
static int settle(struct ckpt_run *run, struct ckpt_ns *ns, struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; i < ckpt_record_count(run, "ipc.segment") && r == 0; i++) {
		const Ckpt__Ipc__Segment *rec = ckpt_record_at(run, "ipc.segment", i);

		if (rec->object->ns == ns->id)
			r = ipc_settle_segment(run, rec, err);
	}
	return r < 0 ? r : ipc_set(run, ns, true, err);
}

const struct ckpt_ns_kind ipc_kind = {
	.size = sizeof(struct ckpt_ns_kind),
	.type = CKPT_NS_IPC,
	.feature = "namespaces",
	.survey = survey,
	.collect = collect,
	.plan = plan,
	.fill = fill,
	.settle = settle,
};

/* ---- descriptor ------------------------------------------------------------------------------ */

static int make_own(struct ckpt_run *run, struct ckpt_error *err)
{
	int r = ipc_make_own_objects(run, err);

	if (r == 0)
		r = ipc_make_own(run, err);
	return r < 0 ? r : ipc_make_mqueues(run, ckpt_ns_own(run, CKPT_NS_IPC), err);
}

static int settle_own(struct ckpt_run *run, struct ckpt_error *err)
{
	int r = ipc_settle_own(run, err);

	return r < 0 ? r : ipc_settle_mqueues(run, err);
}

static void unmake_own(struct ckpt_run *run)
{
	ipc_unmake_own_objects(run);
	ipc_unmake_own(run);
	ipc_unmake_mqueues(run);
}

static int adjust(struct ckpt_run *run, struct ckpt_error *err)
{
	int r = ipc_make_users(run, err);

	return r < 0 ? r : ipc_make_undo(run, err);
}

static const struct ckpt_step steps[] = {
	{ .runs = CKPT_DUMP | CKPT_VERIFY,
	  .name = "look",
	  .help = "find the segments",
	  .after = LIST("seized"),
	  .before = LIST("surveyed"),
	  .fn = ipc_look },
	{ .runs = CKPT_DUMP | CKPT_VERIFY,
	  .name = "survey-own",
	  .help = "find semaphores and queues of ckpt's own namespace that the tree uses",
	  .after = LIST("seized"),
	  .before = LIST("surveyed"),
	  .fn = ipc_survey_own },
	{ .runs = CKPT_DUMP | CKPT_VERIFY,
	  .name = "own",
	  .help = "save them",
	  .after = LIST("ns.collect"),
	  .before = LIST("collected"),
	  .fn = ipc_put_own },
	{ .runs = CKPT_DUMP | CKPT_VERIFY,
	  .name = "undo",
	  .help = "ask for adjustments of semaphores",
	  .after = LIST("ipc.own"),
	  .before = LIST("collected"),
	  .fn = ipc_collect_undo },
	{ .runs = CKPT_DUMP,
	  .name = "counters",
	  .help = "ask for the next numbers",
	  .after = LIST("memory-saved"),
	  .before = LIST("planned"),
	  .fn = ipc_put_counters },
	{ .runs = CKPT_VERIFY,
	  .name = "counters",
	  .help = "look at the numbers that are there",
	  .after = LIST("ns.collect"),
	  .before = LIST("collected"),
	  .fn = ipc_put_counters },
	{ .runs = CKPT_RESTORE,
	  .name = "plan",
	  .help = "check the objects, and what ckpt's own namespace has",
	  .after = LIST("ns.plan"),
	  .before = LIST("planned"),
	  .fn = ipc_plan },
	{ .runs = CKPT_RESTORE,
	  .name = "make",
	  .help = "make what is in ckpt's own namespace",
	  .after = LIST("planned"),
	  .before = LIST("namespaces-made"),
	  .fn = make_own,
	  .undo = unmake_own },
	/* the last moment at which all tasks may change all sets, and none joins a namespace */
	{ .runs = CKPT_RESTORE,
	  .name = "adjust",
	  .help = "let tasks be the last users, give them their adjustments of semaphores",
	  .after = LIST("tasks-placed"),
	  .before = LIST("files-installed"),
	  .fn = adjust },
	{ .runs = CKPT_RESTORE,
	  .name = "settle",
	  .help = "mark those for removal that were, unlink queues",
	  .after = LIST("threads-made"),
	  .before = LIST("sealed"),
	  .fn = settle_own },
	{ .name = NULL },
};

static const struct ckpt_extension extensions[] = {
	{ CKPT_NS_POINT, "ipc", &ipc_kind },
	{ CKPT_VMA_POINT, "sysv-shm", &ipc_mapping },
	{ CKPT_FD_POINT, "mqueue", &ipc_mqueue_kind },
	{ NULL, NULL, NULL },
};

struct ipc_state *ipc_state(struct ckpt_run *run, struct ckpt_error *err)
{
	struct ipc_state *st = ckpt_state_make(run, sizeof(*st));

	if (!st)
		ckpt_fail_sys(err, ENOMEM, "state");
	return st;
}

void ipc_state_free(void *state)
{
	struct ipc_state *st = state;

	if (!st)
		return;
	free(st->segments);
	free(st->sets);
	ipc_free_mqueues(st);
	free(st->own);
	free(st->made);
	free(st->made_objects);
	free(st);
}

CKPT_PLUGIN{
	CKPT_PLUGIN_HEADER,
	.name = "ipc",
	.version = "0.1.0",
	.summary = "ipc namespaces: System V shared memory, semaphores, message queues; POSIX "
		   "message queues",
	.license = "MIT",
	.features = features,
	.records = records,
	.rules = rules,
	.steps = steps,
	.extensions = extensions,
	.state_free = ipc_state_free,
};
