/* SPDX-License-Identifier: MIT */
/* Typed option values: what is taken, what is refused, and with which words. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <ckpt/cleanup.h>

#include "engine/option.h"

static const char *const colours[] = { "red", "green", NULL };

static const struct ckpt_option o_bool = { "b", CKPT_OPT_BOOL, NULL, NULL, 0, 0, "h" };
static const struct ckpt_option o_int = { "i", CKPT_OPT_INT, NULL, NULL, -5, 5, "h" };
static const struct ckpt_option o_size = { "s", CKPT_OPT_SIZE, NULL, NULL, 0, 0, "h" };
static const struct ckpt_option o_time = { "d", CKPT_OPT_DURATION, NULL, NULL, 0, 0, "h" };
static const struct ckpt_option o_enum = { "e", CKPT_OPT_ENUM, NULL, colours, 0, 0, "h" };
static const struct ckpt_option o_text = { "t", CKPT_OPT_STRING, NULL, NULL, 0, 0, "h" };
static const struct ckpt_option o_list = { "l", CKPT_OPT_LIST, NULL, NULL, 0, 0, "h" };

static void takes(void **state)
{
	static const struct {
		const struct ckpt_option *o;
		const char *text;
		int64_t number;
	} good[] = {
		{ &o_bool, "yes", 1 },	      { &o_bool, "OFF", 0 },
		{ &o_bool, "1", 1 },	      { &o_bool, "false", 0 },
		{ &o_int, "-5", -5 },	      { &o_int, "0", 0 },
		{ &o_size, "4096", 4096 },    { &o_size, "64K", 65536 },
		{ &o_size, "2g", 2LL << 30 }, { &o_size, "1T", 1LL << 40 },
		{ &o_time, "250", 250 },      { &o_time, "10s", 10000 },
		{ &o_time, "500ms", 500 },    { &o_time, "2m", 120000 },
		{ &o_time, "1h", 3600000 },   { &o_enum, "green", 0 },
		{ &o_text, "", 0 },
	};

	for (size_t i = 0; i < CKPT_ARRAY_SIZE(good); i++) {
		struct opt_value v = { 0 };
		struct ckpt_error e = { 0 };

		assert_int_equal(option_set(good[i].o, &v, good[i].text, "test", &e), 0);
		assert_int_equal(v.number, good[i].number);
		assert_string_equal(v.text, good[i].text);
		assert_string_equal(v.origin, "test");
		option_clear(&v);
	}
}

static void refuses(void **state)
{
	static const struct {
		const struct ckpt_option *o;
		const char *text;
	} bad[] = {
		{ &o_bool, "maybe" }, { &o_bool, "" },	  { &o_int, "6" },
		{ &o_int, "x" },      { &o_int, "1K" },	  { &o_int, " 1" },
		{ &o_int, "+1" },     { &o_int, "" },	  { &o_int, "99999999999999999999" },
		{ &o_size, "-1" },    { &o_size, "1KB" }, { &o_size, "9999999999T" },
		{ &o_time, "1d" },    { &o_time, "s" },	  { &o_enum, "blue" },
		{ &o_enum, "" },
	};

	for (size_t i = 0; i < CKPT_ARRAY_SIZE(bad); i++) {
		struct opt_value v = { 0 };
		struct ckpt_error e = { 0 };

		assert_true(option_set(bad[i].o, &v, bad[i].text, "test", &e) < 0);
		assert_int_equal(e.exit, CKPT_EXIT_USAGE);
		assert_false(v.set);
		option_clear(&v);
	}
}

static void suggests_a_choice(void **state)
{
	struct opt_value v = { 0 };
	struct ckpt_error e = { 0 };

	assert_true(option_set(&o_enum, &v, "gren", "test", &e) < 0);
	assert_string_equal(e.hint, "did you mean 'green'?");
	option_clear(&v);
}

static void lists_grow(void **state)
{
	struct opt_value v = { 0 };
	struct ckpt_error e = { 0 };

	for (int i = 0; i < 5; i++)
		assert_int_equal(option_set(&o_list, &v, i & 1 ? "b b" : "a", "test", &e), 0);
	assert_int_equal(v.n_items, 5);
	assert_string_equal(v.items[3], "b b");
	assert_int_equal(option_set(&o_list, &v, "", "again", &e), 0);
	assert_int_equal(v.n_items, 0);
	assert_int_equal(option_set(&o_list, &v, "c", "again", &e), 0);
	assert_int_equal(v.n_items, 1);
	assert_string_equal(v.origin, "again");
	option_clear(&v);
}

static void a_failed_value_keeps_the_old_one(void **state)
{
	struct opt_value v = { 0 };
	struct ckpt_error e = { 0 };

	assert_int_equal(option_set(&o_size, &v, "1M", "first", &e), 0);
	assert_true(option_set(&o_size, &v, "lots", "second", &e) < 0);
	assert_int_equal(v.number, 1 << 20);
	assert_string_equal(v.origin, "first");
	option_clear(&v);
}

static void checks_declarations(void **state)
{
	struct ckpt_option o = { "size", CKPT_OPT_SIZE, "4K", NULL, 0, 0, "help" };
	struct ckpt_error e = { 0 };

	assert_int_equal(option_check(&o, &e), 0);
	o.def = "4Q";
	assert_true(option_check(&o, &e) < 0);
	assert_non_null(strstr(e.text, "the default of option 'size'"));
	o.def = NULL;
	o.name = "Size";
	assert_true(option_check(&o, &e) < 0);
	o.name = "size";
	o.help = NULL;
	assert_true(option_check(&o, &e) < 0);
	o.help = "help";
	o.type = CKPT_OPT_ENUM;
	assert_true(option_check(&o, &e) < 0);
	o.type = (enum ckpt_option_type)99;
	assert_true(option_check(&o, &e) < 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(takes),
		cmocka_unit_test(refuses),
		cmocka_unit_test(suggests_a_choice),
		cmocka_unit_test(lists_grow),
		cmocka_unit_test(a_failed_value_keeps_the_old_one),
		cmocka_unit_test(checks_declarations),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
