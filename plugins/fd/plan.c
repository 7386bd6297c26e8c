/* SPDX-License-Identifier: MIT */
/* restore, before the first side effect: is the image consistent, is what it names there? */
#include "internal.h"
#include "steps.h"

#include <stdio.h>
#include <string.h>

struct plan_call {
	const struct ckpt_fd_kind *kind;
	uint32_t file;
};

static int call_plan(struct ckpt_run *run, void *arg, struct ckpt_error *err)
{
	const struct plan_call *c = arg;

	return c->kind->plan(run, c->file, err);
}

const struct ckpt_extension *fd_kind_find(struct ckpt_run *run, const Ckpt__Fd__File *file)
{
	const struct fd_state *st = fd_state(run);

	for (size_t i = 0; st && i < st->n_kinds; i++)
		if (!strcmp(st->kinds[i].ext->name, file->kind) &&
		    !strcmp(st->kinds[i].plugin, file->plugin))
			return st->kinds[i].ext;
	return NULL;
}

int fd_planned_as(struct ckpt_run *run, uint32_t object, const Ckpt__Fd__File *file,
		  struct ckpt_error *err)
{
	const Ckpt__Fd__File *first = ckpt_record_need(run, "fd.file", object, err);

	if (!first)
		return -EBADMSG;
	return strcmp(first->kind, file->kind) || strcmp(first->plugin, file->plugin)
		       ? ckpt_fail_image(err, "open file %u is of another kind than %u", file->id,
					 object)
		       : 0;
}

static int plan_file(struct ckpt_run *run, const Ckpt__Fd__File *file, bool held,
		     struct ckpt_error *err)
{
	const struct ckpt_extension *e = fd_kind_find(run, file);
	struct plan_call c = { .file = file->id };

	if (!held)
		return ckpt_fail_image(err, "open file %u is in no table", file->id);
	if (!e)
		return ckpt_unmet(run, CKPT_EXIT_REFUSED,
				  "load the plugin that the image was made with",
				  "open file %u: no plugin %s with the kind %s", file->id,
				  file->plugin, file->kind);
	c.kind = e->ops;
	if (c.kind->size > offsetof(struct ckpt_fd_kind, flags_ok) && c.kind->flags_ok &&
	    (file->flags & ~c.kind->flags_ok || file->pos))
		return ckpt_fail_image(err, "open file %u is not valid for its kind %s", file->id,
				       file->kind);
	return c.kind->plan ? ckpt_call_as(run, file->plugin, call_plan, &c, err) : 0;
}

static int plan_table(struct ckpt_run *run, const Ckpt__Fd__Table *t, bool *held,
		      struct ckpt_error *err)
{
	int64_t last = -1;

	if (!fd_task_known(run, t->id))
		return ckpt_fail_image(
			err, "a descriptor table belongs to task %u, which is not there", t->id);
	if (t->shares) {
		const Ckpt__Fd__Table *first = ckpt_record_by_id(run, "fd.table", t->shares);

		if (t->n_entries || t->shares >= t->id || !first || first->shares)
			return ckpt_fail_image(err, "task %u shares no valid descriptor table",
					       t->id);
	}
	for (size_t i = 0; i < t->n_entries; i++) {
		const Ckpt__Fd__Entry *e = t->entries[i];
		ssize_t at = ckpt_record_index(run, "fd.file", e->file);

		if (at < 0 || (int64_t)e->num <= last || e->num > FD_NUM_MAX)
			return ckpt_fail_image(err, "descriptor %u of task %u is not valid", e->num,
					       t->id);
		last = e->num;
		held[at] = true;
	}
	if (last >= 0)
		ckpt_reserve_fd(run, (int)last);
	return 0;
}

static int check_order(struct ckpt_run *run, struct ckpt_error *err)
{
	static const char *const types[] = {
		"fd.table",	 "fd.file",	      "fd.regular",  "fd.device",
		"fd.pipe",	 "fd.pipe-end",	      "fd.eventfd",  "fd.timerfd",
		"fd.epoll",	 "fd.signalfd",	      "fd.pidfd",    "fd.o-path",
		"fd.proc",	 "fd.async",	      "fd.deleted",  "fd.memfd",
		"fd.ghost-end",	 "fd.lock",	      "fd.inotify",  "fd.external",
		"fd.other-name", "fd.dead-directory", "fd.dead-end", "fd.thread-table"
	};

	for (size_t i = 0; i < CKPT_ARRAY_SIZE(types); i++) {
		int r = ckpt_record_order(run, types[i], err);

		if (r)
			return r;
	}
	return 0;
}

int fd_plan(struct ckpt_run *run, struct ckpt_error *err)
{
	struct fd_state *st = fd_state(run);
	size_t files = ckpt_record_count(run, "fd.file");
	CKPT_AUTO_FREE bool *held = calloc(files + 1, sizeof(*held));
	int r;

	if (!held || !st || fd_kinds_list(run, st))
		return ckpt_fail(err, ENOMEM, "out of memory");
	r = check_order(run, err);
	for (size_t i = 0; i < ckpt_record_count(run, "fd.table") && !r; i++)
		r = plan_table(run, ckpt_record_at(run, "fd.table", i), held, err);
	if (!r)
		r = fd_threads_plan(run, err);
	if (!r)
		r = fd_plan_inherit(run, err);
	for (size_t i = 0; i < files && !r; i++)
		r = plan_file(run, ckpt_record_at(run, "fd.file", i), held[i], err);
	if (!r)
		r = fd_async_plan(run, err);
	return r ? r : fd_locks_plan(run, err);
}
