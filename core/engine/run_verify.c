/* SPDX-License-Identifier: MIT */
/* Verify: collect the live tree again and compare, and diff: compare two images. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/run.h"
#include "engine/text.h"
#include "engine/watch.h"

struct difflist {
	struct ckpt_result *r;
	bool failed;
};

static char *copy_or_null(const char *s, bool *failed)
{
	char *copy = s ? strdup(s) : NULL;

	*failed |= s && !copy;
	return copy;
}

static void add_difference(void *arg, const char *where, const char *field, const char *before,
			   const char *after)
{
	struct difflist *l = arg;
	struct ckpt_difference *d;

	if (!VEC_ROOM(l->r->differences, l->r->n_differences)) {
		l->failed = true;
		return;
	}
	d = &l->r->differences[l->r->n_differences++];
	d->where = copy_or_null(where, &l->failed);
	d->field = copy_or_null(field, &l->failed);
	d->before = copy_or_null(before, &l->failed);
	d->after = copy_or_null(after, &l->failed);
}

/* A plugin without a section on one side has an empty one there. */
static int compare_section(struct image_store *a, struct image_store *b, const char *plugin,
			   const struct ckpt_plugin *desc, bool diff_mode, struct difflist *l,
			   struct ckpt_error *err)
{
	struct image_section *sa = image_section_find(a, plugin);
	struct image_section *sb = image_section_find(b, plugin);

	if (!sa && !sb)
		return 0;
	if (!sa)
		sa = image_section_add(a, plugin, desc->records, desc->rules);
	if (!sb)
		sb = image_section_add(b, plugin, desc->records, desc->rules);
	if (!sa || !sb)
		return fail_nomem(err);
	return image_compare(sa, sb, diff_mode, add_difference, l) == SIZE_MAX || l->failed
		       ? fail_nomem(err)
		       : 0;
}

static int compare_all(struct ckpt *c, struct image_store *a, struct image_store *b, bool diff_mode,
		       struct ckpt_result *res, struct ckpt_error *err)
{
	struct difflist l = { res, false };
	int r = 0;

	for (size_t i = 0; !r && i < c->plugins.n; i++)
		r = compare_section(a, b, c->plugins.list[i]->name, &c->plugins.list[i]->desc,
				    diff_mode, &l, err);
	return r;
}

static int differences_found(const struct ckpt_result *res, struct ckpt_error *err)
{
	if (!res->n_differences)
		return 0;
	return ckpt_fail_as(err, CKPT_EXIT_DIFFERENT, EXDEV, "%zu difference%s", res->n_differences,
			    res->n_differences == 1 ? "" : "s");
}

static int at_released(struct ckpt_run *run, struct ckpt_error *err)
{
	int r = proc_check_whole(run->procs, err);

	return r ? r : live_release(run, CKPT_AFTER_RUN, err);
}

static int at_compared(struct ckpt_run *run, struct ckpt_error *err)
{
	struct image_store *saved = run->arg;

	return compare_all(run->ctx, saved, &run->store, false, run->result, err);
}

static const struct milestone_action verify_actions[] = {
	{ "seized", live_seized },   { "surveyed", live_surveyed }, { "collected", live_collected },
	{ "released", at_released }, { "compared", at_compared },   { NULL, NULL },
};

/* The image's side of a comparison: a run that only holds records. */
struct image_side {
	struct ckpt_run run;
	struct ckpt_result result;
};

static int side_open(struct image_side *s, struct ckpt *c, const char *dir, struct ckpt_error *err)
{
	int r = run_init(&s->run, c, CKPT_VERIFY, &s->result, err);

	if (!r)
		r = run_open_image(c, dir, &s->run.reader, err);
	return r < 0 ? r : run_load_sections(&s->run, err);
}

/* Hands the lists over: what could not be loaded belongs into the result. */
static void side_close(struct image_side *s, struct ckpt_result *res)
{
	for (size_t i = 0; i < s->result.n_blockers; i++)
		(void)finding_add(&res->blockers, &res->n_blockers, &s->result.blockers[i], NULL);
	for (size_t i = 0; i < s->result.n_losses; i++)
		(void)finding_add(&res->losses, &res->n_losses, &s->result.losses[i], NULL);
	ckpt_result_free(&s->result);
	run_fini(&s->run);
	image_reader_free(s->run.reader);
	image_store_free(&s->run.store);
}

static int verify_tree(struct ckpt_run *run, struct ckpt_error *err)
{
	int r = run_add_sections(run, err);
	struct watch w;

	watch_start(&w, run);
	if (!r)
		r = run_execute(run, verify_actions, NULL, err);
	if (r < 0)
		live_back_out(run, err);
	watch_stop(&w);
	return r < 0 ? -err->err : differences_found(run->result, err);
}

static int verify(struct ckpt *c, const struct ckpt_verify_args *a, struct image_side *saved,
		  struct ckpt_result *res, struct ckpt_error *err)
{
	struct ckpt_run run;
	int r = run_init(&run, c, CKPT_VERIFY, res, err);

	run.image_info = image_reader_info(saved->run.reader);
	run.reader = saved->run.reader;
	run.root_pid = a->pid ? a->pid : run.image_info->root_pid;
	run.arg = &saved->run.store;
	if (!r)
		r = verify_tree(&run, err);
	run_fini(&run);
	image_store_free(&run.store);
	return r;
}

int ckpt_verify(struct ckpt *c, const struct ckpt_verify_args *a, struct ckpt_result *res,
		struct ckpt_error *err)
{
	struct image_side saved = { 0 };
	struct ckpt_error own = { 0 };
	uint64_t start = clock_us();
	int r;

	err = err ? err : &own;
	*res = (struct ckpt_result){ 0 };
	r = engine_need_complete(c, err);
	if (r < 0)
		return run_finish(res, "verify", start, r, err);
	r = side_open(&saved, c, a->dir, err);
	if (!r)
		r = verify(c, a, &saved, res, err);
	side_close(&saved, res);
	return run_finish(res, "verify", start, r, err);
}

static int diff(struct ckpt *c, struct image_side sides[2], const char *const dirs[2],
		struct ckpt_result *res, struct ckpt_error *err)
{
	for (int i = 0; i < 2; i++) {
		int r = side_open(&sides[i], c, dirs[i], err);

		if (r < 0)
			return ckpt_wrap(err, "%s", dirs[i]);
	}
	return compare_all(c, &sides[0].run.store, &sides[1].run.store, true, res, err);
}

int ckpt_diff(struct ckpt *c, const char *dir1, const char *dir2, struct ckpt_result *res,
	      struct ckpt_error *err)
{
	const char *const dirs[2] = { dir1, dir2 };
	struct image_side sides[2] = { 0 };
	struct ckpt_error own = { 0 };
	uint64_t start = clock_us();
	int r;

	err = err ? err : &own;
	*res = (struct ckpt_result){ 0 };
	r = engine_need_loaded(c, err);
	if (!r)
		r = diff(c, sides, dirs, res, err);
	for (int i = 0; i < 2; i++)
		if (sides[i].run.ctx)
			side_close(&sides[i], res);
	if (!r)
		r = differences_found(res, err);
	return run_finish(res, "diff", start, r, err);
}
