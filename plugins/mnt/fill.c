/* SPDX-License-Identifier: MIT */
/* restore: files put back into filesystems in memory. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

#include "mnt.h"

/* Directories from the root of the filesystem down to where we are. */
struct level {
	const Ckpt__Mnt__Inode *rec;
	int fd;
};

struct fill {
	struct ckpt_run *run;
	int root, pages;
	/* all is there: what has touched directories, sockets and FIFOs is undone, and flags come
	 */
	bool settle;
	struct level *stack;
	size_t n, cap;
	size_t first, n_records; /* of the filesystem */
	struct mnt_numbers numbers;
};

static void fill_free(struct fill *f)
{
	while (f->n)
		close(f->stack[--f->n].fd);
	if (f->pages >= 0)
		close(f->pages);
	free(f->stack);
	free(f->numbers.waits);
}

static struct timespec time_of(int64_t ns)
{
	const int64_t part = ns % 1000000000;

	/* before 1970 the division rounds up, and utimensat(2) takes no negative part */
	return (struct timespec){ ns / 1000000000 - (part < 0),
				  part + (part < 0 ? 1000000000 : 0) };
}

static int set_times(int fd, const Ckpt__Mnt__Inode *rec, struct ckpt_error *err)
{
	const struct timespec times[2] = { time_of(rec->atime_ns), time_of(rec->mtime_ns) };
	char path[40];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (S_ISLNK(rec->mode) ? utimensat(fd, "", times, AT_EMPTY_PATH)
			       : utimensat(AT_FDCWD, path, times, 0))
		return ckpt_fail_sys(err, errno, "its times");
	return 0;
}

/* By the path of a descriptor; a symbolic link has none of its own that leads to it. */
static int set_xattrs(const char *path, const Ckpt__Mnt__Inode *rec, struct ckpt_error *err)
{
	for (size_t i = 0; i < rec->n_xattrs; i++) {
		const Ckpt__Mnt__Xattr *x = rec->xattrs[i];

		if ((S_ISLNK(rec->mode) ? lsetxattr : setxattr)(path, x->name, x->value.data,
								x->value.len, 0))
			return ckpt_fail_sys(err, errno, "its attribute %s", x->name);
	}
	return 0;
}

static int set_flags(int fd, unsigned flags, struct ckpt_error *err)
{
	CKPT_AUTO_FD int file = -1;
	unsigned value = 0;
	char path[40];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	file = open(path, O_RDONLY | O_NONBLOCK | O_NOATIME | O_CLOEXEC);
	/* those of how a disk keeps it are the disk's */
	if (file < 0 || ioctl(file, FS_IOC_GETFLAGS, &value))
		return ckpt_fail_sys(err, errno, "its flags");
	value = (value & ~MNT_FLAGS) | flags;
	if (ioctl(file, FS_IOC_SETFLAGS, &value))
		return ckpt_fail_sys(err, errno, "its flags %#x", flags);
	return 0;
}

/*
 * What is left of a directory: its attributes, as what is made in it would inherit those, and its
 * times, when nothing is added to it any more.
 */
static int leave(struct fill *f, struct ckpt_error *err)
{
	struct level *l = &f->stack[--f->n];
	char path[40];
	int r = 0;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", l->fd);
	if (!f->settle)
		r = set_xattrs(path, l->rec, err);
	if (r == 0)
		r = set_times(l->fd, l->rec, err);
	if (r == 0 && f->settle && l->rec->flags)
		r = set_flags(l->fd, l->rec->flags, err);
	close(l->fd);
	return r;
}

static int push(struct level **list, size_t *n, size_t *cap, const Ckpt__Mnt__Inode *rec, int fd,
		struct ckpt_error *err)
{
	if (*n == *cap) {
		size_t want = *cap ? *cap * 2 : 16;
		struct level *more = reallocarray(*list, want, sizeof(*more));

		if (!more) {
			close(fd);
			return ckpt_fail(err, ENOMEM, "out of memory");
		}
		*list = more;
		*cap = want;
	}
	(*list)[(*n)++] = (struct level){ rec, fd };
	return 0;
}

/* ---- one file -------------------------------------------------------------------------- */

static int write_data(struct fill *f, int fd, const Ckpt__Mnt__Inode *rec, struct ckpt_error *err)
{
	char path[40];
	CKPT_AUTO_FD int out = -1;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	out = open(path, O_WRONLY | O_CLOEXEC);
	if (out < 0)
		return ckpt_fail_sys(err, errno, "opening it");
	for (size_t i = 0; i < rec->n_extents; i++) {
		const Ckpt__Mnt__Extent *e = rec->extents[i];
		off_t at = (off_t)e->at;

		if (lseek(out, (off_t)e->offset, SEEK_SET) < 0)
			return ckpt_fail_sys(err, errno, "lseek(2)");
		for (uint64_t left = e->len; left;) {
			ssize_t n = sendfile(out, f->pages, &at, left);

			if (n <= 0)
				return ckpt_fail_sys(err, n ? errno : EIO, "writing it");
			left -= (uint64_t)n;
		}
	}
	return ftruncate(out, (off_t)rec->size) ? ckpt_fail_sys(err, errno, "ftruncate(2)") : 0;
}

static int make(int dir, const char *name, const Ckpt__Mnt__Inode *rec, struct ckpt_error *err)
{
	char target[PATH_MAX];
	int r;

	if (S_ISDIR(rec->mode)) {
		r = mkdirat(dir, name, 0700);
	} else if (S_ISLNK(rec->mode)) {
		mnt_bytes(&rec->target, target, sizeof(target));
		r = symlinkat(target, dir, name);
	} else {
		r = mknodat(dir, name, (rec->mode & S_IFMT) | 0600,
			    makedev(rec->major, rec->minor));
	}
	return r ? ckpt_fail_sys(err, errno, "making it") : 0;
}

/*
 * When the data is there: a change of data or owner takes set-user-id bits and capabilities away.
 * Those of a directory come when it is left.
 */
static int attributes(int fd, const char *path, const Ckpt__Mnt__Inode *rec, struct ckpt_error *err)
{
	if (fchownat(fd, "", rec->uid, rec->gid, AT_EMPTY_PATH))
		return ckpt_fail_sys(err, errno, "its owner %u:%u", rec->uid, rec->gid);
	if (!S_ISLNK(rec->mode) && chmod(path, rec->mode & 07777))
		return ckpt_fail_sys(err, errno, "its mode %04o", rec->mode & 07777);
	return S_ISDIR(rec->mode) ? 0 : set_xattrs(path, rec, err);
}

int mnt_inode_apply(int fd, const Ckpt__Mnt__Inode *rec, struct ckpt_error *err)
{
	char path[40];
	int r;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	r = attributes(fd, path, rec, err);
	return r < 0 ? r : set_times(fd, rec, err);
}

static const Ckpt__Mnt__Inode *above(const struct fill *f, const Ckpt__Mnt__Inode *rec)
{
	return ckpt_record_by_id(f->run, "mnt.inode", rec->parent);
}

/*
 * O_PATH of what was made, from the root down: files with several names may be more than a process
 * may have open.
 */
static int open_made(const struct fill *f, const Ckpt__Mnt__Inode *rec)
{
	CKPT_AUTO_FREE const Ckpt__Mnt__Inode **way = NULL;
	CKPT_AUTO_FD int fd = fcntl(f->root, F_DUPFD_CLOEXEC, 0);
	size_t n = 0;

	for (const Ckpt__Mnt__Inode *at = rec; at->parent; at = above(f, at))
		n++;
	way = calloc(n + 1, sizeof(*way));
	if (!way)
		return -ENOMEM;
	for (size_t i = n; i--; rec = above(f, rec))
		way[i] = rec;
	for (size_t i = 0; fd >= 0 && i < n; i++) {
		char name[NAME_MAX + 1];
		int next = openat(fd, mnt_bytes(&way[i]->name, name, sizeof(name)),
				  O_PATH | O_NOFOLLOW | O_CLOEXEC);

		close(fd);
		fd = next;
	}
	return fd < 0 ? -errno : ckpt_steal_fd(&fd);
}

static int link_again(const struct fill *f, int dir, const char *name, const Ckpt__Mnt__Inode *rec,
		      struct ckpt_error *err)
{
	const Ckpt__Mnt__Inode *first = ckpt_record_by_id(f->run, "mnt.inode", rec->link);
	CKPT_AUTO_FD int fd = first ? open_made(f, first) : -ENOENT;

	if (fd < 0)
		return ckpt_fail_sys(err, -fd, "inode %u", rec->link);
	return linkat(fd, "", dir, name, AT_EMPTY_PATH) ? ckpt_fail_sys(err, errno, "linkat(2)")
							: 0;
}

/* A new file, but for what comes last of all. */
static int fill_one(struct fill *f, int dir, const char *name, int fd, const Ckpt__Mnt__Inode *rec,
		    struct ckpt_error *err)
{
	char path[NAME_MAX + 40];
	int r = 0;

	if (S_ISREG(rec->mode) && rec->size)
		r = write_data(f, fd, rec, err);
	/* it can be set while the directory is empty only, which inherits it */
	if (r == 0 && S_ISDIR(rec->mode) && rec->flags & FS_CASEFOLD_FL)
		r = set_flags(fd, FS_CASEFOLD_FL, err);
	if (S_ISLNK(rec->mode))
		snprintf(path, sizeof(path), "/proc/self/fd/%d/%s", dir, name);
	else
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return r < 0 ? r : attributes(fd, path, rec, err);
}

/* Made for the sake of its number, it is moved there. */
static int put_in_place(struct fill *f, size_t index, int dir, const char *name,
			const Ckpt__Mnt__Inode *rec, struct ckpt_error *err)
{
	char now[48];

	if (!f->numbers.waits || !f->numbers.waits[index - f->first])
		return make(dir, name, rec, err);
	mnt_numbers_name(&f->numbers, index - f->first, now, sizeof(now));
	return renameat2(f->root, now, dir, name, RENAME_NOREPLACE)
		       ? ckpt_fail_sys(err, errno, "moving it to its place")
		       : 0;
}

static bool is_settled(const Ckpt__Mnt__Inode *rec)
{
	return rec->link || S_ISLNK(rec->mode) || (S_ISREG(rec->mode) && !rec->flags);
}

static int settle_one(int fd, const Ckpt__Mnt__Inode *rec, struct ckpt_error *err)
{
	return S_ISREG(rec->mode) ? set_flags(fd, rec->flags, err) : set_times(fd, rec, err);
}

static int add(struct fill *f, size_t index, const Ckpt__Mnt__Inode *rec, struct ckpt_error *err)
{
	const int dir = f->n ? f->stack[f->n - 1].fd : f->root;
	char name[NAME_MAX + 1] = ".";
	CKPT_AUTO_FD int fd = -1;
	int r = 0;

	if (f->settle && is_settled(rec))
		return 0;
	if (rec->parent)
		mnt_bytes(&rec->name, name, sizeof(name));
	if (rec->link)
		return link_again(f, dir, name, rec, err);
	if (rec->parent && !f->settle)
		r = put_in_place(f, index, dir, name, rec, err);
	if (r < 0)
		return r;
	fd = openat(dir, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return f->settle ? 0 : ckpt_fail_sys(err, errno, "opening it");
	if (!f->settle)
		r = fill_one(f, dir, name, fd, rec, err);
	if (r < 0)
		return r;
	if (S_ISDIR(rec->mode))
		return push(&f->stack, &f->n, &f->cap, rec, ckpt_steal_fd(&fd), err);
	r = f->settle ? settle_one(fd, rec, err) : set_times(fd, rec, err);
	return r;
}

/* Records are in the order of their filesystems: the plan has seen to it. */
static size_t first_of(struct ckpt_run *run, uint32_t fs)
{
	size_t lo = 0, hi = ckpt_record_count(run, "mnt.inode");

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		const Ckpt__Mnt__Inode *rec = ckpt_record_at(run, "mnt.inode", mid);

		if (rec->fs < fs)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static void find_records(struct fill *f, uint32_t fs)
{
	const Ckpt__Mnt__Inode *rec;

	f->first = first_of(f->run, fs);
	while ((rec = ckpt_record_at(f->run, "mnt.inode", f->first + f->n_records)) &&
	       rec->fs == fs)
		f->n_records++;
}

static int each(struct fill *f, uint32_t fs, struct ckpt_error *err)
{
	const Ckpt__Mnt__Inode *rec;
	int r = 0;

	for (size_t i = f->first; r == 0 && (rec = ckpt_record_at(f->run, "mnt.inode", i)); i++) {
		if (rec->fs != fs)
			break;
		while (f->n && f->stack[f->n - 1].rec->id != rec->parent && r == 0)
			r = leave(f, err);
		/* a directory that has gone meanwhile: then nothing in it matters */
		if (r == 0 && rec->parent && !f->n) {
			if (f->settle)
				break;
			return ckpt_fail_image(err, "inode %u has no directory", rec->id);
		}
		if (r == 0 && add(f, i, rec, err) < 0)
			return ckpt_wrap(err, "%.*s", (int)rec->name.len, (char *)rec->name.data);
		/* its root is what it is to be from now on, but for what others would inherit */
		if (r == 0 && !rec->parent && !f->settle)
			r = mnt_numbers_make(f->run, &f->numbers, f->root, f->first, f->n_records,
					     make, err);
	}
	while (f->n && r == 0)
		r = leave(f, err);
	return r;
}

int mnt_content_fill(struct ckpt_run *run, uint32_t fs, int root, bool settle,
		     struct ckpt_error *err)
{
	__attribute__((cleanup(fill_free))) struct fill f = {
		.run = run, .root = root, .pages = -1, .settle = settle
	};
	CKPT_AUTO_IDS struct ckpt_ids ids = { 0 };
	struct stat top;
	uint64_t size;
	int r;

	find_records(&f, fs);
	r = ckpt_pages_open(run, MNT_PAGES_NAME, &f.pages, &size, err);
	if (r < 0 && r != -ENOENT)
		return r;
	if (r == -ENOENT && err)
		*err = (struct ckpt_error){ 0 };
	/* whoever the root belongs to is known to the filesystem */
	if (fstat(root, &top))
		return ckpt_fail_sys(err, errno, "fstat(2)");
	r = ckpt_ids_take(&ids, top.st_uid, top.st_gid, err);
	return r < 0 ? r : each(&f, fs, err);
}

int mnt_nameless_fill(struct ckpt_run *run, int dir, const char *name, const Ckpt__Mnt__Inode *rec,
		      struct ckpt_error *err)
{
	__attribute__((cleanup(fill_free))) struct fill f = { .run = run, .pages = -1 };
	CKPT_AUTO_FD int fd = -1;
	uint64_t size;
	int r = make(dir, name, rec, err);

	if (r == 0 && rec->n_extents)
		r = ckpt_pages_open(run, MNT_PAGES_NAME, &f.pages, &size, err);
	if (r < 0)
		return r;
	fd = openat(dir, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return ckpt_fail_sys(err, errno, "opening it");
	r = fill_one(&f, dir, name, fd, rec, err);
	if (r == 0)
		r = set_times(fd, rec, err);
	return r == 0 && rec->flags ? set_flags(fd, rec->flags, err) : r;
}
