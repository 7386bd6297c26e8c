/* SPDX-License-Identifier: MIT */
/* `ckpt show`: records as indented text. */
#include <inttypes.h>
#include <stdlib.h>

#include "image/internal.h"

#define INDENT 2

static void print_message(FILE *out, const ProtobufCMessage *msg, int indent);

static void print_nested(FILE *out, const ProtobufCMessage *msg, const ProtobufCFieldDescriptor *f,
			 int indent)
{
	const bool list = f->label == PROTOBUF_C_LABEL_REPEATED;

	for (size_t i = 0; i < field_count(msg, f); i++) {
		if (list)
			fprintf(out, "%*s%s[%zu]:\n", indent, "", f->name, i);
		else
			fprintf(out, "%*s%s:\n", indent, "", f->name);
		print_message(out, *(const ProtobufCMessage *const *)field_at(msg, f, i),
			      indent + INDENT);
	}
}

static void print_plain(FILE *out, const ProtobufCMessage *msg, const ProtobufCFieldDescriptor *f,
			int indent)
{
	const bool list = f->label == PROTOBUF_C_LABEL_REPEATED;

	fprintf(out, list ? "%*s%s: [" : "%*s%s: ", indent, "", f->name);
	for (size_t i = 0; i < field_count(msg, f); i++) {
		if (i)
			fputs(", ", out);
		value_print_line(out, f, field_at(msg, f, i));
	}
	fputs(list ? "]\n" : "\n", out);
}

static void print_message(FILE *out, const ProtobufCMessage *msg, int indent)
{
	const ProtobufCMessageDescriptor *d = msg->descriptor;

	for (unsigned i = 0; i < d->n_fields; i++) {
		const ProtobufCFieldDescriptor *f = &d->fields[i];

		if (field_is_default(msg, f))
			continue;
		if (f->type == PROTOBUF_C_TYPE_MESSAGE)
			print_nested(out, msg, f, indent);
		else
			print_plain(out, msg, f, indent);
	}
}

void image_print_text(const struct image_section *sec, FILE *out)
{
	CKPT_AUTO_FREE uint64_t *index = image_record_indices(sec);

	for (size_t i = 0; i < sec->n; i++) {
		const struct image_record *rec = &sec->records[i];

		fprintf(out, "%s.%s %" PRIu64 "\n", sec->plugin, rec->type->name,
			image_record_id(rec, index ? index[i] : i));
		print_message(out, rec->msg, INDENT);
	}
}
