/* SPDX-License-Identifier: MIT */
/*
 * Directories in /proc of a process that has ended. A sandbox makes one its root (a helper
 * that shares the working directory goes to its own /proc/self/fdinfo, and ends): nothing
 * can be looked up there any more, by anybody. Neither can it be entered then, so a process
 * of that number has to live for the moment in which its directory is entered.
 */
#include <errno.h>
#include <linux/magic.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mnt.h"

static const char in_process[] = "/fdinfo";

/* The kernel's PID_MAX_DEFAULT: what pid_max is where nobody has set it, on the smallest machine.
 */
#define PID_MAX_LEAST 0x7fff

/* Where the number begins in ".../93/fdinfo"; NULL: it is another path. */
static const char *number_in(const char *path, uint32_t *number)
{
	const size_t cut = sizeof(in_process) - 1;
	size_t end = strlen(path), begin;
	unsigned long n;

	if (end <= cut || strcmp(path + end - cut, in_process) != 0)
		return NULL;
	end -= cut;
	for (begin = end; begin && path[begin - 1] >= '0' && path[begin - 1] <= '9'; begin--)
		;
	n = begin < 2 || path[begin - 1] != '/' || end - begin > 9
		    ? 0
		    : strtoul(path + begin, NULL, 10);
	*number = (uint32_t)n;
	return n ? path + begin : NULL;
}

bool mnt_gone_is(const char *path, uint32_t number)
{
	uint32_t n;

	return number_in(path, &n) && n == number;
}

/* ---- dump ----------------------------------------------------------------------------- */

/* The pid namespace that a proc shows; 0: it cannot be told. */
static uint32_t shown_by(struct ckpt_run *run, const struct mnt_state *st, dev_t dev)
{
	struct stat own;

	for (size_t i = 0; i < st->n_fs; i++) {
		const struct mnt_fs *fs = st->fs[i];

		if (fs->shows && fs->major == major(dev) && fs->minor == minor(dev))
			return fs->shows;
	}
	return !stat("/proc", &own) && own.st_dev == dev ? ckpt_ns_own(run, CKPT_NS_PID)->id : 0;
}

int mnt_gone_find(struct ckpt_run *run, int fd, const char *path, uint32_t *ns, uint32_t *number,
		  struct ckpt_error *err)
{
	struct mnt_state *st = mnt_state(run, err);
	CKPT_AUTO_FD int inside = -1;
	struct statfs fs;
	struct stat is;
	int r;

	*ns = 0;
	if (!st || !number_in(path, number))
		return st ? 0 : -ENOMEM;
	inside = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (inside >= 0 || errno != ESRCH || fstatfs(fd, &fs) || fs.f_type != PROC_SUPER_MAGIC ||
	    fstat(fd, &is))
		return 0;
	r = mnt_model(run, st, err);
	if (r == 0)
		*ns = shown_by(run, st, is.st_dev);
	return r;
}

/* ---- restore -------------------------------------------------------------------------- */

static pid_t clone_numbered(uint32_t number)
{
	const pid_t tid = (pid_t)number, engine = getpid();
	const struct clone_args args = {
		.exit_signal = SIGCHLD,
		.set_tid = (uint64_t)(uintptr_t)&tid,
		.set_tid_size = 1,
	};
	pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof(args));

	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		/* a parent of another pid namespace reads 0 */
		while (!getppid() || getppid() == engine)
			syscall(SYS_pause);
		syscall(SYS_exit_group, 0);
	}
	return pid < 0 ? -errno : pid;
}

/*
 * Who has the number may be a stranger, or a process of the tree: then the directory is that of
 * another number. From above, where the kernel comes last; and by number, which does not move its
 * cursor.
 */
static void clone_any(struct mnt_gone *gone)
{
	gone->inside = gone->number;
	gone->pid = clone_numbered(gone->inside);
	/* EINVAL: above the namespace's pid_max, which may be less */
	for (uint32_t n = PID_MAX_LEAST; n > 1 && (gone->pid == -EEXIST || gone->pid == -EINVAL);
	     n--) {
		gone->inside = n;
		gone->pid = clone_numbered(n);
	}
}

int mnt_gone_begin(struct ckpt_run *run, const struct ckpt_ns *ns, struct mnt_gone *gone,
		   struct ckpt_error *err)
{
	const struct ckpt_ns *own = ckpt_ns_own(run, CKPT_NS_PID);
	sigset_t all, old;
	int back = 0;

	if (!ns->own && setns(ns->fd, CLONE_NEWPID))
		return ckpt_fail_sys(err, errno, "joining the %s", ns->name);
	/* a handler of ours must not run in the child */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	clone_any(gone);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (!ns->own)
		back = setns(own->fd, CLONE_NEWPID) ? errno : 0;
	if (gone->pid < 0)
		return ckpt_fail_sys(err, gone->pid, "clone3(2) with number %u in the %s",
				     gone->number, ns->name);
	if (back)
		mnt_gone_end(gone);
	return back ? ckpt_fail_sys(err, back, "going back to the own pid namespace") : 0;
}

const char *mnt_gone_path(const struct mnt_gone *gone, const char *path, char *buf, size_t size)
{
	uint32_t number;
	const char *at = gone->inside != gone->number ? number_in(path, &number) : NULL;

	if (!at || number != gone->number)
		return path;
	snprintf(buf, size, "%.*s%u%s", (int)(at - path), path, gone->inside, in_process);
	return buf;
}

void mnt_gone_end(struct mnt_gone *gone)
{
	if (gone->pid <= 0)
		return;
	ckpt_end_child(gone->pid);
	gone->pid = 0;
}
