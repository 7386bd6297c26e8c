/* SPDX-License-Identifier: MIT */
/*
 * Files that are mapped but have no name any more: memfds and deleted files. Their
 * content is saved like that of shared anonymous memory, unless a descriptor of the
 * tree has them open too: then the plugin fd saves them, and makes them again.
 */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <ckpt/huge.h>

#include "mem.h"

#ifndef MFD_EXEC
#define MFD_EXEC 0x10U
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x8U
#endif
#ifndef F_SEAL_EXEC
#define F_SEAL_EXEC 0x20
#endif

static const char memfd_prefix[] = "/memfd:";

/* ---- dump ---------------------------------------------------------------------- */

static bool is_device_of(dev_t dev, unsigned flags)
{
	CKPT_AUTO_FD int fd = memfd_create("ckpt", MFD_CLOEXEC | flags);
	struct stat st;

	return fd >= 0 && !fstat(fd, &st) && st.st_dev == dev;
}

/* The devices of files that are in memory and in no mount. */
static bool is_nameless_device(dev_t dev)
{
	return is_device_of(dev, 0) || is_device_of(dev, MFD_HUGETLB | 21 << MAP_HUGE_SHIFT);
}

static void directory_of(const char *path, char *dir, size_t size)
{
	const char *slash = strrchr(path, '/');

	snprintf(dir, size, "%.*s", slash > path ? (int)(slash - path) : 1, path);
}

enum mem_ghost mem_ghost_kind(struct ckpt_run *run, struct mem_file *f, int fd)
{
	static const char deleted[] = " (deleted)";
	const size_t len = strlen(f->path), tail = sizeof(deleted) - 1;
	char dir[PATH_MAX];
	struct stat st;

	if (f->st.st_nlink || len <= tail || strcmp(f->path + len - tail, deleted) != 0)
		return MEM_NO_GHOST;
	if (is_nameless_device(f->st.st_dev)) {
		if (strncmp(f->path, memfd_prefix, sizeof(memfd_prefix) - 1) != 0)
			return MEM_NO_GHOST;
		f->path[len - tail] = 0;
		return MEM_MEMFD;
	}
	f->path[len - tail] = 0;
	directory_of(f->path, dir, sizeof(dir));
	if (f->path[0] == '/' && !ckpt_dirs_look(run, f->mnt, dir, &st) &&
	    st.st_dev == ckpt_mnt_device(run, fd, &f->st))
		return MEM_DELETED;
	f->path[len - tail] = ' ';
	return MEM_NO_GHOST;
}

/* A field of a message of another plugin, found by its name. */
static uint64_t number_of(const ProtobufCMessage *m, const char *field)
{
	const ProtobufCFieldDescriptor *d =
		protobuf_c_message_descriptor_get_field_by_name(m->descriptor, field);
	const char *at = d ? (const char *)m + d->offset : NULL;

	if (!d || d->label == PROTOBUF_C_LABEL_REPEATED)
		return 0;
	if (d->type == PROTOBUF_C_TYPE_UINT64)
		return *(const uint64_t *)at;
	return d->type == PROTOBUF_C_TYPE_UINT32 ? *(const uint32_t *)at : 0;
}

static const ProtobufCMessage *record_of_fd(struct ckpt_run *run, const char *type, uint64_t dev,
					    uint64_t ino)
{
	const ProtobufCMessage *m;

	for (size_t i = 0; (m = ckpt_record_at(run, type, i)); i++)
		if (number_of(m, "dev") == dev && number_of(m, "ino") == ino)
			return m;
	return NULL;
}

static const ProtobufCMessage *open_too(struct ckpt_run *run, uint64_t dev, uint64_t ino)
{
	const ProtobufCMessage *m = record_of_fd(run, "fd.memfd", dev, ino);

	return m ? m : record_of_fd(run, "fd.deleted", dev, ino);
}

bool mem_ghost_is_open(struct ckpt_run *run, const struct stat *st)
{
	return open_too(run, st->st_dev, st->st_ino) != NULL;
}

/* ---- restore ------------------------------------------------------------------------- */

struct holder {
	uint32_t task;
	int num;
};

/* Is the description one of the file's? */
static bool is_end(const ProtobufCMessage *ghost, uint32_t file)
{
	const ProtobufCFieldDescriptor *d =
		protobuf_c_message_descriptor_get_field_by_name(ghost->descriptor, "ends");
	size_t n;
	const uint32_t *ends;

	if (!d || d->label != PROTOBUF_C_LABEL_REPEATED || d->type != PROTOBUF_C_TYPE_UINT32)
		return false;
	n = *(const size_t *)((const char *)ghost + d->quantifier_offset);
	ends = *(uint32_t *const *)((const char *)ghost + d->offset);
	for (size_t i = 0; i < n; i++)
		if (ends[i] == file)
			return true;
	return false;
}

/* A task and a number that have the file open. */
static bool find_holder(struct ckpt_run *run, const ProtobufCMessage *ghost, struct holder *h)
{
	const ProtobufCMessage *t;

	for (size_t i = 0; (t = ckpt_record_at(run, "fd.table", i)); i++) {
		const ProtobufCFieldDescriptor *d =
			protobuf_c_message_descriptor_get_field_by_name(t->descriptor, "entries");
		ProtobufCMessage *const *e;
		size_t n;

		if (!d || d->label != PROTOBUF_C_LABEL_REPEATED ||
		    d->type != PROTOBUF_C_TYPE_MESSAGE)
			return false;
		n = *(const size_t *)((const char *)t + d->quantifier_offset);
		e = *(ProtobufCMessage *const *const *)((const char *)t + d->offset);
		for (size_t k = 0; k < n; k++) {
			if (!is_end(ghost, (uint32_t)number_of(e[k], "file")))
				continue;
			h->task = (uint32_t)number_of(t, "id");
			h->num = (int)number_of(e[k], "num");
			return true;
		}
	}
	return false;
}

int mem_ghost_plan(struct ckpt_run *run, const struct mem_image *im, const mem_file_rec *f,
		   struct ckpt_error *err)
{
	const mem_shared_rec *s =
		f->content && f->content <= im->n_shared ? im->shared[f->content - 1] : NULL;
	const ProtobufCMessage *open = NULL;
	char dir[PATH_MAX];
	struct holder h;
	struct stat st;
	int r;

	if (f->ghost > MEM_DELETED || !s || f->mode & ~07777u || f->seals & ~0x3fu ||
	    f->size > INT64_MAX || s->size < f->size || strlen(f->path) >= PATH_MAX ||
	    (s->huge && (f->ghost != MEM_MEMFD || f->size % CKPT_HUGE_PAGE)))
		return ckpt_fail_image(err, "file %u: its description is wrong", f->id);
	if (s->open) {
		open = open_too(run, f->dev, f->ino);
		if (!open || !find_holder(run, open, &h))
			return ckpt_fail_image(err, "file %u: nobody has it open", f->id);
	}
	if (f->ghost == MEM_MEMFD)
		return strncmp(f->path, memfd_prefix, sizeof(memfd_prefix) - 1) ||
				       strlen(f->path) > 7 + 249
			       ? ckpt_fail_image(err, "file %u: '%s' is no memfd", f->id, f->path)
			       : 0;
	if (f->path[0] != '/')
		return ckpt_fail_image(err, "file %u: '%s' is not an absolute path", f->id,
				       f->path);
	directory_of(f->path, dir, sizeof(dir));
	r = open ? 0 : ckpt_dirs_look(run, f->mnt, dir, &st);
	if (r == -ELOOP)
		return ckpt_link_unmet(run, dir);
	if (r < 0 && r != -EINPROGRESS)
		return ckpt_unmet(run, CKPT_EXIT_FAILED, "make the directory",
				  "deleted file %s: its directory cannot be made: %s", f->path,
				  ckpt_errno_name(r));
	return 0;
}

static int make_memfd(const mem_file_rec *f, bool huge, struct ckpt_error *err)
{
	const char *name = f->path + sizeof(memfd_prefix) - 1;
	bool noexec = f->seals & F_SEAL_EXEC && !(f->mode & 0111);
	unsigned flags =
		MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge ? MFD_HUGETLB | 21 << MAP_HUGE_SHIFT : 0);
	int fd = memfd_create(name, flags | (noexec ? MFD_NOEXEC_SEAL : MFD_EXEC));

	/* before 6.3 all are executable, without a word for it */
	if (fd < 0 && errno == EINVAL && !noexec)
		fd = memfd_create(name, flags);
	return fd < 0 ? ckpt_fail_sys(err, errno, "memfd_create(2)") : fd;
}

/* Under its old name, so that /proc shows the same; under another if that is taken by now. */
static int make_deleted(struct ckpt_run *run, const mem_file_rec *f, struct ckpt_error *err)
{
	const int flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
	char dir[PATH_MAX], name[64];
	CKPT_AUTO_IDS struct ckpt_ids ids = { 0 };
	CKPT_AUTO_DIRS struct ckpt_dirs dirs = CKPT_NO_DIRS;
	const char *last = strrchr(f->path, '/') + 1;
	int fd;

	directory_of(f->path, dir, sizeof(dir));
	if (ckpt_ids_take(&ids, f->uid, f->gid, err) < 0 ||
	    ckpt_dirs_open(run, f->mnt, dir, &dirs, err) < 0)
		return -err->err;
	fd = openat(dirs.fd, last, flags, 0600);
	if (fd < 0 && errno == EEXIST) {
		snprintf(name, sizeof(name), ".ckpt-%llu-map-%u",
			 (unsigned long long)ckpt_run_number(run), f->id);
		last = name;
		fd = openat(dirs.fd, last, flags, 0600);
	}
	if (fd < 0)
		return ckpt_fail_sys(err, errno, "making the deleted file %s", f->path);
	if (!ckpt_remove(dirs.fd, last, 0))
		return fd;
	ckpt_fail_sys(err, errno, "deleting %s again", f->path);
	close(fd);
	return -err->err;
}

static int get_open(struct ckpt_run *run, const mem_file_rec *f, struct ckpt_error *err)
{
	const ProtobufCMessage *open = open_too(run, f->dev, f->ino);
	struct ckpt_task *t;
	struct holder h;

	if (!open || !find_holder(run, open, &h))
		return ckpt_fail_image(err, "file %u: nobody has it open", f->id);
	t = ckpt_task_by_id(run, h.task);
	return t ? ckpt_get_fd(t, h.num, err) : ckpt_fail_image(err, "there is no task %u", h.task);
}

int mem_ghost_make(struct ckpt_run *run, const mem_file_rec *f, const mem_shared_rec *content,
		   struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = -1;

	if (content->open)
		return get_open(run, f, err);
	fd = f->ghost == MEM_MEMFD ? make_memfd(f, content->huge, err) : make_deleted(run, f, err);
	if (fd < 0)
		return fd;
	if (fchown(fd, f->uid, f->gid) || fchmod(fd, f->mode) || ftruncate(fd, (off_t)f->size))
		return ckpt_fail_sys(err, errno, "owner, mode and size of %s", f->path);
	return ckpt_steal_fd(&fd);
}

/*
 * When it is filled and mapped: the last page was written whole; what is executed must
 * not be open for writing; seals would have been in the way.
 */
int mem_ghost_finish(const mem_file_rec *f, int *fd, struct ckpt_error *err)
{
	const struct timespec times[2] = { { .tv_nsec = UTIME_OMIT },
					   { f->mtime_ns / 1000000000, f->mtime_ns % 1000000000 } };
	char path[32];
	int ro;

	if (ftruncate(*fd, (off_t)f->size) || futimens(*fd, times))
		return ckpt_fail_sys(err, errno, "size and time of %s", f->path);
	if (f->ghost == MEM_MEMFD && fcntl(*fd, F_GET_SEALS) != (int)f->seals &&
	    fcntl(*fd, F_ADD_SEALS, f->seals))
		return ckpt_fail_sys(err, errno, "seals of %s", f->path);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", *fd);
	ro = open(path, O_RDONLY | O_CLOEXEC);
	if (ro < 0)
		return ckpt_fail_sys(err, errno, "opening %s again", f->path);
	close(*fd);
	*fd = ro;
	return 0;
}
