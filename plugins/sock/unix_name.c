/* SPDX-License-Identifier: MIT */
/* What unix sockets are bound to: paths and abstract names. */
#include "unix.h"

#include <limits.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

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
 * What the kernel's list said when it was read. Is a living socket bound to this inode? Its
 * filesystem is told by that of its directory: on an overlay the socket may have a layer's.
 */
static bool in_use(const struct sock_state *st, const struct stat *s, dev_t of_directory)
{
	/* the kernel's own encoding of a device number */
	uint32_t dev = (uint32_t)major(of_directory) << 20 | (uint32_t)minor(of_directory);

	for (size_t i = 0; i < st->n_diag; i++)
		if (st->diag[i].has_file && st->diag[i].file_ino == (uint32_t)s->st_ino &&
		    st->diag[i].file_dev == dev)
			return true;
	return false;
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

static int plan_path(struct ckpt_run *run, uint32_t mnt, const char *path, struct ckpt_error *err)
{
	struct sock_state *st = sock_state(run);
	char dir[FULL_SIZE];
	struct stat s;
	dev_t dev;
	int r;

	/* one in use is not to be told from a dead one in another network namespace */
	if (ckpt_copies_collide(run, mnt, path))
		return ckpt_unmet(
			run, CKPT_EXIT_REFUSED, "lay a layer over its directory (--layer)",
			"each copy would take the name of the socket %s for itself", path);
	snprintf(dir, sizeof(dir), "%s", path);
	*(strrchr(dir, '/') + 1) = '\0';
	r = ckpt_stat_in(run, mnt, dir, false, &s);
	if (r == -EINPROGRESS)
		return 0;
	if (r < 0)
		return ckpt_unmet(run, CKPT_EXIT_FAILED, "make the directory again",
				  "the socket %s cannot be bound: %s: %s", path, dir,
				  ckpt_errno_name(r));
	dev = s.st_dev;
	if (ckpt_stat_in(run, mnt, path, true, &s))
		return 0;
	if (!S_ISSOCK(s.st_mode))
		return ckpt_unmet(run, CKPT_EXIT_FAILED, "move it away",
				  "the socket %s cannot be bound: something else is there", path);
	/* the original is still there while its own image is checked */
	if (ckpt_plan_only(run))
		return 0;
	r = sock_unix_diag(run, err);
	if (!r && in_use(st, &s, dev))
		return ckpt_unmet(run, CKPT_EXIT_FAILED, "stop the program that listens there",
				  "the socket %s is in use", path);
	return r;
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
	return r ? r : plan_path(run, n->mnt, path, err);
}

bool sock_name_equal(const Ckpt__Sock__UnixName *a, const Ckpt__Sock__UnixName *b)
{
	return a && b && a->abstract == b->abstract && a->name.len == b->name.len &&
	       !memcmp(a->name.data, b->name.data, a->name.len);
}

static bool any_file(struct ckpt_run *run)
{
	for (size_t i = 0; i < ckpt_record_count(run, "sock.unix-listen"); i++) {
		const Ckpt__Sock__UnixListen *l = ckpt_record_at(run, "sock.unix-listen", i);

		if (l->name->file)
			return true;
	}
	for (size_t i = 0; i < ckpt_record_count(run, "sock.unix-end"); i++) {
		const Ckpt__Sock__UnixEnd *e = ckpt_record_at(run, "sock.unix-end", i);

		if (e->name && e->name->file)
			return true;
	}
	return false;
}

int sock_names_in_use(struct ckpt_run *run, struct ckpt_error *err)
{
	struct sock_state *st = sock_state(run);

	if (!any_file(run))
		return 0;
	st->diag_known = false;
	st->n_diag = st->n_waiting = 0;
	return sock_unix_diag(run, err);
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

/* In a directory, for a relative path. */
static int bind_in(int fd, const Ckpt__Sock__UnixName *n)
{
	CKPT_AUTO_FD int cwd = -1;
	char dir[PATH_MAX];
	int r;

	if (n->name.data[0] == '/')
		return bind_name(fd, n);
	cwd = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (cwd < 0 || !sock_image_path(&n->dir, dir, sizeof(dir)) || chdir(dir))
		return -errno;
	r = bind_name(fd, n);
	return fchdir(cwd) && !r ? -errno : r;
}

/*
 * Make room for a name in a directory: only a dead socket's goes. The kernel remembers the path
 * given to bind(2), so that binding elsewhere and renaming would show. That it is dead is asked
 * here too: plan sees no namespace that is not made yet.
 */
static int take_name(struct ckpt_run *run, int dir, const char *base, const char *path,
		     struct ckpt_error *err)
{
	struct stat st, above;

	if (fstatat(dir, base, &st, AT_SYMLINK_NOFOLLOW))
		return errno == ENOENT ? 0 : ckpt_fail_sys(err, errno, "%s", path);
	if (!S_ISSOCK(st.st_mode))
		return ckpt_fail(err, EADDRINUSE,
				 "the socket %s cannot be bound: something else "
				 "is there",
				 path);
	if (fstat(dir, &above))
		return ckpt_fail_sys(err, errno, "the directory of %s", path);
	if (in_use(sock_state(run), &st, above.st_dev)) {
		ckpt_fail(err, EADDRINUSE, "the socket %s is in use", path);
		return ckpt_hint(err, "stop the program that listens there");
	}
	return unlinkat(dir, base, 0) ? ckpt_fail_sys(err, errno, "%s cannot be replaced", path)
				      : 0;
}

#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif

/* By the socket, not its name: what is there by now may be a link to anything. */
static int own_file(int fd, const Ckpt__Sock__Owner *owner)
{
	CKPT_AUTO_FD int file = sock_unix_file(fd);
	char link[40];
	struct stat st;

	if (file < 0 || fstat(file, &st))
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
		rmdir(path);
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
	if (!r && to->dir >= 0 && renameat(AT_FDCWD, path, to->dir, to->base))
		r = -errno;
	if (r || to->dir < 0)
		unlink(path);
	directories(path, false);
	return r;
}

/*
 * To a name whose file is gone, another socket's, or elsewhere by now: in a root directory of our
 * own, where the same path is free. `at` is the pattern of that directory's path.
 */
static int bind_elsewhere(int fd, const Ckpt__Sock__UnixName *n, char *at, const struct bind_to *to,
			  struct ckpt_error *err)
{
	CKPT_AUTO_FD int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	CKPT_AUTO_FD int cwd = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	int r;

	if (root < 0 || cwd < 0 || !mkdtemp(at))
		return ckpt_fail_sys(err, errno, "making the directory %s", at);
	r = chroot(at) || chdir("/") ? -errno : bind_below(fd, n, to);
	if (fchdir(root) || chroot(".") || fchdir(cwd))
		r = r ? r : -errno;
	rmdir(at);
	return r ? ckpt_fail_sys(err, r, "bind(2) to %.*s", (int)n->name.len,
				 (const char *)n->name.data)
		 : 0;
}

/* Its directory is there, and the name in it is free. */
static int bind_there(int fd, const Ckpt__Sock__UnixName *n, int dir, const char *path,
		      struct ckpt_error *err)
{
	const char *base = strrchr(path, '/') + 1;
	const struct bind_to to = { dir, base };
	char at[FULL_SIZE + 32];
	int r;

	if (n->now.len) {
		snprintf(at, sizeof(at), "%.*s.ckpt-sock-XXXXXX", (int)(base - path), path);
		return bind_elsewhere(fd, n, at, &to, err);
	}
	r = bind_in(fd, n);
	return r ? ckpt_fail_sys(err, r, "bind(2) to %s", path) : 0;
}

static int bind_path(struct ckpt_run *run, int fd, const Ckpt__Sock__UnixName *n,
		     struct ckpt_error *err)
{
	CKPT_AUTO_FD int dir = -1;
	char path[FULL_SIZE], above[FULL_SIZE];
	const char *base;
	struct ckpt_ids ids;
	int r;

	if (!full_path(n, path, sizeof(path)))
		return ckpt_fail_image(err, "the name of a unix socket is not valid");
	base = strrchr(path, '/') + 1;
	snprintf(above, sizeof(above), "%.*s", (int)(base - path), path);
	dir = open(above, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return ckpt_fail_sys(err, errno, "%s", above);
	r = take_name(run, dir, base, path, err);
	if (!r)
		r = ckpt_ids_take(&ids, n->file->uid, n->file->gid, err);
	if (r < 0)
		return r;
	r = bind_there(fd, n, dir, path, err);
	ckpt_ids_give_back(&ids);
	if (r)
		return r;
	if (sock_note_made(sock_state(run), dir, base)) {
		unlinkat(dir, base, 0);
		return ckpt_fail(err, ENOMEM, "out of memory");
	}
	r = own_file(fd, n->file);
	return r ? ckpt_fail_sys(err, r, "owner and mode of %s", path) : 0;
}

struct binding {
	struct ckpt_run *run;
	int fd;
	const Ckpt__Sock__UnixName *n;
};

static int bind_in_namespace(void *arg, struct ckpt_error *err)
{
	struct binding *b = arg;

	return bind_path(b->run, b->fd, b->n, err);
}

/* Where its path leads to its file. */
static int bind_in_place(struct ckpt_run *run, int fd, const Ckpt__Sock__UnixName *n,
			 struct ckpt_error *err)
{
	struct binding b = { run, fd, n };
	struct ckpt_ns_place place = { 0 };

	if (!n->mnt)
		return bind_path(run, fd, n, err);
	place.ns[CKPT_NS_MNT] = ckpt_ns_by_id(run, n->mnt);
	if (!place.ns[CKPT_NS_MNT] || place.ns[CKPT_NS_MNT]->type != CKPT_NS_MNT)
		return ckpt_fail_image(err,
				       "a socket's path is in mount namespace %u, which there is "
				       "not",
				       n->mnt);
	return ckpt_ns_run(run, &place, bind_in_namespace, &b, err);
}

int sock_bind(struct ckpt_run *run, int fd, const Ckpt__Sock__UnixName *n, struct ckpt_error *err)
{
	const struct bind_to nowhere = { -1, NULL };
	char at[] = "/tmp/ckpt-sock-XXXXXX";
	int r;

	if (!n)
		return 0;
	/* plan has seen to it; what is copied onto the stack is looked at where it is */
	if (!fits(n))
		return ckpt_fail_image(err, "the name of a unix socket is not valid");
	if (!n->abstract)
		return n->file ? bind_in_place(run, fd, n, err)
			       : bind_elsewhere(fd, n, at, &nowhere, err);
	r = bind_name(fd, n);
	return r ? ckpt_fail_sys(err, r, "bind(2) to @%.*s", (int)n->name.len,
				 (const char *)n->name.data)
		 : 0;
}
