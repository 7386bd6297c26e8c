/* SPDX-License-Identifier: MIT */
/* signalfd(2): its mask. What it reads are the pending signals of whoever reads. */
#include "internal.h"

#include <fcntl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>

static bool signalfd_match(const struct ckpt_fd_found *f)
{
	return !strcmp(f->link, "anon_inode:[signalfd]");
}

static int signalfd_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
			   struct ckpt_error *err)
{
	uint64_t mask;

	if (fd_info_u64(f->fdinfo, "sigmask", 16, &mask))
		return fd_refuse(run, f, "signalfd", "the kernel does not tell its mask",
				 "CONFIG_PROC_FS is needed");
	return 0;
}

static int signalfd_collect(struct ckpt_run *run, const struct ckpt_fd_found *f,
			    struct ckpt_error *err)
{
	Ckpt__Fd__Signalfd rec = CKPT__FD__SIGNALFD__INIT;

	if (fd_info_u64(f->fdinfo, "sigmask", 16, &rec.mask))
		return ckpt_fail(err, EPROTO, "fdinfo of a signalfd is not understood");
	rec.id = f->file;
	return ckpt_record_put(run, FD_SIGNALFD, &rec.base, err);
}

static int signalfd_plan(struct ckpt_run *run, uint32_t id, struct ckpt_error *err)
{
	/* any mask is one: the kernel takes out what nobody can have */
	return ckpt_record_need(run, "fd.signalfd", id, err) ? 0 : -EBADMSG;
}

static int signalfd_open(struct ckpt_run *run, const struct ckpt_fd_slot *slot,
			 struct ckpt_error *err)
{
	const Ckpt__Fd__Signalfd *rec = ckpt_record_need(run, "fd.signalfd", slot->file, err);
	int fd;

	if (!rec)
		return -EBADMSG;
	/* the C library's sigset_t is larger than the kernel's */
	fd = (int)syscall(SYS_signalfd4, -1, &rec->mask, sizeof(rec->mask), SFD_CLOEXEC);
	return fd < 0 ? ckpt_fail_sys(err, errno, "signalfd4(2)") : fd;
}

const struct ckpt_fd_kind fd_kind_signalfd = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = signalfd_match,
	.survey = signalfd_survey,
	.collect = signalfd_collect,
	.plan = signalfd_plan,
	.open = signalfd_open,
	.own_pos = true,
};
