/* SPDX-License-Identifier: MIT */
/* Files by the paths that the kernel has told of them, in ckpt's own mount namespace or another. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <linux/securebits.h>
#include <stdio.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/vfs.h>

#include "engine/run.h"
#include "process/mounts.h"
#include "process/uapi.h"

/* Renames on the way make the kernel give up a scoped lookup; no other process does many. */
#define TRIES 100
/* As many as the kernel follows. */
#define MOST_LINKS 40

/* In a root directory, or (-1) from ckpt's own; no symbolic link is followed. */
static int open_below(int root, const char *path, int flags, mode_t mode)
{
	struct open_how how = {
		.flags = (uint64_t)(unsigned)(flags | O_CLOEXEC),
		.mode = flags & (O_CREAT | __O_TMPFILE) ? mode : 0,
		/* the kernel names files without links; one that is there by now leads elsewhere */
		.resolve = RESOLVE_NO_SYMLINKS | (root < 0 ? 0 : RESOLVE_IN_ROOT),
	};

	for (int i = 0; i < TRIES; i++) {
		int fd = (int)syscall(SYS_openat2, root < 0 ? AT_FDCWD : root, path, &how,
				      sizeof(how));

		if (fd >= 0 || errno != EAGAIN)
			return fd < 0 ? -errno : fd;
	}
	return -EAGAIN;
}

#ifndef FUSE_SUPER_MAGIC
#define FUSE_SUPER_MAGIC 0x65735546
#endif

#define LINK_HINT                                                                          \
	"put the directory itself there (mount --bind), or let root own the link and all " \
	"directories on the way to it"

/* ---- links that root made --------------------------------------------------------- */

/*
 * A machine's administrator may have moved a directory and left a link in its place. Anybody
 * else who owns a directory on the way can put a link there while the tree is away, and ckpt
 * would open what it leads to for his programs. So a link counts if nobody but root can have
 * made it; what is left after that is a path without links.
 */
struct way {
	char done[PATH_MAX]; /* without links, "" is the root */
	char rest[PATH_MAX];
	int links;
};

static bool only_roots(const char *path)
{
	CKPT_AUTO_FD int fd = open_below(-1, path, O_PATH | O_DIRECTORY, 0);
	struct statfs fs;
	struct stat st;

	/* what a FUSE server says of owners is not root's word; group bits are an ACL's mask too */
	return fd >= 0 && !fstat(fd, &st) && !st.st_uid && !(st.st_mode & (S_IWGRP | S_IWOTH)) &&
	       !fstatfs(fd, &fs) && fs.f_type != FUSE_SUPER_MAGIC;
}

/* Can only root have put there what is in this directory? */
static bool is_roots_way(const char *dir)
{
	char above[PATH_MAX];

	if (!only_roots("/"))
		return false;
	for (const char *p = dir; *p;) {
		p += 1 + strcspn(p + 1, "/");
		snprintf(above, sizeof(above), "%.*s", (int)(p - dir), dir);
		if (!only_roots(above))
			return false;
	}
	return true;
}

/* w->done is a link: its text comes before the rest. */
static int follow(struct way *w, int link, const char *name)
{
	char text[PATH_MAX], rest[PATH_MAX];
	struct stat st;
	ssize_t len;

	w->done[name - w->done - 1] = '\0';
	if (!is_roots_way(w->done) || fstat(link, &st) || st.st_uid || ++w->links > MOST_LINKS)
		return -ELOOP;
	len = readlinkat(link, "", text, sizeof(text));
	if (len <= 0 || (size_t)len >= sizeof(text))
		return len < 0 ? -errno : -ENAMETOOLONG;
	if ((size_t)snprintf(rest, sizeof(rest), "%.*s/%s", (int)len, text, w->rest) >=
	    sizeof(rest))
		return -ENAMETOOLONG;
	if (text[0] == '/')
		w->done[0] = '\0';
	memcpy(w->rest, rest, sizeof(rest));
	return 0;
}

/* Moves the first part of the rest over to what is done. 0: there was none. */
static int step(struct way *w, bool nofollow)
{
	CKPT_AUTO_FD int fd = -1;
	const size_t skip = strspn(w->rest, "/"), len = strcspn(w->rest + skip, "/");
	const size_t at = strlen(w->done);
	char part[NAME_MAX + 1];
	struct stat st;
	bool last;

	if (!len)
		return 0;
	if (len >= sizeof(part) || at + len + 1 >= sizeof(w->done))
		return -ENAMETOOLONG;
	snprintf(part, sizeof(part), "%.*s", (int)len, w->rest + skip);
	memmove(w->rest, w->rest + skip + len, strlen(w->rest + skip + len) + 1);
	last = !w->rest[0];
	if (!strcmp(part, "."))
		return 1;
	if (!strcmp(part, "..")) {
		char *slash = strrchr(w->done, '/');

		if (slash)
			*slash = '\0';
		return 1;
	}
	snprintf(w->done + at, sizeof(w->done) - at, "/%s", part);
	fd = open_below(-1, w->done, O_PATH | O_NOFOLLOW, 0);
	if (fd < 0 || fstat(fd, &st) || !S_ISLNK(st.st_mode) || (last && nofollow))
		return fd == -ENOENT && last ? 1 : fd < 0 ? fd : 1;
	if (follow(w, fd, w->done + at + 1) == 0)
		return 1;
	/* for whoever wants to know which one it was */
	w->done[at] = '/';
	return -ELOOP;
}

/* The path without the links that root made; -ELOOP: w->done is another's. */
static int expand(struct way *w, const char *path, bool nofollow)
{
	int r;

	*w = (struct way){ .links = 0 };
	if (path[0] != '/' ||
	    (size_t)snprintf(w->rest, sizeof(w->rest), "%s", path) >= sizeof(w->rest))
		return -ENAMETOOLONG;
	do {
		r = step(w, nofollow);
	} while (r > 0);
	if (r == 0 && !w->done[0])
		memcpy(w->done, "/", 2);
	return r;
}

static int open_own(const char *path, int flags, mode_t mode)
{
	int fd = open_below(-1, path, flags, mode);
	struct way w;
	int r;

	if (fd != -ELOOP)
		return fd;
	r = expand(&w, path, flags & O_NOFOLLOW);
	return r < 0 ? r : open_below(-1, w.done, flags, mode);
}

static int fail_link(const char *path, struct ckpt_error *err)
{
	struct way w;

	if (expand(&w, path, false) != -ELOOP)
		return ckpt_fail(err, ELOOP, "%s is a symbolic link by now", path);
	ckpt_fail(err, ELOOP, "%s leads through a symbolic link that others than root can make, %s",
		  path, w.done);
	return ckpt_hint(err, LINK_HINT);
}

int ckpt_link_unmet(struct ckpt_run *run, const char *path)
{
	struct ckpt_error why = { 0 };

	fail_link(path, &why);
	return ckpt_unmet(run, CKPT_EXIT_FAILED, LINK_HINT, "%s", why.text);
}

/* ---- in a mount namespace ----------------------------------------------------------- */

static const struct ckpt_ns *namespace(struct ckpt_run *run, uint32_t mnt)
{
	const struct ckpt_ns *ns = ckpt_ns_by_id(run, mnt);

	return ns && ns->type == CKPT_NS_MNT ? ns : NULL;
}

int ckpt_open_in(struct ckpt_run *run, uint32_t mnt, const char *path, int flags, mode_t mode,
		 struct ckpt_error *err)
{
	const struct ckpt_ns *ns = mnt ? namespace(run, mnt) : NULL;
	int root, fd;

	if (!mnt) {
		fd = open_own(path, flags, mode);
		if (fd == -ELOOP)
			return fail_link(path, err);
		return fd < 0 ? ckpt_fail_sys(err, fd, "open(2) of %s", path) : fd;
	}
	if (!ns)
		return ckpt_fail_image(err, "%s is in mount namespace %u, which there is not", path,
				       mnt);
	root = ckpt_mnt_root(run, ns, err);
	if (root < 0)
		return root;
	fd = open_below(root, path, flags, mode);
	return fd < 0 ? ckpt_fail_sys(err, fd, "open(2) of %s in mount namespace %u", path, mnt)
		      : fd;
}

int ckpt_open_above(struct ckpt_run *run, uint32_t mnt, const char *path, const char **name,
		    struct ckpt_error *err)
{
	const char *slash = strrchr(path, '/');
	char dir[PATH_MAX];

	if (path[0] != '/' || !slash[1] ||
	    (size_t)snprintf(dir, sizeof(dir), "%.*s", (int)(slash + 1 - path), path) >=
		    sizeof(dir))
		return ckpt_fail_image(err, "%s is no path of a file", path);
	*name = slash + 1;
	return ckpt_open_in(run, mnt, dir, O_PATH | O_DIRECTORY, 0, err);
}

int ckpt_stat_in(struct ckpt_run *run, uint32_t mnt, const char *path, bool nofollow,
		 struct stat *st)
{
	const int flags = O_PATH | (nofollow ? O_NOFOLLOW : 0);
	const struct ckpt_ns *ns = mnt ? namespace(run, mnt) : NULL;
	CKPT_AUTO_FD int fd = -1;
	int root;

	if (!mnt) {
		fd = open_own(path, flags, 0);
	} else {
		if (!ns || ns->fd < 0)
			return run->kind == CKPT_RESTORE || run->plan_only ? -EINPROGRESS : -ENOENT;
		root = ckpt_mnt_root(run, ns, NULL);
		if (root < 0)
			return root;
		fd = open_below(root, path, flags, 0);
	}
	if (fd < 0)
		return fd;
	return fstat(fd, st) ? -errno : 0;
}

/* ---- whose files ------------------------------------------------------------------ */

/* A change of ids makes the engine's memory undumpable, as a set-user-id program's. */
static void set_ids(uid_t uid, gid_t gid)
{
	const int dumpable = prctl(PR_GET_DUMPABLE);

	setfsgid(gid);
	setfsuid(uid);
	if (prctl(PR_GET_DUMPABLE) != dumpable)
		prctl(PR_SET_DUMPABLE, dumpable == 1);
}

int ckpt_ids_take(struct ckpt_ids *old, uid_t uid, gid_t gid, struct ckpt_error *err)
{
	*old = (struct ckpt_ids){ .securebits = prctl(PR_GET_SECUREBITS) };
	old->uid = (uid_t)setfsuid((uid_t)-1);
	old->gid = (gid_t)setfsgid((gid_t)-1);
	if (old->uid == uid && old->gid == gid)
		return 0;
	/* else the capabilities over files would go with the ids */
	if (old->securebits < 0 ||
	    prctl(PR_SET_SECUREBITS, old->securebits | SECBIT_NO_SETUID_FIXUP))
		return ckpt_fail_sys(err, errno, "PR_SET_SECUREBITS");
	old->taken = true;
	set_ids(uid, gid);
	return 0;
}

void ckpt_ids_give_back(struct ckpt_ids *old)
{
	if (!old->taken)
		return;
	set_ids(old->uid, old->gid);
	prctl(PR_SET_SECUREBITS, old->securebits);
	old->taken = false;
}
