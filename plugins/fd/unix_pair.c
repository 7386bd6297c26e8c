/* SPDX-License-Identifier: MIT */
/* socketpair(2): both ends in the tree, or one that is left over from a closed other. */
#include "internal.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#define FLAGS_OK (O_RDWR | O_NONBLOCK)
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
	return fd_socket_is(f, AF_UNIX) && fd_socket_int(f->fd, SOL_SOCKET, SO_ACCEPTCONN) == 0 &&
	       unnamed(f->fd, false) && unnamed(f->fd, true);
}

/* The file of the other end, NULL if it is closed (or left out). */
static const struct fd_file *peer_file(const struct fd_state *st, const struct ckpt_fd_found *f,
				       const struct fd_unix_diag *d)
{
	struct fd_file *const *files;

	if (!d->peer || !fd_files_of(st, f->st.st_dev, d->peer, &files))
		return NULL;
	return files[0]->out ? NULL : files[0];
}

static int refuse_peer(struct ckpt_run *run, const struct ckpt_fd_found *f, uint32_t ino,
		       struct ckpt_error *err)
{
	char who[96], reason[192];
	int r = fd_foreign(run, fd_state(run), true, ino, who, sizeof(who), err);

	if (r < 0)
		return r;
	if (r)
		snprintf(reason, sizeof(reason),
			 "its other end socket:[%u] is outside the tree: %s", ino, who);
	else
		snprintf(reason, sizeof(reason),
			 "its other end socket:[%u] is held by no process (on its way in a "
			 "message?)",
			 ino);
	return fd_refuse(run, f, "external", reason, "dump a tree that includes the other end");
}

/* Any look at messages takes the error away; a stream's bytes can be counted first. */
static bool has_error(int fd)
{
	struct pollfd p = { .fd = fd };

	return fd_socket_int(fd, SOL_SOCKET, SO_TYPE) != SOCK_STREAM && poll(&p, 1, 0) == 1 &&
	       p.revents & POLLERR;
}

static int unix_pair_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
			    struct ckpt_error *err)
{
	struct fd_state *st = fd_state(run);
	const struct fd_unix_diag *d;
	struct fd_file *const *files;
	uint64_t in_flight = 0;
	int r = fd_socket_survey(run, f, err);

	if (!r)
		r = fd_unix_diag(st, err);
	if (r)
		return r;
	d = fd_unix_find(st, f->st.st_ino);
	if (!d)
		return fd_refuse(run, f, "unix", "the kernel does not list this socket",
				 "unix_diag is needed");
	if (d->peer && !fd_files_of(st, f->st.st_dev, d->peer, &files))
		return refuse_peer(run, f, d->peer, err);
	if (has_error(f->fd))
		return fd_refuse(run, f, "socket-error",
				 "an error waits to be reported, which hides the queue behind it",
				 "let the program receive it before the dump");
	if (!fd_info_u64(f->fdinfo, "scm_fds", 10, &in_flight) && in_flight)
		return fd_refuse(run, f, "scm-rights", "descriptors wait in its queue (SCM_RIGHTS)",
				 "try again when the program has received them");
	return fd_creator_survey(run, f);
}

/* A sender that is not in the tree cannot be named again. */
static int check_senders(const Ckpt__Fd__UnixEnd *end, struct ckpt_error *err)
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
	const struct fd_state *st = fd_state(run);
	const struct fd_unix_diag *d = fd_unix_find(st, f->st.st_ino);
	struct pollfd p = { .fd = f->fd };
	Ckpt__Fd__UnixEnd rec = CKPT__FD__UNIX_END__INIT;
	const struct fd_file *peer;
	Ckpt__Fd__Credentials creator;
	Ckpt__Fd__Owner owner;
	struct fd_options options;
	int r;

	if (!d || poll(&p, 1, 0) < 0)
		return ckpt_fail(err, EPROTO, "reading a socketpair");
	peer = peer_file(st, f, d);
	rec.id = f->file;
	rec.type = (uint32_t)fd_socket_int(f->fd, SOL_SOCKET, SO_TYPE);
	rec.peer = peer ? peer->id : 0;
	/* SO_ERROR would take the error away */
	rec.reset = !peer && p.revents & POLLERR;
	rec.shutdown = d->shutdown;
	fd_creator_of(run, f->fd, &creator);
	fd_owner_of(&f->st, &owner);
	fd_options_read(f->fd, &options);
	rec.creator = &creator;
	rec.owner = &owner;
	rec.options = options.ptr;
	rec.n_options = options.n;
	r = fd_queue_read(run, f->fd, (int)rec.type, &rec, err);
	if (!r)
		r = check_senders(&rec, err);
	if (!r)
		r = ckpt_record_put(run, FD_UNIX_END, &rec.base, err);
	fd_queue_free(&rec);
	return r;
}

/* ---- restore ---------------------------------------------------------------------- */

static int plan_queue(struct ckpt_run *run, const Ckpt__Fd__UnixEnd *rec, struct ckpt_error *err)
{
	for (size_t i = 0; i < rec->n_queue; i++) {
		const Ckpt__Fd__UnixMessage *m = rec->queue[i];
		int r = m->sender ? fd_creator_check(run, m->sender, rec->id, err) : 0;

		if (r)
			return r;
		if (m->sender && !m->sender->task)
			return fd_bad(err, "a message for open file %u has no sender", rec->id);
		if (!m->data.len && rec->type == SOCK_STREAM)
			return fd_bad(err, "a message for open file %u is empty", rec->id);
	}
	return 0;
}

static int unix_pair_plan(struct ckpt_run *run, uint32_t id, struct ckpt_error *err)
{
	const Ckpt__Fd__UnixEnd *rec = fd_record_need(run, "fd.unix-end", id, err);
	const Ckpt__Fd__File *file = fd_record_need(run, "fd.file", id, err);
	const Ckpt__Fd__UnixEnd *peer;
	int r;

	if (!rec || !file)
		return -EBADMSG;
	peer = rec->peer ? fd_record(run, "fd.unix-end", rec->peer) : NULL;
	if (rec->peer && (!peer || peer->peer != id || peer->type != rec->type || rec->peer == id))
		return fd_bad(err, "open file %u has no valid other end", id);
	if ((rec->type != SOCK_STREAM && rec->type != SOCK_DGRAM && rec->type != SOCK_SEQPACKET) ||
	    rec->shutdown > (NO_RECV | NO_SEND) || file->flags & ~(uint32_t)FLAGS_OK || file->pos)
		return fd_bad(err, "open file %u is not a valid socketpair", id);
	r = fd_owner_check(rec->owner, id, err);
	if (!r)
		r = fd_creator_check(run, rec->creator, id, err);
	if (!r)
		r = fd_options_check(rec->options, rec->n_options, id, err);
	return r ? r : plan_queue(run, rec, err);
}

/* The pair is made by its creator, and its ends are fetched from there. */
static int make_in(struct ckpt_run *run, struct ckpt_task *task, const Ckpt__Fd__UnixEnd *rec,
		   int sv[2], struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "fd.socketpair");
	CKPT_AUTO_SCRIPT struct ckpt_script *close_them = ckpt_script_new(run, "fd.socketpair");
	int op, nums[2], r;

	fd_creator_enter(s, rec->creator);
	op = ckpt_script_add(s, SYS_socketpair, CKPT_C(AF_UNIX), CKPT_C(rec->type | SOCK_CLOEXEC),
			     CKPT_C(0), CKPT_OUT(sizeof(nums)));
	fd_creator_leave(s, rec->creator);
	r = ckpt_script_run(s, task->threads[0], err);
	if (r)
		return r;
	memcpy(nums, ckpt_script_out(s, op, 3), sizeof(nums));
	for (int i = 0; i < 2; i++) {
		sv[i] = ckpt_get_fd(task, nums[i], err);
		if (sv[i] < 0)
			return sv[i];
		ckpt_script_add(close_them, SYS_close, CKPT_C(nums[i]));
	}
	return ckpt_script_run(close_them, task->threads[0], err);
}

static int make_pair(struct ckpt_run *run, const Ckpt__Fd__UnixEnd *rec, int sv[2],
		     struct ckpt_error *err)
{
	struct ckpt_task *task = fd_creator_task(run, rec->creator);

	if (task)
		return make_in(run, task, rec, sv, err);
	if (socketpair(AF_UNIX, (int)rec->type | SOCK_CLOEXEC, 0, sv))
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
static int fill_pair(struct ckpt_run *run, const Ckpt__Fd__UnixEnd *end, int fd,
		     const Ckpt__Fd__UnixEnd *peer, int other, struct ckpt_error *err)
{
	int r = fd_queue_write(run, other, end, err);

	if (!r && peer)
		r = fd_queue_write(run, fd, peer, err);
	if (!r && end->reset && send(fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) != 1)
		r = ckpt_fail_sys(err, errno, "send(2)");
	if (!r)
		r = shut(fd, end->shutdown, err);
	if (!r && peer)
		r = shut(other, peer->shutdown, err);
	if (!r)
		r = fd_options_apply(fd, end->options, end->n_options, err);
	if (!r && peer)
		r = fd_options_apply(other, peer->options, peer->n_options, err);
	if (!r)
		r = fd_owner_apply(fd, end->owner, err);
	if (!r && peer)
		r = fd_owner_apply(other, peer->owner, err);
	return r;
}

static int unix_pair_open(struct ckpt_run *run, const struct ckpt_fd_slot *slot,
			  struct ckpt_error *err)
{
	const Ckpt__Fd__UnixEnd *rec = fd_record_need(run, "fd.unix-end", slot->file, err);
	const Ckpt__Fd__UnixEnd *peer;
	struct fd_state *st = fd_state(run);
	CKPT_AUTO_FD int fd = fd_stash_take(st, slot->file);
	CKPT_AUTO_FD int other = -1;
	int sv[2] = { -1, -1 }, r;

	if (fd >= 0)
		return ckpt_steal_fd(&fd);
	if (!rec)
		return -EBADMSG;
	peer = rec->peer ? fd_record(run, "fd.unix-end", rec->peer) : NULL;
	r = make_pair(run, rec, sv, err);
	fd = sv[0];
	other = sv[1];
	if (!r)
		r = fill_pair(run, rec, fd, peer, other, err);
	if (!r && peer)
		r = fd_stash_put(st, peer->id, ckpt_steal_fd(&other), err);
	return r ? r : ckpt_steal_fd(&fd);
}

const struct ckpt_fd_kind fd_kind_unix_pair = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = unix_pair_match,
	.survey = unix_pair_survey,
	.collect = unix_pair_collect,
	.plan = unix_pair_plan,
	.open = unix_pair_open,
	.own_pos = true,
};
