/* SPDX-License-Identifier: MIT */
/*
 * Contents, written from outside when the mappings of all tasks are there: a
 * portion of the page file is read into a buffer that stays in the cache, and
 * process_vm_writev(2) makes and fills the pages behind a thousand places in one
 * call. The task takes no page fault, and all processors work on all tasks.
 */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>

#include <ckpt/huge.h>

#include "mem.h"

/* Small enough for the second-level cache. */
#define PORTION ((size_t)256 << 10)
/* UIO_MAXIOV */
#define PORTION_PLACES 1024
/* Starting a thread costs as much as copying a few hundred KiB. */
#define HELPED_BYTES ((uint64_t)1 << 20)
#define MAX_HELPERS  3

bool mem_is_forced(const mem_vma_rec *v)
{
	/*
	 * Never writable by its owner, and yet with pages of its own: a debugger
	 * wrote there. Making it writable for a moment would leave it accounted
	 * as committed memory. Huge pages are counted otherwise.
	 */
	return !(v->prot & PROT_WRITE) && !(v->flags & (MEM_ACCOUNT | MEM_NORESERVE | MEM_HUGETLB));
}

/* Runs cut at the edges of mappings, with their places in the page file. */
struct walk {
	const struct mem_task_image *ti;
	const uint64_t *start, *pages, *place; /* place NULL: one run after the other */
	size_t n, vma, run;
	uint64_t done; /* pages of this run */
	uint64_t offset;
};

struct piece {
	const mem_vma_rec *vma;
	uint64_t addr, len, offset;
};

static struct walk walk_start(const struct mem_task_image *ti)
{
	const mem_pages_rec *g = ti->pages;

	return (struct walk){
		.ti = ti, .start = g->start, .pages = g->pages, .n = g->n_start, .offset = g->offset
	};
}

/* Those that are stored as another task's. */
static struct walk walk_again(const struct mem_task_image *ti)
{
	const mem_pages_rec *g = ti->pages;

	return (struct walk){
		.ti = ti, .start = g->again, .pages = g->agains, .place = g->place, .n = g->n_again
	};
}

static bool walk_next(struct walk *w, struct piece *p)
{
	const mem_vmas_rec *m = w->ti->vmas;
	uint64_t end;

	if (w->run < w->n && w->done == w->pages[w->run]) {
		w->run++;
		w->done = 0;
	}
	if (w->run == w->n)
		return false;
	if (w->place && !w->done)
		w->offset = w->place[w->run] * MEM_PAGE;
	p->addr = (w->start[w->run] + w->done) * MEM_PAGE;
	end = (w->start[w->run] + w->pages[w->run]) * MEM_PAGE;
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

/* ---- listing --------------------------------------------------------------------------- */

/* The portion that takes what comes next, `offset` of the page file: the last, or a new one. */
static struct mem_portion *portion_for(struct mem_filler *f, pid_t pid, int fd, uint64_t offset)
{
	struct mem_portion *p = f->n ? &f->portion[f->n - 1] : NULL, *all;

	if (p && p->pid == pid && p->fd == fd && p->offset + p->bytes == offset &&
	    p->bytes < PORTION && p->n < PORTION_PLACES)
		return p;
	all = mem_grow(f->portion, f->n, &f->cap, sizeof(*all));
	if (!all)
		return NULL;
	f->portion = all;
	all[f->n] = (struct mem_portion){
		.pid = pid, .fd = fd, .offset = offset, .first = f->n_places
	};
	return &all[f->n++];
}

int mem_fill_note(struct mem_filler *f, pid_t pid, int fd, uint64_t at, uint64_t len,
		  uint64_t offset, struct ckpt_error *err)
{
	while (len) {
		struct mem_portion *p = portion_for(f, pid, fd, offset);
		struct iovec *places =
			mem_grow(f->place, f->n_places, &f->cap_places, sizeof(*places));
		uint64_t part;

		if (places)
			f->place = places;
		if (!p || !places)
			return ckpt_fail(err, ENOMEM, "out of memory");
		part = len < PORTION - p->bytes ? len : PORTION - p->bytes;
		places[f->n_places].iov_base = (void *)(uintptr_t)at;
		places[f->n_places++].iov_len = part;
		p->n++;
		p->bytes += part;
		f->bytes += part;
		at += part;
		offset += part;
		len -= part;
	}
	return 0;
}

/* A piece, without the pages that the task has inherited; *next is the run of those to look at. */
static int note_piece(struct mem_filler *f, const struct mem_job *j, const struct piece *p,
		      size_t *next, struct ckpt_error *err)
{
	const struct mem_runs *keep = j->keep;
	uint64_t at = p->addr, end = p->addr + p->len;
	int r = 0;

	while (!r && at < end) {
		uint64_t kept = end, skip = end;

		while (keep && *next < keep->n &&
		       (keep->start[*next] + keep->pages[*next]) * MEM_PAGE <= at)
			++*next;
		if (keep && *next < keep->n && keep->start[*next] * MEM_PAGE < end) {
			kept = keep->start[*next] * MEM_PAGE;
			skip = kept + keep->pages[*next] * MEM_PAGE;
		}
		if (kept > at)
			r = mem_fill_note(f, j->task->pid, -1, at, kept - at,
					  p->offset + (at - p->addr), err);
		at = skip;
	}
	return r;
}

static int note_walk(struct mem_filler *f, const struct mem_job *j, struct walk w,
		     struct ckpt_error *err)
{
	struct piece p;
	size_t next = 0;
	int r = 0;

	while (!r && walk_next(&w, &p))
		if (!mem_is_forced(p.vma))
			r = note_piece(f, j, &p, &next, err);
	return r;
}

int mem_fill_task(struct mem_filler *f, const struct mem_job *j, struct ckpt_error *err)
{
	int r = note_walk(f, j, walk_start(j->ti), err);

	return r < 0 ? r : note_walk(f, j, walk_again(j->ti), err);
}

void mem_fill_free(struct mem_filler *f)
{
	free(f->portion);
	free(f->place);
	f->portion = NULL;
	f->place = NULL;
}

/* ---- copying ---------------------------------------------------------------------------- */

static int read_portion(int fd, char *buf, size_t len, uint64_t offset, struct ckpt_error *err)
{
	while (len) {
		ssize_t n = pread(fd, buf, len, (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return ckpt_fail_sys(err, n < 0 ? errno : EIO, "reading the page file");
		buf += n;
		offset += (uint64_t)n;
		len -= (size_t)n;
	}
	return 0;
}

static int write_memory(const struct mem_portion *p, struct iovec *to, char *buf,
			struct ckpt_error *err)
{
	struct iovec from = { buf, p->bytes };
	size_t n = p->n;

	while (from.iov_len) {
		ssize_t done = process_vm_writev(p->pid, &from, 1, to, n, 0);

		if (done <= 0)
			return ckpt_fail_sys(err, done < 0 ? errno : EIO,
					     "process %d: writing memory at %llx", (int)p->pid,
					     (unsigned long long)(uintptr_t)to->iov_base);
		from.iov_base = (char *)from.iov_base + done;
		from.iov_len -= (size_t)done;
		for (; n && (size_t)done >= to->iov_len; to++, n--)
			done -= (ssize_t)to->iov_len;
		if (done) {
			to->iov_base = (char *)to->iov_base + done;
			to->iov_len -= (size_t)done;
		}
	}
	return 0;
}

static int write_huge(const struct mem_portion *p, const struct iovec *to, const char *buf,
		      struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; i < p->n && !r; buf += to[i++].iov_len)
		r = ckpt_huge_write(p->fd, buf, to[i].iov_len, (uintptr_t)to[i].iov_base, err);
	return r;
}

static int write_object(const struct mem_portion *p, const struct iovec *to, const char *buf,
			struct ckpt_error *err)
{
	if (ckpt_is_huge(p->fd))
		return write_huge(p, to, buf, err);
	for (size_t i = 0; i < p->n; i++)
		for (size_t done = 0; done < to[i].iov_len;) {
			ssize_t n = pwrite(p->fd, buf, to[i].iov_len - done,
					   (off_t)((uintptr_t)to[i].iov_base + done));

			if (n < 0 && errno == EINTR)
				continue;
			if (n <= 0)
				return ckpt_fail_sys(err, n < 0 ? errno : EIO,
						     "writing shared memory");
			done += (size_t)n;
			buf += n;
		}
	return 0;
}

static int copy_portion(struct mem_filler *f, const struct mem_portion *p, char *buf,
			struct ckpt_error *err)
{
	struct iovec *to = f->place + p->first;
	int r = read_portion(f->pages_fd, buf, p->bytes, p->offset, err);

	if (r < 0)
		return r;
	return p->pid ? write_memory(p, to, buf, err) : write_object(p, to, buf, err);
}

/* Take portions until there are none; the first error ends it for all. */
static void *copy_portions(void *arg)
{
	CKPT_AUTO_FREE char *buf = malloc(PORTION);
	struct mem_filler *f = arg;
	struct ckpt_error err = { 0 };
	int r = buf ? 0 : ckpt_fail(&err, ENOMEM, "out of memory");

	pthread_mutex_lock(&f->lock);
	while (!f->failed) {
		size_t i = f->next++;

		if (r < 0) {
			f->failed = r;
			f->err = err;
		}
		if (r < 0 || i >= f->n)
			break;
		pthread_mutex_unlock(&f->lock);
		r = copy_portion(f, &f->portion[i], buf, &err);
		pthread_mutex_lock(&f->lock);
	}
	if (r < 0 && !f->failed) {
		f->failed = r;
		f->err = err;
	}
	pthread_mutex_unlock(&f->lock);
	return NULL;
}

static size_t helpers_wanted(const struct mem_filler *f)
{
	cpu_set_t set;
	size_t cpus = sched_getaffinity(0, sizeof(set), &set) ? 1 : (size_t)CPU_COUNT(&set);

	if (f->bytes < HELPED_BYTES || cpus < 2)
		return 0;
	return cpus - 1 < MAX_HELPERS ? cpus - 1 : MAX_HELPERS;
}

int mem_fill_run(struct mem_filler *f, struct ckpt_error *err)
{
	pthread_t helper[MAX_HELPERS];
	size_t want = helpers_wanted(f), n = 0;
	sigset_t all, old;

	if (!f->n)
		return 0;
	pthread_mutex_init(&f->lock, NULL);
	/* signals are for the thread that knows what to do with them */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	while (n < want && !pthread_create(&helper[n], NULL, copy_portions, f))
		n++;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	copy_portions(f);
	while (n)
		pthread_join(helper[--n], NULL);
	pthread_mutex_destroy(&f->lock);
	if (f->failed)
		*err = f->err;
	return f->failed;
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

static int fill_forced(struct mem_job *j, int *mem, struct walk w, struct ckpt_error *err)
{
	struct piece p;
	int r = 0;

	while (!r && walk_next(&w, &p)) {
		if (!mem_is_forced(p.vma))
			continue;
		if (*mem < 0)
			*mem = ckpt_open_mem(j->task, err);
		r = *mem < 0 ? *mem : copy_forced(j, *mem, &p, err);
	}
	return r;
}

int mem_fill_forced(struct mem_job *j, struct ckpt_error *err)
{
	CKPT_AUTO_FD int mem = -1;
	int r = fill_forced(j, &mem, walk_start(j->ti), err);

	return r < 0 ? r : fill_forced(j, &mem, walk_again(j->ti), err);
}

/* ---- shared objects --------------------------------------------------------------- */

/*
 * Made by the engine: the object then exists before the first task maps it, all
 * holders are alike, and it is filled once. What it is cannot be told from one
 * that a task has made.
 */
static int make_shared(const struct mem_image *im, const mem_shared_rec *s, struct ckpt_error *err)
{
	int flags = MAP_SHARED | MAP_ANONYMOUS | (mem_is_noreserve(im, s->id) ? MAP_NORESERVE : 0) |
		    (s->huge ? MAP_HUGETLB | 21 << MAP_HUGE_SHIFT : 0);
	char path[64];
	void *at = mmap(NULL, s->size, PROT_READ | PROT_WRITE, flags, -1, 0);
	int fd, e;

	if (at == MAP_FAILED)
		return ckpt_fail_sys(err, errno, "mmap of %llu bytes", (unsigned long long)s->size);
	snprintf(path, sizeof(path), "/proc/self/map_files/%llx-%llx",
		 (unsigned long long)(uintptr_t)at, (unsigned long long)(uintptr_t)at + s->size);
	fd = open(path, O_RDWR | O_CLOEXEC);
	e = errno;
	munmap(at, s->size);
	return fd < 0 ? ckpt_fail_sys(err, e, "open %s", path) : fd;
}

static int note_shared(struct mem_filler *f, const mem_shared_rec *s, int fd,
		       struct ckpt_error *err)
{
	uint64_t offset = s->offset;
	int r = 0;

	for (size_t i = 0; !r && i < s->n_start; i++) {
		r = mem_fill_note(f, 0, fd, s->start[i] * MEM_PAGE, s->pages[i] * MEM_PAGE, offset,
				  err);
		offset += s->pages[i] * MEM_PAGE;
	}
	return r;
}

int mem_shared_make(struct mem_filler *f, struct ckpt_run *run, const struct mem_image *im,
		    int *fds, struct ckpt_error *err)
{
	for (size_t i = 0; i < im->n_shared; i++) {
		int r;

		if (!im->shared[i])
			continue;
		fds[i] = im->ghost[i] ? mem_ghost_make(run, im->ghost[i], im->shared[i], err)
				      : make_shared(im, im->shared[i], err);
		r = fds[i] < 0 ? fds[i] : note_shared(f, im->shared[i], fds[i], err);
		if (r < 0)
			return ckpt_wrap(err, "shared memory %zu", i + 1);
	}
	return 0;
}
