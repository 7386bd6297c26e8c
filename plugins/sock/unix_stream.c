/* SPDX-License-Identifier: MIT */
/*
 * Stream and seqpacket sockets that are not one of a pair: connected through a
 * listening socket, whose name the accepted end has; or not connected. A connection
 * is made as it was: through the listening socket if that is in the tree, else
 * through one of the same name made for this purpose.
 */
#include "unix.h"

#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>

static bool unix_stream_match(const struct ckpt_fd_found *f)
{
	struct sock_name own, peer;

	if (f->domain != AF_UNIX || f->listening != 0 ||
	    (f->type != SOCK_STREAM && f->type != SOCK_SEQPACKET))
		return false;
	/* both ends without a name: a pair */
	return sock_name_read(f->fd, false, &own) == 1 || sock_name_read(f->fd, true, &peer) != 0;
}

enum role { UNKNOWN, UNCONNECTED, ACCEPTED, CONNECTOR };

struct end {
	struct sock_name own, peer;
	enum role role;
	const struct sock_unix_diag *listener;
};

/*
 * The accepted end always has a name, the connecting one may have. If both have,
 * only a living listener tells which is which.
 */
static void find_role(const struct sock_state *st, const struct ckpt_fd_found *f,
		      const struct sock_unix_diag *d, struct end *e)
{
	const struct sock_unix_diag *own = NULL, *peer = NULL;
	int has_own = sock_name_read(f->fd, false, &e->own);
	int has_peer = sock_name_read(f->fd, true, &e->peer);

	e->listener = NULL;
	e->role = has_peer < 0 ? UNCONNECTED : UNKNOWN;
	if (e->role == UNCONNECTED)
		return;
	if (has_own == 1)
		own = sock_unix_listener(st, d, d, &e->own);
	if (has_peer == 1)
		peer = sock_unix_listener(st, d, d->peer ? sock_unix_find(st, d->peer) : NULL,
					  &e->peer);
	if (has_own == 1 && has_peer == 1 && !own == !peer)
		return;
	e->role = has_own == 1 && (has_peer != 1 || own) ? ACCEPTED : CONNECTOR;
	e->listener = e->role == ACCEPTED ? own : peer;
}

static int survey_connected(struct ckpt_run *run, const struct ckpt_fd_found *f,
			    const struct sock_unix_diag *d, const struct end *e,
			    struct ckpt_error *err)
{
	int r;

	/* a closed end shuts the other down; one that nobody has accepted has no inode yet */
	if (!d->peer && d->shutdown != SOCK_SHUT)
		return sock_refuse(run, f, "external",
				   "its connection waits to be accepted outside the tree",
				   "dump a tree that includes the other end");
	r = sock_end_survey(run, f, d, err);
	if (!r && e->role == UNKNOWN)
		r = sock_refuse(
			run, f, "unix-name",
			"both ends of the connection have a name, and which is the "
			"accepted one cannot be told",
			"keep the listening socket open, or do not bind the connecting one");
	return r ? r : sock_creator_survey(run, f);
}

static int unix_stream_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
			      struct ckpt_error *err)
{
	const struct sock_unix_diag *d;
	const struct sock_waiting *w;
	struct end e;
	int r;

	d = sock_end_find(run, f, &r, err);
	if (!d)
		return r;
	w = sock_waiting_find(sock_state(run), d->ino);
	if (w)
		return sock_pending_survey(run, f, d, w, err);
	find_role(sock_state(run), f, d, &e);
	if (e.role != UNCONNECTED)
		r = survey_connected(run, f, d, &e, err);
	return !r && e.role != ACCEPTED ? sock_name_survey(run, f) : r;
}

static int unix_stream_collect(struct ckpt_run *run, const struct ckpt_fd_found *f,
			       struct ckpt_error *err)
{
	const struct sock_unix_diag *d = sock_unix_find(sock_state(run), f->st.st_ino);
	Ckpt__Sock__UnixEnd rec = CKPT__SOCK__UNIX_END__INIT;
	const struct sock_waiting *w;
	struct end e;
	bool out = false;

	if (!d)
		return ckpt_fail(err, EPROTO, "reading a unix socket");
	w = sock_waiting_find(sock_state(run), d->ino);
	if (w)
		return sock_pending_collect(run, f, d, w, err);
	find_role(sock_state(run), f, d, &e);
	if (e.role != ACCEPTED)
		sock_name_locate(run, f->fd, &e.own);
	rec.form = e.role == UNCONNECTED ? SOCK_UNCONNECTED : SOCK_NAMED;
	rec.accepted = e.role == ACCEPTED;
	if (e.own.len || e.own.abstract)
		rec.name = (Ckpt__Sock__UnixName *)(uintptr_t)sock_name_record(&e.own);
	if (e.role != UNCONNECTED && (e.peer.len || e.peer.abstract) && !sock_end_peer(run, f, d))
		rec.peer_name = (Ckpt__Sock__UnixName *)(uintptr_t)sock_name_record(&e.peer);
	if (e.listener)
		rec.listener = f->tree->of_inode(run, f->st.st_dev, e.listener->ino, &out);
	if (out)
		rec.listener = 0;
	return sock_end_collect(run, f, d, &rec, err);
}

/* ---- restore ---------------------------------------------------------------------- */

/* A connection: both ends' records, NULL for a closed one, and the names. */
struct connection {
	const Ckpt__Sock__UnixEnd *accepted, *connector;
	const Ckpt__Sock__UnixName *listen_name, *connector_name;
	uint32_t listener;
	const Ckpt__Sock__Credentials *listen_as, *connect_as;
};

static void connection_of(struct ckpt_run *run, const Ckpt__Sock__UnixEnd *rec,
			  struct connection *c)
{
	const Ckpt__Sock__UnixEnd *peer =
		rec->peer ? ckpt_record_by_id(run, "sock.unix-end", rec->peer) : NULL;

	c->accepted = rec->accepted ? rec : peer;
	c->connector = rec->accepted ? peer : rec;
	c->listen_name = c->accepted ? c->accepted->name : c->connector->peer_name;
	c->connector_name = c->connector ? c->connector->name : c->accepted->peer_name;
	c->listener = rec->listener;
	/* each end's SO_PEERCRED speaks of who made the other */
	c->listen_as = c->connector ? c->connector->creator : NULL;
	c->connect_as = c->accepted ? c->accepted->creator : NULL;
}

/* Can the connection go through that listening socket? */
static bool through(const Ckpt__Sock__UnixListen *l, const struct connection *c)
{
	return l && (!c->listen_as || sock_same_creator(l->creator, c->listen_as));
}

static int plan_connection(struct ckpt_run *run, const Ckpt__Sock__UnixEnd *rec,
			   struct ckpt_error *err)
{
	const Ckpt__Sock__UnixListen *l = NULL;
	struct connection c;

	connection_of(run, rec, &c);
	if (rec->listener) {
		l = ckpt_record_by_id(run, "sock.unix-listen", rec->listener);
		if (!l || !l->creator || l->type != rec->type ||
		    !sock_name_equal(l->name, c.listen_name))
			return ckpt_fail_image(err, "open file %u has no valid listening socket",
					       rec->id);
	}
	if (!c.listen_name ||
	    (c.accepted && c.connector &&
	     (!c.accepted->accepted || c.connector->accepted ||
	      c.accepted->listener != c.connector->listener)) ||
	    c.listen_name->file || (rec->peer_name && rec->peer_name->file))
		return ckpt_fail_image(err, "open file %u has no valid connection", rec->id);
	/* an abstract name cannot be had twice */
	if (l && l->name->abstract && !through(l, &c))
		return ckpt_unmet(run, CKPT_EXIT_REFUSED,
				  "let the program close the connection before the dump",
				  "open file %u: another process listens by now than at the time "
				  "of its connection",
				  rec->id);
	return 0;
}

static int unix_stream_plan(struct ckpt_run *run, uint32_t id, struct ckpt_error *err)
{
	const Ckpt__Sock__UnixEnd *rec = ckpt_record_need(run, "sock.unix-end", id, err);
	int r;

	if (!rec)
		return -EBADMSG;
	if (rec->form == SOCK_PENDING)
		return sock_pending_plan(run, rec, err);
	if (rec->type == SOCK_DGRAM || rec->connector || rec->place ||
	    (rec->form != SOCK_NAMED && rec->form != SOCK_UNCONNECTED) ||
	    (rec->form == SOCK_UNCONNECTED &&
	     (rec->accepted || rec->listener || rec->peer_name || rec->n_queue || rec->reset)))
		return ckpt_fail_image(err, "open file %u is not a valid unix socket", id);
	r = sock_end_plan(run, rec, err);
	return !r && rec->form == SOCK_NAMED ? plan_connection(run, rec, err) : r;
}

/* A listening socket to connect to; *temporary is to be closed. */
static int listening_socket(struct ckpt_run *run, const struct connection *c, int type,
			    int *temporary, struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = -1;
	int r;

	if (c->listener && through(ckpt_record_by_id(run, "sock.unix-listen", c->listener), c))
		return sock_listener(run, c->listener, err);
	fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return ckpt_fail_sys(err, errno, "socket(2)");
	r = sock_bind(run, fd, c->listen_name, err);
	if (!r)
		r = sock_listen_as(run, c->listen_as, fd, 1, err);
	if (!r)
		*temporary = ckpt_steal_fd(&fd);
	return r ? r : *temporary;
}

/*
 * Where the listening socket can be reached: a path's file by the magic link of a
 * descriptor, whoever has the path by now. The number `file` is the caller's.
 */
static socklen_t address_to(const Ckpt__Sock__UnixName *n, int file, struct sockaddr_un *a)
{
	if (n->abstract)
		return sock_name_address(n, a);
	memset(a, 0, sizeof(*a));
	a->sun_family = AF_UNIX;
	snprintf(a->sun_path, sizeof(a->sun_path), "/proc/self/fd/%d", file);
	return sizeof(*a);
}

/*
 * Whoever connects needs the right to write to the socket's file: with root's fsuid come the
 * capabilities for that, and SO_PEERCRED does not tell of it.
 */
static int connect_in(struct ckpt_run *run, struct ckpt_task *task,
		      const Ckpt__Sock__Credentials *who, const Ckpt__Sock__UnixName *to, int fd,
		      int file, struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "sock.connect");
	struct ckpt_error ignored = { 0 };
	int num, path = -1, r = 0, back;
	struct sockaddr_un a;
	socklen_t len;

	num = ckpt_lend_fd(run, task, fd, err);
	if (num < 0)
		return num;
	if (file >= 0)
		r = path = ckpt_lend_fd(run, task, file, err);
	if (r >= 0) {
		len = address_to(to, path, &a);
		sock_creator_enter(s, who);
		ckpt_script_add(s, SYS_setfsuid, CKPT_C(geteuid()));
		ckpt_script_add(s, SYS_connect, CKPT_C(num), CKPT_IN(&a, len), CKPT_C(len));
		sock_creator_leave(s, who);
		r = ckpt_script_run(s, task->threads[0], err);
	}
	if (path >= 0) {
		back = ckpt_return_fd(run, task, path, r < 0 ? &ignored : err);
		r = r < 0 ? r : back;
	}
	back = ckpt_return_fd(run, task, num, r < 0 ? &ignored : err);
	return r < 0 ? r : back;
}

static int connect_now(struct ckpt_run *run, const Ckpt__Sock__Credentials *who,
		       const Ckpt__Sock__UnixName *to, int fd, int listener, struct ckpt_error *err)
{
	struct ckpt_task *task = who ? sock_creator_task(run, who) : NULL;
	CKPT_AUTO_FD int file = to->abstract ? -1 : sock_unix_file(listener);
	char link[40];
	struct sockaddr_un a;
	struct stat st;
	socklen_t len;

	if (!to->abstract && (file < 0 || fstat(file, &st)))
		return ckpt_fail_sys(err, errno, "SIOCUNIXFILE");
	if (!task) {
		len = address_to(to, file, &a);
		return connect(fd, (struct sockaddr *)&a, len)
			       ? ckpt_fail_sys(err, errno, "connect(2)")
			       : 0;
	}
	/* one without a name may be of ids that the task's user namespace does not know; nobody
	 * else gets to it */
	snprintf(link, sizeof(link), "/proc/self/fd/%d", file);
	if (file >= 0 && !st.st_nlink && chmod(link, 0777))
		return ckpt_fail_sys(err, errno, "chmod(2)");
	return connect_in(run, task, who, to, fd, file, err);
}

int sock_connect_as(struct ckpt_run *run, const Ckpt__Sock__Credentials *who,
		    const Ckpt__Sock__UnixName *to, int fd, int listener, struct ckpt_error *err)
{
	int flags = fcntl(fd, F_GETFL), r;

	/* whoever finds the name connects too: it is not to be waited for room */
	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK))
		return ckpt_fail_sys(err, errno, "F_SETFL");
	r = connect_now(run, who, to, fd, listener, err);
	return fcntl(fd, F_SETFL, flags) && !r ? ckpt_fail_sys(err, errno, "F_SETFL") : r;
}

/*
 * The other end of `end`. A listening socket can be found as soon as it is bound, and others
 * may have come first: they see that they are cut off, as if the program had just been started.
 * -EAGAIN: nobody is left there.
 */
static int accept_from(int listener, int end, struct ckpt_error *err)
{
	struct pollfd p = { .fd = listener, .events = POLLIN };
	struct stat st = { 0 };

	if (end >= 0 && fstat(end, &st))
		return ckpt_fail_sys(err, errno, "fstat(2)");
	while (poll(&p, 1, 0) == 1) {
		CKPT_AUTO_FD int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		uint32_t peer = 0;

		if (fd < 0)
			return ckpt_fail_sys(err, errno, "accept4(2)");
		if (end >= 0 && !sock_unix_peer(fd, &peer) && peer == (uint32_t)st.st_ino)
			return ckpt_steal_fd(&fd);
	}
	return ckpt_fail_sys(err, EAGAIN, "accept4(2)");
}

/* An accepted socket takes these from the listening one. */
static int clear_inherited(int fd, struct ckpt_error *err)
{
	static const int inherited[] = { SO_PASSCRED, SO_PASSSEC, SOCK_SO_PASSPIDFD };
	int off = 0;

	for (size_t i = 0; i < CKPT_ARRAY_SIZE(inherited); i++)
		if (sock_int(fd, SOL_SOCKET, inherited[i]) > 0 &&
		    setsockopt(fd, SOL_SOCKET, inherited[i], &off, sizeof(off)))
			return ckpt_fail_sys(err, errno, "setsockopt(2)");
	return 0;
}

/* Others may have taken all places where connections wait. */
static int connect_with_room(struct ckpt_run *run, const struct connection *c, int fd, int listener,
			     struct ckpt_error *err)
{
	int r = -EAGAIN;

	for (int tries = 0; r == -EAGAIN && tries < 1000; tries++) {
		struct ckpt_error ignored = { 0 };

		if (tries)
			(void)accept_from(listener, -1, &ignored);
		*err = (struct ckpt_error){ 0 };
		r = sock_connect_as(run, c->connect_as, c->listen_name, fd, listener, err);
	}
	return r;
}

static int make_connection(struct ckpt_run *run, const Ckpt__Sock__UnixEnd *rec, int sv[2],
			   struct ckpt_error *err)
{
	int accepted = rec->accepted ? 0 : 1, listener, r;
	CKPT_AUTO_FD int temporary = -1;
	struct connection c;

	connection_of(run, rec, &c);
	listener = listening_socket(run, &c, (int)rec->type, &temporary, err);
	if (listener < 0)
		return listener;
	sv[1 - accepted] = socket(AF_UNIX, (int)rec->type | SOCK_CLOEXEC, 0);
	if (sv[1 - accepted] < 0)
		return ckpt_fail_sys(err, errno, "socket(2)");
	r = sock_bind(run, sv[1 - accepted], c.connector_name, err);
	if (!r)
		r = connect_with_room(run, &c, sv[1 - accepted], listener, err);
	if (r)
		return r;
	sv[accepted] = accept_from(listener, sv[1 - accepted], err);
	return sv[accepted] < 0 ? sv[accepted] : clear_inherited(sv[accepted], err);
}

static int make_unconnected(struct ckpt_run *run, const Ckpt__Sock__UnixEnd *rec,
			    struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = socket(AF_UNIX, (int)rec->type | SOCK_CLOEXEC, 0);
	int r;

	if (fd < 0)
		return ckpt_fail_sys(err, errno, "socket(2)");
	r = sock_bind(run, fd, rec->name, err);
	if (!r && rec->form == SOCK_PENDING) {
		r = sock_keep(sock_state(run), rec->id, fd, err);
		return r ? r : ckpt_steal_fd(&fd);
	}
	if (!r)
		r = sock_end_shut(fd, rec->shutdown, err);
	if (!r)
		r = sock_options_apply(fd, rec->options, rec->n_options, err);
	if (!r)
		r = sock_owner_apply(fd, rec->owner, err);
	return r ? r : ckpt_steal_fd(&fd);
}

static int unix_stream_open(struct ckpt_run *run, const struct ckpt_fd_slot *slot,
			    struct ckpt_error *err)
{
	const Ckpt__Sock__UnixEnd *rec = ckpt_record_need(run, "sock.unix-end", slot->file, err);
	int fd = sock_stash_take(sock_state(run), slot->file), sv[2] = { -1, -1 }, r;
	SOCK_PLACE(place);

	sock_state(run)->tree = slot->tree;
	if (fd >= 0 || !rec)
		return fd >= 0 ? fd : -EBADMSG;
	r = sock_net_enter(sock_net_saved(run, slot->file), &place, err);
	if (r < 0)
		return r;
	if (rec->form == SOCK_UNCONNECTED || rec->form == SOCK_PENDING)
		return make_unconnected(run, rec, err);
	r = make_connection(run, rec, sv, err);
	if (!r)
		r = sock_end_finish(run, rec, sv, err);
	for (int k = 0; k < 2; k++)
		if (sv[k] >= 0)
			close(sv[k]);
	if (r)
		return r;
	fd = sock_stash_take(sock_state(run), slot->file);
	return fd >= 0 ? fd
		       : ckpt_fail_image(err, "open file %u is no end of its connection",
					 slot->file);
}

const struct ckpt_fd_kind sock_kind_unix_stream = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = unix_stream_match,
	.survey = unix_stream_survey,
	.collect = unix_stream_collect,
	.ahead = sock_options_ahead,
	.plan = unix_stream_plan,
	.open = unix_stream_open,
	.carried = sock_carried,
	.own_pos = true,
	.flags_ok = SOCK_FLAGS,
};
