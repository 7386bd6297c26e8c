/* SPDX-License-Identifier: MIT */
/*
 * The files and shared objects behind mappings. What is mapped is looked at
 * through /proc/PID/map_files, since a path in maps may by now name another
 * file; a file is only saved by its path if that still leads to it.
 */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>

#include <ckpt/huge.h>

#include <ckpt/quiet.h>

#include "mem.h"

static void map_files_path(const struct mem_vma *v, char buf[64])
{
	snprintf(buf, 64, "map_files/%llx-%llx", (unsigned long long)v->start,
		 (unsigned long long)v->end);
}

int mem_open_map_file(const struct ckpt_task *t, const struct mem_vma *v, int flags,
		      struct ckpt_error *err)
{
	char path[64];
	int fd;

	map_files_path(v, path);
	fd = openat(t->procfd, path, flags | O_CLOEXEC);
	if (fd < 0 && (errno == EPERM || errno == EACCES))
		return ckpt_fail_as(err, CKPT_EXIT_PRIVILEGE, errno,
				    "/proc/%d/%s cannot be opened: CAP_CHECKPOINT_RESTORE or "
				    "CAP_SYS_ADMIN in the initial user namespace is missing",
				    t->pid, path);
	return fd < 0 ? ckpt_fail_sys(err, errno, "open /proc/%d/%s", t->pid, path) : fd;
}

/* Files that have a name in maps but none in a file system. Prefixes of the path. */
static const struct mem_bad_path bad_paths[] = {
	{ "/SYSV", "sysv-shm", "System V shared memory is saved by the plugin ipc, which is off",
	  "switch it on" },
	{ "/[aio]", "aio", "contexts of io_setup(2) are not saved",
	  "let the program use another kind of I/O" },
	{ "/secretmem", "secretmem", "memory of memfd_secret(2) cannot be read from outside",
	  "let the program free it before the dump" },
	{ "anon_inode:[io_uring]", "io-uring", "the rings of an io_uring are not saved",
	  "tell the program not to use io_uring" },
	{ "anon_inode:[perf_event]", "perf", "buffers of performance events are not saved",
	  "stop the profiler" },
	{ "anon_inode:", "anon-inode", "the memory of this kind of object is not saved",
	  "stop the program that uses it" },
	{ "socket:", "packet-socket", "rings of packet sockets are not saved",
	  "stop the program that captures packets" },
};

const struct mem_bad_path *mem_bad_path(const char *path)
{
	static const char deleted[] = " (deleted)";
	const size_t len = strlen(path), tail = sizeof(deleted) - 1;

	/* what is in no file system shows as deleted; a real file may be called anything */
	if (path[0] == '/' && (len < tail || strcmp(path + len - tail, deleted) != 0))
		return NULL;
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(bad_paths); i++)
		if (!strncmp(path, bad_paths[i].prefix, strlen(bad_paths[i].prefix)))
			return &bad_paths[i];
	return NULL;
}

static void mark_bad(struct mem_file *f, const char *feature, const char *reason, const char *hint)
{
	f->bad_feature = feature;
	f->bad = reason;
	f->bad_hint = hint;
}

static const char restart[] =
	"restart the program (packages upgraded below a program are the usual cause)";

/* By the name that it has got instead. */
static bool other_name(struct mem_state *st, struct mem_file *f)
{
	char *path = ckpt_other_name(st->run, f->mnt, f->path, &f->st);

	if (!path)
		return false;
	free(f->path);
	f->path = path;
	return true;
}

/* Can this file be found again by its path? */
static void judge(struct mem_state *st, struct mem_file *f, int fd, bool placed)
{
	struct stat now;

	if (!S_ISREG(f->st.st_mode)) {
		mark_bad(f, "device", "memory of a device is not saved",
			 "stop the program that uses the device, or load a plugin that handles it");
		return;
	}
	if (placed && f->path[0] == '/' && !ckpt_stat_in(st->run, f->mnt, f->path, false, &now) &&
	    now.st_dev == f->st.st_dev && now.st_ino == f->st.st_ino)
		return;
	f->ghost = mem_ghost_kind(st->run, f, fd);
	if (f->ghost || (placed && other_name(st, f)))
		return;
	if (!f->st.st_nlink)
		mark_bad(f, "deleted-file",
			 "the mapped file was deleted, and its directory is on another filesystem",
			 restart);
	else
		mark_bad(f, "unreachable-file",
			 "the mapped file is not the one that its path leads to, and has no other "
			 "name in that directory",
			 "undo the renaming or mounting that hides it, or restart the program");
}

/* One that was found under another name before? */
static bool found_before(const struct mem_state *st, const struct mem_file *f, size_t *index)
{
	for (size_t i = 0; i < st->n_files; i++) {
		const struct mem_file *k = &st->files[i];

		if (k->st.st_ino == f->st.st_ino && k->st.st_dev == f->st.st_dev &&
		    k->mnt == f->mnt && !k->bad && !strcmp(k->path, f->path)) {
			*index = i;
			return true;
		}
	}
	return false;
}

/* `fd` is a place: O_PATH. */
static int file_add(struct mem_state *st, const char *path, int fd, const struct stat *sb, int mnt,
		    size_t *index, struct ckpt_error *err)
{
	const uint32_t place = mnt < 0 ? 0 : (uint32_t)mnt;
	struct mem_file *f;

	for (size_t i = 0; i < st->n_files; i++) {
		f = &st->files[i];
		if (f->st.st_ino == sb->st_ino && f->st.st_dev == sb->st_dev && f->mnt == place &&
		    !strcmp(f->seen, path)) {
			*index = i;
			return 0;
		}
	}
	if (st->n_files == st->cap_files) {
		size_t cap = st->cap_files ? st->cap_files * 2 : 64;

		f = reallocarray(st->files, cap, sizeof(*f));
		if (!f)
			return ckpt_fail(err, ENOMEM, "out of memory");
		st->files = f;
		st->cap_files = cap;
	}
	f = &st->files[st->n_files];
	*f = (struct mem_file){
		.st = *sb, .path = strdup(path), .seen = strdup(path), .mnt = place
	};
	if (!f->path || !f->seen)
		return ckpt_fail(err, ENOMEM, "out of memory");
	judge(st, f, fd, mnt >= 0);
	if (!f->ghost && found_before(st, f, index)) {
		free(f->path);
		free(f->seen);
		return 0;
	}
	*index = st->n_files++;
	return 0;
}

/* The same path, in a table that most programs fill with neighbours: look from the end. */
static struct mem_file *known(struct mem_state *st, const struct mem_vma *v, uint32_t mnt)
{
	for (size_t i = st->n_files; i--;) {
		struct mem_file *f = &st->files[i];

		if (f->mapped && f->seen_in == mnt && f->ino == v->ino && f->minor == v->minor &&
		    f->major == v->major && !strcmp(f->maps_path, v->path))
			return f;
	}
	return NULL;
}

/* Its content is read through a description of our own, which nobody who watches it is told of. */
static int open_ghost(struct mem_state *st, struct mem_file *f, int dir, const char *link,
		      struct ckpt_error *err)
{
	struct mem_shared s = { .ino = f->st.st_ino,
				.major = major(f->st.st_dev),
				.minor = minor(f->st.st_dev),
				.ghost = true };
	struct statvfs fs;
	int seals;

	if (!f->ghost || f->content)
		return 0;
	s.size = ((uint64_t)f->st.st_size + MEM_PAGE - 1) & ~(MEM_PAGE - 1);
	s.fd = ckpt_open_unnoticed(st->run, dir, link, O_RDONLY | O_CLOEXEC, err);
	if (s.fd < 0)
		return ckpt_wrap(err, "%s", f->path);
	if (f->ghost == MEM_DELETED && !fstatvfs(s.fd, &fs) && fs.f_flag & ST_RDONLY) {
		mark_bad(f, "deleted-file",
			 "the mapped file was deleted, and its mount is read-only: it cannot be "
			 "made there again",
			 restart);
		f->ghost = MEM_NO_GHOST;
		close(s.fd);
		return 0;
	}
	s.huge = ckpt_is_huge(s.fd);
	seals = fcntl(s.fd, F_GET_SEALS);
	f->seals = seals < 0 ? 0 : (uint32_t)seals;
	return mem_shared_add(st, &s, &f->content, err);
}

/*
 * A mount that is nowhere (any more): after a restore that of memory which was made before the
 * tree's mounts. The file may be found by its path all the same.
 */
static int place_by_path(struct mem_state *st, const struct ckpt_task *t, const char *path,
			 const struct stat *sb)
{
	const struct ckpt_ns *ns = ckpt_ns_of_task(st->run, t, CKPT_NS_MNT);
	const uint32_t mnt = ns->own || ns->lost ? 0 : ns->id;
	struct stat now;

	if (ckpt_stat_in(st->run, mnt, path, true, &now) || now.st_dev != sb->st_dev ||
	    now.st_ino != sb->st_ino)
		return -ENOENT;
	return (int)mnt;
}

static int look_at(struct mem_state *st, const struct ckpt_task *t, const char *link, size_t *index,
		   struct ckpt_error *err)
{
	/* devices are opened as a place only */
	CKPT_AUTO_FD int fd = openat(t->procfd, link, O_PATH | O_CLOEXEC);
	char path[PATH_MAX + 1];
	struct stat sb;
	ssize_t len;
	int r;

	len = readlinkat(t->procfd, link, path, sizeof(path) - 1);
	if (fd < 0 || len < 0 || fstat(fd, &sb) < 0) {
		if (errno == EPERM || errno == EACCES)
			return ckpt_fail_as(
				err, CKPT_EXIT_PRIVILEGE, errno,
				"/proc/%d/%s cannot be read: CAP_CHECKPOINT_RESTORE or "
				"CAP_SYS_ADMIN in the initial user namespace is missing",
				t->pid, link);
		return ckpt_fail_sys(err, errno, "/proc/%d/%s", t->pid, link);
	}
	path[len] = 0;
	r = ckpt_mnt_of_fd(st->run, fd, err);
	if (r == -ENOENT)
		r = place_by_path(st, t, path, &sb);
	if (r < 0 && r != -ENOENT)
		return r;
	r = file_add(st, path, fd, &sb, r, index, err);
	return r < 0 ? r : open_ghost(st, &st->files[*index], t->procfd, link, err);
}

static void answer(struct mem_state *st, size_t i, uint32_t *id, const struct mem_file **bad)
{
	*bad = st->files[i].bad ? &st->files[i] : NULL;
	*id = *bad ? 0 : (uint32_t)i + 1;
}

int mem_file_of(struct mem_state *st, const struct ckpt_task *t, const struct mem_vma *v,
		uint32_t *id, const struct mem_file **bad, struct ckpt_error *err)
{
	const uint32_t mnt = ckpt_ns_of_task(st->run, t, CKPT_NS_MNT)->id;
	struct mem_file *f = known(st, v, mnt);
	char link[64];
	size_t i;
	int r;

	if (f) {
		answer(st, (size_t)(f - st->files), id, bad);
		return 0;
	}
	map_files_path(v, link);
	r = look_at(st, t, link, &i, err);
	if (r < 0)
		return r;
	f = &st->files[i];
	if (!f->mapped) {
		f->mapped = true;
		f->seen_in = mnt;
		f->major = v->major;
		f->minor = v->minor;
		f->ino = v->ino;
		f->maps_path = strdup(v->path);
		if (!f->maps_path)
			return ckpt_fail(err, ENOMEM, "out of memory");
	}
	answer(st, i, id, bad);
	return 0;
}

int mem_file_exe(struct mem_state *st, const struct ckpt_task *t, uint32_t *id,
		 const struct mem_file **bad, struct ckpt_error *err)
{
	size_t i;
	int r = look_at(st, t, "exe", &i, err);

	if (r < 0)
		return r;
	answer(st, i, id, bad);
	return 0;
}

int mem_shared_add(struct mem_state *st, const struct mem_shared *s, uint32_t *id,
		   struct ckpt_error *err)
{
	struct mem_shared *all = reallocarray(st->shared, st->n_shared + 1, sizeof(*all));

	if (!all) {
		close(s->fd);
		return ckpt_fail(err, ENOMEM, "out of memory");
	}
	st->shared = all;
	all[st->n_shared] = *s;
	*id = (uint32_t)++st->n_shared;
	return 0;
}

int mem_shared_of(struct mem_state *st, const struct ckpt_task *t, const struct mem_vma *v,
		  uint32_t *id, struct ckpt_error *err)
{
	struct mem_shared added;
	struct stat sb;
	int fd;

	for (size_t i = st->n_shared; i--;) {
		const struct mem_shared *s = &st->shared[i];

		if (!s->ghost && s->ino == v->ino && s->minor == v->minor && s->major == v->major) {
			*id = (uint32_t)i + 1;
			return 0;
		}
	}
	fd = mem_open_map_file(t, v, O_RDONLY, err);
	if (fd < 0)
		return fd;
	if (fstat(fd, &sb) < 0) {
		close(fd);
		return ckpt_fail_sys(err, errno, "shared memory");
	}
	/* read through a description of our own: also pages that this task never touched */
	added = (struct mem_shared){ .major = v->major,
				     .minor = v->minor,
				     .ino = v->ino,
				     .size = (uint64_t)sb.st_size,
				     .huge = v->flags & MEM_HUGETLB,
				     .fd = fd };
	return mem_shared_add(st, &added, id, err);
}
