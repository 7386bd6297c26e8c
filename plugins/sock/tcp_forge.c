/* SPDX-License-Identifier: MIT */
/*
 * Segments as the other end of a connection has sent them: a socket that is made again gets
 * what it had got, an acknowledgement, a FIN, a RST. They go over loopback, from the address
 * of the other end to an address of ours, and never leave the machine.
 */
#include "tcp.h"

#include <netinet/ip.h>
#include <netinet/ip6.h>

#define HEADER_V4 sizeof(struct iphdr)
#define HEADER_V6 sizeof(struct ip6_hdr)

static uint32_t sum_of(const void *data, size_t len, uint32_t sum)
{
	const uint8_t *at = data;

	for (size_t i = 0; i + 1 < len; i += 2)
		sum += (uint32_t)at[i] << 8 | at[i + 1];
	return sum;
}

static uint16_t checksum(const struct tcphdr *h, const void *src, const void *dst, size_t size)
{
	uint32_t sum = sum_of(h, sizeof(*h), IPPROTO_TCP + sizeof(*h));

	sum = sum_of(dst, size, sum_of(src, size, sum));
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return htons((uint16_t)~sum);
}

static size_t header4(uint8_t *to, const union sock_address *src, const union sock_address *dst)
{
	struct iphdr h = { .version = 4,
			   .ihl = sizeof(h) / 4,
			   .ttl = 64,
			   .protocol = IPPROTO_TCP,
			   .saddr = src->in.sin_addr.s_addr,
			   .daddr = dst->in.sin_addr.s_addr };

	h.tot_len = htons((uint16_t)(sizeof(h) + sizeof(struct tcphdr)));
	memcpy(to, &h, sizeof(h));
	return sizeof(h);
}

static size_t header6(uint8_t *to, const union sock_address *src, const union sock_address *dst)
{
	struct ip6_hdr h = { .ip6_src = src->in6.sin6_addr, .ip6_dst = dst->in6.sin6_addr };

	h.ip6_flow = htonl(6u << 28);
	h.ip6_plen = htons(sizeof(struct tcphdr));
	h.ip6_nxt = IPPROTO_TCP;
	h.ip6_hlim = 64;
	memcpy(to, &h, sizeof(h));
	return sizeof(h);
}

int sock_tcp_forge(const struct sock_segment *s)
{
	union sock_address src = s->from, dst = s->to, at;
	uint8_t packet[HEADER_V6 + sizeof(struct tcphdr)];
	bool six = !sock_address_unmap(&src) && dst.sa.sa_family == AF_INET6;
	CKPT_AUTO_FD int fd =
		socket(six ? AF_INET6 : AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW);
	struct tcphdr h = { .source = src.in.sin_port,
			    .dest = dst.in.sin_port,
			    .seq = htonl(s->seq),
			    .ack_seq = htonl(s->ack),
			    .doff = sizeof(h) / 4,
			    .ack = 1,
			    .fin = s->fin,
			    .rst = s->rst,
			    .window = htons(s->window) };
	int mark = SOCK_HOLD_MARK;
	size_t len;

	sock_address_unmap(&dst);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_MARK, &mark, sizeof(mark)))
		return -errno;
	if (six)
		h.check = checksum(&h, &src.in6.sin6_addr, &dst.in6.sin6_addr, 16);
	else
		h.check = checksum(&h, &src.in.sin_addr, &dst.in.sin_addr, 4);
	len = six ? header6(packet, &src, &dst) : header4(packet, &src, &dst);
	memcpy(packet + len, &h, sizeof(h));
	len += sizeof(h);
	at = dst;
	/* of raw sockets it is a protocol */
	at.in.sin_port = 0;
	return sendto(fd, packet, len, 0, &at.sa, six ? sizeof(at.in6) : sizeof(at.in)) ==
			       (ssize_t)len
		       ? 0
		       : -errno;
}
