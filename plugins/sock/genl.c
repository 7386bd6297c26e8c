/* SPDX-License-Identifier: MIT */
/*
 * Families of generic netlink. Their numbers, and those of their groups, are given in the order in
 * which the kernel and its modules have registered them, so groups are saved by name. The program
 * has looked up the family's number, which must be the same at the restore.
 */
#include "genl.h"

#include <dirent.h>
#include <linux/genetlink.h>
#include <linux/netlink.h>
#include <stdio.h>
#include <sys/socket.h>

#define BUFFER (256U * 1024)

/* ---- what there is on this machine ------------------------------------------------------------
 */

struct group {
	char name[GENL_NAMSIZ];
	uint32_t number;
};

struct family {
	char name[GENL_NAMSIZ];
	uint32_t number;
	struct group groups[32];
	size_t n_groups;
};

struct families {
	struct family *list;
	size_t n;
};

/* Attributes of `from`, `left` bytes, one after the other; NULL at the end. */
static const struct nlattr *next_attr(const struct nlattr *a, const void *from, size_t left)
{
	const char *start = from, *at = a ? (const char *)a + NLA_ALIGN(a->nla_len) : start;

	if (at > start + left || (size_t)(start + left - at) < sizeof(*a))
		return NULL;
	a = (const struct nlattr *)(const void *)at;
	return a->nla_len < sizeof(*a) || a->nla_len > (size_t)(start + left - at) ? NULL : a;
}

static const void *data_of(const struct nlattr *a, size_t *len)
{
	*len = a->nla_len - NLA_HDRLEN;
	return (const char *)a + NLA_HDRLEN;
}

static int type_of(const struct nlattr *a)
{
	return a->nla_type & NLA_TYPE_MASK;
}

static void take_name(const struct nlattr *a, char *out)
{
	size_t len;
	const char *text = data_of(a, &len);

	snprintf(out, GENL_NAMSIZ, "%.*s", (int)len, text);
}

static void take_group(struct family *f, const struct nlattr *group)
{
	struct group *g = &f->groups[f->n_groups];
	size_t left, len;
	const void *inside = data_of(group, &left);

	if (f->n_groups == CKPT_ARRAY_SIZE(f->groups))
		return;
	*g = (struct group){ 0 };
	for (const struct nlattr *a = next_attr(NULL, inside, left); a;
	     a = next_attr(a, inside, left)) {
		const void *data = data_of(a, &len);

		if (type_of(a) == CTRL_ATTR_MCAST_GRP_NAME)
			take_name(a, g->name);
		else if (type_of(a) == CTRL_ATTR_MCAST_GRP_ID && len == sizeof(g->number))
			memcpy(&g->number, data, sizeof(g->number));
	}
	f->n_groups += g->number && g->name[0];
}

static int take_family(void *arg, struct nlmsghdr *h)
{
	struct families *fs = arg;
	const char *from = (const char *)NLMSG_DATA(h) + GENL_HDRLEN;
	const size_t left = h->nlmsg_len - NLMSG_LENGTH(GENL_HDRLEN);
	struct family *more, *f;
	uint16_t number = 0;
	size_t len, inner;

	if (h->nlmsg_type != GENL_ID_CTRL || h->nlmsg_len < NLMSG_LENGTH(GENL_HDRLEN))
		return -EPROTO;
	more = realloc(fs->list, (fs->n + 1) * sizeof(*more));
	if (!more)
		return -ENOMEM;
	fs->list = more;
	f = &more[fs->n];
	*f = (struct family){ 0 };
	for (const struct nlattr *a = next_attr(NULL, from, left); a;
	     a = next_attr(a, from, left)) {
		const void *data = data_of(a, &len);

		if (type_of(a) == CTRL_ATTR_FAMILY_NAME)
			take_name(a, f->name);
		else if (type_of(a) == CTRL_ATTR_FAMILY_ID && len == sizeof(number))
			memcpy(&number, data, sizeof(number));
		else if (type_of(a) == CTRL_ATTR_MCAST_GROUPS)
			for (const struct nlattr *g = next_attr(NULL, data, len); g;
			     g = next_attr(g, data, len)) {
				data_of(g, &inner);
				take_group(f, g);
			}
	}
	f->number = number;
	fs->n += number && f->name[0];
	return 0;
}

struct question {
	struct nlmsghdr h;
	struct genlmsghdr g;
	struct nlattr a;
	char name[GENL_NAMSIZ];
};

/* All families, or (by name) one, which loads the module that it is in. */
static int ask(int nl, const char *name)
{
	struct question q = {
		.h = { .nlmsg_len = name ? sizeof(q) : NLMSG_LENGTH(GENL_HDRLEN),
		       .nlmsg_type = GENL_ID_CTRL,
		       .nlmsg_flags = name ? NLM_F_REQUEST : NLM_F_REQUEST | NLM_F_DUMP },
		.g = { .cmd = CTRL_CMD_GETFAMILY, .version = 1 },
		.a = { .nla_type = CTRL_ATTR_FAMILY_NAME },
	};

	if (name) {
		snprintf(q.name, sizeof(q.name), "%s", name);
		q.a.nla_len = (uint16_t)(NLA_HDRLEN + strlen(q.name) + 1);
	}
	return send(nl, &q, q.h.nlmsg_len, 0) == (ssize_t)q.h.nlmsg_len ? 0 : -errno;
}

static int families_read(struct families *fs, struct ckpt_error *err)
{
	CKPT_AUTO_FD int nl = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_GENERIC);
	CKPT_AUTO_FREE char *buf = malloc(BUFFER);
	int r = !buf ? -ENOMEM : nl < 0 ? -errno : ask(nl, NULL);

	fs->n = 0;
	if (!r)
		r = sock_nl_list(nl, buf, BUFFER, take_family, fs);
	return r < 0 ? ckpt_fail_sys(err, -r, "list of the families of generic netlink") : 0;
}

static void families_free(struct families *fs)
{
	free(fs->list);
}
#define AUTO_FAMILIES __attribute__((cleanup(families_free))) struct families

static const struct family *family_find(const struct families *fs, const char *name)
{
	for (size_t i = 0; i < fs->n; i++)
		if (!strcmp(fs->list[i].name, name))
			return &fs->list[i];
	return NULL;
}

/* By its name, which loads the module that it is in. */
static const struct family *family_load(struct families *fs, const char *name,
					struct ckpt_error *err)
{
	CKPT_AUTO_FD int nl = -1;
	char answer[4096];

	if (family_find(fs, name))
		return family_find(fs, name);
	nl = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_GENERIC);
	/* what comes of it is to be seen in the list */
	if (nl < 0 || ask(nl, name) || recv(nl, answer, sizeof(answer), 0) < 0)
		return NULL;
	return families_read(fs, err) < 0 ? NULL : family_find(fs, name);
}

static const struct group *group_find(const struct family *f, const char *name)
{
	for (size_t i = 0; f && i < f->n_groups; i++)
		if (!strcmp(f->groups[i].name, name))
			return &f->groups[i];
	return NULL;
}

static const struct group *group_numbered(const struct families *fs, uint32_t number,
					  const struct family **family)
{
	for (size_t i = 0; i < fs->n; i++)
		for (size_t k = 0; k < fs->list[i].n_groups; k++)
			if (fs->list[i].groups[k].number == number) {
				*family = &fs->list[i];
				return &fs->list[i].groups[k];
			}
	return NULL;
}

/* ---- dump ------------------------------------------------------------------------------------ */

/* Which frames a program has registered for, nl80211 keeps to itself. */
static bool has_wireless(void)
{
	CKPT_AUTO_DIR DIR *dir = opendir("/sys/class/ieee80211");

	return dir && ckpt_next_entry(dir);
}

int sock_generic_survey(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	uint32_t groups[SOCK_GROUPS_MAX];
	AUTO_FAMILIES fs = { 0 };
	const struct family *family;
	char object[512], reason[96];
	size_t n;
	int r;

	snprintf(object, sizeof(object), "fd %d (%s)", f->num, f->link);
	r = ckpt_refuse_off(run, "generic", f->task, object);
	if (r <= 0)
		return r < 0 && r != -ECANCELED ? r : 1;
	if (has_wireless())
		return sock_refuse(run, f, "netlink-protocol",
				   "there are wireless devices, and what it has registered with "
				   "nl80211 cannot be told",
				   "close it before the dump, or allow the loss");
	r = sock_read_groups(f->fd, groups, &n);
	if (r)
		return ckpt_fail_sys(err, -r, "groups of a netlink socket");
	r = n ? families_read(&fs, err) : 0;
	for (size_t i = 0; i < n && r == 0; i++) {
		if (group_numbered(&fs, groups[i], &family))
			continue;
		snprintf(reason, sizeof(reason), "it is in the group %u, which no family has",
			 groups[i]);
		return sock_refuse(run, f, "netlink-protocol", reason,
				   "close it before the dump, or allow the loss");
	}
	return r;
}

int sock_generic_put(struct ckpt_run *run, Ckpt__Sock__Netlink *rec, struct ckpt_error *err)
{
	AUTO_FAMILIES fs = { 0 };
	const size_t n = rec->n_groups;
	CKPT_AUTO_FREE Ckpt__Sock__Membership *groups = calloc(n + 1, sizeof(*groups));
	CKPT_AUTO_FREE Ckpt__Sock__Membership **in = calloc(n + 1, sizeof(*in));
	CKPT_AUTO_FREE Ckpt__Sock__Family *families = NULL;
	CKPT_AUTO_FREE Ckpt__Sock__Family **list = NULL;
	int r = families_read(&fs, err);

	if (r < 0)
		return r;
	families = calloc(fs.n + 1, sizeof(*families));
	list = calloc(fs.n + 1, sizeof(*list));
	if (!families || !list || !groups || !in)
		return ckpt_fail_sys(err, ENOMEM, "families of generic netlink");
	for (size_t i = 0; i < fs.n; i++) {
		ckpt__sock__family__init(&families[i]);
		families[i].name = fs.list[i].name;
		families[i].number = fs.list[i].number;
		list[i] = &families[i];
	}
	for (size_t i = 0; i < n; i++) {
		const struct family *family = NULL;
		const struct group *g = group_numbered(&fs, rec->groups[i], &family);

		if (!g)
			return ckpt_fail(err, ENOENT, "group %u of generic netlink has gone",
					 rec->groups[i]);
		ckpt__sock__membership__init(&groups[i]);
		groups[i].family = (char *)(uintptr_t)family->name;
		groups[i].group = (char *)(uintptr_t)g->name;
		in[i] = &groups[i];
	}
	rec->n_groups = 0;
	rec->memberships = in;
	rec->n_memberships = n;
	rec->families = list;
	rec->n_families = fs.n;
	return ckpt_record_put(run, SOCK_NETLINK, &rec->base, err);
}

/* ---- restore --------------------------------------------------------------------------------- */

int sock_generic_plan(struct ckpt_run *run, const Ckpt__Sock__Netlink *rec, struct ckpt_error *err)
{
	const bool check = ckpt_opt_bool(run, "check-families");
	AUTO_FAMILIES fs = { 0 };
	int r = ckpt_plan_only(run) ? 0 : families_read(&fs, err);

	for (size_t i = 0; i < rec->n_families && r == 0 && !ckpt_plan_only(run) && check; i++) {
		const Ckpt__Sock__Family *was = rec->families[i];
		const struct family *now = family_load(&fs, was->name, err);

		if (err->err)
			return -err->err;
		if (!now || now->number != was->number)
			ckpt_unmet(run, CKPT_EXIT_FAILED,
				   "load modules in the order that gives it that number, or say -o "
				   "sock.check-families=no if the program does not use it",
				   "the family %.16s of generic netlink %s, it had the number %u",
				   was->name, now ? "has another number" : "is missing",
				   was->number);
	}
	for (size_t i = 0; i < rec->n_memberships && r == 0 && !ckpt_plan_only(run); i++) {
		const Ckpt__Sock__Membership *m = rec->memberships[i];
		const struct family *f = family_load(&fs, m->family, err);

		if (err->err)
			return -err->err;
		if (!group_find(f, m->group))
			ckpt_unmet(run, CKPT_EXIT_FAILED, "load the module that has it",
				   "there is no group %.16s of a family %.16s of generic netlink",
				   m->group, m->family);
	}
	return r;
}

int sock_generic_join(int fd, const Ckpt__Sock__Netlink *rec, struct ckpt_error *err)
{
	AUTO_FAMILIES fs = { 0 };
	int r = rec->n_memberships ? families_read(&fs, err) : 0;

	for (size_t i = 0; i < rec->n_memberships && r == 0; i++) {
		const Ckpt__Sock__Membership *m = rec->memberships[i];
		const struct group *g = group_find(family_find(&fs, m->family), m->group);

		if (!g)
			return ckpt_fail(err, ENOENT, "group %.16s of the family %.16s has gone",
					 m->group, m->family);
		if (setsockopt(fd, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &g->number,
			       sizeof(g->number)))
			return ckpt_fail_sys(err, errno, "NETLINK_ADD_MEMBERSHIP %u", g->number);
	}
	return r;
}
