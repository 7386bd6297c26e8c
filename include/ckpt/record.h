/* SPDX-License-Identifier: MIT */
/*
 * Image records. What a plugin saves is a sequence of protobuf-c messages, one
 * file a plugin. The engine frames, checksums and decodes them; `ckpt show`,
 * `diff` and `verify` walk them by their descriptors, so a plugin writes no
 * printing and no comparing code. Bulk data (page contents) goes to page files.
 */
#ifndef CKPT_RECORD_H
#define CKPT_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <protobuf-c/protobuf-c.h>

#include <ckpt/error.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ckpt_run;

/* How verify and diff treat a field. Since 0.1. */
enum ckpt_equality {
	CKPT_EQ_VOLATILE, /* may differ: time passed, a kernel number without meaning */
	CKPT_EQ_DIFF,	  /* differs between images and live tree, but compare in diff */
};

/*
 * Exception to "every field must be equal". `field` is a field's name within
 * `message` (the message's short name as in the .proto, nested ones included).
 * Tables end with message == NULL.
 */
struct ckpt_field_rule {
	const char *message;
	const char *field;
	enum ckpt_equality equality;
};

/*
 * One record type of a plugin. `number` is unique within the plugin and never
 * reused; `name` is what `show` prints and what ckpt_record_at() takes from
 * another plugin, qualified ("pid.task"). The message's first field named `id`,
 * if there is one, names the record in messages. Tables end with name == NULL.
 * Since 0.1.
 */
struct ckpt_record_type {
	uint32_t number;
	const char *name;
	const ProtobufCMessageDescriptor *descriptor;
};

/*
 * Append a record of the calling plugin to the run's image. The message is
 * copied (packed and unpacked), so it may live on the stack and point at
 * borrowed memory. Dump and verify runs only. Records keep their order, which
 * must be deterministic: the same tree gives the same image.
 */
CKPT_API int ckpt_record_put(struct ckpt_run *run, uint32_t number, const ProtobufCMessage *msg,
			     struct ckpt_error *err);

/* Number of records of a qualified type ("pid.task"); 0 if the plugin is absent. */
CKPT_API size_t ckpt_record_count(struct ckpt_run *run, const char *type);

/*
 * The i-th record of that type, or NULL. Owned by the run, valid until its end.
 * An image is untrusted input: the codec proves that the bytes are a message of
 * that type, the plugin's plan step checks every length, index and reference.
 */
CKPT_API const void *ckpt_record_at(struct ckpt_run *run, const char *type, size_t i);

/*
 * Records with a uint32 field named `id`, in ascending order of it: most are.
 * ckpt_record_order() checks that in a planning step (CKPT_EXIT_IMAGE else); then
 * the others find a record by its id: its index or -ENOENT; the record or NULL;
 * the record or, with an error that names both, NULL. Since 0.1.
 */
CKPT_API int ckpt_record_order(struct ckpt_run *run, const char *type, struct ckpt_error *err);
CKPT_API ssize_t ckpt_record_index(struct ckpt_run *run, const char *type, uint32_t id);
CKPT_API const void *ckpt_record_by_id(struct ckpt_run *run, const char *type, uint32_t id);
CKPT_API const void *ckpt_record_need(struct ckpt_run *run, const char *type, uint32_t id,
				      struct ckpt_error *err);

/* As ckpt_fail_as(), for what is wrong with an image: CKPT_EXIT_IMAGE, EBADMSG. */
CKPT_API int ckpt_fail_image(struct ckpt_error *err, const char *fmt, ...) CKPT_PRINTF(2, 3);

/*
 * Page files: raw, page-aligned data beside the records, named
 * "pages-NAME.raw". Appending returns the offset (a multiple of 4096; the tail
 * of the last page is zero-filled). The whole file is checksummed by the
 * manifest. Dump runs only; in a verify run they return offset 0 and keep
 * nothing (compare what you like with ckpt_pages_open()).
 */
struct ckpt_pages;
CKPT_API int ckpt_pages_create(struct ckpt_run *run, const char *name, struct ckpt_pages **out,
			       struct ckpt_error *err);
CKPT_API int ckpt_pages_append(struct ckpt_pages *pages, const void *data, size_t len,
			       uint64_t *offset, struct ckpt_error *err);
/*
 * The same in two steps, for several processors: a place for `len` bytes, whose
 * order is the order of the calls, and what belongs there, which may be
 * written by several threads at once. All of it must be written. Since 0.1.
 */
CKPT_API int ckpt_pages_reserve(struct ckpt_pages *pages, size_t len, uint64_t *offset,
				struct ckpt_error *err);
CKPT_API int ckpt_pages_write(struct ckpt_pages *pages, uint64_t offset, const void *data,
			      size_t len, struct ckpt_error *err);

/*
 * A read-only descriptor of a page file of the loaded image and its size. The
 * caller closes it. -ENOENT if the image has no such file.
 */
CKPT_API int ckpt_pages_open(struct ckpt_run *run, const char *name, int *fd, uint64_t *size,
			     struct ckpt_error *err);

#ifdef __cplusplus
}
#endif
#endif
