/* SPDX-License-Identifier: MIT */
/*
 * Multicast groups that a socket has joined. The kernel lists groups by interface
 * and not by socket, but a socket can be asked for its filter of one group: so it
 * is asked about each group that there is.
 */
#include "internal.h"

#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>

static int next_group4(FILE *list, unsigned *ifindex, struct group_filter *g)
{
	struct sockaddr_in *in = (struct sockaddr_in *)&g->gf_group;
	char line[256];
	unsigned addr;

	while (fgets(line, sizeof(line), list)) {
		/* an interface's line begins with its number, its groups' lines with tabs */
		if (line[0] >= '0' && line[0] <= '9')
			*ifindex = (unsigned)strtoul(line, NULL, 10);
		if (line[0] != '\t' || sscanf(line, " %8x", &addr) != 1)
			continue;
		in->sin_family = AF_INET;
		in->sin_addr.s_addr = addr;
		return 1;
	}
	return 0;
}

static int next_group6(FILE *list, unsigned *ifindex, struct group_filter *g)
{
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&g->gf_group;
	char line[256], hex[33];

	while (fgets(line, sizeof(line), list)) {
		if (sscanf(line, "%u %*s %32s", ifindex, hex) != 2 || strlen(hex) != 32)
			continue;
		in6->sin6_family = AF_INET6;
		for (size_t i = 0; i < 16; i++) {
			unsigned byte;

			if (sscanf(hex + 2 * i, "%2x", &byte) != 1)
				return -EPROTO;
			in6->sin6_addr.s6_addr[i] = (uint8_t)byte;
		}
		return 1;
	}
	return 0;
}

/* 1: it has joined one; 0: none. */
static int has_joined(int fd, const char *path, int level,
		      int (*next)(FILE *list, unsigned *ifindex, struct group_filter *g))
{
	CKPT_AUTO_FILE FILE *list = fopen(path, "re");
	struct group_filter g = { 0 };
	unsigned ifindex = 0;
	int r;

	/* no file: the kernel has no multicast, or not this protocol */
	if (!list)
		return errno == ENOENT ? 0 : -errno;
	while ((r = next(list, &ifindex, &g)) > 0) {
		socklen_t len = sizeof(g);

		g.gf_interface = ifindex;
		g.gf_numsrc = 0;
		if (!getsockopt(fd, level, MCAST_MSFILTER, &g, &len))
			return 1;
	}
	return r;
}

int sock_multicast_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
			  struct ckpt_error *err)
{
	int r = has_joined(f->fd, "/proc/self/net/igmp", IPPROTO_IP, next_group4);

	if (!r && f->domain == AF_INET6)
		r = has_joined(f->fd, "/proc/self/net/igmp6", IPPROTO_IPV6, next_group6);
	if (r < 0)
		return ckpt_fail_sys(err, r, "asking for multicast groups");
	return r ? sock_refuse(run, f, "multicast", "the socket has joined a multicast group",
			       "leave the group before the dump, or allow the loss")
		 : 0;
}
