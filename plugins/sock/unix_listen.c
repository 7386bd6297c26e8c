/* SPDX-License-Identifier: MIT */
/*
 * Listening unix sockets, named or abstract. The name is bound again, in the place of
 * the dead socket's.
 */
#include "unix.h"

#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>

static bool unix_listen_match(const struct ckpt_fd_found *f)
{
	return f->domain == AF_UNIX && f->listening == 1;
}

static int unix_listen_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
			      struct ckpt_error *err)
{
	const struct sock_unix_diag *d;
	int r;

	d = sock_end_find(run, f, &r, err);
	if (!d)
		return r;
	r = sock_name_survey(run, f);
	if (!r)
		r = sock_waiting_survey(run, f, d, err);
	return r ? r : sock_creator_survey(run, f);
}

static int unix_listen_collect(struct ckpt_run *run, const struct ckpt_fd_found *f,
			       struct ckpt_error *err)
{
	Ckpt__Sock__UnixListen rec = CKPT__SOCK__UNIX_LISTEN__INIT;
	const struct sock_unix_diag *d = sock_unix_find(sock_state(run), f->st.st_ino);
	__attribute__((cleanup(sock_creator_free))) Ckpt__Sock__Credentials creator =
		CKPT__SOCK__CREDENTIALS__INIT;
	struct sock_options options;
	Ckpt__Sock__Owner owner;
	struct sock_name n;

	if (!d || sock_name_read(f->fd, false, &n) != 1)
		return ckpt_fail(err, EPROTO, "reading a listening unix socket");
	sock_name_locate(run, f->fd, &n);
	rec.id = f->file;
	rec.type = (uint32_t)f->type;
	rec.name = (Ckpt__Sock__UnixName *)(uintptr_t)sock_name_record(&n);
	rec.backlog = d->backlog;
	sock_owner_of(&f->st, &owner);
	if (sock_creator_of(run, f->fd, &creator, err) < 0 ||
	    sock_options_read(run, f, &options, err))
		return -err->err;
	rec.creator = &creator;
	rec.owner = &owner;
	rec.options = options.ptr;
	rec.n_options = options.n;
	if (ckpt_record_put(run, SOCK_UNIX_LISTEN, &rec.base, err))
		return -err->err;
	return sock_collect(run, f, err);
}

/* ---- restore ---------------------------------------------------------------------- */

static int unix_listen_plan(struct ckpt_run *run, uint32_t id, struct ckpt_error *err)
{
	const Ckpt__Sock__UnixListen *rec = ckpt_record_need(run, "sock.unix-listen", id, err);
	int r;

	if (!rec)
		return -EBADMSG;
	if ((rec->type != SOCK_STREAM && rec->type != SOCK_SEQPACKET) || rec->backlog > INT_MAX ||
	    !rec->name)
		return ckpt_fail_image(err, "open file %u is not a valid listening unix socket",
				       id);
	r = sock_owner_check(rec->owner, id, err);
	if (!r)
		r = sock_creator_check(run, rec->creator, id, err);
	if (!r)
		r = sock_options_check(rec->options, rec->n_options, id, err);
	return r ? r : sock_name_plan(run, rec->name, id, err);
}

int sock_listen_as(struct ckpt_run *run, const Ckpt__Sock__Credentials *creator, int fd,
		   uint32_t backlog, struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "sock.listen");
	struct ckpt_task *task = creator ? sock_creator_task(run, creator) : NULL;
	struct ckpt_error ignored = { 0 };
	int num, r, back;

	if (!task)
		return listen(fd, (int)backlog) ? ckpt_fail_sys(err, errno, "listen(2)") : 0;
	num = ckpt_lend_fd(run, task, fd, err);
	if (num < 0)
		return num;
	sock_creator_enter(s, creator);
	ckpt_script_add(s, SYS_listen, CKPT_C(num), CKPT_C(backlog));
	sock_creator_leave(s, creator);
	r = ckpt_script_run(s, task->threads[0], err);
	back = ckpt_return_fd(run, task, num, r ? &ignored : err);
	return r ? r : back;
}

static int make(struct ckpt_run *run, uint32_t id, struct ckpt_error *err)
{
	const Ckpt__Sock__UnixListen *rec = ckpt_record_need(run, "sock.unix-listen", id, err);
	CKPT_AUTO_FD int fd = -1;
	SOCK_PLACE(place);
	int r;

	if (!rec)
		return -EBADMSG;
	fd = sock_new(run, id, AF_UNIX, (int)rec->type, 0, &place, err);
	if (fd < 0)
		return fd;
	r = sock_bind(run, fd, rec->name, err);
	if (!r)
		r = sock_listen_as(run, rec->creator, fd, rec->backlog, err);
	if (!r)
		r = sock_options_apply(fd, rec->options, rec->n_options, err);
	if (!r)
		r = sock_owner_apply(fd, rec->owner, err);
	if (!r)
		r = sock_keep(sock_state(run), id, fd, err);
	return r ? r : ckpt_steal_fd(&fd);
}

int sock_listener(struct ckpt_run *run, uint32_t id, struct ckpt_error *err)
{
	struct sock_state *st = sock_state(run);
	int fd = sock_kept(st, id), r;

	if (fd >= 0)
		return fd;
	fd = make(run, id, err);
	r = fd < 0 ? fd : sock_stash_put(st, id, fd, err);
	return r ? r : sock_kept(st, id);
}

static int unix_listen_open(struct ckpt_run *run, const struct ckpt_fd_slot *slot,
			    struct ckpt_error *err)
{
	struct sock_state *st = sock_state(run);
	int fd = sock_stash_take(st, slot->file);

	st->tree = slot->tree;
	return fd >= 0 ? fd : make(run, slot->file, err);
}

const struct ckpt_fd_kind sock_kind_unix_listen = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = unix_listen_match,
	.survey = unix_listen_survey,
	.collect = unix_listen_collect,
	.ahead = sock_options_ahead,
	.plan = unix_listen_plan,
	.open = unix_listen_open,
	.own_pos = true,
	.flags_ok = SOCK_FLAGS,
};
