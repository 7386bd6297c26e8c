/* SPDX-License-Identifier: MIT */
/*
 * Dgram sockets that are not one of a socketpair: bound, connected, both or neither.
 * Any of them may have sent to any other, so they are first all made and bound, and
 * when all descriptors are installed, queues are filled and sockets connected.
 */
#include "unix.h"

#include <stdio.h>
#include <sys/socket.h>

static bool unix_dgram_match(const struct ckpt_fd_found *f)
{
	struct sock_name own, peer;

	return f->domain == AF_UNIX && f->type == SOCK_DGRAM &&
	       (sock_name_read(f->fd, false, &own) == 1 || sock_name_read(f->fd, true, &peer) != 0);
}

static int unix_dgram_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
			     struct ckpt_error *err)
{
	const struct sock_unix_diag *d;
	struct sock_name peer;
	int r;

	d = sock_end_find(run, f, &r, err);
	if (!d)
		return r;
	r = sock_end_survey(run, f, d, err);
	if (!r && !sock_name_read(f->fd, true, &peer))
		r = sock_refuse(run, f, "unix-name", "it is one of a socketpair, bound to a name",
				"do not bind one of a pair");
	return r ? r : sock_name_survey(run, f);
}

static int unix_dgram_collect(struct ckpt_run *run, const struct ckpt_fd_found *f,
			      struct ckpt_error *err)
{
	const struct sock_unix_diag *d = sock_unix_find(sock_state(run), f->st.st_ino);
	Ckpt__Sock__UnixEnd rec = CKPT__SOCK__UNIX_END__INIT;
	struct sock_name own, peer;

	if (!d)
		return ckpt_fail(err, EPROTO, "reading a unix socket");
	rec.form = SOCK_FREE_DGRAM;
	if (sock_name_read(f->fd, false, &own) == 1) {
		sock_name_locate(run, f->fd, &own);
		rec.name = (Ckpt__Sock__UnixName *)(uintptr_t)sock_name_record(&own);
	}
	if (!sock_end_peer(run, f, d) && sock_name_read(f->fd, true, &peer) == 1)
		rec.peer_name = (Ckpt__Sock__UnixName *)(uintptr_t)sock_name_record(&peer);
	return sock_end_collect(run, f, d, &rec, err);
}

/* ---- restore ---------------------------------------------------------------------- */

static const Ckpt__Sock__UnixEnd *end_of(struct ckpt_run *run, uint32_t id)
{
	return id ? ckpt_record_by_id(run, "sock.unix-end", id) : NULL;
}

static int unix_dgram_plan(struct ckpt_run *run, uint32_t id, struct ckpt_error *err)
{
	const Ckpt__Sock__UnixEnd *rec = ckpt_record_need(run, "sock.unix-end", id, err);
	const Ckpt__Sock__UnixEnd *peer;

	if (!rec)
		return -EBADMSG;
	peer = end_of(run, rec->peer);
	if (rec->type != SOCK_DGRAM || rec->form != SOCK_FREE_DGRAM || rec->accepted ||
	    rec->listener || rec->reset || rec->connector || (rec->n_queue && !rec->name) ||
	    (rec->peer && (rec->peer_name || !peer || !peer->name)) ||
	    (rec->peer_name && rec->peer_name->file))
		return ckpt_fail_image(err, "open file %u is not a valid dgram socket", id);
	return sock_end_plan(run, rec, err);
}

static int unix_dgram_open(struct ckpt_run *run, const struct ckpt_fd_slot *slot,
			   struct ckpt_error *err)
{
	const Ckpt__Sock__UnixEnd *rec = ckpt_record_need(run, "sock.unix-end", slot->file, err);
	CKPT_AUTO_FD int fd = -1;
	SOCK_PLACE(place);
	int r;

	sock_state(run)->tree = slot->tree;
	if (!rec)
		return -EBADMSG;
	fd = sock_new(run, slot->file, AF_UNIX, SOCK_DGRAM, 0, &place, err);
	if (fd < 0)
		return fd;
	r = sock_bind(run, fd, rec->name, err);
	if (!r)
		r = sock_keep(sock_state(run), slot->file, fd, err);
	return r ? r : ckpt_steal_fd(&fd);
}

/* ---- when all are there -------------------------------------------------------------- */

struct node {
	const Ckpt__Sock__UnixEnd *rec;
	const struct ckpt_ns *net;
	int fd;	     /* kept */
	size_t sent; /* messages of its queue */
	int dead;    /* stands in for a peer that is closed, or -1 */
	bool connected;
};

struct mesh {
	struct node *nodes; /* by id */
	size_t n;
};

static struct node *node_of(const struct mesh *m, uint32_t id)
{
	size_t lo = 0, hi = m->n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (m->nodes[mid].rec->id == id)
			return &m->nodes[mid];
		if (m->nodes[mid].rec->id < id)
			lo = mid + 1;
		else
			hi = mid;
	}
	return NULL;
}

/* As seen from a network namespace: each has abstract names of its own, paths are everybody's. */
static struct node *node_named(const struct mesh *m, const struct ckpt_ns *net,
			       const Ckpt__Sock__UnixName *name)
{
	for (size_t i = 0; name && i < m->n; i++)
		if (sock_name_equal(m->nodes[i].rec->name, name) &&
		    (!name->abstract || m->nodes[i].net == net))
			return &m->nodes[i];
	return NULL;
}

/* The address of a socket of ours; *file is to be closed after its use. */
static socklen_t address_of(int fd, const Ckpt__Sock__UnixName *n, struct sockaddr_un *a, int *file)
{
	if (n->abstract)
		return sock_name_address(n, a);
	*file = sock_unix_file(fd);
	memset(a, 0, sizeof(*a));
	a->sun_family = AF_UNIX;
	snprintf(a->sun_path, sizeof(a->sun_path), "/proc/self/fd/%d", *file);
	return sizeof(*a);
}

/* One that stands in for a closed one; `name` NULL: it had none. */
static int socket_named(struct ckpt_run *run, const struct ckpt_ns *net,
			const Ckpt__Sock__UnixName *name, struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = -1;
	SOCK_PLACE(place);
	int r = sock_net_enter(net, &place, err);

	if (r < 0)
		return r;
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return ckpt_fail_sys(err, errno, "socket(2)");
	r = sock_bind(run, fd, name, err);
	return r ? r : ckpt_steal_fd(&fd);
}

static int send_from(struct ckpt_run *run, int fd, const Ckpt__Sock__UnixMessage *m,
		     const struct node *to, struct ckpt_error *err)
{
	int size = sock_int(fd, SOL_SOCKET, SO_SNDBUF), lock = sock_buf_lock(fd), r;
	CKPT_AUTO_FD int file = -1;
	struct sockaddr_un a;
	socklen_t len = address_of(to->fd, to->rec->name, &a, &file);

	if (size < 0 || lock < 0)
		return ckpt_fail_sys(err, errno, "getsockopt(2) of a send buffer");
	/* all that the sender has sent and nobody has read counts against its buffer */
	r = sock_sndbuf_force(fd, SOCK_QUEUE_SNDBUF, lock, err);
	if (!r && sock_message_send(run, fd, m, 0, &a, len, err) < 0)
		r = ckpt_wrap(err, "filling the queue of open file %u", to->rec->id);
	return r ? r : sock_sndbuf_force(fd, size, lock, err);
}

/* The sender may be closed by now, or have no name. */
static int send_message(struct ckpt_run *run, const struct mesh *m, struct node *to,
			struct ckpt_error *err)
{
	const Ckpt__Sock__UnixMessage *msg = to->rec->queue[to->sent++];
	const struct node *sender = node_named(m, to->net, msg->from);
	CKPT_AUTO_FD int closed = -1;

	if (sender)
		return send_from(run, sender->fd, msg, to, err);
	if (msg->from && to->dead >= 0 && sock_name_equal(to->rec->peer_name, msg->from))
		return send_from(run, to->dead, msg, to, err);
	closed = socket_named(run, to->net, msg->from, err);
	return closed < 0 ? closed : send_from(run, closed, msg, to, err);
}

static bool from_peer(const struct mesh *m, const struct node *to,
		      const Ckpt__Sock__UnixMessage *msg)
{
	const struct node *peer = node_of(m, to->rec->peer);
	const Ckpt__Sock__UnixName *name = peer ? peer->rec->name : to->rec->peer_name;

	return name && sock_name_equal(name, msg->from);
}

/*
 * A connected socket takes messages from its peer alone, without a limit to their
 * number; what others have sent came before. Sends that, or the rest.
 */
static int fill(struct ckpt_run *run, const struct mesh *m, struct node *to, bool rest,
		struct ckpt_error *err)
{
	size_t end = to->rec->n_queue;
	int r = 0;

	while (!rest && end > 0 && from_peer(m, to, to->rec->queue[end - 1]))
		end--;
	while (!r && to->sent < end)
		r = send_message(run, m, to, err);
	return r;
}

static int connect_node(struct ckpt_run *run, const struct mesh *m, struct node *node,
			struct ckpt_error *err)
{
	const struct node *peer = node_of(m, node->rec->peer);
	CKPT_AUTO_FD int file = -1;
	struct sockaddr_un a;
	socklen_t len;

	node->connected = true;
	if (!peer && !node->rec->peer_name)
		return 0;
	if (!peer) {
		node->dead = socket_named(run, node->net, node->rec->peer_name, err);
		if (node->dead < 0)
			return node->dead;
	}
	len = peer ? address_of(peer->fd, peer->rec->name, &a, &file)
		   : address_of(node->dead, node->rec->peer_name, &a, &file);
	if (connect(node->fd, (struct sockaddr *)&a, len))
		return ckpt_fail_sys(err, errno, "connecting open file %u", node->rec->id);
	return fill(run, m, node, true, err);
}

/* A socket that is connected cannot be connected to by others: those come first. */
static bool awaited(const struct mesh *m, const struct node *node)
{
	for (size_t i = 0; i < m->n; i++) {
		const struct node *other = &m->nodes[i];

		if (!other->connected && other->rec->peer == node->rec->id &&
		    node->rec->peer != other->rec->id && other != node)
			return true;
	}
	return false;
}

static int connect_all(struct ckpt_run *run, const struct mesh *m, struct ckpt_error *err)
{
	for (size_t left = m->n, before = 0; left && left != before;) {
		before = left;
		for (size_t i = 0; i < m->n; i++) {
			struct node *node = &m->nodes[i];
			int r;

			if (node->connected || (node->rec->peer && awaited(m, node)))
				continue;
			r = connect_node(run, m, node, err);
			if (r)
				return r;
			left--;
		}
		if (left == before)
			return ckpt_fail_image(err, "dgram sockets are connected in a ring");
	}
	return 0;
}

static int settle_node(struct node *node, struct ckpt_error *err)
{
	const Ckpt__Sock__UnixEnd *rec = node->rec;
	int r = sock_end_shut(node->fd, rec->shutdown, err);

	if (!r)
		r = sock_options_apply(node->fd, rec->options, rec->n_options, err);
	return r ? r : sock_owner_apply(node->fd, rec->owner, err);
}

static int settle(struct ckpt_run *run, struct mesh *m, struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; i < m->n && !r; i++)
		r = fill(run, m, &m->nodes[i], false, err);
	if (!r)
		r = connect_all(run, m, err);
	for (size_t i = 0; i < m->n && !r; i++)
		r = settle_node(&m->nodes[i], err);
	for (size_t i = 0; i < m->n; i++)
		if (m->nodes[i].dead >= 0)
			close(m->nodes[i].dead);
	return r;
}

int sock_dgram_settle(struct ckpt_run *run, struct ckpt_error *err)
{
	size_t n = ckpt_record_count(run, "sock.unix-end");
	CKPT_AUTO_FREE struct node *nodes = calloc(n + 1, sizeof(*nodes));
	struct mesh m = { .nodes = nodes };

	if (!nodes)
		return ckpt_fail(err, ENOMEM, "out of memory");
	for (size_t i = 0; i < n; i++) {
		const Ckpt__Sock__UnixEnd *rec = ckpt_record_at(run, "sock.unix-end", i);
		int fd = rec->form == SOCK_FREE_DGRAM ? sock_kept(sock_state(run), rec->id) : -1;

		if (fd >= 0)
			nodes[m.n++] = (struct node){ .rec = rec,
						      .net = sock_net_saved(run, rec->id),
						      .fd = fd,
						      .dead = -1 };
	}
	return m.n ? settle(run, &m, err) : 0;
}

const struct ckpt_fd_kind sock_kind_unix_dgram = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = unix_dgram_match,
	.survey = unix_dgram_survey,
	.collect = unix_dgram_collect,
	.ahead = sock_options_ahead,
	.plan = unix_dgram_plan,
	.open = unix_dgram_open,
	.carried = sock_carried,
	.own_pos = true,
	.flags_ok = SOCK_FLAGS,
};
