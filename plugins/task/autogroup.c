/* SPDX-License-Identifier: MIT */
/* The nice value of a session, /proc/PID/autogroup: all its processes show it. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/capability.h>
#include <time.h>

#include "task.h"

#define FILE_NAME "autogroup"

struct group {
	long id, nice;
};

/* -ENOENT: the kernel has none. */
static int read_group(int procfd, struct group *g)
{
	CKPT_AUTO_FD int fd = openat(procfd, FILE_NAME, O_RDONLY | O_CLOEXEC);
	char text[64];
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

	if (n < 0)
		return -errno;
	text[n] = 0;
	/* nothing: the process is in no group */
	return !n || sscanf(text, "/autogroup-%ld nice %ld", &g->id, &g->nice) == 2 ? n > 0
										    : -EPROTO;
}

/* Its group, unless that is ckpt's too. */
static int foreign_group(int procfd, struct group *g)
{
	CKPT_AUTO_FD int self = open("/proc/self", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct group own;
	int r = self < 0 ? -errno : read_group(self, &own), theirs;

	if (r == -ENOENT)
		return 0;
	if (r < 0)
		return r;
	theirs = read_group(procfd, g);
	return theirs > 0 && r > 0 && own.id == g->id ? 0 : theirs;
}

int task_autogroup_read(struct ckpt_run *run, const struct ckpt_task *t, Ckpt__Task__Process *rec,
			struct ckpt_error *err)
{
	struct group g;
	int r = foreign_group(t->procfd, &g);

	if (r < 0)
		return ckpt_fail_sys(err, r, "/proc/%d/" FILE_NAME, t->pid);
	if (r && g.nice && task_want(run, TASK_AUTOGROUP, t, "nice value of the session"))
		rec->autogroup = (int32_t)g.nice;
	return 0;
}

static bool may_lower(void)
{
	cap_t caps = cap_get_proc();
	cap_flag_value_t on = CAP_CLEAR;

	if (caps)
		cap_get_flag(caps, CAP_SYS_NICE, CAP_EFFECTIVE, &on);
	cap_free(caps);
	return on == CAP_SET && task_in_first_namespace();
}

int task_autogroup_plan(struct ckpt_run *run, const Ckpt__Task__Process *rec,
			struct ckpt_error *err)
{
	if (rec->autogroup < -20 || rec->autogroup > 19)
		return TASK_BAD(err, "nice value of the session");
	if (!rec->autogroup)
		return 0;
	if (access("/proc/self/" FILE_NAME, W_OK))
		ckpt_unmet(run, CKPT_EXIT_REFUSED,
			   "dump with --without task.autogroup --allow-loss task.autogroup",
			   "task %u: nice value %d of its session: this kernel has no autogroups",
			   rec->id, rec->autogroup);
	else if (rec->autogroup < 0 && !may_lower())
		ckpt_unmet(run, CKPT_EXIT_PRIVILEGE, "run ckpt with CAP_SYS_NICE",
			   "task %u: nice value %d of its session", rec->id, rec->autogroup);
	return 0;
}

int task_autogroup_set(struct ckpt_run *run, struct ckpt_task *t, const Ckpt__Task__Process *rec,
		       struct ckpt_error *err)
{
	/* without CAP_SYS_ADMIN the kernel takes ten values a second, of all processes together */
	const struct timespec nap = { .tv_nsec = 50000000 };
	CKPT_AUTO_FD int fd = -1;
	struct group g;
	int r = rec->autogroup ? foreign_group(t->procfd, &g) : 0;

	if (r < 0)
		return ckpt_fail_sys(err, r, "/proc/%d/" FILE_NAME, t->pid);
	if (!r || g.nice == rec->autogroup)
		return 0;
	fd = openat(t->procfd, FILE_NAME, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return ckpt_fail_sys(err, errno, "/proc/%d/" FILE_NAME, t->pid);
	for (int tries = 0; dprintf(fd, "%d", rec->autogroup) < 0; tries++) {
		if (errno != EAGAIN || tries == 200)
			return ckpt_fail_sys(err, errno, "/proc/%d/" FILE_NAME, t->pid);
		nanosleep(&nap, NULL);
	}
	return 0;
}
