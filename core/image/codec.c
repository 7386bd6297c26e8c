/* SPDX-License-Identifier: MIT */
/* Decoding records: protobuf-c with a memory limit, and what it does not check itself. */
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "image/internal.h"

/*
 * A few bytes of a message can ask for a structure of several hundred. This is
 * beyond what real messages need, and keeps a small hostile file small in memory.
 */
#define MEMORY_BASE	((size_t)64 << 10)
#define MEMORY_PER_BYTE 1024u

struct budget {
	size_t left;
	bool exceeded;
};

static void *budget_alloc(void *data, size_t size)
{
	struct budget *b = data;
	size_t usable;
	void *p;

	if (size > b->left) {
		b->exceeded = true;
		return NULL;
	}
	p = malloc(size);
	if (!p)
		return NULL;
	usable = malloc_usable_size(p);
	b->left -= usable < b->left ? usable : b->left;
	return p;
}

static void budget_free(void *data, void *p)
{
	struct budget *b = data;

	b->left += malloc_usable_size(p);
	free(p);
}

/* A buffer to pack into that keeps nothing and compares with what was read. */
struct compare_buffer {
	ProtobufCBuffer base;
	const uint8_t *data;
	size_t left;
	bool differs;
};

static void compare_append(ProtobufCBuffer *base, size_t len, const uint8_t *data)
{
	struct compare_buffer *c = (struct compare_buffer *)base;

	if (c->differs || len > c->left || (len && memcmp(c->data, data, len) != 0)) {
		c->differs = true;
		return;
	}
	c->data += len;
	c->left -= len;
}

/*
 * Only what a writer of ours would have written is accepted. That settles NUL
 * bytes inside strings (which C would cut off), doubled fields, and everything
 * else that has two encodings.
 */
static bool is_canonical(const ProtobufCMessage *msg, const uint8_t *data, size_t len)
{
	struct compare_buffer c = { { compare_append }, data, len, false };

	protobuf_c_message_pack_to_buffer(msg, &c.base);
	return !c.differs && c.left == 0;
}

static const char *check_known(const ProtobufCMessage *msg)
{
	const ProtobufCMessageDescriptor *d = msg->descriptor;

	if (msg->n_unknown_fields)
		return "has fields that this version does not know";
	for (unsigned i = 0; i < d->n_fields; i++) {
		const ProtobufCFieldDescriptor *f = &d->fields[i];
		size_t n = 0;

		if (f->type == PROTOBUF_C_TYPE_MESSAGE || f->type == PROTOBUF_C_TYPE_ENUM)
			n = field_count(msg, f);
		for (size_t k = 0; k < n; k++) {
			const void *v = field_at(msg, f, k);
			const char *why = NULL;

			if (f->type == PROTOBUF_C_TYPE_MESSAGE)
				why = check_known(*(ProtobufCMessage *const *)v);
			else if (!protobuf_c_enum_descriptor_get_value(f->descriptor,
								       *(const int *)v))
				why = "has an enum value that this version does not know";
			if (why)
				return why;
		}
	}
	return NULL;
}

const char *image_decode(const ProtobufCMessageDescriptor *desc, const uint8_t *data, size_t len,
			 size_t *budget, ProtobufCMessage **out)
{
	size_t limit = MEMORY_BASE + len * MEMORY_PER_BYTE;
	struct budget b;
	ProtobufCAllocator allocator = { budget_alloc, budget_free, &b };
	ProtobufCMessage *msg;
	const char *why;

	if (limit > *budget)
		limit = *budget;
	b = (struct budget){ .left = limit };
	msg = protobuf_c_message_unpack(desc, &allocator, len, data);
	if (!msg)
		return b.exceeded ? "needs too much memory" : "is not a valid message";
	why = check_known(msg);
	if (!why && !is_canonical(msg, data, len))
		why = "is not encoded as ckpt does it";
	if (why) {
		protobuf_c_message_free_unpacked(msg, NULL);
		return why;
	}
	*budget -= b.left < limit ? limit - b.left : 0;
	*out = msg;
	return NULL;
}

struct ancestor {
	const ProtobufCMessageDescriptor *desc;
	const struct ancestor *up;
};

static bool contains_ancestor(const ProtobufCMessageDescriptor *desc, const struct ancestor *up)
{
	const struct ancestor here = { desc, up };

	for (const struct ancestor *a = up; a; a = a->up)
		if (a->desc == desc)
			return true;
	for (unsigned i = 0; i < desc->n_fields; i++)
		if (desc->fields[i].type == PROTOBUF_C_TYPE_MESSAGE &&
		    contains_ancestor(desc->fields[i].descriptor, &here))
			return true;
	return false;
}

bool image_type_recursive(const ProtobufCMessageDescriptor *desc)
{
	return contains_ancestor(desc, NULL);
}
