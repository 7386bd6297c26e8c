/* SPDX-License-Identifier: MIT */
/* Talking to rtnetlink from inside a namespace, by libnl. */
#include <netlink/attr.h>
#include <netlink/msg.h>
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

static int on_message(struct nl_msg *msg, void *arg)
{
	struct walk *w = arg;

	if (w->result == 0)
		w->result = w->each(nlmsg_hdr(msg), w->arg, w->err);
	return NL_OK;
}

int net_dump(struct net_job *job, const struct net_request *q,
	     int (*each)(struct nlmsghdr *h, void *arg, struct ckpt_error *err), void *arg,
	     struct ckpt_error *err)
{
	struct walk w = { each, arg, err, 0 };
	struct nl_cb *cb = nl_cb_alloc(NL_CB_DEFAULT);
	struct nl_msg *msg = nlmsg_alloc_simple(q->type, NLM_F_DUMP | q->flags);
	int r = -NLE_NOMEM;

	if (cb && msg && nlmsg_append(msg, (void *)(uintptr_t)q->header, q->header_len, 0) == 0) {
		nl_cb_set(cb, NL_CB_VALID, NL_CB_CUSTOM, on_message, &w);
		r = nl_send_auto(job->sk, msg);
		if (r >= 0)
			r = nl_recvmsgs(job->sk, cb);
	}
	nlmsg_free(msg);
	nl_cb_put(cb);
	if (w.result < 0)
		return w.result;
	if (r < 0)
		/* these are how a part of the kernel answers that is not there */
		return ckpt_fail(err, r == -NLE_OPNOTSUPP || r == -NLE_INVAL ? ENOTSUP : EIO,
				 "netlink request %d: %s", q->type, nl_geterror(r));
	return 0;
}

int net_finish(struct net_job *job, struct nl_msg *msg, int built)
{
	if (built == 0)
		return nl_send_sync(job->sk, msg);
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
