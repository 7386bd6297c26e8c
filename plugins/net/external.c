/* SPDX-License-Identifier: MIT */
/*
 * Pairs of veth whose other end is outside the tree, by the user's word: -o
 * net.external=NAME at the dump, NAME or NAME:BRIDGE at the restore. The pair is made
 * anew, the outer end in ckpt's own namespace under its old name, up from the start, so
 * that routes have their carrier, and connected to the bridge at the very end: until then
 * nothing comes in.
 */
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <netlink/attr.h>
#include <netlink/msg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* linux/if.h is here already, and net/if.h does not go with it */
unsigned int if_nametoindex(const char *name);

#include "net.h"

/* The name before the colon of an item, and what comes after it ("" if there is none). */
static bool means(const char *item, const char *name, const char **to)
{
	size_t len = strcspn(item, ":");

	*to = item[len] ? item + len + 1 : "";
	return len == strlen(name) && !strncmp(item, name, len);
}

static const char *option_of(struct ckpt_run *run, const Ckpt__Net__Link *l)
{
	const char *to;

	for (size_t i = 0; i < ckpt_opt_count(run, "external"); i++)
		if (means(ckpt_opt_item(run, "external", i), l->name, &to))
			return to;
	return NULL;
}

bool net_is_external(struct ckpt_run *run, const Ckpt__Net__Link *l)
{
	return option_of(run, l) != NULL;
}

/* ---- dump --------------------------------------------------------------------------- */

static int set_text(char **to, const char *text)
{
	char *copy = strdup(text);

	if (!copy)
		return -ENOMEM;
	if (*to != protobuf_c_empty_string)
		free(*to);
	*to = copy;
	return 0;
}

static int take_host(Ckpt__Net__Link *l, const Ckpt__Net__Network *outer)
{
	const Ckpt__Net__Link *host = net_link(outer, l->peer);
	const Ckpt__Net__Link *master = host ? net_link(outer, host->master) : NULL;

	if (!host)
		return 0;
	l->host_address.data = malloc(host->address.len ? host->address.len : 1);
	if (!l->host_address.data)
		return -ENOMEM;
	if (host->address.len)
		memcpy(l->host_address.data, host->address.data, host->address.len);
	l->host_address.len = host->address.len;
	if (set_text(&l->host_name, host->name) < 0)
		return -ENOMEM;
	return master && !strcmp(master->kind, "bridge") ? set_text(&l->host_master, master->name)
							 : 0;
}

static int read_links(struct ckpt_run *run, const struct ckpt_ns *ns, Ckpt__Net__Network *net,
		      struct ckpt_error *err)
{
	struct net_job job = { .run = run, .ns = (struct ckpt_ns *)(uintptr_t)ns, .net = net };

	return net_run(&job, net_links_read, err);
}

static void network_free(Ckpt__Net__Network **net)
{
	if (*net)
		ckpt__net__network__free_unpacked(*net, NULL);
}
#define AUTO_NETWORK __attribute__((cleanup(network_free)))

/* The links of a namespace alone. */
static Ckpt__Net__Network *links_of(struct ckpt_run *run, const struct ckpt_ns *ns,
				    struct ckpt_error *err)
{
	AUTO_NETWORK Ckpt__Net__Network *net = malloc(sizeof(*net));
	Ckpt__Net__Network *done;

	if (!net) {
		ckpt_fail_sys(err, ENOMEM, "links of a network namespace");
		return NULL;
	}
	ckpt__net__network__init(net);
	if (read_links(run, ns, net, err) < 0)
		return NULL;
	done = net;
	net = NULL;
	return done;
}

static bool has_externals(const Ckpt__Net__Network *net)
{
	for (size_t i = 0; i < net->n_links; i++)
		if (net->links[i]->external)
			return true;
	return false;
}

int net_externals_look(struct net_job *job, struct ckpt_error *err)
{
	const struct ckpt_ns *own = ckpt_ns_own(job->run, CKPT_NS_NET);
	AUTO_NETWORK Ckpt__Net__Network *outer = NULL;

	if (!has_externals(job->net))
		return 0;
	outer = links_of(job->run, own, err);
	if (!outer)
		return -err->err;
	for (size_t i = 0; i < job->net->n_links; i++) {
		Ckpt__Net__Link *l = job->net->links[i];

		if (!l->external)
			continue;
		if (l->peer_ns == own->id && take_host(l, outer) < 0)
			return ckpt_fail_sys(err, ENOMEM, "link %s", l->name);
		/* they are others after each restore */
		l->peer_ns = l->peer = 0;
	}
	return 0;
}

/* ---- plan --------------------------------------------------------------------------- */

/* What the outer end is to be a port of, or NULL. */
static const char *bridge_of(struct ckpt_run *run, const Ckpt__Net__Link *l)
{
	const char *given = option_of(run, l);

	if (given && given[0])
		return given;
	return l->host_master[0] && if_nametoindex(l->host_master) ? l->host_master : NULL;
}

int net_external_plan(struct ckpt_run *run, const Ckpt__Net__Link *l, struct ckpt_error *err)
{
	const char *given;

	if (strcmp(l->kind, "veth") != 0 || l->peer || l->peer_ns ||
	    strlen(l->host_name) >= IFNAMSIZ || strchr(l->host_name, '%') ||
	    l->host_address.len > 32 || strlen(l->host_master) >= IFNAMSIZ)
		return ckpt_fail_image(err, "link %u: no valid external", l->index);
	given = option_of(run, l);
	if (!ckpt_plan_only(run) && given && given[0] && !if_nametoindex(given))
		return ckpt_unmet(run, CKPT_EXIT_FAILED, "make it, or name another one",
				  "link %s is to be connected to %s, which is not there", l->name,
				  given);
	return 0;
}

/* ---- restore ------------------------------------------------------------------------ */

static int put_end(struct nl_msg *msg, const char *name, const ProtobufCBinaryData *address)
{
	int r = nla_put_string(msg, IFLA_IFNAME, name);

	return r == 0 && address->len ? nla_put(msg, IFLA_ADDRESS, (int)address->len, address->data)
				      : r;
}

static int put_host(struct nl_msg *msg, const Ckpt__Net__Link *l, const struct ckpt_ns *own)
{
	const struct ifinfomsg info = { .ifi_index = 0 };
	struct nlattr *peer = nla_nest_start(msg, VETH_INFO_PEER);
	int r = peer ? nlmsg_append(msg, (void *)(uintptr_t)&info, sizeof(info), NLMSG_ALIGNTO)
		     : -NLE_NOMEM;

	if (r == 0)
		r = put_end(msg, l->host_name[0] ? l->host_name : "veth%d", &l->host_address);
	if (r == 0)
		r = nla_put_u32(msg, IFLA_NET_NS_FD, (uint32_t)own->fd);
	return r < 0 ? r : nla_nest_end(msg, peer);
}

static int put_pair(struct nl_msg *msg, const Ckpt__Net__Link *l, const struct ckpt_ns *own)
{
	const struct ifinfomsg info = { .ifi_index = (int)l->index };
	struct nlattr *kind, *data;
	int r = nlmsg_append(msg, (void *)(uintptr_t)&info, sizeof(info), NLMSG_ALIGNTO);

	if (r == 0)
		r = put_end(msg, l->name, &l->address);
	if (r == 0)
		r = net_put_all(msg, l->birth, l->n_birth);
	kind = r == 0 ? nla_nest_start(msg, IFLA_LINKINFO) : NULL;
	r = kind ? nla_put_string(msg, IFLA_INFO_KIND, "veth") : -NLE_NOMEM;
	data = r == 0 ? nla_nest_start(msg, IFLA_INFO_DATA) : NULL;
	r = data ? put_host(msg, l, own) : -NLE_NOMEM;
	if (r < 0)
		return r;
	nla_nest_end(msg, data);
	return nla_nest_end(msg, kind);
}

/* The original's outer end goes some time after its namespace, which goes after the tree. */
#define PATIENCE 1000
#define PAUSE_US 10000

int net_external_make(struct net_job *job, const Ckpt__Net__Link *l, struct ckpt_error *err)
{
	const struct ckpt_ns *own = ckpt_ns_own(job->run, CKPT_NS_NET);
	int r = -NLE_EXIST;

	for (int i = 0; i < PATIENCE && r == -NLE_EXIST; i++) {
		struct nl_msg *msg = nlmsg_alloc_simple(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL);

		if (i)
			usleep(PAUSE_US);
		r = net_finish(job, msg, msg ? put_pair(msg, l, own) : -NLE_NOMEM);
	}
	if (r == 0)
		return 0;
	ckpt_fail(err, EIO, "link %s with %s outside: %s", l->name, l->host_name, nl_geterror(r));
	return r == -NLE_EXIST
		       ? ckpt_hint(err, "a link of that name is in ckpt's network namespace")
		       : -EIO;
}

/* One end outside: up, or a port of what it is to be. */
struct attaching {
	struct net_job job;
	uint32_t index, master;
};

static int set_host(struct net_job *job, struct ckpt_error *err)
{
	const struct attaching *x = (const struct attaching *)(const void *)job;
	const struct ifinfomsg info = { .ifi_index = (int)x->index,
					.ifi_flags = IFF_UP,
					.ifi_change = IFF_UP };
	struct nl_msg *msg = nlmsg_alloc_simple(RTM_SETLINK, 0);
	int r = msg ? nlmsg_append(msg, (void *)(uintptr_t)&info, sizeof(info), NLMSG_ALIGNTO)
		    : -NLE_NOMEM;

	if (r == 0 && x->master)
		r = nla_put_u32(msg, IFLA_MASTER, x->master);
	r = net_finish(job, msg, r);
	return r < 0 ? ckpt_fail(err, EIO, "the outer end of a veth pair: %s", nl_geterror(r)) : 0;
}

static int set_one(struct ckpt_run *run, const Ckpt__Net__Link *l, uint32_t index, bool attach,
		   struct ckpt_error *err)
{
	const char *bridge = attach ? bridge_of(run, l) : NULL;
	struct attaching x = { .job = { .run = run, .ns = ckpt_ns_own(run, CKPT_NS_NET) },
			       .index = index };

	if (bridge) {
		x.master = if_nametoindex(bridge);
		if (!x.master)
			return ckpt_fail(err, ENODEV, "link %s: there is no %s", l->name, bridge);
	} else if (attach) {
		ckpt_log(run, CKPT_LOG_INFO, "link %s: its outer end is connected to nothing",
			 l->name);
	}
	return net_run(&x.job, set_host, err);
}

int net_externals_set(struct ckpt_run *run, const struct ckpt_ns *ns, const Ckpt__Net__Network *net,
		      bool attach, struct ckpt_error *err)
{
	AUTO_NETWORK Ckpt__Net__Network *now = NULL;
	int r = 0;

	if (!has_externals(net))
		return 0;
	now = links_of(run, ns, err);
	if (!now)
		return -err->err;
	for (size_t i = 0; i < net->n_links && r == 0; i++) {
		const Ckpt__Net__Link *l = net->links[i], *made = net_link(now, l->index);

		if (!l->external)
			continue;
		r = made && made->peer ? set_one(run, l, made->peer, attach, err)
				       : ckpt_fail(err, ENODEV, "link %s is gone", l->name);
	}
	return r;
}
