/* SPDX-License-Identifier: MIT */
/* What the three kinds of run have in common: steps in order, undo, the result. */
#include "engine/run.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/engine.h"
#include "engine/text.h"

uint64_t clock_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000;
}

int run_init(struct ckpt_run *run, struct ckpt *c, enum ckpt_run_kind kind, struct ckpt_result *r,
	     struct ckpt_error *err)
{
	*run = (struct ckpt_run){ .ctx = c, .kind = kind, .result = r };
	image_store_init(&run->store);
	run->states = calloc(c->plugins.n + 1, sizeof(*run->states));
	if (!run->states)
		return fail_nomem(err);
	run->procs = proc_new(run, err);
	return run->procs ? 0 : -err->err;
}

void run_fini(struct ckpt_run *run)
{
	for (size_t i = 0; run->states && i < run->ctx->plugins.n; i++) {
		run->current = run->ctx->plugins.list[i];
		if (run->states[i] && run->current->desc.state_free)
			run->current->desc.state_free(run->states[i]);
	}
	run->current = NULL;
	if (run->procs)
		proc_free(run->procs);
	proc_ns_run_free(run);
	for (size_t i = 0; i < run->n_unmet; i++)
		finding_clear(&run->unmet[i]);
	free(run->unmet);
	free(run->ran);
	free(run->hooks);
	free(run->states);
}

int run_add_sections(struct ckpt_run *run, struct ckpt_error *err)
{
	const struct plugin_set *ps = &run->ctx->plugins;

	for (size_t i = 0; i < ps->n; i++) {
		const struct loaded_plugin *p = ps->list[i];
		struct image_section *sec;

		if (!p->on || !p->desc.records)
			continue;
		sec = image_section_add(&run->store, p->name, p->desc.records, p->desc.rules);
		if (!sec)
			return fail_nomem(err);
		sec->version = strdup(p->desc.version);
		if (!sec->version)
			return fail_nomem(err);
	}
	return 0;
}

uint64_t clock_cpu_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000;
}

static struct ckpt_cost cost_now(const struct ckpt_run *run)
{
	return (struct ckpt_cost){ .us = clock_us(),
				   .cpu_us = clock_cpu_us(),
				   .records = run->records,
				   .scripts = run->scripts,
				   .calls = run->calls };
}

/* From `before`, which is then the time of this look: asking for processor time is a system call.
 */
static int add_cost(struct ckpt_run *run, const char *name, struct ckpt_cost *before,
		    struct ckpt_error *err)
{
	const struct ckpt_cost now = cost_now(run);
	struct ckpt_cost cost = now;
	struct ckpt_result *r = run->result;

	cost.name = strdup(name);
	if (!cost.name || !VEC_ROOM(r->steps, r->n_steps)) {
		free(cost.name);
		return fail_nomem(err);
	}
	cost.us -= before->us;
	cost.cpu_us -= before->cpu_us;
	cost.records -= before->records;
	cost.scripts -= before->scripts;
	cost.calls -= before->calls;
	r->steps[r->n_steps++] = cost;
	*before = now;
	return 0;
}

static int run_step(struct ckpt_run *run, const struct graph_node *n, struct ckpt_error *err)
{
	int r;

	if (!VEC_ROOM(run->ran, run->n_ran))
		return fail_nomem(err);
	/* one that fails half-way has something to take back too */
	run->ran[run->n_ran++] = n;
	run->current = n->plugin;
	r = flights_settle(run, n->step->fn(run, err), err);
	run->current = NULL;
	/*
	 * A step may hand up what ckpt_refuse() returned: its blocker is on the
	 * list, and others are still to be found before the next milestone.
	 */
	if (r < 0 && (r != -ECANCELED || !run->result->n_blockers))
		return ckpt_wrap(err, "%s", n->plugin->name);
	/* what it tried, and can do without, is no error of the run's */
	*err = (struct ckpt_error){ 0 };
	return 0;
}

static int run_milestone(struct ckpt_run *run, const char *name,
			 const struct milestone_action *actions, struct ckpt_error *err)
{
	/* what is known before the first one belongs on one list with what the survey finds */
	if (!run->too_late && run->n_milestones++) {
		int r = run_check_blockers(run, err);

		if (r < 0)
			return r;
	}
	for (; actions->milestone; actions++)
		if (!strcmp(actions->milestone, name))
			return actions->fn(run, err);
	return 0;
}

static int run_node(struct ckpt_run *run, const struct graph_node *n,
		    const struct milestone_action *actions, struct ckpt_cost *before,
		    struct ckpt_error *err)
{
	int r;

	if (run->ctx->cancelled && !run->too_late)
		return ckpt_fail(err, ECANCELED, "interrupted before %s", n->name);
	ckpt_log(run, CKPT_LOG_INFO, "%s%s", n->step ? "" : "milestone ", n->name);
	r = n->step ? run_step(run, n, err) : run_milestone(run, n->name, actions, err);
	/* an error of a step may only follow from what a blocker left out */
	if (r < 0 && n->step && run->result->n_blockers && !run->too_late)
		return run_check_blockers(run, err);
	return r < 0 ? r : add_cost(run, n->name, before, err);
}

int run_execute(struct ckpt_run *run, const struct milestone_action *actions, const char *until,
		struct ckpt_error *err)
{
	const struct graph *g;
	struct ckpt_cost before = cost_now(run);
	int r = engine_graph(run->ctx, run->kind, &g, err);

	for (size_t i = 0; !r && i < g->n; i++) {
		const struct graph_node *n = &g->nodes[g->order[i]];

		r = run_node(run, n, actions, &before, err);
		if (!n->step && until && !strcmp(n->name, until))
			break;
	}
	return r;
}

void run_undo(struct ckpt_run *run)
{
	while (run->n_ran) {
		const struct graph_node *n = run->ran[--run->n_ran];

		if (!n->step->undo)
			continue;
		run->current = n->plugin;
		n->step->undo(run);
		run->current = NULL;
	}
}

int run_finish(struct ckpt_result *r, const char *name, uint64_t started_us, int ret,
	       struct ckpt_error *err)
{
	r->total_us = clock_us() - started_us;
	if (ret < 0) {
		if (err->exit == CKPT_EXIT_OK)
			err->exit = CKPT_EXIT_FAILED;
		r->exit = err->exit;
		ckpt_wrap(err, "%s", name);
	}
	return ret;
}
