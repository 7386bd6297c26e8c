/* SPDX-License-Identifier: MIT */
/* What the files of core/image share among themselves. */
#ifndef CKPT_IMAGE_INTERNAL_H
#define CKPT_IMAGE_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/uio.h>

#include <ckpt/cleanup.h>

#include "image/format.h"
#include "image/image.h"
#include "manifest.pb-c.h"

/* A bad image: one sentence that names the file. */
#define image_bad(err, ...) ckpt_fail_as((err), CKPT_EXIT_IMAGE, EBADMSG, __VA_ARGS__)

static inline void image_cleanup_manifest(Image__Manifest **m)
{
	if (*m)
		image__manifest__free_unpacked(*m, NULL);
}
#define IMAGE_MANIFEST_FILE "manifest.img"
#define IMAGE_AUTO_MANIFEST __attribute__((cleanup(image_cleanup_manifest)))

/* ---- codec ------------------------------------------------------------------ */

/*
 * Decode hostile bytes: they must be exactly what packing the result gives, with
 * known fields and enum values only. `budget` is the memory that may still be
 * used; reduced. Returns NULL or what is wrong ("is not a ... message").
 */
const char *image_decode(const ProtobufCMessageDescriptor *desc, const uint8_t *data, size_t len,
			 size_t *budget, ProtobufCMessage **out);
/* Does the type contain itself? Decoding would then recurse as deep as the bytes say. */
bool image_type_recursive(const ProtobufCMessageDescriptor *desc);

/* ---- store ------------------------------------------------------------------- */

const struct ckpt_record_type *image_type_by_number(const struct image_section *sec,
						    uint32_t number);
/* Append a decoded message, which is then owned by the section (on failure not). */
int image_section_append(struct image_section *sec, const struct ckpt_record_type *type,
			 ProtobufCMessage *msg, struct ckpt_error *err);
/* Can records of this section be put and loaded? */
int image_section_check(const struct image_section *sec, struct ckpt_error *err);
/* Name of a record: its integer field `id`, or its index among those of its type. */
uint64_t image_record_id(const struct image_record *rec, uint64_t index);
/* The index of each record among those of its type; the caller frees. NULL: no memory. */
uint64_t *image_record_indices(const struct image_section *sec);

/* ---- files -------------------------------------------------------------------- */

#define IMAGE_PATH_MAX 128 /* of a file's name in the directory */

/* Is it a plugin's or page file's short name that can be part of a file name? */
bool image_name_ok(const char *name);
/* Is it a name of a data file as image_file_name() makes them? */
bool image_file_name_ok(const char *name);
/* `tag` may be empty. */
void image_file_name(char out[IMAGE_PATH_MAX], Image__File__Kind kind, const char *owner,
		     const char *tag);

/* A file being written: hashed as it goes. */
struct image_out {
	int fd;
	int failed; /* negative errno of a write: nothing more is written, no commit */
	char name[IMAGE_PATH_MAX];
	uint64_t size;
	XXH3_state_t *hash;
	/* of a page file, whose parts are written in any order */
	bool paged;
	uint64_t sum, written;
};

int image_out_open(struct image_out *o, int dir, const char *name, struct ckpt_error *err);
int image_out_write(struct image_out *o, const void *data, size_t len, struct ckpt_error *err);
/*
 * Whole pages of a page file, at a place below its size. Different places may be written at the
 * same time.
 */
int image_out_write_pages(struct image_out *o, uint64_t at, const void *data, size_t len,
			  struct ckpt_error *err);
/*
 * Nothing more is written: o->size and *hash are final, the file is on its way to the disk.
 * The caller syncs and closes *fd: files that are synced after all were sent there share
 * one commit of the filesystem's journal.
 */
int image_out_end(struct image_out *o, uint64_t *hash, int *fd, struct ckpt_error *err);
void image_out_close(struct image_out *o);

/* Open a regular file of the image for reading; fills size if not NULL. */
int image_file_open(int dir, const char *name, uint64_t *size, int *fd, struct ckpt_error *err);
/* Read exactly `len` bytes. */
int image_file_read(int fd, const char *name, void *buf, size_t len, struct ckpt_error *err);
/* Read a whole record file; the caller frees. */
int image_file_slurp(int dir, const char *name, uint64_t max, uint8_t **buf, size_t *len,
		     struct ckpt_error *err);

/* ---- frames ------------------------------------------------------------------ */

struct frame_writer {
	struct image_file_header header;
	struct image_out *out;
	uint8_t *buf;
	size_t n, cap;
	uint64_t seq;
};

int frame_write_start(struct frame_writer *fw, struct image_out *out, const uint8_t uuid[16],
		      const char *name, struct ckpt_error *err);
int frame_write(struct frame_writer *fw, uint32_t number, const ProtobufCMessage *msg,
		struct ckpt_error *err);
/* The end frame, and everything is handed to the file. */
int frame_write_end(struct frame_writer *fw, struct ckpt_error *err);
void frame_writer_free(struct frame_writer *fw);

struct frame_reader {
	struct image_file_header header;
	const char *file; /* for messages */
	const uint8_t *data;
	size_t len, off;
	uint64_t seq;
};

/* `data` stays the caller's. The file must carry `name`, and `uuid` unless that is NULL. */
int frame_read_start(struct frame_reader *fr, const char *file, const uint8_t *data, size_t len,
		     const char *name, const uint8_t *uuid, struct ckpt_error *err);
/* 1: a frame; 0: the end was reached and is sound; negative: error. */
int frame_read(struct frame_reader *fr, uint32_t *number, const uint8_t **payload, size_t *len,
	       struct ckpt_error *err);

/* ---- manifest ----------------------------------------------------------------- */

/* Valid UTF-8 without control characters: the manifest's texts go to terminals as they are. */
bool image_text_ok(const char *s);
void image_uuid_text(const uint8_t uuid[16], char text[40]);
/* Read and check the manifest itself; -ENOENT if there is none. */
/* `name`: IMAGE_MANIFEST_FILE, or what it is called until it is published. */
int image_manifest_read(int dir, const char *name, Image__Manifest **out, uint8_t uuid[16],
			struct ckpt_error *err);

/* ---- journal -------------------------------------------------------------------- */

/*
 * While a directory is being written it holds a journal with the names of the
 * new files, each put there before the file is made, and of those of the image
 * to be replaced. Whichever of them the manifest does not list is rubbish: the
 * new ones until the manifest is renamed, the old ones from then on. So the
 * same sweep serves a failed dump, a finished one, and one that was killed.
 */
int image_journal_create(int dir, int *fd, struct ckpt_error *err);
int image_journal_add(int fd, const char *name, struct ckpt_error *err);
/* Remove what a journal lists and no manifest does, then the journal; none is fine. */
int image_journal_sweep(int dir, struct ckpt_error *err);

/* ---- values ---------------------------------------------------------------------- */

/* How many values a field has: 0 if absent, at most 1 unless repeated. */
size_t field_count(const ProtobufCMessage *msg, const ProtobufCFieldDescriptor *f);
/* Points at the i-th value: uint32_t, char *, ProtobufCBinaryData, ProtobufCMessage * ... */
const void *field_at(const ProtobufCMessage *msg, const ProtobufCFieldDescriptor *f, size_t i);
/* Not said in so many words: absent, empty or a proto3 zero. */
bool field_is_default(const ProtobufCMessage *msg, const ProtobufCFieldDescriptor *f);
bool value_equal(const ProtobufCFieldDescriptor *f, const void *a, const void *b);
size_t value_size(ProtobufCType type);
/* A number, bool or enum; false for other types. */
bool value_print_scalar(FILE *out, const ProtobufCFieldDescriptor *f, const void *v, bool json);
/* A value of any type on one line, as text. */
void value_print_line(FILE *out, const ProtobufCFieldDescriptor *f, const void *v);
/* {a: 1, b: "x"} */
void message_print_line(FILE *out, const ProtobufCMessage *msg);
/* Length of the UTF-8 sequence at s, 0 if it is none. */
size_t utf8_len(const char *s);
/* Is the sequence of n bytes at s a control character (C0, DEL, C1)? */
bool utf8_is_control(const char *s, size_t n);

#endif
