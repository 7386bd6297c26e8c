/* SPDX-License-Identifier: MIT */
/* Character devices without state: null, zero, full, random, urandom. */
#include "internal.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/sysmacros.h>

#define FLAGS_OK (O_ACCMODE | O_APPEND | O_NONBLOCK | O_SYNC | O_DSYNC | O_NOFOLLOW | 0100000)

/* major 1 */
static bool known(unsigned maj, unsigned min)
{
	return maj == 1 && (min == 3 || min == 5 || min == 7 || min == 8 || min == 9);
}

static bool device_match(const struct ckpt_fd_found *f)
{
	return S_ISCHR(f->st.st_mode) && known(major(f->st.st_rdev), minor(f->st.st_rdev));
}

static int device_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
			 struct ckpt_error *err)
{
	struct stat st;
	uint32_t mnt;
	int r = fd_place_mnt(run, f, &mnt, err);

	if (r < 0)
		return r;
	if (f->flags & ~FLAGS_OK)
		return fd_refuse(run, f, "open-flags", "it was opened with flags unknown to ckpt",
				 "allow the loss");
	/* any node of that number is as good as another */
	if (ckpt_stat_in(run, mnt, f->link, false, &st) || !S_ISCHR(st.st_mode) ||
	    st.st_rdev != f->st.st_rdev)
		return fd_refuse(run, f, "path", "the path does not lead to that device for ckpt",
				 "run ckpt in the same mount namespace");
	return 0;
}

static int device_collect(struct ckpt_run *run, const struct ckpt_fd_found *f,
			  struct ckpt_error *err)
{
	Ckpt__Fd__Device rec = CKPT__FD__DEVICE__INIT;
	int r = fd_place_mnt(run, f, &rec.mnt, err);

	if (r < 0)
		return r;
	rec.id = f->file;
	rec.path.data = (uint8_t *)(uintptr_t)f->link;
	rec.path.len = strlen(f->link);
	rec.major = major(f->st.st_rdev);
	rec.minor = minor(f->st.st_rdev);
	return ckpt_record_put(run, FD_DEVICE, &rec.base, err);
}

static int device_plan(struct ckpt_run *run, uint32_t id, struct ckpt_error *err)
{
	const Ckpt__Fd__Device *rec = ckpt_record_need(run, "fd.device", id, err);
	const Ckpt__Fd__File *file = ckpt_record_need(run, "fd.file", id, err);
	char buf[PATH_MAX];
	const char *path;
	struct stat st;
	int r;

	if (!rec || !file)
		return -EBADMSG;
	path = fd_image_path(&rec->path, buf, sizeof(buf));
	if (!path || !known(rec->major, rec->minor) || file->flags & ~(uint32_t)FLAGS_OK ||
	    file->pos < 0)
		return ckpt_fail_image(err, "open file %u is not a valid device", id);
	r = ckpt_stat_in(run, rec->mnt, path, false, &st);
	if (r == -EINPROGRESS)
		return 0;
	if (r == -ELOOP)
		return fd_missing(run, path, r, NULL);
	if (r < 0 || !S_ISCHR(st.st_mode) || st.st_rdev != makedev(rec->major, rec->minor))
		return ckpt_unmet(run, CKPT_EXIT_FAILED, "make the device node again",
				  "%s is not the device %u:%u", path, rec->major, rec->minor);
	return 0;
}

static int device_open(struct ckpt_run *run, const struct ckpt_fd_slot *slot,
		       struct ckpt_error *err)
{
	const Ckpt__Fd__Device *rec = ckpt_record_need(run, "fd.device", slot->file, err);
	char buf[PATH_MAX];
	const char *path = rec ? fd_image_path(&rec->path, buf, sizeof(buf)) : NULL;
	CKPT_AUTO_FD int fd = -1;
	struct stat st;

	if (!path)
		return ckpt_fail_image(err, "open file %u has no path", slot->file);
	/* non-blocking: should the node have become another device, opening must not hang */
	fd = ckpt_open_in(run, rec->mnt, path, (slot->flags & FLAGS_OK) | O_NOCTTY | O_NONBLOCK, 0,
			  err);
	if (fd < 0)
		return fd;
	if (fstat(fd, &st) || st.st_rdev != makedev(rec->major, rec->minor))
		return ckpt_fail(err, ENXIO, "%s is not the device it was", path);
	return ckpt_steal_fd(&fd);
}

const struct ckpt_fd_kind fd_kind_device = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = device_match,
	.survey = device_survey,
	.collect = device_collect,
	.plan = device_plan,
	.open = device_open,
};
