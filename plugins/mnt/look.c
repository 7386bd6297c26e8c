/* SPDX-License-Identifier: MIT */
/*
 * What mountinfo does not tell of a namespace: which mounts are locked, what lies below
 * others, whose filesystems they are. Looked for in a private copy, made by a helper that
 * has joined the owner, so that the locks are kept: there, mounts are taken off from the
 * top, as far as they can be. Nothing of that is seen in the namespace itself.
 */
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <sys/sysmacros.h>

#include "mnt.h"

/* children of a mount that was looked at: never a leaf again */
#define DONE (SIZE_MAX / 2)

/* A mount of the copy, by its mountinfo. */
struct device {
	uint64_t id;
	uint32_t major, minor;
};

struct look {
	struct mnt_state *st;
	const struct ckpt_ns *ns;
	int proc; /* ckpt's /proc */
	struct device *devices;
	size_t n;
};

static int add_device(struct look *l, const char *line, struct ckpt_error *err)
{
	struct device d = { 0 }, *more;

	if (sscanf(line, "%" SCNu64 " %*u %u:%u", &d.id, &d.major, &d.minor) != 3)
		return ckpt_fail(err, EPROTO, "/proc/self/mountinfo: \"%.80s\"", line);
	more = reallocarray(l->devices, l->n + 1, sizeof(*more));
	if (!more)
		return ckpt_fail(err, ENOMEM, "out of memory");
	l->devices = more;
	l->devices[l->n++] = d;
	return 0;
}

static int read_devices(struct look *l, struct ckpt_error *err)
{
	int fd = openat(l->proc, "self/mountinfo", O_RDONLY | O_CLOEXEC), r = 0;
	CKPT_AUTO_FILE FILE *f = fd < 0 ? NULL : fdopen(fd, "r");
	CKPT_AUTO_FREE char *line = NULL;
	size_t cap = 0;

	if (!f)
		return ckpt_fail_sys(err, errno, "/proc/self/mountinfo");
	while (r == 0 && getline(&line, &cap, f) > 0)
		r = add_device(l, line, err);
	return r;
}

/*
 * By the mount's number: what stat(2) of a file tells is another device on btrfs, and on an
 * overlay whose layers are of several filesystems.
 */
static bool same_filesystem(const struct look *l, int fd, const struct ckpt_mount *m)
{
	uint64_t id;

	if (mnt_mount_id(fd, "", &id) < 0)
		return false;
	for (size_t i = 0; i < l->n; i++)
		if (l->devices[i].id == id)
			return l->devices[i].major == m->major && l->devices[i].minor == m->minor;
	return false;
}

/*
 * Without asking the filesystem, as another user's FUSE tells nothing, and by the descriptor, as
 * O_DIRECTORY asks for what is behind an automount.
 */
static bool is_file(int fd)
{
	CKPT_AUTO_FD int dir = openat(fd, ".", O_PATH | O_CLOEXEC);

	return dir < 0 && errno == ENOTDIR;
}

static bool hangs_on(const struct mnt_mount *m, const struct mnt_mount *top)
{
	while (m && m != top)
		m = m->parent;
	return m != NULL;
}

int mnt_mount_id(int dir, const char *name, uint64_t *id)
{
	struct statx sx;

	/* who asks for nothing is told that, and no filesystem is asked */
	if (statx(dir, name,
		  AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_EMPTY_PATH | AT_STATX_DONT_SYNC, 0,
		  &sx))
		return -errno;
	if (!(sx.stx_mask & STATX_MNT_ID))
		return -EOPNOTSUPP;
	*id = sx.stx_mnt_id;
	return 0;
}

/*
 * Does the way to `m` lead into `n`? At each mount from which it goes on to the next one,
 * or ends, another that is mounted on that may come before.
 */
static bool hides(const struct mnt_mount *n, const struct mnt_mount *m)
{
	const struct mnt_mount *next = m;

	for (const struct mnt_mount *on = m; on; next = on, on = on->parent)
		if (n->parent == on && n != next && mnt_path_below(next->m->point, n->m->point))
			return true;
	return false;
}

/* What hides it is looked at before, and taken off if it can be. */
static bool has_to_wait(const struct mnt_state *st, const struct mnt_mount *m)
{
	for (size_t i = 0; i < st->n_mounts; i++)
		if (st->mounts[i].ns == m->ns && st->mounts[i].children < DONE &&
		    hides(&st->mounts[i], m))
			return true;
	return false;
}

/*
 * Was it found as another one, from further up? A locked mount of the same filesystem that
 * lies on top is all that the path of the one below leads to: the device alone tells nothing.
 */
static bool is_taken(const struct mnt_state *st, const struct mnt_mount *m, int fd)
{
	uint64_t id;

	if (mnt_mount_id(fd, "", &id) < 0)
		return true;
	for (size_t i = 0; i < st->n_mounts; i++)
		if (st->mounts[i].ns == m->ns && st->mounts[i].seen && st->mounts[i].copy == id)
			return true;
	return false;
}

/* Each umount(2) waits for all processors, so only what is in the way is taken off. */
static bool hides_another(const struct mnt_state *st, const struct mnt_mount *m)
{
	for (size_t i = 0; i < st->n_mounts; i++) {
		const struct mnt_mount *n = &st->mounts[i];

		if (n->ns == m->ns && n->fd < 0 && mnt_path_below(n->m->point, m->m->point) &&
		    !hangs_on(n, m))
			return true;
	}
	return false;
}

/* It stays in use through the descriptor: an expired mount would be taken off at once. */
static int take_off(const struct mnt_state *st, struct mnt_mount *m, struct ckpt_error *err)
{
	const char *point = m->m->point;

	if (!umount2(point, MNT_EXPIRE | UMOUNT_NOFOLLOW) || (errno != EBUSY && errno != EINVAL))
		return ckpt_fail_sys(err, errno ? errno : EPROTO,
				     "umount2(2) of %s with MNT_EXPIRE", point);
	m->locked = errno == EINVAL;
	if (!m->locked && hides_another(st, m) && umount2(point, MNT_DETACH | UMOUNT_NOFOLLOW))
		return ckpt_fail_sys(err, errno, "umount2(2) of %s", point);
	return 0;
}

/*
 * The kernel locks the settings of access times together with flags, and whether there are flags
 * or not: they tell of a mount that has been copied into another user namespace, or is a bind of
 * such a one.
 */
static int find_held(struct mnt_mount *m, struct ckpt_error *err)
{
	const uint64_t have = m->attr & MOUNT_ATTR__ATIME, other = have == MOUNT_ATTR_NOATIME
									   ? MOUNT_ATTR_RELATIME
									   : MOUNT_ATTR_NOATIME;
	struct mount_attr take = { .attr_clr = MOUNT_ATTR__ATIME, .attr_set = other },
			  give = { .attr_clr = MOUNT_ATTR__ATIME, .attr_set = have };

	if (m->attr == UINT32_MAX ||
	    (!mount_setattr(m->fd, "", AT_EMPTY_PATH, &take, sizeof(take)) &&
	     !mount_setattr(m->fd, "", AT_EMPTY_PATH, &give, sizeof(give))))
		return 0;
	m->held = errno == EPERM;
	return m->held ? 0 : ckpt_fail_sys(err, errno, "mount_setattr(2) of %s", m->m->point);
}

/* What can be taken away is given back: without `ro` a look at its files would change their times.
 */
static int try_flags(struct mnt_mount *m, struct ckpt_error *err)
{
	for (uint32_t flag = 1; m->attr != UINT32_MAX && flag <= MNT_LOCKABLE; flag <<= 1) {
		struct mount_attr take = { .attr_clr = flag }, give = { .attr_set = flag };

		if (!(m->attr & flag & MNT_LOCKABLE))
			continue;
		if (!mount_setattr(m->fd, "", AT_EMPTY_PATH, &take, sizeof(take)) &&
		    !mount_setattr(m->fd, "", AT_EMPTY_PATH, &give, sizeof(give)))
			m->loose |= flag;
		else if (errno != EPERM)
			return ckpt_fail_sys(err, errno, "mount_setattr(2) of %s", m->m->point);
	}
	return 0;
}

static int look_at(const struct look *l, struct mnt_mount *m, struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = open(m->m->point, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	const struct mnt_state *st = l->st;

	/* below a locked one: nobody in there can ever see it */
	if (fd < 0 || !same_filesystem(l, fd, m->m) || is_taken(st, m, fd) ||
	    mnt_mount_id(fd, "", &m->copy) < 0) {
		m->locked = m->parent != NULL;
		return 0;
	}
	m->seen = true;
	m->file = is_file(fd);
	m->fd = ckpt_steal_fd(&fd);
	if (m->fs->type && m->fs->type->shows == CKPT_NS_TYPES && !m->fs->asked && m->fs->probe < 0)
		m->fs->probe = m->fd;
	/* one that is taken off has no flags to try any more */
	if (find_held(m, err) < 0 || ((m->held || !m->parent) && try_flags(m, err) < 0) ||
	    (m->parent && take_off(st, m, err) < 0))
		return -err->err;
	m->held &= m->parent && !m->locked;
	return 0;
}

static int from_the_top(struct look *l, struct ckpt_error *err)
{
	struct mnt_state *st = l->st;
	bool more = true;

	for (size_t i = 0; i < st->n_mounts; i++)
		if (st->mounts[i].parent)
			st->mounts[i].parent->children++;
	while (more) {
		more = false;
		for (size_t i = st->n_mounts; i--;) {
			struct mnt_mount *m = &st->mounts[i];
			int r;

			if (m->ns != l->ns || m->children || has_to_wait(st, m))
				continue;
			r = look_at(l, m, err);
			if (r < 0)
				return r;
			m->children = DONE;
			if (m->parent)
				m->parent->children--;
			more = true;
		}
	}
	return 0;
}

static int look(void *arg, struct ckpt_error *err)
{
	struct look *l = arg;
	int r = read_devices(l, err);

	if (r == 0)
		r = from_the_top(l, err);
	free(l->devices);
	return r;
}

struct copy {
	int proc; /* ckpt's /proc */
	int fd;
};

/* As the owner: a copy that anybody else makes has everything locked. */
static int copy(void *arg, struct ckpt_error *err)
{
	struct copy *c = arg;

	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
		return ckpt_fail_sys(err, errno, "a private copy of it");
	c->fd = openat(c->proc, "self/ns/mnt", O_RDONLY | O_CLOEXEC);
	return c->fd < 0 ? ckpt_fail_sys(err, errno, "/proc/self/ns/mnt") : 0;
}

/* ---- owners of filesystems ------------------------------------------------------------ */

struct probe {
	const struct mnt_fs *fs;
	int fd, ids;
	bool is;
};

/*
 * Allowed to whoever is privileged in the filesystem's user namespace; changes nothing.
 * But devpts takes all options that are not said for their defaults, so they are said
 * again, and here: before 6.14 it is not until the change that they are read, with the
 * ids of whoever asks for it, and what cannot be read leaves the defaults behind.
 */
static int probe(void *arg, struct ckpt_error *err)
{
	struct probe *p = arg;

	if (!strcmp(p->fs->type->name, "devpts") &&
	    mnt_fs_options(p->fd, "devpts", p->fs->first->options, p->ids, err) < 0)
		/* its owner has all its ids */
		return 0;
	p->is = !fsconfig(p->fd, FSCONFIG_CMD_RECONFIGURE, NULL, NULL, 0);
	return 0;
}

static int ask_owner(struct ckpt_run *run, const struct mnt_fs *fs, const struct ckpt_ns *u,
		     bool *is, struct ckpt_error *err)
{
	struct ckpt_ns_place place = { .ns = { [CKPT_NS_USER] = u } };
	/* one that was refused once is of no use any more */
	CKPT_AUTO_FD int fd = fspick(fs->probe, "", FSPICK_CLOEXEC | FSPICK_EMPTY_PATH);
	CKPT_AUTO_FD int ids = mnt_fs_ids(fs->first->options, err);
	struct probe p = { fs, fd, ids, false };
	int r = ids < 0 ? ids : 0;

	/* of a part of a filesystem it cannot be asked */
	if (r == 0 && fd >= 0)
		r = ckpt_ns_run(run, &place, probe, &p, err);
	*is = p.is;
	return r;
}

static int find_owner(struct ckpt_run *run, struct mnt_fs *fs, const struct ckpt_ns *ns,
		      struct ckpt_error *err)
{
	bool is = false;
	int r = 0;

	fs->owner = ckpt_ns_own(run, CKPT_NS_USER)->id;
	for (const struct ckpt_ns *u = ns->owner; u && !u->own && r == 0 && !is; u = u->parent) {
		r = ask_owner(run, fs, u, &is, err);
		if (is)
			fs->owner = u->id;
	}
	fs->probe = -1;
	fs->asked = true;
	return r;
}

/* The copy is the owner's, the eyes are ours: the owner may not see all places. */
int mnt_look(struct ckpt_run *run, struct mnt_state *st, const struct ckpt_ns *ns,
	     struct ckpt_error *err)
{
	struct ckpt_ns_place owner = { .ns = { [CKPT_NS_MNT] = ns, [CKPT_NS_USER] = ns->owner } };
	CKPT_AUTO_FD int proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC), fd = -1;
	struct ckpt_ns private = *ns;
	struct ckpt_ns_place place = { .ns = { [CKPT_NS_MNT] = &private } };
	struct look l = { st, ns, proc, NULL, 0 };
	struct copy c = { proc, -1 };
	int r = proc < 0 ? ckpt_fail_sys(err, errno, "/proc")
			 : ckpt_ns_run(run, &owner, copy, &c, err);

	private.fd = fd = c.fd;
	if (r == 0)
		r = ckpt_ns_run(run, &place, look, &l, err);
	for (size_t i = 0; i < st->n_mounts; i++)
		st->mounts[i].children = 0;
	for (size_t i = 0; i < st->n_fs && r == 0; i++)
		if (st->fs[i]->probe >= 0)
			r = find_owner(run, st->fs[i], ns, err);
	return r < 0 ? ckpt_wrap(err, "mount namespace %u", ns->id) : 0;
}
