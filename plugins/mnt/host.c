/* SPDX-License-Identifier: MIT */
/*
 * What comes from outside is known by a path. A runtime mounts a filesystem for its container and
 * takes it off with it: what that path leads to then is the directory below.
 */
#include <limits.h>
#include <stdio.h>

#include "mnt.h"

static bool in_memory(const char *type)
{
	return !strcmp(type, "tmpfs") || !strcmp(type, "ramfs");
}

/* The last one there: it lies on top. */
static const struct ckpt_mount *at_point(const struct ckpt_mounts *all, const char *point)
{
	const struct ckpt_mount *found = NULL;

	for (size_t i = 0; i < all->n; i++)
		if (!strcmp(all->list[i].point, point))
			found = &all->list[i];
	return found;
}

/* One that whoever made it for the tree alone would mount so: all of it, elsewhere than there. */
void mnt_survey_memory(struct ckpt_run *run, const struct mnt_mount *m)
{
	char reason[PATH_MAX + 96], hint[2 * PATH_MAX + 128];
	const char *point = m->m->point;

	if (m->key || !m->host || !in_memory(m->m->type) || strcmp(m->m->root, "/") || m->below ||
	    !strcmp(m->path, point))
		return;
	snprintf(reason, sizeof(reason),
		 "its files are in memory and not saved, since ckpt has it mounted too, at %s",
		 m->path);
	snprintf(hint, sizeof(hint),
		 "save them with -o mnt.own=%s; if it stays when the tree is gone: "
		 "-o mnt.external=%s, and -o mnt.external=%s:%s at the restore",
		 point, point, point, m->path);
	mnt_refuse(run, m->ns, "outside-memory", point, reason, hint);
}

bool mnt_is_named_own(const struct mnt_state *st, const struct ckpt_mount *m)
{
	for (size_t i = 0; i < ckpt_opt_count(st->run, "own"); i++)
		for (size_t k = 0; k < st->n_mounts; k++) {
			const struct ckpt_mount *other = st->mounts[k].m;

			if (other->major == m->major && other->minor == m->minor &&
			    !strcmp(other->point, ckpt_opt_item(st->run, "own", i)))
				return true;
		}
	return false;
}

static const char *text_of(const ProtobufCMessage *m, const char *name)
{
	const ProtobufCFieldDescriptor *f =
		protobuf_c_message_descriptor_get_field_by_name(m->descriptor, name);

	return f && f->type == PROTOBUF_C_TYPE_STRING && f->label != PROTOBUF_C_LABEL_REPEATED
		       ? *(const char *const *)(const void *)((const char *)m + f->offset)
		       : "";
}

/* A directory of control groups that is made from the plugin cgroup's records before mounts are. */
bool mnt_host_comes(struct ckpt_run *run, const Ckpt__Mnt__Mount *rec)
{
	const bool two = !strcmp(rec->host_type, "cgroup2");
	const size_t skip = rec->host_point.len;

	if ((!two && strcmp(rec->host_type, "cgroup")) || rec->host.len <= skip)
		return false;
	for (size_t i = 0; i < ckpt_record_count(run, "cgroup.group"); i++) {
		const ProtobufCMessage *g = ckpt_record_at(run, "cgroup.group", i);
		const char *path = text_of(g, "path");

		if (two == !*text_of(g, "hierarchy") && strlen(path) == rec->host.len - skip &&
		    !memcmp(path, rec->host.data + skip, rec->host.len - skip))
			return true;
	}
	return false;
}

int mnt_plan_host(struct ckpt_run *run, const Ckpt__Mnt__Mount *rec, struct ckpt_error *err)
{
	const char *hint = "mount it again, or say where it is: -o mnt.external=POINT:/path";
	char path[PATH_MAX], point[PATH_MAX];
	const struct ckpt_mounts *all;
	const struct ckpt_mount *now;
	int r;

	/* mounts of a copy are others than ckpt's */
	if (!rec->host_point.len || ckpt_is_copy(run))
		return 0;
	r = ckpt_mounts(run, ckpt_ns_own(run, CKPT_NS_MNT), &all, err);
	if (r < 0)
		return r;
	now = at_point(all, mnt_bytes(&rec->host_point, path, sizeof(path)));
	mnt_bytes(&rec->point, point, sizeof(point));
	if (!now)
		ckpt_unmet(run, CKPT_EXIT_FAILED, hint,
			   "%s is to come from %s, where a %.40s was mounted, and nothing is here",
			   point, path, *rec->host_type ? rec->host_type : "filesystem");
	else if (in_memory(rec->host_type) != in_memory(now->type))
		ckpt_unmet(run, CKPT_EXIT_FAILED, hint,
			   "%s is to come from %s, where a %.40s was mounted, and here it is a %s",
			   point, path, rec->host_type, now->type);
	return 0;
}
