/* SPDX-License-Identifier: MIT */
/*
 * Overlays. The work directory has a directory `work` where the kernel prepares files,
 * and which it empties when it is mounted: what is in there is not the tree's. The other
 * options are paths too; whoever has moved to another root since may not find them there.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/syscall.h>
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

/* Where the paths are looked up: in a mount namespace, or (0) ckpt's own. */
struct layers {
	const struct mnt_state *st;
	const struct mnt_mount *m;
	uint32_t ns;
};

/*
 * The mark of a volatile one, so that nobody takes for whole what may not have been written out.
 * In a filesystem that is made again the directory of it is left out.
 */
static bool has_mark(const struct layers *l)
{
	char work[PATH_MAX], path[PATH_MAX + 16];
	struct stat mark;

	if (!work_of(l->m->m, work, sizeof(work)))
		return false;
	snprintf(path, sizeof(path), "%s/incompat", work);
	return !ckpt_stat_in(l->st->run, l->ns, path, true, &mark) && !is_new(l->st, &mark);
}

/* It knows files of its layers by numbers, which are others then. */
static bool is_indexed(const struct mnt_mount *m)
{
	return mnt_has_option(m->m->options, "index=on") ||
	       mnt_has_option(m->m->options, "nfs_export=on");
}

static const char *lost_path(void *arg, const char *path)
{
	const struct layers *l = arg;
	struct stat dir;

	if (ckpt_stat_in(l->st->run, l->ns, path, false, &dir) || !S_ISDIR(dir.st_mode))
		return MOVED;
	if (is_new(l->st, &dir) && (is_indexed(l->m) || !l->ns))
		return "an overlay with an index has a directory in a filesystem in memory";
	return NULL;
}

/* "/a:/b::/data" */
static const char *each_path(const char *value, size_t len,
			     const char *(*fn)(void *arg, const char *path), void *arg)
{
	const char *lost = NULL;

	while (len && !lost) {
		size_t n = strcspn(value, ":");
		char path[VALUE_MAX + 1];

		n = n < len ? n : len;
		snprintf(path, sizeof(path), "%.*s", (int)n, value);
		lost = n ? fn(arg, path) : NULL;
		n += n < len;
		value += n;
		len -= n;
	}
	return lost;
}

/* All directories that the options name. What fn says of the first that it says something of. */
static const char *each_layer(const char *at, const char *(*fn)(void *arg, const char *path),
			      void *arg)
{
	while (*at) {
		size_t len = strcspn(at, ",");

		for (size_t k = 0; k < CKPT_ARRAY_SIZE(keys); k++) {
			size_t n = strlen(keys[k]);
			const char *lost;

			if (strncmp(at, keys[k], n) != 0)
				continue;
			if (len - n > VALUE_MAX)
				return "an overlay's paths are longer than fsconfig(2) takes";
			lost = at[n] == '/' ? each_path(at + n, len - n, fn, arg) : MOVED;
			if (lost)
				return lost;
		}
		at += len + (at[len] == ',');
	}
	return NULL;
}

static const char *lost(const struct layers *l)
{
	if (strchr(l->m->m->options, '\\'))
		return "an overlay's path has characters that are not understood";
	if (has_mark(l))
		return "an overlay that is volatile cannot be mounted again with what it has";
	return each_layer(l->m->m->options, lost_path, (void *)(uintptr_t)l);
}

const char *mnt_overlay_lost(const struct mnt_state *st, const struct mnt_mount *m)
{
	return lost(&(struct layers){ st, m, m->ns->id });
}

/* ---- in ckpt's own namespace -------------------------------------------------------------- */

struct top {
	struct ckpt_run *run;
	struct stat first; /* the uppermost directory */
	bool several;	   /* they are in several filesystems */
};

static const char *note_layer(void *arg, const char *path)
{
	struct top *t = arg;
	struct stat dir;

	if (ckpt_stat_in(t->run, 0, path, false, &dir))
		return MOVED;
	if (!t->first.st_ino)
		t->first = dir;
	t->several |= dir.st_dev != t->first.st_dev;
	return NULL;
}

/*
 * If all layers are of one filesystem, files have the inode numbers that they have there, and the
 * root directory that of the uppermost layer. Else only the paths tell.
 */
static bool has_top(const struct mnt_state *st, const struct mnt_mount *m)
{
	const char *upper = strstr(m->m->options, ",upperdir=");
	struct top t = { .run = st->run };
	struct stat root;

	if (upper && each_layer(upper + 1, note_layer, &t))
		return false;
	if (each_layer(m->m->options, note_layer, &t))
		return false;
	return t.several || strcmp(m->m->root, "/") != 0 || m->fd < 0 || fstat(m->fd, &root) ||
	       root.st_ino == t.first.st_ino;
}

bool mnt_overlay_layered(const struct mnt_state *st, const struct mnt_mount *m)
{
	return !lost(&(struct layers){ st, m, 0 }) && has_top(st, m);
}

/* ---- restore ------------------------------------------------------------------------------- */

struct plan {
	struct ckpt_run *run;
	const Ckpt__Mnt__Filesystem *rec;
};

static const char *plan_layer(void *arg, const char *path)
{
	const struct plan *p = arg;
	struct stat dir;

	if (ckpt_stat_in(p->run, 0, path, false, &dir) || !S_ISDIR(dir.st_mode))
		ckpt_unmet(p->run, CKPT_EXIT_FAILED, "bring it back",
			   "the directory %s of an overlay (filesystem %u) is not there", path,
			   p->rec->id);
	return NULL;
}

int mnt_overlay_plan(struct ckpt_run *run, const Ckpt__Mnt__Filesystem *rec)
{
	CKPT_AUTO_FREE char *options = strndup((const char *)rec->options.data, rec->options.len);
	struct plan p = { run, rec };

	if (!options)
		return -ENOMEM;
	return each_layer(options, plan_layer, &p) ? -EBADMSG : 0;
}

/* 0 if it is mapped, else the first that is. */
static int first_id(int proc, const char *map, uint32_t *id, struct ckpt_error *err)
{
	CKPT_AUTO_FILE FILE *f = ckpt_open_lines(proc, map);
	uint32_t inside;

	if (!f)
		return ckpt_fail_sys(err, errno, "/proc/%s", map);
	*id = UINT32_MAX;
	while (fscanf(f, "%u%*[^\n]", &inside) == 1)
		if (!inside || *id == UINT32_MAX)
			*id = inside;
	return *id == UINT32_MAX ? ckpt_fail(err, EOVERFLOW, "/proc/%s is empty", map) : 0;
}

/*
 * All that an overlay does in its layers it does with the ids of whoever mounted it. Those of
 * ckpt may not be mapped in there: then it is read-only (ovl_workdir_create()), or what it writes
 * is not the user namespace's. By system calls, for this task only.
 */
int mnt_take_owners_ids(int proc, struct ckpt_error *err)
{
	uint32_t uid, gid;

	if (first_id(proc, "self/uid_map", &uid, err) < 0 ||
	    first_id(proc, "self/gid_map", &gid, err) < 0)
		return -err->err;
	if (syscall(SYS_setresgid, gid, gid, gid) || syscall(SYS_setresuid, uid, uid, uid))
		return ckpt_fail_sys(err, errno, "ids %u and %u of the user namespace", uid, gid);
	return 0;
}
