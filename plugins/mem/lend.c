/* SPDX-License-Identifier: MIT */
/*
 * Descriptors of the engine for a task's script. Only a pidfd of the engine is
 * lent; the script fetches what it needs through it, and closes it again, so a
 * task costs one run of a script however many files it maps. A skeleton still
 * has the engine's credentials, so it may.
 */
#include <fcntl.h>
#include <sys/syscall.h>

#include "mem.h"

int mem_lend_init(struct mem_lender *l, struct ckpt_run *run, struct ckpt_task *t, int pidfd,
		  size_t slots, struct ckpt_error *err)
{
	*l = (struct mem_lender){ .run = run, .task = t, .engine = -1, .n = slots };
	l->slot = calloc(slots, sizeof(*l->slot));
	if (!l->slot)
		return ckpt_fail(err, ENOMEM, "out of memory");
	for (size_t i = 0; i < slots; i++)
		l->slot[i] = (struct mem_lent){ .fd = -1, .op = -1 };
	l->engine = ckpt_lend_fd(run, t, pidfd, err);
	return l->engine < 0 ? l->engine : 0;
}

int mem_lend(struct mem_lender *l, struct ckpt_script *s, size_t slot, int fd)
{
	struct mem_lent *f = &l->slot[slot];

	if (f->op < 0) {
		f->op = ckpt_script_add(s, SYS_pidfd_getfd, CKPT_C(l->engine), CKPT_C(fd),
					CKPT_C(0));
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

int mem_lend_fini(struct mem_lender *l, struct ckpt_error *err)
{
	int r = l->engine < 0 ? 0 : ckpt_return_fd(l->run, l->task, l->engine, err);

	mem_lend_free(l);
	return r;
}

void mem_lend_free(struct mem_lender *l)
{
	if (l->slot)
		mem_lend_drop(l);
	free(l->slot);
	*l = (struct mem_lender){ .engine = -1 };
}
