/* SPDX-License-Identifier: MIT */
/* Options of filesystems as mountinfo has them, taken apart. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "../../plugins/mnt/option_text.h"

static void are(const char *text, const char *const *wanted)
{
	char copy[256], *rest = copy, *word;

	strcpy(copy, text);
	while ((word = mnt_option_next(&rest)))
		assert_string_equal(word, *wanted ? *wanted++ : "nothing");
	assert_null(*wanted);
}

#define ARE(text, ...) are(text, (const char *const[]){ __VA_ARGS__, NULL })

static void at_commas(void **state)
{
	ARE("rw,size=1024k,mode=755", "rw", "size=1024k", "mode=755");
	ARE(",rw,,gid=5,", "rw", "gid=5");
	ARE("", NULL);
}

static void quoted_values_keep_them(void **state)
{
	ARE("rw,context=\"system_u:object_r:container_file_t:s0:c354,c703\",mode=755", "rw",
	    "context=system_u:object_r:container_file_t:s0:c354,c703", "mode=755");
	ARE("context=\"a,b", "context=a,b");
	ARE("source=a\"b,ro", "source=a\"b", "ro");
}

static void lists_of_nodes_keep_them(void **state)
{
	ARE("rw,mpol=bind=static:0-1,3,huge=always", "rw", "mpol=bind=static:0-1,3", "huge=always");
	ARE("rw,mpol=local,inode64", "rw", "mpol=local", "inode64");
}

static void escapes_are_undone(void **state)
{
	ARE("release_agent=/a\\040b\\054c,name=x", "release_agent=/a b,c", "name=x");
	ARE("a=\\04", "a=\\04");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(at_commas),
		cmocka_unit_test(quoted_values_keep_them),
		cmocka_unit_test(lists_of_nodes_keep_them),
		cmocka_unit_test(escapes_are_undone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
