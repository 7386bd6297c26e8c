/* SPDX-License-Identifier: MIT */
/*
 * Page contents. They are read through /proc/PID/mem: process_vm_readv(2) would
 * pin the pages and so break their sharing with other processes (copy on write).
 * Pages of zeros are not stored where untouched memory reads as zeros anyway.
 */
#include <fcntl.h>
#include <string.h>

#include "mem.h"

#define ENTRIES 2048

/* Pages of a task that may be shared by fork: what their entries say, and where they were stored.
 */
struct forked {
	const struct mem_scan *scan;
	uint64_t page;
	size_t n;
	uint64_t entry[ENTRIES], theirs[ENTRIES], again[ENTRIES];
	struct mem_once_page stored[ENTRIES]; /* frame 0: not */
};

/* What was stored of a task, or of a shared object. */
struct stored {
	struct mem_runs runs, again, guards;
	uint64_t *place; /* of each run in `again` */
	uint64_t offset; /* in the page file, of the first page */
	bool open;
};

struct saver {
	struct ckpt_run *run;
	struct mem_state *st;
	struct mem_sink sink;
	struct mem_portion_in portion; /* that is being put together */
	int fd;			       /* to be closed when the present task is done; -1 */
	uint64_t again;
	struct mem_once once;
	struct forked *forked;
	size_t space;		/* whose pages are being saved */
	bool drained;		/* all that was put before is stored, or has a place */
	struct mem_scan others; /* page tables of the space below */
	size_t others_space;
	struct stored *stored; /* of all spaces, then of all shared objects */
	size_t n_stored;
};

/* Hand over what there is. */
static int flush(struct saver *s, struct ckpt_error *err)
{
	struct mem_portion_in *p = &s->portion;
	int r = p->n || p->begin || p->last ? mem_sink_put(&s->sink, p, err) : 0;

	if (!r && p->last)
		s->fd = -1;
	p->n = p->pages = 0;
	p->begin = NULL;
	p->last = false;
	return r;
}

/* What follows is from there, and noted here. */
static void begin(struct saver *s, const struct mem_source *from, struct stored *to)
{
	s->portion.n = s->portion.pages = 0;
	s->portion.from = *from;
	s->portion.out = &to->runs;
	s->portion.begin = &to->offset;
	s->portion.space = s->space;
}

struct run {
	uint64_t page, pages;
	bool drop_zeros, alone, merged;
	const uint64_t *entry; /* of its pages, if they may be those of others too; or NULL */
};

/* Store a run of pages of a source at its own offset; page * 4096 is also its address there. */
static int save_run(struct saver *s, struct run run, struct ckpt_error *err)
{
	struct mem_portion_in *p = &s->portion;

	while (run.pages) {
		size_t n = MEM_PORTION_PAGES - p->pages;

		if (!n || p->n == MEM_PORTION_RUNS || p->forked != !!run.entry) {
			int r = flush(s, err);

			if (r < 0)
				return r;
			p->forked = run.entry;
			n = MEM_PORTION_PAGES;
		}
		if (n > run.pages)
			n = (size_t)run.pages;
		p->run[p->n++] =
			(struct mem_run_in){ run.page, (uint32_t)n, run.drop_zeros, run.alone };
		for (size_t i = 0; run.entry && i < n; i++)
			p->frame[p->pages + i] = mem_once_frame(run.entry[i]);
		p->pages += n;
		run.page += n;
		run.pages -= n;
		run.entry += run.entry ? n : 0;
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
	int r = open_others(s, first->space, err);

	if (!r)
		r = mem_scan_entries(&s->others, first->page, n, f->theirs, err);
	if (!r)
		r = mem_scan_entries(f->scan, f->page + i, n, f->again, err);
	for (size_t k = 0; !r && k < n; k++) {
		uint64_t frame = mem_once_frame(f->entry[i + k]);

		if (mem_once_frame(f->theirs[k]) != frame || mem_once_frame(f->again[k]) != frame)
			f->stored[i + k].frame = 0;
	}
	return r;
}

/* Which of these pages are stored already? */
static int find_stored(struct saver *s, struct forked *f, struct ckpt_error *err)
{
	int r = mem_scan_entries(f->scan, f->page, f->n, f->entry, err);
	size_t next;

	/* others add to it, see sink.c */
	pthread_mutex_lock(&s->sink.lock);
	for (size_t i = 0; !r && i < f->n; i++) {
		const struct mem_once_page *p =
			mem_once_find(&s->once, mem_once_frame(f->entry[i]));

		f->stored[i] = p ? *p : (struct mem_once_page){ 0 };
	}
	pthread_mutex_unlock(&s->sink.lock);
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

/*
 * What was stored before has to be known, whoever does it: of other spaces, for in one and the same
 * a page is in two places only if the kernel has merged pages.
 */
static int drain(struct saver *s, bool merged, struct ckpt_error *err)
{
	int r;

	if (s->drained && !merged)
		return 0;
	r = flush(s, err);
	if (!r)
		r = mem_sink_drain(&s->sink, err);
	s->drained = true;
	return r;
}

/* A run of pages that may be shared by fork: those that are stored already are only noted. */
static int save_forked(struct saver *s, const struct mem_scan *scan, struct run run,
		       struct stored *st, struct ckpt_error *err)
{
	struct forked *f = s->forked;
	int r = 0;

	if (!f)
		f = s->forked = malloc(sizeof(*f));
	if (!f)
		return ckpt_fail(err, ENOMEM, "out of memory");
	f->scan = scan;
	while (!r && run.pages) {
		size_t i = 0, k;

		f->page = run.page;
		f->n = run.pages < ENTRIES ? (size_t)run.pages : ENTRIES;
		r = drain(s, run.merged, err);
		if (!r)
			r = find_stored(s, f, err);
		while (!r && i < f->n) {
			struct run part = run;

			for (k = i; k < f->n && !f->stored[k].frame; k++)
				;
			part.page = f->page + i;
			part.pages = k - i;
			part.entry = &f->entry[i];
			r = save_run(s, part, err);
			if (!r && k < f->n)
				r = add_again(s, st, f->page + k, f->stored[k].place, err);
			i = k + 1;
		}
		run.page += f->n;
		run.pages -= f->n;
	}
	return r;
}

static int save_vma(struct saver *s, struct mem_scan *scan, const struct mem_vma *v,
		    struct mem_runs *runs, struct stored *st, struct ckpt_error *err)
{
	char name[MEM_NAME_MAX];
	int r;

	runs->n = 0;
	/* the content of others is their object's, but guard pages are the mapping's */
	r = has_own_pages(v) ? mem_scan_vma(scan, v, runs, &st->guards, err)
			     : mem_scan_guards(scan, v, &st->guards, err);
	if (r < 0)
		return ckpt_wrap(err, "%s: %s", s->portion.from.name,
				 mem_vma_name(v, name, sizeof(name)));
	for (size_t k = 0; !r && k < runs->n; k++) {
		/* a direct look would end the sharing; so would one at what is merged */
		const struct run run = { .page = runs->start[k],
					 .pages = runs->pages[k],
					 .drop_zeros = v->kind == MEM_PRIVATE_ANON,
					 .alone = v->alone && !(v->flags & MEM_MERGEABLE),
					 .merged = v->flags & MEM_MERGEABLE };

		r = v->forked && s->st->n_spaces > 1 ? save_forked(s, scan, run, st, err)
						     : save_run(s, run, err);
	}
	return r;
}

/* Where the mappings from that one on end that one look at the page tables may take in. */
static uint64_t alike_until(const struct mem_maps *m, size_t i)
{
	const Ckpt__Mem__Kind kind = m->vma[i].kind;

	while (i + 1 < m->n && has_own_pages(&m->vma[i + 1]) && m->vma[i + 1].kind == kind)
		i++;
	return m->vma[i].end;
}

static int save_task(struct saver *s, const struct mem_space *sp, struct stored *st,
		     struct ckpt_error *err)
{
	MEM_AUTO_SCAN struct mem_scan scan = { .fd = -1 };
	MEM_AUTO_RUNS struct mem_runs runs = { 0 };
	struct mem_source from = { .fd = mem_proc_open(sp->task, "mem", O_RDONLY, err),
				   .pid = ckpt_task_tid(sp->task) };
	int r = from.fd < 0 ? from.fd : mem_scan_open(s->run, sp->task, &scan, err);

	s->fd = from.fd;
	if (r < 0)
		return r;
	mem_task_name(sp->task, from.name, sizeof(from.name));
	begin(s, &from, st);
	for (size_t i = 0; !r && i < sp->maps.n; i++) {
		const struct mem_vma *v = &sp->maps.vma[i];

		if (!has_own_pages(v) && !mem_may_be_guarded(v))
			continue;
		if (has_own_pages(v) && v->start >= scan.until)
			scan.until = alike_until(&sp->maps, i);
		r = save_vma(s, &scan, v, &runs, st, err);
	}
	s->portion.last = true;
	return r < 0 ? r : flush(s, err);
}

static int put_task(struct saver *s, const struct mem_space *sp, const struct stored *st,
		    struct ckpt_error *err)
{
	const bool guards = ckpt_feature_on(s->run, "guard");
	mem_pages_rec m = CKPT__MEM__PAGES__INIT;

	m.id = sp->task->id;
	m.offset = st->offset;
	m.start = st->runs.start;
	m.pages = st->runs.pages;
	m.n_start = m.n_pages = st->runs.n;
	m.again = st->again.start;
	m.agains = st->again.pages;
	m.place = st->place;
	m.n_again = m.n_agains = m.n_place = st->again.n;
	m.guard = st->guards.start;
	m.guards = st->guards.pages;
	m.n_guard = m.n_guards = guards ? st->guards.n : 0;
	return ckpt_record_put(s->run, MEM_REC_PAGES, &m.base, err);
}

/* A file system's blocks may be smaller than pages. */
static int save_data(struct saver *s, int fd, struct ckpt_error *err)
{
	uint64_t next = 0; /* page */
	off_t data, hole = 0;

	while ((data = lseek(fd, hole, SEEK_DATA)) >= 0) {
		struct run run = { .page = (uint64_t)data / MEM_PAGE, .drop_zeros = true };
		uint64_t end;
		int r;

		hole = lseek(fd, data, SEEK_HOLE);
		if (hole < 0)
			return ckpt_fail_sys(err, errno, "shared memory: lseek");
		end = ((uint64_t)hole + MEM_PAGE - 1) / MEM_PAGE;
		if (run.page < next)
			run.page = next;
		if (end <= run.page)
			continue;
		run.pages = end - run.page;
		r = save_run(s, run, err);
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
static int save_shared(struct saver *s, size_t index, struct stored *st, struct ckpt_error *err)
{
	const struct mem_shared *o = &s->st->shared[index];
	struct mem_source from = { .fd = o->fd, .ends = o->ghost };
	struct stat sb;
	int r = 0;

	snprintf(from.name, sizeof(from.name), "shared memory %zu", index + 1);
	if (o->ghost && fstat(o->fd, &sb) < 0)
		return ckpt_fail_sys(err, errno, "fstat");
	st->open = o->ghost && mem_ghost_is_open(s->run, &sb);
	begin(s, &from, st);
	if (!st->open)
		r = save_data(s, o->fd, err);
	return r < 0 ? r : flush(s, err);
}

static int put_shared(struct saver *s, size_t index, const struct stored *st,
		      struct ckpt_error *err)
{
	const struct mem_shared *o = &s->st->shared[index];
	mem_shared_rec m = CKPT__MEM__SHARED__INIT;

	m.id = (uint32_t)index + 1;
	m.size = o->size;
	m.ino = o->ino;
	m.huge = o->huge;
	m.offset = st->offset;
	m.open = st->open;
	m.start = st->runs.start;
	m.pages = st->runs.pages;
	m.n_start = m.n_pages = st->runs.n;
	return ckpt_record_put(s->run, MEM_REC_SHARED, &m.base, err);
}

static int save_all(struct saver *s, struct ckpt_error *err)
{
	const size_t spaces = s->st->n_spaces;
	int r = 0;

	for (size_t i = 0; !r && i < spaces; i++) {
		s->space = i;
		s->drained = false;
		r = save_task(s, &s->st->spaces[i], &s->stored[i], err);
	}
	for (size_t i = 0; !r && i < s->st->n_shared; i++)
		r = save_shared(s, i, &s->stored[spaces + i], err);
	if (!r)
		r = mem_sink_close(&s->sink, err);
	for (size_t i = 0; !r && i < spaces; i++)
		r = put_task(s, &s->st->spaces[i], &s->stored[i], err);
	for (size_t i = 0; !r && i < s->st->n_shared; i++)
		r = put_shared(s, i, &s->stored[spaces + i], err);
	return r;
}

static void saver_free(struct saver *s)
{
	mem_sink_free(&s->sink);
	mem_scan_close(&s->others);
	mem_once_free(&s->once);
	ckpt_cleanup_fd(&s->fd);
	for (size_t i = 0; i < s->n_stored; i++) {
		mem_runs_free(&s->stored[i].runs);
		mem_runs_free(&s->stored[i].again);
		mem_runs_free(&s->stored[i].guards);
		free(s->stored[i].place);
	}
	free(s->stored);
	free(s->forked);
}

int mem_save(struct ckpt_run *run, struct ckpt_error *err)
{
	__attribute__((cleanup(saver_free))) struct saver s = { .run = run,
								.fd = -1,
								.others = { .fd = -1 } };
	struct ckpt_pages *pages;
	int r = mem_state_get(run, &s.st, err);

	if (!r)
		r = ckpt_pages_create(run, MEM_PAGES_NAME, &pages, err);
	if (!r)
		r = mem_sink_open(&s.sink, pages, &s.once, err);
	if (r < 0)
		return r;
	s.n_stored = s.st->n_spaces + s.st->n_shared;
	s.stored = calloc(s.n_stored + 1, sizeof(*s.stored));
	if (!s.stored)
		return ckpt_fail(err, ENOMEM, "out of memory");
	r = save_all(&s, err);
	if (r < 0)
		return r;
	ckpt_count(run, "pages", s.sink.stored);
	ckpt_count(run, "zero pages", s.sink.zeros);
	if (s.again)
		ckpt_count(run, "shared pages", s.again);
	return 0;
}
