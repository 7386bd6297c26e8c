/* SPDX-License-Identifier: MIT */
/* `ckpt show --json`: records as JSON. */
#include "image/internal.h"

static void print_escaped(FILE *out, const char *s, size_t n)
{
	if (n == 0)
		/* a byte that is no UTF-8: as Python's surrogateescape, so nothing is lost */
		fprintf(out, "\\udc%02x", (uint8_t)*s);
	else if (*s == '"' || *s == '\\')
		fprintf(out, "\\%c", *s);
	else if (utf8_is_control(s, n))
		/* JSON asks for it below 0x20 only, a terminal minds the others too */
		fprintf(out, "\\u%04x", (uint8_t)s[n - 1]);
	else
		fwrite(s, 1, n, out);
}

void json_string(FILE *out, const char *s)
{
	fputc('"', out);
	while (*s) {
		size_t n = utf8_len(s);

		print_escaped(out, s, n);
		s += n ? n : 1;
	}
	fputc('"', out);
}

static void print_bytes(FILE *out, const ProtobufCBinaryData *b)
{
	fputc('"', out);
	for (size_t i = 0; i < b->len; i++)
		fprintf(out, "%02x", b->data[i]);
	fputc('"', out);
}

static void print_message(FILE *out, const ProtobufCMessage *msg);

static void print_value(FILE *out, const ProtobufCFieldDescriptor *f, const void *v)
{
	if (f->type == PROTOBUF_C_TYPE_MESSAGE)
		print_message(out, *(const ProtobufCMessage *const *)v);
	else if (f->type == PROTOBUF_C_TYPE_STRING)
		json_string(out, *(const char *const *)v);
	else if (f->type == PROTOBUF_C_TYPE_BYTES)
		print_bytes(out, v);
	else
		value_print_scalar(out, f, v, true);
}

static void print_field(FILE *out, const ProtobufCMessage *msg, const ProtobufCFieldDescriptor *f)
{
	const bool list = f->label == PROTOBUF_C_LABEL_REPEATED;

	fprintf(out, list ? "\"%s\":[" : "\"%s\":", f->name);
	for (size_t i = 0; i < field_count(msg, f); i++) {
		if (i)
			fputc(',', out);
		print_value(out, f, field_at(msg, f, i));
	}
	if (list)
		fputc(']', out);
}

/* Unlike text, with zeros and empty lists: a program finds the same keys in each record. */
static void print_message(FILE *out, const ProtobufCMessage *msg)
{
	const ProtobufCMessageDescriptor *d = msg->descriptor;
	const char *sep = "";

	fputc('{', out);
	for (unsigned i = 0; i < d->n_fields; i++) {
		const ProtobufCFieldDescriptor *f = &d->fields[i];

		if (f->label != PROTOBUF_C_LABEL_REPEATED && !field_count(msg, f))
			continue;
		fputs(sep, out);
		print_field(out, msg, f);
		sep = ",";
	}
	fputc('}', out);
}

void image_print_json(const struct image_section *sec, FILE *out)
{
	fputc('[', out);
	for (size_t i = 0; i < sec->n; i++) {
		fprintf(out, "%s{\"type\":\"%s.%s\",\"record\":", i ? "," : "", sec->plugin,
			sec->records[i].type->name);
		print_message(out, sec->records[i].msg);
		fputc('}', out);
	}
	fputc(']', out);
}
