/* SPDX-License-Identifier: MIT
 *
 * Threads with ids, groups and capabilities of their own, as file servers have them, in a user
 * namespace: each has taken them by system calls that are for the calling thread only.
 */
#include "victim.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MAIN, USER, FILES, GROUPS, NO_GROUPS, MIXED, LIMITED, UNMAPPED, THREADS };
enum { TEXT = 2048 };

static const char *const names[THREADS] = {
	[MAIN] = "main",       [USER] = "user",		  [FILES] = "files",
	[GROUPS] = "groups",   [NO_GROUPS] = "no groups", [MIXED] = "mixed",
	[LIMITED] = "limited", [UNMAPPED] = "unmapped",
};

static int request[THREADS][2], reply[THREADS][2];
static char told[THREADS][TEXT];

static void tell(char *text)
{
	static const char *const keys[] = { "Uid", "Gid", "Groups", "Cap", "NoNewPrivs" };
	char *status = victim_read("/proc/thread-self/status"), *save = NULL;
	size_t at = 0;

	memset(text, 0, TEXT);
	for (char *line = strtok_r(status, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
		for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++)
			if (!strncmp(line, keys[i], strlen(keys[i])))
				at += (size_t)snprintf(text + at, TEXT - at, "%s\n", line);
	free(status);
}

static void drop_caps(void)
{
	struct __user_cap_header_struct head = { _LINUX_CAPABILITY_VERSION_3, 0 };
	const unsigned chown = 1U << CAP_CHOWN;
	const struct __user_cap_data_struct data[2] = { { chown, chown, 0 } };

	MUST(syscall(SYS_capset, &head, data));
}

static void become(int which)
{
	switch (which) {
	case USER:
		MUST(syscall(SYS_setresgid, 100, 100, 100));
		MUST(syscall(SYS_setresuid, 1000, 1000, 1000));
		break;
	case FILES:
		syscall(SYS_setfsgid, 100);
		syscall(SYS_setfsuid, 1000);
		break;
	case GROUPS:
		MUST(syscall(SYS_setgroups, 3, ((const gid_t[]){ 5, 7, 60000 })));
		break;
	case NO_GROUPS:
		MUST(syscall(SYS_setgroups, 0, NULL));
		break;
	case MIXED:
		MUST(syscall(SYS_setresgid, 1, 2, 3));
		MUST(syscall(SYS_setresuid, 4, 0, 5));
		syscall(SYS_setfsuid, 6);
		break;
	case LIMITED:
		MUST(syscall(SYS_setresuid, 0, 2000, 0));
		drop_caps();
		MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
		break;
	default:
		break;
	}
}

static void *serve(void *arg)
{
	const int which = (int)(intptr_t)arg;
	char c, text[TEXT];

	become(which);
	while (read(request[which][0], &c, 1) == 1) {
		tell(text);
		if (write(reply[which][1], text, sizeof(text)) < 0)
			break;
	}
	_exit(1);
}

static void put(pid_t pid, const char *name, const char *text)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	fd = MUST(open(path, O_WRONLY));
	MUST(write(fd, text, strlen(text)) == (ssize_t)strlen(text) ? 0 : -1);
	close(fd);
}

/* The real ids of the process are not mapped, and all its threads have kept that of the group. */
static _Noreturn void be_process(int to, int from)
{
	pthread_t thread;
	char c;

	MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
	MUST(syscall(SYS_setresgid, 4000, 0, 0));
	MUST(unshare(CLONE_NEWUSER));
	MUST(write(to, "", 1));
	MUST(read(from, &c, 1));
	MUST(syscall(SYS_setresuid, 0, 0, 0));
	MUST(syscall(SYS_setgroups, 1, ((const gid_t[]){ 9 })));
	MUST(prctl(PR_SET_DUMPABLE, 1));
	MUST(prctl(PR_SET_KEEPCAPS, 1));
	for (int i = MAIN + 1; i < THREADS; i++)
		MUST_ZERO(pthread_create(&thread, NULL, serve, (void *)(intptr_t)i));
	serve((void *)(intptr_t)MAIN);
	_exit(1);
}

static void ask(int which, char *text)
{
	memset(text, 0, TEXT);
	if (write(request[which][1], "", 1) != 1 || read(reply[which][0], text, TEXT) != TEXT)
		victim_fail("%s does not answer", names[which]);
}

static void check(void)
{
	for (int i = 0; i < THREADS; i++) {
		char text[TEXT];

		ask(i, text);
		CHECK(!strcmp(text, told[i]), "%s is\n%s and was\n%s", names[i], text, told[i]);
	}
}

int main(int argc, char **argv)
{
	int to[2], from[2];
	pid_t pid;
	char c;

	victim_init(argc, argv);
	for (int i = 0; i < THREADS; i++) {
		MUST(pipe(request[i]));
		MUST(pipe(reply[i]));
	}
	MUST(pipe(to));
	MUST(pipe(from));
	pid = MUST(fork());
	if (pid == 0)
		be_process(to[1], from[0]);
	MUST(read(to[0], &c, 1));
	put(pid, "uid_map", "0 100000 65536");
	put(pid, "gid_map", "0 100000 65536");
	MUST(write(from[1], "", 1));
	for (int i = 0; i < THREADS; i++)
		ask(i, told[i]);
	victim_ready();
	victim_serve(check);
}
