/* SPDX-License-Identifier: MIT */
/*
 * Files of memory that is made before the mounts which the tree sees them through: those of
 * the tree's own mount namespaces, or of copies, each of which has mounts of its own. Private
 * pages of a file are inherited together with its mapping, so what is mapped has to be the
 * same file by another mount. That is a clone of the one that ckpt has at `/`, which is
 * mounted nowhere: it keeps nobody from unmounting, and everybody sees the path in it. It is
 * the path in the tree if the tree's root, or the directory on the way, is ckpt's too; whether
 * the file is the one that the tree sees there is known when the tree's mounts are made.
 */
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>

#include "family.h"

/*
 * Without what is mounted below it: when the clone is given up, such mounts lose their place, and
 * paths of their files would begin there.
 */
static int clone_root(void)
{
	struct mount_attr alone = { .propagation = MS_PRIVATE };
	CKPT_AUTO_FD int fd =
		open_tree(AT_FDCWD, "/", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_NO_AUTOMOUNT);

	/* else what is mounted meanwhile would come here too */
	if (fd < 0 || mount_setattr(fd, "", AT_EMPTY_PATH, &alone, sizeof(alone)))
		return -1;
	return ckpt_steal_fd(&fd);
}

static int open_file(int clone, const char *path)
{
	struct open_how how = { .flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK,
				.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS };

	return (int)syscall(SYS_openat2, clone, path, &how, sizeof(how));
}

static bool is_noexec(int fd)
{
	struct statvfs fs;

	return fstatvfs(fd, &fs) || fs.f_flag & ST_NOEXEC;
}

/* A mount that is nowhere has no root but its own, so this is what everybody will see. */
static bool shows(int fd, const char *path)
{
	char link[64], text[PATH_MAX];
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, text, sizeof(text));
	return n > 0 && (size_t)n == strlen(path) && !memcmp(text, path, (size_t)n);
}

static bool look_at(struct mem_early *e, int fd, const mem_file_rec *f)
{
	struct stat st;

	if (fstat(fd, &st) || !S_ISREG(st.st_mode) || !shows(fd, f->path))
		return false;
	*e = (struct mem_early){
		.dev = st.st_dev, .ino = st.st_ino, .noexec = is_noexec(fd), .there = true
	};
	/* in other namespaces the inode is not noted */
	return (f->mnt || st.st_ino == f->ino) && (uint64_t)st.st_size == f->size &&
	       st.st_mtim.tv_sec * 1000000000ll + st.st_mtim.tv_nsec == f->mtime_ns;
}

/* Files that tasks have private mappings of which are not read-only for good. */
static void mark_wanted(const struct mem_family *f, bool all, bool *wanted)
{
	for (size_t i = 0; i < f->im->n_tasks; i++)
		for (size_t k = 0; k < f->im->tasks[i].vmas->n_vma; k++) {
			const mem_vma_rec *v = f->im->tasks[i].vmas->vma[k];

			if (v->kind == MEM_FILE_PRIVATE && v->flags & MEM_ACCOUNT &&
			    !f->im->files[v->object - 1]->ghost &&
			    (all || f->im->files[v->object - 1]->mnt))
				wanted[v->object - 1] = true;
		}
}

int mem_early_look(struct mem_family *f, bool all, struct ckpt_error *err)
{
	CKPT_AUTO_FREE bool *wanted = calloc(f->im->n_files + 1, sizeof(*wanted));
	bool any = false;

	f->early = calloc(f->im->n_files + 1, sizeof(*f->early));
	if (!wanted || !f->early)
		return ckpt_fail(err, ENOMEM, "out of memory");
	mark_wanted(f, all, wanted);
	for (size_t i = 0; i < f->im->n_files; i++)
		any |= wanted[i];
	f->clone = any ? clone_root() : -1;
	for (size_t i = 0; f->clone >= 0 && i < f->im->n_files; i++) {
		struct mem_early *e = &f->early[i];
		int fd;

		if (!wanted[i])
			continue;
		fd = open_file(f->clone, f->im->files[i]->path);
		if (fd < 0)
			continue;
		e->there = look_at(e, fd, f->im->files[i]);
		close(fd);
	}
	return 0;
}

static bool is_same(const struct mem_early *a, const struct mem_early *b)
{
	return a->there && b->there && a->dev == b->dev && a->ino == b->ino &&
	       a->noexec == b->noexec;
}

bool mem_early_has(const struct mem_family *f, uint32_t file)
{
	return f->early && f->early[file - 1].there;
}

bool mem_early_had(const struct mem_family *f, uint32_t file)
{
	return f->early && f->before && f->before->early &&
	       is_same(&f->early[file - 1], &f->before->early[file - 1]);
}

int mem_early_open(const struct mem_family *f, uint32_t file, struct ckpt_error *err)
{
	const char *path = f->im->files[file - 1]->path;
	struct mem_early now;
	int fd = open_file(f->clone, path);

	if (fd < 0)
		return ckpt_fail_sys(err, errno, "open(2) of %s", path);
	if (look_at(&now, fd, f->im->files[file - 1]) && is_same(&now, &f->early[file - 1]))
		return fd;
	close(fd);
	return ckpt_fail(err, ESTALE, "%s was replaced meanwhile", path);
}

int mem_early_lend(const struct mem_family *f, uint32_t file, struct mem_lender *l, size_t slot,
		   struct ckpt_script *s, struct ckpt_error *err)
{
	if (l->slot[slot].fd < 0)
		l->slot[slot].fd = mem_early_open(f, file, err);
	return l->slot[slot].fd < 0 ? l->slot[slot].fd : mem_lend(l, s, slot, l->slot[slot].fd);
}

void mem_early_done(struct mem_family *f)
{
	if (f->clone >= 0)
		close(f->clone);
	f->clone = -1;
}

/* ---- when the mounts are there ------------------------------------------------------------ */

/* Is what was mapped another file than the tree's? */
static bool is_other(struct ckpt_run *run, const struct mem_early *e, const mem_file_rec *f)
{
	struct ckpt_error ignored = { 0 };
	CKPT_AUTO_FD int fd =
		ckpt_open_in(run, f->mnt, f->path, O_PATH | O_NOFOLLOW | O_CLOEXEC, 0, &ignored);
	struct stat st;

	return fd < 0 || fstat(fd, &st) || st.st_dev != e->dev || st.st_ino != e->ino ||
	       is_noexec(fd) != e->noexec;
}

/* Below the root of a task its paths begin there, but not those of a mount that is nowhere. */
static bool is_below(const char *path, const char *root)
{
	size_t n = strlen(root);

	return n > 1 && !strncmp(path, root, n) && path[n] == '/';
}

struct view {
	uint32_t mnt; /* the task's mount namespace; 0: ckpt's */
	char root[PATH_MAX];
};

static bool is_gone(const struct mem_family *f, const struct mem_use *u, const struct view *from)
{
	const mem_vma_rec *v = f->stretch[u->stretch].like;
	const size_t there = f->before ? f->before->n_stretches : 0;
	const mem_file_rec *file;

	if (v->kind != MEM_FILE_PRIVATE)
		return false;
	file = f->im->files[v->object - 1];
	/* made of the tree's own: */
	if (!file->mnt && u->stretch >= there)
		return false;
	/* of a namespace that the task has left: a dump would find the file in the present one */
	return f->early[v->object - 1].other || file->mnt != from->mnt ||
	       is_below(file->path, from->root);
}

/* Pages of a use that is gone are filled as those that were never shared. */
static int forget(struct mem_kin *k, const struct mem_use *u, struct ckpt_error *err)
{
	MEM_AUTO_RUNS struct mem_runs kept = { 0 };
	struct mem_runs old = k->keep;
	int r = 0;

	for (size_t i = 0; !r && i < old.n; i++) {
		const uint64_t start = old.start[i], end = start + old.pages[i];

		if (start < u->start)
			r = mem_runs_add(&kept, start, (end < u->start ? end : u->start) - start,
					 err);
		if (!r && end > u->end)
			r = mem_runs_add(&kept, start > u->end ? start : u->end,
					 end - (start > u->end ? start : u->end), err);
	}
	if (r < 0)
		return r;
	k->keep = kept;
	kept = old;
	return 0;
}

static int check_task(struct ckpt_run *run, struct mem_family *f, struct mem_kin *k,
		      const struct ckpt_task *t, struct ckpt_error *err)
{
	const struct ckpt_ns *ns = ckpt_ns_seat(run, t->id, 0)->ns[CKPT_NS_MNT];
	struct view from = { .mnt = ns->own ? 0 : ns->id };
	ssize_t n = readlinkat(t->procfd, "root", from.root, sizeof(from.root) - 1);
	int r = 0;

	if (n < 0)
		return ckpt_fail_sys(err, errno, "/proc/%d/root", t->pid);
	from.root[n] = '\0';
	for (size_t i = k->use; !r && i < k->use + k->n_uses; i++) {
		if (!f->stretch[f->use[i].stretch].at || !is_gone(f, &f->use[i], &from))
			continue;
		f->use[i].gone = true;
		r = forget(k, &f->use[i], err);
	}
	return r;
}

int mem_early_check(struct ckpt_run *run, struct mem_family *f, struct ckpt_error *err)
{
	int r = 0;

	if (!f || !f->early)
		return 0;
	mem_early_done(f);
	for (size_t i = 0; i < f->im->n_files; i++)
		if (f->early[i].there)
			f->early[i].other = is_other(run, &f->early[i], f->im->files[i]);
	for (size_t i = 0; !r && i < ckpt_task_count(run); i++) {
		struct ckpt_task *t = ckpt_task_at(run, i);
		struct mem_kin *k = t->zombie ? NULL : mem_family_kin(f, t->id);

		if (k && k->n_uses)
			r = check_task(run, f, k, t, err);
	}
	return r;
}
