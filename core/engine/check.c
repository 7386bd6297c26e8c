/* SPDX-License-Identifier: MIT */
/* `ckpt check`: what this kernel and these privileges allow, plugin by plugin. */
#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/capability.h>
#include <sys/ipc.h>
#include <sys/ptrace.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ckpt/cleanup.h>

#include "engine/engine.h"
#include "engine/json.h"

#include "process/process.h"
#include "process/uapi.h"

static int need_capability(cap_value_t cap, const char *name, struct ckpt_error *err)
{
	cap_t caps = cap_get_proc();
	cap_flag_value_t on = CAP_CLEAR;

	if (!caps)
		return ckpt_fail_sys(err, errno, "cap_get_proc(3)");
	if (cap_get_flag(caps, cap, CAP_EFFECTIVE, &on) < 0)
		on = CAP_CLEAR;
	cap_free(caps);
	if (on == CAP_SET)
		return 0;
	ckpt_fail(err, EPERM, "%s is not in the effective set", name);
	return ckpt_hint(err, "run ckpt as root, or grant it");
}

static int probe_ptrace_cap(struct ckpt_error *err)
{
	return need_capability(CAP_SYS_PTRACE, "CAP_SYS_PTRACE", err);
}

static int probe_admin_cap(struct ckpt_error *err)
{
	return need_capability(CAP_SYS_ADMIN, "CAP_SYS_ADMIN", err);
}

static int probe_resource_cap(struct ckpt_error *err)
{
	return need_capability(CAP_SYS_RESOURCE, "CAP_SYS_RESOURCE", err);
}

/* The agent's arena: mapped by shmat(2), which takes no descriptor of the task. */
static int probe_shm(struct ckpt_error *err)
{
	int id = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);
	void *at;
	int r = 0;

	if (id < 0)
		return ckpt_fail_sys(err, errno, "shmget(2)");
	at = shmat(id, NULL, 0);
	if (at == (void *)-1)
		r = ckpt_fail_sys(err, errno, "shmat(2)");
	else
		shmdt(at);
	shmctl(id, IPC_RMID, NULL);
	return r;
}

static int probe_kcmp(struct ckpt_error *err)
{
	pid_t self = getpid();

	if (syscall(SYS_kcmp, self, self, KCMP_FILES, 0UL, 0UL) == 0)
		return 0;
	ckpt_fail_sys(err, errno, "kcmp(2)");
	return ckpt_hint(err, "a kernel with CONFIG_KCMP is needed");
}

static int probe_getfd(struct ckpt_error *err)
{
	CKPT_AUTO_FD int pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
	CKPT_AUTO_FD int pipe_end = -1, copy = -1;
	int ends[2];

	if (pidfd < 0)
		return ckpt_fail_sys(err, errno, "pidfd_open(2)");
	if (pipe2(ends, O_CLOEXEC) < 0)
		return ckpt_fail_sys(err, errno, "pipe2(2)");
	close(ends[1]);
	pipe_end = ends[0];
	copy = (int)syscall(SYS_pidfd_getfd, pidfd, pipe_end, 0);
	return copy < 0 ? ckpt_fail_sys(err, errno, "pidfd_getfd(2)") : 0;
}

static int probe_seize(struct ckpt_error *err)
{
	pid_t child = fork();
	int r = 0;

	if (child < 0)
		return ckpt_fail_sys(err, errno, "fork(2)");
	if (!child) {
		for (;;)
			pause();
	}
	if (ptrace(PTRACE_SEIZE, child, NULL, PTRACE_O_SUSPEND_SECCOMP) < 0) {
		r = ckpt_fail_sys(err, errno, "ptrace(PTRACE_SEIZE) with PTRACE_O_SUSPEND_SECCOMP");
		ckpt_hint(err, "CAP_SYS_ADMIN, no seccomp filter on ckpt itself, and a kernel with "
			       "CONFIG_CHECKPOINT_RESTORE are needed");
	}
	ckpt_end_child(child);
	return r;
}

static int probe_set_tid(struct ckpt_error *err)
{
	pid_t want, child = fork();
	struct clone_args args = { .exit_signal = SIGCHLD, .set_tid_size = 1 };

	if (child < 0)
		return ckpt_fail_sys(err, errno, "fork(2)");
	if (!child)
		_exit(0);
	/* a number that was free a moment ago; somebody else may be faster */
	want = child;
	ckpt_end_child(child);
	args.set_tid = (uint64_t)(uintptr_t)&want;
	child = (pid_t)syscall(SYS_clone3, &args, sizeof(args));
	if (!child)
		_exit(0);
	if (child > 0) {
		ckpt_end_child(child);
		return 0;
	}
	if (errno == EEXIST)
		return 0;
	ckpt_fail_sys(err, errno, "clone3(2) with set_tid");
	return ckpt_hint(err,
			 "CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN in the pid namespace's owner, "
			 "and Linux 5.5 are needed");
}

static const struct ckpt_need engine_needs[] = {
	{ "CAP_SYS_PTRACE", true, probe_ptrace_cap },
	{ "CAP_SYS_ADMIN", true, probe_admin_cap },
	{ "CAP_SYS_RESOURCE", false, probe_resource_cap },
	{ "PTRACE_SEIZE", true, probe_seize },
	{ "clone3-set-tid", true, probe_set_tid },
	{ "pidfd_getfd", true, probe_getfd },
	{ "kcmp", true, probe_kcmp },
	{ "SysV-shm", true, probe_shm },
	{ "skeleton", true, proc_check_stub },
	{ NULL, false, NULL },
};

struct table {
	FILE *out;
	bool json;
	size_t rows, missing;
};

static void print_row(struct table *t, const char *plugin, const struct ckpt_need *n)
{
	struct ckpt_error e = { 0 };
	bool ok = n->probe(&e) >= 0;

	if (!ok && n->required)
		t->missing++;
	if (!t->json) {
		fprintf(t->out, "%-10s %-20s %-5s%s%s\n", plugin, n->name, ok ? "yes" : "no",
			ok ? "" : e.text, ok || n->required ? "" : " (there is a way without)");
		if (!ok && *e.hint)
			fprintf(t->out, "%-37s%s\n", "", e.hint);
	} else {
		fprintf(t->out, "%s{\"ok\": %s, \"required\": %s", t->rows ? ",\n  " : "\n  ",
			ok ? "true" : "false", n->required ? "true" : "false");
		json_member(t->out, ", ", "plugin", plugin);
		json_member(t->out, ", ", "need", n->name);
		json_member(t->out, ", ", "why", ok ? NULL : e.text);
		json_member(t->out, ", ", "hint", ok || !*e.hint ? NULL : e.hint);
		fputs("}", t->out);
	}
	t->rows++;
}

static void print_needs(struct table *t, const char *plugin, const struct ckpt_need *n)
{
	for (; n && n->name; n++)
		print_row(t, plugin, n);
}

int ckpt_print_check(struct ckpt *c, bool json, FILE *out, struct ckpt_error *err)
{
	struct table t = { .out = out, .json = json };
	int r = engine_need_loaded(c, err);

	if (r < 0)
		return r;
	if (json)
		fputs("{\"schema\": 1, \"needs\": [", out);
	print_needs(&t, "engine", engine_needs);
	for (size_t i = 0; i < c->plugins.n; i++)
		if (c->plugins.list[i]->on)
			print_needs(&t, c->plugins.list[i]->name, c->plugins.list[i]->desc.needs);
	if (json)
		fprintf(out, "\n ], \"missing\": %zu, \"exit\": %d}\n", t.missing,
			t.missing ? CKPT_EXIT_PRIVILEGE : CKPT_EXIT_OK);
	if (!t.missing)
		return 0;
	return ckpt_fail_as(err, CKPT_EXIT_PRIVILEGE, EPERM, "%zu required need%s not met",
			    t.missing, t.missing == 1 ? " is" : "s are");
}
