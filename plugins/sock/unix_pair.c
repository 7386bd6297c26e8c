/* SPDX-License-Identifier: MIT */
/* socketpair(2): both ends in the tree, or one that is left over from a closed other. */
#include "internal.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

/* the bits of the kernel's sk_shutdown */
#define NO_RECV 1
#define NO_SEND 2

static bool unnamed(int fd, bool peer)
{
	struct sockaddr_un a;
	socklen_t len = sizeof(a);
	int r = peer ? getpeername(fd, (struct sockaddr *)&a, &len)
		     : getsockname(fd, (struct sockaddr *)&a, &len);

	return !r && len == sizeof(a.sun_family);
}

static bool unix_pair_match(const struct ckpt_fd_found *f)
{
	return f->domain == AF_UNIX && f->listening == 0 && unnamed(f->fd, false) &&
	       unnamed(f->fd, true);
}

/* The file of the other end, 0 if it is closed (or left out). */
static uint32_t peer_file(struct ckpt_run *run, const struct ckpt_fd_found *f,
			  const struct sock_unix_diag *d)
{
	bool out;
	uint32_t id = d->peer ? f->tree->of_inode(run, f->st.st_dev, d->peer, &out) : 0;

	return id && !out ? id : 0;
}

/* Any look at messages takes the error away; a stream's bytes can be counted first. */
static bool has_error(const struct ckpt_fd_found *f)
{
	struct pollfd p = { .fd = f->fd };

	return f->type != SOCK_STREAM && poll(&p, 1, 0) == 1 && p.revents & POLLERR;
}

static int unix_pair_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
			    struct ckpt_error *err)
{
	struct sock_state *st = sock_state(run);
	const struct sock_unix_diag *d;
	bool out;
	int r = sock_survey(run, f, err);

	if (!r)
		r = sock_unix_diag(st, err);
	if (r)
		return r;
	d = sock_unix_find(st, f->st.st_ino);
	if (!d)
		return sock_refuse(run, f, "unix", "the kernel does not list this socket",
				   "unix_diag is needed");
	if (d->peer && !f->tree->of_inode(run, f->st.st_dev, d->peer, &out))
		return sock_refuse_peer(run, f, d->peer, err);
	if (has_error(f))
		return sock_refuse(run, f, "socket-error",
				   "an error waits to be reported, which hides the queue behind it",
				   "let the program receive it before the dump");
	if (sock_in_flight(f))
		return sock_refuse(run, f, "scm-rights",
				   "descriptors wait in its queue (SCM_RIGHTS)",
				   "try again when the program has received them");
	return sock_creator_survey(run, f);
}

/* A sender that is not in the tree cannot be named again. */
static int check_senders(const Ckpt__Sock__UnixEnd *end, struct ckpt_error *err)
{
	for (size_t i = 0; i < end->n_queue; i++)
		if (end->queue[i]->sender && !end->queue[i]->sender->task)
			return ckpt_fail_as(err, CKPT_EXIT_REFUSED, EOPNOTSUPP,
					    "a queued message carries the ids of a process that "
					    "is not in the tree");
	return 0;
}

static int unix_pair_collect(struct ckpt_run *run, const struct ckpt_fd_found *f,
			     struct ckpt_error *err)
{
	const struct sock_state *st = sock_state(run);
	const struct sock_unix_diag *d = sock_unix_find(st, f->st.st_ino);
	struct pollfd p = { .fd = f->fd };
	Ckpt__Sock__UnixEnd rec = CKPT__SOCK__UNIX_END__INIT;
	uint32_t peer;
	Ckpt__Sock__Credentials creator;
	Ckpt__Sock__Owner owner;
	struct sock_options options;
	int r;

	if (!d || poll(&p, 1, 0) < 0)
		return ckpt_fail(err, EPROTO, "reading a socketpair");
	peer = peer_file(run, f, d);
	rec.id = f->file;
	rec.type = (uint32_t)f->type;
	rec.peer = peer;
	/* SO_ERROR would take the error away */
	rec.reset = !peer && p.revents & POLLERR;
	rec.shutdown = d->shutdown;
	sock_creator_of(run, f->fd, &creator);
	sock_owner_of(&f->st, &owner);
	if (sock_options_read(sock_state(run), f, &options, err))
		return -err->err;
	rec.creator = &creator;
	rec.owner = &owner;
	rec.options = options.ptr;
	rec.n_options = options.n;
	r = sock_queue_read(run, f->fd, (int)rec.type, &rec, err);
	if (!r)
		r = check_senders(&rec, err);
	if (!r)
		r = ckpt_record_put(run, SOCK_UNIX_END, &rec.base, err);
	sock_queue_free(&rec);
	return r;
}

/* ---- restore ---------------------------------------------------------------------- */

static int plan_queue(struct ckpt_run *run, const Ckpt__Sock__UnixEnd *rec, struct ckpt_error *err)
{
	for (size_t i = 0; i < rec->n_queue; i++) {
		const Ckpt__Sock__UnixMessage *m = rec->queue[i];
		int r = m->sender ? sock_creator_check(run, m->sender, rec->id, err) : 0;

		if (r)
			return r;
		if (m->sender && !m->sender->task)
			return sock_bad(err, "a message for open file %u has no sender", rec->id);
		if (!m->data.len && rec->type == SOCK_STREAM)
			return sock_bad(err, "a message for open file %u is empty", rec->id);
	}
	return 0;
}

static int unix_pair_plan(struct ckpt_run *run, uint32_t id, struct ckpt_error *err)
{
	const Ckpt__Sock__UnixEnd *rec = sock_record_need(run, "sock.unix-end", id, err);
	const Ckpt__Sock__UnixEnd *peer;
	int r;

	if (!rec)
		return -EBADMSG;
	peer = rec->peer ? sock_record(run, "sock.unix-end", rec->peer) : NULL;
	if (rec->peer && (!peer || peer->peer != id || peer->type != rec->type || rec->peer == id))
		return sock_bad(err, "open file %u has no valid other end", id);
	if ((rec->type != SOCK_STREAM && rec->type != SOCK_DGRAM && rec->type != SOCK_SEQPACKET) ||
	    rec->shutdown > (NO_RECV | NO_SEND))
		return sock_bad(err, "open file %u is not a valid socketpair", id);
	r = sock_owner_check(rec->owner, id, err);
	if (!r)
		r = sock_creator_check(run, rec->creator, id, err);
	if (!r)
		r = sock_options_check(rec->options, rec->n_options, id, err);
	return r ? r : plan_queue(run, rec, err);
}

/*
 * Pairs that one task has to make, in the order of their first ends: going into
 * a task costs more than a socketpair(2), so many are made at a time.
 */
#define BATCH 32
struct batch {
	const Ckpt__Sock__UnixEnd *end[BATCH];
	int sv[BATCH][2];
	size_t n;
};

static bool same_creator(const Ckpt__Sock__Credentials *a, const Ckpt__Sock__Credentials *b)
{
	return a->task == b->task && a->uid == b->uid && a->gid == b->gid;
}

/*
 * Files are opened in order of id. So of one creator's pairs, those from `rec` on
 * are not made yet, and they are all that a later call finds made.
 */
static void gather(struct ckpt_run *run, const Ckpt__Sock__UnixEnd *rec, size_t max,
		   struct batch *b)
{
	size_t n = ckpt_record_count(run, "sock.unix-end");

	b->n = 0;
	for (size_t i = (size_t)sock_record_index(run, "sock.unix-end", rec->id);
	     i < n && b->n < max; i++) {
		const Ckpt__Sock__UnixEnd *e = ckpt_record_at(run, "sock.unix-end", i);

		if (!same_creator(e->creator, rec->creator) || (e->peer && e->peer < e->id))
			continue;
		b->sv[b->n][0] = b->sv[b->n][1] = -1;
		b->end[b->n++] = e;
	}
}

static int fetch_pairs(struct ckpt_task *task, struct batch *b, const struct ckpt_script *made,
		       const int *ops, struct ckpt_script *close_them, struct ckpt_error *err)
{
	for (size_t i = 0; i < b->n; i++) {
		int nums[2];

		memcpy(nums, ckpt_script_out(made, ops[i], 3), sizeof(nums));
		for (int k = 0; k < 2; k++) {
			b->sv[i][k] = ckpt_get_fd(task, nums[k], err);
			if (b->sv[i][k] < 0)
				return b->sv[i][k];
			ckpt_script_add(close_them, SYS_close, CKPT_C(nums[k]));
		}
	}
	return 0;
}

/* Made by their creator, fetched from there, closed there. */
static int make_in(struct ckpt_run *run, struct ckpt_task *task, struct batch *b,
		   struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "sock.socketpair");
	CKPT_AUTO_SCRIPT struct ckpt_script *close_them = ckpt_script_new(run, "sock.socketpair");
	int ops[BATCH], r;

	sock_creator_enter(s, b->end[0]->creator);
	for (size_t i = 0; i < b->n; i++)
		ops[i] = ckpt_script_add(s, SYS_socketpair, CKPT_C(AF_UNIX),
					 CKPT_C(b->end[i]->type | SOCK_CLOEXEC), CKPT_C(0),
					 CKPT_OUT(2 * sizeof(int)));
	sock_creator_leave(s, b->end[0]->creator);
	r = ckpt_script_run(s, task->threads[0], err);
	if (!r)
		r = fetch_pairs(task, b, s, ops, close_them, err);
	return r ? r : ckpt_script_run(close_them, task->threads[0], err);
}

static int make_pairs(struct ckpt_run *run, const Ckpt__Sock__UnixEnd *rec, struct batch *b,
		      struct ckpt_error *err)
{
	struct ckpt_task *task = sock_creator_task(run, rec->creator);

	gather(run, rec, task ? BATCH : 1, b);
	if (task)
		return make_in(run, task, b, err);
	if (socketpair(AF_UNIX, (int)rec->type | SOCK_CLOEXEC, 0, b->sv[0]))
		return ckpt_fail_sys(err, errno, "socketpair(2)");
	return 0;
}

static int shut(int fd, uint32_t bits, struct ckpt_error *err)
{
	if (bits & NO_RECV && shutdown(fd, SHUT_RD))
		return ckpt_fail_sys(err, errno, "shutdown(2)");
	if (bits & NO_SEND && shutdown(fd, SHUT_WR))
		return ckpt_fail_sys(err, errno, "shutdown(2)");
	return 0;
}

/* Queues first: neither a shutdown nor the options of the living may be in their way. */
static int fill_pair(struct ckpt_run *run, const Ckpt__Sock__UnixEnd *end, int fd,
		     const Ckpt__Sock__UnixEnd *peer, int other, struct ckpt_error *err)
{
	int r = sock_queue_write(run, other, end, err);

	if (!r && peer)
		r = sock_queue_write(run, fd, peer, err);
	if (!r && end->reset && send(fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) != 1)
		r = ckpt_fail_sys(err, errno, "send(2)");
	if (!r)
		r = shut(fd, end->shutdown, err);
	if (!r && peer)
		r = shut(other, peer->shutdown, err);
	if (!r)
		r = sock_options_apply(fd, end->options, end->n_options, err);
	if (!r && peer)
		r = sock_options_apply(other, peer->options, peer->n_options, err);
	if (!r)
		r = sock_owner_apply(fd, end->owner, err);
	if (!r && peer)
		r = sock_owner_apply(other, peer->owner, err);
	return r;
}

/* Fill a pair and put both ends where unix_pair_open() finds them. */
static int finish_pair(struct ckpt_run *run, const Ckpt__Sock__UnixEnd *end, int sv[2],
		       struct ckpt_error *err)
{
	const Ckpt__Sock__UnixEnd *peer =
		end->peer ? sock_record(run, "sock.unix-end", end->peer) : NULL;
	struct sock_state *st = sock_state(run);
	int r = fill_pair(run, end, sv[0], peer, sv[1], err);

	if (r)
		return r;
	r = sock_stash_put(st, end->id, ckpt_steal_fd(&sv[0]), err);
	return !r && peer ? sock_stash_put(st, peer->id, ckpt_steal_fd(&sv[1]), err) : r;
}

static int unix_pair_open(struct ckpt_run *run, const struct ckpt_fd_slot *slot,
			  struct ckpt_error *err)
{
	const Ckpt__Sock__UnixEnd *rec = sock_record_need(run, "sock.unix-end", slot->file, err);
	int fd = sock_stash_take(sock_state(run), slot->file), r;
	struct batch b;

	if (fd >= 0 || !rec)
		return fd >= 0 ? fd : -EBADMSG;
	r = make_pairs(run, rec, &b, err);
	for (size_t i = 0; i < b.n; i++) {
		if (!r)
			r = finish_pair(run, b.end[i], b.sv[i], err);
		for (int k = 0; k < 2; k++)
			if (b.sv[i][k] >= 0)
				close(b.sv[i][k]);
	}
	if (r)
		return r;
	fd = sock_stash_take(sock_state(run), slot->file);
	return fd >= 0 ? fd : sock_bad(err, "open file %u is no end of its pair", slot->file);
}

const struct ckpt_fd_kind sock_kind_unix_pair = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = unix_pair_match,
	.survey = unix_pair_survey,
	.collect = unix_pair_collect,
	.plan = unix_pair_plan,
	.open = unix_pair_open,
	.own_pos = true,
	.flags_ok = SOCK_FLAGS,
};
