/* SPDX-License-Identifier: MIT */
/*
 * Raw sockets of IPv4 and IPv6, bound and not, with their filters of ICMP types; sockets of
 * ping; a listening socket of MPTCP. In a network namespace of their own, where nobody else
 * sends what they would hear.
 */
#include <arpa/inet.h>
#include <linux/icmp.h>
#include <linux/if_packet.h>
#include <netinet/icmp6.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "victim.h"

static int packet, hears, deaf, six, own_header, ping, mptcp;

static struct sockaddr_in loopback(int port)
{
	return (struct sockaddr_in){ .sin_family = AF_INET,
				     .sin_port = htons((unsigned short)port),
				     .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

static int raw(int family, int protocol)
{
	return MUST(socket(family, SOCK_RAW, protocol));
}

static void icmp_filter(int fd, unsigned blocked)
{
	MUST(setsockopt(fd, SOL_RAW, ICMP_FILTER, &blocked, sizeof(blocked)));
}

static bool readable(int fd, int ms)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, ms) == 1;
}

static void make_packet(void)
{
	struct sockaddr_ll all = { .sll_family = AF_PACKET,
				   .sll_protocol = htons(0x88b5), /* for experiments */
				   .sll_ifindex = 1 };
	struct packet_mreq promiscuous = { .mr_ifindex = 1, .mr_type = PACKET_MR_PROMISC };
	int on = 1;

	packet = MUST(socket(AF_PACKET, SOCK_DGRAM, 0));
	MUST(setsockopt(packet, SOL_PACKET, PACKET_AUXDATA, &on, sizeof(on)));
	MUST(bind(packet, (struct sockaddr *)&all, sizeof(all)));
	for (int i = 0; i < 2; i++)
		MUST(setsockopt(packet, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &promiscuous,
				sizeof(promiscuous)));
}

static bool is_promiscuous(void)
{
	return system("ip -d -o link show lo | grep -q 'promiscuity 1'") == 0;
}

/* Twice a member: gone with the second leaving. */
static void check_packet(void)
{
	struct sockaddr_ll to = { .sll_family = AF_PACKET,
				  .sll_protocol = htons(0x88b5),
				  .sll_ifindex = 1,
				  .sll_halen = 6 };
	struct packet_mreq promiscuous = { .mr_ifindex = 1, .mr_type = PACKET_MR_PROMISC };
	int on = 0, fd = socket(AF_PACKET, SOCK_DGRAM, 0);
	socklen_t len = sizeof(on);
	char c = 0;

	CHECK(!getsockopt(packet, SOL_PACKET, PACKET_AUXDATA, &on, &len) && on, "PACKET_AUXDATA");
	CHECK(sendto(fd, "p", 1, 0, (struct sockaddr *)&to, sizeof(to)) == 1 &&
		      readable(packet, 10000) && recv(packet, &c, 1, 0) == 1 && c == 'p',
	      "packet: %s", strerror(errno));
	close(fd);
	while (readable(packet, 0))
		recv(packet, &c, 1, 0);
	CHECK(is_promiscuous(), "membership: it is gone");
	for (int i = 0; i < 2; i++)
		CHECK(!setsockopt(packet, SOL_PACKET, PACKET_DROP_MEMBERSHIP, &promiscuous,
				  sizeof(promiscuous)) &&
			      is_promiscuous() == (i == 0),
		      "membership %d: %s", i, strerror(errno));
	for (int i = 0; i < 2; i++)
		CHECK(!setsockopt(packet, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &promiscuous,
				  sizeof(promiscuous)),
		      "joining: %s", strerror(errno));
}

static void make(void)
{
	struct sockaddr_in a = loopback(0), ident = loopback(77), port = loopback(4000);
	struct icmp6_filter none;

	make_packet();
	hears = raw(AF_INET, IPPROTO_ICMP);
	icmp_filter(hears, ~(1u << ICMP_ECHOREPLY));
	MUST(bind(hears, (struct sockaddr *)&a, sizeof(a)));
	deaf = raw(AF_INET, IPPROTO_ICMP);
	icmp_filter(deaf, ~0u);
	six = raw(AF_INET6, IPPROTO_ICMPV6);
	ICMP6_FILTER_SETBLOCKALL(&none);
	MUST(setsockopt(six, IPPROTO_ICMPV6, ICMP6_FILTER, &none, sizeof(none)));
	own_header = raw(AF_INET, IPPROTO_RAW);
	ping = MUST(socket(AF_INET, SOCK_DGRAM, IPPROTO_ICMP));
	MUST(bind(ping, (struct sockaddr *)&ident, sizeof(ident)));
	mptcp = socket(AF_INET, SOCK_STREAM, IPPROTO_MPTCP);
	if (mptcp < 0)
		victim_skip("no MPTCP: %s", strerror(errno));
	MUST(bind(mptcp, (struct sockaddr *)&port, sizeof(port)));
	MUST(listen(mptcp, 7));
}

static void check_ping(void)
{
	struct sockaddr_in to = loopback(0);
	struct icmphdr echo = { .type = ICMP_ECHO, .un.echo.sequence = htons(5) };
	char buf[128];
	const struct icmphdr *got = (const void *)buf;

	CHECK(sendto(ping, &echo, sizeof(echo), 0, (struct sockaddr *)&to, sizeof(to)) ==
		      sizeof(echo),
	      "ping: %s", strerror(errno));
	CHECK(readable(ping, 10000) && recv(ping, buf, sizeof(buf), 0) == sizeof(echo) &&
		      got->type == ICMP_ECHOREPLY && got->un.echo.id == htons(77),
	      "ping: no answer, or to another one");
	/* the answer, after its header; not the question */
	got = (const void *)(buf + 20);
	CHECK(readable(hears, 10000) && recv(hears, buf, sizeof(buf), 0) == 20 + sizeof(echo) &&
		      got->type == ICMP_ECHOREPLY && !readable(hears, 0),
	      "raw: another packet");
	CHECK(!readable(deaf, 0), "raw: what was filtered came");
}

static void check_options(void)
{
	struct icmp6_filter f = { 0 }, none;
	socklen_t len = sizeof(f);
	int on = 0, protocol = 0;

	ICMP6_FILTER_SETBLOCKALL(&none);
	CHECK(!getsockopt(six, IPPROTO_ICMPV6, ICMP6_FILTER, &f, &len) &&
		      !memcmp(&f, &none, sizeof(f)),
	      "ICMP6_FILTER");
	len = sizeof(on);
	CHECK(!getsockopt(own_header, IPPROTO_IP, IP_HDRINCL, &on, &len) && on, "IP_HDRINCL");
	CHECK(!getsockopt(mptcp, SOL_SOCKET, SO_PROTOCOL, &protocol, &len) &&
		      protocol == IPPROTO_MPTCP,
	      "protocol %d", protocol);
}

static void check_mptcp(void)
{
	struct sockaddr_in to = loopback(4000);
	int client = socket(AF_INET, SOCK_STREAM, 0), server;
	char c = 0;

	CHECK(!connect(client, (struct sockaddr *)&to, sizeof(to)), "connect: %s", strerror(errno));
	server = accept(mptcp, NULL, NULL);
	CHECK(server >= 0 && send(client, "m", 1, 0) == 1 && recv(server, &c, 1, 0) == 1 &&
		      c == 'm',
	      "MPTCP: %s", strerror(errno));
	close(server);
	close(client);
}

static void check(void)
{
	check_packet();
	check_ping();
	check_options();
	check_mptcp();
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	MUST(unshare(CLONE_NEWNET));
	if (system("ip link set lo up; echo '0 0' >/proc/sys/net/ipv4/ping_group_range"))
		victim_die("ip link set lo up");
	make();
	victim_ready();
	victim_serve(check);
}
