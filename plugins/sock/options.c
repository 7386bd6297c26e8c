/* SPDX-License-Identifier: MIT */
/* What all sockets have: options, a network namespace, a filter. */
#include "internal.h"

#include <linux/if_packet.h>
#include <linux/netlink.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif
#ifndef SO_BUF_LOCK
#define SO_BUF_LOCK 72
#endif
#ifndef SO_TXREHASH
#define SO_TXREHASH 74
#endif
#ifndef SO_PASSPIDFD
#define SO_PASSPIDFD 76
#endif
/* linux/in.h and linux/in6.h do not go together with netinet/in.h */
#ifndef IP_LOCAL_PORT_RANGE
#define IP_LOCAL_PORT_RANGE 51
#endif
#ifndef IP_RECVERR_RFC4884
#define IP_RECVERR_RFC4884 26
#endif
#ifndef IP_RECVFRAGSIZE
#define IP_RECVFRAGSIZE 25
#endif
#ifndef IPV6_MULTICAST_ALL
#define IPV6_MULTICAST_ALL 29
#endif
#ifndef IPV6_RECVERR_RFC4884
#define IPV6_RECVERR_RFC4884 31
#endif
#ifndef IPV6_FLOWINFO_SEND
#define IPV6_FLOWINFO_SEND 33
#endif
#ifndef IPV6_ADDR_PREFERENCES
#define IPV6_ADDR_PREFERENCES 72
#endif
#ifndef IPV6_MINHOPCOUNT
#define IPV6_MINHOPCOUNT 73
#endif
#ifndef IPV6_RECVORIGDSTADDR
#define IPV6_RECVORIGDSTADDR 74
#endif
#ifndef IPV6_UNICAST_IF
#define IPV6_UNICAST_IF 76
#endif
#ifndef IPV6_RECVFRAGSIZE
#define IPV6_RECVFRAGSIZE 77
#endif
/* linux/icmp.h and linux/icmpv6.h */
#ifndef ICMP_FILTER
#define ICMP_FILTER 1
#endif
#ifndef ICMPV6_FILTER
#define ICMPV6_FILTER 1
#endif
#ifndef SOL_ICMPV6
#define SOL_ICMPV6 58
#endif
#ifndef SOL_RAW
#define SOL_RAW 255
#endif
#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

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

enum form {
	INT,
	HALF,  /* the kernel doubles what it is given, and has a way around the limit */
	BYTES, /* a structure */
	TEXT,  /* a string with its NUL */
};

/* In order of setting: the buffers' sizes before the note of who has set them. */
static const struct option {
	const char *name;
	int level, get, set;
	enum form form;
} options[] = {
#define SOCK(x)                           \
	{                                 \
#x, SOL_SOCKET, x, x, INT \
	}
#define IP4(x)                            \
	{                                 \
#x, IPPROTO_IP, x, x, INT \
	}
#define IP6(x)                              \
	{                                   \
#x, IPPROTO_IPV6, x, x, INT \
	}
#define UDP(x)                             \
	{                                  \
#x, IPPROTO_UDP, x, x, INT \
	}
#define TCP(x)                             \
	{                                  \
#x, IPPROTO_TCP, x, x, INT \
	}
#define PACKET(x)                         \
	{                                 \
#x, SOL_PACKET, x, x, INT \
	}
#define NETLINK(x)                         \
	{                                  \
#x, SOL_NETLINK, x, x, INT \
	}
	SOCK(SO_REUSEADDR),
	SOCK(SO_REUSEPORT),
	SOCK(SO_KEEPALIVE),
	SOCK(SO_BROADCAST),
	SOCK(SO_DONTROUTE),
	SOCK(SO_OOBINLINE),
	SOCK(SO_PRIORITY),
	SOCK(SO_MARK),
	SOCK(SO_RCVLOWAT),
	SOCK(SO_BUSY_POLL),
	SOCK(SO_INCOMING_CPU),
	SOCK(SO_ZEROCOPY),
	SOCK(SO_TXREHASH),
	SOCK(SO_RXQ_OVFL),
	SOCK(SO_WIFI_STATUS),
	SOCK(SO_TIMESTAMP),
	SOCK(SO_TIMESTAMPNS),
	SOCK(SO_TIMESTAMPING),
	SOCK(SO_NO_CHECK),
	SOCK(SO_PREFER_BUSY_POLL),
	SOCK(SO_PASSCRED),
	SOCK(SO_PASSSEC),
	SOCK(SO_PASSPIDFD),
	SOCK(SO_PEEK_OFF),
	{ "SO_SNDBUF", SOL_SOCKET, SO_SNDBUF, SO_SNDBUFFORCE, HALF },
	{ "SO_RCVBUF", SOL_SOCKET, SO_RCVBUF, SO_RCVBUFFORCE, HALF },
	SOCK(SO_BUF_LOCK),
	{ "SO_LINGER", SOL_SOCKET, SO_LINGER, SO_LINGER, BYTES },
	{ "SO_RCVTIMEO", SOL_SOCKET, SO_RCVTIMEO, SO_RCVTIMEO, BYTES },
	{ "SO_SNDTIMEO", SOL_SOCKET, SO_SNDTIMEO, SO_SNDTIMEO, BYTES },
	{ "SO_BINDTODEVICE", SOL_SOCKET, SO_BINDTODEVICE, SO_BINDTODEVICE, TEXT },
	{ "ICMP_FILTER", SOL_RAW, ICMP_FILTER, ICMP_FILTER, INT },
	{ "ICMP6_FILTER", SOL_ICMPV6, ICMPV6_FILTER, ICMPV6_FILTER, BYTES },
	{ "IPV6_CHECKSUM", SOL_RAW, IPV6_CHECKSUM, IPV6_CHECKSUM, INT },
	IP4(IP_HDRINCL),
	IP4(IP_TOS),
	IP4(IP_TTL),
	IP4(IP_MTU_DISCOVER),
	IP4(IP_FREEBIND),
	IP4(IP_TRANSPARENT),
	IP4(IP_BIND_ADDRESS_NO_PORT),
	IP4(IP_MINTTL),
	IP4(IP_RECVERR),
	IP4(IP_PKTINFO),
	IP4(IP_RECVTOS),
	IP4(IP_RECVTTL),
	IP4(IP_RECVOPTS),
	IP4(IP_RETOPTS),
	IP4(IP_RECVORIGDSTADDR),
	IP4(IP_CHECKSUM),
	IP4(IP_RECVFRAGSIZE),
	IP4(IP_RECVERR_RFC4884),
	IP4(IP_MULTICAST_TTL),
	IP4(IP_MULTICAST_LOOP),
	IP4(IP_MULTICAST_ALL),
	IP4(IP_UNICAST_IF),
	IP4(IP_LOCAL_PORT_RANGE),
	{ "IP_MULTICAST_IF", IPPROTO_IP, IP_MULTICAST_IF, IP_MULTICAST_IF, BYTES },
	{ "IP_OPTIONS", IPPROTO_IP, IP_OPTIONS, IP_OPTIONS, BYTES },
	IP6(IPV6_V6ONLY),
	IP6(IPV6_TCLASS),
	IP6(IPV6_UNICAST_HOPS),
	IP6(IPV6_RECVERR),
	IP6(IPV6_RECVPKTINFO),
	IP6(IPV6_RECVHOPLIMIT),
	IP6(IPV6_RECVTCLASS),
	IP6(IPV6_RECVORIGDSTADDR),
	IP6(IPV6_RECVFRAGSIZE),
	IP6(IPV6_RECVERR_RFC4884),
	IP6(IPV6_MTU_DISCOVER),
	IP6(IPV6_DONTFRAG),
	IP6(IPV6_AUTOFLOWLABEL),
	IP6(IPV6_FLOWINFO_SEND),
	IP6(IPV6_ADDR_PREFERENCES),
	IP6(IPV6_MINHOPCOUNT),
	IP6(IPV6_MULTICAST_HOPS),
	IP6(IPV6_MULTICAST_LOOP),
	IP6(IPV6_MULTICAST_ALL),
	IP6(IPV6_MULTICAST_IF),
	IP6(IPV6_UNICAST_IF),
	IP6(IPV6_FREEBIND),
	IP6(IPV6_TRANSPARENT),
	PACKET(PACKET_VERSION),
	PACKET(PACKET_AUXDATA),
	PACKET(PACKET_ORIGDEV),
	PACKET(PACKET_VNET_HDR),
	PACKET(PACKET_RESERVE),
	PACKET(PACKET_LOSS),
	PACKET(PACKET_TIMESTAMP),
	PACKET(PACKET_QDISC_BYPASS),
	PACKET(PACKET_IGNORE_OUTGOING),
	NETLINK(NETLINK_PKTINFO),
	NETLINK(NETLINK_BROADCAST_ERROR),
	NETLINK(NETLINK_NO_ENOBUFS),
	NETLINK(NETLINK_LISTEN_ALL_NSID),
	NETLINK(NETLINK_CAP_ACK),
	NETLINK(NETLINK_EXT_ACK),
	NETLINK(NETLINK_GET_STRICT_CHK),
	UDP(UDP_SEGMENT),
	UDP(UDP_GRO),
	UDP(UDP_NO_CHECK6_TX),
	UDP(UDP_NO_CHECK6_RX),
	TCP(TCP_NODELAY),
	TCP(TCP_CORK),
	TCP(TCP_QUICKACK),
	TCP(TCP_MAXSEG),
	TCP(TCP_KEEPIDLE),
	TCP(TCP_KEEPINTVL),
	TCP(TCP_KEEPCNT),
	TCP(TCP_SYNCNT),
	TCP(TCP_LINGER2),
	TCP(TCP_DEFER_ACCEPT),
	TCP(TCP_WINDOW_CLAMP),
	TCP(TCP_USER_TIMEOUT),
	TCP(TCP_FASTOPEN),
	TCP(TCP_NOTSENT_LOWAT),
	TCP(TCP_SAVE_SYN),
	{ "TCP_CONGESTION", IPPROTO_TCP, TCP_CONGESTION, TCP_CONGESTION, TEXT },
};
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
		return opt->get == TCP_QUICKACK || opt->get == TCP_MAXSEG ||
		       opt->get == TCP_WINDOW_CLAMP;
	return opt->level == SOL_SOCKET && (opt->get == SO_INCOMING_CPU ||
					    (opt->get == SO_SNDBUF && tuned & SOCK_SNDBUF_LOCK) ||
					    (opt->get == SO_RCVBUF && tuned & SOCK_RCVBUF_LOCK));
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

		if (!d->known[i] || (connected && is_lively(&options[i], tuned)))
			continue;
		r = answer(f, i, &value, o->data[o->n], &size);
		if (r < 0)
			return ckpt_fail_sys(err, r, "getsockopt(2) %s", options[i].name);
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
