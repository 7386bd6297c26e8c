/* SPDX-License-Identifier: MIT */
/*
 * What only ptrace shows: queued signals, rseq, the call behind a restart. The
 * thread has to be in a stop for that, so it is taken before the agents go in.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>

#include <ckpt/trace.h>

#include "task.h"

#ifndef PTRACE_GET_RSEQ_CONFIGURATION
#define PTRACE_GET_RSEQ_CONFIGURATION 0x420f
#endif
#ifndef PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG
#define PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG 0x4211
#endif

#define QUEUE_CHUNK 64

/* struct __ptrace_peeksiginfo_args */
struct peek_args {
	uint64_t offset;
	uint32_t flags;
	int32_t nr;
};

int task_queue(const struct ckpt_thread *th, uint32_t flags, siginfo_t **out, size_t *n,
	       struct ckpt_error *err)
{
	for (;;) {
		/* nearly all queues are empty, and room for a full one would be two pages a thread
		 */
		siginfo_t chunk[QUEUE_CHUNK], *more;
		struct peek_args args = { *n, flags, QUEUE_CHUNK };
		long got = ckpt_ptrace(th, PTRACE_PEEKSIGINFO, &args, chunk);

		if (got < 0)
			return ckpt_fail_sys(err, errno, "thread %d: PTRACE_PEEKSIGINFO",
					     (int)th->tid);
		if (!got)
			return 0;
		more = realloc(*out, (*n + (size_t)got) * sizeof(*more));
		if (!more)
			return ckpt_fail_sys(err, ENOMEM, "thread %d: queued signals",
					     (int)th->tid);
		memcpy(more + *n, chunk, (size_t)got * sizeof(*chunk));
		*out = more;
		*n += (size_t)got;
	}
}

/* A signal can be pending without an entry, when RLIMIT_SIGPENDING was exhausted. */
static int bare_signals(uint64_t mask, siginfo_t **list, size_t *n, struct ckpt_error *err)
{
	for (size_t i = 0; i < *n; i++)
		mask &= ~(1ULL << ((*list)[i].si_signo - 1));
	for (int sig = 1; sig <= TASK_N_SIGNALS; sig++) {
		siginfo_t *more;

		if (!(mask >> (sig - 1) & 1))
			continue;
		more = realloc(*list, (*n + 1) * sizeof(*more));
		if (!more)
			return ckpt_fail_sys(err, ENOMEM, "pending signals");
		memset(&more[*n], 0, sizeof(*more));
		more[*n].si_signo = sig;
		*list = more;
		++*n;
	}
	return 0;
}

/* Two that cannot be blocked: SIGKILL ends the original too, SIGSTOP becomes a stop. */
static void drop_unblockable(struct task_peek *p, siginfo_t *list, size_t *n)
{
	size_t kept = 0;

	for (size_t i = 0; i < *n; i++) {
		p->stop |= list[i].si_signo == SIGSTOP;
		if (list[i].si_signo != SIGSTOP && list[i].si_signo != SIGKILL)
			list[kept++] = list[i];
	}
	*n = kept;
}

/* The signals that a set of this status has. */
static int pending(const char *status, const char *key, uint64_t *set, struct ckpt_error *err)
{
	char text[32];

	if (ckpt_proc_field(status, key, text, sizeof(text)) < 0)
		return ckpt_fail(err, EINVAL, "/proc status: no %s", key);
	*set = strtoull(text, NULL, 16);
	return 0;
}

/* What is pending changes in a task that stands still: not the text that is kept. */
static int read_status(const struct ckpt_thread *th, char *text, size_t size,
		       struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = -1;
	char path[64];
	ssize_t n;

	task_path(path, sizeof(path), th, "status");
	fd = openat(th->task->procfd, path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : read(fd, text, size - 1);
	if (n < 0)
		return ckpt_fail_sys(err, errno, "/proc/%d/%s", th->task->pid, path);
	text[n] = 0;
	return 0;
}

/* A task's groups may make it long: the sets are behind them. */
#define STATUS_ROOM (256u << 10)

static int signals(const struct ckpt_thread *th, bool leader, char *text, struct task_peek *p,
		   struct ckpt_error *err)
{
	uint64_t own = 0, shared = 0;
	int r = task_queue(th, 0, &p->own, &p->n_own, err);

	if (r == 0 && leader)
		r = task_queue(th, PTRACE_PEEKSIGINFO_SHARED, &p->shared, &p->n_shared, err);
	if (r == 0)
		r = read_status(th, text, STATUS_ROOM, err);
	if (r == 0)
		r = pending(text, "SigPnd", &own, err);
	if (r == 0)
		r = bare_signals(own, &p->own, &p->n_own, err);
	if (r == 0 && leader)
		r = pending(text, "ShdPnd", &shared, err);
	if (r == 0 && leader)
		r = bare_signals(shared, &p->shared, &p->n_shared, err);
	drop_unblockable(p, p->own, &p->n_own);
	drop_unblockable(p, p->shared, &p->n_shared);
	return r;
}

static void refuse_dispatch(struct ckpt_run *run, const struct ckpt_thread *th)
{
	struct {
		uint64_t mode, selector, offset, len;
	} conf = { 0 };
	char object[64];

	/* kernels before 6.4 do not tell; EIO or EINVAL then */
	if (ckpt_ptrace(th, PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, sizeof(conf), &conf) < 0 ||
	    !conf.mode)
		return;
	snprintf(object, sizeof(object), "thread %d", th->tid);
	task_refuse(run, th->task, "syscall-dispatch", object,
		    "PR_SET_SYSCALL_USER_DISPATCH is not saved", "dump without it");
}

static int one(struct ckpt_run *run, const struct ckpt_thread *th, bool leader, char *text,
	       struct task_peek *p, struct ckpt_error *err)
{
	char object[64];

	p->tid = th->tid;
	/* 0 bytes of answer, or EINVAL: a kernel without rseq */
	if (ckpt_ptrace(th, PTRACE_GET_RSEQ_CONFIGURATION, sizeof(p->rseq), &p->rseq) < 0)
		memset(&p->rseq, 0, sizeof(p->rseq));
	refuse_dispatch(run, th);
	task_hardware_look(run, th);
	p->restarted = task_restarted(th);
	if (!task_restart_known(p->restarted)) {
		snprintf(object, sizeof(object), "thread %d in restart_syscall(2)", th->tid);
		task_refuse(run, th->task, "restart", object,
			    "the call it restarts cannot be told from its code or arguments",
			    "dump again when it has gone on");
	}
	return signals(th, leader, text, p, err);
}

static int by_tid(const void *a, const void *b)
{
	pid_t x = ((const struct task_peek *)a)->tid, y = ((const struct task_peek *)b)->tid;

	return x < y ? -1 : x > y;
}

int task_peek(struct ckpt_run *run, struct ckpt_error *err)
{
	struct task_state *st = task_state(run, err);
	CKPT_AUTO_FREE char *text = NULL;
	size_t n = 0;

	if (!st)
		return -err->err;
	if (ckpt_is_live(run))
		return 0;
	text = malloc(STATUS_ROOM);
	for (size_t i = 0; i < ckpt_task_count(run); i++)
		n += ckpt_task_at(run, i)->n_threads;
	st->peeks = calloc(n + 1, sizeof(*st->peeks));
	if (!st->peeks || !text)
		return ckpt_fail_sys(err, ENOMEM, "%zu threads", n);
	for (size_t i = 0; i < ckpt_task_count(run); i++) {
		const struct ckpt_task *t = ckpt_task_at(run, i);

		for (size_t k = 0; k < t->n_threads && !t->zombie; k++) {
			int r = one(run, t->threads[k], k == 0, text, &st->peeks[st->n_peeks++],
				    err);

			if (r < 0)
				return r;
		}
	}
	qsort(st->peeks, st->n_peeks, sizeof(*st->peeks), by_tid);
	return 0;
}
