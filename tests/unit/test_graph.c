/* SPDX-License-Identifier: MIT */
/* The order of steps, and the sentences about orders that cannot be. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/graph.h"
#include "engine/loader.h"

static int nothing(struct ckpt_run *run, struct ckpt_error *err)
{
	return 0;
}

#define L(...) ((const char *const[]){ __VA_ARGS__, NULL })
#define STEP(n, a, b, w)                                                                  \
	{                                                                                 \
		.runs = CKPT_DUMP, .name = (n), .help = "h", .after = (a), .before = (b), \
		.wants = (w), .fn = nothing                                               \
	}
#define END                  \
	{                    \
		.name = NULL \
	}

static void add(struct plugin_set *ps, const char *name, const struct ckpt_step *steps)
{
	const struct ckpt_plugin d = {
		CKPT_PLUGIN_HEADER, .name = name,     .version = "1",
		.summary = "s",	    .license = "MIT", .steps = steps,
	};
	struct ckpt_error e = { 0 };

	if (plugins_add(ps, name, "(test)", NULL, &d, &e) < 0)
		fail_msg("%s", e.text);
}

static void order_is(struct plugin_set *ps, const char *wanted)
{
	struct ckpt_error e = { 0 };
	struct graph g;
	char text[1024] = "";

	if (graph_build(&g, CKPT_DUMP, ps, &e) < 0)
		fail_msg("%s", e.text);
	for (size_t i = 0; i < g.n; i++) {
		strcat(text, i ? " " : "");
		strcat(text, g.nodes[g.order[i]].name);
	}
	assert_string_equal(text, wanted);
	graph_free(&g);
}

static void error_is(struct plugin_set *ps, enum ckpt_exit exit_class, const char *text,
		     const char *hint)
{
	struct ckpt_error e = { 0 };
	struct graph g;

	assert_true(graph_build(&g, CKPT_DUMP, ps, &e) < 0);
	assert_string_equal(e.text, text);
	assert_int_equal(e.exit, exit_class);
	if (hint)
		assert_string_equal(e.hint, hint);
	graph_free(&g);
}

static void milestones_alone(void **state)
{
	struct plugin_set ps = { 0 };

	order_is(&ps, "seized surveyed collected memory-saved planned committed released ended");
}

static void sorts_by_edges_then_names(void **state)
{
	const struct ckpt_step b[] = {
		STEP("one", L("surveyed"), L("collected"), NULL),
		STEP("early", L("seized"), L("b.one", "surveyed"), NULL),
		END,
	};
	const struct ckpt_step a[] = {
		STEP("two", L("b.one"), L("collected"), NULL),
		STEP("zero", L("surveyed"), L("collected"), NULL),
		STEP("save", L("collected"), L("memory-saved"), NULL),
		END,
	};
	struct plugin_set ps = { 0 };

	/* the order of adding does not matter */
	add(&ps, "b", b);
	add(&ps, "a", a);
	order_is(&ps, "seized b.early surveyed a.zero b.one a.two collected a.save memory-saved "
		      "planned committed released ended");
	plugins_free(&ps);
}

static void other_runs_do_not_count(void **state)
{
	const struct ckpt_step s[] = {
		{ .runs = CKPT_RESTORE,
		  .name = "x",
		  .help = "h",
		  .after = L("loaded"),
		  .before = L("planned"),
		  .fn = nothing },
		END,
	};
	struct plugin_set ps = { 0 };
	struct ckpt_error e = { 0 };
	struct graph g;

	add(&ps, "a", s);
	order_is(&ps, "seized surveyed collected memory-saved planned committed released ended");
	assert_int_equal(graph_build(&g, CKPT_RESTORE, &ps, &e), 0);
	assert_int_equal(g.n, g.n_milestones + 1);
	assert_string_equal(g.nodes[g.order[1]].name, "a.x");
	graph_free(&g);
	plugins_free(&ps);
}

static void soft_edges(void **state)
{
	const struct ckpt_step a[] = {
		STEP("x", L("seized"), L("surveyed"), L("z.y", "nobody.there")), END
	};
	const struct ckpt_step z[] = { STEP("y", L("seized"), L("surveyed"), NULL), END };
	struct plugin_set ps = { 0 };

	add(&ps, "a", a);
	order_is(&ps,
		 "seized a.x surveyed collected memory-saved planned committed released ended");
	add(&ps, "z", z);
	order_is(&ps,
		 "seized z.y a.x surveyed collected memory-saved planned committed released ended");
	ps.list[1]->on = false;
	order_is(&ps,
		 "seized a.x surveyed collected memory-saved planned committed released ended");
	plugins_free(&ps);
}

static void missing_step(void **state)
{
	const struct ckpt_step a[] = { STEP("x", L("seized", "z.yy"), L("surveyed"), NULL), END };
	const struct ckpt_step z[] = { STEP("y", L("seized"), L("surveyed"), NULL), END };
	struct plugin_set ps = { 0 };

	add(&ps, "a", a);
	add(&ps, "z", z);
	error_is(&ps, CKPT_EXIT_OK,
		 "step a.x of plugin a ((test)) must run after z.yy, and no such step or milestone "
		 "exists",
		 "did you mean 'z.y'?");
	plugins_free(&ps);
}

static void misspelt_milestone(void **state)
{
	const struct ckpt_step a[] = { STEP("x", L("seized"), L("surveied"), NULL), END };
	struct plugin_set ps = { 0 };

	add(&ps, "a", a);
	error_is(&ps, CKPT_EXIT_OK,
		 "step a.x of plugin a ((test)) must run before surveied, and no such step or "
		 "milestone exists",
		 "did you mean 'surveyed'?");
	plugins_free(&ps);
}

static void plugin_that_is_off(void **state)
{
	const struct ckpt_step a[] = { STEP("x", L("seized", "z.y"), L("surveyed"), NULL), END };
	const struct ckpt_step z[] = { STEP("y", L("seized"), L("surveyed"), NULL), END };
	struct plugin_set ps = { 0 };

	add(&ps, "a", a);
	add(&ps, "z", z);
	ps.list[1]->on = false;
	error_is(&ps, CKPT_EXIT_REFUSED,
		 "step a.x must run after z.y, but plugin z is switched off (default)",
		 "switch z on, or a off as well");
	plugins_free(&ps);
}

static void cycle_prints_the_path(void **state)
{
	const struct ckpt_step a[] = { STEP("x", L("seized", "c.x"), L("surveyed"), NULL), END };
	const struct ckpt_step b[] = { STEP("x", L("a.x"), L("surveyed"), NULL), END };
	const struct ckpt_step c[] = { STEP("x", L("b.x"), L("surveyed"), NULL), END };
	struct plugin_set ps = { 0 };

	add(&ps, "a", a);
	add(&ps, "b", b);
	add(&ps, "c", c);
	error_is(&ps, CKPT_EXIT_OK, "the steps' order is a cycle: a.x -> b.x -> c.x -> a.x", NULL);
	plugins_free(&ps);
}

static void cycle_through_milestones(void **state)
{
	const struct ckpt_step a[] = { STEP("x", L("collected"), L("surveyed"), NULL), END };
	struct plugin_set ps = { 0 };

	add(&ps, "a", a);
	error_is(&ps, CKPT_EXIT_OK,
		 "the steps' order is a cycle: a.x -> surveyed -> collected -> a.x", NULL);
	plugins_free(&ps);
}

/* What is only behind a cycle must not be taken for a part of it. */
static void cycle_without_its_followers(void **state)
{
	const struct ckpt_step m[] = {
		STEP("p", L("seized", "m.q"), L("surveyed"), NULL),
		STEP("q", L("m.p"), L("surveyed"), NULL),
		STEP("after", L("m.q"), L("surveyed"), NULL),
		END,
	};
	struct plugin_set ps = { 0 };

	add(&ps, "m", m);
	error_is(&ps, CKPT_EXIT_OK, "the steps' order is a cycle: m.p -> m.q -> m.p", NULL);
	plugins_free(&ps);
}

static void no_place(void **state)
{
	const struct ckpt_step a[] = { STEP("x", NULL, L("surveyed"), NULL), END };
	const struct ckpt_step b[] = { STEP("x", L("seized"), NULL, L("surveyed")), END };
	struct plugin_set ps = { 0 }, qs = { 0 };

	add(&ps, "a", a);
	error_is(&ps, CKPT_EXIT_OK, "step a.x of plugin a ((test)) is not after any milestone",
		 "add one to its 'after' list");
	add(&qs, "b", b);
	error_is(&qs, CKPT_EXIT_OK, "step b.x of plugin b ((test)) is not before any milestone",
		 "add one to its 'before' list");
	plugins_free(&ps);
	plugins_free(&qs);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(milestones_alone),
		cmocka_unit_test(sorts_by_edges_then_names),
		cmocka_unit_test(other_runs_do_not_count),
		cmocka_unit_test(soft_edges),
		cmocka_unit_test(missing_step),
		cmocka_unit_test(misspelt_milestone),
		cmocka_unit_test(plugin_that_is_off),
		cmocka_unit_test(cycle_prints_the_path),
		cmocka_unit_test(cycle_through_milestones),
		cmocka_unit_test(cycle_without_its_followers),
		cmocka_unit_test(no_place),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
