/* SPDX-License-Identifier: MIT */
/*
 * Code inside other namespaces: a child that shares the engine's memory and
 * descriptors joins them, does its work, and is gone before the engine goes on.
 */
#include <errno.h>
#include <linux/securebits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/run.h"
#include "process/ns.h"
#include "process/set.h"

#define STACK_SIZE ((size_t)512 << 10)

struct job {
	const struct ckpt_ns_place *place;
	int (*fn)(void *arg, struct ckpt_error *err);
	void *arg;
	pid_t engine;
	int ret;
	bool ended;
	struct ckpt_error err;
};

/* A change of credentials forgets it. */
static int die_with(pid_t engine, struct ckpt_error *err)
{
	if (prctl(PR_SET_PDEATHSIG, SIGKILL))
		return ckpt_fail_sys(err, errno, "PR_SET_PDEATHSIG");
	/* a parent of another pid namespace reads 0 */
	if (getppid() && getppid() != engine)
		return ckpt_fail_sys(err, ESRCH, "ckpt has ended");
	return 0;
}

/* By system calls, for this task only: libc would tell all threads of the engine. */
static int take_ids(const struct ckpt_ns_place *p, struct ckpt_error *err)
{
	if (prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP | SECBIT_KEEP_CAPS))
		return ckpt_fail_sys(err, errno, "PR_SET_SECUREBITS");
	if (syscall(SYS_setgroups, 0, NULL) || syscall(SYS_setresgid, p->gid, p->gid, p->gid) ||
	    syscall(SYS_setresuid, p->uid, p->uid, p->uid))
		return ckpt_fail_sys(err, errno, "ids %u and %u", (unsigned)p->uid,
				     (unsigned)p->gid);
	return 0;
}

/* All but the pid namespace, into which one is born; the user namespace takes privileges away. */
static int enter(const struct job *j, struct ckpt_error *err)
{
	const struct ckpt_ns_place *p = j->place;
	int r = 0;

	for (int type = CKPT_NS_TYPES - 1; type >= 0; type--) {
		const struct ckpt_ns *ns = p->ns[type];

		if (type == CKPT_NS_USER && p->ids)
			r = take_ids(p, err);
		if (r)
			return r;
		if (!ns || ns->own || type == CKPT_NS_PID)
			continue;
		if (setns(ns->fd, ns_types[type].flag))
			return ckpt_fail_sys(err, errno, "joining the %s", ns->name);
	}
	return die_with(j->engine, err);
}

static int in_child(void *arg)
{
	struct job *j = arg;

	j->ret = die_with(j->engine, &j->err);
	if (!j->ret)
		j->ret = enter(j, &j->err);
	if (!j->ret)
		j->ret = j->fn(j->arg, &j->err);
	j->ended = true;
	return 0;
}

static int reap(pid_t pid, struct ckpt_error *err)
{
	int status;

	while (waitpid(pid, &status, __WALL) < 0)
		if (errno != EINTR)
			return ckpt_fail_sys(err, errno, "waiting for a helper");
	return 0;
}

static pid_t start(struct job *j, void *stack)
{
	sigset_t all, old;
	pid_t pid;

	/* a handler of ours must not run in the child, which may have our memory */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	if (stack)
		pid = clone(in_child, (char *)stack + STACK_SIZE,
			    CLONE_VM | CLONE_VFORK | CLONE_FILES | SIGCHLD, j);
	else
		pid = (pid_t)syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
	if (!pid) {
		in_child(j);
		syscall(SYS_exit_group, 0);
	}
	if (pid < 0)
		pid = -errno;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return pid;
}

/* The child's pid namespace is where the engine's children are born for the moment. */
static int run_in(struct job *j, void *stack, const struct ckpt_ns *pidns,
		  const struct ckpt_ns *own, struct ckpt_error *err)
{
	const int dumpable = prctl(PR_GET_DUMPABLE);
	int r;
	pid_t pid;

	if (pidns && setns(pidns->fd, CLONE_NEWPID))
		return ckpt_fail_sys(err, errno, "joining the %s", pidns->name);
	pid = start(j, stack);
	if (pidns && setns(own->fd, CLONE_NEWPID)) {
		int e = errno;

		if (pid > 0)
			reap(pid, NULL);
		return ckpt_fail_sys(err, e, "going back to the own pid namespace");
	}
	if (pid < 0)
		return ckpt_fail_sys(err, pid, "clone(2) of a helper");
	r = reap(pid, err);
	/* the child's change of credentials has made our common memory undumpable */
	if (stack && prctl(PR_GET_DUMPABLE) != dumpable)
		prctl(PR_SET_DUMPABLE, dumpable == 1);
	return r;
}

/* Page tables for a stack cost more than most of what is done on it: it is kept for the next. */
static void *take_stack(struct ckpt_run *run, struct ckpt_error *err)
{
	void *stack = run->helper_stack;

	/* a helper may need a helper */
	run->helper_stack = NULL;
	if (stack)
		return stack;
	stack = mmap(NULL, STACK_SIZE, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
	if (stack != MAP_FAILED)
		return stack;
	ckpt_fail_sys(err, errno, "stack for a helper");
	return NULL;
}

static void return_stack(struct ckpt_run *run, void *stack)
{
	if (run->helper_stack)
		munmap(stack, STACK_SIZE);
	else
		run->helper_stack = stack;
}

void proc_ns_run_free(struct ckpt_run *run)
{
	if (run->helper_stack)
		munmap(run->helper_stack, STACK_SIZE);
	run->helper_stack = NULL;
}

static int finish(const struct job *j, int r, struct ckpt_error *err)
{
	if (!r && !j->ended)
		return ckpt_fail(err, EIO, "a helper in other namespaces was killed");
	if (r)
		return r;
	if (j->err.err && err)
		*err = j->err;
	return j->ret;
}

/* A child with a copy of our memory answers in a piece that is shared. */
static int run_copy(struct job *own, const struct ckpt_ns *pidns, const struct ckpt_ns *home,
		    struct ckpt_error *err)
{
	struct job *j =
		mmap(NULL, sizeof(*j), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int r;

	if (j == MAP_FAILED)
		return ckpt_fail_sys(err, errno, "memory for a helper");
	*j = *own;
	r = run_in(j, NULL, pidns, home, err);
	r = finish(j, r, err);
	munmap(j, sizeof(*j));
	return r;
}

int ckpt_ns_run(struct ckpt_run *run, const struct ckpt_ns_place *place,
		int (*fn)(void *arg, struct ckpt_error *err), void *arg, struct ckpt_error *err)
{
	const struct ckpt_ns *pidns = place->ns[CKPT_NS_PID], *home = ckpt_ns_own(run, CKPT_NS_PID);
	struct job j = { .place = place, .fn = fn, .arg = arg, .engine = getpid() };
	void *stack;
	int r;

	if (pidns && pidns->own)
		pidns = NULL;
	if (place->copy)
		return run_copy(&j, pidns, home, err);
	stack = take_stack(run, err);
	if (!stack)
		return -ENOMEM;
	r = run_in(&j, stack, pidns, home, err);
	return_stack(run, stack);
	return finish(&j, r, err);
}
