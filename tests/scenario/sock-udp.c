/* SPDX-License-Identifier: MIT */
/*
 * Datagrams that wait in UDP sockets: of IPv4, IPv6 and both, from senders that are there,
 * closed, or elsewhere; empty and large ones; with TOS, TTL and where they were sent to.
 */
#include "victim.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef SO_MEMINFO
#define SO_MEMINFO 55
#endif
#define LARGE 60000

union address {
	struct sockaddr sa;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
};

/* what receives, and who sends */
static int any4, connected, only6, both, sender, sender6, elsewhere;
static union address from4, from6, from_closed, from_elsewhere;

static socklen_t size_of(const union address *a)
{
	return a->sa.sa_family == AF_INET ? sizeof(a->in) : sizeof(a->in6);
}

static union address name_of(int fd)
{
	union address a = { 0 };
	socklen_t len = sizeof(a);

	MUST(getsockname(fd, &a.sa, &len));
	return a;
}

static union address address(int family, const char *text, const union address *port_of)
{
	union address a = { 0 };

	a.sa.sa_family = (sa_family_t)family;
	a.in.sin_port = port_of ? port_of->in.sin_port : 0;
	MUST(inet_pton(family, text,
		       family == AF_INET ? (void *)&a.in.sin_addr : (void *)&a.in6.sin6_addr) -
	     1);
	return a;
}

static int bound(int family, const char *text)
{
	union address a = address(family, text, NULL);
	int fd = MUST(socket(family, SOCK_DGRAM, 0));

	MUST(bind(fd, &a.sa, size_of(&a)));
	return fd;
}

static unsigned queued(int fd)
{
	unsigned info[16] = { 0 };
	socklen_t len = sizeof(info);

	MUST(getsockopt(fd, SOL_SOCKET, SO_MEMINFO, info, &len));
	return info[0];
}

static void send_to(int fd, int to, const char *host, const void *data, size_t len)
{
	union address port = name_of(to);
	union address a = address(strchr(host, ':') ? AF_INET6 : AF_INET, host, &port);
	unsigned before = queued(to);

	CHECK(sendto(fd, data, len, 0, &a.sa, size_of(&a)) == (ssize_t)len, "sendto %s: %s", host,
	      strerror(errno));
	while (queued(to) <= before)
		usleep(100);
}

static char *large_text(void)
{
	char *text = malloc(LARGE);

	for (size_t i = 0; i < LARGE; i++)
		text[i] = (char)victim_word(3, i);
	return text;
}

static void fill(void)
{
	char *text = large_text();
	int closed = bound(AF_INET, "127.0.0.1"), other = bound(AF_INET, "127.0.0.1");

	from_closed = name_of(closed);
	send_to(sender, any4, "127.0.0.1", "one", 3);
	send_to(closed, any4, "127.0.0.7", "two", 3);
	send_to(sender, any4, "127.0.0.1", "", 0);
	send_to(sender, any4, "127.0.0.1", text, LARGE);
	send_to(elsewhere, any4, "127.0.0.1", "far", 3);
	/* before it was connected, others could send to it */
	connected = bound(AF_INET, "127.0.0.1");
	send_to(closed, connected, "127.0.0.1", "early", 5);
	CHECK(!connect(connected, &from4.sa, size_of(&from4)), "connect: %s", strerror(errno));
	send_to(sender, connected, "127.0.0.1", "peer", 4);
	send_to(sender6, only6, "::1", "six", 3);
	send_to(sender, both, "127.0.0.1", "four to six", 11);
	send_to(sender6, both, "::1", "six to six", 10);
	close(closed);
	close(other);
	free(text);
}

static bool same(const union address *a, const union address *b)
{
	return a->in.sin_port == b->in.sin_port &&
	       (a->sa.sa_family == AF_INET
			? a->in.sin_addr.s_addr == b->in.sin_addr.s_addr
			: IN6_ARE_ADDR_EQUAL(&a->in6.sin6_addr, &b->in6.sin6_addr));
}

/* `to`: where it was sent to, in any4. */
static void receive(int fd, const void *want, size_t want_len, const union address *from,
		    const char *to)
{
	static char buf[LARGE + 1];
	_Alignas(struct cmsghdr) char control[256];
	union address a = { 0 };
	struct iovec iov = { buf, sizeof(buf) };
	struct msghdr m = { .msg_name = &a,
			    .msg_namelen = sizeof(a),
			    .msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = control,
			    .msg_controllen = sizeof(control) };
	ssize_t len = recvmsg(fd, &m, MSG_DONTWAIT);
	int tos = -1, ttl = -1;
	char where[32] = "";

	CHECK(len == (ssize_t)want_len && !memcmp(buf, want, want_len), "%zd bytes, not %zu: %s",
	      len, want_len, len < 0 ? strerror(errno) : "");
	CHECK(same(&a, from), "%.10s comes from port %d, not %d", (const char *)want,
	      ntohs(a.in.sin_port), ntohs(from->in.sin_port));
	for (struct cmsghdr *c = len < 0 ? NULL : CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
		if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_PKTINFO)
			inet_ntop(AF_INET, &((struct in_pktinfo *)CMSG_DATA(c))->ipi_addr, where,
				  sizeof(where));
		if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS)
			tos = *CMSG_DATA(c);
		if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TTL)
			memcpy(&ttl, CMSG_DATA(c), sizeof(ttl));
	}
	CHECK(!to || !strcmp(to, where), "sent to %s, not %s", where, to);
	if (to && from == &from4)
		CHECK(tos == 0x48 && ttl == 77, "TOS %#x, TTL %d", tos, ttl);
}

/* A look from outside sets some, and has to put them back however it ends. */
static void check_options(int fd, bool asks)
{
	const int names[] = { IP_PKTINFO, IP_RECVTOS, IP_RECVTTL };
	int off = 0, on = 0;
	socklen_t len = sizeof(off);

	MUST(getsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &off, &len));
	CHECK(off == -1, "SO_PEEK_OFF is %d", off);
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		len = sizeof(on);
		MUST(getsockopt(fd, IPPROTO_IP, names[i], &on, &len));
		CHECK(on == asks, "option %d is %d", names[i], on);
	}
	len = sizeof(on);
	if (!getsockopt(fd, IPPROTO_IPV6, IPV6_RECVHOPLIMIT, &on, &len))
		CHECK(!on, "IPV6_RECVHOPLIMIT is on");
}

static void check(void)
{
	union address mapped = { 0 };
	char *text = large_text(), byte;

	mapped.sa.sa_family = AF_INET6;
	mapped.in6.sin6_port = from4.in.sin_port;
	inet_pton(AF_INET6, "::ffff:127.0.0.1", &mapped.in6.sin6_addr);
	check_options(any4, true);
	check_options(connected, false);
	check_options(only6, false);
	check_options(both, false);
	receive(any4, "one", 3, &from4, "127.0.0.1");
	receive(any4, "two", 3, &from_closed, "127.0.0.7");
	receive(any4, "", 0, &from4, "127.0.0.1");
	receive(any4, text, LARGE, &from4, "127.0.0.1");
	receive(any4, "far", 3, &from_elsewhere, "127.0.0.1");
	receive(connected, "early", 5, &from_closed, NULL);
	receive(connected, "peer", 4, &from4, NULL);
	close(connected);
	receive(only6, "six", 3, &from6, NULL);
	receive(both, "four to six", 11, &mapped, NULL);
	receive(both, "six to six", 10, &from6, NULL);
	CHECK(recv(any4, &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN, "there is more");
	CHECK(recv(both, &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN, "there is more");
	free(text);
	fill();
}

int main(int argc, char **argv)
{
	int on = 1, tos = 0x48, ttl = 77;
	union address far;

	victim_init(argc, argv);
	any4 = bound(AF_INET, "0.0.0.0");
	MUST(setsockopt(any4, IPPROTO_IP, IP_PKTINFO, &on, sizeof(on)));
	MUST(setsockopt(any4, IPPROTO_IP, IP_RECVTOS, &on, sizeof(on)));
	MUST(setsockopt(any4, IPPROTO_IP, IP_RECVTTL, &on, sizeof(on)));
	only6 = bound(AF_INET6, "::1");
	both = bound(AF_INET6, "::");
	sender = bound(AF_INET, "127.0.0.1");
	MUST(setsockopt(sender, IPPROTO_IP, IP_TOS, &tos, sizeof(tos)));
	MUST(setsockopt(sender, IPPROTO_IP, IP_TTL, &ttl, sizeof(ttl)));
	from4 = name_of(sender);
	sender6 = bound(AF_INET6, "::1");
	from6 = name_of(sender6);
	/* an address that is not ours, as a datagram from the network has */
	elsewhere = MUST(socket(AF_INET, SOCK_DGRAM, 0));
	MUST(setsockopt(elsewhere, IPPROTO_IP, IP_TRANSPARENT, &on, sizeof(on)));
	far = address(AF_INET, "192.0.2.9", &from4);
	MUST(bind(elsewhere, &far.sa, size_of(&far)));
	from_elsewhere = far;
	fill();
	victim_ready();
	victim_serve(check);
}
