/* SPDX-License-Identifier: MIT */
/*
 * Files of overlays by their handles. An overlay tells a file by the handle that it has in one of
 * its directories (ovl_encode_real_fh()), and takes none back unless it is mounted for NFS. So that
 * directory's filesystem is asked, which leads to a path in the directory; a file of the overlay
 * by the same path is the one if it has the same handle.
 */
#include "internal.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/sysmacros.h>

#include <ckpt/copies.h>

#ifndef AT_HANDLE_FID
#define AT_HANDLE_FID 0x200 /* Linux 6.5 */
#endif

#define OVL_FILEID_V1 0xf8
#define OVL_MAGIC     0xfb

/* After three bytes that align it; its length counts from here. */
struct ovl_handle {
	uint8_t version, magic, len, flags, type, uuid[16], fid[];
};

#define OVL_SKIP 3

/* The handle that is in there. */
static bool inner(const struct fd_handle *h, struct fd_handle *real)
{
	const struct ovl_handle *o = (const void *)(h->bytes + OVL_SKIP);
	size_t len;

	if (h->h.handle_type != OVL_FILEID_V1 || h->h.handle_bytes < OVL_SKIP + sizeof(*o) ||
	    o->version || o->magic != OVL_MAGIC || o->len < sizeof(*o) ||
	    o->len > h->h.handle_bytes - OVL_SKIP)
		return false;
	len = o->len - sizeof(*o);
	real->h.handle_bytes = (unsigned)len;
	real->h.handle_type = o->type;
	memcpy(real->bytes, o->fid, len);
	return true;
}

struct looking {
	struct ckpt_run *run;
	const struct fd_handle *want;
	struct fd_handle real;
	uint32_t mnt;
	const struct ckpt_mount *m;
	char *path; /* PATH_MAX */
	struct stat *st;
};

/* Is that the file, `rest` being its path below the overlay's root? */
static bool is_there(const struct looking *l, const char *rest)
{
	const size_t skip = strcmp(l->m->root, "/") ? strlen(l->m->root) : 0;
	struct ckpt_error ignored = { 0 };
	CKPT_AUTO_FD int fd = -1;
	struct fd_handle h;
	int mount;

	if (strncmp(rest, l->m->root, skip) != 0 || (rest[skip] && rest[skip] != '/') ||
	    snprintf(l->path, PATH_MAX, "%s%s", strcmp(l->m->point, "/") ? l->m->point : "",
		     rest + skip) >= PATH_MAX)
		return false;
	/* the root of an overlay that is the root of all */
	if (!*l->path)
		strcpy(l->path, "/");
	fd = ckpt_open_in(l->run, l->mnt, l->path, O_PATH | O_NOFOLLOW, 0, &ignored);
	h.h.handle_bytes = MAX_HANDLE_SZ;
	if (fd < 0 || name_to_handle_at(fd, "", &h.h, &mount, AT_EMPTY_PATH | AT_HANDLE_FID) ||
	    !fd_handle_is_same(&h, l->want) || fstat(fd, l->st))
		return false;
	/* without an index each name of such a file has an inode of its own, and all one handle */
	return S_ISDIR(l->st->st_mode) || l->st->st_nlink < 2;
}

static bool path_of(int fd, char *path)
{
	char name[32];
	ssize_t len;

	snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
	len = readlink(name, path, PATH_MAX - 1);
	path[len > 0 ? len : 0] = '\0';
	return len > 0;
}

/* `dir` is in the mount of one of its directories, whose path is `top`; NULL: it is that directory
 */
static bool by_directory(struct looking *l, int dir, const char *top)
{
	char path[PATH_MAX], own[PATH_MAX];
	CKPT_AUTO_FD int fd = fd_handle_in(dir, &l->real);
	size_t len;

	if (fd < 0 || !path_of(fd, path) || (!top && !path_of(dir, own)))
		return false;
	top = top ? top : own;
	len = strcmp(top, "/") ? strlen(top) : 0;
	return !strncmp(path, top, len) && (!path[len] || path[len] == '/') &&
	       is_there(l, path + len);
}

static const struct ckpt_mount *mount_by_id(const struct ckpt_mounts *all, uint32_t id)
{
	for (size_t i = 0; i < all->n; i++)
		if (all->list[i].id == id)
			return &all->list[i];
	return NULL;
}

/* A layer of a copy: over the directory where it is mounted, in what that is in. */
static bool by_copys_layer(struct looking *l, const struct ckpt_mounts *all)
{
	const struct ckpt_mount *below = l->m;
	uint8_t number[CKPT_LAYER_NUMBER_SIZE];
	struct ckpt_error ignored = { 0 };
	CKPT_AUTO_FD int upper = ckpt_layer_upper(l->run, l->m, number, &ignored), lower = -1;

	if (upper < 0)
		return false;
	if (by_directory(l, upper, NULL))
		return true;
	while (below && !strcmp(below->point, l->m->point))
		below = mount_by_id(all, below->parent);
	lower = below ? open(below->point, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
	return lower >= 0 && by_directory(l, lower, l->m->point);
}

static bool by_path(struct looking *l, const char *path)
{
	struct ckpt_error ignored = { 0 };
	const uint32_t places[] = { l->mnt, 0 };

	/* of an overlay of the machine's, the paths are those that ckpt sees */
	for (size_t i = 0; i < (l->mnt ? 2 : 1); i++) {
		CKPT_AUTO_FD int dir =
			ckpt_open_in(l->run, places[i], path, O_PATH | O_DIRECTORY, 0, &ignored);

		if (dir >= 0 && by_directory(l, dir, NULL))
			return true;
	}
	return false;
}

/* "/a:/b::/data" */
static bool by_paths(struct looking *l, const char *value, size_t len)
{
	while (len) {
		size_t n = strcspn(value, ":");
		char path[PATH_MAX];

		n = n < len ? n : len;
		snprintf(path, sizeof(path), "%.*s", (int)n, value);
		if (n && by_path(l, path))
			return true;
		n += n < len;
		value += n;
		len -= n;
	}
	return false;
}

static bool by_options(struct looking *l)
{
	static const char *const keys[] = { "upperdir=", "lowerdir=", "lowerdir+=", "datadir+=" };

	for (const char *at = l->m->options; *at;) {
		size_t len = strcspn(at, ",");

		for (size_t k = 0; k < CKPT_ARRAY_SIZE(keys); k++) {
			size_t n = strlen(keys[k]);

			if (n < len && !strncmp(at, keys[k], n) && by_paths(l, at + n, len - n))
				return true;
		}
		at += len + (at[len] == ',');
	}
	return false;
}

static bool in_namespace(struct looking *l, const struct ckpt_ns *ns, dev_t dev)
{
	struct ckpt_error ignored = { 0 };
	const struct ckpt_mounts *all;

	l->mnt = ns->own ? 0 : ns->id;
	if (ckpt_mounts(l->run, ns, &all, &ignored))
		return false;
	for (size_t i = 0; i < all->n; i++) {
		l->m = &all->list[i];
		if (makedev(l->m->major, l->m->minor) == dev && !strcmp(l->m->type, "overlay") &&
		    ((ns->own && by_copys_layer(l, all)) || by_options(l)))
			return true;
	}
	return false;
}

bool fd_overlay_find(struct ckpt_run *run, dev_t dev, const struct fd_handle *h, uint32_t *mnt,
		     char *path, struct stat *st)
{
	struct looking l = { .run = run, .want = h, .path = path, .st = st };
	bool found = false;

	if (!inner(h, &l.real))
		return false;
	found = in_namespace(&l, ckpt_ns_own(run, CKPT_NS_MNT), dev);
	for (size_t i = 0; !found && i < ckpt_ns_count(run); i++) {
		const struct ckpt_ns *ns = ckpt_ns_at(run, i);

		found = ns->type == CKPT_NS_MNT && !ns->own && in_namespace(&l, ns, dev);
	}
	*mnt = l.mnt;
	return found;
}
