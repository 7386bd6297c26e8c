/* SPDX-License-Identifier: MIT */
/*
 * TCP connections: how they are found and saved. What was sent and what was received is
 * read in the kernel's repair mode, for a moment each. What a socket has sent is read
 * while surveying, what it has received later: so nothing can be acknowledged that then
 * is found at neither end.
 */
#include "tcp.h"

#include <linux/sockios.h>
#include <poll.h>
#include <stdio.h>
#include <sys/ioctl.h>

#ifndef TCP_ULP
#define TCP_ULP 31
#endif

#define QUEUE_MAX (32u << 20)

int sock_tcp_state(int fd)
{
	struct tcp_info ti = { 0 };
	socklen_t len = sizeof(ti);

	return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &ti, &len) ? -errno : ti.tcpi_state;
}

/* Not a new one, which is not shut down, and not one that is being connected. */
static bool is_over(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN | POLLRDHUP };

	return sock_tcp_state(fd) == TCP_CLOSE && poll(&p, 1, 0) >= 0 &&
	       p.revents & (POLLIN | POLLRDHUP | POLLERR);
}

static bool tcp_connected_match(const struct ckpt_fd_found *f)
{
	int state;

	if ((f->domain != AF_INET && f->domain != AF_INET6) || f->protocol != IPPROTO_TCP ||
	    f->listening != 0)
		return false;
	state = sock_tcp_state(f->fd);
	return state == TCP_ESTABLISHED || state == TCP_CLOSE_WAIT || state == TCP_FIN_WAIT1 ||
	       state == TCP_FIN_WAIT2 || state == TCP_LAST_ACK || state == TCP_CLOSING ||
	       is_over(f->fd);
}

/* ---- who is at the other end ----------------------------------------------------------- */

static int ends_of(int fd, union sock_address *local, union sock_address *peer)
{
	socklen_t len = sizeof(*local), peer_len = sizeof(*peer);

	memset(local, 0, sizeof(*local));
	memset(peer, 0, sizeof(*peer));
	return getsockname(fd, &local->sa, &len) || getpeername(fd, &peer->sa, &peer_len) ? -errno
											  : 0;
}

/*
 * A namespace that the address belongs to: then the other end was there, and is closed. NULL:
 * the address is of the outside.
 */
static const struct ckpt_ns *home_of(struct ckpt_run *run, const struct ckpt_ns *net,
				     const union sock_address *a)
{
	if (sock_is_at(net, a))
		return net;
	for (size_t i = 0; i < ckpt_ns_count(run); i++) {
		const struct ckpt_ns *ns = ckpt_ns_at(run, i);

		if (ns->type == CKPT_NS_NET && ns != net && sock_is_at(ns, a))
			return ns;
	}
	return NULL;
}

static int refuse_other(struct ckpt_run *run, const struct ckpt_fd_found *f,
			const struct sock_tcp_diag *other, const union sock_address *peer,
			struct ckpt_error *err)
{
	struct stat st = { .st_mode = S_IFSOCK, .st_ino = other ? other->ino : 0 };
	char who[96] = "nobody has it open", reason[320];
	union sock_address local, far;
	struct sock_address_text text, here;
	int r = other && other->ino ? f->tree->outside(run, &st, who, sizeof(who), err) : 0;

	if (r < 0)
		return r;
	if (ends_of(f->fd, &local, &far) || sock_address_read(peer, &text) ||
	    sock_address_read(&local, &here))
		return ckpt_fail_sys(err, errno, "reading an address");
	snprintf(
		reason, sizeof(reason),
		"the other end of the TCP connection, %s port %u, is outside the tree (this end is "
		"%s port %u)%s%s",
		text.text, text.rec.port, here.text, here.rec.port, other ? ": " : "",
		other ? who : "");
	return sock_refuse(run, f, "external", reason,
			   "-o net.tcp=established keeps it and holds its packets back until the "
			   "restore, -o net.tcp=reset ends it as a lost network does; or dump a "
			   "tree that includes the other end");
}

static int survey_waiting(struct ckpt_run *run, const struct ckpt_fd_found *f,
			  const struct sock_tcp_diag *other, const union sock_address *peer,
			  struct ckpt_error *err)
{
	const struct sock_tcp_diag *l = sock_tcp_listener(sock_state(run), other);
	char object[512];
	int queued = 0;
	bool out;
	int r;

	if (!l || !l->ino || !f->tree->of_inode(run, f->st.st_dev, l->ino, &out))
		return refuse_other(run, f, l ? l : other, peer, err);
	snprintf(object, sizeof(object), "fd %d (%s), waits to be accepted", f->num, f->link);
	r = ckpt_refuse_off(run, "tcp-pending", f->task, object);
	if (r <= 0)
		return r < 0 && r != -ECANCELED ? r : 1;
	if (sock_tcp_untouched(other) && !ioctl(f->fd, SIOCINQ, &queued) && !queued)
		return 0;
	return sock_refuse(run, f, "pending-data",
			   "it waits to be accepted and has sent data, which nobody can see before",
			   "try again when the other side has accepted it");
}

/* ---- what was sent ----------------------------------------------------------------------- */

int sock_tcp_set(int fd, int name, int value)
{
	return sock_put_back(fd, IPPROTO_TCP, name, value);
}

static int get_seq(int fd, int queue, uint32_t *seq)
{
	socklen_t len = sizeof(*seq);
	int r = sock_tcp_set(fd, TCP_REPAIR_QUEUE, queue);

	if (!r && getsockopt(fd, IPPROTO_TCP, TCP_QUEUE_SEQ, seq, &len))
		r = -errno;
	return r;
}

static int read_progress(int fd, struct sock_tcp_look *look)
{
	int queued = 0, unsent = 0, r = get_seq(fd, TCP_SEND_QUEUE, &look->seq);

	if (r || ioctl(fd, SIOCOUTQ, &queued) || ioctl(fd, SIOCOUTQNSD, &unsent))
		return r ? r : -errno;
	look->state = (uint8_t)sock_tcp_state(fd);
	look->queued = (uint32_t)queued;
	look->unsent = (uint32_t)unsent;
	return 0;
}

static int read_sent_once(int fd, struct sock_tcp_look *look)
{
	int r = read_progress(fd, look);
	ssize_t got;

	free(look->out);
	look->out = NULL;
	look->len = 0;
	if (r || !look->queued)
		return r;
	if (look->queued > QUEUE_MAX)
		return -EFBIG;
	look->out = malloc(look->queued);
	if (!look->out)
		return -ENOMEM;
	got = recv(fd, look->out, look->queued, MSG_PEEK | MSG_DONTWAIT);
	/* only a FIN */
	if (got < 0 && errno != EAGAIN)
		return -errno;
	look->len = got < 0 ? 0 : (size_t)got;
	return 0;
}

/* The tree stands still, the network does not: what the other end delayed to acknowledge comes. */
static int read_sent(int fd, struct sock_tcp_look *look)
{
	for (int tries = 0; tries < 100; tries++) {
		struct sock_tcp_look now = { 0 };
		int r = read_sent_once(fd, look);

		if (!r)
			r = read_progress(fd, &now);
		if (r || (now.seq == look->seq && now.queued == look->queued &&
			  now.unsent == look->unsent && now.state == look->state))
			return r;
	}
	return -EAGAIN;
}

static int look_at_sent(struct sock_state *st, const struct ckpt_fd_found *f,
			enum sock_tcp_form form, struct ckpt_error *err)
{
	struct sock_tcp_look look = { .ino = f->st.st_ino, .form = form };
	int r, left;

	if (st->n_sent == st->cap_sent) {
		size_t want = st->cap_sent ? st->cap_sent * 2 : 64;
		struct sock_tcp_look *more = realloc(st->sent, want * sizeof(*more));

		if (!more)
			return ckpt_fail(err, ENOMEM, "out of memory");
		st->sent = more;
		st->cap_sent = want;
	}
	if (form == SOCK_TCP_LOST) {
		st->sent[st->n_sent++] = look;
		return 0;
	}
	r = sock_repair_enter(st, f->fd);
	if (r)
		return ckpt_fail_sys(err, r, "TCP_REPAIR");
	r = read_sent(f->fd, &look);
	left = sock_repair_leave(st);
	st->sent[st->n_sent++] = look;
	if (!r)
		r = left;
	return r ? ckpt_fail_sys(err, r, "reading what a TCP connection has sent") : 0;
}

static const struct sock_tcp_look *find_sent(const struct sock_state *st, uint64_t ino)
{
	for (size_t i = 0; i < st->n_sent; i++)
		if (st->sent[i].ino == ino)
			return &st->sent[i];
	return NULL;
}

/* ---- survey ------------------------------------------------------------------------------ */

static int survey_state(struct ckpt_run *run, const struct ckpt_fd_found *f)
{
	struct pollfd p = { .fd = f->fd, .events = POLLPRI };
	char ulp[32] = "";
	socklen_t len = sizeof(ulp);

	if (!getsockopt(f->fd, IPPROTO_TCP, TCP_ULP, ulp, &len) && len && *ulp)
		return sock_refuse(run, f, "tcp-ulp",
				   "another protocol sits on the TCP connection (TCP_ULP)",
				   "close it before the dump, or allow the loss");
	if (poll(&p, 1, 0) == 1 && p.revents & POLLPRI)
		return sock_refuse(run, f, "tcp-urgent", "urgent data waits (MSG_OOB)",
				   "try again when the program has received it");
	if (p.revents & POLLERR)
		return sock_refuse(run, f, "socket-error", "an error waits to be reported",
				   "let the program receive it before the dump");
	return 0;
}

/* Where the other end is: 0: in the tree, 1: refused, 2: outside. */
static int survey_other(struct ckpt_run *run, const struct ckpt_fd_found *f,
			const struct ckpt_ns *net, const struct sock_tcp_diag **other,
			struct ckpt_error *err)
{
	union sock_address local, peer;
	bool out;

	if (ends_of(f->fd, &local, &peer))
		return ckpt_is_live(run) ? 1 : ckpt_fail_sys(err, errno, "getpeername(2)");
	*other = sock_tcp_other(run, net, &local, &peer);
	if (!sock_is_at(net, &local))
		return 2;
	if (*other && sock_tcp_listener(sock_state(run), *other))
		return survey_waiting(run, f, *other, &peer, err);
	if (*other && (*other)->ino)
		return f->tree->of_inode(run, f->st.st_dev, (*other)->ino, &out) ? 0 : 2;
	/* it has sent all it ever will, and that is here */
	return sock_tcp_state(f->fd) == TCP_CLOSE_WAIT && home_of(run, net, &peer) ? 0 : 2;
}

static int survey_outside(struct ckpt_run *run, const struct ckpt_fd_found *f,
			  const struct ckpt_ns *net, const struct sock_tcp_diag *other,
			  enum sock_tcp_form *form, struct ckpt_error *err)
{
	union sock_address local, peer;

	if (ends_of(f->fd, &local, &peer))
		return ckpt_is_live(run) ? 1 : ckpt_fail_sys(err, errno, "getpeername(2)");
	return sock_tcp_wish(run) == SOCK_TCP_INSIDE
		       ? refuse_other(run, f, other, &peer, err)
		       : sock_tcp_outside_survey(run, f, net, form, err);
}

/* 2: go on. Before its state is looked at, which the other end may change until then. */
static int hold_if_kept(struct ckpt_run *run, const struct ckpt_fd_found *f,
			const struct ckpt_ns *net, struct ckpt_error *err)
{
	union sock_address local, peer;
	int r;

	if (ckpt_is_live(run) || sock_tcp_wish(run) != SOCK_TCP_KEPT ||
	    !ckpt_feature_on(run, "tcp-outside"))
		return 2;
	if (ends_of(f->fd, &local, &peer))
		return ckpt_fail_sys(err, errno, "getpeername(2)");
	r = sock_hold(sock_state(run), net, &local, &peer, err);
	return r < 0 ? r : 2;
}

static int survey_over(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	struct pollfd p = { .fd = f->fd };
	const struct ckpt_ns *net;
	int r = sock_survey(run, f, err);

	if (!r)
		r = sock_net_of(run, f->fd, &net, err);
	if (r)
		return r;
	if (!ckpt_feature_on(run, "tcp-over"))
		return sock_refuse(run, f, "tcp-over",
				   "its TCP connection has ended, and the feature sock.tcp-over is "
				   "switched off",
				   "switch it on");
	r = sock_tcp_over_survey(run, f, net, err);
	if (r)
		return r;
	if (poll(&p, 1, 0) < 0)
		return ckpt_fail_sys(err, errno, "poll(2)");
	/* who lets connections be reset does not mind why one was */
	if (!(p.revents & POLLERR) || sock_tcp_wish(run) == SOCK_TCP_LOST)
		return 0;
	return sock_refuse_detail(run, f, "socket-error",
				  "an error of a TCP connection waits to be reported",
				  "let the program receive it, or --allow-loss sock.socket-error: "
				  "it is then ECONNRESET");
}

static int tcp_connected_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
				struct ckpt_error *err)
{
	enum sock_tcp_form form = SOCK_TCP_INSIDE;
	const struct sock_tcp_diag *other = NULL;
	const struct ckpt_ns *net;
	int r;

	if (is_over(f->fd))
		return survey_over(run, f, err);
	r = sock_survey(run, f, err);
	if (!r)
		r = sock_tcp_diag(run, err);
	if (!r)
		r = sock_net_of(run, f->fd, &net, err);
	if (!r)
		r = sock_tcp_keys_survey(run, f, err);
	if (!r)
		r = survey_state(run, f);
	if (!r)
		r = survey_other(run, f, net, &other, err);
	if (r == 2)
		r = hold_if_kept(run, f, net, err);
	if (r == 2)
		r = survey_outside(run, f, net, other, &form, err);
	return r || ckpt_is_live(run) ? r : look_at_sent(sock_state(run), f, form, err);
}

/* ---- collect ------------------------------------------------------------------------------- */

struct reading {
	Ckpt__Sock__Tcp rec;
	Ckpt__Sock__TcpWindow window;
	Ckpt__Sock__Owner owner;
	struct sock_options options;
	struct sock_address_text local, peer;
	union sock_address local_end, peer_end;
	uint8_t *in;
	int state;
};

static int read_received(int fd, struct reading *x)
{
	struct sock_window w = { 0 };
	socklen_t len = sizeof(w), size = sizeof(uint32_t);
	uint32_t seq = 0, mss = 0, stamp = 0;
	int queued = 0, r = get_seq(fd, TCP_RECV_QUEUE, &seq);

	if (r || ioctl(fd, SIOCINQ, &queued))
		return r ? r : -errno;
	x->state = sock_tcp_state(fd);
	if ((unsigned)queued > QUEUE_MAX)
		return -EFBIG;
	free(x->in);
	x->in = queued ? malloc((size_t)queued) : NULL;
	if (queued && !x->in)
		return -ENOMEM;
	if (queued && recv(fd, x->in, (size_t)queued, MSG_PEEK | MSG_DONTWAIT) != queued)
		return -EIO;
	r = sock_tcp_set(fd, TCP_REPAIR_QUEUE, TCP_NO_QUEUE);
	if (r || getsockopt(fd, IPPROTO_TCP, TCP_REPAIR_WINDOW, &w, &len) ||
	    getsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &mss, &size) ||
	    getsockopt(fd, IPPROTO_TCP, TCP_TIMESTAMP, &stamp, &size))
		return r ? r : -errno;
	x->rec.in.data = x->in;
	x->rec.in.len = (size_t)queued;
	x->rec.receive_seq = seq; /* of the end; corrected when it is known whether a FIN counts */
	x->rec.mss = mss;
	x->rec.timestamp = stamp;
	ckpt__sock__tcp_window__init(&x->window);
	x->window.wl1 = w.snd_wl1;
	x->window.send = w.snd_wnd;
	x->window.largest = w.max_window;
	x->window.receive = w.rcv_wnd;
	x->window.update = w.rcv_wup;
	x->rec.window = &x->window;
	return 0;
}

static int read_repaired(struct sock_state *st, int fd, struct reading *x)
{
	int r = sock_repair_enter(st, fd), left;

	if (r)
		return r;
	/* more has come in between */
	for (int tries = 0; (r = read_received(fd, x)) == -EIO && tries < 100; tries++)
		;
	left = sock_repair_leave(st);
	return r ? r : left;
}

/* A FIN has a number of its own at the end of either queue. */
static int take_sent(struct reading *x, const struct sock_tcp_look *look)
{
	bool waits = look->state == TCP_FIN_WAIT1 || look->state == TCP_LAST_ACK ||
		     look->state == TCP_CLOSING;
	Ckpt__Sock__Tcp *rec = &x->rec;
	uint32_t data = look->queued - (waits && look->queued);

	rec->fin_sent = waits || look->state == TCP_FIN_WAIT2;
	rec->fin_received =
		x->state == TCP_CLOSE_WAIT || x->state == TCP_LAST_ACK || x->state == TCP_CLOSING;
	rec->receive_seq -= (uint32_t)rec->in.len + rec->fin_received;
	rec->send_seq = look->seq - look->queued - (rec->fin_sent && !waits);
	rec->unsent = look->unsent - (waits && look->unsent);
	rec->out.data = look->out;
	rec->out.len = data;
	return look->len == data && rec->unsent <= data ? 0 : -EIO;
}

static void take_options(struct reading *x, int fd)
{
	struct tcp_info ti = { 0 };
	socklen_t len = sizeof(ti);

	getsockopt(fd, IPPROTO_TCP, TCP_INFO, &ti, &len);
	x->rec.sack = ti.tcpi_options & TCPI_OPT_SACK;
	x->rec.scaled = ti.tcpi_options & TCPI_OPT_WSCALE;
	x->rec.timestamps = ti.tcpi_options & TCPI_OPT_TIMESTAMPS;
	x->rec.send_scale = x->rec.scaled ? ti.tcpi_snd_wscale : 0;
	x->rec.receive_scale = x->rec.scaled ? ti.tcpi_rcv_wscale : 0;
	x->rec.sndbuf = (uint32_t)sock_int(fd, SOL_SOCKET, SO_SNDBUF);
	x->rec.rcvbuf = (uint32_t)sock_int(fd, SOL_SOCKET, SO_RCVBUF);
}

/* The other end's description, or that it waits. */
static int take_other(struct ckpt_run *run, const struct ckpt_fd_found *f,
		      const struct ckpt_ns *net, struct reading *x)
{
	const struct sock_tcp_diag *other = sock_tcp_other(run, net, &x->local_end, &x->peer_end);
	bool out = false;

	x->rec.waits = other && sock_tcp_listener(sock_state(run), other);
	if (other && other->ino && !x->rec.waits)
		x->rec.other = f->tree->of_inode(run, f->st.st_dev, other->ino, &out);
	if (out)
		x->rec.other = 0;
	if (!x->rec.other && !x->rec.waits) {
		const struct ckpt_ns *home = home_of(run, net, &x->peer_end);

		x->rec.closed_netns = home && home != net ? home->id : 0;
	}
	return out && !x->rec.fin_received ? -ENOTCONN : 0;
}

/* It waits for us, held: all there is to know is how far each side has come. */
static void take_kept(struct sock_state *st, const struct ckpt_ns *net,
		      const struct sock_tcp_look *look, struct reading *x)
{
	x->rec.form = SOCK_TCP_KEPT;
	x->rec.state = (uint32_t)x->state;
	x->rec.fin_acked = look->state == TCP_FIN_WAIT2;
	/* any other namespace goes with the tree */
	if (net->own)
		x->rec.hold = (char *)(uintptr_t)sock_hold_name(st);
}

/* The repair mode is not for what is over, and what is going to be gets nothing more. */
static int fill_over(struct ckpt_run *run, const struct ckpt_fd_found *f, enum sock_tcp_form form,
		     struct reading *x, struct ckpt_error *err)
{
	struct pollfd p = { .fd = f->fd };
	socklen_t len = sizeof(x->local_end);
	int queued = 0;

	if (getsockname(f->fd, &x->local_end.sa, &len) ||
	    sock_address_read(&x->local_end, &x->local) || ioctl(f->fd, SIOCINQ, &queued) ||
	    poll(&p, 1, 0) < 0)
		return ckpt_fail_sys(err, errno, "reading a TCP connection");
	if (queued > (int)QUEUE_MAX)
		return ckpt_fail_sys(err, EFBIG, "reading a TCP connection");
	x->in = queued ? malloc((size_t)queued) : NULL;
	if (queued && !x->in)
		return ckpt_fail_sys(err, ENOMEM, "reading a TCP connection");
	if (queued && sock_tcp_peek(sock_state(run), f->fd, x->in, (size_t)queued) != queued)
		return ckpt_fail_sys(err, EIO, "reading a TCP connection");
	x->rec.in.data = x->in;
	x->rec.in.len = (size_t)queued;
	/* an error is taken for the end of the connection, which it then was */
	x->rec.form = p.revents & POLLERR ? SOCK_TCP_LOST : form;
	x->rec.sndbuf = (uint32_t)sock_int(f->fd, SOL_SOCKET, SO_SNDBUF);
	x->rec.rcvbuf = (uint32_t)sock_int(f->fd, SOL_SOCKET, SO_RCVBUF);
	return sock_options_read(run, f, &x->options, err);
}

static int fill_record(struct ckpt_run *run, const struct ckpt_fd_found *f, struct reading *x,
		       struct ckpt_error *err)
{
	struct sock_state *st = sock_state(run);
	const struct sock_tcp_look *look = find_sent(st, f->st.st_ino);
	const struct ckpt_ns *net;
	int r;

	if (!look || look->form == SOCK_TCP_LOST)
		return fill_over(run, f, look ? SOCK_TCP_LOST : SOCK_TCP_OVER, x, err);
	r = ends_of(f->fd, &x->local_end, &x->peer_end);
	if (!r)
		r = read_repaired(st, f->fd, x);
	if (!r)
		r = take_sent(x, look);
	if (!r)
		r = sock_address_read(&x->local_end, &x->local);
	if (!r)
		r = sock_address_read(&x->peer_end, &x->peer);
	if (r)
		return ckpt_fail_sys(err, r, "reading a TCP connection");
	if (sock_net_of(run, f->fd, &net, err))
		return -err->err;
	if (look->form == SOCK_TCP_KEPT)
		take_kept(st, net, look, x);
	else if (take_other(run, f, net, x))
		return ckpt_fail_as(err, CKPT_EXIT_REFUSED, EOPNOTSUPP,
				    "the other end of a TCP connection is left out");
	take_options(x, f->fd);
	return sock_options_read(run, f, &x->options, err);
}

static int tcp_connected_collect(struct ckpt_run *run, const struct ckpt_fd_found *f,
				 struct ckpt_error *err)
{
	CKPT_AUTO_FREE struct reading *x = calloc(1, sizeof(*x));
	int r;

	if (!x)
		return ckpt_fail(err, ENOMEM, "out of memory");
	ckpt__sock__tcp__init(&x->rec);
	r = fill_record(run, f, x, err);
	sock_owner_of(&f->st, &x->owner);
	x->rec.id = f->file;
	x->rec.family = (uint32_t)f->domain;
	x->rec.local = &x->local.rec;
	x->rec.peer = x->peer.rec.address ? &x->peer.rec : NULL;
	x->rec.owner = &x->owner;
	x->rec.options = x->options.ptr;
	x->rec.n_options = x->options.n;
	if (!r)
		r = ckpt_record_put(run, SOCK_TCP, &x->rec.base, err);
	if (!r)
		r = sock_collect(run, f, err);
	free(x->in);
	return r;
}

const struct ckpt_fd_kind sock_kind_tcp_connected = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = tcp_connected_match,
	.survey = tcp_connected_survey,
	.collect = tcp_connected_collect,
	.ahead = sock_options_ahead,
	.plan = sock_tcp_plan,
	.open = sock_tcp_open,
	.own_pos = true,
	.flags_ok = SOCK_FLAGS,
};
