/* SPDX-License-Identifier: MIT */
/*
 * What threads are under. The filters themselves are to be had by ptrace only, from a
 * thread that is in a stop: before the agents go in.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/ptrace.h>

#include <ckpt/trace.h>

#include "seccomp.h"

#ifndef PTRACE_SECCOMP_GET_FILTER
#define PTRACE_SECCOMP_GET_FILTER 0x420c
#endif
#ifndef PTRACE_SECCOMP_GET_METADATA
#define PTRACE_SECCOMP_GET_METADATA 0x420d
#endif

/* struct seccomp_metadata */
struct metadata {
	uint64_t filter_off, flags;
};

int seccomp_mode(const char *status)
{
	char text[16];

	return ckpt_proc_field(status, "Seccomp", text, sizeof(text)) < 0 ? -1 : atoi(text);
}

/* 0 to 2, or a negative errno: -ESRCH for a thread that has gone from a running tree. */
static int mode_of(const struct ckpt_thread *th, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *status = NULL;
	char path[64];
	ssize_t len;
	int mode;

	snprintf(path, sizeof(path), "task/%d/status", (int)th->tid);
	len = ckpt_proc_read(th->task, path, &status, err);
	if (len < 0)
		return len == -ENOENT ? -ESRCH : (int)len;
	mode = seccomp_mode(status);
	if (mode < 0 || mode > SECCOMP_MODE_FILTER)
		return ckpt_fail(err, EPROTO, "/proc/%d/%s: seccomp mode %d", (int)th->task->pid,
				 path, mode);
	return mode;
}

/* Features that are off, by what shows from outside: once a task. */
static int survey_task(struct ckpt_run *run, const struct ckpt_task *t, struct ckpt_error *err)
{
	bool named[3] = { true, false, false };

	for (size_t k = 0; k < t->n_threads; k++) {
		char object[48];
		int mode = mode_of(t->threads[k], err);

		if (mode == -ESRCH && ckpt_is_live(run))
			continue;
		if (mode < 0)
			return mode;
		if (named[mode])
			continue;
		named[mode] = true;
		snprintf(object, sizeof(object), "seccomp of thread %d", (int)t->threads[k]->tid);
		ckpt_refuse_off(run, mode == SECCOMP_MODE_STRICT ? "strict" : "filters", t, object);
	}
	return 0;
}

/* ---- by ptrace ------------------------------------------------------------------ */

bool seccomp_notifies(const struct sock_filter *insns, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (BPF_CLASS(insns[i].code) != BPF_RET)
			continue;
		/* one that computes what it returns may return anything */
		if (BPF_RVAL(insns[i].code) != BPF_K ||
		    (insns[i].k & SECCOMP_RET_ACTION_FULL) == SECCOMP_RET_USER_NOTIF)
			return true;
	}
	return false;
}

/* The node for this program after `before`; takes the program over if it is a new one. Index + 1.
 */
static uint32_t node_for(struct seccomp_state *st, uint32_t before, bool log,
			 struct sock_filter **insns, size_t n)
{
	struct seccomp_filter *more;

	for (size_t i = before; i < st->n_filters; i++) {
		const struct seccomp_filter *f = &st->filters[i];

		if (f->before == before && f->log == log && f->n == n &&
		    !memcmp(f->insns, *insns, n * sizeof(**insns)))
			return (uint32_t)i + 1;
	}
	more = realloc(st->filters, (st->n_filters + 1) * sizeof(*more));
	if (!more)
		return 0;
	st->filters = more;
	more[st->n_filters] = (struct seccomp_filter){
		.before = before,
		.log = log,
		.notifies = seccomp_notifies(*insns, n),
		.n = n,
		.insns = ckpt_steal_ptr(insns),
	};
	return (uint32_t)++st->n_filters;
}

static int fail_read(const struct ckpt_thread *th, const char *call, struct ckpt_error *err)
{
	int e = errno;

	if (e != EACCES)
		return ckpt_fail_sys(err, e, "thread %d: %s", (int)th->tid, call);
	ckpt_fail_as(err, CKPT_EXIT_PRIVILEGE, e, "thread %d: its seccomp filters may not be read",
		     (int)th->tid);
	return ckpt_hint(err,
			 "ckpt needs CAP_SYS_ADMIN in the initial user namespace, and must not "
			 "be under a seccomp filter itself");
}

/* All filters of a thread, oldest first: gives the last one's node. */
static int read_filters(struct seccomp_state *st, const struct ckpt_thread *th, uint32_t *last,
			struct ckpt_error *err)
{
	*last = 0;
	for (uint64_t i = 0;; i++) {
		struct metadata meta = { .filter_off = i };
		CKPT_AUTO_FREE struct sock_filter *insns = NULL;
		long n = ckpt_ptrace(th, PTRACE_SECCOMP_GET_FILTER, i, NULL);

		if (n < 0 && errno == ENOENT)
			return 0;
		if (n < 0)
			return fail_read(th, "PTRACE_SECCOMP_GET_FILTER", err);
		insns = calloc((size_t)n + 1, sizeof(*insns));
		if (!insns)
			return ckpt_fail_sys(err, ENOMEM, "filter of %ld instructions", n);
		if (ckpt_ptrace(th, PTRACE_SECCOMP_GET_FILTER, i, insns) != n)
			return fail_read(th, "PTRACE_SECCOMP_GET_FILTER", err);
		if (ckpt_ptrace(th, PTRACE_SECCOMP_GET_METADATA, sizeof(meta), &meta) < 0)
			return fail_read(th, "PTRACE_SECCOMP_GET_METADATA", err);
		if (meta.flags & ~(uint64_t)SECCOMP_FILTER_FLAG_LOG)
			return ckpt_fail(err, ENOTSUP, "thread %d: a filter with flags %#llx",
					 (int)th->tid, (unsigned long long)meta.flags);
		*last = node_for(st, *last, meta.flags & SECCOMP_FILTER_FLAG_LOG, &insns,
				 (size_t)n);
		if (!*last)
			return ckpt_fail_sys(err, ENOMEM, "filters");
	}
}

static int add_thread(struct seccomp_state *st, const struct ckpt_thread *th, uint32_t index,
		      int mode, struct ckpt_error *err)
{
	struct seccomp_thread *more =
		realloc(st->threads, (st->n_threads + 1) * sizeof(*st->threads));
	struct seccomp_thread *t;
	int r = 0;

	if (!more)
		return ckpt_fail_sys(err, ENOMEM, "threads");
	st->threads = more;
	t = &more[st->n_threads];
	*t = (struct seccomp_thread){ th, th->task->id, index, mode == SECCOMP_MODE_STRICT, 0 };
	if (!t->strict)
		r = read_filters(st, th, &t->filter, err);
	if (r < 0)
		return r;
	st->n_threads++;
	for (uint32_t f = t->filter; f; f = st->filters[f - 1].before) {
		if (!st->filters[f - 1].holders++)
			st->filters[f - 1].holder = th->task;
	}
	return 0;
}

static int read_task(struct ckpt_run *run, struct seccomp_state *st, const struct ckpt_task *t,
		     struct ckpt_error *err)
{
	for (size_t k = 0; k < t->n_threads; k++) {
		int mode = mode_of(t->threads[k], err), r = 0;

		if (mode < 0)
			return mode;
		if (mode &&
		    ckpt_feature_on(run, mode == SECCOMP_MODE_STRICT ? "strict" : "filters"))
			r = add_thread(st, t->threads[k], (uint32_t)k, mode, err);
		if (r < 0)
			return r;
	}
	return 0;
}

int seccomp_peek(struct ckpt_run *run, struct ckpt_error *err)
{
	struct seccomp_state *st = seccomp_state(run, err);
	int r = st ? 0 : -ENOMEM;

	if (!st || st->peeked)
		return r;
	st->peeked = true;
	for (size_t i = 0; i < ckpt_task_count(run) && r == 0 && !ckpt_is_live(run); i++) {
		const struct ckpt_task *t = ckpt_task_at(run, i);

		r = t->zombie ? 0 : read_task(run, st, t, err);
		if (r < 0)
			ckpt_wrap(err, "task %u (%.15s)", t->id, t->comm);
	}
	return r;
}

/* ---- what only the filters show --------------------------------------------------- */

static int is_listener(void *arg, pid_t pid, pid_t tid, int base, const char *num)
{
	char path[32], link[64];
	ssize_t n;

	(void)arg;
	(void)pid;
	(void)tid;
	snprintf(path, sizeof(path), "fd/%.20s", num);
	n = readlinkat(base, path, link, sizeof(link) - 1);
	link[n < 0 ? 0 : n] = 0;
	return !strcmp(link, "anon_inode:seccomp notify");
}

/* In a table of any of its threads; who cannot be looked at may have one. */
static bool holds_listener(pid_t pid)
{
	const struct ckpt_table_look look = { is_listener, NULL };

	return ckpt_tables_look(&look, pid) != 0;
}

/* Somebody in the tree has one: it is told apart from others by its kind (listener.c). */
static bool has_listener(struct ckpt_run *run)
{
	bool found = false;

	for (size_t i = 0; i < ckpt_task_count(run) && !found; i++) {
		const struct ckpt_task *t = ckpt_task_at(run, i);

		found = !t->zombie && holds_listener(t->pid);
	}
	return found;
}

/* Somebody outside the tree who may be the supervisor; 0: nobody. */
static pid_t outer_listener(struct ckpt_run *run, struct ckpt_error *err)
{
	CKPT_AUTO_DIR DIR *dir = opendir("/proc");
	struct dirent *e;

	while (dir && (e = ckpt_next_entry(dir))) {
		pid_t pid = atoi(e->d_name);

		if (pid > 0 && !ckpt_task_by_pid(run, pid) && !ckpt_is_engine(pid) &&
		    holds_listener(pid))
			return pid;
	}
	return errno ? ckpt_fail_sys(err, errno, "/proc") : 0;
}

static int survey_outer(struct ckpt_run *run, const struct seccomp_filter *f,
			struct ckpt_error *err)
{
	pid_t pid = has_listener(run) ? 0 : outer_listener(run, err);
	char reason[96];

	if (pid <= 0)
		return pid;
	snprintf(reason, sizeof(reason),
		 "process %d outside the tree may be its supervisor: it holds a listener",
		 (int)pid);
	ckpt_refuse(run, &(struct ckpt_blocker){
				 .feature = "listener",
				 .task = f->holder,
				 .object = "filter that asks a supervisor",
				 .reason = reason,
				 .hint = "dump the tree that has the supervisor in it",
			 });
	return 0;
}

int seccomp_survey(struct ckpt_run *run, struct ckpt_error *err)
{
	const struct seccomp_state *st = seccomp_state(run, err);
	bool log = false, shared = false, asked = false;
	int r = st ? 0 : -ENOMEM;

	for (size_t i = 0; i < ckpt_task_count(run) && r == 0; i++) {
		const struct ckpt_task *t = ckpt_task_at(run, i);

		r = t->zombie ? 0 : survey_task(run, t, err);
	}
	for (size_t i = 0; r == 0 && i < st->n_filters; i++) {
		const struct seccomp_filter *f = &st->filters[i];

		if (f->log && !log)
			ckpt_refuse_off(run, "log", f->holder, "filter that is logged");
		if (f->holders > 1 && !shared)
			ckpt_refuse_off(run, "shared", f->holder, "filter of several threads");
		if (f->notifies && !asked)
			r = survey_outer(run, f, err);
		log |= f->log;
		shared |= f->holders > 1;
		asked |= f->notifies;
	}
	return r;
}

/* ---- records ---------------------------------------------------------------------- */

int seccomp_collect(struct ckpt_run *run, struct ckpt_error *err)
{
	const struct seccomp_state *st = seccomp_state(run, err);
	int r = st ? 0 : -ENOMEM;

	for (size_t i = 0; r == 0 && i < st->n_filters; i++) {
		const struct seccomp_filter *f = &st->filters[i];
		Ckpt__Seccomp__Filter rec = CKPT__SECCOMP__FILTER__INIT;

		rec.id = (uint32_t)i + 1;
		rec.before = f->before;
		rec.program.data = (uint8_t *)f->insns;
		rec.program.len = f->n * sizeof(*f->insns);
		rec.log = f->log && ckpt_feature_on(run, "log");
		r = ckpt_record_put(run, SECCOMP_REC_FILTER, &rec.base, err);
	}
	for (size_t i = 0; r == 0 && i < st->n_threads; i++) {
		const struct seccomp_thread *t = &st->threads[i];
		Ckpt__Seccomp__Thread rec = CKPT__SECCOMP__THREAD__INIT;

		rec.id = t->id;
		rec.index = t->index;
		rec.strict = t->strict;
		rec.filter = t->filter;
		r = ckpt_record_put(run, SECCOMP_REC_THREAD, &rec.base, err);
	}
	if (r == 0 && st->n_filters)
		ckpt_count(run, "seccomp filters", st->n_filters);
	return r;
}
