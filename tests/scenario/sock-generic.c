/* SPDX-License-Identifier: MIT */
/*
 * Sockets of generic netlink, as daemons hold them: one that asks a family, whose number was looked
 * up once; one that listens to the groups of two families, beside another one that listens to one
 * of them in a network namespace of its own; one that is bound to nothing.
 */
#include "victim.h"

#include <fcntl.h>
#include <linux/genetlink.h>
#include <linux/netlink.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef NETLINK_LIST_MEMBERSHIPS
#define NETLINK_LIST_MEMBERSHIPS 9
#endif

struct question {
	struct nlmsghdr h;
	struct genlmsghdr g;
	struct nlattr a;
	char name[GENL_NAMSIZ];
};

static int asking, listening, elsewhere, fresh;
static uint32_t port, groups[3];
static uint16_t family;

static uint32_t port_of(int fd)
{
	struct sockaddr_nl a = { 0 };
	socklen_t len = sizeof(a);

	getsockname(fd, (struct sockaddr *)&a, &len);
	return a.nl_pid;
}

static int new_socket(void)
{
	struct sockaddr_nl a = { .nl_family = AF_NETLINK };
	int fd = MUST(socket(AF_NETLINK, SOCK_RAW, NETLINK_GENERIC));

	MUST(bind(fd, (struct sockaddr *)&a, sizeof(a)));
	return fd;
}

/* The attribute of that type among those at `from`. */
static const struct nlattr *find(const void *from, size_t left, int type)
{
	const char *at = from, *end = at + left;

	for (const struct nlattr *a; at + sizeof(*a) <= end; at += NLA_ALIGN(a->nla_len)) {
		a = (const void *)at;
		if ((a->nla_type & NLA_TYPE_MASK) == type)
			return a;
		if (a->nla_len < sizeof(*a))
			break;
	}
	return NULL;
}

static uint32_t value(const struct nlattr *a)
{
	uint32_t v = 0;

	if (a)
		memcpy(&v, a + 1, a->nla_len - sizeof(*a) < 4 ? a->nla_len - sizeof(*a) : 4);
	return v;
}

/* The number of the family, and of its first group. */
static uint16_t look_up(int fd, const char *name, uint32_t *group)
{
	struct question q = { .h = { .nlmsg_len = sizeof(q),
				     .nlmsg_type = GENL_ID_CTRL,
				     .nlmsg_flags = NLM_F_REQUEST },
			      .g = { .cmd = CTRL_CMD_GETFAMILY, .version = 1 },
			      .a = { sizeof(q.a) + sizeof(q.name), CTRL_ATTR_FAMILY_NAME } };
	_Alignas(struct nlmsghdr) char buf[8192];
	const struct nlmsghdr *h = (const void *)buf;
	const char *from = buf + NLMSG_LENGTH(GENL_HDRLEN);
	const struct nlattr *a;
	struct pollfd p = { .fd = fd, .events = POLLIN };
	ssize_t len;

	snprintf(q.name, sizeof(q.name), "%s", name);
	q.a.nla_len = (uint16_t)(sizeof(q.a) + strlen(name) + 1);
	if (send(fd, &q, sizeof(q), 0) != sizeof(q) || poll(&p, 1, 10000) != 1)
		return 0;
	len = recv(fd, buf, sizeof(buf), 0);
	if (len < (ssize_t)NLMSG_LENGTH(GENL_HDRLEN) || h->nlmsg_type != GENL_ID_CTRL)
		return 0;
	len -= NLMSG_LENGTH(GENL_HDRLEN);
	a = find(from, (size_t)len, CTRL_ATTR_MCAST_GROUPS);
	*group = a ? value(find((const char *)(a + 1) + sizeof(*a), a->nla_len - 2 * sizeof(*a),
				CTRL_ATTR_MCAST_GRP_ID))
		   : 0;
	return (uint16_t)value(find(from, (size_t)len, CTRL_ATTR_FAMILY_ID));
}

static bool member_of(int fd, uint32_t group)
{
	uint32_t bits[32] = { 0 };
	socklen_t len = sizeof(bits);

	return !getsockopt(fd, SOL_NETLINK, NETLINK_LIST_MEMBERSHIPS, bits, &len) &&
	       bits[(group - 1) / 32] >> (group - 1) % 32 & 1;
}

static void join(int fd, uint32_t group)
{
	MUST(setsockopt(fd, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &group, sizeof(group)));
}

static void check(void)
{
	uint32_t group;

	CHECK(port_of(asking) == port, "port %u, not %u", port_of(asking), port);
	CHECK(look_up(asking, "ethtool", &group) == family && group == groups[0],
	      "the family has another number");
	CHECK(member_of(listening, groups[0]) && member_of(listening, groups[1]) &&
		      !member_of(listening, groups[2]),
	      "groups of the listening one");
	CHECK(member_of(elsewhere, groups[0]) && !member_of(elsewhere, groups[1]),
	      "groups of the one elsewhere");
	CHECK(port_of(fresh) == 0 && look_up(fresh, "nlctrl", &group) == GENL_ID_CTRL &&
		      port_of(fresh) != 0,
	      "the new one has port %u", port_of(fresh));
	close(fresh);
	fresh = MUST(socket(AF_NETLINK, SOCK_RAW, NETLINK_GENERIC));
}

int main(int argc, char **argv)
{
	int own;

	victim_init(argc, argv);
	asking = new_socket();
	port = port_of(asking);
	family = look_up(asking, "ethtool", &groups[0]);
	if (!family || !groups[0] || !look_up(asking, "VFS_DQUOT", &groups[1]) ||
	    !look_up(asking, "nlctrl", &groups[2]))
		victim_skip("no families ethtool and VFS_DQUOT");
	listening = new_socket();
	join(listening, groups[0]);
	join(listening, groups[1]);
	own = MUST(open("/proc/self/ns/net", O_RDONLY));
	MUST(unshare(CLONE_NEWNET));
	elsewhere = new_socket();
	join(elsewhere, groups[0]);
	MUST(setns(own, CLONE_NEWNET));
	close(own);
	fresh = MUST(socket(AF_NETLINK, SOCK_RAW, NETLINK_GENERIC));
	victim_ready();
	victim_serve(check);
}
