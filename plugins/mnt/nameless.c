/* SPDX-License-Identifier: MIT */
/*
 * dump and verify: can what is mounted and has no name any more be made again? It gets its name
 * back for the moment in which it is mounted. Containers hide files of /proc so (systemd-nspawn).
 */
#include <ctype.h>
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <linux/openat2.h>
#include <linux/stat.h>
#include <stdio.h>

#include "mnt.h"

/* Is the name that it had free, in a directory that is saved? */
static bool name_is_free(const struct mnt_state *st, const struct mnt_mount *m)
{
	const struct mnt_mount *w = mnt_widest(st, m->fs);
	char root[PATH_MAX], *name;
	CKPT_AUTO_FD int dir = -1;
	struct stat there;

	if (!w || !mnt_path_below(m->m->root, w->m->root))
		return false;
	snprintf(root, sizeof(root), "%s",
		 m->m->root + (strcmp(w->m->root, "/") ? strlen(w->m->root) : 0));
	/* the mark has two slashes before it: "/dir/name//deleted" */
	*strstr(root, "//") = 0;
	name = strrchr(root, '/');
	if (!name)
		return false;
	*name++ = 0;
	dir = mnt_open_below(w->fd, root, O_PATH | O_DIRECTORY,
			     RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV);
	return dir >= 0 && fstatat(dir, name, &there, AT_SYMLINK_NOFOLLOW) && errno == ENOENT;
}

/* Is it behind one of the links of that directory of a task: fd, map_files? */
static bool is_behind(const struct ckpt_task *t, const char *where, const struct stat *file)
{
	int at = openat(t->procfd, where, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CKPT_AUTO_DIR DIR *dir = at >= 0 ? fdopendir(at) : NULL;
	struct stat st;

	if (!dir && at >= 0)
		close(at);
	for (const struct dirent *d; dir && (d = ckpt_next_entry(dir));)
		if (isxdigit((unsigned char)*d->d_name) && !fstatat(at, d->d_name, &st, 0) &&
		    st.st_dev == file->st_dev && st.st_ino == file->st_ino)
			return true;
	return false;
}

static bool is_open(const struct mnt_state *st, const struct stat *file)
{
	for (size_t i = 0; i < ckpt_task_count(st->run); i++) {
		const struct ckpt_task *t = ckpt_task_at(st->run, i);

		if (!t->zombie && (is_behind(t, "fd", file) || is_behind(t, "map_files", file)))
			return true;
	}
	return false;
}

/* Of a file: what keeps another one from being the same. */
static const char *file_lost(const struct mnt_state *st, const struct mnt_mount *m)
{
	struct statx x;
	struct stat is;

	if (fstat(m->fd, &is) || statx(m->fd, "", AT_EMPTY_PATH, 0, &x))
		return "what is mounted there was deleted, and cannot be looked at";
	if (!S_ISREG(is.st_mode) && !S_ISFIFO(is.st_mode))
		return "what is mounted there was deleted, and is neither a file with content nor "
		       "a FIFO";
	if (is.st_nlink)
		return "what is mounted there was deleted, and has another name left";
	if (x.stx_attributes & (STATX_ATTR_IMMUTABLE | STATX_ATTR_APPEND))
		return "what is mounted there was deleted, and is immutable or append-only";
	return is_open(st, &is) ? "what is mounted there was deleted, and a task has it open"
				: NULL;
}

static bool is_same(const struct mnt_mount *a, const struct mnt_mount *b)
{
	struct stat x, y;

	return a->file && a->fd >= 0 && b->fd >= 0 && !fstat(a->fd, &x) && !fstat(b->fd, &y) &&
	       x.st_ino == y.st_ino;
}

/* It gets its name back for a moment, so nothing else may have that. */
const char *mnt_nameless_lost(const struct mnt_state *st, const struct mnt_mount *m)
{
	const char *why;

	if (m->fs->type->content != MNT_INODES)
		return "what is mounted there was deleted";
	if (mnt_has_option(m->m->options, "ro"))
		return "what is mounted there was deleted, and its filesystem is read-only";
	for (size_t i = 0; i < st->n_mounts; i++)
		if (&st->mounts[i] != m && st->mounts[i].fs == m->fs &&
		    !strcmp(st->mounts[i].m->root, m->m->root) && !is_same(m, &st->mounts[i]))
			return "what is mounted there was deleted, and is mounted elsewhere too";
	why = m->file ? file_lost(st, m) : NULL;
	if (why)
		return why;
	return name_is_free(st, m)
		       ? NULL
		       : "what is mounted there was deleted, and its name is used again "
			 "or its directory is gone";
}
