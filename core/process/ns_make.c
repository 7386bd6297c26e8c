/* SPDX-License-Identifier: MIT */
/*
 * Making namespaces. One belongs to the user namespace that its maker is in, so
 * each is made by a child that goes there, and lives on by its descriptor.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/run.h"
#include "process/ns.h"
#include "process/set.h"
#include "process/uapi.h"

/* A pid namespace has no link before its first process is there. */
static int open_pid_for_children(struct ckpt_error *err)
{
	CKPT_AUTO_FD int self = (int)syscall(SYS_pidfd_open, (pid_t)syscall(SYS_getpid), 0);
	int fd = self < 0 ? -1 : ioctl(self, PIDFD_GET_PID_FOR_CHILDREN_NAMESPACE, 0);

	if (fd >= 0)
		return fd;
	ckpt_fail_sys(err, errno, "PIDFD_GET_PID_FOR_CHILDREN_NAMESPACE");
	return ckpt_hint(err, "pid namespaces of other user namespaces need Linux 6.11");
}

static int make(void *arg, struct ckpt_error *err)
{
	struct ckpt_ns *ns = arg;
	char path[64];

	if (unshare(ns_types[ns->type].flag))
		return ckpt_fail_sys(err, errno, "unshare(2) of the %s", ns->name);
	if (ns->type == CKPT_NS_PID) {
		ns->fd = open_pid_for_children(err);
		return ns->fd < 0 ? ns->fd : 0;
	}
	snprintf(path, sizeof(path), "/proc/thread-self/ns/%s%s", ns_types[ns->type].name,
		 ns->type == CKPT_NS_TIME ? "_for_children" : "");
	ns->fd = open(path, O_RDONLY | O_CLOEXEC);
	return ns->fd < 0 ? ckpt_fail_sys(err, errno, "%s", path) : 0;
}

int ckpt_ns_make(struct ckpt_run *run, struct ckpt_ns *ns, struct ckpt_error *err)
{
	struct ckpt_ns_place place = { 0 };

	if (ns->type == CKPT_NS_USER || !ns->owner || ns->owner->fd < 0)
		return ckpt_fail(err, EINVAL, "the %s has no owner that is there", ns->name);
	place.ns[CKPT_NS_USER] = ns->owner;
	if (ns->type == CKPT_NS_PID)
		place.ns[CKPT_NS_PID] = ns->parent;
	return ckpt_ns_run(run, &place, make, ns, err);
}

int ckpt_ns_enter(struct ckpt_run *run, struct ckpt_thread *th, const struct ckpt_ns *ns,
		  struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "setns");
	int num = ckpt_lend_fd(run, th->task, ns->fd, err), r;

	if (num < 0)
		return num;
	ckpt_script_add(s, SYS_setns, CKPT_C(num), CKPT_C(ns_types[ns->type].flag));
	r = ckpt_script_run(s, th, err);
	if (r < 0)
		return ckpt_wrap(err, "task %u: joining the %s", th->task->id, ns->name);
	if (ns->type == CKPT_NS_USER)
		node_of(th->task)->apart = true;
	return ckpt_return_fd(run, th->task, num, err);
}
