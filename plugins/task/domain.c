/* SPDX-License-Identifier: MIT */
/*
 * Landlock domains. The kernel shows them nowhere, but who is in one may not look at a process that
 * is not (security/landlock/task.c, hook_ptrace_access_check): kcmp(2) fails, whatever the domain
 * is for. Whoever has all of ckpt's privileges is asked about ckpt; others about a stand-in with
 * their ids and no privileges, which every task with these ids may look at.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/kcmp.h>
#include <linux/sched.h>
#include <linux/securebits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <ckpt/ns.h>

#include "task.h"

#ifndef SYS_landlock_create_ruleset
#define SYS_landlock_create_ruleset 444
#endif
#define ASK_VERSION 1

/* Numbers that programs rarely have, and that move no counter: the kernel gives them out last. */
#define FIRST_NUMBER 32767
#define MAX_LEVELS   33

/* Somebody traces ckpt and its children, as strace(1): then nothing can stand in. */
#define IS_TRACED 255

struct task_stand_in {
	const struct ckpt_ns *user, *pidns;
	uint32_t uid, gid;
	pid_t pid, number; /* 0: there is none; the second in its pid namespace */
	bool ready;	   /* nobody need wait for it any more */
	bool tried, seen;  /* is it by a process of ours with the same ids? */
};

int task_domain_ask(struct ckpt_script *s)
{
	const pid_t own = getpid();
	int op = ckpt_script_add(s, SYS_kcmp, CKPT_C(own), CKPT_C(own), CKPT_C(KCMP_VM), CKPT_C(0),
				 CKPT_C(0));

	/* in another pid namespace it is no number, or somebody else's */
	ckpt_script_any(s);
	return op;
}

/* ---- the stand-in ------------------------------------------------------------------ */

/*
 * In the child: the ids, then the namespace, and no privilege that a program with these ids need
 * not have: not even as root of its namespace.
 */
static int take_ids(const struct task_stand_in *of)
{
	if (prctl(PR_SET_DUMPABLE, 0) || chdir("/") ||
	    prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP) ||
	    (syscall(SYS_setgroups, 0, NULL) && errno != EPERM) ||
	    syscall(SYS_setresgid, of->gid, of->gid, of->gid) ||
	    syscall(SYS_setresuid, of->uid, of->uid, of->uid))
		return -1;
	if (!of->user->own && setns(of->user->fd, CLONE_NEWUSER))
		return -1;
	if (prctl(PR_SET_SECUREBITS, SECBIT_NOROOT | SECBIT_NO_SETUID_FIXUP))
		return -1;
	return prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static int drop_privileges(void)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct none[2] = { 0 };

	return (int)syscall(SYS_capset, &head, none);
}

/*
 * A program that never runs: stopped when its memory is new and its descriptors are closed, so that
 * there is nothing of ckpt's in it for others with its ids.
 */
static void stand_in(const struct task_stand_in *of, int program)
{
	char *const nothing[] = { NULL }, *const name[] = { (char *)"ckpt", NULL };

	if (take_ids(of) || syscall(SYS_close_range, 0, ~0U, CLOSE_RANGE_CLOEXEC))
		_exit(errno);
	if (ptrace(PTRACE_TRACEME, 0, 0, 0))
		_exit(IS_TRACED);
	syscall(SYS_execveat, program, "", name, nothing, AT_EMPTY_PATH);
	_exit(errno);
}

static void look_at(const struct task_stand_in *of)
{
	if (take_ids(of) || drop_privileges())
		_exit(errno);
	_exit(syscall(SYS_kcmp, of->number, of->number, KCMP_VM, 0, 0) ? errno : 0);
}

static size_t levels(const struct ckpt_ns *ns)
{
	size_t n = 0;

	for (; ns && !ns->own && n < MAX_LEVELS; ns = ns->parent)
		n++;
	return n;
}

/* fork(2) with the same number in each pid namespace of the tree's that it is in. */
static pid_t fork_as(const struct ckpt_ns *pidns, pid_t *number)
{
	pid_t set[MAX_LEVELS], pid = -1;
	struct clone_args args = { .exit_signal = SIGCHLD,
				   .set_tid = (uintptr_t)set,
				   .set_tid_size = levels(pidns) };

	if (!args.set_tid_size)
		args.set_tid = 0;
	for (pid_t n = FIRST_NUMBER; n > 1; n = errno == EINVAL ? n / 2 : n - 1) {
		for (size_t i = 0; i < args.set_tid_size; i++)
			set[i] = n;
		pid = (pid_t)syscall(SYS_clone3, &args, sizeof(args));
		if (pid >= 0 || (errno != EEXIST && errno != EINVAL) || !args.set_tid_size) {
			*number = args.set_tid_size ? n : pid;
			break;
		}
	}
	return pid;
}

static pid_t fork_in(struct ckpt_run *run, const struct ckpt_ns *pidns, pid_t *number,
		     struct ckpt_error *err)
{
	const struct ckpt_ns *own = ckpt_ns_own(run, CKPT_NS_PID);
	pid_t pid;

	if (!pidns->own && setns(pidns->fd, CLONE_NEWPID))
		return ckpt_fail_sys(err, errno, "joining the %s", pidns->name);
	pid = fork_as(pidns, number);
	if (!pid)
		return 0;
	if (pid < 0)
		pid = ckpt_fail_sys(err, errno, "clone3(2) in the %s", pidns->name);
	if (!pidns->own && setns(own->fd, CLONE_NEWPID))
		return ckpt_fail_sys(err, errno, "going back to the own pid namespace");
	return pid;
}

static int status_of(pid_t pid, int *status)
{
	while (waitpid(pid, status, __WALL) < 0)
		if (errno != EINTR)
			return -errno;
	return 0;
}

static void end(struct task_stand_in *s)
{
	if (s->pid)
		ckpt_end_child(s->pid);
	s->pid = 0;
}

static int make(struct ckpt_run *run, struct task_stand_in *s, struct ckpt_error *err)
{
	CKPT_AUTO_FD int program = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	int r;

	if (program < 0)
		return ckpt_fail_sys(err, errno, "/proc/self/exe");
	s->pid = fork_in(run, s->pidns, &s->number, err);
	if (!s->pid)
		stand_in(s, program);
	if (s->pid > 0)
		return 0;
	r = s->pid;
	s->pid = 0;
	return r;
}

static int wait_for(struct task_stand_in *s, struct ckpt_error *err)
{
	int status = 0, r;

	if (s->ready)
		return 0;
	s->ready = true;
	r = status_of(s->pid, &status);
	if (r < 0)
		return ckpt_fail_sys(err, r, "waiting for a stand-in");
	if (WIFSTOPPED(status))
		return 0;
	s->pid = s->number = 0;
	if (WIFEXITED(status) && WEXITSTATUS(status) == IS_TRACED)
		return 0;
	return ckpt_fail_sys(err, WIFEXITED(status) ? WEXITSTATUS(status) : ECHILD,
			     "a process with the ids %u and %u", s->uid, s->gid);
}

/* Without a sandbox, is it as we think? Other security modules may have a say. */
static int try_out(struct ckpt_run *run, struct task_stand_in *s, struct ckpt_error *err)
{
	pid_t number, pid;
	int status = 0, r;

	if (s->tried)
		return 0;
	s->tried = true;
	pid = fork_in(run, s->pidns, &number, err);
	if (!pid)
		look_at(s);
	if (pid < 0)
		return pid;
	r = status_of(pid, &status);
	s->seen = r == 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
	return r < 0 ? ckpt_fail_sys(err, r, "waiting for a process in the %s", s->pidns->name) : 0;
}

static struct task_stand_in *stand_in_for(struct ckpt_run *run, struct task_domains *d,
					  const struct task_stand_in *like, struct ckpt_error *err)
{
	struct task_stand_in *list, *s;

	for (size_t i = 0; i < d->n; i++) {
		s = &d->list[i];
		if (s->user == like->user && s->pidns == like->pidns && s->uid == like->uid &&
		    s->gid == like->gid)
			return s;
	}
	list = reallocarray(d->list, d->n + 1, sizeof(*list));
	if (!list) {
		ckpt_fail_sys(err, ENOMEM, "stand-ins");
		return NULL;
	}
	d->list = list;
	s = &list[d->n];
	*s = *like;
	if (make(run, s, err) < 0)
		return NULL;
	d->n++;
	return s;
}

void task_domains_free(struct task_domains *d)
{
	for (size_t i = 0; i < d->n; i++)
		end(&d->list[i]);
	free(d->list);
}

/* ---- the question ------------------------------------------------------------------ */

static int ask_about(struct ckpt_run *run, struct ckpt_thread *th, pid_t number, int *answer,
		     struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "task.domain");
	int op = ckpt_script_add(s, SYS_kcmp, CKPT_C(number), CKPT_C(number), CKPT_C(KCMP_VM),
				 CKPT_C(0), CKPT_C(0));
	int r;

	ckpt_script_any(s);
	r = ckpt_script_run(s, th, err);
	if (r == 0)
		*answer = (int)ckpt_script_result(s, op);
	return r;
}

/* Does that thread need one? */
static bool needs_one(struct ckpt_run *run, const struct ckpt_thread *th, size_t index,
		      int64_t first_answer, struct task_stand_in *like)
{
	const struct ckpt_ns_seat *seat = ckpt_ns_seat(run, th->task->id, index);

	*like = (struct task_stand_in){ .user = seat->ns[CKPT_NS_USER],
					.pidns = seat->ns[CKPT_NS_PID] };
	return (first_answer != 0 || !like->pidns->own) &&
	       syscall(SYS_landlock_create_ruleset, NULL, 0, ASK_VERSION) > 0;
}

static int fail_about(const struct ckpt_thread *th, struct ckpt_error *err)
{
	return ckpt_wrap(err, "thread %d: is it in a Landlock domain?", (int)th->tid);
}

/* The first number of "Uid" or "Gid", which is the real one. */
static bool id_of(const char *status, const char *field, uint32_t *id)
{
	char value[64];

	return !ckpt_proc_field(status, field, value, sizeof(value)) &&
	       sscanf(value, "%u", id) == 1;
}

int task_domain_begin(struct ckpt_run *run, struct task_domains *d, const struct ckpt_thread *th,
		      size_t index, int64_t first_answer, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *status = NULL;
	struct task_stand_in like;
	char path[64];

	if (!needs_one(run, th, index, first_answer, &like))
		return 0;
	task_path(path, sizeof(path), th, "status");
	if (ckpt_proc_read(th->task, path, &status, err) < 0)
		return -err->err;
	if (!id_of(status, "Uid", &like.uid) || !id_of(status, "Gid", &like.gid))
		return ckpt_fail(err, EPROTO, "thread %d: status names no ids", (int)th->tid);
	return stand_in_for(run, d, &like, err) ? 0 : fail_about(th, err);
}

int task_domain_check(struct ckpt_run *run, struct task_domains *d, struct ckpt_thread *th,
		      size_t index, int64_t first_answer, const Ckpt__Task__Credentials *c,
		      struct ckpt_error *err)
{
	struct task_stand_in like, *s;
	int answer = 0, r;

	if (!needs_one(run, th, index, first_answer, &like))
		return 0;
	like.uid = c->uids[0];
	like.gid = c->gids[0];
	s = stand_in_for(run, d, &like, err);
	if (!s || wait_for(s, err) < 0)
		return fail_about(th, err);
	r = s->number ? ask_about(run, th, s->number, &answer, err) : 0;
	if (r < 0 || (s->number && answer != -EPERM))
		return r;
	if (s->number && try_out(run, s, err) < 0)
		return fail_about(th, err);
	if (!s->seen) {
		ckpt_log(run, CKPT_LOG_WARN,
			 "thread %d: whether it is in a Landlock domain cannot be told",
			 (int)th->tid);
		return 0;
	}
	return task_refuse(
		run, th->task, "landlock", "Landlock domain",
		"the rules of its sandbox cannot be read, and it would come back without",
		"allow the loss, if what it runs is trusted");
}
