/* SPDX-License-Identifier: MIT */
/*
 * TCP connections that nobody has accepted yet: bound, shut down, non-blocking, of IPv6; and of two
 * sockets that listen at one port, one for each family.
 */
#include "victim.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#define N 3

union address {
	struct sockaddr sa;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
};

static struct place {
	int family, listener, client[N];
	union address name[N];
	bool any; /* at all addresses, and at the port of the one before if that is so too */
} places[] = {
	{ .family = AF_INET },
	{ .family = AF_INET6 },
	{ .family = AF_INET, .any = true },
	{ .family = AF_INET6, .any = true },
};
#define PLACES (sizeof(places) / sizeof(*places))

static union address name_of(int fd, socklen_t *len)
{
	union address a = { 0 };

	*len = sizeof(a);
	MUST(getsockname(fd, &a.sa, len));
	return a;
}

static int port_of(const union address *a)
{
	return ntohs(a->in.sin_port);
}

/* The other end is there when the listening socket has it. */
static void await_waiting(int listener, unsigned n)
{
	struct tcp_info ti = { 0 };
	socklen_t len = sizeof(ti);

	while (!getsockopt(listener, IPPROTO_TCP, TCP_INFO, &ti, &len) && ti.tcpi_unacked < n)
		usleep(1000);
}

static void await_end(int fd)
{
	struct tcp_info ti = { 0 };
	socklen_t len = sizeof(ti);

	while (!getsockopt(fd, IPPROTO_TCP, TCP_INFO, &ti, &len) && ti.tcpi_state != TCP_FIN_WAIT2)
		usleep(1000);
}

static void make(void)
{
	for (size_t i = 0; i < PLACES; i++) {
		struct place *p = &places[i];

		for (unsigned k = 0; k < N; k++) {
			socklen_t len;
			union address a = name_of(p->listener, &len);

			if (p->any && p->family == AF_INET)
				a.in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
			else if (p->any)
				a.in6.sin6_addr = in6addr_loopback;
			p->client[k] = MUST(socket(p->family, SOCK_STREAM, 0));
			MUST(connect(p->client[k], &a.sa, len));
			await_waiting(p->listener, k + 1);
			p->name[k] = name_of(p->client[k], &len);
		}
		MUST(fcntl(p->client[1], F_SETFL, O_NONBLOCK));
		MUST(shutdown(p->client[2], SHUT_WR));
		await_end(p->client[2]);
	}
}

/* They may be accepted in any order: TCP promises none. */
static void check_one(struct place *p)
{
	union address peer = { 0 };
	socklen_t len = sizeof(peer);
	int fd = accept4(p->listener, &peer.sa, &len, SOCK_NONBLOCK), k = 0;
	struct pollfd in = { .fd = fd, .events = POLLIN };
	char buf[8] = "";

	CHECK(fd >= 0, "accept: %s", strerror(errno));
	while (k < N && (p->client[k] < 0 || port_of(&p->name[k]) != port_of(&peer)))
		k++;
	if (k == N) {
		CHECK(false, "nobody has the port %d", port_of(&peer));
		return;
	}
	if (k == 2) {
		CHECK(poll(&in, 1, 10000) == 1 && recv(fd, buf, 1, 0) == 0, "it is not shut down");
		CHECK(send(p->client[k], "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE,
		      "the client is not shut down");
	} else {
		CHECK(send(p->client[k], "word", 4, 0) == 4, "send: %s", strerror(errno));
		CHECK(poll(&in, 1, 10000) == 1 && recv(fd, buf, 4, 0) == 4 && !strcmp(buf, "word"),
		      "got %s", buf);
	}
	CHECK(!!(fcntl(p->client[k], F_GETFL) & O_NONBLOCK) == (k == 1), "O_NONBLOCK of %d", k);
	close(p->client[k]);
	p->client[k] = -1;
	close(fd);
}

static void check(void)
{
	for (size_t i = 0; i < PLACES; i++) {
		for (int k = 0; k < N; k++)
			check_one(&places[i]);
		CHECK(accept(places[i].listener, NULL, NULL) == -1 && errno == EAGAIN,
		      "there is one more");
	}
	make();
}

static void start(struct place *p, uint16_t port)
{
	union address a = { .sa.sa_family = (sa_family_t)p->family };
	const int on = 1;

	a.in.sin_port = port;
	if (!p->any && p->family == AF_INET)
		a.in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	else if (!p->any)
		a.in6.sin6_addr = in6addr_loopback;
	p->listener = MUST(socket(p->family, SOCK_STREAM | SOCK_NONBLOCK, 0));
	if (p->any && p->family == AF_INET6)
		MUST(setsockopt(p->listener, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on)));
	MUST(bind(p->listener, &a.sa, p->family == AF_INET ? sizeof(a.in) : sizeof(a.in6)));
	MUST(listen(p->listener, N));
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	for (size_t i = 0; i < PLACES; i++) {
		const bool twin = i && places[i].any && places[i - 1].any;
		socklen_t len;

		start(&places[i], twin ? name_of(places[i - 1].listener, &len).in.sin_port : 0);
	}
	make();
	victim_ready();
	victim_serve(check);
}
