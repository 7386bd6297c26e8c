/* SPDX-License-Identifier: MIT */
/* In which order tasks are cloned: what needs the session before a setsid comes before it. */
#include <stdio.h>
#include <stdlib.h>

#include "pid.h"

enum { ANY_SESSION = -2 };

/* An image cannot make us recurse deeper than this; real trees nest two or three. */
#define MAX_EARLY 100

struct order {
	struct ckpt_run *run;
	struct pid_plan *p;
	int *first, *next; /* children by maker, in order of their ids */
	int *queue;	   /* reached from the root, makers first */
	size_t n_queue;
	int *need; /* session that a node must be born in */
};

static void order_free(struct order *o)
{
	free(o->first);
	free(o->next);
	free(o->queue);
	free(o->need);
}

static int order_alloc(struct order *o, struct ckpt_error *err)
{
	size_t n = o->p->n;

	o->first = calloc(n, sizeof(int));
	o->next = calloc(n, sizeof(int));
	o->queue = calloc(n, sizeof(int));
	o->need = calloc(n, sizeof(int));
	/* made, subreaper set, setsid done: three a node at most */
	o->p->ops = calloc(3 * n, sizeof(*o->p->ops));
	if (!o->first || !o->next || !o->queue || !o->need || !o->p->ops)
		return ckpt_fail_sys(err, ENOMEM, "order of %zu tasks", n);
	return 0;
}

static void unmet(struct order *o, int node, const char *why)
{
	char name[48];

	ckpt_unmet(o->run, CKPT_EXIT_REFUSED, "this combination cannot be made again", "%s: %s",
		   pid_node_name(&o->p->nodes[node], name, sizeof(name)), why);
}

/* Breadth first along the makers; what is not reached depends on itself. */
static void reach(struct order *o)
{
	struct pid_plan *p = o->p;

	for (size_t i = 0; i < p->n; i++)
		o->first[i] = o->next[i] = -1;
	for (size_t i = p->n; i-- > 1;) {
		int m = p->nodes[i].maker;

		if (m < 0)
			continue;
		o->next[i] = o->first[m];
		o->first[m] = (int)i;
	}
	o->queue[o->n_queue++] = 0;
	for (size_t i = 0; i < o->n_queue; i++)
		for (int k = o->first[o->queue[i]]; k >= 0; k = o->next[k])
			o->queue[o->n_queue++] = k;
}

/* Children first: which session must each be born in, and who is due before its maker's setsid? */
static void needs(struct order *o)
{
	struct pid_plan *p = o->p;

	for (size_t i = o->n_queue; i-- > 0;) {
		int at = o->queue[i];
		bool leads = pid_leads_session(p, at);

		o->need[at] = leads ? ANY_SESSION : p->nodes[at].session;
		for (int k = o->first[at]; k >= 0 && leads; k = o->next[k]) {
			if (o->need[k] == ANY_SESSION || o->need[k] == at)
				continue;
			if (o->need[at] != ANY_SESSION && o->need[at] != o->need[k])
				unmet(o, at,
				      "its children are in several sessions older than its "
				      "own");
			o->need[at] = o->need[k];
			p->nodes[k].early = true;
		}
	}
}

static void add_op(struct order *o, enum pid_op_kind kind, int node)
{
	o->p->ops[o->p->n_ops++] = (struct pid_op){ kind, node };
}

/* The first process of a namespace must be there before others are born into it from outside. */
static bool ready(const struct order *o, int node)
{
	const struct pid_plan *p = o->p;
	const struct pid_node *n = &p->nodes[node];
	int init = pid_plan_init(p, n->ns);

	return init < 0 || init == node || p->nodes[init].made;
}

static void check_birth(struct order *o, int node)
{
	const struct pid_plan *p = o->p;
	const struct pid_node *n = &p->nodes[node];
	uint32_t maker_ns = n->maker < 0 ? 0 : p->nodes[n->maker].ns;

	if (pid_plan_init(p, n->ns) == node ? p->ns[n->ns]->parent != maker_ns + 1
					    : (n->maker < 0 && n->ns != 0))
		unmet(o, node, "its parent is not in the namespace above its own");
	if (!pid_leads_session(p, node) && n->born_session != n->session)
		unmet(o, node, "it cannot be born in its session");
}

static void make(struct order *o, int node)
{
	struct pid_node *n = &o->p->nodes[node];
	const struct pid_node *maker = n->maker < 0 ? NULL : &o->p->nodes[n->maker];

	n->born_session = maker ? maker->now_session : -1;
	n->born_group = maker ? maker->now_group : -1;
	n->now_session = n->born_session;
	n->now_group = n->born_group;
	n->made = true;
	check_birth(o, node);
	add_op(o, PID_OP_MAKE, node);
	if (n->rec && n->rec->subreaper)
		add_op(o, PID_OP_SUBREAPER, node);
}

/* A node was made: its early children, its setsid. */
static void settle(struct order *o, int node, unsigned depth)
{
	struct pid_node *n = &o->p->nodes[node];

	if (depth > MAX_EARLY) {
		unmet(o, node,
		      "sessions made by children before their parents' are nested too "
		      "deep");
		return;
	}
	for (int k = o->first[node]; k >= 0; k = o->next[k]) {
		if (!o->p->nodes[k].early)
			continue;
		if (!ready(o, k))
			unmet(o, k, "its pid namespace is younger than its parent's session");
		make(o, k);
		settle(o, k, depth + 1);
	}
	if (!pid_leads_session(o->p, node))
		return;
	add_op(o, PID_OP_SETSID, node);
	n->now_session = n->now_group = node;
}

/* The rest, again and again while something becomes possible. */
static void make_all(struct order *o)
{
	bool more = true;

	make(o, 0);
	settle(o, 0, 0);
	while (more) {
		more = false;
		for (size_t i = 1; i < o->n_queue; i++) {
			int at = o->queue[i];
			const struct pid_node *n = &o->p->nodes[at];

			if (n->made || !o->p->nodes[n->maker].made || !ready(o, at))
				continue;
			make(o, at);
			settle(o, at, 0);
			more = true;
		}
	}
	for (size_t i = 0; i < o->p->n; i++)
		if (!o->p->nodes[i].made)
			unmet(o, (int)i,
			      "nothing can make it before its parent or namespace is there");
}

int pid_plan_order(struct ckpt_run *run, struct pid_plan *p, struct ckpt_error *err)
{
	__attribute__((cleanup(order_free))) struct order o = { .run = run, .p = p };
	int r = order_alloc(&o, err);

	if (r < 0)
		return r;
	reach(&o);
	needs(&o);
	make_all(&o);
	for (size_t i = 0; i < p->n; i++)
		if (pid_group_actor(p, (int)i) == PID_NO_ACTOR)
			unmet(&o, (int)i, "nobody who could put it into its group sees that group");
	return 0;
}
