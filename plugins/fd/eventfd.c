/* SPDX-License-Identifier: MIT */
/* eventfd(2): the count and whether it is a semaphore. */
#include "internal.h"

#include <fcntl.h>
#include <sys/eventfd.h>

static bool eventfd_match(const struct ckpt_fd_found *f)
{
	return !strncmp(f->link, "anon_inode:[eventfd", 19);
}

static int read_state(const struct ckpt_fd_found *f, uint64_t *count, uint64_t *semaphore)
{
	int r = fd_info_u64(f->fdinfo, "eventfd-count", 16, count);

	/* since 6.5: before, nothing tells a semaphore from a counter */
	return r ? r : fd_info_u64(f->fdinfo, "eventfd-semaphore", 10, semaphore);
}

static int eventfd_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
			  struct ckpt_error *err)
{
	uint64_t count, semaphore;

	if (read_state(f, &count, &semaphore))
		return fd_refuse(run, f, "eventfd",
				 "this kernel does not tell whether an eventfd is a semaphore",
				 "use Linux 6.5 or newer");
	if (count == UINT64_MAX)
		return fd_refuse(run, f, "eventfd", "the count has overflowed",
				 "let the program read it before the dump");
	return 0;
}

static int eventfd_collect(struct ckpt_run *run, const struct ckpt_fd_found *f,
			   struct ckpt_error *err)
{
	Ckpt__Fd__Eventfd rec = CKPT__FD__EVENTFD__INIT;
	uint64_t semaphore;

	if (read_state(f, &rec.count, &semaphore))
		return ckpt_fail(err, EPROTO, "fdinfo of an eventfd is not understood");
	rec.id = f->file;
	rec.semaphore = semaphore;
	return ckpt_record_put(run, FD_EVENTFD, &rec.base, err);
}

static int eventfd_plan(struct ckpt_run *run, uint32_t id, struct ckpt_error *err)
{
	const Ckpt__Fd__Eventfd *rec = ckpt_record_need(run, "fd.eventfd", id, err);

	if (!rec)
		return -EBADMSG;
	return rec->count == UINT64_MAX
		       ? ckpt_fail_image(err, "open file %u has no valid count", id)
		       : 0;
}

static int eventfd_open(struct ckpt_run *run, const struct ckpt_fd_slot *slot,
			struct ckpt_error *err)
{
	const Ckpt__Fd__Eventfd *rec = ckpt_record_need(run, "fd.eventfd", slot->file, err);
	CKPT_AUTO_FD int fd = -1;

	if (!rec)
		return -EBADMSG;
	fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | (rec->semaphore ? EFD_SEMAPHORE : 0));
	if (fd < 0)
		return ckpt_fail_sys(err, errno, "eventfd(2)");
	if (rec->count && write(fd, &rec->count, sizeof(rec->count)) != sizeof(rec->count))
		return ckpt_fail_sys(err, errno, "setting the count");
	return ckpt_steal_fd(&fd);
}

const struct ckpt_fd_kind fd_kind_eventfd = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = eventfd_match,
	.survey = eventfd_survey,
	.collect = eventfd_collect,
	.plan = eventfd_plan,
	.open = eventfd_open,
	.own_pos = true,
};
