/* SPDX-License-Identifier: MIT */
/*
 * Descriptions that are open nowhere but in a message on its way (SCM_RIGHTS). They are
 * treated as if a task that has the socket had them too, under a number that it does not
 * use. At restore it really has, until they are sent.
 */
#include "internal.h"

#include <fcntl.h>
#include <linux/kcmp.h>
#include <sys/syscall.h>

pid_t fd_entry_pid(const struct fd_entry *e)
{
	return e->in_flight ? getpid() : ckpt_task_tid(e->task);
}

int fd_entry_num(const struct fd_entry *e)
{
	return e->in_flight ? e->own : e->num;
}

int fd_entry_kcmp(const struct fd_entry *a, const struct fd_entry *b)
{
	long r;

	if (!a->in_flight && !b->in_flight)
		return ckpt_kcmp_file(a->task, a->num, b->task, b->num);
	r = syscall(SYS_kcmp, fd_entry_pid(a), fd_entry_pid(b), KCMP_FILE, fd_entry_num(a),
		    fd_entry_num(b));
	return r < 0 ? -errno : (int)r;
}

struct carrier {
	struct fd_state *st;
	const struct ckpt_task *task;
};

/* Has a task, or a message looked at before, the description that `fd` is a duplicate of? */
static bool known(const struct fd_state *st, int fd, const struct stat *s)
{
	for (size_t i = 0; i < st->n; i++) {
		const struct fd_entry *e = &st->entries[i];

		if (e->st.st_dev == s->st_dev && e->st.st_ino == s->st_ino &&
		    !syscall(SYS_kcmp, getpid(), fd_entry_pid(e), KCMP_FILE, fd, fd_entry_num(e)))
			return true;
	}
	return false;
}

int fd_free_number(const struct fd_state *st, const struct ckpt_task *holder)
{
	int num = -1;

	for (size_t i = 0; i < st->n; i++)
		if (st->entries[i].task == holder && st->entries[i].num > num)
			num = st->entries[i].num;
	for (size_t i = 0; i < st->n_own; i++) {
		const struct fd_own_table *t = &st->own[i];

		/* in order */
		if (st->holders[t->task->id - 1] == holder && t->n &&
		    t->entries[t->n - 1].num > num)
			num = t->entries[t->n - 1].num;
	}
	return num + 1;
}

static int take(struct ckpt_run *run, void *arg, int fd, struct ckpt_error *err)
{
	const struct carrier *c = arg;
	struct stat s;
	int own;

	if (fstat(fd, &s))
		return ckpt_fail_sys(err, errno, "fstat(2)");
	if (known(c->st, fd, &s))
		return 0;
	own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (own < 0)
		return ckpt_fail_sys(err, errno, "F_DUPFD_CLOEXEC");
	return fd_scan_own(c->st, c->task, fd_free_number(c->st, c->task), own, err);
}

struct question {
	const struct ckpt_fd_kind *kind;
	const struct ckpt_fd_found *found;
	struct carrier *carrier;
};

static int call_carried(struct ckpt_run *run, void *arg, struct ckpt_error *err)
{
	const struct question *q = arg;

	return q->kind->carried(run, q->found, take, q->carrier, err);
}

static int look_into(struct ckpt_run *run, struct fd_state *st, struct fd_entry *e,
		     struct ckpt_error *err)
{
	struct carrier c = { .st = st, .task = e->task };
	struct fd_file file = { .first = e, .fd = -1 };
	struct question q = { .carrier = &c };
	CKPT_AUTO_FD int fd = -1;
	struct ckpt_fd_found f;
	int r = fd_describe(run, &file, &f, err);

	if (r)
		return r < 0 ? r : 0;
	fd = f.fd;
	if (fd_external(run, &f))
		return 0;
	r = fd_kind_of(run, &file, &f, err);
	if (r || !file.kind)
		return r;
	q.kind = file.kind->ops;
	q.found = &f;
	if (q.kind->size <= offsetof(struct ckpt_fd_kind, carried) || !q.kind->carried)
		return 0;
	return ckpt_call_as(run, file.plugin, call_carried, &q, err);
}

/* A socket has one description: many descriptors of it are one carrier. */
static bool looked_at(const struct fd_state *st, size_t i)
{
	for (size_t j = 0; j < i; j++)
		if (st->entries[j].st.st_ino == st->entries[i].st.st_ino &&
		    S_ISSOCK(st->entries[j].st.st_mode))
			return true;
	return false;
}

int fd_flights_find(struct ckpt_run *run, struct fd_state *st, struct ckpt_error *err)
{
	uint64_t n;

	/* what is found may carry more */
	for (size_t i = 0; i < st->n; i++) {
		/* the list grows, and moves, while it is in use */
		struct fd_entry e = st->entries[i];
		int r;

		if (!S_ISSOCK(e.st.st_mode) || fd_info_u64(e.fdinfo, "scm_fds", 10, &n) || !n ||
		    looked_at(st, i))
			continue;
		r = look_into(run, st, &e, err);
		if (r)
			return ckpt_wrap(err, "descriptors in flight in fd %d of task %u (%s)",
					 e.num, e.task->id, e.task->comm);
	}
	return 0;
}

void fd_flights_close(struct fd_state *st)
{
	for (size_t i = st->n_held; i < st->n; i++) {
		if (st->entries[i].own >= 0)
			close(st->entries[i].own);
		st->entries[i].own = -1;
	}
}

/* ---- restore ------------------------------------------------------------------------ */

int fd_flights_land(struct ckpt_run *run, struct ckpt_error *err)
{
	for (size_t i = 0; i < ckpt_record_count(run, "fd.table"); i++) {
		const Ckpt__Fd__Table *t = ckpt_record_at(run, "fd.table", i);
		CKPT_AUTO_SCRIPT struct ckpt_script *s = NULL;
		struct ckpt_task *task = ckpt_task_by_id(run, t->id);
		int r;

		for (size_t k = 0; k < t->n_entries; k++) {
			if (!t->entries[k]->in_flight)
				continue;
			if (!s)
				s = ckpt_script_new(run, "fd.in-flight");
			ckpt_script_add(s, SYS_close, CKPT_C(t->entries[k]->num));
		}
		if (!s)
			continue;
		r = task ? ckpt_script_run(s, task->threads[0], err)
			 : ckpt_fail_image(err, "task %u of a table was not made", t->id);
		if (r)
			return r;
	}
	return 0;
}
