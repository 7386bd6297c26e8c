/* SPDX-License-Identifier: MIT */
/* The extension point "session": terminals, and leaders outside the tree. */
#include <ckpt/pid.h>

#include "pid.h"

struct call {
	const struct ckpt_session_kind *kind;
	struct ckpt_task *task;
	uint32_t tty; /* as in stat(5): the kernel's new_encode_dev() */
};

static int call_terminal(struct ckpt_run *run, void *arg, struct ckpt_error *err)
{
	const struct call *c = arg;

	return c->kind->terminal(run, c->task, (c->tty >> 8) & 0xfff,
				 (c->tty & 0xff) | ((c->tty >> 12) & 0xfff00), err);
}

static int call_outside(struct ckpt_run *run, void *arg, struct ckpt_error *err)
{
	const struct call *c = arg;

	return c->kind->outside ? c->kind->outside(run, c->task, err) : 0;
}

static int call_made(struct ckpt_run *run, void *arg, struct ckpt_error *err)
{
	const struct call *c = arg;

	return c->kind->made ? c->kind->made(run, c->task, err) : 0;
}

/* All of them, until one answers with something else than `on`. */
static int each(struct ckpt_run *run, struct call *c, int on,
		int (*fn)(struct ckpt_run *run, void *arg, struct ckpt_error *err),
		struct ckpt_error *err)
{
	const struct ckpt_extension *e;
	const char *plugin;
	int r = on;

	for (size_t i = 0; r == on && (e = ckpt_extension_at(run, CKPT_SESSION_POINT, i, &plugin));
	     i++) {
		c->kind = e->ops;
		r = ckpt_call_as(run, plugin, fn, c, err);
	}
	return r;
}

int pid_session_terminal(struct ckpt_run *run, const struct ckpt_task *t, int64_t tty,
			 struct ckpt_error *err)
{
	struct call c = { .task = (struct ckpt_task *)(uintptr_t)t, .tty = (uint32_t)tty };

	return each(run, &c, 1, call_terminal, err);
}

int pid_session_outside(struct ckpt_run *run, const struct ckpt_task *t, struct ckpt_error *err)
{
	struct call c = { .task = (struct ckpt_task *)(uintptr_t)t };

	return each(run, &c, 0, call_outside, err);
}

int pid_session_made(struct ckpt_run *run, struct ckpt_task *t, struct ckpt_error *err)
{
	struct call c = { .task = t };

	return each(run, &c, 0, call_made, err);
}
