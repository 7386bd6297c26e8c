/* SPDX-License-Identifier: MIT */
/*
 * What waits to be read in a unix socket, with the borders of its messages. It is
 * read by MSG_PEEK with SO_PEEK_OFF, which takes nothing out, and put back by
 * sending it from the other end.
 */
#include "unix.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#ifndef SCM_PIDFD
#define SCM_PIDFD 4
#endif

struct reader {
	int fd, type;
	bool eof_is_end;
	uint8_t *buf;
	size_t size;
	int off, avail;
	size_t cap;
};

/*
 * Descriptors that came along are duplicates of ours and closed; the sender's
 * ids are there if the receiver has asked for them.
 */
static bool take_control(struct msghdr *m, struct ucred *cred)
{
	bool found = false;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
		size_t len = c->cmsg_len - CMSG_LEN(0);
		int fd;

		if (c->cmsg_level != SOL_SOCKET)
			continue;
		if (c->cmsg_type == SCM_CREDENTIALS && len >= sizeof(*cred)) {
			memcpy(cred, CMSG_DATA(c), sizeof(*cred));
			found = true;
		}
		if (c->cmsg_type != SCM_RIGHTS && c->cmsg_type != SCM_PIDFD)
			continue;
		for (size_t i = 0; i + sizeof(fd) <= len; i += sizeof(fd)) {
			memcpy(&fd, CMSG_DATA(c) + i, sizeof(fd));
			close(fd);
		}
	}
	return found;
}

static int set_from(Ckpt__Sock__UnixMessage *m, const struct sock_name *from)
{
	m->from = calloc(1, sizeof(*m->from));
	if (!m->from)
		return -ENOMEM;
	ckpt__sock__unix_name__init(m->from);
	m->from->abstract = from->abstract;
	m->from->name.data = malloc(from->len + 1);
	if (!m->from->name.data)
		return -ENOMEM;
	memcpy(m->from->name.data, from->text, from->len);
	m->from->name.len = from->len;
	return 0;
}

static int add_message(struct ckpt_run *run, struct reader *q, Ckpt__Sock__UnixEnd *end, size_t len,
		       const struct ucred *cred, const struct sock_name *from)
{
	Ckpt__Sock__UnixMessage *m;

	if (end->n_queue == q->cap) {
		size_t cap = q->cap ? q->cap * 2 : 8;
		Ckpt__Sock__UnixMessage **more = realloc(end->queue, cap * sizeof(*more));

		if (!more)
			return -ENOMEM;
		end->queue = more;
		q->cap = cap;
	}
	m = calloc(1, sizeof(*m));
	if (!m)
		return -ENOMEM;
	ckpt__sock__unix_message__init(m);
	end->queue[end->n_queue++] = m;
	m->data.data = malloc(len ? len : 1);
	if (!m->data.data)
		return -ENOMEM;
	memcpy(m->data.data, q->buf, len);
	m->data.len = len;
	if (cred && cred->pid) {
		const struct ckpt_task *t = ckpt_task_by_pid(run, cred->pid);

		m->sender = calloc(1, sizeof(*m->sender));
		if (!m->sender)
			return -ENOMEM;
		ckpt__sock__credentials__init(m->sender);
		m->sender->task = t ? t->id : 0;
		m->sender->uid = cred->uid;
		m->sender->gid = cred->gid;
	}
	return from ? set_from(m, from) : 0;
}

void sock_queue_free(Ckpt__Sock__UnixEnd *end)
{
	for (size_t i = 0; i < end->n_queue; i++) {
		free(end->queue[i]->data.data);
		free(end->queue[i]->sender);
		if (end->queue[i]->from)
			free(end->queue[i]->from->name.data);
		free(end->queue[i]->from);
		free(end->queue[i]);
	}
	free(end->queue);
	end->queue = NULL;
	end->n_queue = 0;
}

/* The buffer was too small for a message: look at it once more with a larger one. */
static int grow(struct reader *q, size_t need, struct ckpt_error *err)
{
	uint8_t *more;

	if (need > SOCK_QUEUE_MAX)
		return ckpt_fail(err, EFBIG, "a message of %zu bytes is more than ckpt saves",
				 need);
	more = realloc(q->buf, need);
	if (!more)
		return ckpt_fail(err, ENOMEM, "out of memory");
	q->buf = more;
	q->size = need;
	if (setsockopt(q->fd, SOL_SOCKET, SO_PEEK_OFF, &q->off, sizeof(q->off)))
		return ckpt_fail_sys(err, errno, "SO_PEEK_OFF");
	return 1;
}

/* 1: there may be more; 0: that was all. */
static int read_message(struct ckpt_run *run, struct reader *q, Ckpt__Sock__UnixEnd *end,
			struct ckpt_error *err)
{
	struct iovec iov = { q->buf, q->size };
	_Alignas(struct cmsghdr) char control[256];
	struct sockaddr_un a = { 0 };
	struct sock_name from;
	struct msghdr m = { .msg_name = q->type == SOCK_DGRAM ? &a : NULL,
			    .msg_namelen = q->type == SOCK_DGRAM ? sizeof(a) : 0,
			    .msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = control,
			    .msg_controllen = sizeof(control) };
	int flags = MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC |
		    (q->type == SOCK_STREAM ? 0 : MSG_TRUNC);
	ssize_t len = recvmsg(q->fd, &m, flags);
	struct ucred cred;
	bool has_cred, has_from;

	if (len < 0)
		return errno == EAGAIN ? 0 : ckpt_fail_sys(err, errno, "recvmsg(2) with MSG_PEEK");
	has_cred = take_control(&m, &cred);
	if (!len && q->eof_is_end)
		return 0;
	if ((size_t)len > q->size)
		return grow(q, (size_t)len, err);
	q->off += (int)len;
	if ((unsigned)q->off > SOCK_QUEUE_MAX)
		return ckpt_fail(err, EFBIG, "the socket's queue holds more than ckpt saves");
	has_from = sock_name_take(&a, m.msg_namelen > sizeof(a) ? sizeof(a) : m.msg_namelen, &from);
	if (add_message(run, q, end, (size_t)len, has_cred ? &cred : NULL, has_from ? &from : NULL))
		return ckpt_fail(err, ENOMEM, "out of memory");
	/* beyond the last byte of a stream there may be an error that looking takes away */
	return q->type != SOCK_STREAM || q->off < q->avail;
}

int sock_queue_read(struct ckpt_run *run, int fd, int type, Ckpt__Sock__UnixEnd *end,
		    struct ckpt_error *err)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	struct reader q = { .fd = fd, .type = type, .size = 64 * 1024 };
	int before = sock_int(fd, SOL_SOCKET, SO_PEEK_OFF), r = 1;

	if (poll(&p, 1, 0) < 0 || ioctl(fd, FIONREAD, &q.avail))
		return ckpt_fail_sys(err, errno, "looking for queued data");
	if (type == SOCK_STREAM ? !q.avail : !(p.revents & POLLIN))
		return 0;
	/* a stream ends with 0; so does a shut-down seqpacket, but for others it is a message */
	q.eof_is_end = type == SOCK_STREAM || (type == SOCK_SEQPACKET && end->shutdown & 1);
	q.buf = malloc(q.size);
	if (!q.buf)
		return ckpt_fail(err, ENOMEM, "out of memory");
	if (setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &q.off, sizeof(q.off)))
		r = ckpt_fail_sys(err, errno, "SO_PEEK_OFF");
	while (r > 0)
		r = read_message(run, &q, end, err);
	if (setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &before, sizeof(before)) && !r)
		r = ckpt_fail_sys(err, errno, "SO_PEEK_OFF");
	free(q.buf);
	return r;
}

/* ---- restore ---------------------------------------------------------------------- */

ssize_t sock_message_send(struct ckpt_run *run, int fd, const Ckpt__Sock__UnixMessage *m,
			  size_t from, const struct sockaddr_un *to, socklen_t to_len)
{
	struct iovec iov = { m->data.data + from, m->data.len - from };
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(struct ucred))] = { 0 };
	struct msghdr h = { .msg_name = (void *)(uintptr_t)to,
			    .msg_namelen = to_len,
			    .msg_iov = &iov,
			    .msg_iovlen = 1 };
	const struct ckpt_task *t =
		m->sender && m->sender->task ? ckpt_task_by_id(run, m->sender->task) : NULL;

	if (m->sender) {
		struct ucred cred = { .pid = t ? t->pid : getpid(),
				      .uid = m->sender->uid,
				      .gid = m->sender->gid };
		struct cmsghdr *c;

		h.msg_control = control;
		h.msg_controllen = sizeof(control);
		c = CMSG_FIRSTHDR(&h);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_CREDENTIALS;
		c->cmsg_len = CMSG_LEN(sizeof(cred));
		memcpy(CMSG_DATA(c), &cred, sizeof(cred));
	}
	return sendmsg(fd, &h, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static int send_all(struct ckpt_run *run, int fd, const Ckpt__Sock__UnixEnd *to,
		    struct ckpt_error *err)
{
	for (size_t i = 0; i < to->n_queue; i++) {
		const Ckpt__Sock__UnixMessage *m = to->queue[i];
		size_t at = 0;

		do {
			ssize_t put = sock_message_send(run, fd, m, at, NULL, 0);

			if (put < 0)
				return ckpt_fail_sys(err, errno,
						     "filling the queue of open file %u", to->id);
			at += (size_t)put;
		} while (at < m->data.len);
	}
	return 0;
}

int sock_queue_write(struct ckpt_run *run, int fd, const Ckpt__Sock__UnixEnd *to,
		     struct ckpt_error *err)
{
	int size, lock, r;

	if (!to->n_queue)
		return 0;
	/* a queue may have been filled with a larger buffer than the sender has by now */
	size = sock_int(fd, SOL_SOCKET, SO_SNDBUF);
	lock = sock_buf_lock(fd);
	if (size < 0 || lock < 0)
		return ckpt_fail_sys(err, errno, "getsockopt(2) of a send buffer");
	r = sock_sndbuf_force(fd, SOCK_QUEUE_SNDBUF, lock, err);
	if (!r)
		r = send_all(run, fd, to, err);
	return r ? r : sock_sndbuf_force(fd, size, lock, err);
}
