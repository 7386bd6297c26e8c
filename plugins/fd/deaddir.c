/* SPDX-License-Identifier: MIT */
/*
 * Directories that were removed while open. They are empty for ever; what is left
 * of them is owner, mode, attributes and times. Made again under the old name, opened
 * as often as they were, and removed again.
 */
#include "internal.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>

bool fd_is_dead_directory(const struct ckpt_fd_found *f)
{
	size_t len = strlen(f->link), mark = strlen(FD_DELETED_MARK);
	struct stat st;

	/* on some filesystems one keeps a link when it is removed: the name decides */
	return S_ISDIR(f->st.st_mode) && f->link[0] == '/' && len > mark &&
	       !strcmp(f->link + len - mark, FD_DELETED_MARK) &&
	       (!f->st.st_nlink || lstat(f->link, &st));
}

static bool dead_match(const struct ckpt_fd_found *f)
{
	return fd_is_dead_directory(f) && !fd_below_proc(f);
}

static int dead_survey(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	char dir[PATH_MAX];
	struct stat st;
	int r = fd_filesystem_survey(run, f, err);

	if (!r)
		r = fd_own_mount_survey(run, f, err);
	if (r)
		return r;
	if (f->flags & ~FD_OPEN_FLAGS)
		return fd_refuse(run, f, "open-flags", "it was opened with flags unknown to ckpt",
				 "allow the loss");
	if (!fd_directory_of(f->link, strlen(f->link), dir, sizeof(dir)) || stat(dir, &st) ||
	    !S_ISDIR(st.st_mode) || st.st_dev != f->st.st_dev)
		return fd_refuse(run, f, "deleted",
				 "the directory that it was in is gone, or on another filesystem, "
				 "for ckpt",
				 "run ckpt in the same mount namespace, or allow the loss");
	return fd_refuse_readonly(run, f, "deleted", err);
}

/* The description that the record goes with: the first of the directory's that is saved. */
static uint32_t first_of(struct ckpt_run *run, const struct ckpt_fd_found *f)
{
	struct fd_file *const *files;
	size_t n = fd_files_of(fd_state(run), f->st.st_dev, f->st.st_ino, &files);

	for (size_t i = 0; i < n; i++)
		if (!files[i]->out && files[i]->kind->ops == &fd_kind_dead_directory)
			return files[i]->id;
	return f->file;
}

static int put_directory(struct ckpt_run *run, const struct ckpt_fd_found *f,
			 struct ckpt_error *err)
{
	Ckpt__Fd__DeadDirectory rec = CKPT__FD__DEAD_DIRECTORY__INIT;
	Ckpt__Fd__Ghost attributes = CKPT__FD__GHOST__INIT;
	Ckpt__Fd__Owner owner;
	int r;

	fd_owner_of(&f->st, &owner);
	rec.id = f->file;
	rec.name.data = (uint8_t *)(uintptr_t)f->link;
	rec.name.len = strlen(f->link) - strlen(FD_DELETED_MARK);
	rec.owner = &owner;
	rec.mtime_ns = f->st.st_mtim.tv_sec * 1000000000LL + f->st.st_mtim.tv_nsec;
	r = fd_xattrs_save(f->fd, &attributes, err);
	rec.xattrs = attributes.xattrs;
	rec.n_xattrs = attributes.n_xattrs;
	if (!r)
		r = ckpt_record_put(run, FD_DEAD_DIRECTORY, &rec.base, err);
	fd_ghost_free(&attributes);
	return r;
}

static int dead_collect(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	Ckpt__Fd__DeadEnd rec = CKPT__FD__DEAD_END__INIT;
	int r = 0;

	rec.id = f->file;
	rec.directory = first_of(run, f);
	if (rec.directory == rec.id)
		r = put_directory(run, f, err);
	return r ? r : ckpt_record_put(run, FD_DEAD_END, &rec.base, err);
}

/* ---- restore --------------------------------------------------------------------------- */

static const Ckpt__Fd__DeadDirectory *directory_of_end(struct ckpt_run *run, uint32_t id,
						       struct ckpt_error *err)
{
	const Ckpt__Fd__DeadEnd *e = ckpt_record_need(run, "fd.dead-end", id, err);

	return e ? ckpt_record_need(run, "fd.dead-directory", e->directory, err) : NULL;
}

static int dead_plan(struct ckpt_run *run, uint32_t id, struct ckpt_error *err)
{
	const Ckpt__Fd__DeadDirectory *rec = directory_of_end(run, id, err);
	const Ckpt__Fd__File *file = ckpt_record_need(run, "fd.file", id, err);
	char path[PATH_MAX], dir[PATH_MAX];
	struct stat st;
	int r;

	if (!rec || !file)
		return -EBADMSG;
	if (!fd_image_path(&rec->name, path, sizeof(path)) || rec->id > id ||
	    file->flags & ~(uint32_t)FD_OPEN_FLAGS || file->flags & O_ACCMODE)
		return ckpt_fail_image(err, "open file %u is not a valid deleted directory", id);
	fd_directory_of(path, rec->name.len, dir, sizeof(dir));
	r = ckpt_stat_in(run, 0, dir, false, &st);
	if (r == -ELOOP)
		return ckpt_link_unmet(run, dir);
	if (r || !S_ISDIR(st.st_mode))
		return ckpt_unmet(run, CKPT_EXIT_FAILED, "make the directory again",
				  "%s, where a deleted directory was, is not there", dir);
	return fd_owner_check(rec->owner, id, err);
}

/* All descriptions of the directory `made`, while it has its name. */
static int open_all(struct ckpt_run *run, const Ckpt__Fd__DeadDirectory *rec, int made,
		    const char *name, struct ckpt_error *err)
{
	for (size_t i = 0; i < ckpt_record_count(run, "fd.dead-end"); i++) {
		const Ckpt__Fd__DeadEnd *e = ckpt_record_at(run, "fd.dead-end", i);
		const Ckpt__Fd__File *file = ckpt_record_need(run, "fd.file", e->id, err);
		int fd, r;

		if (e->directory != rec->id)
			continue;
		if (!file)
			return -EBADMSG;
		fd = fd_open_made(made, name, (int)file->flags & FD_OPEN_FLAGS, err);
		if (fd < 0)
			return fd;
		r = fd_stash_put(fd_state(run), e->id, fd, err);
		if (r)
			return r;
	}
	return 0;
}

static int make(struct ckpt_run *run, const Ckpt__Fd__DeadDirectory *rec, struct ckpt_error *err)
{
	char path[PATH_MAX], way[PATH_MAX + 64], other[64];
	const char *name = fd_image_path(&rec->name, path, sizeof(path));
	CKPT_AUTO_FD int dir = -1;
	CKPT_AUTO_FD int made = -1;
	struct stat st;
	int r;

	if (!name)
		return ckpt_fail_image(err, "deleted directory %u has no path", rec->id);
	dir = ckpt_open_above(run, 0, path, &name, err);
	if (dir < 0)
		return dir;
	r = mkdirat(dir, name, 0700);
	if (r && errno == EEXIST) {
		snprintf(other, sizeof(other), ".ckpt-%llu-%u",
			 (unsigned long long)ckpt_run_number(run), rec->id);
		name = other;
		r = mkdirat(dir, name, 0700);
	}
	if (r)
		return ckpt_fail_sys(err, errno, "mkdir(2) of %s", path);
	snprintf(way, sizeof(way), "/proc/self/fd/%d/%s", dir, name);
	made = openat(dir, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	r = made < 0 ? ckpt_fail_sys(err, errno, "open(2) of %s", path)
		     : open_all(run, rec, made, way, err);
	if (ckpt_remove(dir, name, AT_REMOVEDIR) && !r)
		r = ckpt_fail_sys(err, errno, "rmdir(2) of %s", name);
	/* what was opened gets an owner: it must be the one that was empty and is gone */
	if (!r && (fstat(made, &st) || st.st_nlink))
		r = ckpt_fail(err, EEXIST, "somebody has put another directory in the place of %s",
			      name);
	return r;
}

static int apply(int fd, const Ckpt__Fd__DeadDirectory *rec, struct ckpt_error *err)
{
	struct timespec times[2] = {
		{ .tv_nsec = UTIME_OMIT },
		{ rec->mtime_ns / 1000000000, rec->mtime_ns % 1000000000 },
	};
	Ckpt__Fd__Ghost attributes = CKPT__FD__GHOST__INIT;
	int r = fd_owner_apply(fd, rec->owner, err);

	attributes.xattrs = rec->xattrs;
	attributes.n_xattrs = rec->n_xattrs;
	if (!r)
		r = fd_xattrs_restore(fd, &attributes, err);
	if (!r && rec->mtime_ns >= 0 && futimens(fd, times))
		r = ckpt_fail_sys(err, errno, "futimens(2)");
	return r;
}

static int dead_open(struct ckpt_run *run, const struct ckpt_fd_slot *slot, struct ckpt_error *err)
{
	const Ckpt__Fd__DeadDirectory *rec = directory_of_end(run, slot->file, err);
	int fd = fd_stash_take(fd_state(run), slot->file), r;

	if (!rec)
		return -EBADMSG;
	if (fd >= 0)
		return fd;
	r = make(run, rec, err);
	fd = r ? -1 : fd_stash_take(fd_state(run), slot->file);
	if (!r && fd < 0)
		return ckpt_fail_image(err, "open file %u is not among its directory's",
				       slot->file);
	if (!r)
		r = apply(fd, rec, err);
	if (r && fd >= 0)
		close(fd);
	return r ? r : fd;
}

const struct ckpt_fd_kind fd_kind_dead_directory = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = dead_match,
	.survey = dead_survey,
	.collect = dead_collect,
	.plan = dead_plan,
	.open = dead_open,
	.own_flags = true,
	.own_pos = true,
};
