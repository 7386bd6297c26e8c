/* SPDX-License-Identifier: MIT */
/* The kernel's list of TCP sockets: who is whose other end, and what nobody has open. */
#include "tcp.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <stddef.h>

#ifndef TCP_AO_INFO
#define TCP_AO_INFO 40
#endif

#ifndef SOCK_DESTROY
#define SOCK_DESTROY 21
#endif

static int by_ends(const void *va, const void *vb)
{
	return memcmp(va, vb, offsetof(struct sock_tcp_diag, state));
}

static void take_address(uint8_t to[16], int family, const void *from)
{
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };

	if (family == AF_INET6) {
		memcpy(to, from, 16);
		return;
	}
	memcpy(to, mapped, sizeof(mapped));
	memcpy(to + sizeof(mapped), from, 4);
}

static void take_details(struct sock_tcp_diag *d, const struct nlmsghdr *h)
{
	const struct inet_diag_msg *m = NLMSG_DATA(h);
	const struct rtattr *a = (const struct rtattr *)(m + 1);
	int left = (int)h->nlmsg_len - (int)NLMSG_LENGTH(sizeof(*m));

	for (; RTA_OK(a, left); a = RTA_NEXT(a, left))
		if (a->rta_type == INET_DIAG_MD5SIG)
			d->signs = true;
		else if (a->rta_type == INET_DIAG_SKV6ONLY && RTA_PAYLOAD(a) >= 1)
			d->only6 = *(const uint8_t *)RTA_DATA(a);
}

struct listing {
	char *buf;
	size_t size;
	struct sock_state *st;
	uint32_t net;
};

static int take_socket(void *arg, struct nlmsghdr *h)
{
	const struct listing *x = arg;
	const struct inet_diag_msg *m = NLMSG_DATA(h);
	struct sock_state *st = x->st;
	struct sock_tcp_diag *d;

	if (st->n_tcp == st->cap_tcp) {
		size_t want = st->cap_tcp ? st->cap_tcp * 2 : 256;
		struct sock_tcp_diag *more = realloc(st->tcp, want * sizeof(*more));

		if (!more)
			return -ENOMEM;
		st->tcp = more;
		st->cap_tcp = want;
	}
	d = &st->tcp[st->n_tcp++];
	memset(d, 0, sizeof(*d));
	d->net = x->net;
	take_address(d->src, m->idiag_family, m->id.idiag_src);
	take_address(d->dst, m->idiag_family, m->id.idiag_dst);
	d->sport = m->id.idiag_sport;
	d->dport = m->id.idiag_dport;
	d->state = m->idiag_state;
	d->ino = m->idiag_inode;
	d->received = m->idiag_rqueue;
	d->family = m->idiag_family;
	d->device = m->id.idiag_if;
	take_details(d, h);
	return 0;
}

struct request {
	struct nlmsghdr h;
	struct inet_diag_req_v2 r;
};

static struct request request_of(int type, int flags, int family)
{
	return (struct request){
		.h = { .nlmsg_len = sizeof(struct request),
		       .nlmsg_type = (uint16_t)type,
		       .nlmsg_flags = (uint16_t)(NLM_F_REQUEST | flags) },
		.r = { .sdiag_family = (uint8_t)family,
		       .sdiag_protocol = IPPROTO_TCP,
		       .idiag_states = UINT32_MAX,
		       .id.idiag_cookie = { INET_DIAG_NOCOOKIE, INET_DIAG_NOCOOKIE } },
	};
}

static int list_family(struct listing *x, int nl, int family)
{
	struct request q = request_of(SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, family);

	/* it tells of keys only beside this */
	q.r.idiag_ext = 1 << (INET_DIAG_INFO - 1);
	if (send(nl, &q, sizeof(q), 0) != sizeof(q))
		return -errno;
	return sock_nl_list(nl, x->buf, x->size, take_socket, x);
}

/* Those of the network namespace that we are in. */
static int list(struct sock_state *st, const struct ckpt_ns *ns, void *arg)
{
	struct listing *x = arg;
	CKPT_AUTO_FD int nl = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
	int r;

	x->st = st;
	x->net = ns->id;
	r = nl < 0 ? -errno : list_family(x, nl, AF_INET);
	return r ? r : list_family(x, nl, AF_INET6);
}

int sock_tcp_diag(struct ckpt_run *run, struct ckpt_error *err)
{
	struct sock_state *st = sock_state(run);
	const size_t size = 256 * 1024;
	CKPT_AUTO_FREE char *buf = malloc(size);
	struct listing x = { .buf = buf, .size = size };

	if (st->tcp_known)
		return 0;
	if (!buf)
		return ckpt_fail_sys(err, ENOMEM, "list of TCP sockets");
	if (sock_net_each(run, list, &x, "asking the kernel for its TCP sockets (inet_diag)", err))
		return -err->err;
	if (st->n_tcp)
		qsort(st->tcp, st->n_tcp, sizeof(*st->tcp), by_ends);
	st->tcp_known = true;
	return 0;
}

void sock_tcp_forget(struct sock_state *st)
{
	st->tcp_known = false;
	st->n_tcp = 0;
}

static const void *bytes_of(const union sock_address *a)
{
	return a->sa.sa_family == AF_INET ? (const void *)&a->in.sin_addr
					  : (const void *)&a->in6.sin6_addr;
}

static const struct sock_tcp_diag *find(const struct sock_state *st,
					const struct sock_tcp_diag *key)
{
	return st->n_tcp ? bsearch(key, st->tcp, st->n_tcp, sizeof(*key), by_ends) : NULL;
}

const struct sock_tcp_diag *sock_tcp_find(const struct sock_state *st, const struct ckpt_ns *net,
					  const union sock_address *src,
					  const union sock_address *dst)
{
	struct sock_tcp_diag key = {
		.net = net->id,
		.sport = src->in.sin_port,
		.dport = dst->in.sin_port,
	};

	take_address(key.src, src->sa.sa_family, bytes_of(src));
	take_address(key.dst, dst->sa.sa_family, bytes_of(dst));
	return find(st, &key);
}

const struct sock_tcp_diag *sock_tcp_other(struct ckpt_run *run, const struct ckpt_ns *net,
					   const union sock_address *local,
					   const union sock_address *peer)
{
	const struct sock_state *st = sock_state(run);
	const struct sock_tcp_diag *found = sock_tcp_find(st, net, peer, local);

	if (found)
		return found;
	for (size_t i = 0; i < ckpt_ns_count(run); i++) {
		const struct ckpt_ns *ns = ckpt_ns_at(run, i);
		const struct sock_tcp_diag *d = ns->type == CKPT_NS_NET && ns != net
							? sock_tcp_find(st, ns, peer, local)
							: NULL;

		/* the same addresses in several: which of them it is cannot be told */
		if (d && found)
			return NULL;
		found = d ? d : found;
	}
	return found;
}

int sock_tcp_keys_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
			 struct ckpt_error *err)
{
	const struct sock_state *st = sock_state(run);
	uint64_t ao[8] = { 0 };
	socklen_t len = sizeof(ao);
	bool signs = !getsockopt(f->fd, IPPROTO_TCP, TCP_AO_INFO, ao, &len);
	int r = signs ? 0 : sock_tcp_diag(run, err);

	for (size_t i = 0; i < st->n_tcp && !r && !signs; i++)
		signs = st->tcp[i].ino == f->st.st_ino && st->tcp[i].signs;
	if (r || !signs)
		return r;
	return sock_refuse(run, f, "tcp-keys",
			   "it signs its segments (TCP_MD5SIG, TCP-AO), and the keys are not "
			   "saved",
			   "close it before the dump, or allow the loss");
}

/* ---- connections that wait to be accepted ---------------------------------------------- */

static bool may_wait(const struct sock_tcp_diag *d)
{
	return !d->ino && (d->state == TCP_ESTABLISHED || d->state == TCP_CLOSE_WAIT);
}

bool sock_tcp_untouched(const struct sock_tcp_diag *waits)
{
	/* a FIN counts as one */
	return may_wait(waits) && waits->received == (waits->state == TCP_CLOSE_WAIT);
}

static const uint8_t any6[16], any4[16] = { [10] = 0xff, [11] = 0xff };

static bool any_address(const uint8_t a[16])
{
	return !memcmp(a, any6, 16) || !memcmp(a, any4, 16);
}

/* Servers commonly listen twice at one port, once for each family. */
static bool takes(const struct sock_tcp_diag *l, const uint8_t address[16])
{
	const bool is4 = !memcmp(address, any4, 12);

	if (!memcmp(l->src, any6, 16))
		return !is4 || !l->only6;
	return !memcmp(l->src, any4, 16) ? is4 : !memcmp(l->src, address, 16);
}

static bool listens_for(const struct sock_tcp_diag *l, const struct sock_tcp_diag *waits)
{
	return l->state == TCP_LISTEN && l->net == waits->net && l->sport == waits->sport &&
	       takes(l, waits->src);
}

const struct sock_tcp_diag *sock_tcp_listener(const struct sock_state *st,
					      const struct sock_tcp_diag *waits)
{
	const struct sock_tcp_diag *found = NULL;

	for (size_t i = 0; i < st->n_tcp && may_wait(waits); i++) {
		if (!listens_for(&st->tcp[i], waits))
			continue;
		/* which of several it is cannot be told */
		if (found)
			return NULL;
		found = &st->tcp[i];
	}
	return found;
}

static union sock_address address_of(const uint8_t bytes[16], uint16_t port)
{
	union sock_address a = { .in6 = { .sin6_family = AF_INET6, .sin6_port = port } };

	memcpy(&a.in6.sin6_addr, bytes, 16);
	sock_address_unmap(&a);
	return a;
}

unsigned sock_tcp_waiting(struct ckpt_run *run, const struct ckpt_fd_found *f)
{
	const struct sock_state *st = sock_state(run);
	unsigned n = 0;

	for (size_t i = 0; i < st->n_tcp; i++) {
		const struct sock_tcp_diag *d = &st->tcp[i], *l = NULL, *client = NULL;
		union sock_address local, peer;
		bool out;

		if (may_wait(d))
			l = sock_tcp_listener(st, d);
		if (!l || l->ino != f->st.st_ino)
			continue;
		local = address_of(d->src, d->sport);
		peer = address_of(d->dst, d->dport);
		client = sock_tcp_other(run, ckpt_ns_by_id(run, d->net), &local, &peer);
		n += client && client->ino &&
		     f->tree->of_inode(run, f->st.st_dev, client->ino, &out) && !out;
	}
	return n;
}

/* ---- restore ------------------------------------------------------------------------- */

static int ask_one(int nl, struct request *q, struct inet_diag_msg *found)
{
	struct {
		struct nlmsghdr h;
		char rest[1024];
	} answer;
	const struct nlmsgerr *e = NLMSG_DATA(&answer.h);
	ssize_t len;

	if (send(nl, q, sizeof(*q), 0) != sizeof(*q))
		return -errno;
	len = recv(nl, &answer, sizeof(answer), 0);
	if (len < (ssize_t)NLMSG_LENGTH(sizeof(*e)))
		return len < 0 ? -errno : -EPROTO;
	if (answer.h.nlmsg_type == NLMSG_ERROR)
		return e->error;
	if (!found || len < (ssize_t)NLMSG_LENGTH(sizeof(*found)))
		return -EPROTO;
	memcpy(found, NLMSG_DATA(&answer.h), sizeof(*found));
	return 0;
}

static int clear_once(int nl, const union sock_address *src, const union sock_address *dst)
{
	struct request q = request_of(SOCK_DIAG_BY_FAMILY, 0, src->sa.sa_family);
	size_t size = src->sa.sa_family == AF_INET ? 4 : 16;
	struct inet_diag_msg found = { 0 };
	int r;

	q.r.id.idiag_sport = src->in.sin_port;
	q.r.id.idiag_dport = dst->in.sin_port;
	memcpy(q.r.id.idiag_src, bytes_of(src), size);
	memcpy(q.r.id.idiag_dst, bytes_of(dst), size);
	r = ask_one(nl, &q, &found);
	/* somebody's: it is not for us to end */
	if (r || found.idiag_inode || found.idiag_state == TCP_LISTEN)
		return r == -ENOENT ? 0 : r ? r : -EADDRINUSE;
	q.h.nlmsg_type = SOCK_DESTROY;
	q.h.nlmsg_flags |= NLM_F_ACK;
	memcpy(q.r.id.idiag_cookie, found.id.idiag_cookie, sizeof(found.id.idiag_cookie));
	r = ask_one(nl, &q, NULL);
	return r ? r : -EAGAIN;
}

int sock_tcp_clear(const union sock_address *src, const union sock_address *dst)
{
	CKPT_AUTO_FD int nl = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
	int r = nl < 0 ? -errno : -EAGAIN;

	/* it may just become another: the kernel ends connections in several objects */
	for (int i = 0; i < 10 && (r == -EAGAIN || r == -ENOENT); i++)
		r = clear_once(nl, src, dst);
	return r;
}

/* Would a socket that is bound to one address be in the way of one at the other? */
static bool overlap(const uint8_t a[16], const uint8_t b[16])
{
	return any_address(a) || any_address(b) || !memcmp(a, b, 16);
}

/* Has somebody that port? Then what is left there is not the tree's alone. */
static bool port_is_used(const struct sock_state *st, const struct sock_tcp_diag *key)
{
	for (size_t i = 0; i < st->n_tcp; i++) {
		const struct sock_tcp_diag *d = &st->tcp[i];

		if (d->net == key->net && d->sport == key->sport && overlap(d->src, key->src) &&
		    (d->ino || d->state == TCP_LISTEN))
			return true;
	}
	return false;
}

/* Its program has closed it, and it has no more than to end. */
static bool is_ending(const struct sock_tcp_diag *d)
{
	return !d->ino &&
	       (d->state == TCP_TIME_WAIT || d->state == TCP_FIN_WAIT1 ||
		d->state == TCP_FIN_WAIT2 || d->state == TCP_LAST_ACK || d->state == TCP_CLOSING);
}

static struct sock_tcp_diag port_of(const struct ckpt_ns *net, const union sock_address *local)
{
	struct sock_tcp_diag key = { .net = net->id, .sport = local->in.sin_port };

	take_address(key.src, local->sa.sa_family, bytes_of(local));
	return key;
}

void sock_tcp_clear_port(const struct sock_state *st, const struct ckpt_ns *net,
			 const union sock_address *local)
{
	const struct sock_tcp_diag key = port_of(net, local);

	if (port_is_used(st, &key))
		return;
	for (size_t i = 0; i < st->n_tcp; i++) {
		const struct sock_tcp_diag *d = &st->tcp[i];
		union sock_address src, dst;

		if (d->net != key.net || d->sport != key.sport || !overlap(d->src, key.src) ||
		    !is_ending(d))
			continue;
		src = address_of(d->src, d->sport);
		dst = address_of(d->dst, d->dport);
		sock_tcp_clear(&src, &dst);
	}
}

bool sock_tcp_listens(const struct sock_state *st, const struct ckpt_ns *net,
		      const union sock_address *local)
{
	const struct sock_tcp_diag key = port_of(net, local);

	for (size_t i = 0; i < st->n_tcp; i++) {
		const struct sock_tcp_diag *d = &st->tcp[i];

		/* of two families it depends on IPV6_V6ONLY */
		if (d->net == key.net && d->sport == key.sport && d->state == TCP_LISTEN &&
		    d->family == local->sa.sa_family && !d->device && overlap(d->src, key.src))
			return true;
	}
	return false;
}
