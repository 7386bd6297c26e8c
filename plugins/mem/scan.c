/* SPDX-License-Identifier: MIT */
/*
 * Page tables from outside: which pages of a private mapping are its own. By the
 * PAGEMAP_SCAN ioctl (6.7), which skips what is empty in whole tables, or by
 * reading /proc/PID/pagemap, where each page has 8 bytes.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>

#include "mem.h"

/* linux-libc-dev 6.1 does not have it */
struct scan_region {
	uint64_t start, end, categories;
};
struct scan_arg {
	uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
	uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
#define SCAN_IOCTL   _IOWR('f', 16, struct scan_arg)
#define SCAN_FILE    (1 << 2)
#define SCAN_PRESENT (1 << 3)
#define SCAN_SWAPPED (1 << 4)
#define SCAN_ZERO    (1 << 5)
#define SCAN_GUARD   (1 << 8) /* 6.16 */

#define ENTRY_PRESENT (1ull << 63)
#define ENTRY_SWAPPED (1ull << 62)
#define ENTRY_FILE    (1ull << 61)
#define ENTRY_GUARD   (1ull << 58)

#define REGIONS 4096
#define ENTRIES (REGIONS * sizeof(struct scan_region) / sizeof(uint64_t))

void *mem_grow(void *array, size_t n, size_t *cap, size_t size)
{
	void *bigger;

	if (n < *cap)
		return array;
	bigger = reallocarray(array, *cap ? *cap * 2 : 64, size);
	if (bigger)
		*cap = *cap ? *cap * 2 : 64;
	return bigger;
}

int mem_runs_add(struct mem_runs *r, uint64_t start, uint64_t pages, struct ckpt_error *err)
{
	if (r->n && r->start[r->n - 1] + r->pages[r->n - 1] == start) {
		r->pages[r->n - 1] += pages;
		return 0;
	}
	return mem_runs_append(r, start, pages, err);
}

int mem_runs_append(struct mem_runs *r, uint64_t start, uint64_t pages, struct ckpt_error *err)
{
	if (r->n == r->cap) {
		size_t cap = r->cap ? r->cap * 2 : 64;
		uint64_t *s = reallocarray(r->start, cap, sizeof(*s)), *p;

		if (s)
			r->start = s;
		p = s ? reallocarray(r->pages, cap, sizeof(*p)) : NULL;
		if (!p)
			return ckpt_fail(err, ENOMEM, "out of memory");
		r->pages = p;
		r->cap = cap;
	}
	r->start[r->n] = start;
	r->pages[r->n++] = pages;
	return 0;
}

void mem_runs_free(struct mem_runs *r)
{
	free(r->start);
	free(r->pages);
	*r = (struct mem_runs){ 0 };
}

static int scan_ioctl(const struct mem_scan *s, struct scan_arg *a)
{
	int n;

	do
		n = ioctl(s->fd, SCAN_IOCTL, a);
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : n;
}

/* Is the ioctl there, and does it know these categories? */
static bool scan_knows(const struct mem_scan *s, uint64_t mask)
{
	/* an empty range: checked, but nothing walked */
	struct scan_arg a = { .size = sizeof(a),
			      .category_anyof_mask = SCAN_PRESENT,
			      .return_mask = mask };

	return scan_ioctl(s, &a) >= 0;
}

int mem_scan_probe(struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	struct mem_scan s = { .fd = fd };

	if (fd < 0)
		return ckpt_fail_sys(err, errno, "/proc/self/pagemap");
	if (!scan_knows(&s, 0))
		return ckpt_fail(err, ENOTTY,
				 "no PAGEMAP_SCAN (6.7): page tables are read entry by entry");
	return 0;
}

int mem_scan_open(struct ckpt_run *run, const struct ckpt_task *t, struct mem_scan *s,
		  struct ckpt_error *err)
{
	const char *how = ckpt_opt_string(run, "pagemap");

	*s = (struct mem_scan){ .fd = mem_proc_open(t, "pagemap", O_RDONLY, err) };
	if (s->fd < 0)
		return s->fd;
	s->buf = malloc(REGIONS * sizeof(struct scan_region));
	if (!s->buf)
		return ckpt_fail(err, ENOMEM, "out of memory");
	s->guards = scan_knows(s, SCAN_GUARD);
	if (how && !strcmp(how, "read"))
		return 0;
	s->ioctl = scan_knows(s, 0);
	if (!s->ioctl && how && !strcmp(how, "scan"))
		return ckpt_fail_as(err, CKPT_EXIT_PRIVILEGE, ENOTTY,
				    "-o mem.pagemap=scan: this kernel has no PAGEMAP_SCAN (6.7)");
	return 0;
}

void mem_scan_close(struct mem_scan *s)
{
	if (s->fd >= 0)
		close(s->fd);
	free(s->buf);
	*s = (struct mem_scan){ .fd = -1 };
}

/* Find out about the pages from `start` on: a mapping's, and maybe what follows it. */
static int look(struct mem_scan *s, const struct mem_vma *v, uint64_t start, struct ckpt_error *err)
{
	uint64_t not = SCAN_ZERO | (v->kind == MEM_FILE_PRIVATE ? SCAN_FILE : 0);
	struct scan_arg a = { .size = sizeof(a),
			      .start = start,
			      .end = s->until > v->end ? s->until : v->end,
			      .vec = (uintptr_t)s->buf,
			      .vec_len = REGIONS,
			      .category_inverted = not,
			      .category_mask = not,
			      .category_anyof_mask = SCAN_PRESENT | SCAN_SWAPPED,
			      .return_mask = s->guards ? SCAN_GUARD : 0 };
	int n = scan_ioctl(s, &a);

	if (n < 0)
		return ckpt_fail_sys(err, n, "PAGEMAP_SCAN");
	s->n = (size_t)n;
	s->at = 0;
	s->known_from = start;
	/*
	 * Not a.walk_end: the kernel takes 512 at a time, and of a call that took more than that,
	 * it is where the last but one of these ended, though what follows is in the answer too.
	 */
	s->known_to = n < REGIONS ? a.end : ((struct scan_region *)s->buf)[n - 1].end;
	return 0;
}

static int by_ioctl(struct mem_scan *s, const struct mem_vma *v, struct mem_runs *runs,
		    struct mem_runs *guards, struct ckpt_error *err)
{
	const struct scan_region *vec = (struct scan_region *)s->buf;

	for (uint64_t at = v->start; at < v->end; at = s->known_to) {
		int r = at >= s->known_from && at < s->known_to ? 0 : look(s, v, at, err);

		for (; r >= 0 && s->at < s->n && vec[s->at].start < v->end; s->at++) {
			const struct scan_region *f = &vec[s->at];
			uint64_t start = f->start > at ? f->start : at;
			uint64_t end = f->end < v->end ? f->end : v->end;

			if (start < end)
				r = mem_runs_add(f->categories & SCAN_GUARD ? guards : runs,
						 start / MEM_PAGE, (end - start) / MEM_PAGE, err);
			/* the rest of it is in the next mapping */
			if (f->end > v->end)
				break;
		}
		if (r < 0)
			return r;
	}
	return 0;
}

static int by_reading(struct mem_scan *s, const struct mem_vma *v, struct mem_runs *runs,
		      struct mem_runs *guards, struct ckpt_error *err)
{
	uint64_t page = v->start / MEM_PAGE, end = v->end / MEM_PAGE;

	/* the entries of a reservation of terabytes would be gigabytes */
	if (v->empty)
		return 0;
	while (page < end) {
		size_t want = end - page < ENTRIES ? end - page : ENTRIES;
		ssize_t got = pread(s->fd, s->buf, want * 8, (off_t)(page * 8));

		if (got < 8)
			return ckpt_fail_sys(err, got < 0 ? errno : EIO, "reading pagemap");
		for (size_t i = 0; i < (size_t)got / 8; i++, page++) {
			uint64_t e = s->buf[i];
			bool guard = e & ENTRY_GUARD;
			int r = 0;

			/* zero pages do not show here: their content tells later */
			if (guard || ((e & (ENTRY_PRESENT | ENTRY_SWAPPED)) &&
				      !(v->kind == MEM_FILE_PRIVATE && (e & ENTRY_FILE))))
				r = mem_runs_add(guard ? guards : runs, page, 1, err);
			if (r < 0)
				return r;
		}
	}
	return 0;
}

int mem_scan_guards(struct mem_scan *s, const struct mem_vma *v, struct mem_runs *guards,
		    struct ckpt_error *err)
{
	const struct scan_region *vec = (struct scan_region *)s->buf;
	struct scan_arg a = { .size = sizeof(a),
			      .start = v->start,
			      .end = v->end,
			      .vec = (uintptr_t)s->buf,
			      .vec_len = REGIONS,
			      .category_mask = SCAN_GUARD,
			      .return_mask = SCAN_GUARD };

	/* what the last look has found is overwritten */
	s->known_from = s->known_to = 0;
	while (s->guards && a.start < a.end) {
		int n = scan_ioctl(s, &a);

		if (n < 0)
			return ckpt_fail_sys(err, n, "PAGEMAP_SCAN");
		for (int i = 0; i < n; i++) {
			int r = mem_runs_add(guards, vec[i].start / MEM_PAGE,
					     (vec[i].end - vec[i].start) / MEM_PAGE, err);

			if (r < 0)
				return r;
		}
		a.start = n < REGIONS ? a.end : vec[n - 1].end;
	}
	return 0;
}

int mem_scan_entries(const struct mem_scan *s, uint64_t page, size_t n, uint64_t *entries,
		     struct ckpt_error *err)
{
	ssize_t got = pread(s->fd, entries, n * sizeof(*entries), (off_t)(page * sizeof(*entries)));

	if (got != (ssize_t)(n * sizeof(*entries)))
		return ckpt_fail_sys(err, got < 0 ? errno : EIO, "reading pagemap");
	return 0;
}

int mem_scan_vma(struct mem_scan *s, const struct mem_vma *v, struct mem_runs *runs,
		 struct mem_runs *guards, struct ckpt_error *err)
{
	return s->ioctl ? by_ioctl(s, v, runs, guards, err) : by_reading(s, v, runs, guards, err);
}
