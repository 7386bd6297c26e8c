/* SPDX-License-Identifier: MIT */
/*
 * pidfds of tasks in the tree and of their threads (PIDFD_THREAD), living and dead. One
 * whose process was reaped, or whose thread has ended, has no number any more, only the
 * status it ended with: any process that ends that way stands in for it. Threads are not
 * there yet when descriptors are opened: until then a pidfd of their process has the place.
 */
#include "internal.h"

#include <fcntl.h>
#include <signal.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* Linux 6.13 and 6.15 */
struct pidfd_info_v1 {
	uint64_t mask, cgroup;
	uint32_t pid, tgid, ppid, ids[8];
	int32_t exit_code;
};
#define INFO_GET  _IOWR(0xFF, 11, struct pidfd_info_v1)
#define INFO_EXIT (1 << 3)

/* Linux 6.9 */
#ifndef PIDFD_THREAD
#define PIDFD_THREAD O_EXCL
#endif

/* PIDFD_NONBLOCK is O_NONBLOCK */
#define FLAGS_OK (O_RDWR | O_NONBLOCK | PIDFD_THREAD)

static bool pidfd_match(const struct ckpt_fd_found *f)
{
	return !strcmp(f->link, "anon_inode:[pidfd]") || !strncmp(f->link, "pidfd:", 6);
}

/* The status a reaped process ended with. */
static int ended_with(int fd, uint32_t *status)
{
	struct pidfd_info_v1 info = { .mask = INFO_EXIT };

	if (ioctl(fd, INFO_GET, &info) || !(info.mask & INFO_EXIT))
		return -EOPNOTSUPP;
	*status = (uint32_t)info.exit_code;
	return 0;
}

static bool status_valid(uint32_t status)
{
	return WIFEXITED(status) ? !(status & ~0xff00u)
				 : !(status & ~0x7fu) && status != SIGSTOP && status < 65;
}

static int survey_reaped(struct ckpt_run *run, const struct ckpt_fd_found *f)
{
	struct fd_file *const *files;
	uint32_t status;

	if (ended_with(f->fd, &status))
		return fd_refuse(run, f, "pidfd-reaped",
				 "its process was reaped, and the kernel does not tell its status",
				 "Linux 6.15 or newer tells; or let the program close it");
	if (!status_valid(status))
		return fd_refuse(run, f, "pidfd-reaped", "its process was reaped after a core dump",
				 "let the program close it, or allow the loss");
	if (fd_files_of(fd_state(run), f->st.st_dev, f->st.st_ino, &files) > 1)
		return fd_refuse(run, f, "pidfd-reaped",
				 "several pidfds of one reaped process are not saved yet",
				 "let the program close all but one, or allow the loss");
	return 0;
}

/* 0: the feature is on. */
static int survey_thread(struct ckpt_run *run, const struct ckpt_fd_found *f)
{
	char object[512];
	int r;

	snprintf(object, sizeof(object), "fd %d (%s)", f->num, f->link);
	r = ckpt_refuse_off(run, "thread-pidfd", f->task, object);
	return r > 0 ? 0 : r < 0 && r != -ECANCELED ? r : 1;
}

static int pidfd_survey(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	char reason[128];
	uint32_t thread = 0;
	uint64_t v;
	pid_t pid;
	int r;

	if (fd_info_u64(f->fdinfo, "Pid", 10, &v))
		return fd_refuse(run, f, "pidfd", "the kernel does not tell whose it is",
				 "CONFIG_PROC_FS is needed");
	if (f->flags & ~FLAGS_OK)
		return fd_refuse(run, f, "open-flags", "it was opened with flags unknown to ckpt",
				 "allow the loss");
	pid = (pid_t)v;
	if (pid > 0 && fd_thread_find(run, pid, &thread))
		return thread ? survey_thread(run, f) : 0;
	if (pid == -1) {
		r = f->flags & PIDFD_THREAD ? survey_thread(run, f) : 0;
		return r ? r : survey_reaped(run, f);
	}
	snprintf(reason, sizeof(reason),
		 "it leads to process or thread %d, which is no process of the tree", pid);
	return fd_refuse(run, f, "pidfd-outside", reason,
			 "let the program close it, or allow the loss");
}

static int pidfd_collect(struct ckpt_run *run, const struct ckpt_fd_found *f,
			 struct ckpt_error *err)
{
	Ckpt__Fd__Pidfd rec = CKPT__FD__PIDFD__INIT;
	const struct ckpt_task *task;
	uint64_t v;

	if (fd_info_u64(f->fdinfo, "Pid", 10, &v))
		return ckpt_fail(err, EPROTO, "fdinfo of a pidfd is not understood");
	rec.id = f->file;
	if ((pid_t)v == -1) {
		if (ended_with(f->fd, &rec.status))
			return ckpt_fail(err, EPROTO, "PIDFD_GET_INFO tells no status");
		return ckpt_record_put(run, FD_PIDFD, &rec.base, err);
	}
	task = fd_thread_find(run, (pid_t)v, &rec.thread);
	if (!task)
		return ckpt_fail(err, ESRCH, "%d is not in the tree", (pid_t)v);
	rec.task = task->id;
	return ckpt_record_put(run, FD_PIDFD, &rec.base, err);
}

static int pidfd_plan(struct ckpt_run *run, uint32_t id, struct ckpt_error *err)
{
	const Ckpt__Fd__Pidfd *rec = ckpt_record_need(run, "fd.pidfd", id, err);
	const Ckpt__Fd__File *file = ckpt_record_need(run, "fd.file", id, err);

	if (!rec || !file)
		return -EBADMSG;
	if (file->flags & ~(uint32_t)FLAGS_OK || file->pos ||
	    (rec->task ? !fd_task_known(run, rec->task) || rec->status
		       : rec->thread || !status_valid(rec->status)) ||
	    (rec->thread &&
	     (!(file->flags & PIDFD_THREAD) || !fd_thread_known(run, rec->task, rec->thread))))
		return ckpt_fail_image(err, "open file %u is not a valid pidfd", id);
	return 0;
}

/* The stand-in: as little as possible happens in it. */
static void __attribute__((noreturn)) end_with(uint32_t status)
{
	if (WIFSIGNALED(status)) {
		static const struct rlimit none = { 0, 0 };

		setrlimit(RLIMIT_CORE, &none);
		prctl(PR_SET_DUMPABLE, 0);
		signal(WTERMSIG(status), SIG_DFL);
		kill(getpid(), WTERMSIG(status));
	}
	_exit(WEXITSTATUS(status));
}

static int open_reaped(uint32_t status, bool thread, struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = -1, other = -1;
	/* no exit signal: whoever runs ckpt as a library does not hear of it */
	struct {
		uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls;
	} args = { .flags = CLONE_PIDFD, .pidfd = (uint64_t)(uintptr_t)&fd };
	long pid = syscall(SYS_clone3, &args, sizeof(args));
	uint32_t got;

	if (!pid)
		end_with(status);
	if (pid < 0)
		return ckpt_fail_sys(err, errno, "clone3(2) of a process to be reaped");
	if (thread)
		other = (int)syscall(SYS_pidfd_open, pid, PIDFD_THREAD);
	if (thread && other < 0)
		ckpt_fail_sys(err, errno, "pidfd_open(2) of a process to be reaped");
	while (waitpid((pid_t)pid, NULL, __WALL) < 0)
		if (errno != EINTR)
			return ckpt_fail_sys(err, errno, "waitpid(2)");
	if (thread && other < 0)
		return -err->err;
	if (ended_with(fd, &got) || got != status)
		return ckpt_fail(err, EOPNOTSUPP,
				 "a reaped process with status %#x could not be made", status);
	return thread ? ckpt_steal_fd(&other) : ckpt_steal_fd(&fd);
}

static int pidfd_open_slot(struct ckpt_run *run, const struct ckpt_fd_slot *slot,
			   struct ckpt_error *err)
{
	const Ckpt__Fd__Pidfd *rec = ckpt_record_need(run, "fd.pidfd", slot->file, err);
	const struct ckpt_task *task = rec ? ckpt_task_by_id(run, rec->task) : NULL;
	int fd;

	if (!rec)
		return -EBADMSG;
	if (!rec->task)
		return open_reaped(rec->status, slot->flags & PIDFD_THREAD, err);
	if (!task)
		return ckpt_fail_image(err, "task %u of a pidfd was not made", rec->task);
	fd = (int)syscall(SYS_pidfd_open, task->pid, slot->flags & PIDFD_THREAD);
	return fd < 0 ? ckpt_fail_sys(err, errno, "pidfd_open(2) of %d", task->pid) : fd;
}

static int pidfd_reopen(struct ckpt_run *run, const struct ckpt_fd_slot *slot,
			struct ckpt_error *err)
{
	const Ckpt__Fd__Pidfd *rec = ckpt_record_need(run, "fd.pidfd", slot->file, err);
	const struct ckpt_task *task = rec ? ckpt_task_by_id(run, rec->task) : NULL;
	const struct ckpt_thread *th = task ? ckpt_thread_at(task, rec->thread) : NULL;
	int fd;

	if (!rec)
		return -EBADMSG;
	if (!rec->thread)
		return -ENOENT;
	if (!th)
		return ckpt_fail_image(err, "thread %u of task %u was not made", rec->thread,
				       rec->task);
	fd = (int)syscall(SYS_pidfd_open, th->tid, PIDFD_THREAD);
	return fd < 0 ? ckpt_fail_sys(err, errno, "pidfd_open(2) of thread %d", th->tid) : fd;
}

const struct ckpt_fd_kind fd_kind_pidfd = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = pidfd_match,
	.survey = pidfd_survey,
	.collect = pidfd_collect,
	.plan = pidfd_plan,
	.open = pidfd_open_slot,
	.own_pos = true,
	.reopen = pidfd_reopen,
};
