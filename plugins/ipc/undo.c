/* SPDX-License-Identifier: MIT */
/*
 * SEM_UNDO: what the kernel will add to a semaphore when a process ends. The adjustments are
 * nowhere to be read, but the kernel keeps them within limits: an operation that would lead
 * out of these is ERANGE. So each question is a semop(2) that cannot succeed, since its last
 * operation asks for more than any semaphore can have: ERANGE or EAGAIN is the answer, and nothing
 * was changed (perform_atomic_semop_slow() takes all back, under the lock of the set).
 */
#include <linux/kcmp.h>
#include <stdio.h>
#include <sys/sem.h>
#include <sys/syscall.h>

#include "ipc.h"

#define MOST  32767 /* SEMVMX, SEMAEM */
#define BATCH 24    /* semaphores in one question: below any sensible kernel.sem */
#define OPS   (4 * BATCH + 1)

/* A thread's list of adjustments, which the threads of its process share. */
struct holder {
	struct ckpt_run *run;
	struct ckpt_thread *th;
	const struct ipc_set *set;
	const unsigned short *values;
};

/* ---- questions ----------------------------------------------------------------------- */

static struct sembuf op(size_t sem, int value, short flags)
{
	return (struct sembuf){ (unsigned short)sem, (short)value, (short)(flags | IPC_NOWAIT) };
}

/* Is the adjustment `least` or more? It grows by what is taken: beyond 32767 if so. */
static size_t above(struct sembuf *ops, size_t sem, int value, int least)
{
	size_t n = 0;

	if (value < MOST)
		ops[n++] = op(sem, MOST - value, 0);
	ops[n++] = op(sem, least - MOST - 1, SEM_UNDO);
	return n;
}

/* Is it -`least` or less? It falls by what is given: below -32768 if so. */
static size_t below(struct sembuf *ops, size_t sem, int value, int least)
{
	int give = MOST + 2 - least;
	size_t n = 0;

	if (value)
		ops[n++] = op(sem, -value, 0);
	ops[n++] = op(sem, give > MOST ? MOST : give, SEM_UNDO);
	if (give <= MOST)
		return n;
	ops[n++] = op(sem, -MOST, 0);
	ops[n++] = op(sem, give - MOST, SEM_UNDO);
	return n;
}

static void add(const struct holder *h, struct ckpt_script *s, size_t sem, size_t n, int least)
{
	struct sembuf ops[OPS];
	size_t at = 0;

	for (size_t i = sem; i < sem + n; i++)
		at += (least > 0 ? above : below)(ops + at, i, h->values[i],
						  least > 0 ? least : -least);
	ops[at++] = op(sem, -MOST - 1, 0);
	ckpt_script_add(s, SYS_semop, CKPT_C(h->set->number), CKPT_IN(ops, at * sizeof(*ops)),
			CKPT_C(at));
	ckpt_script_any(s);
}

static int answer(const struct ckpt_script *s, int op_index, struct ckpt_error *err)
{
	int64_t r = ckpt_script_result(s, op_index);

	if (r == -ERANGE || r == -EAGAIN)
		return r == -ERANGE;
	return ckpt_fail_sys(err, (int)-r, "semop(2)");
}

/* One question about one semaphore. */
static int ask(const struct holder *h, size_t sem, int least, struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(h->run, "ipc.undo");
	int r;

	add(h, s, sem, 1, least);
	r = ckpt_script_run(s, h->th, err);
	return r < 0 ? r : answer(s, 0, err);
}

/* The adjustment of a semaphore that has one in this direction. */
static int find(const struct holder *h, size_t sem, int sign, int *out, struct ckpt_error *err)
{
	int low = 0, high = MOST;

	while (low < high) {
		int middle = (low + high + 1) / 2, r = ask(h, sem, sign * middle, err);

		if (r < 0)
			return r;
		if (r)
			low = middle;
		else
			high = middle - 1;
	}
	if (low)
		*out = sign * low;
	return 0;
}

/* All adjustments of a holder to a set, most often none. out: one for each semaphore. */
static int question(const struct holder *h, int *out, struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(h->run, "ipc.undo");
	size_t n = h->set->n, asked = 0;
	int r;

	for (size_t i = 0; i < n; i += BATCH)
		for (int sign = -1; sign <= 1; sign += 2)
			add(h, s, i, n - i < BATCH ? n - i : BATCH, sign);
	r = ckpt_script_run(s, h->th, err);
	for (size_t i = 0; i < n && r == 0; i += BATCH)
		for (int sign = -1; sign <= 1 && r == 0; sign += 2) {
			int yes = answer(s, (int)asked++, err);

			r = yes < 0 ? yes : 0;
			for (size_t k = i; k < n && k < i + BATCH && yes > 0 && r == 0; k++)
				r = find(h, k, sign, &out[k], err);
		}
	return r;
}

/* ---- dump ---------------------------------------------------------------------------- */

static int refuse(const struct holder *h, const char *reason)
{
	char object[64];

	snprintf(object, sizeof(object), "adjustments of semaphores %d", h->set->number);
	return ckpt_refuse(h->run,
			   &(struct ckpt_blocker){
				   .feature = "undo",
				   .task = h->th->task,
				   .object = object,
				   .reason = reason,
				   .hint = "remove the set, or allow the loss if the program "
					   "holds no semaphore",
			   });
}

/* In ckpt's own namespace others change values while we ask. */
static int ask_set(struct holder *h, int *out, struct ckpt_error *err)
{
	CKPT_AUTO_FREE unsigned short *before = calloc(h->set->n, sizeof(*before));
	CKPT_AUTO_FREE unsigned short *after = calloc(h->set->n, sizeof(*after));
	int r;

	if (!before || !after)
		return ckpt_fail_sys(err, ENOMEM, "%zu semaphores", h->set->n);
	h->values = before;
	for (int tries = 0; tries < 100; tries++) {
		memset(out, 0, h->set->n * sizeof(*out));
		r = ipc_read_set(h->run, h->set, before, err);
		if (r == 0)
			r = question(h, out, err);
		if (r == 0)
			r = ipc_read_set(h->run, h->set, after, err);
		if (r < 0)
			return r;
		if (!memcmp(before, after, h->set->n * sizeof(*before)))
			return 0;
	}
	return ckpt_fail(err, EBUSY, "semaphores %d are in use by others all the time",
			 h->set->number);
}

static int put(const struct holder *h, const int *found, Ckpt__Ipc__Undo *rec,
	       struct ckpt_error *err)
{
	for (size_t i = 0; i < h->set->n; i++) {
		Ckpt__Ipc__Adjustment **list, *a;

		if (!found[i])
			continue;
		list = realloc(rec->adjustments,
			       (rec->n_adjustments + 1) * sizeof(*rec->adjustments));
		if (list)
			rec->adjustments = list;
		a = list ? malloc(sizeof(*a)) : NULL;
		if (!a)
			return ckpt_fail_sys(err, ENOMEM, "adjustments");
		ckpt__ipc__adjustment__init(a);
		a->semaphores = h->set->id;
		a->index = (uint32_t)i;
		a->value = found[i];
		rec->adjustments[rec->n_adjustments++] = a;
	}
	return 0;
}

static bool any(const int *found, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (found[i])
			return true;
	return false;
}

/* 0: the two have the same list, or both none. */
static int compare(pid_t a, pid_t b)
{
	return (int)syscall(SYS_kcmp, a, b, KCMP_SYSVSEM, 0, 0);
}

static bool shares(struct ckpt_run *run, const struct ckpt_task *t)
{
	for (size_t i = 0; i < ckpt_task_count(run); i++) {
		const struct ckpt_task *other = ckpt_task_at(run, i);

		if (other != t && !other->zombie &&
		    compare(ckpt_task_tid(t), ckpt_task_tid(other)) == 0)
			return true;
	}
	return false;
}

static int look_at_set(struct holder *h, Ckpt__Ipc__Undo *rec, struct ckpt_error *err)
{
	CKPT_AUTO_FREE int *found = calloc(h->set->n, sizeof(*found));
	const bool own = !h->set->id;
	int r = found ? ask_set(h, found, err) : -ENOMEM;

	if (own && (r == -EINVAL || r == -EIDRM || r == -EACCES)) {
		*err = (struct ckpt_error){ 0 };
		return 0;
	}
	if (r == -EACCES || r == -E2BIG || r == -EBUSY) {
		*err = (struct ckpt_error){ 0 };
		refuse(h, r == -E2BIG	? "kernel.sem allows too few operations to find them out"
			  : r == -EBUSY ? "their values change all the time"
					: "it may not change the set any more, so whether it has "
					  "some cannot be told");
		return 0;
	}
	if (r < 0 || !any(found, h->set->n))
		return r;
	if (own)
		refuse(h, "it has used SEM_UNDO on a set in ckpt's own ipc namespace");
	else if (h->th != h->th->task->threads[0])
		refuse(h, "a thread has adjustments of its own");
	else if (shares(h->run, h->th->task))
		refuse(h, "several processes have the same ones (CLONE_SYSVSEM)");
	else if (ckpt_refuse_off(h->run, "undo", h->th->task, "adjustments of semaphores") == 1)
		return put(h, found, rec, err);
	return 0;
}

static int look_at_thread(struct ckpt_run *run, struct ckpt_thread *th, const struct ckpt_ns *ns,
			  Ckpt__Ipc__Undo *rec, struct ckpt_error *err)
{
	const struct ipc_state *st = ipc_state(run, err);
	struct holder h = { .run = run, .th = th };
	int r = st ? 0 : -ENOMEM;

	for (size_t i = 0; r == 0 && i < st->n_sets; i++) {
		h.set = &st->sets[i];
		if (h.set->ns == ns)
			r = look_at_set(&h, rec, err);
	}
	return r;
}

static void undo_free(Ckpt__Ipc__Undo *rec)
{
	for (size_t i = 0; i < rec->n_adjustments; i++)
		free(rec->adjustments[i]);
	free(rec->adjustments);
}

static int look_at_task(struct ckpt_run *run, struct ckpt_task *t, const bool *has,
			struct ckpt_error *err)
{
	__attribute__((cleanup(undo_free))) Ckpt__Ipc__Undo rec = CKPT__IPC__UNDO__INIT;
	size_t seats = ckpt_ns_seats(run, t->id);
	int r = 0;

	for (size_t k = 0; k < t->n_threads && r == 0; k++) {
		const struct ckpt_ns_seat *seat = ckpt_ns_seat(run, t->id, seats > 1 ? k : 0);

		if (has[k] && (!k || compare(ckpt_task_tid(t), t->threads[k]->tid) != 0))
			r = look_at_thread(run, t->threads[k], seat->ns[CKPT_NS_IPC], &rec, err);
	}
	rec.id = t->id;
	if (r == 0 && rec.n_adjustments)
		r = ckpt_record_put(run, IPC_REC_UNDO, &rec.base, err);
	return r < 0 ? ckpt_wrap(err, "task %u (%.15s)", t->id, t->comm) : 0;
}

struct lists {
	struct ckpt_run *run;
	bool *has; /* for each thread of the tree */
};

/* This child of ckpt has no list: whoever is not equal to it has one. */
static int find_lists(void *arg, struct ckpt_error *err)
{
	const struct lists *l = arg;
	pid_t self = (pid_t)syscall(SYS_getpid);
	size_t at = 0;

	(void)err;
	for (size_t i = 0; i < ckpt_task_count(l->run); i++) {
		const struct ckpt_task *t = ckpt_task_at(l->run, i);

		for (size_t k = 0; k < t->n_threads; k++, at++)
			l->has[at] = !t->zombie && compare(self, t->threads[k]->tid) > 0;
	}
	return 0;
}

int ipc_collect_undo(struct ckpt_run *run, struct ckpt_error *err)
{
	CKPT_AUTO_FREE bool *has = NULL;
	struct lists l = { run, NULL };
	struct ipc_state *st = ipc_state(run, err);
	size_t n = 0, at = 0;
	int r = st ? ipc_list_own_sets(run, err) : -ENOMEM;

	if (r < 0 || !st->n_sets)
		return r;
	for (size_t i = 0; i < ckpt_task_count(run); i++)
		n += ckpt_task_at(run, i)->n_threads;
	l.has = has = calloc(n + 1, sizeof(*has));
	if (!has)
		return ckpt_fail_sys(err, ENOMEM, "%zu threads", n);
	r = ipc_in(run, ckpt_ns_own(run, CKPT_NS_IPC), find_lists, &l, err);
	for (size_t i = 0; r == 0 && i < ckpt_task_count(run); i++) {
		struct ckpt_task *t = ckpt_task_at(run, i);

		r = look_at_task(run, t, has + at, err);
		at += t->n_threads;
	}
	return r;
}

/* ---- restore ------------------------------------------------------------------------- */

int ipc_plan_undo(struct ckpt_run *run, struct ckpt_error *err)
{
	int r = ckpt_record_order(run, "ipc.undo", err);

	for (size_t i = 0; i < ckpt_record_count(run, "ipc.undo") && r == 0; i++) {
		const Ckpt__Ipc__Undo *u = ckpt_record_at(run, "ipc.undo", i);
		const struct ckpt_ns *ns = ckpt_ns_seat(run, u->id, 0)->ns[CKPT_NS_IPC];

		for (size_t k = 0; k < u->n_adjustments && r == 0; k++) {
			const Ckpt__Ipc__Adjustment *a = u->adjustments[k];
			const Ckpt__Ipc__Semaphores *s =
				ckpt_record_by_id(run, "ipc.semaphores", a->semaphores);

			if (!s || s->object->ns != ns->id || a->index >= s->n_values || !a->value ||
			    a->value > MOST || a->value < -MOST)
				r = ckpt_fail_image(err, "task %u: adjustment %zu of semaphores %u",
						    u->id, k, a->semaphores);
		}
	}
	return r;
}

/*
 * What is taken with SEM_UNDO is given without in the same call, or the other way round, so the
 * value stays. At most half of all values lie above or below it.
 */
static void adjust(struct ckpt_script *s, const Ckpt__Ipc__Semaphores *set,
		   const Ckpt__Ipc__Adjustment *a)
{
	const int value = (int)set->values[a->index], up = MOST - value;
	const int most = up > value ? up : value, sign = a->value < 0 ? -1 : 1;

	for (int left = sign * a->value; left > 0;) {
		int n = left < most ? left : most;
		struct sembuf undo = op(a->index, -sign * n, SEM_UNDO);
		struct sembuf plain = op(a->index, sign * n, 0);
		bool undo_first = sign > 0 ? n <= value : n <= up;
		const struct sembuf ops[] = { undo_first ? undo : plain,
					      undo_first ? plain : undo };

		ckpt_script_add(s, SYS_semop, CKPT_C(set->object->number),
				CKPT_IN(ops, sizeof(ops)), CKPT_C(2));
		left -= n;
	}
}

int ipc_make_undo(struct ckpt_run *run, struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; i < ckpt_record_count(run, "ipc.undo") && r == 0; i++) {
		const Ckpt__Ipc__Undo *u = ckpt_record_at(run, "ipc.undo", i);
		const struct ckpt_task *t = ckpt_task_by_id(run, u->id);
		CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "ipc.undo");

		if (!t || t->zombie)
			return ckpt_fail_image(err, "ipc.undo: no task %u", u->id);
		for (size_t k = 0; k < u->n_adjustments; k++)
			adjust(s,
			       ckpt_record_by_id(run, "ipc.semaphores",
						 u->adjustments[k]->semaphores),
			       u->adjustments[k]);
		r = ckpt_script_run(s, t->threads[0], err);
		if (r < 0)
			ckpt_wrap(err, "task %u", u->id);
	}
	return r;
}
