/* SPDX-License-Identifier: MIT */
/* One record a process: what its threads share. */
#include <linux/prctl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>

#include "task.h"

#define US_PER_S 1000000LL

struct parts {
	Ckpt__Task__Action actions[TASK_N_SIGNALS], *action_list[TASK_N_SIGNALS];
	Ckpt__Task__IntervalTimer itimers[3], *itimer_list[3];
	Ckpt__Task__Limit limits[TASK_N_LIMITS], *limit_list[TASK_N_LIMITS];
	Ckpt__Task__PosixTimer *timers, **timer_list;
	Ckpt__Task__Signal *signals, **signal_list;
	char cwd[4096];
	Ckpt__Task__Removed removed;
	struct task_segments segments;
};

static void parts_free(struct parts *p)
{
	task_segments_free(&p->segments);
	free(p->timers);
	free(p->timer_list);
	free(p->signals);
	free(p->signal_list);
}

/* Signals whose action can be changed at all. */
static bool has_action(int sig)
{
	return sig != SIGKILL && sig != SIGSTOP;
}

static void add_action(Ckpt__Task__Process *rec, struct parts *p, int sig,
		       const struct task_sigaction *a)
{
	Ckpt__Task__Action *m = &p->actions[rec->n_actions];

	ckpt__task__action__init(m);
	m->signo = (uint32_t)sig;
	m->handler = a->handler;
	m->flags = a->flags;
	m->restorer = a->restorer;
	m->mask = a->mask;
	p->action_list[rec->n_actions++] = m;
}

static void add_itimer(Ckpt__Task__Process *rec, struct parts *p, unsigned which,
		       const struct itimerval *v)
{
	Ckpt__Task__IntervalTimer *m = &p->itimers[rec->n_itimers];

	ckpt__task__interval_timer__init(m);
	m->which = which;
	m->value_us = v->it_value.tv_sec * US_PER_S + v->it_value.tv_usec;
	m->interval_us = v->it_interval.tv_sec * US_PER_S + v->it_interval.tv_usec;
	p->itimer_list[rec->n_itimers++] = m;
}

/*
 * A periodic one that has gone off is started again when its signal is taken, and shows nothing
 * until then. One that goes off at once is the same: there is one SIGALRM, however often it comes.
 */
static void while_its_signal_waits(struct itimerval *v)
{
	if (!v->it_value.tv_sec && !v->it_value.tv_usec &&
	    (v->it_interval.tv_sec || v->it_interval.tv_usec))
		v->it_value.tv_usec = 1;
}

/* What only the process itself can tell. */
static int ask(struct ckpt_run *run, const struct ckpt_task *t, Ckpt__Task__Process *rec,
	       struct parts *p, struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "task.process");
	static const struct task_sigaction none;
	struct task_space_asked space;
	int action[TASK_N_SIGNALS + 1], itimer[3], dumpable, thp, r;

	for (int sig = 1; sig <= TASK_N_SIGNALS; sig++)
		action[sig] = ckpt_script_add(s, SYS_rt_sigaction, CKPT_C(sig), CKPT_C(0),
					      CKPT_OUT(sizeof(struct task_sigaction)),
					      CKPT_C(sizeof(uint64_t)));
	for (unsigned w = 0; w < 3; w++)
		itimer[w] = ckpt_script_add(s, SYS_getitimer, CKPT_C(w),
					    CKPT_OUT(sizeof(struct itimerval)));
	dumpable = ckpt_script_add(s, SYS_prctl, CKPT_C(PR_GET_DUMPABLE));
	thp = ckpt_script_add(s, SYS_prctl, CKPT_C(PR_GET_THP_DISABLE), CKPT_C(0), CKPT_C(0),
			      CKPT_C(0), CKPT_C(0));
	task_space_ask(s, &space);
	r = ckpt_script_run(s, t->threads[0], err);
	if (r < 0)
		return r;
	for (int sig = 1; sig <= TASK_N_SIGNALS; sig++) {
		struct task_sigaction a;

		memcpy(&a, ckpt_script_out(s, action[sig], 2), sizeof(a));
		if (has_action(sig) && memcmp(&a, &none, sizeof(a)) &&
		    task_want(run, TASK_ACTIONS, t, "signal actions"))
			add_action(rec, p, sig, &a);
	}
	for (unsigned w = 0; w < 3; w++) {
		struct itimerval v;

		memcpy(&v, ckpt_script_out(s, itimer[w], 1), sizeof(v));
		if (w == ITIMER_REAL)
			while_its_signal_waits(&v);
		if ((v.it_value.tv_sec || v.it_value.tv_usec) &&
		    task_want(run, TASK_ITIMERS, t, "interval timer"))
			add_itimer(rec, p, w, &v);
	}
	rec->dumpable = (uint32_t)ckpt_script_result(s, dumpable);
	if (rec->dumpable > 1)
		task_refuse(run, t, "dumpable", "dumpable value 2", "only the kernel can set it",
			    "set PR_SET_DUMPABLE to 0 or 1");
	/* allowed: the one of the two that protects as much */
	if (rec->dumpable > 1)
		rec->dumpable = 0;
	if (rec->dumpable != 1 && !task_want(run, TASK_DUMPABLE, t, "dumpable"))
		rec->dumpable = 1;
	rec->thp_disabled = ckpt_script_result(s, thp) > 0;
	if (rec->thp_disabled && !task_want(run, TASK_THP, t, "PR_SET_THP_DISABLE"))
		rec->thp_disabled = false;
	/* told as 1 and the flags that it was disabled with, since Linux 6.18 */
	if (rec->thp_disabled)
		rec->thp_flags = (uint32_t)ckpt_script_result(s, thp) & ~1U;
	return task_space_take(run, t, s, &space, rec, &p->segments, err);
}

static int own_number(const char *path, int base, long *v, struct ckpt_error *err)
{
	CKPT_AUTO_FILE FILE *f = fopen(path, "re");
	char text[32];

	if (!f || !fgets(text, sizeof(text), f))
		return ckpt_fail_sys(err, errno, "%s", path);
	*v = strtol(text, NULL, base);
	return 0;
}

/* A file of /proc/PID with one number, and ckpt's own of the same name. */
static int number(struct ckpt_run *run, const struct ckpt_task *t, const char *name, int base,
		  enum task_feature f, long *v, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *text = NULL;
	char path[64];
	long own = 0;

	if (ckpt_proc_read(t, name, &text, err) < 0)
		return -err->err;
	*v = strtol(text, NULL, base);
	snprintf(path, sizeof(path), "/proc/self/%s", name);
	if (own_number(path, base, &own, err) < 0)
		return -err->err;
	if (own != *v && !task_want(run, f, t, name))
		*v = own;
	return 0;
}

static int from_proc(struct ckpt_run *run, const struct ckpt_task *t, bool stop,
		     Ckpt__Task__Process *rec, struct parts *p, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *status = NULL;
	char own_cwd[4096], mask[16];
	long v = 0;
	int r;

	r = number(run, t, "oom_score_adj", 10, TASK_OOM, &v, err);
	rec->oom_score_adj = (int32_t)v;
	if (r == 0)
		r = number(run, t, "coredump_filter", 16, TASK_COREDUMP, &v, err);
	rec->coredump_filter = (uint32_t)v;
	if (r == 0)
		r = task_autogroup_read(run, t, rec, err);
	if (r < 0)
		return r;
	if (ckpt_proc_read(t, "status", &status, err) < 0)
		return -err->err;
	if (ckpt_proc_field(status, "Umask", mask, sizeof(mask)) < 0)
		return ckpt_fail(err, EINVAL, "/proc/%d/status: no Umask", t->pid);
	rec->umask = (uint32_t)strtoul(mask, NULL, 8);
	if (rec->umask != 022 && !task_want(run, TASK_UMASK, t, "umask"))
		rec->umask = 022;
	r = task_cwd_read(run, t->threads[0], p->cwd, sizeof(p->cwd), &p->removed, err);
	if (r < 0)
		return r;
	rec->cwd = p->cwd;
	rec->removed = r ? &p->removed : NULL;
	if (!getcwd(own_cwd, sizeof(own_cwd)) || strcmp(own_cwd, p->cwd))
		task_want(run, TASK_CWD, t, p->cwd);
	if ((t->stopped || stop) && task_want(run, TASK_STOPPED, t, "stopped by a signal"))
		rec->stop_signal = SIGSTOP;
	return 0;
}

static int timers_and_limits(struct ckpt_run *run, const struct ckpt_task *t,
			     Ckpt__Task__Process *rec, struct parts *p, struct task_span *asked,
			     struct ckpt_error *err)
{
	int r = task_limits_read(run, t, p->limits, &rec->n_limits, err);

	for (size_t i = 0; i < rec->n_limits; i++)
		p->limit_list[i] = &p->limits[i];
	if (r == 0)
		r = task_timers_read(run, t, &p->timers, &rec->n_timers, asked, err);
	if (r < 0 || !rec->n_timers)
		return r;
	p->timer_list = calloc(rec->n_timers, sizeof(*p->timer_list));
	if (!p->timer_list)
		return ckpt_fail_sys(err, ENOMEM, "timers");
	for (size_t i = 0; i < rec->n_timers; i++)
		p->timer_list[i] = &p->timers[i];
	rec->timers = p->timer_list;
	return 0;
}

int task_collect_process(struct ckpt_run *run, const struct ckpt_task *t, struct ckpt_error *err)
{
	__attribute__((cleanup(parts_free))) struct parts p = { 0 };
	Ckpt__Task__Process rec = CKPT__TASK__PROCESS__INIT;
	const struct task_state *st = ckpt_state(run);
	const struct task_peek *peek = task_peeked(st, t->threads[0]->tid);
	struct task_span asked = { 0 };
	int r;

	rec.id = t->id;
	rec.shares_fs = st->fs_first[t->id - 1];
	rec.actions = p.action_list;
	rec.itimers = p.itimer_list;
	rec.limits = p.limit_list;
	r = ask(run, t, &rec, &p, err);
	if (r == 0)
		r = from_proc(run, t, peek && peek->stop, &rec, &p, err);
	if (r == 0)
		r = timers_and_limits(run, t, &rec, &p, &asked, err);
	if (r == 0 && peek && peek->n_shared &&
	    task_want(run, TASK_PENDING, t, "pending signals")) {
		rec.n_pending = peek->n_shared;
		r = task_signals(peek->shared, peek->n_shared, &p.signals, &p.signal_list, err);
		rec.pending = p.signal_list;
	}
	return r < 0 ? r : task_hold_process(run, t->threads[0], &rec, asked, err);
}
