/* SPDX-License-Identifier: MIT */
/* Listening TCP sockets, IPv4 and IPv6, on which nobody waits to be accepted. */
#include "internal.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/socket.h>

static bool inet_match(const struct ckpt_fd_found *f)
{
	return (f->domain == AF_INET || f->domain == AF_INET6) && f->protocol == IPPROTO_TCP &&
	       f->listening == 1;
}

static int inet_survey(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	struct tcp_info ti = { 0 };
	socklen_t len = sizeof(ti);
	char reason[96];
	int r = sock_survey(run, f, err);

	if (r)
		return r;
	if (getsockopt(f->fd, IPPROTO_TCP, TCP_INFO, &ti, &len))
		return ckpt_fail_sys(err, errno, "TCP_INFO");
	/* of a listening socket: the connections that wait for accept(2) */
	if (!ti.tcpi_unacked)
		return 0;
	snprintf(reason, sizeof(reason), "connections wait to be accepted: %u", ti.tcpi_unacked);
	return sock_refuse_detail(run, f, "pending", reason,
				  "try again when the program has accepted them, or --allow-loss "
				  "sock.pending: those peers are then cut off");
}

static int read_address(int fd, Ckpt__Sock__InetListen *rec, char *text, size_t size)
{
	union {
		struct sockaddr sa;
		struct sockaddr_in in;
		struct sockaddr_in6 in6;
	} a = { 0 };
	socklen_t len = sizeof(a);
	const void *addr = &a.in.sin_addr;

	if (getsockname(fd, &a.sa, &len))
		return -errno;
	rec->family = a.sa.sa_family;
	rec->port = ntohs(a.in.sin_port);
	if (a.sa.sa_family == AF_INET6) {
		rec->scope = a.in6.sin6_scope_id;
		addr = &a.in6.sin6_addr;
	}
	if (!inet_ntop(a.sa.sa_family, addr, text, (socklen_t)size))
		return -errno;
	rec->address = text;
	return 0;
}

static int inet_collect(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	Ckpt__Sock__InetListen rec = CKPT__SOCK__INET_LISTEN__INIT;
	char address[INET6_ADDRSTRLEN];
	struct sock_options options;
	struct tcp_info ti = { 0 };
	socklen_t len = sizeof(ti);
	Ckpt__Sock__Owner owner;

	if (read_address(f->fd, &rec, address, sizeof(address)) ||
	    getsockopt(f->fd, IPPROTO_TCP, TCP_INFO, &ti, &len))
		return ckpt_fail_sys(err, errno, "reading a listening socket");
	if (sock_options_read(sock_state(run), f, &options, err))
		return -err->err;
	sock_owner_of(&f->st, &owner);
	rec.id = f->file;
	rec.protocol = IPPROTO_TCP;
	rec.backlog = ti.tcpi_sacked; /* of a listening socket: its backlog */
	rec.owner = &owner;
	rec.options = options.ptr;
	rec.n_options = options.n;
	return ckpt_record_put(run, SOCK_INET_LISTEN, &rec.base, err);
}

static bool write_address(const Ckpt__Sock__InetListen *rec, struct sockaddr_storage *ss,
			  socklen_t *len)
{
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)ss;
	struct sockaddr_in *in = (struct sockaddr_in *)ss;

	memset(ss, 0, sizeof(*ss));
	ss->ss_family = (sa_family_t)rec->family;
	in->sin_port = htons((uint16_t)rec->port);
	*len = rec->family == AF_INET6 ? sizeof(*in6) : sizeof(*in);
	if (rec->family == AF_INET6)
		in6->sin6_scope_id = rec->scope;
	return inet_pton(ss->ss_family, rec->address,
			 rec->family == AF_INET6 ? (void *)&in6->sin6_addr
						 : (void *)&in->sin_addr) == 1;
}

static int inet_plan(struct ckpt_run *run, uint32_t id, struct ckpt_error *err)
{
	const Ckpt__Sock__InetListen *rec = sock_record_need(run, "sock.inet-listen", id, err);
	struct sockaddr_storage ss;
	socklen_t len;
	int r;

	if (!rec)
		return -EBADMSG;
	if ((rec->family != AF_INET && rec->family != AF_INET6) || rec->protocol != IPPROTO_TCP ||
	    !rec->port || rec->port > 65535 || rec->backlog > INT_MAX ||
	    !write_address(rec, &ss, &len))
		return sock_bad(err, "open file %u is not a valid listening socket", id);
	r = sock_owner_check(rec->owner, id, err);
	return r ? r : sock_options_check(rec->options, rec->n_options, id, err);
}

static int listen_there(int fd, const Ckpt__Sock__InetListen *rec, struct ckpt_error *err)
{
	struct sockaddr_storage ss;
	int on = 1, before = sock_int(fd, SOL_SOCKET, SO_REUSEADDR), r;
	socklen_t len;

	if (!write_address(rec, &ss, &len))
		return sock_bad(err, "%s is no address", rec->address);
	/*
	 * The original's connections may be in TIME_WAIT; binding beside them is
	 * what it would do itself at its next start. Taken back at once.
	 */
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) ||
	    bind(fd, (struct sockaddr *)&ss, len)) {
		r = errno;
		ckpt_fail_sys(err, r, "bind(2) to %s port %u", rec->address, rec->port);
		return ckpt_hint(err, r == EADDRINUSE
					      ? "another program, or the original, listens there"
					      : "the address must be there before the restore");
	}
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &before, sizeof(before)))
		return ckpt_fail_sys(err, errno, "SO_REUSEADDR");
	if (listen(fd, (int)rec->backlog))
		return ckpt_fail_sys(err, errno, "listen(2) on %s port %u", rec->address,
				     rec->port);
	return 0;
}

static int inet_open(struct ckpt_run *run, const struct ckpt_fd_slot *slot, struct ckpt_error *err)
{
	const Ckpt__Sock__InetListen *rec =
		sock_record_need(run, "sock.inet-listen", slot->file, err);
	CKPT_AUTO_FD int fd = -1;
	int r;

	if (!rec)
		return -EBADMSG;
	fd = socket((int)rec->family, SOCK_STREAM | SOCK_CLOEXEC, (int)rec->protocol);
	if (fd < 0)
		return ckpt_fail_sys(err, errno, "socket(2)");
	r = sock_options_apply(fd, rec->options, rec->n_options, err);
	if (!r)
		r = listen_there(fd, rec, err);
	if (!r)
		r = sock_owner_apply(fd, rec->owner, err);
	return r ? r : ckpt_steal_fd(&fd);
}

const struct ckpt_fd_kind sock_kind_inet_listen = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = inet_match,
	.survey = inet_survey,
	.collect = inet_collect,
	.plan = inet_plan,
	.open = inet_open,
	.own_pos = true,
	.flags_ok = SOCK_FLAGS,
};
