/* SPDX-License-Identifier: MIT */
/* What unix sockets are bound to: paths and abstract names. */
#include "unix.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#ifndef SIOCUNIXFILE
#define SIOCUNIXFILE 0x89E0
#endif

#define PATH_OFFSET offsetof(struct sockaddr_un, sun_path)
/* a directory and a name in it */
#define FULL_SIZE (PATH_MAX + SOCK_NAME_SIZE + 2)

/* ---- looking ------------------------------------------------------------------------ */

bool sock_name_take(const struct sockaddr_un *a, size_t len, struct sock_name *n)
{
	memset(n, 0, sizeof(*n));
	if (len <= PATH_OFFSET || len > sizeof(*a))
		return false;
	len -= PATH_OFFSET;
	n->abstract = !a->sun_path[0];
	n->len = n->abstract ? len - 1 : strnlen(a->sun_path, len);
	memcpy(n->text, a->sun_path + n->abstract, n->len);
	return true;
}

int sock_name_read(int fd, bool peer, struct sock_name *n)
{
	struct sockaddr_un a = { 0 };
	socklen_t len = sizeof(a);
	int r = peer ? getpeername(fd, (struct sockaddr *)&a, &len)
		     : getsockname(fd, (struct sockaddr *)&a, &len);

	if (r)
		return -errno;
	/* the longest path has no room for its NUL, which the length counts */
	return sock_name_take(&a, len > sizeof(a) ? sizeof(a) : len, n);
}

bool sock_name_same(const struct sock_name *a, const struct sock_name *b)
{
	return a->len == b->len && a->abstract == b->abstract && !memcmp(a->text, b->text, a->len);
}

int sock_unix_file(int fd)
{
	return ioctl(fd, SIOCUNIXFILE);
}

static bool leads_to(struct ckpt_run *run, uint32_t mnt, const char *path, const struct stat *st)
{
	struct stat now;

	return !ckpt_stat_in(run, mnt, path, false, &now) && st->st_dev == now.st_dev &&
	       st->st_ino == now.st_ino;
}

/* Is that path where a relative name leads to from some directory? */
static bool begin_of_relative(struct sock_name *n, const char *path)
{
	const size_t len = strlen(path);

	if (len <= n->len || path[len - n->len - 1] != '/' ||
	    memcmp(path + len - n->len, n->text, n->len) != 0)
		return false;
	snprintf(n->dir, sizeof(n->dir), "%.*s", (int)(len - n->len), path);
	return true;
}

/*
 * Where the file is, whatever it was called when it was bound: programs bind a socket under a name
 * of their own, and then rename it in place of the one before; and in other namespaces no path with
 * a symbolic link is followed. false: it is somewhere where that cannot be told.
 */
static bool locate_file(struct ckpt_run *run, int file, struct sock_name *n)
{
	CKPT_AUTO_FREE char *other = NULL;
	char link[40], path[PATH_MAX];
	ssize_t len;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", file);
	len = readlink(link, path, sizeof(path) - 1);
	if (len < 0)
		return false;
	path[len] = '\0';
	if (!leads_to(run, n->mnt, path, &n->st)) {
		other = ckpt_other_name(run, n->mnt, path, &n->st);
		/* removed since: only the name is left */
		if (!other || strlen(other) >= sizeof(path))
			return !n->st.st_nlink;
		snprintf(path, sizeof(path), "%s", other);
	}
	if (n->text[0] == '/' || !begin_of_relative(n, path))
		snprintf(n->now, sizeof(n->now), "%s", path);
	n->present = true;
	return true;
}

bool sock_name_locate(struct ckpt_run *run, int fd, struct sock_name *n)
{
	CKPT_AUTO_FD int file = -1;
	int mnt;

	if (n->abstract || !n->len)
		return true;
	file = sock_unix_file(fd);
	if (file < 0 || fstat(file, &n->st))
		return true;
	mnt = ckpt_mnt_of_fd(run, file, NULL);
	if (mnt < 0)
		return mnt == -ENOENT;
	n->mnt = (uint32_t)mnt;
	n->present = n->text[0] == '/' && leads_to(run, n->mnt, n->text, &n->st);
	return n->present || locate_file(run, file, n);
}

int sock_name_survey(struct ckpt_run *run, const struct ckpt_fd_found *f)
{
	struct sock_name n;
	int r = sock_name_read(f->fd, false, &n);

	if (r < 0 || (r && !sock_name_locate(run, f->fd, &n)))
		return sock_refuse(run, f, "file-name",
				   "the file of the socket is not where it was bound, and where it "
				   "is cannot be told",
				   "undo the mounting that hides it, or let the program bind it "
				   "again");
	return 0;
}

const Ckpt__Sock__UnixName *sock_name_record(struct sock_name *n)
{
	ckpt__sock__unix_name__init(&n->rec);
	n->rec.name.data = (uint8_t *)n->text;
	n->rec.name.len = n->len;
	n->rec.abstract = n->abstract;
	if (n->present) {
		sock_owner_of(&n->st, &n->owner);
		n->rec.file = &n->owner;
		n->rec.mnt = n->mnt;
		n->rec.dir.data = (uint8_t *)n->dir;
		n->rec.dir.len = strlen(n->dir);
		n->rec.now.data = (uint8_t *)n->now;
		n->rec.now.len = strlen(n->now);
	}
	return &n->rec;
}

/* ---- plan --------------------------------------------------------------------------- */

/*
 * The kernel's list has only the sockets of its network namespace, but whoever connects to a file
 * finds its socket wherever that is, and on an overlay too. One of another type is not disturbed by
 * being asked, and a dgram socket not by one that sends nothing.
 */
static bool is_live(int file)
{
	CKPT_AUTO_FD int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	struct sockaddr_un a = { .sun_family = AF_UNIX };

	snprintf(a.sun_path, sizeof(a.sun_path), "/proc/self/fd/%d", file);
	return fd < 0 || !connect(fd, (struct sockaddr *)&a, sizeof(a)) || errno != ECONNREFUSED;
}

/* The path of a name that has a file; false: there is no valid one. */
static bool full_path(const Ckpt__Sock__UnixName *n, char *buf, size_t size)
{
	char dir[PATH_MAX] = "", name[SOCK_NAME_SIZE + 1];

	if (!n->name.len || n->name.len >= sizeof(name) || memchr(n->name.data, 0, n->name.len))
		return false;
	if (n->now.len)
		return sock_image_path(&n->now, buf, size);
	if (n->name.data[0] != '/' && !sock_image_path(&n->dir, dir, sizeof(dir)))
		return false;
	memcpy(name, n->name.data, n->name.len);
	name[n->name.len] = '\0';
	return (size_t)snprintf(buf, size, "%s%s", dir, name) < size;
}

static int plan_path(struct ckpt_run *run, const Ckpt__Sock__UnixName *n, const char *path,
		     struct ckpt_error *err)
{
	CKPT_AUTO_FD int file = -1;
	const uint32_t mnt = n->mnt;
	char dir[FULL_SIZE];
	struct stat s;
	int r;

	/* what one has bound is in use for the next, but a dead one is there for the first only */
	if (ckpt_copies_collide(run, mnt, path))
		return ckpt_unmet(
			run, CKPT_EXIT_REFUSED, "lay a layer over its directory (--layer)",
			"each copy would take the name of the socket %s for itself", path);
	snprintf(dir, sizeof(dir), "%s", path);
	*(strrchr(dir, '/') + 1) = '\0';
	r = ckpt_stat_in(run, mnt, dir, false, &s);
	if (r == -EINPROGRESS)
		return 0;
	if (r == -ELOOP)
		return ckpt_link_unmet(run, dir);
	if (r < 0)
		return ckpt_unmet(run, CKPT_EXIT_FAILED, "make the directory again",
				  "the socket %s cannot be bound: %s: %s", path, dir,
				  ckpt_errno_name(r));
	if (ckpt_stat_in(run, mnt, path, true, &s))
		return 0;
	if (!S_ISSOCK(s.st_mode))
		return ckpt_unmet(run, CKPT_EXIT_FAILED, "move it away",
				  "the socket %s cannot be bound: something else is there", path);
	/* the original is still there while its own image is checked */
	if (ckpt_plan_only(run))
		return 0;
	file = ckpt_open_in(run, mnt, path, O_PATH | O_NOFOLLOW, 0, err);
	if (file < 0)
		return file;
	if (is_live(file))
		return ckpt_unmet(run, CKPT_EXIT_FAILED, "stop the program that listens there",
				  "the socket %s is in use", path);
	/* ckpt may remove what the program could not */
	if (s.st_uid != n->file->uid)
		return ckpt_unmet(run, CKPT_EXIT_FAILED, "move it away",
				  "the socket %s cannot be bound: one of another user is there",
				  path);
	return 0;
}

static bool fits(const Ckpt__Sock__UnixName *n)
{
	return n->name.len <= SOCK_NAME_SIZE - !!n->abstract && (n->abstract || n->name.len);
}

int sock_name_plan(struct ckpt_run *run, const Ckpt__Sock__UnixName *n, uint32_t id,
		   struct ckpt_error *err)
{
	char path[FULL_SIZE];
	int r;

	if (!n)
		return 0;
	if (!fits(n) || (!n->abstract && memchr(n->name.data, 0, n->name.len)) ||
	    (n->abstract && n->file))
		return ckpt_fail_image(err, "open file %u has no valid name", id);
	if (!n->file)
		return 0;
	if (!full_path(n, path, sizeof(path)))
		return ckpt_fail_image(err, "open file %u has no valid name", id);
	r = sock_owner_check(n->file, id, err);
	return r ? r : plan_path(run, n, path, err);
}

bool sock_name_equal(const Ckpt__Sock__UnixName *a, const Ckpt__Sock__UnixName *b)
{
	return a && b && a->abstract == b->abstract && a->name.len == b->name.len &&
	       !memcmp(a->name.data, b->name.data, a->name.len);
}

/* ---- binding ------------------------------------------------------------------------ */

socklen_t sock_name_address(const Ckpt__Sock__UnixName *n, struct sockaddr_un *a)
{
	memset(a, 0, sizeof(*a));
	a->sun_family = AF_UNIX;
	memcpy(a->sun_path + n->abstract, n->name.data, n->name.len);
	return (socklen_t)(PATH_OFFSET + n->abstract + n->name.len);
}

static int bind_name(int fd, const Ckpt__Sock__UnixName *n)
{
	struct sockaddr_un a;
	socklen_t len = sock_name_address(n, &a);

	return bind(fd, (struct sockaddr *)&a, len) ? -errno : 0;
}

/* Make room for a name in a directory: only a dead socket's of the same user goes. */
static int take_name(int dir, const char *base, const char *path, uid_t uid, struct ckpt_error *err)
{
	CKPT_AUTO_FD int file = openat(dir, base, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	struct stat st, now;

	if (file < 0 || fstat(file, &st))
		return errno == ENOENT ? 0 : ckpt_fail_sys(err, errno, "%s", path);
	/* asked here too: plan sees no namespace that is not made yet */
	if (S_ISSOCK(st.st_mode) && is_live(file)) {
		ckpt_fail(err, EADDRINUSE, "the socket %s is in use", path);
		return ckpt_hint(err, "stop the program that listens there");
	}
	if (!S_ISSOCK(st.st_mode) || st.st_uid != uid)
		return ckpt_fail(err, EADDRINUSE,
				 "the socket %s cannot be bound: something else "
				 "is there",
				 path);
	if (fstatat(dir, base, &now, AT_SYMLINK_NOFOLLOW) || now.st_dev != st.st_dev ||
	    now.st_ino != st.st_ino)
		return ckpt_fail(err, ESTALE, "the socket %s was replaced meanwhile", path);
	return unlinkat(dir, base, 0) ? ckpt_fail_sys(err, errno, "%s cannot be replaced", path)
				      : 0;
}

#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif

/* By the socket, not its name: what is there by now may be a link to anything. */
static int own_file(int file, const Ckpt__Sock__Owner *owner)
{
	char link[40];
	struct stat st;

	if (fstat(file, &st))
		return -errno;
	if ((st.st_uid != owner->uid || st.st_gid != owner->gid) &&
	    fchownat(file, "", owner->uid, owner->gid, AT_EMPTY_PATH))
		return -errno;
	if (!syscall(SYS_fchmodat2, file, "", owner->mode, AT_EMPTY_PATH))
		return 0;
	/* before Linux 6.6 */
	snprintf(link, sizeof(link), "/proc/thread-self/fd/%d", file);
	return errno != ENOSYS || chmod(link, owner->mode) ? -errno : 0;
}

/* The directories of a path, made or removed. */
static void directories(char *path, bool make)
{
	if (make) {
		for (char *p = strchr(path + 1, '/'); p; p = strchr(p + 1, '/')) {
			*p = '\0';
			mkdir(path, 0700);
			*p = '/';
		}
		return;
	}
	for (char *p = strrchr(path, '/'); p && p > path; p = strrchr(path, '/')) {
		*p = '\0';
		ckpt_remove(AT_FDCWD, path, AT_REMOVEDIR);
	}
}

/* Where a file that was bound in a root directory of our own goes. */
struct bind_to {
	int dir; /* -1: it is deleted */
	const char *base;
};

/* With an empty directory as root. */
static int bind_below(int fd, const Ckpt__Sock__UnixName *n, const struct bind_to *to)
{
	char path[SOCK_NAME_SIZE + 1] = "";
	int r;

	memcpy(path, n->name.data, n->name.len);
	directories(path, true);
	r = bind_name(fd, n);
	if (!r && to->dir >= 0 && renameat2(AT_FDCWD, path, to->dir, to->base, RENAME_NOREPLACE) &&
	    (errno != EINVAL || renameat(AT_FDCWD, path, to->dir, to->base)))
		r = -errno;
	if (r || to->dir < 0)
		ckpt_remove(AT_FDCWD, path, 0);
	directories(path, false);
	return r;
}

/*
 * In a root directory of our own, below `at`, where the same path is free: the kernel remembers
 * the path that is given to bind(2), which others see. From there the file goes to where it is to
 * be: nobody can lead a path astray that he has no part in.
 */
static int bind_elsewhere(struct ckpt_run *run, int fd, const Ckpt__Sock__UnixName *n, int at,
			  const struct bind_to *to, struct ckpt_error *err)
{
	CKPT_AUTO_FD int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	CKPT_AUTO_FD int cwd = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	CKPT_AUTO_FD int own = -1;
	char name[64];
	int r;

	snprintf(name, sizeof(name), ".ckpt-sock-%llu-%d", (unsigned long long)ckpt_run_number(run),
		 (int)getpid());
	if (root < 0 || cwd < 0 || mkdirat(at, name, 0700))
		return ckpt_fail_sys(err, errno, "making the directory %s", name);
	own = openat(at, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	r = own < 0 || fchdir(own) || chroot(".") ? -errno : bind_below(fd, n, to);
	if (fchdir(root) || chroot(".") || fchdir(cwd))
		r = r ? r : -errno;
	ckpt_remove(at, name, AT_REMOVEDIR);
	return r ? ckpt_fail_sys(err, r, "bind(2) to %.*s", (int)n->name.len,
				 (const char *)n->name.data)
		 : 0;
}

/* Whoever may write to its directory may have moved other things than the file. */
static int check_made(int file, int dir, const char *base)
{
	struct stat is, there;

	if (file < 0 || fstat(file, &is) || fstatat(dir, base, &there, AT_SYMLINK_NOFOLLOW))
		return -errno;
	return is.st_ino == there.st_ino ? 0 : -ESTALE;
}

/* Where its path led to its file, or where that is by now. */
static int bind_in_place(struct ckpt_run *run, int fd, const Ckpt__Sock__UnixName *n,
			 struct ckpt_error *err)
{
	CKPT_AUTO_FD int dir = -1;
	CKPT_AUTO_FD int file = -1;
	char path[FULL_SIZE];
	struct bind_to to;
	struct ckpt_ids ids;
	int r;

	if (!full_path(n, path, sizeof(path)))
		return ckpt_fail_image(err, "the name of a unix socket is not valid");
	to.dir = dir = ckpt_open_above(run, n->mnt, path, &to.base, err);
	if (dir < 0)
		return dir;
	r = take_name(dir, to.base, path, n->file->uid, err);
	if (!r)
		r = ckpt_ids_take(&ids, n->file->uid, n->file->gid, err);
	if (r < 0)
		return r;
	r = bind_elsewhere(run, fd, n, dir, &to, err);
	ckpt_ids_give_back(&ids);
	if (r < 0)
		return ckpt_wrap(err, "%s", path);
	file = sock_unix_file(fd);
	r = check_made(file, dir, to.base);
	if (!r)
		r = sock_note_made(sock_state(run), dir, to.base, file);
	if (!r)
		r = own_file(file, n->file);
	return r ? ckpt_fail_sys(err, r, "owner and mode of %s", path) : 0;
}

static int bind_nowhere(struct ckpt_run *run, int fd, const Ckpt__Sock__UnixName *n,
			struct ckpt_error *err)
{
	const struct bind_to nowhere = { -1, NULL };
	CKPT_AUTO_FD int at = open("/tmp", O_PATH | O_DIRECTORY | O_CLOEXEC);

	return at < 0 ? ckpt_fail_sys(err, errno, "/tmp")
		      : bind_elsewhere(run, fd, n, at, &nowhere, err);
}

int sock_bind(struct ckpt_run *run, int fd, const Ckpt__Sock__UnixName *n, struct ckpt_error *err)
{
	int r;

	if (!n)
		return 0;
	/* plan has seen to it; what is copied onto the stack is looked at where it is */
	if (!fits(n))
		return ckpt_fail_image(err, "the name of a unix socket is not valid");
	if (!n->abstract)
		return n->file ? bind_in_place(run, fd, n, err) : bind_nowhere(run, fd, n, err);
	r = bind_name(fd, n);
	return r ? ckpt_fail_sys(err, r, "bind(2) to @%.*s", (int)n->name.len,
				 (const char *)n->name.data)
		 : 0;
}
