/* SPDX-License-Identifier: MIT */
/*
 * The extension point "share": a table that several processes share is only to be
 * had by birth. So all nodes between the sharers in the tree of makers are born
 * with it, and those that are no sharers give it up when all are made.
 */
#include <stdlib.h>

#include <ckpt/pid.h>

#include "pid.h"

struct share {
	struct ckpt_run *run;
	struct pid_plan *p;
	const struct ckpt_share_kind *kind;
	int *group; /* by node: the first of the sharers, or -1 */
	int *held;  /* while all are made: of which sharers' table it has */
	int *depth; /* below the root, by makers */
	int *roots; /* by first sharer: the nearest maker of all of them */
};

/* -1: its makers go round in a circle, which the order finds out. */
static int depth_of(const struct share *s, int node)
{
	int d = 0;

	for (int a = node; a >= 0; a = s->p->nodes[a].maker)
		if (d++ > (int)s->p->n)
			return -1;
	return d;
}

/* Who shares it; 1: somebody does. */
static int load(struct ckpt_run *run, void *arg, struct ckpt_error *err)
{
	struct share *s = arg;
	int any = 0;

	for (size_t i = 0; i < s->p->n_tasks; i++) {
		const struct pid_node *n = &s->p->nodes[i];
		uint32_t with = s->kind->with(run, n->id);
		int first = with ? pid_plan_node(s->p, with) : -1;

		if (!with)
			continue;
		if (n->rec->zombie || first < 0 || first >= (int)i ||
		    s->p->nodes[first].rec->zombie || s->kind->with(run, with))
			return ckpt_fail_image(err, "task %u: no task %u to share its %s with",
					       n->id, with, s->kind->what);
		s->group[i] = s->group[first] = first;
		any = 1;
	}
	return any;
}

static void unmet(const struct share *s, int a, const char *why)
{
	char name[48];

	ckpt_unmet(s->run, CKPT_EXIT_REFUSED, "this combination cannot be made again",
		   "%s: its shared %s: %s", pid_node_name(&s->p->nodes[a], name, sizeof(name)),
		   s->kind->what, why);
}

static bool hold(struct share *s, int node, int group)
{
	if (s->held[node] >= 0 && s->held[node] != group) {
		unmet(s, node, "it has to be born with that of others");
		return false;
	}
	s->held[node] = group;
	return true;
}

static int common_maker(const struct share *s, int a, int b)
{
	const struct pid_node *nodes = s->p->nodes;

	if (a < 0 || b < 0 || s->depth[a] < 0 || s->depth[b] < 0)
		return -1;
	while (a >= 0 && b >= 0 && a != b) {
		if (s->depth[a] > s->depth[b])
			a = nodes[a].maker;
		else if (s->depth[b] > s->depth[a])
			b = nodes[b].maker;
		else
			a = nodes[a].maker, b = nodes[b].maker;
	}
	return a == b ? a : -1;
}

/* All between a sharer and the root of its kind are born with it. */
static void carry(struct share *s, int node, int root, int group)
{
	for (int a = node; hold(s, a, group) && a != root; a = s->p->nodes[a].maker) {
		if (s->p->nodes[a].born_sharing & s->kind->flag)
			break;
		s->p->nodes[a].born_sharing |= s->kind->flag;
	}
}

static void plan_kind(struct share *s)
{
	struct pid_plan *p = s->p;
	int *roots = s->roots;

	for (size_t i = 0; i < p->n; i++)
		s->depth[i] = depth_of(s, (int)i);
	for (size_t i = 0; i < p->n_tasks; i++) {
		int g = s->group[i];

		if (g >= 0)
			roots[g] = g == (int)i ? g : common_maker(s, roots[g], (int)i);
		if (g >= 0 && roots[g] < 0) {
			unmet(s, (int)i, "nobody is the ancestor of all that share it");
			return;
		}
	}
	for (size_t i = 0; i < p->n_tasks; i++)
		if (s->group[i] >= 0)
			carry(s, (int)i, roots[s->group[i]], s->group[i]);
	for (size_t i = 0; i < p->n_tasks; i++)
		if (s->held[i] >= 0 && s->group[i] < 0 && !p->nodes[i].rec->zombie)
			p->nodes[i].parts |= s->kind->flag;
}

static int alloc(struct share *s)
{
	s->group = malloc(s->p->n * sizeof(int));
	s->held = malloc(s->p->n * sizeof(int));
	s->depth = malloc(s->p->n * sizeof(int));
	s->roots = malloc(s->p->n * sizeof(int));
	return s->group && s->held && s->depth && s->roots ? 0 : -ENOMEM;
}

static void share_free(struct share *s)
{
	free(s->group);
	free(s->held);
	free(s->depth);
	free(s->roots);
}

int pid_plan_sharing(struct ckpt_run *run, struct pid_plan *p, struct ckpt_error *err)
{
	__attribute__((cleanup(share_free))) struct share s = { .run = run, .p = p };
	const struct ckpt_extension *e;
	const char *plugin;
	int r = alloc(&s);

	if (r)
		return ckpt_fail_sys(err, r, "sharing of %zu tasks", p->n);
	for (size_t i = 0; r >= 0 && (e = ckpt_extension_at(run, CKPT_SHARE_POINT, i, &plugin));
	     i++) {
		s.kind = e->ops;
		for (size_t k = 0; k < p->n; k++)
			s.group[k] = s.held[k] = -1;
		r = ckpt_call_as(run, plugin, load, &s, err);
		if (r > 0)
			plan_kind(&s);
	}
	return r < 0 ? r : 0;
}
