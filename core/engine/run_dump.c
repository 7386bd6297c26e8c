/* SPDX-License-Identifier: MIT */
/* The dump: stop, look, collect, save, prove that it can be restored, commit, let go. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/engine.h"
#include "engine/lineage.h"
#include "engine/run.h"
#include "engine/text.h"
#include "engine/watch.h"

static int fill_losses(const struct ckpt_run *run, struct image_info *info, struct ckpt_error *err)
{
	const struct ckpt_result *r = run->result;

	info->losses = calloc(r->n_losses + 1, sizeof(*info->losses));
	if (!info->losses)
		return fail_nomem(err);
	for (size_t i = 0; i < r->n_losses; i++) {
		const struct ckpt_finding *f = &r->losses[i];
		char *text;

		if (asprintf(&text, "%s%s%s: %s%s%s", f->plugin, f->feature ? "." : "",
			     f->feature ? f->feature : "", f->task ? f->task : "",
			     f->task ? ": " : "", f->object) < 0)
			return fail_nomem(err);
		info->losses[info->n_losses++] = text;
	}
	return 0;
}

static int at_committed(struct ckpt_run *run, struct ckpt_error *err)
{
	const struct ckpt_dump_args *a = run->arg;
	const struct ckpt_task *root = ckpt_task_at(run, 0);
	struct image_info info = { .root_pid = run->root_pid };
	uint64_t bytes = 0;
	int r = proc_check_whole(run->procs, err);

	if (r)
		return r;
	/* a tree that goes on is not lost with an image that fails, so it need not wait for the
	 * disk */
	if (a->after == CKPT_AFTER_RUN)
		r = live_release(run, a->after, err);
	if (!r)
		r = fill_losses(run, &info, err);
	if (!r && root)
		r = lineage_read(root->pidfd, &info, err);
	info.ckpt_version = strdup(CKPT_VERSION);
	if (!r && !info.ckpt_version)
		r = fail_nomem(err);
	if (!r)
		r = image_commit(run->writer, &run->store, &info, &bytes, err);
	if (!r && root && a->after != CKPT_AFTER_KILL)
		lineage_note(root->pidfd, &info, 0, false);
	image_info_free(&info);
	if (r < 0)
		return r;
	run->too_late = true;
	ckpt_count(run, "bytes", bytes);
	return 0;
}

static int at_released(struct ckpt_run *run, struct ckpt_error *err)
{
	const struct ckpt_dump_args *a = run->arg;

	if (!run->seized)
		return 0;
	/* a tree that has run on since is not one to be killed */
	if (a->after == CKPT_AFTER_KILL && proc_check_whole(run->procs, err))
		return -err->err;
	return live_release(run, a->after, err);
}

static const struct milestone_action dump_actions[] = {
	{ "seized", live_seized },
	{ "surveyed", live_surveyed },
	{ "collected", live_collected },
	{ "planned", run_plan },
	{ "committed", at_committed },
	{ "released", at_released },
	{ NULL, NULL },
};

/* A switched-off plugin that every tree has state for. */
static int check_essential(struct ckpt_run *run, struct ckpt_error *err)
{
	const struct plugin_set *ps = &run->ctx->plugins;
	bool any = false;

	for (size_t i = 0; i < ps->n; i++) {
		struct loaded_plugin *p = ps->list[i];
		char reason[256], hint[128];
		const struct ckpt_blocker b = {
			.object = "the whole tree", .reason = reason, .hint = hint, .no_loss = true
		};

		if (!(p->desc.flags & CKPT_PLUGIN_ESSENTIAL))
			continue;
		any = true;
		if (p->on)
			continue;
		snprintf(reason, sizeof(reason),
			 "plugin %s is switched off (%s), and every tree needs it", p->name,
			 p->origin);
		snprintf(hint, sizeof(hint), "switch it on: --plugin %s", p->name);
		run->current = p;
		ckpt_refuse(run, &b);
		run->current = NULL;
	}
	if (any)
		return 0;
	ckpt_fail_as(err, CKPT_EXIT_REFUSED, ENOENT,
		     "no plugin is here that saves what every tree has");
	return ckpt_hint(err, "see: ckpt plugins; --plugin-path says where plugins are");
}

/* pid_namespaces(7): from inside it gets only signals that it handles. */
static int check_init(const struct ckpt_dump_args *a, struct ckpt_error *err)
{
	if (a->after != CKPT_AFTER_KILL || a->pid != 1)
		return 0;
	ckpt_fail_as(err, CKPT_EXIT_REFUSED, EPERM,
		     "process 1 is the init of ckpt's own pid namespace, which cannot be killed "
		     "from inside");
	return ckpt_hint(err, "run ckpt outside of that namespace, or --leave-running");
}

static int dump(struct ckpt_run *run, struct ckpt_error *err)
{
	const struct ckpt_dump_args *a = run->arg;
	const struct graph *g;
	struct watch w;
	int r = check_essential(run, err);

	if (!r)
		r = check_init(a, err);
	if (!r)
		r = engine_graph(run->ctx, CKPT_DUMP, &g, err);
	if (r < 0 && run->result->n_blockers)
		return run_check_blockers(run, err);
	if (!r)
		r = run_add_sections(run, err);
	watch_start(&w, run);
	if (!r && !run->live)
		r = image_create(a->dir, a->force, &run->writer, err);
	if (!r)
		r = run_execute(run, dump_actions, run->live ? "surveyed" : NULL, err);
	if (r < 0)
		live_back_out(run, err);
	watch_stop(&w);
	return r < 0 ? -err->err : 0;
}

/*
 * A tree that cannot even be stopped (a task is traced already) is refused with
 * a complete list all the same: a dry run makes it.
 */
static int list_blockers(struct ckpt *c, const struct ckpt_dump_args *a, struct ckpt_result *res,
			 struct ckpt_error *err)
{
	struct ckpt_dump_args look = *a;
	struct ckpt_error why = { 0 };
	struct ckpt_result found = { 0 };

	look.dry_run = true;
	if (!ckpt_dump(c, &look, &found, &why) || !found.n_blockers) {
		ckpt_result_free(&found);
		return -err->err;
	}
	ckpt_result_free(res);
	*res = found;
	*err = why;
	return -why.err;
}

static int once(struct ckpt *c, const struct ckpt_dump_args *a, const struct stop_last *last,
		struct ckpt_result *res, struct ckpt_error *err)
{
	struct ckpt_run run;
	int r = run_init(&run, c, CKPT_DUMP, res, err);

	run.arg = (void *)a;
	run.root_pid = a->pid;
	run.live = a->dry_run;
	run.last = last;
	if (!r)
		r = dump(&run, err);
	run_fini(&run);
	image_writer_free(run.writer);
	image_store_free(&run.store);
	return r;
}

/* Was it refused for nothing but what may be gone when the tree has run for a moment? */
static bool may_pass(const struct ckpt_result *res, const struct ckpt_error *err)
{
	for (size_t i = 0; i < res->n_blockers; i++)
		if (!res->blockers[i].passing)
			return false;
	return res->n_blockers && err->exit == CKPT_EXIT_REFUSED;
}

static void note_last(struct stop_last *last, pid_t root, const struct ckpt_result *res)
{
	for (size_t i = 0; i < res->n_blockers; i++) {
		const pid_t pid = res->blockers[i].pid;
		size_t k = 0;

		while (k < last->n && last->pids[k] != pid)
			k++;
		if (k == last->n && k < CKPT_ARRAY_SIZE(last->pids) && pid > 0 && pid != root)
			last->pids[last->n++] = pid;
	}
}

static void let_run(const struct ckpt *c, uint64_t us)
{
	const uint64_t slice = 100000;

	for (uint64_t now; us && !c->cancelled; us -= now) {
		now = us < slice ? us : slice;
		nanosleep(&(struct timespec){ .tv_nsec = (long)now * 1000 }, NULL);
	}
}

/*
 * Try again, at growing distances, and not before it has run for as long as it stood: a tree that
 * needs long must not mostly stand still.
 */
static int with_patience(struct ckpt *c, const struct ckpt_dump_args *a, struct ckpt_result *res,
			 uint64_t start, struct ckpt_error *err)
{
	const uint64_t end = start + 1000ULL * (a->dry_run ? 0 : a->patience_ms);
	struct stop_last last = { .moment = { 0, 1000000 } };
	struct timespec *nap = &last.moment;

	for (;;) {
		int r = once(c, a, &last, res, err);
		const uint64_t moment = (uint64_t)nap->tv_nsec / 1000;
		const uint64_t wait = res->frozen_us > moment ? res->frozen_us : moment;

		if (r >= 0 || !may_pass(res, err) || clock_us() >= end || c->cancelled)
			return r;
		engine_log(c, CKPT_LOG_INFO, "dump: %s: %s; try again in %ld ms",
			   res->blockers[0].object, res->blockers[0].reason, (long)(wait / 1000));
		note_last(&last, a->pid, res);
		let_run(c, wait);
		if (nap->tv_nsec < 64000000)
			nap->tv_nsec *= 2;
		ckpt_result_free(res);
		*res = (struct ckpt_result){ 0 };
		*err = (struct ckpt_error){ 0 };
	}
}

int ckpt_dump(struct ckpt *c, const struct ckpt_dump_args *a, struct ckpt_result *res,
	      struct ckpt_error *err)
{
	struct ckpt_error own = { 0 };
	uint64_t start = clock_us();
	int r;

	err = err ? err : &own;
	*res = (struct ckpt_result){ 0 };
	r = engine_need_complete(c, err);
	if (!r)
		r = plugins_check_losses(&c->plugins, NULL, NULL, err);
	if (r < 0)
		return run_finish(res, "dump", start, r, err);
	r = with_patience(c, a, res, start, err);
	r = run_finish(res, "dump", start, r, err);
	if (r < 0 && err->exit == CKPT_EXIT_REFUSED && !res->n_blockers && !a->dry_run)
		r = list_blockers(c, a, res, err);
	return r;
}
