/* SPDX-License-Identifier: MIT */
/*
 * Files and directories of /sys, cgroups among them, ckpt's own or a container's. They are
 * there again under the same path, and what they hold is the kernel's.
 */
#include "internal.h"

#include <limits.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <sys/vfs.h>

#define FLAGS_OK (O_ACCMODE | O_APPEND | O_NONBLOCK | O_DIRECTORY | O_NOFOLLOW | O_PATH | 0100000)

static bool is_cgroup(const struct ckpt_fd_found *f)
{
	struct statfs fs;

	return !fstatfs(f->fd, &fs) &&
	       (fs.f_type == CGROUP_SUPER_MAGIC || fs.f_type == CGROUP2_SUPER_MAGIC);
}

bool fd_below_sys(const struct ckpt_fd_found *f)
{
	struct statfs fs;

	if ((!S_ISREG(f->st.st_mode) && !S_ISDIR(f->st.st_mode)) ||
	    strncmp(f->link, "/sys", 4) != 0 || (f->link[4] && f->link[4] != '/') ||
	    fstatfs(f->fd, &fs))
		return false;
	return (fs.f_type == SYSFS_MAGIC || fs.f_type == CGROUP_SUPER_MAGIC ||
		fs.f_type == CGROUP2_SUPER_MAGIC) &&
	       !fd_is_ghost(f) && !fd_has_other_name(f) && !fd_is_dead_directory(f);
}

static bool sysfs_match(const struct ckpt_fd_found *f)
{
	return fd_below_sys(f);
}

int fd_holder_is_root(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *status = NULL;
	char ids[64] = "1";
	ssize_t len = ckpt_proc_read(f->task, "status", &status, err);

	if (len < 0)
		return (int)len;
	return ckpt_ns_of_task(run, f->task, CKPT_NS_USER)->own &&
	       ckpt_proc_field(status, "Uid", ids, sizeof(ids)) == 0 && atoi(ids) == 0;
}

/* The kernel asks the opener's credentials when a process is moved: ours are a privileged one's. */
static int survey_writer(struct ckpt_run *run, const struct ckpt_fd_found *f,
			 struct ckpt_error *err)
{
	int r;

	if (f->flags & O_PATH || (f->flags & O_ACCMODE) == O_RDONLY || !is_cgroup(f))
		return 0;
	r = fd_holder_is_root(run, f, err);
	if (r)
		return r < 0 ? r : 0;
	return fd_refuse(run, f, "special-filesystem",
			 "an unprivileged program has it open for writing to a cgroup",
			 "let the program close it before the dump, or allow the loss");
}

static int sysfs_survey(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	int r;

	if (f->flags & ~FLAGS_OK)
		return fd_refuse(run, f, "open-flags", "it was opened with flags unknown to ckpt",
				 "allow the loss");
	r = survey_writer(run, f, err);
	return r ? r : fd_place_survey(run, f, err);
}

static int sysfs_collect(struct ckpt_run *run, const struct ckpt_fd_found *f,
			 struct ckpt_error *err)
{
	Ckpt__Fd__Sysfile rec = CKPT__FD__SYSFILE__INIT;
	int r = fd_place_mnt(run, f, &rec.mnt, err);

	if (r < 0)
		return r;
	rec.id = f->file;
	rec.path.data = (uint8_t *)(uintptr_t)f->link;
	rec.path.len = strlen(f->link);
	rec.type = f->st.st_mode & S_IFMT;
	return ckpt_record_put(run, FD_SYSFILE, &rec.base, err);
}

static int sysfs_plan(struct ckpt_run *run, uint32_t id, struct ckpt_error *err)
{
	const Ckpt__Fd__Sysfile *rec = ckpt_record_need(run, "fd.sysfs", id, err);
	const Ckpt__Fd__File *file = ckpt_record_need(run, "fd.file", id, err);
	char buf[PATH_MAX];
	const char *path;

	if (!rec || !file)
		return -EBADMSG;
	path = fd_image_path(&rec->path, buf, sizeof(buf));
	if (!path || !fd_mnt_known(run, rec->mnt) ||
	    (rec->type != S_IFREG && rec->type != S_IFDIR) || file->flags & ~(uint32_t)FLAGS_OK ||
	    file->pos < 0)
		return ckpt_fail_image(err, "open file %u is not a valid file of /sys", id);
	/* a filesystem of the tree's own would show the machine's devices too */
	if (fd_copies_check(run, 0, path, file))
		return 0;
	/* whether it is there turns out later: groups are made in this restore */
	return 0;
}

static int sysfs_open(struct ckpt_run *run, const struct ckpt_fd_slot *slot, struct ckpt_error *err)
{
	const Ckpt__Fd__Sysfile *rec = ckpt_record_need(run, "fd.sysfs", slot->file, err);

	return rec ? fd_open_saved(run, rec->mnt, NULL, &rec->path, slot->flags & FLAGS_OK,
				   rec->type, err)
		   : -EBADMSG;
}

const struct ckpt_fd_kind fd_kind_sysfs = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = sysfs_match,
	.survey = sysfs_survey,
	.collect = sysfs_collect,
	.plan = sysfs_plan,
	.open = sysfs_open,
	.own_flags = true,
	.o_path = true,
};
