/* SPDX-License-Identifier: MIT */
/*
 * Listening unix sockets, named or abstract, on which nobody waits to be
 * accepted. The name is bound again, in the place of the dead socket's.
 */
#include "internal.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>

#ifndef SIOCUNIXFILE
#define SIOCUNIXFILE 0x89E0
#endif

#define NAME_SIZE sizeof(((struct sockaddr_un *)0)->sun_path)

static bool unix_listen_match(const struct ckpt_fd_found *f)
{
	return f->domain == AF_UNIX && f->listening == 1;
}

struct name {
	struct sockaddr_un a;
	bool abstract;
	size_t len; /* of the path without NUL, or of the abstract name without its leading NUL */
};

static int read_name(int fd, struct name *n)
{
	socklen_t len = sizeof(n->a);

	memset(n, 0, sizeof(*n));
	if (getsockname(fd, (struct sockaddr *)&n->a, &len))
		return -errno;
	if (len > sizeof(n->a))
		len = sizeof(n->a);
	if (len <= offsetof(struct sockaddr_un, sun_path))
		return -EINVAL;
	len -= offsetof(struct sockaddr_un, sun_path);
	n->abstract = !n->a.sun_path[0];
	n->len = n->abstract ? len - 1 : strnlen(n->a.sun_path, len);
	return 0;
}

/* Does the bound name still lead to this socket? */
static int check_file(struct ckpt_run *run, const struct ckpt_fd_found *f, const struct name *n)
{
	char path[NAME_SIZE + 1] = "";
	CKPT_AUTO_FD int file = ioctl(f->fd, SIOCUNIXFILE);
	struct stat st, now;

	memcpy(path, n->a.sun_path, n->len);
	if (path[0] != '/')
		return sock_refuse(run, f, "relative-name",
				   "the socket is bound to a relative path",
				   "bind it to an absolute path");
	if (file >= 0 && !fstat(file, &st) && !stat(path, &now) && st.st_dev == now.st_dev &&
	    st.st_ino == now.st_ino)
		return 0;
	return sock_refuse(run, f, "unix-name", "the bound path no longer leads to this socket",
			   "the name was removed or replaced, or lies in another mount namespace");
}

static int unix_listen_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
			      struct ckpt_error *err)
{
	struct sock_state *st = sock_state(run);
	const struct sock_unix_diag *d;
	char reason[96];
	struct name n;
	int r = sock_survey(run, f, err);

	if (r)
		return r;
	r = sock_unix_diag(st, err);
	if (r)
		return r;
	d = sock_unix_find(st, f->st.st_ino);
	if (!d || read_name(f->fd, &n))
		return sock_refuse(run, f, "unix", "the kernel does not list this socket",
				   "unix_diag is needed");
	r = n.abstract ? 0 : check_file(run, f, &n);
	if (!r && d->pending) {
		snprintf(reason, sizeof(reason), "connections wait to be accepted: %u", d->pending);
		r = sock_refuse_detail(run, f, "pending", reason,
				       "try again when the program has accepted them, or "
				       "--allow-loss sock.pending: those peers are then cut off");
	}
	return r ? r : sock_creator_survey(run, f);
}

static int unix_listen_collect(struct ckpt_run *run, const struct ckpt_fd_found *f,
			       struct ckpt_error *err)
{
	Ckpt__Sock__UnixListen rec = CKPT__SOCK__UNIX_LISTEN__INIT;
	const struct sock_unix_diag *d = sock_unix_find(sock_state(run), f->st.st_ino);
	CKPT_AUTO_FD int bound = -1;
	Ckpt__Sock__Credentials creator;
	Ckpt__Sock__Owner owner, file;
	struct sock_options options;
	struct stat st;
	struct name n;

	if (!d || read_name(f->fd, &n))
		return ckpt_fail(err, EPROTO, "reading a listening unix socket");
	rec.id = f->file;
	rec.type = (uint32_t)f->type;
	rec.abstract = n.abstract;
	rec.name.data = (uint8_t *)n.a.sun_path + n.abstract;
	rec.name.len = n.len;
	rec.backlog = d->backlog;
	if (!n.abstract) {
		bound = ioctl(f->fd, SIOCUNIXFILE);
		if (bound < 0 || fstat(bound, &st))
			return ckpt_fail_sys(err, errno, "SIOCUNIXFILE");
		sock_owner_of(&st, &file);
		rec.file = &file;
	}
	sock_creator_of(run, f->fd, &creator);
	sock_owner_of(&f->st, &owner);
	if (sock_options_read(sock_state(run), f, &options, err))
		return -err->err;
	rec.creator = &creator;
	rec.owner = &owner;
	rec.options = options.ptr;
	rec.n_options = options.n;
	return ckpt_record_put(run, SOCK_UNIX_LISTEN, &rec.base, err);
}

/* ---- restore ---------------------------------------------------------------------- */

/* Is a living socket bound to this inode? */
static bool in_use(const struct sock_state *st, const struct stat *s)
{
	/* the kernel's own encoding of a device number */
	uint32_t dev = (uint32_t)major(s->st_dev) << 20 | (uint32_t)minor(s->st_dev);

	for (size_t i = 0; i < st->n_diag; i++)
		if (st->diag[i].has_file && st->diag[i].file_ino == (uint32_t)s->st_ino &&
		    st->diag[i].file_dev == dev)
			return true;
	return false;
}

static int plan_path(struct ckpt_run *run, const char *path, struct ckpt_error *err)
{
	struct sock_state *st = sock_state(run);
	char dir[PATH_MAX];
	struct stat s;
	int r;

	snprintf(dir, sizeof(dir), "%s", path);
	*(strrchr(dir, '/') + 1) = '\0';
	if (stat(dir, &s))
		return ckpt_unmet(run, CKPT_EXIT_FAILED, "make the directory again",
				  "the socket %s cannot be bound: %s: %s", path, dir,
				  ckpt_errno_name(errno));
	if (lstat(path, &s))
		return 0;
	if (!S_ISSOCK(s.st_mode))
		return ckpt_unmet(run, CKPT_EXIT_FAILED, "move it away",
				  "the socket %s cannot be bound: something else is there", path);
	/* the original is still there while its own image is checked */
	if (ckpt_plan_only(run))
		return 0;
	r = sock_unix_diag(st, err);
	if (!r && in_use(st, &s))
		return ckpt_unmet(run, CKPT_EXIT_FAILED, "stop the program that listens there",
				  "the socket %s is in use", path);
	return r;
}

static int unix_listen_plan(struct ckpt_run *run, uint32_t id, struct ckpt_error *err)
{
	const Ckpt__Sock__UnixListen *rec = sock_record_need(run, "sock.unix-listen", id, err);
	char path[NAME_SIZE + 1];
	int r;

	if (!rec)
		return -EBADMSG;
	if ((rec->type != SOCK_STREAM && rec->type != SOCK_SEQPACKET) || rec->backlog > INT_MAX ||
	    rec->name.len > (rec->abstract ? NAME_SIZE - 1 : NAME_SIZE) ||
	    (!rec->abstract && !sock_image_path(&rec->name, path, sizeof(path))))
		return sock_bad(err, "open file %u is not a valid listening unix socket", id);
	r = sock_owner_check(rec->owner, id, err);
	if (!r)
		r = sock_creator_check(run, rec->creator, id, err);
	if (!r)
		r = sock_options_check(rec->options, rec->n_options, id, err);
	if (!r && !rec->abstract) {
		r = sock_owner_check(rec->file, id, err);
		if (!r)
			r = plan_path(run, path, err);
	}
	return r;
}

static int bind_path(struct ckpt_run *run, int fd, const Ckpt__Sock__UnixListen *rec,
		     struct ckpt_error *err)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	char path[NAME_SIZE + 1];
	struct stat st;

	if (!sock_image_path(&rec->name, path, sizeof(path)))
		return sock_bad(err, "the name of a unix socket is not valid");
	/* only a dead socket's name: the kernel remembers the path given to bind(2), so that
	 * binding elsewhere and renaming would show */
	if (!lstat(path, &st) && (!S_ISSOCK(st.st_mode) || unlink(path)))
		return ckpt_fail(err, EADDRINUSE, "%s cannot be replaced", path);
	memcpy(a.sun_path, path, rec->name.len);
	if (bind(fd, (struct sockaddr *)&a,
		 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + rec->name.len)))
		return ckpt_fail_sys(err, errno, "bind(2) to %s", path);
	if (sock_note_made(sock_state(run), path)) {
		unlink(path);
		return ckpt_fail(err, ENOMEM, "out of memory");
	}
	if (lchown(path, rec->file->uid, rec->file->gid) || chmod(path, rec->file->mode))
		return ckpt_fail_sys(err, errno, "owner and mode of %s", path);
	return 0;
}

static int bind_abstract(int fd, const Ckpt__Sock__UnixListen *rec, struct ckpt_error *err)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };

	memcpy(a.sun_path + 1, rec->name.data, rec->name.len);
	if (bind(fd, (struct sockaddr *)&a,
		 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + rec->name.len)))
		return ckpt_fail_sys(err, errno, "bind(2) to @%.*s", (int)rec->name.len,
				     (const char *)rec->name.data);
	return 0;
}

static int listen_as(struct ckpt_run *run, struct ckpt_task *task, int fd,
		     const Ckpt__Sock__UnixListen *rec, struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "sock.listen");
	struct ckpt_error ignored = { 0 };
	int num, r, back;

	if (!task)
		return listen(fd, (int)rec->backlog) ? ckpt_fail_sys(err, errno, "listen(2)") : 0;
	num = ckpt_lend_fd(run, task, fd, err);
	if (num < 0)
		return num;
	sock_creator_enter(s, rec->creator);
	ckpt_script_add(s, SYS_listen, CKPT_C(num), CKPT_C(rec->backlog));
	sock_creator_leave(s, rec->creator);
	r = ckpt_script_run(s, task->threads[0], err);
	back = ckpt_return_fd(run, task, num, r ? &ignored : err);
	return r ? r : back;
}

static int unix_listen_open(struct ckpt_run *run, const struct ckpt_fd_slot *slot,
			    struct ckpt_error *err)
{
	const Ckpt__Sock__UnixListen *rec =
		sock_record_need(run, "sock.unix-listen", slot->file, err);
	CKPT_AUTO_FD int fd = -1;
	int r;

	if (!rec)
		return -EBADMSG;
	fd = socket(AF_UNIX, (int)rec->type | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return ckpt_fail_sys(err, errno, "socket(2)");
	r = rec->abstract ? bind_abstract(fd, rec, err) : bind_path(run, fd, rec, err);
	if (!r)
		r = listen_as(run, sock_creator_task(run, rec->creator), fd, rec, err);
	if (!r)
		r = sock_options_apply(fd, rec->options, rec->n_options, err);
	if (!r)
		r = sock_owner_apply(fd, rec->owner, err);
	return r ? r : ckpt_steal_fd(&fd);
}

const struct ckpt_fd_kind sock_kind_unix_listen = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = unix_listen_match,
	.survey = unix_listen_survey,
	.collect = unix_listen_collect,
	.plan = unix_listen_plan,
	.open = unix_listen_open,
	.own_pos = true,
	.flags_ok = SOCK_FLAGS,
};
