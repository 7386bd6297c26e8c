/* SPDX-License-Identifier: MIT */
/* Netlink messages and sockets. */
#include "nl.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ROOM = 64 << 10 };

struct nl_msg {
	/* grown to ROOM at once: what is not written to costs nothing, and nests do not move */
	struct nlmsghdr *h;
};

struct nl_sock {
	int fd;
	uint32_t seq;
	char *buf;
	size_t size;
};

struct nlattr *nla_find(struct nlattr *first, int len, int type)
{
	for (struct nlattr *a = first; nla_ok(a, len); a = nla_next(a, &len))
		if (nla_type(a) == type)
			return a;
	return NULL;
}

void nla_parse(struct nlattr **tb, int max, struct nlattr *first, int len)
{
	memset(tb, 0, ((size_t)max + 1) * sizeof(*tb));
	for (struct nlattr *a = first; nla_ok(a, len); a = nla_next(a, &len))
		if (nla_type(a) <= max)
			tb[nla_type(a)] = a;
}

struct nl_msg *nlmsg_alloc_simple(int type, int flags)
{
	struct nl_msg *m = malloc(sizeof(*m));

	if (!m)
		return NULL;
	m->h = malloc(ROOM);
	if (!m->h) {
		free(m);
		return NULL;
	}
	*m->h = (struct nlmsghdr){ .nlmsg_len = NLMSG_HDRLEN,
				   .nlmsg_type = (uint16_t)type,
				   .nlmsg_flags = (uint16_t)(NLM_F_REQUEST | flags) };
	return m;
}

void nlmsg_free(struct nl_msg *m)
{
	if (!m)
		return;
	free(m->h);
	free(m);
}

/* Zeroed and aligned room at the end, or NULL. */
static void *add(struct nl_msg *m, size_t len)
{
	size_t at = NLMSG_ALIGN(m->h->nlmsg_len);
	char *p = (char *)m->h + at;

	if (len > ROOM || at + NLMSG_ALIGN(len) > ROOM)
		return NULL;
	memset(p, 0, NLMSG_ALIGN(len));
	m->h->nlmsg_len = (uint32_t)(at + NLMSG_ALIGN(len));
	return p;
}

int nlmsg_append(struct nl_msg *m, const void *data, size_t len)
{
	void *p = add(m, len);

	if (!p)
		return -ENOMEM;
	memcpy(p, data, len);
	return 0;
}

int nla_put(struct nl_msg *m, int type, int len, const void *data)
{
	struct nlattr *a = len >= 0 && len <= UINT16_MAX - NLA_HDRLEN
				   ? add(m, NLA_HDRLEN + (size_t)len)
				   : NULL;

	if (!a)
		return -ENOMEM;
	a->nla_type = (uint16_t)type;
	a->nla_len = (uint16_t)(NLA_HDRLEN + len);
	if (len)
		memcpy(nla_data(a), data, (size_t)len);
	return 0;
}

struct nlattr *nla_nest_start(struct nl_msg *m, int type)
{
	char *at = (char *)m->h + NLMSG_ALIGN(m->h->nlmsg_len);

	return nla_put(m, type | NLA_F_NESTED, 0, NULL) == 0 ? (struct nlattr *)(void *)at : NULL;
}

int nla_nest_end(struct nl_msg *m, struct nlattr *nest)
{
	size_t len = (size_t)((char *)m->h + m->h->nlmsg_len - (char *)nest);

	if (len > UINT16_MAX)
		return -EMSGSIZE;
	if (len == NLA_HDRLEN)
		m->h->nlmsg_len -= NLA_HDRLEN;
	nest->nla_len = (uint16_t)len;
	return 0;
}

struct nl_sock *nl_socket_alloc(void)
{
	struct nl_sock *s = calloc(1, sizeof(*s));

	if (s)
		s->fd = -1;
	return s;
}

void nl_socket_free(struct nl_sock *s)
{
	if (!s)
		return;
	if (s->fd >= 0)
		close(s->fd);
	free(s->buf);
	free(s);
}

int nl_connect(struct nl_sock *s, int protocol)
{
	s->fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol);
	return s->fd < 0 ? -errno : 0;
}

int nl_socket_get_fd(const struct nl_sock *s)
{
	return s->fd;
}

/* The next datagram, however large. */
static ssize_t receive(struct nl_sock *s)
{
	ssize_t len;

	do
		len = recv(s->fd, NULL, 0, MSG_PEEK | MSG_TRUNC);
	while (len < 0 && errno == EINTR);
	if (len < 0)
		return -errno;
	if ((size_t)len > s->size) {
		char *more = realloc(s->buf, (size_t)len);

		if (!more)
			return -ENOMEM;
		s->buf = more;
		s->size = (size_t)len;
	}
	len = recv(s->fd, s->buf, s->size, 0);
	return len < 0 ? -errno : len;
}

/* Whether that was the end, by a message that says so. */
static bool is_end(const struct nlmsghdr *h, int *result)
{
	const struct nlmsgerr *e = nlmsg_data(h);

	if (h->nlmsg_type == NLMSG_ERROR) {
		*result = nlmsg_datalen(h) < (int)sizeof(*e) ? -EBADMSG : e->error;
		return true;
	}
	if (h->nlmsg_type == NLMSG_DONE) {
		/* a dump that failed half way says why in place of a length */
		*result = nlmsg_datalen(h) >= (int)sizeof(int) && e->error < 0 ? e->error : 0;
		return true;
	}
	if (h->nlmsg_type == NLMSG_OVERRUN)
		*result = -EOVERFLOW;
	return h->nlmsg_type == NLMSG_OVERRUN;
}

static int read_answer(struct nl_sock *s, int (*each)(struct nlmsghdr *h, void *arg), void *arg)
{
	bool interrupted = false;

	for (;;) {
		ssize_t left = receive(s);

		if (left < 0)
			return (int)left;
		for (struct nlmsghdr *h = (void *)s->buf; NLMSG_OK(h, left);
		     h = NLMSG_NEXT(h, left)) {
			int r = 0;

			/* of a request whose answer nobody waited for */
			if (h->nlmsg_seq != s->seq)
				continue;
			interrupted |= (h->nlmsg_flags & NLM_F_DUMP_INTR) != 0;
			if (is_end(h, &r))
				return r == 0 && interrupted ? -EINTR : r;
			if (each)
				r = each(h, arg);
			if (r)
				return r;
		}
	}
}

int nl_request(struct nl_sock *s, struct nl_msg *m, int (*each)(struct nlmsghdr *h, void *arg),
	       void *arg)
{
	struct nlmsghdr *h = m->h;
	ssize_t sent;

	h->nlmsg_seq = ++s->seq;
	if ((h->nlmsg_flags & NLM_F_DUMP) != NLM_F_DUMP)
		h->nlmsg_flags |= NLM_F_ACK;
	sent = send(s->fd, h, h->nlmsg_len, 0);
	nlmsg_free(m);
	return sent < 0 ? -errno : read_answer(s, each, arg);
}

const char *nl_geterror(int r)
{
	return strerrordesc_np(-r);
}
