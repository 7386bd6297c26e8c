/* SPDX-License-Identifier: MIT */
/*
 * Addresses, routes, rules, neighbours, labels of addresses and what bridges were told to know:
 * what rtnetlink tells of each is kept as header and attributes, and given back in the same words.
 * The kernel makes some of them by itself (the addresses of lo, routes to what an address reaches),
 * so a restore makes the kernel's list equal to the saved one: it deletes what is too much and adds
 * what is missing.
 */
#include <arpa/inet.h>
#include <linux/fib_rules.h>
#include <linux/if_addr.h>
#include <linux/if_addrlabel.h>
#include <linux/neighbour.h>
#include <linux/rtnetlink.h>
#include <netlink/attr.h>
#include <netlink/msg.h>
#include <netlink/netlink.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "net.h"

/* Attributes are numbered far below that in all four families. */
#define BIT(type)	(1ULL << (type))
#define EVERY_ATTRIBUTE (~0ULL)

struct entry_kind {
	const char *name;
	int get, add, del;
	int add_flag; /* an address has one set of flags, a place more than one route */
	size_t header_len;
	uint64_t attributes; /* the ones that are kept */
	bool before_up;
	bool ordered;		  /* among its like the first one counts */
	uint8_t families[2], ask; /* and flags of struct ndmsg, with which a question is another */
	/* Clear what is state; false: such an entry is not kept. */
	bool (*clean)(void *header);
};

static bool clean_address(void *header)
{
	struct ifaddrmsg *h = header;

	h->ifa_flags = 0; /* they are in an attribute too */
	return true;
}

static bool clean_route(void *header)
{
	struct rtmsg *h = header;

	if (h->rtm_flags & RTM_F_CLONED)
		return false;
	h->rtm_flags &= RTNH_F_ONLINK;
	return true;
}

static bool clean_rule(void *header)
{
	struct fib_rule_hdr *h = header;

	h->flags &= FIB_RULE_INVERT;
	return true;
}

static bool clean_neighbour(void *header)
{
	struct ndmsg *h = header;

	h->ndm_type = 0;
	return h->ndm_state == NUD_PERMANENT;
}

static bool clean_proxied(void *header)
{
	struct ndmsg *h = header;

	h->ndm_type = 0;
	return h->ndm_flags & NTF_PROXY;
}

/* What a bridge has learned by itself it learns again. */
static bool clean_forwarding(void *header)
{
	struct ndmsg *h = header;

	h->ndm_type = 0;
	h->ndm_flags &= (uint8_t)~NTF_OFFLOADED;
	return h->ndm_state & (NUD_PERMANENT | NUD_NOARP) || h->ndm_flags & NTF_EXT_LEARNED;
}

/* Of the table, not of the entry: the times that it was changed. */
static bool clean_label(void *header)
{
	struct ifaddrlblmsg *h = header;

	h->ifal_seq = 0;
	return true;
}

#define INTERNET                  \
	{                         \
		AF_INET, AF_INET6 \
	}

/* An order in which each finds what it needs. */
static const struct entry_kind kinds[] = {
	{ "address", RTM_GETADDR, RTM_NEWADDR, RTM_DELADDR, NLM_F_REPLACE, sizeof(struct ifaddrmsg),
	  BIT(IFA_ADDRESS) | BIT(IFA_LOCAL) | BIT(IFA_LABEL) | BIT(IFA_BROADCAST) | BIT(IFA_FLAGS) |
		  BIT(IFA_RT_PRIORITY),
	  true, true, INTERNET, 0, clean_address },
	{ "route", RTM_GETROUTE, RTM_NEWROUTE, RTM_DELROUTE, NLM_F_APPEND, sizeof(struct rtmsg),
	  EVERY_ATTRIBUTE & ~BIT(RTA_CACHEINFO), false, true, INTERNET, 0, clean_route },
	{ "rule", RTM_GETRULE, RTM_NEWRULE, RTM_DELRULE, 0, sizeof(struct fib_rule_hdr),
	  EVERY_ATTRIBUTE & ~BIT(FRA_PAD), false, true, INTERNET, 0, clean_rule },
	{ "neighbour", RTM_GETNEIGH, RTM_NEWNEIGH, RTM_DELNEIGH, NLM_F_REPLACE,
	  sizeof(struct ndmsg), BIT(NDA_DST) | BIT(NDA_LLADDR) | BIT(NDA_PROTOCOL), false, false,
	  INTERNET, 0, clean_neighbour },
	{ "proxied", RTM_GETNEIGH, RTM_NEWNEIGH, RTM_DELNEIGH, 0, sizeof(struct ndmsg),
	  BIT(NDA_DST), false, false, INTERNET, NTF_PROXY, clean_proxied },
	{ "forwarding",
	  RTM_GETNEIGH,
	  RTM_NEWNEIGH,
	  RTM_DELNEIGH,
	  0,
	  sizeof(struct ndmsg),
	  BIT(NDA_LLADDR),
	  false,
	  false,
	  { AF_BRIDGE },
	  0,
	  clean_forwarding },
	{ "label",
	  RTM_GETADDRLABEL,
	  RTM_NEWADDRLABEL,
	  RTM_DELADDRLABEL,
	  NLM_F_REPLACE,
	  sizeof(struct ifaddrlblmsg),
	  BIT(IFAL_ADDRESS) | BIT(IFAL_LABEL),
	  false,
	  false,
	  { AF_INET6 },
	  0,
	  clean_label },
};

static const struct entry_kind *kind_of(const char *name)
{
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(kinds); i++)
		if (!strcmp(kinds[i].name, name))
			return &kinds[i];
	return NULL;
}

/* Where entries are gathered; a namespace's record has the same fields. */
struct gather {
	const struct entry_kind *kind;
	bool finite; /* one of them ends by itself */
	Ckpt__Net__Entry **list;
	size_t n;
};

static void gather_free(struct gather *g)
{
	for (size_t i = 0; i < g->n; i++)
		ckpt__net__entry__free_unpacked(g->list[i], NULL);
	free(g->list);
}

static int copy(ProtobufCBinaryData *to, const void *data, size_t len, struct ckpt_error *err)
{
	to->data = malloc(len ? len : 1);
	if (!to->data)
		return ckpt_fail_sys(err, ENOMEM, "entry of a network namespace");
	if (len)
		memcpy(to->data, data, len);
	to->len = len;
	return 0;
}

/* IFA_F_PERMANENT and what duplicate address detection and age do to an address is state. */
static void clean_flags(const struct entry_kind *kind, Ckpt__Net__Attribute *a)
{
	const uint32_t state = IFA_F_PERMANENT | IFA_F_TENTATIVE | IFA_F_DADFAILED |
			       IFA_F_OPTIMISTIC | IFA_F_DEPRECATED | IFA_F_SECONDARY |
			       IFA_F_STABLE_PRIVACY;
	uint32_t flags;

	if (kind->get != RTM_GETADDR || a->type != IFA_FLAGS || a->value.len != sizeof(flags))
		return;
	memcpy(&flags, a->value.data, sizeof(flags));
	flags &= ~state;
	memcpy(a->value.data, &flags, sizeof(flags));
}

/* A carrier that is missing now; the kernel refuses to be told so. */
static void clean_nexthops(const struct entry_kind *kind, Ckpt__Net__Attribute *a)
{
	size_t at = 0;

	if (kind->get != RTM_GETROUTE || a->type != RTA_MULTIPATH)
		return;
	while (at + sizeof(struct rtnexthop) <= a->value.len) {
		struct rtnexthop *hop = (struct rtnexthop *)(a->value.data + at);

		if (hop->rtnh_len < sizeof(*hop))
			return;
		hop->rtnh_flags &= RTNH_F_ONLINK;
		at += RTNH_ALIGN(hop->rtnh_len);
	}
}

static int add_attribute(Ckpt__Net__Entry *e, int type, const void *data, size_t len,
			 struct ckpt_error *err)
{
	Ckpt__Net__Attribute *a = malloc(sizeof(*a));

	if (net_append(&e->attributes, &e->n_attributes, a, err) < 0) {
		free(a);
		return -ENOMEM;
	}
	ckpt__net__attribute__init(a);
	a->type = (uint32_t)type;
	return copy(&a->value, data, len, err);
}

static int keep_attribute(const struct entry_kind *kind, Ckpt__Net__Entry *e,
			  const struct nlattr *at, struct ckpt_error *err)
{
	if (add_attribute(e, nla_type(at), nla_data(at), (size_t)nla_len(at), err) < 0)
		return -err->err;
	clean_flags(kind, e->attributes[e->n_attributes - 1]);
	clean_nexthops(kind, e->attributes[e->n_attributes - 1]);
	return 0;
}

/* An address that stays, but is no source of connections any more (preferred_lft 0). */
static bool is_deprecated(const struct entry_kind *kind, const struct nlattr *at)
{
	return kind->get == RTM_GETADDR && nla_type(at) == IFA_FLAGS &&
	       nla_get_u32(at) & IFA_F_DEPRECATED;
}

static int by_type(const void *a, const void *b)
{
	const Ckpt__Net__Attribute *x = *(Ckpt__Net__Attribute *const *)a;
	const Ckpt__Net__Attribute *y = *(Ckpt__Net__Attribute *const *)b;

	return (x->type > y->type) - (x->type < y->type);
}

static bool is_finite(const struct entry_kind *kind, const struct nlattr *at)
{
	if (kind->get == RTM_GETADDR && nla_type(at) == IFA_CACHEINFO) {
		const struct ifa_cacheinfo *c = nla_data(at);

		return c->ifa_valid != UINT32_MAX ||
		       (c->ifa_prefered && c->ifa_prefered != UINT32_MAX);
	}
	if (kind->get == RTM_GETROUTE && nla_type(at) == RTA_CACHEINFO) {
		const struct rta_cacheinfo *c = nla_data(at);

		return c->rta_expires != 0;
	}
	return false;
}

static int take_attributes(struct gather *g, Ckpt__Net__Entry *e, struct nlmsghdr *h,
			   struct ckpt_error *err)
{
	const struct ifa_cacheinfo never = { .ifa_prefered = 0, .ifa_valid = UINT32_MAX };
	const struct entry_kind *kind = g->kind;
	struct nlattr *at = nlmsg_attrdata(h, (int)kind->header_len);
	int left = nlmsg_attrlen(h, (int)kind->header_len);

	for (; nla_ok(at, left); at = nla_next(at, &left)) {
		g->finite |= is_finite(kind, at);
		if (nla_type(at) < 64 && kind->attributes & BIT(nla_type(at)) &&
		    keep_attribute(kind, e, at, err) < 0)
			return -ENOMEM;
		/* the lifetimes that IPv4 tells of such a one do not say so */
		if (is_deprecated(kind, at) &&
		    add_attribute(e, IFA_CACHEINFO, &never, sizeof(never), err) < 0)
			return -ENOMEM;
	}
	if (e->n_attributes)
		qsort(e->attributes, e->n_attributes, sizeof(*e->attributes), by_type);
	return 0;
}

/*
 * Groups that a device of its own listens to: the kernel keeps them for those who are members, and
 * does not tell whether somebody has asked for one too.
 */
static bool is_group(const Ckpt__Net__Entry *e)
{
	return !strcmp(e->kind, "forwarding") && e->n_attributes && e->attributes[0]->value.len &&
	       e->attributes[0]->value.data[0] & 1;
}

static int on_entry(struct nlmsghdr *h, void *arg, struct ckpt_error *err)
{
	struct gather *g = arg;
	const struct entry_kind *kind = g->kind;
	uint8_t header[32];
	Ckpt__Net__Entry *e;

	if ((size_t)nlmsg_datalen(h) < kind->header_len)
		return ckpt_fail(err, EPROTO, "short netlink message");
	memcpy(header, nlmsg_data(h), kind->header_len);
	if (!kind->clean(header))
		return 0;
	e = malloc(sizeof(*e));
	if (net_append(&g->list, &g->n, e, err) < 0) {
		free(e);
		return -ENOMEM;
	}
	ckpt__net__entry__init(e);
	e->kind = strdup(kind->name);
	if (!e->kind || copy(&e->header, header, kind->header_len, err) < 0)
		return ckpt_fail_sys(err, ENOMEM, "entry of a network namespace");
	if (take_attributes(g, e, h, err) < 0)
		return -err->err;
	if (is_group(e)) {
		ckpt__net__entry__free_unpacked(e, NULL);
		g->n--;
	}
	return 0;
}

static int compare_data(const ProtobufCBinaryData *a, const ProtobufCBinaryData *b)
{
	const size_t common = a->len < b->len ? a->len : b->len;
	/* what is empty has no data at all */
	int d = common ? memcmp(a->data, b->data, common) : 0;

	return d ? d : (a->len > b->len) - (a->len < b->len);
}

static int compare(const Ckpt__Net__Entry *a, const Ckpt__Net__Entry *b)
{
	int d = compare_data(&a->header, &b->header);

	for (size_t i = 0; d == 0 && i < a->n_attributes && i < b->n_attributes; i++) {
		d = (int)a->attributes[i]->type - (int)b->attributes[i]->type;
		if (d == 0)
			d = compare_data(&a->attributes[i]->value, &b->attributes[i]->value);
	}
	return d ? d : (a->n_attributes > b->n_attributes) - (a->n_attributes < b->n_attributes);
}

static int compare_attribute(const Ckpt__Net__Entry *a, const Ckpt__Net__Entry *b, uint32_t type)
{
	const ProtobufCBinaryData none = { 0, NULL }, *x = &none, *y = &none;

	for (size_t i = 0; i < a->n_attributes; i++)
		if (a->attributes[i]->type == type)
			x = &a->attributes[i]->value;
	for (size_t i = 0; i < b->n_attributes; i++)
		if (b->attributes[i]->type == type)
			y = &b->attributes[i]->value;
	return compare_data(x, y);
}

/* Up to the first byte that is not about which packets a route is for. */
#define ROUTE_KEY offsetof(struct rtmsg, rtm_protocol)

static int compare_routes(const Ckpt__Net__Entry *a, const Ckpt__Net__Entry *b)
{
	static const uint32_t key[] = { RTA_TABLE, RTA_DST, RTA_SRC, RTA_PRIORITY };
	const struct rtmsg *x = (const void *)a->header.data, *y = (const void *)b->header.data;
	int d = memcmp(x, y, ROUTE_KEY);

	for (size_t i = 0; i < CKPT_ARRAY_SIZE(key) && d == 0; i++)
		d = compare_attribute(a, b, key[i]);
	return d;
}

/*
 * IPv6 makes one of these for each link as it comes up, of types that it would not take back from a
 * user, or for addresses that go with a link only.
 */
static bool each_link_has_it(const Ckpt__Net__Entry *e)
{
	const struct rtmsg *h = (const void *)e->header.data;
	const uint8_t *to = NULL;

	for (size_t i = 0; i < e->n_attributes; i++)
		if (e->attributes[i]->type == RTA_DST && e->attributes[i]->value.len == 16)
			to = e->attributes[i]->value.data;
	return h->rtm_family == AF_INET6 &&
	       (h->rtm_type == RTN_LOCAL || h->rtm_type == RTN_ANYCAST ||
		h->rtm_type == RTN_MULTICAST || (to && to[0] == 0xfe && (to[1] & 0xc0) == 0x80));
}

/* 0: they compete, and the one that the kernel has first wins. */
static int compare_like(const struct entry_kind *kind, const Ckpt__Net__Entry *a,
			const Ckpt__Net__Entry *b)
{
	const struct ifaddrmsg *x = (const void *)a->header.data, *y = (const void *)b->header.data;
	int d = (int)a->header.data[0] - (int)b->header.data[0];

	if (d || !kind->ordered)
		return d ? d : compare(a, b);
	switch (kind->get) {
	case RTM_GETADDR:
		return (x->ifa_index > y->ifa_index) - (x->ifa_index < y->ifa_index);
	case RTM_GETROUTE:
		d = compare_routes(a, b);
		if (d == 0)
			d = each_link_has_it(a) - each_link_has_it(b);
		return d || !each_link_has_it(a) ? d : compare(a, b);
	default: /* rules, which are told by their preference */
		return 0;
	}
}

struct place {
	const struct entry_kind *kind;
	Ckpt__Net__Entry *e;
	size_t at;
};

static int by_place(const void *a, const void *b)
{
	const struct place *x = a, *y = b;
	int d = compare_like(x->kind, x->e, y->e);

	return d ? d : (x->at > y->at) - (x->at < y->at);
}

/* By content, but for those that compete, which keep the kernel's order. */
static int sort(const struct entry_kind *kind, Ckpt__Net__Entry **list, size_t n,
		struct ckpt_error *err)
{
	CKPT_AUTO_FREE struct place *places = calloc(n + 1, sizeof(*places));

	if (!places)
		return ckpt_fail_sys(err, ENOMEM, "entries of a network namespace");
	for (size_t i = 0; i < n; i++)
		places[i] = (struct place){ kind, list[i], i };
	qsort(places, n, sizeof(*places), by_place);
	for (size_t i = 0; i < n; i++)
		list[i] = places[i].e;
	return 0;
}

/* Some are told twice (proxied neighbours of IPv6); of two rules that are the same one counts. */
static void drop_doubles(struct gather *g, size_t from)
{
	size_t n = from;

	for (size_t i = from; i < g->n; i++) {
		bool found = false;

		for (size_t k = n;
		     k-- > from && !found && compare_like(g->kind, g->list[k], g->list[i]) == 0;)
			found = compare(g->list[k], g->list[i]) == 0;
		if (found)
			ckpt__net__entry__free_unpacked(g->list[i], NULL);
		else
			g->list[n++] = g->list[i];
	}
	g->n = n;
}

/* What the kernel has of one kind. */
static int gather(struct net_job *job, struct gather *g, struct ckpt_error *err)
{
	const struct entry_kind *kind = g->kind;
	size_t before = g->n;
	int r = 0;

	for (size_t i = 0; i < sizeof(kind->families) && kind->families[i] && r == 0; i++) {
		_Alignas(struct ndmsg) uint8_t header[32] = { kind->families[i] };
		const struct net_request q = { kind->get, 0, header, kind->header_len };

		if (kind->ask)
			((struct ndmsg *)(void *)header)->ndm_flags = kind->ask;
		r = net_dump(job, &q, on_entry, g, err);
		/* a kernel without IPv6, which alone has them */
		if (r == -ENOTSUP && kind->get == RTM_GETADDRLABEL)
			r = 0;
	}
	if (r == 0)
		r = sort(kind, g->list + before, g->n - before, err);
	if (r == 0)
		drop_doubles(g, before);
	return r;
}

int net_entries_read(struct net_job *job, struct ckpt_error *err)
{
	struct gather g = { 0 };
	int r = 0;

	for (size_t i = 0; i < CKPT_ARRAY_SIZE(kinds) && r == 0; i++) {
		g.kind = &kinds[i];
		r = gather(job, &g, err);
	}
	job->net->entries = g.list;
	job->net->n_entries = g.n;
	job->finite = g.finite;
	return r;
}

void net_entries_refuse(struct net_job *job)
{
	if (job->finite)
		net_refuse(job, "lifetime", "addresses or routes that expire");
}

int net_entries_plan(const Ckpt__Net__Network *net, struct ckpt_error *err)
{
	const struct entry_kind *before = kinds;

	for (size_t i = 0; i < net->n_entries; i++) {
		const Ckpt__Net__Entry *e = net->entries[i];
		const struct entry_kind *kind = kind_of(e->kind);

		if (!kind || e->header.len != kind->header_len || e->n_attributes > 64)
			return ckpt_fail_image(err, "entry %zu: no such kind, or a bad size", i);
		for (size_t k = 0; k < e->n_attributes; k++)
			if (e->attributes[k]->type >= 64 || e->attributes[k]->value.len > 16384)
				return ckpt_fail_image(err, "entry %zu: bad attribute", i);
		if (before > kind ||
		    (i && before == kind && compare_like(kind, net->entries[i - 1], e) > 0))
			return ckpt_fail_image(err, "entry %zu: not in order", i);
		before = kind;
	}
	return 0;
}

/*
 * Duplicate address detection would keep a known address from use for a second. It is left
 * out when a link comes up, and the flag that says so replaced by what was saved later.
 */
static int put_attribute(struct nl_msg *msg, const struct entry_kind *kind, bool before_up,
			 const Ckpt__Net__Attribute *a)
{
	uint32_t flags;

	if (before_up && kind->get == RTM_GETADDR && a->type == IFA_FLAGS &&
	    a->value.len == sizeof(flags)) {
		memcpy(&flags, a->value.data, sizeof(flags));
		return nla_put_u32(msg, IFA_FLAGS, flags | IFA_F_NODAD);
	}
	return nla_put(msg, (int)a->type, (int)a->value.len, a->value.data);
}

/* Whose table is it: the bridge's, or the device's own? It need not be told, but be said. */
static void aim(const struct net_job *job, struct ndmsg *h)
{
	const Ckpt__Net__Link *l = net_link(job->net, (uint32_t)h->ndm_ifindex);

	if (l && !l->master && !strcmp(l->kind, "bridge"))
		h->ndm_flags |= NTF_SELF;
	else if (!(h->ndm_flags & NTF_SELF))
		h->ndm_flags |= NTF_MASTER;
}

static int send_entry(struct net_job *job, int type, int flags, const Ckpt__Net__Entry *e,
		      bool before_up)
{
	const struct entry_kind *kind = kind_of(e->kind);
	struct nl_msg *msg = nlmsg_alloc_simple(type, flags);
	_Alignas(struct ndmsg) uint8_t header[32];
	int r;

	memcpy(header, e->header.data, e->header.len);
	if (header[0] == AF_BRIDGE)
		aim(job, (struct ndmsg *)(void *)header);
	r = msg ? nlmsg_append(msg, header, e->header.len, NLMSG_ALIGNTO) : -NLE_NOMEM;
	for (size_t i = 0; i < e->n_attributes && r == 0; i++)
		r = put_attribute(msg, kind, before_up, e->attributes[i]);
	return net_finish(job, msg, r);
}

static bool has(Ckpt__Net__Entry **list, size_t n, const Ckpt__Net__Entry *e)
{
	for (size_t i = 0; i < n; i++)
		if (!strcmp(list[i]->kind, e->kind) && compare(list[i], e) == 0)
			return true;
	return false;
}

/* What is not as it should be after a pass. */
struct rest {
	size_t n;
	int why;			  /* libnl's number, of the last one that was refused */
	char what[INET6_ADDRSTRLEN + 32]; /* one of them */
};

/* "route to fd00:7::/64"; most kinds have their destination as attribute 1, the length second.
 */
static void note(struct rest *rest, const Ckpt__Net__Entry *e, int r)
{
	char text[INET6_ADDRSTRLEN] = "any";

	if (e->n_attributes && e->attributes[0]->type == 1 &&
	    e->attributes[0]->value.len >= (e->header.data[0] == AF_INET ? 4 : 16))
		inet_ntop(e->header.data[0], e->attributes[0]->value.data, text, sizeof(text));
	snprintf(rest->what, sizeof(rest->what), "%s %s/%u", e->kind, text, e->header.data[1]);
	rest->why = r < 0 ? r : rest->why;
	rest->n++;
}

/* A pass over one kind. */
struct pass {
	const struct entry_kind *kind;
	bool before_up;
	bool turned; /* the kernel puts the latest where the earliest was expected */
	bool anew;   /* what is missing was deleted by the pass before */
	struct rest rest;
};

static void add_missing(struct net_job *job, struct pass *p, const struct gather *now, size_t i)
{
	const Ckpt__Net__Entry *e = job->net->entries[i];

	if (!strcmp(e->kind, p->kind->name) && !has(now->list, now->n, e))
		note(&p->rest, e,
		     send_entry(job, p->kind->add, NLM_F_CREATE | p->kind->add_flag, e,
				p->before_up || p->anew));
}

/* Of all the kernel's addresses of IPv6 on a link the latest is the first of its scope. */
static bool from_behind(const struct pass *p, const Ckpt__Net__Entry *e)
{
	return p->kind->get == RTM_GETADDR && e->header.data[0] == AF_INET6 ? !p->turned
									    : p->turned;
}

static void add_all(struct net_job *job, struct pass *p, const struct gather *now)
{
	const size_t n = job->net->n_entries;

	for (size_t i = 0; i < n; i++)
		if (!from_behind(p, job->net->entries[i]))
			add_missing(job, p, now, i);
	for (size_t i = n; i-- > 0;)
		if (from_behind(p, job->net->entries[i]))
			add_missing(job, p, now, i);
}

/* Those that compete where their order is wrong: the next pass makes them anew. */
static void delete_misplaced(struct net_job *job, struct pass *p, const struct gather *now)
{
	size_t at = 0, first = 0;

	while (at < job->net->n_entries && strcmp(job->net->entries[at]->kind, p->kind->name) != 0)
		at++;
	for (size_t end; first < now->n; first = end) {
		bool wrong = false;

		for (end = first;
		     end < now->n && compare_like(p->kind, now->list[first], now->list[end]) == 0;
		     end++)
			wrong |= at + end >= job->net->n_entries ||
				 compare(job->net->entries[at + end], now->list[end]) != 0;
		for (size_t i = first; i < end && wrong; i++)
			note(&p->rest, now->list[i],
			     send_entry(job, p->kind->del, 0, now->list[i], false));
	}
	p->anew = p->rest.n != 0;
	p->turned ^= p->anew;
}

/*
 * One pass: what is missing is added, or if nothing is, what is too much deleted, or if nothing is,
 * what is not in its place.
 */
static int converge(struct net_job *job, struct pass *p, struct ckpt_error *err)
{
	__attribute__((cleanup(gather_free))) struct gather now = { .kind = p->kind };
	int r = gather(job, &now, err);

	p->rest = (struct rest){ 0 };
	if (r < 0)
		return r;
	add_all(job, p, &now);
	p->anew = false;
	for (size_t i = 0; i < now.n && !p->before_up && !p->rest.n; i++)
		if (!has(job->net->entries, job->net->n_entries, now.list[i]))
			note(&p->rest, now.list[i],
			     send_entry(job, p->kind->del, 0, now.list[i], false));
	if (p->kind->ordered && !p->before_up && !p->rest.n)
		delete_misplaced(job, p, &now);
	return 0;
}

/*
 * A route may need another one, and what one deletes may take others with it. And the kernel
 * needs up to a second to take notice of a carrier (linkwatch), before which it does not make
 * what goes with it.
 */
#define QUICK_PASSES 4
#define PASSES	     300
#define PAUSE_US     10000

int net_entries_make(struct net_job *job, bool before_up, struct ckpt_error *err)
{
	const int passes = before_up ? 1 : PASSES;

	for (size_t i = 0; i < CKPT_ARRAY_SIZE(kinds); i++) {
		struct pass p = { .kind = &kinds[i], .before_up = before_up, .rest.n = 1 };

		if (before_up && !kinds[i].before_up)
			continue;
		for (int pass = 0; pass < passes && p.rest.n; pass++) {
			int r;

			if (pass > QUICK_PASSES)
				usleep(PAUSE_US);
			r = converge(job, &p, err);
			if (r < 0)
				return r;
		}
		/* until the links are up the kernel does not take all */
		if (p.rest.n && !before_up)
			return ckpt_fail(err, EIO, "%zu entries, %s among them: %s", p.rest.n,
					 p.rest.what, nl_geterror(p.rest.why));
	}
	return 0;
}
