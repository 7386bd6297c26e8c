/* SPDX-License-Identifier: MIT */
/* Shared by the kinds of internet sockets. */
#ifndef SOCK_INET_H
#define SOCK_INET_H

#include "internal.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

union sock_address {
	struct sockaddr sa;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
};

struct sock_address_text {
	Ckpt__Sock__InetAddress rec; /* points at text */
	char text[INET6_ADDRSTRLEN];
};

int sock_address_read(const union sock_address *a, struct sock_address_text *to);
/* false: there is no valid one in the record. */
bool sock_address_write(uint32_t family, const Ckpt__Sock__InetAddress *rec, union sock_address *a,
			socklen_t *len);
/* A v4 address in v6 clothes is what a socket of both shows. true: it is of v4 now. */
bool sock_address_unmap(union sock_address *a);
/* Bind to rec->local, whatever else is bound there in a way that the original could bear. */
int sock_inet_bind(int fd, const Ckpt__Sock__Inet *rec, struct ckpt_error *err);

/* An integer option of an image; 0: as of a new socket. */
int sock_saved_option(Ckpt__Sock__Option *const *options, size_t n, const char *name);

/* ---- UDP queues -------------------------------------------------------------------- */

/* Refuse datagrams that could not be put back. 0: fine. */
int sock_udp_queue_survey(struct ckpt_run *run, const struct ckpt_fd_found *f);
/* The datagrams that wait; free with sock_udp_queue_free(). */
int sock_udp_queue_read(struct ckpt_run *run, const struct ckpt_fd_found *f, Ckpt__Sock__Inet *rec,
			struct ckpt_error *err);
void sock_udp_queue_free(Ckpt__Sock__Inet *rec);
int sock_udp_queue_plan(const Ckpt__Sock__Inet *rec, struct ckpt_error *err);
/* Into a socket that is bound and not connected. */
int sock_udp_queue_write(int fd, const Ckpt__Sock__Inet *rec, struct ckpt_error *err);

#endif
