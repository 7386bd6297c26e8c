/* SPDX-License-Identifier: MIT */
/* What cannot be saved, and the records of what can. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <sys/sysmacros.h>

#include "mnt.h"

/* ---- propagation -------------------------------------------------------------------- */

static bool host_has(const struct mnt_mount *m, uint32_t group)
{
	return group && m->host && m->host->peers == group;
}

static uint32_t host_group(const struct mnt_state *st, uint32_t group)
{
	for (size_t i = 0; i < st->own->n; i++)
		if (group && st->own->list[i].peers == group)
			return group;
	return 0;
}

static bool master_known(const struct mnt_state *st, const struct mnt_mount *m);

/* Is its propagation known, up to where all comes from? */
static bool groups_known(const struct mnt_state *st, const struct mnt_mount *m)
{
	return (!host_group(st, m->m->peers) || host_has(m, m->m->peers)) &&
	       (!m->m->master || master_known(st, m));
}

/*
 * Is somebody in the tree a member of the group that this one receives from? What others
 * hide for good joins no group again: it is somebody for those only that do not either.
 */
static bool master_known(const struct mnt_state *st, const struct mnt_mount *m)
{
	if (host_has(m, m->m->master))
		return true;
	for (size_t i = 0; i < st->n_mounts; i++)
		if (st->mounts[i].m->peers == m->m->master && (st->mounts[i].seen || !m->seen) &&
		    groups_known(st, &st->mounts[i]))
			return true;
	return false;
}

static int survey_propagation(struct ckpt_run *run, const struct mnt_state *st,
			      const struct mnt_mount *m)
{
	if (!m->m->peers && !m->m->master && !m->m->unbindable)
		return 0;
	if (ckpt_refuse_off(run, "propagation", m->ns->member, m->m->point) != 1)
		return 0;
	if (!groups_known(st, m))
		mnt_refuse(run, m->ns, "propagation", m->m->point,
			   "it receives mounts from a place that ckpt does not see",
			   "run ckpt where that is mounted, or allow the loss: the mount will be "
			   "private");
	return 0;
}

/* ---- survey -------------------------------------------------------------------------- */

const struct mnt_mount *mnt_widest(const struct mnt_state *st, const struct mnt_fs *fs)
{
	const struct mnt_mount *best = NULL;

	for (size_t i = 0; i < st->n_mounts; i++) {
		const struct mnt_mount *m = &st->mounts[i];

		if (m->fs == fs && m->seen && !m->file && !m->deleted &&
		    (!best || strlen(m->m->root) < strlen(best->m->root)))
			best = m;
	}
	return best;
}

/* Files are saved through one mount: what that does not show would be missing. */
static void survey_content(struct ckpt_run *run, const struct mnt_state *st,
			   const struct mnt_mount *m)
{
	const struct mnt_mount *w;

	if (!m->fs->type || m->fs->type->content != MNT_INODES ||
	    ckpt_refuse_off(run, "content", m->ns->member, m->m->point) != 1 || !m->seen ||
	    m->deleted)
		return;
	w = mnt_widest(st, m->fs);
	if (!w || !mnt_path_below(m->m->root, w->m->root))
		mnt_refuse(
			run, m->ns, "content", m->m->point,
			"the mount that shows the rest of its filesystem is gone",
			"keep the whole filesystem mounted, or allow the loss: it will be empty");
}

static bool is_whole(const struct mnt_mount *m)
{
	return !m->top && !strcmp(m->m->root, "/") && m->m == m->fs->first;
}

/* What is made where it is mounted, with paths for options. NULL: it can be. */
static const char *not_there(const struct mnt_state *st, const struct mnt_mount *m)
{
	if (m->fs->owner != m->ns->owner->id || ((m->locked || m->held) && !m->ns->owner->own))
		return "an overlay is made again only by the owner of the mount namespace, who "
		       "may unmount it";
	if (!is_whole(m))
		return "an overlay is made again only where it is mounted once, as a whole, and "
		       "not as the root, or with directories that ckpt sees by their paths";
	return mnt_overlay_lost(st, m);
}

/* If not there, then with the machine's directories, before it is mounted. */
static const char *no_place(const struct mnt_state *st, const struct mnt_mount *m)
{
	const char *why = not_there(st, m);

	if (why && mnt_overlay_layered(st, m))
		m->fs->layered = true;
	return m->fs->layered ? NULL : why;
}

/* The survey has asked that of a tree that is saved, and not of one that is verified. */
static bool is_layered(const struct mnt_state *st, const struct mnt_fs *fs)
{
	for (size_t i = 0; fs->type->in_place && i < st->n_mounts; i++)
		if (st->mounts[i].fs == fs)
			no_place(st, &st->mounts[i]);
	return fs->layered;
}

static bool shows_mounts(const struct mnt_state *st, const struct mnt_mount *m)
{
	const struct ckpt_ns *ns = ckpt_ns_by_id(st->run, m->fs->shows);

	return !strcmp(m->fs->type->name, "nsfs") && ns && ns->type == CKPT_NS_MNT;
}

/* NULL: it can be mounted again. */
static const char *no_source(const struct mnt_state *st, const struct mnt_mount *m, char *buf,
			     size_t size)
{
	const struct mnt_fstype *type = m->fs->type;

	/* whose it was, which namespace it shows, what is in it, whether a part of it is a file */
	if (type && !m->seen &&
	    (m->deleted || strcmp(m->m->root, "/") || type->content != MNT_NOTHING ||
	     (type->shows != CKPT_NS_TYPES && !m->fs->shows)))
		return "another mount hides it for good";
	if (m->deleted)
		return type ? mnt_nameless_lost(st, m) : "what is mounted there was deleted";
	if (!type) {
		snprintf(buf, size,
			 "%.40s is not made again, and no mount that ckpt sees itself shows it",
			 m->m->type);
		return buf;
	}
	if (m->seen && type->shows != CKPT_NS_TYPES && !m->fs->shows)
		return "the namespace that it shows has ended";
	if (shows_mounts(st, m))
		return "a mount namespace that is kept by a bind is not made again";
	return type->in_place ? no_place(st, m) : NULL;
}

/* Of a FUSE filesystem root may not see more than its top: what a bind shows of it is not to be
 * had. */
static const char *out_of_reach(const struct mnt_mount *m, char *buf, size_t size)
{
	CKPT_AUTO_FD int fd = m->below ? -1 : mnt_open_path(AT_FDCWD, m->path);

	if (m->below || fd >= 0)
		return NULL;
	snprintf(buf, size, "it comes from %s, where ckpt may not look: %s", m->path,
		 ckpt_errno_name(errno));
	return buf;
}

static void survey_source(struct ckpt_run *run, const struct mnt_state *st,
			  const struct mnt_mount *m)
{
	struct ckpt_blocker b = { "filesystem", m->ns->member, m->m->point, NULL, NULL, true };
	char reason[PATH_MAX + 64], hint[PATH_MAX + 64];

	if (m->key)
		return;
	b.reason = m->host ? out_of_reach(m, reason, sizeof(reason))
			   : no_source(st, m, reason, sizeof(reason));
	snprintf(hint, sizeof(hint), "say where it is: -o mnt.external=%s", m->m->point);
	b.hint = hint;
	if (b.reason)
		ckpt_refuse(run, &b);
}

static int survey_mount(struct ckpt_run *run, const struct mnt_state *st, const struct mnt_mount *m)
{
	if (!m->parent && !m->top)
		mnt_refuse(run, m->ns, "hidden", m->m->point,
			   "what it is mounted on is not in the namespace",
			   "allow the loss, or run it without that mount");
	if (m->attr == UINT32_MAX)
		mnt_refuse(run, m->ns, "flags", m->m->point,
			   "it has flags that are not saved (an idmapped mount?)", "unmount it");
	if ((m->locked || m->held) && !m->ns->owner->own)
		ckpt_refuse_off(run, "locked", m->ns->member, m->m->point);
	if (m->locked && m->parent && !m->parent->top && !m->parent->locked && !m->ns->owner->own)
		mnt_refuse(run, m->ns, "locked-later", m->m->point,
			   "it is locked to a mount that is not, as in a recursive bind of locked "
			   "ones",
			   "allow the loss: it will not be locked, or not be there");
	if (m->fs->type && m->m == m->fs->first &&
	    (mnt_has_option(m->m->options, "usrquota") ||
	     mnt_has_option(m->m->options, "grpquota")))
		mnt_refuse(run, m->ns, "quota", m->m->point,
			   "what its users and groups may have of it is not saved",
			   "mount it without quotas, or allow the loss: they will have no limits");
	survey_content(run, st, m);
	mnt_survey_memory(run, m);
	survey_source(run, st, m);
	return survey_propagation(run, st, m);
}

int mnt_survey(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err)
{
	struct mnt_state *st = mnt_state(run, err);
	int r = st ? 0 : -ENOMEM;

	if (r == 0 && !ns->owner)
		return mnt_refuse(run, ns, "owner", ns->name, "its owner is out of ckpt's sight",
				  "run ckpt in the initial user namespace"),
		       0;
	if (r == 0)
		r = mnt_model(run, st, err);
	for (size_t i = 0; st && i < st->n_mounts && r == 0; i++)
		if (st->mounts[i].ns == ns)
			r = survey_mount(run, st, &st->mounts[i]);
	return r;
}

/* ---- records -------------------------------------------------------------------------- */

/* Kernel numbers of groups, in order of appearance. */
struct groups {
	uint32_t *seen;
	size_t n;
};

static uint32_t group_name(struct groups *g, uint32_t group)
{
	for (size_t i = 0; i < g->n; i++)
		if (g->seen[i] == group)
			return (uint32_t)i + 1;
	if (!group)
		return 0;
	g->seen[g->n++] = group;
	return (uint32_t)g->n;
}

static bool has_groups(struct ckpt_run *run, const struct mnt_state *st, const struct mnt_mount *m)
{
	return ckpt_feature_on(run, "propagation") && groups_known(st, m);
}

/* Those that do not come back are numbered after all others, which keep their numbers so. */
static void name_groups(struct ckpt_run *run, const struct mnt_state *st, struct groups *g)
{
	for (size_t i = 0; i < st->n_mounts; i++)
		if (st->mounts[i].seen && has_groups(run, st, &st->mounts[i])) {
			group_name(g, st->mounts[i].m->peers);
			group_name(g, st->mounts[i].m->master);
		}
}

static ProtobufCBinaryData text(const char *s)
{
	return (ProtobufCBinaryData){ strlen(s), (uint8_t *)(uintptr_t)s };
}

static int put_fs(struct ckpt_run *run, const struct mnt_state *st, const struct mnt_fs *fs,
		  struct ckpt_error *err)
{
	Ckpt__Mnt__Filesystem rec = CKPT__MNT__FILESYSTEM__INIT;

	rec.id = fs->id;
	rec.type = (char *)(uintptr_t)fs->first->type;
	rec.source = text(fs->first->source);
	rec.options = text(fs->first->options);
	rec.owner = fs->owner;
	rec.shows = fs->shows;
	rec.layered = is_layered(st, fs);
	return ckpt_record_put(run, MNT_REC_FILESYSTEM, &rec.base, err);
}

static struct mnt_tree tree_of(struct ckpt_run *run, const struct mnt_mount *m)
{
	return (struct mnt_tree){
		.fs = m->fs->id,
		.fd = m->fd,
		.root = m->m->root,
		.what = m->m->point,
		.ns = m->ns,
		.watched = ckpt_is_watched(run, makedev(m->fs->major, m->fs->minor)),
		.numbers = !strcmp(m->m->type, "tmpfs"),
	};
}

/* What has no name any more. */
static int look_at_gone(struct ckpt_run *run, struct mnt_state *st, const struct mnt_mount *m,
			Ckpt__Mnt__Inode *gone, struct mnt_parts **parts, struct ckpt_error *err)
{
	const struct mnt_tree t = tree_of(run, m);
	struct stat was;

	if (m->fd < 0 || fstat(m->fd, &was))
		return ckpt_fail_sys(err, m->fd < 0 ? ENOENT : errno, "%s", m->m->point);
	mnt_inode_of(gone, &was);
	if (!m->file)
		return 0;
	if (ckpt_feature_on(run, "content"))
		return mnt_nameless_save(run, st, &t, gone, parts, err);
	gone->size = 0;
	return 0;
}

static int put_mount(struct ckpt_run *run, struct mnt_state *st, const struct mnt_mount *m,
		     struct groups *g, struct ckpt_error *err)
{
	struct mnt_parts *parts = NULL;
	Ckpt__Mnt__Mount rec = CKPT__MNT__MOUNT__INIT;
	Ckpt__Mnt__Inode gone = CKPT__MNT__INODE__INIT;
	const bool groups = has_groups(run, st, m), nested = !m->ns->owner->own,
		   locks = ckpt_feature_on(run, "locked");
	int r;

	rec.id = m->id;
	rec.rank = m->rank;
	rec.ns = m->ns->id;
	rec.parent = m->parent ? m->parent->id : 0;
	rec.fs = m->fs->id;
	/* that of a namespace is its number, which is another one then */
	rec.root = text(strcmp(m->m->type, "nsfs") ? m->m->root : "/");
	rec.point = text(m->m->point);
	rec.attr = m->attr;
	rec.file = m->file;
	rec.deleted = m->deleted;
	if (m->deleted)
		rec.gone = &gone;
	rec.locked = nested && locks && m->locked;
	rec.held = nested && locks && m->held;
	if (nested && (rec.locked || rec.held || m->top))
		rec.loose = locks ? m->loose : m->attr & MNT_LOCKABLE;
	rec.unbindable = groups && m->m->unbindable;
	if (groups) {
		rec.peers = group_name(g, m->m->peers);
		rec.master = group_name(g, m->m->master);
		rec.host_peers = host_has(m, m->m->peers);
		rec.host_master = host_has(m, m->m->master);
	}
	if (m->key)
		rec.key = text(m->key);
	if (m->path)
		rec.host = text(m->path);
	if (m->host) {
		rec.host_point = text(m->host->point);
		rec.host_type = (char *)(uintptr_t)m->host->type;
	}
	rec.below = m->below;
	r = m->deleted ? look_at_gone(run, st, m, &gone, &parts, err) : 0;
	if (r == 0)
		r = ckpt_record_put(run, MNT_REC_MOUNT, &rec.base, err);
	mnt_parts_free(parts);
	return r;
}

static int save_content(struct ckpt_run *run, struct mnt_state *st, const struct mnt_mount *m,
			struct ckpt_error *err)
{
	const struct mnt_tree t = tree_of(run, m);

	return mnt_content_save(run, st, &t, err) < 0 ? ckpt_wrap(err, "%s", m->m->type) : 0;
}

int mnt_collect(struct ckpt_run *run, struct ckpt_error *err)
{
	struct mnt_state *st = mnt_state(run, err);
	CKPT_AUTO_FREE uint32_t *seen = NULL;
	struct groups g = { 0 };
	uint32_t saved = 0;
	int r = st ? mnt_model(run, st, err) : -ENOMEM;

	if (r < 0)
		return r;
	g.seen = seen = calloc(st->n_mounts * 2 + 1, sizeof(*seen));
	if (!seen)
		return ckpt_fail(err, ENOMEM, "out of memory");
	/* a dump has asked in time */
	if (ckpt_run_kind(run) == CKPT_VERIFY)
		r = mnt_notices_survey(run, err);
	if (r == 0 && st->disturbing)
		r = ckpt_fail(err, EBUSY, "reading the files of the tree would disturb it");
	if (r == 0)
		r = mnt_find_work(run, st, err);
	for (size_t i = 0; i < st->n_fs && r == 0; i++) {
		const struct mnt_mount *m;

		if (!st->fs[i]->id)
			continue;
		r = put_fs(run, st, st->fs[i], err);
		m = st->fs[i]->type->content == MNT_INODES && ckpt_feature_on(run, "content")
			    ? mnt_widest(st, st->fs[i])
			    : NULL;
		if (r == 0 && m)
			r = save_content(run, st, m, err);
		if (st->fs[i]->id > saved)
			saved = st->fs[i]->id;
	}
	if (r == 0)
		r = mnt_layers_collect(run, st, saved, err);
	name_groups(run, st, &g);
	for (size_t i = 0; i < st->n_mounts && r == 0; i++)
		if (st->mounts[i].id)
			r = put_mount(run, st, &st->mounts[i], &g, err);
	if (r == 0)
		r = mnt_places_collect(run, err);
	if (st->n_mounts)
		ckpt_count(run, "mounts", st->n_mounts);
	return r;
}
