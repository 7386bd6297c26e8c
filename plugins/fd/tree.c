/* SPDX-License-Identifier: MIT */
/* What kinds of other plugins may ask: they have no state of this plugin's. */
#include "internal.h"

#include <linux/kcmp.h>
#include <sys/syscall.h>

struct question {
	const struct stat *st;
	dev_t dev;
	ino_t ino;
	const struct fd_file *file;
	int fd;
	uint32_t id;
	char *buf;
	size_t size;
};

static int find_inode(struct ckpt_run *run, void *arg, struct ckpt_error *err)
{
	struct fd_state *st = fd_state(run);
	struct fd_file *const *files;
	struct question *q = arg;

	if (st && fd_files_of(st, q->dev, q->ino, &files))
		q->file = files[0];
	return 0;
}

static uint32_t of_inode(struct ckpt_run *run, dev_t dev, ino_t ino, bool *out)
{
	struct question q = { .dev = dev, .ino = ino };
	struct ckpt_error ignored = { 0 };

	ckpt_call_as(run, "fd", find_inode, &q, &ignored);
	*out = q.file && q.file->out;
	return q.file ? q.file->id : 0;
}

static int find_outside(struct ckpt_run *run, void *arg, struct ckpt_error *err)
{
	const struct question *q = arg;

	return fd_foreign(run, fd_state(run), S_ISSOCK(q->st->st_mode), q->st->st_ino, q->buf,
			  q->size, err);
}

static int outside(struct ckpt_run *run, const struct stat *st, char *buf, size_t size,
		   struct ckpt_error *err)
{
	struct question q = { .st = st, .buf = buf, .size = size };

	return ckpt_call_as(run, "fd", find_outside, &q, err);
}

/* Which description of its inode a descriptor of the engine is, the kernel tells. */
static int find_fd(struct ckpt_run *run, void *arg, struct ckpt_error *err)
{
	struct fd_state *st = fd_state(run);
	struct fd_file *const *files;
	struct question *q = arg;
	struct stat s;
	size_t n;

	if (!st || fstat(q->fd, &s))
		return 0;
	n = fd_files_of(st, s.st_dev, s.st_ino, &files);
	for (size_t i = 0; i < n && !q->file; i++) {
		const struct fd_entry *e = files[i]->first;

		if (!syscall(SYS_kcmp, getpid(), fd_entry_pid(e), KCMP_FILE, q->fd,
			     fd_entry_num(e)))
			q->file = files[i];
	}
	return 0;
}

static uint32_t of_fd(struct ckpt_run *run, int fd, bool *out)
{
	struct question q = { .fd = fd };
	struct ckpt_error ignored = { 0 };

	ckpt_call_as(run, "fd", find_fd, &q, &ignored);
	*out = q.file && q.file->out;
	return q.file ? q.file->id : 0;
}

static int get_file(struct ckpt_run *run, void *arg, struct ckpt_error *err)
{
	const struct question *q = arg;

	for (size_t i = 0; i < ckpt_record_count(run, "fd.table"); i++) {
		const Ckpt__Fd__Table *t = ckpt_record_at(run, "fd.table", i);
		const struct ckpt_task *task = ckpt_task_by_id(run, t->id);

		for (size_t j = 0; task && j < t->n_entries; j++)
			if (t->entries[j]->file == q->id)
				return ckpt_get_fd(task, (int)t->entries[j]->num, err);
	}
	return ckpt_fail_image(err, "open file %u is in no table", q->id);
}

static int get(struct ckpt_run *run, uint32_t file, struct ckpt_error *err)
{
	struct question q = { .id = file };

	return ckpt_call_as(run, "fd", get_file, &q, err);
}

const struct ckpt_fd_tree fd_tree = {
	.size = sizeof(struct ckpt_fd_tree),
	.of_inode = of_inode,
	.outside = outside,
	.of_fd = of_fd,
	.get = get,
};
