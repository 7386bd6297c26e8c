/* SPDX-License-Identifier: MIT */
/*
 * A POSIX lock that a child took with a descriptor which it has inherited, as have so many others
 * (MANY_NUMBERS in plugins/fd/scan.c) that what they lead to is not read again for each.
 */
#include "victim.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { CHILDREN = 6, NUMBERS = 400 };

static int locked, last;
static pid_t holder_pid;

static int ask(int cmd, short type, pid_t *holder)
{
	struct flock fl = { .l_type = type, .l_start = 5, .l_len = 7 };
	int r = fcntl(locked, cmd, &fl);

	*holder = fl.l_type == F_UNLCK ? 0 : fl.l_pid;
	return r;
}

static void be_child(int i, int ready)
{
	pid_t ignored;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (i == CHILDREN / 2)
		MUST(ask(F_SETLK, F_WRLCK, &ignored));
	MUST(write(ready, "r", 1));
	close(ready);
	for (;;)
		pause();
}

static void check(void)
{
	pid_t holder = -1;

	CHECK(!ask(F_GETLK, F_RDLCK, &holder) && holder == holder_pid,
	      "the lock is held by %d, not by %d", holder, holder_pid);
	CHECK(fcntl(last, F_GETFD) == FD_CLOEXEC, "number %d has other flags", last);
}

int main(int argc, char **argv)
{
	int ready[2];
	char c;

	victim_init(argc, argv);
	locked = (int)MUST(open(victim_path("locked"), O_RDWR | O_CREAT, 0600));
	for (int i = 0; i < NUMBERS; i++)
		last = (int)MUST(fcntl(0, F_DUPFD_CLOEXEC, 0));
	MUST(pipe(ready));
	for (int i = 0; i < CHILDREN; i++) {
		pid_t pid = (pid_t)MUST(fork());

		if (!pid)
			be_child(i, ready[1]);
		if (i == CHILDREN / 2)
			holder_pid = pid;
	}
	for (int i = 0; i < CHILDREN; i++)
		MUST(read(ready[0], &c, 1));
	close(ready[0]);
	close(ready[1]);
	victim_ready();
	victim_serve(check);
}
