/* SPDX-License-Identifier: MIT */
/* Segments of shared memory. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/shm.h>
#include <sys/vfs.h>

#include "ipc.h"

#ifndef SHM_STAT_ANY
#define SHM_STAT_ANY 15
#endif
#define HUGETLBFS_MAGIC 0x958458f6
#define CHUNK		(1U << 20)
#define PAGE		4096U
#define SHM_BITS	(SHM_DEST | SHM_LOCKED)

/* ---- dump: which there are ------------------------------------------------------------- */

struct look {
	struct ipc_state *st;
	const struct ckpt_ns *ns;
	bool forced;
};

/* By itself where the segment lies: its file knows its content, and which pages there are none of.
 */
static int open_segment(int number, int flags, struct ckpt_error *err)
{
	void *at = shmat(number, NULL, flags == O_RDONLY ? SHM_RDONLY : 0);
	struct shmid_ds ds;
	char path[80];
	int fd;

	if (at == (void *)-1)
		return ckpt_fail_sys(err, errno, "shmat(2) of segment %d", number);
	if (shmctl(number, IPC_STAT, &ds)) {
		shmdt(at);
		return ckpt_fail_sys(err, errno, "shmctl(2) of segment %d", number);
	}
	snprintf(path, sizeof(path), "/proc/self/map_files/%lx-%lx", (unsigned long)at,
		 (unsigned long)at + ((ds.shm_segsz + PAGE - 1) & ~(size_t)(PAGE - 1)));
	fd = open(path, flags | O_CLOEXEC);
	if (fd < 0)
		ckpt_fail_sys(err, errno, "%s", path);
	shmdt(at);
	return fd < 0 ? -err->err : fd;
}

static int add(struct look *l, int number, const struct shmid_ds *ds, struct ckpt_error *err)
{
	struct ipc_state *st = l->st;
	struct ipc_segment *more = realloc(st->segments, (st->n_segments + 1) * sizeof(*more));

	if (!more)
		return ckpt_fail_sys(err, ENOMEM, "segments");
	st->segments = more;
	more[st->n_segments++] = (struct ipc_segment){
		.ns = l->ns,
		.number = number,
		.key = (uint32_t)ds->shm_perm.__key,
		.uid = ds->shm_perm.uid,
		.gid = ds->shm_perm.gid,
		.cuid = ds->shm_perm.cuid,
		.cgid = ds->shm_perm.cgid,
		.mode = ds->shm_perm.mode,
		.size = ds->shm_segsz,
		.attached = ds->shm_nattch,
		.fleeting = l->forced && !ds->shm_nattch,
	};
	return 0;
}

static int look(void *arg, struct ckpt_error *err)
{
	struct look *l = arg;
	struct shm_info info;
	int last = shmctl(0, SHM_INFO, (struct shmid_ds *)(void *)&info), r = 0;

	l->forced = ipc_rmid_forced();
	for (int i = 0; i <= last && r == 0; i++) {
		struct shmid_ds ds;
		int number = shmctl(i, SHM_STAT_ANY, &ds);

		if (number >= 0)
			r = add(l, number, &ds, err);
	}
	return r;
}

/* Namespaces that nobody is in are found later than the others. */
int ipc_look(struct ckpt_run *run, struct ckpt_error *err)
{
	struct ipc_state *st = ipc_state(run, err);
	int r = st ? 0 : -ENOMEM;

	for (; r == 0 && st->looked < ckpt_ns_count(run); st->looked++) {
		struct look l = { st, ckpt_ns_at(run, st->looked), false };

		if (l.ns->type == CKPT_NS_IPC)
			r = l.ns->own ? look(&l, err) : ipc_in(run, l.ns, look, &l, err);
		if (r == 0 && l.ns->type == CKPT_NS_IPC && !l.ns->own)
			r = ipc_look_for_mqueues(run, l.ns, err);
	}
	return r;
}

struct ipc_segment *ipc_find(struct ipc_state *st, const struct ckpt_ns *ns, int number)
{
	for (size_t i = 0; i < st->n_segments; i++)
		if (st->segments[i].ns == ns && st->segments[i].number == number)
			return &st->segments[i];
	return NULL;
}

/* ---- dump: records ------------------------------------------------------------------------ */

struct content {
	struct ipc_segment *s;
	int fd;
	Ckpt__Ipc__Run *runs, **list;
	size_t n;
};

static void content_free(struct content *c)
{
	free(c->runs);
	free(c->list);
	if (c->fd >= 0)
		close(c->fd);
}

static int open_content(void *arg, struct ckpt_error *err)
{
	struct content *c = arg;

	c->fd = open_segment(c->s->number, O_RDONLY, err);
	return c->fd < 0 ? c->fd : 0;
}

static int add_run(struct content *c, uint64_t offset, uint64_t length, uint64_t at)
{
	Ckpt__Ipc__Run *last = c->n ? &c->runs[c->n - 1] : NULL, *more;

	if (last && last->offset + last->length == offset && last->at + last->length == at) {
		last->length += length;
		return 0;
	}
	more = realloc(c->runs, (c->n + 1) * sizeof(*more));
	if (!more)
		return -ENOMEM;
	c->runs = more;
	ckpt__ipc__run__init(&more[c->n]);
	more[c->n].offset = offset;
	more[c->n].length = length;
	more[c->n++].at = at;
	return 0;
}

static int save_range(struct content *c, struct ckpt_pages *pages, off_t from, off_t to,
		      struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *buf = malloc(CHUNK);

	while (buf && from < to) {
		size_t want = to - from < CHUNK ? (size_t)(to - from) : CHUNK;
		ssize_t n = pread(c->fd, buf, want, from);
		uint64_t at;
		int r;

		if (n <= 0)
			return ckpt_fail_sys(err, n < 0 ? errno : EIO, "reading segment %d",
					     c->s->number);
		r = ckpt_pages_append(pages, buf, (size_t)n, &at, err);
		if (r == 0 && add_run(c, (uint64_t)from, (uint64_t)n, at))
			r = ckpt_fail_sys(err, ENOMEM, "content of a segment");
		if (r < 0)
			return r;
		from += n;
	}
	return buf ? 0 : ckpt_fail_sys(err, ENOMEM, "content of a segment");
}

/* Pages that nobody has touched are holes, and stay so. */
static int save_content(struct ckpt_run *run, struct content *c, struct ckpt_error *err)
{
	struct ipc_state *st = ipc_state(run, err);
	off_t end = (off_t)((c->s->size + PAGE - 1) & ~(uint64_t)(PAGE - 1)), at = 0;
	int r = st ? 0 : -ENOMEM;

	if (st && !st->pages)
		r = ckpt_pages_create(run, IPC_PAGES, &st->pages, err);
	while (r == 0) {
		off_t data = lseek(c->fd, at, SEEK_DATA), hole;

		if (data < 0 && errno == ENXIO)
			return 0;
		hole = data < 0 ? -1 : lseek(c->fd, data, SEEK_HOLE);
		if (hole < 0)
			return ckpt_fail_sys(err, errno, "holes of segment %d", c->s->number);
		if (data >= end)
			return 0;
		r = save_range(c, st->pages, data, hole < end ? hole : end, err);
		at = hole;
	}
	return r;
}

static int put(struct ckpt_run *run, struct content *c, struct ckpt_error *err)
{
	struct ipc_state *st = ipc_state(run, err);
	Ckpt__Ipc__Segment rec = CKPT__IPC__SEGMENT__INIT;
	Ckpt__Ipc__Object o = CKPT__IPC__OBJECT__INIT;
	const struct ipc_segment *s = c->s;

	c->list = calloc(c->n + 1, sizeof(*c->list));
	if (!c->list || !st)
		return ckpt_fail_sys(err, ENOMEM, "content of a segment");
	for (size_t i = 0; i < c->n; i++)
		c->list[i] = &c->runs[i];
	o.ns = s->ns->id;
	o.number = (uint32_t)s->number;
	o.key = s->key;
	o.uid = s->uid;
	o.gid = s->gid;
	o.cuid = s->cuid;
	o.cgid = s->cgid;
	o.mode = s->mode & 0777;
	rec.id = c->s->id = ++st->n_records;
	rec.object = &o;
	rec.size = s->size;
	rec.locked = s->mode & SHM_LOCKED;
	rec.removed = s->mode & SHM_DEST;
	rec.runs = c->list;
	rec.n_runs = c->n;
	ckpt_count(run, "segments", 1);
	return ckpt_record_put(run, IPC_REC_SEGMENT, &rec.base, err);
}

int ipc_put_segment(struct ckpt_run *run, struct ipc_segment *s, struct ckpt_error *err)
{
	__attribute__((cleanup(content_free))) struct content c = { .s = s, .fd = -1 };
	struct statfs fs;
	int r;

	if (s->id || s->huge || s->fleeting)
		return 0;
	r = ipc_in(run, s->ns, open_content, &c, err);
	if (r < 0)
		return r;
	if (fstatfs(c.fd, &fs))
		return ckpt_fail_sys(err, errno, "segment %d", s->number);
	if (fs.f_type == HUGETLBFS_MAGIC) {
		char object[48];

		snprintf(object, sizeof(object), "segment %d", s->number);
		s->huge = true;
		ckpt_refuse(run, &(struct ckpt_blocker){
					 .feature = "hugetlb",
					 .object = object,
					 .reason = "segments of huge pages are not saved",
					 .hint = "let the program do without SHM_HUGETLB",
				 });
		return 0;
	}
	if (ckpt_run_kind(run) == CKPT_DUMP)
		r = save_content(run, &c, err);
	return r < 0 ? r : put(run, &c, err);
}

int ipc_put_segments(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err)
{
	struct ipc_state *st = ipc_state(run, err);
	int r = st ? ipc_look(run, err) : -ENOMEM;

	for (size_t i = 0; r == 0 && i < st->n_segments; i++)
		if (st->segments[i].ns == ns)
			r = ipc_put_segment(run, &st->segments[i], err);
	return r;
}

/* ---- restore --------------------------------------------------------------------------------- */

struct job {
	const Ckpt__Ipc__Segment *rec;
	int fd;
	bool there; /* it is already: only the content is wanted */
	bool made;  /* out: it is to be removed if the restore fails */
};

static int create(struct job *j, struct ckpt_error *err)
{
	const Ckpt__Ipc__Object *o = j->rec->object;
	int number = -1, r = ipc_begin("shm", o, err);

	if (r == 0) {
		number = shmget((key_t)o->key, j->rec->size,
				IPC_CREAT | IPC_EXCL | SHM_NORESERVE | (int)o->mode);
		r = ipc_end("shm", o, number, err);
	}
	j->made = r == 0;
	return r;
}

static int make(void *arg, struct ckpt_error *err)
{
	struct job *j = arg;
	const Ckpt__Ipc__Object *o = j->rec->object;
	struct shmid_ds ds;
	const int number = (int)o->number, r = j->there ? 0 : create(j, err);

	if (r < 0)
		return r;
	if (shmctl(number, IPC_STAT, &ds))
		return ckpt_fail_sys(err, errno, "segment %d", number);
	ds.shm_perm.uid = o->uid;
	ds.shm_perm.gid = o->gid;
	ds.shm_perm.mode = (unsigned short)o->mode;
	if (shmctl(number, IPC_SET, &ds) || (j->rec->locked && shmctl(number, SHM_LOCK, NULL)))
		return ckpt_fail_sys(err, errno, "shmctl(2) of segment %d", number);
	j->fd = open_segment(number, O_RDWR, err);
	return j->fd < 0 ? j->fd : 0;
}

static int fill(struct ckpt_run *run, const Ckpt__Ipc__Segment *rec, int fd, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *buf = malloc(CHUNK);
	CKPT_AUTO_FD int pages = -1;
	uint64_t size;
	int r;

	if (!rec->n_runs)
		return 0;
	r = ckpt_pages_open(run, IPC_PAGES, &pages, &size, err);
	if (r < 0 || !buf)
		return buf ? r : ckpt_fail_sys(err, ENOMEM, "content of a segment");
	for (size_t i = 0; i < rec->n_runs; i++) {
		const Ckpt__Ipc__Run *m = rec->runs[i];

		for (uint64_t done = 0; done < m->length;) {
			size_t want = m->length - done < CHUNK ? m->length - done : CHUNK;
			ssize_t n = pread(pages, buf, want, (off_t)(m->at + done));

			if (n <= 0 || pwrite(fd, buf, (size_t)n, (off_t)(m->offset + done)) != n)
				return ckpt_fail_sys(err, n == 0 ? EIO : errno,
						     "content of segment %u", rec->object->number);
			done += (uint64_t)n;
		}
	}
	return 0;
}

static int make_in(struct ckpt_run *run, const struct ckpt_ns *ns, struct job *j,
		   struct ckpt_error *err)
{
	int r = ipc_in(run, ns, make, j, err);

	if (r == 0 && j->there &&
	    fallocate(j->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)j->rec->size))
		r = ckpt_fail_sys(err, errno, "emptying segment %u", j->rec->object->number);
	if (r == 0)
		r = fill(run, j->rec, j->fd, err);
	if (j->fd >= 0)
		close(j->fd);
	return r;
}

int ipc_make_segment(struct ckpt_run *run, const Ckpt__Ipc__Segment *rec, struct ckpt_error *err)
{
	struct job j = { rec, -1, false, false };

	return make_in(run, ckpt_ns_by_id(run, rec->object->ns), &j, err);
}

static int mark_removed(void *arg, struct ckpt_error *err)
{
	const Ckpt__Ipc__Segment *rec = arg;

	return shmctl((int)rec->object->number, IPC_RMID, NULL)
		       ? ckpt_fail_sys(err, errno, "IPC_RMID of segment %u", rec->object->number)
		       : 0;
}

int ipc_settle_segment(struct ckpt_run *run, const Ckpt__Ipc__Segment *rec, struct ckpt_error *err)
{
	if (!rec->removed)
		return 0;
	return ipc_in(run, ckpt_ns_by_id(run, rec->object->ns), mark_removed,
		      (void *)(uintptr_t)rec, err);
}

/* ---- restore, in ckpt's own namespace, which others use too ------------------------------------
 */

/* 1: it is there, and nobody uses it; 0: its number is free; -EBUSY: it is another one. */
static int is_there(const Ckpt__Ipc__Segment *rec)
{
	struct shmid_ds ds;

	if (shmctl((int)rec->object->number, IPC_STAT, &ds))
		return 0;
	return ds.shm_nattch || (uint32_t)ds.shm_perm.__key != rec->object->key ||
			       ds.shm_segsz != rec->size || ds.shm_perm.cuid != rec->object->cuid
		       ? -EBUSY
		       : 1;
}

int ipc_plan_own(struct ckpt_run *run, const Ckpt__Ipc__Segment *rec, struct ckpt_error *err)
{
	const Ckpt__Ipc__Object *o = rec->object;
	static const char hint[] = "end its users, remove it (ipcrm -m), or restore in another ipc "
				   "namespace (unshare -i)";
	struct shmid_ds ds;

	(void)err;
	if (ipc_rmid_forced())
		return ckpt_unmet(
			run, CKPT_EXIT_FAILED,
			"write 0 to it, or restore in another ipc namespace (unshare -i)",
			"kernel.shm_rmid_forced is 1: segment %u would go before a task has "
			"attached it",
			o->number);
	if (is_there(rec) < 0)
		return ckpt_unmet(run, CKPT_EXIT_FAILED, hint,
				  "segment %u is in use, or is another one by now", o->number);
	if (is_there(rec))
		return 0;
	if (o->key && shmget((key_t)o->key, 0, 0) >= 0)
		ckpt_unmet(run, CKPT_EXIT_FAILED, hint, "key %#x of segment %u is taken", o->key,
			   o->number);
	if (shmctl((int)(o->number & 0x7fff), SHM_STAT_ANY, &ds) >= 0)
		ckpt_unmet(run, CKPT_EXIT_FAILED, hint, "the place of segment %u is taken",
			   o->number);
	return 0;
}

static bool is_own(struct ckpt_run *run, const Ckpt__Ipc__Segment *rec)
{
	return rec->object->ns == ckpt_ns_own(run, CKPT_NS_IPC)->id;
}

int ipc_make_own(struct ckpt_run *run, struct ckpt_error *err)
{
	struct ipc_state *st = ipc_state(run, err);
	size_t n = ckpt_record_count(run, "ipc.segment");
	int r = 0;

	if (!st)
		return -ENOMEM;
	st->made = calloc(n + 1, sizeof(*st->made));
	if (!st->made)
		return ckpt_fail_sys(err, ENOMEM, "segments");
	for (size_t i = 0; i < n && r == 0; i++) {
		struct job j = { ckpt_record_at(run, "ipc.segment", i), -1, false, false };

		if (!is_own(run, j.rec))
			continue;
		r = is_there(j.rec);
		if (r < 0) {
			ckpt_fail(err, -r, "segment %u is in use by now", j.rec->object->number);
			break;
		}
		j.there = r;
		r = make_in(run, ckpt_ns_own(run, CKPT_NS_IPC), &j, err);
		st->made[i] = j.made;
	}
	if (r < 0)
		ipc_unmake_own(run);
	return r;
}

void ipc_unmake_own(struct ckpt_run *run)
{
	struct ipc_state *st = ckpt_state(run);

	for (size_t i = 0; st && st->made && i < ckpt_record_count(run, "ipc.segment"); i++) {
		const Ckpt__Ipc__Segment *rec = ckpt_record_at(run, "ipc.segment", i);

		if (st->made[i])
			shmctl((int)rec->object->number, IPC_RMID, NULL);
		st->made[i] = false;
	}
}

int ipc_settle_own(struct ckpt_run *run, struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; i < ckpt_record_count(run, "ipc.segment") && r == 0; i++) {
		const Ckpt__Ipc__Segment *rec = ckpt_record_at(run, "ipc.segment", i);

		if (is_own(run, rec))
			r = ipc_settle_segment(run, rec, err);
	}
	return r;
}
