/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
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

/* Is the process that we see as the first one that of a copy? */
static bool is_in_copy(void)
{
	CKPT_AUTO_FD int fd = open("/proc/1/cmdline", O_RDONLY | O_CLOEXEC);
	char text[sizeof(COPY_FIRST_NAME) + 1] = "";

	return fd >= 0 && read(fd, text, sizeof(text) - 1) > 0 && !strcmp(text, COPY_FIRST_NAME);
}

/* 0: another layer's directory. */
static int read_number(int top, const struct copy_layer *l, char path[PATH_MAX],
		       struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = openat(top, COPY_LAYER_NUMBER, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	uint8_t number[sizeof(l->number)];
	ssize_t n = fd < 0 ? -1 : read(fd, number, sizeof(number)), len = -1;

	if (n == (ssize_t)sizeof(number))
		len = read(fd, path, PATH_MAX - 1);
	if (len < 0)
		return fd >= 0 || errno != ENOENT ? ckpt_fail_sys(err, errno ? errno : EIO,
								  "its file " COPY_LAYER_NUMBER)
						  : 0;
	path[len] = '\0';
	return !memcmp(number, l->number, sizeof(number));
}

int ckpt_layer_upper(const struct ckpt_run *run, const struct ckpt_mount *m,
		     uint8_t number[CKPT_LAYER_NUMBER_SIZE], struct ckpt_error *err)
{
	char name[64], path[PATH_MAX];
	CKPT_AUTO_FD int top = -1;
	struct copy_layer l;
	int fd, r;

	if (strcmp(m->type, "overlay") != 0 || !copy_layer_parse(m->source, &l) || !is_in_copy())
		return -ENOENT;
	/* the tmpfs of a layer is hidden by the overlay: by the first process alone it is reached
	 */
	snprintf(name, sizeof(name), "/proc/1/fd/%d", COPY_TOP_FD(l.place));
	top = open(name, O_PATH | O_DIRECTORY | O_CLOEXEC);
	r = top < 0 && errno != ENOENT ? ckpt_fail_sys(err, errno, "%s", name) : top >= 0;
	if (r > 0)
		r = read_number(top, &l, path, err);
	/* of a copy around this one: to us it is the machine's */
	if (r <= 0)
		return r < 0 ? r : -ENOENT;
	if (strcmp(m->root, "/") != 0 || strcmp(m->point, path) != 0)
		return ckpt_fail(err, ENOTUNIQ, "it is the layer of %s, mounted here", path);
	if (is_image_on(run, m))
		return ckpt_fail(err, EXDEV, "the image is in the layer that it is to hold");
	memcpy(number, l.number, sizeof(l.number));
	fd = openat(top, "upper", O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? ckpt_fail_sys(err, errno == ENOENT ? EIO : errno, "its upper directory")
		      : fd;
}
