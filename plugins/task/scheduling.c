/* SPDX-License-Identifier: MIT */
/* Nice value, policy, affinity, I/O priority: read and set from outside, by tid. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "task.h"

#define IOPRIO_WHO_PROCESS 1
#define FLAG_RESET_ON_FORK 1 /* in sched_attr */

#define MAX_CPUS CKPT_ARRAY_SIZE(((struct task_sched *)NULL)->cpus)

static int read_cpus(pid_t tid, uint32_t *cpus, size_t *n)
{
	uint8_t mask[MAX_CPUS / 8] = { 0 };
	long len = syscall(SYS_sched_getaffinity, tid, sizeof(mask), mask);

	if (len < 0)
		return -errno;
	*n = 0;
	for (uint32_t c = 0; c < 8 * (uint32_t)len; c++)
		if (mask[c / 8] >> (c % 8) & 1)
			cpus[(*n)++] = c;
	return 0;
}

static bool is_real_time(uint32_t policy)
{
	return policy == SCHED_FIFO || policy == SCHED_RR;
}

static bool is_fair(uint32_t policy)
{
	return policy == SCHED_OTHER || policy == SCHED_BATCH || policy == SCHED_IDLE;
}

int task_sched_look(pid_t tid, struct task_sched *out, struct ckpt_error *err)
{
	struct task_sched_attr attr = { .size = sizeof(attr) };
	Ckpt__Task__Scheduling *m = &out->msg;
	int nice, r;
	long ioprio;

	ckpt__task__scheduling__init(m);
	if (syscall(SYS_sched_getattr, tid, &attr, sizeof(attr), 0) < 0)
		return ckpt_fail_sys(err, errno, "thread %d: sched_getattr(2)", tid);
	/* one of real time keeps its nice value for later, and only getpriority(2) tells it */
	errno = 0;
	nice = is_real_time(attr.policy) ? getpriority(PRIO_PROCESS, (id_t)tid) : attr.nice;
	if (errno)
		return ckpt_fail_sys(err, errno, "thread %d: getpriority(2)", tid);
	ioprio = syscall(SYS_ioprio_get, IOPRIO_WHO_PROCESS, tid);
	if (ioprio < 0)
		return ckpt_fail_sys(err, errno, "thread %d: ioprio_get(2)", tid);
	r = read_cpus(tid, out->cpus, &m->n_cpus);
	if (r < 0)
		return ckpt_fail_sys(err, r, "thread %d: sched_getaffinity(2)", tid);
	m->policy = attr.policy;
	m->slice_ns = is_fair(attr.policy) ? attr.runtime : 0;
	out->util_min = attr.util_min;
	out->util_max = attr.util_max;
	m->nice = nice;
	m->priority = attr.priority;
	m->flags = attr.flags & FLAG_RESET_ON_FORK;
	m->cpus = out->cpus;
	m->ioprio = (uint32_t)ioprio;
	return 0;
}

/* Ckpt's own, read once a run; NULL on failure. */
static const struct task_sched *own(struct task_state *st, struct ckpt_error *err)
{
	CKPT_AUTO_FREE struct task_sched *mine = NULL;

	if (!st || st->own_sched)
		return st ? st->own_sched : NULL;
	mine = calloc(1, sizeof(*mine));
	if (!mine) {
		ckpt_fail_sys(err, ENOMEM, "scheduling");
		return NULL;
	}
	if (task_sched_look(0, mine, err) < 0)
		return NULL;
	st->own_sched = ckpt_steal_ptr(&mine);
	return st->own_sched;
}

#define MOST_UTIL 1024

/* Real time asks for all there is, if nothing else was set (sched_util_clamp_min_rt_default). */
static bool has_clamps(const struct task_sched *s, const struct task_sched *mine)
{
	const bool usual = is_real_time(s->msg.policy) && s->util_min == MOST_UTIL;

	return s->util_max != mine->util_max || (s->util_min != mine->util_min && !usual);
}

int task_sched_read(struct ckpt_run *run, const struct ckpt_thread *th, struct task_sched *out,
		    struct ckpt_error *err)
{
	const struct task_sched *mine = own(task_state(run, err), err);
	Ckpt__Task__Scheduling *m = &out->msg;
	int r = mine ? task_sched_look(th->tid, out, err) : -err->err;

	if (r < 0)
		return r;
	/* refused in the survey, unless that loss was allowed */
	if (m->policy == SCHED_DEADLINE || m->policy == TASK_SCHED_EXT) {
		m->policy = SCHED_OTHER;
		m->priority = 0;
	}
	if (has_clamps(out, mine))
		task_refuse(run, th->task, "clamps", "utilization clamps", "they are not saved",
			    "run it without (uclampset(1))");
	if (m->slice_ns == mine->msg.slice_ns ||
	    !task_want(run, TASK_SCHED, th->task, "slice of processor time"))
		m->slice_ns = 0;
	if (m->nice != mine->msg.nice && !task_want(run, TASK_NICE, th->task, "nice value"))
		m->nice = mine->msg.nice;
	if ((m->policy != mine->msg.policy || m->priority != mine->msg.priority) &&
	    !task_want(run, TASK_SCHED, th->task, "scheduling policy")) {
		m->policy = mine->msg.policy;
		m->priority = mine->msg.priority;
		m->flags = 0;
	}
	if ((m->n_cpus != mine->msg.n_cpus ||
	     memcmp(out->cpus, mine->cpus, m->n_cpus * sizeof(*m->cpus))) &&
	    !task_want(run, TASK_AFFINITY, th->task, "CPU affinity"))
		m->n_cpus = 0;
	if (m->ioprio != mine->msg.ioprio && !task_want(run, TASK_IOPRIO, th->task, "I/O priority"))
		m->ioprio = 0;
	return 0;
}

/* The CPUs that whoever is in ckpt's cpuset may have, whatever ckpt is bound to itself. */
static void *widest(void *arg)
{
	struct task_sched *out = arg;
	uint8_t all[MAX_CPUS / 8];

	memset(all, 0xff, sizeof(all));
	if (syscall(SYS_sched_setaffinity, 0, sizeof(all), all) < 0 ||
	    read_cpus(0, out->cpus, &out->msg.n_cpus) < 0)
		out->msg.n_cpus = 0;
	return NULL;
}

static bool any_of(const struct task_sched *have, const Ckpt__Task__Scheduling *m)
{
	for (size_t i = 0; i < m->n_cpus; i++)
		for (size_t k = 0; k < have->msg.n_cpus; k++)
			if (have->cpus[k] == m->cpus[i])
				return true;
	return false;
}

static bool any_online(const Ckpt__Task__Scheduling *m)
{
	CKPT_AUTO_FILE FILE *f = fopen("/sys/devices/system/cpu/online", "re");
	unsigned first, last;
	int next = ',';

	for (; f && next == ',' && fscanf(f, "%u", &first) == 1; next = fgetc(f)) {
		last = first;
		(void)!fscanf(f, "-%u", &last);
		for (size_t i = 0; i < m->n_cpus; i++)
			if (m->cpus[i] >= first && m->cpus[i] <= last)
				return true;
	}
	return !f;
}

/* One that is online and in the cpuset has to be among them (__sched_setaffinity()). */
static bool may_be_bound(struct ckpt_run *run, struct task_state *st,
			 const Ckpt__Task__Scheduling *m, struct ckpt_error *err)
{
	const struct task_sched *mine = own(st, err);
	CKPT_AUTO_FREE struct task_sched *most = calloc(1, sizeof(*most));
	pthread_t thread;

	if (!m->n_cpus || (mine && any_of(mine, m)))
		return true;
	/* a group of the tree's own may have another cpuset */
	if (ckpt_record_count(run, "cgroup.member"))
		return any_online(m);
	/* a thread of its own: ckpt stays as it is, and so do those who inherit from it */
	if (!most || pthread_create(&thread, NULL, widest, most))
		return true;
	pthread_join(thread, NULL);
	return !most->msg.n_cpus || any_of(most, m);
}

int task_sched_plan(struct ckpt_run *run, struct task_state *st, const Ckpt__Task__Thread *rec,
		    struct ckpt_error *err)
{
	const Ckpt__Task__Scheduling *m = rec->scheduling;
	bool real_time;

	if (!m || (m->policy > SCHED_BATCH && m->policy != SCHED_IDLE))
		return TASK_BAD(err, "scheduling: no such policy");
	real_time = is_real_time(m->policy);
	if (real_time ? m->priority < 1 || m->priority > 99 : m->priority != 0)
		return TASK_BAD(err, "scheduling: priority %u", m->priority);
	if (m->nice < -20 || m->nice > 19 || (m->flags & ~(uint64_t)FLAG_RESET_ON_FORK) ||
	    m->ioprio > 0xffff)
		return TASK_BAD(err, "scheduling: nice %d, flags %llu, I/O priority %#x", m->nice,
				(unsigned long long)m->flags, m->ioprio);
	/* as the kernel takes it (__setparam_fair()) */
	if (m->slice_ns && (!is_fair(m->policy) || m->slice_ns < 100000 || m->slice_ns > 100000000))
		return TASK_BAD(err, "scheduling: slice of %llu ns",
				(unsigned long long)m->slice_ns);
	for (size_t i = 0; i < m->n_cpus; i++) {
		if (m->cpus[i] >= MAX_CPUS)
			return TASK_BAD(err, "scheduling: CPU %u", m->cpus[i]);
	}
	if (!may_be_bound(run, st, m, err))
		ckpt_unmet(run, CKPT_EXIT_FAILED, "dump with --without task.affinity",
			   "task %u, thread %u: none of the CPUs it is bound to can be had here",
			   rec->id, rec->index);
	return 0;
}

/* A cpuset may have narrowed what it was born with. */
static bool has_cpus(pid_t tid, const Ckpt__Task__Scheduling *m)
{
	uint32_t cpus[MAX_CPUS];
	size_t n = 0;

	return !m->n_cpus || (read_cpus(tid, cpus, &n) == 0 && n == m->n_cpus &&
			      !memcmp(cpus, m->cpus, n * sizeof(*cpus)));
}

int task_sched_set(const struct task_state *st, pid_t tid, const Ckpt__Task__Scheduling *m,
		   struct ckpt_error *err)
{
	struct task_sched_attr attr = {
		.size = sizeof(attr),
		.policy = m->policy,
		.flags = m->flags,
		.nice = m->nice,
		.priority = m->priority,
		.runtime = m->slice_ns,
	};
	uint8_t mask[MAX_CPUS / 8] = { 0 };

	if (task_born_sched(st, m) && has_cpus(tid, m))
		return 0;
	for (size_t i = 0; i < m->n_cpus; i++)
		mask[m->cpus[i] / 8] |= (uint8_t)(1U << (m->cpus[i] % 8));
	if (setpriority(PRIO_PROCESS, (id_t)tid, m->nice) < 0)
		return ckpt_fail_sys(err, errno, "thread %d: setpriority(2)", tid);
	if (syscall(SYS_sched_setattr, tid, &attr, 0) < 0)
		return ckpt_fail_sys(err, errno, "thread %d: sched_setattr(2)", tid);
	if (m->n_cpus && syscall(SYS_sched_setaffinity, tid, sizeof(mask), mask) < 0)
		return ckpt_fail_sys(err, errno, "thread %d: sched_setaffinity(2)", tid);
	/* a thread without one of its own follows its nice value: leave it so */
	if (m->ioprio && syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, tid, m->ioprio) < 0)
		return ckpt_fail_sys(err, errno, "thread %d: ioprio_set(2)", tid);
	return 0;
}
