/* SPDX-License-Identifier: MIT */
/* The plugin seccomp: what threads may call. */
#include <stdio.h>
#include <sys/prctl.h>

#include "seccomp.h"

#define LIST(...) ((const char *const[]){ __VA_ARGS__, NULL })

static const struct ckpt_feature features[] = {
	{ "filters", "seccomp filters of each thread" },
	{ "strict", "strict mode" },
	{ "shared", "filters of several threads are one object, and threads can be synchronised" },
	{ "log", "SECCOMP_FILTER_FLAG_LOG" },
	{ "listener", "listeners of filters that ask a supervisor" },
	{ NULL, NULL },
};

static const struct ckpt_record_type records[] = {
	{ SECCOMP_REC_FILTER, "filter", &ckpt__seccomp__filter__descriptor },
	{ SECCOMP_REC_THREAD, "thread", &ckpt__seccomp__thread__descriptor },
	{ SECCOMP_REC_LISTENER, "listener", &ckpt__seccomp__listener__descriptor },
	{ 0, NULL, NULL },
};

static const struct ckpt_step steps[] = {
	{ .runs = CKPT_DUMP | CKPT_VERIFY,
	  .name = "peek",
	  .help = "read the filters, by ptrace",
	  .after = LIST("seized"),
	  .before = LIST("surveyed"),
	  .fn = seccomp_peek },
	{ .runs = CKPT_DUMP,
	  .name = "survey",
	  .help = "refuse what of seccomp cannot be saved",
	  .after = LIST("seccomp.peek"),
	  .before = LIST("surveyed"),
	  .fn = seccomp_survey },
	{ .runs = CKPT_DUMP | CKPT_VERIFY,
	  .name = "collect",
	  .help = "save filters and modes",
	  .after = LIST("surveyed"),
	  .before = LIST("collected"),
	  .fn = seccomp_collect },
	{ .runs = CKPT_RESTORE,
	  .name = "plan",
	  .help = "check the filters, try them in a child",
	  .after = LIST("loaded"),
	  .before = LIST("planned"),
	  .wants = LIST("pid.plan"),
	  .fn = seccomp_plan },
	{ .runs = CKPT_RESTORE,
	  .name = "place",
	  .help = "install what all threads of a task have",
	  .after = LIST("tasks-made"),
	  .before = LIST("tasks-placed"),
	  .fn = seccomp_place },
	/* before the privileges go, without which no_new_privs would have to be set */
	{ .runs = CKPT_RESTORE,
	  .name = "seal",
	  .help = "install the rest, strict mode",
	  .after = LIST("threads-made"),
	  .before = LIST("task.creds"),
	  .wants = LIST("task.thread"),
	  .fn = seccomp_seal },
	{ .name = NULL },
};

static const struct ckpt_extension extensions[] = {
	{ CKPT_BIRTH_POINT, "seccomp", &seccomp_birth },
	{ CKPT_FD_POINT, "listener", &seccomp_listener },
	{ NULL, NULL, NULL },
};

static int probe_read(struct ckpt_error *err)
{
	if (prctl(PR_GET_SECCOMP, 0, 0, 0, 0) == 0)
		return 0;
	ckpt_hint(err, "run ckpt outside of the container or service that filters it");
	return ckpt_fail(err, EACCES, "ckpt is under a seccomp filter: it may not read others");
}

static const struct ckpt_need needs[] = {
	{ "seccomp filters", false, probe_read },
	{ NULL, false, NULL },
};

struct seccomp_state *seccomp_state(struct ckpt_run *run, struct ckpt_error *err)
{
	struct seccomp_state *st = ckpt_state(run);

	if (st)
		return st;
	st = calloc(1, sizeof(*st));
	if (!st) {
		ckpt_fail_sys(err, ENOMEM, "state");
		return NULL;
	}
	st->listener = -1;
	ckpt_state_set(run, st);
	return st;
}

void seccomp_state_free(void *state)
{
	struct seccomp_state *st = state;

	if (!st)
		return;
	for (size_t i = 0; i < st->n_filters; i++)
		free(st->filters[i].insns);
	free(st->filters);
	free(st->threads);
	free(st->tasks);
	if (st->listener >= 0)
		close(st->listener);
	free(st);
}

CKPT_PLUGIN{
	CKPT_PLUGIN_HEADER,
	.name = "seccomp",
	.version = "0.1.0",
	.summary = "what threads may call: filters, strict mode, listeners",
	.license = "MIT",
	.features = features,
	.records = records,
	.steps = steps,
	.extensions = extensions,
	.needs = needs,
	.state_free = seccomp_state_free,
};
