/* SPDX-License-Identifier: MIT */
/*
 * Targets of an epoll whose numbers were closed, or lead elsewhere by now: the file
 * is still open under another number, or in another process only.
 */
#include "victim.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CLOSED, REUSED, TWICE, CHILD, SOCK, SOCK_CLOSED, SOCK_REUSED, SOCK_CHILD, N };

static int ep, rd[N], wr[N], reused, twice;
static int ask[2], answer[2];
static int fds_before;

static void watch(int i)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.u64 = 100 + (unsigned)i };
	int p[2];

	MUST(i < SOCK ? pipe(p) : socketpair(AF_UNIX, SOCK_STREAM, 0, p));
	rd[i] = p[0];
	wr[i] = p[1];
	MUST(epoll_ctl(ep, EPOLL_CTL_ADD, rd[i], &ev));
}

static void child_main(void)
{
	char c;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	close(ep);
	while (read(ask[0], &c, 1) == 1)
		if (read(rd[(int)c], &c, 1) != 1 || write(answer[1], &c, 1) != 1)
			break;
	_exit(0);
}

/* Sockets are told by their inodes; what takes the number of one is another. */
static void build_sockets(void)
{
	int at;

	watch(SOCK);
	watch(SOCK_CLOSED);
	at = rd[SOCK_CLOSED];
	rd[SOCK_CLOSED] = MUST(fcntl(at, F_DUPFD, 500));
	close(at);
	watch(SOCK_REUSED);
	at = rd[SOCK_REUSED];
	rd[SOCK_REUSED] = MUST(fcntl(at, F_DUPFD, 500));
	MUST(dup2(rd[SOCK], at));
}

static void build(void)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.u64 = 200 };
	int number;

	ep = MUST(epoll_create1(0));
	MUST(pipe(ask));
	MUST(pipe(answer));
	watch(CHILD);
	watch(SOCK_CHILD);
	if (!MUST(fork()))
		child_main();
	close(rd[CHILD]);
	close(rd[SOCK_CHILD]);
	watch(CLOSED);
	number = rd[CLOSED];
	rd[CLOSED] = MUST(fcntl(number, F_DUPFD, 500));
	watch(REUSED);
	reused = rd[REUSED];
	rd[REUSED] = MUST(fcntl(reused, F_DUPFD, 500));
	MUST(dup3(MUST(open("/dev/null", O_RDONLY)), reused, O_CLOEXEC));
	/* two targets of one number: one that is closed, one that is there */
	watch(TWICE);
	twice = rd[TWICE];
	rd[TWICE] = MUST(fcntl(twice, F_DUPFD, 500));
	MUST(dup2(ask[1], twice));
	ev.events = EPOLLOUT | EPOLLET;
	MUST(epoll_ctl(ep, EPOLL_CTL_ADD, twice, &ev));
	close(number);
	build_sockets();
}

static int reports(unsigned long *seen)
{
	struct epoll_event ev[16];
	int n = epoll_wait(ep, ev, 16, 0), found = 0;

	*seen = 0;
	for (int i = 0; i < n; i++) {
		if (ev[i].data.u64 >= 100 + N)
			continue;
		*seen |= 1UL << (ev[i].data.u64 - 100);
		found++;
	}
	return found;
}

static void check(void)
{
	struct epoll_event ev = { .events = EPOLLOUT | EPOLLET, .data.u64 = 200 };
	unsigned long seen;
	char c = 'x';

	CHECK(!reports(&seen), "targets are ready: %#lx", seen);
	for (int i = 0; i < N; i++) {
		CHECK(write(wr[i], &c, 1) == 1, "write: %s", strerror(errno));
		CHECK(reports(&seen) == 1 && seen == 1UL << i, "pipe %d: %#lx is reported", i,
		      seen);
		if (i == CHILD || i == SOCK_CHILD) {
			c = (char)i;
			CHECK(write(ask[1], &c, 1) == 1 && read(answer[0], &c, 1) == 1,
			      "the child does not answer");
		} else {
			CHECK(read(rd[i], &c, 1) == 1, "read: %s", strerror(errno));
		}
	}
	CHECK(!reports(&seen), "targets are ready: %#lx", seen);
	CHECK(fcntl(reused, F_GETFD) == FD_CLOEXEC && read(reused, &c, 1) == 0,
	      "what took the number is something else");
	CHECK(epoll_ctl(ep, EPOLL_CTL_MOD, twice, &ev) == 0, "the target that is there: %s",
	      strerror(errno));
	CHECK(epoll_ctl(ep, EPOLL_CTL_MOD, reused, &ev) == -1, "null is a target");
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
