/* SPDX-License-Identifier: MIT */
/* The links of a namespace. */
#include <linux/if_arp.h>
#include <linux/if_link.h>
#include <linux/net_namespace.h>
#include <linux/rtnetlink.h>
#include <netlink/attr.h>
#include <netlink/msg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "net.h"

/* Linux 6.3, whose headers Debian has not got */
#ifndef IFLA_GSO_IPV4_MAX_SIZE
#define IFLA_GSO_IPV4_MAX_SIZE 63
#define IFLA_GRO_IPV4_MAX_SIZE 64
#endif

#define LAST_ATTRIBUTE 64

static char *copy_text(const struct nlattr *a)
{
	return strdup(a ? nla_data(a) : "");
}

static int read_bytes(ProtobufCBinaryData *to, const struct nlattr *a)
{
	size_t len = a ? (size_t)nla_len(a) : 0;

	if (!len)
		return 0;
	to->data = malloc(len);
	if (!to->data)
		return -ENOMEM;
	memcpy(to->data, nla_data(a), len);
	to->len = len;
	return 0;
}

/* What the kernel tells of a bridge and its ports without being told is not among these. */
static const struct {
	const char *kind;
	uint8_t type;
} settings[] = {
	{ NET_BIRTH, IFLA_NUM_TX_QUEUES },
	{ NET_BIRTH, IFLA_NUM_RX_QUEUES },
	{ NET_ANY_LINK, IFLA_GSO_MAX_SIZE },
	{ NET_ANY_LINK, IFLA_GSO_MAX_SEGS },
	{ NET_ANY_LINK, IFLA_GRO_MAX_SIZE },
	{ NET_ANY_LINK, IFLA_GSO_IPV4_MAX_SIZE },
	{ NET_ANY_LINK, IFLA_GRO_IPV4_MAX_SIZE },
	{ NET_ANY_LINK, IFLA_LINKMODE },
	{ "bridge", IFLA_BR_FORWARD_DELAY },
	{ "bridge", IFLA_BR_HELLO_TIME },
	{ "bridge", IFLA_BR_MAX_AGE },
	{ "bridge", IFLA_BR_AGEING_TIME },
	{ "bridge", IFLA_BR_STP_STATE },
	{ "bridge", IFLA_BR_PRIORITY },
	{ "bridge", IFLA_BR_GROUP_FWD_MASK },
	{ "bridge", IFLA_BR_MCAST_ROUTER },
	{ "bridge", IFLA_BR_MCAST_SNOOPING },
	{ "bridge", IFLA_BR_MCAST_QUERY_USE_IFADDR },
	{ "bridge", IFLA_BR_MCAST_QUERIER },
	{ "bridge", IFLA_BR_MCAST_LAST_MEMBER_CNT },
	{ "bridge", IFLA_BR_MCAST_STARTUP_QUERY_CNT },
	{ "bridge", IFLA_BR_NF_CALL_IPTABLES },
	{ "bridge", IFLA_BR_NF_CALL_IP6TABLES },
	{ "bridge", IFLA_BR_NF_CALL_ARPTABLES },
	{ "bridge", IFLA_BR_MCAST_STATS_ENABLED },
	{ NET_BRIDGE_PORT, IFLA_BRPORT_PRIORITY },
	{ NET_BRIDGE_PORT, IFLA_BRPORT_COST },
	{ NET_BRIDGE_PORT, IFLA_BRPORT_MODE },
	{ NET_BRIDGE_PORT, IFLA_BRPORT_GUARD },
	{ NET_BRIDGE_PORT, IFLA_BRPORT_PROTECT },
	{ NET_BRIDGE_PORT, IFLA_BRPORT_FAST_LEAVE },
	{ NET_BRIDGE_PORT, IFLA_BRPORT_LEARNING },
	{ NET_BRIDGE_PORT, IFLA_BRPORT_UNICAST_FLOOD },
	{ NET_BRIDGE_PORT, IFLA_BRPORT_PROXYARP },
	{ NET_BRIDGE_PORT, IFLA_BRPORT_MCAST_FLOOD },
	{ NET_BRIDGE_PORT, IFLA_BRPORT_MCAST_TO_UCAST },
	{ NET_BRIDGE_PORT, IFLA_BRPORT_BCAST_FLOOD },
	{ NET_BRIDGE_PORT, IFLA_BRPORT_NEIGH_SUPPRESS },
	{ NET_BRIDGE_PORT, IFLA_BRPORT_ISOLATED },
	{ NET_BRIDGE_PORT, IFLA_BRPORT_LOCKED },
};

bool net_link_attribute_ok(const char *kind, uint32_t type)
{
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(settings); i++)
		if (settings[i].type == type && !strcmp(settings[i].kind, kind))
			return true;
	return false;
}

static int read_setting(Ckpt__Net__Attribute ***list, size_t *n, const char *kind,
			const struct nlattr *at, struct ckpt_error *err)
{
	Ckpt__Net__Attribute *a;

	if (!net_link_attribute_ok(kind, (uint32_t)nla_type(at)))
		return 0;
	a = malloc(sizeof(*a));
	if (net_append(list, n, a, err) < 0) {
		free(a);
		return -ENOMEM;
	}
	ckpt__net__attribute__init(a);
	a->type = (uint32_t)nla_type(at);
	return read_bytes(&a->value, at) < 0 ? ckpt_fail_sys(err, ENOMEM, "setting of a link") : 0;
}

static int read_settings(Ckpt__Net__Attribute ***list, size_t *n, const char *kind,
			 const struct nlattr *nest, struct ckpt_error *err)
{
	struct nlattr *at;
	int left;

	if (!nest)
		return 0;
	nla_for_each_nested(at, nest, left)
	{
		if (read_setting(list, n, kind, at, err) < 0)
			return -err->err;
	}
	return 0;
}

/* What every link is set to, and what it was made with. */
static int read_common(Ckpt__Net__Link *l, struct nlattr **at, struct ckpt_error *err)
{
	for (int i = 1; i <= LAST_ATTRIBUTE; i++)
		if (at[i] && (read_setting(&l->own, &l->n_own, NET_ANY_LINK, at[i], err) < 0 ||
			      read_setting(&l->birth, &l->n_birth, NET_BIRTH, at[i], err) < 0))
			return -err->err;
	return 0;
}

/* Filtered ones have tables of their own, which are not saved. */
static bool filters_vlans(const struct nlattr *data)
{
	const struct nlattr *a =
		data ? nla_find(nla_data(data), nla_len(data), IFLA_BR_VLAN_FILTERING) : NULL;

	return a && nla_get_u8(a);
}

static uint32_t number(const struct nlattr *a)
{
	return a ? nla_get_u32(a) : 0;
}

static int read_kind(struct net_job *job, Ckpt__Net__Link *l, const struct ifinfomsg *info,
		     struct nlattr **at, struct ckpt_error *err)
{
	struct nlattr *in[IFLA_INFO_MAX + 1] = { 0 };
	const bool carrier = at[IFLA_CARRIER] && nla_get_u8(at[IFLA_CARRIER]);
	const char *master;

	if (at[IFLA_LINKINFO])
		nla_parse_nested(in, IFLA_INFO_MAX, at[IFLA_LINKINFO], NULL);
	if (in[IFLA_INFO_KIND])
		l->kind = copy_text(in[IFLA_INFO_KIND]);
	else
		l->kind = strdup(info->ifi_type == ARPHRD_LOOPBACK ? "" : "device");
	if (!l->kind)
		return ckpt_fail_sys(err, ENOMEM, "link %u", l->index);
	if (!strcmp(l->kind, "tun") &&
	    net_tun_read(l, in[IFLA_INFO_DATA], info->ifi_type, carrier, err) < 0)
		return -err->err;
	job->vlans |= !strcmp(l->kind, "bridge") && filters_vlans(in[IFLA_INFO_DATA]);
	master = in[IFLA_INFO_SLAVE_KIND] ? nla_data(in[IFLA_INFO_SLAVE_KIND]) : "";
	if (!strcmp(master, "bridge") &&
	    read_settings(&l->port, &l->n_port, NET_BRIDGE_PORT, in[IFLA_INFO_SLAVE_DATA], err) < 0)
		return -err->err;
	return read_settings(&l->data, &l->n_data, l->kind, in[IFLA_INFO_DATA], err);
}

static bool has_xdp(struct nlattr *xdp)
{
	struct nlattr *in[IFLA_XDP_MAX + 1] = { 0 };

	if (xdp)
		nla_parse_nested(in, IFLA_XDP_MAX, xdp, NULL);
	return in[IFLA_XDP_ATTACHED] && nla_get_u8(in[IFLA_XDP_ATTACHED]) != XDP_ATTACHED_NONE;
}

/* The lower half of the addresses that a router's prefix is made into. */
static bool has_token(const struct nlattr *spec)
{
	static const uint8_t none[16];
	const struct nlattr *in = spec ? nla_find(nla_data(spec), nla_len(spec), AF_INET6) : NULL;
	const struct nlattr *a = in ? nla_find(nla_data(in), nla_len(in), IFLA_INET6_TOKEN) : NULL;

	return a && nla_len(a) == sizeof(none) && memcmp(nla_data(a), none, sizeof(none)) != 0;
}

static int on_link(struct nlmsghdr *h, void *arg, struct ckpt_error *err)
{
	struct net_job *job = arg;
	const struct ifinfomsg *info = nlmsg_data(h);
	struct nlattr *at[LAST_ATTRIBUTE + 1] = { 0 };
	Ckpt__Net__Link *l = malloc(sizeof(*l));

	if (net_append(&job->net->links, &job->net->n_links, l, err) < 0) {
		free(l);
		return -ENOMEM;
	}
	ckpt__net__link__init(l);
	nlmsg_parse(h, sizeof(*info), at, LAST_ATTRIBUTE, NULL);
	l->index = (uint32_t)info->ifi_index;
	l->flags = info->ifi_flags & NET_LINK_FLAGS;
	l->mtu = number(at[IFLA_MTU]);
	l->txqlen = number(at[IFLA_TXQLEN]);
	l->group = number(at[IFLA_GROUP]);
	l->name = copy_text(at[IFLA_IFNAME]);
	l->alias = copy_text(at[IFLA_IFALIAS]);
	if (read_kind(job, l, info, at, err) < 0 || read_common(l, at, err) < 0)
		return -err->err;
	if ((l->kind[0] && read_bytes(&l->address, at[IFLA_ADDRESS]) < 0) || !l->name || !l->alias)
		return ckpt_fail_sys(err, ENOMEM, "link %u", l->index);
	l->master = number(at[IFLA_MASTER]);
	job->odd_links |=
		has_xdp(at[IFLA_XDP]) || at[IFLA_PROP_LIST] || has_token(at[IFLA_AF_SPEC]);
	l->peer = number(at[IFLA_LINK]);
	/* until it is translated: the namespace's number as seen from here, counted from 1 */
	if (at[IFLA_LINK_NETNSID])
		l->peer_ns = number(at[IFLA_LINK_NETNSID]) + 1;
	return 0;
}

/* The number under which another namespace is known here, or -1. */
static int nsid_of(struct net_job *job, int fd)
{
	const struct rtgenmsg gen = { .rtgen_family = AF_UNSPEC };
	struct nl_msg *msg = nlmsg_alloc_simple(RTM_GETNSID, 0);
	struct nlattr *at[NETNSA_MAX + 1] = { 0 };
	CKPT_AUTO_FREE struct nlmsghdr *answer = NULL;
	struct sockaddr_nl from;
	int r = -1;

	if (msg && nlmsg_append(msg, (void *)(uintptr_t)&gen, sizeof(gen), NLMSG_ALIGNTO) == 0 &&
	    nla_put_u32(msg, NETNSA_FD, (uint32_t)fd) == 0 && nl_send_auto(job->sk, msg) >= 0)
		r = nl_recv(job->sk, &from, (unsigned char **)&answer, NULL);
	nlmsg_free(msg);
	/* an error is all there is; an answer is followed by the acknowledgement */
	if (r <= 0 || answer->nlmsg_type != RTM_NEWNSID || nl_wait_for_ack(job->sk) < 0)
		return -1;
	nlmsg_parse(answer, sizeof(gen), at, NETNSA_MAX, NULL);
	return at[NETNSA_NSID] ? (int)nla_get_u32(at[NETNSA_NSID]) : -1;
}

/* Which namespace of the tree is it? 0: none. */
static uint32_t find_peer(struct net_job *job, uint32_t nsid)
{
	for (size_t i = 0; i < ckpt_ns_count(job->run); i++) {
		const struct ckpt_ns *ns = ckpt_ns_at(job->run, i);

		if (ns->type == CKPT_NS_NET && ns->fd >= 0 && nsid_of(job, ns->fd) == (int)nsid)
			return ns->id;
	}
	return 0;
}

static void note_outside(struct net_job *job, Ckpt__Net__Link *l)
{
	const struct ckpt_ns *ns = l->peer_ns ? ckpt_ns_by_id(job->run, l->peer_ns) : NULL;

	if (strcmp(l->kind, "veth") != 0)
		l->peer_ns = l->peer = 0;
	else
		l->external = !ns || ns->own || ns->lost;
}

static int by_index(const void *a, const void *b)
{
	const Ckpt__Net__Link *x = *(Ckpt__Net__Link *const *)a, *y = *(Ckpt__Net__Link *const *)b;

	return (x->index > y->index) - (x->index < y->index);
}

int net_links_read(struct net_job *job, struct ckpt_error *err)
{
	const struct ifinfomsg all = { .ifi_family = AF_UNSPEC };
	const struct net_request q = { RTM_GETLINK, 0, &all, sizeof(all) };
	int r = net_dump(job, &q, on_link, job, err);

	for (size_t i = 0; i < job->net->n_links && r == 0; i++) {
		Ckpt__Net__Link *l = job->net->links[i];

		if (l->peer_ns)
			l->peer_ns = find_peer(job, l->peer_ns - 1);
		else if (l->peer)
			l->peer_ns = job->ns->id;
		note_outside(job, l);
	}
	if (job->net->n_links)
		qsort(job->net->links, job->net->n_links, sizeof(*job->net->links), by_index);
	return r;
}

const Ckpt__Net__Link *net_link(const Ckpt__Net__Network *net, uint32_t index)
{
	for (size_t i = 0; i < net->n_links; i++)
		if (net->links[i]->index == index)
			return net->links[i];
	return NULL;
}

static void refuse(struct net_job *job, const char *feature, const Ckpt__Net__Link *l,
		   const char *reason, const char *hint)
{
	char object[128];
	const struct ckpt_blocker b = { feature, job->ns->member, object, reason, hint, true };

	snprintf(object, sizeof(object), "%s: link %s", job->ns->name, l->name);
	ckpt_refuse(job->run, &b);
}

/* A pair whose other end is outside, unless the user has said that it shall be. */
static void refuse_veth(struct net_job *job, const Ckpt__Net__Link *l)
{
	if (!ckpt_feature_on(job->run, "veth")) {
		refuse(job, "veth", l, "the feature net.veth is switched off", "switch it on");
		return;
	}
	if (!l->external)
		return;
	if (!net_is_external(job->run, l))
		refuse(job, "veth-outside", l, "the other end of the pair is outside the tree",
		       "-o net.external=NAME of the link; at the restore -o "
		       "net.external=NAME:BRIDGE says where to connect it");
	else if (!ckpt_feature_on(job->run, "external"))
		refuse(job, "external", l, "the feature net.external is switched off",
		       "switch it on");
}

static void refuse_tun(struct net_job *job, const Ckpt__Net__Link *l)
{
	const char *reason = net_tun_refused(job, l);

	if (!ckpt_feature_on(job->run, "tun"))
		refuse(job, "tun", l, "the feature net.tun is switched off", "switch it on");
	else if (reason)
		refuse(job, l->tun->odd ? "tun-details" : "tun-outside", l, reason,
		       l->tun->odd ? "set it back, or delete the device"
				   : "dump the tree that has it open, or close it");
}

static void refuse_link(struct net_job *job, const Ckpt__Net__Link *l)
{
	const Ckpt__Net__Link *master = l->master ? net_link(job->net, l->master) : NULL;
	char reason[96];

	if (l->master && (!master || strcmp(master->kind, "bridge") != 0))
		refuse(job, "link-kind", l, "what it is a part of is no bridge of the namespace",
		       "take it out (ip link set nomaster)");
	if (!l->kind[0])
		return;
	if (!strcmp(l->kind, "veth")) {
		refuse_veth(job, l);
		return;
	}
	if (!strcmp(l->kind, "tun")) {
		refuse_tun(job, l);
		return;
	}
	if (!strcmp(l->kind, "bridge") || !strcmp(l->kind, "dummy")) {
		if (!ckpt_feature_on(job->run, "bridge"))
			refuse(job, "bridge", l, "the feature net.bridge is switched off",
			       "switch it on");
		return;
	}
	snprintf(reason, sizeof(reason), "links of the kind \"%.40s\" are not saved", l->kind);
	refuse(job, "link-kind", l, reason, "take the link down and delete it");
}

void net_links_refuse(struct net_job *job)
{
	if (job->odd_links)
		net_refuse(job, "link-details",
			   "XDP programs, alternative names or tokens of links");
	if (job->vlans)
		net_refuse(job, "bridge-vlan", "a bridge that filters VLANs");
	for (size_t i = 0; i < job->net->n_links; i++)
		refuse_link(job, job->net->links[i]);
}

/* ---- restore: carriers ---------------------------------------------------------------- */

/* In IFLA_INET6_FLAGS: addrconf_notify() has been told of the carrier. */
#define IPV6_IF_READY 0x80000000U

/* A setting of a link's, or "". */
static const char *ipv6_setting(const Ckpt__Net__Network *net, const char *link, const char *which)
{
	char name[64];

	snprintf(name, sizeof(name), "ipv6/conf/%s/%s", link, which);
	for (size_t i = 0; i < net->n_sysctls; i++)
		if (!strcmp(net->sysctls[i]->name, name))
			return net->sysctls[i]->value;
	return "";
}

/*
 * Getting ready sets conf/LINK/mtu to the link's. With IPv6 switched off it never does. IFF_RUNNING
 * does not tell: before the first look at its carrier a link's state is "unknown", which is as good
 * as "up".
 */
static bool ipv6_waits(const Ckpt__Net__Network *net, const Ckpt__Net__Link *l,
		       const struct nlattr *spec)
{
	const struct nlattr *in = spec ? nla_find(nla_data(spec), nla_len(spec), AF_INET6) : NULL;
	const struct nlattr *flags =
		in ? nla_find(nla_data(in), nla_len(in), IFLA_INET6_FLAGS) : NULL;
	const char *mtu = ipv6_setting(net, l->name, "mtu");

	return flags && mtu[0] && strtoul(mtu, NULL, 10) != l->mtu &&
	       !strcmp(ipv6_setting(net, l->name, "disable_ipv6"), "0") &&
	       !(nla_get_u32(flags) & IPV6_IF_READY);
}

struct carriers {
	const Ckpt__Net__Network *net;
	bool pending;
};

static int on_carrier(struct nlmsghdr *h, void *arg, struct ckpt_error *err)
{
	struct carriers *c = arg;
	const struct ifinfomsg *info = nlmsg_data(h);
	const Ckpt__Net__Link *l = net_link(c->net, (uint32_t)info->ifi_index);

	(void)err;
	if (info->ifi_flags & IFF_UP && info->ifi_flags & IFF_LOWER_UP)
		c->pending |= !(info->ifi_flags & IFF_RUNNING) ||
			      (l && ipv6_waits(c->net, l,
					       nlmsg_find_attr(h, sizeof(*info), IFLA_AF_SPEC)));
	return 0;
}

#define CARRIER_LOOKS	 200
#define CARRIER_PAUSE_US 10000

/* The kernel takes notice of a carrier up to a second later (linkwatch). */
int net_links_await(struct net_job *job, struct ckpt_error *err)
{
	const struct ifinfomsg all = { .ifi_family = AF_UNSPEC };
	const struct net_request q = { RTM_GETLINK, 0, &all, sizeof(all) };

	for (int i = 0; i < CARRIER_LOOKS; i++) {
		struct carriers c = { .net = job->net };
		int r = net_dump(job, &q, on_carrier, &c, err);

		if (r < 0 || !c.pending)
			return r;
		usleep(CARRIER_PAUSE_US);
	}
	return 0;
}
