/* SPDX-License-Identifier: MIT */
/*
 * The image: records in memory (a store), on disk (a directory of framed,
 * checksummed files, committed by the manifest), and what walks them by their
 * descriptors (show, compare). Knows protobuf-c messages and files, nothing of
 * runs or kernel objects.
 */
#ifndef CKPT_IMAGE_IMAGE_H
#define CKPT_IMAGE_IMAGE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <ckpt/record.h>

struct image_record {
	const struct ckpt_record_type *type;
	ProtobufCMessage *msg; /* unpacked, owned */
};

/* All records of one plugin, in order. */
struct image_section {
	char *plugin;
	char *version; /* of the plugin that wrote it; NULL in a new store */
	const struct ckpt_record_type *types;
	const struct ckpt_field_rule *rules;
	struct image_record *records;
	size_t n, cap;
	struct image_index *index; /* per type: its records */
	size_t n_types;
	const char *recursive; /* a type that contains itself, which is refused; or NULL */
	size_t left; /* memory that records may yet take: a reader's limit is for all together */
};

struct image_store {
	struct image_section **sections; /* in order of image_section_add() */
	size_t n;
};

void image_store_init(struct image_store *st);
void image_store_free(struct image_store *st);
struct image_section *image_section_add(struct image_store *st, const char *plugin,
					const struct ckpt_record_type *types,
					const struct ckpt_field_rule *rules);
struct image_section *image_section_find(const struct image_store *st, const char *plugin);
/* Pack and unpack a copy and append it. */
int image_put(struct image_section *sec, uint32_t number, const ProtobufCMessage *msg,
	      struct ckpt_error *err);
/* Qualified type name "plugin.type": count, i-th. */
size_t image_count(const struct image_store *st, const char *type);
const ProtobufCMessage *image_at(const struct image_store *st, const char *type, size_t i);
/* All of them, for who looks at many. */
ProtobufCMessage *const *image_all(const struct image_store *st, const char *type, size_t *n);

/* What the tree was restored from, or saved as, before. */
struct image_ancestor {
	char uuid[40];
	int64_t created_ns, restored_ns; /* 0: it was left running */
	uint32_t copy;			 /* 0: it was restored */
};
/* A tree that has more forgets the oldest. */
#define IMAGE_ANCESTORS_MAX 64

/* Facts about the whole image, kept in the manifest. */
struct image_info {
	char uuid[40];
	char *ckpt_version, *kernel_release, *kernel_version, *machine, *hostname;
	int64_t created_ns; /* CLOCK_REALTIME */
	int root_pid;
	char **losses; /* "plugin.feature: object" */
	size_t n_losses;
	struct image_ancestor *ancestors; /* the nearest first */
	size_t n_ancestors;
};
void image_info_free(struct image_info *info);
/* Is it one as image_info has them? */
bool image_uuid_ok(const char *text);

/* ---- writing ----------------------------------------------------------------- */

struct image_writer;
/*
 * Start an image in `dir` (made with 0700 if missing). Refuses a directory that
 * holds a manifest unless `force`; with force the old image stays valid until the
 * new one commits. Files are 0600. Nothing counts until image_commit().
 */
int image_create(const char *dir, bool force, struct image_writer **out, struct ckpt_error *err);
int image_writer_pages(struct image_writer *w, const char *name, struct ckpt_pages **out,
		       struct ckpt_error *err);
/* A descriptor of the directory, borrowed. */
int image_writer_directory(const struct image_writer *w);
/* Pages that go nowhere, for a run without a writer; not to be freed. */
struct ckpt_pages *image_pages_discard(void);
/*
 * Write all sections (with their version if that is set), sync all files, write
 * and rename the manifest, sync the directory. Fills in info's uuid, and of its
 * other fields those that are NULL or 0, as they are here and now.
 */
int image_commit(struct image_writer *w, const struct image_store *st, struct image_info *info,
		 uint64_t *bytes, struct ckpt_error *err);
/* Read a page file again before the commit (the planning pass does); the caller closes it. */
int image_writer_reopen(const struct image_writer *w, const char *name, int *fd, uint64_t *size,
			struct ckpt_error *err);
/* Free; without a commit everything that was written is removed. NULL is fine. */
void image_writer_free(struct image_writer *w);

/* ---- reading ----------------------------------------------------------------- */

struct image_reader;
/*
 * Open and check the manifest: every file it names must be there with that size
 * and checksum. All failures are CKPT_EXIT_IMAGE with one clear sentence.
 */
int image_open(const char *dir, struct image_reader **out, struct ckpt_error *err);
void image_reader_free(struct image_reader *r);
const struct image_info *image_reader_info(const struct image_reader *r);
/* Names and versions of the plugins that wrote sections; NULL ends. */
const char *image_reader_plugin(const struct image_reader *r, size_t i, const char **version);
/*
 * Decode the plugin's file into its section (as added to the store, without
 * records); sets its version. -ENOENT if the image has no such file.
 */
int image_load(struct image_reader *r, struct image_section *sec, struct ckpt_error *err);
int image_reader_pages(struct image_reader *r, const char *name, int *fd, uint64_t *size,
		       struct ckpt_error *err);

/* ---- walking ------------------------------------------------------------------ */

/*
 * "plugin.type ID" and indented "field: value" lines; zero and absent fields are
 * left out. Fields declared fixed32 and fixed64 are shown in hexadecimal.
 */
void image_print_text(const struct image_section *sec, FILE *out);
/* A JSON array of {"type", "record"} objects; no trailing newline. */
void image_print_json(const struct image_section *sec, FILE *out);
/* Write a JSON string literal. Used wherever JSON is written. */
void json_string(FILE *out, const char *s);

/*
 * Compare two sections of one plugin, record by record, by the descriptors and
 * rules. fn is called for each difference; before or after is NULL where a
 * record or element is missing, and field is "" if it is a whole record. Records
 * are paired by type and id, those without an id by their order. `diff_mode`:
 * also fields marked CKPT_EQ_DIFF. Returns the number of differences, SIZE_MAX
 * when out of memory.
 */
typedef void (*image_diff_fn)(void *arg, const char *where, const char *field, const char *before,
			      const char *after);
size_t image_compare(const struct image_section *a, const struct image_section *b, bool diff_mode,
		     image_diff_fn fn, void *arg);

#endif
