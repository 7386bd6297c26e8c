/* SPDX-License-Identifier: MIT */
/* A nested pid namespace counts on where it stopped, below the limit that it had. */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "victim.h"

#define LIMIT 9000

static int request[2], reply[2];
static int next, limit;

static int read_number(const char *path)
{
	char *text = victim_read(path);
	int n = text ? atoi(text) : -1;

	free(text);
	return n;
}

/* The first process of the namespace: each request is answered with a new child's pid. */
static _Noreturn void namespace_init(void)
{
	char c;

	close(request[1]);
	close(reply[0]);
	if (limit) {
		int fd = open("/proc/sys/kernel/pid_max", O_WRONLY);

		if (fd < 0 || dprintf(fd, "%d", LIMIT) < 0)
			_exit(1);
		close(fd);
	}
	while (read(request[0], &c, 1) == 1) {
		int answer[2] = { -1, read_number("/proc/sys/kernel/pid_max") };
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

static void ask(int answer[2])
{
	answer[0] = answer[1] = -1;
	if (write(request[1], "", 1) != 1 ||
	    read(reply[0], answer, 2 * sizeof(int)) != 2 * sizeof(int))
		victim_fail("the namespace does not answer");
}

static void check(void)
{
	int answer[2];

	ask(answer);
	CHECK(answer[0] == next, "the next number was %d, not %d", answer[0], next);
	CHECK(answer[1] == limit || !limit, "pid_max is %d, was %d", answer[1], limit);
	next = answer[0] + 1;
}

/* Has a new pid namespace a pid_max of its own (Linux 6.14)? It starts with the highest then. */
static int own_limit(void)
{
	const int machine = read_number("/proc/sys/kernel/pid_max");
	pid_t pid = (pid_t)MUST(syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0));
	int status;

	if (pid == 0)
		_exit(read_number("/proc/sys/kernel/pid_max") != machine);
	MUST(waitpid(pid, &status, 0));
	return WIFEXITED(status) && WEXITSTATUS(status) ? LIMIT : 0;
}

int main(int argc, char **argv)
{
	int answer[2];
	pid_t pid;

	victim_init(argc, argv);
	limit = own_limit();
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
