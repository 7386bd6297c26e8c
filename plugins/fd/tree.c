/* SPDX-License-Identifier: MIT */
/* What kinds of other plugins may ask: they have no state of this plugin's. */
#include "internal.h"

struct question {
	const struct stat *st;
	dev_t dev;
	ino_t ino;
	const struct fd_file *file;
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

const struct ckpt_fd_tree fd_tree = {
	.size = sizeof(struct ckpt_fd_tree),
	.of_inode = of_inode,
	.outside = outside,
};
