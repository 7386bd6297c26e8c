/* SPDX-License-Identifier: MIT */
/* The answer to a netlink request for a list: messages in one buffer after the other. */
#include "internal.h"

#include <linux/netlink.h>
#include <sys/socket.h>

/* 1: there is more to come. */
static int take_buffer(struct nlmsghdr *h, unsigned left,
		       int (*take)(void *arg, struct nlmsghdr *h), void *arg)
{
	for (; NLMSG_OK(h, left); h = NLMSG_NEXT(h, left)) {
		const struct nlmsgerr *e = NLMSG_DATA(h);
		int r;

		if (h->nlmsg_type == NLMSG_DONE)
			return 0;
		if (h->nlmsg_type == NLMSG_ERROR)
			return e->error ? e->error : -EPROTO;
		r = take(arg, h);
		if (r)
			return r;
	}
	return 1;
}

int sock_nl_list(int nl, char *buf, size_t size, int (*take)(void *arg, struct nlmsghdr *h),
		 void *arg)
{
	int r = 1;

	while (r > 0) {
		ssize_t len = recv(nl, buf, size, 0);

		r = len < 0 ? -errno
			    : take_buffer((struct nlmsghdr *)(void *)buf, (unsigned)len, take, arg);
	}
	return r;
}
