/* SPDX-License-Identifier: MIT */
/* An image being written. */
#ifndef CKPT_IMAGE_WRITER_H
#define CKPT_IMAGE_WRITER_H

#include "image/internal.h"

struct ckpt_pages {
	struct image_out *out; /* NULL: what is appended is dropped */
	char owner[IMAGE_NAME_MAX + 1];
};

struct image_writer {
	char *path;
	int dir, journal;
	bool made;     /* the directory is ours to remove */
	bool replaces; /* there is an image: new files get names of their own */
	int old;       /* its manifest, or -1 */
	bool journaled;
	bool committed;
	uint8_t uuid[16];
	char uuid_text[40];
	char tag[9]; /* the uuid's first eight digits */
	struct ckpt_pages **pages;
	size_t n_pages;
};

/* Nobody may be reading the image that is replaced; the lock stays until the writer is freed. */
int image_writer_lock_old(const struct image_writer *w, struct ckpt_error *err);

/* Open or make the directory, check that nobody else can write to it, lock it. */
int image_directory_open(const char *path, bool *made, int *fd, struct ckpt_error *err);
/* Sync it, and where it was made, its parent. */
int image_directory_sync(int dir, const char *path, struct ckpt_error *err);
/* Its own entry; `made`: by us, so that we may. */
int image_directory_sync_entry(int dir, bool made, const char *path, struct ckpt_error *err);

/* Start a data file: into the journal, then onto the disk. */
int image_writer_file(struct image_writer *w, Image__File__Kind kind, const char *owner,
		      struct image_out *out, struct ckpt_error *err);

#endif
