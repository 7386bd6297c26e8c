/* SPDX-License-Identifier: MIT */
/*
 * The mounts of the namespaces of a run, and which one a descriptor's mount is in. A
 * namespace is looked at from inside, by a helper: mountinfo then begins at its root,
 * and shows all of it, whatever its tasks have done with chroot(2).
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include "engine/run.h"
#include "process/mounts.h"
#include "process/set.h"
#include "process/uapi.h"

static struct mount_table *table_of(struct ckpt_run *run, const struct ckpt_ns *ns,
				    struct ckpt_error *err)
{
	struct mount_tables *all = &run_procs(run)->mounts;
	struct mount_table **list, *t;

	for (size_t i = 0; i < all->n; i++)
		if (all->list[i]->ns == ns->id)
			return all->list[i];
	list = reallocarray(all->list, all->n + 1, sizeof(struct mount_table *));
	if (list)
		all->list = list;
	t = list ? calloc(1, sizeof(*t)) : NULL;
	if (!t) {
		ckpt_fail(err, ENOMEM, "out of memory");
		return NULL;
	}
	t->ns = ns->id;
	t->root = -1;
	all->list[all->n++] = t;
	return t;
}

void mount_tables_free(struct mount_tables *all)
{
	for (size_t i = 0; i < all->n; i++) {
		if (all->list[i]->root >= 0)
			close(all->list[i]->root);
		free(all->list[i]->text);
		free(all->list[i]->list);
		free(all->list[i]);
	}
	free(all->list);
	for (size_t i = 0; i < all->n_shown; i++) {
		free(all->shown[i].point);
		free(all->shown[i].host);
	}
	free(all->shown);
	free(all->saved);
	*all = (struct mount_tables){ 0 };
}

/* ---- inside ---------------------------------------------------------------------- */

struct look {
	int proc; /* ckpt's /proc: the namespace may have none, or another one */
	int root, info;
};

static int look(void *arg, struct ckpt_error *err)
{
	struct look *l = arg;

	l->root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (l->root < 0)
		return ckpt_fail_sys(err, errno, "its root directory");
	/* what it shows is decided when it is opened */
	l->info = openat(l->proc, "self/mountinfo", O_RDONLY | O_CLOEXEC);
	return l->info < 0 ? ckpt_fail_sys(err, errno, "its mountinfo") : 0;
}

static int read_all(int fd, char **out, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *text = NULL;
	size_t len = 0, cap = 0;

	for (;;) {
		ssize_t n;

		if (cap - len < 65536) {
			char *more = realloc(text, cap += 262144);

			if (!more)
				return ckpt_fail(err, ENOMEM, "out of memory");
			text = more;
		}
		n = read(fd, text + len, cap - len - 1);
		if (n < 0)
			return ckpt_fail_sys(err, errno, "read(2) of mountinfo");
		len += (size_t)n;
		text[len] = 0;
		if (!n)
			break;
	}
	*out = ckpt_steal_ptr(&text);
	return 0;
}

static int mount_id(int fd, uint32_t *id)
{
	struct statx sx;

	*id = 0;
	if (statx(fd, "", AT_EMPTY_PATH | AT_NO_AUTOMOUNT, STATX_MNT_ID, &sx))
		return -errno;
	if (!(sx.stx_mask & STATX_MNT_ID))
		return -ENOSYS;
	*id = (uint32_t)sx.stx_mnt_id;
	return 0;
}

static int go_and_look(struct ckpt_run *run, struct mount_table *t, const struct ckpt_ns *ns,
		       bool mounts, struct ckpt_error *err)
{
	CKPT_AUTO_FD int proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
	CKPT_AUTO_FD int root = -1, info = -1;
	const struct ckpt_ns_place place = { .ns = { [CKPT_NS_MNT] = ns } };
	struct look l = { proc, -1, -1 };
	char *text = NULL;
	uint32_t id;
	/* a helper costs ten times what it does */
	int r = ns->own ? look(&l, err) : ckpt_ns_run(run, &place, look, &l, err);

	root = l.root;
	info = l.info;
	if (r < 0)
		return ckpt_wrap(err, "mount namespace %u", ns->id);
	if (t->root < 0)
		t->root = ckpt_steal_fd(&root);
	if (!mounts)
		return 0;
	r = read_all(info, &text, err);
	if (r < 0)
		return r;
	r = mount_table_parse(t, text);
	if (r < 0)
		return ckpt_fail_sys(err, r, "mountinfo of mount namespace %u", ns->id);
	r = mount_id(t->root, &id);
	if (r < 0)
		return ckpt_fail_sys(err, r, "statx(2) for a mount's number");
	for (size_t i = 0; i < t->pub.n; i++)
		if (t->list[i].id == id)
			t->pub.root = &t->list[i];
	t->known = true;
	return t->pub.root ? 0
			   : ckpt_fail(err, ENOENT,
				       "the root of mount namespace %u is not in its "
				       "mountinfo",
				       ns->id);
}

int ckpt_mounts(struct ckpt_run *run, const struct ckpt_ns *ns, const struct ckpt_mounts **out,
		struct ckpt_error *err)
{
	struct mount_table *t = table_of(run, ns, err);
	int r = t ? 0 : -ENOMEM;

	if (t && !t->known)
		r = go_and_look(run, t, ns, true, err);
	if (r == 0)
		*out = &t->pub;
	return r;
}

int ckpt_mnt_root(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err)
{
	struct mount_table *t = table_of(run, ns, err);
	int r = t ? 0 : -ENOMEM;

	if (t && t->root < 0)
		r = go_and_look(run, t, ns, false, err);
	return r < 0 ? r : t->root;
}

static const struct ckpt_mount *by_id(const struct ckpt_mounts *m, uint32_t id)
{
	for (size_t i = 0; i < m->n; i++)
		if (m->list[i].id == id)
			return &m->list[i];
	return NULL;
}

int ckpt_mnt_of_fd(struct ckpt_run *run, int fd, struct ckpt_error *err)
{
	size_t others = 0;
	uint32_t id = 0;
	int r;

	for (size_t i = 0; i < ckpt_ns_count(run); i++)
		others += ckpt_ns_at(run, i)->type == CKPT_NS_MNT && !ckpt_ns_at(run, i)->own;
	/* a tree of one namespace: whether the path leads there is all that counts */
	if (!others)
		return 0;
	r = mount_id(fd, &id);
	if (r < 0)
		return ckpt_fail_sys(err, r, "statx(2) for a mount's number");
	for (size_t i = 0; i < ckpt_ns_count(run); i++) {
		const struct ckpt_ns *ns = ckpt_ns_at(run, i);
		const struct ckpt_mounts *m;

		if (ns->type != CKPT_NS_MNT)
			continue;
		r = ckpt_mounts(run, ns, &m, err);
		if (r < 0)
			return r;
		if (by_id(m, id))
			return ns->own || ns->lost ? 0 : (int)ns->id;
	}
	return -ENOENT;
}

dev_t ckpt_mnt_device(struct ckpt_run *run, int fd, const struct stat *st)
{
	struct ckpt_error ignored = { 0 };
	struct statfs fs;
	uint32_t id;

	if (fstatfs(fd, &fs) || fs.f_type != OVERLAYFS_SUPER_MAGIC)
		return st->st_dev;
	if (mount_id(fd, &id) < 0)
		return 0;
	for (size_t i = 0; i < ckpt_ns_count(run); i++) {
		const struct ckpt_ns *ns = ckpt_ns_at(run, i);
		const struct ckpt_mount *m;
		const struct ckpt_mounts *all;

		if (ns->type != CKPT_NS_MNT || ckpt_mounts(run, ns, &all, &ignored) < 0)
			continue;
		m = by_id(all, id);
		if (m)
			return makedev(m->major, m->minor);
	}
	return 0;
}

/* ---- what the plugin mnt saves ------------------------------------------------------- */

const struct ckpt_mount_saved *ckpt_mount_saved(struct ckpt_run *run, size_t i)
{
	const struct mount_tables *all = &run_procs(run)->mounts;

	return i < all->n_saved ? &all->saved[i] : NULL;
}

int ckpt_mount_tell(struct ckpt_run *run, const struct ckpt_mount_saved *m, struct ckpt_error *err)
{
	struct mount_tables *all = &run_procs(run)->mounts;
	struct ckpt_mount_saved *more = reallocarray(all->saved, all->n_saved + 1, sizeof(*more));

	if (!more)
		return ckpt_fail(err, ENOMEM, "out of memory");
	all->saved = more;
	more[all->n_saved++] = *m;
	return 0;
}
