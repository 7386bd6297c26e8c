/* SPDX-License-Identifier: MIT */
/* The plugin user: owner and id maps of user namespaces. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "user.h"

/* The records of a namespace and of its parent; NULL for ckpt's own. */
static const Ckpt__User__Maps *maps_of(struct ckpt_run *run, const struct ckpt_ns *ns)
{
	return ns->own ? NULL : ckpt_record_by_id(run, "user.maps", ns->id);
}

/* Where a parent has ckpt's ids. */
static int64_t in_parent(const Ckpt__User__Maps *parent, enum user_map which, uint32_t lower,
			 uint32_t count)
{
	struct user_list map;

	if (!parent)
		return lower;
	map = user_map_of(parent, which);
	return user_down(&map, lower, count);
}

static int check_map(const Ckpt__User__Maps *rec, const Ckpt__User__Maps *parent,
		     enum user_map which, struct ckpt_error *err)
{
	static const char *const names[USER_MAPS] = { "uid", "gid", "projid" };
	struct user_list map = user_map_of(rec, which);
	int r = user_check(&map, names[which], err);

	for (size_t i = 0; i < map.n && r == 0; i++) {
		const Ckpt__User__Extent *e = map.list[i];

		if (in_parent(parent, which, e->lower, e->count) < 0)
			r = ckpt_fail_image(err, "%s map: its parent has not got %u to %u",
					    names[which], e->lower, e->lower + e->count - 1);
	}
	return r;
}

static int plan(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err)
{
	const Ckpt__User__Maps *rec, *parent;
	int r = ckpt_record_order(run, "user.maps", err);

	if (r < 0)
		return r;
	rec = ckpt_record_need(run, "user.maps", ns->id, err);
	if (!rec)
		return -err->err;
	parent = maps_of(run, ns->parent);
	for (int which = 0; which < USER_MAPS && r == 0; which++)
		r = check_map(rec, parent, (enum user_map)which, err);
	if (r == 0)
		r = user_limits_plan(run, rec, err);
	if (r < 0)
		return r;
	/* who made it had ids that its parent knew, but has taken away since: nobody has them now
	 */
	if (in_parent(parent, USER_UIDS, rec->owner, 1) < 0 || (parent && !parent->n_gids))
		ckpt_unmet(run, CKPT_EXIT_REFUSED, "make the namespace as a user of its parent",
			   "%s: its owner %u is not mapped in its parent", ns->name, rec->owner);
	return 0;
}

static char *text_of(const Ckpt__User__Maps *rec, const Ckpt__User__Maps *parent,
		     enum user_map which, struct ckpt_error *err)
{
	struct user_list map = user_map_of(rec, which);
	char *text = calloc(1, map.n * 36 + 1), *at = text;

	for (size_t i = 0; text && i < map.n; i++)
		at += sprintf(
			at, "%u %lld %u\n", map.list[i]->first,
			(long long)in_parent(parent, which, map.list[i]->lower, map.list[i]->count),
			map.list[i]->count);
	if (!text)
		ckpt_fail_sys(err, ENOMEM, "map of %zu lines", map.n);
	return text;
}

static int make(struct ckpt_run *run, struct ckpt_ns *ns, struct ckpt_error *err)
{
	const Ckpt__User__Maps *rec = ckpt_record_need(run, "user.maps", ns->id, err);
	const Ckpt__User__Maps *parent = maps_of(run, ns->parent);
	CKPT_AUTO_FREE char *uids = rec ? text_of(rec, parent, USER_UIDS, err) : NULL;
	CKPT_AUTO_FREE char *gids = uids ? text_of(rec, parent, USER_GIDS, err) : NULL;
	CKPT_AUTO_FREE char *projids = gids ? text_of(rec, parent, USER_PROJIDS, err) : NULL;
	struct ckpt_ns_maps maps = { .uid_map = uids, .gid_map = gids, .projid_map = projids };

	if (!projids)
		return -err->err;
	maps.owner = rec->owner;
	/* the group that made it shows nowhere: any that the parent has */
	maps.group = parent ? parent->gids[0]->lower : getegid();
	maps.deny_setgroups = rec->deny_setgroups;
	return ckpt_ns_make_user(run, ns, &maps, err);
}

static int64_t id_inside(struct ckpt_run *run, const struct ckpt_ns *ns, enum ckpt_ns_id what,
			 uint32_t id)
{
	const Ckpt__User__Maps *rec = maps_of(run, ns);
	struct user_list map;

	if (!rec || (what == CKPT_NS_GROUP && rec->deny_setgroups))
		return -1;
	map = user_map_of(rec, what == CKPT_NS_UID ? USER_UIDS : USER_GIDS);
	if (id == CKPT_NS_NO_ID)
		return map.n ? 0 : -1;
	return user_down(&map, id, 1);
}

static const struct ckpt_ns_kind kind = {
	.size = sizeof(kind),
	.type = CKPT_NS_USER,
	.feature = "maps",
	.collect = user_collect,
	.plan = plan,
	.make = make,
	/* what counts is all there by then: a limit may be below it */
	.settle = user_limits_write,
	.id_inside = id_inside,
};

static const struct ckpt_extension extensions[] = {
	{ CKPT_NS_POINT, "user", &kind },
	{ NULL, NULL, NULL },
};

static const struct ckpt_feature features[] = {
	{ "maps", "user namespaces with their owner, id maps and setgroups" },
	{ "limits", "user.max_*: how many objects their users may have" },
	{ NULL, NULL },
};

static const struct ckpt_record_type records[] = {
	{ USER_REC_MAPS, "maps", &ckpt__user__maps__descriptor },
	{ 0, NULL, NULL },
};

CKPT_PLUGIN{
	CKPT_PLUGIN_HEADER,
	.name = "user",
	.version = "0.1.0",
	.summary = "owner and id maps of user namespaces",
	.license = "MIT",
	.features = features,
	.records = records,
	.extensions = extensions,
	.state_free = user_state_free,
};
