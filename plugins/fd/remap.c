/* SPDX-License-Identifier: MIT */
/*
 * Files that were deleted under the name by which they were opened, while another
 * name is left. Which one nobody tells; the inode is found by its handle, and gets the
 * old name back for a moment, so that a description is made as it was.
 */
#include "internal.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>

bool fd_has_other_name(const struct ckpt_fd_found *f)
{
	size_t len = strlen(f->link), mark = strlen(FD_DELETED_MARK);
	struct stat st;

	return S_ISREG(f->st.st_mode) && f->st.st_nlink && f->link[0] == '/' && len > mark &&
	       !strcmp(f->link + len - mark, FD_DELETED_MARK) && lstat(f->link, &st) &&
	       !fd_is_queue(f);
}

static bool other_name_match(const struct ckpt_fd_found *f)
{
	return fd_has_other_name(f) && !fd_below_proc(f);
}

int fd_own_mount_survey(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	int r = ckpt_mnt_of_fd(run, f->fd, err);

	if (r < 0 && r != -ENOENT)
		return r;
	return !r ? 0
		  : fd_refuse(run, f, "path",
			      "it has lost its name, and is in another mount namespace than ckpt's",
			      "let the program close it, or allow the loss");
}

static int other_name_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
			     struct ckpt_error *err)
{
	struct fd_handle h;
	struct stat st;
	char dir[PATH_MAX];
	CKPT_AUTO_FD int found = -1;
	int r = fd_filesystem_survey(run, f, err);

	if (!r)
		r = fd_own_mount_survey(run, f, err);
	if (r)
		return r;
	if (f->flags & ~FD_OPEN_FLAGS)
		return fd_refuse(run, f, "open-flags", "it was opened with flags unknown to ckpt",
				 "allow the loss");
	if (!fd_directory_of(f->link, strlen(f->link), dir, sizeof(dir)) || stat(dir, &st) ||
	    st.st_dev != ckpt_mnt_device(run, f->fd, &f->st))
		return fd_refuse(run, f, "path",
				 "its directory is gone, or on another filesystem, for ckpt",
				 "run ckpt in the same mount namespace, or allow the loss");
	r = fd_handle_get(f->fd, &h);
	found = r ? r : fd_handle_open(&h, st.st_dev, f->st.st_ino);
	if (found < 0)
		return fd_refuse(run, f, "path",
				 "it was deleted, another name is left, and its filesystem has no "
				 "handle by which to find it",
				 "allow the loss, or let the program open it by that name");
	return fd_refuse_readonly(run, f, "path", err);
}

static int other_name_collect(struct ckpt_run *run, const struct ckpt_fd_found *f,
			      struct ckpt_error *err)
{
	Ckpt__Fd__OtherName rec = CKPT__FD__OTHER_NAME__INIT;
	struct fd_handle h;
	int r = fd_handle_get(f->fd, &h);

	if (r)
		return ckpt_fail_sys(err, r, "name_to_handle_at(2)");
	rec.id = f->file;
	rec.path.data = (uint8_t *)(uintptr_t)f->link;
	rec.path.len = strlen(f->link) - strlen(FD_DELETED_MARK);
	rec.dev = ckpt_mnt_device(run, f->fd, &f->st);
	rec.ino = f->st.st_ino;
	rec.handle_type = h.h.handle_type;
	rec.handle.data = h.h.f_handle;
	rec.handle.len = h.h.handle_bytes;
	return ckpt_record_put(run, FD_OTHER_NAME, &rec.base, err);
}

/* The inode, as O_PATH. */
static int find(const Ckpt__Fd__OtherName *rec)
{
	struct fd_handle h = { .h = { .handle_bytes = (unsigned)rec->handle.len,
				      .handle_type = rec->handle_type } };
	struct stat st;
	CKPT_AUTO_FD int fd = -1;

	memcpy(h.h.f_handle, rec->handle.data, rec->handle.len);
	fd = fd_handle_open(&h, rec->dev, rec->ino);
	if (fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_nlink)
		return ckpt_steal_fd(&fd);
	return -ESTALE;
}

static int other_name_plan(struct ckpt_run *run, uint32_t id, struct ckpt_error *err)
{
	const Ckpt__Fd__OtherName *rec = ckpt_record_need(run, "fd.other-name", id, err);
	const Ckpt__Fd__File *file = ckpt_record_need(run, "fd.file", id, err);
	char path[PATH_MAX];
	CKPT_AUTO_FD int fd = -1;

	if (!rec || !file)
		return -EBADMSG;
	if (!fd_image_path(&rec->path, path, sizeof(path)) || !rec->handle.len ||
	    rec->handle.len > MAX_HANDLE_SZ || file->flags & ~(uint32_t)FD_OPEN_FLAGS ||
	    file->pos < 0)
		return ckpt_fail_image(err, "open file %u is not a valid file without its name",
				       id);
	if (fd_copies_check(run, 0, path, file))
		return 0;
	if (ckpt_is_copy(run) && !ckpt_copies_collide(run, 0, path))
		return ckpt_unmet(run, CKPT_EXIT_REFUSED, "leave the layer out",
				  "the file that was %s is found by its inode, which no layer has",
				  path);
	fd = find(rec);
	if (fd < 0)
		return ckpt_unmet(run, CKPT_EXIT_FAILED,
				  "restore on the machine, and before the last name is deleted",
				  "the file that was %s is not on its filesystem any more", path);
	return 0;
}

static int other_name_open(struct ckpt_run *run, const struct ckpt_fd_slot *slot,
			   struct ckpt_error *err)
{
	const Ckpt__Fd__OtherName *rec = ckpt_record_need(run, "fd.other-name", slot->file, err);
	char path[PATH_MAX], way[PATH_MAX + 64], other[64];
	const char *name = rec ? fd_image_path(&rec->path, path, sizeof(path)) : NULL;
	CKPT_AUTO_FD int inode = name ? find(rec) : -ESTALE;
	CKPT_AUTO_FD int dir = -1;
	CKPT_AUTO_FD int seen = -1;
	CKPT_AUTO_FD int fd = -1;
	struct stat a, b;
	int r;

	if (inode < 0)
		return ckpt_fail_sys(err, inode, "open file %u: its inode", slot->file);
	dir = ckpt_open_above(run, 0, path, &name, err);
	if (dir < 0)
		return dir;
	r = linkat(inode, "", dir, name, AT_EMPTY_PATH);
	if (r && errno == EEXIST) {
		snprintf(other, sizeof(other), ".ckpt-%llu-%u",
			 (unsigned long long)ckpt_run_number(run), rec->id);
		name = other;
		r = linkat(inode, "", dir, name, AT_EMPTY_PATH);
	}
	if (r)
		return ckpt_fail_sys(err, errno, "linking %s for a moment", path);
	snprintf(way, sizeof(way), "/proc/self/fd/%d/%s", dir, name);
	/* by its name, since the inode was found in whatever mount */
	seen = openat(dir, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (seen < 0)
		r = ckpt_fail_sys(err, errno, "open(2) of %s", name);
	else if (fstat(inode, &a) || fstat(seen, &b) || a.st_dev != b.st_dev ||
		 a.st_ino != b.st_ino)
		r = ckpt_fail(err, EEXIST, "somebody has put another file in the place of %s",
			      name);
	else
		r = fd = fd_open_made(seen, way, (slot->flags & FD_OPEN_FLAGS) | O_NOCTTY, err);
	if (ckpt_remove(dir, name, 0) && r >= 0)
		return ckpt_fail_sys(err, errno, "deleting %s again", name);
	return r < 0 ? r : ckpt_steal_fd(&fd);
}

const struct ckpt_fd_kind fd_kind_other_name = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = other_name_match,
	.survey = other_name_survey,
	.collect = other_name_collect,
	.plan = other_name_plan,
	.open = other_name_open,
	.own_flags = true,
};
