/* SPDX-License-Identifier: MIT */
/* POSIX timers: listed by /proc, their remaining time asked in the task. */
#include <linux/prctl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>

#include "task.h"

/* Since 6.15: timer_create(2) takes the number from its last argument. */
#ifndef PR_TIMER_CREATE_RESTORE_IDS
#define PR_TIMER_CREATE_RESTORE_IDS	77
#define PR_TIMER_CREATE_RESTORE_IDS_OFF 0
#define PR_TIMER_CREATE_RESTORE_IDS_ON	1
#define PR_TIMER_CREATE_RESTORE_IDS_GET 2
#endif

#define NS_PER_S 1000000000LL

struct kernel_sigevent {
	uint64_t value;
	uint32_t signo, notify;
	int32_t thread;
	uint8_t rest[44];
};

struct kernel_itimerspec {
	int64_t interval_s, interval_ns, value_s, value_ns;
};

/* One entry: "ID", "signal", "notify", "ClockID" lines. Returns the text after it, NULL at the end.
 */
static const char *parse(const char *text, Ckpt__Task__PosixTimer *t, pid_t *tid)
{
	char how[16], whom[8];
	unsigned signo;
	unsigned long long value;
	int id, clock, end = 0;

	if (sscanf(text, " ID: %d signal: %u/%llx notify: %15[a-z]/%7[a-z].%d ClockID: %d%n", &id,
		   &signo, &value, how, whom, tid, &clock, &end) < 7 ||
	    !end)
		return NULL;
	ckpt__task__posix_timer__init(t);
	t->number = id;
	t->clock = clock;
	t->signo = signo;
	t->value = value;
	t->notify = !strcmp(how, "none") ? SIGEV_NONE : SIGEV_SIGNAL;
	if (strcmp(whom, "tid"))
		*tid = 0;
	else
		t->notify = SIGEV_THREAD_ID;
	return text + end;
}

static int by_number(const void *a, const void *b)
{
	const Ckpt__Task__PosixTimer *x = a, *y = b;

	return x->number < y->number ? -1 : x->number > y->number;
}

static int thread_index(const struct ckpt_task *t, pid_t tid, uint32_t *index)
{
	for (size_t k = 0; k < t->n_threads; k++) {
		if (t->threads[k]->tid != tid)
			continue;
		*index = (uint32_t)k;
		return 0;
	}
	return -ESRCH;
}

/* The thread's number in its own pid namespace. */
static int own_tid(const struct ckpt_thread *th, int32_t *tid, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *text = NULL;
	char path[64], value[512], *last;

	task_path(path, sizeof(path), th, "status");
	if (ckpt_proc_read(th->task, path, &text, err) < 0)
		return -err->err;
	if (ckpt_proc_field(text, "NSpid", value, sizeof(value)) < 0)
		return ckpt_fail(err, EINVAL, "/proc/%d/%s: no NSpid", th->task->pid, path);
	for (last = value + strlen(value); last > value && last[-1] != '\t' && last[-1] != ' ';)
		last--;
	*tid = atoi(last);
	return 0;
}

/*
 * The clock of a CPU's time is a negative number: whose (0: the caller's), of a thread or of a
 * process, and what is counted. It is that from the moment when the timer is made, whatever it was
 * called then.
 */
enum { CLOCK_KIND = 3, CLOCK_OF_THREAD = 4, CLOCK_OF_FILE = 3, CLOCKS_BY_NAME = 16 };

static int32_t clock_owner(int32_t clock)
{
	return (int32_t)(~(uint32_t)clock >> 3);
}

static bool clock_valid(int32_t clock)
{
	return clock < 0 ? (clock & CLOCK_KIND) != CLOCK_OF_FILE && clock_owner(clock) >= 0
			 : clock != CLOCK_THREAD_CPUTIME_ID && clock < CLOCKS_BY_NAME;
}

/*
 * Only the process's own: with its number, it gets the same clock again. A thread that called its
 * clock its own is not told, so it must be the only one.
 */
static int clock_known(const struct ckpt_task *t, int32_t clock, struct ckpt_error *err)
{
	const size_t n = clock & CLOCK_OF_THREAD ? t->n_threads : 1;
	const int32_t owner = clock_owner(clock);

	if (clock >= 0 || !clock_valid(clock))
		return clock_valid(clock);
	if (!owner)
		return n == 1;
	for (size_t k = 0; k < n; k++) {
		int32_t tid;

		if (t->threads[k]->dead && clock & CLOCK_OF_THREAD)
			continue;
		if (own_tid(t->threads[k], &tid, err) < 0)
			return -err->err;
		if (tid == owner)
			return 1;
	}
	return 0;
}

static int read_values(struct ckpt_run *run, const struct ckpt_task *t,
		       Ckpt__Task__PosixTimer *list, size_t n, struct task_span *asked,
		       struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "task.timers");
	int r, first = -1;

	for (size_t i = 0; i < n; i++) {
		int op = ckpt_script_add(s, SYS_timer_gettime, CKPT_C(list[i].number),
					 CKPT_OUT(sizeof(struct kernel_itimerspec)));

		if (i == 0)
			first = op;
	}
	asked->from = task_now();
	r = ckpt_script_run(s, t->threads[0], err);
	asked->to = task_now();
	for (size_t i = 0; i < n && r == 0; i++) {
		struct kernel_itimerspec v;

		memcpy(&v, ckpt_script_out(s, first + (int)i, 1), sizeof(v));
		list[i].value_ns = v.value_s * NS_PER_S + v.value_ns;
		list[i].interval_ns = v.interval_s * NS_PER_S + v.interval_ns;
	}
	return r;
}

int task_timers_read(struct ckpt_run *run, const struct ckpt_task *t, Ckpt__Task__PosixTimer **list,
		     size_t *n, struct task_span *asked, struct ckpt_error *err)
{
	CKPT_AUTO_FREE Ckpt__Task__PosixTimer *found = NULL;
	CKPT_AUTO_FREE char *text = NULL;
	Ckpt__Task__PosixTimer one;
	size_t count = 0;
	pid_t tid;
	int r;

	if (ckpt_proc_read(t, "timers", &text, err) < 0)
		return -err->err;
	for (const char *p = text; (p = parse(p, &one, &tid));) {
		Ckpt__Task__PosixTimer *more;
		char object[48];

		snprintf(object, sizeof(object), "timer %d", one.number);
		r = clock_known(t, one.clock, err);
		if (r < 0)
			return r;
		if (!r || (tid && thread_index(t, tid, &one.thread) < 0)) {
			task_refuse(run, t, "timers", object,
				    "its clock or thread is one that cannot be named again",
				    "delete the timer");
			continue;
		}
		if (!task_want(run, TASK_TIMERS, t, object))
			continue;
		more = realloc(found, (count + 1) * sizeof(*more));
		if (!more)
			return ckpt_fail_sys(err, ENOMEM, "timers");
		found = more;
		found[count++] = one;
	}
	if (!count)
		return 0;
	qsort(found, count, sizeof(*found), by_number);
	r = read_values(run, t, found, count, asked, err);
	if (r < 0)
		return r;
	*list = ckpt_steal_ptr(&found);
	*n = count;
	return 0;
}

int task_timers_plan(struct ckpt_run *run, const Ckpt__Task__Process *rec, struct ckpt_error *err)
{
	for (size_t i = 0; i < rec->n_timers; i++) {
		const Ckpt__Task__PosixTimer *t = rec->timers[i];

		if (t->number < 0 || !clock_valid(t->clock) || t->signo > TASK_N_SIGNALS ||
		    t->value_ns < 0 || t->interval_ns < 0 ||
		    (t->notify != SIGEV_NONE && t->notify != SIGEV_SIGNAL &&
		     t->notify != SIGEV_THREAD_ID))
			return TASK_BAD(err, "timer %d: bad values", t->number);
		if (i && t->number <= rec->timers[i - 1]->number)
			return TASK_BAD(err, "timer %d: not in order", t->number);
	}
	if (rec->n_timers &&
	    prctl(PR_TIMER_CREATE_RESTORE_IDS, PR_TIMER_CREATE_RESTORE_IDS_GET, 0, 0, 0) < 0)
		ckpt_unmet(run, CKPT_EXIT_PRIVILEGE, "use Linux 6.15 or newer",
			   "task %u: this kernel cannot make POSIX timers with given numbers",
			   rec->id);
	return 0;
}

int task_timers_set(struct ckpt_run *run, struct ckpt_task *t, const Ckpt__Task__Process *rec,
		    struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "task.timers");

	if (!rec->n_timers)
		return 0;
	ckpt_script_add(s, SYS_prctl, CKPT_C(PR_TIMER_CREATE_RESTORE_IDS),
			CKPT_C(PR_TIMER_CREATE_RESTORE_IDS_ON), CKPT_C(0), CKPT_C(0), CKPT_C(0));
	for (size_t i = 0; i < rec->n_timers; i++) {
		const Ckpt__Task__PosixTimer *m = rec->timers[i];
		struct kernel_sigevent ev = { .value = m->value,
					      .signo = m->signo,
					      .notify = m->notify };
		const struct kernel_itimerspec v = {
			m->interval_ns / NS_PER_S,
			m->interval_ns % NS_PER_S,
			m->value_ns / NS_PER_S,
			m->value_ns % NS_PER_S,
		};
		int32_t number = m->number;
		int r = 0;

		if (m->notify == SIGEV_THREAD_ID) {
			if (m->thread >= t->n_threads)
				return ckpt_fail(err, ESRCH, "timer %d: no thread %u", number,
						 m->thread);
			r = own_tid(t->threads[m->thread], &ev.thread, err);
		}
		if (r < 0)
			return r;
		ckpt_script_add(s, SYS_timer_create, CKPT_C(m->clock), CKPT_IN(&ev, sizeof(ev)),
				CKPT_INOUT(&number, sizeof(number)));
		if (m->value_ns)
			ckpt_script_add(s, SYS_timer_settime, CKPT_C(number), CKPT_C(0),
					CKPT_IN(&v, sizeof(v)), CKPT_C(0));
	}
	ckpt_script_add(s, SYS_prctl, CKPT_C(PR_TIMER_CREATE_RESTORE_IDS),
			CKPT_C(PR_TIMER_CREATE_RESTORE_IDS_OFF), CKPT_C(0), CKPT_C(0), CKPT_C(0));
	return ckpt_script_post(ckpt_steal_ptr(&s), t->threads[0], err);
}
