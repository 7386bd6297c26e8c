/* SPDX-License-Identifier: MIT */
/*
 * Making user namespaces. Who calls unshare(2) owns the new one, and only a member
 * of the parent may write the maps, while a member is alive: so there are two, the
 * writer, which went to the parent with the owner's ids, and its child, the member.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ckpt/cleanup.h>
#include <ckpt/task.h>

#include "engine/run.h"
#include "process/ns.h"
#include "process/set.h"
#include "process/spawn.h"

struct member {
	int ready, end; /* ends of pipes: it says that it is there; it waits for its end */
	pid_t parent;
	int64_t r;
};

struct making {
	struct ckpt_ns *ns;
	const struct ckpt_ns_maps *maps;
};

static SPAWN_CHILD void be_member(void *arg)
{
	struct member *m = arg;
	char c = 0;

	sys6(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0, 0);
	/* it may have died before */
	if (sys6(SYS_getppid, 0, 0, 0, 0, 0, 0) != m->parent)
		sys6(SYS_exit_group, 0, 0, 0, 0, 0, 0);
	m->r = sys6(SYS_unshare, CLONE_NEWUSER, 0, 0, 0, 0, 0);
	sys6(SYS_write, m->ready, (int64_t)(uintptr_t)&c, 1, 0, 0, 0);
	sys6(SYS_read, m->end, (int64_t)(uintptr_t)&c, 1, 0, 0, 0);
	for (;;)
		sys6(SYS_exit_group, 0, 0, 0, 0, 0, 0);
}

static int write_file(pid_t pid, const char *name, const char *text, struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = -1;
	char path[40];

	if (!text || !*text)
		return 0;
	snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	/* the kernel takes a map in one piece */
	if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text))
		return ckpt_fail_sys(err, errno, "writing %s", path);
	return 0;
}

static int fill(const struct making *k, pid_t pid, struct ckpt_error *err)
{
	char path[40];
	int r = 0;

	/* the files belong to who may write them only as long as our memory is dumpable */
	prctl(PR_SET_DUMPABLE, 1);
	if (k->maps->deny_setgroups)
		r = write_file(pid, "setgroups", "deny", err);
	if (!r)
		r = write_file(pid, "uid_map", k->maps->uid_map, err);
	if (!r)
		r = write_file(pid, "gid_map", k->maps->gid_map, err);
	if (!r)
		r = write_file(pid, "projid_map", k->maps->projid_map, err);
	if (r)
		return r;
	snprintf(path, sizeof(path), "/proc/%d/ns/user", (int)pid);
	k->ns->fd = open(path, O_RDONLY | O_CLOEXEC);
	return k->ns->fd < 0 ? ckpt_fail_sys(err, errno, "%s", path) : 0;
}

/* In the parent user namespace, with the owner's ids. */
static int make_user(void *arg, struct ckpt_error *err)
{
	struct clone_args args = { .flags = CLONE_FILES, .exit_signal = SIGCHLD };
	CKPT_AUTO_FD int ready = -1, ready_w = -1, end = -1, end_w = -1;
	CKPT_AUTO_FREE void *stack = malloc(SPAWN_STACK);
	struct member m = { .parent = getpid() };
	int pipes[4], r;
	pid_t pid;
	char c = 0;

	if (!stack)
		return ckpt_fail_sys(err, ENOMEM, "stack for a helper");
	if (pipe2(pipes, O_CLOEXEC))
		return ckpt_fail_sys(err, errno, "pipe2(2)");
	ready = pipes[0];
	ready_w = m.ready = pipes[1];
	if (pipe2(pipes + 2, O_CLOEXEC))
		return ckpt_fail_sys(err, errno, "pipe2(2)");
	end = m.end = pipes[2];
	end_w = pipes[3];
	pid = spawn(&args, stack, be_member, &m);
	if (pid < 0)
		return ckpt_fail_sys(err, pid, "clone(2) of a member");
	r = read(ready, &c, 1) == 1 ? (int)m.r : -EIO;
	if (r)
		ckpt_fail_sys(err, r, "unshare(2)");
	else
		r = fill(arg, pid, err);
	if (write(end_w, &c, 1) != 1)
		ckpt_end_child(pid);
	else
		while (waitpid(pid, NULL, __WALL) < 0 && errno == EINTR)
			;
	return r;
}

int ckpt_ns_make_user(struct ckpt_run *run, struct ckpt_ns *ns, const struct ckpt_ns_maps *maps,
		      struct ckpt_error *err)
{
	struct making k = { ns, maps };
	const struct ckpt_ns_place place = {
		.ns[CKPT_NS_USER] = ns->parent,
		.ids = true,
		.uid = maps->owner,
		.gid = maps->group,
	};

	if (ns->type != CKPT_NS_USER || !ns->parent || ns->parent->fd < 0)
		return ckpt_fail(err, EINVAL, "the %s has no parent that is there", ns->name);
	return ckpt_ns_run(run, &place, make_user, &k, err);
}
