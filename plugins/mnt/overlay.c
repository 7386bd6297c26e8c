/* SPDX-License-Identifier: MIT */
/*
 * dump: overlays. The work directory has a directory `work` where the kernel prepares files,
 * and which it empties when it is mounted: what is in there is not the tree's. The other
 * options are paths too; whoever has moved to another root since may not find them there.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>

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

/* "/a:/b::/data" */
static bool all_there(struct ckpt_run *run, const struct mnt_mount *m, const char *value,
		      size_t len)
{
	while (len) {
		size_t n = strcspn(value, ":");
		char path[VALUE_MAX + 1];
		struct stat dir;

		n = n < len ? n : len;
		snprintf(path, sizeof(path), "%.*s", (int)n, value);
		if (n && (ckpt_stat_in(run, m->ns->id, path, false, &dir) || !S_ISDIR(dir.st_mode)))
			return false;
		n += n < len;
		value += n;
		len -= n;
	}
	return true;
}

const char *mnt_overlay_lost(struct ckpt_run *run, const struct mnt_mount *m)
{
	const char *at = m->m->options;

	if (strchr(at, '\\'))
		return "an overlay's path has characters that are not understood";
	while (*at) {
		size_t len = strcspn(at, ",");

		for (size_t k = 0; k < CKPT_ARRAY_SIZE(keys); k++) {
			size_t n = strlen(keys[k]);

			if (strncmp(at, keys[k], n) != 0)
				continue;
			if (len - n > VALUE_MAX)
				return "an overlay's paths are longer than fsconfig(2) takes";
			if (at[n] != '/' || !all_there(run, m, at + n, len - n))
				return "a directory of an overlay is not where it was when that "
				       "was mounted";
		}
		at += len + (at[len] == ',');
	}
	return NULL;
}
