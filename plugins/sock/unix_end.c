/* SPDX-License-Identifier: MIT */
/* What all unix sockets that do not listen have in common. */
#include "unix.h"

#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>

uint32_t sock_end_peer(struct ckpt_run *run, const struct ckpt_fd_found *f,
		       const struct sock_unix_diag *d)
{
	bool out;
	uint32_t id = d->peer ? f->tree->of_inode(run, f->st.st_dev, d->peer, &out) : 0;

	return id && !out ? id : 0;
}

bool sock_has_error(const struct ckpt_fd_found *f)
{
	struct pollfd p = { .fd = f->fd };

	return f->type != SOCK_STREAM && poll(&p, 1, 0) == 1 && p.revents & POLLERR;
}

const struct sock_unix_diag *sock_end_find(struct ckpt_run *run, const struct ckpt_fd_found *f,
					   int *r, struct ckpt_error *err)
{
	const struct sock_unix_diag *d;

	*r = sock_survey(run, f, err);
	if (!*r)
		*r = sock_unix_diag(run, err);
	if (*r)
		return NULL;
	d = sock_unix_find(sock_state(run), f->st.st_ino);
	if (!d)
		*r = sock_refuse(run, f, "unix", "the kernel does not list this socket",
				 "unix_diag is needed");
	return d;
}

static int survey_in_flight(struct ckpt_run *run, const struct ckpt_fd_found *f)
{
	char object[512];
	int r;

	snprintf(object, sizeof(object), "fd %d (%s), descriptors in its queue", f->num, f->link);
	r = ckpt_refuse_off(run, "scm-rights", f->task, object);
	/* off, and allowed: the messages come without them */
	return r == -ECANCELED ? 1 : r < 0 ? r : 0;
}

int sock_end_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
		    const struct sock_unix_diag *d, struct ckpt_error *err)
{
	struct pollfd p = { .fd = f->fd, .events = POLLPRI };
	bool out;

	if (d->peer && !f->tree->of_inode(run, f->st.st_dev, d->peer, &out))
		return sock_refuse_peer(run, f, d->peer, err);
	if (sock_has_error(f))
		return sock_refuse(run, f, "socket-error",
				   "an error waits to be reported, which hides the queue behind it",
				   "let the program receive it before the dump");
	/* a look shows its byte among the others */
	if (poll(&p, 1, 0) == 1 && p.revents & POLLPRI)
		return sock_refuse(run, f, "unix-urgent", "urgent data waits (MSG_OOB)",
				   "try again when the program has received it");
	return sock_in_flight(f) ? survey_in_flight(run, f) : 0;
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

int sock_end_collect(struct ckpt_run *run, const struct ckpt_fd_found *f,
		     const struct sock_unix_diag *d, Ckpt__Sock__UnixEnd *rec,
		     struct ckpt_error *err)
{
	struct pollfd p = { .fd = f->fd };
	__attribute__((cleanup(sock_creator_free))) Ckpt__Sock__Credentials creator =
		CKPT__SOCK__CREDENTIALS__INIT;
	Ckpt__Sock__Owner owner;
	struct sock_options options;
	int r;

	if (!d || poll(&p, 1, 0) < 0)
		return ckpt_fail(err, EPROTO, "reading a unix socket");
	rec->id = f->file;
	rec->type = (uint32_t)f->type;
	rec->peer = sock_end_peer(run, f, d);
	/* SO_ERROR would take the error away */
	rec->reset = !rec->peer && p.revents & POLLERR;
	rec->shutdown = d->shutdown;
	sock_owner_of(&f->st, &owner);
	if (sock_options_read(run, f, &options, err))
		return -err->err;
	if (rec->form == SOCK_PAIR || rec->form == SOCK_NAMED || rec->form == SOCK_PENDING) {
		if (sock_creator_of(run, f->fd, &creator, err) < 0)
			return -err->err;
		rec->creator = &creator;
	}
	rec->owner = &owner;
	rec->options = options.ptr;
	rec->n_options = options.n;
	r = sock_queue_read(run, f, rec, err);
	if (!r)
		r = check_senders(rec, err);
	if (!r)
		r = ckpt_record_put(run, SOCK_UNIX_END, &rec->base, err);
	if (!r)
		r = sock_collect(run, f, err);
	sock_queue_free(rec);
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
			return ckpt_fail_image(err, "a message for open file %u has no sender",
					       rec->id);
		/* its file, if there is one, is the sender's to make */
		if (m->from && m->from->file)
			return ckpt_fail_image(err, "a message for open file %u is not valid",
					       rec->id);
		r = sock_name_plan(run, m->from, rec->id, err);
		if (r)
			return r;
		for (size_t k = 0; k < m->n_files; k++)
			if (!sock_file_known(run, m->files[k]))
				return ckpt_fail_image(
					err,
					"a message for open file %u brings open file %u, "
					"which is not there",
					rec->id, m->files[k]);
		if (m->n_files > SOCK_FILES_MAX)
			return ckpt_fail_image(err, "a message for open file %u brings too much",
					       rec->id);
		if (!m->data.len && rec->type == SOCK_STREAM)
			return ckpt_fail_image(err, "a message for open file %u is empty", rec->id);
	}
	return 0;
}

/* Of pairs and connections both ends must agree. */
static bool good_peer(struct ckpt_run *run, const Ckpt__Sock__UnixEnd *rec)
{
	const Ckpt__Sock__UnixEnd *peer;

	if (!rec->peer)
		return true;
	if (rec->form == SOCK_UNCONNECTED || rec->form == SOCK_PENDING)
		return false;
	peer = ckpt_record_by_id(run, "sock.unix-end", rec->peer);
	if (!peer || peer->type != rec->type || peer->form != rec->form)
		return false;
	return rec->form == SOCK_FREE_DGRAM || (peer->peer == rec->id && peer != rec);
}

int sock_end_plan(struct ckpt_run *run, const Ckpt__Sock__UnixEnd *rec, struct ckpt_error *err)
{
	bool connected =
		rec->form == SOCK_PAIR || rec->form == SOCK_NAMED || rec->form == SOCK_PENDING;
	int r;

	if (!good_peer(run, rec))
		return ckpt_fail_image(err, "open file %u has no valid other end", rec->id);
	if ((rec->type != SOCK_STREAM && rec->type != SOCK_DGRAM && rec->type != SOCK_SEQPACKET) ||
	    rec->shutdown > SOCK_SHUT || (!connected && rec->creator))
		return ckpt_fail_image(err, "open file %u is not a valid unix socket", rec->id);
	r = sock_owner_check(rec->owner, rec->id, err);
	if (!r && connected)
		r = sock_creator_check(run, rec->creator, rec->id, err);
	if (!r)
		r = sock_options_check(rec->options, rec->n_options, rec->id, err);
	if (!r)
		r = sock_name_plan(run, rec->name, rec->id, err);
	if (!r)
		r = sock_name_plan(run, rec->peer_name, rec->id, err);
	return r ? r : plan_queue(run, rec, err);
}

int sock_end_shut(int fd, uint32_t bits, struct ckpt_error *err)
{
	if (bits & SOCK_NO_RECV && shutdown(fd, SHUT_RD))
		return ckpt_fail_sys(err, errno, "shutdown(2)");
	if (bits & SOCK_NO_SEND && shutdown(fd, SHUT_WR))
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
		r = sock_end_shut(fd, end->shutdown, err);
	if (!r && peer)
		r = sock_end_shut(other, peer->shutdown, err);
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

static bool brings_files(const Ckpt__Sock__UnixEnd *end)
{
	for (size_t i = 0; i < end->n_queue; i++)
		if (end->queue[i]->n_files)
			return true;
	return false;
}

static int defer(struct sock_state *st, const Ckpt__Sock__UnixEnd *end, const int sv[2],
		 struct ckpt_error *err)
{
	struct sock_deferred *more =
		realloc(st->deferred, (st->n_deferred + 1) * sizeof(*st->deferred));
	CKPT_AUTO_FD int first = fcntl(sv[0], F_DUPFD_CLOEXEC, 0);
	CKPT_AUTO_FD int second = fcntl(sv[1], F_DUPFD_CLOEXEC, 0);

	if (more)
		st->deferred = more;
	if (!more || first < 0 || second < 0)
		return ckpt_fail_sys(err, errno, "keeping a pair of sockets");
	more[st->n_deferred++] = (struct sock_deferred){
		end,
		{ ckpt_steal_fd(&first), ckpt_steal_fd(&second) },
	};
	return 0;
}

int sock_end_settle(struct ckpt_run *run, struct ckpt_error *err)
{
	struct sock_state *st = sock_state(run);
	int r = 0;

	for (size_t i = 0; i < st->n_deferred; i++) {
		const struct sock_deferred *d = &st->deferred[i];
		const Ckpt__Sock__UnixEnd *peer =
			d->end->peer ? ckpt_record_by_id(run, "sock.unix-end", d->end->peer) : NULL;

		if (!r)
			r = fill_pair(run, d->end, d->fd[0], peer, d->fd[1], err);
		close(d->fd[0]);
		close(d->fd[1]);
	}
	st->n_deferred = 0;
	return r;
}

int sock_end_finish(struct ckpt_run *run, const Ckpt__Sock__UnixEnd *end, int sv[2],
		    struct ckpt_error *err)
{
	const Ckpt__Sock__UnixEnd *peer =
		end->peer ? ckpt_record_by_id(run, "sock.unix-end", end->peer) : NULL;
	struct sock_state *st = sock_state(run);
	bool later = brings_files(end) || (peer && brings_files(peer));
	int r = later ? defer(st, end, sv, err) : fill_pair(run, end, sv[0], peer, sv[1], err);

	if (r)
		return r;
	r = sock_stash_put(st, end->id, ckpt_steal_fd(&sv[0]), err);
	return !r && peer ? sock_stash_put(st, peer->id, ckpt_steal_fd(&sv[1]), err) : r;
}
