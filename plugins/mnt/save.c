/* SPDX-License-Identifier: MIT */
/* dump and verify: what is in a filesystem in memory, file by file. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/xattr.h>

#include "mnt.h"

#define CHUNK ((size_t)1 << 20)
#define PAGE  4096
/* the kernel's limit of an attribute's value */
#define VALUE_MAX 65536

struct name_of {
	ino_t ino;
	uint32_t id;
};

struct save {
	struct ckpt_run *run;
	struct mnt_state *st;
	const struct mnt_tree *t;
	struct name_of *linked; /* files with several names that were met, by a hash; ino 0: free */
	size_t n_linked, cap_linked;
	char *buf;
	struct ckpt_quiet *quiet; /* NULL: nobody watches */
};

/* Everything that a record points at. */
struct mnt_parts {
	Ckpt__Mnt__Xattr *xattrs, **xattr_list;
	Ckpt__Mnt__Extent *extents, **extent_list;
	size_t n_xattrs, n_extents;
	char target[PATH_MAX];
};

static void parts_free(struct mnt_parts *p)
{
	for (size_t i = 0; i < p->n_xattrs; i++) {
		free(p->xattrs[i].name);
		free(p->xattrs[i].value.data);
	}
	free(p->xattrs);
	free(p->xattr_list);
	free(p->extents);
	free(p->extent_list);
}

static uint64_t sum(const char *data, size_t len)
{
	uint64_t h = 0xcbf29ce484222325u, word;

	for (size_t i = 0; i < len; i += sizeof(word)) {
		memcpy(&word, data + i, sizeof(word));
		h = (h ^ word) * 0x100000001b3u;
		h ^= h >> 29;
	}
	return h;
}

/* ---- extended attributes ------------------------------------------------------------- */

/* A link that is not a file's own, as those of descriptors are, is followed. */
static int add_xattr(struct mnt_parts *p, const char *path, bool link, const char *name,
		     struct ckpt_error *err)
{
	Ckpt__Mnt__Xattr *more = reallocarray(p->xattrs, p->n_xattrs + 1, sizeof(*more));
	CKPT_AUTO_FREE char *value = malloc(VALUE_MAX);
	ssize_t len;

	if (!more || !value)
		return ckpt_fail(err, ENOMEM, "out of memory");
	p->xattrs = more;
	len = (link ? lgetxattr : getxattr)(path, name, value, VALUE_MAX);
	if (len < 0)
		return ckpt_fail_sys(err, errno, "the attribute %s", name);
	ckpt__mnt__xattr__init(&more[p->n_xattrs]);
	more[p->n_xattrs].name = strdup(name);
	if (!more[p->n_xattrs].name)
		return ckpt_fail(err, ENOMEM, "out of memory");
	more[p->n_xattrs].value.len = (size_t)len;
	more[p->n_xattrs++].value.data = (uint8_t *)ckpt_steal_ptr(&value);
	return 0;
}

static int read_xattrs(const char *path, Ckpt__Mnt__Inode *rec, struct mnt_parts *p,
		       struct ckpt_error *err)
{
	const bool link = S_ISLNK(rec->mode);
	CKPT_AUTO_FREE char *names = NULL;
	ssize_t len = (link ? llistxattr : listxattr)(path, NULL, 0);
	int r = 0;

	/* ramfs has none at all */
	if (len <= 0)
		return len < 0 && errno != EOPNOTSUPP ? ckpt_fail_sys(err, errno, "llistxattr(2)")
						      : 0;
	names = malloc((size_t)len + 1);
	if (!names)
		return ckpt_fail(err, ENOMEM, "out of memory");
	len = (link ? llistxattr : listxattr)(path, names, (size_t)len);
	if (len < 0)
		return ckpt_fail_sys(err, errno, "llistxattr(2)");
	for (const char *n = names; n < names + len && r == 0; n += strlen(n) + 1)
		r = add_xattr(p, path, link, n, err);
	if (r < 0)
		return r;
	p->xattr_list = calloc(p->n_xattrs, sizeof(Ckpt__Mnt__Xattr *));
	if (!p->xattr_list)
		return ckpt_fail(err, ENOMEM, "out of memory");
	for (size_t i = 0; i < p->n_xattrs; i++)
		p->xattr_list[i] = &p->xattrs[i];
	rec->xattrs = p->xattr_list;
	rec->n_xattrs = p->n_xattrs;
	return 0;
}

/* ---- flags ------------------------------------------------------------------------------ */

/* ramfs has none, and tmpfs before 6.0. Those that only tell of the file's insides are not asked
 * for. */
static int read_flags(struct save *s, int fd, const char *name, Ckpt__Mnt__Inode *rec,
		      struct ckpt_error *err)
{
	unsigned flags = 0;
	char text[64];

	if (ioctl(fd, FS_IOC_GETFLAGS, &flags))
		return errno == ENOTTY || errno == EOPNOTSUPP
			       ? 0
			       : ckpt_fail_sys(err, errno, "FS_IOC_GETFLAGS");
	flags &= ~MNT_INSIDE_FLAGS;
	rec->flags = flags & MNT_FLAGS;
	if (flags == rec->flags)
		return 0;
	snprintf(text, sizeof(text), "it has flags that are not saved: %#x", flags & ~MNT_FLAGS);
	mnt_refuse(s->run, s->t->ns, "content", name, text,
		   "take them off (chattr(1)), or allow the loss");
	return 0;
}

/* ---- data ----------------------------------------------------------------------------- */

static int pages(struct save *s, struct ckpt_pages **out, struct ckpt_error *err)
{
	if (!s->st->pages) {
		int r = ckpt_pages_create(s->run, MNT_PAGES_NAME, &s->st->pages, err);

		if (r < 0)
			return r;
	}
	*out = s->st->pages;
	return 0;
}

static int put_piece(struct save *s, struct mnt_parts *p, off_t at, size_t len,
		     struct ckpt_error *err)
{
	Ckpt__Mnt__Extent *more = reallocarray(p->extents, p->n_extents + 1, sizeof(*more));
	size_t whole = (len + PAGE - 1) & ~(size_t)(PAGE - 1);
	struct ckpt_pages *out;
	Ckpt__Mnt__Extent *e;
	int r;

	if (!more)
		return ckpt_fail(err, ENOMEM, "out of memory");
	p->extents = more;
	r = pages(s, &out, err);
	if (r < 0)
		return r;
	memset(s->buf + len, 0, whole - len);
	e = &more[p->n_extents++];
	ckpt__mnt__extent__init(e);
	e->offset = (uint64_t)at;
	e->len = whole;
	e->sum = sum(s->buf, whole);
	return ckpt_pages_append(out, s->buf, whole, &e->at, err);
}

static int read_data(struct save *s, int fd, off_t size, struct mnt_parts *p,
		     struct ckpt_error *err)
{
	off_t at = 0;

	while (at < size) {
		off_t data = lseek(fd, at, SEEK_DATA), end;

		if (data < 0 && errno == ENXIO)
			return 0;
		/* a filesystem without holes */
		end = data < 0 ? size : lseek(fd, data, SEEK_HOLE);
		data = data < 0 ? at : data & ~(off_t)(PAGE - 1);
		if (end < 0 || end > size)
			end = size;
		for (at = data; at < end;) {
			size_t want = (size_t)(end - at) < CHUNK ? (size_t)(end - at) : CHUNK;
			ssize_t got = pread(fd, s->buf, want, at);
			int r;

			if (got < 0)
				return ckpt_fail_sys(err, errno, "pread(2)");
			if (!got)
				return 0;
			r = put_piece(s, p, at, (size_t)got, err);
			if (r < 0)
				return r;
			at += got + (-got & (PAGE - 1));
		}
	}
	return 0;
}

/* Runs of pages that are not all zero: what is left out comes back as a hole. */
static int put_pages(struct save *s, struct mnt_parts *p, off_t at, size_t len,
		     struct ckpt_error *err)
{
	static const char zero[PAGE];
	size_t from = 0;
	int r = 0;

	for (size_t to = 0; r == 0 && from < len;) {
		size_t n = len - to < PAGE ? len - to : PAGE;

		if (n && memcmp(s->buf + to, zero, n) != 0) {
			to += n;
			continue;
		}
		if (to > from) {
			memmove(s->buf, s->buf + from, to - from);
			r = put_piece(s, p, at + (off_t)from, to - from, err);
		}
		from = to += n;
	}
	return r;
}

bool mnt_is_whole(const struct stat *st)
{
	return st->st_blocks * 512 >= st->st_size;
}

/*
 * Of a file with a lease for writing there is only the description that has the lease: its position
 * is the program's. Reading is an event for who watches the file, and looking at a mapping is none.
 */
static int read_leased(struct save *s, int fd, const struct stat *st, struct mnt_parts *p,
		       struct ckpt_error *err)
{
	const size_t size = (size_t)st->st_size;
	char *map = NULL;
	int r = 0;

	if (s->t->watched && !mnt_is_whole(st))
		return ckpt_fail(err, EBUSY, "it has a lease, holes, and somebody who watches it");
	if (s->t->watched)
		map = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (map == MAP_FAILED)
		return ckpt_fail_sys(err, errno, "mmap(2)");
	for (size_t at = 0; at < size && r == 0; at += CHUNK) {
		size_t want = size - at < CHUNK ? size - at : CHUNK;
		struct iovec to = { s->buf, want }, from = { map ? map + at : NULL, want };
		/* by a call: somebody else may have cut it off, which is a signal for who touches
		 * it */
		ssize_t got = map ? process_vm_readv(getpid(), &to, 1, &from, 1, 0)
				  : pread(fd, s->buf, want, (off_t)at);

		if (got < 0)
			r = ckpt_fail_sys(err, errno, "reading it");
		else if (mnt_is_whole(st))
			r = put_piece(s, p, (off_t)at, (size_t)got, err);
		else
			r = put_pages(s, p, (off_t)at, (size_t)got, err);
	}
	if (map)
		munmap(map, size);
	return r;
}

static int list_extents(Ckpt__Mnt__Inode *rec, struct mnt_parts *p, struct ckpt_error *err)
{
	p->extent_list = calloc(p->n_extents + 1, sizeof(Ckpt__Mnt__Extent *));
	if (!p->extent_list)
		return ckpt_fail(err, ENOMEM, "out of memory");
	for (size_t i = 0; i < p->n_extents; i++)
		p->extent_list[i] = &p->extents[i];
	rec->extents = p->extent_list;
	rec->n_extents = p->n_extents;
	return 0;
}

/* ---- inodes ---------------------------------------------------------------------------- */

static int64_t nanoseconds(const struct timespec *t)
{
	return t->tv_sec * 1000000000LL + t->tv_nsec;
}

void mnt_inode_of(Ckpt__Mnt__Inode *rec, const struct stat *st)
{
	rec->mode = st->st_mode;
	rec->uid = st->st_uid;
	rec->gid = st->st_gid;
	rec->atime_ns = nanoseconds(&st->st_atim);
	rec->mtime_ns = nanoseconds(&st->st_mtim);
	if (S_ISREG(st->st_mode))
		rec->size = (uint64_t)st->st_size;
	if (S_ISCHR(st->st_mode) || S_ISBLK(st->st_mode)) {
		rec->major = major(st->st_rdev);
		rec->minor = minor(st->st_rdev);
	}
}

/* Where it is, or is to be. */
static struct name_of *slot(struct name_of *table, size_t cap, ino_t ino)
{
	size_t at = (size_t)(ino * 0x9e3779b97f4a7c15u >> 20) & (cap - 1);

	while (table[at].ino && table[at].ino != ino)
		at = (at + 1) & (cap - 1);
	return &table[at];
}

static bool has_names(const struct stat *st)
{
	return !S_ISDIR(st->st_mode) && st->st_nlink > 1;
}

/* The id under which it was saved by another name; 0: it was not. */
static uint32_t known(const struct save *s, const struct stat *st)
{
	return s->cap_linked && has_names(st) ? slot(s->linked, s->cap_linked, st->st_ino)->id : 0;
}

static int remember(struct save *s, const struct stat *st, uint32_t id, struct ckpt_error *err)
{
	if (!has_names(st))
		return 0;
	if (s->n_linked * 2 >= s->cap_linked) {
		const size_t cap = s->cap_linked ? s->cap_linked * 2 : 64;
		struct name_of *more = calloc(cap, sizeof(*more));

		if (!more)
			return ckpt_fail(err, ENOMEM, "out of memory");
		for (size_t i = 0; i < s->cap_linked; i++)
			if (s->linked[i].ino)
				*slot(more, cap, s->linked[i].ino) = s->linked[i];
		free(s->linked);
		s->linked = more;
		s->cap_linked = cap;
	}
	*slot(s->linked, s->cap_linked, st->st_ino) = (struct name_of){ st->st_ino, id };
	s->n_linked++;
	return 0;
}

/* `dir` and `name` are where it is; what is not seen (`bare`) has no more than its kind. */
struct object {
	int dir;
	const char *at, *name;
	uint32_t parent;
	bool bare;
	int fd; /* of a directory, opened */
};

/* What has to be opened for it: directories, and regular files, whose data are read. */
static int put_opened(struct save *s, const struct object *o, const struct stat *st,
		      Ckpt__Mnt__Inode *rec, struct mnt_parts *p, struct ckpt_error *err)
{
	const struct ckpt_lease *lease =
		S_ISREG(st->st_mode) && !s->t->apart ? mnt_lease_of(s->run, st) : NULL;
	CKPT_AUTO_FD int own = -1;
	int fd = o->fd, r;

	if (lease)
		fd = lease->fd;
	else if (fd < 0)
		fd = own = ckpt_quiet_open(s->quiet, o->dir, o->at, O_NOFOLLOW);
	if (fd < 0)
		return ckpt_fail_sys(err, lease ? EBUSY : -fd, "opening it");
	r = read_flags(s, fd, o->at, rec, err);
	if (r < 0 || !S_ISREG(st->st_mode) || !st->st_size)
		return r;
	r = lease ? read_leased(s, fd, st, p, err) : read_data(s, fd, st->st_size, p, err);
	return r < 0 ? r : list_extents(rec, p, err);
}

static int put(struct save *s, const struct object *o, const struct stat *st, uint32_t *id,
	       struct ckpt_error *err)
{
	__attribute__((cleanup(parts_free))) struct mnt_parts p = { 0 };
	Ckpt__Mnt__Inode rec = CKPT__MNT__INODE__INIT;
	char path[PATH_MAX];
	int r;

	rec.id = *id = ++s->st->n_inodes;
	rec.fs = s->t->fs;
	rec.parent = o->parent;
	if (o->parent)
		rec.name = (ProtobufCBinaryData){ strlen(o->name), (uint8_t *)(uintptr_t)o->name };
	rec.link = known(s, st);
	if (rec.link)
		return ckpt_record_put(s->run, MNT_REC_INODE, &rec.base, err);
	mnt_inode_of(&rec, st);
	/* a socket that lives is bound anew, and a mounted overlay makes its directory anew */
	if (s->t->numbers && !o->bare && !S_ISSOCK(st->st_mode) && !mnt_is_work(s->st, st) &&
	    st->st_ino <= MNT_INO_MAX)
		rec.ino = st->st_ino;
	if (o->bare)
		return ckpt_record_put(s->run, MNT_REC_INODE, &rec.base, err);
	if (S_ISLNK(st->st_mode)) {
		ssize_t len = readlinkat(o->dir, o->at, p.target, sizeof(p.target));

		if (len < 0)
			return ckpt_fail_sys(err, errno, "readlink(2)");
		rec.target = (ProtobufCBinaryData){ (size_t)len, (uint8_t *)p.target };
	}
	snprintf(path, sizeof(path), "/proc/self/fd/%d/%s", o->dir, o->at);
	r = read_xattrs(path, &rec, &p, err);
	if (r == 0 && (S_ISREG(st->st_mode) || S_ISDIR(st->st_mode)))
		r = put_opened(s, o, st, &rec, &p, err);
	if (r == 0)
		r = remember(s, st, rec.id, err);
	return r < 0 ? r : ckpt_record_put(s->run, MNT_REC_INODE, &rec.base, err);
}

/* Covered by a mount that nobody can take off: only its kind counts. */
static void behind_mount(const struct dirent *d, struct stat *st)
{
	*st = (struct stat){ .st_mode = d->d_type == DT_DIR ? S_IFDIR | 0755 : S_IFREG | 0644,
			     .st_nlink = 1 };
}

static int walk(struct save *s, int dir, uint32_t id, uint64_t mnt, struct ckpt_error *err);

/* Somebody who is not in the tree may be at work in a copy's layer: what he removes is gone. */
static bool is_gone(const struct save *s, int dir, const char *name)
{
	struct stat st;

	return s->t->apart && fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) && errno == ENOENT;
}

static int entry(struct save *s, int dir, const struct dirent *d, uint32_t parent, uint64_t mnt,
		 struct ckpt_error *err)
{
	struct object o = { dir, d->d_name, d->d_name, parent, false, -1 };
	CKPT_AUTO_FD int sub = -1;
	uint64_t there = mnt;
	struct stat st;
	uint32_t id;
	int r;

	if (fstatat(dir, d->d_name, &st, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) ||
	    mnt_mount_id(dir, d->d_name, &there) < 0)
		return ckpt_fail_sys(err, errno, "%s", d->d_name);
	o.bare = there != mnt;
	if (o.bare) {
		behind_mount(d, &st);
	} else if (S_ISDIR(st.st_mode)) {
		o.fd = sub = ckpt_quiet_open(s->quiet, dir, d->d_name, O_DIRECTORY | O_NOFOLLOW);
		if (sub < 0)
			return ckpt_fail_sys(err, -sub, "%s: opening it", d->d_name);
	}
	r = put(s, &o, &st, &id, err);
	if (r == 0 && sub >= 0 && !mnt_is_work(s->st, &st))
		r = walk(s, sub, id, mnt, err);
	return r < 0 ? ckpt_wrap(err, "%s", d->d_name) : 0;
}

static int by_name(const void *a, const void *b)
{
	const struct dirent *const *x = a, *const *y = b;

	return strcmp((*x)->d_name, (*y)->d_name);
}

struct listing {
	struct dirent **list;
	size_t n, cap;
};

static void listing_free(struct listing *l)
{
	while (l->n)
		free(l->list[--l->n]);
	free(l->list);
}

static int keep(struct listing *l, const struct dirent *d)
{
	size_t cap = l->cap ? l->cap * 2 : 64,
	       len = offsetof(struct dirent, d_name) + strlen(d->d_name) + 1;
	struct dirent **more = l->list, *copy;

	if (l->n == l->cap) {
		more = reallocarray(l->list, cap, sizeof(struct dirent *));
		if (!more)
			return -ENOMEM;
		l->list = more;
		l->cap = cap;
	}
	copy = malloc(len);
	if (!copy)
		return -ENOMEM;
	memcpy(copy, d, len);
	l->list[l->n++] = copy;
	return 0;
}

/* Through that very descriptor: scandir(3) would open the directory once more. */
static int list(int dir, struct listing *l)
{
	int copy = fcntl(dir, F_DUPFD_CLOEXEC, 0), r = 0;
	CKPT_AUTO_DIR DIR *d = copy < 0 ? NULL : fdopendir(copy);
	const struct dirent *e;

	if (!d) {
		r = -errno;
		if (copy >= 0)
			close(copy);
		return r;
	}
	while (r == 0 && (e = ckpt_next_entry(d)))
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
			r = keep(l, e);
	r = r ? r : -errno;
	if (r == 0 && l->n)
		qsort(l->list, l->n, sizeof(struct dirent *), by_name);
	return r;
}

static int walk(struct save *s, int dir, uint32_t id, uint64_t mnt, struct ckpt_error *err)
{
	__attribute__((cleanup(listing_free))) struct listing l = { 0 };
	int r = list(dir, &l);

	if (r < 0)
		return ckpt_fail_sys(err, -r, "reading the directory");
	for (size_t i = 0; i < l.n && r == 0; i++) {
		r = entry(s, dir, l.list[i], id, mnt, err);
		if (r < 0 && is_gone(s, dir, l.list[i]->d_name)) {
			*err = (struct ckpt_error){ 0 };
			r = 0;
		}
	}
	return r;
}

/* The directories that lead to what is mounted, of which nothing else can be seen. */
static int save_top(struct save *s, int dir, const char *root, struct ckpt_error *err)
{
	const struct stat bare = { .st_mode = S_IFDIR | 0755, .st_nlink = 2 };
	char name[NAME_MAX + 1] = "";
	uint32_t parent = 0;
	struct stat st;
	uint64_t mnt = 0;
	int r = 0;

	while (*(root += strspn(root, "/")) && r == 0) {
		size_t len = strcspn(root, "/");
		struct object o = { -1, NULL, name, parent, true, -1 };

		r = put(s, &o, &bare, &parent, err);
		snprintf(name, sizeof(name), "%.*s", (int)len, root);
		root += len;
	}
	if (r == 0 && (fstat(dir, &st) || mnt_mount_id(dir, "", &mnt) < 0))
		r = ckpt_fail_sys(err, errno, "looking at it");
	if (r == 0) {
		struct object o = { dir, ".", name, parent, false, dir };

		r = put(s, &o, &st, &parent, err);
	}
	return r < 0 ? r : walk(s, dir, parent, mnt, err);
}

static int save(struct save *s, struct ckpt_error *err)
{
	const struct mnt_tree *t = s->t;
	CKPT_AUTO_FD int dir = -1;

	if (t->watched) {
		s->quiet = ckpt_quiet_begin(s->run, t->fd, err);
		if (!s->quiet)
			return -err->err;
	}
	dir = ckpt_quiet_open(s->quiet, t->fd, ".", O_DIRECTORY);
	if (dir < 0)
		return ckpt_fail_sys(err, -dir, "opening it");
	s->buf = malloc(CHUNK);
	return s->buf ? save_top(s, dir, t->root, err) : ckpt_fail(err, ENOMEM, "out of memory");
}

int mnt_content_save(struct ckpt_run *run, struct mnt_state *st, const struct mnt_tree *t,
		     struct ckpt_error *err)
{
	struct save s = { .run = run, .st = st, .t = t };
	int r = save(&s, err);

	ckpt_quiet_end(s.quiet);
	free(s.buf);
	free(s.linked);
	return r < 0 ? ckpt_wrap(err, "%s", t->what) : 0;
}

/* ---- what is mounted, and has no name any more ------------------------------------------ */

void mnt_parts_free(struct mnt_parts *p)
{
	if (p)
		parts_free(p);
	free(p);
}

static int save_nameless(struct save *s, const struct stat *st, Ckpt__Mnt__Inode *rec,
			 struct mnt_parts *p, struct ckpt_error *err)
{
	struct object o = { -1, NULL, s->t->what, 0, false, -1 };
	CKPT_AUTO_FD int fd = -1;
	char path[40];
	int r;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", s->t->fd);
	r = read_xattrs(path, rec, p, err);
	if (r < 0 || !S_ISREG(st->st_mode))
		return r;
	if (s->t->watched) {
		s->quiet = ckpt_quiet_begin(s->run, s->t->fd, err);
		if (!s->quiet)
			return -err->err;
	}
	o.at = o.name;
	o.fd = fd = ckpt_quiet_open(s->quiet, AT_FDCWD, path, 0);
	s->buf = malloc(CHUNK);
	if (fd < 0 || !s->buf)
		return ckpt_fail_sys(err, fd < 0 ? -fd : ENOMEM, "opening it");
	return put_opened(s, &o, st, rec, p, err);
}

int mnt_nameless_save(struct ckpt_run *run, struct mnt_state *st, const struct mnt_tree *t,
		      Ckpt__Mnt__Inode *rec, struct mnt_parts **out, struct ckpt_error *err)
{
	struct save s = { .run = run, .st = st, .t = t };
	struct stat is;
	int r;

	*out = calloc(1, sizeof(**out));
	if (!*out || fstat(t->fd, &is))
		return ckpt_fail_sys(err, *out ? errno : ENOMEM, "%s", t->what);
	r = save_nameless(&s, &is, rec, *out, err);
	ckpt_quiet_end(s.quiet);
	free(s.buf);
	return r < 0 ? ckpt_wrap(err, "%s", t->what) : 0;
}
