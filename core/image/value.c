/* SPDX-License-Identifier: MIT */
/* Fields of any message, by its descriptor. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "image/internal.h"

#define HEX_SHOWN 32u /* bytes of a bytes field that text output shows */

#define MEMBER(type, msg, offset) (*(type const *)((const uint8_t *)(msg) + (offset)))

static bool is_pointer(ProtobufCType type)
{
	return type == PROTOBUF_C_TYPE_STRING || type == PROTOBUF_C_TYPE_MESSAGE;
}

size_t field_count(const ProtobufCMessage *msg, const ProtobufCFieldDescriptor *f)
{
	if (f->label == PROTOBUF_C_LABEL_REPEATED)
		return MEMBER(size_t, msg, f->quantifier_offset);
	if ((f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) &&
	    MEMBER(uint32_t, msg, f->quantifier_offset) != f->id)
		return 0;
	if (is_pointer(f->type)) {
		const void *p = MEMBER(void *, msg, f->offset);

		return p && (f->label != PROTOBUF_C_LABEL_OPTIONAL || p != f->default_value);
	}
	if (f->label == PROTOBUF_C_LABEL_OPTIONAL && !(f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF))
		return MEMBER(protobuf_c_boolean, msg, f->quantifier_offset) != 0;
	return 1;
}

size_t value_size(ProtobufCType type)
{
	switch (type) {
	case PROTOBUF_C_TYPE_INT64:
	case PROTOBUF_C_TYPE_SINT64:
	case PROTOBUF_C_TYPE_SFIXED64:
	case PROTOBUF_C_TYPE_UINT64:
	case PROTOBUF_C_TYPE_FIXED64:
	case PROTOBUF_C_TYPE_DOUBLE:
		return 8;
	case PROTOBUF_C_TYPE_STRING:
	case PROTOBUF_C_TYPE_MESSAGE:
		return sizeof(void *);
	case PROTOBUF_C_TYPE_BYTES:
		return sizeof(ProtobufCBinaryData);
	default:
		return 4;
	}
}

const void *field_at(const ProtobufCMessage *msg, const ProtobufCFieldDescriptor *f, size_t i)
{
	if (f->label != PROTOBUF_C_LABEL_REPEATED)
		return (const uint8_t *)msg + f->offset;
	return MEMBER(uint8_t *, msg, f->offset) + i * value_size(f->type);
}

bool field_is_default(const ProtobufCMessage *msg, const ProtobufCFieldDescriptor *f)
{
	static const uint8_t zero[8];
	const void *v;

	if (!field_count(msg, f))
		return true;
	if (f->label != PROTOBUF_C_LABEL_NONE || (f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF))
		return false;
	v = field_at(msg, f, 0);
	if (f->type == PROTOBUF_C_TYPE_MESSAGE)
		return false;
	if (f->type == PROTOBUF_C_TYPE_STRING)
		return !**(const char *const *)v;
	if (f->type == PROTOBUF_C_TYPE_BYTES)
		return !((const ProtobufCBinaryData *)v)->len;
	return memcmp(v, zero, value_size(f->type)) == 0;
}

bool value_equal(const ProtobufCFieldDescriptor *f, const void *a, const void *b)
{
	if (f->type == PROTOBUF_C_TYPE_STRING)
		return strcmp(*(const char *const *)a, *(const char *const *)b) == 0;
	if (f->type == PROTOBUF_C_TYPE_BYTES) {
		const ProtobufCBinaryData *x = a, *y = b;

		return x->len == y->len && (!x->len || memcmp(x->data, y->data, x->len) == 0);
	}
	return memcmp(a, b, value_size(f->type)) == 0;
}

static void print_enum(FILE *out, const ProtobufCFieldDescriptor *f, int number, bool json)
{
	const ProtobufCEnumValue *v = protobuf_c_enum_descriptor_get_value(f->descriptor, number);

	if (v)
		fprintf(out, json ? "\"%s\"" : "%s", v->name);
	else
		fprintf(out, "%d", number);
}

static void print_real(FILE *out, double d, int digits, bool json)
{
	/* JSON has no word for these */
	if (json && !isfinite(d))
		fputs("null", out);
	else
		fprintf(out, "%.*g", digits, d);
}

bool value_print_scalar(FILE *out, const ProtobufCFieldDescriptor *f, const void *v, bool json)
{
	switch (f->type) {
	case PROTOBUF_C_TYPE_INT32:
	case PROTOBUF_C_TYPE_SINT32:
	case PROTOBUF_C_TYPE_SFIXED32:
		fprintf(out, "%" PRId32, *(const int32_t *)v);
		return true;
	case PROTOBUF_C_TYPE_INT64:
	case PROTOBUF_C_TYPE_SINT64:
	case PROTOBUF_C_TYPE_SFIXED64:
		fprintf(out, "%" PRId64, *(const int64_t *)v);
		return true;
	case PROTOBUF_C_TYPE_UINT32:
		fprintf(out, "%" PRIu32, *(const uint32_t *)v);
		return true;
	case PROTOBUF_C_TYPE_UINT64:
		fprintf(out, "%" PRIu64, *(const uint64_t *)v);
		return true;
	/* who declares a fixed field means bits: an address, a mask */
	case PROTOBUF_C_TYPE_FIXED32:
		fprintf(out, json ? "%" PRIu32 : "0x%" PRIx32, *(const uint32_t *)v);
		return true;
	case PROTOBUF_C_TYPE_FIXED64:
		fprintf(out, json ? "%" PRIu64 : "0x%" PRIx64, *(const uint64_t *)v);
		return true;
	case PROTOBUF_C_TYPE_FLOAT:
		print_real(out, (double)*(const float *)v, 9, json);
		return true;
	case PROTOBUF_C_TYPE_DOUBLE:
		print_real(out, *(const double *)v, 17, json);
		return true;
	case PROTOBUF_C_TYPE_BOOL:
		fputs(*(const protobuf_c_boolean *)v ? "true" : "false", out);
		return true;
	case PROTOBUF_C_TYPE_ENUM:
		print_enum(out, f, *(const int *)v, json);
		return true;
	default:
		return false;
	}
}

size_t utf8_len(const char *s)
{
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	const uint8_t *p = (const uint8_t *)s;
	size_t n = p[0] < 0x80			 ? 1
		   : p[0] >= 0xc2 && p[0] < 0xe0 ? 2
		   : p[0] >= 0xe0 && p[0] < 0xf0 ? 3
		   : p[0] >= 0xf0 && p[0] < 0xf5 ? 4
						 : 0;
	uint32_t c = n ? p[0] & (0xffu >> (n == 1 ? 1 : n + 1)) : 0;

	/* the terminating NUL is no continuation, so this stops in time */
	for (size_t i = 1; i < n; i++) {
		if ((p[i] & 0xc0) != 0x80)
			return 0;
		c = c << 6 | (p[i] & 0x3f);
	}
	if (n > 1 && (c < least[n] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)))
		return 0;
	return n;
}

bool utf8_is_control(const char *s, size_t n)
{
	const uint8_t *p = (const uint8_t *)s;

	return n == 1 ? p[0] < 0x20 || p[0] == 0x7f : n == 2 && p[0] == 0xc2 && p[1] < 0xa0;
}

/* Nothing from an image reaches a terminal as a control sequence. */
static void print_string(FILE *out, const char *s)
{
	size_t step;

	fputc('"', out);
	for (; *s; s += step) {
		const size_t n = utf8_len(s);

		step = n && !utf8_is_control(s, n) ? n : 1;
		if (*s == '"' || *s == '\\')
			fprintf(out, "\\%c", *s);
		else if (n == 0 || utf8_is_control(s, n))
			/* of a C1 control the second byte comes next, and is no UTF-8 on its own */
			fprintf(out, "\\x%02x", (uint8_t)*s);
		else
			fwrite(s, 1, n, out);
	}
	fputc('"', out);
}

/* Paths are bytes, since file names need not be UTF-8; nearly all of them read as text. */
static bool reads_as_text(const ProtobufCBinaryData *b)
{
	for (size_t i = 0; i < b->len; i++)
		if (b->data[i] < 0x20 || b->data[i] > 0x7e || b->data[i] == '"')
			return false;
	return b->len > 0;
}

static void print_bytes(FILE *out, const ProtobufCBinaryData *b)
{
	size_t n = b->len < HEX_SHOWN ? b->len : HEX_SHOWN;

	if (reads_as_text(b)) {
		fprintf(out, "\"%.*s\"", (int)b->len, (const char *)b->data);
		return;
	}
	fprintf(out, "[%zu]", b->len);
	for (size_t i = 0; i < n; i++)
		fprintf(out, "%s%02x", i ? "" : " ", b->data[i]);
	if (n < b->len)
		fputs("...", out);
}

void value_print_line(FILE *out, const ProtobufCFieldDescriptor *f, const void *v)
{
	if (f->type == PROTOBUF_C_TYPE_MESSAGE)
		message_print_line(out, *(const ProtobufCMessage *const *)v);
	else if (f->type == PROTOBUF_C_TYPE_STRING)
		print_string(out, *(const char *const *)v);
	else if (f->type == PROTOBUF_C_TYPE_BYTES)
		print_bytes(out, v);
	else
		value_print_scalar(out, f, v, false);
}

static void print_field_line(FILE *out, const ProtobufCMessage *msg,
			     const ProtobufCFieldDescriptor *f)
{
	const bool list = f->label == PROTOBUF_C_LABEL_REPEATED;

	fprintf(out, list ? "%s: [" : "%s: ", f->name);
	for (size_t i = 0; i < field_count(msg, f); i++) {
		if (i)
			fputs(", ", out);
		value_print_line(out, f, field_at(msg, f, i));
	}
	if (list)
		fputc(']', out);
}

void message_print_line(FILE *out, const ProtobufCMessage *msg)
{
	const ProtobufCMessageDescriptor *d = msg->descriptor;
	const char *sep = "";

	fputc('{', out);
	for (unsigned i = 0; i < d->n_fields; i++) {
		if (field_is_default(msg, &d->fields[i]))
			continue;
		fputs(sep, out);
		print_field_line(out, msg, &d->fields[i]);
		sep = ", ";
	}
	fputc('}', out);
}
