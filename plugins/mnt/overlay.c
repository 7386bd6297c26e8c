/* SPDX-License-Identifier: MIT */
/*
 * dump: overlays. The work directory has a directory `work` where the kernel prepares files,
 * and which it empties when it is mounted: what is in there is not the tree's. The other
 * options are paths too; whoever has moved to another root since may not find them there.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <sys/sysmacros.h>

#include "mnt.h"

static bool work_of(const struct ckpt_mount *m, char *path, size_t size)
{
	const char *at = strstr(m->options, ",workdir=");
	size_t len;

	if (strcmp(m->type, "overlay") != 0 || !at)
		return false;
	at += strlen(",workdir=");
	len = strcspn(at, ",");
	return (size_t)snprintf(path, size, "%.*s/work", (int)len, at) < size;
}

int mnt_find_work(struct ckpt_run *run, struct mnt_state *st, struct ckpt_error *err)
{
	for (size_t i = 0; i < st->n_mounts; i++) {
		const struct mnt_mount *m = &st->mounts[i];
		struct mnt_dir *more;
		char path[PATH_MAX];
		struct stat dir;

		/* one that is not to be seen there is not in a filesystem that is saved */
		if (!m->fs->type || !work_of(m->m, path, sizeof(path)) ||
		    ckpt_stat_in(run, m->ns->id, path, true, &dir))
			continue;
		more = reallocarray(st->work, st->n_work + 1, sizeof(*more));
		if (!more)
			return ckpt_fail(err, ENOMEM, "out of memory");
		st->work = more;
		more[st->n_work++] = (struct mnt_dir){ dir.st_dev, dir.st_ino };
	}
	return 0;
}

bool mnt_is_work(const struct mnt_state *st, const struct stat *dir)
{
	for (size_t i = 0; i < st->n_work; i++)
		if (st->work[i].dev == dir->st_dev && st->work[i].ino == dir->st_ino)
			return true;
	return false;
}

/* ---- paths ----------------------------------------------------------------------------- */

/* fsconfig(2) takes no more. */
#define VALUE_MAX 255

static const char *const keys[] = { "lowerdir=", "lowerdir+=", "datadir+=", "upperdir=",
				    "workdir=" };

#define MOVED "a directory of an overlay is not where it was when that was mounted"

/* Is it in a filesystem that is made again with all that is in it? */
static bool is_new(const struct mnt_state *st, const struct stat *dir)
{
	for (size_t i = 0; i < st->n_fs; i++)
		if (st->fs[i]->type && st->fs[i]->type->content == MNT_INODES &&
		    makedev(st->fs[i]->major, st->fs[i]->minor) == dir->st_dev)
			return true;
	return false;
}

/*
 * The mark of a volatile one, so that nobody takes for whole what may not have been written out.
 * In a filesystem that is made again the directory of it is left out.
 */
static bool has_mark(const struct mnt_state *st, const struct mnt_mount *m)
{
	char work[PATH_MAX], path[PATH_MAX + 16];
	struct stat mark;

	if (!work_of(m->m, work, sizeof(work)))
		return false;
	snprintf(path, sizeof(path), "%s/incompat", work);
	return !ckpt_stat_in(st->run, m->ns->id, path, true, &mark) && !is_new(st, &mark);
}

/* It knows files of its layers by numbers, which are others then. */
static bool is_indexed(const struct mnt_mount *m)
{
	return mnt_has_option(m->m->options, "index=on") ||
	       mnt_has_option(m->m->options, "nfs_export=on");
}

/* "/a:/b::/data" */
static const char *lost_path(const struct mnt_state *st, const struct mnt_mount *m,
			     const char *value, size_t len)
{
	while (len) {
		size_t n = strcspn(value, ":");
		char path[VALUE_MAX + 1];
		struct stat dir;

		n = n < len ? n : len;
		snprintf(path, sizeof(path), "%.*s", (int)n, value);
		if (n &&
		    (ckpt_stat_in(st->run, m->ns->id, path, false, &dir) || !S_ISDIR(dir.st_mode)))
			return MOVED;
		if (n && is_indexed(m) && is_new(st, &dir))
			return "an overlay with an index has a directory in a filesystem in "
			       "memory";
		n += n < len;
		value += n;
		len -= n;
	}
	return NULL;
}

const char *mnt_overlay_lost(const struct mnt_state *st, const struct mnt_mount *m)
{
	const char *at = m->m->options, *lost;

	if (strchr(at, '\\'))
		return "an overlay's path has characters that are not understood";
	if (has_mark(st, m))
		return "an overlay that is volatile cannot be mounted again with what it has";
	while (*at) {
		size_t len = strcspn(at, ",");

		for (size_t k = 0; k < CKPT_ARRAY_SIZE(keys); k++) {
			size_t n = strlen(keys[k]);

			if (strncmp(at, keys[k], n) != 0)
				continue;
			if (len - n > VALUE_MAX)
				return "an overlay's paths are longer than fsconfig(2) takes";
			lost = at[n] == '/' ? lost_path(st, m, at + n, len - n) : MOVED;
			if (lost)
				return lost;
		}
		at += len + (at[len] == ',');
	}
	return NULL;
}
