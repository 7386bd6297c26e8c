/* SPDX-License-Identifier: MIT */
/*
 * What waits to be read in a unix socket, with the borders of its messages. It is
 * read by MSG_PEEK with SO_PEEK_OFF, which takes nothing out, and put back by
 * sending it from the other end.
 */
#include "unix.h"

#include <poll.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#ifndef SCM_PIDFD
#define SCM_PIDFD 4
#endif

struct reader {
	struct sock_look *look;
	int fd, type;
	bool eof_is_end;
	uint8_t *buf;
	size_t size;
	int off, avail;
	size_t cap;
};

/* What came along with a message: duplicates in the engine, and the sender's ids. */
struct extras {
	int fds[SOCK_FILES_MAX];
	size_t n_fds;
	struct ucred cred;
	bool has_cred; /* the receiver has asked for them */
	struct sock_name from;
	bool has_from;
};

static void drop_fds(struct extras *x)
{
	while (x->n_fds > 0)
		close(x->fds[--x->n_fds]);
}

static void take_control(struct msghdr *m, struct extras *x)
{
	x->has_cred = false;
	x->n_fds = 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
		size_t len = c->cmsg_len - CMSG_LEN(0);
		int fd;

		if (c->cmsg_level != SOL_SOCKET)
			continue;
		if (c->cmsg_type == SCM_CREDENTIALS && len >= sizeof(x->cred)) {
			memcpy(&x->cred, CMSG_DATA(c), sizeof(x->cred));
			x->has_cred = true;
		}
		if (c->cmsg_type != SCM_RIGHTS && c->cmsg_type != SCM_PIDFD)
			continue;
		for (size_t i = 0; i + sizeof(fd) <= len; i += sizeof(fd)) {
			memcpy(&fd, CMSG_DATA(c) + i, sizeof(fd));
			if (c->cmsg_type == SCM_RIGHTS && x->n_fds < SOCK_FILES_MAX)
				x->fds[x->n_fds++] = fd;
			else
				close(fd);
		}
	}
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

static int set_sender(struct ckpt_run *run, Ckpt__Sock__UnixMessage *m, const struct ucred *cred)
{
	const struct ckpt_task *t = ckpt_task_by_pid(run, cred->pid);

	m->sender = calloc(1, sizeof(*m->sender));
	if (!m->sender)
		return -ENOMEM;
	ckpt__sock__credentials__init(m->sender);
	m->sender->task = t ? t->id : 0;
	m->sender->uid = cred->uid;
	m->sender->gid = cred->gid;
	return 0;
}

static bool same_sender(struct ckpt_run *run, const Ckpt__Sock__Credentials *a,
			const struct extras *x)
{
	const struct ckpt_task *t;

	if (!a || !x->has_cred || !x->cred.pid)
		return !a && !(x->has_cred && x->cred.pid);
	t = ckpt_task_by_pid(run, x->cred.pid);
	return a->task == (t ? t->id : 0) && a->uid == x->cred.uid && a->gid == x->cred.gid;
}

/*
 * Bytes of a stream that nothing tells from those before. How many came with one
 * look depends on the sender's buffer at the time and is no property of the queue.
 */
static int append(Ckpt__Sock__UnixMessage *last, const uint8_t *buf, size_t len)
{
	uint8_t *more = realloc(last->data.data, last->data.len + len);

	if (!more)
		return -ENOMEM;
	memcpy(more + last->data.len, buf, len);
	last->data.data = more;
	last->data.len += len;
	return 0;
}

/* The descriptors are the list's from here on. */
static int keep_fds(struct sock_look *look, size_t message, struct extras *x)
{
	struct sock_carried *more =
		x->n_fds ? realloc(look->carried, (look->n_carried + x->n_fds) * sizeof(*more))
			 : look->carried;

	if (!more && x->n_fds)
		return -ENOMEM;
	look->carried = more;
	for (size_t i = 0; i < x->n_fds; i++)
		more[look->n_carried++] = (struct sock_carried){ message, x->fds[i] };
	x->n_fds = 0;
	return 0;
}

static int add_message(struct ckpt_run *run, struct reader *q, Ckpt__Sock__UnixEnd *end, size_t len,
		       struct extras *x)
{
	Ckpt__Sock__UnixMessage *m = end->n_queue ? end->queue[end->n_queue - 1] : NULL;
	int r;

	if (m && q->type == SOCK_STREAM && !x->n_fds && same_sender(run, m->sender, x))
		return append(m, q->buf, len);
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
	r = x->has_cred && x->cred.pid ? set_sender(run, m, &x->cred) : 0;
	if (!r && x->has_from)
		r = set_from(m, &x->from);
	return r ? r : keep_fds(q->look, end->n_queue - 1, x);
}

void sock_queue_free(Ckpt__Sock__UnixEnd *end)
{
	for (size_t i = 0; i < end->n_queue; i++) {
		free(end->queue[i]->data.data);
		free(end->queue[i]->sender);
		free(end->queue[i]->files);
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

/* Look at what is behind the offset, into up to two buffers. */
static ssize_t peek(struct reader *q, struct iovec *iov, size_t n_iov, struct extras *x)
{
	/* all descriptors that a message can bring, and the rest */
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(SOCK_FILES_MAX * sizeof(int)) + 256];
	struct sockaddr_un a = { 0 };
	struct msghdr m = { .msg_name = q->type == SOCK_DGRAM ? &a : NULL,
			    .msg_namelen = q->type == SOCK_DGRAM ? sizeof(a) : 0,
			    .msg_iov = iov,
			    .msg_iovlen = n_iov,
			    .msg_control = control,
			    .msg_controllen = sizeof(control) };
	int flags = MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC |
		    (q->type == SOCK_STREAM ? 0 : MSG_TRUNC);
	ssize_t len;

	x->n_fds = 0;
	len = recvmsg(q->fd, &m, flags);
	if (len < 0)
		return -errno;
	take_control(&m, x);
	x->has_from =
		q->type == SOCK_DGRAM &&
		sock_name_take(&a, m.msg_namelen > sizeof(a) ? sizeof(a) : m.msg_namelen, &x->from);
	return len;
}

static int look_back(struct reader *q)
{
	return setsockopt(q->fd, SOL_SOCKET, SO_PEEK_OFF, &q->off, sizeof(q->off)) ? -errno : 0;
}

/*
 * Descriptors come with the first byte of the write that sent them, but a look shows
 * what was written before it too, and ends with that write. The kernel copies write
 * by write and takes back one that it cannot copy whole: where the last byte has no
 * place to go, the look ends before the write in question. What is there is a
 * message of its own.
 */
static ssize_t split_stream(struct reader *q, size_t len, struct extras *x)
{
	struct iovec iov[] = { { q->buf, len - 1 }, { (void *)sizeof(long), sizeof(long) } };
	ssize_t r;

	drop_fds(x);
	r = look_back(q);
	if (!r)
		r = peek(q, iov, CKPT_ARRAY_SIZE(iov), x);
	if (r != -EFAULT)
		return r;
	r = look_back(q);
	return r ? r : peek(q, &(struct iovec){ q->buf, len }, 1, x);
}

/* 1: there may be more; 0: that was all. */
static int take_message(struct ckpt_run *run, struct reader *q, Ckpt__Sock__UnixEnd *end,
			struct extras *x, struct ckpt_error *err)
{
	ssize_t len = peek(q, &(struct iovec){ q->buf, q->size }, 1, x);

	if (len > 0 && x->n_fds && q->type == SOCK_STREAM)
		len = split_stream(q, (size_t)len, x);
	if (len < 0)
		return len == -EAGAIN ? 0
				      : ckpt_fail_sys(err, (int)-len, "recvmsg(2) with MSG_PEEK");
	if (!len && q->eof_is_end)
		return 0;
	if ((size_t)len > q->size)
		return grow(q, (size_t)len, err);
	q->off += (int)len;
	if ((unsigned)q->off > SOCK_QUEUE_MAX)
		return ckpt_fail(err, EFBIG, "the socket's queue holds more than ckpt saves");
	if (add_message(run, q, end, (size_t)len, x))
		return ckpt_fail(err, ENOMEM, "out of memory");
	/* beyond the last byte of a stream there may be an error that looking takes away */
	return q->type != SOCK_STREAM || q->off < q->avail;
}

static int read_message(struct ckpt_run *run, struct reader *q, Ckpt__Sock__UnixEnd *end,
			struct ckpt_error *err)
{
	struct extras x = { .n_fds = 0 };
	int r = take_message(run, q, end, &x, err);

	drop_fds(&x);
	return r;
}

/* Look at all messages, once: empty datagrams are not seen a second time. */
static int look_at(struct ckpt_run *run, const struct ckpt_fd_found *f, uint32_t shutdown_bits,
		   struct sock_look *look, struct ckpt_error *err)
{
	int fd = f->fd, type = f->type;
	struct pollfd p = { .fd = fd, .events = POLLIN };
	struct reader q = { .look = look, .fd = fd, .type = type, .size = 64 * 1024 };
	struct sock_state *st = sock_state(run);
	int r, back;

	ckpt__sock__unix_end__init(&look->end);
	if (poll(&p, 1, 0) < 0 || ioctl(fd, FIONREAD, &q.avail))
		return ckpt_fail_sys(err, errno, "looking for queued data");
	if (type == SOCK_STREAM ? !q.avail : !(p.revents & POLLIN))
		return 0;
	/* a stream ends with 0; so does a shut-down seqpacket, but for others it is a message */
	q.eof_is_end =
		type == SOCK_STREAM || (type == SOCK_SEQPACKET && shutdown_bits & SOCK_NO_RECV);
	/* a look must not end within what came with descriptors: the rest would show them again */
	if (type == SOCK_STREAM && (size_t)q.avail > q.size)
		q.size = (size_t)q.avail;
	q.buf = q.size <= SOCK_QUEUE_MAX ? malloc(q.size) : NULL;
	if (!q.buf)
		return ckpt_fail(err, ENOMEM, "out of memory");
	r = sock_guard_begin(st, fd);
	if (r) {
		free(q.buf);
		return ckpt_fail_sys(err, r, "watching over a socket's options");
	}
	r = sock_guard_set(st, SOL_SOCKET, SO_PEEK_OFF, 0);
	r = r ? ckpt_fail_sys(err, r, "SO_PEEK_OFF") : 1;
	while (r > 0)
		r = read_message(run, &q, &look->end, err);
	back = sock_guard_end(st);
	free(q.buf);
	return r ? r : back ? ckpt_fail_sys(err, back, "SO_PEEK_OFF") : 0;
}

void sock_look_free(struct sock_look *look)
{
	sock_queue_free(&look->end);
	for (size_t i = 0; i < look->n_carried; i++)
		close(look->carried[i].fd);
	free(look->carried);
	look->carried = NULL;
	look->n_carried = 0;
}

/* The descriptions that came along, those that are not in the tree left out by permission. */
static int find_file(struct ckpt_run *run, const struct ckpt_fd_found *f, int fd, uint32_t *id)
{
	char object[512];
	bool out = false;
	int r;

	*id = f->tree->of_fd(run, fd, &out);
	if (*id && !out)
		return 0;
	*id = 0;
	if (out)
		return 0;
	snprintf(object, sizeof(object), "fd %d (%s), a descriptor in its queue", f->num, f->link);
	r = ckpt_refuse_off(run, "scm-only", f->task, object);
	if (r <= 0)
		return r == -ECANCELED ? 0 : r;
	r = sock_refuse_detail(run, f, "scm-elsewhere",
			       "a descriptor in its queue (SCM_RIGHTS) is open nowhere else "
			       "in the tree",
			       "try again when the program has received it, or --allow-loss "
			       "sock.scm-elsewhere: the message comes without it");
	return r < 0 ? r : 0;
}

static int set_files(struct ckpt_run *run, const struct ckpt_fd_found *f, struct sock_look *look)
{
	if (!ckpt_feature_on(run, "scm-rights"))
		return 0;
	for (size_t i = 0; i < look->n_carried; i++) {
		Ckpt__Sock__UnixMessage *m = look->end.queue[look->carried[i].message];
		uint32_t id, *more;
		int r = find_file(run, f, look->carried[i].fd, &id);

		if (r)
			return r;
		if (!id)
			continue;
		more = realloc(m->files, (m->n_files + 1) * sizeof(*more));
		if (!more)
			return -ENOMEM;
		m->files = more;
		m->files[m->n_files++] = id;
	}
	return 0;
}

static struct sock_look *find_look(struct sock_state *st, uint64_t ino)
{
	for (size_t i = 0; i < st->n_looks; i++)
		if (st->looks[i].ino == ino)
			return &st->looks[i];
	return NULL;
}

int sock_queue_read(struct ckpt_run *run, const struct ckpt_fd_found *f, Ckpt__Sock__UnixEnd *end,
		    struct ckpt_error *err)
{
	struct sock_look *before = find_look(sock_state(run), f->st.st_ino), look = { 0 };
	int r = 0;

	if (before) {
		look = *before;
		*before = (struct sock_look){ 0 };
	} else {
		r = look_at(run, f, end->shutdown, &look, err);
	}
	if (!r && set_files(run, f, &look))
		r = ckpt_fail(err, ENOMEM, "out of memory");
	end->queue = look.end.queue;
	end->n_queue = look.end.n_queue;
	look.end.queue = NULL;
	look.end.n_queue = 0;
	sock_look_free(&look);
	return r;
}

int sock_carried(struct ckpt_run *run, const struct ckpt_fd_found *f,
		 int (*found)(struct ckpt_run *run, void *arg, int fd, struct ckpt_error *err),
		 void *arg, struct ckpt_error *err)
{
	struct sock_state *st = sock_state(run);
	const struct sock_unix_diag *d;
	struct sock_look look = { 0 }, *more;
	struct ckpt_error ignored = { 0 };
	int r = 0;

	if (!st)
		return ckpt_fail(err, ENOMEM, "out of memory");
	/* what will be refused is left alone */
	if (!ckpt_feature_on(run, "scm-rights") || !ckpt_feature_on(run, "scm-only") ||
	    sock_unix_diag(run, &ignored) || sock_has_error(f))
		return 0;
	d = sock_unix_find(st, f->st.st_ino);
	if (!d)
		return 0;
	more = realloc(st->looks, (st->n_looks + 1) * sizeof(*more));
	if (!more)
		return ckpt_fail(err, ENOMEM, "out of memory");
	st->looks = more;
	r = look_at(run, f, d->shutdown, &look, err);
	look.ino = f->st.st_ino;
	st->looks[st->n_looks++] = look;
	for (size_t i = 0; i < look.n_carried && !r; i++)
		r = found(run, arg, look.carried[i].fd, err);
	return r;
}

/* ---- restore ---------------------------------------------------------------------- */

static void put_control(struct msghdr *h, int type, const void *data, size_t size)
{
	struct cmsghdr *c = (struct cmsghdr *)((char *)h->msg_control + h->msg_controllen);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = type;
	c->cmsg_len = CMSG_LEN(size);
	memcpy(CMSG_DATA(c), data, size);
	h->msg_controllen += CMSG_SPACE(size);
}

/* The descriptors that a message brings, from the tasks that have them by now. */
static int get_files(struct ckpt_run *run, const Ckpt__Sock__UnixMessage *m, int *fds, size_t *n,
		     struct ckpt_error *err)
{
	const struct ckpt_fd_tree *tree = sock_state(run)->tree;

	if (m->n_files > SOCK_FILES_MAX)
		return ckpt_fail_image(err, "a message brings too much");
	for (; *n < m->n_files; ++*n) {
		fds[*n] = tree->get(run, m->files[*n], err);
		if (fds[*n] < 0)
			return fds[*n];
	}
	return 0;
}

static ssize_t send_with(struct ckpt_run *run, int fd, const Ckpt__Sock__UnixMessage *m,
			 size_t from, const struct sockaddr_un *to, socklen_t to_len,
			 const int *fds, size_t n)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(SOCK_FILES_MAX * sizeof(int)) +
					      CMSG_SPACE(sizeof(struct ucred))] = { 0 };
	struct iovec iov = { m->data.data + from, m->data.len - from };
	struct msghdr h = { .msg_name = (void *)(uintptr_t)to,
			    .msg_namelen = to_len,
			    .msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = control };
	const struct ckpt_task *t =
		m->sender && m->sender->task ? ckpt_task_by_id(run, m->sender->task) : NULL;

	if (m->sender) {
		struct ucred cred = { .pid = t ? t->pid : getpid(),
				      .uid = m->sender->uid,
				      .gid = m->sender->gid };

		put_control(&h, SCM_CREDENTIALS, &cred, sizeof(cred));
	}
	if (n)
		put_control(&h, SCM_RIGHTS, fds, n * sizeof(*fds));
	if (!h.msg_controllen)
		h.msg_control = NULL;
	return sendmsg(fd, &h, MSG_DONTWAIT | MSG_NOSIGNAL);
}

ssize_t sock_message_send(struct ckpt_run *run, int fd, const Ckpt__Sock__UnixMessage *m,
			  size_t from, const struct sockaddr_un *to, socklen_t to_len,
			  struct ckpt_error *err)
{
	int fds[SOCK_FILES_MAX];
	ssize_t put = 0;
	size_t n = 0;
	int r;

	/* a stream may take a message in parts: they come with the first */
	r = from ? 0 : get_files(run, m, fds, &n, err);
	if (!r) {
		put = send_with(run, fd, m, from, to, to_len, fds, n);
		if (put < 0)
			r = ckpt_fail_sys(err, errno, "sendmsg(2) to fill a queue");
	}
	while (n > 0)
		close(fds[--n]);
	return r ? r : put;
}

static int send_all(struct ckpt_run *run, int fd, const Ckpt__Sock__UnixEnd *to,
		    struct ckpt_error *err)
{
	for (size_t i = 0; i < to->n_queue; i++) {
		const Ckpt__Sock__UnixMessage *m = to->queue[i];
		size_t at = 0;

		do {
			ssize_t put = sock_message_send(run, fd, m, at, NULL, 0, err);

			if (put < 0)
				return ckpt_wrap(err, "filling the queue of open file %u", to->id);
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
