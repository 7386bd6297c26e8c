/* SPDX-License-Identifier: MIT */
/*
 * Rules of iptables that use its old matches and targets. Those check what protocol a rule is
 * for, which was told the kernel beside the rule and is not shown again; but the rule
 * compares it, and there it is found. And counters, which go on while a ruleset stays the same.
 */
#include <arpa/inet.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nf_tables_compat.h>
#include <netlink/attr.h>
#include <stdlib.h>
#include <string.h>

#include "net.h"

#define PROTOCOL_OF_IPV4 9
#define PROTOCOL_OF_IPV6 6

/* What the rule's expressions were when looked at so far. */
struct looking {
	bool old, loaded; /* has an old match or target; the protocol is in the register */
	struct net_nft_protocol *p;
	bool found;
};

static uint32_t number(struct nlattr *a)
{
	return a && nla_len(a) == sizeof(uint32_t) ? ntohl(nla_get_u32(a)) : UINT32_MAX;
}

/* An image need not end its texts. */
static bool says(struct nlattr *a, const char *text)
{
	size_t len = strlen(text) + 1;

	return a && (size_t)nla_len(a) == len && !memcmp(nla_data(a), text, len);
}

static bool loads_meta(struct nlattr *data)
{
	struct nlattr *in[NFTA_META_MAX + 1] = { 0 };

	nla_parse_nested(in, NFTA_META_MAX, data, NULL);
	return in[NFTA_META_DREG] && number(in[NFTA_META_KEY]) == NFT_META_L4PROTO;
}

static bool loads_payload(struct nlattr *data)
{
	struct nlattr *in[NFTA_PAYLOAD_MAX + 1] = { 0 };
	uint32_t offset;

	nla_parse_nested(in, NFTA_PAYLOAD_MAX, data, NULL);
	offset = number(in[NFTA_PAYLOAD_OFFSET]);
	return in[NFTA_PAYLOAD_DREG] &&
	       number(in[NFTA_PAYLOAD_BASE]) == NFT_PAYLOAD_NETWORK_HEADER &&
	       number(in[NFTA_PAYLOAD_LEN]) == 1 &&
	       (offset == PROTOCOL_OF_IPV4 || offset == PROTOCOL_OF_IPV6);
}

static void take_compare(struct looking *x, struct nlattr *data)
{
	struct nlattr *in[NFTA_CMP_MAX + 1] = { 0 }, *value[NFTA_DATA_MAX + 1] = { 0 };

	nla_parse_nested(in, NFTA_CMP_MAX, data, NULL);
	if (in[NFTA_CMP_DATA])
		nla_parse_nested(value, NFTA_DATA_MAX, in[NFTA_CMP_DATA], NULL);
	if (!value[NFTA_DATA_VALUE] || nla_len(value[NFTA_DATA_VALUE]) != 1)
		return;
	x->found = true;
	x->p->protocol = nla_get_u8(value[NFTA_DATA_VALUE]);
	x->p->inverted = number(in[NFTA_CMP_OP]) == NFT_CMP_NEQ;
}

static void look_at(struct looking *x, struct nlattr *expression)
{
	struct nlattr *in[NFTA_EXPR_MAX + 1] = { 0 };
	struct nlattr *name;

	nla_parse_nested(in, NFTA_EXPR_MAX, expression, NULL);
	name = in[NFTA_EXPR_NAME];
	x->old |= says(name, "match") || says(name, "target");
	if (!in[NFTA_EXPR_DATA])
		return;
	if (says(name, "meta"))
		x->loaded = loads_meta(in[NFTA_EXPR_DATA]);
	else if (says(name, "payload"))
		x->loaded = loads_payload(in[NFTA_EXPR_DATA]);
	else if (says(name, "cmp") && x->loaded && !x->found)
		take_compare(x, in[NFTA_EXPR_DATA]);
}

bool net_nft_protocol(const Ckpt__Net__NftItem *rule, struct net_nft_protocol *p)
{
	struct nlattr *list = nla_find((struct nlattr *)(void *)rule->attributes.data,
				       (int)rule->attributes.len, NFTA_RULE_EXPRESSIONS);
	struct looking x = { .p = p };
	struct nlattr *at;
	int left;

	if (!list)
		return false;
	nla_for_each_nested(at, list, left) look_at(&x, at);
	return x.old && x.found;
}

/* ---- what is more than its words ------------------------------------------------------- */

/* The old matches and targets that are made again from their words alone. */
static const char *const matches[] = {
	"addrtype",  "ah",	  "cluster",  "comment",    "connbytes", "connlabel", "connmark",
	"conntrack", "cpu",	  "dccp",     "devgroup",   "dscp",	 "dst",	      "ecn",
	"esp",	     "eui64",	  "frag",     "hbh",	    "helper",	 "hl",	      "icmp",
	"icmp6",     "ipcomp",	  "iprange",  "ipv6header", "l2tp",	 "length",    "limit",
	"mac",	     "mark",	  "mh",	      "multiport",  "owner",	 "physdev",   "pkttype",
	"policy",    "realm",	  "rpfilter", "rt",	    "sctp",	 "socket",    "srh",
	"state",     "statistic", "string",   "tcp",	    "tcpmss",	 "time",      "tos",
	"ttl",	     "u32",	  "udp",      "udplite",
};
static const char *const targets[] = {
	"AUDIT",      "CHECKSUM", "CLASSIFY", "CONNMARK", "CONNSECMARK", "CT",		"DNAT",
	"DNPT",	      "DSCP",	  "ECN",      "HL",	  "HMARK",	 "LOG",		"MARK",
	"MASQUERADE", "NETMAP",	  "NFLOG",    "NFQUEUE",  "NOTRACK",	 "REDIRECT",	"REJECT",
	"SECMARK",    "SNAT",	  "SNPT",     "SYNPROXY", "TCPMSS",	 "TCPOPTSTRIP", "TEE",
	"TOS",	      "TPROXY",	  "TRACE",    "TTL",
};

static bool is_in(struct nlattr *name, const char *const *list, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (says(name, list[i]))
			return true;
	return false;
}

/* Of CT: a timeout policy, which is an object elsewhere; it is named at that place of its words. */
#define CT_TIMEOUT 28

static bool names_timeout(struct nlattr *name, struct nlattr *info)
{
	return says(name, "CT") && info && nla_len(info) > CT_TIMEOUT &&
	       ((const char *)nla_data(info))[CT_TIMEOUT];
}

static const char *stateful(struct nlattr *expression)
{
	struct nlattr *in[NFTA_EXPR_MAX + 1] = { 0 }, *data[NFTA_MATCH_MAX + 1] = { 0 }, *name;
	bool match, good;

	nla_parse_nested(in, NFTA_EXPR_MAX, expression, NULL);
	match = says(in[NFTA_EXPR_NAME], "match");
	if (!in[NFTA_EXPR_DATA] || (!match && !says(in[NFTA_EXPR_NAME], "target")))
		return NULL;
	/* a target's attributes have the same numbers */
	nla_parse_nested(data, NFTA_MATCH_MAX, in[NFTA_EXPR_DATA], NULL);
	name = data[NFTA_MATCH_NAME];
	good = match ? is_in(name, matches, CKPT_ARRAY_SIZE(matches))
		     : is_in(name, targets, CKPT_ARRAY_SIZE(targets)) &&
			       !names_timeout(name, data[NFTA_MATCH_INFO]);
	return good ? NULL : name ? nla_data(name) : "?";
}

const char *net_nft_stateful(const Ckpt__Net__NftItem *rule)
{
	struct nlattr *list = nla_find((struct nlattr *)(void *)rule->attributes.data,
				       (int)rule->attributes.len, NFTA_RULE_EXPRESSIONS);
	const char *name = NULL;
	struct nlattr *at;
	int left;

	if (!list)
		return NULL;
	nla_for_each_nested(at, list, left) name = name ? name : stateful(at);
	return name;
}

/* ---- counters ------------------------------------------------------------------------ */

/* What is done with each number of each counter. */
struct counting {
	int (*fn)(struct counting *x, uint8_t *number);
	Ckpt__Net__NftItem *it;
	size_t at;
};

static int count_in(struct counting *x, struct nlattr *data)
{
	struct nlattr *at;
	int left, r = 0;

	nla_for_each_nested(at, data, left) if (nla_len(at) == sizeof(uint64_t) &&
						(nla_type(at) == NFTA_COUNTER_BYTES ||
						 nla_type(at) == NFTA_COUNTER_PACKETS) &&
						r == 0) r = x->fn(x, nla_data(at));
	return r;
}

static int count_expressions(struct counting *x, struct nlattr *list)
{
	struct nlattr *at;
	int left, r = 0;

	nla_for_each_nested(at, list, left)
	{
		struct nlattr *in[NFTA_EXPR_MAX + 1] = { 0 };

		nla_parse_nested(in, NFTA_EXPR_MAX, at, NULL);
		if (in[NFTA_EXPR_DATA] && r == 0 && says(in[NFTA_EXPR_NAME], "counter"))
			r = count_in(x, in[NFTA_EXPR_DATA]);
	}
	return r;
}

static int count_all(struct counting *x, uint8_t *attributes)
{
	struct nlattr *stream = (struct nlattr *)(void *)attributes, *type, *at;
	int len = (int)x->it->attributes.len;

	if (x->it->type == NFT_MSG_NEWRULE) {
		at = nla_find(stream, len, NFTA_RULE_EXPRESSIONS);
		return at ? count_expressions(x, at) : 0;
	}
	type = nla_find(stream, len, NFTA_OBJ_TYPE);
	at = nla_find(stream, len, NFTA_OBJ_DATA);
	return x->it->type == NFT_MSG_NEWOBJ && type && at && number(type) == NFT_OBJECT_COUNTER
		       ? count_in(x, at)
		       : 0;
}

static int take_number(struct counting *x, uint8_t *value)
{
	ProtobufCBinaryData *to = &x->it->counters;
	uint8_t *more = realloc(to->data, to->len + sizeof(uint64_t));

	if (!more)
		return -1;
	to->data = more;
	memcpy(more + to->len, value, sizeof(uint64_t));
	to->len += sizeof(uint64_t);
	memset(value, 0, sizeof(uint64_t));
	return 0;
}

int net_nft_counters_take(Ckpt__Net__NftItem *it)
{
	struct counting x = { take_number, it, 0 };

	return count_all(&x, it->attributes.data);
}

static int put_number(struct counting *x, uint8_t *value)
{
	if (x->at + sizeof(uint64_t) > x->it->counters.len)
		return -1;
	memcpy(value, x->it->counters.data + x->at, sizeof(uint64_t));
	x->at += sizeof(uint64_t);
	return 0;
}

void net_nft_counters_put(const Ckpt__Net__NftItem *it, uint8_t *attributes)
{
	struct counting x = { put_number, (Ckpt__Net__NftItem *)(uintptr_t)it, 0 };

	(void)count_all(&x, attributes);
}
