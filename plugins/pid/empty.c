/* SPDX-License-Identifier: MIT */
/*
 * Pid namespaces that nobody is in and that somebody's children would be born in: unshared,
 * nothing forked yet; or the first process has ended, and no other can ever be born there.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "pid.h"

#ifndef PIDFD_GET_PID_FOR_CHILDREN_NAMESPACE
#define PIDFD_GET_PID_FOR_CHILDREN_NAMESPACE 0xff06
#endif

bool pid_ns_is_empty(const struct ckpt_ns *ns)
{
	return ns && !ns->own && !ns->member;
}

/* The thread whose children would be born there; NULL: nobody's. */
static const struct ckpt_thread *whose(struct ckpt_run *run, const struct ckpt_ns *ns)
{
	for (size_t i = 0; i < ckpt_task_count(run); i++) {
		const struct ckpt_task *t = ckpt_task_at(run, i);

		for (size_t k = 0; k < ckpt_ns_seats(run, t->id) && k < t->n_threads; k++)
			if (!t->zombie && ckpt_ns_seat(run, t->id, k)->pid_for_children == ns)
				return t->threads[k];
	}
	return NULL;
}

bool pid_ns_is_anothers(const struct ckpt_ns *ns)
{
	return !ns->own && ns->owner && !ns->owner->own;
}

int pid_probe_descriptor(void)
{
	CKPT_AUTO_FD int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
	CKPT_AUTO_FD int fd = self < 0 ? -1 : ioctl(self, PIDFD_GET_PID_FOR_CHILDREN_NAMESPACE, 0);

	return fd < 0 ? -errno : 0;
}

int pid_empty_survey(struct ckpt_run *run, const struct ckpt_ns *ns)
{
	const struct ckpt_thread *th = whose(run, ns);

	if (!pid_ns_is_empty(ns) || !th)
		return 1;
	if (ckpt_refuse_off(run, "empty-namespaces", th->task, ns->name) == 1 &&
	    pid_probe_descriptor() < 0)
		ckpt_refuse(run, &(struct ckpt_blocker){ .feature = "empty-namespaces",
							 .task = th->task,
							 .object = ns->name,
							 .reason = PID_NO_DESCRIPTOR,
							 .hint = PID_NEW_KERNEL });
	return 0;
}

int pid_empty_state(struct ckpt_run *run, const struct ckpt_ns *ns, uint32_t *state,
		    struct ckpt_error *err)
{
	const struct ckpt_thread *th = pid_ns_is_empty(ns) ? whose(run, ns) : NULL;
	char path[64], text[64];
	ssize_t n;

	*state = 0;
	if (!th)
		return 0;
	pid_thread_path(path, sizeof(path), th, "ns/pid_for_children");
	n = readlinkat(th->task->procfd, path, text, sizeof(text));
	if (n < 0 && errno != ENOENT)
		return ckpt_fail_sys(err, errno, "/proc/%d/%s", (int)th->task->pid, path);
	/* there is a link since the first process, and for good */
	*state = n < 0 ? PID_NS_UNBORN : PID_NS_ENDED;
	return 0;
}

/* ---- restore ---------------------------------------------------------------------------- */

void pid_descriptor_plan(struct ckpt_run *run, const struct ckpt_ns *ns)
{
	int r = pid_probe_descriptor();

	if (r < 0)
		ckpt_unmet(run, CKPT_EXIT_PRIVILEGE, PID_NEW_KERNEL, "%s: %s: %s", ns->name,
			   PID_NO_DESCRIPTOR, ckpt_errno_name(r));
}

/* In a helper: its child is the first process, and the last. */
static int end_it(void *arg, struct ckpt_error *err)
{
	const struct ckpt_ns *ns = arg;
	int status = 0;
	pid_t pid;

	if (setns(ns->fd, CLONE_NEWPID))
		return ckpt_fail_sys(err, errno, "joining the %s", ns->name);
	/* without a signal to its end, which the engine's memory is not used for */
	pid = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	if (pid == 0)
		for (;;)
			syscall(SYS_exit_group, 0);
	if (pid < 0)
		return ckpt_fail_sys(err, errno, "first process of the %s", ns->name);
	while (waitpid(pid, &status, __WALL) < 0)
		if (errno != EINTR)
			return ckpt_fail_sys(err, errno, "waitpid(2)");
	return 0;
}

int pid_empty_make(struct ckpt_run *run, const struct pid_plan *p, struct ckpt_error *err)
{
	const struct ckpt_ns_place here = { 0 };
	int r = 0;

	for (size_t i = 1; i < p->n_ns && r == 0; i++) {
		if (!p->ns[i]->empty)
			continue;
		r = ckpt_ns_make(run, p->nsfs[i], err);
		if (r == 0 && p->ns[i]->empty == PID_NS_ENDED)
			r = ckpt_ns_run(run, &here, end_it, p->nsfs[i], err);
	}
	return r;
}
