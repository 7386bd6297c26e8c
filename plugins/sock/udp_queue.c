/* SPDX-License-Identifier: MIT */
/*
 * Datagrams that wait in a UDP socket. They are looked at with MSG_PEEK and SO_PEEK_OFF,
 * which takes nothing out, and put back as packets on the loopback interface: a raw
 * socket may say that they come from where they came from.
 */
#include "inet.h"

#include <ifaddrs.h>
#include <netinet/ip.h>
#include <netinet/ip6.h>
#include <netinet/udp.h>
#include <stdio.h>
#include <time.h>

#ifndef SO_MEMINFO
#define SO_MEMINFO 55
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif
#ifndef IPV6_HDRINCL
#define IPV6_HDRINCL 36
#endif

/* The loopback interface takes packets of 64 KiB, headers included. */
#define DATA_MAX   (65536 - (int)sizeof(struct ip6_hdr) - (int)sizeof(struct udphdr))
#define QUEUE_MAX  (32u << 20)
#define QUEUE_MANY 100000

int sock_udp_queue_survey(struct ckpt_run *run, const struct ckpt_fd_found *f)
{
	char device[32] = "", object[512];
	const char *reason = NULL;
	socklen_t len = sizeof(device);
	int r;

	snprintf(object, sizeof(object), "fd %d (%s), datagrams that wait", f->num, f->link);
	r = ckpt_refuse_off(run, "udp-queue", f->task, object);
	if (r <= 0)
		return r == -ECANCELED ? 1 : r;
	if (sock_int(f->fd, SOL_SOCKET, SO_REUSEADDR) > 0 ||
	    sock_int(f->fd, SOL_SOCKET, SO_REUSEPORT) > 0)
		reason = "datagrams wait in a socket that may share its port: which socket gets "
			 "one that is put back, the kernel decides";
	else if (!getsockopt(f->fd, SOL_SOCKET, SO_BINDTODEVICE, device, &len) && len && *device)
		reason = "datagrams wait in a socket that is bound to an interface";
	else if (sock_int(f->fd, IPPROTO_UDP, UDP_GRO) > 0)
		reason = "datagrams wait in a socket that gets several as one (UDP_GRO)";
	if (!reason)
		return 0;
	return sock_refuse_detail(run, f, "udp-queue", reason,
				  "try again when the program has received them, or --allow-loss "
				  "sock.udp-queue: they are then lost, as the network may lose "
				  "them");
}

/* ---- dump ------------------------------------------------------------------------- */

/* What the kernel tells about a datagram if it is asked to. */
static const struct ask {
	int level, name, value;
} asks[] = {
	{ IPPROTO_IP, IP_PKTINFO, 1 },	      { IPPROTO_IP, IP_RECVTOS, 1 },
	{ IPPROTO_IP, IP_RECVTTL, 1 },	      { IPPROTO_IPV6, IPV6_RECVPKTINFO, 1 },
	{ IPPROTO_IPV6, IPV6_RECVTCLASS, 1 }, { IPPROTO_IPV6, IPV6_RECVHOPLIMIT, 1 },
	{ SOL_SOCKET, SO_PEEK_OFF, 0 },
};
_Static_assert(CKPT_ARRAY_SIZE(asks) <= SOCK_GUARDED_MAX, "SOCK_GUARDED_MAX is too small");

static int ask_all(struct sock_state *st, int domain)
{
	int r = 0;

	for (size_t i = 0; !r && i < CKPT_ARRAY_SIZE(asks); i++)
		if (asks[i].level != IPPROTO_IPV6 || domain == AF_INET6)
			r = sock_guard_set(st, asks[i].level, asks[i].name, asks[i].value);
	return r;
}

struct datagram {
	Ckpt__Sock__UdpMessage rec;
	struct sock_address_text from, to;
};

static void take_control(struct msghdr *m, struct datagram *d, union sock_address *to)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
		const struct in_pktinfo *p4 = (const void *)CMSG_DATA(c);
		const struct in6_pktinfo *p6 = (const void *)CMSG_DATA(c);
		const int *number = (const void *)CMSG_DATA(c);

		if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_PKTINFO &&
		    to->sa.sa_family != AF_INET6) {
			to->in.sin_family = AF_INET;
			to->in.sin_addr = p4->ipi_addr;
		} else if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS) {
			d->rec.tos = *CMSG_DATA(c);
		} else if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TTL) {
			d->rec.ttl = (uint32_t)*number;
		} else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_PKTINFO) {
			to->in6.sin6_family = AF_INET6;
			to->in6.sin6_addr = p6->ipi6_addr;
		} else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_TCLASS) {
			d->rec.tos = (uint32_t)*number;
		} else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_HOPLIMIT) {
			d->rec.ttl = (uint32_t)*number;
		}
	}
}

/* Was it sent to this host alone? What went to a group cannot be put back to one of it. */
static bool is_local(const union sock_address *to)
{
	const struct in6_addr *a6 = &to->in6.sin6_addr;
	bool mapped = to->sa.sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(a6), found = false;
	struct in_addr a4 = to->in.sin_addr;
	struct ifaddrs *list;

	if (mapped)
		memcpy(&a4, &a6->s6_addr[12], sizeof(a4));
	if (to->sa.sa_family == AF_INET6 && !mapped && IN6_IS_ADDR_LOOPBACK(a6))
		return true;
	if ((mapped || to->sa.sa_family == AF_INET) && ntohl(a4.s_addr) >> 24 == 127)
		return true;
	if (getifaddrs(&list))
		return false;
	for (const struct ifaddrs *i = list; i && !found; i = i->ifa_next) {
		const union sock_address *a = (const void *)i->ifa_addr;

		if (a && a->sa.sa_family == AF_INET && (mapped || to->sa.sa_family == AF_INET))
			found = a->in.sin_addr.s_addr == a4.s_addr;
		else if (a && a->sa.sa_family == AF_INET6 && to->sa.sa_family == AF_INET6)
			found = IN6_ARE_ADDR_EQUAL(&a->in6.sin6_addr, a6);
	}
	freeifaddrs(list);
	return found;
}

static int add(Ckpt__Sock__Inet *rec, struct datagram *d, const void *data, size_t len)
{
	Ckpt__Sock__UdpMessage **more =
		realloc(rec->queue, (rec->n_queue + 1) * sizeof(*rec->queue));

	if (more)
		rec->queue = more;
	d->rec.data.data = malloc(len + 1);
	if (!more || !d->rec.data.data)
		return -ENOMEM;
	memcpy(d->rec.data.data, data, len);
	d->rec.data.len = len;
	rec->queue[rec->n_queue++] = &d->rec;
	return 0;
}

/* 1: there may be more. */
static int take_datagram(struct ckpt_run *run, const struct ckpt_fd_found *f, uint8_t *buf,
			 Ckpt__Sock__Inet *rec, struct ckpt_error *err)
{
	_Alignas(struct cmsghdr) char control[1024];
	union sock_address from = { 0 }, to = { 0 };
	struct iovec iov = { buf, 65536 };
	struct msghdr m = { .msg_name = &from,
			    .msg_namelen = sizeof(from),
			    .msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = control,
			    .msg_controllen = sizeof(control) };
	ssize_t len = recvmsg(f->fd, &m, MSG_PEEK | MSG_DONTWAIT);
	struct datagram *d;
	int r;

	if (len < 0)
		return errno == EAGAIN ? 0 : ckpt_fail_sys(err, errno, "recvmsg(2) with MSG_PEEK");
	d = calloc(1, sizeof(*d));
	if (!d)
		return ckpt_fail(err, ENOMEM, "out of memory");
	ckpt__sock__udp_message__init(&d->rec);
	take_control(&m, d, &to);
	if (len > DATA_MAX || !is_local(&to)) {
		free(d);
		r = sock_refuse_detail(run, f, "udp-queue",
				       "a datagram waits that was sent to a group, or is too "
				       "large for the loopback interface",
				       "try again when the program has received it, or "
				       "--allow-loss sock.udp-queue: it is then lost");
		return r ? r : 1;
	}
	d->rec.from = &d->from.rec;
	d->rec.to = &d->to.rec;
	r = sock_address_read(&from, &d->from);
	if (!r)
		r = sock_address_read(&to, &d->to);
	if (!r)
		r = add(rec, d, buf, (size_t)len);
	if (!r)
		return 1;
	free(d->rec.data.data);
	free(d);
	return ckpt_fail_sys(err, r, "keeping a datagram");
}

void sock_udp_queue_free(Ckpt__Sock__Inet *rec)
{
	for (size_t i = 0; i < rec->n_queue; i++) {
		free(rec->queue[i]->data.data);
		/* the first member of a struct datagram */
		free(rec->queue[i]);
	}
	free(rec->queue);
	rec->queue = NULL;
	rec->n_queue = 0;
}

int sock_udp_queue_read(struct ckpt_run *run, const struct ckpt_fd_found *f, Ckpt__Sock__Inet *rec,
			struct ckpt_error *err)
{
	CKPT_AUTO_FREE uint8_t *buf = malloc(65536);
	struct sock_state *st = sock_state(run);
	size_t total = 0;
	int r, back;

	if (!buf)
		return ckpt_fail(err, ENOMEM, "out of memory");
	r = sock_guard_begin(st, f->fd);
	if (r)
		return ckpt_fail_sys(err, r, "watching over a socket's options");
	r = ask_all(st, f->domain);
	r = r ? ckpt_fail_sys(err, r, "setsockopt(2)") : 1;
	while (r > 0 && rec->n_queue <= QUEUE_MANY && total <= QUEUE_MAX) {
		r = take_datagram(run, f, buf, rec, err);
		total += r > 0 && rec->n_queue ? rec->queue[rec->n_queue - 1]->data.len : 0;
	}
	if (r > 0)
		r = ckpt_fail(err, EFBIG, "the socket's queue holds more than ckpt saves");
	back = sock_guard_end(st);
	return r ? r : back ? ckpt_fail_sys(err, back, "setsockopt(2)") : 0;
}

/* ---- restore ---------------------------------------------------------------------- */

int sock_udp_queue_plan(const Ckpt__Sock__Inet *rec, struct ckpt_error *err)
{
	for (size_t i = 0; i < rec->n_queue; i++) {
		const Ckpt__Sock__UdpMessage *m = rec->queue[i];
		union sock_address a;
		socklen_t len;

		if (rec->protocol != IPPROTO_UDP || !rec->local || !rec->local->port || !m->from ||
		    !m->to || m->data.len > DATA_MAX || m->tos > 255 || m->ttl > 255 ||
		    !sock_address_write(rec->family, m->from, &a, &len) ||
		    !sock_address_write(rec->family, m->to, &a, &len))
			return ckpt_fail_image(err, "a datagram for open file %u is not valid",
					       rec->id);
	}
	return 0;
}

static uint32_t sum_of(const void *data, size_t len, uint32_t sum)
{
	const uint8_t *p = data;

	for (size_t i = 0; i < len; i++)
		sum += i % 2 ? p[i] : (uint32_t)p[i] << 8;
	return sum;
}

/* As RFC 768 and 8200 say, over a header of addresses, length and protocol. */
static uint16_t checksum(const void *addresses, size_t len, const struct udphdr *udp, size_t size)
{
	/* of at most 64 KiB: it does not overflow before it is folded */
	uint32_t sum = sum_of(addresses, len, IPPROTO_UDP + (uint32_t)size);

	sum = sum_of(udp, size, sum);
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return htons((uint16_t)(~sum & 0xffff ? ~sum : 0xffff));
}

struct packet {
	union {
		struct iphdr v4;
		struct ip6_hdr v6;
	} ip;
	uint8_t rest[sizeof(struct udphdr) + 65536];
};

/* Write headers and data; returns the length. */
static size_t make_packet(struct packet *p, const Ckpt__Sock__UdpMessage *m, bool v4,
			  const union sock_address *from, const union sock_address *to,
			  uint16_t port)
{
	size_t head = v4 ? sizeof(p->ip.v4) : sizeof(p->ip.v6);
	size_t size = sizeof(struct udphdr) + m->data.len;
	struct udphdr udp = { .source = from->in.sin_port,
			      .dest = htons(port),
			      .len = htons((uint16_t)size) };
	uint8_t *at = (uint8_t *)p + head, pair[32];
	size_t half = v4 ? 4 : 16;

	memset(&p->ip, 0, sizeof(p->ip));
	memcpy(pair, v4 ? (const void *)&from->in.sin_addr : (const void *)&from->in6.sin6_addr,
	       half);
	memcpy(pair + half, v4 ? (const void *)&to->in.sin_addr : (const void *)&to->in6.sin6_addr,
	       half);
	if (v4) {
		p->ip.v4 = (struct iphdr){ .version = 4,
					   .ihl = 5,
					   .tos = (uint8_t)m->tos,
					   .ttl = m->ttl ? (uint8_t)m->ttl : 64,
					   .protocol = IPPROTO_UDP,
					   .saddr = from->in.sin_addr.s_addr,
					   .daddr = to->in.sin_addr.s_addr };
	} else {
		p->ip.v6.ip6_flow = htonl(6u << 28 | m->tos << 20);
		p->ip.v6.ip6_plen = htons((uint16_t)size);
		p->ip.v6.ip6_nxt = IPPROTO_UDP;
		p->ip.v6.ip6_hlim = m->ttl ? (uint8_t)m->ttl : 64;
		p->ip.v6.ip6_src = from->in6.sin6_addr;
		p->ip.v6.ip6_dst = to->in6.sin6_addr;
	}
	memcpy(at, &udp, sizeof(udp));
	if (m->data.len)
		memcpy(at + sizeof(udp), m->data.data, m->data.len);
	udp.check = checksum(pair, 2 * half, (const struct udphdr *)at, size);
	memcpy(at, &udp, sizeof(udp));
	return head + size;
}

static int raw_socket(bool v4)
{
	int fd = socket(v4 ? AF_INET : AF_INET6, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW);
	int on = 1;

	if (fd >= 0 && !v4 && setsockopt(fd, IPPROTO_IPV6, IPV6_HDRINCL, &on, sizeof(on))) {
		ckpt_cleanup_fd(&fd);
		return -1;
	}
	return fd;
}

/* Bytes that the socket's queue takes up. */
static long queued(int fd)
{
	uint32_t info[16] = { 0 };
	socklen_t len = sizeof(info);

	return getsockopt(fd, SOL_SOCKET, SO_MEMINFO, info, &len) ? -errno : (long)info[0];
}

/* The kernel delivers in its own time. */
static int wait_arrival(int fd, long before, struct ckpt_error *err)
{
	for (int ms = 0; ms < 10000; ms++) {
		long now = queued(fd);

		if (now < 0)
			return ckpt_fail_sys(err, (int)-now, "SO_MEMINFO");
		if (now > before)
			return 0;
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
	ckpt_fail(err, ETIMEDOUT, "a datagram that was put back does not arrive");
	return ckpt_hint(err, "a packet filter may drop it, or the loopback interface be down");
}

static int put_back(int fd, const Ckpt__Sock__Inet *rec, const Ckpt__Sock__UdpMessage *m,
		    struct packet *p, int raw[2], struct ckpt_error *err)
{
	union sock_address from, to;
	socklen_t len;
	long before;
	size_t size;
	bool v4;

	if (!sock_address_write(rec->family, m->from, &from, &len) ||
	    !sock_address_write(rec->family, m->to, &to, &len))
		return ckpt_fail_image(err, "%.64s is no address", m->from->address);
	v4 = sock_address_unmap(&from);
	if (sock_address_unmap(&to) != v4)
		return ckpt_fail_image(err, "a datagram goes from one protocol to another");
	if (raw[v4] < 0)
		raw[v4] = raw_socket(v4);
	if (raw[v4] < 0)
		return ckpt_fail_sys(err, errno, "a raw socket to put datagrams back");
	to.in.sin_port = 0;
	size = make_packet(p, m, v4, &from, &to, (uint16_t)rec->local->port);
	before = queued(fd);
	if (sendto(raw[v4], p, size, 0, &to.sa, v4 ? sizeof(to.in) : sizeof(to.in6)) !=
	    (ssize_t)size)
		return ckpt_fail_sys(err, errno, "putting back a datagram from %s to %s",
				     m->from->address, m->to->address);
	return wait_arrival(fd, before, err);
}

int sock_udp_queue_write(int fd, const Ckpt__Sock__Inet *rec, struct ckpt_error *err)
{
	int lock = sock_buf_lock(fd), size = sock_int(fd, SOL_SOCKET, SO_RCVBUF) / 2, r = 0;
	int large = INT32_MAX / 2, raw[2] = { -1, -1 };
	CKPT_AUTO_FREE struct packet *p = malloc(sizeof(*p));

	if (!rec->n_queue)
		return 0;
	if (!p)
		return ckpt_fail(err, ENOMEM, "out of memory");
	/* the original's datagrams may have taken up less room each */
	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &large, sizeof(large)))
		return ckpt_fail_sys(err, errno, "SO_RCVBUFFORCE");
	for (size_t i = 0; i < rec->n_queue && !r; i++)
		r = put_back(fd, rec, rec->queue[i], p, raw, err);
	if ((setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size)) ||
	     setsockopt(fd, SOL_SOCKET, SO_BUF_LOCK, &lock, sizeof(lock))) &&
	    !r)
		r = ckpt_fail_sys(err, errno, "SO_RCVBUFFORCE");
	for (int k = 0; k < 2; k++)
		if (raw[k] >= 0)
			close(raw[k]);
	return r;
}
