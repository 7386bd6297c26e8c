/* SPDX-License-Identifier: MIT */
/*
 * TCP and UDP sockets, IPv4 and IPv6, without a connection: listening TCP on which
 * nobody waits to be accepted, TCP that never was connected, and UDP, for which
 * connect(2) is but a note of an address.
 */
#include "tcp.h"

#include <limits.h>
#include <netinet/udp.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdio.h>
#include <sys/ioctl.h>

static bool is_inet(const struct ckpt_fd_found *f, int protocol)
{
	return (f->domain == AF_INET || f->domain == AF_INET6) && f->protocol == protocol;
}

/* Of MPTCP the kernel accepts TCP as well. */
static bool listen_match(const struct ckpt_fd_found *f)
{
	return (is_inet(f, IPPROTO_TCP) || is_inet(f, IPPROTO_MPTCP)) && f->listening == 1;
}

/*
 * A socket whose connection has ended is closed as well, but shut down both ways
 * or with an error to report, which a new one is not.
 */
static bool tcp_match(const struct ckpt_fd_found *f)
{
	struct pollfd p = { .fd = f->fd, .events = POLLIN | POLLRDHUP };
	struct tcp_info ti = { 0 };
	socklen_t len = sizeof(ti);

	return is_inet(f, IPPROTO_TCP) && f->listening == 0 &&
	       !getsockopt(f->fd, IPPROTO_TCP, TCP_INFO, &ti, &len) && ti.tcpi_state == TCP_CLOSE &&
	       poll(&p, 1, 0) >= 0 && !(p.revents & (POLLIN | POLLRDHUP | POLLERR));
}

/* And those of ping, which differ in having a port. */
static bool raw_match(const struct ckpt_fd_found *f)
{
	return (f->domain == AF_INET || f->domain == AF_INET6) &&
	       (f->type == SOCK_RAW || (f->type == SOCK_DGRAM && (f->protocol == IPPROTO_ICMP ||
								  f->protocol == IPPROTO_ICMPV6)));
}

static bool udp_match(const struct ckpt_fd_found *f)
{
	return is_inet(f, IPPROTO_UDP) && f->type == SOCK_DGRAM;
}

/* ---- survey --------------------------------------------------------------------- */

static int listen_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
			 struct ckpt_error *err)
{
	struct tcp_info ti = { 0 };
	socklen_t len = sizeof(ti);
	char reason[128];
	int r = sock_survey(run, f, err);

	if (!r)
		r = sock_tcp_keys_survey(run, f, err);
	if (r)
		return r;
	if (getsockopt(f->fd, IPPROTO_TCP, TCP_INFO, &ti, &len))
		return ckpt_fail_sys(err, errno, "TCP_INFO");
	/* of a listening socket: the connections that wait for accept(2) */
	if (!ti.tcpi_unacked)
		return 0;
	r = sock_tcp_diag(run, err);
	if (r || (f->protocol == IPPROTO_TCP && sock_tcp_waiting(run, f) == ti.tcpi_unacked))
		return r;
	snprintf(reason, sizeof(reason),
		 "connections from outside the tree, or closed ones, wait to be accepted: %u",
		 ti.tcpi_unacked);
	return sock_refuse_detail(run, f, "pending", reason,
				  "try again when the program has accepted them, or --allow-loss "
				  "sock.pending: those peers are then cut off");
}

static int tcp_survey(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	int r = sock_survey(run, f, err);

	if (!r)
		r = sock_tcp_keys_survey(run, f, err);
	return r ? r : sock_multicast_survey(run, f, err);
}

/*
 * What MSG_MORE has begun waits in the socket; so does, for a moment, what is on its
 * way out.
 */
static bool udp_corked(int fd)
{
	int waiting = 0;

	if (sock_int(fd, IPPROTO_UDP, UDP_CORK) > 0)
		return true;
	for (int i = 0; i < 500 && !ioctl(fd, SIOCOUTQ, &waiting) && waiting; i++)
		usleep(1000);
	return waiting;
}

static int udp_survey(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	struct pollfd p = { .fd = f->fd, .events = POLLIN | POLLRDHUP };
	int r = sock_survey(run, f, err);

	if (!r)
		r = sock_multicast_survey(run, f, err);
	if (r)
		return r;
	if (poll(&p, 1, 0) < 0)
		return ckpt_fail_sys(err, errno, "poll(2)");
	if (p.revents & POLLRDHUP)
		return sock_refuse(run, f, "udp-shutdown",
				   "the socket is shut down for reading (shutdown(2))",
				   "close it before the dump, or allow the loss");
	if (udp_corked(f->fd))
		return sock_refuse(run, f, "udp-cork",
				   "a datagram is being put together (UDP_CORK, MSG_MORE)",
				   "try again when the program has sent it");
	if (sock_int(f->fd, IPPROTO_UDP, UDP_ENCAP) > 0)
		return sock_refuse(run, f, "udp-encap", "the socket carries a tunnel (UDP_ENCAP)",
				   "close it before the dump, or allow the loss");
	if (p.revents & POLLERR)
		r = sock_refuse_detail(run, f, "socket-error", "an error waits to be reported",
				       "let the program receive it, or --allow-loss "
				       "sock.socket-error: it is then not reported");
	return !r && p.revents & POLLIN ? sock_udp_queue_survey(run, f) : r;
}

/* Connected to an address without a port, which only this list tells; 0: it is not. */
static int connected_silently(struct ckpt_run *run, const struct ckpt_fd_found *f,
			      struct ckpt_error *err)
{
	CKPT_AUTO_FILE FILE *list = NULL;
	const struct ckpt_ns *ns;
	SOCK_PLACE(place);
	union sock_address peer;
	socklen_t len = sizeof(peer);
	char line[512];
	int r = sock_net_of(run, f->fd, &ns, err);

	if (r < 0 || !getpeername(f->fd, &peer.sa, &len) || sock_net_enter(ns, &place, err) < 0)
		return r < 0 ? r : err->err ? -err->err : 0;
	list = fopen(f->domain == AF_INET6 ? f->type == SOCK_RAW ? "/proc/thread-self/net/raw6"
								 : "/proc/thread-self/net/icmp6"
		     : f->type == SOCK_RAW ? "/proc/thread-self/net/raw"
					   : "/proc/thread-self/net/icmp",
		     "re");
	while (list && fgets(line, sizeof(line), list)) {
		unsigned long ino;
		unsigned state;

		/* sl local remote state queues timer retransmits uid timeout inode */
		if (sscanf(line, " %*u: %*s %*s %x %*s %*s %*s %*u %*u %lu", &state, &ino) == 2 &&
		    ino == f->st.st_ino)
			return state == TCP_ESTABLISHED;
	}
	return list && ferror(list) ? ckpt_fail(err, EIO, "the list of raw sockets") : 0;
}

static int raw_survey(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	struct pollfd p = { .fd = f->fd, .events = POLLIN };
	int r = sock_survey(run, f, err);

	if (!r)
		r = sock_multicast_survey(run, f, err);
	if (!r)
		r = connected_silently(run, f, err);
	if (r == 1)
		return sock_refuse(run, f, "raw-connected",
				   "the socket is connected to an address (connect(2))",
				   "close it before the dump, or allow the loss");
	if (r)
		return r;
	if (poll(&p, 1, 0) < 0)
		return ckpt_fail_sys(err, errno, "poll(2)");
	if (f->domain == AF_INET6 && sock_int(f->fd, IPPROTO_IPV6, IPV6_ROUTER_ALERT) > 0)
		return sock_refuse(run, f, "raw-alert",
				   "the socket gets packets with a router alert "
				   "(IPV6_ROUTER_ALERT): of which value cannot be read",
				   "close it before the dump, or allow the loss");
	return p.revents & (POLLIN | POLLERR)
		       ? sock_refuse_detail(run, f, "raw-queue", "packets or errors wait",
					    "try again when the program has received them, or "
					    "--allow-loss sock.raw-queue: they are then lost")
		       : 0;
}

/* ---- addresses -------------------------------------------------------------------- */

int sock_address_read(const union sock_address *a, struct sock_address_text *to)
{
	const void *addr = &a->in.sin_addr;

	ckpt__sock__inet_address__init(&to->rec);
	to->rec.port = ntohs(a->in.sin_port);
	if (a->sa.sa_family == AF_INET6) {
		to->rec.scope = a->in6.sin6_scope_id;
		to->rec.flow = ntohl(a->in6.sin6_flowinfo);
		addr = &a->in6.sin6_addr;
	}
	if (!inet_ntop(a->sa.sa_family, addr, to->text, sizeof(to->text)))
		return -errno;
	to->rec.address = to->text;
	return 0;
}

/* Of a socket that is not bound, the kernel says port 0 of any address. */
static bool is_bound(const union sock_address *a)
{
	return a->in.sin_port ||
	       (a->sa.sa_family == AF_INET6 ? !IN6_IS_ADDR_UNSPECIFIED(&a->in6.sin6_addr)
					    : a->in.sin_addr.s_addr != htonl(INADDR_ANY));
}

bool sock_address_write(uint32_t family, const Ckpt__Sock__InetAddress *rec, union sock_address *a,
			socklen_t *len)
{
	memset(a, 0, sizeof(*a));
	a->sa.sa_family = (sa_family_t)family;
	a->in.sin_port = htons((uint16_t)rec->port);
	*len = family == AF_INET6 ? sizeof(a->in6) : sizeof(a->in);
	if (family == AF_INET6) {
		a->in6.sin6_scope_id = rec->scope;
		a->in6.sin6_flowinfo = htonl(rec->flow);
	}
	return rec->port <= 65535 && inet_pton((int)family, rec->address,
					       family == AF_INET6 ? (void *)&a->in6.sin6_addr
								  : (void *)&a->in.sin_addr) == 1;
}

bool sock_address_unmap(union sock_address *a)
{
	union sock_address v4 = { .in = { .sin_family = AF_INET, .sin_port = a->in.sin_port } };

	if (a->sa.sa_family == AF_INET)
		return true;
	if (!IN6_IS_ADDR_V4MAPPED(&a->in6.sin6_addr))
		return false;
	memcpy(&v4.in.sin_addr, &a->in6.sin6_addr.s6_addr[12], 4);
	*a = v4;
	return true;
}

/* ---- collect ---------------------------------------------------------------------- */

static int inet_collect(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	Ckpt__Sock__Inet rec = CKPT__SOCK__INET__INIT;
	struct sock_address_text local, peer;
	struct sock_options options;
	struct tcp_info ti = { 0 };
	union sock_address a = { 0 };
	socklen_t len = sizeof(a);
	Ckpt__Sock__Owner owner;
	int r;

	if (getsockname(f->fd, &a.sa, &len) || sock_address_read(&a, &local))
		return ckpt_fail_sys(err, errno, "reading an address");
	rec.local = is_bound(&a) ? &local.rec : NULL;
	len = sizeof(a);
	if (!getpeername(f->fd, &a.sa, &len)) {
		if (sock_address_read(&a, &peer))
			return ckpt_fail_sys(err, errno, "reading an address");
		rec.peer = &peer.rec;
	}
	len = sizeof(ti);
	if (f->listening && getsockopt(f->fd, IPPROTO_TCP, TCP_INFO, &ti, &len))
		return ckpt_fail_sys(err, errno, "TCP_INFO");
	if (sock_options_read(run, f, &options, err))
		return -err->err;
	sock_owner_of(&f->st, &owner);
	rec.id = f->file;
	rec.family = (uint32_t)f->domain;
	rec.type = (uint32_t)f->type;
	rec.protocol = (uint32_t)f->protocol;
	rec.listening = f->listening == 1;
	rec.backlog = ti.tcpi_sacked; /* of a listening socket: its backlog */
	rec.owner = &owner;
	rec.options = options.ptr;
	rec.n_options = options.n;
	r = f->protocol == IPPROTO_UDP && ckpt_feature_on(run, "udp-queue")
		    ? sock_udp_queue_read(run, f, &rec, err)
		    : 0;
	if (!r)
		r = ckpt_record_put(run, SOCK_INET, &rec.base, err);
	if (!r)
		r = sock_multicast_collect(run, f, err);
	if (!r)
		r = sock_collect(run, f, err);
	sock_udp_queue_free(&rec);
	return r;
}

/* ---- restore ---------------------------------------------------------------------- */

static int plan_type(const Ckpt__Sock__Inet *rec, uint32_t type, uint32_t protocol, bool listening,
		     struct ckpt_error *err)
{
	bool tcp = protocol == IPPROTO_TCP || protocol == IPPROTO_MPTCP;
	union sock_address a;
	socklen_t len;
	int r;

	if ((rec->family != AF_INET && rec->family != AF_INET6) || rec->type != type ||
	    rec->protocol != protocol || rec->listening != listening || rec->backlog > INT_MAX ||
	    (tcp && rec->peer) || (listening && (!rec->local || !rec->local->port)) ||
	    (rec->local && !sock_address_write(rec->family, rec->local, &a, &len)) ||
	    (rec->peer && !sock_address_write(rec->family, rec->peer, &a, &len)))
		return ckpt_fail_image(err, "open file %u is not a valid internet socket", rec->id);
	r = sock_owner_check(rec->owner, rec->id, err);
	if (!r)
		r = sock_udp_queue_plan(rec, err);
	return r ? r : sock_options_check(rec->options, rec->n_options, rec->id, err);
}

static int plan_as(struct ckpt_run *run, uint32_t id, uint32_t protocol, bool listening,
		   struct ckpt_error *err)
{
	const Ckpt__Sock__Inet *rec = ckpt_record_need(run, "sock.inet", id, err);

	return rec ? plan_type(rec, protocol == IPPROTO_UDP ? SOCK_DGRAM : SOCK_STREAM, protocol,
			       listening, err)
		   : -EBADMSG;
}

/* The original is still there while its own image is checked. */
static int plan_port(struct ckpt_run *run, const Ckpt__Sock__Inet *rec, struct ckpt_error *err)
{
	const struct ckpt_ns *net = sock_net_saved(run, rec->id);
	union sock_address local;
	socklen_t len;
	int r;

	if (ckpt_plan_only(run) || !net || !net->own ||
	    sock_saved_option(rec->options, rec->n_options, "SO_REUSEPORT") ||
	    !sock_address_write(rec->family, rec->local, &local, &len))
		return 0;
	r = sock_tcp_diag(run, err);
	if (r || !sock_tcp_listens(sock_state(run), net, &local))
		return r;
	return ckpt_unmet(run, CKPT_EXIT_FAILED, "stop the program that listens there",
			  "the port %u of %s, which open file %u listened to, is in use",
			  rec->local->port, rec->local->address, rec->id);
}

static int listen_plan(struct ckpt_run *run, uint32_t id, struct ckpt_error *err)
{
	const Ckpt__Sock__Inet *rec = ckpt_record_need(run, "sock.inet", id, err);
	int r;

	if (!rec)
		return -EBADMSG;
	r = plan_as(run, id, rec->protocol == IPPROTO_MPTCP ? IPPROTO_MPTCP : IPPROTO_TCP, true,
		    err);
	return r ? r : plan_port(run, rec, err);
}

static int raw_plan(struct ckpt_run *run, uint32_t id, struct ckpt_error *err)
{
	const Ckpt__Sock__Inet *rec = ckpt_record_need(run, "sock.inet", id, err);
	bool ping = rec && rec->type == SOCK_DGRAM;

	if (!rec)
		return -EBADMSG;
	if (rec->n_queue || rec->protocol > 255 || (!ping && rec->type != SOCK_RAW) ||
	    (ping && rec->protocol != IPPROTO_ICMP && rec->protocol != IPPROTO_ICMPV6))
		return ckpt_fail_image(err, "open file %u is not a valid raw socket", id);
	return plan_type(rec, rec->type, rec->protocol, false, err);
}

static int tcp_plan(struct ckpt_run *run, uint32_t id, struct ckpt_error *err)
{
	return plan_as(run, id, IPPROTO_TCP, false, err);
}

static int udp_plan(struct ckpt_run *run, uint32_t id, struct ckpt_error *err)
{
	return plan_as(run, id, IPPROTO_UDP, false, err);
}

/* Set an integer option for the time of one call. */
static int lend_option(int fd, int level, int name, int value, int *before)
{
	*before = sock_int(fd, level, name);
	if (*before < 0)
		return -1;
	return *before == value ? 0 : setsockopt(fd, level, name, &value, sizeof(value));
}

/*
 * Binding to an address makes a socket IPV6_V6ONLY for good. One that is not has got
 * its address from connect(2), which will give it the same one again.
 */
static bool address_from_connect(int fd, const Ckpt__Sock__Inet *rec, const union sock_address *a)
{
	return rec->family == AF_INET6 && rec->peer && !IN6_IS_ADDR_V4MAPPED(&a->in6.sin6_addr) &&
	       sock_int(fd, IPPROTO_IPV6, IPV6_V6ONLY) == 0;
}

/*
 * The original's connections may be in TIME_WAIT; binding beside them is what it
 * would do itself at its next start. An address without a port was bound with
 * IP_BIND_ADDRESS_NO_PORT. Both options are as before afterwards. UDP has nothing
 * like TIME_WAIT, and there the option would let two sockets share a port. The port
 * of a connection is one that connect(2) has chosen: others may have it too, with
 * other peers, and only repair mode binds to it beside them.
 */
int sock_inet_bind(int fd, const Ckpt__Sock__Inet *rec, struct ckpt_error *err)
{
	bool tcp = rec->type == SOCK_STREAM;
	const int on = SOCK_REPAIR_ON, off = SOCK_REPAIR_END;
	bool beside = tcp && rec->peer;
	int reuse = 0, no_port = 0, r;
	union sock_address a;
	socklen_t len;

	if (!sock_address_write(rec->family, rec->local, &a, &len))
		return ckpt_fail_image(err, "%.64s is no address", rec->local->address);
	if (address_from_connect(fd, rec, &a))
		a.in6.sin6_addr = in6addr_any;
	if ((tcp && lend_option(fd, SOL_SOCKET, SO_REUSEADDR, 1, &reuse)) ||
	    (!rec->local->port &&
	     lend_option(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1, &no_port)) ||
	    (beside && setsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &on, sizeof(on))) ||
	    bind(fd, &a.sa, len)) {
		r = errno;
		ckpt_fail_sys(err, r, "bind(2) to %s port %u", rec->local->address,
			      rec->local->port);
		return ckpt_hint(err, r == EADDRINUSE
					      ? "another program, or the original, has it"
					      : "the address must be there before the restore");
	}
	if ((beside && setsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &off, sizeof(off))) ||
	    (tcp && !rec->listening &&
	     setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse))) ||
	    (!rec->local->port &&
	     setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &no_port, sizeof(no_port))))
		return ckpt_fail_sys(err, errno, "setsockopt(2)");
	return 0;
}

/* The route may lead elsewhere by now. */
static int check_local(int fd, const Ckpt__Sock__Inet *rec, struct ckpt_error *err)
{
	struct sock_address_text now;
	union sock_address a = { 0 };
	socklen_t len = sizeof(a);

	if (!rec->local || (!getsockname(fd, &a.sa, &len) && !sock_address_read(&a, &now) &&
			    !strcmp(now.text, rec->local->address)))
		return 0;
	ckpt_fail(err, EADDRNOTAVAIL, "a socket connected to %s has not the address %s as before",
		  rec->peer->address, rec->local->address);
	return ckpt_hint(err, "routes and addresses must be as they were");
}

static int connect_there(int fd, const Ckpt__Sock__Inet *rec, struct ckpt_error *err)
{
	union sock_address a;
	socklen_t len;

	if (!sock_address_write(rec->family, rec->peer, &a, &len))
		return ckpt_fail_image(err, "%.64s is no address", rec->peer->address);
	if (!connect(fd, &a.sa, len))
		return check_local(fd, rec, err);
	ckpt_fail_sys(err, errno, "connect(2) to %s port %u", rec->peer->address, rec->peer->port);
	return ckpt_hint(err, "there must be a route before the restore");
}

/* The kernel looks at the port once more, so SO_REUSEADDR is put right after that. */
static int listen_there(int fd, const Ckpt__Sock__Inet *rec, struct ckpt_error *err)
{
	int reuse = sock_saved_option(rec->options, rec->n_options, "SO_REUSEADDR");

	if (listen(fd, (int)rec->backlog) ||
	    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse)))
		return ckpt_fail_sys(err, errno, "listen(2) on %s port %u", rec->local->address,
				     rec->local->port);
	return 0;
}

static int inet_open(struct ckpt_run *run, const struct ckpt_fd_slot *slot, struct ckpt_error *err)
{
	const Ckpt__Sock__Inet *rec = ckpt_record_need(run, "sock.inet", slot->file, err);
	CKPT_AUTO_FD int fd = -1;
	SOCK_PLACE(place);
	int r;

	if (!rec)
		return -EBADMSG;
	fd = sock_new(run, slot->file, (int)rec->family, (int)rec->type, (int)rec->protocol, &place,
		      err);
	if (fd < 0)
		return fd;
	r = sock_options_apply(fd, rec->options, rec->n_options, err);
	if (!r && rec->local)
		r = sock_inet_bind(fd, rec, err);
	if (!r && rec->listening)
		r = listen_there(fd, rec, err);
	/* from whomever: a connected socket takes its peer's alone */
	if (!r)
		r = sock_udp_queue_write(fd, rec, err);
	if (!r)
		r = sock_filter_apply(run, slot->file, fd, err);
	if (!r)
		r = sock_multicast_apply(run, slot->file, fd, err);
	if (!r && rec->peer)
		r = connect_there(fd, rec, err);
	if (!r)
		r = sock_owner_apply(fd, rec->owner, err);
	return r ? r : ckpt_steal_fd(&fd);
}

const struct ckpt_fd_kind sock_kind_inet_listen = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = listen_match,
	.survey = listen_survey,
	.collect = inet_collect,
	.ahead = sock_options_ahead,
	.plan = listen_plan,
	.open = inet_open,
	.own_pos = true,
	.flags_ok = SOCK_FLAGS,
};

const struct ckpt_fd_kind sock_kind_tcp = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = tcp_match,
	.survey = tcp_survey,
	.collect = inet_collect,
	.ahead = sock_options_ahead,
	.plan = tcp_plan,
	.open = inet_open,
	.own_pos = true,
	.flags_ok = SOCK_FLAGS,
};

const struct ckpt_fd_kind sock_kind_udp = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = udp_match,
	.survey = udp_survey,
	.collect = inet_collect,
	.ahead = sock_options_ahead,
	.plan = udp_plan,
	.open = inet_open,
	.own_pos = true,
	.flags_ok = SOCK_FLAGS,
};

const struct ckpt_fd_kind sock_kind_raw = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = raw_match,
	.survey = raw_survey,
	.collect = inet_collect,
	.ahead = sock_options_ahead,
	.plan = raw_plan,
	.open = inet_open,
	.own_pos = true,
	.flags_ok = SOCK_FLAGS,
};
