/* SPDX-License-Identifier: MIT */
/*
 * Who gets which signal when something happens to a file: F_SETOWN, F_SETSIG and
 * O_ASYNC. They belong to the description, whatever its kind. The kernel checks
 * the right to send with the ids of who has set the owner, so these are kept too.
 */
#include "internal.h"

#include <fcntl.h>
#include <sys/syscall.h>

#ifndef F_GETOWNER_UIDS
#define F_GETOWNER_UIDS 17
#endif
#define SETTABLE (O_APPEND | O_NONBLOCK | O_DIRECT | O_NOATIME)

struct async {
	struct f_owner_ex owner; /* pid 0: nobody */
	uid_t ids[2];
	int signal;
	bool async;
};

/* 0: there is nothing of that, 1: there is. */
static int read_async(int fd, int flags, struct async *a)
{
	memset(a, 0, sizeof(*a));
	if (flags & O_PATH)
		return 0;
	a->async = flags & O_ASYNC;
	a->signal = fcntl(fd, F_GETSIG);
	if (fcntl(fd, F_GETOWN_EX, &a->owner))
		a->owner.pid = 0;
	if (!a->async && a->signal <= 0 && !a->owner.pid)
		return 0;
	return fcntl(fd, F_GETOWNER_UIDS, a->ids) ? -errno : 1;
}

/* The owner as task and thread; false: not in the tree. */
static bool locate(struct ckpt_run *run, const struct f_owner_ex *o, uint32_t *task,
		   uint32_t *thread)
{
	const struct ckpt_task *t = fd_thread_find(run, o->pid, thread);

	if (!t || (*thread && o->type != F_OWNER_TID))
		return false;
	*task = t->id;
	return true;
}

bool fd_async_any(int fd, int flags)
{
	struct async a;

	return read_async(fd, flags, &a) != 0;
}

int fd_async_survey(struct ckpt_run *run, struct fd_file *file, const struct ckpt_fd_found *f)
{
	uint32_t task, thread;
	char object[512], reason[160];
	struct async a;
	/* most have nothing of that, and are not asked again */
	int r = file->no_owner ? 0 : read_async(f->fd, file->first->flags, &a);

	file->out_async = !r;
	if (!r)
		return 0;
	snprintf(object, sizeof(object), "fd %d (%s)", f->num, f->link);
	if (r > 0) {
		r = ckpt_refuse_off(run, "owner", f->task, object);
		if (r <= 0) {
			file->out_async = true;
			return r < 0 && r != -ECANCELED ? r : 0;
		}
	}
	if (r < 0)
		snprintf(reason, sizeof(reason),
			 "the kernel does not tell who has set its owner (F_SETOWN)");
	else if (a.owner.pid && !locate(run, &a.owner, &task, &thread))
		snprintf(reason, sizeof(reason),
			 "its owner (F_SETOWN) is %s %d, which is not in the tree",
			 a.owner.type == F_OWNER_PGRP ? "the group" : "process", a.owner.pid);
	else
		return 0;
	file->out_async = true;
	return fd_refuse_detail(run, f, "owner", reason,
				"switch signal-driven I/O off, or --allow-loss fd.owner: the "
				"signals are then not sent");
}

int fd_async_collect(struct ckpt_run *run, const struct fd_file *file,
		     const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	Ckpt__Fd__Async rec = CKPT__FD__ASYNC__INIT;
	struct async a;

	if (file->out_async || read_async(f->fd, file->first->flags, &a) <= 0)
		return 0;
	rec.id = f->file;
	rec.signal = (uint32_t)a.signal;
	rec.async = a.async;
	if (a.owner.pid) {
		if (!locate(run, &a.owner, &rec.task, &rec.thread))
			return ckpt_fail(err, ESRCH, "its owner %d is not in the tree",
					 a.owner.pid);
		rec.type = (uint32_t)a.owner.type;
		rec.uid = a.ids[0];
		rec.euid = a.ids[1];
	}
	return ckpt_record_put(run, FD_ASYNC, &rec.base, err);
}

int fd_async_plan(struct ckpt_run *run, struct ckpt_error *err)
{
	for (size_t i = 0; i < ckpt_record_count(run, "fd.async"); i++) {
		const Ckpt__Fd__Async *a = ckpt_record_at(run, "fd.async", i);

		if (!ckpt_record_by_id(run, "fd.file", a->id) || a->type > F_OWNER_PGRP ||
		    a->signal > 64 || (a->task && !fd_task_known(run, a->task)) ||
		    (a->thread &&
		     (a->type != F_OWNER_TID || !fd_thread_known(run, a->task, a->thread))) ||
		    a->uid == UINT32_MAX || a->euid == UINT32_MAX)
			return ckpt_fail_image(err, "the owner of open file %u is not valid",
					       a->id);
	}
	return 0;
}

struct owning {
	const Ckpt__Fd__Async *saved;
	int fd;
	struct f_owner_ex owner;
};

/* In a child of the engine, which sees the processes of all namespaces of the tree. */
static int set_owner(void *arg, struct ckpt_error *err)
{
	const struct owning *o = arg;
	const Ckpt__Fd__Async *a = o->saved;

	/* of the child alone, and not what libc makes of it: of all threads that it knows */
	if ((a->uid != getuid() || a->euid != geteuid()) &&
	    syscall(SYS_setresuid, a->uid, a->euid, -1))
		return ckpt_fail_sys(err, errno, "setresuid(2) to %u and %u", a->uid, a->euid);
	return fcntl(o->fd, F_SETOWN_EX, &o->owner) ? ckpt_fail_sys(err, errno, "F_SETOWN_EX") : 0;
}

/* The number is told to the program in si_fd: it must be the task's own. */
static int set_async(struct ckpt_run *run, const Ckpt__Fd__File *file,
		     const struct ckpt_task *holder, int num, struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "fd.owner");

	ckpt_script_add(s, SYS_fcntl, CKPT_C(num), CKPT_C(F_SETFL),
			CKPT_C((file->flags & SETTABLE) | O_ASYNC));
	return ckpt_script_run(s, holder->threads[0], err);
}

int fd_async_apply(struct ckpt_run *run, uint32_t id, struct ckpt_task *holder, int num,
		   struct ckpt_error *err)
{
	const Ckpt__Fd__Async *a = ckpt_record_by_id(run, "fd.async", id);
	const Ckpt__Fd__File *file = ckpt_record_by_id(run, "fd.file", id);
	const struct ckpt_ns_place here = { 0 };
	const struct ckpt_task *owner;
	CKPT_AUTO_FD int fd = -1;
	struct owning o = { .saved = a };
	int r = 0;

	if (!a || !file)
		return 0;
	owner = a->task ? ckpt_task_by_id(run, a->task) : NULL;
	if (a->task && (!owner || (a->thread && !ckpt_thread_at(owner, a->thread))))
		return ckpt_fail_image(err, "the owner of open file %u was not made", id);
	fd = ckpt_get_fd(holder, num, err);
	if (fd < 0)
		return fd;
	if (owner) {
		o.fd = fd;
		o.owner.type = (int)a->type;
		o.owner.pid = a->thread ? ckpt_thread_at(owner, a->thread)->tid : owner->pid;
		r = ckpt_ns_run(run, &here, set_owner, &o, err);
	}
	if (!r && a->signal && fcntl(fd, F_SETSIG, a->signal))
		r = ckpt_fail_sys(err, errno, "F_SETSIG");
	if (!r && a->async)
		r = set_async(run, file, holder, num, err);
	return r ? ckpt_wrap(err, "owner of open file %u", id) : 0;
}
