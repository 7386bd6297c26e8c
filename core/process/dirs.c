/* SPDX-License-Identifier: MIT */
/*
 * Directories that were removed while a file of theirs was in use: made again for the
 * moment in which the file is, so that its path is what it was.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ckpt/mnt.h>

#include "engine/engine.h"
#include "engine/run.h"
#include "process/copy.h"

/* The length of the path without its last name; "/" stays. */
static size_t above(const char *path, size_t len)
{
	while (len > 1 && path[len - 1] != '/')
		len--;
	while (len > 1 && path[len - 1] == '/')
		len--;
	return len;
}

/* What of `path` is there; the directory's length, or a negative errno. */
static ssize_t nearest(struct ckpt_run *run, uint32_t mnt, const char *path, struct stat *st)
{
	char dir[PATH_MAX];
	size_t len = strlen(path);
	int r;

	if (path[0] != '/' || len >= sizeof(dir))
		return -ENAMETOOLONG;
	for (;;) {
		snprintf(dir, sizeof(dir), "%.*s", (int)len, path);
		r = ckpt_stat_in(run, mnt, dir, false, st);
		if (r != -ENOENT || len == 1)
			break;
		len = above(path, len);
	}
	if (r < 0)
		return r;
	return S_ISDIR(st->st_mode) ? (ssize_t)len : -ENOTDIR;
}

int ckpt_dirs_look(struct ckpt_run *run, uint32_t mnt, const char *path, struct stat *st)
{
	ssize_t len = nearest(run, mnt, path, st);

	return len < 0 ? (int)len : 0;
}

/* Names only: nothing that would lead out of what we make. */
static bool is_plain(const char *path)
{
	for (const char *p = path; *p; p += strcspn(p, "/"), p += *p == '/') {
		const size_t n = strcspn(p, "/");

		if (!n || (n == 1 && p[0] == '.') || (n == 2 && p[0] == '.' && p[1] == '.'))
			return false;
	}
	return true;
}

/* What was made below d->base so far, or that: no link that is there by now is followed. */
static int open_made(const struct ckpt_dirs *d, size_t len)
{
	struct open_how how = { .flags = O_PATH | O_DIRECTORY | O_CLOEXEC,
				.resolve = RESOLVE_NO_SYMLINKS | RESOLVE_BENEATH };
	char dir[PATH_MAX];

	snprintf(dir, sizeof(dir), "%.*s", len ? (int)len : 1, len ? d->made : ".");
	return (int)syscall(SYS_openat2, d->base, dir, &how, sizeof(how));
}

/* mkdir(2) of each part, the first one first; d->made grows with them. */
static int make_missing(struct ckpt_dirs *d, const char *rest, struct ckpt_error *err)
{
	char part[NAME_MAX + 1];

	d->fd = open_made(d, 0);
	for (const char *p = rest; *p && d->fd >= 0;) {
		const size_t len = strcspn(p, "/");

		if (len >= sizeof(part))
			return ckpt_fail(err, ENAMETOOLONG, "mkdir(2) of %s", rest);
		snprintf(part, sizeof(part), "%.*s", (int)len, p);
		if (mkdirat(d->fd, part, 0700))
			return ckpt_fail_sys(err, errno, "mkdir(2) of %s", part);
		p += len;
		snprintf(d->made, sizeof(d->made), "%.*s", (int)(p - rest), rest);
		p += strspn(p, "/");
		close(d->fd);
		d->fd = open_made(d, strlen(d->made));
	}
	return d->fd < 0 ? ckpt_fail_sys(err, errno, "opening %s", rest) : 0;
}

int ckpt_dirs_open(struct ckpt_run *run, uint32_t mnt, const char *path, struct ckpt_dirs *d,
		   struct ckpt_error *err)
{
	struct stat st;
	char dir[PATH_MAX];
	const char *rest;
	ssize_t len;

	*d = (struct ckpt_dirs)CKPT_NO_DIRS;
	/* copies make the same ones, and what one has made another may not count on */
	if (run->ctx->copy) {
		if (lockf(run->ctx->copy->lock, F_LOCK, 0))
			return ckpt_fail_sys(err, errno, "lockf(3) of a copy");
		d->lock = run->ctx->copy->lock;
	}
	len = nearest(run, mnt, path, &st);
	if (len < 0)
		return ckpt_fail_sys(err, (int)len, "%s", path);
	rest = path + len + strspn(path + len, "/");
	if (!is_plain(rest))
		return ckpt_fail_image(err, "%s is no plain path", path);
	snprintf(dir, sizeof(dir), "%.*s", (int)len, path);
	d->base = ckpt_open_in(run, mnt, dir, O_PATH | O_DIRECTORY, 0, err);
	if (d->base < 0)
		return d->base;
	return make_missing(d, rest, err);
}

void ckpt_dirs_remove(struct ckpt_dirs *d)
{
	while (d->made[0]) {
		char *slash = strrchr(d->made, '/');
		CKPT_AUTO_FD int dir = open_made(d, slash ? (size_t)(slash - d->made) : 0);

		if (dir >= 0)
			ckpt_remove(dir, slash ? slash + 1 : d->made, AT_REMOVEDIR);
		*(slash ? slash : d->made) = 0;
	}
	if (d->fd >= 0)
		close(d->fd);
	if (d->base >= 0)
		close(d->base);
	if (d->lock >= 0)
		(void)!lockf(d->lock, F_ULOCK, 0);
	*d = (struct ckpt_dirs)CKPT_NO_DIRS;
}
