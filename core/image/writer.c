/* SPDX-License-Identifier: MIT */
/* Starting and giving up an image. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <unistd.h>

#include "image/writer.h"

static int make_uuid(struct image_writer *w, struct ckpt_error *err)
{
	if (getrandom(w->uuid, sizeof(w->uuid), 0) != (ssize_t)sizeof(w->uuid))
		return ckpt_fail_sys(err, errno, "getrandom");
	w->uuid[6] = (w->uuid[6] & 0x0f) | 0x40;
	w->uuid[8] = (w->uuid[8] & 0x3f) | 0x80;
	image_uuid_text(w->uuid, w->uuid_text);
	memcpy(w->tag, w->uuid_text, sizeof(w->tag) - 1);
	return 0;
}

int image_writer_lock_old(const struct image_writer *w, struct ckpt_error *err)
{
	if (w->old < 0 || flock(w->old, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
		return 0;
	ckpt_fail(err, EBUSY, "another ckpt is reading the image in %s", w->path);
	return ckpt_hint(err, "try again when it has ended, or choose another directory");
}

/* What is in the directory: nothing of ours, or an image that may be replaced. */
static int look_for_image(struct image_writer *w, bool force, Image__Manifest **old,
			  struct ckpt_error *err)
{
	struct ckpt_error why = { 0 };
	uint8_t uuid[16];
	int r;

	if (!force && faccessat(w->dir, IMAGE_MANIFEST_FILE, F_OK, AT_SYMLINK_NOFOLLOW) == 0) {
		ckpt_fail(err, EEXIST, "%s already holds an image", w->path);
		return ckpt_hint(err, "--force replaces it once the new one is complete");
	}
	r = image_manifest_read(w->dir, IMAGE_MANIFEST_FILE, old, uuid, &why);
	if (r == -ENOENT)
		return 0;
	if (r < 0) {
		ckpt_fail(err, r,
			  "%s holds an image that cannot be replaced, since which files "
			  "belong to it is unknown: %s",
			  w->path, why.text);
		return ckpt_hint(err, "remove the directory, or choose another");
	}
	w->replaces = true;
	w->old = openat(w->dir, IMAGE_MANIFEST_FILE, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	/* better known now than when all is written; until then it may be read */
	r = image_writer_lock_old(w, err);
	if (r == 0 && w->old >= 0)
		flock(w->old, LOCK_UN);
	return r;
}

static int start_journal(struct image_writer *w, const Image__Manifest *old, struct ckpt_error *err)
{
	int r = image_journal_create(w->dir, &w->journal, err);

	if (r < 0)
		return r;
	w->journaled = true;
	for (size_t i = 0; r == 0 && old && i < old->n_files; i++)
		r = image_journal_add(w->journal, old->files[i]->name, err);
	return r;
}

static int start(struct image_writer *w, bool force, struct ckpt_error *err)
{
	IMAGE_AUTO_MANIFEST Image__Manifest *old = NULL;
	int r = make_uuid(w, err);

	if (r == 0)
		r = image_directory_open(w->path, &w->made, &w->dir, err);
	if (r == 0)
		r = look_for_image(w, force, &old, err);
	if (r == 0)
		r = image_journal_sweep(w->dir, err);
	if (r == 0)
		r = start_journal(w, old, err);
	return r;
}

int image_create(const char *dir, bool force, struct image_writer **out, struct ckpt_error *err)
{
	struct image_writer *w = calloc(1, sizeof(*w));
	int r;

	if (!w)
		return ckpt_fail_sys(err, ENOMEM, "start an image");
	w->dir = w->journal = w->old = -1;
	w->path = strdup(dir);
	r = w->path ? start(w, force, err) : ckpt_fail_sys(err, ENOMEM, "start an image");
	if (r < 0) {
		image_writer_free(w);
		return r;
	}
	*out = w;
	return 0;
}

int image_writer_file(struct image_writer *w, Image__File__Kind kind, const char *owner,
		      struct image_out *out, struct ckpt_error *err)
{
	char name[IMAGE_PATH_MAX];
	int r;

	image_file_name(name, kind, owner, w->replaces ? w->tag : "");
	/*
	 * A file of the same name that is not ours must not get into the journal,
	 * which says what may be removed.
	 */
	if (faccessat(w->dir, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0) {
		ckpt_fail(err, EEXIST, "%s/%s is there already, and belongs to no image", w->path,
			  name);
		return ckpt_hint(err, "remove it, or choose another directory");
	}
	r = image_journal_add(w->journal, name, err);
	if (r < 0)
		return r;
	return image_out_open(out, w->dir, name, err);
}

int image_writer_directory(const struct image_writer *w)
{
	return w->dir;
}

void image_writer_free(struct image_writer *w)
{
	if (!w)
		return;
	for (size_t i = 0; i < w->n_pages; i++) {
		image_out_close(w->pages[i]->out);
		free(w->pages[i]->out);
		free(w->pages[i]);
	}
	free(w->pages);
	ckpt_cleanup_fd(&w->journal);
	/* what cannot be removed now stays in the journal, for the next dump to this directory */
	if (w->journaled)
		(void)image_journal_sweep(w->dir, NULL);
	if (w->made && !w->committed)
		(void)rmdir(w->path);
	ckpt_cleanup_fd(&w->old);
	ckpt_cleanup_fd(&w->dir);
	free(w->path);
	free(w);
}
