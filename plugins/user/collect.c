/* SPDX-License-Identifier: MIT */
/* Read the maps of a namespace, from a task that is in it or by going there. */
#include <fcntl.h>
#include <linux/nsfs.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>

#include "user.h"

static const char *const files[USER_MAPS] = { "uid_map", "gid_map", "projid_map" };

/* What /proc says of one namespace. */
struct texts {
	char *map[USER_MAPS], *setgroups;
};

static void texts_free(struct texts *t)
{
	for (int i = 0; i < USER_MAPS; i++)
		free(t->map[i]);
	free(t->setgroups);
}

/* One namespace as collected; its children are translated by it. */
struct saved {
	uint32_t id;
	Ckpt__User__Extent *extents[USER_MAPS], **lists[USER_MAPS];
	size_t n[USER_MAPS];
};

struct state {
	struct saved *saved;
	size_t n;
};

void user_state_free(void *p)
{
	struct state *s = p;

	for (size_t i = 0; s && i < s->n; i++)
		for (int k = 0; k < USER_MAPS; k++) {
			free(s->saved[i].extents[k]);
			free(s->saved[i].lists[k]);
		}
	if (s)
		free(s->saved);
	free(s);
}

static int from_member(const struct ckpt_ns *ns, struct texts *t, struct ckpt_error *err)
{
	for (int i = 0; i < USER_MAPS; i++)
		if (ckpt_proc_read(ns->member, files[i], &t->map[i], err) < 0)
			return -err->err;
	return ckpt_proc_read(ns->member, "setgroups", &t->setgroups, err) < 0 ? -err->err : 0;
}

static int read_own(const char *name, char **out, struct ckpt_error *err)
{
	CKPT_AUTO_FILE FILE *f = NULL;
	char path[40];
	size_t cap = 0;

	snprintf(path, sizeof(path), "/proc/self/%s", name);
	f = fopen(path, "re");
	if (!f)
		return ckpt_fail_sys(err, errno, "%s", path);
	/* a map without lines */
	if (getdelim(out, &cap, 0, f) < 0) {
		free(*out);
		*out = calloc(1, 1);
	}
	if (ferror(f))
		return ckpt_fail(err, EIO, "%s", path);
	return *out ? 0 : ckpt_fail_sys(err, ENOMEM, "%s", path);
}

/* In the namespace: numbers are then those of its parent. */
static int read_inside(void *arg, struct ckpt_error *err)
{
	struct texts *t = arg;
	int r = 0;

	for (int i = 0; i < USER_MAPS && r == 0; i++)
		r = read_own(files[i], &t->map[i], err);
	return r < 0 ? r : read_own("setgroups", &t->setgroups, err);
}

static int parse(const char *text, struct saved *s, enum user_map which,
		 const struct user_list *parent, struct ckpt_error *err)
{
	const char *line = text;
	unsigned first, lower, count;

	s->extents[which] = calloc(USER_MAX_EXTENTS, sizeof(*s->extents[which]));
	s->lists[which] = calloc(USER_MAX_EXTENTS, sizeof(*s->lists[which]));
	if (!s->extents[which] || !s->lists[which])
		return ckpt_fail_sys(err, ENOMEM, "%s", files[which]);
	for (; sscanf(line, " %u %u %u", &first, &lower, &count) == 3;
	     line = strchrnul(line + 1, '\n')) {
		Ckpt__User__Extent *e = &s->extents[which][s->n[which]];
		int64_t ours = parent ? user_up(parent, lower) : lower;

		if (s->n[which] == USER_MAX_EXTENTS || ours < 0)
			return ckpt_fail(err, EOVERFLOW, "%s: line %u %u %u", files[which], first,
					 lower, count);
		ckpt__user__extent__init(e);
		e->first = first;
		e->lower = (uint32_t)ours;
		e->count = count;
		s->lists[which][s->n[which]++] = e;
	}
	return 0;
}

static const struct saved *find(const struct state *st, uint32_t id)
{
	for (size_t i = 0; i < st->n; i++)
		if (st->saved[i].id == id)
			return &st->saved[i];
	return NULL;
}

static struct saved *append(struct ckpt_run *run, uint32_t id)
{
	struct state *st = ckpt_state(run);
	struct saved *more;

	if (!st) {
		st = calloc(1, sizeof(*st));
		ckpt_state_set(run, st);
	}
	more = st ? realloc(st->saved, (st->n + 1) * sizeof(*more)) : NULL;
	if (!more)
		return NULL;
	st->saved = more;
	more[st->n] = (struct saved){ .id = id };
	return &more[st->n++];
}

static int read_maps(struct ckpt_run *run, const struct ckpt_ns *ns, struct saved *s, bool *deny,
		     struct ckpt_error *err)
{
	__attribute__((cleanup(texts_free))) struct texts t = { 0 };
	const struct ckpt_ns_place place = { .ns[CKPT_NS_USER] = ns };
	const struct saved *parent = NULL;
	int r;

	if (ns->member) {
		r = from_member(ns, &t, err);
	} else {
		r = ckpt_ns_run(run, &place, read_inside, &t, err);
		parent = find(ckpt_state(run), ns->parent->id);
	}
	for (int i = 0; i < USER_MAPS && r == 0; i++) {
		struct user_list up = { 0 };

		if (parent)
			up = (struct user_list){ parent->lists[i], parent->n[i] };
		r = parse(t.map[i], s, (enum user_map)i, parent ? &up : NULL, err);
	}
	if (r == 0)
		*deny = !strncmp(t.setgroups, "deny", 4);
	return r;
}

int user_collect(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err)
{
	Ckpt__User__Maps rec = CKPT__USER__MAPS__INIT;
	struct saved *s = append(run, ns->id);
	bool deny = false;
	uid_t owner;
	int r;

	if (!s)
		return ckpt_fail_sys(err, ENOMEM, "maps");
	if (ioctl(ns->fd, NS_GET_OWNER_UID, &owner))
		return ckpt_fail_sys(err, errno, "NS_GET_OWNER_UID");
	r = read_maps(run, ns, s, &deny, err);
	if (r < 0)
		return r;
	rec.id = ns->id;
	rec.owner = owner;
	rec.deny_setgroups = deny;
	rec.uids = s->lists[USER_UIDS];
	rec.n_uids = s->n[USER_UIDS];
	rec.gids = s->lists[USER_GIDS];
	rec.n_gids = s->n[USER_GIDS];
	rec.projids = s->lists[USER_PROJIDS];
	rec.n_projids = s->n[USER_PROJIDS];
	r = user_limits_read(run, ns, &rec, err);
	if (r == 0)
		r = ckpt_record_put(run, USER_REC_MAPS, &rec.base, err);
	user_limits_free(&rec);
	return r;
}
