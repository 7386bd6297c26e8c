/* SPDX-License-Identifier: MIT */
/*
 * Queueing disciplines that somebody has added, with their classes: the kernel takes the options of
 * these kinds as it tells them. The ones that a link has by itself have no handle.
 */
#include <linux/pkt_sched.h>
#include <linux/rtnetlink.h>
#include <netlink/attr.h>
#include <netlink/msg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net.h"

static const char *const kinds[] = { "bfifo", "clsact",		 "htb", "ingress",
				     "pfifo", "pfifo_head_drop", "tbf" };

#define CLASSFUL "htb"

static bool known(const char *kind)
{
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(kinds); i++)
		if (!strcmp(kinds[i], kind))
			return true;
	return false;
}

/* Where the kernel tells its version in one form and takes it in another, and counts packets. */
static void clean(Ckpt__Net__Traffic *t)
{
	struct nlattr *init = nla_find((struct nlattr *)(void *)t->options.data,
				       (int)t->options.len, TCA_HTB_INIT);
	struct tc_htb_glob *glob = init ? nla_data(init) : NULL;

	if (t->is_class || strcmp(t->kind, CLASSFUL) != 0 || !glob ||
	    nla_len(init) < (int)sizeof(*glob))
		return;
	glob->version >>= 16;
	glob->direct_pkts = 0;
}

struct walk {
	struct net_job *job;
	bool is_class, refuse;
};

static void object(const struct net_job *job, const struct tcmsg *tc, const char *kind, char *buf,
		   size_t size)
{
	const Ckpt__Net__Link *l = net_link(job->net, (uint32_t)tc->tcm_ifindex);

	snprintf(buf, size, "queueing discipline %s %x: of link %s", kind, tc->tcm_handle >> 16,
		 l ? l->name : "?");
}

/* Tables of sizes are not told, and blocks are shared. */
static bool is_plain(struct nlattr **at)
{
	return !at[TCA_STAB] && !at[TCA_INGRESS_BLOCK] && !at[TCA_EGRESS_BLOCK];
}

static void refuse(const struct walk *w, const struct tcmsg *tc, struct nlattr **at,
		   const char *kind)
{
	char what[128];

	object(w->job, tc, kind, what, sizeof(what));
	if (!known(kind) || !is_plain(at))
		net_refuse(w->job, "qdisc-kind", what);
	else if (!ckpt_feature_on(w->job->run, "qdisc"))
		net_refuse(w->job, "qdisc", what);
}

static int keep(const struct walk *w, const struct tcmsg *tc, const struct nlattr *options,
		const char *kind, struct ckpt_error *err)
{
	Ckpt__Net__Network *net = w->job->net;
	size_t len = options ? (size_t)nla_len(options) : 0;
	Ckpt__Net__Traffic *t = malloc(sizeof(*t));

	if (net_append(&net->traffic, &net->n_traffic, t, err) < 0) {
		free(t);
		return -ENOMEM;
	}
	ckpt__net__traffic__init(t);
	t->is_class = w->is_class;
	t->link = (uint32_t)tc->tcm_ifindex;
	t->handle = tc->tcm_handle;
	t->parent = tc->tcm_parent;
	t->kind = strdup(kind);
	t->options.data = malloc(len ? len : 1);
	if (!t->kind || !t->options.data)
		return ckpt_fail_sys(err, ENOMEM, "queueing discipline");
	if (len)
		memcpy(t->options.data, nla_data(options), len);
	t->options.len = len;
	clean(t);
	return 0;
}

static int on_one(struct nlmsghdr *h, void *arg, struct ckpt_error *err)
{
	const struct tcmsg *tc = nlmsg_data(h);
	const struct walk *w = arg;
	struct nlattr *at[TCA_MAX + 1] = { 0 };
	const char *kind;

	nlmsg_parse(h, sizeof(*tc), at, TCA_MAX, NULL);
	kind = at[TCA_KIND] ? nla_data(at[TCA_KIND]) : "?";
	if (!tc->tcm_handle || (w->is_class && strcmp(kind, CLASSFUL) != 0))
		return 0;
	if (w->refuse && !w->is_class)
		refuse(w, tc, at, kind);
	return known(kind) && is_plain(at) ? keep(w, tc, at[TCA_OPTIONS], kind, err) : 0;
}

static int ask(const struct walk *w, int type, uint32_t link, struct ckpt_error *err)
{
	const struct tcmsg tc = { .tcm_family = AF_UNSPEC, .tcm_ifindex = (int)link };
	const struct net_request q = { type, 0, &tc, sizeof(tc) };

	return net_dump(w->job, &q, on_one, (void *)(uintptr_t)w, err);
}

static bool is_top(uint32_t parent)
{
	return parent == TC_H_ROOT || parent == TC_H_INGRESS;
}

/* The one that a class or an inner one belongs to is among them. */
static bool has_place(const Ckpt__Net__Network *net, const Ckpt__Net__Traffic *t)
{
	const uint32_t major = TC_H_MAJ(is_top(t->parent) ? t->handle : t->parent);

	if (!t->is_class && is_top(t->parent))
		return true;
	for (size_t i = 0; i < net->n_traffic; i++) {
		const Ckpt__Net__Traffic *other = net->traffic[i];

		if (other != t && !other->is_class && other->link == t->link &&
		    other->handle == major)
			return true;
	}
	return false;
}

/* What is in one that was left out by permission goes with it. */
static void drop_homeless(Ckpt__Net__Network *net)
{
	for (size_t i = 0; i < net->n_traffic;) {
		Ckpt__Net__Traffic *t = net->traffic[i];

		if (has_place(net, t)) {
			i++;
			continue;
		}
		net->traffic[i] = net->traffic[--net->n_traffic];
		ckpt__net__traffic__free_unpacked(t, NULL);
		i = 0;
	}
}

static int by_place(const void *a, const void *b)
{
	const Ckpt__Net__Traffic *x = *(Ckpt__Net__Traffic *const *)a;
	const Ckpt__Net__Traffic *y = *(Ckpt__Net__Traffic *const *)b;

	if (x->link != y->link)
		return x->link < y->link ? -1 : 1;
	if (x->handle != y->handle)
		return x->handle < y->handle ? -1 : 1;
	return (x->parent > y->parent) - (x->parent < y->parent);
}

static int gather(struct net_job *job, bool refuse_them, struct ckpt_error *err)
{
	struct walk w = { job, false, refuse_them };
	Ckpt__Net__Network *net = job->net;
	int r = ask(&w, RTM_GETQDISC, 0, err);

	w.is_class = true;
	for (size_t i = 0; i < net->n_links && r == 0; i++)
		r = net->n_traffic ? ask(&w, RTM_GETTCLASS, net->links[i]->index, err) : 0;
	if (r < 0 || !net->n_traffic)
		return r;
	drop_homeless(net);
	qsort(net->traffic, net->n_traffic, sizeof(*net->traffic), by_place);
	return 0;
}

int net_traffic_read(struct net_job *job, struct ckpt_error *err)
{
	return ckpt_feature_on(job->run, "qdisc") ? gather(job, false, err) : 0;
}

/* ---- filters ------------------------------------------------------------------------ */

static int on_filter(struct nlmsghdr *h, void *arg, struct ckpt_error *err)
{
	(void)h;
	(void)err;
	*(bool *)arg = true;
	return 0;
}

static int filters_at(struct net_job *job, const Ckpt__Net__Traffic *t, uint32_t parent,
		      bool *found, struct ckpt_error *err)
{
	const struct tcmsg tc = { .tcm_family = AF_UNSPEC,
				  .tcm_ifindex = (int)t->link,
				  .tcm_parent = parent };
	const struct net_request q = { RTM_GETTFILTER, 0, &tc, sizeof(tc) };

	return *found ? 0 : net_dump(job, &q, on_filter, found, err);
}

static int refuse_filters(struct net_job *job, const Ckpt__Net__Traffic *t, struct ckpt_error *err)
{
	const struct tcmsg tc = { .tcm_ifindex = (int)t->link, .tcm_handle = t->handle };
	bool found = false;
	char what[128], name[160];
	int r;

	if (!strcmp(t->kind, "clsact")) {
		r = filters_at(job, t, TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS), &found, err);
		if (r == 0)
			r = filters_at(job, t, TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_EGRESS), &found,
				       err);
	} else {
		r = strcmp(t->kind, CLASSFUL) && strcmp(t->kind, "ingress")
			    ? 0
			    : filters_at(job, t, t->handle, &found, err);
	}
	if (found) {
		object(job, &tc, t->kind, what, sizeof(what));
		snprintf(name, sizeof(name), "filters of %s", what);
		net_refuse(job, "tc-filter", name);
	}
	return r;
}

int net_traffic_refuse(struct net_job *job, struct ckpt_error *err)
{
	int r = gather(job, true, err);

	for (size_t i = 0; i < job->net->n_traffic && r == 0; i++)
		r = refuse_filters(job, job->net->traffic[i], err);
	return r;
}

/* ---- restore ------------------------------------------------------------------------ */

int net_traffic_plan(const Ckpt__Net__Network *net, struct ckpt_error *err)
{
	for (size_t i = 0; i < net->n_traffic; i++) {
		const Ckpt__Net__Traffic *t = net->traffic[i];

		if (!known(t->kind) || (t->is_class && strcmp(t->kind, CLASSFUL) != 0) ||
		    !t->handle || t->options.len > 4096 || !net_link(net, t->link) ||
		    !has_place(net, t))
			return ckpt_fail_image(err, "queueing discipline %zu is none", i);
	}
	return 0;
}

static int make_one(struct net_job *job, const Ckpt__Net__Traffic *t)
{
	const struct tcmsg tc = { .tcm_family = AF_UNSPEC,
				  .tcm_ifindex = (int)t->link,
				  .tcm_handle = t->handle,
				  .tcm_parent = t->parent };
	struct nl_msg *msg = nlmsg_alloc_simple(t->is_class ? RTM_NEWTCLASS : RTM_NEWQDISC,
						NLM_F_CREATE | NLM_F_EXCL);
	int r = msg ? nlmsg_append(msg, (void *)(uintptr_t)&tc, sizeof(tc), NLMSG_ALIGNTO)
		    : -NLE_NOMEM;

	if (r == 0)
		r = nla_put_string(msg, TCA_KIND, t->kind);
	if (r == 0 && t->options.len)
		r = nla_put(msg, TCA_OPTIONS, (int)t->options.len, t->options.data);
	return net_finish(job, msg, r);
}

/* Whatever one of them is in comes before it: as often as that brings one more. */
int net_traffic_make(struct net_job *job, struct ckpt_error *err)
{
	const Ckpt__Net__Network *net = job->net;
	CKPT_AUTO_FREE bool *made = calloc(net->n_traffic + 1, sizeof(*made));
	const Ckpt__Net__Traffic *left = NULL;
	bool more = true;
	int why = 0;

	if (!made)
		return ckpt_fail_sys(err, ENOMEM, "queueing disciplines");
	while (more) {
		more = false;
		left = NULL;
		for (size_t i = 0; i < net->n_traffic; i++) {
			int r = made[i] ? 0 : make_one(job, net->traffic[i]);

			more |= r == 0 && !made[i];
			made[i] = r == 0;
			if (r < 0) {
				left = net->traffic[i];
				why = r;
			}
		}
	}
	return left ? ckpt_fail(err, EIO, "queueing discipline or class %x:%x (%s): %s",
				left->handle >> 16, left->handle & 0xffff, left->kind,
				nl_geterror(why))
		    : 0;
}
