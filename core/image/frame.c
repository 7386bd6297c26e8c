/* SPDX-License-Identifier: MIT */
/* Frames: records to bytes and back. The layout is in format.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "image/internal.h"

/* Small records are handed to the file together. */
#define BATCH ((size_t)1 << 20)

int frame_write_start(struct frame_writer *fw, struct image_out *out, const uint8_t uuid[16],
		      const char *name, struct ckpt_error *err)
{
	struct image_file_header *h = &fw->header;

	*fw = (struct frame_writer){ .out = out };
	memcpy(h->magic, IMAGE_MAGIC, sizeof(h->magic));
	h->format = htole32(IMAGE_FORMAT);
	memcpy(h->uuid, uuid, sizeof(h->uuid));
	memcpy(h->name, name, strlen(name));
	h->hash = htole64(image_header_hash(h));
	return image_out_write(out, h, sizeof(*h), err);
}

static int flush(struct frame_writer *fw, struct ckpt_error *err)
{
	size_t n = fw->n;

	fw->n = 0;
	return image_out_write(fw->out, fw->buf, n, err);
}

/* Append a frame with room for its payload; *payload points there. */
static int reserve(struct frame_writer *fw, size_t len, uint8_t **payload, struct ckpt_error *err)
{
	size_t need = sizeof(struct image_frame_header) + len;

	if (fw->n && fw->n + need > BATCH) {
		int r = flush(fw, err);

		if (r < 0)
			return r;
	}
	if (fw->n + need > fw->cap) {
		size_t cap = need > BATCH ? need : BATCH;
		uint8_t *p = realloc(fw->buf, cap);

		if (!p)
			return ckpt_fail_sys(err, ENOMEM, "%s: a record of %zu bytes",
					     fw->out->name, len);
		fw->buf = p;
		fw->cap = cap;
	}
	*payload = fw->buf + fw->n + sizeof(struct image_frame_header);
	fw->n += need;
	return 0;
}

/* The payload is in place: number, length, hash. */
static void seal(struct frame_writer *fw, uint32_t number, uint8_t *payload, size_t len)
{
	struct image_frame_header h = { 0, htole32(number), htole32((uint32_t)len) };
	uint8_t *frame = payload - sizeof(h);

	memcpy(frame, &h, sizeof(h));
	h.hash = htole64(image_frame_hash(&fw->header, fw->seq++, frame, len));
	memcpy(frame, &h, sizeof(h));
}

int frame_write(struct frame_writer *fw, uint32_t number, const ProtobufCMessage *msg,
		struct ckpt_error *err)
{
	size_t len = protobuf_c_message_get_packed_size(msg);
	uint8_t *payload = NULL;
	int r;

	if (len > IMAGE_PAYLOAD_MAX)
		return ckpt_fail(err, E2BIG, "%s: a record of %zu bytes, the limit is %u",
				 fw->out->name, len, IMAGE_PAYLOAD_MAX);
	r = reserve(fw, len, &payload, err);
	if (r < 0)
		return r;
	protobuf_c_message_pack(msg, payload);
	seal(fw, number, payload, len);
	return 0;
}

int frame_write_end(struct frame_writer *fw, struct ckpt_error *err)
{
	const uint64_t count = htole64(fw->seq);
	uint8_t *payload = NULL;
	int r = reserve(fw, sizeof(count), &payload, err);

	if (r < 0)
		return r;
	memcpy(payload, &count, sizeof(count));
	seal(fw, IMAGE_FRAME_END, payload, sizeof(count));
	r = flush(fw, err);
	if (r < 0)
		return r;
	if (fw->out->size > IMAGE_FILE_MAX)
		return ckpt_fail(err, E2BIG, "%s has %llu bytes, the limit is %llu", fw->out->name,
				 (unsigned long long)fw->out->size,
				 (unsigned long long)IMAGE_FILE_MAX);
	return 0;
}

void frame_writer_free(struct frame_writer *fw)
{
	free(fw->buf);
	fw->buf = NULL;
}

int frame_read_start(struct frame_reader *fr, const char *file, const uint8_t *data, size_t len,
		     const char *name, const uint8_t *uuid, struct ckpt_error *err)
{
	struct image_file_header *h = &fr->header;

	*fr = (struct frame_reader){ .file = file, .data = data, .len = len };
	if (len < sizeof(*h))
		return image_bad(err, "%s is truncated: %zu bytes, the header alone has %zu", file,
				 len, sizeof(*h));
	memcpy(h, data, sizeof(*h));
	if (memcmp(h->magic, IMAGE_MAGIC, sizeof(h->magic)) != 0)
		return image_bad(err, "%s is not a file of ckpt", file);
	if (le32toh(h->format) != IMAGE_FORMAT) {
		image_bad(err, "%s has format %u, this ckpt reads format %u", file,
			  le32toh(h->format), IMAGE_FORMAT);
		return ckpt_hint(err, "use the ckpt that wrote the image");
	}
	if (le64toh(h->hash) != image_header_hash(h) || h->reserved || h->name[sizeof(h->name) - 1])
		return image_bad(err, "%s is damaged: its header has a wrong checksum", file);
	if (strcmp(h->name, name) != 0)
		return image_bad(err, "%s holds the records of \"%s\" instead of \"%s\"", file,
				 image_name_ok(h->name) ? h->name : "?", name);
	if (uuid && memcmp(h->uuid, uuid, sizeof(h->uuid)) != 0)
		return image_bad(err, "%s belongs to another image", file);
	fr->off = sizeof(*h);
	return 0;
}

static int read_end(const struct frame_reader *fr, const uint8_t *payload, size_t len,
		    struct ckpt_error *err)
{
	uint64_t count;

	if (len != sizeof(count))
		return image_bad(err, "%s is damaged: its end has %zu bytes", fr->file, len);
	memcpy(&count, payload, sizeof(count));
	if (le64toh(count) != fr->seq)
		return image_bad(err, "%s has %llu records, its end says %llu", fr->file,
				 (unsigned long long)fr->seq, (unsigned long long)le64toh(count));
	if (fr->off != fr->len)
		return image_bad(err, "%s has %zu bytes after its end", fr->file,
				 fr->len - fr->off);
	return 0;
}

int frame_read(struct frame_reader *fr, uint32_t *number, const uint8_t **payload, size_t *len,
	       struct ckpt_error *err)
{
	const unsigned long long nth = fr->seq;
	const uint8_t *frame = fr->data + fr->off;
	struct image_frame_header h;

	if (fr->len - fr->off < sizeof(h))
		return image_bad(
			err, "%s is truncated: %zu bytes where record %llu or the end should be",
			fr->file, fr->len - fr->off, nth);
	memcpy(&h, frame, sizeof(h));
	*len = le32toh(h.length);
	if (*len > IMAGE_PAYLOAD_MAX)
		return image_bad(err, "%s is damaged: record %llu has %zu bytes, the limit is %u",
				 fr->file, nth, *len, IMAGE_PAYLOAD_MAX);
	if (*len > fr->len - fr->off - sizeof(h))
		return image_bad(err, "%s is truncated: record %llu has %zu bytes, %zu are there",
				 fr->file, nth, *len, fr->len - fr->off - sizeof(h));
	if (le64toh(h.hash) != image_frame_hash(&fr->header, fr->seq, frame, *len))
		return image_bad(err, "%s is damaged: record %llu has a wrong checksum", fr->file,
				 nth);
	*number = le32toh(h.number);
	*payload = frame + sizeof(h);
	fr->off += sizeof(h) + *len;
	if (*number == IMAGE_FRAME_END)
		return read_end(fr, *payload, *len, err);
	if (fr->seq >= IMAGE_RECORDS_MAX)
		return image_bad(err, "%s has more than %llu records", fr->file,
				 (unsigned long long)IMAGE_RECORDS_MAX);
	fr->seq++;
	return 1;
}
