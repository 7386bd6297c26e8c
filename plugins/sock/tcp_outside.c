/* SPDX-License-Identifier: MIT */
/*
 * TCP connections whose other end is outside the tree, and those that are over: what the
 * user wants of them, and how one end alone is made again. What the other end has said is
 * said once more by a forged segment, so that the kernel comes to the same state by itself.
 */
#include "tcp.h"

#include <linux/rtnetlink.h>
#include <net/if.h>
#include <poll.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <time.h>

#define QUEUE_MAX  (32u << 20)
#define BUFFER_MAX (INT32_MAX / 4)

/* ---- dump ------------------------------------------------------------------------------- */

static int ask_net(struct ckpt_run *run, void *arg, struct ckpt_error *err)
{
	enum sock_tcp_form *form = arg;
	const char *word = ckpt_opt_string(run, "tcp");

	(void)err;
	if (word && !strcmp(word, "established"))
		*form = SOCK_TCP_KEPT;
	if (word && !strcmp(word, "reset"))
		*form = SOCK_TCP_LOST;
	return 0;
}

enum sock_tcp_form sock_tcp_wish(struct ckpt_run *run)
{
	enum sock_tcp_form form = SOCK_TCP_INSIDE;
	struct ckpt_error ignored = { 0 };

	/* without the plugin net nobody can have asked for anything */
	(void)ckpt_call_as(run, "net", ask_net, &form, &ignored);
	return form;
}

/*
 * Does a route say that the address is not of this namespace? bind(2) takes any where
 * net.ipv4.ip_nonlocal_bind is set.
 */
static bool is_foreign(union sock_address a)
{
	CKPT_AUTO_FD int nl = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
	bool v4 = sock_address_unmap(&a);
	const size_t size = v4 ? 4 : 16;
	struct {
		struct nlmsghdr h;
		struct rtmsg m;
		struct rtattr dst;
		uint8_t address[16];
		struct rtattr oif;
		uint32_t device;
	} q = {
		.h = { .nlmsg_type = RTM_GETROUTE, .nlmsg_flags = NLM_F_REQUEST },
		.m = { .rtm_family = a.sa.sa_family, .rtm_dst_len = (unsigned char)(8 * size) },
		.dst = { (unsigned short)RTA_LENGTH(size), RTA_DST },
		.oif = { RTA_LENGTH(sizeof(q.device)), RTA_OIF },
		.device = v4 ? 0 : a.in6.sin6_scope_id,
	};
	struct {
		struct nlmsghdr h;
		union {
			struct rtmsg m;
			struct nlmsgerr e;
		};
		char rest[4096];
	} answer;
	ssize_t len;

	memcpy(q.address, v4 ? (const void *)&a.in.sin_addr : (const void *)&a.in6.sin6_addr, size);
	q.h.nlmsg_len =
		(uint32_t)(q.device ? sizeof(q) : NLMSG_LENGTH(sizeof(q.m)) + RTA_LENGTH(size));
	if (nl < 0 || send(nl, &q, q.h.nlmsg_len, 0) != (ssize_t)q.h.nlmsg_len)
		return false;
	len = recv(nl, &answer, sizeof(answer), 0);
	if (len < (ssize_t)NLMSG_LENGTH(sizeof(answer.m)))
		return false;
	if (answer.h.nlmsg_type == NLMSG_ERROR)
		return answer.e.error == -ENETUNREACH || answer.e.error == -EHOSTUNREACH;
	return answer.m.rtm_type != RTN_LOCAL;
}

static bool is_any(const union sock_address *a)
{
	return a->sa.sa_family == AF_INET6 ? IN6_IS_ADDR_UNSPECIFIED(&a->in6.sin6_addr)
					   : !a->in.sin_addr.s_addr;
}

bool sock_is_at(const struct ckpt_ns *net, const union sock_address *a)
{
	struct ckpt_error ignored = { 0 };
	union sock_address any_port = *a;
	CKPT_AUTO_FD int fd = -1;
	SOCK_PLACE(place);

	if ((!net->own && net->fd < 0) || sock_net_enter(net, &place, &ignored) < 0)
		return false;
	fd = socket(a->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	any_port.in.sin_port = 0;
	return fd >= 0 &&
	       !bind(fd, &any_port.sa,
		     a->sa.sa_family == AF_INET ? sizeof(a->in) : sizeof(a->in6)) &&
	       (is_any(a) || !is_foreign(*a));
}

/* Forged segments go over it. */
static bool has_loopback(const struct ckpt_ns *net)
{
	struct ckpt_error ignored = { 0 };
	struct ifreq q = { .ifr_name = "lo" };
	CKPT_AUTO_FD int fd = -1;
	SOCK_PLACE(place);

	if (sock_net_enter(net, &place, &ignored) < 0)
		return false;
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	return fd >= 0 && !ioctl(fd, SIOCGIFFLAGS, &q) && q.ifr_flags & IFF_UP;
}

/* ---- plan ------------------------------------------------------------------------------- */

/* What was said must lead to the state. */
static bool good_state(const Ckpt__Sock__Tcp *rec)
{
	if (rec->fin_acked && (!rec->fin_sent || rec->unsent))
		return false;
	switch (rec->state) {
	case TCP_ESTABLISHED:
		return !rec->fin_sent && !rec->fin_received;
	case TCP_CLOSE_WAIT:
		return !rec->fin_sent && rec->fin_received;
	case TCP_FIN_WAIT1:
		return rec->fin_sent && !rec->fin_received && !rec->fin_acked;
	case TCP_FIN_WAIT2:
		return rec->fin_sent && !rec->fin_received && rec->fin_acked;
	case TCP_LAST_ACK:
	case TCP_CLOSING:
		return rec->fin_sent && rec->fin_received && !rec->fin_acked;
	default:
		return false;
	}
}

static bool good_kept(const Ckpt__Sock__Tcp *rec)
{
	union sock_address local, peer;

	return sock_tcp_ends(rec, &local, &peer) && rec->window &&
	       rec->window->send <= rec->window->largest && rec->mss && rec->mss <= UINT16_MAX &&
	       rec->send_scale <= 14 && rec->receive_scale <= 14 && rec->unsent <= rec->out.len &&
	       rec->out.len <= QUEUE_MAX && good_state(rec);
}

bool sock_tcp_outside_plan(const Ckpt__Sock__Tcp *rec)
{
	union sock_address local;
	socklen_t len;

	return (rec->family == AF_INET || rec->family == AF_INET6) && !rec->other && !rec->waits &&
	       !rec->closed_netns && rec->local &&
	       sock_address_write(rec->family, rec->local, &local, &len) &&
	       rec->in.len <= QUEUE_MAX && rec->sndbuf <= BUFFER_MAX && rec->rcvbuf <= BUFFER_MAX &&
	       (rec->form == SOCK_TCP_LOST || rec->form == SOCK_TCP_OVER ||
		(rec->form == SOCK_TCP_KEPT && good_kept(rec)));
}

/* ---- one that is kept --------------------------------------------------------------------- */

/* A busy machine delivers what goes over loopback a little later. */
#define AWAIT_MS 10000

static int await_state(const struct sock_end *e, struct ckpt_error *err)
{
	for (int ms = 0; ms < AWAIT_MS; ms++) {
		if (sock_tcp_state(e->fd) == (int)e->rec->state)
			return 0;
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
	ckpt_fail(err, EPROTO, "a TCP connection is in state %d, not %u", sock_tcp_state(e->fd),
		  e->rec->state);
	return ckpt_hint(err, "a packet filter may drop what goes over the loopback interface");
}

/* The other end's word: that it has got our FIN, or its own. */
static int hear(const struct sock_end *e, bool fin, struct ckpt_error *err)
{
	const Ckpt__Sock__Tcp *rec = e->rec;
	struct sock_segment s = { .seq = rec->receive_seq + (uint32_t)rec->in.len,
				  .ack = rec->send_seq,
				  .window = (uint16_t)(rec->window->send >> rec->send_scale),
				  .fin = fin };
	SOCK_PLACE(place);
	int r;

	if (rec->fin_acked && !fin)
		s.ack += (uint32_t)rec->out.len + 1;
	if (!sock_tcp_ends(rec, &s.to, &s.from))
		return ckpt_fail_image(err, "open file %u has no valid address", rec->id);
	r = sock_net_enter(e->net, &place, err);
	if (r < 0)
		return r;
	r = sock_tcp_forge(&s);
	return r ? ckpt_fail_sys(err, r, "a segment of a TCP connection") : 0;
}

/* In repair mode a FIN counts as sent, and is not. */
static int say_end(const struct sock_end *e, struct ckpt_error *err)
{
	int r = sock_tcp_set(e->fd, TCP_REPAIR_QUEUE, TCP_SEND_QUEUE);

	if (!r && shutdown(e->fd, SHUT_WR))
		r = -errno;
	return r ? ckpt_fail_sys(err, r, "shutdown(2)") : 0;
}

static int lead_to_state(const struct sock_end *e, struct ckpt_error *err)
{
	const Ckpt__Sock__Tcp *rec = e->rec;
	bool all_sent = !rec->unsent;
	int r = 0;

	if (rec->fin_received && rec->state != TCP_CLOSING)
		r = hear(e, true, err);
	if (!r && rec->fin_sent && all_sent)
		r = say_end(e, err);
	if (!r && rec->fin_acked)
		r = hear(e, false, err);
	if (!r && rec->state == TCP_CLOSING && all_sent)
		r = hear(e, true, err);
	if (!r && all_sent)
		r = await_state(e, err);
	if (r)
		return r;
	r = sock_tcp_set(e->fd, TCP_REPAIR, SOCK_REPAIR_OFF);
	return r ? ckpt_fail_sys(err, r, "TCP_REPAIR") : 0;
}

/* What had no room on the way. */
static int queue_rest(const struct sock_end *e, struct ckpt_error *err)
{
	const Ckpt__Sock__Tcp *rec = e->rec;
	size_t at = e->sent;
	int r = 0;

	while (at < rec->out.len) {
		ssize_t put = send(e->fd, rec->out.data + at, rec->out.len - at,
				   MSG_DONTWAIT | MSG_NOSIGNAL);

		if (put <= 0)
			return ckpt_fail_sys(err, put < 0 ? errno : EIO, "send(2)");
		at += (size_t)put;
	}
	if (rec->unsent && rec->fin_sent && shutdown(e->fd, SHUT_WR))
		return ckpt_fail_sys(err, errno, "shutdown(2)");
	if (rec->unsent && rec->state == TCP_CLOSING)
		r = hear(e, true, err);
	return r;
}

static int make_kept(const struct sock_end *e, struct ckpt_error *err)
{
	int r = sock_tcp_make_end(e, err);

	if (!r)
		r = lead_to_state(e, err);
	if (!r)
		r = queue_rest(e, err);
	return r ? r : sock_tcp_finish_end(e, err);
}

/* ---- one that is over --------------------------------------------------------------------- */

/* Its own address, or if that is gone the one of loopback, with another port. */
static void stand_in(const struct ckpt_ns *net, union sock_address *local, union sock_address *peer)
{
	union sock_address v4 = *local;

	if (!sock_is_at(net, local)) {
		if (sock_address_unmap(&v4) && local->sa.sa_family == AF_INET)
			local->in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		else if (v4.sa.sa_family == AF_INET)
			inet_pton(AF_INET6, "::ffff:127.0.0.1", &local->in6.sin6_addr);
		else
			local->in6.sin6_addr = in6addr_loopback;
	}
	*peer = *local;
	/* which one does not matter: nobody can ask any more */
	peer->in.sin_port = htons((uint16_t)(ntohs(local->in.sin_port) == 9 ? 7 : 9));
}

static int end_it(const struct sock_end *e, const union sock_address *local,
		  const union sock_address *peer, struct ckpt_error *err)
{
	struct sock_segment s = { .from = *peer,
				  .to = *local,
				  .seq = 1 + (uint32_t)e->rec->in.len,
				  .ack = 1,
				  .rst = true };
	SOCK_PLACE(place);
	int r = sock_net_enter(e->net, &place, err);

	if (r < 0)
		return r;
	r = sock_tcp_forge(&s);
	if (r)
		return ckpt_fail_sys(err, r, "a segment of a TCP connection");
	r = await_state(e, err);
	if (r)
		return r;
	r = sock_tcp_set(e->fd, TCP_REPAIR, SOCK_REPAIR_END);
	return r ? ckpt_fail_sys(err, r, "TCP_REPAIR") : 0;
}

/* An end that has said nothing and heard nothing; points into the others. */
static int plain_end(Ckpt__Sock__Tcp *rec, Ckpt__Sock__TcpWindow *window,
		     struct sock_address_text text[2], const union sock_address *local,
		     const union sock_address *peer, struct ckpt_error *err)
{
	if (sock_address_read(local, &text[0]) || sock_address_read(peer, &text[1]))
		return ckpt_fail_sys(err, errno, "an address");
	ckpt__sock__tcp_window__init(window);
	window->send = window->largest = window->receive = UINT16_MAX;
	window->wl1 = window->update = 1;
	rec->local = &text[0].rec;
	rec->peer = &text[1].rec;
	rec->send_seq = rec->receive_seq = 1;
	rec->out.len = 0;
	rec->mss = 1000;
	rec->sack = rec->scaled = rec->timestamps = false;
	rec->window = window;
	return 0;
}

static int make_over(struct sock_end *e, struct ckpt_error *err)
{
	const Ckpt__Sock__Tcp *saved = e->rec;
	Ckpt__Sock__Tcp rec = *saved;
	Ckpt__Sock__TcpWindow window;
	struct sock_address_text text[2];
	union sock_address local, peer;
	socklen_t len;
	int r;

	if (!sock_address_write(saved->family, saved->local, &local, &len))
		return ckpt_fail_image(err, "open file %u has no valid address", saved->id);
	stand_in(e->net, &local, &peer);
	r = plain_end(&rec, &window, text, &local, &peer, err);
	if (r)
		return r;
	rec.state = TCP_CLOSE;
	e->rec = &rec;
	r = sock_tcp_make_end(e, err);
	if (!r)
		r = end_it(e, &local, &peer, err);
	/* asking takes it away */
	if (!r && saved->form == SOCK_TCP_OVER)
		(void)sock_int(e->fd, SOL_SOCKET, SO_ERROR);
	return r ? r : sock_tcp_finish_end(e, err);
}

/* ---- survey ------------------------------------------------------------------------------- */

/*
 * Lead a socket of our own to that state as the restore will one of the tree. It is in repair
 * mode until it is closed, so it shares the port without a word to those that have it.
 */
static int rehearse(const struct ckpt_ns *net, const union sock_address *local,
		    const union sock_address *peer, uint32_t state, struct ckpt_error *err)
{
	Ckpt__Sock__Tcp rec = CKPT__SOCK__TCP__INIT;
	struct sock_end e = { .rec = &rec, .net = net };
	Ckpt__Sock__TcpWindow window;
	struct sock_address_text text[2];
	CKPT_AUTO_FD int fd = -1;
	int r = plain_end(&rec, &window, text, local, peer, err);

	if (r)
		return r;
	rec.family = local->sa.sa_family;
	rec.state = state;
	rec.fin_acked = state == TCP_FIN_WAIT2;
	fd = sock_tcp_new(&rec, net, false, err);
	if (fd < 0)
		return fd;
	e.fd = fd;
	r = sock_tcp_make_end(&e, err);
	if (r || state == TCP_CLOSE)
		return r ? r : end_it(&e, local, peer, err);
	if (state == TCP_FIN_WAIT2)
		r = say_end(&e, err);
	if (!r)
		r = hear(&e, state == TCP_CLOSE_WAIT, err);
	return r ? r : await_state(&e, err);
}

/* Forged segments go over loopback: does it stand, and does what leads to that state arrive? */
static int survey_segments(struct ckpt_run *run, const struct ckpt_fd_found *f,
			   const struct ckpt_ns *net, const union sock_address *local,
			   const union sock_address *peer, uint32_t state)
{
	struct ckpt_error why = { 0 };
	char reason[512];

	if (!has_loopback(net))
		return sock_refuse(run, f, "tcp-loopback",
				   "the restore tells the socket over the loopback interface what "
				   "the other end of its TCP connection has said, and that "
				   "interface is down",
				   "set it up (ip link set lo up), or let the program close the "
				   "socket");
	/* a dry run sends nothing, and verify restores nothing */
	if (state == TCP_ESTABLISHED || ckpt_is_live(run) || ckpt_run_kind(run) != CKPT_DUMP ||
	    !rehearse(net, local, peer, state, &why))
		return 0;
	snprintf(reason, sizeof(reason),
		 "the restore tells the socket over the loopback interface what the other end of "
		 "its TCP connection has said, and in a trial that did not arrive, as where a "
		 "packet filter drops it (ct state invalid drop): %.200s",
		 why.text);
	return sock_refuse(run, f, "tcp-filtered", reason,
			   "accept packets on lo before that rule (iif lo accept), or let the "
			   "program close the socket");
}

int sock_tcp_over_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
			 const struct ckpt_ns *net, struct ckpt_error *err)
{
	union sock_address local = { 0 }, peer;
	socklen_t len = sizeof(local);

	if (getsockname(f->fd, &local.sa, &len))
		return ckpt_fail_sys(err, errno, "getsockname(2)");
	stand_in(net, &local, &peer);
	return survey_segments(run, f, net, &local, &peer, TCP_CLOSE);
}

/* What a connection is led to by the other end's word; TCP_ESTABLISHED: by none. */
static uint32_t state_heard(int state)
{
	switch (state) {
	case TCP_CLOSE_WAIT:
	case TCP_LAST_ACK:
	case TCP_CLOSING:
		return TCP_CLOSE_WAIT;
	case TCP_FIN_WAIT2:
		return TCP_FIN_WAIT2;
	default:
		return TCP_ESTABLISHED;
	}
}

static int survey_kept(struct ckpt_run *run, const struct ckpt_fd_found *f,
		       const struct ckpt_ns *net, struct ckpt_error *err)
{
	union sock_address local = { 0 }, peer = { 0 };
	socklen_t len = sizeof(local), peer_len = sizeof(peer);

	if (getsockname(f->fd, &local.sa, &len) || getpeername(f->fd, &peer.sa, &peer_len))
		return ckpt_is_live(run) ? 1 : ckpt_fail_sys(err, errno, "getpeername(2)");
	if (!sock_is_at(net, &local))
		return sock_refuse(run, f, "tcp-address",
				   "the address of this end of the TCP connection is gone",
				   "-o net.tcp=reset ends such connections");
	/* another connection than the real one */
	peer.in.sin_port = htons((uint16_t)(ntohs(peer.in.sin_port) == 9 ? 7 : 9));
	return survey_segments(run, f, net, &local, &peer, state_heard(sock_tcp_state(f->fd)));
}

int sock_tcp_outside_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
			    const struct ckpt_ns *net, enum sock_tcp_form *form,
			    struct ckpt_error *err)
{
	*form = sock_tcp_wish(run);
	if (!ckpt_feature_on(run, "tcp-outside"))
		return sock_refuse(run, f, "tcp-outside",
				   "the other end of the TCP connection is outside the tree, and "
				   "the feature sock.tcp-outside is switched off",
				   "switch it on");
	return *form == SOCK_TCP_KEPT ? survey_kept(run, f, net, err)
				      : sock_tcp_over_survey(run, f, net, err);
}

/* ---- restore ------------------------------------------------------------------------------ */

/* Over loopback comes nothing to a socket that is bound to another device: that option is last. */
static int options_but_device(const Ckpt__Sock__Tcp *rec, int fd, bool device,
			      struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; i < rec->n_options && !r; i++)
		if (!strcmp(rec->options[i]->name, "SO_BINDTODEVICE") == device)
			r = sock_options_apply(fd, &rec->options[i], 1, err);
	return r;
}

int sock_tcp_outside_open(struct ckpt_run *run, const Ckpt__Sock__Tcp *rec, struct ckpt_error *err)
{
	struct sock_end e = { .rec = rec,
			      .net = sock_net_saved(run, rec->id),
			      .sent = rec->out.len - rec->unsent };
	CKPT_AUTO_FD int fd = sock_tcp_new(rec, e.net, false, err);
	SOCK_PLACE(place);
	int r;

	if (fd < 0)
		return fd;
	e.fd = fd;
	r = options_but_device(rec, fd, false, err);
	if (r)
		return r;
	e.lock = sock_buf_lock(fd);
	r = rec->form == SOCK_TCP_KEPT ? make_kept(&e, err) : make_over(&e, err);
	if (!r)
		r = sock_net_enter(e.net, &place, err);
	if (!r)
		r = options_but_device(rec, fd, true, err);
	if (!r)
		r = sock_tcp_give_out(run, rec, fd, err);
	return r ? r : sock_stash_take(sock_state(run), rec->id);
}
