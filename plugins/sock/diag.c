/* SPDX-License-Identifier: MIT */
/* The kernel's list of unix sockets: who is whose peer, what waits, where they are bound. */
#include "unix.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

static int by_ino(const void *va, const void *vb)
{
	const struct sock_unix_diag *a = va, *b = vb;

	return (a->ino > b->ino) - (a->ino < b->ino);
}

static int take_waiting(struct sock_state *st, struct sock_unix_diag *d, const uint32_t *clients,
			size_t n)
{
	struct sock_waiting *more = realloc(st->waiting, (st->n_waiting + n + 1) * sizeof(*more));

	if (!more)
		return -ENOMEM;
	st->waiting = more;
	d->waiting = st->n_waiting;
	for (uint32_t i = 0; i < n; i++)
		more[st->n_waiting++] = (struct sock_waiting){ clients[i], d->ino, i };
	return 0;
}

static int take_attr(struct sock_state *st, struct sock_unix_diag *d, struct rtattr *a)
{
	const uint32_t *v = RTA_DATA(a);

	switch (a->rta_type) {
	case UNIX_DIAG_PEER:
		d->peer = v[0];
		break;
	case UNIX_DIAG_RQLEN:
		d->pending = v[0];
		d->backlog = v[1];
		break;
	case UNIX_DIAG_ICONS:
		return take_waiting(st, d, v, RTA_PAYLOAD(a) / sizeof(*v));
	case UNIX_DIAG_VFS:
		d->has_file = true;
		d->file_ino = v[0];
		d->file_dev = v[1];
		break;
	case UNIX_DIAG_NAME:
		d->name_len = (uint8_t)(RTA_PAYLOAD(a) < sizeof(d->name) ? RTA_PAYLOAD(a)
									 : sizeof(d->name));
		memcpy(d->name, RTA_DATA(a), d->name_len);
		break;
	case UNIX_DIAG_SHUTDOWN:
		d->shutdown = *(const uint8_t *)RTA_DATA(a);
		break;
	default:
		break;
	}
	return 0;
}

struct listing {
	char *buf;
	size_t size, cap;
	struct sock_state *st;
	const struct ckpt_ns *net;
};

static int take_socket(void *arg, struct nlmsghdr *h)
{
	struct listing *x = arg;
	struct sock_state *st = x->st;
	struct unix_diag_msg *m = NLMSG_DATA(h);
	int left = (int)h->nlmsg_len - (int)NLMSG_LENGTH(sizeof(*m));
	struct sock_unix_diag d = {
		.net = x->net, .ino = m->udiag_ino, .type = m->udiag_type, .state = m->udiag_state
	};

	for (struct rtattr *a = (struct rtattr *)(m + 1); RTA_OK(a, left); a = RTA_NEXT(a, left))
		if (take_attr(st, &d, a))
			return -ENOMEM;
	if (st->n_diag == x->cap) {
		size_t want = x->cap ? x->cap * 2 : 256;
		struct sock_unix_diag *more = realloc(st->diag, want * sizeof(*more));

		if (!more)
			return -ENOMEM;
		st->diag = more;
		x->cap = want;
	}
	st->diag[st->n_diag++] = d;
	return 0;
}

static int ask(int nl)
{
	struct {
		struct nlmsghdr h;
		struct unix_diag_req r;
	} q = {
		.h = { .nlmsg_len = sizeof(q),
		       .nlmsg_type = SOCK_DIAG_BY_FAMILY,
		       .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP },
		.r = { .sdiag_family = AF_UNIX,
		       .udiag_states = UINT32_MAX,
		       .udiag_show = UDIAG_SHOW_NAME | UDIAG_SHOW_PEER | UDIAG_SHOW_RQLEN |
				     UDIAG_SHOW_VFS | UDIAG_SHOW_ICONS },
	};

	return send(nl, &q, sizeof(q), 0) == sizeof(q) ? 0 : -errno;
}

/* Those of the network namespace that we are in. */
static int list(struct sock_state *st, const struct ckpt_ns *ns, void *arg)
{
	struct listing *x = arg;
	CKPT_AUTO_FD int nl = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
	int r = nl < 0 ? -errno : ask(nl);

	x->st = st;
	x->net = ns;
	return r ? r : sock_nl_list(nl, x->buf, x->size, take_socket, x);
}

int sock_unix_diag(struct ckpt_run *run, struct ckpt_error *err)
{
	struct sock_state *st = sock_state(run);
	const size_t size = 256 * 1024;
	CKPT_AUTO_FREE char *buf = malloc(size);
	struct listing x = { .buf = buf, .size = size };

	if (st->diag_known)
		return 0;
	if (!buf)
		return ckpt_fail_sys(err, ENOMEM, "list of unix sockets");
	if (sock_net_each(run, list, &x, "asking the kernel for its unix sockets (unix_diag)", err))
		return -err->err;
	if (st->n_diag)
		qsort(st->diag, st->n_diag, sizeof(*st->diag), by_ino);
	st->diag_known = true;
	return 0;
}

const struct sock_unix_diag *sock_unix_find(const struct sock_state *st, uint64_t ino)
{
	struct sock_unix_diag key = { .ino = (uint32_t)ino };

	return st->n_diag ? bsearch(&key, st->diag, st->n_diag, sizeof(key), by_ino) : NULL;
}

/* Each network namespace has abstract names of its own; paths are of all of them. */
static bool listens_there(const struct sock_unix_diag *l, const struct sock_unix_diag *d,
			  const struct sock_unix_diag *same, bool abstract)
{
	if (abstract)
		return l->net == d->net;
	return !same || (l->has_file == same->has_file && l->file_ino == same->file_ino &&
			 l->file_dev == same->file_dev);
}

const struct sock_unix_diag *sock_unix_listener(const struct sock_state *st,
						const struct sock_unix_diag *d,
						const struct sock_unix_diag *same,
						const struct sock_name *n)
{
	for (size_t i = 0; i < st->n_diag; i++) {
		const struct sock_unix_diag *l = &st->diag[i];
		struct sockaddr_un a = { .sun_family = AF_UNIX };
		struct sock_name other;

		if (l->state != TCP_LISTEN || l->type != d->type ||
		    !listens_there(l, d, same, n->abstract))
			continue;
		memcpy(a.sun_path, l->name, l->name_len);
		if (sock_name_take(&a, offsetof(struct sockaddr_un, sun_path) + l->name_len,
				   &other) &&
		    sock_name_same(&other, n))
			return l;
	}
	return NULL;
}

int sock_unix_peer(int fd, uint32_t *peer)
{
	CKPT_AUTO_FD int nl = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
	struct {
		struct nlmsghdr h;
		struct unix_diag_req r;
	} q = {
		.h = { .nlmsg_len = sizeof(q),
		       .nlmsg_type = SOCK_DIAG_BY_FAMILY,
		       .nlmsg_flags = NLM_F_REQUEST },
		.r = { .sdiag_family = AF_UNIX,
		       .udiag_states = UINT32_MAX,
		       .udiag_show = UDIAG_SHOW_PEER,
		       .udiag_cookie = { UINT32_MAX, UINT32_MAX } },
	};
	struct {
		struct nlmsghdr h;
		struct unix_diag_msg m;
		char rest[256];
	} answer = { 0 };
	const struct rtattr *a = (const struct rtattr *)(&answer.m + 1);
	struct stat st;
	ssize_t len;

	if (nl < 0 || fstat(fd, &st))
		return -errno;
	q.r.udiag_ino = (uint32_t)st.st_ino;
	if (send(nl, &q, sizeof(q), 0) != sizeof(q))
		return -errno;
	len = recv(nl, &answer, sizeof(answer), 0);
	if (len < 0)
		return -errno;
	if (answer.h.nlmsg_type != SOCK_DIAG_BY_FAMILY ||
	    len < (ssize_t)(NLMSG_LENGTH(sizeof(answer.m)) + RTA_LENGTH(sizeof(*peer))) ||
	    a->rta_type != UNIX_DIAG_PEER)
		return -ENOTCONN;
	memcpy(peer, RTA_DATA(a), sizeof(*peer));
	return 0;
}

unsigned sock_in_flight(const struct ckpt_fd_found *f)
{
	const char *line = strstr(f->fdinfo, "scm_fds:");

	return line ? (unsigned)strtoul(line + strlen("scm_fds:"), NULL, 10) : 0;
}
