/* SPDX-License-Identifier: MIT */
#include "engine/graph.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <ckpt/cleanup.h>

#include "engine/engine.h"
#include "engine/text.h"

static const char *const dump_milestones[] = { "seized",       "surveyed", "collected",
					       "memory-saved", "planned",  "committed",
					       "released",     "ended",	   NULL };
static const char *const verify_milestones[] = { "loaded",   "seized",	 "surveyed", "collected",
						 "released", "compared", NULL };
static const char *const restore_milestones[] = { "loaded",
						  "planned",
						  "namespaces-made",
						  "tasks-made",
						  "tasks-placed",
						  "files-installed",
						  "memory-mapped",
						  "threads-made",
						  "sealed",
						  "running",
						  NULL };

const char *const *graph_milestones(enum ckpt_run_kind kind)
{
	if (kind == CKPT_DUMP)
		return dump_milestones;
	return kind == CKPT_RESTORE ? restore_milestones : verify_milestones;
}

void graph_free(struct graph *g)
{
	for (size_t i = 0; i < g->n; i++)
		free(g->nodes[i].name);
	free(g->nodes);
	free(g->edges);
	free(g->order);
	*g = (struct graph){ 0 };
}

static int add_node(struct graph *g, struct loaded_plugin *p, const struct ckpt_step *step,
		    const char *name, struct ckpt_error *err)
{
	char *full = NULL;

	if (asprintf(&full, "%s%s%s", p ? p->name : "", p ? "." : "", name) < 0)
		return fail_nomem(err);
	if (!VEC_ROOM(g->nodes, g->n)) {
		free(full);
		return fail_nomem(err);
	}
	g->nodes[g->n++] = (struct graph_node){ full, step, p };
	return 0;
}

static int add_edge(struct graph *g, size_t from, size_t to, enum edge_kind kind,
		    struct ckpt_error *err)
{
	if (!VEC_ROOM(g->edges, g->n_edges))
		return fail_nomem(err);
	g->edges[g->n_edges++] = (struct graph_edge){ from, to, kind };
	return 0;
}

static bool find_node(const struct graph *g, const char *name, size_t *i)
{
	for (*i = 0; *i < g->n; ++*i)
		if (!strcmp(g->nodes[*i].name, name))
			return true;
	return false;
}

/* A hard edge leads nowhere: because its plugin is off, or the name is wrong. */
static int missing(const struct graph *g, const struct plugin_set *ps, const struct graph_node *n,
		   const char *edge, const char *name, struct ckpt_error *err)
{
	CKPT_AUTO_FREE const char **names = calloc(g->n + 1, sizeof(*names));
	const char *dot = strchr(name, '.'), *near;

	if (!names)
		return fail_nomem(err);
	for (size_t i = 0; dot && i < ps->n; i++) {
		const struct loaded_plugin *p = ps->list[i];

		if (p->on || strlen(p->name) != (size_t)(dot - name) ||
		    strncmp(p->name, name, (size_t)(dot - name)) != 0)
			continue;
		ckpt_fail_as(err, CKPT_EXIT_REFUSED, ENOENT,
			     "step %s must run %s %s, but plugin %s is switched off (%s)", n->name,
			     edge, name, p->name, p->origin);
		return ckpt_hint(err, "switch %s on, or %s off as well", p->name, n->plugin->name);
	}
	for (size_t i = 0; i < g->n; i++)
		names[i] = g->nodes[i].name;
	near = text_nearest(name, names, g->n);
	ckpt_fail(err, ENOENT,
		  "step %s of plugin %s (%s) must run %s %s, and no such step or milestone exists",
		  n->name, n->plugin->name, n->plugin->path, edge, name);
	if (near)
		return ckpt_hint(err, "did you mean '%s'?", near);
	return ckpt_hint(err, "a plugin that it builds on may be missing; see: ckpt plugins");
}

static int add_list(struct graph *g, const struct plugin_set *ps, size_t self,
		    const char *const *list, enum edge_kind kind, struct ckpt_error *err)
{
	for (; list && *list; list++) {
		size_t other;
		int r;

		if (!find_node(g, *list, &other)) {
			if (kind == EDGE_WANTS)
				continue;
			return missing(g, ps, &g->nodes[self],
				       kind == EDGE_AFTER ? "after" : "before", *list, err);
		}
		r = kind == EDGE_BEFORE ? add_edge(g, self, other, kind, err)
					: add_edge(g, other, self, kind, err);
		if (r < 0)
			return r;
	}
	return 0;
}

static int add_nodes(struct graph *g, const struct plugin_set *ps, struct ckpt_error *err)
{
	const char *const *m = graph_milestones(g->kind);
	int r = 0;

	for (; !r && *m; m++)
		r = add_node(g, NULL, NULL, *m, err);
	g->n_milestones = g->n;
	for (size_t i = 0; i < ps->n; i++) {
		struct loaded_plugin *p = ps->list[i];

		for (const struct ckpt_step *s = p->desc.steps; !r && p->on && s && s->name; s++)
			if (s->runs & g->kind)
				r = add_node(g, p, s, s->name, err);
	}
	return r;
}

static int add_edges(struct graph *g, const struct plugin_set *ps, struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; !r && i + 1 < g->n_milestones; i++)
		r = add_edge(g, i, i + 1, EDGE_CHAIN, err);
	for (size_t i = g->n_milestones; !r && i < g->n; i++) {
		const struct ckpt_step *s = g->nodes[i].step;

		r = add_list(g, ps, i, s->after, EDGE_AFTER, err);
		if (!r)
			r = add_list(g, ps, i, s->before, EDGE_BEFORE, err);
		if (!r)
			r = add_list(g, ps, i, s->wants, EDGE_WANTS, err);
	}
	return r;
}

/*
 * Mark what can be reached from the milestones along hard edges. Soft edges do
 * not count: whether a step has a place must not depend on who else is there.
 */
static void mark(const struct graph *g, bool *seen, bool forward)
{
	bool more = true;

	for (size_t i = 0; i < g->n; i++)
		seen[i] = i < g->n_milestones;
	while (more) {
		more = false;
		for (size_t i = 0; i < g->n_edges; i++) {
			const struct graph_edge *e = &g->edges[i];
			size_t from = forward ? e->from : e->to, to = forward ? e->to : e->from;

			if (e->kind == EDGE_WANTS || !seen[from] || seen[to])
				continue;
			seen[to] = true;
			more = true;
		}
	}
}

static int check_places(const struct graph *g, struct ckpt_error *err)
{
	CKPT_AUTO_FREE bool *seen = calloc(g->n, sizeof(*seen));

	if (!seen)
		return fail_nomem(err);
	for (int forward = 0; forward < 2; forward++) {
		mark(g, seen, forward);
		for (size_t i = g->n_milestones; i < g->n; i++) {
			const char *list = forward ? "after" : "before";

			if (seen[i])
				continue;
			ckpt_fail(err, EINVAL, "step %s of plugin %s (%s) is not %s any milestone",
				  g->nodes[i].name, g->nodes[i].plugin->name,
				  g->nodes[i].plugin->path, list);
			return ckpt_hint(err, "add one to its '%s' list", list);
		}
	}
	return 0;
}

/*
 * Every node that is left has a predecessor that is left, so walking backwards
 * from any must come around. Start at the first by name: the same graph gives
 * the same sentence.
 */
static int cycle(const struct graph *g, const bool *done, struct ckpt_error *err)
{
	CKPT_AUTO_FREE size_t *prev = calloc(g->n, sizeof(*prev));
	CKPT_AUTO_FREE bool *seen = calloc(g->n, sizeof(*seen));
	size_t at = g->n, start;

	if (!prev || !seen)
		return fail_nomem(err);
	for (size_t i = 0; i < g->n; i++)
		if (!done[i] && (at == g->n || strcmp(g->nodes[i].name, g->nodes[at].name) < 0))
			at = i;
	while (!seen[at]) {
		size_t i = 0;

		seen[at] = true;
		while (g->edges[i].to != at || done[g->edges[i].from])
			i++;
		/* where we came from comes after it */
		prev[g->edges[i].from] = at;
		at = g->edges[i].from;
	}
	start = at;
	ckpt_fail(err, ELOOP, "the steps' order is a cycle: %s", g->nodes[start].name);
	do {
		size_t len = err ? strlen(err->text) : 0;

		at = prev[at];
		if (err)
			snprintf(err->text + len, sizeof(err->text) - len, " -> %s",
				 g->nodes[at].name);
	} while (at != start);
	return ckpt_hint(err, "each runs before the next one; see: ckpt plugins");
}

/* Of two nodes that are ready: steps before milestones (as early as they can), then by name. */
static bool goes_first(const struct graph *g, size_t a, size_t b)
{
	bool step_a = a >= g->n_milestones, step_b = b >= g->n_milestones;

	if (step_a != step_b)
		return step_a;
	return strcmp(g->nodes[a].name, g->nodes[b].name) < 0;
}

static int sort(struct graph *g, struct ckpt_error *err)
{
	CKPT_AUTO_FREE size_t *waits = calloc(g->n, sizeof(*waits));
	CKPT_AUTO_FREE bool *done = calloc(g->n, sizeof(*done));

	g->order = calloc(g->n, sizeof(*g->order));
	if (!waits || !done || !g->order)
		return fail_nomem(err);
	for (size_t i = 0; i < g->n_edges; i++)
		waits[g->edges[i].to]++;
	for (size_t at = 0; at < g->n; at++) {
		size_t next = g->n;

		for (size_t i = 0; i < g->n; i++)
			if (!done[i] && !waits[i] && (next == g->n || goes_first(g, i, next)))
				next = i;
		if (next == g->n)
			return cycle(g, done, err);
		done[next] = true;
		g->order[at] = next;
		for (size_t i = 0; i < g->n_edges; i++)
			if (g->edges[i].from == next)
				waits[g->edges[i].to]--;
	}
	return 0;
}

int graph_build(struct graph *g, enum ckpt_run_kind kind, const struct plugin_set *ps,
		struct ckpt_error *err)
{
	int r;

	*g = (struct graph){ .kind = kind };
	r = add_nodes(g, ps, err);
	if (!r)
		r = add_edges(g, ps, err);
	if (!r)
		r = sort(g, err);
	return r < 0 ? r : check_places(g, err);
}
