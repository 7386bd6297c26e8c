/* SPDX-License-Identifier: MIT */
/*
 * nftables rulesets, those of iptables-nft too: what the kernel tells of each table, chain,
 * set, object and rule is kept as attributes and given back in the same words, in one batch.
 * They get their old handles: a table gives them out one after the other, so everything is
 * made in their order, and where one is missing a chain is made and deleted at once.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <netlink/attr.h>
#include <netlink/msg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "net.h"

#ifndef NFTA_TABLE_OWNER
#define NFTA_TABLE_OWNER 7
#endif

/* since 6.16: what the kernel has chosen */
#define NFTA_SET_TYPE  19
#define NFTA_SET_COUNT 20

#define MAX_ATTRIBUTES (1 << 20)
#define MAX_BURNT      65536
#define BURNT	       "ckpt-gone"
#define BIT(type)      (1ULL << (type))
/* Names that are sure to be ours and to go by themselves: see sock. */
#define OURS "ckpt-now-"

struct item_kind {
	int get, add;
	int table, name, handle; /* attributes */
	uint64_t state;		 /* attributes that are not given back */
};

/* In the order of a dump; elements of sets are asked for set by set. */
static const struct item_kind kinds[] = {
	{ NFT_MSG_GETTABLE, NFT_MSG_NEWTABLE, NFTA_TABLE_NAME, NFTA_TABLE_NAME, NFTA_TABLE_HANDLE,
	  BIT(NFTA_TABLE_USE) | BIT(NFTA_TABLE_HANDLE) | BIT(NFTA_TABLE_PAD) |
		  BIT(NFTA_TABLE_OWNER) },
	{ NFT_MSG_GETCHAIN, NFT_MSG_NEWCHAIN, NFTA_CHAIN_TABLE, NFTA_CHAIN_NAME, NFTA_CHAIN_HANDLE,
	  BIT(NFTA_CHAIN_USE) | BIT(NFTA_CHAIN_HANDLE) | BIT(NFTA_CHAIN_PAD) | BIT(NFTA_CHAIN_ID) },
	{ NFT_MSG_GETSET, NFT_MSG_NEWSET, NFTA_SET_TABLE, NFTA_SET_NAME, NFTA_SET_HANDLE,
	  BIT(NFTA_SET_ID) | BIT(NFTA_SET_HANDLE) | BIT(NFTA_SET_PAD) | BIT(NFTA_SET_TYPE) |
		  BIT(NFTA_SET_COUNT) },
	{ NFT_MSG_GETOBJ, NFT_MSG_NEWOBJ, NFTA_OBJ_TABLE, NFTA_OBJ_NAME, NFTA_OBJ_HANDLE,
	  BIT(NFTA_OBJ_USE) | BIT(NFTA_OBJ_HANDLE) | BIT(NFTA_OBJ_PAD) },
	{ NFT_MSG_GETRULE, NFT_MSG_NEWRULE, NFTA_RULE_TABLE, NFTA_RULE_CHAIN, NFTA_RULE_HANDLE,
	  BIT(NFTA_RULE_HANDLE) | BIT(NFTA_RULE_POSITION) | BIT(NFTA_RULE_PAD) | BIT(NFTA_RULE_ID) |
		  BIT(NFTA_RULE_POSITION_ID) },
};

static const struct item_kind *kind_of(uint32_t add)
{
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(kinds); i++)
		if (kinds[i].add == (int)add)
			return &kinds[i];
	return NULL;
}

/* ---- reading --------------------------------------------------------------------------- */

struct reading {
	struct net_job *job;
	const struct item_kind *kind; /* NULL: elements */
	const char *table, *name;     /* of elements: the set's */
};

static int append_bytes(ProtobufCBinaryData *to, const void *data, size_t len)
{
	size_t room = NLMSG_ALIGN(len);
	uint8_t *more = realloc(to->data, to->len + room);

	if (!more)
		return -ENOMEM;
	memset(more + to->len, 0, room);
	memcpy(more + to->len, data, len);
	to->data = more;
	to->len += room;
	return 0;
}

static char *text_of(struct nlattr *a)
{
	return strdup(a ? nla_data(a) : "");
}

static int fill_item(Ckpt__Net__NftItem *it, const struct reading *x, struct nlmsghdr *h)
{
	const struct item_kind *kind = x->kind;
	struct nlattr *at = nlmsg_attrdata(h, sizeof(struct nfgenmsg)), *table, *name, *handle;
	int left = nlmsg_attrlen(h, sizeof(struct nfgenmsg));

	it->type = kind ? (uint32_t)kind->add : NFT_MSG_NEWSETELEM;
	it->family = ((const struct nfgenmsg *)nlmsg_data(h))->nfgen_family;
	table = nlmsg_find_attr(h, sizeof(struct nfgenmsg), kind ? kind->table : NFTA_SET_TABLE);
	name = kind ? nlmsg_find_attr(h, sizeof(struct nfgenmsg), kind->name) : NULL;
	handle = kind ? nlmsg_find_attr(h, sizeof(struct nfgenmsg), kind->handle) : NULL;
	it->table = kind ? text_of(table) : strdup(x->table);
	it->name = kind ? text_of(name) : strdup(x->name);
	if (handle)
		it->handle = be64toh(nla_get_u64(handle));
	if (!it->table || !it->name)
		return -ENOMEM;
	for (; nla_ok(at, left); at = nla_next(at, &left)) {
		if (kind && nla_type(at) < 64 && kind->state & BIT(nla_type(at)))
			continue;
		if (append_bytes(kind ? &it->attributes : &it->elements, at, at->nla_len) < 0)
			return -ENOMEM;
	}
	return net_nft_counters_take(it) ? -ENOMEM : 0;
}

static int on_item(struct nlmsghdr *h, void *arg, struct ckpt_error *err)
{
	const struct reading *x = arg;
	Ckpt__Net__Network *net = x->job->net;
	Ckpt__Net__NftItem *it = malloc(sizeof(*it));

	if (net_append(&net->nft, &net->n_nft, it, err) < 0) {
		free(it);
		return -ENOMEM;
	}
	ckpt__net__nft_item__init(it);
	if (fill_item(it, x, h) < 0)
		return ckpt_fail_sys(err, ENOMEM, "nftables");
	/* what holds TCP connections for us now is no part of the ruleset */
	if (!strncmp(it->table, OURS, strlen(OURS))) {
		ckpt__net__nft_item__free_unpacked(it, NULL);
		net->n_nft--;
	}
	if (nlmsg_find_attr(h, sizeof(struct nfgenmsg), NFTA_TABLE_OWNER) && x->kind == &kinds[0] &&
	    net->n_nft && net->nft[net->n_nft - 1] == it)
		x->job->owned = true;
	return 0;
}

static size_t put_text(uint8_t *to, int type, const char *text)
{
	struct nlattr a = { .nla_len = (uint16_t)(sizeof(a) + strlen(text) + 1),
			    .nla_type = (uint16_t)type };

	memcpy(to, &a, sizeof(a));
	memcpy(to + sizeof(a), text, strlen(text) + 1);
	return NLMSG_ALIGN(a.nla_len);
}

static int read_elements(struct net_job *job, const Ckpt__Net__NftItem *set, struct ckpt_error *err)
{
	struct nfgenmsg g = { .nfgen_family = (uint8_t)set->family };
	struct reading x = { job, NULL, set->table, set->name };
	uint8_t ask[1024] = { 0 };
	struct net_request q = { NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETSETELEM, 0, ask,
				 sizeof(g) };

	if (strlen(set->table) + strlen(set->name) > 900)
		return ckpt_fail_sys(err, ENAMETOOLONG, "nftables");
	memcpy(ask, &g, sizeof(g));
	q.header_len += put_text(ask + q.header_len, NFTA_SET_ELEM_LIST_TABLE, set->table);
	q.header_len += put_text(ask + q.header_len, NFTA_SET_ELEM_LIST_SET, set->name);
	return net_dump(job, &q, on_item, &x, err);
}

static int read_all(struct net_job *job, struct ckpt_error *err)
{
	const struct nfgenmsg all = { .nfgen_family = AF_UNSPEC };
	size_t n;
	int r = 0;

	for (size_t i = 0; i < CKPT_ARRAY_SIZE(kinds) && r == 0; i++) {
		const struct net_request q = { NFNL_SUBSYS_NFTABLES << 8 | kinds[i].get, 0, &all,
					       sizeof(all) };
		struct reading x = { job, &kinds[i], NULL, NULL };

		r = net_dump(job, &q, on_item, &x, err);
	}
	n = job->net->n_nft;
	for (size_t i = 0; i < n && r == 0; i++)
		if (job->net->nft[i]->type == NFT_MSG_NEWSET)
			r = read_elements(job, job->net->nft[i], err);
	return r;
}

int net_nft_read(struct net_job *job, struct ckpt_error *err)
{
	return ckpt_feature_on(job->run, "nftables")
		       ? net_ask(job, NETLINK_NETFILTER, read_all, err)
		       : 0;
}

static int on_flowtable(struct nlmsghdr *h, void *arg, struct ckpt_error *err)
{
	(void)h;
	(void)err;
	((struct net_job *)arg)->flowtables = true;
	return 0;
}

static int look(struct net_job *job, struct ckpt_error *err)
{
	const struct nfgenmsg all = { .nfgen_family = AF_UNSPEC };
	const struct net_request flow = { NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETFLOWTABLE, 0, &all,
					  sizeof(all) };
	int r = read_all(job, err);

	return r < 0 ? r : net_dump(job, &flow, on_flowtable, job, err);
}

static bool same_table(const Ckpt__Net__NftItem *a, const Ckpt__Net__NftItem *b)
{
	return a->family == b->family && !strcmp(a->table, b->table);
}

/* The last handle of a table, and how many are missing before it. */
static uint64_t missing(const Ckpt__Net__Network *net, const Ckpt__Net__NftItem *table)
{
	uint64_t last = 0, n = 0;

	for (size_t i = 0; i < net->n_nft; i++) {
		const Ckpt__Net__NftItem *it = net->nft[i];

		if (it->type == NFT_MSG_NEWTABLE || it->type == NFT_MSG_NEWSETELEM ||
		    !same_table(it, table))
			continue;
		last = it->handle > last ? it->handle : last;
		n++;
	}
	return last - n;
}

static void refuse_stateful(struct net_job *job, const Ckpt__Net__NftItem *rule)
{
	const char *name = rule->type == NFT_MSG_NEWRULE ? net_nft_stateful(rule) : NULL;
	char what[320];

	if (!name)
		return;
	snprintf(what, sizeof(what),
		 "a rule of iptables, table %.60s, chain %.60s, handle %llu, with %.30s, which may "
		 "have a state of its own or refer to something else",
		 rule->table, rule->name, (unsigned long long)rule->handle, name);
	net_refuse(job, "nftables-stateful", what);
}

int net_nft_refuse(struct net_job *job, struct ckpt_error *err)
{
	Ckpt__Net__Network *net = job->net;
	int r = net_ask(job, NETLINK_NETFILTER, look, err);

	if (r < 0 || !net->n_nft)
		return r;
	if (!ckpt_feature_on(job->run, "nftables"))
		net_refuse(job, "nftables", "nftables rules, and the feature is switched off");
	if (job->owned)
		net_refuse(job, "nftables-owner", "an nftables table that belongs to a program");
	if (job->flowtables)
		net_refuse(job, "nftables-flowtable", "flowtables of nftables");
	for (size_t i = 0; i < net->n_nft; i++)
		if (net->nft[i]->type == NFT_MSG_NEWTABLE &&
		    (missing(net, net->nft[i]) > MAX_BURNT || net->nft[i]->handle > MAX_BURNT)) {
			net_refuse(job, "nftables-handles",
				   "an nftables table that was changed very often");
			break;
		}
	for (size_t i = 0; i < net->n_nft; i++)
		refuse_stateful(job, net->nft[i]);
	return 0;
}

/* ---- plan ------------------------------------------------------------------------------ */

/* A stream of attributes, each within its bounds. */
static bool good_stream(const ProtobufCBinaryData *b)
{
	size_t at = 0;

	while (at < b->len) {
		struct nlattr a;

		if (b->len - at < sizeof(a))
			return false;
		memcpy(&a, b->data + at, sizeof(a));
		if (a.nla_len < sizeof(a) || NLMSG_ALIGN(a.nla_len) > b->len - at)
			return false;
		at += NLMSG_ALIGN(a.nla_len);
	}
	return true;
}

int net_nft_plan(const Ckpt__Net__Network *net, struct ckpt_error *err)
{
	for (size_t i = 0; i < net->n_nft; i++) {
		const Ckpt__Net__NftItem *it = net->nft[i];

		if ((!kind_of(it->type) && it->type != NFT_MSG_NEWSETELEM) || it->family > 255 ||
		    it->attributes.len > MAX_ATTRIBUTES || !good_stream(&it->attributes) ||
		    it->elements.len > MAX_ATTRIBUTES || !good_stream(&it->elements) ||
		    strlen(it->table) > 255 || strlen(it->name) > 255 ||
		    (it->type == NFT_MSG_NEWTABLE &&
		     (missing(net, it) > MAX_BURNT || it->handle > MAX_BURNT)))
			return ckpt_fail_image(err, "nftables item %zu is not valid", i);
	}
	return 0;
}

/* ---- making ---------------------------------------------------------------------------- */

struct batch {
	struct net_job *job;
	uint8_t *data;
	size_t len, cap, message;
	uint32_t seq;
	bool full; /* out of memory */
};

static void put(struct batch *b, const void *data, size_t len)
{
	size_t room = NLMSG_ALIGN(len);

	if (b->len + room > b->cap) {
		size_t cap = (b->len + room) * 2;
		uint8_t *more = realloc(b->data, cap);

		b->full |= !more;
		if (!more)
			return;
		b->data = more;
		b->cap = cap;
	}
	if (!room)
		return;
	memset(b->data + b->len, 0, room);
	memcpy(b->data + b->len, data, len);
	b->len += room;
}

static void begin(struct batch *b, int type, int flags, uint32_t family, uint16_t res)
{
	struct nlmsghdr h = { .nlmsg_type = (uint16_t)type,
			      .nlmsg_flags = (uint16_t)(NLM_F_REQUEST | flags),
			      .nlmsg_seq = ++b->seq };
	struct nfgenmsg g = { .nfgen_family = (uint8_t)family, .res_id = htons(res) };

	b->message = b->len;
	put(b, &h, sizeof(h));
	put(b, &g, sizeof(g));
}

static void end(struct batch *b)
{
	uint32_t len = (uint32_t)(b->len - b->message);

	if (!b->full)
		memcpy(b->data + b->message, &len, sizeof(len));
}

static void put_name(struct batch *b, int type, const char *text)
{
	uint8_t attr[512];
	size_t len = put_text(attr, type, text);

	put(b, attr, len);
}

static void put_number(struct batch *b, int type, const void *value, size_t len)
{
	uint8_t attr[16];
	struct nlattr a = { .nla_len = (uint16_t)(sizeof(a) + len), .nla_type = (uint16_t)type };

	memcpy(attr, &a, sizeof(a));
	memcpy(attr + sizeof(a), value, len);
	put(b, attr, a.nla_len);
}

/* A handle that nothing has any more. */
static void burn(struct batch *b, const Ckpt__Net__NftItem *table)
{
	static const int types[] = { NFT_MSG_NEWCHAIN, NFT_MSG_DELCHAIN };

	for (size_t i = 0; i < CKPT_ARRAY_SIZE(types); i++) {
		begin(b, NFNL_SUBSYS_NFTABLES << 8 | types[i], i ? 0 : NLM_F_CREATE, table->family,
		      0);
		put_name(b, NFTA_CHAIN_TABLE, table->table);
		put_name(b, NFTA_CHAIN_NAME, BURNT);
		end(b);
	}
}

static void burn_table(struct batch *b)
{
	static const int types[] = { NFT_MSG_NEWTABLE, NFT_MSG_DELTABLE };

	for (size_t i = 0; i < CKPT_ARRAY_SIZE(types); i++) {
		begin(b, NFNL_SUBSYS_NFTABLES << 8 | types[i], i ? 0 : NLM_F_CREATE, AF_INET, 0);
		put_name(b, NFTA_TABLE_NAME, BURNT);
		end(b);
	}
}

/* The rule that is there already after which this one comes; 0: it is the first. */
static uint64_t rule_before(const Ckpt__Net__Network *net, size_t i)
{
	const Ckpt__Net__NftItem *rule = net->nft[i];

	while (i-- > 0) {
		const Ckpt__Net__NftItem *it = net->nft[i];

		if (it->type != NFT_MSG_NEWRULE || !same_table(it, rule) ||
		    strcmp(it->name, rule->name) != 0)
			return 0;
		if (it->handle < rule->handle)
			return it->handle;
	}
	return 0;
}

/* For which protocol a rule of iptables is: the kernel asks, and does not tell. */
static void put_compat(struct batch *b, const Ckpt__Net__NftItem *rule)
{
	struct net_nft_protocol p;
	size_t at = b->len;
	uint32_t value;
	uint16_t len;

	if (!net_nft_protocol(rule, &p))
		return;
	put_number(b, NFTA_RULE_COMPAT | NLA_F_NESTED, "", 0);
	value = htonl(p.protocol);
	put_number(b, NFTA_RULE_COMPAT_PROTO, &value, sizeof(value));
	value = htonl(p.inverted ? NFT_RULE_COMPAT_F_INV : 0);
	put_number(b, NFTA_RULE_COMPAT_FLAGS, &value, sizeof(value));
	len = (uint16_t)(b->len - at);
	if (!b->full)
		memcpy(b->data + at, &len, sizeof(len));
}

static void add_item(struct batch *b, size_t i)
{
	const Ckpt__Net__NftItem *it = b->job->net->nft[i];
	bool rule = it->type == NFT_MSG_NEWRULE;
	uint64_t before = rule ? rule_before(b->job->net, i) : 0;
	uint32_t id = htonl((uint32_t)i + 1);
	size_t at;

	begin(b, NFNL_SUBSYS_NFTABLES << 8 | (int)it->type,
	      NLM_F_CREATE | (before ? NLM_F_APPEND : 0), it->family, 0);
	at = b->len;
	put(b, it->attributes.data, it->attributes.len);
	if (!b->full)
		net_nft_counters_put(it, b->data + at);
	put(b, it->elements.data, it->elements.len);
	if (it->type == NFT_MSG_NEWSET)
		put_number(b, NFTA_SET_ID, &id, sizeof(id));
	if (rule)
		put_compat(b, it);
	before = htobe64(before);
	if (before)
		put_number(b, NFTA_RULE_POSITION, &before, sizeof(before));
	end(b);
}

static void add_elements(struct batch *b, const Ckpt__Net__NftItem *set)
{
	const Ckpt__Net__Network *net = b->job->net;

	for (size_t i = 0; i < net->n_nft; i++)
		if (net->nft[i]->type == NFT_MSG_NEWSETELEM && same_table(net->nft[i], set) &&
		    !strcmp(net->nft[i]->name, set->name))
			add_item(b, i);
}

static bool is_anonymous(const Ckpt__Net__NftItem *set)
{
	struct nlattr *flags = nla_find((struct nlattr *)(void *)set->attributes.data,
					(int)set->attributes.len, NFTA_SET_FLAGS);

	return flags && nla_len(flags) == sizeof(uint32_t) &&
	       ntohl(nla_get_u32(flags)) & NFT_SET_ANONYMOUS;
}

/* The item of a table with the lowest handle above that; n_nft: there is none. */
static size_t next_item(const Ckpt__Net__Network *net, const Ckpt__Net__NftItem *table,
			uint64_t above)
{
	size_t best = net->n_nft;

	for (size_t i = 0; i < net->n_nft; i++) {
		const Ckpt__Net__NftItem *it = net->nft[i];

		if (it->type != NFT_MSG_NEWTABLE && it->type != NFT_MSG_NEWSETELEM &&
		    it->handle > above && same_table(it, table) &&
		    (best == net->n_nft || it->handle < net->nft[best]->handle))
			best = i;
	}
	return best;
}

/* Sets that live by themselves are filled at last: chains and objects are there then. */
static void add_table(struct batch *b, size_t at)
{
	const Ckpt__Net__Network *net = b->job->net;
	const Ckpt__Net__NftItem *table = net->nft[at];
	uint64_t handle = 0;

	add_item(b, at);
	for (;;) {
		size_t i = next_item(net, table, handle);

		if (i == net->n_nft)
			break;
		while (++handle < net->nft[i]->handle)
			burn(b, table);
		add_item(b, i);
		if (net->nft[i]->type == NFT_MSG_NEWSET && is_anonymous(net->nft[i]))
			add_elements(b, net->nft[i]);
	}
	for (size_t i = 0; i < net->n_nft; i++)
		if (net->nft[i]->type == NFT_MSG_NEWSET && same_table(net->nft[i], table) &&
		    !is_anonymous(net->nft[i]))
			add_elements(b, net->nft[i]);
}

static int by_handle(const void *a, const void *b)
{
	const Ckpt__Net__NftItem *x = **(Ckpt__Net__NftItem * *const *)a;
	const Ckpt__Net__NftItem *y = **(Ckpt__Net__NftItem * *const *)b;

	return (x->handle > y->handle) - (x->handle < y->handle);
}

static int add_tables(struct batch *b, struct ckpt_error *err)
{
	const Ckpt__Net__Network *net = b->job->net;
	CKPT_AUTO_FREE Ckpt__Net__NftItem ***tables = calloc(net->n_nft, sizeof(*tables));
	uint64_t handle = 0;
	size_t n = 0;

	if (!tables)
		return ckpt_fail_sys(err, ENOMEM, "nftables");
	for (size_t i = 0; i < net->n_nft; i++)
		if (net->nft[i]->type == NFT_MSG_NEWTABLE)
			tables[n++] = &net->nft[i];
	qsort(tables, n, sizeof(*tables), by_handle);
	for (size_t i = 0; i < n; i++) {
		while (++handle < (*tables[i])->handle)
			burn_table(b);
		add_table(b, (size_t)(tables[i] - net->nft));
	}
	return 0;
}

/* Which of the messages it was that the kernel did not like, in words. */
static void name_message(const struct batch *b, uint32_t seq, char *buf, size_t size)
{
	size_t at = 0;

	snprintf(buf, size, "the batch");
	while (at + sizeof(struct nlmsghdr) <= b->len) {
		struct nlmsghdr h;
		struct nlattr *a;

		memcpy(&h, b->data + at, sizeof(h));
		a = (struct nlattr *)(void *)(b->data + at + NLMSG_LENGTH(sizeof(struct nfgenmsg)));
		if (h.nlmsg_seq == seq && h.nlmsg_len > NLMSG_LENGTH(sizeof(struct nfgenmsg)) + 8)
			snprintf(buf, size, "table %.*s, message %d, number %u",
				 nla_len(a) < 40 ? nla_len(a) : 40, (const char *)nla_data(a),
				 h.nlmsg_type & 0xff, seq);
		if (h.nlmsg_len < sizeof(h))
			return;
		at += NLMSG_ALIGN(h.nlmsg_len);
	}
}

/* The answers are there when it is sent: those to messages that failed. */
static int answers(const struct batch *b, int fd, struct ckpt_error *err)
{
	_Alignas(struct nlmsghdr) char buf[16384];
	int r = 0;

	for (;;) {
		ssize_t len = recv(fd, buf, sizeof(buf), MSG_DONTWAIT);
		int left = (int)len;

		if (len < 0)
			return errno == EAGAIN || r < 0
				       ? r
				       : ckpt_fail_sys(err, errno, "nftables: the answer");
		for (struct nlmsghdr *h = (void *)buf; nlmsg_ok(h, left);
		     h = nlmsg_next(h, &left)) {
			const struct nlmsgerr *e = nlmsg_data(h);
			char what[96];

			if (h->nlmsg_type != NLMSG_ERROR || !e->error || r < 0)
				continue;
			name_message(b, h->nlmsg_seq, what, sizeof(what));
			r = ckpt_fail_sys(err, e->error, "nftables: %s", what);
		}
	}
}

static int send_all(struct net_job *job, struct ckpt_error *err)
{
	struct batch b = { .job = job };
	int fd = nl_socket_get_fd(job->sk), room = 256 << 20, r;

	begin(&b, NFNL_MSG_BATCH_BEGIN, 0, AF_UNSPEC, NFNL_SUBSYS_NFTABLES);
	end(&b);
	r = add_tables(&b, err);
	begin(&b, NFNL_MSG_BATCH_END, 0, AF_UNSPEC, NFNL_SUBSYS_NFTABLES);
	end(&b);
	if (r == 0 && b.full)
		r = ckpt_fail_sys(err, ENOMEM, "nftables");
	if (r == 0 && (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof(room)) ||
		       send(fd, b.data, b.len, 0) != (ssize_t)b.len))
		r = ckpt_fail_sys(err, errno, "nftables: a batch of %zu bytes", b.len);
	if (r == 0)
		r = answers(&b, fd, err);
	free(b.data);
	return r;
}

int net_nft_make(struct net_job *job, struct ckpt_error *err)
{
	return job->net->n_nft ? net_speak(job, NETLINK_NETFILTER, send_all, err) : 0;
}
