/* SPDX-License-Identifier: MIT */
/* The plugin net: what network namespaces hold. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "net.h"

struct net_state *net_state(struct ckpt_run *run)
{
	return ckpt_state_make(run, sizeof(struct net_state));
}

static void state_free(void *state)
{
	struct net_state *st = state;

	if (!st)
		return;
	net_ends_free(st);
	net_ahead_free(st->ahead);
	free(st);
}

static void net_free(Ckpt__Net__Network **net)
{
	if (*net)
		ckpt__net__network__free_unpacked(*net, NULL);
}
#define AUTO_NETWORK __attribute__((cleanup(net_free)))

static int read_all(struct net_job *job, struct ckpt_error *err)
{
	int r = net_links_read(job, err);

	if (r == 0)
		r = net_offloads_read(job, err);
	if (r == 0)
		r = net_entries_read(job, err);
	if (r == 0)
		r = net_nft_read(job, err);
	return r < 0 ? r : net_traffic_read(job, err);
}

static int look(struct net_job *job, struct ckpt_error *err)
{
	int r = net_links_read(job, err);

	if (r == 0)
		r = net_entries_read(job, err);
	if (r < 0)
		return r;
	net_entries_refuse(job);
	r = net_traffic_refuse(job, err);
	return r < 0 ? r : net_filters_refuse(job, err);
}

/* A job with an empty record. */
static int start(struct net_job *job, struct ckpt_run *run, const struct ckpt_ns *ns,
		 struct ckpt_error *err)
{
	*job = (struct net_job){ .run = run, .ns = (struct ckpt_ns *)(uintptr_t)ns };
	job->net = malloc(sizeof(*job->net));
	if (!job->net)
		return ckpt_fail_sys(err, ENOMEM, "network namespace");
	ckpt__net__network__init(job->net);
	job->net->id = ns->id;
	return 0;
}

static int survey(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err)
{
	struct net_job job;
	int r = start(&job, run, ns, err);
	AUTO_NETWORK Ckpt__Net__Network *net = job.net;

	if (r == 0)
		r = net_run(&job, look, err);
	if (r == 0)
		net_links_refuse(&job);
	return net ? r : -ENOMEM;
}

static int collect(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err)
{
	struct net_job job;
	int r = start(&job, run, ns, err);
	AUTO_NETWORK Ckpt__Net__Network *net = job.net;

	if (r == 0)
		r = net_run(&job, read_all, err);
	if (r == 0)
		r = net_sysctls_take(&job, err);
	if (r == 0)
		r = net_externals_look(&job, err);
	return r < 0 ? r : ckpt_record_put(run, NET_REC_NETWORK, &net->base, err);
}

static bool good_settings(Ckpt__Net__Attribute *const *list, size_t n, const char *kind)
{
	for (size_t i = 0; i < n; i++)
		if (!net_link_attribute_ok(kind, list[i]->type) || list[i]->value.len > 64)
			return false;
	return true;
}

static int plan_settings(const Ckpt__Net__Network *net, const Ckpt__Net__Link *l,
			 struct ckpt_error *err)
{
	const Ckpt__Net__Link *master = l->master ? net_link(net, l->master) : NULL;

	if ((l->master && (!master || master == l || strcmp(master->kind, "bridge") != 0)) ||
	    (l->n_port && !l->master) || !good_settings(l->data, l->n_data, l->kind) ||
	    !good_settings(l->port, l->n_port, NET_BRIDGE_PORT) ||
	    !good_settings(l->own, l->n_own, NET_ANY_LINK) ||
	    !good_settings(l->birth, l->n_birth, NET_BIRTH) || l->n_on > NET_MAX_OFFLOADS ||
	    l->n_off > NET_MAX_OFFLOADS || l->rx_queues > NET_MAX_QUEUES ||
	    l->tx_queues > NET_MAX_QUEUES)
		return ckpt_fail_image(err, "link %u: bad bridge or settings", l->index);
	return 0;
}

static int plan_link(struct ckpt_run *run, const Ckpt__Net__Network *net, const Ckpt__Net__Link *l,
		     struct ckpt_error *err)
{
	const Ckpt__Net__Network *other;
	const Ckpt__Net__Link *peer;

	if (!l->index || l->index > INT32_MAX || strlen(l->name) >= IFNAMSIZ || !l->name[0] ||
	    l->address.len > 32 || strlen(l->alias) >= 256 || net_link(net, l->index) != l)
		return ckpt_fail_image(err, "link %u: bad index, name or address", l->index);
	if (plan_settings(net, l, err) < 0)
		return -err->err;
	if (!l->kind[0])
		return strcmp(l->name, "lo") || l->index != 1
			       ? ckpt_fail_image(err, "link %u: not the loopback device", l->index)
			       : 0;
	if (l->tun || !strcmp(l->kind, "tun"))
		return net_tun_plan(run, l, err);
	if (l->external)
		return net_external_plan(run, l, err);
	if (!strcmp(l->kind, "bridge") || !strcmp(l->kind, "dummy"))
		return l->peer || l->peer_ns ? ckpt_fail_image(err, "link %u: a peer", l->index)
					     : 0;
	if (strcmp(l->kind, "veth") != 0)
		return ckpt_fail_image(err, "link %u: no kind \"%.40s\"", l->index, l->kind);
	other = ckpt_record_need(run, "net.network", l->peer_ns, err);
	if (!other)
		return -err->err;
	peer = net_link(other, l->peer);
	if (!peer || peer == l || peer->peer_ns != net->id || peer->peer != l->index ||
	    strcmp(peer->kind, "veth") != 0)
		return ckpt_fail_image(err, "link %u: its other end does not know it", l->index);
	return 0;
}

static int plan(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err)
{
	const Ckpt__Net__Network *net;
	int r = ckpt_record_order(run, "net.network", err);

	net = r < 0 ? NULL : ckpt_record_need(run, "net.network", ns->id, err);
	if (!net)
		return -err->err;
	if (net->n_links > NET_MAX_LINKS || net->n_entries > NET_MAX_ENTRIES ||
	    net->n_sysctls > NET_MAX_SYSCTLS || net->n_traffic > NET_MAX_LINKS)
		return ckpt_fail_image(err, "too many links, entries or settings");
	for (size_t i = 0; i < net->n_links && r == 0; i++)
		r = plan_link(run, net, net->links[i], err);
	for (size_t i = 0; i < net->n_sysctls && r == 0; i++)
		if (!net_sysctl_name_ok(net->sysctls[i]->name))
			r = ckpt_fail_image(err, "setting %zu: bad name", i);
	if (r == 0)
		r = net_nft_plan(net, err);
	if (r == 0)
		r = net_traffic_plan(net, err);
	return r < 0 ? r : net_entries_plan(net, err);
}

static int make_all(struct net_job *job, struct ckpt_error *err)
{
	int r = net_links_make(job, err);

	if (r == 0)
		r = net_sysctls_write(job, err);
	if (r == 0)
		r = net_nft_make(job, err);
	if (r == 0)
		r = net_entries_make(job, true, err);
	if (r == 0)
		r = net_offloads_set(job, err);
	if (r == 0)
		r = net_links_up(job, err);
	return r < 0 ? r : net_traffic_make(job, err);
}

static int fill(struct ckpt_run *run, struct ckpt_ns *ns, struct ckpt_error *err)
{
	struct net_job job = { .run = run, .ns = ns };

	job.net =
		(Ckpt__Net__Network *)(uintptr_t)ckpt_record_need(run, "net.network", ns->id, err);
	if (!job.net || net_run(&job, make_all, err) < 0)
		return -err->err;
	return net_externals_set(run, ns, job.net, false, err);
}

/* The tree is about to run: what comes from outside may come now. */
static int settle(struct ckpt_run *run, struct ckpt_ns *ns, struct ckpt_error *err)
{
	const Ckpt__Net__Network *net = ckpt_record_need(run, "net.network", ns->id, err);

	return net ? net_externals_set(run, ns, net, true, err) : -err->err;
}

static int make_routes(struct net_job *job, struct ckpt_error *err)
{
	int r = net_entries_make(job, false, err);

	if (r == 0)
		r = net_links_await(job, err);
	return r < 0 ? r : net_sysctls_again(job, err);
}

/* The other ends of pairs are up by now, and what depends on a carrier can be had. */
static int finish(struct ckpt_run *run, struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; i < ckpt_record_count(run, "net.network") && r == 0; i++) {
		struct net_job job = { .run = run };

		job.net = (Ckpt__Net__Network *)(uintptr_t)ckpt_record_at(run, "net.network", i);
		job.ns = ckpt_ns_by_id(run, job.net->id);
		r = net_run(&job, make_routes, err);
		if (r < 0)
			ckpt_wrap(err, "%s", job.ns->name);
	}
	return r;
}

static const struct ckpt_ns_kind kind = {
	.size = sizeof(kind),
	.type = CKPT_NS_NET,
	.feature = "namespaces",
	.survey = survey,
	.collect = collect,
	.plan = plan,
	.fill = fill,
	.settle = settle,
};

static const struct ckpt_extension extensions[] = {
	{ CKPT_NS_POINT, "net", &kind },
	{ CKPT_FD_POINT, "tun", &net_kind_tun },
	{ NULL, NULL, NULL },
};

static const struct ckpt_feature features[] = {
	{ "namespaces", "network namespaces: loopback, addresses, routes, rules, settings" },
	{ "veth", "veth pairs with both ends in the tree" },
	{ "bridge", "bridges with their ports, and dummy links" },
	{ "nftables", "nftables rulesets, with their handles and counters" },
	{ "tun", "devices of /dev/net/tun, with their descriptors" },
	{ "qdisc", "queueing disciplines with their classes: htb, tbf, fifos, ingress" },
	{ "external", "veth pairs whose other end is outside, as -o net.external says" },
	{ NULL, NULL },
};

static const char *const tcp_words[] = { "refuse", "established", "reset", NULL };

static const struct ckpt_option options[] = {
	{ "tcp", CKPT_OPT_ENUM, "refuse", tcp_words, 0, 0,
	  "TCP connections with the outside: refused, kept (their packets are dropped until the "
	  "restore), or ended as by the other side" },
	{ "external", CKPT_OPT_LIST, NULL, NULL, 0, 0,
	  "NAME: a veth link whose other end is outside is made anew; restore: NAME:BRIDGE "
	  "connects that end" },
	{ NULL, CKPT_OPT_BOOL, NULL, NULL, 0, 0, NULL },
};

static const struct ckpt_record_type records[] = {
	{ NET_REC_NETWORK, "network", &ckpt__net__network__descriptor },
	{ NET_REC_TUN_END, "tun-end", &ckpt__net__tun_end__descriptor },
	{ 0, NULL, NULL },
};

/* A ruleset stays the same while packets come and go. */
static const struct ckpt_field_rule rules[] = {
	{ "NftItem", "elements", CKPT_EQ_VOLATILE },
	{ "NftItem", "counters", CKPT_EQ_VOLATILE },
	{ NULL, NULL, CKPT_EQ_VOLATILE },
};

#define LIST(...) ((const char *const[]){ __VA_ARGS__, NULL })

static const struct ckpt_step steps[] = {
	{ CKPT_RESTORE, "routes", "addresses, routes, rules and neighbours", LIST("ns.make"),
	  LIST("namespaces-made"), NULL, finish, NULL },
	{ 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL },
};

CKPT_PLUGIN{
	CKPT_PLUGIN_HEADER,
	.name = "net",
	.version = "0.1.0",
	.summary = "network namespaces: links, addresses, routes, rules, settings",
	.license = "MIT",
	.options = options,
	.features = features,
	.records = records,
	.rules = rules,
	.steps = steps,
	.extensions = extensions,
	.state_free = state_free,
};
