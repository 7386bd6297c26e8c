/* SPDX-License-Identifier: MIT */
/*
 * What sockets are told: filters (classic BPF, one of them locked) of UDP, netlink and unix
 * sockets, and multicast groups of IPv4 and IPv6, from everybody, from some, from all but some.
 */
#include <arpa/inet.h>
#include <linux/filter.h>
#include <linux/netlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "victim.h"

#define GROUP4 "239.7.7.7"
#define GROUP6 "ff02::7:7"

static int udp, netlink, pair[2], any4, some4, but4, six, sender;

static struct sockaddr_in at(const char *address, int port)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };

	inet_pton(AF_INET, address, &a.sin_addr);
	return a;
}

/* Passes what begins with that byte, `skip` bytes into what it sees. */
static void only(int fd, unsigned skip, unsigned char byte)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_B | BPF_ABS, skip),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, byte, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, 0xffffffff),
		BPF_STMT(BPF_RET | BPF_K, 0),
	};
	struct sock_fprog program = { 4, code };

	MUST(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)));
}

static int bound(const char *address, int port)
{
	struct sockaddr_in a = at(address, port);
	int fd = MUST(socket(AF_INET, SOCK_DGRAM, 0)), off = 0;

	MUST(setsockopt(fd, IPPROTO_IP, IP_MULTICAST_ALL, &off, sizeof(off)));
	MUST(bind(fd, (struct sockaddr *)&a, sizeof(a)));
	return fd;
}

static void join(int fd, const char *from, bool block)
{
	struct ip_mreq_source q = { .imr_interface.s_addr = htonl(INADDR_LOOPBACK) };
	struct ip_mreqn m = { .imr_ifindex = 1 };

	inet_pton(AF_INET, GROUP4, &q.imr_multiaddr);
	m.imr_multiaddr = q.imr_multiaddr;
	if (from)
		inet_pton(AF_INET, from, &q.imr_sourceaddr);
	if (!from || block)
		MUST(setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &m, sizeof(m)));
	if (from)
		MUST(setsockopt(fd, IPPROTO_IP, block ? IP_BLOCK_SOURCE : IP_ADD_SOURCE_MEMBERSHIP,
				&q, sizeof(q)));
}

static void join6(void)
{
	struct sockaddr_in6 a = { .sin6_family = AF_INET6, .sin6_port = htons(5004) };
	struct ipv6_mreq q = { .ipv6mr_interface = 1 };

	six = MUST(socket(AF_INET6, SOCK_DGRAM, 0));
	MUST(bind(six, (struct sockaddr *)&a, sizeof(a)));
	inet_pton(AF_INET6, GROUP6, &q.ipv6mr_multiaddr);
	MUST(setsockopt(six, IPPROTO_IPV6, IPV6_ADD_MEMBERSHIP, &q, sizeof(q)));
}

static void make(void)
{
	struct sockaddr_nl nl = { .nl_family = AF_NETLINK, .nl_groups = 2 };
	int on = 1;

	udp = bound("127.0.0.1", 5000);
	only(udp, 8, 'y');
	MUST(setsockopt(udp, SOL_SOCKET, SO_LOCK_FILTER, &on, sizeof(on)));
	netlink = MUST(socket(AF_NETLINK, SOCK_RAW, NETLINK_KOBJECT_UEVENT));
	only(netlink, 0, 'y');
	MUST(bind(netlink, (struct sockaddr *)&nl, sizeof(nl)));
	MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair));
	MUST(send(pair[0], "no, but before the filter", 25, 0));
	only(pair[1], 0, 'y');
	any4 = bound(GROUP4, 5001);
	join(any4, NULL, false);
	some4 = bound(GROUP4, 5002);
	join(some4, "127.0.0.1", false);
	but4 = bound(GROUP4, 5003);
	join(but4, "127.0.0.1", true);
	join6();
	sender = MUST(socket(AF_INET, SOCK_DGRAM, 0));
}

static bool wait_for(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, 20000) == 1;
}

/* What comes of "no" and "yes". */
static void passes(int from, int to, const struct sockaddr *a, socklen_t len, const char *what)
{
	char got[8] = "";
	ssize_t n;

	sendto(from, "no", 2, 0, a, len);
	sendto(from, "yes", 3, 0, a, len);
	n = wait_for(to) ? recv(to, got, sizeof(got) - 1, 0) : -1;
	CHECK(n == 3 && !strcmp(got, "yes"), "%s: got \"%s\"", what, got);
	CHECK(recv(to, got, sizeof(got), MSG_DONTWAIT) < 0 && errno == EAGAIN, "%s: more", what);
}

static unsigned length_of(int fd)
{
	socklen_t len = 0;

	return getsockopt(fd, SOL_SOCKET, SO_GET_FILTER, NULL, &len) ? 0 : len;
}

/* Does a datagram from that address come through the group? */
static bool hears(int fd, int port, const char *from, bool yes)
{
	struct sockaddr_in source = at(from, 0), to = at(GROUP4, port);
	int s = socket(AF_INET, SOCK_DGRAM, 0);
	bool right;
	char c = 0;

	CHECK(!bind(s, (struct sockaddr *)&source, sizeof(source)) &&
		      sendto(s, "m", 1, 0, (struct sockaddr *)&to, sizeof(to)) == 1,
	      "sending to port %d: %s", port, strerror(errno));
	close(s);
	right = (!yes || wait_for(fd)) && (recv(fd, &c, 1, MSG_DONTWAIT) == 1) == yes;
	CHECK(right, "port %d: a datagram from %s %s", port, from, yes ? "is missing" : "came");
	return right;
}

/* The loopback interface passes none on: only its membership is looked at. */
static void member6(void)
{
	struct group_filter g = { .gf_interface = 1 };
	struct sockaddr_in6 *group = (struct sockaddr_in6 *)&g.gf_group;
	socklen_t len = sizeof(g);

	group->sin6_family = AF_INET6;
	inet_pton(AF_INET6, GROUP6, &group->sin6_addr);
	CHECK(!getsockopt(six, IPPROTO_IPV6, MCAST_MSFILTER, &g, &len) &&
		      g.gf_fmode == MCAST_EXCLUDE && !g.gf_numsrc,
	      "IPv6: %s", strerror(errno));
}

static void check(void)
{
	struct sockaddr_in a = at("127.0.0.1", 5000);
	char got[32] = "";
	int off = 0;

	CHECK(recv(pair[1], got, sizeof(got), MSG_DONTWAIT) == 25, "what was queued: \"%s\"", got);
	passes(sender, udp, (struct sockaddr *)&a, sizeof(a), "UDP");
	passes(pair[0], pair[1], NULL, 0, "unix");
	CHECK(length_of(netlink) == 4, "netlink: %u instructions", length_of(netlink));
	CHECK(setsockopt(udp, SOL_SOCKET, SO_DETACH_FILTER, &off, sizeof(off)) < 0 &&
		      errno == EPERM,
	      "a locked filter goes");
	/* one that is missing is waited for: once is enough */
	(void)(hears(any4, 5001, "127.0.0.1", true) && hears(any4, 5001, "127.0.0.2", true) &&
	       hears(some4, 5002, "127.0.0.1", true) && hears(some4, 5002, "127.0.0.2", false) &&
	       hears(but4, 5003, "127.0.0.1", false) && hears(but4, 5003, "127.0.0.2", true));
	member6();
	CHECK(!setsockopt(pair[1], SOL_SOCKET, SO_DETACH_FILTER, &off, sizeof(off)), "detach: %s",
	      strerror(errno));
	CHECK(send(pair[0], "no, but before the filter", 25, 0) == 25, "send: %s", strerror(errno));
	only(pair[1], 0, 'y');
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	MUST(unshare(CLONE_NEWNET));
	if (system("ip link set lo up && ip route add 239.0.0.0/8 dev lo"))
		victim_die("ip");
	make();
	victim_ready();
	victim_serve(check);
}
