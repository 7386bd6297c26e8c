/* SPDX-License-Identifier: MIT
 *
 * User namespaces as deep as the kernel lets them be nested, of which only three have members: the
 * others are there as their parents. Each member counts how many more it could have below it.
 */
#include "victim.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MEMBERS = 3, STEP = 12, DEEPEST = 64 };

static int request[MEMBERS][2], reply[MEMBERS][2], below[MEMBERS];

static void put(const char *name, const char *text)
{
	int fd = open(name, O_WRONLY);

	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		_exit(DEEPEST + 1);
	close(fd);
}

/* False: the kernel allows no more. */
static bool deeper(void)
{
	if (unshare(CLONE_NEWUSER))
		return false;
	put("/proc/self/uid_map", "0 0 1");
	put("/proc/self/setgroups", "deny");
	put("/proc/self/gid_map", "0 0 1");
	return true;
}

static int count(void)
{
	int status = 0, n = 0;
	pid_t pid = MUST(fork());

	if (pid == 0) {
		while (n < DEEPEST && deeper())
			n++;
		_exit(n);
	}
	MUST(waitpid(pid, &status, 0));
	return WEXITSTATUS(status);
}

static _Noreturn void serve(int which)
{
	char c;

	MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
	while (read(request[which][0], &c, 1) == 1) {
		int n = count();

		if (write(reply[which][1], &n, sizeof(n)) < 0)
			break;
	}
	_exit(1);
}

static int ask(int which)
{
	int n = -1;

	if (write(request[which][1], "", 1) != 1 ||
	    read(reply[which][0], &n, sizeof(n)) != sizeof(n))
		victim_fail("member %d does not answer", which);
	return n;
}

static void check(void)
{
	for (int i = 0; i < MEMBERS; i++) {
		int n = ask(i);

		CHECK(n == below[i], "member %d: %d namespaces below it, were %d", i, n, below[i]);
	}
}

/* The last member is where no other namespace can be below it. */
static void nest(int levels)
{
	for (int which = 0, depth = 0; which < MEMBERS; which++) {
		int to = which + 1 < MEMBERS ? depth + STEP : levels;

		for (; depth < to; depth++)
			if (!deeper())
				victim_die("level %d: %s", depth, strerror(errno));
		if (which + 1 == MEMBERS || MUST(fork()) == 0)
			serve(which);
	}
}

int main(int argc, char **argv)
{
	int levels;

	victim_init(argc, argv);
	levels = count();
	if (levels <= 2 * STEP)
		victim_skip("only %d levels of user namespaces", levels);
	for (int i = 0; i < MEMBERS; i++) {
		MUST(pipe(request[i]));
		MUST(pipe(reply[i]));
	}
	if (MUST(fork()) == 0)
		nest(levels);
	for (int i = 0; i < MEMBERS; i++)
		below[i] = ask(i);
	CHECK(below[0] == levels - STEP && below[2] == 0, "%d levels, %d below the first", levels,
	      below[0]);
	victim_ready();
	victim_serve(check);
}
