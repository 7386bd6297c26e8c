/* SPDX-License-Identifier: MIT */
/*
 * TCP connections across a pair of veth, each end in a network namespace of its own: quiet,
 * with data that waits at either end, with a full window, half-closed, closed at one end,
 * waiting to be accepted, of IPv6.
 *
 * How much of a stream is at which end is up to the kernel:
 * test: ignore=fds [0-9]+ socket queued: [0-9]+ -> [0-9]+
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "victim.h"

#define NO_WAIT                                           \
	"echo 0 >/proc/sys/net/ipv6/conf/all/accept_dad;" \
	"echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad;"
#define SETTLED                                                                               \
	"until ip -6 route show table all | grep -q '^multicast ff00::/8 dev v' && ip -6 -o " \
	"addr show scope link | grep -q ' fe80:'; do sleep 0.01; done"
#define FULL (1 << 20)

enum { QUIET, DATA, WINDOW, SIX, HALF, CLOSED, N };
static struct link {
	int client, server;
} links[N];
static int listener, listener6, waiting;
static size_t full;
static unsigned round_of;

static void run(const char *command)
{
	if (system(command))
		victim_die("%s failed", command);
}

static socklen_t address(struct sockaddr_in6 *a, int family)
{
	struct sockaddr_in *in = (void *)a;

	memset(a, 0, sizeof(*a));
	a->sin6_family = (sa_family_t)family;
	a->sin6_port = htons(4000);
	inet_pton(family, family == AF_INET ? "10.7.1.1" : "fd00:71::1",
		  family == AF_INET ? (void *)&in->sin_addr : (void *)&a->sin6_addr);
	return family == AF_INET ? sizeof(*in) : sizeof(*a);
}

static int listen_at(int family)
{
	struct sockaddr_in6 a;
	socklen_t len = address(&a, family);
	int fd = MUST(socket(family, SOCK_STREAM, 0)), on = 1;

	MUST(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)));
	MUST(bind(fd, (struct sockaddr *)&a, len));
	MUST(listen(fd, 16));
	return fd;
}

static int connect_to(int family)
{
	struct sockaddr_in6 a;
	socklen_t len = address(&a, family);
	int fd = MUST(socket(family, SOCK_STREAM, 0));

	MUST(connect(fd, (struct sockaddr *)&a, len));
	return fd;
}

static struct link link_of(int family)
{
	struct link l = { .client = connect_to(family) };

	l.server = MUST(accept(family == AF_INET ? listener : listener6, NULL, NULL));
	return l;
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
	static char buf[65536];
	size_t at = 0;

	while (at < full) {
		struct pollfd p = { .fd = links[WINDOW].server, .events = POLLIN };
		ssize_t n = poll(&p, 1, 20000) == 1 ? recv(p.fd, buf, sizeof(buf), 0) : -1;

		for (ssize_t i = 0; i < n; i++)
			if (buf[i] != byte_at(at + (size_t)i)) {
				CHECK(false, "window: byte %zu is wrong", at + (size_t)i);
				return;
			}
		if (n <= 0)
			break;
		at += (size_t)n;
	}
	CHECK(at == full, "window: %zu bytes of %zu", at, full);
}

static void make(void)
{
	round_of++;
	victim_put(links[DATA].client, "to the server");
	victim_put(links[DATA].server, "to the client");
	fill_window();
	links[HALF] = link_of(AF_INET);
	victim_put(links[HALF].client, "last words");
	MUST(shutdown(links[HALF].client, SHUT_WR));
	await_state(links[HALF].server, TCP_CLOSE_WAIT);
	await_state(links[HALF].client, TCP_FIN_WAIT2);
	links[CLOSED] = link_of(AF_INET);
	victim_put(links[CLOSED].client, "gone");
	close(links[CLOSED].client);
	await_state(links[CLOSED].server, TCP_CLOSE_WAIT);
	waiting = connect_to(AF_INET);
}

static void talk(const struct link *l, const char *what)
{
	victim_put(l->client, "ping");
	victim_get(l->server, "ping", what);
	victim_put(l->server, "pong");
	victim_get(l->client, "pong", what);
}

static void check(void)
{
	struct link l = { .client = waiting };

	talk(&links[QUIET], "quiet");
	talk(&links[SIX], "IPv6");
	victim_get(links[DATA].server, "to the server", "data");
	victim_get(links[DATA].client, "to the client", "data");
	empty_window();
	CHECK(state_of(links[HALF].client) == TCP_FIN_WAIT2 &&
		      state_of(links[HALF].server) == TCP_CLOSE_WAIT,
	      "half-closed: states %d, %d", state_of(links[HALF].client),
	      state_of(links[HALF].server));
	victim_get(links[HALF].server, "last words", "half-closed");
	victim_get_end(links[HALF].server, "half-closed");
	victim_put(links[HALF].server, "answer");
	victim_get(links[HALF].client, "answer", "half-closed");
	close(links[HALF].server);
	victim_get_end(links[HALF].client, "half-closed");
	close(links[HALF].client);
	victim_get(links[CLOSED].server, "gone", "closed");
	victim_get_end(links[CLOSED].server, "closed");
	close(links[CLOSED].server);
	l.server = accept(listener, NULL, NULL);
	talk(&l, "accepted");
	close(l.client);
	close(l.server);
	make();
}

int main(int argc, char **argv)
{
	char command[512];
	int ends[2], small = 20000, large = 200000;
	pid_t child;
	char c;

	victim_init(argc, argv);
	MUST(unshare(CLONE_NEWNET));
	run(NO_WAIT "ip link set lo up");
	MUST(pipe(ends));
	child = MUST(fork());
	if (child == 0) {
		/* what keeps the first namespace; the connections' servers belong to it */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		MUST(unshare(CLONE_NEWNET));
		run(NO_WAIT "ip link set lo up");
		MUST(write(ends[1], "x", 1));
		for (;;)
			pause();
	}
	MUST(read(ends[0], &c, 1));
	snprintf(command, sizeof(command),
		 "ip link add v1 type veth peer name v2 netns %d && ip addr add 10.7.1.1/24 dev v1 "
		 "&& "
		 "ip -6 addr add fd00:71::1/64 dev v1 nodad && ip link set v1 up && "
		 "nsenter -t %d -n ip addr add 10.7.1.2/24 dev v2 && "
		 "nsenter -t %d -n ip -6 addr add fd00:71::2/64 dev v2 nodad && "
		 "nsenter -t %d -n ip link set v2 up",
		 child, child, child, child);
	run(command);
	/* the kernel takes notice of a carrier a while later, and makes what goes with it then */
	run(SETTLED);
	snprintf(command, sizeof(command), "nsenter -t %d -n sh -c \"" SETTLED "\"", child);
	run(command);
	listener = listen_at(AF_INET);
	listener6 = listen_at(AF_INET6);
	snprintf(command, sizeof(command), "/proc/%d/ns/net", child);
	if (MUST(fork()) == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	{
		int ns = MUST(open(command, O_RDONLY | O_CLOEXEC));

		MUST(setns(ns, CLONE_NEWNET));
		close(ns);
	}
	for (int i = QUIET; i <= SIX; i++)
		links[i] = link_of(i == SIX ? AF_INET6 : AF_INET);
	MUST(setsockopt(links[WINDOW].server, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)));
	MUST(setsockopt(links[WINDOW].client, SOL_SOCKET, SO_SNDBUF, &large, sizeof(large)));
	make();
	victim_ready();
	victim_serve(check);
}
