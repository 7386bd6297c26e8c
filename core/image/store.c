/* SPDX-License-Identifier: MIT */
/* Records in memory. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "image/internal.h"

/* The records of one type, so that the i-th is found without a search. */
struct image_index {
	ProtobufCMessage **msgs;
	size_t n, cap;
};

void image_store_init(struct image_store *st)
{
	*st = (struct image_store){ 0 };
}

static void section_free(struct image_section *sec)
{
	for (size_t i = 0; i < sec->n; i++)
		protobuf_c_message_free_unpacked(sec->records[i].msg, NULL);
	for (size_t i = 0; i < sec->n_types && sec->index; i++)
		free(sec->index[i].msgs);
	free(sec->index);
	free(sec->records);
	free(sec->plugin);
	free(sec->version);
	free(sec);
}

void image_store_free(struct image_store *st)
{
	for (size_t i = 0; i < st->n; i++)
		section_free(st->sections[i]);
	free(st->sections);
	image_store_init(st);
}

struct image_section *image_section_add(struct image_store *st, const char *plugin,
					const struct ckpt_record_type *types,
					const struct ckpt_field_rule *rules)
{
	struct image_section **grown, *sec = calloc(1, sizeof(*sec));

	if (!sec)
		return NULL;
	while (types && types[sec->n_types].name)
		sec->n_types++;
	sec->types = types;
	sec->rules = rules;
	sec->plugin = strdup(plugin);
	sec->index = calloc(sec->n_types + 1, sizeof(*sec->index));
	grown = reallocarray(st->sections, st->n + 1, sizeof(*grown));
	if (grown)
		st->sections = grown;
	if (!grown || !sec->plugin || !sec->index) {
		section_free(sec);
		return NULL;
	}
	for (size_t i = 0; i < sec->n_types && !sec->recursive; i++)
		if (image_type_recursive(types[i].descriptor))
			sec->recursive = types[i].name;
	sec->left = IMAGE_MEMORY_MAX;
	st->sections[st->n++] = sec;
	return sec;
}

static struct image_section *find_section(const struct image_store *st, const char *plugin,
					  size_t len)
{
	for (size_t i = 0; i < st->n; i++)
		if (strncmp(st->sections[i]->plugin, plugin, len) == 0 &&
		    !st->sections[i]->plugin[len])
			return st->sections[i];
	return NULL;
}

struct image_section *image_section_find(const struct image_store *st, const char *plugin)
{
	return find_section(st, plugin, strlen(plugin));
}

int image_section_check(const struct image_section *sec, struct ckpt_error *err)
{
	if (!image_name_ok(sec->plugin) || strcmp(sec->plugin, IMAGE_MANIFEST) == 0)
		return ckpt_fail(err, EINVAL, "\"%s\" cannot be the name of a plugin with records",
				 sec->plugin);
	if (sec->recursive)
		return ckpt_fail(err, EINVAL, "the type %s.%s contains itself, a record must not",
				 sec->plugin, sec->recursive);
	return 0;
}

const struct ckpt_record_type *image_type_by_number(const struct image_section *sec,
						    uint32_t number)
{
	for (size_t i = 0; i < sec->n_types; i++)
		if (sec->types[i].number == number)
			return &sec->types[i];
	return NULL;
}

/* Room for one more element in an array that grows by doubling. */
static int grow(void *array, size_t n, size_t *cap, size_t size)
{
	size_t want = *cap ? *cap * 2 : 16;
	void *p;

	if (n < *cap)
		return 0;
	p = reallocarray(*(void **)array, want, size);
	if (!p)
		return -ENOMEM;
	*(void **)array = p;
	*cap = want;
	return 0;
}

int image_section_append(struct image_section *sec, const struct ckpt_record_type *type,
			 ProtobufCMessage *msg, struct ckpt_error *err)
{
	struct image_index *ix = &sec->index[type - sec->types];

	if (sec->n >= IMAGE_RECORDS_MAX)
		return ckpt_fail(err, E2BIG, "plugin %s: more than %llu records", sec->plugin,
				 (unsigned long long)IMAGE_RECORDS_MAX);
	if (grow(&sec->records, sec->n, &sec->cap, sizeof(*sec->records)) < 0 ||
	    grow(&ix->msgs, ix->n, &ix->cap, sizeof(*ix->msgs)) < 0)
		return ckpt_fail_sys(err, ENOMEM, "records of %s", sec->plugin);
	sec->records[sec->n++] = (struct image_record){ type, msg };
	ix->msgs[ix->n++] = msg;
	return 0;
}

int image_put(struct image_section *sec, uint32_t number, const ProtobufCMessage *msg,
	      struct ckpt_error *err)
{
	const struct ckpt_record_type *type = image_type_by_number(sec, number);
	CKPT_AUTO_FREE uint8_t *buf = NULL;
	size_t len;
	ProtobufCMessage *copy;
	const char *why;
	int r = image_section_check(sec, err);

	if (r < 0)
		return r;
	if (!type || number == IMAGE_FRAME_END || msg->descriptor != type->descriptor)
		return ckpt_fail(err, EINVAL, "plugin %s: a %s is no record of type number %u",
				 sec->plugin, msg->descriptor->name, number);
	len = protobuf_c_message_get_packed_size(msg);
	if (len > IMAGE_PAYLOAD_MAX)
		return ckpt_fail(err, E2BIG, "a record %s.%s of %zu bytes, the limit is %u",
				 sec->plugin, type->name, len, IMAGE_PAYLOAD_MAX);
	buf = malloc(len + 1);
	if (!buf)
		return ckpt_fail_sys(err, ENOMEM, "a record of %zu bytes", len);
	protobuf_c_message_pack(msg, buf);
	why = image_decode(type->descriptor, buf, len, &sec->left, &copy);
	if (why)
		return ckpt_fail(err, EINVAL, "a record %s.%s to be saved %s", sec->plugin,
				 type->name, why);
	r = image_section_append(sec, type, copy, err);
	if (r < 0)
		protobuf_c_message_free_unpacked(copy, NULL);
	return r;
}

static const struct image_index *find_index(const struct image_store *st, const char *type)
{
	const char *dot = strchr(type, '.');
	const struct image_section *sec;

	sec = dot ? find_section(st, type, (size_t)(dot - type)) : NULL;
	for (size_t i = 0; sec && i < sec->n_types; i++)
		if (strcmp(sec->types[i].name, dot + 1) == 0)
			return &sec->index[i];
	return NULL;
}

size_t image_count(const struct image_store *st, const char *type)
{
	const struct image_index *ix = find_index(st, type);

	return ix ? ix->n : 0;
}

const ProtobufCMessage *image_at(const struct image_store *st, const char *type, size_t i)
{
	const struct image_index *ix = find_index(st, type);

	return ix && i < ix->n ? ix->msgs[i] : NULL;
}

ProtobufCMessage *const *image_all(const struct image_store *st, const char *type, size_t *n)
{
	const struct image_index *ix = find_index(st, type);

	*n = ix ? ix->n : 0;
	return ix ? ix->msgs : NULL;
}

uint64_t image_record_id(const struct image_record *rec, uint64_t index)
{
	const ProtobufCFieldDescriptor *f =
		protobuf_c_message_descriptor_get_field_by_name(rec->type->descriptor, "id");

	if (!f || f->label == PROTOBUF_C_LABEL_REPEATED || !field_count(rec->msg, f))
		return index;
	switch (f->type) {
	case PROTOBUF_C_TYPE_INT32:
	case PROTOBUF_C_TYPE_SINT32:
	case PROTOBUF_C_TYPE_SFIXED32:
	case PROTOBUF_C_TYPE_UINT32:
	case PROTOBUF_C_TYPE_FIXED32:
		return *(const uint32_t *)field_at(rec->msg, f, 0);
	case PROTOBUF_C_TYPE_INT64:
	case PROTOBUF_C_TYPE_SINT64:
	case PROTOBUF_C_TYPE_SFIXED64:
	case PROTOBUF_C_TYPE_UINT64:
	case PROTOBUF_C_TYPE_FIXED64:
		return *(const uint64_t *)field_at(rec->msg, f, 0);
	default:
		return index;
	}
}

uint64_t *image_record_indices(const struct image_section *sec)
{
	CKPT_AUTO_FREE uint64_t *seen = calloc(sec->n_types + 1, sizeof(*seen));
	uint64_t *index = calloc(sec->n + 1, sizeof(*index));

	for (size_t i = 0; seen && index && i < sec->n; i++)
		index[i] = seen[sec->records[i].type - sec->types]++;
	if (!seen) {
		free(index);
		return NULL;
	}
	return index;
}
