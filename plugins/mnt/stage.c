/* SPDX-License-Identifier: MIT */
/*
 * restore: a mount namespace put together from detached mounts. Its new root is laid on
 * top of a copy of ckpt's namespace, the mounts on that in the order in which they were
 * made, and the old root is taken away from under it.
 *
 * Of a namespace that another user namespace owns, what is locked is laid out first, by
 * ckpt itself: it becomes locked when the owner makes its copy. The rest is moved in
 * from outside then, which locks nothing.
 */
#include <errno.h>
#include <limits.h>
#include <linux/openat2.h>
#include <sched.h>
#include <stdio.h>
#include <sys/syscall.h>

#include "mnt.h"

struct stage {
	struct ckpt_run *run;
	struct mnt_made *made;
	struct ckpt_ns *ns;
	int proc; /* ckpt's /proc */
	int root;
	int fd; /* out: the namespace */
	bool locked_first;
	size_t next; /* the mount at which lay_all() goes on */
};

static const Ckpt__Mnt__Mount *mount_at(const struct stage *s, size_t i)
{
	const Ckpt__Mnt__Mount *rec = i < s->made->n_mounts ? s->made->rec[i] : NULL;

	return rec && rec->ns == s->ns->id ? rec : NULL;
}

static int fail(const Ckpt__Mnt__Mount *rec, struct ckpt_error *err)
{
	return ckpt_wrap(err, "mount %u (%.*s)", rec->id, (int)rec->point.len,
			 (const char *)rec->point.data);
}

/* Its options are paths: they lead where it is mounted, so our root is the new one by now. */
static int make_in_place(const struct stage *s, const Ckpt__Mnt__Mount *rec, size_t i,
			 struct ckpt_error *err)
{
	const Ckpt__Mnt__Filesystem *fs = ckpt_record_by_id(s->run, "mnt.filesystem", rec->fs);
	int fd = mnt_fs_create(fs, -1, err);

	s->made->mounts[i] = fd;
	return fd < 0 || mnt_prepare(fd, rec, err) < 0 ? -err->err : 0;
}

/* Such a filesystem is its maker's: a user namespace's own must be made by a member of that. */
static bool is_owners(const struct stage *s, const Ckpt__Mnt__Mount *rec, size_t i)
{
	return s->made->mounts[i] < 0 && !s->ns->owner->own && !rec->locked;
}

static int lay(struct stage *s, const Ckpt__Mnt__Mount *rec, size_t i, struct ckpt_error *err)
{
	CKPT_AUTO_FD int at = -1;
	char point[PATH_MAX];
	struct stat st;

	mnt_bytes(&rec->point, point, sizeof(point));
	if (s->made->mounts[i] < 0 && make_in_place(s, rec, i, err) < 0)
		return -err->err;
	at = mnt_open_below(s->root, point, O_PATH | O_NOFOLLOW, RESOLVE_NO_SYMLINKS);
	if (at < 0 && errno == ENOENT && !fstat(s->made->mounts[i], &st) &&
	    !mnt_make_point(s->root, point + 1, !S_ISDIR(st.st_mode)))
		at = mnt_open_below(s->root, point, O_PATH | O_NOFOLLOW, RESOLVE_NO_SYMLINKS);
	if (at < 0)
		return ckpt_fail_sys(err, errno, "the place is not there");
	if (move_mount(s->made->mounts[i], "", at, "",
		       MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH))
		return ckpt_fail_sys(err, errno, "move_mount(2)");
	return 0;
}

/* 1: the next one is to be made by the owner. */
static int lay_all(struct stage *s, bool locked, bool all, struct ckpt_error *err)
{
	for (; s->next < s->made->n_mounts; s->next++) {
		const Ckpt__Mnt__Mount *rec = mount_at(s, s->next);

		if (!rec || !rec->parent || (!all && rec->locked != locked))
			continue;
		if (is_owners(s, rec, s->next))
			return 1;
		if (lay(s, rec, s->next, err) < 0)
			return fail(rec, err);
	}
	return 0;
}

static size_t root_of(const struct stage *s)
{
	size_t i = 0;

	while (i < s->made->n_mounts && (!mount_at(s, i) || mount_at(s, i)->parent))
		i++;
	return i;
}

/* On top of the old root, which pivot_root(2) then lays on top of this one. */
static int new_root(struct stage *s, struct ckpt_error *err)
{
	size_t i = root_of(s);
	int fd = s->made->mounts[i];

	if (move_mount(fd, "", AT_FDCWD, "/", MOVE_MOUNT_F_EMPTY_PATH))
		return ckpt_fail_sys(err, errno, "move_mount(2) of the new root");
	s->root = fd;
	return 0;
}

static int leave_old_root(struct stage *s, struct ckpt_error *err)
{
	if (fchdir(s->root) || syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH) ||
	    chdir("/"))
		return ckpt_fail_sys(err, errno, "pivot_root(2) into the new root");
	return 0;
}

static int copy_of_own(struct ckpt_error *err)
{
	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
		return ckpt_fail_sys(err, errno, "a private copy of ckpt's mount namespace");
	return 0;
}

static int copy_as_owner(const struct stage *s, struct ckpt_error *err)
{
	if (setns(s->ns->owner->fd, CLONE_NEWUSER))
		return ckpt_fail_sys(err, errno, "joining the %s", s->ns->owner->name);
	return unshare(CLONE_NEWNS) ? ckpt_fail_sys(err, errno, "unshare(2) by its owner") : 0;
}

/* Is `fd` a mount with the root of `b`, and not a directory within another one? */
static bool same_root(int fd, int b)
{
	struct statx sx;
	struct stat x, y;

	return !statx(fd, "", AT_EMPTY_PATH, 0, &sx) && sx.stx_attributes & STATX_ATTR_MOUNT_ROOT &&
	       !fstat(fd, &x) && !fstat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Two with the same root at one place: the path of both leads to the one that came last. */
static int leave_to_last(struct stage *s, uint64_t *ids, size_t last, struct ckpt_error *err)
{
	int *mounts = s->made->mounts;

	if (mnt_mount_id(mounts[last], "", &ids[last]) < 0)
		return ckpt_fail_sys(err, errno, "statx(2) of a mount");
	for (size_t i = 0; i < last; i++)
		if (ids[i] == ids[last]) {
			close(mounts[i]);
			mounts[i] = -1;
			ids[i] = 0;
		}
	return 0;
}

/*
 * Those laid out by us are gone with our own copy: the same ones in the owner's, which may
 * not look into all directories that lead there. What another locked one hides has no path,
 * or that of the other, and will never be seen again: it is what it was made to be, and left
 * at that.
 */
static int find_again(void *arg, struct ckpt_error *err)
{
	struct stage *s = arg;
	CKPT_AUTO_FREE uint64_t *ids = calloc(s->made->n_mounts + 1, sizeof(*ids));

	for (size_t i = 0; ids && i < s->made->n_mounts; i++) {
		const Ckpt__Mnt__Mount *rec = mount_at(s, i);
		char point[PATH_MAX];
		int fd;

		if (!rec || (rec->parent && !rec->locked))
			continue;
		mnt_bytes(&rec->point, point, sizeof(point));
		fd = mnt_open_path(AT_FDCWD, point);
		if (fd < 0 && errno != ENOENT && errno != ENOTDIR)
			return ckpt_fail_sys(err, errno, "opening %s", point);
		if (fd >= 0 && !same_root(fd, s->made->mounts[i])) {
			close(fd);
			fd = -1;
		}
		close(s->made->mounts[i]);
		s->made->mounts[i] = fd;
		if (fd >= 0 &&
		    (mnt_set_loose(fd, rec, err) < 0 || leave_to_last(s, ids, i, err) < 0))
			return -err->err;
	}
	return ids ? 0 : ckpt_fail(err, ENOMEM, "out of memory");
}

static int keep(struct stage *s, struct ckpt_error *err)
{
	s->fd = openat(s->proc, "self/ns/mnt", O_RDONLY | O_CLOEXEC);
	return s->fd < 0 ? ckpt_fail_sys(err, errno, "/proc/self/ns/mnt") : 0;
}

static int build(void *arg, struct ckpt_error *err)
{
	struct stage *s = arg;
	int r = copy_of_own(err);

	if (r == 0 && !s->locked_first && !s->ns->owner->own)
		r = copy_as_owner(s, err);
	if (r == 0)
		r = new_root(s, err);
	if (r == 0)
		r = leave_old_root(s, err);
	if (r == 0 && (s->locked_first || s->ns->owner->own))
		r = lay_all(s, true, s->ns->owner->own, err);
	if (r == 0 && s->locked_first)
		r = copy_as_owner(s, err);
	else if (r == 0)
		r = mnt_set_loose(s->root, mount_at(s, root_of(s)), err);
	return r < 0 ? r : keep(s, err);
}

static int add_unlocked(void *arg, struct ckpt_error *err)
{
	struct stage *s = arg;
	CKPT_AUTO_FD int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);

	if (root < 0)
		return ckpt_fail_sys(err, errno, "its root");
	s->root = root;
	return lay_all(s, false, false, err);
}

/*
 * Is there anything that its owner must not take off? A root from outside is such a thing, and so
 * are flags of the root that are locked.
 */
static bool has_locked(const struct stage *s)
{
	const Ckpt__Mnt__Mount *root = mount_at(s, root_of(s));

	for (size_t i = 0; i < s->made->n_mounts; i++)
		if (mount_at(s, i) && mount_at(s, i)->locked)
			return true;
	return !root->fs || root->attr & MNT_LOCKABLE & ~root->loose;
}

int mnt_stage(struct ckpt_run *run, struct mnt_made *made, struct ckpt_ns *ns,
	      struct ckpt_error *err)
{
	CKPT_AUTO_FD int proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
	struct stage s = { run, made, ns, proc, -1, -1, false, 0 };
	struct ckpt_ns_place place = { 0 };
	int r;

	if (proc < 0)
		return ckpt_fail_sys(err, errno, "/proc");
	s.locked_first = !ns->owner->own && has_locked(&s);
	r = ckpt_ns_run(run, &place, build, &s, err);
	ns->fd = s.fd;
	place.ns[CKPT_NS_MNT] = ns;
	if (r == 0 && s.locked_first)
		r = ckpt_ns_run(run, &place, find_again, &s, err);
	return r;
}

static int make_as_owner(void *arg, struct ckpt_error *err)
{
	struct stage *s = arg;
	const Ckpt__Mnt__Mount *rec = mount_at(s, s->next);

	return mnt_take_owners_ids(s->proc, err) < 0 || make_in_place(s, rec, s->next, err) < 0
		       ? fail(rec, err)
		       : 0;
}

int mnt_stage_rest(struct ckpt_run *run, struct mnt_made *made, struct ckpt_ns *ns,
		   struct ckpt_error *err)
{
	CKPT_AUTO_FD int proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
	struct stage s = { run, made, ns, proc, -1, -1, false, 0 };
	struct ckpt_ns_place place = { .ns = { [CKPT_NS_MNT] = ns } };
	struct ckpt_ns_place owner = { .ns = { [CKPT_NS_MNT] = ns, [CKPT_NS_USER] = ns->owner } };
	int r = !ns->owner->own;

	if (proc < 0)
		return ckpt_fail_sys(err, errno, "/proc");
	while (r > 0) {
		r = ckpt_ns_run(run, &place, add_unlocked, &s, err);
		if (r > 0 && ckpt_ns_run(run, &owner, make_as_owner, &s, err) < 0)
			r = -err->err;
	}
	return r;
}
