/* SPDX-License-Identifier: MIT */
/* Differences of two sections, by descriptors and field rules. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "image/internal.h"

#define LINE_SHOWN  200u /* of a whole record or message */
#define BYTES_SHOWN 16u	 /* of a bytes field, from the first difference */

struct compare {
	const struct ckpt_field_rule *rules;
	bool diff_mode;
	image_diff_fn fn;
	void *arg;
	size_t n;
	char where[160];
	char path[512]; /* of the field, "threads[1].comm" */
};

static void compare_messages(struct compare *c, const ProtobufCMessage *a,
			     const ProtobufCMessage *b, size_t at);

static void report(struct compare *c, const char *before, const char *after)
{
	c->n++;
	c->fn(c->arg, c->where, c->path, before, after);
}

static bool is_ignored(const struct compare *c, const char *message, const char *field)
{
	for (const struct ckpt_field_rule *r = c->rules; r && r->message; r++)
		if (strcmp(r->field, field) == 0 && strcmp(r->message, message) == 0)
			return r->equality == CKPT_EQ_VOLATILE || !c->diff_mode;
	return false;
}

static void print_window(FILE *out, const ProtobufCBinaryData *b, size_t from)
{
	size_t n = b->len - from < BYTES_SHOWN ? b->len - from : BYTES_SHOWN;

	fprintf(out, "[%zu]", b->len);
	if (from)
		fprintf(out, " at %zu:", from);
	for (size_t i = 0; i < n; i++)
		fprintf(out, "%s%02x", i ? "" : " ", b->data[from + i]);
	if (from + n < b->len)
		fputs("...", out);
}

/* Text of a value; `other` (may be NULL) is what it differs from. The caller frees. */
static char *value_text(const ProtobufCFieldDescriptor *f, const void *v, const void *other)
{
	char *text = NULL;
	size_t size;
	FILE *out = open_memstream(&text, &size);

	if (!out)
		return NULL;
	if (f->type == PROTOBUF_C_TYPE_BYTES && other) {
		const ProtobufCBinaryData *x = v, *y = other;
		size_t from = 0;

		while (from < x->len && from < y->len && x->data[from] == y->data[from])
			from++;
		print_window(out, x, from);
	} else {
		value_print_line(out, f, v);
	}
	fclose(out);
	if (text && f->type == PROTOBUF_C_TYPE_MESSAGE && size > LINE_SHOWN)
		strcpy(text + LINE_SHOWN, "...}");
	return text;
}

/* Either value may be NULL: not there. */
static void report_values(struct compare *c, const ProtobufCFieldDescriptor *f, const void *a,
			  const void *b)
{
	CKPT_AUTO_FREE char *before = a ? value_text(f, a, b) : NULL;
	CKPT_AUTO_FREE char *after = b ? value_text(f, b, a) : NULL;

	/* even without the memory for its text, a value that is there must not look missing */
	report(c, a && !before ? "?" : before, b && !after ? "?" : after);
}

static void compare_values(struct compare *c, const ProtobufCFieldDescriptor *f, const void *a,
			   const void *b, size_t at)
{
	if (a && b && f->type == PROTOBUF_C_TYPE_MESSAGE)
		compare_messages(c, *(const ProtobufCMessage *const *)a,
				 *(const ProtobufCMessage *const *)b, at);
	else if (!a || !b || !value_equal(f, a, b))
		report_values(c, f, a, b);
}

/* Add to the path at `at`; returns its new length. A path beyond the buffer is cut. */
static size_t path_add(struct compare *c, size_t at, const char *name, size_t index, bool list)
{
	int n = snprintf(c->path + at, sizeof(c->path) - at, list ? "%s%s[%zu]" : "%s%s",
			 at ? "." : "", name, index);

	return at + (size_t)n < sizeof(c->path) ? at + (size_t)n : sizeof(c->path) - 1;
}

/* The common case, without a look at each element. */
static bool lists_equal(const ProtobufCMessage *a, const ProtobufCMessage *b,
			const ProtobufCFieldDescriptor *f, size_t n)
{
	if (f->type == PROTOBUF_C_TYPE_MESSAGE || f->type == PROTOBUF_C_TYPE_STRING ||
	    f->type == PROTOBUF_C_TYPE_BYTES || f->label != PROTOBUF_C_LABEL_REPEATED || !n)
		return false;
	return memcmp(field_at(a, f, 0), field_at(b, f, 0), n * value_size(f->type)) == 0;
}

static void compare_messages(struct compare *c, const ProtobufCMessage *a,
			     const ProtobufCMessage *b, size_t at)
{
	const ProtobufCMessageDescriptor *d = a->descriptor;

	for (unsigned k = 0; k < d->n_fields; k++) {
		const ProtobufCFieldDescriptor *f = &d->fields[k];
		const bool list = f->label == PROTOBUF_C_LABEL_REPEATED;
		const size_t na = field_count(a, f), nb = field_count(b, f);

		if ((!na && !nb) || is_ignored(c, d->short_name, f->name) ||
		    (na == nb && lists_equal(a, b, f, na)))
			continue;
		for (size_t i = 0; i < na || i < nb; i++) {
			size_t len = path_add(c, at, f->name, i, list);

			compare_values(c, f, i < na ? field_at(a, f, i) : NULL,
				       i < nb ? field_at(b, f, i) : NULL, len);
		}
	}
}

/* Where a record stands in the order in which both sections are walked. */
struct place {
	uint32_t number;
	uint64_t id;
	size_t nth; /* in the section; equal ids are paired in order */
};

static int by_number_and_id(const struct place *a, const struct place *b)
{
	if (a->number != b->number)
		return a->number < b->number ? -1 : 1;
	return a->id == b->id ? 0 : a->id < b->id ? -1 : 1;
}

static int by_place(const void *x, const void *y)
{
	const struct place *a = x, *b = y;
	int r = by_number_and_id(a, b);

	return r || a->nth == b->nth ? r : a->nth < b->nth ? -1 : 1;
}

static struct place *sorted_places(const struct image_section *sec)
{
	CKPT_AUTO_FREE uint64_t *index = image_record_indices(sec);
	struct place *p = index ? calloc(sec->n + 1, sizeof(*p)) : NULL;

	if (!p)
		return NULL;
	for (size_t i = 0; i < sec->n; i++)
		p[i] = (struct place){ sec->records[i].type->number,
				       image_record_id(&sec->records[i], index[i]), i };
	qsort(p, sec->n, sizeof(*p), by_place);
	return p;
}

static void compare_records(struct compare *c, const char *plugin, const struct image_record *a,
			    const struct image_record *b, uint64_t id)
{
	const ProtobufCFieldDescriptor whole = { .type = PROTOBUF_C_TYPE_MESSAGE };

	snprintf(c->where, sizeof(c->where), "%s.%s %" PRIu64, plugin, (a ? a : b)->type->name, id);
	c->path[0] = '\0';
	compare_values(c, &whole, a ? &a->msg : NULL, b ? &b->msg : NULL, 0);
}

size_t image_compare(const struct image_section *a, const struct image_section *b, bool diff_mode,
		     image_diff_fn fn, void *arg)
{
	struct compare c = { .rules = a->rules, .diff_mode = diff_mode, .fn = fn, .arg = arg };
	CKPT_AUTO_FREE struct place *pa = sorted_places(a);
	CKPT_AUTO_FREE struct place *pb = sorted_places(b);
	size_t i = 0, j = 0;

	/* never "equal" for lack of memory */
	if (!pa || !pb)
		return SIZE_MAX;
	while (i < a->n || j < b->n) {
		int order = i == a->n ? 1 : j == b->n ? -1 : by_number_and_id(&pa[i], &pb[j]);
		const uint64_t id = order <= 0 ? pa[i].id : pb[j].id;

		compare_records(&c, a->plugin, order <= 0 ? &a->records[pa[i].nth] : NULL,
				order >= 0 ? &b->records[pb[j].nth] : NULL, id);
		i += order <= 0;
		j += order >= 0;
	}
	return c.n;
}
