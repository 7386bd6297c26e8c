/* SPDX-License-Identifier: MIT */
/*
 * Files that nobody but their descriptors knows: deleted ones, those of
 * O_TMPFILE, memfds. Saved with all they hold, once, and opened by as many
 * descriptions as there were.
 */
#include <ckpt/huge.h>
#include <ckpt/quiet.h>

#include "internal.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/vfs.h>

#ifndef __O_TMPFILE
#define __O_TMPFILE 020000000
#endif
#ifndef F_SEAL_EXEC
#define F_SEAL_EXEC 0x20
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U
#define MFD_EXEC	16U
#endif

#define LARGEFILE 0100000
#define TMPFILE	  (__O_TMPFILE | O_DIRECTORY)
#define FLAGS_OK                                                                                 \
	(O_ACCMODE | O_APPEND | O_NONBLOCK | O_DIRECT | O_SYNC | O_DSYNC | O_NOATIME | TMPFILE | \
	 O_NOFOLLOW | LARGEFILE)
#define SEALS_OK (F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | 0x10 | F_SEAL_EXEC)

static bool is_memfd(const struct ckpt_fd_found *f)
{
	return !strncmp(f->link, "/memfd:", 7) && !f->st.st_nlink;
}

bool fd_is_ghost(const struct ckpt_fd_found *f)
{
	return S_ISREG(f->st.st_mode) && f->link[0] == '/' && !f->st.st_nlink &&
	       strncmp(f->link, "/secretmem", 10) != 0 && !fd_is_queue(f);
}

static bool deleted_match(const struct ckpt_fd_found *f)
{
	return fd_is_ghost(f) && !is_memfd(f);
}

static bool memfd_match(const struct ckpt_fd_found *f)
{
	return fd_is_ghost(f) && is_memfd(f);
}

/* The name without the kernel's mark; -1: there is none. */
static ssize_t name_length(const char *link)
{
	size_t len = strlen(link), mark = strlen(FD_DELETED_MARK);

	if (len <= mark || strcmp(link + len - mark, FD_DELETED_MARK) != 0)
		return -1;
	return (ssize_t)(len - mark);
}

/* The directory of a path, in buf; "/" for a file of the root. */
const char *fd_directory_of(const char *path, size_t len, char *buf, size_t size)
{
	while (len > 1 && path[len - 1] != '/')
		len--;
	if (len > 1)
		len--;
	if (len >= size)
		return NULL;
	memcpy(buf, path, len);
	buf[len] = '\0';
	return buf;
}

/* ---- dump -------------------------------------------------------------------------- */

static int ghost_survey(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	if (f->flags & ~FLAGS_OK || (f->flags & O_NOFOLLOW && f->flags & __O_TMPFILE))
		return fd_refuse(run, f, "open-flags", "it was opened with flags unknown to ckpt",
				 "allow the loss");
	return fd_refuse_foreign(run, f, err);
}

static int deleted_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
			  struct ckpt_error *err)
{
	char buf[PATH_MAX];
	ssize_t len = name_length(f->link);
	const char *dir = len < 0 ? NULL : fd_directory_of(f->link, (size_t)len, buf, sizeof(buf));
	struct stat st;
	int mnt = 0, r = fd_filesystem_survey(run, f, err);

	if (!r)
		r = mnt = ckpt_mnt_of_fd(run, f->fd, err);
	if (r < 0 && r != -ENOENT)
		return r;
	if (!dir || r == -ENOENT || ckpt_dirs_look(run, (uint32_t)mnt, dir, &st) ||
	    st.st_dev != ckpt_mnt_device(run, f->fd, &f->st))
		return fd_refuse(run, f, "deleted",
				 "its directory is on another filesystem, for ckpt",
				 "run ckpt in the same mount namespace, or allow the loss");
	/* reading the content would break the lease */
	if (strstr(f->fdinfo, "LEASE"))
		return fd_refuse(run, f, "locks", "leases on deleted files are not saved",
				 "let the program release the lease before the dump");
	r = fd_refuse_readonly(run, f, "deleted", err);
	return r ? r : ghost_survey(run, f, err);
}

static int memfd_survey(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	struct statfs fs;
	int seals = fcntl(f->fd, F_GET_SEALS);

	if (fstatfs(f->fd, &fs))
		return ckpt_fail_sys(err, errno, "fstatfs(2)");
	/* fallocate(2) sets sizes that ftruncate(2) refuses */
	if (fs.f_type != TMPFS_MAGIC &&
	    (fs.f_type != HUGETLBFS_MAGIC || fs.f_bsize != CKPT_HUGE_PAGE ||
	     f->st.st_size % CKPT_HUGE_PAGE))
		return fd_refuse(run, f, "memfd",
				 "of huge pages only those of 2 MiB are saved, and whole ones",
				 "let the program close it, or allow the loss");
	if (seals < 0 || seals & ~SEALS_OK || name_length(f->link) < 0)
		return fd_refuse(run, f, "memfd", "its seals are not known to ckpt",
				 "let the program close it, or allow the loss");
	return ghost_survey(run, f, err);
}

/*
 * With a position of its own, and without a trace: who watches the directory that a deleted file
 * was in hears of it still. Nobody can of a memfd.
 */
static int open_quietly(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	const int flags = O_RDONLY | O_NOATIME | O_NONBLOCK | O_CLOEXEC;
	char path[32];
	int fd;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", f->fd);
	if (!is_memfd(f))
		return ckpt_open_unnoticed(run, AT_FDCWD, path, flags, err);
	fd = open(path, flags);
	return fd < 0 ? ckpt_fail_sys(err, errno, "opening it once more") : fd;
}

static int put_ghost(struct ckpt_run *run, const struct ckpt_fd_found *f,
		     struct fd_file *const *files, size_t n, struct ckpt_error *err)
{
	CKPT_AUTO_FREE uint32_t *ends = calloc(n + 1, sizeof(uint32_t));
	Ckpt__Fd__Ghost rec = CKPT__FD__GHOST__INIT;
	size_t skip = is_memfd(f) ? strlen("/memfd:") : 0;
	CKPT_AUTO_FD int fd = open_quietly(run, f, err);
	Ckpt__Fd__Owner owner;
	struct stat st;
	int r;

	if (fd < 0)
		return fd;
	if (!ends || fstat(fd, &st))
		return ckpt_fail_sys(err, ends ? errno : ENOMEM, "fstat(2)");
	fd_owner_of(&st, &owner);
	rec.id = f->file;
	rec.owner = &owner;
	rec.ends = ends;
	for (size_t i = 0; i < n; i++)
		if (!files[i]->out)
			ends[rec.n_ends++] = files[i]->id;
	rec.name.data = (uint8_t *)(uintptr_t)f->link + skip;
	rec.name.len = (size_t)name_length(f->link) - skip;
	rec.size = (uint64_t)st.st_size;
	rec.atime_ns = st.st_atim.tv_sec * 1000000000LL + st.st_atim.tv_nsec;
	rec.mtime_ns = st.st_mtim.tv_sec * 1000000000LL + st.st_mtim.tv_nsec;
	rec.dev = st.st_dev;
	rec.ino = st.st_ino;
	rec.huge = ckpt_is_huge(fd);
	rec.seals = is_memfd(f) ? (uint32_t)fcntl(f->fd, F_GET_SEALS) : 0;
	r = is_memfd(f) ? 0 : fd_place_mnt(run, f, &rec.mnt, err);
	if (!r)
		r = fd_xattrs_save(fd, &rec, err);
	if (!r)
		r = fd_content_save(run, fd, &rec, err);
	if (!r)
		r = ckpt_record_put(run, is_memfd(f) ? FD_MEMFD : FD_DELETED, &rec.base, err);
	fd_ghost_free(&rec);
	return r;
}

static int ghost_collect(struct ckpt_run *run, const struct ckpt_fd_found *f,
			 struct ckpt_error *err)
{
	Ckpt__Fd__GhostEnd rec = CKPT__FD__GHOST_END__INIT;
	struct fd_file *const *files;
	size_t n = fd_files_of(fd_state(run), f->st.st_dev, f->st.st_ino, &files), i = 0;
	int r = 0;

	while (i < n && files[i]->out)
		i++;
	if (i == n)
		return ckpt_fail(err, ENOENT, "the file is not among those found");
	rec.id = f->file;
	rec.ghost = files[i]->id;
	if (rec.ghost == rec.id)
		r = put_ghost(run, f, files, n, err);
	return r ? r : ckpt_record_put(run, FD_GHOST_END, &rec.base, err);
}

/* ---- plan --------------------------------------------------------------------------- */

static int check_ghost(struct ckpt_run *run, const Ckpt__Fd__Ghost *g, struct ckpt_error *err)
{
	size_t tmpfiles = 0;
	int r;

	if (!g->n_ends || g->ends[0] != g->id || g->seals & ~(uint32_t)SEALS_OK ||
	    (g->huge && g->size % CKPT_HUGE_PAGE))
		return ckpt_fail_image(err, "file %u is not valid", g->id);
	for (size_t i = 0; i < g->n_ends; i++) {
		const Ckpt__Fd__GhostEnd *e = ckpt_record_by_id(run, "fd.ghost-end", g->ends[i]);
		const Ckpt__Fd__File *file = ckpt_record_by_id(run, "fd.file", g->ends[i]);

		if (!e || !file || e->ghost != g->id || (i && g->ends[i] <= g->ends[i - 1]))
			return ckpt_fail_image(err, "description %u of file %u is not valid",
					       g->ends[i], g->id);
		tmpfiles += (file->flags & __O_TMPFILE) != 0;
	}
	/* the one that made it */
	if (tmpfiles > 1)
		return ckpt_fail_image(err, "file %u was made twice", g->id);
	r = fd_owner_check(g->owner, g->id, err);
	return r ? r : fd_content_check(run, g, err);
}

static int plan_end(struct ckpt_run *run, uint32_t id, const char *type,
		    const Ckpt__Fd__Ghost **out, struct ckpt_error *err)
{
	const Ckpt__Fd__GhostEnd *e = ckpt_record_need(run, "fd.ghost-end", id, err);
	const Ckpt__Fd__File *file = ckpt_record_need(run, "fd.file", id, err);
	const Ckpt__Fd__Ghost *g = e ? ckpt_record_need(run, type, e->ghost, err) : NULL;
	bool listed = false;

	if (!file || !g)
		return -EBADMSG;
	if (file->flags & ~(uint32_t)FLAGS_OK || file->pos < 0 ||
	    (file->flags & O_ACCMODE) == O_ACCMODE ||
	    (file->flags & __O_TMPFILE && (!(file->flags & O_ACCMODE) || file->flags & O_NOFOLLOW)))
		return ckpt_fail_image(err, "open file %u has flags that are not valid", id);
	for (size_t i = 0; i < g->n_ends && !listed; i++)
		listed = g->ends[i] == id;
	if (!listed)
		return ckpt_fail_image(err, "open file %u is not among its file's descriptions",
				       id);
	*out = g;
	return g->id == id ? check_ghost(run, g, err) : fd_planned_as(run, g->id, file, err);
}

static int deleted_plan(struct ckpt_run *run, uint32_t id, struct ckpt_error *err)
{
	char path[PATH_MAX], dir[PATH_MAX];
	const Ckpt__Fd__Ghost *g;
	struct stat st;
	int r = plan_end(run, id, "fd.deleted", &g, err);

	if (r || g->id != id)
		return r;
	if (!fd_image_path(&g->name, path, sizeof(path)) || g->seals || g->huge)
		return ckpt_fail_image(err, "file %u is not a valid deleted file", id);
	fd_directory_of(path, g->name.len, dir, sizeof(dir));
	r = ckpt_dirs_look(run, g->mnt, dir, &st);
	if (r == -ELOOP)
		return ckpt_link_unmet(run, dir);
	if (r < 0 && r != -EINPROGRESS)
		return ckpt_unmet(run, CKPT_EXIT_FAILED, "make the directory again",
				  "%s, where a deleted file was, cannot be made: %s", dir,
				  ckpt_errno_name(r));
	return 0;
}

static int memfd_plan(struct ckpt_run *run, uint32_t id, struct ckpt_error *err)
{
	const Ckpt__Fd__Ghost *g;
	int r = plan_end(run, id, "fd.memfd", &g, err);

	if (r || g->id != id)
		return r;
	/* the kernel's own limit */
	if (g->name.len > 249 || (g->name.len && memchr(g->name.data, 0, g->name.len)))
		return ckpt_fail_image(err, "the name of memfd %u is not valid", id);
	return fd_huge_plan(run, g);
}

/* ---- restore ------------------------------------------------------------------------ */

/* Content and attributes through a description of our own, which sets no traces later on. */
static int fill(struct ckpt_run *run, int fd, const Ckpt__Fd__Ghost *g, struct ckpt_error *err)
{
	struct timespec times[2] = { { g->atime_ns / 1000000000, g->atime_ns % 1000000000 },
				     { g->mtime_ns / 1000000000, g->mtime_ns % 1000000000 } };
	int r = fd_content_restore(run, fd, g, err);

	if (!r)
		r = fd_owner_apply(fd, g->owner, err);
	if (!r)
		r = fd_xattrs_restore(fd, g, err);
	if (!r && g->atime_ns >= 0 && g->mtime_ns >= 0 && futimens(fd, times))
		r = ckpt_fail_sys(err, errno, "futimens(2)");
	return r;
}

int fd_open_made(int made, const char *name, int flags, struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = -1;
	struct stat a, b;
	char self[32];

	/* O_NOFOLLOW stays among a file's flags, and /proc has nothing but links */
	snprintf(self, sizeof(self), "/proc/self/fd/%d", made);
	fd = open(flags & O_NOFOLLOW ? name : self, flags | O_CLOEXEC);
	if (fd < 0)
		return ckpt_fail_sys(err, errno, "opening it with flags %#o", flags);
	if (fstat(made, &a) || fstat(fd, &b) || a.st_dev != b.st_dev || a.st_ino != b.st_ino)
		return ckpt_fail(err, EEXIST, "somebody has put another file in the place of %s",
				 name);
	return ckpt_steal_fd(&fd);
}

/* The descriptions that are not there yet, of the file `made`, which has that name. */
static int open_ends(struct ckpt_run *run, const Ckpt__Fd__Ghost *g, int made, const char *name,
		     struct ckpt_error *err)
{
	for (size_t i = 0; i < g->n_ends; i++) {
		const Ckpt__Fd__File *file = ckpt_record_by_id(run, "fd.file", g->ends[i]);
		int fd, r;

		if (!file || file->flags & __O_TMPFILE)
			continue;
		fd = fd_open_made(made, name, (int)file->flags & FLAGS_OK, err);
		if (fd < 0)
			return fd;
		r = fd_stash_put(fd_state(run), file->id, fd, err);
		if (r)
			return r;
	}
	return 0;
}

static const Ckpt__Fd__File *tmpfile_of(struct ckpt_run *run, const Ckpt__Fd__Ghost *g)
{
	for (size_t i = 0; i < g->n_ends; i++) {
		const Ckpt__Fd__File *file = ckpt_record_by_id(run, "fd.file", g->ends[i]);

		if (file && file->flags & __O_TMPFILE)
			return file;
	}
	return NULL;
}

/* Made as it was: it may still be linked to a name. Returns a descriptor to write with. */
static int make_tmpfile(struct ckpt_run *run, const Ckpt__Fd__Ghost *g, const char *dir,
			const Ckpt__Fd__File *file, struct ckpt_error *err)
{
	CKPT_AUTO_FD int first = open(dir, ((int)file->flags & FLAGS_OK) | O_CLOEXEC, 0600);
	CKPT_AUTO_FD int fd = -1;
	char path[32];
	int r;

	if (first < 0)
		return ckpt_fail_sys(err, errno, "open(2) of %s with O_TMPFILE", dir);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", first);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return ckpt_fail_sys(err, errno, "opening a file of O_TMPFILE once more");
	r = open_ends(run, g, first, path, err);
	if (!r)
		r = fd_stash_put(fd_state(run), file->id, ckpt_steal_fd(&first), err);
	return r ? r : ckpt_steal_fd(&fd);
}

/*
 * Under its old name, so that /proc shows the same; under another if that is taken
 * by now. The name is gone again before anything is written.
 */
static int make_deleted(struct ckpt_run *run, const Ckpt__Fd__Ghost *g, struct ckpt_error *err)
{
	char path[PATH_MAX], dir[PATH_MAX], name[PATH_MAX + 64];
	const Ckpt__Fd__File *file = tmpfile_of(run, g);
	CKPT_AUTO_IDS struct ckpt_ids ids = { 0 };
	CKPT_AUTO_DIRS struct ckpt_dirs dirs = CKPT_NO_DIRS;
	CKPT_AUTO_FD int fd = -1;
	int r;

	if (!fd_image_path(&g->name, path, sizeof(path)))
		return ckpt_fail_image(err, "file %u has no path", g->id);
	fd_directory_of(path, g->name.len, dir, sizeof(dir));
	r = ckpt_ids_take(&ids, g->owner->uid, g->owner->gid, err);
	if (r == 0)
		r = ckpt_dirs_open(run, g->mnt, dir, &dirs, err);
	if (r < 0)
		return r;
	snprintf(dir, sizeof(dir), "/proc/self/fd/%d", dirs.fd);
	if (file)
		return make_tmpfile(run, g, dir, file, err);
	snprintf(name, sizeof(name), "%s%s", dir, strrchr(path, '/'));
	fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0 && errno == EEXIST) {
		snprintf(name, sizeof(name), "%s/.ckpt-%llu-%u", dir,
			 (unsigned long long)ckpt_run_number(run), g->id);
		fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	}
	if (fd < 0)
		return ckpt_fail_sys(err, errno, "making the deleted file %s", path);
	r = open_ends(run, g, fd, name, err);
	if (ckpt_remove(AT_FDCWD, name, 0) && !r)
		r = ckpt_fail_sys(err, errno, "deleting %s again", path);
	return r ? r : ckpt_steal_fd(&fd);
}

static int make_memfd(struct ckpt_run *run, const Ckpt__Fd__Ghost *g, struct ckpt_error *err)
{
	bool noexec = g->seals & F_SEAL_EXEC && !(g->owner->mode & 0111);
	const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING |
			       (g->huge ? MFD_HUGETLB | 21 << MAP_HUGE_SHIFT : 0);
	CKPT_AUTO_FD int fd = -1;
	char name[256];
	int r;

	snprintf(name, sizeof(name), "%.*s", (int)g->name.len, (const char *)g->name.data);
	fd = memfd_create(name, flags | (noexec ? MFD_NOEXEC_SEAL : MFD_EXEC));
	/* before 6.3 all are executable, without a word for it */
	if (fd < 0 && errno == EINVAL && !noexec)
		fd = memfd_create(name, flags);
	if (fd < 0)
		return ckpt_fail_sys(err, errno, "memfd_create(2)");
	r = open_ends(run, g, fd, name, err);
	return r ? r : ckpt_steal_fd(&fd);
}

static int open_one(struct ckpt_run *run, const struct ckpt_fd_slot *slot, const char *type,
		    int (*make)(struct ckpt_run *run, const Ckpt__Fd__Ghost *g,
				struct ckpt_error *err),
		    struct ckpt_error *err)
{
	const Ckpt__Fd__GhostEnd *e = ckpt_record_need(run, "fd.ghost-end", slot->file, err);
	int fd = fd_stash_take(fd_state(run), slot->file), r;
	CKPT_AUTO_FD int writer = -1;
	const Ckpt__Fd__Ghost *g;

	if (fd >= 0)
		return fd;
	g = e ? ckpt_record_need(run, type, e->ghost, err) : NULL;
	if (!g)
		return -EBADMSG;
	writer = make(run, g, err);
	if (writer < 0)
		return writer;
	r = fill(run, writer, g, err);
	if (r)
		return r;
	fd = fd_stash_take(fd_state(run), slot->file);
	return fd >= 0 ? fd
		       : ckpt_fail_image(err, "open file %u is not among its file's", slot->file);
}

static int deleted_open(struct ckpt_run *run, const struct ckpt_fd_slot *slot,
			struct ckpt_error *err)
{
	return open_one(run, slot, "fd.deleted", make_deleted, err);
}

static int memfd_open(struct ckpt_run *run, const struct ckpt_fd_slot *slot, struct ckpt_error *err)
{
	return open_one(run, slot, "fd.memfd", make_memfd, err);
}

/* Seals come last: mappings that may still be made before them must be. */
static int memfd_finish(struct ckpt_run *run, uint32_t id, struct ckpt_task *holder, int num,
			struct ckpt_error *err)
{
	const Ckpt__Fd__Ghost *g = ckpt_record_by_id(run, "fd.memfd", id);
	CKPT_AUTO_FD int held = -1;
	CKPT_AUTO_FD int fd = -1;
	char path[32];

	if (!g || !g->seals)
		return 0;
	held = ckpt_get_fd(holder, num, err);
	if (held < 0)
		return held;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", held);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0 || fcntl(fd, F_ADD_SEALS, g->seals))
		return ckpt_fail_sys(err, errno, "F_ADD_SEALS %#x", g->seals);
	return 0;
}

const struct ckpt_fd_kind fd_kind_deleted = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = deleted_match,
	.survey = deleted_survey,
	.collect = ghost_collect,
	.plan = deleted_plan,
	.open = deleted_open,
	.own_flags = true,
};

const struct ckpt_fd_kind fd_kind_memfd = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = memfd_match,
	.survey = memfd_survey,
	.collect = ghost_collect,
	.plan = memfd_plan,
	.open = memfd_open,
	.finish = memfd_finish,
	.own_flags = true,
};
