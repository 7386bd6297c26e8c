/* SPDX-License-Identifier: MIT */
/* Packet filters, transformations and queueing that are not saved: found, and refused. */
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/rtnetlink.h>
#include <linux/xfrm.h>
#include <netlink/attr.h>
#include <netlink/msg.h>
#include <stdio.h>
#include <string.h>

#include "net.h"

void net_refuse(struct net_job *job, const char *feature, const char *what)
{
	char object[160];
	const struct ckpt_blocker b = {
		feature,
		job->ns->member,
		object,
		"it is not saved yet",
		"remove it before the dump",
		false,
	};

	snprintf(object, sizeof(object), "%s: %s", job->ns->name, what);
	ckpt_refuse(job->run, &b);
}

static int on_table(struct nlmsghdr *h, void *arg, struct ckpt_error *err)
{
	struct nlattr *at[NFTA_TABLE_MAX + 1] = { 0 };
	char what[96];

	(void)err;
	nlmsg_parse(h, sizeof(struct nfgenmsg), at, NFTA_TABLE_MAX, NULL);
	/* ours, by which sock holds connections with the outside; it goes with this run */
	if (at[NFTA_TABLE_NAME] && !strncmp(nla_data(at[NFTA_TABLE_NAME]), "ckpt-now-", 9))
		return 0;
	snprintf(what, sizeof(what), "nftables table %.64s",
		 at[NFTA_TABLE_NAME] ? (char *)nla_data(at[NFTA_TABLE_NAME]) : "?");
	net_refuse(arg, "nftables", what);
	return 0;
}

static int on_xfrm(struct nlmsghdr *h, void *arg, struct ckpt_error *err)
{
	struct net_job *job = arg;

	(void)h;
	(void)err;
	if (!job->xfrm)
		net_refuse(job, "xfrm", "IPsec policies or associations (ip xfrm)");
	job->xfrm = true;
	return 0;
}

/* A kernel that does not know the protocol or the question has nothing of the kind. */
static int ask(struct net_job *job, int protocol, const struct net_request *q,
	       int (*each)(struct nlmsghdr *h, void *arg, struct ckpt_error *err),
	       struct ckpt_error *err)
{
	struct nl_sock *route = job->sk;
	int r = 0;

	job->sk = nl_socket_alloc();
	if (!job->sk)
		r = ckpt_fail_sys(err, ENOMEM, "netlink socket");
	else if (nl_connect(job->sk, protocol) == 0)
		r = net_dump(job, q, each, job, err);
	nl_socket_free(job->sk);
	job->sk = route;
	return r == -ENOTSUP ? 0 : r;
}

static int tables(struct net_job *job, struct ckpt_error *err)
{
	const struct nfgenmsg all = { .nfgen_family = AF_UNSPEC };
	const struct net_request nft = { NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETTABLE, 0, &all,
					 sizeof(all) };
	const struct xfrm_usersa_id sa = { 0 };
	const struct xfrm_userpolicy_id policy = { 0 };
	const struct net_request associations = { XFRM_MSG_GETSA, 0, &sa, sizeof(sa) };
	const struct net_request policies = { XFRM_MSG_GETPOLICY, 0, &policy, sizeof(policy) };
	int r = ask(job, NETLINK_NETFILTER, &nft, on_table, err);

	if (r == 0)
		r = ask(job, NETLINK_XFRM, &associations, on_xfrm, err);
	return r < 0 ? r : ask(job, NETLINK_XFRM, &policies, on_xfrm, err);
}

static int on_qdisc(struct nlmsghdr *h, void *arg, struct ckpt_error *err)
{
	const struct tcmsg *tc = nlmsg_data(h);
	struct net_job *job = arg;
	const Ckpt__Net__Link *l = net_link(job->net, (uint32_t)tc->tcm_ifindex);
	char what[96];

	(void)err;
	/* the one that a link has by itself has no handle */
	if (!tc->tcm_handle)
		return 0;
	snprintf(what, sizeof(what), "queueing discipline %x: of link %s", tc->tcm_handle >> 16,
		 l ? l->name : "?");
	net_refuse(job, "qdisc", what);
	return 0;
}

/* The old packet filter's tables are listed by a file that shows those of whoever looks. */
static void old_tables(struct net_job *job, const char *path, const char *what)
{
	CKPT_AUTO_FILE FILE *f = fopen(path, "re");

	if (f && fgetc(f) != EOF)
		net_refuse(job, "iptables", what);
}

int net_filters_refuse(struct net_job *job, struct ckpt_error *err)
{
	const struct tcmsg all = { .tcm_family = AF_UNSPEC };
	const struct net_request q = { RTM_GETQDISC, 0, &all, sizeof(all) };

	old_tables(job, "/proc/thread-self/net/ip_tables_names", "iptables rules");
	old_tables(job, "/proc/thread-self/net/ip6_tables_names", "ip6tables rules");
	if (tables(job, err) < 0)
		return -err->err;
	return net_dump(job, &q, on_qdisc, job, err);
}
