/* SPDX-License-Identifier: MIT */
/*
 * File locks, as fdinfo lists them. OFD locks, flock(2) and leases belong to a
 * description. POSIX locks belong to a descriptor table, of a process or of a single
 * thread, and show under each of its numbers that leads to the file: they are saved
 * once. All are taken again by a task that held them, last of all: closing any
 * descriptor of the file would give POSIX locks up, and any opening break leases.
 */
#include "internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/syscall.h>

struct lock {
	const struct fd_entry *at;
	enum fd_lock_kind kind;
	bool write;
	uint64_t start, len;
};

/* One line of fdinfo. 1: it is of this inode, as all should be; -EOPNOTSUPP: not understood. */
static int parse(const char *line, struct lock *l)
{
	static const struct {
		const char *word, *how;
		enum fd_lock_kind kind;
	} kinds[] = {
		{ "POSIX", "ADVISORY", FD_LOCK_POSIX },
		{ "OFDLCK", "ADVISORY", FD_LOCK_OFD },
		{ "FLOCK", "ADVISORY", FD_LOCK_FLOCK },
		/* a lease that is being broken says BREAKING here */
		{ "LEASE", "ACTIVE", FD_LOCK_LEASE },
	};
	char word[16], how[16], type[16], end[32];
	unsigned long long start;

	if (sscanf(line, "lock: %*d: %15s %15s %15s %*d %*s %llu %31s", word, how, type, &start,
		   end) != 5)
		return -EOPNOTSUPP;
	if (strcmp(type, "READ") != 0 && strcmp(type, "WRITE") != 0)
		return -EOPNOTSUPP;
	l->write = *type == 'W';
	l->start = start;
	l->len = strcmp(end, "EOF") ? strtoull(end, NULL, 10) - start + 1 : 0;
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(kinds); i++) {
		l->kind = kinds[i].kind;
		if (!strcmp(word, kinds[i].word) && !strcmp(how, kinds[i].how))
			return 0;
	}
	return -EOPNOTSUPP;
}

static const char *next_line(const char *text)
{
	const char *line = strstr(text, "\nlock:");

	return line ? line + 1 : NULL;
}

static int by_ino(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

int fd_locked_read(struct fd_locked *l)
{
	CKPT_AUTO_FILE FILE *f = fopen("/proc/locks", "re");
	char line[256];
	size_t cap = 0;

	l->unknown = !f;
	while (f && fgets(line, sizeof(line), f)) {
		unsigned long long ino;

		if (!strstr(line, "POSIX"))
			continue;
		if (sscanf(line, "%*d: %*s %*s %*s %*d %*x:%*x:%llu", &ino) != 1) {
			/* of one that waits, perhaps: its line is another, and so is its inode's */
			l->unknown = !strstr(line, "->");
			if (l->unknown)
				break;
			continue;
		}
		if (l->n == cap) {
			uint64_t *more =
				realloc(l->ino, (cap = cap ? cap * 2 : 64) * sizeof(*more));

			if (!more)
				return -ENOMEM;
			l->ino = more;
		}
		l->ino[l->n++] = ino;
	}
	l->unknown |= f && ferror(f);
	if (l->n)
		qsort(l->ino, l->n, sizeof(*l->ino), by_ino);
	return 0;
}

bool fd_is_locked(const struct fd_locked *l, uint64_t ino)
{
	return l->unknown || (l->n && bsearch(&ino, l->ino, l->n, sizeof(ino), by_ino));
}

/* May a lock of that type be taken with a description of these flags? */
static bool suits(const struct lock *l, uint32_t flags)
{
	uint32_t access = flags & O_ACCMODE;

	if (l->kind == FD_LOCK_POSIX || l->kind == FD_LOCK_OFD)
		return access == O_RDWR || access == (l->write ? O_WRONLY : O_RDONLY);
	return l->kind != FD_LOCK_LEASE || l->write || access == O_RDONLY;
}

static bool one_suits(const struct fd_entry *e, const struct lock *l)
{
	for (; e; e = e->next)
		if (e->task == l->at->task && e->thread == l->at->thread && !e->in_flight &&
		    suits(l, (uint32_t)e->flags))
			return true;
	return false;
}

/* Is there a number of that table and file with which it can be taken? */
static bool can_take(const struct fd_state *st, const struct lock *l)
{
	struct fd_file *const *files;
	size_t n = fd_files_of(st, l->at->st.st_dev, l->at->st.st_ino, &files);

	if (suits(l, (uint32_t)l->at->flags))
		return true;
	for (size_t i = 0; l->kind == FD_LOCK_POSIX && i < n; i++)
		if (one_suits(l->at->thread ? files[i]->own : files[i]->first, l))
			return true;
	return false;
}

/* Does any of these show a lock? Then the reason why it cannot be saved, if there is one. */
static bool look(const struct fd_state *st, const struct fd_entry *e, const char **reason)
{
	bool any = false;

	for (; e; e = e->next) {
		for (const char *line = next_line(e->fdinfo); line; line = next_line(line)) {
			struct lock l = { .at = e };

			any = true;
			if (parse(line, &l))
				*reason = "a lock or lease of an unknown kind, or that is being "
					  "broken";
			else if (!can_take(st, &l))
				*reason = "a lock cannot be taken again with the descriptors that "
					  "are left";
		}
	}
	return any;
}

int fd_locks_survey(struct ckpt_run *run, struct fd_file *file, const struct ckpt_fd_found *f)
{
	const char *reason = NULL;
	char object[512];
	bool any;
	int r;

	file->out_locks = false;
	any = look(fd_state(run), file->first, &reason);
	any |= look(fd_state(run), file->own, &reason);
	if (!any)
		return 0;
	snprintf(object, sizeof(object), "fd %d (%s)", f->num, f->link);
	r = ckpt_refuse_off(run, "locks", f->task, object);
	if (r > 0 && !reason)
		return 0;
	file->out_locks = true;
	if (r <= 0)
		return r < 0 && r != -ECANCELED ? r : 0;
	return fd_refuse_detail(run, f, "locks", reason,
				"let the program release it, or --allow-loss fd.locks: the lock "
				"is then gone");
}

/* ---- collect ------------------------------------------------------------------------ */

static int by_what(const void *va, const void *vb)
{
	const struct lock *a = va, *b = vb;

	if (!a->at->thread != !b->at->thread)
		return a->at->thread ? 1 : -1;
	/* entries are in order of task and number, those of one thread in order of number */
	if (a->at->thread && a->at->task != b->at->task)
		return a->at->task->id > b->at->task->id ? 1 : -1;
	if (a->at->thread != b->at->thread)
		return a->at->thread > b->at->thread ? 1 : -1;
	if (a->at != b->at)
		return a->at > b->at ? 1 : -1;
	if (a->kind != b->kind)
		return a->kind > b->kind ? 1 : -1;
	return (a->start > b->start) - (a->start < b->start);
}

static bool same_posix(const struct lock *a, const struct lock *b)
{
	return a->kind == FD_LOCK_POSIX && b->kind == FD_LOCK_POSIX && a->at->task == b->at->task &&
	       a->at->thread == b->at->thread && a->at->st.st_dev == b->at->st.st_dev &&
	       a->at->st.st_ino == b->at->st.st_ino && a->start == b->start && a->len == b->len &&
	       a->write == b->write;
}

/* Of a description, its first entry tells; of POSIX locks, the first number that can take it. */
static bool wanted(const struct lock *list, size_t n, const struct lock *l)
{
	if (l->at->file->out || l->at->file->out_locks || !suits(l, (uint32_t)l->at->flags))
		return false;
	if (l->kind != FD_LOCK_POSIX)
		return l->at == l->at->file->first; /* none of a thread's own */
	/* a task's numbers of one file follow each other closely */
	for (size_t i = n; i-- > 0 && list[i].at->task == l->at->task;)
		if (same_posix(&list[i], l))
			return false;
	return true;
}

struct list {
	struct lock *locks;
	size_t n, cap;
};

static int list_entries(struct list *list, const struct fd_entry *entries, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const char *line = next_line(entries[i].fdinfo);

		for (; line; line = next_line(line)) {
			struct lock l = { .at = &entries[i] };

			if (parse(line, &l) || !wanted(list->locks, list->n, &l))
				continue;
			if (list->n == list->cap) {
				size_t cap = list->cap ? list->cap * 2 : 16;
				struct lock *more = realloc(list->locks, cap * sizeof(l));

				if (!more)
					return -ENOMEM;
				list->locks = more;
				list->cap = cap;
			}
			list->locks[list->n++] = l;
		}
	}
	return 0;
}

static int list_locks(const struct fd_state *st, struct lock **out, size_t *n)
{
	struct list list = { 0 };
	int r = list_entries(&list, st->entries, st->n);

	for (size_t i = 0; i < st->n_own && !r; i++)
		r = list_entries(&list, st->own[i].entries, st->own[i].n);
	if (list.n)
		qsort(list.locks, list.n, sizeof(*list.locks), by_what);
	*out = list.locks;
	*n = list.n;
	return r;
}

int fd_locks_collect(struct ckpt_run *run, struct fd_state *st, struct ckpt_error *err)
{
	CKPT_AUTO_FREE struct lock *list = NULL;
	size_t n = 0;

	if (list_locks(st, &list, &n))
		return ckpt_fail(err, ENOMEM, "out of memory");
	for (size_t i = 0; i < n; i++) {
		Ckpt__Fd__Lock rec = CKPT__FD__LOCK__INIT;
		int r;

		rec.id = (uint32_t)i + 1;
		rec.file = list[i].at->file->id;
		rec.task = list[i].at->task->id;
		rec.num = (uint32_t)list[i].at->num;
		rec.thread = list[i].at->thread;
		rec.kind = list[i].kind;
		rec.write = list[i].write;
		rec.start = list[i].start;
		rec.len = list[i].len;
		r = ckpt_record_put(run, FD_LOCK, &rec.base, err);
		if (r)
			return r;
	}
	return 0;
}

/* ---- restore ------------------------------------------------------------------------ */

static bool is_held(struct ckpt_run *run, const Ckpt__Fd__Lock *rec)
{
	if (rec->thread)
		return rec->kind == FD_LOCK_POSIX &&
		       fd_thread_has(run, rec->task, rec->thread, rec->num, rec->file);
	return fd_table_has(run, rec->task, rec->num, rec->file);
}

int fd_locks_plan(struct ckpt_run *run, struct ckpt_error *err)
{
	for (size_t i = 0; i < ckpt_record_count(run, "fd.lock"); i++) {
		const Ckpt__Fd__Lock *rec = ckpt_record_at(run, "fd.lock", i);
		const Ckpt__Fd__File *file = ckpt_record_by_id(run, "fd.file", rec->file);
		struct lock l = { .kind = (enum fd_lock_kind)rec->kind, .write = rec->write };

		if (rec->kind < FD_LOCK_POSIX || rec->kind > FD_LOCK_LEASE || !file ||
		    !suits(&l, file->flags) || !is_held(run, rec) || rec->start > INT64_MAX ||
		    rec->len > INT64_MAX - rec->start)
			return ckpt_fail_image(err, "lock %u is not valid", rec->id);
	}
	return 0;
}

static void add_lock(struct ckpt_script *s, const Ckpt__Fd__Lock *rec)
{
	struct flock fl = { .l_type = rec->write ? F_WRLCK : F_RDLCK,
			    .l_whence = SEEK_SET,
			    .l_start = (off_t)rec->start,
			    .l_len = (off_t)rec->len };

	switch ((enum fd_lock_kind)rec->kind) {
	case FD_LOCK_POSIX:
	case FD_LOCK_OFD:
		ckpt_script_add(s, SYS_fcntl, CKPT_C(rec->num),
				CKPT_C(rec->kind == FD_LOCK_OFD ? F_OFD_SETLK : F_SETLK),
				CKPT_IN(&fl, sizeof(fl)));
		break;
	case FD_LOCK_FLOCK:
		ckpt_script_add(s, SYS_flock, CKPT_C(rec->num),
				CKPT_C((rec->write ? LOCK_EX : LOCK_SH) | LOCK_NB));
		break;
	case FD_LOCK_LEASE:
		ckpt_script_add(s, SYS_fcntl, CKPT_C(rec->num), CKPT_C(F_SETLEASE),
				CKPT_C(fl.l_type));
		break;
	}
}

static int take(struct ckpt_run *run, const Ckpt__Fd__Lock *rec, struct ckpt_error *err)
{
	struct ckpt_task *task = ckpt_task_by_id(run, rec->task);
	const Ckpt__Fd__Regular *reg = ckpt_record_by_id(run, "fd.regular", rec->file);
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "fd.locks");
	int r;

	if (!task || rec->thread >= task->n_threads)
		return ckpt_fail_image(err, "task %u, which holds a lock, was not made", rec->task);
	add_lock(s, rec);
	r = ckpt_script_run(s, task->threads[rec->thread], err);
	if (!r)
		return 0;
	ckpt_wrap(err, "lock of task %u (%s) on fd %u (%.*s)", task->id, task->comm, rec->num,
		  reg ? (int)reg->path.len : 0, reg ? (const char *)reg->path.data : "");
	return r == -EAGAIN || r == -EACCES
		       ? ckpt_hint(err, "somebody else holds a lock on the file (see lslocks), or "
					"has it open against a lease")
		       : r;
}

int fd_locks_take(struct ckpt_run *run, bool posix, struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; i < ckpt_record_count(run, "fd.lock") && !r; i++) {
		const Ckpt__Fd__Lock *rec = ckpt_record_at(run, "fd.lock", i);

		if ((rec->kind == FD_LOCK_POSIX) == posix)
			r = take(run, rec, err);
	}
	return r;
}
