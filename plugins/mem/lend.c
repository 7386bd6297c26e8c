/* SPDX-License-Identifier: MIT */
/*
 * Descriptors of the engine for a task's script, which fetches what it needs
 * through the pidfd that it has of the engine, and closes it again: a task costs
 * one run of a script however many files it maps. A skeleton still has the
 * engine's credentials, so it may.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/syscall.h>

#include "mem.h"

int mem_lend_init(struct mem_lender *l, struct ckpt_run *run, size_t slots, struct ckpt_error *err)
{
	*l = (struct mem_lender){ .run = run, .n = slots };
	l->slot = calloc(slots, sizeof(*l->slot));
	if (!l->slot)
		return ckpt_fail(err, ENOMEM, "out of memory");
	for (size_t i = 0; i < slots; i++)
		l->slot[i] = (struct mem_lent){ .fd = -1, .op = -1 };
	return 0;
}

int mem_lend(struct mem_lender *l, struct ckpt_script *s, size_t slot, int fd)
{
	struct mem_lent *f = &l->slot[slot];

	if (f->op < 0) {
		f->op = ckpt_script_add(s, SYS_pidfd_getfd, CKPT_C(ckpt_engine_fd(l->run)),
					CKPT_C(fd), CKPT_C(0));
		l->open++;
	}
	return f->op;
}

static int open_file(struct mem_lender *l, const struct mem_image *im, const mem_file_rec *rec,
		     int flags, struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = -1;
	const char *what;
	struct stat st;
	char path[32];

	/* a ghost is opened again through the engine's descriptor of it */
	if (rec->ghost) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", l->shared[rec->content - 1]);
		fd = open(path, flags | O_CLOEXEC);
		return fd < 0 ? ckpt_fail_sys(err, errno, "open(2) of %s", rec->path)
			      : ckpt_steal_fd(&fd);
	}
	/* whoever owns a directory on the way may have put another file there since the plan */
	fd = ckpt_open_in(l->run, rec->mnt, rec->path, flags | O_NOFOLLOW | O_NONBLOCK, 0, err);
	if (fd < 0)
		return fd;
	what = fstat(fd, &st) ? "it cannot be looked at" : mem_file_differs(l->run, im, rec, &st);
	if (what)
		return ckpt_fail(err, ESTALE, "mapped file %s is not the one of the dump: %s",
				 rec->path, what);
	return ckpt_steal_fd(&fd);
}

int mem_lend_file(struct mem_lender *l, struct ckpt_script *s, size_t slot,
		  const struct mem_image *im, const mem_file_rec *rec, int flags,
		  struct ckpt_error *err)
{
	struct mem_lent *f = &l->slot[slot];

	if (f->op >= 0)
		return f->op;
	/* it may have been fetched by a script before this one */
	if (f->fd < 0)
		f->fd = open_file(l, im, rec, flags, err);
	if (f->fd < 0)
		return ckpt_wrap(err, "for %s", flags & O_RDWR ? "writing" : "reading");
	return mem_lend(l, s, slot, f->fd);
}

void mem_lend_end(struct mem_lender *l, struct ckpt_script *s)
{
	for (size_t i = 0; i < l->n; i++) {
		if (l->slot[i].op >= 0)
			ckpt_script_add(s, SYS_close, CKPT_R(l->slot[i].op));
		l->slot[i].op = -1;
	}
	l->open = 0;
}

void mem_lend_drop(struct mem_lender *l)
{
	for (size_t i = 0; i < l->n; i++) {
		if (l->slot[i].fd >= 0)
			close(l->slot[i].fd);
		l->slot[i].fd = -1;
	}
}

void mem_lend_free(struct mem_lender *l)
{
	mem_lend_drop(l);
	free(l->slot);
	*l = (struct mem_lender){ 0 };
}
