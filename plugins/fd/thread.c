/* SPDX-License-Identifier: MIT */
/*
 * Tables that single threads have for themselves (unshare(CLONE_FILES)). All else looks for a
 * description in the table of a process: what only a thread has is added there, under a number
 * that is free, as what is in flight is. At restore the process really has it, until the thread
 * has taken it from there.
 */
#include "internal.h"
#include "steps.h"

#include <linux/close_range.h>
#include <linux/kcmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>

#ifndef PIDFD_THREAD
#define PIDFD_THREAD 0200
#endif

static pid_t tid_of(const struct fd_own_table *t)
{
	return t->task->threads[t->thread]->tid;
}

static int fail_thread(const struct fd_own_table *t, int r, const char *what,
		       struct ckpt_error *err)
{
	return ckpt_fail_sys(err, r, "task %u (%s): thread %d: %s", t->task->id, t->task->comm,
			     tid_of(t), what);
}

/* ---- what they have ---------------------------------------------------------------- */

static bool is_same(const struct fd_own_table *t, const struct fd_entry *own,
		    const struct fd_entry *e)
{
	return own->st.st_dev == e->st.st_dev && own->st.st_ino == e->st.st_ino &&
	       !syscall(SYS_kcmp, tid_of(t), fd_entry_pid(e), KCMP_FILE, own->num, fd_entry_num(e));
}

/* One more than the index of an entry of the same description; 0: there is none. */
static size_t find(const struct fd_state *st, const struct fd_own_table *t,
		   const struct fd_entry *own)
{
	const struct ckpt_task *holder = st->holders[t->task->id - 1];
	const struct fd_entry *e = fd_entry_find(st, holder, own->num);

	/* the table was a copy of the process' once */
	if (e && is_same(t, own, e))
		return (size_t)(e - st->entries) + 1;
	for (size_t i = 0; i < st->n; i++)
		if (is_same(t, own, &st->entries[i]))
			return i + 1;
	return 0;
}

static int duplicate(const struct fd_own_table *t, int num)
{
	CKPT_AUTO_FD int pidfd = (int)syscall(SYS_pidfd_open, tid_of(t), PIDFD_THREAD);
	int fd = pidfd < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, pidfd, num, 0);

	return fd < 0 ? -errno : fd;
}

/* Let the process have it too. */
static int add(struct fd_state *st, const struct fd_own_table *t, struct fd_entry *own,
	       struct ckpt_error *err)
{
	const struct ckpt_task *holder = st->holders[t->task->id - 1];
	int fd = duplicate(t, own->num);

	if (fd == -EINVAL) {
		ckpt_fail_as(err, CKPT_EXIT_REFUSED, EOPNOTSUPP,
			     "thread %d has a descriptor table of its own", tid_of(t));
		return ckpt_hint(err, "Linux 6.9 or newer is needed (PIDFD_THREAD)");
	}
	if (fd < 0)
		return ckpt_fail_sys(err, fd, "pidfd_getfd(2) of fd %d", own->num);
	if (fd_scan_own(st, holder, fd_free_number(st, holder), fd, err))
		return -err->err;
	own->same = st->n;
	return 0;
}

/* The number may be gone in a tree that runs. */
static int read_one(struct ckpt_run *run, struct fd_state *st, struct fd_own_table *t, int dir,
		    int num, struct ckpt_error *err)
{
	struct fd_entry *own = &t->entries[t->n];
	int r;

	*own = (struct fd_entry){ .task = t->task, .num = num, .thread = t->thread };
	r = fd_scan_entry(st, dir, num, own);
	if (!r) {
		t->n++;
		return 0;
	}
	free(own->link);
	free(own->fdinfo);
	return ckpt_is_live(run) && fd_vanished(-r) ? 0 : fail_thread(t, r, "a descriptor", err);
}

static int read_table(struct ckpt_run *run, struct fd_state *st, struct fd_own_table *t,
		      struct ckpt_error *err)
{
	CKPT_AUTO_FREE int *nums = NULL;
	CKPT_AUTO_FD int dir = -1;
	char path[32];
	size_t n = 0;
	int r;

	snprintf(path, sizeof(path), "task/%d", tid_of(t));
	dir = openat(t->task->procfd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	r = dir < 0 ? -errno : fd_scan_numbers(dir, &nums, &n);
	if (r && ckpt_is_live(run) && fd_vanished(-r))
		return 0;
	if (r)
		return fail_thread(t, r, "its descriptors", err);
	t->entries = calloc(n + 1, sizeof(*t->entries));
	if (!t->entries)
		return ckpt_fail(err, ENOMEM, "out of memory");
	for (size_t i = 0; i < n && !r; i++)
		r = read_one(run, st, t, dir, nums[i], err);
	return r;
}

static int find_all(struct ckpt_run *run, struct fd_state *st, struct fd_own_table *t,
		    struct ckpt_error *err)
{
	const struct ckpt_error none = { 0 };
	size_t n = 0;

	for (size_t i = 0; i < t->n; i++) {
		struct fd_entry *own = &t->entries[i];
		int r;

		own->same = find(st, t, own);
		r = own->same ? 0 : add(st, t, own, err);
		if (!r)
			continue;
		if (!ckpt_is_live(run) || !fd_vanished(-r))
			return ckpt_wrap(err, "task %u (%s): thread %d", t->task->id, t->task->comm,
					 tid_of(t));
		*err = none;
		own->gone = true;
	}
	for (size_t i = 0; i < t->n; i++) {
		if (!t->entries[i].gone) {
			t->entries[n++] = t->entries[i];
			continue;
		}
		free(t->entries[i].link);
		free(t->entries[i].fdinfo);
	}
	t->n = n;
	return 0;
}

int fd_threads_scan(struct ckpt_run *run, struct fd_state *st, struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; i < st->n_own && !r; i++)
		r = read_table(run, st, &st->own[i], err);
	/* which numbers are free in all of them is known by then */
	for (size_t i = 0; i < st->n_own && !r; i++)
		r = find_all(run, st, &st->own[i], err);
	return r;
}

void fd_threads_identify(struct fd_state *st)
{
	for (size_t i = 0; i < st->n_own; i++)
		for (size_t k = 0; k < st->own[i].n; k++) {
			struct fd_entry *e = &st->own[i].entries[k];

			e->file = st->entries[e->same - 1].file;
			e->next = e->file->own;
			e->file->own = e;
		}
}

void fd_threads_clear(struct fd_state *st)
{
	for (size_t i = 0; i < st->n_own; i++) {
		for (size_t k = 0; k < st->own[i].n; k++) {
			free(st->own[i].entries[k].link);
			free(st->own[i].entries[k].fdinfo);
		}
		free(st->own[i].entries);
	}
	free(st->own);
	st->own = NULL;
	st->n_own = 0;
}

static int put_table(struct ckpt_run *run, uint32_t id, const struct fd_own_table *t,
		     struct ckpt_error *err)
{
	CKPT_AUTO_FREE Ckpt__Fd__Entry *list = calloc(t->n + 1, sizeof(*list));
	CKPT_AUTO_FREE Ckpt__Fd__Entry **ptr = calloc(t->n + 1, sizeof(*ptr));
	Ckpt__Fd__ThreadTable rec = CKPT__FD__THREAD_TABLE__INIT;

	if (!list || !ptr)
		return ckpt_fail(err, ENOMEM, "out of memory");
	rec.id = id;
	rec.task = t->task->id;
	rec.thread = t->thread;
	rec.entries = ptr;
	for (size_t i = 0; i < t->n; i++) {
		Ckpt__Fd__Entry *e = &list[rec.n_entries];

		if (t->entries[i].file->out)
			continue;
		ckpt__fd__entry__init(e);
		e->num = (uint32_t)t->entries[i].num;
		e->file = t->entries[i].file->id;
		e->cloexec = t->entries[i].cloexec;
		ptr[rec.n_entries++] = e;
	}
	return ckpt_record_put(run, FD_THREAD_TABLE, &rec.base, err);
}

int fd_threads_collect(struct ckpt_run *run, const struct fd_state *st, struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; i < st->n_own && !r; i++)
		r = put_table(run, (uint32_t)i + 1, &st->own[i], err);
	return r;
}

/* ---- restore ------------------------------------------------------------------------ */

/* Who has the table of that task. */
static const Ckpt__Fd__Table *table_of(struct ckpt_run *run, uint32_t task)
{
	const Ckpt__Fd__Table *t = ckpt_record_by_id(run, "fd.table", task);

	return t && t->shares ? ckpt_record_by_id(run, "fd.table", t->shares) : t;
}

/* The number under which the process has the file; -1: none. */
static int number_of(const Ckpt__Fd__Table *t, uint32_t file)
{
	for (size_t i = 0; i < t->n_entries; i++)
		if (t->entries[i]->file == file)
			return (int)t->entries[i]->num;
	return -1;
}

bool fd_thread_has(struct ckpt_run *run, uint32_t task, uint32_t thread, uint32_t num,
		   uint32_t file)
{
	for (size_t i = 0; i < ckpt_record_count(run, "fd.thread-table"); i++) {
		const Ckpt__Fd__ThreadTable *t = ckpt_record_at(run, "fd.thread-table", i);

		for (size_t k = 0; t->task == task && t->thread == thread && k < t->n_entries; k++)
			if (t->entries[k]->num == num)
				return t->entries[k]->file == file;
	}
	return false;
}

static int plan_table(struct ckpt_run *run, const Ckpt__Fd__ThreadTable *t, struct ckpt_error *err)
{
	const Ckpt__Fd__Table *process = table_of(run, t->task);
	int64_t last = -1;

	if (!t->thread || t->thread >= fd_threads_known(run, t->task) || !process)
		return ckpt_fail_image(err, "thread %u of task %u is not there", t->thread,
				       t->task);
	for (size_t i = 0; i < t->n_entries; i++) {
		const Ckpt__Fd__Entry *e = t->entries[i];

		if ((int64_t)e->num <= last || e->num > FD_NUM_MAX || e->in_flight ||
		    number_of(process, e->file) < 0)
			return ckpt_fail_image(err,
					       "descriptor %u of thread %u of task %u is not valid",
					       e->num, t->thread, t->task);
		last = e->num;
	}
	if (last >= 0)
		ckpt_reserve_fd(run, (int)last);
	return 0;
}

int fd_threads_plan(struct ckpt_run *run, struct ckpt_error *err)
{
	const Ckpt__Fd__ThreadTable *before = NULL;
	int r = 0;

	for (size_t i = 0; i < ckpt_record_count(run, "fd.thread-table") && !r; i++) {
		const Ckpt__Fd__ThreadTable *t = ckpt_record_at(run, "fd.thread-table", i);

		if (before && (before->task > t->task ||
			       (before->task == t->task && before->thread >= t->thread)))
			return ckpt_fail_image(err, "thread %u of task %u has two tables",
					       t->thread, t->task);
		before = t;
		r = plan_table(run, t, err);
	}
	return r;
}

/*
 * The thread leaves the table of its process, takes nothing along, and fetches what it is to
 * have: pidfd_getfd(2) gives the lowest free number, which is known, since they come in order.
 */
static void add_script(struct ckpt_run *run, struct ckpt_script *s, const Ckpt__Fd__ThreadTable *t,
		       pid_t from)
{
	const Ckpt__Fd__Table *process = table_of(run, t->task);
	int low = 0, pidfd;

	ckpt_script_add(s, SYS_close_range, CKPT_C(0), CKPT_C(~0U), CKPT_C(CLOSE_RANGE_UNSHARE));
	ckpt_script_add(s, SYS_pidfd_open, CKPT_C(from), CKPT_C(PIDFD_THREAD));
	ckpt_script_expect(s, 0);
	pidfd = ckpt_script_add(s, SYS_fcntl, CKPT_C(0), CKPT_C(F_DUPFD_CLOEXEC),
				CKPT_C(ckpt_engine_fd(run)));
	ckpt_script_add(s, SYS_close, CKPT_C(0));
	for (size_t i = 0; i < t->n_entries; i++) {
		const Ckpt__Fd__Entry *e = t->entries[i];

		ckpt_script_add(s, SYS_pidfd_getfd, CKPT_R(pidfd),
				CKPT_C(number_of(process, e->file)), CKPT_C(0));
		ckpt_script_expect(s, low);
		if (low == (int)e->num) {
			low++;
		} else {
			ckpt_script_add(s, SYS_dup3, CKPT_C(low), CKPT_C(e->num),
					CKPT_C(O_CLOEXEC));
			ckpt_script_add(s, SYS_close, CKPT_C(low));
		}
		if (!e->cloexec)
			ckpt_script_add(s, SYS_fcntl, CKPT_C(e->num), CKPT_C(F_SETFD), CKPT_C(0));
	}
	ckpt_script_add(s, SYS_close, CKPT_R(pidfd));
}

/* The thread that stands for the process, as its threads call it. */
static pid_t own_number(struct ckpt_run *run, const struct ckpt_task *t, struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "fd.thread-table");
	int op = ckpt_script_add0(s, SYS_gettid);
	int r = ckpt_script_run(s, t->threads[0], err);

	return r ? r : (pid_t)ckpt_script_result(s, op);
}

int fd_threads_install(struct ckpt_run *run, struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; i < ckpt_record_count(run, "fd.thread-table") && !r; i++) {
		const Ckpt__Fd__ThreadTable *t = ckpt_record_at(run, "fd.thread-table", i);
		const struct ckpt_task *task = ckpt_task_by_id(run, t->task);
		struct ckpt_script *s;
		pid_t from;

		if (!task || t->thread >= task->n_threads)
			return ckpt_fail_image(err, "thread %u of task %u was not made", t->thread,
					       t->task);
		from = own_number(run, task, err);
		if (from < 0)
			return from;
		s = ckpt_script_new(run, "fd.thread-table");
		add_script(run, s, t, from);
		r = ckpt_script_post(s, task->threads[t->thread], err);
	}
	return r ? r : ckpt_script_settle(run, err);
}
