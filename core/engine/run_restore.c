/* SPDX-License-Identifier: MIT */
/* The restore, and its planner, which a dump runs over its own records. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/lineage.h"
#include "engine/run.h"
#include "engine/text.h"
#include "process/copy.h"

static int at_planned(struct ckpt_run *run, struct ckpt_error *err)
{
	const struct ckpt_restore_args *a = run->arg;
	int r = run_check_unmet(run, err);

	if (r < 0)
		return r;
	if (run->plan_only || a->dry_run)
		return proc_check_place(run->procs, err);
	return proc_prepare(run->procs, err);
}

static int at_running(struct ckpt_run *run, struct ckpt_error *err)
{
	struct ckpt_restore_args *a = run->arg;
	const struct ckpt_task *root = ckpt_task_at(run, 0);
	const struct copy_place *copy = run->ctx->copy;
	int r;

	if (root)
		lineage_note(root->pidfd, image_reader_info(run->reader), copy ? copy->index : 0,
			     true);
	r = a->ready && root ? a->ready(a->ready_arg, root->pid, err) : 0;

	if (r < 0)
		return r;
	run->too_late = true;
	return proc_run(run->procs, &a->root, err);
}

static const struct milestone_action restore_actions[] = {
	{ "planned", at_planned },
	{ "running", at_running },
	{ NULL, NULL },
};

static void restore_back_out(struct ckpt_run *run)
{
	/* first the tasks, which may hold what a step made outside */
	proc_abort(run->procs);
	run_undo(run);
}

/* A copy is in a fork of the process that has read the image. */
static int load(struct ckpt_run *run, const char *dir, struct ckpt_error *err)
{
	const struct ckpt_run *from = run->ctx->copy ? run->ctx->copy->ancestor : NULL;
	int r;

	if (from) {
		run->store = from->store;
		run->reader = from->reader;
		return 0;
	}
	r = run_open_image(run->ctx, dir, &run->reader, err);
	return r < 0 ? r : run_load_sections(run, err);
}

static int restore(struct ckpt_run *run, struct ckpt_error *err)
{
	const struct ckpt_restore_args *a = run->arg;
	int r = load(run, a->dir, err);

	if (!r)
		r = run_execute(run, restore_actions, a->dry_run ? "planned" : NULL, err);
	if (r < 0)
		restore_back_out(run);
	return r;
}

int ckpt_restore(struct ckpt *c, struct ckpt_restore_args *a, struct ckpt_result *res,
		 struct ckpt_error *err)
{
	struct ckpt_error own = { 0 };
	struct ckpt_run run;
	uint64_t start = clock_us();
	int r;

	err = err ? err : &own;
	*res = (struct ckpt_result){ 0 };
	r = engine_need_complete(c, err);
	if (r < 0)
		return run_finish(res, "restore", start, r, err);
	r = run_init(&run, c, CKPT_RESTORE, res, err);
	run.arg = a;
	if (!r)
		r = restore(&run, err);
	run_fini(&run);
	image_reader_free(run.reader);
	image_store_free(&run.store);
	return run_finish(res, "restore", start, r, err);
}

/* ---- the planning pass of a dump ---- */

static int move_blockers(struct ckpt_result *from, struct ckpt_result *to, struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; !r && i < from->n_blockers; i++)
		r = finding_add(&to->blockers, &to->n_blockers, &from->blockers[i], err);
	return r;
}

int run_plan(struct ckpt_run *dump, struct ckpt_error *err)
{
	struct ckpt_result scratch = { 0 };
	struct ckpt_run run;
	int r = run_init(&run, dump->ctx, CKPT_RESTORE, &scratch, err);

	run.plan_only = true;
	/* the very records: image_put() has packed and unpacked them, as a reader would */
	run.store = dump->store;
	run.writer = dump->writer;
	run.root_pid = 0;
	if (!r)
		r = run_execute(&run, restore_actions, "planned", err);
	run_fini(&run);
	if (r < 0 && scratch.n_blockers) {
		int moved = move_blockers(&scratch, dump->result, err);

		/* at dump, whatever cannot be restored is a state that is not supported */
		if (!moved)
			err->exit = CKPT_EXIT_REFUSED;
	}
	ckpt_result_free(&scratch);
	return r < 0 ? ckpt_wrap(err, "plan") : 0;
}
