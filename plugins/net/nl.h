/* SPDX-License-Identifier: MIT */
/*
 * Netlink messages and sockets: the few functions that this plugin needs, under the names that
 * libnl made known. The library itself would cost every command, also those that meet no network
 * namespace, what five plugins cost. Functions return 0 or a negative errno.
 */
#ifndef CKPT_NET_NL_H
#define CKPT_NET_NL_H

#include <linux/netlink.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Attributes */

static inline int nla_type(const struct nlattr *a)
{
	return a->nla_type & NLA_TYPE_MASK;
}

static inline void *nla_data(const struct nlattr *a)
{
	return (char *)(uintptr_t)a + NLA_HDRLEN;
}

static inline int nla_len(const struct nlattr *a)
{
	return a->nla_len - NLA_HDRLEN;
}

static inline bool nla_ok(const struct nlattr *a, int left)
{
	return left >= (int)sizeof(*a) && a->nla_len >= sizeof(*a) && a->nla_len <= left;
}

static inline struct nlattr *nla_next(const struct nlattr *a, int *left)
{
	int size = NLA_ALIGN(a->nla_len);

	*left -= size;
	return (struct nlattr *)(void *)((char *)(uintptr_t)a + size);
}

#define nla_for_each_nested(at, nest, left) \
	for (at = nla_data(nest), left = nla_len(nest); nla_ok(at, left); at = nla_next(at, &left))

/* Values of a wrong length are read as far as they go: the rest is 0. */
static inline uint64_t nla_get(const struct nlattr *a, size_t size)
{
	uint64_t value = 0;
	size_t len = (size_t)nla_len(a);

	memcpy(&value, nla_data(a), len < size ? len : size);
	return value;
}

static inline uint8_t nla_get_u8(const struct nlattr *a)
{
	return (uint8_t)nla_get(a, sizeof(uint8_t));
}

static inline uint32_t nla_get_u32(const struct nlattr *a)
{
	return (uint32_t)nla_get(a, sizeof(uint32_t));
}

static inline uint64_t nla_get_u64(const struct nlattr *a)
{
	return nla_get(a, sizeof(uint64_t));
}

struct nlattr *nla_find(struct nlattr *first, int len, int type);
/* tb[0..max]: the last attribute of each type, or NULL. */
void nla_parse(struct nlattr **tb, int max, struct nlattr *first, int len);

static inline void nla_parse_nested(struct nlattr **tb, int max, const struct nlattr *nest)
{
	nla_parse(tb, max, nla_data(nest), nla_len(nest));
}

/* Messages that came */

static inline void *nlmsg_data(const struct nlmsghdr *h)
{
	return (char *)(uintptr_t)h + NLMSG_HDRLEN;
}

static inline int nlmsg_datalen(const struct nlmsghdr *h)
{
	return (int)h->nlmsg_len - NLMSG_HDRLEN;
}

static inline struct nlattr *nlmsg_attrdata(const struct nlmsghdr *h, int header)
{
	return (struct nlattr *)(void *)((char *)nlmsg_data(h) + NLMSG_ALIGN(header));
}

static inline int nlmsg_attrlen(const struct nlmsghdr *h, int header)
{
	int len = nlmsg_datalen(h) - (int)NLMSG_ALIGN(header);

	return len < 0 ? 0 : len;
}

static inline struct nlattr *nlmsg_find_attr(const struct nlmsghdr *h, int header, int type)
{
	return nla_find(nlmsg_attrdata(h, header), nlmsg_attrlen(h, header), type);
}

static inline void nlmsg_parse(const struct nlmsghdr *h, int header, struct nlattr **tb, int max)
{
	nla_parse(tb, max, nlmsg_attrdata(h, header), nlmsg_attrlen(h, header));
}

/* Messages that are built */

struct nl_msg;

struct nl_msg *nlmsg_alloc_simple(int type, int flags);
void nlmsg_free(struct nl_msg *m);
/* What comes before the attributes. */
int nlmsg_append(struct nl_msg *m, const void *data, size_t len);
int nla_put(struct nl_msg *m, int type, int len, const void *data);
/* NULL if there is no room. */
struct nlattr *nla_nest_start(struct nl_msg *m, int type);
/* One that holds nothing is taken away again. */
int nla_nest_end(struct nl_msg *m, struct nlattr *nest);

static inline int nla_put_u32(struct nl_msg *m, int type, uint32_t value)
{
	return nla_put(m, type, sizeof(value), &value);
}

static inline int nla_put_string(struct nl_msg *m, int type, const char *text)
{
	return nla_put(m, type, (int)strlen(text) + 1, text);
}

/* Sockets */

struct nl_sock;

struct nl_sock *nl_socket_alloc(void);
void nl_socket_free(struct nl_sock *s);
int nl_connect(struct nl_sock *s, int protocol);
int nl_socket_get_fd(const struct nl_sock *s);

/*
 * Sends a request, frees it, and calls `each` for all messages of the answer until it returns
 * something else than 0; a dump's answer has an end, another's an acknowledgement.
 */
int nl_request(struct nl_sock *s, struct nl_msg *m, int (*each)(struct nlmsghdr *h, void *arg),
	       void *arg);
const char *nl_geterror(int r);

#endif
