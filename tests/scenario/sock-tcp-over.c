/* SPDX-License-Identifier: MIT */
/*
 * TCP sockets whose connection has ended: in good order, with data unread, and by a reset that
 * was noticed. And connections with a process outside the tree that the restore ends as a reset
 * does: what has come is still read.
 *
 * test: option=--option=net.tcp=reset
 * test: ignore=fds [0-9]+ socket peer: .* -> 107
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "victim.h"

union address {
	struct sockaddr sa;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
};

enum { FOUR, SIX, MAPPED, N };
static union address server[N];
static struct lost {
	int fd;
	ino_t ino; /* another one is another socket: it was restored */
	union address name;
} lost[N];
static int listener, ended, noticed;
static union address ended_name;

static socklen_t size_of(const union address *a)
{
	return a->sa.sa_family == AF_INET ? sizeof(a->in) : sizeof(a->in6);
}

static union address loopback(int family)
{
	union address a = { .sa.sa_family = (sa_family_t)family };

	if (family == AF_INET)
		a.in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	else
		a.in6.sin6_addr = in6addr_loopback;
	return a;
}

static union address name_of(int fd)
{
	union address a = { 0 };
	socklen_t len = sizeof(a);

	getsockname(fd, &a.sa, &len);
	return a;
}

static int listen_at(union address *a)
{
	int fd = MUST(socket(a->sa.sa_family, SOCK_STREAM, 0));

	MUST(bind(fd, &a->sa, size_of(a)));
	MUST(listen(fd, 16));
	*a = name_of(fd);
	return fd;
}

/* Has a word for whoever connects, and nothing else. */
static void outside(const int fds[2])
{
	alarm(900);
	while (access(victim_dir(), F_OK) == 0) {
		struct pollfd p[2] = { { .fd = fds[0], .events = POLLIN },
				       { .fd = fds[1], .events = POLLIN } };

		poll(p, 2, 200);
		for (int i = 0; i < 2; i++)
			if (p[i].revents & POLLIN)
				send(accept(fds[i], NULL, NULL), "last words", 10, MSG_NOSIGNAL);
	}
	_exit(0);
}

static void start_outside(void)
{
	int fds[2], status;
	pid_t between;

	server[FOUR] = loopback(AF_INET);
	server[SIX] = loopback(AF_INET6);
	fds[0] = listen_at(&server[FOUR]);
	fds[1] = listen_at(&server[SIX]);
	server[MAPPED] = (union address){ .in6 = { .sin6_family = AF_INET6,
						   .sin6_port = server[FOUR].in.sin_port } };
	inet_pton(AF_INET6, "::ffff:127.0.0.1", &server[MAPPED].in6.sin6_addr);
	between = MUST(fork());
	if (between == 0) {
		MUST(setsid());
		if (MUST(fork()) == 0)
			outside(fds);
		_exit(0);
	}
	MUST(waitpid(between, &status, 0));
	close(fds[0]);
	close(fds[1]);
}

static int state_of(int fd)
{
	struct tcp_info ti = { 0 };
	socklen_t len = sizeof(ti);

	return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &ti, &len) ? -1 : ti.tcpi_state;
}

static void await_state(int fd, int state)
{
	while (state_of(fd) != state)
		usleep(1000);
}

static bool ready(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, 30000) == 1;
}

static void get(int fd, const char *want, const char *what)
{
	char buf[32] = "";
	ssize_t n = ready(fd) ? recv(fd, buf, sizeof(buf) - 1, 0) : -1;

	CHECK(n == (ssize_t)strlen(want) && !strcmp(buf, want), "%s: got \"%s\" (%zd): %s", what,
	      buf, n, strerror(errno));
}

static void connect_outside(struct lost *l, const union address *to)
{
	struct stat st;

	l->fd = MUST(socket(to->sa.sa_family, SOCK_STREAM, 0));
	MUST(connect(l->fd, &to->sa, size_of(to)));
	l->name = name_of(l->fd);
	MUST(fstat(l->fd, &st));
	l->ino = st.st_ino;
	if (!ready(l->fd))
		victim_die("the outside is silent");
}

static int connect_inside(int *accepted)
{
	union address a = name_of(listener);
	int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));

	MUST(connect(fd, &a.sa, size_of(&a)));
	*accepted = MUST(accept(listener, NULL, NULL));
	return fd;
}

static void make_ended(void)
{
	int other;

	ended = connect_inside(&other);
	MUST(send(other, "unread", 6, 0));
	MUST(shutdown(other, SHUT_WR));
	await_state(ended, TCP_CLOSE_WAIT);
	MUST(shutdown(ended, SHUT_WR));
	await_state(ended, TCP_CLOSE);
	close(other);
	ended_name = name_of(ended);
}

static void make_noticed(void)
{
	struct linger reset = { 1, 0 };
	int other;
	char c;

	noticed = connect_inside(&other);
	MUST(setsockopt(other, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)));
	close(other);
	if (!ready(noticed) || recv(noticed, &c, 1, 0) != -1 || errno != ECONNRESET)
		victim_die("no reset");
}

static bool same_name(int fd, const union address *was)
{
	union address now = name_of(fd);

	return !memcmp(&now, was, size_of(was));
}

static void check_lost(struct lost *l, int which)
{
	struct stat st = { 0 };
	char c;

	fstat(l->fd, &st);
	CHECK(same_name(l->fd, &l->name), "lost %d: another name", which);
	get(l->fd, "last words", "lost");
	if (st.st_ino == l->ino)
		return;
	CHECK(ready(l->fd) && recv(l->fd, &c, 1, 0) == -1 && errno == ECONNRESET,
	      "lost %d: no reset: %s", which, strerror(errno));
	CHECK(send(l->fd, &c, 1, MSG_NOSIGNAL) == -1 && errno == EPIPE, "lost %d: it sends", which);
}

static void check_over(int fd, const char *what)
{
	struct pollfd p = { .fd = fd, .events = POLLIN | POLLRDHUP };
	char c;

	CHECK(state_of(fd) == TCP_CLOSE && poll(&p, 1, 0) == 1 && p.revents & POLLRDHUP &&
		      p.revents & POLLHUP && !(p.revents & POLLERR),
	      "%s: state %d, events %#x", what, state_of(fd), (unsigned)p.revents);
	CHECK(recv(fd, &c, 1, 0) == 0, "%s: no end: %s", what, strerror(errno));
	CHECK(send(fd, "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE, "%s: it sends", what);
	close(fd);
}

static void check(void)
{
	for (int i = 0; i < N; i++) {
		check_lost(&lost[i], i);
		close(lost[i].fd);
		connect_outside(&lost[i], &server[i]);
	}
	CHECK(same_name(ended, &ended_name), "ended: another name");
	get(ended, "unread", "ended");
	check_over(ended, "ended");
	check_over(noticed, "reset");
	make_ended();
	make_noticed();
}

int main(int argc, char **argv)
{
	union address a = loopback(AF_INET);

	victim_init(argc, argv);
	start_outside();
	listener = listen_at(&a);
	for (int i = 0; i < N; i++)
		connect_outside(&lost[i], &server[i]);
	make_ended();
	make_noticed();
	victim_ready();
	victim_serve(check);
}
