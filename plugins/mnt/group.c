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
	bool *done;  /* by mount */
	int *hosts;  /* by mount: ckpt's own that it has its group from; -1 */
	bool *lost;  /* by mount: that is another one by now */
	uint32_t ns; /* where we are */
	bool any;
};

static const Ckpt__Mnt__Mount *mount_at(const struct groups *g, size_t i)
{
	return g->made->rec[i];
}

static int set(int from, int to, uint64_t propagation, struct ckpt_error *err)
{
	struct mount_attr a = { .propagation = propagation };

	if (from >= 0 &&
	    move_mount(from, "", to, "",
		       MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH | MOVE_MOUNT_SET_GROUP))
		return ckpt_fail_sys(err, errno, "move_mount(2) with MOVE_MOUNT_SET_GROUP");
	if (propagation && mount_setattr(to, "", AT_EMPTY_PATH, &a, sizeof(a)))
		return ckpt_fail_sys(err, errno, "mount_setattr(2), propagation %#llx",
				     (unsigned long long)propagation);
	return 0;
}

/* A mount that is in that group by now, with the widest view: it can pass the group on. */
static int member(const struct groups *g, uint32_t group)
{
	int best = -1;

	for (size_t i = 0; i < g->made->n_mounts; i++) {
		const Ckpt__Mnt__Mount *rec = mount_at(g, i);

		if (g->done[i] && g->made->mounts[i] >= 0 && rec->peers == group &&
		    (best < 0 || rec->root.len < mount_at(g, (size_t)best)->root.len))
			best = (int)i;
	}
	return best;
}

/* Those of ckpt's own namespace, which is out of sight within others. */
static int open_hosts(struct groups *g, struct ckpt_error *err)
{
	for (size_t i = 0; i < g->made->n_mounts; i++) {
		const Ckpt__Mnt__Mount *rec = mount_at(g, i);
		char path[PATH_MAX];

		if (g->done[i] || (!rec->host_peers && !rec->host_master))
			continue;
		/* a group is of one filesystem */
		g->lost[i] = mnt_external_place(g->run, rec) != NULL;
		if (g->lost[i])
			continue;
		g->hosts[i] =
			mnt_open_path(AT_FDCWD, mnt_bytes(&rec->host_point, path, sizeof(path)));
		if (g->hosts[i] < 0)
			return ckpt_fail_sys(err, errno, "opening %s", path);
	}
	return 0;
}

static void groups_free(struct groups *g)
{
	for (size_t i = 0; g->hosts && i < g->made->n_mounts; i++)
		if (g->hosts[i] >= 0)
			close(g->hosts[i]);
	free(g->hosts);
	free(g->done);
	free(g->lost);
}

/* From which mount does it take what it has? *slave: it is to receive from that group only. */
static int source_of(const struct groups *g, size_t i, bool *slave, struct ckpt_error *err)
{
	const Ckpt__Mnt__Mount *rec = mount_at(g, i);
	int at = rec->peers ? member(g, rec->peers) : -1;

	*slave = false;
	if (at >= 0)
		return g->made->mounts[at];
	if (g->hosts[i] >= 0) {
		*slave = !rec->host_peers;
		return g->hosts[i];
	}
	if (!rec->master || rec->host_master)
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
	const int to = g->made->mounts[i];
	bool slave;
	int from, r = 0;

	from = source_of(g, i, &slave, err);
	if (from < -1)
		return from;
	if (from >= 0)
		r = set(from, to, slave ? MS_SLAVE : 0, err);
	/* what is there by now is private, shows less, or is of another filesystem */
	if (r == -EINVAL && from == g->hosts[i]) {
		*err = (struct ckpt_error){ 0 };
		g->lost[i] = true;
		from = -1;
		r = 0;
	}
	if (r == 0 && rec->peers && (from < 0 || slave))
		r = set(-1, to, MS_SHARED, err);
	if (r == 0 && rec->unbindable)
		r = set(-1, to, MS_UNBINDABLE, err);
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

/* Groups that wait for each other: no dump writes that. */
static int all_done(const struct groups *g, struct ckpt_error *err)
{
	for (size_t i = 0; i < g->made->n_mounts; i++)
		if (!g->done[i] && wants_any(mount_at(g, i)))
			return ckpt_fail_image(err,
					       "mount %u receives from a group without members",
					       mount_at(g, i)->id);
	return 0;
}

/* Propagation can be set from within the mount's namespace only: all that can be is, there. */
static int join_here(void *arg, struct ckpt_error *err)
{
	struct groups *g = arg;
	bool more = true;

	while (more) {
		more = false;
		for (size_t i = 0; i < g->made->n_mounts; i++) {
			if (g->done[i] || mount_at(g, i)->ns != g->ns ||
			    !wants_any(mount_at(g, i)) || !ready(g, i))
				continue;
			if (join(g, i, err) < 0)
				return -err->err;
			more = g->any = true;
		}
	}
	return 0;
}

static bool can_go_on(const struct groups *g, uint32_t ns)
{
	for (size_t i = 0; i < g->made->n_mounts; i++)
		if (!g->done[i] && mount_at(g, i)->ns == ns && wants_any(mount_at(g, i)) &&
		    ready(g, i))
			return true;
	return false;
}

static int join_all(struct groups *g, struct ckpt_error *err)
{
	int r = open_hosts(g, err);

	for (g->any = true; g->any && r == 0;) {
		g->any = false;
		for (size_t i = 0; i < ckpt_ns_count(g->run) && r == 0; i++) {
			const struct ckpt_ns *ns = ckpt_ns_at(g->run, i);
			struct ckpt_ns_place place = { .ns = { [CKPT_NS_MNT] = ns } };

			g->ns = ns->id;
			if (ns->type == CKPT_NS_MNT && !ns->own && can_go_on(g, ns->id))
				r = ckpt_ns_run(g->run, &place, join_here, g, err);
		}
	}
	return r == 0 ? all_done(g, err) : r;
}

int mnt_join_groups(struct ckpt_run *run, struct mnt_made *made, struct ckpt_error *err)
{
	__attribute__((cleanup(groups_free))) struct groups g = { .run = run, .made = made };
	int r;

	g.lost = calloc(made->n_mounts + 1, sizeof(*g.lost));
	g.done = calloc(made->n_mounts + 1, sizeof(*g.done));
	g.hosts = malloc((made->n_mounts + 1) * sizeof(*g.hosts));
	if (!g.done || !g.hosts || !g.lost)
		return ckpt_fail(err, ENOMEM, "out of memory");
	for (size_t i = 0; i < made->n_mounts; i++) {
		g.hosts[i] = -1;
		/* out of reach below locked ones: what would arrive there nobody could see */
		g.done[i] = made->mounts[i] < 0;
	}
	r = join_all(&g, err);
	for (size_t i = 0; r == 0 && i < made->n_mounts; i++)
		if (g.lost[i])
			ckpt_log(
				run, CKPT_LOG_WARN,
				"%.*s of namespace %u was in a group with a mount of ckpt's, which "
				"is another one: it is %s",
				(int)made->rec[i]->point.len,
				(const char *)made->rec[i]->point.data, made->rec[i]->ns,
				made->rec[i]->peers ? "shared anew" : "private");
	return r;
}
