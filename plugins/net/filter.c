/* SPDX-License-Identifier: MIT */
/* Packet filters, transformations and queueing that are not saved: found, and refused. */
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/rtnetlink.h>
#include <netlink/attr.h>
#include <netlink/msg.h>
#include <stdio.h>
#include <string.h>

#include "net.h"

static void refuse(struct net_job *job, const char *feature, const char *what)
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
	snprintf(what, sizeof(what), "nftables table %.64s",
		 at[NFTA_TABLE_NAME] ? (char *)nla_data(at[NFTA_TABLE_NAME]) : "?");
	refuse(arg, "nftables", what);
	return 0;
}

/* A kernel without nf_tables has no tables either. */
static int tables(struct net_job *job, struct ckpt_error *err)
{
	const struct nfgenmsg all = { .nfgen_family = AF_UNSPEC };
	const struct net_request q = { NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETTABLE, 0, &all,
				       sizeof(all) };
	struct nl_sock *route = job->sk;
	struct ckpt_error none = { 0 };

	job->sk = nl_socket_alloc();
	if (job->sk && nl_connect(job->sk, NETLINK_NETFILTER) == 0)
		net_dump(job, &q, on_table, job, &none);
	nl_socket_free(job->sk);
	job->sk = route;
	(void)err;
	return 0;
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
	refuse(job, "qdisc", what);
	return 0;
}

/* The old packet filter's tables are listed by a file that shows those of whoever looks. */
static void old_tables(struct net_job *job, const char *path, const char *what)
{
	CKPT_AUTO_FILE FILE *f = fopen(path, "re");

	if (f && fgetc(f) != EOF)
		refuse(job, "iptables", what);
}

int net_filters_refuse(struct net_job *job, struct ckpt_error *err)
{
	const struct tcmsg all = { .tcm_family = AF_UNSPEC };
	const struct net_request q = { RTM_GETQDISC, 0, &all, sizeof(all) };

	old_tables(job, "/proc/thread-self/net/ip_tables_names", "iptables rules");
	old_tables(job, "/proc/thread-self/net/ip6_tables_names", "ip6tables rules");
	tables(job, err);
	return net_dump(job, &q, on_qdisc, job, err);
}
