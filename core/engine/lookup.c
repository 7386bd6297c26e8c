/* SPDX-License-Identifier: MIT */
/* Records by their id. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/run.h"

/* Records of one type, and where each has its id. */
struct records {
	ProtobufCMessage *const *list;
	size_t n;
	unsigned id_at; /* 0: they have none */
};

static struct records records_of(const struct ckpt_run *run, const char *type)
{
	struct records r = { 0 };
	const ProtobufCFieldDescriptor *f = NULL;

	r.list = image_all(&run->store, type, &r.n);
	if (r.n)
		f = protobuf_c_message_descriptor_get_field_by_name(r.list[0]->descriptor, "id");
	if (f && f->type == PROTOBUF_C_TYPE_UINT32 && f->label != PROTOBUF_C_LABEL_REPEATED)
		r.id_at = f->offset;
	return r;
}

static uint32_t id_of(const struct records *r, size_t i)
{
	uint32_t id;

	memcpy(&id, (const char *)r->list[i] + r->id_at, sizeof(id));
	return id;
}

int ckpt_record_order(struct ckpt_run *run, const char *type, struct ckpt_error *err)
{
	const struct records r = records_of(run, type);
	uint32_t last = 0;

	for (size_t i = 0; i < r.n; i++) {
		if (!r.id_at || id_of(&r, i) <= last)
			return ckpt_fail_image(err, "records %s are not in order after %u", type,
					       last);
		last = id_of(&r, i);
	}
	return 0;
}

static ssize_t find(const struct records *r, uint32_t id)
{
	size_t lo = 0, hi = r->id_at ? r->n : 0;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		uint32_t got = id_of(r, mid);

		if (got == id)
			return (ssize_t)mid;
		if (got < id)
			lo = mid + 1;
		else
			hi = mid;
	}
	return -ENOENT;
}

ssize_t ckpt_record_index(struct ckpt_run *run, const char *type, uint32_t id)
{
	const struct records r = records_of(run, type);

	return find(&r, id);
}

const void *ckpt_record_by_id(struct ckpt_run *run, const char *type, uint32_t id)
{
	const struct records r = records_of(run, type);
	ssize_t at = find(&r, id);

	return at < 0 ? NULL : r.list[at];
}

const void *ckpt_record_need(struct ckpt_run *run, const char *type, uint32_t id,
			     struct ckpt_error *err)
{
	const void *rec = ckpt_record_by_id(run, type, id);

	if (!rec)
		ckpt_fail_image(err, "there is no record %s %u", type, id);
	return rec;
}

int ckpt_fail_image(struct ckpt_error *err, const char *fmt, ...)
{
	char text[sizeof(err->text)];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	return ckpt_fail_as(err, CKPT_EXIT_IMAGE, EBADMSG, "%s", text);
}
