/* SPDX-License-Identifier: MIT */
/*
 * Sockets that belong to network namespaces inside the tree, or to another one than their
 * holder's: listening, connected, datagrams, pairs, unix names, of streams and datagrams, that are
 * the same in both.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "victim.h"

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

struct set {
	int tcp, client, server, udp, abstract, pair[2];
	int caller, callee, half; /* through `abstract`; one whose client is closed */
	int dgram, sender;	  /* by an abstract name, which is another one in each namespace */
};
static struct set inner, outer; /* made in the first and in the second namespace */

static struct sockaddr_in loopback(int port)
{
	return (struct sockaddr_in){ .sin_family = AF_INET,
				     .sin_port = htons((unsigned short)port),
				     .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

/* The same addresses in every namespace. */
static void make(struct set *s)
{
	struct sockaddr_in a = loopback(4000);
	struct sockaddr_un name = { .sun_family = AF_UNIX, .sun_path = "\0ckpt-sock-netns" };

	if (system("ip link set lo up"))
		victim_die("ip link set lo up");
	s->tcp = MUST(socket(AF_INET, SOCK_STREAM, 0));
	MUST(bind(s->tcp, (struct sockaddr *)&a, sizeof(a)));
	MUST(listen(s->tcp, 5));
	s->client = MUST(socket(AF_INET, SOCK_STREAM, 0));
	MUST(connect(s->client, (struct sockaddr *)&a, sizeof(a)));
	s->server = MUST(accept(s->tcp, NULL, NULL));
	s->udp = MUST(socket(AF_INET, SOCK_DGRAM, 0));
	MUST(bind(s->udp, (struct sockaddr *)&a, sizeof(a)));
	s->abstract = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
	MUST(bind(s->abstract, (struct sockaddr *)&name, sizeof(name.sun_family) + 16));
	MUST(listen(s->abstract, 5));
	s->half = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
	MUST(connect(s->half, (struct sockaddr *)&name, sizeof(name.sun_family) + 16));
	MUST(write(s->half, "last", 4));
	close(s->half);
	s->half = MUST(accept(s->abstract, NULL, NULL));
	s->caller = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
	MUST(connect(s->caller, (struct sockaddr *)&name, sizeof(name.sun_family) + 16));
	s->callee = MUST(accept(s->abstract, NULL, NULL));
	MUST(write(s->caller, "wait", 4));
	s->dgram = MUST(socket(AF_UNIX, SOCK_DGRAM, 0));
	MUST(bind(s->dgram, (struct sockaddr *)&name, sizeof(name.sun_family) + 16));
	s->sender = MUST(socket(AF_UNIX, SOCK_DGRAM, 0));
	MUST(connect(s->sender, (struct sockaddr *)&name, sizeof(name.sun_family) + 16));
	MUST(write(s->sender, "wait", 4));
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, s->pair));
	MUST(write(s->client, "wait", 4));
	MUST(write(s->pair[0], "wait", 4));
}

static unsigned long long cookie(int fd)
{
	unsigned long long value = 0;
	socklen_t len = sizeof(value);

	getsockopt(fd, SOL_SOCKET, SO_NETNS_COOKIE, &value, &len);
	return value;
}

static void carries(const char *what, int from, int to)
{
	char text[8] = "";

	CHECK(read(to, text, 4) == 4 && !strcmp(text, "wait"), "%s: \"%s\" was queued", what, text);
	CHECK(write(from, "wait", 4) == 4, "%s: %s", what, strerror(errno));
}

static void same_place(const struct set *s)
{
	const int fds[] = { s->client, s->server, s->udp,    s->abstract, s->pair[0], s->pair[1],
			    s->dgram,  s->sender, s->caller, s->callee,	  s->half };

	for (size_t i = 0; i < sizeof(fds) / sizeof(*fds); i++)
		CHECK(cookie(fds[i]) == cookie(s->tcp), "descriptor %d is in another namespace",
		      fds[i]);
}

static void answers(struct set *s)
{
	struct sockaddr_in a = loopback(4000);
	char c = 0, text[8] = "";

	same_place(s);
	carries("stream", s->caller, s->callee);
	CHECK(recv(s->half, text, 5, MSG_PEEK) == 4 && !strcmp(text, "last"), "half: \"%s\"", text);
	carries("TCP", s->client, s->server);
	carries("pair", s->pair[0], s->pair[1]);
	carries("dgram", s->sender, s->dgram);
	CHECK(sendto(s->udp, "u", 1, 0, (struct sockaddr *)&a, sizeof(a)) == 1 &&
		      recv(s->udp, &c, 1, 0) == 1 && c == 'u',
	      "UDP: %s", strerror(errno));
}

static void check(void)
{
	int here = socket(AF_UNIX, SOCK_DGRAM, 0);

	answers(&inner);
	answers(&outer);
	CHECK(cookie(inner.tcp) != cookie(outer.tcp), "both sets are in one namespace");
	CHECK(cookie(here) == cookie(outer.tcp), "we are not where the second set was made");
	close(here);
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	MUST(unshare(CLONE_NEWNET));
	make(&inner);
	MUST(unshare(CLONE_NEWNET));
	make(&outer);
	if (MUST(fork()) == 0) {
		/* the first namespace lives by its sockets alone, if nobody were there */
		pause();
		_exit(0);
	}
	victim_ready();
	victim_serve(check);
}
