/* SPDX-License-Identifier: MIT */
/* O_PATH descriptors: a place in the filesystem, whatever is there. */
#include "internal.h"

#include <fcntl.h>
#include <limits.h>

#define FLAGS_OK (O_PATH | O_DIRECTORY | O_NOFOLLOW)

static bool opath_match(const struct ckpt_fd_found *f)
{
	return f->flags & O_PATH && f->link[0] == '/' && !fd_below_proc(f) && !fd_below_sys(f);
}

static int opath_survey(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	int r;

	if (f->flags & ~FLAGS_OK)
		return fd_refuse(run, f, "open-flags", "it was opened with flags unknown to ckpt",
				 "allow the loss");
	r = fd_filesystem_survey(run, f, err);
	if (!r && fd_is_detached(run, f))
		return fd_detached_survey(run, f, err);
	return r ? r : fd_place_survey(run, f, err);
}

static int opath_collect(struct ckpt_run *run, const struct ckpt_fd_found *f,
			 struct ckpt_error *err)
{
	Ckpt__Fd__Opath rec = CKPT__FD__OPATH__INIT;
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
	rec.dev = rec.mnt ? 0 : f->st.st_dev;
	rec.ino = rec.mnt ? 0 : f->st.st_ino;
	return ckpt_record_put(run, FD_OPATH, &rec.base, err);
}

static int opath_plan(struct ckpt_run *run, uint32_t id, struct ckpt_error *err)
{
	const Ckpt__Fd__Opath *rec = ckpt_record_need(run, "fd.o-path", id, err);
	const Ckpt__Fd__File *file = ckpt_record_need(run, "fd.file", id, err);
	char buf[PATH_MAX];
	const char *path;
	struct stat st;
	int r;

	if (!rec || !file)
		return -EBADMSG;
	path = fd_image_path(&rec->path, buf, sizeof(buf));
	if (!path || !fd_mnt_known(run, rec->mnt) || !(file->flags & O_PATH) ||
	    file->flags & ~(uint32_t)FLAGS_OK || file->pos ||
	    (rec->type == S_IFLNK && !(file->flags & O_NOFOLLOW)))
		return ckpt_fail_image(err, "open file %u is not a valid O_PATH descriptor", id);
	if (rec->detached)
		return fd_detached_plan(run, rec->detached, path, file, err);
	r = ckpt_stat_in(run, rec->mnt, path, true, &st);
	if (r == -EINPROGRESS)
		return 0;
	if (r < 0)
		return fd_missing(run, path, r, "put it back where it was");
	if ((st.st_mode & S_IFMT) != rec->type)
		return ckpt_unmet(run, CKPT_EXIT_FAILED, "put it back where it was",
				  "%s is of another type than it was", path);
	return 0;
}

static int opath_open(struct ckpt_run *run, const struct ckpt_fd_slot *slot, struct ckpt_error *err)
{
	const Ckpt__Fd__Opath *rec = ckpt_record_need(run, "fd.o-path", slot->file, err);

	return rec ? fd_open_saved(run, rec->mnt, rec->detached, &rec->path,
				   (slot->flags & FLAGS_OK) | O_PATH, rec->type, err)
		   : -EBADMSG;
}

const struct ckpt_fd_kind fd_kind_opath = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = opath_match,
	.survey = opath_survey,
	.collect = opath_collect,
	.plan = opath_plan,
	.open = opath_open,
	.own_flags = true,
	.own_pos = true,
	.o_path = true,
};
