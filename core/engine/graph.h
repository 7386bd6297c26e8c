/* SPDX-License-Identifier: MIT */
/*
 * The order of a run: steps and milestones as nodes, their edges sorted
 * topologically, ties by name. Knows no more of plugins than their step tables.
 */
#ifndef CKPT_ENGINE_GRAPH_H
#define CKPT_ENGINE_GRAPH_H

#include <stdio.h>

#include <ckpt/plugin.h>

struct loaded_plugin;
struct plugin_set;

enum edge_kind {
	EDGE_CHAIN,  /* milestone to milestone */
	EDGE_AFTER,  /* the later node asked for it */
	EDGE_BEFORE, /* the earlier node asked for it */
	EDGE_WANTS,  /* the later node asked for it, if the other is there */
};

struct graph_edge {
	size_t from, to; /* indices of nodes: from comes first */
	enum edge_kind kind;
};

struct graph_node {
	char *name;		      /* "pid.collect", "collected" */
	const struct ckpt_step *step; /* NULL: a milestone */
	struct loaded_plugin *plugin; /* of the step */
};

struct graph {
	enum ckpt_run_kind kind;
	struct graph_node *nodes; /* milestones first, in their order */
	size_t n, n_milestones;
	struct graph_edge *edges;
	size_t n_edges;
	size_t *order; /* indices of nodes */
};

/* The milestones of a kind of run, in order; NULL ends. */
const char *const *graph_milestones(enum ckpt_run_kind kind);

/*
 * Build and sort the graph of the plugins that are on. Errors name step, plugin
 * and the missing node (CKPT_EXIT_REFUSED if it belongs to a plugin that is
 * off), or print the path of a cycle. Free with graph_free() in either case.
 */
int graph_build(struct graph *g, enum ckpt_run_kind kind, const struct plugin_set *ps,
		struct ckpt_error *err);
void graph_free(struct graph *g);

#endif
