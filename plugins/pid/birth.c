/* SPDX-License-Identifier: MIT */
/* The extension point "birth": what children inherit. */
#include <ckpt/pid.h>
#include <string.h>

#include "pid.h"

struct call {
	const struct ckpt_birth_kind *kind;
	struct ckpt_task *task;
	uint32_t id, maker;
};

static int call_planned(struct ckpt_run *run, void *arg, struct ckpt_error *err)
{
	const struct call *c = arg;

	return c->kind->planned ? c->kind->planned(run, c->id, c->maker, err) : 0;
}

static int call_born(struct ckpt_run *run, void *arg, struct ckpt_error *err)
{
	const struct call *c = arg;

	return c->kind->born ? c->kind->born(run, c->task, err) : 0;
}

static int each(struct ckpt_run *run, struct call *c,
		int (*fn)(struct ckpt_run *run, void *arg, struct ckpt_error *err),
		struct ckpt_error *err)
{
	const struct ckpt_extension *e;
	const char *plugin;
	int r = 0;

	for (size_t i = 0; r == 0 && (e = ckpt_extension_at(run, CKPT_BIRTH_POINT, i, &plugin));
	     i++) {
		c->kind = e->ops;
		r = ckpt_call_as(run, plugin, fn, c, err);
	}
	return r;
}

/* Those that are made for a moment have no state of their own: they hand on what they got. */
static uint32_t inherits_from(const struct pid_plan *p, const struct pid_node *n)
{
	int at = n->maker;

	while (at >= 0 && p->nodes[at].kind != PID_TASK)
		at = p->nodes[at].maker;
	return at < 0 ? 0 : p->nodes[at].id;
}

int pid_birth_planned(struct ckpt_run *run, const struct pid_plan *p, struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; i < p->n_tasks && r == 0; i++) {
		struct call c = {
			.id = p->nodes[i].id,
			.maker = inherits_from(p, &p->nodes[i]),
		};

		r = each(run, &c, call_planned, err);
	}
	return r;
}

int pid_birth_born(struct ckpt_run *run, struct ckpt_task *t, struct ckpt_error *err)
{
	struct call c = { .task = t, .id = t->id };

	return each(run, &c, call_born, err);
}

bool pid_has_extension(struct ckpt_run *run, const char *point, const char *name)
{
	const struct ckpt_extension *e;

	for (size_t i = 0; (e = ckpt_extension_at(run, point, i, NULL)); i++)
		if (!strcmp(e->name, name))
			return true;
	return false;
}
