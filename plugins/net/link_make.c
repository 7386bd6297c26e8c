/* SPDX-License-Identifier: MIT */
/* Links made again: pairs first, then what each one is set to. */
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <netlink/attr.h>
#include <netlink/msg.h>
#include <string.h>

#include "net.h"

/* Which end makes the pair: the one that comes first. */
static bool makes_pair(const struct net_job *job, const Ckpt__Net__Link *l)
{
	return l->peer_ns > job->ns->id || (l->peer_ns == job->ns->id && l->peer > l->index);
}

static int put_end(struct nl_msg *msg, const Ckpt__Net__Link *l)
{
	int r = nla_put_string(msg, IFLA_IFNAME, l->name);

	if (r == 0 && l->address.len)
		r = nla_put(msg, IFLA_ADDRESS, (int)l->address.len, l->address.data);
	return r == 0 ? net_put_all(msg, l->birth, l->n_birth) : r;
}

static int put_peer(struct nl_msg *msg, const Ckpt__Net__Link *l, const struct ckpt_ns *where)
{
	const struct ifinfomsg info = { .ifi_index = (int)l->index };
	struct nlattr *peer = nla_nest_start(msg, VETH_INFO_PEER);
	int r = peer ? nlmsg_append(msg, (void *)(uintptr_t)&info, sizeof(info), NLMSG_ALIGNTO)
		     : -NLE_NOMEM;

	if (r == 0)
		r = put_end(msg, l);
	if (r == 0)
		r = nla_put_u32(msg, IFLA_NET_NS_FD, (uint32_t)where->fd);
	return r < 0 ? r : nla_nest_end(msg, peer);
}

static int put_pair(struct nl_msg *msg, const Ckpt__Net__Link *l, const Ckpt__Net__Link *peer,
		    const struct ckpt_ns *where)
{
	const struct ifinfomsg info = { .ifi_index = (int)l->index };
	struct nlattr *kind, *data;
	int r = nlmsg_append(msg, (void *)(uintptr_t)&info, sizeof(info), NLMSG_ALIGNTO);

	if (r == 0)
		r = put_end(msg, l);
	kind = r == 0 ? nla_nest_start(msg, IFLA_LINKINFO) : NULL;
	r = kind ? nla_put_string(msg, IFLA_INFO_KIND, l->kind) : -NLE_NOMEM;
	data = r == 0 ? nla_nest_start(msg, IFLA_INFO_DATA) : NULL;
	r = data ? put_peer(msg, peer, where) : -NLE_NOMEM;
	if (r < 0)
		return r;
	nla_nest_end(msg, data);
	return nla_nest_end(msg, kind);
}

static int make_pair(struct net_job *job, const Ckpt__Net__Link *l, struct ckpt_error *err)
{
	const struct ckpt_ns *where = ckpt_ns_by_id(job->run, l->peer_ns);
	const Ckpt__Net__Network *net = ckpt_record_need(job->run, "net.network", l->peer_ns, err);
	const Ckpt__Net__Link *peer = net ? net_link(net, l->peer) : NULL;
	struct nl_msg *msg = nlmsg_alloc_simple(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL);
	int r = net_finish(job, msg, msg && peer ? put_pair(msg, l, peer, where) : -NLE_NOMEM);

	return r < 0 ? ckpt_fail(err, EIO, "link %s: %s", l->name, nl_geterror(r)) : 0;
}

static int put_settings(struct nl_msg *msg, const Ckpt__Net__Link *l)
{
	const struct ifinfomsg info = {
		.ifi_index = (int)l->index,
		.ifi_flags = l->flags,
		.ifi_change = NET_LINK_FLAGS,
	};
	int r = nlmsg_append(msg, (void *)(uintptr_t)&info, sizeof(info), NLMSG_ALIGNTO);

	if (r == 0)
		r = nla_put_u32(msg, IFLA_TXQLEN, l->txqlen);
	if (r == 0)
		r = nla_put_u32(msg, IFLA_GROUP, l->group);
	if (r == 0 && l->tun && l->address.len)
		r = nla_put(msg, IFLA_ADDRESS, (int)l->address.len, l->address.data);
	if (r == 0 && l->master)
		r = nla_put_u32(msg, IFLA_MASTER, l->master);
	return r == 0 && l->alias[0] ? nla_put_string(msg, IFLA_IFALIAS, l->alias) : r;
}

static int put_settings_of(struct nl_msg *msg, int nest, Ckpt__Net__Attribute *const *list,
			   size_t n)
{
	struct nlattr *data = nla_nest_start(msg, nest);
	int r = data ? net_put_all(msg, list, n) : -NLE_NOMEM;

	return r < 0 ? r : nla_nest_end(msg, data);
}

/* A link that is one by itself. */
static int put_single(struct nl_msg *msg, const Ckpt__Net__Link *l)
{
	const struct ifinfomsg info = { .ifi_index = (int)l->index };
	struct nlattr *kind;
	int r = nlmsg_append(msg, (void *)(uintptr_t)&info, sizeof(info), NLMSG_ALIGNTO);

	if (r == 0)
		r = put_end(msg, l);
	/* a bridge that is born with it goes on to follow its ports */
	if (r == 0)
		r = nla_put_u32(msg, IFLA_MTU, l->mtu);
	kind = r == 0 ? nla_nest_start(msg, IFLA_LINKINFO) : NULL;
	r = kind ? nla_put_string(msg, IFLA_INFO_KIND, l->kind) : -NLE_NOMEM;
	if (r == 0 && l->n_data)
		r = put_settings_of(msg, IFLA_INFO_DATA, l->data, l->n_data);
	return r < 0 ? r : nla_nest_end(msg, kind);
}

static int make_single(struct net_job *job, const Ckpt__Net__Link *l, struct ckpt_error *err)
{
	struct nl_msg *msg = nlmsg_alloc_simple(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL);
	int r = net_finish(job, msg, msg ? put_single(msg, l) : -NLE_NOMEM);

	return r < 0 ? ckpt_fail(err, EIO, "link %s (%s): %s", l->name, l->kind, nl_geterror(r))
		     : 0;
}

/* What a bridge keeps of its port; the port must be one by then. */
static int put_port(struct nl_msg *msg, const Ckpt__Net__Link *l)
{
	const struct ifinfomsg info = { .ifi_index = (int)l->index };
	struct nlattr *kind;
	int r = nlmsg_append(msg, (void *)(uintptr_t)&info, sizeof(info), NLMSG_ALIGNTO);

	kind = r == 0 ? nla_nest_start(msg, IFLA_LINKINFO) : NULL;
	r = kind ? nla_put_string(msg, IFLA_INFO_SLAVE_KIND, "bridge") : -NLE_NOMEM;
	if (r == 0)
		r = put_settings_of(msg, IFLA_INFO_SLAVE_DATA, l->port, l->n_port);
	return r < 0 ? r : nla_nest_end(msg, kind);
}

static int set_port(struct net_job *job, const Ckpt__Net__Link *l)
{
	struct nl_msg *msg = nlmsg_alloc_simple(RTM_NEWLINK, 0);

	return net_finish(job, msg, msg ? put_port(msg, l) : -NLE_NOMEM);
}

static int put_mtu(struct nl_msg *msg, const Ckpt__Net__Link *l)
{
	const struct ifinfomsg info = { .ifi_index = (int)l->index };
	int r = nlmsg_append(msg, (void *)(uintptr_t)&info, sizeof(info), NLMSG_ALIGNTO);

	return r < 0 ? r : nla_put_u32(msg, IFLA_MTU, l->mtu);
}

/* Settings come next, and no conf/LINK/mtu may exceed the link's (addrconf_sysctl_mtu()). */
static int set_mtus(struct net_job *job, struct ckpt_error *err)
{
	for (size_t i = 0; i < job->net->n_links; i++) {
		const Ckpt__Net__Link *l = job->net->links[i];
		struct nl_msg *msg = nlmsg_alloc_simple(RTM_SETLINK, 0);
		int r = net_finish(job, msg, msg ? put_mtu(msg, l) : -NLE_NOMEM);

		if (r < 0)
			return ckpt_fail(err, EIO, "link %s: mtu %u: %s", l->name, l->mtu,
					 nl_geterror(r));
	}
	return 0;
}

int net_links_make(struct net_job *job, struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; i < job->net->n_links && r == 0; i++) {
		const Ckpt__Net__Link *l = job->net->links[i];

		if (l->external)
			r = net_external_make(job, l, err);
		else if (l->tun)
			r = net_tun_make(job, l, err);
		else if (l->kind[0] && strcmp(l->kind, "veth") != 0)
			r = make_single(job, l, err);
		else if (l->kind[0] && makes_pair(job, l))
			r = make_pair(job, l, err);
	}
	return r < 0 ? r : set_mtus(job, err);
}

static int put_own(struct nl_msg *msg, const Ckpt__Net__Link *l)
{
	int r = put_mtu(msg, l);

	return r < 0 ? r : net_put_all(msg, l->own, l->n_own);
}

/*
 * When all ports have their bridge: what that may have depends on them (br_add_if()), and its mtu
 * became the smallest of theirs unless it was set (br_mtu_auto_adjust()).
 */
static int set_own(struct net_job *job, struct ckpt_error *err)
{
	for (size_t i = 0; i < job->net->n_links; i++) {
		const Ckpt__Net__Link *l = job->net->links[i];
		struct nl_msg *msg = nlmsg_alloc_simple(RTM_SETLINK, 0);
		int r = net_finish(job, msg, msg ? put_own(msg, l) : -NLE_NOMEM);

		if (r < 0)
			return ckpt_fail(err, EIO, "link %s: %s", l->name, nl_geterror(r));
	}
	return 0;
}

int net_links_up(struct net_job *job, struct ckpt_error *err)
{
	for (size_t i = 0; i < job->net->n_links; i++) {
		const Ckpt__Net__Link *l = job->net->links[i];
		struct nl_msg *msg = nlmsg_alloc_simple(RTM_SETLINK, 0);
		int r = net_finish(job, msg, msg ? put_settings(msg, l) : -NLE_NOMEM);

		if (r == 0 && l->n_port)
			r = set_port(job, l);
		if (r < 0)
			return ckpt_fail(err, EIO, "link %s: %s", l->name, nl_geterror(r));
	}
	return set_own(job, err);
}
