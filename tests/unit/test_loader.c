/* SPDX-License-Identifier: MIT */
/*
 * Which plugins are taken, which are refused, and with which sentence. Broken
 * plugins are compiled here, at run time: no build system should know them.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include <ckpt/cleanup.h>

#include "engine/loader.h"

static int nothing(struct ckpt_run *run, struct ckpt_error *err)
{
	return 0;
}

static struct ckpt_plugin good(void)
{
	return (struct ckpt_plugin){
		CKPT_PLUGIN_HEADER, .name = "x", .version = "1", .summary = "s", .license = "MIT",
	};
}

static void check_says(const struct ckpt_plugin *d, const char *text)
{
	struct ckpt_error e = { 0 };

	assert_int_equal(descriptor_check(d, "x", &e), -EINVAL);
	if (!strstr(e.text, text))
		fail_msg("'%s' lacks '%s'", e.text, text);
}

static void takes_a_good_one(void **state)
{
	struct ckpt_plugin d = good();
	struct ckpt_error e = { 0 };

	assert_int_equal(descriptor_check(&d, "x", &e), 0);
}

static void says_which_side_is_too_old(void **state)
{
	struct ckpt_plugin d = good();

	d.abi_minor = CKPT_ABI_MINOR + 1;
	check_says(&d, "built for plugin ABI 0.2, this ckpt speaks 0.1: the ckpt is too old");
	d.abi_major = CKPT_ABI_MAJOR + 1;
	check_says(&d, "the ckpt is too old");
}

static void refuses_bad_sizes(void **state)
{
	struct ckpt_plugin d = good();

	d.size = 8;
	check_says(&d, "its descriptor has 8 bytes");
	d.size = sizeof(d) + 8;
	check_says(&d, "use CKPT_PLUGIN_HEADER");
}

/* A plugin of the first 0.1 has no flags: what lies behind it is not ours to read. */
static void a_short_descriptor_has_no_flags(void **state)
{
	struct plugin_set ps = { 0 };
	struct ckpt_plugin d = good();
	struct ckpt_error e = { 0 };

	d.size = offsetof(struct ckpt_plugin, flags);
	d.flags = CKPT_PLUGIN_ESSENTIAL;
	assert_int_equal(plugins_add(&ps, "x", "(test)", NULL, &d, &e), 0);
	assert_int_equal(ps.list[0]->desc.flags, 0);
	plugins_free(&ps);
}

static void refuses_bad_names(void **state)
{
	struct ckpt_plugin d = good();

	d.name = "y";
	check_says(&d, "it calls itself 'y', so its file must be ckpt-y.so");
	d.name = "X";
	check_says(&d, "its name 'X' is not");
	d.name = NULL;
	check_says(&d, "its name '' is not");
	d = good();
	d.license = NULL;
	check_says(&d, "lacks a version, summary or license");
}

static void refuses_bad_tables(void **state)
{
	const struct ckpt_option bad_default[] = { { "n", CKPT_OPT_INT, "many", NULL, 0, 0, "h" },
						   { .name = NULL } };
	const struct ckpt_option twice[] = { { "n", CKPT_OPT_INT, "1", NULL, 0, 0, "h" },
					     { "n", CKPT_OPT_INT, "1", NULL, 0, 0, "h" },
					     { .name = NULL } };
	const struct ckpt_feature features[] = { { "Pipes", "h" }, { NULL, NULL } };
	const struct ckpt_step no_fn[] = { { .runs = CKPT_DUMP, .name = "s", .help = "h" },
					   { .name = NULL } };
	const struct ckpt_step no_run[] = { { .name = "s", .help = "h", .fn = nothing },
					    { .name = NULL } };
	const struct ckpt_extension ext[] = { { "fd", "e", NULL }, { NULL, NULL, NULL } };
	const struct ckpt_need needs[] = { { "n", true, NULL }, { NULL, false, NULL } };
	struct ckpt_plugin d = good();

	d.options = bad_default;
	check_says(&d, "the default of option 'n': 'many' is not a value");
	d.options = twice;
	check_says(&d, "option 'n' is there twice");
	d = good();
	d.features = features;
	check_says(&d, "feature 'Pipes' has a bad name");
	d = good();
	d.steps = no_fn;
	check_says(&d, "step 's' has a bad name, no function");
	d.steps = no_run;
	check_says(&d, "step 's' is for no kind of run");
	d = good();
	d.extensions = ext;
	check_says(&d, "lacks name or operations");
	d = good();
	d.needs = needs;
	check_says(&d, "need 'n' has no probe");
}

static void two_plugins_for_one_object(void **state)
{
	static const char ops;
	const struct ckpt_extension ext[] = { { "fd", "thing", &ops }, { NULL, NULL, NULL } };
	struct plugin_set ps = { 0 };
	struct settings s = { 0 };
	struct ckpt_plugin d = good();
	struct ckpt_error e = { 0 };

	d.extensions = ext;
	assert_int_equal(plugins_add(&ps, "x", "/a/ckpt-x.so", NULL, &d, &e), 0);
	d.name = "y";
	assert_int_equal(plugins_add(&ps, "y", "/b/ckpt-y.so", NULL, &d, &e), 0);
	assert_int_equal(plugins_apply(&ps, &s, &e), -EEXIST);
	assert_string_equal(e.text,
			    "plugins x (/a/ckpt-x.so) and y (/b/ckpt-y.so) both handle fd 'thing'");
	/* one of them off is fine */
	ps.n_extensions = 0;
	ps.list[1]->on = false;
	assert_int_equal(plugins_apply(&ps, &s, &e), 0);
	assert_int_equal(ps.n_extensions, 1);
	plugins_free(&ps);
}

/* ---- files ---- */

struct fixture {
	struct plugin_set ps;
	struct ckpt_error e;
	char dir[64];
};

static void run_command(const char *fmt, ...) CKPT_PRINTF(1, 2);
static void run_command(const char *fmt, ...)
{
	char command[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(command, sizeof(command), fmt, ap);
	va_end(ap);
	if (system(command) != 0)
		fail_msg("failed: %s", command);
}

static int set_up(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	strcpy(f->dir, "/tmp/engine-loader-XXXXXX");
	if (!mkdtemp(f->dir))
		return -1;
	*state = f;
	return 0;
}

static int tear_down(void **state)
{
	struct fixture *f = *state;

	plugins_free(&f->ps);
	run_command("rm -rf %s", f->dir);
	free(f);
	return 0;
}

static void compile(const struct fixture *f, const char *name, const char *source)
{
	char path[128], include[512];
	FILE *c;

	snprintf(path, sizeof(path), "%s/%s.c", f->dir, name);
	c = fopen(path, "w");
	fprintf(c, "#include <ckpt/plugin.h>\n%s\n", source);
	fclose(c);
	/* __FILE__ is tests/unit/test_loader.c, from wherever the build starts */
	snprintf(include, sizeof(include), "%.*s../../include",
		 (int)(sizeof(__FILE__) - sizeof("test_loader.c")), __FILE__);
	run_command("cc -shared -fPIC -D_GNU_SOURCE -I%s -o %s/ckpt-%s.so %s 2>&1", include, f->dir,
		    name, path);
	run_command("chmod 755 %s/ckpt-%s.so", f->dir, name);
}

static const struct rejected_plugin *rejected(const struct fixture *f, const char *name)
{
	for (size_t i = 0; i < f->ps.n_rejected; i++)
		if (!strcmp(f->ps.rejected[i].name, name))
			return &f->ps.rejected[i];
	fail_msg("%s was not rejected", name);
	return NULL;
}

static void why_has(const struct fixture *f, const char *name, const char *text)
{
	const char *why = rejected(f, name)->why;

	if (!strstr(why, text))
		fail_msg("'%s' lacks '%s'", why, text);
}

#define PLUGIN(n)                                                                            \
	"CKPT_PLUGIN { CKPT_PLUGIN_HEADER, .name = \"" n "\", .version = \"1\", .summary = " \
	"\"s\", .license = \"MIT\" };"

static void loads_in_order_of_names(void **state)
{
	struct fixture *f = *state;

	compile(f, "zebra", PLUGIN("zebra"));
	compile(f, "ape", PLUGIN("ape"));
	assert_int_equal(plugins_scan(&f->ps, f->dir, true, &f->e), 0);
	assert_int_equal(f->ps.n, 2);
	assert_string_equal(f->ps.list[0]->name, "ape");
	assert_string_equal(f->ps.list[1]->name, "zebra");
	assert_int_equal(f->ps.list[1]->index, 1);
	assert_int_equal(f->ps.n_rejected, 0);
	/* the first found wins */
	assert_int_equal(plugins_scan(&f->ps, f->dir, true, &f->e), 0);
	assert_int_equal(f->ps.n, 2);
}

static void refuses_what_is_no_plugin(void **state)
{
	struct fixture *f = *state;

	compile(f, "bare", "int ckpt_nothing;");
	compile(f, "wrong", PLUGIN("other"));
	compile(f, "null",
		"CKPT_API const struct ckpt_plugin *CKPT_PLUGIN_ENTRY(void);\n"
		"const struct ckpt_plugin *CKPT_PLUGIN_ENTRY(void) { return 0; }");
	compile(f, "future",
		"CKPT_PLUGIN { .size = sizeof(struct ckpt_plugin), .abi_minor = 99, .name = "
		"\"future\" };");
	run_command("echo rubbish > %s/ckpt-text.so; chmod 644 %s/ckpt-text.so", f->dir, f->dir);
	run_command("mkdir -m 755 %s/ckpt-dir.so", f->dir);
	assert_int_equal(plugins_scan(&f->ps, f->dir, true, &f->e), 0);
	assert_int_equal(f->ps.n, 0);
	why_has(f, "bare", "it does not export ckpt_plugin_entry_v1()");
	why_has(f, "wrong", "it calls itself 'other'");
	why_has(f, "null", "returned no descriptor");
	why_has(f, "future",
		"built for plugin ABI 0.99, this ckpt speaks 0.1: the ckpt is too old");
	why_has(f, "text", "ckpt-text.so");
	why_has(f, "dir", "no regular file");
	/* asked for by name, the reason is in the error */
	plugins_unknown(&f->ps, "wrong", "command line", &f->e);
	assert_non_null(strstr(f->e.text, "cannot be used: it calls itself 'other'"));
}

static void refuses_files_of_others(void **state)
{
	struct fixture *f = *state;

	if (geteuid() != 0)
		skip();
	compile(f, "mine", PLUGIN("mine"));
	compile(f, "theirs", PLUGIN("theirs"));
	compile(f, "open", PLUGIN("open"));
	run_command("chown 1 %s/ckpt-theirs.so; chmod 775 %s/ckpt-open.so", f->dir, f->dir);
	assert_int_equal(plugins_scan(&f->ps, f->dir, true, &f->e), 0);
	assert_int_equal(f->ps.n, 1);
	why_has(f, "theirs", "belongs to uid 1, and ckpt runs as root");
	why_has(f, "open", "is writable by others (mode 775)");
}

static void refuses_directories_of_others(void **state)
{
	struct fixture *f = *state;

	if (geteuid() != 0)
		skip();
	compile(f, "mine", PLUGIN("mine"));
	run_command("chmod 777 %s", f->dir);
	assert_int_equal(plugins_scan(&f->ps, f->dir, true, &f->e), 0);
	why_has(f, "mine", "the directory");
}

static void masks(void **state)
{
	struct fixture *f = *state;

	run_command("ln -s /dev/null %s/ckpt-gone.so", f->dir);
	assert_int_equal(plugins_scan(&f->ps, f->dir, true, &f->e), 0);
	assert_true(rejected(f, "gone")->masked);
}

static void a_path_that_is_missing(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(plugins_scan(&f->ps, "/nowhere/plugins", false, &f->e), 0);
	assert_int_equal(plugins_scan(&f->ps, "/nowhere/plugins", true, &f->e), -ENOENT);
	assert_int_equal(f->e.exit, CKPT_EXIT_USAGE);
}

int main(void)
{
#define T(fn) cmocka_unit_test_setup_teardown(fn, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(takes_a_good_one),
		cmocka_unit_test(says_which_side_is_too_old),
		cmocka_unit_test(refuses_bad_sizes),
		cmocka_unit_test(a_short_descriptor_has_no_flags),
		cmocka_unit_test(refuses_bad_names),
		cmocka_unit_test(refuses_bad_tables),
		cmocka_unit_test(two_plugins_for_one_object),
		T(loads_in_order_of_names),
		T(refuses_what_is_no_plugin),
		T(refuses_files_of_others),
		T(refuses_directories_of_others),
		T(masks),
		T(a_path_that_is_missing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
