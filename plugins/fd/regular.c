/* SPDX-License-Identifier: MIT */
/*
 * Regular files and directories, opened again by their path. The path must lead
 * to the same inode for ckpt; what the file holds is not saved, since a file of
 * that name stays where it is.
 */
#include "internal.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#ifndef PID_FS_MAGIC
#define PID_FS_MAGIC 0x50494446
#endif
#define MQUEUE_MAGIC 0x19800202

static const struct {
	long magic;
	const char *name;
} special[] = {
	{ PROC_SUPER_MAGIC, "proc" },
	{ SYSFS_MAGIC, "sysfs" },
	{ CGROUP_SUPER_MAGIC, "cgroup" },
	{ CGROUP2_SUPER_MAGIC, "cgroup2" },
	{ DEBUGFS_MAGIC, "debugfs" },
	{ TRACEFS_MAGIC, "tracefs" },
	{ SECURITYFS_MAGIC, "securityfs" },
	{ BPF_FS_MAGIC, "bpf" },
	{ NSFS_MAGIC, "nsfs" },
	{ PID_FS_MAGIC, "pidfs" },
	{ ANON_INODE_FS_MAGIC, "anonymous" },
	{ BINFMTFS_MAGIC, "binfmt_misc" },
	{ EFIVARFS_MAGIC, "efivarfs" },
	{ PSTOREFS_MAGIC, "pstore" },
	{ MQUEUE_MAGIC, "mqueue" },
	{ 0x65735543, "fusectl" },
	{ 0x62656570, "configfs" },
};

bool fd_is_queue(const struct ckpt_fd_found *f)
{
	struct statfs fs;

	/* all of them are as long as the text that they are as files */
	return S_ISREG(f->st.st_mode) && f->st.st_size == 80 && !major(f->st.st_dev) &&
	       f->fd >= 0 && !fstatfs(f->fd, &fs) && fs.f_type == MQUEUE_MAGIC;
}

static bool regular_match(const struct ckpt_fd_found *f)
{
	return (S_ISREG(f->st.st_mode) || S_ISDIR(f->st.st_mode)) && f->link[0] == '/' &&
	       !fd_below_proc(f) && !fd_below_sys(f) && !fd_is_ghost(f) && !fd_has_other_name(f) &&
	       !fd_is_dead_directory(f) && strncmp(f->link, "/secretmem", 10) != 0 &&
	       !fd_is_queue(f);
}

int fd_place_mnt(struct ckpt_run *run, const struct ckpt_fd_found *f, uint32_t *mnt,
		 struct ckpt_error *err)
{
	int r = ckpt_mnt_of_fd(run, f->fd, err);

	if (r == -ENOENT)
		return ckpt_fail(err, ENOENT, "the mount of %s is in no mount namespace", f->link);
	*mnt = r < 0 ? 0 : (uint32_t)r;
	return r < 0 ? r : 0;
}

int fd_place_survey(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	struct stat st;
	char reason[160];
	int mnt = ckpt_mnt_of_fd(run, f->fd, err);

	if (mnt == -ENOENT)
		return fd_refuse(run, f, "detached-mount", "its mount is in no mount namespace",
				 "let the program close what it opened before unmounting");
	if (mnt < 0)
		return mnt;

	/* a directory keeps one link when it is removed on some filesystems: the name decides */
	if (!f->st.st_nlink)
		return fd_refuse(run, f, "deleted",
				 "only regular files are saved when they were deleted",
				 "allow the loss, or let the program close it");
	/* O_PATH has symbolic links too; a link of /proc leads to none */
	if (ckpt_stat_in(run, (uint32_t)mnt, f->link, true, &st))
		return fd_refuse(
			run, f, "path", "the path does not lead to the file for ckpt",
			"run ckpt in the same mount namespace, where the file has that name");
	if (st.st_dev == f->st.st_dev && st.st_ino == f->st.st_ino)
		return 0;
	snprintf(reason, sizeof(reason),
		 "the path leads to another file for ckpt (inode %lu, not %lu)",
		 (unsigned long)st.st_ino, (unsigned long)f->st.st_ino);
	return fd_refuse(run, f, "path", reason,
			 "the file was replaced, or lies in another mount; run ckpt in the same "
			 "mount namespace");
}

int fd_filesystem_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
			 struct ckpt_error *err)
{
	struct fd_state *st = fd_state(run);
	struct statfs fs;
	char reason[128];

	if (st->plain_dev == f->st.st_dev)
		return 0;
	if (fstatfs(f->fd, &fs))
		return ckpt_fail_sys(err, errno, "fstatfs(2)");
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(special); i++) {
		if (fs.f_type != special[i].magic)
			continue;
		snprintf(reason, sizeof(reason), "files on a %s filesystem are not saved yet",
			 special[i].name);
		return fd_refuse(run, f, "special-filesystem", reason,
				 "let the program close it before the dump, or allow the loss");
	}
	st->plain_dev = f->st.st_dev;
	return 0;
}

/* chattr(1) after it was opened: nobody may open it like that again, root neither. */
static const char *fixed_since(const struct ckpt_fd_found *f)
{
	struct statx sx;

	if ((f->flags & O_ACCMODE) == O_RDONLY || f->flags & O_PATH ||
	    statx(f->fd, "", AT_EMPTY_PATH, STATX_TYPE, &sx))
		return NULL;
	if (sx.stx_attributes & STATX_ATTR_IMMUTABLE)
		return "it is immutable by now, and could not be opened for writing again";
	if (sx.stx_attributes & STATX_ATTR_APPEND && !(f->flags & O_APPEND))
		return "it is append-only by now, and could not be opened like this again";
	return NULL;
}

static int regular_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
			  struct ckpt_error *err)
{
	const char *fixed = fixed_since(f);
	char reason[128];
	int r;

	if (fixed)
		return fd_refuse(run, f, "path", fixed,
				 "chattr -a -i, or let the program close it");
	if (f->flags & ~FD_OPEN_FLAGS) {
		snprintf(reason, sizeof(reason), "the flags %#o are not known to ckpt",
			 f->flags & ~FD_OPEN_FLAGS);
		return fd_refuse(run, f, "open-flags", reason, "allow the loss");
	}
	r = fd_filesystem_survey(run, f, err);
	if (!r && fd_is_detached(run, f))
		return fd_detached_survey(run, f, err);
	return r ? r : fd_place_survey(run, f, err);
}
static int regular_collect(struct ckpt_run *run, const struct ckpt_fd_found *f,
			   struct ckpt_error *err)
{
	Ckpt__Fd__Regular rec = CKPT__FD__REGULAR__INIT;
	Ckpt__Fd__Detached detached;
	char root[PATH_MAX];
	int r;

	if (fd_is_detached(run, f)) {
		rec.detached = &detached;
		r = fd_detached_collect(run, f, &detached, root, err);
	} else {
		r = fd_place_mnt(run, f, &rec.mnt, err);
	}
	if (r < 0)
		return r;
	rec.id = f->file;
	rec.path.data = (uint8_t *)(uintptr_t)f->link;
	rec.path.len = strlen(f->link);
	rec.type = f->st.st_mode & S_IFMT;
	/* a filesystem of the tree's own gets new numbers */
	rec.dev = rec.mnt ? 0 : f->st.st_dev;
	rec.ino = rec.mnt ? 0 : f->st.st_ino;
	if (S_ISREG(f->st.st_mode))
		rec.size = (uint64_t)f->st.st_size;
	rec.mtime_ns = f->st.st_mtim.tv_sec * 1000000000LL + f->st.st_mtim.tv_nsec;
	return ckpt_record_put(run, FD_REGULAR, &rec.base, err);
}

/*
 * Has the file changed in a way that the program cannot have meant? Files grow
 * while nobody looks (logs), but one that shrank has lost what was read or
 * written there.
 */
static const char *changed(struct ckpt_run *run, const Ckpt__Fd__Regular *rec,
			   const struct stat *st)
{
	const char *how = ckpt_opt_string(run, "changed-files");
	int64_t mtime = st->st_mtim.tv_sec * 1000000000LL + st->st_mtim.tv_nsec;

	if (!how || !strcmp(how, "ignore") || rec->type != S_IFREG)
		return NULL;
	if ((uint64_t)st->st_size < rec->size)
		return "is shorter than it was";
	if (!strcmp(how, "refuse") &&
	    ((uint64_t)st->st_size != rec->size || mtime != rec->mtime_ns))
		return "was changed since the dump";
	return NULL;
}

static int regular_plan(struct ckpt_run *run, uint32_t id, struct ckpt_error *err)
{
	const Ckpt__Fd__Regular *rec = ckpt_record_need(run, "fd.regular", id, err);
	const Ckpt__Fd__File *file = ckpt_record_need(run, "fd.file", id, err);
	const char *path, *what;
	char buf[PATH_MAX];
	struct stat st;
	int r;

	if (!rec || !file)
		return -EBADMSG;
	path = fd_image_path(&rec->path, buf, sizeof(buf));
	if (!path || !fd_mnt_known(run, rec->mnt) ||
	    (rec->type != S_IFREG && rec->type != S_IFDIR) ||
	    file->flags & ~(uint32_t)FD_OPEN_FLAGS || file->pos < 0)
		return ckpt_fail_image(err, "open file %u is not a valid regular file", id);
	if (rec->detached)
		return fd_detached_plan(run, rec->detached, path, file, err);
	if (fd_copies_check(run, rec->mnt, path, file))
		return 0;
	r = ckpt_stat_in(run, rec->mnt, path, true, &st);
	if (r == -EINPROGRESS)
		return 0;
	if (r < 0)
		return fd_missing(run, path, r, "put the file back where it was");
	if ((st.st_mode & S_IFMT) != rec->type)
		return ckpt_unmet(run, CKPT_EXIT_FAILED, "put the file back where it was",
				  "%s is no longer a %s", path,
				  rec->type == S_IFDIR ? "directory" : "regular file");
	/* in the planning pass of a dump a running program may be at work on it */
	what = ckpt_plan_only(run) ? NULL : changed(run, rec, &st);
	if (what)
		return ckpt_unmet(run, CKPT_EXIT_FAILED,
				  "put the file's old content back, or -o fd.changed-files=ignore",
				  "%s %s", path, what);
	return 0;
}

bool fd_copies_check(struct ckpt_run *run, uint32_t mnt, const char *path,
		     const Ckpt__Fd__File *file)
{
	const bool fifo = !strcmp(file->kind, "fifo");

	if (file->flags & O_PATH || (!fifo && (file->flags & O_ACCMODE) == O_RDONLY) ||
	    !ckpt_copies_share(run, mnt, path))
		return false;
	ckpt_unmet(run, CKPT_EXIT_REFUSED,
		   "lay a layer over it (--layer), or say that it is meant (--shared)",
		   fifo ? "the FIFO %s would be the same for all copies"
			: "%s is open for writing, and all copies would write to it",
		   path);
	return true;
}

static int check_found(const char *path, uint32_t type, int fd, struct stat *st,
		       struct ckpt_error *err)
{
	if (fstat(fd, st) || (st->st_mode & S_IFMT) != type)
		return ckpt_fail(err, EIO, "%s is no longer what it was", path);
	return 0;
}

/* A look comes first: opening what has become a FIFO would wait, a device would do something. */
static int open_found(struct ckpt_run *run, uint32_t mnt, const char *path, int flags,
		      uint32_t type, struct ckpt_error *err)
{
	const int look = flags & O_PATH ? flags & (O_PATH | O_NOFOLLOW | O_DIRECTORY) : 0;
	CKPT_AUTO_FD int seen = ckpt_open_in(run, mnt, path, look ? look : O_PATH, 0, err);
	CKPT_AUTO_FD int fd = -1;
	struct stat a, b;
	char self[32];

	if (seen < 0 || check_found(path, type, seen, &a, err) < 0)
		return -err->err;
	if (look)
		return ckpt_steal_fd(&seen);
	/* O_NOFOLLOW stays among a file's flags, and /proc has nothing but links */
	snprintf(self, sizeof(self), "/proc/self/fd/%d", seen);
	fd = flags & O_NOFOLLOW ? ckpt_open_in(run, mnt, path, flags, 0, err)
				: open(self, flags | O_CLOEXEC);
	if (fd < 0)
		return err->err ? -err->err : ckpt_fail_sys(err, errno, "open(2) of %s", path);
	if (check_found(path, type, fd, &b, err) < 0)
		return -err->err;
	if (a.st_dev != b.st_dev || a.st_ino != b.st_ino)
		return ckpt_fail(err, EIO, "%s was replaced meanwhile", path);
	return ckpt_steal_fd(&fd);
}

int fd_missing(struct ckpt_run *run, const char *path, int why, const char *hint)
{
	return why == -ELOOP ? ckpt_link_unmet(run, path)
			     : ckpt_unmet(run, CKPT_EXIT_FAILED, hint, "%s: %s", path,
					  ckpt_errno_name(why));
}

int fd_open_saved(struct ckpt_run *run, uint32_t mnt, const Ckpt__Fd__Detached *detached,
		  const ProtobufCBinaryData *path, int flags, uint32_t type, struct ckpt_error *err)
{
	char buf[PATH_MAX];
	const char *text = fd_image_path(path, buf, sizeof(buf));
	CKPT_AUTO_FD int fd = -1;
	struct stat st;

	if (!text)
		return ckpt_fail_image(err, "an open file has no path");
	fd = detached ? fd_detached_open(run, detached, text, flags, err)
		      : open_found(run, mnt, text, flags, type, err);
	if (fd < 0)
		return ckpt_wrap(err, "flags %#o", flags);
	if (detached && (fstat(fd, &st) || (st.st_mode & S_IFMT) != type))
		return ckpt_fail(err, EIO, "%s is no longer what it was", text);
	return ckpt_steal_fd(&fd);
}

static int regular_open(struct ckpt_run *run, const struct ckpt_fd_slot *slot,
			struct ckpt_error *err)
{
	const Ckpt__Fd__Regular *rec = ckpt_record_need(run, "fd.regular", slot->file, err);
	CKPT_AUTO_FD int fd = -1;
	const char *what;
	struct stat st;

	if (!rec)
		return -EBADMSG;
	fd = fd_open_saved(run, rec->mnt, rec->detached, &rec->path,
			   (slot->flags & FD_OPEN_FLAGS) | O_NOCTTY, rec->type, err);
	if (fd < 0 || rec->mnt || rec->detached)
		return ckpt_steal_fd(&fd);
	/* what the plan has seen may have been another file */
	what = fstat(fd, &st) ? "cannot be looked at" : changed(run, rec, &st);
	return what ? ckpt_fail(err, ESTALE, "open file %u %s", slot->file, what)
		    : ckpt_steal_fd(&fd);
}

const struct ckpt_fd_kind fd_kind_regular = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = regular_match,
	.survey = regular_survey,
	.collect = regular_collect,
	.plan = regular_plan,
	.open = regular_open,
	.own_flags = true,
};
