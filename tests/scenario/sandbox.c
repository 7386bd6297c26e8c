/* SPDX-License-Identifier: MIT */
/*
 * A browser's sandbox: an ordinary user's user, pid and network namespace, a user namespace in
 * that (the first one has no process left), a root directory in /proc of a helper that has
 * ended, and renderers, each the first process of a pid namespace of its own, with a filter of
 * system calls that has its number in it. Asked through pipes, since they reach nothing else.
 * The zygote goes on making renderers.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "victim.h"

#define USER 1000

enum { ZYGOTE, RENDERER, SLOTS };

static const char *const names[SLOTS] = { "zygote", "renderer" };
static int question[SLOTS][2], reply[SLOTS][2];
static pid_t self;

static void write_own(const char *name, const char *text)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/self/%s", name);
	fd = MUST(open(path, O_WRONLY));
	MUST(write(fd, text, strlen(text)) == (ssize_t)strlen(text) ? 0 : -1);
	close(fd);
}

static void map_self(void)
{
	write_own("setgroups", "deny");
	write_own("uid_map", "1000 1000 1");
	write_own("gid_map", "1000 1000 1");
}

static void keep_caps(uint32_t caps)
{
	struct __user_cap_header_struct head = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct data[2] = { { caps, caps, 0 } };

	MUST(syscall(SYS_capset, &head, data));
}

/* ---- checks, by the processes themselves ------------------------------------------------ */

static void check_root(void)
{
	pid_t pid;

	CHECK(getpid() == self, "number %d, was %d", getpid(), self);
	CHECK(getuid() == USER && getgid() == USER, "ids %u and %u", getuid(), getgid());
	CHECK(access("/", F_OK) == -1 && errno == ESRCH, "the root can be looked at");
	CHECK(open("/", O_RDONLY) == -1 && errno == ESRCH, "the root can be opened");
	CHECK(chdir("/") == -1 && errno == ESRCH, "the root can be entered");
	CHECK(chdir("..") == -1 && errno == ESRCH, "the working directory leads somewhere");
	pid = (pid_t)syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);
	if (!pid)
		_exit(0);
	CHECK(pid == -1 && errno == EPERM, "not in a chroot any more: errno %d", errno);
}

/* kill(2) with another number than its own is not allowed: the filter knows who it is. */
static void check_renderer(void)
{
	check_root();
	CHECK(kill(self, 0) == 0, "its own number: errno %d", errno);
	CHECK(kill(self + 1, 0) == -1 && errno == EACCES, "another number: errno %d", errno);
	CHECK(syscall(SYS_unshare, CLONE_NEWPID) == -1 && errno == EPERM, "privileges came back");
}

static void become_renderer(void);

static void check_zygote(void)
{
	int status = -1;
	pid_t pid;

	check_root();
	pid = (pid_t)syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0);
	if (!pid) {
		become_renderer();
		_exit(victim_judge(check_renderer)[0] ? 1 : 42);
	}
	CHECK(pid > 0, "another renderer: errno %d", errno);
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 42,
	      "another renderer: status 0x%x", status);
}

static _Noreturn void serve(int slot, void (*check)(void))
{
	MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
	MUST(write(reply[slot][1], "", 1));
	victim_answer(question[slot][0], reply[slot][1], check);
}

/* ---- what they are ---------------------------------------------------------------------- */

static void *idle(void *arg)
{
	(void)arg;
	for (;;)
		pause();
	return NULL;
}

static void become_renderer(void)
{
	pthread_t thread;

	self = getpid();
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_kill, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)self, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	const struct sock_fprog filter = { sizeof(code) / sizeof(code[0]), code };

	keep_caps(0);
	MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW,
		     &filter));
	MUST_ZERO(pthread_create(&thread, NULL, idle, NULL));
}

/* A process that shares the directories goes there, and ends. */
static void lose_root(void)
{
	pid_t pid = (pid_t)MUST(syscall(SYS_clone, CLONE_FS | SIGCHLD, 0, 0, 0, 0));
	int status;

	if (!pid) {
		MUST(chroot("/proc/self/fdinfo"));
		MUST(chdir("/"));
		_exit(0);
	}
	MUST(waitpid(pid, &status, 0));
	MUST(status ? -1 : 0);
}

static _Noreturn void zygote(void)
{
	const unsigned admin = 1U << CAP_SYS_ADMIN;

	map_self();
	MUST(unshare(CLONE_NEWUSER));
	map_self();
	lose_root();
	keep_caps(admin);
	if (MUST(syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0)) == 0) {
		become_renderer();
		serve(RENDERER, check_renderer);
	}
	self = getpid();
	serve(ZYGOTE, check_zygote);
}

/* The first process of the container, with a /proc of its own. */
static _Noreturn void container(void)
{
	const unsigned long flags = CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;

	MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
	MUST(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
	MUST(mount("proc", "/proc", "proc", 0, NULL));
	if (MUST(fork()) == 0) {
		MUST(setresgid(USER, USER, USER));
		MUST(setresuid(USER, USER, USER));
		MUST(prctl(PR_SET_DUMPABLE, 1));
		if (MUST(syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0)) == 0)
			zygote();
	}
	for (;;)
		pause();
}

static void check(void)
{
	for (int i = 0; i < SLOTS; i++)
		victim_ask(question[i][1], reply[i][0], "%s", names[i]);
}

int main(int argc, char **argv)
{
	char c;

	victim_init(argc, argv);
	for (int i = 0; i < SLOTS; i++) {
		MUST(pipe(question[i]));
		MUST(pipe(reply[i]));
	}
	if (MUST(syscall(SYS_clone, CLONE_NEWPID | CLONE_NEWNS | SIGCHLD, 0, 0, 0, 0)) == 0)
		container();
	for (int i = 0; i < SLOTS; i++)
		MUST(read(reply[i][0], &c, 1) == 1 ? 0 : -1);
	victim_ready();
	victim_serve(check);
}
