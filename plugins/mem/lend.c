/* SPDX-License-Identifier: MIT */
/*
 * Descriptors of the engine for a task's script, which fetches what it needs
 * through the pidfd that it has of the engine, and closes it again: a task costs
 * one run of a script however many files it maps. A skeleton still has the
 * engine's credentials, so it may.
 */
#include <fcntl.h>
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

int mem_lend_file(struct mem_lender *l, struct ckpt_script *s, size_t slot, uint32_t mnt,
		  const char *path, int flags, struct ckpt_error *err)
{
	struct mem_lent *f = &l->slot[slot];

	if (f->op >= 0)
		return f->op;
	/* it may have been fetched by a script before this one */
	if (f->fd < 0)
		f->fd = ckpt_open_in(l->run, mnt, path, flags, 0, err);
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
