/* SPDX-License-Identifier: MIT */
/*
 * Connections with the outside are held: while one end is read, gone or being made, packets
 * of the other end are dropped, so that it sends them again, and nothing that our kernel
 * says about it gets out. Done by an nftables table of ckpt's in the connection's network
 * namespace. While ckpt works the table belongs to its netlink socket and goes with it,
 * however ckpt ends; from a dump that kills to the restore one without owner stays.
 */
#include "tcp.h"

#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netlink.h>
#include <net/if.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/random.h>

#ifndef NFT_TABLE_F_OWNER
#define NFT_TABLE_F_OWNER 2
#endif
/* before connection tracking and whatever the user's rules do */
#define PRIORITY (-310)
#define ROOM	 4096

struct sock_held {
	const struct ckpt_ns *net;
	union sock_address local, peer;
};

/* A batch of messages, or one in the making. */
struct batch {
	_Alignas(struct nlmsghdr) char buf[ROOM];
	size_t len, message; /* where the last message begins */
	uint32_t seq;
};

static void *put(struct batch *b, const void *data, size_t len)
{
	void *at = b->buf + b->len;

	/* what we say has a known size, far below the room */
	if (b->len + NLMSG_ALIGN(len) > sizeof(b->buf))
		return b->buf;
	memset(at, 0, NLMSG_ALIGN(len));
	if (data)
		memcpy(at, data, len);
	b->len += NLMSG_ALIGN(len);
	return at;
}

static void begin(struct batch *b, int type, int flags, uint16_t res)
{
	struct nlmsghdr h = { .nlmsg_type = (uint16_t)type,
			      .nlmsg_flags = (uint16_t)(NLM_F_REQUEST | flags),
			      .nlmsg_seq = ++b->seq };
	struct nfgenmsg g = { .nfgen_family = type >> 8 ? NFPROTO_INET : AF_UNSPEC,
			      .version = NFNETLINK_V0,
			      .res_id = htons(res) };

	b->message = b->len;
	put(b, &h, sizeof(h));
	put(b, &g, sizeof(g));
}

static void end(struct batch *b)
{
	((struct nlmsghdr *)(void *)(b->buf + b->message))->nlmsg_len =
		(uint32_t)(b->len - b->message);
}

static void attr(struct batch *b, int type, const void *data, size_t len)
{
	struct nlattr a = { .nla_len = (uint16_t)(sizeof(a) + len), .nla_type = (uint16_t)type };

	put(b, &a, sizeof(a));
	put(b, data, len);
}

static void attr32(struct batch *b, int type, uint32_t host)
{
	uint32_t value = htonl(host);

	attr(b, type, &value, sizeof(value));
}

static void text(struct batch *b, int type, const char *s)
{
	attr(b, type, s, strlen(s) + 1);
}

static size_t nest(struct batch *b, int type)
{
	size_t at = b->len;

	attr(b, type | NLA_F_NESTED, NULL, 0);
	return at;
}

static void unnest(struct batch *b, size_t at)
{
	((struct nlattr *)(void *)(b->buf + at))->nla_len = (uint16_t)(b->len - at);
}

static void expression(struct batch *b, const char *name, size_t at[2])
{
	at[0] = nest(b, NFTA_LIST_ELEM);
	text(b, NFTA_EXPR_NAME, name);
	at[1] = nest(b, NFTA_EXPR_DATA);
}

static void done(struct batch *b, const size_t at[2])
{
	unnest(b, at[1]);
	unnest(b, at[0]);
}

static void compare(struct batch *b, int op, const void *data, size_t len)
{
	size_t at[2], value;

	expression(b, "cmp", at);
	attr32(b, NFTA_CMP_SREG, NFT_REG_1);
	attr32(b, NFTA_CMP_OP, (uint32_t)op);
	value = nest(b, NFTA_CMP_DATA);
	attr(b, NFTA_DATA_VALUE, data, len);
	unnest(b, value);
	done(b, at);
}

static void meta(struct batch *b, int key, int op, const void *data, size_t len)
{
	size_t at[2];

	expression(b, "meta", at);
	attr32(b, NFTA_META_DREG, NFT_REG_1);
	attr32(b, NFTA_META_KEY, (uint32_t)key);
	done(b, at);
	compare(b, op, data, len);
}

static void payload(struct batch *b, int base, size_t offset, const void *data, size_t len)
{
	size_t at[2];

	expression(b, "payload", at);
	attr32(b, NFTA_PAYLOAD_DREG, NFT_REG_1);
	attr32(b, NFTA_PAYLOAD_BASE, (uint32_t)base);
	attr32(b, NFTA_PAYLOAD_OFFSET, (uint32_t)offset);
	attr32(b, NFTA_PAYLOAD_LEN, (uint32_t)len);
	done(b, at);
	compare(b, NFT_CMP_EQ, data, len);
}

static void drop(struct batch *b)
{
	size_t at[2], data, verdict;

	expression(b, "immediate", at);
	attr32(b, NFTA_IMMEDIATE_DREG, NFT_REG_VERDICT);
	data = nest(b, NFTA_IMMEDIATE_DATA);
	verdict = nest(b, NFTA_DATA_VERDICT);
	attr32(b, NFTA_VERDICT_CODE, NF_DROP);
	unnest(b, verdict);
	unnest(b, data);
	done(b, at);
}

/* Packets from `src` to `dst` in that chain are dropped, but for ours. */
static void rule(struct batch *b, const char *table, const char *chain,
		 const union sock_address *src, const union sock_address *dst)
{
	bool six = src->sa.sa_family == AF_INET6;
	uint8_t family = six ? NFPROTO_IPV6 : NFPROTO_IPV4, tcp = IPPROTO_TCP;
	uint16_t ports[2] = { src->in.sin_port, dst->in.sin_port };
	uint32_t mark = SOCK_HOLD_MARK;
	size_t size = six ? 16 : 4, offset = six ? 8 : 12, list;

	begin(b, NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND, 0);
	text(b, NFTA_RULE_TABLE, table);
	text(b, NFTA_RULE_CHAIN, chain);
	list = nest(b, NFTA_RULE_EXPRESSIONS);
	meta(b, NFT_META_MARK, NFT_CMP_NEQ, &mark, sizeof(mark));
	meta(b, NFT_META_NFPROTO, NFT_CMP_EQ, &family, 1);
	meta(b, NFT_META_L4PROTO, NFT_CMP_EQ, &tcp, 1);
	payload(b, NFT_PAYLOAD_NETWORK_HEADER, offset,
		six ? (const void *)&src->in6.sin6_addr : (const void *)&src->in.sin_addr, size);
	payload(b, NFT_PAYLOAD_NETWORK_HEADER, offset + size,
		six ? (const void *)&dst->in6.sin6_addr : (const void *)&dst->in.sin_addr, size);
	payload(b, NFT_PAYLOAD_TRANSPORT_HEADER, 0, ports, sizeof(ports));
	drop(b);
	unnest(b, list);
	end(b);
}

static void table(struct batch *b, int type, const char *name, uint32_t flags)
{
	begin(b, NFNL_SUBSYS_NFTABLES << 8 | type, type == NFT_MSG_NEWTABLE ? NLM_F_CREATE : 0, 0);
	text(b, NFTA_TABLE_NAME, name);
	if (flags)
		attr32(b, NFTA_TABLE_FLAGS, flags);
	end(b);
}

static void chain(struct batch *b, const char *in, const char *name, uint32_t hook)
{
	size_t at;

	begin(b, NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWCHAIN, NLM_F_CREATE, 0);
	text(b, NFTA_CHAIN_TABLE, in);
	text(b, NFTA_CHAIN_NAME, name);
	at = nest(b, NFTA_CHAIN_HOOK);
	attr32(b, NFTA_HOOK_HOOKNUM, hook);
	attr32(b, NFTA_HOOK_PRIORITY, (uint32_t)PRIORITY);
	unnest(b, at);
	text(b, NFTA_CHAIN_TYPE, "filter");
	end(b);
}

/* The answers are there when send(2) returns: those of messages that failed. */
static int answers(int nl)
{
	_Alignas(struct nlmsghdr) char buf[8192];
	int r = 0;

	for (;;) {
		ssize_t len = recv(nl, buf, sizeof(buf), MSG_DONTWAIT);
		unsigned left = len < 0 ? 0 : (unsigned)len;

		if (len < 0)
			return errno == EAGAIN ? r : -errno;
		for (struct nlmsghdr *h = (void *)buf; NLMSG_OK(h, left); h = NLMSG_NEXT(h, left)) {
			const struct nlmsgerr *e = NLMSG_DATA(h);

			if (h->nlmsg_type == NLMSG_ERROR && e->error && !r)
				r = e->error;
		}
	}
}

static void start(struct batch *b)
{
	b->len = 0;
	b->seq = 0;
	begin(b, NFNL_MSG_BATCH_BEGIN, 0, NFNL_SUBSYS_NFTABLES);
	end(b);
}

static int commit(int nl, struct batch *b)
{
	begin(b, NFNL_MSG_BATCH_END, 0, NFNL_SUBSYS_NFTABLES);
	end(b);
	return send(nl, b->buf, b->len, 0) == (ssize_t)b->len ? answers(nl) : -errno;
}

/* A connection's rules, in a table that is made if it is not there. */
static int hold_in(int nl, const char *name, uint32_t flags, const struct sock_held *c)
{
	struct batch b;

	start(&b);
	table(&b, NFT_MSG_NEWTABLE, name, flags);
	chain(&b, name, "in", NF_INET_LOCAL_IN);
	chain(&b, name, "out", NF_INET_LOCAL_OUT);
	rule(&b, name, "in", &c->peer, &c->local);
	rule(&b, name, "out", &c->local, &c->peer);
	return commit(nl, &b);
}

static int nfnetlink(void)
{
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER);

	return fd < 0 ? -errno : fd;
}

/* ---- those of a run ---------------------------------------------------------------- */

/* The socket to which that namespace's table belongs. */
static int owner_of(struct sock_state *st, const struct ckpt_ns *net, struct ckpt_error *err)
{
	struct sock_holder *more;
	SOCK_PLACE(place);
	int fd;

	for (size_t i = 0; i < st->n_holders; i++)
		if (st->holders[i].net == net)
			return st->holders[i].fd;
	more = realloc(st->holders, (st->n_holders + 1) * sizeof(*more));
	if (!more)
		return ckpt_fail_sys(err, ENOMEM, "holding TCP connections");
	st->holders = more;
	if (sock_net_enter(net, &place, err) < 0)
		return -err->err;
	fd = nfnetlink();
	if (fd < 0)
		return ckpt_fail_sys(err, fd, "NETLINK_NETFILTER");
	more[st->n_holders++] = (struct sock_holder){ net, fd };
	return fd;
}

static int note(struct sock_state *st, const struct sock_held *c, struct ckpt_error *err)
{
	struct sock_held *more = realloc(st->held, (st->n_held + 1) * sizeof(*more));

	if (!more)
		return ckpt_fail_sys(err, ENOMEM, "holding TCP connections");
	st->held = more;
	more[st->n_held++] = *c;
	return 0;
}

int sock_hold(struct sock_state *st, const struct ckpt_ns *net, const union sock_address *local,
	      const union sock_address *peer, struct ckpt_error *err)
{
	struct sock_held c = { net, *local, *peer };
	char name[48];
	int nl = owner_of(st, net, err), r;

	if (nl < 0)
		return nl;
	sock_address_unmap(&c.local);
	sock_address_unmap(&c.peer);
	snprintf(name, sizeof(name), "ckpt-now-%d", getpid());
	r = hold_in(nl, name, NFT_TABLE_F_OWNER, &c);
	if (!r)
		return note(st, &c, err);
	ckpt_fail_sys(err, r, "holding a TCP connection (nftables)");
	return ckpt_hint(err, "CONFIG_NF_TABLES_INET is needed, or leave out -o net.tcp");
}

const char *sock_hold_name(struct sock_state *st)
{
	uint64_t word = 0;

	if (!st->hold_name[0] && getrandom(&word, sizeof(word), 0) == sizeof(word))
		snprintf(st->hold_name, sizeof(st->hold_name), "ckpt-%016llx",
			 (unsigned long long)word);
	return st->hold_name;
}

bool sock_hold_name_ok(const char *name)
{
	return strlen(name) == strlen("ckpt-") + 16 && !strncmp(name, "ckpt-", 5) &&
	       strspn(name + 5, "0123456789abcdef") == 16;
}

/*
 * After a dump that killed the tree: the held connections of the namespace that lives on,
 * ckpt's own, stay held. Until here it was this run that held them.
 */
int sock_hold_keep(struct ckpt_run *run, struct ckpt_error *err)
{
	struct sock_state *st = sock_state(run);
	CKPT_AUTO_FD int nl = -1;
	int r;

	(void)err;
	if (!st || !st->n_held || !ckpt_kills(run))
		return 0;
	nl = nfnetlink();
	r = nl < 0 ? nl : 0;
	for (size_t i = 0; i < st->n_held && !r; i++)
		if (st->held[i].net->own)
			r = hold_in(nl, sock_hold_name(st), 0, &st->held[i]);
	/* the image is whole and the tree gone: too late to fail */
	if (r)
		ckpt_log(run, CKPT_LOG_WARN,
			 "TCP connections with the outside are not held: nftables: %s",
			 strerror(-r));
	return 0;
}

/* The restore has the connections: it holds them itself until it ends. */
int sock_hold_end(struct ckpt_run *run, struct ckpt_error *err)
{
	char last[48] = "";

	for (size_t i = 0; i < ckpt_record_count(run, "sock.tcp"); i++) {
		const Ckpt__Sock__Tcp *rec = ckpt_record_at(run, "sock.tcp", i);
		CKPT_AUTO_FD int nl = -1;
		struct batch b;
		int r;

		if (rec->form != SOCK_TCP_KEPT || !sock_hold_name_ok(rec->hold) ||
		    !strcmp(rec->hold, last))
			continue;
		snprintf(last, sizeof(last), "%s", rec->hold);
		nl = nfnetlink();
		start(&b);
		table(&b, NFT_MSG_DELTABLE, rec->hold, 0);
		r = nl < 0 ? nl : commit(nl, &b);
		/* the image came from elsewhere, or the machine was started anew */
		if (r && r != -ENOENT)
			return ckpt_fail_sys(err, r, "the nftables table %s", rec->hold);
	}
	return 0;
}

void sock_hold_free(struct sock_state *st)
{
	for (size_t i = 0; i < st->n_holders; i++)
		close(st->holders[i].fd);
	free(st->holders);
	free(st->held);
}
