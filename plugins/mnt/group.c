/* SPDX-License-Identifier: MIT */
/*
 * restore: propagation. All mounts are made private, since what is mounted on a shared one
 * is seen elsewhere; when all of all namespaces are there, they join their groups. A group
 * begins with one mount, the others are told to be like that one.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>

#include "mnt.h"

struct groups {
	struct ckpt_run *run;
	struct mnt_made *made;
	bool *done; /* by mount */
};

static const Ckpt__Mnt__Mount *mount_at(const struct groups *g, size_t i)
{
	return ckpt_record_at(g->run, "mnt.mount", i);
}

struct change {
	int from, to; /* -1: no group to take */
	uint64_t propagation;
};

static int change(void *arg, struct ckpt_error *err)
{
	const struct change *c = arg;
	struct mount_attr a = { .propagation = c->propagation };

	if (c->from >= 0 &&
	    move_mount(c->from, "", c->to, "",
		       MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH | MOVE_MOUNT_SET_GROUP))
		return ckpt_fail_sys(err, errno, "move_mount(2) with MOVE_MOUNT_SET_GROUP");
	if (c->propagation && mount_setattr(c->to, "", AT_EMPTY_PATH, &a, sizeof(a)))
		return ckpt_fail_sys(err, errno, "mount_setattr(2), propagation %#llx",
				     (unsigned long long)c->propagation);
	return 0;
}

/* Its propagation can be set from within its namespace only. */
static int set(struct groups *g, size_t i, int from, uint64_t propagation, struct ckpt_error *err)
{
	struct ckpt_ns_place place = { .ns = { [CKPT_NS_MNT] = ckpt_ns_by_id(
						       g->run, mount_at(g, i)->ns) } };
	struct change c = { from, g->made->mounts[i], propagation };

	return ckpt_ns_run(g->run, &place, change, &c, err);
}

/* A mount that is in that group by now, with the widest view: it can pass the group on. */
static int member(const struct groups *g, uint32_t group)
{
	int best = -1;

	for (size_t i = 0; i < g->made->n_mounts; i++) {
		const Ckpt__Mnt__Mount *rec = mount_at(g, i);

		if (g->done[i] && rec->peers == group &&
		    (best < 0 || rec->root.len < mount_at(g, (size_t)best)->root.len))
			best = (int)i;
	}
	return best;
}

static int host_mount(const Ckpt__Mnt__Mount *rec, struct ckpt_error *err)
{
	char path[PATH_MAX];
	int fd = open_tree(AT_FDCWD, mnt_bytes(&rec->host_point, path, sizeof(path)),
			   OPEN_TREE_CLOEXEC | AT_SYMLINK_NOFOLLOW);

	return fd < 0 ? ckpt_fail_sys(err, errno, "open_tree(2) of %s", path) : fd;
}

/* From which mount does it take what it has? *slave: it is to receive from that group only. */
static int source_of(struct groups *g, const Ckpt__Mnt__Mount *rec, bool *slave, int *host,
		     struct ckpt_error *err)
{
	int at = rec->peers ? member(g, rec->peers) : -1;

	*slave = false;
	if (at >= 0)
		return g->made->mounts[at];
	if (rec->host_peers || rec->host_master) {
		*slave = !rec->host_peers;
		*host = host_mount(rec, err);
		return *host;
	}
	if (!rec->master)
		return -1;
	*slave = true;
	at = member(g, rec->master);
	return at < 0 ? ckpt_fail_image(err, "mount %u receives from a group without members",
					rec->id)
		      : g->made->mounts[at];
}

static int join(struct groups *g, size_t i, struct ckpt_error *err)
{
	const Ckpt__Mnt__Mount *rec = mount_at(g, i);
	CKPT_AUTO_FD int host = -1;
	bool slave;
	int from = source_of(g, rec, &slave, &host, err), r = 0;

	if (from < -1)
		return from;
	if (from >= 0)
		r = set(g, i, from, slave ? MS_SLAVE : 0, err);
	if (r == 0 && rec->peers && (from < 0 || slave))
		r = set(g, i, -1, MS_SHARED, err);
	if (r == 0 && rec->unbindable)
		r = set(g, i, -1, MS_UNBINDABLE, err);
	g->done[i] = true;
	return r < 0 ? ckpt_wrap(err, "mount %u (%.*s)", rec->id, (int)rec->point.len,
				 (const char *)rec->point.data)
		     : 0;
}

/* Can it be its turn: is whom it receives from there? The widest of a group goes first. */
static bool ready(const struct groups *g, size_t i)
{
	const Ckpt__Mnt__Mount *rec = mount_at(g, i);

	if (rec->master && !rec->host_master && member(g, rec->master) < 0)
		return false;
	for (size_t k = 0; rec->peers && k < g->made->n_mounts; k++)
		if (!g->done[k] && mount_at(g, k)->peers == rec->peers &&
		    mount_at(g, k)->root.len < rec->root.len)
			return false;
	return true;
}

static bool wants_any(const Ckpt__Mnt__Mount *rec)
{
	return rec->peers || rec->master || rec->unbindable;
}

/* Groups that wait for each other leave their mounts private. */
static int all_done(const struct groups *g, struct ckpt_error *err)
{
	for (size_t i = 0; i < g->made->n_mounts; i++)
		if (!g->done[i] && wants_any(mount_at(g, i)))
			return ckpt_fail_image(err,
					       "mount %u receives from a group without members",
					       mount_at(g, i)->id);
	return 0;
}

int mnt_join_groups(struct ckpt_run *run, struct mnt_made *made, struct ckpt_error *err)
{
	CKPT_AUTO_FREE bool *done = calloc(made->n_mounts + 1, sizeof(*done));
	struct groups g = { run, made, done };
	bool more = true;

	if (!done)
		return ckpt_fail(err, ENOMEM, "out of memory");
	while (more) {
		more = false;
		for (size_t i = 0; i < made->n_mounts; i++) {
			const Ckpt__Mnt__Mount *rec = mount_at(&g, i);
			int r;

			if (done[i] || !wants_any(rec) || !ready(&g, i))
				continue;
			r = join(&g, i, err);
			if (r < 0)
				return r;
			more = true;
		}
	}
	return all_done(&g, err);
}
