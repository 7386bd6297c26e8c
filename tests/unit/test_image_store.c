/* SPDX-License-Identifier: MIT */
/* Records in memory and the codec behind them. */
#include "image_fixture.h"
#include "image/internal.h"

static void put_copies(void **state)
{
	struct image_store st;
	struct image_section *sec;
	char name[] = "first";

	image_store_init(&st);
	sec = fix_section(&st, "alpha");
	fix_put_thing(sec, 7, name);
	fix_put_plain(sec, "between");
	name[0] = 'X';
	fix_put_thing(sec, 8, name);
	assert_int_equal(image_count(&st, "alpha.thing"), 2);
	assert_int_equal(image_count(&st, "alpha.plain"), 1);
	assert_string_equal(((const Unit__Thing *)image_at(&st, "alpha.thing", 0))->name, "first");
	assert_int_equal(((const Unit__Thing *)image_at(&st, "alpha.thing", 1))->id, 8);
	assert_null(image_at(&st, "alpha.thing", 2));
	image_store_free(&st);
	assert_int_equal(st.n, 0);
}

static void unknown_names_are_empty(void **state)
{
	struct image_store st;

	image_store_init(&st);
	fix_section(&st, "alpha");
	assert_int_equal(image_count(&st, "alpha.none"), 0);
	assert_int_equal(image_count(&st, "alp.thing"), 0);
	assert_int_equal(image_count(&st, "alphabet.thing"), 0);
	assert_int_equal(image_count(&st, "thing"), 0);
	assert_null(image_at(&st, "beta.thing", 0));
	assert_null(image_section_find(&st, "beta"));
	assert_non_null(image_section_find(&st, "alpha"));
	image_store_free(&st);
}

static void put_refuses_foreign_types(void **state)
{
	struct ckpt_error err = { 0 };
	struct image_store st;
	Unit__Plain p = UNIT__PLAIN__INIT;
	Unit__Loop l = UNIT__LOOP__INIT;
	static const struct ckpt_record_type loops[] = {
		{ LOOP, "loop", &unit__loop__descriptor },
		{ 0, NULL, NULL },
	};

	image_store_init(&st);
	assert_int_equal(image_put(fix_section(&st, "a"), THING, &p.base, &err), -EINVAL);
	assert_int_equal(image_put(st.sections[0], 99, &p.base, &err), -EINVAL);
	assert_int_equal(image_put(fix_section(&st, "manifest"), PLAIN, &p.base, &err), -EINVAL);
	assert_int_equal(image_put(fix_section(&st, "../x"), PLAIN, &p.base, &err), -EINVAL);
	assert_non_null(image_section_add(&st, "loops", loops, NULL));
	assert_int_equal(image_put(st.sections[3], LOOP, &l.base, &err), -EINVAL);
	assert_non_null(strstr(err.text, "contains itself"));
	image_store_free(&st);
}

/* A reader has one limit for all records of a plugin: it must not be met there for the first time.
 */
static void put_has_a_limit_for_all(void **state)
{
	struct ckpt_error err = { 0 };
	struct image_store st;
	Unit__Plain p = UNIT__PLAIN__INIT;
	size_t each;

	image_store_init(&st);
	assert_int_equal(image_put(fix_section(&st, "a"), PLAIN, &p.base, &err), 0);
	each = IMAGE_MEMORY_MAX - st.sections[0]->left;
	assert_true(each > 0);
	st.sections[0]->left = each;
	assert_int_equal(image_put(st.sections[0], PLAIN, &p.base, &err), 0);
	assert_int_equal(image_put(st.sections[0], PLAIN, &p.base, &err), -EINVAL);
	assert_non_null(strstr(err.text, "needs too much memory"));
	image_store_free(&st);
}

static void put_has_a_size_limit(void **state)
{
	struct ckpt_error err = { 0 };
	struct image_store st;
	Unit__Thing t = UNIT__THING__INIT;
	uint8_t *data = calloc(1, IMAGE_PAYLOAD_MAX);

	assert_non_null(data);
	image_store_init(&st);
	t.data = (ProtobufCBinaryData){ IMAGE_PAYLOAD_MAX, data };
	assert_int_equal(image_put(fix_section(&st, "a"), THING, &t.base, &err), -E2BIG);
	t.data.len = IMAGE_PAYLOAD_MAX - 16;
	assert_int_equal(image_put(st.sections[0], THING, &t.base, &err), 0);
	image_store_free(&st);
	free(data);
}

/* What is wrong with these bytes as a message; NULL: nothing. */
static const char *decode(const ProtobufCMessageDescriptor *d, const void *data, size_t len)
{
	size_t budget = 1u << 20;
	ProtobufCMessage *msg;
	const char *why = image_decode(d, data, len, &budget, &msg);

	if (!why)
		protobuf_c_message_free_unpacked(msg, NULL);
	return why;
}

#define decode_plain(bytes) decode(&unit__plain__descriptor, (bytes), sizeof(bytes) - 1)
#define decode_thing(bytes) decode(&unit__thing__descriptor, (bytes), sizeof(bytes) - 1)

static void decode_is_strict(void **state)
{
	assert_null(decode_plain("\x0a\x02hi"));
	assert_null(decode_plain(""));
	assert_string_equal(decode_plain("\x0a\x05hi"), "is not a valid message");
	assert_string_equal(decode_plain("\x0a\xff\xff\xff\xff\x0f"), "is not a valid message");
	/* a NUL inside a string, an explicit default, a field twice, a padded varint */
	assert_string_equal(decode_plain("\x0a\x03h\0i"), "is not encoded as ckpt does it");
	assert_string_equal(decode_plain("\x0a\x00"), "is not encoded as ckpt does it");
	assert_string_equal(decode_plain("\x0a\x01x\x0a\x01y"), "is not encoded as ckpt does it");
	assert_string_equal(decode_thing("\x08\x81\x00"), "is not encoded as ckpt does it");
	/* fields and enum values of the future */
	assert_string_equal(decode_plain("\x10\x01"), "has fields that this version does not know");
	assert_string_equal(decode_thing("\x20\x07"),
			    "has an enum value that this version does not know");
}

static void decode_has_a_memory_limit(void **state)
{
	const size_t n = 20000;
	uint8_t *bytes = malloc(2 * n);
	size_t budget = 64 << 10;
	ProtobufCMessage *msg;

	assert_non_null(bytes);
	/* empty inner messages: two bytes each, some eighty in memory */
	for (size_t i = 0; i < n; i++)
		memcpy(bytes + 2 * i, "\x2a\x00", 2);
	assert_string_equal(image_decode(&unit__thing__descriptor, bytes, 2 * n, &budget, &msg),
			    "needs too much memory");
	budget = 64 << 20;
	assert_null(image_decode(&unit__thing__descriptor, bytes, 2 * n, &budget, &msg));
	assert_true(budget < (64 << 20) - n * sizeof(Unit__Inner));
	protobuf_c_message_free_unpacked(msg, NULL);
	free(bytes);
}

static void decode_survives_noise(void **state)
{
	uint8_t bytes[64];
	unsigned seed = 1;

	for (int i = 0; i < 200000; i++) {
		size_t len = (size_t)rand_r(&seed) % sizeof(bytes);

		for (size_t k = 0; k < len; k++)
			/* mostly small numbers: tags and lengths that make sense */
			bytes[k] = (uint8_t)(rand_r(&seed) % (rand_r(&seed) % 4 ? 0x60 : 0x100));
		(void)decode(&unit__thing__descriptor, bytes, len);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(put_copies),
		cmocka_unit_test(unknown_names_are_empty),
		cmocka_unit_test(put_refuses_foreign_types),
		cmocka_unit_test(put_has_a_limit_for_all),
		cmocka_unit_test(put_has_a_size_limit),
		cmocka_unit_test(decode_is_strict),
		cmocka_unit_test(decode_has_a_memory_limit),
		cmocka_unit_test(decode_survives_noise),
	};

	return cmocka_run_group_tests_name("image store", tests, NULL, NULL);
}
