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
	*thread = 0;
	for (size_t i = 0; i < ckpt_task_count(run); i++) {
		const struct ckpt_task *t = ckpt_task_at(run, i);

		*task = t->id;
		if (t->pid == o->pid)
			return true;
		for (size_t j = 0; o->type == F_OWNER_TID && j < t->n_threads; j++) {
			*thread = (uint32_t)j;
			if (t->threads[j]->tid == o->pid)
				return true;
		}
		*thread = 0;
	}
	return false;
}

static bool in_our_pidns(const struct ckpt_task *t)
{
	struct stat ours, theirs;

	return !stat("/proc/self/ns/pid", &ours) && !fstatat(t->procfd, "ns/pid", &theirs, 0) &&
	       ours.st_ino == theirs.st_ino;
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
	else if (a.owner.pid && !in_our_pidns(f->task))
		snprintf(reason, sizeof(reason),
			 "owners (F_SETOWN) in nested pid namespaces are not saved yet");
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
		    (a->thread && a->type != F_OWNER_TID) || a->uid == UINT32_MAX ||
		    a->euid == UINT32_MAX)
			return ckpt_fail_image(err, "the owner of open file %u is not valid",
					       a->id);
	}
	return 0;
}

/* The saved id stays the engine's, so that the way back is open. */
static void set_owner(struct ckpt_script *s, const Ckpt__Fd__Async *a, int num, pid_t pid)
{
	struct f_owner_ex o = { (int)a->type, pid };
	bool other = a->uid != getuid() || a->euid != geteuid();

	if (other)
		ckpt_script_add(s, SYS_setresuid, CKPT_C(a->uid), CKPT_C(a->euid), CKPT_C(-1));
	ckpt_script_add(s, SYS_fcntl, CKPT_C(num), CKPT_C(F_SETOWN_EX), CKPT_IN(&o, sizeof(o)));
	if (other)
		ckpt_script_add(s, SYS_setresuid, CKPT_C(getuid()), CKPT_C(geteuid()), CKPT_C(-1));
}

int fd_async_apply(struct ckpt_run *run, uint32_t id, struct ckpt_task *holder, int num,
		   struct ckpt_error *err)
{
	const Ckpt__Fd__Async *a = ckpt_record_by_id(run, "fd.async", id);
	const Ckpt__Fd__File *file = ckpt_record_by_id(run, "fd.file", id);
	CKPT_AUTO_SCRIPT struct ckpt_script *s = NULL;
	const struct ckpt_task *owner;
	int r;

	if (!a || !file)
		return 0;
	s = ckpt_script_new(run, "fd.owner");
	owner = a->task ? ckpt_task_by_id(run, a->task) : NULL;
	if (a->task && (!owner || a->thread >= (owner->n_threads ? owner->n_threads : 1)))
		return ckpt_fail_image(err, "the owner of open file %u was not made", id);
	if (owner)
		set_owner(s, a, num, a->thread ? owner->threads[a->thread]->tid : owner->pid);
	if (a->signal)
		ckpt_script_add(s, SYS_fcntl, CKPT_C(num), CKPT_C(F_SETSIG), CKPT_C(a->signal));
	/* the number is told to the program in si_fd: it must be the task's own */
	if (a->async)
		ckpt_script_add(s, SYS_fcntl, CKPT_C(num), CKPT_C(F_SETFL),
				CKPT_C((file->flags & SETTABLE) | O_ASYNC));
	r = ckpt_script_run(s, holder->threads[0], err);
	return r ? ckpt_wrap(err, "owner of open file %u", id) : 0;
}
