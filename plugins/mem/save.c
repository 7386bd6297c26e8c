/* SPDX-License-Identifier: MIT */
/*
 * Page contents. They are read through /proc/PID/mem: process_vm_readv(2) would
 * pin the pages and so break their sharing with other processes (copy on write).
 * Pages of zeros are not stored where untouched memory reads as zeros anyway.
 */
#include <fcntl.h>
#include <string.h>

#include "mem.h"

struct saver {
	struct ckpt_run *run;
	struct mem_state *st;
	struct mem_sink sink;
	char *buf;
	size_t used;
	uint64_t offset; /* in the page file, of the buffer's beginning */
	uint64_t zero, again;
	struct mem_once once;
	size_t space;		/* whose pages are being saved */
	struct mem_scan others; /* page tables of the space below */
	size_t others_space;
};

/* What of a task's pages was stored: here, or by another task before. */
struct stored {
	struct mem_runs runs, again;
	uint64_t *place; /* of each run in `again` */
};

/* Where pages come from. */
struct source {
	int fd;
	bool drop_zeros;
	bool ends;		 /* a file, whose last page may be incomplete */
	const uint64_t *entries; /* of the pages, if they may be those of others too; or NULL */
	uint64_t first;		 /* that entries[0] belongs to */
};

static int flush(struct saver *s, struct ckpt_error *err)
{
	int r = mem_sink_put(&s->sink, s->used, err);

	if (r < 0)
		return r;
	s->buf = mem_sink_buffer(&s->sink);
	s->offset += s->used;
	s->used = 0;
	return 0;
}

static bool is_zero_page(const char *p)
{
	uint64_t first;

	memcpy(&first, p, sizeof(first));
	/* the C library compares with vectors and stops at the first difference */
	return !first && !memcmp(p, p + sizeof(first), MEM_PAGE - sizeof(first));
}

/* Remember where a page that others may have too is stored: at `at` in the buffer. */
static int note(struct saver *s, uint64_t entry, uint64_t page, const char *at,
		struct ckpt_error *err)
{
	const struct mem_once_page p = {
		.frame = mem_once_frame(entry),
		.place = (s->offset + (uint64_t)(at - s->buf)) / MEM_PAGE,
		.page = page,
		.space = s->space,
	};

	return p.frame ? mem_once_add(&s->once, &p, err) : 0;
}

/* Pages first.. of the buffer's new part: note which are kept, close the gaps of those that are
 * not. */
static int keep(struct saver *s, const struct source *src, uint64_t page, size_t bytes,
		struct mem_runs *out, struct ckpt_error *err)
{
	char *from = s->buf + s->used, *to = from;
	size_t n = bytes / MEM_PAGE;

	for (size_t i = 0; i < n; i++, from += MEM_PAGE) {
		int r;

		if (src->drop_zeros && is_zero_page(from)) {
			s->zero++;
			continue;
		}
		if (to != from)
			memcpy(to, from, MEM_PAGE);
		r = mem_runs_add(out, page + i, 1, err);
		if (!r && src->entries)
			r = note(s, src->entries[page + i - src->first], page + i, to, err);
		to += MEM_PAGE;
		if (r < 0)
			return r;
	}
	s->used = (size_t)(to - s->buf);
	return 0;
}

static ssize_t read_all(const struct source *from, char *buf, size_t len, uint64_t offset)
{
	size_t done = 0;

	while (done < len) {
		ssize_t n = pread(from->fd, buf + done, len - done, (off_t)(offset + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (!n && from->ends && len - done < MEM_PAGE) {
			memset(buf + done, 0, len - done);
			return 0;
		}
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		done += (size_t)n;
	}
	return 0;
}

/* Store a run of pages of a source at its own offset; page * 4096 is also its address there. */
static int save_run(struct saver *s, const struct source *from, uint64_t page, uint64_t pages,
		    struct mem_runs *out, struct ckpt_error *err)
{
	while (pages) {
		size_t room = MEM_SINK_BUFFER - s->used, want;
		int r;

		if (!room) {
			r = flush(s, err);
			if (r < 0)
				return r;
			room = MEM_SINK_BUFFER;
		}
		want = pages * MEM_PAGE < room ? (size_t)(pages * MEM_PAGE) : room;
		r = (int)read_all(from, s->buf + s->used, want, page * MEM_PAGE);
		if (r < 0)
			return ckpt_fail_sys(err, r, "reading memory at %llx",
					     (unsigned long long)(page * MEM_PAGE));
		r = keep(s, from, page, want, out, err);
		if (r < 0)
			return r;
		page += want / MEM_PAGE;
		pages -= want / MEM_PAGE;
	}
	return 0;
}

static bool has_own_pages(const struct mem_vma *v)
{
	if (v->left_out || (v->kind != MEM_PRIVATE_ANON && v->kind != MEM_FILE_PRIVATE))
		return false;
	/* the kernel may drop these any time: empty is a right content */
	return !(v->flags & MEM_DROPPABLE);
}

static int add_again(struct saver *s, struct stored *st, uint64_t page, uint64_t place,
		     struct ckpt_error *err)
{
	size_t last = st->again.n - 1;
	uint64_t *places;

	s->again++;
	/* runs join only if their places do */
	if (st->again.n && st->again.start[last] + st->again.pages[last] == page &&
	    st->place[last] + st->again.pages[last] == place) {
		st->again.pages[last]++;
		return 0;
	}
	places = reallocarray(st->place, st->again.n + 1, sizeof(*places));
	if (!places)
		return ckpt_fail(err, ENOMEM, "out of memory");
	st->place = places;
	places[st->again.n] = place;
	return mem_runs_append(&st->again, page, 1, err);
}

#define ENTRIES 512

/* Pages of a task that may be shared by fork: what their entries say, and where they were stored.
 */
struct forked {
	const struct mem_scan *scan;
	uint64_t page;
	size_t n;
	uint64_t entry[ENTRIES];
	struct mem_once_page stored[ENTRIES]; /* frame 0: not */
};

/* The page tables of the space that others' pages were read from. */
static int open_others(struct saver *s, size_t space, struct ckpt_error *err)
{
	if (s->others.fd >= 0 && s->others_space == space)
		return 0;
	mem_scan_close(&s->others);
	s->others_space = space;
	return mem_scan_open(s->run, s->st->spaces[space].task, &s->others, err);
}

/*
 * Are pages [i, i + n) of `f` those that were stored, which were pages in a row of one other
 * space? They are if both are in one frame at one time: a page of this task is where it was
 * before and after the other was looked at.
 */
static int compare_frames(struct saver *s, struct forked *f, size_t i, size_t n,
			  struct ckpt_error *err)
{
	const struct mem_once_page *first = &f->stored[i];
	uint64_t theirs[ENTRIES], again[ENTRIES];
	int r = open_others(s, first->space, err);

	if (!r)
		r = mem_scan_entries(&s->others, first->page, n, theirs, err);
	if (!r)
		r = mem_scan_entries(f->scan, f->page + i, n, again, err);
	for (size_t k = 0; !r && k < n; k++) {
		uint64_t frame = mem_once_frame(f->entry[i + k]);

		if (mem_once_frame(theirs[k]) != frame || mem_once_frame(again[k]) != frame)
			f->stored[i + k].frame = 0;
	}
	return r;
}

/* Which of these pages are stored already? */
static int find_stored(struct saver *s, struct forked *f, struct ckpt_error *err)
{
	int r = mem_scan_entries(f->scan, f->page, f->n, f->entry, err);
	size_t next;

	for (size_t i = 0; !r && i < f->n; i++) {
		const struct mem_once_page *p =
			mem_once_find(&s->once, mem_once_frame(f->entry[i]));

		f->stored[i] = p ? *p : (struct mem_once_page){ 0 };
	}
	for (size_t i = 0; !r && i < f->n; i = next) {
		const struct mem_once_page *p = &f->stored[i];

		for (next = i + 1; next < f->n && p->frame && f->stored[next].frame; next++)
			if (f->stored[next].space != p->space ||
			    f->stored[next].page - p->page != next - i)
				break;
		if (p->frame)
			r = compare_frames(s, f, i, next - i, err);
	}
	return r;
}

/* A run of pages that may be shared by fork: those that are stored already are only noted. */
static int save_forked(struct saver *s, const struct mem_scan *scan, const struct source *from,
		       uint64_t page, uint64_t pages, struct stored *st, struct ckpt_error *err)
{
	struct forked f = { .scan = scan };
	int r = 0;

	while (!r && pages) {
		struct source src = *from;
		size_t i = 0, k;

		f.page = page;
		f.n = pages < ENTRIES ? (size_t)pages : ENTRIES;
		r = find_stored(s, &f, err);
		src.entries = f.entry;
		src.first = page;
		while (!r && i < f.n) {
			for (k = i; k < f.n && !f.stored[k].frame; k++)
				;
			if (k > i)
				r = save_run(s, &src, page + i, k - i, &st->runs, err);
			if (!r && k < f.n)
				r = add_again(s, st, page + k, f.stored[k].place, err);
			i = k + 1;
		}
		page += f.n;
		pages -= f.n;
	}
	return r;
}

static int save_vmas(struct saver *s, const struct mem_space *sp, struct stored *stored,
		     struct mem_runs *guards, struct ckpt_error *err)
{
	MEM_AUTO_SCAN struct mem_scan scan = { .fd = -1 };
	CKPT_AUTO_FD int mem = mem_proc_open(sp->task, "mem", O_RDONLY, err);
	MEM_AUTO_RUNS struct mem_runs runs = { 0 };
	struct source from;
	char name[MEM_NAME_MAX];
	int r = mem < 0 ? mem : mem_scan_open(s->run, sp->task, &scan, err);

	for (size_t i = 0; !r && i < sp->maps.n; i++) {
		const struct mem_vma *v = &sp->maps.vma[i];

		if (!has_own_pages(v))
			continue;
		runs.n = 0;
		from = (struct source){ .fd = mem, .drop_zeros = v->kind == MEM_PRIVATE_ANON };
		r = mem_scan_vma(&scan, v, &runs, guards, err);
		for (size_t k = 0; !r && k < runs.n; k++)
			r = v->forked && s->st->n_spaces > 1
				    ? save_forked(s, &scan, &from, runs.start[k], runs.pages[k],
						  stored, err)
				    : save_run(s, &from, runs.start[k], runs.pages[k],
					       &stored->runs, err);
		if (r < 0)
			return ckpt_wrap(err, "%s", mem_vma_name(v, name, sizeof(name)));
	}
	return r;
}

static void stored_free(struct stored *st)
{
	mem_runs_free(&st->runs);
	mem_runs_free(&st->again);
	free(st->place);
}

static int save_task(struct saver *s, const struct mem_space *sp, struct ckpt_error *err)
{
	__attribute__((cleanup(stored_free))) struct stored stored = { 0 };
	MEM_AUTO_RUNS struct mem_runs guards = { 0 };
	mem_pages_rec m = CKPT__MEM__PAGES__INIT;
	int r;

	m.id = sp->task->id;
	m.offset = s->offset + s->used;
	r = save_vmas(s, sp, &stored, &guards, err);
	if (r < 0)
		return r;
	if (!ckpt_feature_on(s->run, "guard"))
		guards.n = 0;
	m.start = stored.runs.start;
	m.pages = stored.runs.pages;
	m.n_start = m.n_pages = stored.runs.n;
	m.again = stored.again.start;
	m.agains = stored.again.pages;
	m.place = stored.place;
	m.n_again = m.n_agains = m.n_place = stored.again.n;
	m.guard = guards.start;
	m.guards = guards.pages;
	m.n_guard = m.n_guards = guards.n;
	return ckpt_record_put(s->run, MEM_REC_PAGES, &m.base, err);
}

/* A file system's blocks may be smaller than pages. */
static int save_data(struct saver *s, const struct source *from, struct mem_runs *stored,
		     struct ckpt_error *err)
{
	uint64_t next = 0; /* page */
	off_t data, hole = 0;

	while ((data = lseek(from->fd, hole, SEEK_DATA)) >= 0) {
		uint64_t page = (uint64_t)data / MEM_PAGE, end;
		int r;

		hole = lseek(from->fd, data, SEEK_HOLE);
		if (hole < 0)
			return ckpt_fail_sys(err, errno, "shared memory: lseek");
		end = ((uint64_t)hole + MEM_PAGE - 1) / MEM_PAGE;
		if (page < next)
			page = next;
		if (end <= page)
			continue;
		r = save_run(s, from, page, end - page, stored, err);
		if (r < 0)
			return r;
		next = end;
	}
	return errno == ENXIO ? 0 : ckpt_fail_sys(err, errno, "shared memory: lseek");
}

/*
 * The object is read as a file, not through a task's page tables: pages that only
 * another holder touched, or that are swapped out, show there too.
 */
static int save_shared(struct saver *s, size_t index, struct ckpt_error *err)
{
	const struct mem_shared *o = &s->st->shared[index];
	const struct source from = { .fd = o->fd, .drop_zeros = true, .ends = o->ghost };
	MEM_AUTO_RUNS struct mem_runs stored = { 0 };
	mem_shared_rec m = CKPT__MEM__SHARED__INIT;
	struct stat st;
	int r = 0;

	m.id = (uint32_t)index + 1;
	m.size = o->size;
	m.ino = o->ino;
	m.offset = s->offset + s->used;
	if (o->ghost && fstat(o->fd, &st) < 0)
		return ckpt_fail_sys(err, errno, "fstat");
	m.open = o->ghost && mem_ghost_is_open(s->run, &st);
	if (!m.open)
		r = save_data(s, &from, &stored, err);
	if (r < 0)
		return r;
	m.start = stored.start;
	m.pages = stored.pages;
	m.n_start = m.n_pages = stored.n;
	return ckpt_record_put(s->run, MEM_REC_SHARED, &m.base, err);
}

static int save_all(struct saver *s, struct ckpt_error *err)
{
	char name[64];
	int r = 0;

	for (size_t i = 0; i < s->st->n_spaces; i++) {
		s->space = i;
		r = save_task(s, &s->st->spaces[i], err);
		if (r < 0)
			return ckpt_wrap(err, "%s",
					 mem_task_name(s->st->spaces[i].task, name, sizeof(name)));
	}
	for (size_t i = 0; i < s->st->n_shared; i++) {
		r = save_shared(s, i, err);
		if (r < 0)
			return ckpt_wrap(err, "shared memory %zu", i + 1);
	}
	r = flush(s, err);
	return r < 0 ? r : mem_sink_close(&s->sink, err);
}

static void saver_free(struct saver *s)
{
	mem_sink_free(&s->sink);
	mem_scan_close(&s->others);
	mem_once_free(&s->once);
}

int mem_save(struct ckpt_run *run, struct ckpt_error *err)
{
	__attribute__((cleanup(saver_free))) struct saver s = { .run = run,
								.others = { .fd = -1 } };
	struct ckpt_pages *pages;
	int r = mem_state_get(run, &s.st, err);

	if (!r)
		r = ckpt_pages_create(run, MEM_PAGES_NAME, &pages, err);
	if (!r)
		r = mem_sink_open(&s.sink, pages, err);
	if (r < 0)
		return r;
	s.buf = mem_sink_buffer(&s.sink);
	r = save_all(&s, err);
	if (r < 0)
		return r;
	ckpt_count(run, "pages", s.offset / MEM_PAGE);
	ckpt_count(run, "zero pages", s.zero);
	if (s.again)
		ckpt_count(run, "shared pages", s.again);
	return 0;
}
