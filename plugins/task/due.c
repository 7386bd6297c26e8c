/* SPDX-License-Identifier: MIT */
/*
 * Timers go on while the tree stands still. What goes off after the queues were read and before
 * it was asked how much is left would be neither in the queue nor to come in the image. So the
 * records wait until the agents are out; then the queues are read again, and what came meanwhile
 * is added.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "task.h"

/* By signal: the interval timers of setitimer(2). */
static const struct {
	int signo;
	unsigned which;
} interval[] = { { SIGALRM, 0 }, { SIGVTALRM, 1 }, { SIGPROF, 2 } };

/* ---- records that wait ----------------------------------------------------------------- */

struct task_held {
	const struct ckpt_thread *th;
	bool process; /* the record of the process, with `th` its main thread */
	uint8_t *data;
	size_t len;
	struct task_span asked; /* when its timers were */
};

/* Room for one more; NULL: out of memory. */
static struct task_held *next(struct task_state *st)
{
	if (st->n_held == st->cap_held) {
		size_t cap = st->cap_held ? 2 * st->cap_held : 16;
		struct task_held *more = realloc(st->held, cap * sizeof(*more));

		if (!more)
			return NULL;
		st->held = more;
		st->cap_held = cap;
	}
	return &st->held[st->n_held];
}

static struct task_held *hold(struct ckpt_run *run, const struct ckpt_thread *th,
			      const ProtobufCMessage *msg, struct ckpt_error *err)
{
	struct task_state *st = ckpt_state(run);
	struct task_held *h = next(st);
	size_t len = protobuf_c_message_get_packed_size(msg);
	uint8_t *data = h ? malloc(len + 1) : NULL;

	if (!data) {
		ckpt_fail_sys(err, ENOMEM, "records of tasks");
		return NULL;
	}
	protobuf_c_message_pack(msg, data);
	*h = (struct task_held){ .th = th, .data = data, .len = len };
	st->n_held++;
	return h;
}

int task_hold_process(struct ckpt_run *run, const struct ckpt_thread *leader,
		      const Ckpt__Task__Process *rec, struct task_span asked,
		      struct ckpt_error *err)
{
	struct task_state *st = ckpt_state(run);
	struct task_held *h = hold(run, leader, &rec->base, err);

	if (!h)
		return -err->err;
	h->process = true;
	h->asked = asked;
	for (size_t i = 0; i < rec->n_timers; i++)
		st->hold_threads |= rec->timers[i]->notify == SIGEV_THREAD_ID;
	return 0;
}

/* Only a timer's signal to a thread can come late: else there is no need to wait. */
int task_hold_thread(struct ckpt_run *run, const struct ckpt_thread *th,
		     const Ckpt__Task__Thread *rec, struct ckpt_error *err)
{
	const struct task_state *st = ckpt_state(run);

	if (!st->hold_threads)
		return ckpt_record_put(run, TASK_REC_THREAD, &rec->base, err);
	return hold(run, th, &rec->base, err) ? 0 : -err->err;
}

void task_held_free(struct task_state *st)
{
	for (size_t i = 0; i < st->n_held; i++)
		free(st->held[i].data);
	free(st->held);
	st->held = NULL;
	st->n_held = st->cap_held = 0;
}

/* ---- what came late ---------------------------------------------------------------------- */

int64_t task_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000LL + ts.tv_nsec;
}

static bool is_in(const siginfo_t *list, size_t n, const siginfo_t *s)
{
	for (size_t i = 0; i < n; i++)
		if (list[i].si_signo == s->si_signo && list[i].si_code == s->si_code &&
		    (s->si_code != SI_TIMER || list[i].si_timerid == s->si_timerid))
			return true;
	return false;
}

enum fate {
	COMES, /* the timer of the image will send it */
	LATE,  /* it will not */
	UNCLEAR,
};

/*
 * A periodic timer has one signal in the queue at most. It is the one that was told to be next if
 * that is due by now: what came before it and what is next are one then.
 */
static enum fate fate_of_periodic(const Ckpt__Task__PosixTimer *t, const struct task_span *asked,
				  const struct task_span *looked)
{
	/* of CPU time next to nothing has gone by */
	if (t->clock < 0 || looked->to < asked->from + t->value_ns)
		return LATE;
	return looked->from > asked->to + t->value_ns ? COMES : UNCLEAR;
}

static enum fate fate_of(struct ckpt_run *run, const Ckpt__Task__Process *rec,
			 const struct task_span *asked, const struct task_span *looked,
			 const siginfo_t *s)
{
	for (size_t i = 0; s->si_code == SI_TIMER && i < rec->n_timers; i++) {
		const Ckpt__Task__PosixTimer *t = rec->timers[i];

		if (t->number != s->si_timerid)
			continue;
		if (t->value_ns && t->interval_ns)
			return fate_of_periodic(t, asked, looked);
		return t->value_ns ? COMES : LATE;
	}
	for (size_t k = 0; s->si_code == SI_KERNEL && k < CKPT_ARRAY_SIZE(interval); k++) {
		if (s->si_signo != interval[k].signo)
			continue;
		for (size_t i = 0; i < rec->n_itimers; i++)
			if (rec->itimers[i]->which == interval[k].which)
				return COMES;
		return ckpt_feature_on(run, task_features[TASK_ITIMERS].name) ? LATE : COMES;
	}
	return COMES;
}

/* The queue of a thread, or of its process. */
struct queue {
	const struct ckpt_thread *th;
	uint32_t flags;
	const siginfo_t *was;
	size_t n_was;
	siginfo_t *now;
	size_t n;
	Ckpt__Task__Signal *recs, **list;
};

static void queue_free(struct queue *q)
{
	free(q->now);
	free(q->recs);
	free(q->list);
}

/* Leave those in the queue that are late. */
static int read_late(struct ckpt_run *run, struct queue *q, const Ckpt__Task__Process *rec,
		     const struct task_span *asked, struct ckpt_error *err)
{
	struct task_span looked = { .from = task_now() };
	size_t n = 0;
	int r = task_queue(q->th, q->flags, &q->now, &n, err);

	looked.to = task_now();
	for (size_t i = 0; i < n && r == 0; i++) {
		enum fate fate = is_in(q->was, q->n_was, &q->now[i])
					 ? COMES
					 : fate_of(run, rec, asked, &looked, &q->now[i]);
		char object[64];

		if (fate == LATE && task_want(run, TASK_PENDING, q->th->task, "pending signals"))
			q->now[q->n++] = q->now[i];
		if (fate != UNCLEAR || ckpt_run_kind(run) == CKPT_VERIFY)
			continue;
		snprintf(object, sizeof(object), "timer's signal %d", q->now[i].si_signo);
		task_refuse(run, q->th->task, "timer-due", object,
			    "the timer went off while it was looked at", "dump again");
	}
	return r;
}

/* The late ones behind those that the record has. */
static int merge(struct queue *q, Ckpt__Task__Signal **have, size_t n, struct ckpt_error *err)
{
	Ckpt__Task__Signal **all = calloc(n + q->n + 1, sizeof(*all));
	int r = all ? task_signals(q->now, q->n, &q->recs, &q->list, err)
		    : ckpt_fail_sys(err, ENOMEM, "pending signals");

	for (size_t i = 0; i < n && r == 0; i++)
		all[i] = have[i];
	for (size_t i = 0; i < q->n && r == 0; i++)
		all[n + i] = q->list[i];
	free(q->list);
	q->list = all;
	return r;
}

static int put_process(struct ckpt_run *run, const struct task_held *h, Ckpt__Task__Process *rec,
		       const struct task_peek *p, struct ckpt_error *err)
{
	__attribute__((cleanup(queue_free))) struct queue q = {
		.th = h->th,
		.flags = PTRACE_PEEKSIGINFO_SHARED,
		.was = p ? p->shared : NULL,
		.n_was = p ? p->n_shared : 0,
	};
	Ckpt__Task__Signal **have = rec->pending;
	size_t n = rec->n_pending;
	int r = read_late(run, &q, rec, &h->asked, err);

	if (r == 0)
		r = merge(&q, have, n, err);
	if (r < 0)
		return r;
	rec->pending = q.list;
	rec->n_pending = n + q.n;
	r = ckpt_record_put(run, TASK_REC_PROCESS, &rec->base, err);
	rec->pending = have;
	rec->n_pending = n;
	return r;
}

static int put_thread(struct ckpt_run *run, const struct task_held *h, const struct task_held *of,
		      const Ckpt__Task__Process *process, const struct task_peek *p,
		      struct ckpt_error *err)
{
	__attribute__((cleanup(queue_free))) struct queue q = {
		.th = h->th,
		.was = p ? p->own : NULL,
		.n_was = p ? p->n_own : 0,
	};
	Ckpt__Task__Thread *rec = ckpt__task__thread__unpack(NULL, h->len, h->data);
	Ckpt__Task__Signal **have = rec ? rec->pending : NULL;
	size_t n = rec ? rec->n_pending : 0;
	int r = rec ? read_late(run, &q, process, &of->asked, err)
		    : ckpt_fail_sys(err, ENOMEM, "records of tasks");

	if (r == 0)
		r = merge(&q, have, n, err);
	if (r == 0) {
		rec->pending = q.list;
		rec->n_pending = n + q.n;
		r = ckpt_record_put(run, TASK_REC_THREAD, &rec->base, err);
		rec->pending = have;
		rec->n_pending = n;
	}
	if (rec)
		ckpt__task__thread__free_unpacked(rec, NULL);
	return r;
}

/* The record of a process, and those of its threads behind it; how many, in *n. */
static int put_one(struct ckpt_run *run, const struct task_state *st, size_t first, size_t *n,
		   struct ckpt_error *err)
{
	const struct task_held *h = &st->held[first];
	Ckpt__Task__Process *rec = ckpt__task__process__unpack(NULL, h->len, h->data);
	int r = rec ? 0 : ckpt_fail_sys(err, ENOMEM, "records of tasks");

	for (*n = 0; r == 0 && first + *n < st->n_held && (!*n || !h[*n].process); ++*n) {
		const struct task_peek *p = task_peeked(st, h[*n].th->tid);

		r = *n ? put_thread(run, &h[*n], h, rec, p, err) : put_process(run, h, rec, p, err);
	}
	if (rec)
		ckpt__task__process__free_unpacked(rec, NULL);
	return r;
}

int task_due(struct ckpt_run *run, struct ckpt_error *err)
{
	struct task_state *st = task_state(run, err);
	int r = 0;

	for (size_t i = 0, n = 0; st && i < st->n_held && r == 0; i += n)
		r = put_one(run, st, i, &n, err);
	if (st)
		task_held_free(st);
	return st ? r : -err->err;
}
