/* SPDX-License-Identifier: MIT */
/*
 * POSIX locks of two processes on one file, OFD and flock(2) locks on shared
 * descriptions, leases. Who holds them is asked of the kernel.
 */
#include "victim.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <unistd.h>

static int posix, posix_dup, posix_ro, posix_wo;
static int ofd, shared, exclusive, lease_r, lease_w;
static int ask[2], answer[2];
static pid_t child;
static off_t length = 10;
static int fds_before;

static int lock(int fd, int cmd, short type, off_t start, off_t len)
{
	struct flock fl = { .l_type = type, .l_start = start, .l_len = len };

	return fcntl(fd, cmd, &fl);
}

/* Who would keep us from locking? 0: nobody. */
static pid_t holder(int fd, int cmd, short type, off_t start, off_t len, short *held)
{
	struct flock fl = { .l_type = type, .l_start = start, .l_len = len };

	if (fcntl(fd, cmd, &fl))
		return -2;
	*held = fl.l_type;
	return fl.l_type == F_UNLCK ? 0 : fl.l_pid;
}

static int make(const char *name, int flags)
{
	close(MUST(open(victim_path(name), O_WRONLY | O_CREAT, 0600)));
	return (int)MUST(open(victim_path(name), flags));
}

/* Asks by its own descriptor who holds a byte, and says so. */
static void child_main(void)
{
	off_t at;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	MUST(lock(posix, F_SETLK, F_WRLCK, 50, 10));
	MUST(write(answer[1], &child, sizeof(child)));
	while (read(ask[0], &at, sizeof(at)) == sizeof(at)) {
		short held;
		pid_t pid = holder(posix, F_GETLK, F_WRLCK, at, 1, &held);

		if (write(answer[1], &pid, sizeof(pid)) != sizeof(pid))
			break;
	}
	_exit(0);
}

static pid_t ask_child(off_t at)
{
	pid_t pid = -3;

	CHECK(write(ask[1], &at, sizeof(at)) == sizeof(at) &&
		      read(answer[0], &pid, sizeof(pid)) == sizeof(pid),
	      "the child does not answer");
	return pid;
}

static void build(void)
{
	pid_t ready;

	posix = make("posix", O_RDWR);
	posix_dup = MUST(dup(posix));
	posix_ro = MUST(open(victim_path("posix"), O_RDONLY));
	posix_wo = MUST(open(victim_path("posix"), O_WRONLY));
	ofd = make("ofd", O_RDWR);
	shared = make("shared", O_RDONLY);
	exclusive = make("exclusive", O_WRONLY);
	lease_r = make("lease-r", O_RDONLY);
	MUST(pipe(ask));
	MUST(pipe(answer));
	child = MUST(fork());
	if (!child)
		child_main();
	MUST(read(answer[0], &ready, sizeof(ready)));
	close(ask[0]);
	close(answer[1]);
	MUST(lock(posix, F_SETLK, F_WRLCK, 0, length));
	MUST(lock(posix_ro, F_SETLK, F_RDLCK, 100, 0));
	MUST(lock(ofd, F_OFD_SETLK, F_RDLCK, 5, 6));
	MUST(lock(ofd, F_OFD_SETLK, F_WRLCK, 20, 1));
	MUST(flock(shared, LOCK_SH));
	MUST(flock(exclusive, LOCK_EX));
	MUST(fcntl(lease_r, F_SETLEASE, F_RDLCK));
	lease_w = make("lease-w", O_RDWR);
	MUST(fcntl(lease_w, F_SETLEASE, F_WRLCK));
}

/* ---- checks ------------------------------------------------------------------------- */

static void check_posix(void)
{
	pid_t self = getpid();
	short held = 0;

	CHECK(ask_child(0) == self && ask_child(length - 1) == self, "byte 0 is held by %d",
	      ask_child(0));
	CHECK(!ask_child(length), "byte %ld is held by %d", (long)length, ask_child(length));
	CHECK(ask_child(100) == self && ask_child(1L << 40) == self, "byte 100 is held by %d",
	      ask_child(100));
	CHECK(holder(posix_dup, F_GETLK, F_RDLCK, 55, 1, &held) == child && held == F_WRLCK,
	      "byte 55 is not the child's");
	CHECK(!holder(posix_dup, F_GETLK, F_RDLCK, 60, 1, &held), "byte 60 is locked");
	length++;
	CHECK(!lock(posix_wo, F_SETLK, F_WRLCK, 0, length), "locking: %s", strerror(errno));
}

static void check_others(void)
{
	int other = open(victim_path("ofd"), O_RDWR);
	short held = 0;

	CHECK(holder(other, F_OFD_GETLK, F_WRLCK, 5, 6, &held) == -1 && held == F_RDLCK,
	      "the OFD lock at 5 is of type %d", held);
	CHECK(holder(other, F_OFD_GETLK, F_RDLCK, 20, 1, &held) == -1 && held == F_WRLCK,
	      "the OFD lock at 20 is of type %d", held);
	CHECK(!holder(other, F_OFD_GETLK, F_WRLCK, 11, 9, &held), "too much is locked");
	close(other);
	other = open(victim_path("shared"), O_RDONLY);
	CHECK(flock(other, LOCK_EX | LOCK_NB) == -1 && errno == EWOULDBLOCK &&
		      !flock(other, LOCK_SH),
	      "the shared lock is lost, or not shared");
	close(other);
	other = open(victim_path("exclusive"), O_RDONLY);
	CHECK(flock(other, LOCK_SH | LOCK_NB) == -1 && errno == EWOULDBLOCK,
	      "the exclusive lock is lost");
	close(other);
	CHECK(fcntl(lease_r, F_GETLEASE) == F_RDLCK, "read lease: %d", fcntl(lease_r, F_GETLEASE));
	CHECK(fcntl(lease_w, F_GETLEASE) == F_WRLCK, "write lease: %d", fcntl(lease_w, F_GETLEASE));
	CHECK(fcntl(lease_w, F_GETOWN) == getpid(), "the lease is %d's", fcntl(lease_w, F_GETOWN));
}

static void check(void)
{
	check_posix();
	check_others();
	CHECK(victim_count_fds() == fds_before, "%d descriptors, not %d", victim_count_fds(),
	      fds_before);
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	build();
	fds_before = victim_count_fds();
	victim_ready();
	victim_serve(check);
}
