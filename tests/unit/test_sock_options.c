/* SPDX-License-Identifier: MIT */
/* Every option of a socket that can be read is one that is saved, or known not to be one to save.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

#include "../../plugins/sock/option_table.h"

#define N(a) (sizeof(a) / sizeof(*(a)))

/* Facts, not settings; what the plugin reads otherwise; what it refuses. */
static const struct {
	int level, name;
} left[] = {
	{ SOL_SOCKET, SO_TYPE },
	{ SOL_SOCKET, SO_ERROR },
	{ SOL_SOCKET, SO_BSDCOMPAT },
	{ SOL_SOCKET, SO_PEERCRED },
	{ SOL_SOCKET, SO_SNDLOWAT },
	{ SOL_SOCKET, SO_GET_FILTER },
	{ SOL_SOCKET, SO_PEERNAME },
	{ SOL_SOCKET, SO_ACCEPTCONN },
	{ SOL_SOCKET, SO_PEERSEC },
	{ SOL_SOCKET, SO_PROTOCOL },
	{ SOL_SOCKET, SO_DOMAIN },
	{ SOL_SOCKET, SO_LOCK_FILTER },
	{ SOL_SOCKET, SO_BPF_EXTENSIONS },
	{ SOL_SOCKET, 55 }, /* SO_MEMINFO */
	{ SOL_SOCKET, 56 }, /* SO_INCOMING_NAPI_ID */
	{ SOL_SOCKET, 57 }, /* SO_COOKIE */
	{ SOL_SOCKET, 59 }, /* SO_PEERGROUPS */
	{ SOL_SOCKET, 62 }, /* SO_BINDTOIFINDEX: as SO_BINDTODEVICE */
	{ SOL_SOCKET, 66 }, /* SO_RCVTIMEO_NEW */
	{ SOL_SOCKET, 67 }, /* SO_SNDTIMEO_NEW */
	{ SOL_SOCKET, SO_NETNS_COOKIE },
	{ SOL_SOCKET, 77 }, /* SO_PEERPIDFD */
	{ IPPROTO_IP, IP_PKTOPTIONS },
	{ IPPROTO_IP, IP_MTU },
	{ IPPROTO_IP, IP_MSFILTER },
	{ IPPROTO_IP, MCAST_MSFILTER },
	{ IPPROTO_IP, 52 }, /* IP_PROTOCOL */
	{ IPPROTO_IPV6, IPV6_2292PKTOPTIONS },
	{ IPPROTO_IPV6, IPV6_CHECKSUM }, /* of SOL_RAW */
	{ IPPROTO_IPV6, IPV6_ROUTER_ALERT },
	{ IPPROTO_IPV6, IPV6_MTU },
	{ IPPROTO_IPV6, MCAST_MSFILTER },
	{ IPPROTO_IPV6, IPV6_PATHMTU },
	/* MRT6_VERSION, MRT6_ASSERT, MRT6_PIM: routers are refused by net */
	{ IPPROTO_IPV6, 206 },
	{ IPPROTO_IPV6, 207 },
	{ IPPROTO_IPV6, 208 },
	{ SOL_RAW, IPV6_HDRINCL }, /* of IPPROTO_IPV6 */
	{ IPPROTO_TCP, TCP_INFO },
	{ IPPROTO_TCP, TCP_THIN_DUPACK },
	{ IPPROTO_TCP, TCP_REPAIR },
	{ IPPROTO_TCP, TCP_REPAIR_QUEUE },
	{ IPPROTO_TCP, TCP_QUEUE_SEQ },
	{ IPPROTO_TCP, TCP_TIMESTAMP },
	{ IPPROTO_TCP, TCP_CC_INFO },
	{ IPPROTO_TCP, TCP_SAVED_SYN },
	{ IPPROTO_TCP, 29 }, /* TCP_REPAIR_WINDOW */
	{ IPPROTO_TCP, TCP_ULP },
	{ IPPROTO_TCP, 35 }, /* TCP_ZEROCOPY_RECEIVE */
	{ IPPROTO_TCP, 40 }, /* TCP_AO_INFO */
	{ IPPROTO_TCP, 41 }, /* TCP_AO_GET_KEYS */
	{ IPPROTO_TCP, 42 }, /* TCP_AO_REPAIR */
	{ IPPROTO_TCP, 43 }, /* TCP_IS_MPTCP */
	{ IPPROTO_UDP, UDP_CORK },
	{ IPPROTO_UDP, UDP_ENCAP },
	{ IPPROTO_UDP, 10 }, /* UDPLITE_SEND_CSCOV */
	{ IPPROTO_UDP, 11 }, /* UDPLITE_RECV_CSCOV */
	{ SOL_NETLINK, NETLINK_LIST_MEMBERSHIPS },
	{ SOL_PACKET, PACKET_STATISTICS },
	{ SOL_PACKET, PACKET_HDRLEN },
	{ SOL_PACKET, PACKET_FANOUT },
	{ SOL_PACKET, PACKET_ROLLOVER_STATS },
};

static bool is_known(int level, int name)
{
	for (size_t i = 0; i < N(options); i++)
		if (options[i].level == level && options[i].get == name)
			return true;
	for (size_t i = 0; i < N(left); i++)
		if (left[i].level == level && left[i].name == name)
			return true;
	return false;
}

static unsigned unknown_of(int fd, int domain, int type)
{
	static const int levels[] = { SOL_SOCKET,  IPPROTO_IP,	IPPROTO_IPV6,
				      IPPROTO_TCP, IPPROTO_UDP, SOL_NETLINK,
				      SOL_PACKET,  SOL_RAW,	SOL_ICMPV6 };
	unsigned n = 0;

	for (size_t l = 0; l < N(levels); l++)
		for (int name = 0; name < 256; name++) {
			char value[512] = "";
			socklen_t len = sizeof(value);

			if (getsockopt(fd, levels[l], name, value, &len) ||
			    is_known(levels[l], name))
				continue;
			print_error("domain %d, type %d: option %d of level %d\n", domain, type,
				    name, levels[l]);
			n++;
		}
	return n;
}

static void readable_ones_are_known(void **state)
{
	static const struct {
		int domain, type, protocol;
	} kinds[] = {
		{ AF_UNIX, SOCK_STREAM, 0 },
		{ AF_UNIX, SOCK_DGRAM, 0 },
		{ AF_UNIX, SOCK_SEQPACKET, 0 },
		{ AF_INET, SOCK_STREAM, 0 },
		{ AF_INET6, SOCK_STREAM, 0 },
		{ AF_INET, SOCK_DGRAM, 0 },
		{ AF_INET6, SOCK_DGRAM, 0 },
		{ AF_INET, SOCK_RAW, IPPROTO_ICMP },
		{ AF_INET6, SOCK_RAW, IPPROTO_ICMPV6 },
		{ AF_PACKET, SOCK_RAW, 0 },
		{ AF_NETLINK, SOCK_RAW, NETLINK_ROUTE },
	};
	unsigned n = 0;

	(void)state;
	for (size_t i = 0; i < N(kinds); i++) {
		int fd = socket(kinds[i].domain, kinds[i].type, kinds[i].protocol);

		/* no such sockets here, or not for us */
		if (fd < 0)
			continue;
		n += unknown_of(fd, kinds[i].domain, kinds[i].type);
		close(fd);
	}
	assert_int_equal(n, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(readable_ones_are_known) };

	return cmocka_run_group_tests_name("sock_options", tests, NULL, NULL);
}
