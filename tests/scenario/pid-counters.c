/* SPDX-License-Identifier: MIT */
/*
 * A nested pid namespace counts on where it stopped, below the limit that it had, and its memfds
 * are not executable.
 */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "victim.h"

#define LIMIT	9000
#define NOEXEC	"/proc/sys/vm/memfd_noexec"
#define ANSWERS 3

static int request[2], reply[2];
static int next, limit, noexec;

static int read_number(const char *path)
{
	char *text = victim_read(path);
	int n = text ? atoi(text) : -1;

	free(text);
	return n;
}

static void write_number(const char *path, int n)
{
	int fd = open(path, O_WRONLY);

	if (fd < 0 || dprintf(fd, "%d", n) < 0)
		_exit(1);
	close(fd);
}

/* The first process of the namespace: each request is answered with a new child's pid. */
static _Noreturn void namespace_init(void)
{
	char c;

	close(request[1]);
	close(reply[0]);
	if (limit)
		write_number("/proc/sys/kernel/pid_max", LIMIT);
	if (noexec >= 0)
		write_number(NOEXEC, noexec);
	while (read(request[0], &c, 1) == 1) {
		int answer[ANSWERS] = { -1, read_number("/proc/sys/kernel/pid_max"),
					read_number(NOEXEC) };
		pid_t pid = fork();

		if (pid == 0)
			_exit(0);
		answer[0] = pid;
		waitpid(pid, NULL, 0);
		if (write(reply[1], answer, sizeof(answer)) != sizeof(answer))
			break;
	}
	_exit(0);
}

static void ask(int answer[ANSWERS])
{
	answer[0] = answer[1] = answer[2] = -1;
	if (write(request[1], "", 1) != 1 ||
	    read(reply[0], answer, ANSWERS * sizeof(int)) != ANSWERS * sizeof(int))
		victim_fail("the namespace does not answer");
}

static void check(void)
{
	int answer[ANSWERS];

	ask(answer);
	CHECK(answer[0] == next, "the next number was %d, not %d", answer[0], next);
	CHECK(answer[1] == limit || !limit, "pid_max is %d, was %d", answer[1], limit);
	CHECK(answer[2] == noexec, "memfd_noexec is %d, was %d", answer[2], noexec);
	next = answer[0] + 1;
}

/* Has a new pid namespace a pid_max of its own (Linux 6.14)? */
static int own_limit(void)
{
	unsigned major = 0, minor = 0;
	struct utsname un;

	MUST(uname(&un));
	return sscanf(un.release, "%u.%u", &major, &minor) == 2 &&
			       (major > 6 || (major == 6 && minor >= 14))
		       ? LIMIT
		       : 0;
}

int main(int argc, char **argv)
{
	int answer[ANSWERS];
	pid_t pid;

	victim_init(argc, argv);
	limit = own_limit();
	/* one more than here, if the kernel knows it (Linux 6.3) and there is one */
	noexec = read_number(NOEXEC);
	noexec += noexec == 0 || noexec == 1;
	MUST(pipe2(request, O_CLOEXEC));
	MUST(pipe2(reply, O_CLOEXEC));
	pid = (pid_t)MUST(syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0));
	if (pid == 0)
		namespace_init();
	close(request[0]);
	close(reply[1]);
	for (int i = 0; i < 50; i++)
		ask(answer);
	next = answer[0] + 1;
	victim_ready();
	victim_serve(check);
}
