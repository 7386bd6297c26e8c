/* SPDX-License-Identifier: MIT */
/*
 * Contents. The task reads its pages from the lent page file straight into
 * place: one copy, at the price of native system calls. Longer runs are
 * populated first: the kernel then makes all pages of a run in one go instead
 * of one fault each.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "mem.h"

/* Pages from where on a populating call pays (a call is a fifth of a fault). */
#define POPULATE_MIN 4
/* UIO_MAXIOV, and well below the 2 GiB that one call reads. */
#define BATCH_IOVS  1024
#define BATCH_BYTES (1ull << 30)

bool mem_is_forced(const mem_vma_rec *v)
{
	/*
	 * Never writable by its owner, and yet with pages of its own: a debugger
	 * wrote there. Making it writable for a moment would leave it accounted
	 * as committed memory.
	 */
	return !(v->prot & PROT_WRITE) && !(v->flags & (MEM_ACCOUNT | MEM_NORESERVE));
}

/* Runs cut at the edges of mappings, with their places in the page file. */
struct walk {
	const struct mem_task_image *ti;
	size_t vma, run;
	uint64_t done; /* pages of this run */
	uint64_t offset;
};

struct piece {
	const mem_vma_rec *vma;
	uint64_t addr, len, offset;
};

static struct walk walk_start(const struct mem_task_image *ti)
{
	return (struct walk){ .ti = ti, .offset = ti->pages->offset };
}

static bool walk_next(struct walk *w, struct piece *p)
{
	const mem_pages_rec *g = w->ti->pages;
	const mem_vmas_rec *m = w->ti->vmas;
	uint64_t end;

	if (w->run < g->n_start && w->done == g->pages[w->run]) {
		w->run++;
		w->done = 0;
	}
	if (w->run == g->n_start)
		return false;
	p->addr = (g->start[w->run] + w->done) * MEM_PAGE;
	end = (g->start[w->run] + g->pages[w->run]) * MEM_PAGE;
	/* planning has proved that a mapping is there */
	while (w->vma < m->n_vma && m->vma[w->vma]->end <= p->addr)
		w->vma++;
	if (w->vma == m->n_vma)
		return false;
	p->vma = m->vma[w->vma];
	p->len = (end < p->vma->end ? end : p->vma->end) - p->addr;
	p->offset = w->offset;
	w->offset += p->len;
	w->done += p->len / MEM_PAGE;
	return true;
}

struct batch {
	struct mem_job *j;
	struct iovec iov[BATCH_IOVS];
	size_t n;
	uint64_t offset, bytes;
};

static void batch_flush(struct batch *b)
{
	if (b->n) {
		ckpt_script_add(b->j->s, SYS_preadv, CKPT_R(b->j->pages_op),
				CKPT_IN(b->iov, b->n * sizeof(*b->iov)), CKPT_C(b->n),
				CKPT_C(b->offset), CKPT_C(0));
		ckpt_script_expect(b->j->s, (int64_t)b->bytes);
	}
	b->n = 0;
	b->bytes = 0;
}

static void batch_add(struct batch *b, uint64_t addr, uint64_t len, uint64_t offset)
{
	while (len) {
		uint64_t part = len < BATCH_BYTES ? len : BATCH_BYTES;

		if (b->n == BATCH_IOVS || b->bytes + part > BATCH_BYTES ||
		    b->offset + b->bytes != offset)
			batch_flush(b);
		if (!b->n)
			b->offset = offset;
		b->iov[b->n].iov_base = (void *)(uintptr_t)addr;
		b->iov[b->n++].iov_len = part;
		b->bytes += part;
		addr += part;
		offset += part;
		len -= part;
	}
}

static void fill_piece(struct batch *b, const struct piece *p)
{
	if (p->len >= POPULATE_MIN * MEM_PAGE) {
		ckpt_script_add(b->j->s, SYS_madvise, CKPT_C(p->addr), CKPT_C(p->len),
				CKPT_C(MADV_POPULATE_WRITE));
		/* kernels before 5.14 do not have it */
		ckpt_script_allow(b->j->s, EINVAL);
	}
	batch_add(b, p->addr, p->len, p->offset);
}

int mem_fill_script(struct mem_job *j, struct ckpt_error *err)
{
	CKPT_AUTO_FREE struct batch *b = calloc(1, sizeof(*b));
	struct walk w = walk_start(j->ti);
	struct piece p, whole = { 0 };

	if (!b)
		return ckpt_fail(err, ENOMEM, "out of memory");
	b->j = j;
	while (walk_next(&w, &p)) {
		if (mem_is_forced(p.vma))
			continue;
		/* across mappings: all are writable as yet */
		if (whole.len && whole.addr + whole.len == p.addr &&
		    whole.offset + whole.len == p.offset) {
			whole.len += p.len;
			continue;
		}
		fill_piece(b, &whole);
		whole = p;
	}
	fill_piece(b, &whole);
	batch_flush(b);
	for (size_t i = 0; i < j->ti->pages->n_guard; i++)
		ckpt_script_add(j->s, SYS_madvise, CKPT_C(j->ti->pages->guard[i] * MEM_PAGE),
				CKPT_C(j->ti->pages->guards[i] * MEM_PAGE),
				CKPT_C(MADV_GUARD_INSTALL));
	return 0;
}

static int copy_forced(struct mem_job *j, int mem, const struct piece *p, struct ckpt_error *err)
{
	char page[MEM_PAGE];

	for (uint64_t at = 0; at < p->len; at += MEM_PAGE) {
		if (pread(j->pages_fd, page, MEM_PAGE, (off_t)(p->offset + at)) !=
		    (ssize_t)MEM_PAGE)
			return ckpt_fail_sys(err, errno ? errno : EIO, "reading the page file");
		if (pwrite(mem, page, MEM_PAGE, (off_t)(p->addr + at)) != (ssize_t)MEM_PAGE)
			return ckpt_fail_sys(err, errno ? errno : EIO, "writing memory at %llx",
					     (unsigned long long)(p->addr + at));
	}
	return 0;
}

int mem_fill_forced(struct mem_job *j, struct ckpt_error *err)
{
	CKPT_AUTO_FD int mem = -1;
	struct walk w = walk_start(j->ti);
	struct piece p;
	int r = 0;

	while (!r && walk_next(&w, &p)) {
		if (!mem_is_forced(p.vma))
			continue;
		if (mem < 0)
			mem = ckpt_open_mem(j->task, err);
		r = mem < 0 ? mem : copy_forced(j, mem, &p, err);
	}
	return r;
}

/* ---- shared objects --------------------------------------------------------------- */

static bool is_noreserve(const struct mem_image *im, uint32_t object)
{
	for (size_t i = 0; i < im->n_tasks; i++)
		for (size_t k = 0; k < im->tasks[i].vmas->n_vma; k++) {
			const mem_vma_rec *v = im->tasks[i].vmas->vma[k];

			if (v->kind == MEM_SHARED_ANON && v->object == object &&
			    v->flags & MEM_NORESERVE)
				return true;
		}
	return false;
}

static int fill_shared(const mem_shared_rec *s, char *at, int pages_fd, struct ckpt_error *err)
{
	uint64_t offset = s->offset;

	for (size_t i = 0; i < s->n_start; i++) {
		char *to = at + s->start[i] * MEM_PAGE;
		uint64_t len = s->pages[i] * MEM_PAGE;

		if (s->pages[i] >= POPULATE_MIN)
			(void)madvise(to, len, MADV_POPULATE_WRITE);
		while (len) {
			ssize_t n = pread(pages_fd, to, len < BATCH_BYTES ? len : BATCH_BYTES,
					  (off_t)offset);

			if (n < 0 && errno == EINTR)
				continue;
			if (n <= 0)
				return ckpt_fail_sys(err, n < 0 ? errno : EIO,
						     "reading the page file");
			to += n;
			offset += (uint64_t)n;
			len -= (uint64_t)n;
		}
	}
	return 0;
}

/*
 * Made by the engine: the object then exists before the first task maps it, all
 * holders are alike, and it is filled once. What it is cannot be told from one
 * that a task has made.
 */
static int make_shared(const struct mem_image *im, const mem_shared_rec *s, int pages_fd,
		       struct ckpt_error *err)
{
	int flags = MAP_SHARED | MAP_ANONYMOUS | (is_noreserve(im, s->id) ? MAP_NORESERVE : 0);
	char path[64];
	void *at = mmap(NULL, s->size, PROT_READ | PROT_WRITE, flags, -1, 0);
	int fd, r;

	if (at == MAP_FAILED)
		return ckpt_fail_sys(err, errno, "mmap of %llu bytes", (unsigned long long)s->size);
	snprintf(path, sizeof(path), "/proc/self/map_files/%llx-%llx",
		 (unsigned long long)(uintptr_t)at, (unsigned long long)(uintptr_t)at + s->size);
	fd = open(path, O_RDWR | O_CLOEXEC);
	r = fd < 0 ? ckpt_fail_sys(err, errno, "open %s", path) : fill_shared(s, at, pages_fd, err);
	munmap(at, s->size);
	if (r < 0 && fd >= 0)
		close(fd);
	return r < 0 ? r : fd;
}

int mem_shared_make(const struct mem_image *im, int pages_fd, int *fds, struct ckpt_error *err)
{
	for (size_t i = 0; i < im->n_shared; i++) {
		if (!im->shared[i])
			continue;
		fds[i] = make_shared(im, im->shared[i], pages_fd, err);
		if (fds[i] < 0)
			return ckpt_wrap(err, "shared memory %zu", i + 1);
	}
	return 0;
}
