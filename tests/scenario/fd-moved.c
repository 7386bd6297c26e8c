/* SPDX-License-Identifier: MIT */
/*
 * Two open files with many descriptors each, of which somebody outside moves the positions and
 * changes the flags all the time: all of one are one description after a restore too.
 *
 * test: verify=no
 * test: ignore=fds [0-9]+ info:
 */
#include "victim.h"

#include <fcntl.h>
#include <linux/kcmp.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { FILES = 2, COPIES = 300, SECONDS = 60 };

static int fds[FILES][COPIES];

static void build(void)
{
	for (int i = 0; i < FILES; i++) {
		fds[i][0] = MUST(open(victim_path("file"), O_RDWR | O_CREAT, 0600));
		for (int k = 1; k < COPIES; k++)
			fds[i][k] = MUST(dup(fds[i][0]));
	}
}

/* As long as there is a victim of that number, restored ones too. */
static void disturb(pid_t victim)
{
	/* the number of the group is to be free for the restore */
	MUST(setsid());
	alarm(SECONDS);
	for (unsigned n = 0; n % 4096 || !kill(victim, 0); n++) {
		for (int i = 0; i < FILES; i++) {
			lseek(fds[i][0], n % 4096, SEEK_SET);
			fcntl(fds[i][0], F_SETFL, n % 2 ? O_NONBLOCK : O_APPEND);
		}
	}
	_exit(0);
}

static void check(void)
{
	const pid_t me = getpid();

	for (int i = 0; i < FILES; i++)
		for (int k = 1; k < COPIES; k++)
			CHECK(!syscall(SYS_kcmp, me, me, KCMP_FILE, fds[i][0], fds[i][k]),
			      "%d and %d are not one any more", fds[i][0], fds[i][k]);
	CHECK(syscall(SYS_kcmp, me, me, KCMP_FILE, fds[0][0], fds[1][0]) > 0,
	      "two files are one now");
}

int main(int argc, char **argv)
{
	pid_t me;

	victim_init(argc, argv);
	me = getpid();
	build();
	if (!MUST(victim_outsider()))
		disturb(me);
	victim_ready();
	victim_serve(check);
}
