/* SPDX-License-Identifier: MIT */
/* The plugin cgroup: control groups of tasks, and cgroup namespaces. */
#include "cgroup.h"

#define LIST(...) ((const char *const[]){ __VA_ARGS__, NULL })

static const char *const own_values[] = { "follow", "keep", NULL };

static const struct ckpt_option options[] = {
	{ .name = "attributes",
	  .type = CKPT_OPT_BOOL,
	  .def = "no",
	  .help = "at dump, save the limits and weights of groups, for those that a restore "
		  "makes" },
	{ .name = "own",
	  .type = CKPT_OPT_ENUM,
	  .def = "follow",
	  .values = own_values,
	  .help = "at restore, tasks that were in ckpt's own group come back in that of the ckpt "
		  "that restores them (follow), or in the group of that name (keep)" },
	{ .name = NULL },
};

static const struct ckpt_feature features[] = {
	{ "membership", "control groups of tasks, in each hierarchy" },
	{ "threads", "threads in other groups than their process" },
	{ "threaded", "groups of version 2 that hold threads, not processes" },
	{ "namespaces", "cgroup namespaces with their roots" },
	{ "frozen", "groups of version 2 that are frozen" },
	{ NULL, NULL },
};

static const struct ckpt_record_type records[] = {
	{ CGROUP_REC_GROUP, "group", &ckpt__cgroup__group__descriptor },
	{ CGROUP_REC_MEMBER, "member", &ckpt__cgroup__member__descriptor },
	{ CGROUP_REC_NAMESPACE, "namespace", &ckpt__cgroup__namespace__descriptor },
	{ 0, NULL, NULL },
};

/* Says something about ckpt, not about the tree. */
static const struct ckpt_field_rule rules[] = {
	{ "Group", "own", CKPT_EQ_VOLATILE },
	{ NULL, NULL, 0 },
};

static const struct ckpt_step steps[] = {
	{ .runs = CKPT_DUMP,
	  .name = "survey",
	  .help = "refuse control groups that cannot be saved",
	  .after = LIST("seized"),
	  .before = LIST("surveyed"),
	  .fn = cgroup_survey },
	{ .runs = CKPT_DUMP | CKPT_VERIFY,
	  .name = "thaw",
	  .help = "thaw groups, now that all that is in them stands",
	  .after = LIST("seized"),
	  .before = LIST("surveyed"),
	  .wants = LIST("cgroup.survey"),
	  .fn = cgroup_thaw },
	{ .runs = CKPT_DUMP | CKPT_VERIFY,
	  .name = "collect",
	  .help = "save which groups tasks are in",
	  .after = LIST("surveyed"),
	  .before = LIST("collected"),
	  .fn = cgroup_collect },
	{ .runs = CKPT_RESTORE,
	  .name = "plan",
	  .help = "check the groups, and that their hierarchies are here",
	  .after = LIST("loaded"),
	  .before = LIST("planned"),
	  .fn = cgroup_plan },
	{ .runs = CKPT_RESTORE,
	  .name = "make",
	  .help = "make the groups that are missing",
	  .after = LIST("planned"),
	  .before = LIST("ns.make"),
	  .fn = cgroup_make,
	  .undo = cgroup_unmake },
	{ .runs = CKPT_RESTORE,
	  .name = "settings",
	  .help = "give the groups that were made controllers and limits",
	  .after = LIST("namespaces-made"),
	  .before = LIST("cgroup.place"),
	  .fn = cgroup_settings },
	{ .runs = CKPT_RESTORE,
	  .name = "place",
	  .help = "move the tasks into their groups",
	  .after = LIST("tasks-made"),
	  .before = LIST("tasks-placed"),
	  .fn = cgroup_place },
	{ .runs = CKPT_RESTORE,
	  .name = "threads",
	  .help = "move threads into groups of their own",
	  .after = LIST("threads-made"),
	  .before = LIST("sealed"),
	  .fn = cgroup_threads },
	{ .name = NULL },
};

static const struct ckpt_extension extensions[] = {
	{ CKPT_NS_POINT, "cgroup", &cgroup_kind },
	{ NULL, NULL, NULL },
};

struct cgroup_state *cgroup_state(struct ckpt_run *run, struct ckpt_error *err)
{
	struct cgroup_state *st = ckpt_state(run);

	if (st)
		return st;
	st = calloc(1, sizeof(*st));
	if (!st) {
		ckpt_fail_sys(err, ENOMEM, "state");
		return NULL;
	}
	if (cgroup_load_hierarchies(st, err) < 0) {
		cgroup_state_free(st);
		return NULL;
	}
	ckpt_state_set(run, st);
	return st;
}

void cgroup_state_free(void *state)
{
	struct cgroup_state *st = state;

	if (!st)
		return;
	for (size_t i = 0; i < st->n_hierarchies; i++) {
		free(st->hierarchies[i].name);
		free(st->hierarchies[i].own);
		if (st->hierarchies[i].root >= 0)
			close(st->hierarchies[i].root);
	}
	for (size_t i = 0; i < st->n_groups; i++)
		free(st->groups[i].path);
	free(st->groups);
	free(st->made);
	for (size_t i = 0; i < st->n_enabled; i++) {
		free(st->enabled[i].path);
		free(st->enabled[i].name);
	}
	free(st->enabled);
	cgroup_forget_frozen(st);
	free(st->mounts);
	free(st);
}

CKPT_PLUGIN{
	CKPT_PLUGIN_HEADER,	  .name = "cgroup",
	.version = "0.1.0",	  .summary = "control groups of tasks, and cgroup namespaces",
	.license = "MIT",	  .options = options,
	.features = features,	  .records = records,
	.rules = rules,		  .steps = steps,
	.extensions = extensions, .state_free = cgroup_state_free,
};
