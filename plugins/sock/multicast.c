/* SPDX-License-Identifier: MIT */
/*
 * Multicast groups that a socket has joined. The kernel lists groups by interface
 * and not by socket, but a socket can be asked for its filter of one group: so it
 * is asked about each group that there is.
 */
#include "inet.h"

#include <net/if.h>
#include <stdio.h>

#define SOURCES_MAX 64
#define GROUPS_MAX  256

/* The kernel's struct group_filter, with room. */
union filter {
	struct group_filter g;
	char room[GROUP_FILTER_SIZE(SOURCES_MAX)];
};

static int next_group4(FILE *list, unsigned *ifindex, struct group_filter *g)
{
	struct sockaddr_in *in = (struct sockaddr_in *)&g->gf_group;
	char line[256];
	unsigned addr;

	while (fgets(line, sizeof(line), list)) {
		/* an interface's line begins with its number, its groups' lines with tabs */
		if (line[0] >= '0' && line[0] <= '9')
			*ifindex = (unsigned)strtoul(line, NULL, 10);
		if (line[0] != '\t' || sscanf(line, " %8x", &addr) != 1)
			continue;
		in->sin_family = AF_INET;
		in->sin_addr.s_addr = addr;
		return 1;
	}
	return ferror(list) ? -EIO : 0;
}

static int next_group6(FILE *list, unsigned *ifindex, struct group_filter *g)
{
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&g->gf_group;
	char line[256], hex[33];

	while (fgets(line, sizeof(line), list)) {
		if (sscanf(line, "%u %*s %32s", ifindex, hex) != 2 || strlen(hex) != 32)
			continue;
		in6->sin6_family = AF_INET6;
		for (size_t i = 0; i < 16; i++) {
			unsigned byte;

			if (sscanf(hex + 2 * i, "%2x", &byte) != 1)
				return -EPROTO;
			in6->sin6_addr.s6_addr[i] = (uint8_t)byte;
		}
		return 1;
	}
	return ferror(list) ? -EIO : 0;
}

static const struct protocol {
	int family, level;
	const char *list; /* of the namespace that we are in */
	int (*next)(FILE *list, unsigned *ifindex, struct group_filter *g);
} protocols[] = {
	{ AF_INET, IPPROTO_IP, "/proc/thread-self/net/igmp", next_group4 },
	{ AF_INET6, IPPROTO_IPV6, "/proc/thread-self/net/igmp6", next_group6 },
};

/* Each one that the socket has joined; what `each` returns ends it, unless it is 0. */
static int joined(int fd, const struct protocol *p,
		  int (*each)(const struct group_filter *g, void *arg), void *arg)
{
	CKPT_AUTO_FILE FILE *list = fopen(p->list, "re");
	union filter f = { .g = { 0 } };
	unsigned ifindex = 0;
	int r;

	/* no file: the kernel has no multicast, or not this protocol */
	if (!list)
		return errno == ENOENT ? 0 : -errno;
	while ((r = p->next(list, &ifindex, &f.g)) > 0) {
		socklen_t len = sizeof(f);

		f.g.gf_interface = ifindex;
		f.g.gf_numsrc = SOURCES_MAX;
		if (getsockopt(fd, p->level, MCAST_MSFILTER, &f, &len))
			continue;
		r = each(&f.g, arg);
		if (r)
			return r;
	}
	return r;
}

static int all_joined(struct ckpt_run *run, const struct ckpt_fd_found *f,
		      int (*each)(const struct group_filter *g, void *arg), void *arg,
		      struct ckpt_error *err)
{
	const struct ckpt_ns *ns;
	SOCK_PLACE(place);
	int r = sock_net_of(run, f->fd, &ns, err);

	if (r < 0 || sock_net_enter(ns, &place, err) < 0)
		return -err->err;
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(protocols) && !r; i++)
		if (f->domain == protocols[i].family || f->domain == AF_INET6)
			r = joined(f->fd, &protocols[i], each, arg);
	return r < 0 ? ckpt_fail_sys(err, r, "asking for multicast groups") : r;
}

static int too_much(const struct group_filter *g, void *arg)
{
	size_t *n = arg;

	return ++*n > GROUPS_MAX || g->gf_numsrc > SOURCES_MAX ? 2 : 0;
}

int sock_multicast_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
			  struct ckpt_error *err)
{
	size_t n = 0;
	int r = all_joined(run, f, too_much, &n, err);

	if (r == 2)
		return sock_refuse(run, f, "multicast-many",
				   "the socket has joined many multicast groups, or a group with "
				   "many sources",
				   "leave them before the dump, or allow the loss");
	if (r < 0 || !n || ckpt_feature_on(run, "multicast"))
		return r;
	return sock_refuse_detail(run, f, "multicast",
				  "the socket has joined a multicast group, and the feature "
				  "sock.multicast is switched off",
				  "switch it on");
}

/* ---- collect ------------------------------------------------------------------------ */

struct gathered {
	Ckpt__Sock__Group *groups[GROUPS_MAX];
	size_t n;
};

static void gathered_free(struct gathered *x)
{
	for (size_t i = 0; i < x->n; i++)
		ckpt__sock__group__free_unpacked(x->groups[i], NULL);
}

static int copy_bytes(ProtobufCBinaryData *to, const void *data, size_t len)
{
	to->data = malloc(len ? len : 1);
	if (!to->data)
		return -ENOMEM;
	if (len)
		memcpy(to->data, data, len);
	to->len = len;
	return 0;
}

static int gather(const struct group_filter *g, void *arg)
{
	struct gathered *x = arg;
	Ckpt__Sock__Group *rec;
	char name[IFNAMSIZ] = "";

	if (x->n == GROUPS_MAX || g->gf_numsrc > SOURCES_MAX)
		return -E2BIG;
	rec = malloc(sizeof(*rec));
	if (!rec)
		return -ENOMEM;
	ckpt__sock__group__init(rec);
	x->groups[x->n++] = rec;
	rec->ifindex = g->gf_interface;
	rec->exclude = g->gf_fmode == MCAST_EXCLUDE;
	rec->ifname = strdup(if_indextoname(g->gf_interface, name) ? name : "");
	if (!rec->ifname || copy_bytes(&rec->group, &g->gf_group, sizeof(g->gf_group)) < 0 ||
	    copy_bytes(&rec->sources, g->gf_slist, g->gf_numsrc * sizeof(g->gf_slist[0])) < 0)
		return -ENOMEM;
	return 0;
}

int sock_multicast_collect(struct ckpt_run *run, const struct ckpt_fd_found *f,
			   struct ckpt_error *err)
{
	__attribute__((cleanup(gathered_free))) struct gathered x = { .n = 0 };
	Ckpt__Sock__Multicast rec = CKPT__SOCK__MULTICAST__INIT;
	int r = ckpt_feature_on(run, "multicast") ? all_joined(run, f, gather, &x, err) : 0;

	if (r < 0 || !x.n)
		return r;
	rec.id = f->file;
	rec.groups = x.groups;
	rec.n_groups = x.n;
	return ckpt_record_put(run, SOCK_REC_MULTICAST, &rec.base, err);
}

/* ---- restore ------------------------------------------------------------------------ */

static bool good_address(const uint8_t *data)
{
	const struct sockaddr *sa = (const void *)data;

	return sa->sa_family == AF_INET || sa->sa_family == AF_INET6;
}

static bool good_group(const Ckpt__Sock__Group *g)
{
	const size_t one = sizeof(struct sockaddr_storage);

	if (g->group.len != one || !good_address(g->group.data) || g->sources.len % one ||
	    g->sources.len / one > SOURCES_MAX || !g->ifname[0] ||
	    !sock_interface_ok(g->ifname, g->ifindex) || (!g->exclude && !g->sources.len))
		return false;
	for (size_t at = 0; at < g->sources.len; at += one)
		if (!good_address(g->sources.data + at))
			return false;
	return true;
}

int sock_multicast_plan(struct ckpt_run *run, struct ckpt_error *err)
{
	for (size_t i = 0; i < ckpt_record_count(run, "sock.multicast"); i++) {
		const Ckpt__Sock__Multicast *rec = ckpt_record_at(run, "sock.multicast", i);
		bool good = rec->n_groups <= GROUPS_MAX && sock_file_known(run, rec->id);

		for (size_t k = 0; k < rec->n_groups && good; k++)
			good = good_group(rec->groups[k]);
		if (!good)
			return ckpt_fail_image(err, "open file %u is in no valid multicast groups",
					       rec->id);
		for (size_t k = 0; k < rec->n_groups; k++)
			sock_interface_plan(run, rec->id, rec->groups[k]->ifname);
	}
	return 0;
}

static int join_sources(int fd, int level, unsigned interface, const Ckpt__Sock__Group *g)
{
	struct group_source_req q = { .gsr_interface = interface };
	const size_t one = sizeof(q.gsr_source);

	memcpy(&q.gsr_group, g->group.data, sizeof(q.gsr_group));
	for (size_t at = 0; at < g->sources.len; at += one) {
		memcpy(&q.gsr_source, g->sources.data + at, one);
		if (setsockopt(fd, level, g->exclude ? MCAST_BLOCK_SOURCE : MCAST_JOIN_SOURCE_GROUP,
			       &q, sizeof(q)))
			return -errno;
	}
	return 0;
}

static int join(int fd, const Ckpt__Sock__Group *g, struct ckpt_error *err)
{
	int interface = sock_interface_now(g->ifname, err), level, r = 0;
	struct group_req q = { .gr_interface = (unsigned)interface };

	if (interface < 0)
		return interface;
	memcpy(&q.gr_group, g->group.data, sizeof(q.gr_group));
	level = q.gr_group.ss_family == AF_INET ? IPPROTO_IP : IPPROTO_IPV6;
	if (g->exclude && setsockopt(fd, level, MCAST_JOIN_GROUP, &q, sizeof(q)))
		r = -errno;
	if (!r)
		r = join_sources(fd, level, (unsigned)interface, g);
	return r ? ckpt_fail_sys(err, r, "joining a multicast group on %s", g->ifname) : 0;
}

int sock_multicast_apply(struct ckpt_run *run, uint32_t file, int fd, struct ckpt_error *err)
{
	ssize_t i = ckpt_record_index(run, "sock.multicast", file);
	const Ckpt__Sock__Multicast *rec =
		i < 0 ? NULL : ckpt_record_at(run, "sock.multicast", (size_t)i);
	int r = 0;

	for (size_t k = 0; rec && k < rec->n_groups && !r; k++)
		r = join(fd, rec->groups[k], err);
	return r;
}
