/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ckpt/cleanup.h>

#include "engine/layers.h"
#include "engine/run.h"
#include "image/image.h"

/* ---- copies ------------------------------------------------------------------------------ */

struct asking {
	const struct ckpt_layers_kind *kind;
	size_t i;
	int upper;
	const char *path;
};

static int call_plan(struct ckpt_run *run, void *arg, struct ckpt_error *err)
{
	const struct asking *q = arg;

	return q->kind->plan(run, err);
}

static int call_path(struct ckpt_run *run, void *arg, struct ckpt_error *err)
{
	struct asking *q = arg;

	(void)err;
	q->path = q->kind->path(run, q->i);
	return 0;
}

static int call_fill(struct ckpt_run *run, void *arg, struct ckpt_error *err)
{
	const struct asking *q = arg;

	return q->kind->fill(run, q->i, q->upper, err);
}

static int ask(struct ancestor *a, int (*call)(struct ckpt_run *, void *, struct ckpt_error *),
	       struct asking *q, struct ckpt_error *err)
{
	const struct ckpt_extension *e;
	const char *plugin;

	e = ckpt_extension_at(&a->run, CKPT_LAYERS_POINT, 0, &plugin);
	if (!e)
		return 0;
	q->kind = e->ops;
	return ckpt_call_as(&a->run, plugin, call, q, err);
}

int layers_plan(struct ancestor *a, struct ckpt_error *err)
{
	struct asking q = { 0 };

	return ask(a, call_plan, &q, err);
}

const char *layers_path(struct ancestor *a, size_t i)
{
	struct asking q = { .i = i };

	return ask(a, call_path, &q, NULL) < 0 ? NULL : q.path;
}

int layers_fill(struct ancestor *a, size_t i, int upper, struct ckpt_error *err)
{
	struct asking q = { .i = i, .upper = upper };

	return ask(a, call_fill, &q, err);
}

/* ---- a dump in a copy --------------------------------------------------------------------- */

static bool is_image_on(const struct ckpt_run *run, const struct ckpt_mount *m)
{
	int dir = run->writer ? image_writer_directory(run->writer) : -1;
	struct statx sx;

	return dir >= 0 && !statx(dir, "", AT_EMPTY_PATH, STATX_MNT_ID, &sx) &&
	       sx.stx_mnt_id == m->id;
}

static int read_number(int top, uint8_t *number, struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = openat(top, COPY_LAYER_NUMBER, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, number, CKPT_LAYER_NUMBER_SIZE);

	return n == CKPT_LAYER_NUMBER_SIZE
		       ? 0
		       : ckpt_fail_sys(err, n < 0 ? errno : EIO, "its file " COPY_LAYER_NUMBER);
}

int ckpt_layer_upper(const struct ckpt_run *run, const struct ckpt_mount *m,
		     uint8_t number[CKPT_LAYER_NUMBER_SIZE], struct ckpt_error *err)
{
	const unsigned place = strcmp(m->type, "overlay") ? 0 : copy_layer_number(m->source);
	CKPT_AUTO_FD int top = -1;
	char path[64];
	int fd;

	if (!place)
		return -ENOENT;
	if (is_image_on(run, m))
		return ckpt_fail(err, EXDEV, "the image is in the layer that it is to hold");
	/* the tmpfs of a layer is hidden by the overlay: by its first process alone it is reached
	 */
	snprintf(path, sizeof(path), "/proc/1/fd/%d", COPY_TOP_FD(place));
	top = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (top < 0)
		return ckpt_fail_sys(err, errno == ENOENT ? EIO : errno, "%s", path);
	if (read_number(top, number, err) < 0)
		return -err->err;
	fd = openat(top, "upper", O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? ckpt_fail_sys(err, errno == ENOENT ? EIO : errno, "its upper directory")
		      : fd;
}
