/* SPDX-License-Identifier: MIT */
/*
 * restore: a detached mount for each one to be made, a copy of the filesystem's or of one
 * of ckpt's own, with its flags set. Made in a private copy of ckpt's namespace, where
 * whatever hides a place is taken off.
 */
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>

#include "mnt.h"

#define DELETED "//deleted"

struct sources {
	struct ckpt_run *run;
	struct mnt_made *made;
	const struct ckpt_mounts *own;
	int *first; /* by index of the mount's record: what others hide, taken beforehand; -1 */
	int stage;  /* a tmpfs on top of everything, where whole filesystems are mounted */
};

static const Ckpt__Mnt__Mount *mount_at(const struct sources *s, size_t i)
{
	return i < s->made->n_mounts ? s->made->rec[i] : NULL;
}

/*
 * Not shared with where it comes from, or what is mounted on it would be seen there. Loose flags
 * come when others can no longer be locked.
 */
int mnt_prepare(int fd, const Ckpt__Mnt__Mount *rec, struct ckpt_error *err)
{
	struct mount_attr a = { .propagation = MS_PRIVATE };

	if (mount_setattr(fd, "", AT_EMPTY_PATH, &a, sizeof(a)))
		return ckpt_fail_sys(err, errno, "mount_setattr(2), MS_PRIVATE");
	a = (struct mount_attr){
		.attr_set = rec->attr & ~rec->loose,
		.attr_clr = MNT_LOCKABLE | MOUNT_ATTR__ATIME | MOUNT_ATTR_NODIRATIME |
			    MOUNT_ATTR_NOSYMFOLLOW,
	};
	a.attr_clr &= ~(a.attr_set & ~(uint64_t)MOUNT_ATTR__ATIME);
	if (mount_setattr(fd, "", AT_EMPTY_PATH, &a, sizeof(a)))
		return ckpt_fail_sys(err, errno, "mount_setattr(2), flags %#x", rec->attr);
	return 0;
}

/* A copy by another user namespace would have locked them too. */
int mnt_set_loose(int fd, const Ckpt__Mnt__Mount *rec, struct ckpt_error *err)
{
	struct mount_attr a = { .attr_set = rec->loose };

	if (!rec->loose || !mount_setattr(fd, "", AT_EMPTY_PATH, &a, sizeof(a)))
		return 0;
	ckpt_fail_sys(err, errno, "mount_setattr(2), flags %#x", rec->loose);
	return ckpt_wrap(err, "mount %u (%.*s)", rec->id, (int)rec->point.len,
			 (const char *)rec->point.data);
}

/* The kernel knows places by paths without symbolic links: in an image they lead elsewhere. */
static int open_parent(int root, const char *path, bool make, const char **name)
{
	CKPT_AUTO_FD int dir = openat(root, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);

	while (dir >= 0) {
		char part[NAME_MAX + 1];
		size_t len;
		int next;

		path += strspn(path, "/");
		len = strcspn(path, "/");
		*name = path;
		if (!path[len])
			return ckpt_steal_fd(&dir);
		if (len >= sizeof(part)) {
			errno = ENAMETOOLONG;
			return -1;
		}
		memcpy(part, path, len);
		part[len] = 0;
		path += len;
		if (make)
			mkdirat(dir, part, 0755);
		next = openat(dir, part, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		close(dir);
		dir = next;
	}
	return -1;
}

static int make_at(int dir, const char *name, bool file)
{
	int fd;

	if (!file)
		return mkdirat(dir, name, 0755);
	fd = openat(dir, name, O_CREAT | O_EXCL | O_NOFOLLOW | O_WRONLY | O_CLOEXEC, 0644);
	return fd < 0 ? -1 : close(fd);
}

int mnt_make_point(int root, const char *point, bool file)
{
	const char *name;
	CKPT_AUTO_FD int dir = open_parent(root, point, true, &name);

	return dir < 0 ? -1 : make_at(dir, name, file);
}

/* `from`: a descriptor of what is to be mounted, which becomes ours, or -1 with errno. */
static int take(struct sources *s, size_t i, int from, const char *path, struct ckpt_error *err)
{
	const Ckpt__Mnt__Mount *rec = mount_at(s, i);
	CKPT_AUTO_FD int place = from;
	int fd = place < 0 ? -1 : mnt_clone(place);
	int r = fd < 0 ? ckpt_fail_sys(err, errno, "open_tree(2) of %s", path)
		       : mnt_prepare(fd, rec, err);

	s->made->mounts[i] = fd;
	return r < 0 ? ckpt_wrap(err, "mount %u (%.*s)", rec->id, (int)rec->point.len,
				 (const char *)rec->point.data)
		     : 0;
}

/* ---- places that others hide ---------------------------------------------------------------- */

static bool is_at(const struct sources *s, const Ckpt__Mnt__Mount *rec, const struct ckpt_mount *h)
{
	char path[PATH_MAX];

	if (rec->fs || rec->host_point.len != strlen(h->point) ||
	    memcmp(rec->host_point.data, h->point, rec->host_point.len) != 0)
		return false;
	mnt_bytes(&rec->host, path, sizeof(path));
	return mnt_hidden_by(s->own, h, path) == rec->below;
}

/* Is it in the way of something that is not taken yet? Never what everything hangs on. */
static bool in_the_way(const struct sources *s, const struct ckpt_mount *h)
{
	char path[PATH_MAX];

	for (size_t i = 0; h != s->own->root && i < s->made->n_mounts; i++) {
		const Ckpt__Mnt__Mount *rec = mount_at(s, i);

		if (rec->fs || !rec->below || s->first[i] >= 0 || is_at(s, rec, h))
			continue;
		if (mnt_path_below(mnt_bytes(&rec->host, path, sizeof(path)), h->point))
			return true;
	}
	return false;
}

/* Would it go with what it is mounted on, if not by itself? */
static bool goes(const struct sources *s, const struct ckpt_mount *h)
{
	while (h && !in_the_way(s, h)) {
		const struct ckpt_mount *on = NULL;

		for (size_t i = 0; h != s->own->root && i < s->own->n; i++)
			if (s->own->list[i].id == h->parent)
				on = &s->own->list[i];
		h = on;
	}
	return h;
}

static int take_first(struct sources *s, const struct ckpt_mount *h, bool all,
		      struct ckpt_error *err)
{
	char path[PATH_MAX];

	for (size_t i = 0; i < s->made->n_mounts; i++) {
		const Ckpt__Mnt__Mount *rec = mount_at(s, i);
		CKPT_AUTO_FD int place = -1;

		if (s->first[i] >= 0 || !is_at(s, rec, h) || !(all || rec->below))
			continue;
		mnt_bytes(&rec->host, path, sizeof(path));
		place = mnt_open_path(AT_FDCWD, path);
		s->first[i] = place < 0 ? -1 : mnt_clone(place);
		if (s->first[i] < 0)
			return ckpt_fail_sys(err, errno, "open_tree(2) of %s, which others hide",
					     path);
	}
	return 0;
}

/* What was mounted last is on top: it is taken off when its own are taken. */
static int uncover(struct sources *s, struct ckpt_error *err)
{
	bool hidden = false;
	int r = 0;

	for (size_t i = 0; i < s->made->n_mounts; i++)
		hidden |= mount_at(s, i)->below != 0;
	for (size_t k = s->own->n; hidden && k-- && r == 0;) {
		const struct ckpt_mount *h = &s->own->list[k];
		bool way = in_the_way(s, h);

		r = take_first(s, h, goes(s, h), err);
		if (r == 0 && way && umount2(h->point, MNT_DETACH | UMOUNT_NOFOLLOW))
			r = ckpt_fail_sys(err, errno, "umount2(2) of %s", h->point);
	}
	return r;
}

/* ---- whole filesystems ------------------------------------------------------------------------
 */

static int make_stage(struct sources *s, struct ckpt_error *err)
{
	CKPT_AUTO_FD int fs = fsopen("tmpfs", FSOPEN_CLOEXEC);

	if (fs < 0 || fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0))
		return ckpt_fail_sys(err, errno, "a tmpfs for the work");
	s->stage = fsmount(fs, FSMOUNT_CLOEXEC, 0);
	if (s->stage < 0 || move_mount(s->stage, "", AT_FDCWD, "/", MOVE_MOUNT_F_EMPTY_PATH))
		return ckpt_fail_sys(err, errno, "mounting a tmpfs for the work");
	return 0;
}

/* Copies are made of what is mounted somewhere: before 6.15 not of a detached mount. */
static int show(struct sources *s, int mnt, const char *name, struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = -1;
	struct stat st;

	if (fstat(mnt, &st))
		return ckpt_fail_sys(err, errno, "fstat(2)");
	if (!S_ISDIR(st.st_mode))
		fd = openat(s->stage, name, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	if (S_ISDIR(st.st_mode) ? mkdirat(s->stage, name, 0700) != 0 : fd < 0)
		return ckpt_fail_sys(err, errno, "a place for the work");
	if (move_mount(mnt, "", s->stage, name, MOVE_MOUNT_F_EMPTY_PATH))
		return ckpt_fail_sys(err, errno, "move_mount(2)");
	return 0;
}

static int show_all(struct sources *s, struct ckpt_error *err)
{
	char name[32];
	int r = 0;

	for (size_t k = 0; k < s->made->n_fs && r == 0; k++) {
		snprintf(name, sizeof(name), "%zu", k);
		if (s->made->fs[k] >= 0)
			r = show(s, s->made->fs[k], name, err);
	}
	for (size_t i = 0; i < s->made->n_mounts && r == 0; i++) {
		snprintf(name, sizeof(name), "m%zu", i);
		if (s->first[i] >= 0)
			r = show(s, s->first[i], name, err);
	}
	return r;
}

/* Whoever the root of a filesystem belongs to is known to it, and may make files there. */
static int take_ids_of(const struct sources *s, const char *whole, struct ckpt_ids *ids,
		       struct ckpt_error *err)
{
	struct stat st;

	if (fstatat(s->stage, whole, &st, AT_SYMLINK_NOFOLLOW))
		return ckpt_fail_sys(err, errno, "fstatat(2)");
	return ckpt_ids_take(ids, st.st_uid, st.st_gid, err);
}

/* A file may be mounted several times: it is made, and deleted, once. */
static bool has_other(struct ckpt_run *run, const Ckpt__Mnt__Mount *rec)
{
	const Ckpt__Mnt__Mount *other;

	for (size_t i = 0; rec->file && (other = ckpt_record_at(run, "mnt.mount", i)); i++)
		if (other != rec && other->fs == rec->fs && other->deleted && other->file &&
		    other->root.len == rec->root.len &&
		    !memcmp(other->root.data, rec->root.data, rec->root.len))
			return true;
	return false;
}

static int make_nameless(struct sources *s, const Ckpt__Mnt__Mount *rec, int dir, const char *name,
			 struct ckpt_error *err)
{
	if (!faccessat(dir, name, F_OK, AT_SYMLINK_NOFOLLOW) && has_other(s->run, rec))
		return 0;
	if (rec->file)
		return mnt_nameless_fill(s->run, dir, name, rec->gone, err);
	return make_at(dir, name, false) ? ckpt_fail_sys(err, errno, "mkdirat(2)") : 0;
}

/* A root that has no name any more gets one for the moment. */
static int with_name(struct sources *s, size_t i, const char *whole, const char *root,
		     struct ckpt_error *err)
{
	const Ckpt__Mnt__Mount *rec = mount_at(s, i);
	CKPT_AUTO_IDS struct ckpt_ids ids = { 0 };
	CKPT_AUTO_FD int dir = -1;
	char path[PATH_MAX + 64];
	const char *name;

	snprintf(path, sizeof(path), "%s%.*s", whole, (int)(strlen(root) - strlen(DELETED)), root);
	if (take_ids_of(s, whole, &ids, err) < 0)
		return -err->err;
	dir = open_parent(s->stage, path, true, &name);
	if (dir < 0)
		return ckpt_fail_sys(err, errno, "making the deleted %s", root);
	if (make_nameless(s, rec, dir, name, err) < 0)
		return ckpt_wrap(err, "making the deleted %s", root);
	return take(s, i, mnt_open_path(dir, name), name, err);
}

/* When it is mounted, for the kernel does not mount what has no name. */
int mnt_delete_roots(struct ckpt_run *run, const struct mnt_made *made, struct ckpt_error *err)
{
	for (size_t i = 0; i < made->n_mounts; i++) {
		const Ckpt__Mnt__Mount *rec = ckpt_record_at(run, "mnt.mount", i);
		CKPT_AUTO_FD int dir = -1;
		char root[PATH_MAX];
		const char *name;
		ssize_t k = ckpt_record_index(run, "mnt.filesystem", rec->fs);

		if (!rec->deleted || k < 0)
			continue;
		mnt_bytes(&rec->root, root, sizeof(root));
		root[strlen(root) - strlen(DELETED)] = 0;
		dir = open_parent(made->fs[k], root, false, &name);
		if (dir < 0 || (unlinkat(dir, name, rec->file ? 0 : AT_REMOVEDIR) &&
				!(errno == ENOENT && has_other(run, rec))))
			return ckpt_fail_sys(err, errno, "deleting %s again", root);
		/* a file has all since it was made */
		if (!rec->file && mnt_inode_apply(made->mounts[i], rec->gone, err) < 0)
			return ckpt_wrap(err, "the deleted %s", root);
	}
	return 0;
}

static int from_filesystem(struct sources *s, size_t i, struct ckpt_error *err)
{
	const Ckpt__Mnt__Mount *rec = mount_at(s, i);
	const ssize_t k = ckpt_record_index(s->run, "mnt.filesystem", rec->fs);
	const Ckpt__Mnt__Filesystem *fs = ckpt_record_at(s->run, "mnt.filesystem", (size_t)k);
	char whole[32], root[PATH_MAX], path[PATH_MAX + 64];
	CKPT_AUTO_FD int dir = -1;
	const char *name;

	/* made where it is mounted */
	if (s->made->fs[k] < 0)
		return 0;
	snprintf(whole, sizeof(whole), "%zd", k);
	mnt_bytes(&rec->root, root, sizeof(root));
	if (rec->deleted)
		return with_name(s, i, whole, root, err);
	snprintf(path, sizeof(path), "%s%s", whole,
		 !strcmp(fs->type, "nsfs") || !strcmp(root, "/") ? "" : root);
	/* where its content was left out */
	if (faccessat(s->stage, path, F_OK, AT_SYMLINK_NOFOLLOW) && errno == ENOENT) {
		CKPT_AUTO_IDS struct ckpt_ids ids = { 0 };

		if (take_ids_of(s, whole, &ids, err) < 0)
			return -err->err;
		mnt_make_point(s->stage, path, rec->file);
	}
	dir = open_parent(s->stage, path, false, &name);
	if (dir < 0)
		return ckpt_fail_sys(err, errno, "opening what has %s", root);
	return take(s, i, *name ? mnt_open_path(dir, name) : ckpt_steal_fd(&dir), root, err);
}

/* Moved into a namespace when its owner has made the copy, so that it comes after that. */
static bool is_later(struct ckpt_run *run, const Ckpt__Mnt__Mount *rec)
{
	return rec->parent && !rec->locked && !ckpt_ns_by_id(run, rec->ns)->owner->own;
}

static int take_one(struct sources *s, size_t i, struct ckpt_error *err)
{
	const Ckpt__Mnt__Mount *rec = mount_at(s, i);
	const char *place = rec->fs ? NULL : mnt_external_place(s->run, rec);
	char path[PATH_MAX];

	if (rec->fs)
		return from_filesystem(s, i, err);
	if (place)
		return take(s, i, mnt_open_external(place), place, err);
	if (s->first[i] < 0) {
		mnt_bytes(&rec->host, path, sizeof(path));
		return take(s, i, mnt_open_path(AT_FDCWD, path), path, err);
	}
	snprintf(path, sizeof(path), "m%zu", i);
	return take(s, i, mnt_open_path(s->stage, path), path, err);
}

/* ---- flags that are locked on what is not ------------------------------------------------- */

/* Whoever joins the namespace finds the stage on top. */
static int go_below(const struct sources *s, struct ckpt_error *err)
{
	if (fchdir(s->made->below) || chroot("."))
		return ckpt_fail_sys(err, errno, "chroot(2) below the stage");
	return 0;
}

/*
 * A copy of the namespace for another user namespace locks flags, and the mount; a clone of
 * the mount in the copy has the locks of the flags only.
 */
static int hold_all(void *arg, struct ckpt_error *err)
{
	struct sources *s = arg;
	const struct ckpt_ns *other = NULL;
	CKPT_AUTO_FD int proc = -1;
	char name[32];
	int r = go_below(s, err);

	if (r == 0 && (proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0)
		r = ckpt_fail_sys(err, errno, "/proc");
	for (size_t k = 0; k < s->made->n_mounts && r == 0; k++) {
		const size_t i = s->made->order[k];
		int *mnt = &s->made->mounts[i];

		if (!mount_at(s, i)->held)
			continue;
		other = ckpt_ns_by_id(s->run, mount_at(s, i)->ns)->owner;
		snprintf(name, sizeof(name), "h%zu", i);
		r = take_one(s, i, err);
		if (r == 0)
			r = show(s, *mnt, name, err);
		ckpt_cleanup_fd(mnt);
		*mnt = -1;
	}
	if (r < 0)
		return r;
	if (fchdir(s->stage) || setns(other->fd, CLONE_NEWUSER) || unshare(CLONE_NEWNS))
		return ckpt_fail_sys(err, errno, "a copy of mounts whose flags are to be locked");
	s->made->shown = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	s->made->held = openat(proc, "self/ns/mnt", O_RDONLY | O_CLOEXEC);
	return s->made->shown < 0 || s->made->held < 0
		       ? ckpt_fail_sys(err, errno, "/proc/self/ns/mnt")
		       : 0;
}

/* When its turn comes, since the kernel numbers clones too. */
static int take_held(struct sources *s, size_t i, struct ckpt_error *err)
{
	CKPT_AUTO_FD int place = -1;
	char name[32];

	snprintf(name, sizeof(name), "h%zu", i);
	if (setns(s->made->held, CLONE_NEWNS))
		return ckpt_fail_sys(err, errno, "setns(2)");
	place = mnt_open_path(s->made->shown, name);
	s->made->mounts[i] = place < 0 ? -1 : mnt_clone(place);
	if (s->made->mounts[i] < 0)
		return ckpt_fail_sys(err, errno, "open_tree(2) of what has locked flags");
	if (setns(s->made->work, CLONE_NEWNS))
		return ckpt_fail_sys(err, errno, "setns(2)");
	return go_below(s, err) < 0 ? -err->err
				    : mnt_set_loose(s->made->mounts[i], mount_at(s, i), err);
}

/* ---- all -------------------------------------------------------------------------------- */

/* In order: the kernel numbers mounts when they are made, and lists them so. */
static int take_all(struct sources *s, bool later, struct ckpt_error *err)
{
	int r = 0;

	for (size_t k = 0; k < s->made->n_mounts && r == 0; k++) {
		size_t i = s->made->order[k];

		/* those of terminals are there */
		if (s->made->mounts[i] < 0 && is_later(s->run, mount_at(s, i)) == later)
			r = mount_at(s, i)->held ? take_held(s, i, err) : take_one(s, i, err);
	}
	return r;
}

static int prepare_all(void *arg, struct ckpt_error *err)
{
	struct sources *s = arg;
	int r;

	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
		return ckpt_fail_sys(err, errno, "a private copy of ckpt's mount namespace");
	s->made->work = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
	s->made->below = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (s->made->work < 0 || s->made->below < 0)
		return ckpt_fail_sys(err, errno, "/proc/self/ns/mnt");
	r = uncover(s, err);
	if (r == 0)
		r = make_stage(s, err);
	s->made->stage = s->stage;
	if (r == 0)
		r = show_all(s, err);
	return r < 0 ? r : take_all(s, false, err);
}

static int take_later(void *arg, struct ckpt_error *err)
{
	int r = go_below(arg, err);

	return r < 0 ? r : take_all(arg, true, err);
}

int mnt_make_sources(struct ckpt_run *run, struct mnt_made *made, struct ckpt_error *err)
{
	struct sources s = { run, made, NULL, made->first, -1 };
	struct ckpt_ns_place place = { 0 };
	int r = ckpt_mounts(run, ckpt_ns_own(run, CKPT_NS_MNT), &s.own, err);

	return r < 0 ? r : ckpt_ns_run(run, &place, prepare_all, &s, err);
}

int mnt_make_later_sources(struct ckpt_run *run, struct mnt_made *made, struct ckpt_error *err)
{
	struct ckpt_ns work = *ckpt_ns_own(run, CKPT_NS_MNT);
	struct ckpt_ns_place place = { .ns = { [CKPT_NS_MNT] = &work } };
	struct sources s = { run, made, NULL, made->first, made->stage };
	bool any = false, held = false;
	const Ckpt__Mnt__Mount *rec;
	int r = 0;

	for (size_t i = 0; (rec = ckpt_record_at(run, "mnt.mount", i)); i++) {
		any |= is_later(run, rec);
		held |= rec->held;
	}
	work.own = false;
	work.fd = made->work;
	if (held)
		r = ckpt_ns_run(run, &place, hold_all, &s, err);
	return r == 0 && any ? ckpt_ns_run(run, &place, take_later, &s, err) : r;
}
