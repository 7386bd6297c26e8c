/* SPDX-License-Identifier: MIT */
/* Old packet filters, transformations and other tables that are not saved: found, and refused. */
#include <arpa/inet.h>
#include <linux/if_bridge.h>
#include <linux/netfilter/nf_conntrack_common.h>
#include <linux/netfilter/nfnetlink_conntrack.h>
#include <linux/netfilter/ipset/ip_set.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/nexthop.h>
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

int net_speak(struct net_job *job, int protocol,
	      int (*fn)(struct net_job *job, struct ckpt_error *err), struct ckpt_error *err)
{
	struct nl_sock *route = job->sk;
	int r;

	job->sk = nl_socket_alloc();
	r = job->sk ? nl_connect(job->sk, protocol) : -NLE_NOMEM;
	if (r < 0)
		/* libnl's word for EPROTONOSUPPORT: the kernel has no such protocol */
		r = ckpt_fail(err, r == -NLE_PROTO_MISMATCH ? ENOTSUP : EIO,
			      "netlink protocol %d: %s", protocol, nl_geterror(r));
	else
		r = fn(job, err);
	nl_socket_free(job->sk);
	job->sk = route;
	return r;
}

int net_ask(struct net_job *job, int protocol,
	    int (*fn)(struct net_job *job, struct ckpt_error *err), struct ckpt_error *err)
{
	int r = net_speak(job, protocol, fn, err);

	return r == -ENOTSUP ? 0 : r;
}

static int ask_xfrm(struct net_job *job, struct ckpt_error *err)
{
	const struct xfrm_usersa_id sa = { 0 };
	const struct xfrm_userpolicy_id policy = { 0 };
	const struct net_request associations = { XFRM_MSG_GETSA, 0, &sa, sizeof(sa) };
	const struct net_request policies = { XFRM_MSG_GETPOLICY, 0, &policy, sizeof(policy) };
	int r = net_dump(job, &associations, on_xfrm, job, err);

	return r < 0 ? r : net_dump(job, &policies, on_xfrm, job, err);
}

struct ipsets {
	char first[IPSET_MAXNAMELEN];
	size_t n;
};

static int on_ipset(struct nlmsghdr *h, void *arg, struct ckpt_error *err)
{
	struct nlattr *name = nlmsg_find_attr(h, sizeof(struct nfgenmsg), IPSET_ATTR_SETNAME);
	struct ipsets *x = arg;

	(void)err;
	if (name && !x->n++)
		nla_strlcpy(x->first, name, sizeof(x->first));
	return 0;
}

/* The names alone. */
static int ask_ipsets(struct net_job *job, struct ckpt_error *err)
{
	struct {
		struct nfgenmsg g;
		struct nlattr protocol;
		uint8_t number, pad[3];
		struct nlattr flags;
		uint32_t names;
	} ask = { .g = { .nfgen_family = AF_UNSPEC },
		  .protocol = { sizeof(ask.protocol) + 1, IPSET_ATTR_PROTOCOL },
		  .number = IPSET_PROTOCOL_MIN,
		  .flags = { sizeof(ask.flags) + sizeof(ask.names),
			     IPSET_ATTR_FLAGS | NLA_F_NET_BYTEORDER },
		  .names = htonl(IPSET_FLAG_LIST_SETNAME) };
	const struct net_request q = { NFNL_SUBSYS_IPSET << 8 | IPSET_CMD_LIST, 0, &ask,
				       sizeof(ask) };
	struct ipsets x = { .n = 0 };
	int r = net_dump(job, &q, on_ipset, &x, err);
	char what[96];

	if (r < 0 || !x.n)
		return r;
	snprintf(what, sizeof(what), "%zu ipsets, of which the first is %s", x.n, x.first);
	net_refuse(job, "ipset", what);
	return 0;
}

/* The old packet filter's tables are listed by a file that shows those of whoever looks. */
static void old_tables(struct net_job *job, const char *path, const char *what)
{
	CKPT_AUTO_FILE FILE *f = fopen(path, "re");

	if (f && fgetc(f) != EOF)
		net_refuse(job, "iptables", what);
}

/* Lists with some lines of names, for whoever looks. */
static void listed(struct net_job *job, const char *path, int head, const char *feature,
		   const char *what)
{
	CKPT_AUTO_FILE FILE *f = fopen(path, "re");
	CKPT_AUTO_FREE char *line = NULL;
	size_t cap = 0;
	int lines = 0;

	while (f && lines <= head && getline(&line, &cap, f) > 0)
		lines++;
	if (lines > head)
		net_refuse(job, feature, what);
}

static int on_object(struct nlmsghdr *h, void *arg, struct ckpt_error *err)
{
	(void)err;
	*(bool *)arg |= h->nlmsg_type == RTM_NEWNEXTHOP;
	return 0;
}

/* A kernel without them answers as if it had been asked for routes of all families. */
static int on_label_route(struct nlmsghdr *h, void *arg, struct ckpt_error *err)
{
	const struct rtmsg *r = nlmsg_data(h);

	(void)err;
	*(bool *)arg |= nlmsg_datalen(h) >= (int)sizeof(*r) && r->rtm_family == AF_MPLS;
	return 0;
}

static int refuse_objects(struct net_job *job, struct ckpt_error *err)
{
	const struct nhmsg any = { .nh_family = AF_UNSPEC };
	const struct rtmsg labels = { .rtm_family = AF_MPLS };
	const struct net_request objects = { RTM_GETNEXTHOP, 0, &any, sizeof(any) };
	const struct net_request routes = { RTM_GETROUTE, 0, &labels, sizeof(labels) };
	bool found = false, mpls = false;
	int r = net_dump(job, &objects, on_object, &found, err);

	if (r == 0 || r == -ENOTSUP)
		r = net_dump(job, &routes, on_label_route, &mpls, err);
	if (found)
		net_refuse(job, "nexthop", "next hop objects (ip nexthop)");
	if (mpls)
		net_refuse(job, "mpls", "routes of MPLS (ip -f mpls route)");
	return r == -ENOTSUP ? 0 : r;
}

/* Those of a bridge that were made by hand. */
static int on_group(struct nlmsghdr *h, void *arg, struct ckpt_error *err)
{
	struct nlattr *db = nlmsg_find_attr(h, sizeof(struct br_port_msg), MDBA_MDB);
	struct nlattr *entry, *info;
	int left, inner;

	(void)err;
	if (!db)
		return 0;
	nla_for_each_nested(entry, db, left)
	{
		nla_for_each_nested(info, entry, inner)
		{
			const struct br_mdb_entry *e = nla_data(info);

			if (nla_len(info) >= (int)sizeof(*e) && e->state & MDB_PERMANENT)
				*(bool *)arg = true;
		}
	}
	return 0;
}

static int refuse_groups(struct net_job *job, struct ckpt_error *err)
{
	const struct br_port_msg all = { .family = AF_BRIDGE };
	const struct net_request q = { RTM_GETMDB, 0, &all, sizeof(all) };
	bool found = false;
	int r = net_dump(job, &q, on_group, &found, err);

	if (found)
		net_refuse(job, "bridge-groups", "groups of a bridge's port (bridge mdb)");
	return r == -ENOTSUP ? 0 : r;
}

/* A connection that is made has been answered. */
static int on_connection(struct nlmsghdr *h, void *arg, struct ckpt_error *err)
{
	const uint32_t made = IPS_SEEN_REPLY | IPS_ASSURED, translated = IPS_SRC_NAT | IPS_DST_NAT;
	struct nlattr *status = nlmsg_find_attr(h, sizeof(struct nfgenmsg), CTA_STATUS);
	uint32_t bits = status ? ntohl(nla_get_u32(status)) : 0;

	(void)err;
	*(size_t *)arg += (bits & made) == made && bits & translated;
	return 0;
}

/*
 * All namespaces have one table, which is walked to list those of one: 13 ms where it is large. How
 * many are whose is counted.
 */
static bool has_none(void)
{
	CKPT_AUTO_FILE FILE *f = fopen("/proc/sys/net/netfilter/nf_conntrack_count", "re");
	unsigned n;

	return f && fscanf(f, "%u", &n) == 1 && !n;
}

static int ask_connections(struct net_job *job, struct ckpt_error *err)
{
	const struct nfgenmsg all = { .nfgen_family = AF_UNSPEC };
	const struct net_request q = { NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_GET, 0, &all,
				       sizeof(all) };
	size_t n = 0;
	int r = has_none() ? 0 : net_dump(job, &q, on_connection, &n, err);
	char what[96];

	if (r < 0 || !n)
		return r;
	snprintf(what, sizeof(what), "%zu connections whose addresses are translated (NAT)", n);
	net_refuse(job, "conntrack", what);
	return 0;
}

int net_filters_refuse(struct net_job *job, struct ckpt_error *err)
{
	old_tables(job, "/proc/thread-self/net/ip_tables_names", "iptables rules");
	old_tables(job, "/proc/thread-self/net/ip6_tables_names", "ip6tables rules");
	old_tables(job, "/proc/thread-self/net/arp_tables_names", "arptables rules");
	listed(job, "/proc/thread-self/net/ip_vs", 3, "ipvs", "services of IPVS (ipvsadm)");
	listed(job, "/proc/thread-self/net/ip_mr_vif", 1, "multicast-routing", "multicast routing");
	listed(job, "/proc/thread-self/net/ip6_mr_vif", 1, "multicast-routing",
	       "multicast routing of IPv6");
	if (net_nft_refuse(job, err) < 0 || refuse_groups(job, err) < 0 ||
	    refuse_objects(job, err) < 0 || net_ask(job, NETLINK_NETFILTER, ask_ipsets, err) < 0 ||
	    net_ask(job, NETLINK_NETFILTER, ask_connections, err) < 0)
		return -err->err;
	return net_ask(job, NETLINK_XFRM, ask_xfrm, err);
}
