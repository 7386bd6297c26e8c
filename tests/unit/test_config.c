/* SPDX-License-Identifier: MIT */
/* Settings: files and command line, which of them counts, and where a value comes from. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <ckpt/cleanup.h>

#include "engine/engine.h"

static const struct ckpt_option options[] = {
	{ "size", CKPT_OPT_SIZE, "4K", NULL, 0, 0, "a size" },
	{ "dirs", CKPT_OPT_LIST, NULL, NULL, 0, 0, "directories" },
	{ .name = NULL },
};

static const struct ckpt_feature features[] = { { "pipes", "h" },
						{ "timers", "h" },
						{ NULL, NULL } };

struct fixture {
	struct settings s;
	struct plugin_set ps;
	struct ckpt_error e;
	char path[64];
};

static void add(struct plugin_set *ps, const char *name)
{
	const struct ckpt_plugin d = {
		CKPT_PLUGIN_HEADER, .name = name,	.version = "1",	      .summary = "s",
		.license = "MIT",   .options = options, .features = features,
	};
	struct ckpt_error e = { 0 };

	if (plugins_add(ps, name, "(test)", NULL, &d, &e) < 0)
		fail_msg("%s", e.text);
}

static int set_up(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	strcpy(f->path, "/tmp/engine-config-XXXXXX");
	close(mkstemp(f->path));
	add(&f->ps, "fd");
	add(&f->ps, "mem");
	*state = f;
	return 0;
}

static int tear_down(void **state)
{
	struct fixture *f = *state;

	unlink(f->path);
	plugins_free(&f->ps);
	settings_free(&f->s);
	free(f);
	return 0;
}

static int read_text(struct fixture *f, const char *text, enum setting_layer layer,
		     const char *label)
{
	FILE *file = fopen(f->path, "w");

	fputs(text, file);
	fclose(file);
	return config_read(&f->s, f->path, layer, label, &f->e);
}

static void set(struct fixture *f, const char *key, const char *value)
{
	if (settings_add(&f->s, key, value, "command line", LAYER_EXPLICIT, &f->e) < 0)
		fail_msg("%s", f->e.text);
}

static void apply(struct fixture *f)
{
	if (plugins_apply(&f->ps, &f->s, &f->e) < 0)
		fail_msg("%s", f->e.text);
}

static void origin_of_values(void **state)
{
	struct fixture *f = *state;
	const struct loaded_plugin *mem = plugins_by_name(&f->ps, "mem");
	char origin[128];

	set(f, "without", "mem.timers");
	assert_int_equal(read_text(f,
				   "# a comment\n[plugins]\nfd = off\n\n[plugin mem]\nsize = 1M\n",
				   LAYER_CONFIG, NULL),
			 0);
	apply(f);
	snprintf(origin, sizeof(origin), "%s:6", f->path);
	assert_int_equal(mem->options[0].number, 1 << 20);
	assert_string_equal(mem->options[0].origin, origin);
	assert_null(mem->options[1].origin);
	assert_string_equal(mem->origin, "default");
	assert_true(mem->features[0].on);
	assert_false(mem->features[1].on);
	assert_string_equal(mem->features[1].origin, "command line");
	snprintf(origin, sizeof(origin), "%s:3", f->path);
	assert_false(plugins_by_name(&f->ps, "fd")->on);
	assert_string_equal(plugins_by_name(&f->ps, "fd")->origin, origin);
	assert_string_equal(plugins_by_name(&f->ps, "fd")->options[0].origin, "default");
}

static void later_layers_win(void **state)
{
	struct fixture *f = *state;
	const struct loaded_plugin *mem = plugins_by_name(&f->ps, "mem");

	/* given in the wrong order on purpose */
	set(f, "option", "mem.size=3K");
	set(f, "plugin", "fd");
	assert_int_equal(read_text(f, "[plugin mem]\nsize = 2K\n[plugins]\nfd=off\n", LAYER_PROFILE,
				   "profile x"),
			 0);
	assert_int_equal(read_text(f, "[plugin mem]\nsize = 1K\n", LAYER_CONFIG, NULL), 0);
	apply(f);
	assert_int_equal(mem->options[0].number, 3072);
	assert_true(plugins_by_name(&f->ps, "fd")->on);
	settings_free(&f->s);
	assert_int_equal(read_text(f, "[plugin mem]\nsize = 2K\n", LAYER_PROFILE, "profile x"), 0);
	assert_int_equal(read_text(f, "[plugin mem]\nsize = 1K\n", LAYER_CONFIG, NULL), 0);
	apply(f);
	assert_int_equal(mem->options[0].number, 2048);
	assert_string_equal(mem->options[0].origin, "profile x");
}

static void lists(void **state)
{
	struct fixture *f = *state;
	const struct loaded_plugin *mem = plugins_by_name(&f->ps, "mem");

	assert_int_equal(read_text(f,
				   "[ckpt]\nwithout = fd.pipes fd.timers\nallow-loss = fd\n"
				   "  mem.pipes\n[plugin mem]\ndirs = /a b\n  /c\n",
				   LAYER_CONFIG, NULL),
			 0);
	apply(f);
	assert_false(plugins_by_name(&f->ps, "fd")->features[0].on);
	assert_false(plugins_by_name(&f->ps, "fd")->features[1].on);
	assert_true(plugins_loss_allowed(&f->ps, "fd", NULL));
	assert_true(plugins_loss_allowed(&f->ps, "fd", "anything"));
	assert_true(plugins_loss_allowed(&f->ps, "mem", "pipes"));
	assert_false(plugins_loss_allowed(&f->ps, "mem", "timers"));
	assert_false(plugins_loss_allowed(&f->ps, "mem", NULL));
	assert_int_equal(mem->options[1].n_items, 2);
	assert_string_equal(mem->options[1].items[0], "/a b");
}

static void bad_lines(void **state)
{
	static const struct {
		const char *text, *has, *hint;
	} bad[] = {
		{ "[ckpt]\nalow-loss = fd\n", ":2: no setting 'alow-loss'",
		  "did you mean 'allow-loss'?" },
		{ "[plugin]\nx = y\n", ":2: no section 'plugin'", "did you mean 'plugins'?" },
		{ "x = y\n", ":1: no section ''", NULL },
		{ "[plugins]\nfd = maybe\n", ":2: plugin fd is on or off, not 'maybe'", NULL },
		{ "[ckpt]\nwithout = pipes\n", ":2: without wants PLUGIN.FEATURE, not 'pipes'",
		  NULL },
		{ "[ckpt]\n\nrubbish\n", ":3: neither a [section] nor a KEY = VALUE", NULL },
		{ "[ckpt]\nverbose = 7\n", ":2: verbose wants 0 to 3, not '7'", NULL },
	};

	for (size_t i = 0; i < CKPT_ARRAY_SIZE(bad); i++) {
		struct fixture *f = *state;

		assert_true(read_text(f, bad[i].text, LAYER_CONFIG, NULL) < 0);
		if (!strstr(f->e.text, bad[i].has))
			fail_msg("'%s' lacks '%s'", f->e.text, bad[i].has);
		if (bad[i].hint)
			assert_string_equal(f->e.hint, bad[i].hint);
		assert_int_equal(f->e.exit, CKPT_EXIT_USAGE);
	}
}

static void long_line(void **state)
{
	struct fixture *f = *state;
	char text[20000];

	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	memcpy(text, "[ckpt]\nlog-file = ", 18);
	assert_true(read_text(f, text, LAYER_CONFIG, NULL) < 0);
	assert_int_equal(f->e.exit, CKPT_EXIT_USAGE);
}

static void profile_says_nothing_of_output(void **state)
{
	struct fixture *f = *state;

	assert_true(read_text(f, "[ckpt]\nverbose = 1\n", LAYER_PROFILE, "profile x") < 0);
	assert_non_null(strstr(f->e.text, "profile x: no profile setting 'verbose'"));
	assert_non_null(strstr(f->e.text, ":2: "));
}

static void missing_file(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(config_read(&f->s, "/nowhere/x.conf", LAYER_CONFIG, NULL, &f->e), -ENOENT);
}

static void misspelt_names(void **state)
{
	static const struct {
		const char *key, *value, *text, *hint;
	} bad[] = {
		{ "without", "fd.pipe", "command line: no feature of plugin fd 'pipe'",
		  "did you mean 'pipes'?" },
		{ "option", "mem.sise=1", "command line: no option of plugin mem 'sise'",
		  "did you mean 'size'?" },
		{ "option", "men.size=1", "command line: no plugin 'men'", "did you mean 'mem'?" },
		{ "no-plugin", "fx", "command line: no plugin 'fx'", "did you mean 'fd'?" },
		{ "plugin", "network", "command line: no plugin 'network'", "known: fd, mem" },
		{ "option", "mem.size=big",
		  "command line: mem: 'big' is not a value for 'size', which wants a size such as "
		  "4096, 64K, 16M or 2G",
		  NULL },
	};

	for (size_t i = 0; i < CKPT_ARRAY_SIZE(bad); i++) {
		struct fixture *f = *state;

		set(f, bad[i].key, bad[i].value);
		assert_true(plugins_apply(&f->ps, &f->s, &f->e) < 0);
		assert_string_equal(f->e.text, bad[i].text);
		if (bad[i].hint)
			assert_string_equal(f->e.hint, bad[i].hint);
		assert_int_equal(f->e.exit, CKPT_EXIT_USAGE);
		settings_free(&f->s);
	}
}

static bool wrote(void *arg, const char *name)
{
	return !strcmp(name, arg);
}

static void words_of_loss(void **state)
{
	struct fixture *f = *state;

	set(f, "allow-loss", "fd.pips");
	apply(f);
	assert_true(plugins_check_losses(&f->ps, NULL, NULL, &f->e) < 0);
	assert_string_equal(f->e.hint, "did you mean 'pipes'?");

	settings_free(&f->s);
	plugins_free(&f->ps);
	add(&f->ps, "fd");
	/* a blocker's own word, which is in no table */
	set(f, "allow-loss", "fd.external");
	apply(f);
	assert_int_equal(plugins_check_losses(&f->ps, NULL, NULL, &f->e), 0);

	set(f, "allow-loss", "network");
	apply(f);
	assert_true(plugins_check_losses(&f->ps, NULL, NULL, &f->e) < 0);
	assert_int_equal(plugins_check_losses(&f->ps, wrote, (void *)"network", &f->e), 0);
}

static void no_loss_wins(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(read_text(f, "[ckpt]\nallow-loss = fd\n", LAYER_CONFIG, NULL), 0);
	assert_int_equal(
		read_text(f, "[ckpt]\nallow-loss = none\n", LAYER_PROFILE, "profile strict"), 0);
	apply(f);
	assert_false(plugins_loss_allowed(&f->ps, "fd", NULL));
	set(f, "allow-loss", "mem");
	assert_true(plugins_apply(&f->ps, &f->s, &f->e) < 0);
	assert_string_equal(f->e.text,
			    "command line: allow-loss mem contradicts 'allow-loss = none' "
			    "(profile strict)");
}

static void missing_plugin_stops_runs_only(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(read_text(f, "[plugins]\nnetwork = on\n", LAYER_CONFIG, NULL), 0);
	apply(f);
	assert_int_equal(plugins_complete(&f->ps, &f->e), -EINVAL);
	assert_int_equal(f->e.exit, CKPT_EXIT_REFUSED);
}

int main(void)
{
#define T(fn) cmocka_unit_test_setup_teardown(fn, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		T(origin_of_values),
		T(later_layers_win),
		T(lists),
		T(bad_lines),
		T(long_line),
		T(profile_says_nothing_of_output),
		T(missing_file),
		T(misspelt_names),
		T(words_of_loss),
		T(no_loss_wins),
		T(missing_plugin_stops_runs_only),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
