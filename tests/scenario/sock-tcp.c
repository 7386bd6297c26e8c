/* SPDX-License-Identifier: MIT */
/*
 * TCP connections with both ends in the tree, within a process and between two: with data
 * that waits at either end, with a full window, half-closed, closed at one end, of IPv6 and
 * IPv4 in IPv6, to listening sockets with and without SO_REUSEADDR; with SO_PEEK_OFF.
 *
 * How much of a stream is at which end is up to the kernel:
 * test: ignore=fds [0-9]+ socket queued: [0-9]+ -> [0-9]+
 */
#include "victim.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define FULL (2 << 20)

union address {
	struct sockaddr sa;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
};

enum { QUIET, DATA, WINDOW, HALF, HALF_BACK, CLOSED, SIX, MAPPED, N };
static const char *const names[N] = { "quiet",	   "data",   "window", "half",
				      "half back", "closed", "IPv6",   "mapped" };
static struct link {
	int client, server;
	union address client_name, server_name;
} links[N];
static int listener, listener6, childs, child_server;
static pid_t child;
static size_t full;
static unsigned round_of;

static socklen_t size_of(const union address *a)
{
	return a->sa.sa_family == AF_INET ? sizeof(a->in) : sizeof(a->in6);
}

static union address name_of(int fd, bool peer)
{
	union address a = { 0 };
	socklen_t len = sizeof(a);

	if (peer ? getpeername(fd, &a.sa, &len) : getsockname(fd, &a.sa, &len))
		a.sa.sa_family = AF_UNSPEC;
	return a;
}

static int listen_at(int family, bool reuse)
{
	union address a = { .sa.sa_family = (sa_family_t)family };
	int fd = MUST(socket(family, SOCK_STREAM, 0)), on = reuse;

	if (family == AF_INET)
		a.in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	MUST(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)));
	MUST(bind(fd, &a.sa, size_of(&a)));
	MUST(listen(fd, 16));
	return fd;
}

static void connect_through(struct link *l, int to, int family)
{
	union address a = name_of(to, false);

	if (family == AF_INET6)
		a.in6.sin6_addr = in6addr_loopback;
	else if (a.sa.sa_family == AF_INET6)
		a = (union address){ .in = { .sin_family = AF_INET,
					     .sin_port = a.in.sin_port,
					     .sin_addr.s_addr = htonl(INADDR_LOOPBACK) } };
	l->client = MUST(socket(family, SOCK_STREAM, 0));
	MUST(connect(l->client, &a.sa, size_of(&a)));
	l->server = MUST(accept(to, NULL, NULL));
	l->client_name = name_of(l->client, false);
	l->server_name = name_of(l->server, false);
}

static char byte_at(size_t i)
{
	return (char)victim_word(round_of, i / 8);
}

/* Until the other end takes no more. */
static void fill_window(void)
{
	char *text = malloc(FULL);
	ssize_t n;

	for (size_t i = 0; i < FULL; i++)
		text[i] = byte_at(i);
	for (full = 0; full < FULL; full += (size_t)n) {
		n = send(links[WINDOW].client, text + full, FULL - full, MSG_DONTWAIT);
		if (n <= 0)
			break;
	}
	free(text);
}

static void empty_window(void)
{
	size_t at = 0;
	char buf[65536];

	while (at < full) {
		struct pollfd p = { .fd = links[WINDOW].server, .events = POLLIN };
		ssize_t n = poll(&p, 1, 20000) == 1 ? recv(p.fd, buf, sizeof(buf), 0) : -1;

		if (n <= 0)
			break;
		for (ssize_t i = 0; i < n; i++)
			if (buf[i] != byte_at(at + (size_t)i)) {
				CHECK(false, "window: byte %zu is wrong", at + (size_t)i);
				return;
			}
		at += (size_t)n;
	}
	CHECK(at == full, "window: %zu bytes of %zu", at, full);
}

static void await_state(int fd, int state)
{
	struct tcp_info ti = { 0 };
	socklen_t len = sizeof(ti);

	while (!getsockopt(fd, IPPROTO_TCP, TCP_INFO, &ti, &len) && ti.tcpi_state != state)
		usleep(1000);
}

static int state_of(int fd)
{
	struct tcp_info ti = { 0 };
	socklen_t len = sizeof(ti);

	return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &ti, &len) ? -1 : ti.tcpi_state;
}

/* What MSG_PEEK sees next; kernels before 6.9 have none for TCP. */
static int set_peek(int fd, int off)
{
	return setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &off, sizeof(off));
}

static void check_peek(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	socklen_t len = sizeof(int);
	char buf[16] = "";
	int off = -1;

	if (getsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &off, &len))
		return;
	CHECK(off == 3, "SO_PEEK_OFF is %d", off);
	CHECK(poll(&p, 1, 10000) == 1 &&
		      recv(fd, buf, sizeof(buf), MSG_PEEK | MSG_DONTWAIT) == 10 &&
		      !strcmp(buf, "the server"),
	      "MSG_PEEK at %d sees %s", off, buf);
}

static void make(void)
{
	round_of++;
	for (int i = HALF; i <= CLOSED; i++)
		connect_through(&links[i], listener, AF_INET);
	victim_put(links[DATA].client, "to the server");
	victim_put(links[DATA].server, "to the client");
	(void)set_peek(links[DATA].server, 3);
	fill_window();
	victim_put(links[HALF].client, "last words");
	MUST(shutdown(links[HALF].client, SHUT_WR));
	await_state(links[HALF].server, TCP_CLOSE_WAIT);
	await_state(links[HALF].client, TCP_FIN_WAIT2);
	MUST(shutdown(links[HALF_BACK].server, SHUT_WR));
	await_state(links[HALF_BACK].client, TCP_CLOSE_WAIT);
	await_state(links[HALF_BACK].server, TCP_FIN_WAIT2);
	victim_put(links[HALF_BACK].client, "still here");
	victim_put(links[CLOSED].client, "gone");
	close(links[CLOSED].client);
	await_state(links[CLOSED].server, TCP_CLOSE_WAIT);
}

static void check_names(void)
{
	for (int i = 0; i < N; i++) {
		union address a = name_of(links[i].server, false);
		union address b = name_of(links[i].server, true);

		CHECK(!memcmp(&a, &links[i].server_name, size_of(&a)), "%s: the server's name",
		      names[i]);
		CHECK(b.in.sin_port == links[i].client_name.in.sin_port, "%s: the peer's port %d",
		      names[i], ntohs(b.in.sin_port));
	}
}

static void check_half(void)
{
	CHECK(state_of(links[HALF].client) == TCP_FIN_WAIT2 &&
		      state_of(links[HALF].server) == TCP_CLOSE_WAIT,
	      "half-closed: states %d, %d", state_of(links[HALF].client),
	      state_of(links[HALF].server));
	CHECK(send(links[HALF].client, "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE,
	      "half-closed: it can send");
	victim_get(links[HALF].server, "last words", "half-closed");
	victim_get_end(links[HALF].server, "half-closed");
	victim_put(links[HALF].server, "answer");
	victim_get(links[HALF].client, "answer", "half-closed");
	close(links[HALF].server);
	victim_get_end(links[HALF].client, "half-closed");
	close(links[HALF].client);
	victim_get(links[HALF_BACK].server, "still here", "half-closed by the server");
	victim_get_end(links[HALF_BACK].client, "half-closed by the server");
	close(links[HALF_BACK].client);
	victim_get_end(links[HALF_BACK].server, "half-closed by the server");
	close(links[HALF_BACK].server);
	victim_get(links[CLOSED].server, "gone", "closed");
	victim_get_end(links[CLOSED].server, "closed");
	close(links[CLOSED].server);
}

static void check_talk(int a, int b, const char *what)
{
	victim_put(a, "ping");
	victim_get(b, "ping", what);
	victim_put(b, "pong");
	victim_get(a, "pong", what);
}

static void check_options(void)
{
	int value = 0;
	socklen_t len = sizeof(value);

	CHECK(!getsockopt(links[QUIET].client, IPPROTO_TCP, TCP_NODELAY, &value, &len) && value,
	      "TCP_NODELAY");
	CHECK(!getsockopt(links[QUIET].client, IPPROTO_TCP, TCP_KEEPIDLE, &value, &len) &&
		      value == 77,
	      "TCP_KEEPIDLE is %d", value);
	CHECK(!getsockopt(links[QUIET].server, SOL_SOCKET, SO_REUSEADDR, &value, &len) && value,
	      "SO_REUSEADDR of the server");
	CHECK(!getsockopt(links[QUIET].client, SOL_SOCKET, SO_REUSEADDR, &value, &len) && !value,
	      "SO_REUSEADDR of the client");
	CHECK(!getsockopt(links[SIX].server, SOL_SOCKET, SO_REUSEADDR, &value, &len) && !value,
	      "SO_REUSEADDR of the IPv6 server");
}

static void check(void)
{
	struct link fresh;

	check_names();
	check_options();
	check_peek(links[DATA].server);
	victim_get(links[DATA].server, "to the server", "data");
	victim_get(links[DATA].client, "to the client", "data");
	empty_window();
	check_half();
	for (int i = 0; i < N; i++)
		if (i < HALF || i > CLOSED)
			check_talk(links[i].client, links[i].server, names[i]);
	victim_put(child_server, "to the child");
	victim_get(child_server, "from the child", "child");
	connect_through(&fresh, listener, AF_INET);
	check_talk(fresh.client, fresh.server, "fresh");
	close(fresh.client);
	close(fresh.server);
	make();
}

static void child_main(int end)
{
	char buf[16];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;;) {
		size_t at = 0;

		while (at < 12) {
			ssize_t n = recv(end, buf + at, 12 - at, 0);

			if (n <= 0 && !(n < 0 && errno == EINTR))
				_exit(0);
			at += n > 0 ? (size_t)n : 0;
		}
		victim_put(end, "from the child");
	}
}

static void start_child(void)
{
	struct link l;

	connect_through(&l, listener, AF_INET);
	childs = l.client;
	child_server = l.server;
	child = MUST(fork());
	if (!child) {
		close(child_server);
		child_main(childs);
	}
	close(childs);
}

int main(int argc, char **argv)
{
	int on = 1, idle = 77, small = 30000, large = 200000;

	victim_init(argc, argv);
	listener = listen_at(AF_INET, true);
	listener6 = listen_at(AF_INET6, false);
	for (int i = QUIET; i <= WINDOW; i++)
		connect_through(&links[i], listener, AF_INET);
	MUST(setsockopt(links[WINDOW].server, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)));
	MUST(setsockopt(links[WINDOW].client, SOL_SOCKET, SO_SNDBUF, &large, sizeof(large)));
	connect_through(&links[SIX], listener6, AF_INET6);
	connect_through(&links[MAPPED], listener6, AF_INET);
	MUST(setsockopt(links[QUIET].client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
	MUST(setsockopt(links[QUIET].client, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle)));
	start_child();
	make();
	victim_ready();
	victim_serve(check);
}
