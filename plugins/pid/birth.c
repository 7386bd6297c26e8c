/* SPDX-License-Identifier: MIT */
/* The extension point "birth": what children inherit. */
#include <ckpt/pid.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "pid.h"

struct call {
	const struct ckpt_birth_kind *kind;
	struct ckpt_task *task;
	uint32_t id, maker;
	bool moment;
	const struct ckpt_kin *kin;
	size_t n_kin;
};

/* Plugins built before there was such a member do not have it. */
#define HAS(kind, member) \
	((kind)->size > offsetof(struct ckpt_birth_kind, member) && (kind)->member)

static int call_planned(struct ckpt_run *run, void *arg, struct ckpt_error *err)
{
	const struct call *c = arg;

	return c->kind->planned ? c->kind->planned(run, c->id, c->maker, err) : 0;
}

static int call_born(struct ckpt_run *run, void *arg, struct ckpt_error *err)
{
	const struct call *c = arg;

	if (!c->kind->born || (c->moment && !HAS(c->kind, family)))
		return 0;
	return c->kind->born(run, c->task, err);
}

static int call_family(struct ckpt_run *run, void *arg, struct ckpt_error *err)
{
	const struct call *c = arg;

	return HAS(c->kind, family) ? c->kind->family(run, c->kin, c->n_kin, err) : 0;
}

static int call_cloning(struct ckpt_run *run, void *arg, struct ckpt_error *err)
{
	const struct call *c = arg;

	return HAS(c->kind, cloning) ? c->kind->cloning(run, c->task, c->id, err) : 0;
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

int pid_birth_family(struct ckpt_run *run, const struct pid_plan *p, struct ckpt_error *err)
{
	CKPT_AUTO_FREE struct ckpt_kin *kin = calloc(p->n, sizeof(*kin));
	CKPT_AUTO_FREE uint32_t *index = calloc(p->n, sizeof(*index));
	struct call c = { .kin = kin };

	if (!kin || !index)
		return ckpt_fail_sys(err, ENOMEM, "family of %zu", p->n);
	for (size_t i = 0; i < p->n_ops; i++) {
		const struct pid_node *n = &p->nodes[p->ops[i].node];

		if (p->ops[i].kind != PID_OP_MAKE)
			continue;
		index[p->ops[i].node] = (uint32_t)c.n_kin;
		kin[c.n_kin++] = (struct ckpt_kin){ n->id, n->maker < 0 ? 0 : index[n->maker] };
	}
	return each(run, &c, call_family, err);
}

int pid_birth_cloning(struct ckpt_run *run, struct ckpt_task *maker, uint32_t id,
		      struct ckpt_error *err)
{
	struct call c = { .task = maker, .id = id };

	return each(run, &c, call_cloning, err);
}

int pid_birth_born(struct ckpt_run *run, struct ckpt_task *t, bool moment, struct ckpt_error *err)
{
	struct call c = { .task = t, .id = t->id, .moment = moment };

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
