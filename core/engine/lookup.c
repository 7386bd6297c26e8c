/* SPDX-License-Identifier: MIT */
/* Records by their id. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/run.h"

/* The value of a record's field `id`; false if it has none. */
static bool id_of(const ProtobufCMessage *m, uint32_t *id)
{
	const ProtobufCFieldDescriptor *f =
		protobuf_c_message_descriptor_get_field_by_name(m->descriptor, "id");

	if (!f || f->type != PROTOBUF_C_TYPE_UINT32 || f->label == PROTOBUF_C_LABEL_REPEATED)
		return false;
	memcpy(id, (const char *)m + f->offset, sizeof(*id));
	return true;
}

int ckpt_record_order(struct ckpt_run *run, const char *type, struct ckpt_error *err)
{
	uint32_t last = 0, id;

	for (size_t i = 0; i < ckpt_record_count(run, type); i++) {
		if (!id_of(ckpt_record_at(run, type, i), &id) || id <= last)
			return ckpt_fail_image(err, "records %s are not in order after %u", type,
					       last);
		last = id;
	}
	return 0;
}

ssize_t ckpt_record_index(struct ckpt_run *run, const char *type, uint32_t id)
{
	size_t lo = 0, hi = ckpt_record_count(run, type);

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		uint32_t got;

		if (!id_of(ckpt_record_at(run, type, mid), &got))
			return -ENOENT;
		if (got == id)
			return (ssize_t)mid;
		if (got < id)
			lo = mid + 1;
		else
			hi = mid;
	}
	return -ENOENT;
}

const void *ckpt_record_by_id(struct ckpt_run *run, const char *type, uint32_t id)
{
	ssize_t at = ckpt_record_index(run, type, id);

	return at < 0 ? NULL : ckpt_record_at(run, type, (size_t)at);
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
