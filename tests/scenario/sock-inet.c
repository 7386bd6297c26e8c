/* SPDX-License-Identifier: MIT */
/* UDP sockets of all sorts, and TCP sockets without a connection, with their options. */
#include "victim.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

union address {
	struct sockaddr sa;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
};

/* UDP: plain, bound to any address, to one, connected, of IPv6; TCP: new, bound, of IPv6 */
static int plain, any4, any6, server, client, server6, client6, mapped;
static int tcp_new, tcp_new6, tcp_bound, tcp_bound6, tcp_no_port;
static int shared; /* with the child */
static pid_t child;

/* ports and addresses as they were; the check compares all of it */
static struct {
	int *fd;
	const char *what;
	union address local, peer;
	socklen_t local_len, peer_len;
} known[] = {
	{ &plain, "plain", {}, {}, 0, 0 },
	{ &any4, "any4", {}, {}, 0, 0 },
	{ &any6, "any6", {}, {}, 0, 0 },
	{ &server, "server", {}, {}, 0, 0 },
	{ &client, "client", {}, {}, 0, 0 },
	{ &server6, "server6", {}, {}, 0, 0 },
	{ &client6, "client6", {}, {}, 0, 0 },
	{ &mapped, "mapped", {}, {}, 0, 0 },
	{ &shared, "shared", {}, {}, 0, 0 },
	{ &tcp_new, "tcp_new", {}, {}, 0, 0 },
	{ &tcp_new6, "tcp_new6", {}, {}, 0, 0 },
	{ &tcp_bound, "tcp_bound", {}, {}, 0, 0 },
	{ &tcp_bound6, "tcp_bound6", {}, {}, 0, 0 },
	{ &tcp_no_port, "tcp_no_port", {}, {}, 0, 0 },
};
#define N_KNOWN (sizeof(known) / sizeof(*known))

static socklen_t address_of(union address *a, int family, bool loopback, int port)
{
	memset(a, 0, sizeof(*a));
	a->sa.sa_family = (sa_family_t)family;
	a->in.sin_port = htons((uint16_t)port);
	if (family == AF_INET && loopback)
		a->in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (family == AF_INET6 && loopback)
		a->in6.sin6_addr = in6addr_loopback;
	return family == AF_INET ? sizeof(a->in) : sizeof(a->in6);
}

static int bound(int family, int type, bool loopback)
{
	int fd = MUST(socket(family, type, 0));
	union address a;

	MUST(bind(fd, &a.sa, address_of(&a, family, loopback, 0)));
	return fd;
}

static int connected(int family, int to)
{
	int fd = MUST(socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
	union address a;
	socklen_t len = sizeof(a);

	MUST(getsockname(to, &a.sa, &len));
	MUST(connect(fd, &a.sa, len));
	return fd;
}

static void set(int fd, int level, int name, int value)
{
	MUST(setsockopt(fd, level, name, &value, sizeof(value)));
}

static int get(int fd, int level, int name)
{
	int v = -1;
	socklen_t len = sizeof(v);

	getsockopt(fd, level, name, &v, &len);
	return v;
}

static void child_main(void)
{
	union address from;
	socklen_t len;
	char buf[16];
	ssize_t n;

	for (;;) {
		len = sizeof(from);
		n = recvfrom(shared, buf, sizeof(buf), 0, &from.sa, &len);
		if (n < 0 && errno != EINTR)
			_exit(1);
		if (n > 0)
			sendto(shared, buf, (size_t)n, 0, &from.sa, len);
	}
}

static void build_udp(void)
{
	union address a;
	socklen_t len = sizeof(a);

	plain = MUST(socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0));
	set(plain, SOL_SOCKET, SO_BROADCAST, 1);
	set(plain, IPPROTO_IP, IP_TTL, 17);
	set(plain, IPPROTO_IP, IP_MULTICAST_TTL, 5);
	any4 = bound(AF_INET, SOCK_DGRAM, false);
	set(any4, SOL_SOCKET, SO_RCVBUF, 60000);
	set(any4, IPPROTO_IP, IP_PKTINFO, 1);
	any6 = bound(AF_INET6, SOCK_DGRAM, false);
	server = bound(AF_INET, SOCK_DGRAM, true);
	set(server, SOL_SOCKET, SO_TIMESTAMP, 1);
	client = connected(AF_INET, server);
	set(client, IPPROTO_IP, IP_RECVERR, 1);
	set(client, SOL_SOCKET, SO_MAX_PACING_RATE, 1000000);
	server6 = bound(AF_INET6, SOCK_DGRAM, true);
	client6 = connected(AF_INET6, server6);
	set(client6, IPPROTO_IPV6, IPV6_UNICAST_HOPS, 3);
	set(client6, IPPROTO_IPV6, IPV6_MULTICAST_HOPS, 4);
	set(client6, IPPROTO_IPV6, IPV6_RECVPATHMTU, 1);
	shared = bound(AF_INET, SOCK_DGRAM, true);
	mapped = MUST(socket(AF_INET6, SOCK_DGRAM, 0));
	MUST(getsockname(shared, &a.sa, &len));
	len = address_of(&a, AF_INET6, false, ntohs(a.in.sin_port));
	MUST(inet_pton(AF_INET6, "::ffff:127.0.0.1", &a.in6.sin6_addr));
	MUST(connect(mapped, &a.sa, len));
}

static void build_tcp(void)
{
	union address a;

	tcp_new = MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
	set(tcp_new, IPPROTO_TCP, TCP_NODELAY, 1);
	set(tcp_new, SOL_SOCKET, SO_KEEPALIVE, 1);
	set(tcp_new, IPPROTO_TCP, TCP_KEEPCNT, 4);
	tcp_new6 = MUST(socket(AF_INET6, SOCK_STREAM, 0));
	set(tcp_new6, IPPROTO_IPV6, IPV6_V6ONLY, 1);
	tcp_bound = bound(AF_INET, SOCK_STREAM, true);
	tcp_bound6 = bound(AF_INET6, SOCK_STREAM, true);
	set(tcp_bound6, SOL_SOCKET, SO_REUSEADDR, 1);
	tcp_no_port = MUST(socket(AF_INET, SOCK_STREAM, 0));
	set(tcp_no_port, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
	MUST(bind(tcp_no_port, &a.sa, address_of(&a, AF_INET, true, 0)));
}

static void look(void)
{
	for (size_t i = 0; i < N_KNOWN; i++) {
		known[i].local_len = known[i].peer_len = sizeof(union address);
		MUST(getsockname(*known[i].fd, &known[i].local.sa, &known[i].local_len));
		if (getpeername(*known[i].fd, &known[i].peer.sa, &known[i].peer_len))
			known[i].peer_len = 0;
	}
}

static void check_addresses(void)
{
	for (size_t i = 0; i < N_KNOWN; i++) {
		union address local = { 0 }, peer = { 0 };
		socklen_t local_len = sizeof(local), peer_len = sizeof(peer);

		CHECK(!getsockname(*known[i].fd, &local.sa, &local_len) &&
			      local_len == known[i].local_len &&
			      !memcmp(&local, &known[i].local, local_len),
		      "%s has another address, port %d", known[i].what, ntohs(local.in.sin_port));
		if (getpeername(*known[i].fd, &peer.sa, &peer_len))
			peer_len = 0;
		CHECK(peer_len == known[i].peer_len && !memcmp(&peer, &known[i].peer, peer_len),
		      "%s has another peer, port %d", known[i].what, ntohs(peer.in.sin_port));
	}
}

static void exchange(int from, int to, const char *what)
{
	struct pollfd p = { .fd = to, .events = POLLIN };
	char buf[16] = "";

	CHECK(send(from, "hello", 6, 0) == 6, "%s: send: %s", what, strerror(errno));
	CHECK(poll(&p, 1, 30000) == 1, "%s: nothing comes", what);
	CHECK(recv(to, buf, sizeof(buf), MSG_DONTWAIT) == 6 && !strcmp(buf, "hello"),
	      "%s: received %s", what, buf);
}

static void check_udp(void)
{
	union address a = known[0].local;
	socklen_t len = sizeof(a);

	exchange(client, server, "client to server");
	exchange(client6, server6, "client6 to server6");
	exchange(mapped, mapped, "over the child");
	CHECK(!getsockname(server, &a.sa, &len) && sendto(any4, "hello", 6, 0, &a.sa, len) == 6 &&
		      recv(server, &a, sizeof(a), 0) == 6,
	      "any4 to server: %s", strerror(errno));
	CHECK(get(plain, SOL_SOCKET, SO_BROADCAST) == 1, "SO_BROADCAST is lost");
	CHECK(get(plain, IPPROTO_IP, IP_TTL) == 17, "IP_TTL is lost");
	CHECK(get(plain, IPPROTO_IP, IP_MULTICAST_TTL) == 5, "IP_MULTICAST_TTL is lost");
	CHECK(fcntl(plain, F_GETFL) == (O_RDWR | O_NONBLOCK), "O_NONBLOCK is lost");
	CHECK(get(any4, SOL_SOCKET, SO_RCVBUF) == 120000, "SO_RCVBUF is %d",
	      get(any4, SOL_SOCKET, SO_RCVBUF));
	CHECK(get(any4, IPPROTO_IP, IP_PKTINFO) == 1, "IP_PKTINFO is lost");
	CHECK(get(server, SOL_SOCKET, SO_TIMESTAMP) == 1, "SO_TIMESTAMP is lost");
	CHECK(get(client, IPPROTO_IP, IP_RECVERR) == 1, "IP_RECVERR is lost");
	CHECK(get(client6, IPPROTO_IPV6, IPV6_UNICAST_HOPS) == 3, "IPV6_UNICAST_HOPS is lost");
	CHECK(get(client6, IPPROTO_IPV6, IPV6_MULTICAST_HOPS) == 4, "IPV6_MULTICAST_HOPS is lost");
	CHECK(get(client6, IPPROTO_IPV6, IPV6_RECVPATHMTU) == 1, "IPV6_RECVPATHMTU is lost");
	CHECK(get(client, SOL_SOCKET, SO_MAX_PACING_RATE) == 1000000, "SO_MAX_PACING_RATE is lost");
	CHECK(fcntl(client, F_GETFD) == FD_CLOEXEC, "FD_CLOEXEC is lost");
}

static void check_tcp(void)
{
	union address a;
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	socklen_t len = sizeof(a);

	CHECK(get(tcp_new, IPPROTO_TCP, TCP_NODELAY) == 1, "TCP_NODELAY is lost");
	CHECK(get(tcp_new, SOL_SOCKET, SO_KEEPALIVE) == 1, "SO_KEEPALIVE is lost");
	CHECK(get(tcp_new, IPPROTO_TCP, TCP_KEEPCNT) == 4, "TCP_KEEPCNT is lost");
	CHECK(get(tcp_new6, IPPROTO_IPV6, IPV6_V6ONLY) == 1, "IPV6_V6ONLY is lost");
	CHECK(get(tcp_bound, SOL_SOCKET, SO_REUSEADDR) == 0, "SO_REUSEADDR has come");
	CHECK(get(tcp_bound6, SOL_SOCKET, SO_REUSEADDR) == 1, "SO_REUSEADDR is lost");
	CHECK(get(tcp_no_port, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT) == 1, "NO_PORT is lost");
	/* the port is taken */
	CHECK(!getsockname(tcp_bound, &a.sa, &len) && bind(fd, &a.sa, len) == -1 &&
		      errno == EADDRINUSE,
	      "another socket gets the bound port");
	close(fd);
}

static void check(void)
{
	check_addresses();
	check_udp();
	check_tcp();
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	build_udp();
	build_tcp();
	look();
	child = MUST(fork());
	if (!child)
		child_main();
	victim_ready();
	victim_serve(check);
}
