/* SPDX-License-Identifier: MIT */
/* Talking to rtnetlink from inside a namespace. */
#include <errno.h>
#include <stdlib.h>

#include "net.h"

struct inside {
	struct net_job *job;
	int (*fn)(struct net_job *job, struct ckpt_error *err);
};

static int enter(void *arg, struct ckpt_error *err)
{
	const struct inside *in = arg;
	int r;

	in->job->sk = nl_socket_alloc();
	if (!in->job->sk)
		return ckpt_fail_sys(err, ENOMEM, "netlink socket");
	r = nl_connect(in->job->sk, NETLINK_ROUTE);
	if (r < 0)
		r = ckpt_fail(err, EIO, "netlink socket: %s", nl_geterror(r));
	else
		r = in->fn(in->job, err);
	nl_socket_free(in->job->sk);
	in->job->sk = NULL;
	return r;
}

int net_run(struct net_job *job, int (*fn)(struct net_job *job, struct ckpt_error *err),
	    struct ckpt_error *err)
{
	const struct ckpt_ns_place place = { .ns[CKPT_NS_NET] = job->ns };
	struct inside in = { job, fn };

	return ckpt_ns_run(job->run, &place, enter, &in, err);
}

struct walk {
	int (*each)(struct nlmsghdr *h, void *arg, struct ckpt_error *err);
	void *arg;
	struct ckpt_error *err;
	int result;
};

static int on_message(struct nlmsghdr *h, void *arg)
{
	struct walk *w = arg;

	w->result = w->each(h, w->arg, w->err);
	return w->result;
}

int net_dump(struct net_job *job, const struct net_request *q,
	     int (*each)(struct nlmsghdr *h, void *arg, struct ckpt_error *err), void *arg,
	     struct ckpt_error *err)
{
	struct walk w = { each, arg, err, 0 };
	struct nl_msg *msg = nlmsg_alloc_simple(q->type, NLM_F_DUMP | q->flags);
	int r = msg ? nlmsg_append(msg, q->header, q->header_len) : -ENOMEM;

	if (r < 0)
		nlmsg_free(msg);
	else
		r = nl_request(job->sk, msg, on_message, &w);
	if (w.result < 0)
		return w.result;
	if (r < 0)
		/* these are how a part of the kernel answers that is not there */
		return ckpt_fail(err, r == -EOPNOTSUPP || r == -EINVAL ? ENOTSUP : EIO,
				 "netlink request %d: %s", q->type, nl_geterror(r));
	return 0;
}

int net_finish(struct net_job *job, struct nl_msg *msg, int built)
{
	if (built == 0)
		return nl_request(job->sk, msg, NULL, NULL);
	nlmsg_free(msg);
	return built;
}

int net_put_all(struct nl_msg *msg, Ckpt__Net__Attribute *const *list, size_t n)
{
	int r = 0;

	for (size_t i = 0; i < n && r == 0; i++)
		r = nla_put(msg, (int)list[i]->type, (int)list[i]->value.len, list[i]->value.data);
	return r;
}

int net_append(void *list, size_t *n, void *item, struct ckpt_error *err)
{
	void ***at = list;
	void **more = item ? realloc(*at, (*n + 1) * sizeof(*more)) : NULL;

	if (!more)
		return ckpt_fail_sys(err, ENOMEM, "state of a network namespace");
	more[(*n)++] = item;
	*at = more;
	return 0;
}
