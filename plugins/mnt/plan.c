/* SPDX-License-Identifier: MIT */
/* restore: every value of the records, and whether what comes from outside is there. */
#include <errno.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <sys/syscall.h>

#include "mnt.h"

#define ATTR_KNOWN                                                                            \
	(MNT_LOCKABLE | MOUNT_ATTR_NOATIME | MOUNT_ATTR_STRICTATIME | MOUNT_ATTR_NODIRATIME | \
	 MOUNT_ATTR_NOSYMFOLLOW)
#define PAGE 4096

static bool is_text(const ProtobufCBinaryData *b)
{
	return b->len < PATH_MAX && !memchr(b->data ? b->data : (const uint8_t *)"", 0, b->len);
}

/* Never back: what the kernel tells has neither "." nor "..". */
static bool is_path(const ProtobufCBinaryData *b)
{
	const char *path = (const char *)b->data;

	if (!b->len || *path != '/' || !is_text(b))
		return false;
	for (size_t at = 0, len; at < b->len; at += len + 1) {
		const char *next = memchr(path + at, '/', b->len - at);

		len = next ? (size_t)(next - path) - at : b->len - at;
		if (len && len < 3 && !memcmp(path + at, "..", len))
			return false;
	}
	return true;
}

static bool is_ns(struct ckpt_run *run, uint32_t id, enum ckpt_ns_type type)
{
	const struct ckpt_ns *ns = ckpt_ns_by_id(run, id);

	return ns && ns->type == type;
}

/* ---- filesystems -------------------------------------------------------------------- */

static int plan_fs(struct ckpt_run *run, const Ckpt__Mnt__Filesystem *rec, struct ckpt_error *err)
{
	const struct mnt_fstype *type = mnt_fstype(rec->type);
	const bool nsfs = type && !strcmp(type->name, "nsfs");
	struct ckpt_error why = { 0 };

	if (!type || !is_text(&rec->source) || !is_text(&rec->options) ||
	    !is_ns(run, rec->owner, CKPT_NS_USER))
		return ckpt_fail_image(err, "filesystem %u is not valid", rec->id);
	if (nsfs ? !rec->shows || !ckpt_ns_by_id(run, rec->shows) ||
			    is_ns(run, rec->shows, CKPT_NS_MNT)
		 : type->shows != CKPT_NS_TYPES && !is_ns(run, rec->shows, type->shows))
		return ckpt_fail_image(err, "filesystem %u shows namespace %u", rec->id,
				       rec->shows);
	if (nsfs && ckpt_ns_is_late(run, ckpt_ns_by_id(run, rec->shows)))
		ckpt_unmet(run, CKPT_EXIT_REFUSED, "unmount it before the dump",
			   "filesystem %u: a time namespace that a task in a user or time "
			   "namespace has for its children",
			   rec->id);
	/* those of a filesystem that shows a namespace may need that; paths, to be where it is
	 * mounted */
	if (rec->layered && (strcmp(rec->type, "overlay") != 0 || mnt_overlay_plan(run, rec) < 0))
		return ckpt_fail_image(err, "filesystem %u has no layers", rec->id);
	if (!type->in_place && type->shows == CKPT_NS_TYPES && mnt_fs_try(rec, &why) < 0)
		ckpt_unmet(run, CKPT_EXIT_REFUSED, "mount it without that option",
			   "filesystem %u (%s) has an option that is not taken: %s", rec->id,
			   rec->type, why.text);
	return 0;
}

/* ---- mounts ---------------------------------------------------------------------------- */

/*
 * Places in what comes from outside, `top`, may have got symbolic links since. Those behind other
 * mounts of ckpt's are not seen here.
 */
static void plan_points(struct ckpt_run *run, const Ckpt__Mnt__Mount *on, int top)
{
	const Ckpt__Mnt__Mount *rec;
	char point[PATH_MAX], dir[PATH_MAX];

	mnt_bytes(&on->point, dir, sizeof(dir));
	for (size_t i = 0; (rec = ckpt_record_at(run, "mnt.mount", i)); i++) {
		CKPT_AUTO_FD int fd = -1;

		if (rec->parent != on->id || !rec->point.len ||
		    !mnt_path_below(mnt_bytes(&rec->point, point, sizeof(point)), dir))
			continue;
		fd = mnt_open_below(top, point + (dir[1] ? strlen(dir) : 0), O_PATH | O_NOFOLLOW,
				    RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV);
		if (fd < 0 ? errno == ELOOP : mnt_is_link(fd))
			ckpt_unmet(run, CKPT_EXIT_FAILED,
				   "put a directory there as it was at the dump",
				   "%s: a symbolic link leads to where it was mounted", point);
	}
}

/* Is it there, by the user's word or as it was? */
static int plan_place(struct ckpt_run *run, const Ckpt__Mnt__Mount *rec, const char *path,
		      bool given, struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = -1;
	char point[PATH_MAX];

	if (!given && rec->below)
		return mnt_plan_host(run, rec, err);
	fd = given ? mnt_open_external(path) : mnt_open_path(AT_FDCWD, path);
	/* a file, as it says, may be a symbolic link that is mounted itself */
	if (fd < 0 ? given || errno == ELOOP || !mnt_host_comes(run, rec)
		   : !rec->file && mnt_is_link(fd))
		return ckpt_unmet(run, CKPT_EXIT_FAILED,
				  "put it there, or say where it is: -o mnt.external=POINT:/path",
				  "%s is to come from %s: %s",
				  mnt_bytes(&rec->point, point, sizeof(point)), path,
				  fd >= 0 || errno == ELOOP ? "a symbolic link leads there"
							    : ckpt_errno_name(errno));
	if (fd >= 0)
		plan_points(run, rec, fd);
	return given ? 0 : mnt_plan_host(run, rec, err);
}

static int plan_external(struct ckpt_run *run, const Ckpt__Mnt__Mount *rec, struct ckpt_error *err)
{
	const char *place = mnt_external_place(run, rec);
	char path[PATH_MAX], point[PATH_MAX];

	if ((!rec->key.len && !is_path(&rec->host)) || !is_text(&rec->key) ||
	    (rec->host.len && (!is_path(&rec->host) || !is_path(&rec->host_point))) || rec->deleted)
		return ckpt_fail_image(err, "mount %u is not valid", rec->id);
	if (ckpt_plan_only(run))
		return 0;
	mnt_bytes(&rec->host, path, sizeof(path));
	mnt_bytes(&rec->point, point, sizeof(point));
	if (!place && rec->key.len) {
		mnt_bytes(&rec->key, path, sizeof(path));
		return ckpt_unmet(run, CKPT_EXIT_FAILED,
				  "say what is to be there: -o mnt.external=KEY:/path",
				  "%s is to come from outside (its key is %s)", point, path);
	}
	if (place)
		ckpt_log(run, CKPT_LOG_INFO, "%s of namespace %u is %s", point, rec->ns, place);
	else
		ckpt_log(run, CKPT_LOG_INFO, "%s of namespace %u is %s here, as it was", point,
			 rec->ns, path);
	return plan_place(run, rec, place ? place : path, place != NULL, err);
}

/* Its options are paths, so it is made where it is mounted: once, as a whole, in what is there. */
static bool good_in_place(struct ckpt_run *run, const Ckpt__Mnt__Mount *rec)
{
	const Ckpt__Mnt__Filesystem *fs = ckpt_record_by_id(run, "mnt.filesystem", rec->fs);
	const struct ckpt_ns *owner = ckpt_ns_by_id(run, rec->ns)->owner;
	const Ckpt__Mnt__Mount *other;

	if (!mnt_in_place(fs))
		return true;
	for (size_t i = 0; (other = ckpt_record_at(run, "mnt.mount", i)); i++)
		if (other != rec && other->fs == rec->fs)
			return false;
	return rec->parent && rec->root.len == 1 && fs->owner == owner->id &&
	       ((!rec->locked && !rec->held) || owner->own);
}

/* The node of a terminal is there when the terminal is: its id is in ../tty/tty.proto. */
static int plan_node(struct ckpt_run *run, const Ckpt__Mnt__Mount *rec)
{
	const Ckpt__Mnt__Filesystem *fs = ckpt_record_by_id(run, "mnt.filesystem", rec->fs);
	char root[32], point[PATH_MAX];
	uint32_t pty;

	if (strcmp(fs->type, "devpts") != 0 || !rec->file)
		return 0;
	mnt_bytes(&rec->root, root, sizeof(root));
	if (rec->deleted || !strcmp(root, "/ptmx"))
		return 0;
	pty = (uint32_t)strtoul(root + 1, NULL, 10);
	if (pty < 1U << 20 && ckpt_record_by_id(run, "tty.pty", rec->fs << 20 | pty))
		return 0;
	return ckpt_unmet(run, CKPT_EXIT_FAILED, "unmount it, or save the terminal",
			  "%s is a terminal that is not in the image",
			  mnt_bytes(&rec->point, point, sizeof(point)));
}

/* What a copy of the namespace locks: these, and only of what it copies. */
static bool good_locks(const struct ckpt_ns *ns, const Ckpt__Mnt__Mount *rec)
{
	return !(rec->loose & ~(rec->attr & MNT_LOCKABLE)) &&
	       (!rec->held || (!ns->owner->own && !rec->locked && rec->parent)) &&
	       (!rec->loose || (!ns->owner->own && (rec->locked || rec->held || !rec->parent)));
}

/* Terminals are open through their mount from the start, and flags are locked on a clone of it. */
static int plan_held(struct ckpt_run *run, const Ckpt__Mnt__Mount *rec)
{
	char point[PATH_MAX];

	if (!rec->held || !mnt_has_terminals(run, rec))
		return 0;
	return ckpt_unmet(run, CKPT_EXIT_FAILED,
			  "dump it with --without mnt.locked --allow-loss mnt.locked: the flags "
			  "will be free",
			  "terminals are open through %s, whose flags are locked while it is not",
			  mnt_bytes(&rec->point, point, sizeof(point)));
}

static int plan_mount(struct ckpt_run *run, const Ckpt__Mnt__Mount *rec, struct ckpt_error *err)
{
	const struct ckpt_ns *ns = ckpt_ns_by_id(run, rec->ns);
	const Ckpt__Mnt__Mount *parent =
		rec->parent ? ckpt_record_by_id(run, "mnt.mount", rec->parent) : NULL;

	if (!ns || ns->type != CKPT_NS_MNT || ns->own || !ns->owner ||
	    (rec->parent && (!parent || parent->id >= rec->id || parent->ns != rec->ns)) ||
	    (rec->fs && !ckpt_record_by_id(run, "mnt.filesystem", rec->fs)) ||
	    !is_path(&rec->root) || !is_path(&rec->point) || rec->attr & ~(uint32_t)ATTR_KNOWN ||
	    !good_locks(ns, rec) ||
	    (rec->deleted && (!rec->gone || rec->gone->uid == UINT32_MAX ||
			      rec->gone->gid == UINT32_MAX || !rec->fs || rec->root.len < 10 ||
			      memcmp(rec->root.data + rec->root.len - 9, "//deleted", 9))))
		return ckpt_fail_image(err, "mount %u is not valid", rec->id);
	if (!rec->fs)
		return plan_external(run, rec, err);
	if (!good_in_place(run, rec))
		return ckpt_fail_image(err, "mount %u shows what is mounted elsewhere", rec->id);
	plan_held(run, rec);
	return plan_node(run, rec);
}

static int plan_roots(struct ckpt_run *run, struct ckpt_error *err)
{
	const struct ckpt_ns *ns;
	const Ckpt__Mnt__Mount *rec;

	for (size_t i = 0; i < ckpt_ns_count(run); i++) {
		size_t roots = 0;

		ns = ckpt_ns_at(run, i);
		if (ns->type != CKPT_NS_MNT || ns->own)
			continue;
		for (size_t k = 0; (rec = ckpt_record_at(run, "mnt.mount", k)); k++)
			roots += rec->ns == ns->id && !rec->parent;
		if (roots != 1)
			return ckpt_fail_image(err, "mount namespace %u has %zu roots", ns->id,
					       roots);
	}
	return 0;
}

/* ---- content ----------------------------------------------------------------------------- */

static bool good_name(const Ckpt__Mnt__Inode *rec)
{
	const ProtobufCBinaryData *n = &rec->name;

	if (!rec->parent)
		return !n->len;
	return n->len && n->len <= NAME_MAX && !memchr(n->data, 0, n->len) &&
	       !memchr(n->data, '/', n->len) && !(n->len == 1 && n->data[0] == '.') &&
	       !(n->len == 2 && !memcmp(n->data, "..", 2));
}

/* What it takes to set them; not in a user namespace. */
static void plan_flags(struct ckpt_run *run)
{
	struct __user_cap_header_struct head = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct caps[_LINUX_CAPABILITY_U32S_3] = { 0 };

	syscall(SYS_capget, &head, caps);
	if (!(caps[0].effective & 1U << CAP_LINUX_IMMUTABLE))
		ckpt_unmet(run, CKPT_EXIT_PRIVILEGE, "run ckpt with it",
			   "files that are immutable or append-only need CAP_LINUX_IMMUTABLE");
}

static bool good_type(const Ckpt__Mnt__Inode *rec)
{
	switch (rec->mode & S_IFMT) {
	case S_IFDIR:
		return !rec->size && !rec->target.len && !(rec->flags & ~MNT_FLAGS);
	case S_IFCHR:
	case S_IFBLK:
	case S_IFIFO:
	case S_IFSOCK:
		return !rec->size && !rec->target.len && !rec->flags;
	case S_IFREG:
		return rec->size <= INT64_MAX && !rec->target.len &&
		       !(rec->flags & ~(MNT_FLAGS & ~(uint32_t)FS_CASEFOLD_FL));
	case S_IFLNK:
		return rec->target.len && is_text(&rec->target) && !rec->size && !rec->flags;
	}
	return false;
}

static bool good_extents(const Ckpt__Mnt__Inode *rec, uint64_t pages)
{
	uint64_t next = 0, size = (rec->size + PAGE - 1) & ~(uint64_t)(PAGE - 1);

	for (size_t i = 0; i < rec->n_extents; i++) {
		const Ckpt__Mnt__Extent *e = rec->extents[i];

		if (e->offset % PAGE || e->len % PAGE || !e->len || e->at % PAGE ||
		    e->offset < next || e->len > size || e->offset > size - e->len ||
		    e->len > pages || e->at > pages - e->len)
			return false;
		next = e->offset + e->len;
	}
	return true;
}

static bool has_files(struct ckpt_run *run, uint32_t id)
{
	const Ckpt__Mnt__Filesystem *fs = ckpt_record_by_id(run, "mnt.filesystem", id);
	const bool layer = ckpt_record_by_id(run, "mnt.layer", id);

	return fs ? !layer && mnt_fstype(fs->type) && mnt_fstype(fs->type)->content == MNT_INODES
		  : layer;
}

static bool good_place(struct ckpt_run *run, const Ckpt__Mnt__Inode *rec)
{
	const Ckpt__Mnt__Inode *dir =
		rec->parent ? ckpt_record_by_id(run, "mnt.inode", rec->parent) : NULL;
	const Ckpt__Mnt__Inode *link =
		rec->link ? ckpt_record_by_id(run, "mnt.inode", rec->link) : NULL;

	if (!has_files(run, rec->fs))
		return false;
	if (rec->parent &&
	    (!dir || dir->id >= rec->id || dir->fs != rec->fs || dir->link || !S_ISDIR(dir->mode)))
		return false;
	if (rec->link)
		return rec->parent && link && link->id < rec->id && link->fs == rec->fs &&
		       !link->link && !S_ISDIR(link->mode);
	return rec->parent || S_ISDIR(rec->mode);
}

/* Mounted without a name: it is made with all that it has. */
static bool good_gone(const Ckpt__Mnt__Mount *rec, uint64_t pages)
{
	const Ckpt__Mnt__Inode *is = rec->gone;

	return !rec->deleted ||
	       ((rec->file ? S_ISREG(is->mode) || S_ISFIFO(is->mode) : S_ISDIR(is->mode)) &&
		good_type(is) && !(is->flags & MNT_FIXED) && good_extents(is, pages));
}

int mnt_plan_content(struct ckpt_run *run, struct ckpt_error *err)
{
	const Ckpt__Mnt__Mount *m;
	const Ckpt__Mnt__Inode *rec;
	uint32_t fs = 0;
	uint64_t size = 0;
	bool fixed = false;
	int fd = -1, r = 0;

	if (!ckpt_record_count(run, "mnt.inode") && !ckpt_record_count(run, "mnt.mount"))
		return 0;
	if (ckpt_plan_only(run))
		size = UINT64_MAX;
	else
		r = ckpt_pages_open(run, MNT_PAGES_NAME, &fd, &size, err);
	if (r < 0 && r != -ENOENT)
		return r;
	/* no file has anything in it */
	if (r < 0)
		*err = (struct ckpt_error){ 0 };
	if (fd >= 0)
		close(fd);
	for (size_t i = 0; (rec = ckpt_record_at(run, "mnt.inode", i)); fs = rec->fs, i++) {
		fixed |= (rec->flags & MNT_FIXED) != 0;
		if (rec->fs < fs || !good_place(run, rec) || !good_name(rec) ||
		    (!rec->link && (!good_type(rec) || !good_extents(rec, size) ||
				    rec->uid == UINT32_MAX || rec->gid == UINT32_MAX)))
			return ckpt_fail_image(err, "inode %u is not valid", rec->id);
	}
	for (size_t i = 0; (m = ckpt_record_at(run, "mnt.mount", i)); i++)
		if (!good_gone(m, size))
			return ckpt_fail_image(err, "mount %u has no valid root", m->id);
	if (fixed && !ckpt_plan_only(run))
		plan_flags(run);
	return 0;
}

int mnt_plan(struct ckpt_run *run, struct ckpt_error *err)
{
	static const char *const ordered[] = { "mnt.filesystem", "mnt.mount", "mnt.inode",
					       "mnt.place", "mnt.layer" };
	const Ckpt__Mnt__Filesystem *fs;
	const Ckpt__Mnt__Mount *m;
	int r = 0;

	for (size_t i = 0; i < CKPT_ARRAY_SIZE(ordered) && r == 0; i++)
		r = ckpt_record_order(run, ordered[i], err);
	for (size_t i = 0; r == 0 && (fs = ckpt_record_at(run, "mnt.filesystem", i)); i++)
		r = plan_fs(run, fs, err);
	for (size_t i = 0; r == 0 && (m = ckpt_record_at(run, "mnt.mount", i)); i++)
		r = plan_mount(run, m, err);
	if (r == 0)
		r = plan_roots(run, err);
	if (r == 0)
		r = mnt_plan_content(run, err);
	if (r == 0)
		r = mnt_layers_plan(run, err);
	if (r == 0 && ckpt_is_copy(run))
		r = mnt_copies_plan(run, err);
	return r < 0 ? r : mnt_places_plan(run, err);
}
