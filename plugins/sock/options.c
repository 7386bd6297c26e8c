/* SPDX-License-Identifier: MIT */
/* What all sockets have: options, a network namespace, a filter. */
#include "internal.h"
#include "option_table.h"

#include <poll.h>
#include <stdio.h>

int sock_int(int fd, int level, int name)
{
	int v = -1;
	socklen_t len = sizeof(v);

	return getsockopt(fd, level, name, &v, &len) ? -1 : v;
}

int sock_put_back(int fd, int level, int name, int value)
{
	int r = -1;

	for (int tries = 0; r && tries < 3; tries++)
		r = setsockopt(fd, level, name, &value, sizeof(value));
	return r ? -errno : 0;
}

_Static_assert(CKPT_ARRAY_SIZE(options) <= SOCK_OPTIONS_MAX, "SOCK_OPTIONS_MAX is too small");

#define DATA_MAX SOCK_OPTION_DATA

/* The options' numbers mean other things to other families: ask only those that know them. */
static bool applies(const struct option *opt, int domain, int protocol)
{
	switch (opt->level) {
	case IPPROTO_IPV6:
		return domain == AF_INET6;
	case IPPROTO_IP:
		return domain == AF_INET || domain == AF_INET6;
	case SOL_NETLINK:
		return domain == AF_NETLINK;
	case SOL_PACKET:
		return domain == AF_PACKET;
	case SOL_RAW:
		return domain == (opt->get == ICMP_FILTER ? AF_INET : AF_INET6);
	case IPPROTO_ICMPV6:
		return domain == AF_INET6 && protocol == IPPROTO_ICMPV6;
	case IPPROTO_TCP:
		return (domain == AF_INET || domain == AF_INET6) &&
		       (protocol == IPPROTO_TCP || protocol == IPPROTO_MPTCP);
	case IPPROTO_UDP:
		return (domain == AF_INET || domain == AF_INET6) && protocol == opt->level;
	default:
		/* of a socket that receives, the kernel sets SO_INCOMING_CPU itself */
		return opt->get == SO_PEEK_OFF
			       ? domain == AF_UNIX ||
					 ((domain == AF_INET || domain == AF_INET6) &&
					  (protocol == IPPROTO_UDP || protocol == IPPROTO_TCP))
		       : opt->get == SO_INCOMING_CPU ? protocol != IPPROTO_UDP
						     : true;
	}
}

/* How a kernel says that it has no such option for such a socket. */
static bool absent(int e)
{
	return e == ENOPROTOOPT || e == EOPNOTSUPP || e == EINVAL || e == ENOTCONN || e == EPERM;
}

/* 1: read; 0: this kernel does not have it for this socket; negative: it could not be read. */
static int read_option(int fd, const struct option *opt, int *value, uint8_t *data, size_t *size)
{
	socklen_t len = opt->form == INT || opt->form == HALF ? sizeof(*value) : DATA_MAX;
	void *to = opt->form == INT || opt->form == HALF ? (void *)value : (void *)data;

	if (getsockopt(fd, opt->level, opt->get, to, &len))
		return absent(errno) ? 0 : -errno;
	if (opt->form == TEXT)
		len = (socklen_t)strnlen((char *)data, len);
	*size = opt->form == BYTES || opt->form == TEXT ? len : 0;
	return 1;
}

/* ---- ahead of time ------------------------------------------------------------------------ */

#define AHEAD_ROOM 512

/* Answers of one socket. */
struct ahead {
	int value[CKPT_ARRAY_SIZE(options)];
	/* as read_option(); what is not there is to be asked for */
	int16_t result[CKPT_ARRAY_SIZE(options)];
	bool there[CKPT_ARRAY_SIZE(options)];
	uint8_t size[CKPT_ARRAY_SIZE(options)];
	uint16_t at[CKPT_ARRAY_SIZE(options)];
	uint8_t data[AHEAD_ROOM];
};
_Static_assert(DATA_MAX <= UINT8_MAX && AHEAD_ROOM <= UINT16_MAX, "struct ahead");

void *sock_options_ahead(const struct ckpt_fd_found *f)
{
	struct ahead *a = calloc(1, sizeof(*a));
	uint16_t used = 0;

	for (size_t i = 0; a && i < CKPT_ARRAY_SIZE(options); i++) {
		uint8_t data[DATA_MAX];
		size_t size = 0;
		int r;

		if (!applies(&options[i], f->domain, f->protocol))
			continue;
		r = read_option(f->fd, &options[i], &a->value[i], data, &size);
		if (size > AHEAD_ROOM - (size_t)used)
			continue;
		if (size)
			memcpy(a->data + used, data, size);
		a->result[i] = (int16_t)r;
		a->at[i] = used;
		a->size[i] = (uint8_t)size;
		a->there[i] = true;
		used = (uint16_t)(used + size);
	}
	return a;
}

/* As read_option(), for the option of that index. */
static int answer(const struct ckpt_fd_found *f, size_t i, int *value, uint8_t *data, size_t *size)
{
	const struct ahead *a = f->ahead;

	if (!a || !a->there[i])
		return read_option(f->fd, &options[i], value, data, size);
	*value = a->value[i];
	*size = a->size[i];
	memcpy(data, a->data + a->at[i], a->size[i]);
	return a->result[i];
}

/* What a socket of this family and type has when it is new; NULL: it cannot be made. */
static const struct sock_defaults *defaults_of(struct ckpt_run *run, const struct ckpt_fd_found *f,
					       struct ckpt_error *err)
{
	struct sock_state *st = sock_state(run);
	int domain = f->domain, type = f->type;
	CKPT_AUTO_FD int fresh = -1;
	const struct ckpt_ns *ns;
	struct sock_defaults *d;
	SOCK_PLACE(place);

	/* settings of the namespace tell what a new one has */
	if (sock_net_of(run, f->fd, &ns, err) < 0 || sock_net_enter(ns, &place, err) < 0)
		return NULL;

	for (size_t i = 0; i < st->n_defaults; i++)
		if (st->defaults[i].ns == ns && st->defaults[i].domain == domain &&
		    st->defaults[i].type == type && st->defaults[i].protocol == f->protocol)
			return &st->defaults[i];
	fresh = socket(domain, type | SOCK_CLOEXEC, f->protocol);
	if (fresh < 0)
		return NULL;
	/* more would only save time */
	if (st->n_defaults == CKPT_ARRAY_SIZE(st->defaults))
		st->n_defaults = 0;
	d = &st->defaults[st->n_defaults++];
	memset(d, 0, sizeof(*d));
	d->ns = ns;
	d->domain = domain;
	d->type = type;
	d->protocol = f->protocol;
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(options); i++)
		d->known[i] =
			applies(&options[i], domain, f->protocol) &&
			read_option(fresh, &options[i], &d->value[i], d->data[i], &d->size[i]) > 0;
	return d;
}

/* Now or before. */
static bool is_connected(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLRDHUP };
	struct tcp_info ti = { 0 };
	socklen_t len = sizeof(ti);

	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &ti, &len) || ti.tcpi_state == TCP_LISTEN)
		return false;
	return ti.tcpi_state != TCP_CLOSE || (poll(&p, 1, 0) == 1 && p.revents & POLLRDHUP);
}

/* Does the kernel set it itself while the socket is connected? `tuned`: buffers, as SO_BUF_LOCK. */
static bool is_lively(const struct option *opt, int tuned)
{
	if (opt->level == IPPROTO_IP)
		return opt->get == IP_MULTICAST_TTL || opt->get == IP_MULTICAST_IF;
	if (opt->level == IPPROTO_IPV6)
		return opt->get == IPV6_MULTICAST_HOPS || opt->get == IPV6_MULTICAST_IF;
	if (opt->level == IPPROTO_TCP)
		/* those of TFO concern connect(2) */
		return opt->get == TCP_QUICKACK || opt->get == TCP_MAXSEG ||
		       opt->get == TCP_WINDOW_CLAMP || opt->get == TCP_FASTOPEN_CONNECT ||
		       opt->get == TCP_FASTOPEN_NO_COOKIE;
	return opt->level == SOL_SOCKET && (opt->get == SO_INCOMING_CPU ||
					    (opt->get == SO_SNDBUF && tuned & SOCK_SNDBUF_LOCK) ||
					    (opt->get == SO_RCVBUF && tuned & SOCK_RCVBUF_LOCK));
}

/* The kernel answers for the old one too where the new one is set, and setting it would undo that.
 */
static bool is_newer_set(const struct sock_options *o, const char *name)
{
	if (strcmp(name, "SO_TIMESTAMPING") != 0)
		return false;
	for (size_t i = 0; i < o->n; i++)
		if (!strcmp(o->opt[i].name, "SO_TIMESTAMPING_NEW"))
			return true;
	return false;
}

int sock_options_read(struct ckpt_run *run, const struct ckpt_fd_found *f, struct sock_options *o,
		      struct ckpt_error *err)
{
	const struct sock_defaults *d = defaults_of(run, f, err);
	bool connected =
		f->domain != AF_NETLINK && f->protocol == IPPROTO_TCP && is_connected(f->fd);
	int tuned = connected ? ~sock_buf_lock(f->fd) : 0;

	o->n = 0;
	if (!d)
		return ckpt_fail_sys(err, errno, "making a socket to compare with");
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(options); i++) {
		Ckpt__Sock__Option *rec = &o->opt[o->n];
		size_t size = 0;
		int value = 0, r;

		if (!d->known[i] || (connected && is_lively(&options[i], tuned)) ||
		    is_newer_set(o, options[i].name))
			continue;
		r = answer(f, i, &value, o->data[o->n], &size);
		if (r < 0)
			return ckpt_fail_sys(err, r, "getsockopt(2) %s", options[i].name);
		/* the kernel cuts it off silently */
		if (size == DATA_MAX)
			return ckpt_fail_as(err, CKPT_EXIT_REFUSED, EOPNOTSUPP,
					    "%s of a socket is longer than ckpt saves",
					    options[i].name);
		if (!r || (value == d->value[i] && size == d->size[i] &&
			   !memcmp(o->data[o->n], d->data[i], size)))
			continue;
		ckpt__sock__option__init(rec);
		rec->name = (char *)(uintptr_t)options[i].name;
		rec->value = value;
		rec->data.data = o->data[o->n];
		rec->data.len = size;
		o->ptr[o->n++] = rec;
	}
	return 0;
}

static const struct option *find_option(const char *name)
{
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(options); i++)
		if (!strcmp(options[i].name, name))
			return &options[i];
	return NULL;
}

int sock_options_check(Ckpt__Sock__Option *const *opt, size_t n, uint32_t id,
		       struct ckpt_error *err)
{
	for (size_t i = 0; i < n; i++)
		if (!find_option(opt[i]->name) || opt[i]->data.len > DATA_MAX ||
		    opt[i]->value < INT32_MIN || opt[i]->value > INT32_MAX)
			return ckpt_fail_image(err, "open file %u has no valid socket option %.40s",
					       id, opt[i]->name);
	return 0;
}

static int set_option(int fd, const struct option *opt, const Ckpt__Sock__Option *rec)
{
	int value = (int)rec->value;

	switch (opt->form) {
	case HALF:
		value /= 2;
		/* fall through */
	case INT:
		return setsockopt(fd, opt->level, opt->set, &value, sizeof(value));
	default:
		return setsockopt(fd, opt->level, opt->set, rec->data.data, rec->data.len);
	}
}

int sock_options_apply(int fd, Ckpt__Sock__Option *const *opt, size_t n, struct ckpt_error *err)
{
	for (size_t i = 0; i < n; i++) {
		const struct option *o = find_option(opt[i]->name);

		if (!o)
			return ckpt_fail_image(err, "unknown socket option %.40s", opt[i]->name);
		if (set_option(fd, o, opt[i]))
			return ckpt_fail_sys(err, errno, "setsockopt(2) %s to %lld", o->name,
					     (long long)opt[i]->value);
	}
	return 0;
}

int sock_sndbuf_force(int fd, int size, int lock, struct ckpt_error *err)
{
	size /= 2;
	if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size)) ||
	    setsockopt(fd, SOL_SOCKET, SO_BUF_LOCK, &lock, sizeof(lock)))
		return ckpt_fail_sys(err, errno, "SO_SNDBUFFORCE");
	return 0;
}

int sock_buf_lock(int fd)
{
	return sock_int(fd, SOL_SOCKET, SO_BUF_LOCK);
}

int sock_survey(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	int r = sock_net_survey(run, f, err);

	if (!r)
		r = sock_filter_survey(run, f);
	return r ? r : sock_refuse_outside(run, f, err);
}

int sock_collect(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	int r = sock_filter_collect(run, f, err);

	return r < 0 ? r : sock_net_collect(run, f, err);
}
