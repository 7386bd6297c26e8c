/* SPDX-License-Identifier: MIT */
/* `ckpt graph`: the order, and why. */
#include <stdlib.h>
#include <string.h>

#include <ckpt/cleanup.h>

#include "engine/engine.h"
#include "image/image.h"

static const char *const edge_names[] = {
	[EDGE_CHAIN] = "milestone",
	[EDGE_AFTER] = "after",
	[EDGE_BEFORE] = "before",
	[EDGE_WANTS] = "wants",
};

/* The node's own edges: what it asked for, in the order of its lists. */
static void print_reasons(const struct graph *g, size_t node, FILE *out)
{
	static const enum edge_kind kinds[] = { EDGE_AFTER, EDGE_BEFORE, EDGE_WANTS };
	bool any = false;

	for (size_t k = 0; k < CKPT_ARRAY_SIZE(kinds); k++) {
		const char *sep = NULL;

		for (size_t i = 0; i < g->n_edges; i++) {
			const struct graph_edge *e = &g->edges[i];
			bool own = kinds[k] == EDGE_BEFORE ? e->from == node : e->to == node;

			if (e->kind != kinds[k] || !own)
				continue;
			if (!sep)
				fprintf(out, "%s%s", any ? "; " : "        ", edge_names[e->kind]);
			fprintf(out, "%s %s", sep ? sep : "",
				g->nodes[kinds[k] == EDGE_BEFORE ? e->to : e->from].name);
			sep = ",";
			any = true;
		}
	}
	if (any)
		fputs("\n", out);
}

static void print_text(const struct graph *g, FILE *out)
{
	fprintf(out, "%s: %zu steps between %zu milestones\n", run_kind_name(g->kind),
		g->n - g->n_milestones, g->n_milestones);
	for (size_t i = 0; i < g->n; i++) {
		const struct graph_node *n = &g->nodes[g->order[i]];

		if (!n->step) {
			fprintf(out, "%4zu  [%s]\n", i + 1, n->name);
			continue;
		}
		fprintf(out, "%4zu  %s - %s\n", i + 1, n->name, n->step->help);
		print_reasons(g, g->order[i], out);
	}
}

static void print_dot(const struct graph *g, FILE *out)
{
	fprintf(out, "digraph %s {\n\trankdir=LR;\n", run_kind_name(g->kind));
	for (size_t i = 0; i < g->n; i++) {
		const struct graph_node *n = &g->nodes[g->order[i]];

		fprintf(out, "\t\"%s\" [shape=%s];\n", n->name, n->step ? "ellipse" : "box");
	}
	for (size_t i = 0; i < g->n_edges; i++) {
		const struct graph_edge *e = &g->edges[i];

		fprintf(out, "\t\"%s\" -> \"%s\" [style=%s];\n", g->nodes[e->from].name,
			g->nodes[e->to].name,
			e->kind == EDGE_WANTS	? "dashed"
			: e->kind == EDGE_CHAIN ? "bold"
						: "solid");
	}
	fputs("}\n", out);
}

static void print_json_edges(const struct graph *g, size_t node, FILE *out)
{
	bool first = true;

	for (size_t i = 0; i < g->n_edges; i++) {
		const struct graph_edge *e = &g->edges[i];

		if (e->to != node)
			continue;
		fputs(first ? "{\"node\": " : ", {\"node\": ", out);
		json_string(out, g->nodes[e->from].name);
		fprintf(out, ", \"edge\": \"%s\"}", edge_names[e->kind]);
		first = false;
	}
}

static void print_json(const struct graph *g, FILE *out)
{
	fprintf(out, "{\"schema\": 1, \"run\": \"%s\", \"order\": [", run_kind_name(g->kind));
	for (size_t i = 0; i < g->n; i++) {
		const struct graph_node *n = &g->nodes[g->order[i]];

		fputs(i ? ",\n {\"node\": " : "\n {\"node\": ", out);
		json_string(out, n->name);
		fprintf(out, ", \"kind\": \"%s\"", n->step ? "step" : "milestone");
		if (n->step) {
			fputs(", \"plugin\": ", out);
			json_string(out, n->plugin->name);
			fputs(", \"help\": ", out);
			json_string(out, n->step->help);
		}
		fputs(", \"follows\": [", out);
		print_json_edges(g, g->order[i], out);
		fputs("]}", out);
	}
	fputs("\n]}\n", out);
}

int ckpt_print_graph(struct ckpt *c, enum ckpt_run_kind run, bool dot, bool json, FILE *out,
		     struct ckpt_error *err)
{
	const struct graph *g;
	int r = engine_graph(c, run, &g, err);

	if (r < 0)
		return ckpt_wrap(err, "%s", run_kind_name(run));
	if (dot)
		print_dot(g, out);
	else if (json)
		print_json(g, out);
	else
		print_text(g, out);
	return 0;
}
