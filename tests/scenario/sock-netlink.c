/* SPDX-License-Identifier: MIT */
/*
 * Netlink sockets: bound to a port of the kernel's choice and to one of their own, in groups
 * (quiet ones: a message that waits cannot be saved), with options, and unbound.
 */
#include "victim.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <poll.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef NETLINK_LIST_MEMBERSHIPS
#define NETLINK_LIST_MEMBERSHIPS 9
#endif
#define FAR_GROUP 33 /* beyond what an address can hold */

static int chosen, own_port, events, fresh, audit;
static uint32_t ports[2];

static struct sockaddr_nl name_of(int fd)
{
	struct sockaddr_nl a = { 0 };
	socklen_t len = sizeof(a);

	getsockname(fd, (struct sockaddr *)&a, &len);
	return a;
}

static int new_socket(int type, int protocol, uint32_t port, uint32_t groups)
{
	struct sockaddr_nl a = { .nl_family = AF_NETLINK, .nl_pid = port, .nl_groups = groups };
	int fd = MUST(socket(AF_NETLINK, type, protocol));

	MUST(bind(fd, (struct sockaddr *)&a, sizeof(a)));
	return fd;
}

/* Asks for the loopback interface; the answer comes to the socket's port. */
static void ask(int fd, uint32_t port)
{
	struct {
		struct nlmsghdr h;
		struct ifinfomsg i;
	} q = { .h = { .nlmsg_len = sizeof(q),
		       .nlmsg_type = RTM_GETLINK,
		       .nlmsg_flags = NLM_F_REQUEST,
		       .nlmsg_seq = 7 },
		.i = { .ifi_index = 1 } };
	_Alignas(struct nlmsghdr) char buf[32768];
	struct pollfd p = { .fd = fd, .events = POLLIN };
	const struct nlmsghdr *h = (const void *)buf;

	CHECK(send(fd, &q, sizeof(q), 0) == sizeof(q), "send: %s", strerror(errno));
	CHECK(poll(&p, 1, 10000) == 1 && recv(fd, buf, sizeof(buf), 0) > 0, "no answer");
	CHECK(h->nlmsg_type == RTM_NEWLINK && h->nlmsg_pid == port && h->nlmsg_seq == 7,
	      "answer %d to port %u, not %u", h->nlmsg_type, h->nlmsg_pid, port);
}

static bool member_of(int fd, unsigned group)
{
	uint32_t bits[32] = { 0 };
	socklen_t len = sizeof(bits);

	return !getsockopt(fd, SOL_NETLINK, NETLINK_LIST_MEMBERSHIPS, bits, &len) &&
	       bits[(group - 1) / 32] >> (group - 1) % 32 & 1;
}

static int option_of(int fd, int level, int name)
{
	int value = -1;
	socklen_t len = sizeof(value);

	return getsockopt(fd, level, name, &value, &len) ? -1 : value;
}

static void check(void)
{
	CHECK(name_of(chosen).nl_pid == ports[0], "port %u", name_of(chosen).nl_pid);
	CHECK(name_of(own_port).nl_pid == ports[1], "own port %u", name_of(own_port).nl_pid);
	ask(chosen, ports[0]);
	ask(own_port, ports[1]);
	CHECK(member_of(own_port, RTNLGRP_DCB) && member_of(own_port, FAR_GROUP) &&
		      !member_of(own_port, RTNLGRP_LINK),
	      "groups");
	CHECK(option_of(own_port, SOL_NETLINK, NETLINK_EXT_ACK) == 1 &&
		      option_of(own_port, SOL_NETLINK, NETLINK_PKTINFO) == 1,
	      "options");
	CHECK(member_of(events, 2) && name_of(events).nl_groups == 2 &&
		      option_of(events, SOL_SOCKET, SO_PASSCRED) == 1,
	      "events: groups %u", name_of(events).nl_groups);
	CHECK(audit < 0 || option_of(audit, SOL_SOCKET, SO_PROTOCOL) == NETLINK_AUDIT, "audit");
	CHECK(name_of(fresh).nl_pid == 0, "the new one has port %u", name_of(fresh).nl_pid);
}

int main(int argc, char **argv)
{
	int on = 1, group = FAR_GROUP;

	victim_init(argc, argv);
	chosen = new_socket(SOCK_RAW, NETLINK_ROUTE, 0, 0);
	own_port = new_socket(SOCK_DGRAM, NETLINK_ROUTE, 0x40000000u + (uint32_t)getpid(),
			      1u << (RTNLGRP_DCB - 1));
	MUST(setsockopt(own_port, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &group, sizeof(group)));
	MUST(setsockopt(own_port, SOL_NETLINK, NETLINK_EXT_ACK, &on, sizeof(on)));
	MUST(setsockopt(own_port, SOL_NETLINK, NETLINK_PKTINFO, &on, sizeof(on)));
	events = new_socket(SOCK_RAW, NETLINK_KOBJECT_UEVENT, 0, 2);
	MUST(setsockopt(events, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)));
	fresh = MUST(socket(AF_NETLINK, SOCK_RAW, NETLINK_SOCK_DIAG));
	/* as systemd has one to tell of what it starts; not in every kernel */
	audit = socket(AF_NETLINK, SOCK_RAW, NETLINK_AUDIT);
	ports[0] = name_of(chosen).nl_pid;
	ports[1] = name_of(own_port).nl_pid;
	victim_ready();
	victim_serve(check);
}
