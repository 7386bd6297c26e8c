/* SPDX-License-Identifier: MIT */
/* The live tree of a dump or verify: stopped, entered, left, let go. */
#include <errno.h>

#include "engine/run.h"

static void count_tasks(struct ckpt_run *run)
{
	size_t threads = 0;

	for (size_t i = 0; i < ckpt_task_count(run); i++)
		threads += ckpt_task_at(run, i)->n_threads;
	ckpt_count(run, "processes", ckpt_task_count(run));
	ckpt_count(run, "threads", threads);
}

int live_seized(struct ckpt_run *run, struct ckpt_error *err)
{
	int r = proc_look_ahead(run->procs, run->root_pid, err);

	if (!r && !run->live)
		r = proc_get_ready(run->procs, err);
	if (r)
		return r;
	run->seized_us = clock_us();
	/* before the call: half a seizure must be released as well */
	run->seized = !run->live;
	r = run->live ? proc_scan(run->procs, run->root_pid, err)
		      : proc_seize(run->procs, run->root_pid, err);
	/* what has come meanwhile */
	if (!r && !run->live)
		r = proc_check_servers(run->procs, err);
	if (!r)
		r = proc_scan_namespaces(run->procs, err);
	if (!r)
		count_tasks(run);
	return r;
}

int live_surveyed(struct ckpt_run *run, struct ckpt_error *err)
{
	if (run->live)
		return 0;
	run->agents_in = true;
	if (proc_agents_in(run->procs, err) < 0)
		return run->result->n_blockers ? run_check_blockers(run, err) : -err->err;
	return 0;
}

int live_collected(struct ckpt_run *run, struct ckpt_error *err)
{
	run->agents_in = false;
	return proc_agents_out(run->procs, err);
}

int live_release(struct ckpt_run *run, enum ckpt_after after, struct ckpt_error *err)
{
	int r;

	run->seized = false;
	r = proc_release(run->procs, after, err);
	run->result->frozen_us = clock_us() - run->seized_us;
	if (r < 0)
		err->exit = CKPT_EXIT_LOST;
	return r;
}

void live_back_out(struct ckpt_run *run, struct ckpt_error *err)
{
	struct ckpt_error out = { 0 }, release = { 0 }, whole = { 0 };
	struct ckpt_error first = *err;

	run_undo(run);
	if (run->agents_in)
		live_collected(run, &out);
	/* also when an agent could not be taken out: what can go on must */
	if (run->seized)
		live_release(run, CKPT_AFTER_RUN, &release);
	if (!out.err && !release.err) {
		proc_check_whole(run->procs, &whole);
		if (whole.err)
			*err = whole;
		return;
	}
	ckpt_fail_as(err, CKPT_EXIT_LOST, out.err ? out.err : release.err,
		     "the tree could not be resumed: %.400s (after: %.400s)",
		     out.err ? out.text : release.text, first.text);
}
