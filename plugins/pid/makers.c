/* SPDX-License-Identifier: MIT */
/*
 * Who clones whom. A task's session can only be had by birth, so a task whose
 * parent is not in its session was once a child of someone who was and died:
 * that someone is made again for a moment.
 */
#include <stdio.h>

#include "pid.h"

static uint32_t level_of(const struct pid_plan *p, int node)
{
	return p->ns[p->nodes[node].ns]->level;
}

static bool is_subreaper(const struct pid_node *n)
{
	return n->rec && n->rec->subreaper;
}

/*
 * Who adopts the children of a task in namespace `ns` whose parent is `from`, when
 * it dies: the nearest subreaper upwards within the level (the kernel's
 * find_new_reaper()), else the namespace's first process. -1: someone outside.
 */
static int reaper(const struct pid_plan *p, int from, uint32_t ns)
{
	int init = pid_plan_init(p, ns);

	for (int a = from; a >= 0 && level_of(p, a) == p->ns[ns]->level; a = p->nodes[a].parent)
		if (a == init || is_subreaper(&p->nodes[a]))
			return a;
	return init;
}

/* Can a child of `parent` be born in session `session`: after or before its setsid? */
static bool has_session(const struct pid_plan *p, int parent, int session)
{
	for (int a = parent; a >= 0; a = p->nodes[a].parent) {
		if (p->nodes[a].session == session)
			return true;
		if (!pid_leads_session(p, a))
			return false;
	}
	return session == -1;
}

static bool descends(const struct pid_plan *p, int node, int from)
{
	while (node >= 0 && node != from)
		node = p->nodes[node].parent;
	return node == from;
}

static void unmet(struct ckpt_run *run, const struct pid_plan *p, int node, const char *why)
{
	char name[48];

	ckpt_unmet(
		run, CKPT_EXIT_REFUSED,
		"give --allow-loss pid.sessions together with --without pid.sessions at the dump",
		"%s: %s", pid_node_name(&p->nodes[node], name, sizeof(name)), why);
}

/* A dead parent for `node`: child of some member of its session whose orphans its parent adopts. */
static int middle_for(struct pid_plan *p, int node)
{
	const struct pid_node *n = &p->nodes[node];
	int session = n->session, best = -1;

	for (size_t i = 0; i < p->n_tasks && session >= 0; i++) {
		int w = (int)i;

		if (p->nodes[w].session != session || p->nodes[w].ns != n->ns ||
		    descends(p, w, node) || reaper(p, w, n->ns) != n->parent)
			continue;
		/* the leader first: it is there from the session's beginning */
		if (best < 0 || w == session)
			best = w;
	}
	if (best < 0)
		return -1;
	for (size_t i = p->n_tasks; i < p->n; i++)
		if (p->nodes[i].kind == PID_MIDDLE && p->nodes[i].maker == best)
			return (int)i;
	if (p->n == p->cap)
		return -1;
	p->nodes[p->n] = (struct pid_node){
		.id = p->nodes[p->n - 1].id + 1,
		.kind = PID_MIDDLE,
		.ns = n->ns,
		.n_pids = n->n_pids,
		.parent = best,
		.maker = best,
		.session = session,
		.group = -1,
	};
	p->nodes[p->n].pids = p->nodes[p->n].own_pids;
	return (int)p->n++;
}

/* An orphan of a session whose leader is dead: that leader was the parent, and a child of `parent`.
 */
static bool adopt_leader(struct pid_plan *p, int node)
{
	struct pid_node *n = &p->nodes[node], *l = &p->nodes[n->session];

	if (n->parent < 0 || (l->maker >= 0 && l->maker != n->parent) ||
	    !pid_plan_covers(p, p->nodes[n->parent].ns, l->ns) ||
	    reaper(p, n->parent, l->ns) != n->parent)
		return false;
	l->maker = l->parent = n->parent;
	n->maker = n->session;
	return true;
}

static void task_maker(struct ckpt_run *run, struct pid_plan *p, int node)
{
	struct pid_node *n = &p->nodes[node];

	n->maker = n->parent;
	if (pid_leads_session(p, node) || has_session(p, n->parent, n->session))
		return;
	if (n->session >= 0 && p->nodes[n->session].kind == PID_LEADER) {
		if (!adopt_leader(p, node))
			unmet(run, p, node,
			      "the leader of its session is dead, and was not a child of its "
			      "parent");
		return;
	}
	n->maker = node ? middle_for(p, node) : -1;
	if (n->maker < 0)
		unmet(run, p, node, "its parent is not in its session and cannot have adopted it");
}

/* Who in the session of a dead group leader can make it. */
static void group_maker(struct ckpt_run *run, struct pid_plan *p, int node)
{
	struct pid_node *n = &p->nodes[node];
	int best = -1;

	for (size_t i = 0; i < p->n_tasks; i++) {
		const struct pid_node *w = &p->nodes[i];
		bool exact = w->ns == n->ns;

		if (w->session != n->session || !pid_plan_covers(p, w->ns, n->ns))
			continue;
		if (best < 0 || (exact && p->nodes[best].ns != n->ns))
			best = (int)i;
	}
	n->maker = n->parent = best;
	if (best < 0)
		unmet(run, p, node, "no task in the session of its group can make it");
}

int pid_plan_makers(struct ckpt_run *run, struct pid_plan *p, struct ckpt_error *err)
{
	size_t n_recorded = p->n;

	for (size_t i = p->n_tasks; i < n_recorded; i++)
		p->nodes[i].maker = -1;
	for (size_t i = 0; i < p->n_tasks; i++)
		task_maker(run, p, (int)i);
	for (size_t i = p->n_tasks; i < n_recorded; i++) {
		if (!pid_leads_session(p, (int)i))
			group_maker(run, p, (int)i);
		else if (p->nodes[i].maker < 0)
			unmet(run, p, (int)i, "nobody can be its parent");
	}
	return 0;
}
