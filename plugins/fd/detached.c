/* SPDX-License-Identifier: MIT */
/*
 * Files that are open through a mount which is in no namespace any more: taken off lazily,
 * left behind by pivot_root(2). One that open_tree(2) made cannot be told from these, and
 * cannot be attached any more afterwards: if it could, so could what a sandbox has taken
 * off, without the flags that keep it read-only. If ckpt sees the filesystem
 * elsewhere, the same part of it is mounted again, for those descriptors alone: by a mount of
 * ckpt's own, a directory would have a way up.
 */
#include "internal.h"

#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>

#ifndef ST_NOSYMFOLLOW
#define ST_NOSYMFOLLOW 0x2000
#endif
#ifndef MOUNT_ATTR_NOSYMFOLLOW
#define MOUNT_ATTR_NOSYMFOLLOW 0x00200000
#endif

#define ATTR_KNOWN                                                                      \
	(MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC | \
	 MOUNT_ATTR_NOATIME | MOUNT_ATTR_STRICTATIME | MOUNT_ATTR_NODIRATIME |          \
	 MOUNT_ATTR_NOSYMFOLLOW)

static const struct {
	unsigned long st;
	uint32_t attr;
} flags[] = {
	{ ST_RDONLY, MOUNT_ATTR_RDONLY },
	{ ST_NOSUID, MOUNT_ATTR_NOSUID },
	{ ST_NODEV, MOUNT_ATTR_NODEV },
	{ ST_NOEXEC, MOUNT_ATTR_NOEXEC },
	{ ST_NOATIME, MOUNT_ATTR_NOATIME },
	{ ST_NODIRATIME, MOUNT_ATTR_NODIRATIME },
	{ ST_NOSYMFOLLOW, MOUNT_ATTR_NOSYMFOLLOW },
};

/* ---- dump ------------------------------------------------------------------------------ */

bool fd_is_detached(struct ckpt_run *run, const struct ckpt_fd_found *f)
{
	struct ckpt_error ignored = { 0 };

	return f->st.st_nlink && ckpt_mnt_of_fd(run, f->fd, &ignored) == -ENOENT;
}

static int mount_id(const char *path, uint64_t *id)
{
	struct statx sx;

	if (statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, STATX_MNT_ID, &sx) ||
	    !(sx.stx_mask & STATX_MNT_ID))
		return -ENOENT;
	*id = sx.stx_mnt_id;
	return 0;
}

/*
 * Of a mount in a namespace that ckpt does not see the link shows the way to it as well. Of what
 * ckpt sees, only the mount that the file is in is made again: how much of the path leads to that?
 */
static int find_mount(const char *path, size_t root, size_t *skip)
{
	char part[PATH_MAX];
	uint64_t wanted, id;
	size_t n = root;

	if (mount_id(path, &wanted) < 0)
		return -ENOENT;
	for (;;) {
		snprintf(part, sizeof(part), "%.*s", (int)n, path);
		if (mount_id(n ? part : "/", &id) < 0)
			return -ENOENT;
		if (id == wanted)
			break;
		if (!path[n])
			return -ENOENT;
		n += 1 + strcspn(path + n + 1, "/");
	}
	*skip = n - root;
	return 0;
}

/* What was mounted, as ckpt sees it: its path without what the link shows of what is in it. */
static int find_root(const struct ckpt_fd_found *f, char *root, size_t *skip)
{
	const char *below = strcmp(f->link, "/") ? f->link : "";
	char link[40], path[PATH_MAX];
	struct fd_handle h;
	CKPT_AUTO_FD int fd = -1;
	size_t n = strlen(below);
	struct stat st;
	ssize_t len;

	if (fd_handle_get(f->fd, &h) < 0)
		return -ENOENT;
	fd = fd_handle_open(&h, f->st.st_dev, f->st.st_ino);
	if (fd < 0)
		return -ENOENT;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	len = readlink(link, path, sizeof(path) - 1);
	if (len < (ssize_t)n)
		return -ENOENT;
	path[len] = 0;
	/* a mount on top of it would be what is found there */
	if (path[0] != '/' || strcmp(path + len - n, below) != 0 || lstat(path, &st) ||
	    st.st_dev != f->st.st_dev || st.st_ino != f->st.st_ino)
		return -ENOENT;
	if (find_mount(path, (size_t)len - n, skip) < 0)
		return -ENOENT;
	path[(size_t)len - n + *skip] = 0;
	snprintf(root, PATH_MAX, "%s", path[0] ? path : "/");
	return 0;
}

static uint32_t attr_of(int fd)
{
	struct statvfs fs;
	uint32_t attr = 0;

	if (fstatvfs(fd, &fs))
		return UINT32_MAX;
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(flags); i++)
		if (fs.f_flag & flags[i].st)
			attr |= flags[i].attr;
	if (!(fs.f_flag & (ST_NOATIME | ST_RELATIME)))
		attr |= MOUNT_ATTR_STRICTATIME;
	return attr;
}

int fd_detached_survey(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	char root[PATH_MAX], object[PATH_MAX + 32];
	size_t skip;
	int r;

	if (find_root(f, root, &skip) < 0 || attr_of(f->fd) == UINT32_MAX)
		return fd_place_survey(run, f, err);
	snprintf(object, sizeof(object), "fd %d (%s)", f->num, f->link);
	r = ckpt_refuse_off(run, "detached", f->task, object);
	return r < 0 && r != -ECANCELED ? r : r != 1;
}

static uint32_t group_of(struct fd_state *st, uint64_t mount)
{
	uint64_t *more;

	for (size_t i = 0; i < st->n_detached; i++)
		if (st->detached[i] == mount)
			return (uint32_t)i + 1;
	more = realloc(st->detached, (st->n_detached + 1) * sizeof(*more));
	if (!more)
		return 0;
	st->detached = more;
	more[st->n_detached++] = mount;
	return (uint32_t)st->n_detached;
}

int fd_detached_collect(struct ckpt_run *run, const struct ckpt_fd_found *f,
			Ckpt__Fd__Detached *rec, char *root, struct ckpt_error *err)
{
	struct statx sx;
	size_t skip;

	ckpt__fd__detached__init(rec);
	if (find_root(f, root, &skip) < 0 || statx(f->fd, "", AT_EMPTY_PATH, STATX_MNT_ID, &sx))
		return ckpt_fail(err, ENOENT, "the mount of %s is in no mount namespace", f->link);
	rec->root.data = (uint8_t *)root;
	rec->root.len = strlen(root);
	rec->skip = (uint32_t)skip;
	rec->attr = attr_of(f->fd);
	rec->mount = group_of(fd_state(run), sx.stx_mnt_id);
	return rec->mount ? 0 : ckpt_fail(err, ENOMEM, "out of memory");
}

/* ---- restore ----------------------------------------------------------------------------- */

int fd_detached_plan(struct ckpt_run *run, const Ckpt__Fd__Detached *rec, const char *path,
		     const Ckpt__Fd__File *file, struct ckpt_error *err)
{
	char buf[PATH_MAX], place[2 * PATH_MAX];
	const char *root = fd_image_path(&rec->root, buf, sizeof(buf));
	struct stat st;
	int r;

	if (!root || !rec->mount || rec->mount > UINT16_MAX || rec->attr & ~(uint32_t)ATTR_KNOWN ||
	    rec->skip > strlen(path))
		return ckpt_fail_image(err, "a mount that is in no namespace is not valid");
	snprintf(place, sizeof(place), "%s%s", strcmp(root, "/") ? root : "",
		 strcmp(path, "/") ? path + rec->skip : "");
	if (fd_copies_check(run, 0, place, file))
		return 0;
	if (ckpt_copies_collide(run, 0, root) && !ckpt_copies_collide(run, 0, place))
		return ckpt_unmet(run, CKPT_EXIT_REFUSED, "leave the layer out",
				  "%s is open through a mount of %s, in which its layer would not "
				  "show",
				  place, root);
	r = ckpt_plan_only(run) ? 0 : ckpt_stat_in(run, 0, root, true, &st);
	return r < 0 ? fd_missing(run, root, r, "put it back where it was") : 0;
}

static int mount_again(struct ckpt_run *run, const Ckpt__Fd__Detached *rec, struct ckpt_error *err)
{
	struct mount_attr a = { .attr_set = rec->attr, .propagation = MS_PRIVATE };
	char buf[PATH_MAX];
	const char *root = fd_image_path(&rec->root, buf, sizeof(buf));
	CKPT_AUTO_FD int place = ckpt_open_in(run, 0, root, O_PATH | O_NOFOLLOW, 0, err);
	CKPT_AUTO_FD int fd = -1;

	if (place < 0)
		return place;
	fd = open_tree(place, "",
		       OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH | AT_NO_AUTOMOUNT);
	a.attr_clr = (ATTR_KNOWN & ~(uint64_t)rec->attr & ~(uint64_t)MOUNT_ATTR_STRICTATIME) |
		     MOUNT_ATTR__ATIME;
	if (fd < 0 || mount_setattr(fd, "", AT_EMPTY_PATH, &a, sizeof(a)))
		return ckpt_fail_sys(err, errno, "mounting %s again", root);
	return ckpt_steal_fd(&fd);
}

/* Descriptors of one mount are of one mount again. */
static int mount_of(struct ckpt_run *run, const Ckpt__Fd__Detached *rec, struct ckpt_error *err)
{
	struct fd_state *st = fd_state(run);

	while (st->n_clones < rec->mount) {
		int *more = realloc(st->clones, (st->n_clones + 1) * sizeof(*more));

		if (!more)
			return ckpt_fail(err, ENOMEM, "out of memory");
		st->clones = more;
		more[st->n_clones++] = -1;
	}
	if (st->clones[rec->mount - 1] < 0)
		st->clones[rec->mount - 1] = mount_again(run, rec, err);
	return st->clones[rec->mount - 1];
}

int fd_detached_open(struct ckpt_run *run, const Ckpt__Fd__Detached *rec, const char *path,
		     int open_flags, struct ckpt_error *err)
{
	struct open_how how = { .flags = (uint64_t)(unsigned)(open_flags | O_CLOEXEC),
				.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS };
	int mount = mount_of(run, rec, err), fd;
	char link[40];
	struct stat st;

	if (mount < 0)
		return mount;
	path += rec->skip;
	if (fstat(mount, &st))
		return ckpt_fail_sys(err, errno, "fstat(2)");
	snprintf(link, sizeof(link), "/proc/self/fd/%d", mount);
	if (S_ISDIR(st.st_mode))
		fd = (int)syscall(SYS_openat2, mount, *path ? path : ".", &how, sizeof(how));
	else
		fd = open(link, open_flags | O_CLOEXEC);
	return fd < 0 ? ckpt_fail_sys(err, errno, "open(2) of %s in a mount of its own", path) : fd;
}

void fd_detached_free(struct fd_state *st)
{
	for (size_t i = 0; i < st->n_clones; i++)
		if (st->clones[i] >= 0)
			close(st->clones[i]);
	free(st->clones);
	free(st->detached);
}
