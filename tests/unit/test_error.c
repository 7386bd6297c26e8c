/* SPDX-License-Identifier: MIT */
/* The error object, and the names that are suggested. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <ckpt/error.h>

#include "engine/text.h"

static void fills_and_returns(void **state)
{
	struct ckpt_error e = { 0 };

	assert_int_equal(ckpt_fail(&e, EPERM, "open %s", "x"), -EPERM);
	assert_int_equal(e.err, EPERM);
	assert_string_equal(e.text, "open x");
	assert_int_equal(ckpt_fail(&e, -ENOENT, "gone"), -ENOENT);
	assert_int_equal(ckpt_fail(&e, 0, "odd"), -EIO);
	assert_int_equal(ckpt_fail(NULL, EPERM, "nobody listens"), -EPERM);
}

static void names_the_errno(void **state)
{
	struct ckpt_error e = { 0 };

	assert_int_equal(ckpt_fail_sys(&e, -EBADF, "mmap(2)"), -EBADF);
	assert_string_equal(e.text, "mmap(2): EBADF");
	assert_string_equal(ckpt_errno_name(1), "EPERM");
	assert_string_equal(ckpt_errno_name(-1), "EPERM");
	assert_string_equal(ckpt_errno_name(0), "OK");
	assert_string_equal(ckpt_errno_name(512), "ERESTARTSYS");
	assert_string_equal(ckpt_errno_name(4000), "E#4000");
}

static void grows_in_front(void **state)
{
	struct ckpt_error e = { 0 };

	ckpt_fail_as(&e, CKPT_EXIT_IMAGE, EINVAL, "bad length");
	assert_int_equal(ckpt_hint(&e, "try %d", 2), -EINVAL);
	assert_int_equal(ckpt_wrap(&e, "task %d", 7), -EINVAL);
	assert_int_equal(ckpt_wrap(&e, "restore"), -EINVAL);
	assert_string_equal(e.text, "restore: task 7: bad length");
	assert_string_equal(e.hint, "try 2");
	assert_int_equal(e.exit, CKPT_EXIT_IMAGE);
}

static void survives_long_texts(void **state)
{
	struct ckpt_error e = { 0 };
	char big[4000];

	memset(big, 'x', sizeof(big) - 1);
	big[sizeof(big) - 1] = '\0';
	ckpt_fail_sys(&e, EIO, "%s", big);
	assert_int_equal(strlen(e.text), sizeof(e.text) - 1);
	ckpt_wrap(&e, "%s", big);
	ckpt_wrap(&e, "front");
	assert_memory_equal(e.text, "front: ", 7);
	assert_int_equal(strlen(e.text), sizeof(e.text) - 1);
	ckpt_hint(&e, "%s", big);
	assert_int_equal(strlen(e.hint), sizeof(e.hint) - 1);
}

static void counts_edits(void **state)
{
	assert_int_equal(text_distance("mem", "mem"), 0);
	assert_int_equal(text_distance("mme", "mem"), 1);
	assert_int_equal(text_distance("", "abc"), 3);
	assert_int_equal(text_distance("kitten", "sitting"), 3);
	assert_int_equal(text_distance("ab", "ba"), 1);
}

static void finds_the_nearest(void **state)
{
	static const char *const names[] = { "fd", "mem", "pid", "task", "timerfd" };

	assert_string_equal(text_nearest("taks", names, 5), "task");
	assert_string_equal(text_nearest("timefd", names, 5), "timerfd");
	assert_string_equal(text_nearest("pdi", names, 5), "pid");
	assert_null(text_nearest("network", names, 5));
	assert_null(text_nearest("x", names, 5));
}

static void suggests(void **state)
{
	static const char *const names[] = { "fd", "mem" };
	struct ckpt_error e = { 0 };

	assert_int_equal(fail_unknown(&e, "command line", "plugin", "men", names, 2), -EINVAL);
	assert_string_equal(e.text, "command line: no plugin 'men'");
	assert_string_equal(e.hint, "did you mean 'mem'?");
	assert_int_equal(e.exit, CKPT_EXIT_USAGE);
	fail_unknown(&e, "x", "plugin", "elephant", names, 2);
	assert_string_equal(e.hint, "known: fd, mem");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fills_and_returns), cmocka_unit_test(names_the_errno),
		cmocka_unit_test(grows_in_front),    cmocka_unit_test(survives_long_texts),
		cmocka_unit_test(counts_edits),	     cmocka_unit_test(finds_the_nearest),
		cmocka_unit_test(suggests),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
