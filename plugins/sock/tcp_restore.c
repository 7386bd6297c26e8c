/* SPDX-License-Identifier: MIT */
/*
 * TCP connections: how they are made again. Both ends are made in the kernel's repair mode,
 * in which connect(2) sends nothing, and leave it when both are there. What was shut down
 * is shut down anew. For an end that is closed a socket of our own stands in, until the
 * other has got its FIN.
 */
#include "tcp.h"

#include <poll.h>
#include <stdio.h>
#include <time.h>

#define QUEUE_MAX  (32u << 20)
#define BUFFER_MAX (INT32_MAX / 4)

/* ---- plan ----------------------------------------------------------------------------- */

bool sock_tcp_ends(const Ckpt__Sock__Tcp *rec, union sock_address *local, union sock_address *peer)
{
	socklen_t len;

	return rec->local && rec->peer && rec->local->port && rec->peer->port &&
	       sock_address_write(rec->family, rec->local, local, &len) &&
	       sock_address_write(rec->family, rec->peer, peer, &len);
}

static bool same_address(union sock_address a, union sock_address b)
{
	sock_address_unmap(&a);
	sock_address_unmap(&b);
	if (a.sa.sa_family != b.sa.sa_family || a.in.sin_port != b.in.sin_port)
		return false;
	return a.sa.sa_family == AF_INET ? a.in.sin_addr.s_addr == b.in.sin_addr.s_addr
					 : IN6_ARE_ADDR_EQUAL(&a.in6.sin6_addr, &b.in6.sin6_addr);
}

/* How much of what is still there at one end the other has received by now. */
static uint32_t received_of(const Ckpt__Sock__Tcp *from, const Ckpt__Sock__Tcp *to)
{
	return to->receive_seq + (uint32_t)to->in.len - from->send_seq;
}

/* What one has sent, the other has received, or it is still there. */
static bool agree(const Ckpt__Sock__Tcp *from, const Ckpt__Sock__Tcp *to)
{
	uint32_t got = received_of(from, to);

	return got <= from->out.len && (!to->fin_received || from->fin_sent) &&
	       (!to->fin_received || got == from->out.len);
}

int sock_tcp_plan_home(struct ckpt_run *run, const Ckpt__Sock__Tcp *rec, struct ckpt_error *err)
{
	const struct ckpt_ns *ns = rec->closed_netns ? ckpt_ns_by_id(run, rec->closed_netns) : NULL;

	if (!rec->closed_netns ||
	    (ns && ns->type == CKPT_NS_NET && !rec->other && !rec->waits && !rec->form))
		return 0;
	return ckpt_fail_image(err, "open file %u: no network namespace %u", rec->id,
			       rec->closed_netns);
}

static bool good_other(struct ckpt_run *run, const Ckpt__Sock__Tcp *rec,
		       const union sock_address *local, const union sock_address *peer)
{
	const Ckpt__Sock__Tcp *other =
		rec->other ? ckpt_record_by_id(run, "sock.tcp", rec->other) : NULL;
	union sock_address its_local, its_peer;

	if (other && other->form)
		return false;
	if (!rec->other)
		return rec->waits ? !rec->in.len && !rec->out.len && !rec->fin_received
				  : rec->fin_received && !rec->fin_sent;
	return other && other != rec && !rec->waits && other->other == rec->id && !other->waits &&
	       sock_tcp_ends(other, &its_local, &its_peer) && same_address(its_local, *peer) &&
	       same_address(its_peer, *local) && agree(rec, other);
}

int sock_tcp_plan(struct ckpt_run *run, uint32_t id, struct ckpt_error *err)
{
	const Ckpt__Sock__Tcp *rec = ckpt_record_need(run, "sock.tcp", id, err);
	union sock_address local, peer;
	int r;

	if (!rec)
		return -EBADMSG;
	/* that table will be deleted */
	if (rec->hold[0] && (rec->form != SOCK_TCP_KEPT || !sock_hold_name_ok(rec->hold)))
		return ckpt_fail_image(err, "open file %u is not held by a table of ckpt's", id);
	if (rec->form) {
		if (!sock_tcp_outside_plan(rec))
			return ckpt_fail_image(err, "open file %u is not a valid TCP connection",
					       id);
		r = sock_owner_check(rec->owner, id, err);
		return r ? r : sock_options_check(rec->options, rec->n_options, id, err);
	}
	if ((rec->family != AF_INET && rec->family != AF_INET6) ||
	    !sock_tcp_ends(rec, &local, &peer) || !rec->window ||
	    rec->window->send > rec->window->largest || !rec->mss || rec->mss > UINT16_MAX ||
	    rec->send_scale > 14 || rec->receive_scale > 14 || rec->unsent > rec->out.len ||
	    rec->out.len > QUEUE_MAX || rec->in.len > QUEUE_MAX || rec->sndbuf > BUFFER_MAX ||
	    rec->rcvbuf > BUFFER_MAX || !good_other(run, rec, &local, &peer))
		return ckpt_fail_image(err, "open file %u is not a valid TCP connection", id);
	r = sock_owner_check(rec->owner, id, err);
	return r ? r : sock_options_check(rec->options, rec->n_options, id, err);
}

int sock_saved_option(Ckpt__Sock__Option *const *options, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (!strcmp(options[i]->name, name))
			return (int)options[i]->value;
	return 0;
}

static void sweep_connection(struct ckpt_run *run, const Ckpt__Sock__Tcp *rec)
{
	const struct ckpt_ns *net = sock_net_saved(run, rec->id);
	const struct sock_state *st = sock_state(run);
	union sock_address local, peer;

	/* one that is made anew is empty */
	if (!net->own || rec->form > SOCK_TCP_KEPT || !sock_tcp_ends(rec, &local, &peer))
		return;
	sock_address_unmap(&local);
	sock_address_unmap(&peer);
	/* both: the other end may be one that was closed */
	if (sock_tcp_find(st, net, &local, &peer))
		sock_tcp_clear(&local, &peer);
	if (!rec->form && sock_tcp_find(st, net, &peer, &local))
		sock_tcp_clear(&peer, &local);
}

/*
 * With SO_REUSEADDR the kernel lets it have its port. Without, nothing does: what is in
 * TIME_WAIT has no such option either, so that lending it does not help, and repair mode
 * helps bind(2), but cannot be left after listen(2), which looks once more.
 */
static void sweep_listener(struct ckpt_run *run, const Ckpt__Sock__Inet *rec)
{
	const struct ckpt_ns *net = sock_net_saved(run, rec->id);
	union sock_address local;
	socklen_t len;

	if (rec->listening && rec->local && net->own &&
	    !sock_saved_option(rec->options, rec->n_options, "SO_REUSEADDR") &&
	    sock_address_write(rec->family, rec->local, &local, &len))
		sock_tcp_clear_port(sock_state(run), net, &local);
}

/* Before the kernel answers for a socket that is not there, or for one that is ended. */
static int hold_again(struct ckpt_run *run, const Ckpt__Sock__Tcp *rec, struct ckpt_error *err)
{
	union sock_address local, peer;

	if (rec->form != SOCK_TCP_KEPT)
		return 0;
	if (!sock_tcp_ends(rec, &local, &peer))
		return ckpt_fail_image(err, "open file %u has no valid address", rec->id);
	return sock_hold(sock_state(run), sock_net_saved(run, rec->id), &local, &peer, err);
}

/*
 * What the original has left (TIME_WAIT) keeps its listening sockets' ports from being
 * bound, and its connections from being made.
 */
int sock_tcp_sweep(struct ckpt_run *run, struct ckpt_error *err)
{
	size_t n = ckpt_record_count(run, "sock.tcp"), m = ckpt_record_count(run, "sock.inet");
	struct ckpt_error ignored = { 0 };
	int r = 0;

	for (size_t i = 0; i < n && !r; i++)
		r = hold_again(run, ckpt_record_at(run, "sock.tcp", i), err);
	if (r)
		return r;
	/* it only helps: what is really in the way is reported by who finds it there */
	sock_tcp_forget(sock_state(run));
	if ((!n && !m) || sock_tcp_diag(run, &ignored))
		return 0;
	for (size_t i = 0; i < n; i++)
		sweep_connection(run, ckpt_record_at(run, "sock.tcp", i));
	for (size_t i = 0; i < m; i++)
		sweep_listener(run, ckpt_record_at(run, "sock.inet", i));
	return 0;
}

/* ---- one end ---------------------------------------------------------------------------- */

/* A closed end of the original that was still busy when the sweep came by may be in its place. */
static int connect_repaired(int fd, union sock_address local, union sock_address peer,
			    socklen_t len)
{
	union sock_address to = peer;

	if (!connect(fd, &to.sa, len))
		return 0;
	if (errno != EADDRNOTAVAIL && errno != EADDRINUSE)
		return -errno;
	sock_address_unmap(&local);
	sock_address_unmap(&peer);
	sock_tcp_clear(&local, &peer);
	return connect(fd, &to.sa, len) ? -errno : 0;
}

static int set_seq(int fd, int queue, uint32_t seq)
{
	int r = sock_tcp_set(fd, TCP_REPAIR_QUEUE, queue);

	return r ? r : sock_tcp_set(fd, TCP_QUEUE_SEQ, (int)seq);
}

static int set_buffers(int fd, uint32_t snd, uint32_t rcv, int lock)
{
	int half_snd = (int)snd / 2, half_rcv = (int)rcv / 2;

	return setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &half_snd, sizeof(half_snd)) ||
			       setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &half_rcv,
					  sizeof(half_rcv)) ||
			       setsockopt(fd, SOL_SOCKET, SO_BUF_LOCK, &lock, sizeof(lock))
		       ? -errno
		       : 0;
}

static int set_negotiated(int fd, const Ckpt__Sock__Tcp *rec)
{
	struct {
		uint32_t code, value;
	} opt[4];
	size_t n = 0;

	if (rec->sack)
		opt[n++] = (__typeof__(opt[0])){ 4, 0 };
	if (rec->scaled)
		opt[n++] = (__typeof__(opt[0])){ 3, rec->send_scale | rec->receive_scale << 16 };
	if (rec->timestamps)
		opt[n++] = (__typeof__(opt[0])){ 8, 0 };
	opt[n++] = (__typeof__(opt[0])){ 2, rec->mss };
	if (setsockopt(fd, IPPROTO_TCP, TCP_REPAIR_OPTIONS, opt, (socklen_t)(n * sizeof(opt[0]))))
		return -errno;
	return rec->timestamps ? sock_tcp_set(fd, TCP_TIMESTAMP, (int)rec->timestamp) : 0;
}

static int fill(int fd, int queue, const uint8_t *data, size_t len)
{
	int r = sock_tcp_set(fd, TCP_REPAIR_QUEUE, queue);

	/* in pieces: the kernel makes one buffer of each that is received */
	for (size_t at = 0; at < len && !r;) {
		size_t piece = len - at < 16384 ? len - at : 16384;
		ssize_t put = send(fd, data + at, piece, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (put <= 0)
			r = put < 0 ? -errno : -EIO;
		else
			at += (size_t)put;
	}
	return r;
}

static uint32_t not_after(uint32_t seq, uint32_t limit)
{
	return (int32_t)(seq - limit) > 0 ? limit : seq;
}

/* The FIN, which comes later, was counted in them. */
static int set_window(int fd, const Ckpt__Sock__Tcp *rec)
{
	uint32_t next = rec->receive_seq + (uint32_t)rec->in.len;
	struct sock_window w = { .snd_wl1 = not_after(rec->window->wl1, next),
				 .snd_wnd = rec->window->send,
				 .max_window = rec->window->largest,
				 .rcv_wnd = rec->window->receive,
				 .rcv_wup = not_after(rec->window->update, next) };
	int r = sock_tcp_set(fd, TCP_REPAIR_QUEUE, TCP_NO_QUEUE);

	if (r)
		return r;
	return setsockopt(fd, IPPROTO_TCP, TCP_REPAIR_WINDOW, &w, sizeof(w)) ? -errno : 0;
}

/*
 * Binding to an address makes a socket IPV6_V6ONLY for good. One that is not is bound to
 * none, if connect(2) will then choose the same.
 */
static bool address_by_route(int fd, const union sock_address *local,
			     const union sock_address *peer)
{
	CKPT_AUTO_FD int probe = -1;
	union sock_address now = { 0 };
	socklen_t len = sizeof(now.in6);

	if (local->sa.sa_family != AF_INET6 || IN6_IS_ADDR_V4MAPPED(&local->in6.sin6_addr) ||
	    sock_int(fd, IPPROTO_IPV6, IPV6_V6ONLY) != 0)
		return false;
	probe = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	return probe >= 0 && !connect(probe, &peer->sa, len) &&
	       !getsockname(probe, &now.sa, &len) &&
	       IN6_ARE_ADDR_EQUAL(&now.in6.sin6_addr, &local->in6.sin6_addr);
}

/* In repair mode, in its namespace: nothing is sent. */
static int connect_end(const struct sock_end *e, struct ckpt_error *err)
{
	const Ckpt__Sock__Tcp *rec = e->rec;
	int fd = e->fd;
	union sock_address local, peer, at;
	socklen_t len = rec->family == AF_INET6 ? sizeof(local.in6) : sizeof(local.in);
	int r = sock_tcp_ends(rec, &local, &peer) ? sock_tcp_set(fd, TCP_REPAIR, SOCK_REPAIR_ON)
						  : -EINVAL;
	SOCK_PLACE(place);

	if (r)
		return ckpt_fail_sys(err, r, "TCP_REPAIR");
	if (sock_net_enter(e->net, &place, err) < 0)
		return -err->err;
	at = local;
	if (address_by_route(fd, &local, &peer))
		at.in6.sin6_addr = in6addr_any;
	if (bind(fd, &at.sa, len)) {
		ckpt_fail_sys(err, errno, "bind(2) to %s port %u", rec->local->address,
			      rec->local->port);
		return ckpt_hint(err, "the address must be there before the restore");
	}
	r = set_seq(fd, TCP_SEND_QUEUE, rec->send_seq);
	if (!r)
		r = set_seq(fd, TCP_RECV_QUEUE, rec->receive_seq);
	if (!r)
		r = connect_repaired(fd, local, peer, len);
	return r ? ckpt_fail_sys(err, r, "connecting %s port %u with %s port %u",
				 rec->local->address, rec->local->port, rec->peer->address,
				 rec->peer->port)
		 : 0;
}

int sock_tcp_make_end(const struct sock_end *e, struct ckpt_error *err)
{
	const Ckpt__Sock__Tcp *rec = e->rec;
	int fd = e->fd, r = connect_end(e, err);

	if (r)
		return r;
	r = set_buffers(fd, BUFFER_MAX, BUFFER_MAX, 3);
	if (!r)
		r = set_negotiated(fd, rec);
	if (!r)
		r = fill(fd, TCP_RECV_QUEUE, rec->in.data, rec->in.len);
	if (!r)
		r = fill(fd, TCP_SEND_QUEUE, rec->out.data, e->sent);
	/* with more room than before it would ask for more */
	if (!r)
		r = set_buffers(fd, BUFFER_MAX, rec->rcvbuf ? rec->rcvbuf : UINT16_MAX, 3);
	if (!r)
		r = set_window(fd, rec);
	return r ? ckpt_fail_sys(err, r, "filling a TCP connection") : 0;
}

int sock_tcp_new(const Ckpt__Sock__Tcp *rec, const struct ckpt_ns *net, bool options,
		 struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = -1;
	SOCK_PLACE(place);
	int r = sock_net_enter(net, &place, err);

	if (r < 0)
		return r;
	fd = socket((int)rec->family, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
	if (fd < 0)
		return ckpt_fail_sys(err, errno, "socket(2)");
	r = options ? sock_options_apply(fd, rec->options, rec->n_options, err) : 0;
	return r ? r : ckpt_steal_fd(&fd);
}

/* ---- a connection ------------------------------------------------------------------------- */

/* Until the FIN is acknowledged: nothing more is on its way then. */
static int await_fin(int fd, struct ckpt_error *err)
{
	for (int ms = 0; ms < 10000; ms++) {
		struct tcp_info ti = { 0 };
		socklen_t len = sizeof(ti);

		if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &ti, &len))
			return ckpt_fail_sys(err, errno, "TCP_INFO");
		if (ti.tcpi_state != TCP_FIN_WAIT1 && ti.tcpi_state != TCP_LAST_ACK)
			return 0;
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
	ckpt_fail(err, ETIMEDOUT, "a FIN is not acknowledged");
	return ckpt_hint(err, "a packet filter may drop it, or the loopback interface be down");
}

/* What was not sent yet, and the end of it. */
static int go_on(const struct sock_end *e, const struct sock_end *other, struct ckpt_error *err)
{
	const Ckpt__Sock__Tcp *rec = e->rec;
	size_t at = e->sent;

	while (at < rec->out.len) {
		ssize_t put = send(e->fd, rec->out.data + at, rec->out.len - at,
				   MSG_DONTWAIT | MSG_NOSIGNAL);

		if (put <= 0)
			return ckpt_fail_sys(err, put < 0 ? errno : EIO, "send(2)");
		at += (size_t)put;
	}
	if (!rec->fin_sent)
		return 0;
	sock_tcp_set(other->fd, TCP_QUICKACK, 1);
	if (shutdown(e->fd, SHUT_WR))
		return ckpt_fail_sys(err, errno, "shutdown(2)");
	return other->rec->fin_received ? await_fin(e->fd, err) : 0;
}

int sock_tcp_finish_end(const struct sock_end *e, struct ckpt_error *err)
{
	int r = set_buffers(e->fd, e->rec->sndbuf, e->rec->rcvbuf, e->lock);

	if (r)
		return ckpt_fail_sys(err, r, "SO_SNDBUFFORCE");
	return sock_owner_apply(e->fd, e->rec->owner, err);
}

static int join(const struct sock_end e[2], bool stand_in, struct ckpt_error *err)
{
	/* whose FIN the other has got was the first */
	int first = e[0].rec->fin_received ? 1 : 0, r = 0;

	for (int k = 0; k < 2 && !r; k++)
		r = sock_tcp_make_end(&e[k], err);
	for (int k = 0; k < 2 && !r; k++) {
		r = sock_tcp_set(e[k].fd, TCP_REPAIR, SOCK_REPAIR_OFF);
		if (r)
			ckpt_fail_sys(err, r, "TCP_REPAIR");
	}
	if (!r)
		r = go_on(&e[first], &e[1 - first], err);
	/* without a word: as if nobody had been there */
	if (!r && stand_in)
		r = sock_tcp_set(e[1].fd, TCP_REPAIR, SOCK_REPAIR_ON);
	if (!r)
		r = go_on(&e[1 - first], &e[first], err);
	if (!r)
		r = sock_tcp_finish_end(&e[0], err);
	return r || stand_in ? r : sock_tcp_finish_end(&e[1], err);
}

/* Both ends of a connection; fd[1] stands in for a closed one. */
static int make_pair(struct ckpt_run *run, const Ckpt__Sock__Tcp *rec, const Ckpt__Sock__Tcp *other,
		     int fd[2], struct ckpt_error *err)
{
	Ckpt__Sock__TcpWindow window = CKPT__SOCK__TCP_WINDOW__INIT;
	Ckpt__Sock__Tcp closed = CKPT__SOCK__TCP__INIT;
	struct sock_end e[2] = { { .rec = rec }, { .rec = other ? other : &closed } };

	closed.family = rec->family;
	closed.local = rec->peer;
	closed.peer = rec->local;
	closed.fin_sent = true;
	closed.send_seq = rec->receive_seq + (uint32_t)rec->in.len;
	closed.receive_seq = rec->send_seq;
	closed.mss = rec->mss;
	window.send = window.largest = window.receive = UINT16_MAX;
	window.wl1 = window.update = rec->send_seq;
	closed.window = &window;
	e[0].net = sock_net_saved(run, rec->id);
	e[1].net = other	       ? sock_net_saved(run, other->id)
		   : rec->closed_netns ? ckpt_ns_by_id(run, rec->closed_netns)
				       : e[0].net;
	for (int k = 0; k < 2; k++) {
		fd[k] = sock_tcp_new(e[k].rec, e[k].net, k == 0 || other, err);
		if (fd[k] < 0)
			return fd[k];
		e[k].fd = fd[k];
		/* it may have gone on sending after it was read, before the other was */
		e[k].sent = e[k].rec->out.len - e[k].rec->unsent;
		if (received_of(e[k].rec, e[1 - k].rec) > e[k].sent)
			e[k].sent = received_of(e[k].rec, e[1 - k].rec);
		e[k].lock = sock_buf_lock(fd[k]);
	}
	return join(e, !other, err);
}

/* Is another socket of the image bound to that port, or going to be? */
static bool port_is_shared(struct ckpt_run *run, const Ckpt__Sock__Tcp *rec)
{
	for (size_t i = 0; i < ckpt_record_count(run, "sock.inet"); i++) {
		const Ckpt__Sock__Inet *other = ckpt_record_at(run, "sock.inet", i);

		if (other->protocol == IPPROTO_TCP && other->local &&
		    other->local->port == rec->local->port)
			return true;
	}
	return false;
}

/* SO_REUSEADDR, which others that are still to be bound to the port need, comes last then. */
int sock_tcp_give_out(struct ckpt_run *run, const Ckpt__Sock__Tcp *rec, int fd,
		      struct ckpt_error *err)
{
	int reuse = sock_saved_option(rec->options, rec->n_options, "SO_REUSEADDR"), r = 0;
	bool later = !reuse && port_is_shared(run, rec);

	reuse |= later;
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse)))
		return ckpt_fail_sys(err, errno, "SO_REUSEADDR");
	if (later)
		r = sock_keep(sock_state(run), rec->id, fd, err);
	if (r)
		return r;
	fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	return fd < 0 ? ckpt_fail_sys(err, errno, "F_DUPFD_CLOEXEC")
		      : sock_stash_put(sock_state(run), rec->id, fd, err);
}

static int open_waiting(struct ckpt_run *run, const Ckpt__Sock__Tcp *rec, struct ckpt_error *err)
{
	const struct ckpt_ns *net = sock_net_saved(run, rec->id);
	CKPT_AUTO_FD int fd = sock_tcp_new(rec, net, true, err);
	Ckpt__Sock__Inet bound = CKPT__SOCK__INET__INIT;
	SOCK_PLACE(place);
	int r;

	if (fd < 0)
		return fd;
	bound.family = rec->family;
	bound.type = SOCK_STREAM;
	bound.protocol = IPPROTO_TCP;
	bound.local = rec->local;
	bound.peer = rec->peer;
	r = sock_net_enter(net, &place, err);
	if (!r)
		r = sock_inet_bind(fd, &bound, err);
	if (!r)
		r = sock_keep(sock_state(run), rec->id, fd, err);
	return r ? r : ckpt_steal_fd(&fd);
}

int sock_tcp_open(struct ckpt_run *run, const struct ckpt_fd_slot *slot, struct ckpt_error *err)
{
	const Ckpt__Sock__Tcp *rec = ckpt_record_need(run, "sock.tcp", slot->file, err), *other;
	struct sock_state *st = sock_state(run);
	int fd = sock_stash_take(st, slot->file), pair[2] = { -1, -1 }, r;

	st->tree = slot->tree;
	if (fd >= 0 || !rec)
		return fd >= 0 ? fd : -EBADMSG;
	if (rec->form)
		return sock_tcp_outside_open(run, rec, err);
	if (rec->waits)
		return open_waiting(run, rec, err);
	other = rec->other ? ckpt_record_by_id(run, "sock.tcp", rec->other) : NULL;
	r = make_pair(run, rec, other, pair, err);
	if (!r)
		r = sock_tcp_give_out(run, rec, pair[0], err);
	if (!r && other)
		r = sock_tcp_give_out(run, other, pair[1], err);
	for (int k = 0; k < 2; k++)
		if (pair[k] >= 0)
			close(pair[k]);
	return r ? r : sock_stash_take(st, slot->file);
}

/* ---- when all are there --------------------------------------------------------------------- */

static int connect_waiting(int fd, const Ckpt__Sock__Tcp *rec, struct ckpt_error *err)
{
	struct pollfd p = { .fd = fd, .events = POLLOUT };
	union sock_address local, peer;
	socklen_t len = rec->family == AF_INET6 ? sizeof(local.in6) : sizeof(local.in);
	int flags = fcntl(fd, F_GETFL), e = 0, r;
	socklen_t size = sizeof(e);

	if (!sock_tcp_ends(rec, &local, &peer))
		return ckpt_fail_image(err, "open file %u has no valid address", rec->id);
	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK))
		return ckpt_fail_sys(err, errno, "F_SETFL");
	r = connect_repaired(fd, local, peer, len);
	if (r == -EINPROGRESS &&
	    (poll(&p, 1, 10000) != 1 || getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &size)))
		e = ETIMEDOUT;
	if (r == -EINPROGRESS)
		r = -e;
	if (!r && rec->fin_sent && shutdown(fd, SHUT_WR))
		r = -errno;
	if (!r && fcntl(fd, F_SETFL, flags))
		r = -errno;
	return r ? ckpt_fail_sys(err, r, "connecting with %s port %u", rec->peer->address,
				 rec->peer->port)
		 : sock_owner_apply(fd, rec->owner, err);
}

int sock_tcp_settle(struct ckpt_run *run, struct ckpt_error *err)
{
	const struct sock_state *st = sock_state(run);
	int r = 0;

	for (size_t i = 0; i < st->n_kept && !r; i++) {
		const Ckpt__Sock__Tcp *rec = ckpt_record_by_id(run, "sock.tcp", st->kept[i].id);
		int reuse =
			rec ? sock_saved_option(rec->options, rec->n_options, "SO_REUSEADDR") : 0;
		SOCK_PLACE(place);

		if (!rec)
			continue;
		r = sock_net_enter(sock_net_saved(run, rec->id), &place, err);
		if (r < 0)
			return r;
		if (rec->waits)
			r = connect_waiting(st->kept[i].fd, rec, err);
		if (!r &&
		    setsockopt(st->kept[i].fd, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse)))
			r = ckpt_fail_sys(err, errno, "SO_REUSEADDR");
	}
	return r;
}
