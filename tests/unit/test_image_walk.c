/* SPDX-License-Identifier: MIT */
/* Records as text and JSON, and comparing them. */
#include "image_fixture.h"

/* A thing with something in every kind of field. */
struct rich {
	Unit__Thing t;
	Unit__Inner inner[2];
	Unit__Inner *inners[2];
	uint64_t ids[3];
	uint32_t nums[2];
	uint8_t data[40];
	char *words[2];
	ProtobufCBinaryData blobs[2];
};

static void rich_init(struct rich *r)
{
	unit__thing__init(&r->t);
	for (int i = 0; i < 2; i++) {
		unit__inner__init(&r->inner[i]);
		r->inner[i].comm = (char *)(i ? "second" : "first");
		r->inners[i] = &r->inner[i];
		r->nums[i] = (uint32_t)i + 5;
		r->words[i] = (char *)(i ? "w\"1" : "w0");
		r->blobs[i] = (ProtobufCBinaryData){ (size_t)i, r->data };
	}
	for (size_t i = 0; i < sizeof(r->data); i++)
		r->data[i] = (uint8_t)i;
	r->inner[1].nums = r->nums;
	r->inner[1].n_nums = 2;
	for (uint64_t i = 0; i < 3; i++)
		r->ids[i] = UINT64_MAX - i;
	r->t.id = 3;
	r->t.name = (char *)"a\x1b[31m\xc3\xa4\xc2\x9b\xff\n";
	r->t.data = (ProtobufCBinaryData){ sizeof(r->data), r->data };
	r->t.color = UNIT__COLOR__GREEN;
	r->t.inners = r->inners;
	r->t.n_inners = 2;
	r->t.ids = r->ids;
	r->t.n_ids = 3;
	r->t.addr = 0x7fff12345678;
	r->t.choice_case = UNIT__THING__CHOICE_LEFT;
	r->t.left = 0;
	r->t.neg = INT64_MIN;
	r->t.real = 0.5;
	r->t.one = &r->inner[0];
	r->t.words = r->words;
	r->t.n_words = 2;
	r->t.blobs = r->blobs;
	r->t.n_blobs = 2;
}

static void put(struct image_section *sec, const struct rich *r)
{
	struct ckpt_error err = { 0 };

	if (image_put(sec, THING, &r->t.base, &err) < 0)
		fail_msg("%s", err.text);
}

static char *printed(void (*print)(const struct image_section *, FILE *),
		     const struct image_section *sec)
{
	char *text;
	size_t n;
	FILE *out = open_memstream(&text, &n);

	assert_non_null(out);
	print(sec, out);
	fclose(out);
	return text;
}

static void text_of_everything(void **state)
{
	struct image_store st;
	struct rich r;
	CKPT_AUTO_FREE char *text = NULL;

	image_store_init(&st);
	rich_init(&r);
	put(fix_section(&st, "alpha"), &r);
	fix_put_plain(st.sections[0], "");
	fix_put_plain(st.sections[0], "second");
	text = printed(image_print_text, st.sections[0]);
	assert_string_equal(text, "alpha.thing 3\n"
				  "  id: 3\n"
				  "  name: \"a\\x1b[31m\xc3\xa4\\xc2\\x9b\\xff\\x0a\"\n"
				  "  data: [40] 000102030405060708090a0b0c0d0e0f"
				  "101112131415161718191a1b1c1d1e1f...\n"
				  "  color: GREEN\n"
				  "  inners[0]:\n"
				  "    comm: \"first\"\n"
				  "  inners[1]:\n"
				  "    comm: \"second\"\n"
				  "    nums: [5, 6]\n"
				  "  ids: [18446744073709551615, 18446744073709551614, "
				  "18446744073709551613]\n"
				  "  addr: 0x7fff12345678\n"
				  "  left: 0\n"
				  "  one:\n"
				  "    comm: \"first\"\n"
				  "  neg: -9223372036854775808\n"
				  "  real: 0.5\n"
				  "  words: [\"w0\", \"w\\\"1\"]\n"
				  "  blobs: [[0], [1] 00]\n"
				  "alpha.plain 0\n"
				  "alpha.plain 1\n"
				  "  text: \"second\"\n");
	image_store_free(&st);
}

static void json_of_everything(void **state)
{
	struct image_store st;
	struct rich r;
	CKPT_AUTO_FREE char *text = NULL;

	image_store_init(&st);
	rich_init(&r);
	put(fix_section(&st, "alpha"), &r);
	fix_put_plain(st.sections[0], "x");
	text = printed(image_print_json, st.sections[0]);
	assert_string_equal(
		text, "[{\"type\":\"alpha.thing\",\"record\":{\"id\":3,"
		      "\"name\":\"a\\u001b[31m\xc3\xa4\\u009b\\udcff\\u000a\","
		      "\"data\":\"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
		      "2021222324252627\",\"color\":\"GREEN\","
		      "\"inners\":[{\"comm\":\"first\",\"time\":0,\"nums\":[]},"
		      "{\"comm\":\"second\",\"time\":0,\"nums\":[5,6]}],"
		      "\"ids\":[18446744073709551615,18446744073709551614,18446744073709551613],"
		      "\"addr\":140733498807928,\"left\":0,"
		      "\"one\":{\"comm\":\"first\",\"time\":0,\"nums\":[]},"
		      "\"neg\":-9223372036854775808,\"real\":0.5,\"flag\":false,\"inode\":0,"
		      "\"words\":[\"w0\",\"w\\\"1\"],\"blobs\":[\"\",\"00\"]}},"
		      "{\"type\":\"alpha.plain\",\"record\":{\"text\":\"x\"}}]");
	image_store_free(&st);
}

static void json_of_nothing(void **state)
{
	struct image_store st;
	CKPT_AUTO_FREE char *text = NULL;

	image_store_init(&st);
	text = printed(image_print_json, fix_section(&st, "alpha"));
	assert_string_equal(text, "[]");
	image_store_free(&st);
}

/* ---- compare ------------------------------------------------------------------- */

/* All differences as "where|field|before|after" lines. */
static void note(void *arg, const char *where, const char *field, const char *before,
		 const char *after)
{
	fprintf(arg, "%s|%s|%s|%s\n", where, field, before ? before : "-", after ? after : "-");
}

static void compare_is(const struct image_store *st, bool diff_mode, size_t count, const char *want)
{
	char *text;
	size_t n, size;
	FILE *out = open_memstream(&text, &size);

	assert_non_null(out);
	n = image_compare(st->sections[0], st->sections[1], diff_mode, note, out);
	fclose(out);
	assert_string_equal(text, want);
	assert_int_equal(n, count);
	free(text);
}

static void equal_sections(void **state)
{
	struct image_store st;
	struct rich r;

	image_store_init(&st);
	rich_init(&r);
	put(fix_section(&st, "alpha"), &r);
	r.t.inode = 77;
	put(fix_section(&st, "alpha"), &r);
	compare_is(&st, false, 0, "");
	compare_is(&st, true, 0, "");
	image_store_free(&st);
}

static void differing_fields(void **state)
{
	struct image_store st;
	struct rich r;

	image_store_init(&st);
	rich_init(&r);
	put(fix_section(&st, "alpha"), &r);
	r.t.name = (char *)"b";
	r.data[36] = 0xee;
	r.t.color = UNIT__COLOR__RED;
	r.inner[1].comm = (char *)"other";
	r.inner[1].time = 9;
	r.nums[1] = 60;
	r.ids[2] = 1;
	r.t.addr++;
	r.t.choice_case = UNIT__THING__CHOICE_RIGHT;
	r.t.right = (char *)"r";
	r.t.if_maybe_case = UNIT__THING__IF_MAYBE_MAYBE;
	r.t.maybe = 0;
	r.t.one = NULL;
	r.t.flag = true;
	put(fix_section(&st, "alpha"), &r);
	/* the order is that of the fields' numbers */
	compare_is(&st, false, 12,
		   "alpha.thing 3|name|\"a\\x1b[31m\xc3\xa4\\xc2\\x9b\\xff\\x0a\"|\"b\"\n"
		   "alpha.thing 3|data|[40] at 36: 24252627|[40] at 36: ee252627\n"
		   "alpha.thing 3|color|GREEN|RED\n"
		   "alpha.thing 3|inners[1].comm|\"second\"|\"other\"\n"
		   "alpha.thing 3|inners[1].nums[1]|6|60\n"
		   "alpha.thing 3|ids[2]|18446744073709551613|1\n"
		   "alpha.thing 3|addr|0x7fff12345678|0x7fff12345679\n"
		   "alpha.thing 3|maybe|-|0\n"
		   "alpha.thing 3|left|0|-\n"
		   "alpha.thing 3|right|-|\"r\"\n"
		   "alpha.thing 3|one|{comm: \"first\"}|-\n"
		   "alpha.thing 3|flag|false|true\n");
	image_store_free(&st);
}

static void fields_for_diff_only(void **state)
{
	struct image_store st;
	struct rich r;

	image_store_init(&st);
	rich_init(&r);
	put(fix_section(&st, "alpha"), &r);
	r.inner[1].time = 9;
	r.t.inode = 9;
	put(fix_section(&st, "alpha"), &r);
	compare_is(&st, false, 0, "");
	compare_is(&st, true, 1, "alpha.thing 3|inners[1].time|0|9\n");
	image_store_free(&st);
}

static void elements_more_and_fewer(void **state)
{
	struct image_store st;
	struct rich r;

	image_store_init(&st);
	rich_init(&r);
	r.t.n_blobs = 0;
	put(fix_section(&st, "alpha"), &r);
	r.t.n_inners = 1;
	r.t.n_ids = 1;
	r.t.n_words = 1;
	r.t.n_blobs = 2;
	put(fix_section(&st, "alpha"), &r);
	compare_is(&st, false, 6,
		   "alpha.thing 3|inners[1]|{comm: \"second\", nums: [5, 6]}|-\n"
		   "alpha.thing 3|ids[1]|18446744073709551614|-\n"
		   "alpha.thing 3|ids[2]|18446744073709551613|-\n"
		   "alpha.thing 3|words[1]|\"w\\\"1\"|-\n"
		   "alpha.thing 3|blobs[0]|-|[0]\n"
		   "alpha.thing 3|blobs[1]|-|[1] 00\n");
	image_store_free(&st);
}

static void records_pair_by_id(void **state)
{
	struct image_store st;
	struct image_section *a, *b;

	image_store_init(&st);
	a = fix_section(&st, "alpha");
	b = fix_section(&st, "alpha");
	fix_put_thing(a, 1, "one");
	fix_put_thing(a, 2, "two");
	fix_put_thing(a, 3, "three");
	fix_put_plain(a, "p0");
	fix_put_plain(a, "p1");
	fix_put_thing(b, 3, "three");
	fix_put_plain(b, "p0");
	fix_put_thing(b, 1, "uno");
	fix_put_thing(b, 4, "four");
	compare_is(&st, false, 4,
		   "alpha.thing 1|name|\"one\"|\"uno\"\n"
		   "alpha.thing 2||{id: 2, name: \"two\"}|-\n"
		   "alpha.thing 4||-|{id: 4, name: \"four\"}\n"
		   "alpha.plain 1||{text: \"p1\"}|-\n");
	image_store_free(&st);
}

static void equal_ids_pair_in_order(void **state)
{
	struct image_store st;
	struct image_section *a, *b;

	image_store_init(&st);
	a = fix_section(&st, "alpha");
	b = fix_section(&st, "alpha");
	fix_put_thing(a, 1, "x");
	fix_put_thing(a, 1, "y");
	fix_put_thing(b, 1, "x");
	fix_put_thing(b, 1, "z");
	fix_put_thing(b, 1, "w");
	compare_is(&st, false, 2,
		   "alpha.thing 1|name|\"y\"|\"z\"\n"
		   "alpha.thing 1||-|{id: 1, name: \"w\"}\n");
	image_store_free(&st);
}

/* Squared, this would take minutes. */
static void many_records(void **state)
{
	const uint32_t n = 200000;
	struct image_store st;
	struct image_section *a, *b;
	size_t sum = 0;

	image_store_init(&st);
	a = fix_section(&st, "alpha");
	b = fix_section(&st, "alpha");
	for (uint32_t i = 0; i < n; i++) {
		fix_put_thing(a, i + 1, "same");
		fix_put_thing(b, n - i, i == 5 ? "differs" : "same");
	}
	for (uint32_t i = 0; i < n; i++)
		sum += ((const Unit__Thing *)image_at(&st, "alpha.thing", i))->id;
	assert_int_equal(sum, (size_t)n * (n + 1) / 2);
	compare_is(&st, false, 1, "alpha.thing 199995|name|\"same\"|\"differs\"\n");
	image_store_free(&st);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(text_of_everything),	   cmocka_unit_test(json_of_everything),
		cmocka_unit_test(json_of_nothing),	   cmocka_unit_test(equal_sections),
		cmocka_unit_test(differing_fields),	   cmocka_unit_test(fields_for_diff_only),
		cmocka_unit_test(elements_more_and_fewer), cmocka_unit_test(records_pair_by_id),
		cmocka_unit_test(equal_ids_pair_in_order), cmocka_unit_test(many_records),
	};

	return cmocka_run_group_tests_name("image walking", tests, NULL, NULL);
}
