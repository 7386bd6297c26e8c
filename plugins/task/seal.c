/* SPDX-License-Identifier: MIT */
/* Give every thread its state back; privileges last, registers after them. */
#include <fcntl.h>
#include <linux/prctl.h>
#include <stdio.h>
#include <sys/personality.h>
#include <sys/syscall.h>
#include <sys/time.h>

#include "task.h"

/* Linux 6.9 */
#ifndef PIDFD_THREAD
#define PIDFD_THREAD O_EXCL
#endif
#ifndef PIDFD_SIGNAL_THREAD_GROUP
#define PIDFD_SIGNAL_THREAD_GROUP 2
#endif

#define US_PER_S 1000000LL

typedef int (*thread_fn)(struct ckpt_run *run, struct ckpt_thread *th,
			 const Ckpt__Task__Thread *rec, struct ckpt_error *err);
typedef int (*process_fn)(struct ckpt_run *run, struct ckpt_task *t, const Ckpt__Task__Process *rec,
			  struct ckpt_error *err);

static int each_thread(struct ckpt_run *run, thread_fn fn, struct ckpt_error *err)
{
	for (size_t i = 0; i < ckpt_record_count(run, "task.thread"); i++) {
		const Ckpt__Task__Thread *rec = ckpt_record_at(run, "task.thread", i);
		struct ckpt_task *t = ckpt_task_by_id(run, rec->id);

		if (!t || rec->index >= t->n_threads)
			return ckpt_fail(err, ESRCH, "task %u, thread %u was not made", rec->id,
					 rec->index);
		if (fn(run, t->threads[rec->index], rec, err) < 0)
			return ckpt_wrap(err, "task %u, thread %u", rec->id, rec->index);
	}
	return 0;
}

static int each_process(struct ckpt_run *run, process_fn fn, struct ckpt_error *err)
{
	for (size_t i = 0; i < ckpt_record_count(run, "task.process"); i++) {
		const Ckpt__Task__Process *rec = ckpt_record_at(run, "task.process", i);
		struct ckpt_task *t = ckpt_task_by_id(run, rec->id);

		if (!t)
			return ckpt_fail(err, ESRCH, "task %u was not made", rec->id);
		if (fn(run, t, rec, err) < 0)
			return ckpt_wrap(err, "task %u", rec->id);
	}
	return 0;
}

static void set_prctl(struct ckpt_script *s, int op, uint64_t a, uint64_t b)
{
	ckpt_script_add(s, SYS_prctl, CKPT_C(op), CKPT_C(a), CKPT_C(b), CKPT_C(0), CKPT_C(0));
}

/* ---- priorities: the privileges that count are ckpt's own ----------------------- */

static int priority(struct ckpt_run *run, struct ckpt_thread *th, const Ckpt__Task__Thread *rec,
		    struct ckpt_error *err)
{
	return task_sched_set(ckpt_state(run), th->tid, rec->scheduling, err);
}

int task_seal_priority(struct ckpt_run *run, struct ckpt_error *err)
{
	int r = each_thread(run, priority, err);

	return r < 0 ? r : each_process(run, task_autogroup_set, err);
}

/* Several may come back to a removed directory of one name: not at the same time. */
static int post(struct ckpt_run *run, struct ckpt_script *s, struct ckpt_thread *th, bool removed,
		struct ckpt_error *err)
{
	int r = ckpt_script_post(s, th, err);

	return r < 0 || !removed ? r : ckpt_script_settle(run, err);
}

/* ---- processes --------------------------------------------------------------------- */

static int write_number(const struct ckpt_task *t, const char *name, long v, struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = openat(t->procfd, name, O_WRONLY | O_CLOEXEC);

	if (fd < 0 || dprintf(fd, "%ld", v) < 0)
		return ckpt_fail_sys(err, errno, "/proc/%d/%s", t->pid, name);
	return 0;
}

static void actions(struct ckpt_script *s, const Ckpt__Task__Process *rec)
{
	for (size_t i = 0; i < rec->n_actions; i++) {
		const Ckpt__Task__Action *m = rec->actions[i];
		const struct task_sigaction a = { m->handler, m->flags, m->restorer, m->mask };

		ckpt_script_add(s, SYS_rt_sigaction, CKPT_C(m->signo), CKPT_IN(&a, sizeof(a)),
				CKPT_C(0), CKPT_C(sizeof(a.mask)));
	}
}

static void itimers(struct ckpt_script *s, const Ckpt__Task__Process *rec)
{
	for (size_t i = 0; i < rec->n_itimers; i++) {
		const Ckpt__Task__IntervalTimer *m = rec->itimers[i];
		const struct itimerval v = {
			{ m->interval_us / US_PER_S, m->interval_us % US_PER_S },
			{ m->value_us / US_PER_S, m->value_us % US_PER_S },
		};

		ckpt_script_add(s, SYS_setitimer, CKPT_C(m->which), CKPT_IN(&v, sizeof(v)),
				CKPT_C(0));
	}
}

/*
 * Queued by the thread itself, which alone may give any si_code; numbers are those
 * of its own pid namespace, so it asks for them. All signals are blocked meanwhile.
 */
static void queue(struct ckpt_script *s, Ckpt__Task__Signal *const *list, size_t n)
{
	int pid, tid;

	if (!n)
		return;
	pid = ckpt_script_add0(s, SYS_getpid);
	tid = ckpt_script_add0(s, SYS_gettid);
	for (size_t i = 0; i < n; i++) {
		const Ckpt__Task__Signal *m = list[i];

		ckpt_script_add(s, SYS_rt_tgsigqueueinfo, CKPT_R(pid), CKPT_R(tid),
				CKPT_C(m->signo), CKPT_IN(m->info.data, m->info.len));
	}
}

/*
 * Those of the whole process. To rt_sigqueueinfo(2) only the main thread is itself; to
 * pidfd_send_signal(2) any thread that names itself is.
 */
static void queue_shared(struct ckpt_script *s, const struct ckpt_task *t,
			 Ckpt__Task__Signal *const *list, size_t n)
{
	int self;

	if (!n)
		return;
	self = ckpt_script_add0(s, t->ended ? SYS_gettid : SYS_getpid);
	if (t->ended)
		self = ckpt_script_add(s, SYS_pidfd_open, CKPT_R(self), CKPT_C(PIDFD_THREAD));
	for (size_t i = 0; i < n; i++) {
		const Ckpt__Task__Signal *m = list[i];

		if (t->ended)
			ckpt_script_add(s, SYS_pidfd_send_signal, CKPT_R(self), CKPT_C(m->signo),
					CKPT_IN(m->info.data, m->info.len),
					CKPT_C(PIDFD_SIGNAL_THREAD_GROUP));
		else
			ckpt_script_add(s, SYS_rt_sigqueueinfo, CKPT_R(self), CKPT_C(m->signo),
					CKPT_IN(m->info.data, m->info.len));
	}
	if (t->ended)
		ckpt_script_add(s, SYS_close, CKPT_R(self));
}

static int process(struct ckpt_run *run, struct ckpt_task *t, const Ckpt__Task__Process *rec,
		   struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "task.process");
	const struct task_state *st = ckpt_state(run);
	int r = 0;

	actions(s, rec);
	if (task_saved(st, TASK_UMASK))
		ckpt_script_add(s, SYS_umask, CKPT_C(rec->umask));
	/* a task of a nested user namespace is there already */
	if (task_saved(st, TASK_CWD) && !task_is_nested(run, rec->id) &&
	    !task_place_made(run, rec->id))
		r = task_cwd_script(run, t->threads[0], s, rec->cwd, rec->removed, err);
	if (r < 0)
		return r;
	if (rec->thp_disabled)
		set_prctl(s, PR_SET_THP_DISABLE, 1, rec->thp_flags);
	queue_shared(s, t, rec->pending, rec->n_pending);
	itimers(s, rec);
	r = post(run, ckpt_steal_ptr(&s), t->threads[0], rec->removed, err);
	if (r == 0)
		r = task_timers_set(run, t, rec, err);
	if (r == 0 && task_saved(st, TASK_COREDUMP) &&
	    (long)rec->coredump_filter != st->born->coredump_filter)
		r = write_number(t, "coredump_filter", (long)rec->coredump_filter, err);
	if (r == 0 && task_saved(st, TASK_OOM) && rec->oom_score_adj != st->born->oom_score_adj)
		r = write_number(t, "oom_score_adj", rec->oom_score_adj, err);
	return r;
}

int task_seal_process(struct ckpt_run *run, struct ckpt_error *err)
{
	int r = task_born_look(run, err);

	return r < 0 ? r : each_process(run, process, err);
}

/* ---- threads ------------------------------------------------------------------------ */

const unsigned task_speculations[TASK_N_SPECULATION] = {
	PR_SPEC_STORE_BYPASS,
	PR_SPEC_INDIRECT_BRANCH,
	PR_SPEC_L1D_FLUSH,
};

uint32_t task_speculation(size_t which, uint32_t told)
{
	/* of the flush, which is what one asks for, "disabled" is what everybody has */
	const uint32_t settings =
		task_speculations[which] == PR_SPEC_L1D_FLUSH
			? PR_SPEC_ENABLE
			: PR_SPEC_DISABLE | PR_SPEC_FORCE_DISABLE | PR_SPEC_DISABLE_NOEXEC;

	return told & PR_SPEC_PRCTL ? told & settings : 0;
}

static void speculation(struct ckpt_script *s, const Ckpt__Task__Thread *rec)
{
	for (size_t i = 0; i < rec->n_speculation; i++) {
		uint32_t setting = task_speculation(i, rec->speculation[i]);

		if (setting)
			set_prctl(s, PR_SET_SPECULATION_CTRL, task_speculations[i], setting);
	}
}

static int thread(struct ckpt_run *run, struct ckpt_thread *th, const Ckpt__Task__Thread *rec,
		  struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "task.thread");
	const struct task_state *st = ckpt_state(run);

	if (task_saved(st, TASK_COMM))
		ckpt_script_add(s, SYS_prctl, CKPT_C(PR_SET_NAME), CKPT_STR(rec->comm));
	if (rec->place && task_place_script(run, th, s, st, rec->place, err) < 0)
		return -err->err;
	if (rec->altstack) {
		const struct task_stack a = {
			.sp = rec->altstack->sp,
			.flags = rec->altstack->flags,
			.size = rec->altstack->size,
		};

		ckpt_script_add(s, SYS_sigaltstack, CKPT_IN(&a, sizeof(a)), CKPT_C(0));
	}
	if (rec->rseq)
		ckpt_script_add(s, SYS_rseq, CKPT_C(rec->rseq->address), CKPT_C(rec->rseq->size),
				CKPT_C(0), CKPT_C(rec->rseq->signature));
	if (rec->robust_list)
		ckpt_script_add(s, SYS_set_robust_list, CKPT_C(rec->robust_list),
				CKPT_C(3 * sizeof(uint64_t)));
	if (task_saved(st, TASK_CLEAR_TID))
		ckpt_script_add(s, SYS_set_tid_address, CKPT_C(rec->clear_tid));
	if (rec->timer_slack)
		set_prctl(s, PR_SET_TIMERSLACK, rec->timer_slack, 0);
	if (rec->mce_kill)
		set_prctl(s, PR_MCE_KILL, PR_MCE_KILL_SET, rec->mce_kill - 1);
	if (task_saved(st, TASK_PERSONALITY))
		ckpt_script_add(s, SYS_personality, CKPT_C(rec->personality));
	speculation(s, rec);
	task_policy_script(st, s, rec);
	queue(s, rec->pending, rec->n_pending);
	return post(run, ckpt_steal_ptr(&s), th, rec->place && rec->place->removed, err);
}

int task_seal_thread(struct ckpt_run *run, struct ckpt_error *err)
{
	return each_thread(run, thread, err);
}

/* ---- before a user namespace is joined ------------------------------------------------ */

/* Directories and ids that it could not go to, or take, from inside. */
static int ids(struct ckpt_run *run, struct ckpt_thread *th, const Ckpt__Task__Thread *rec,
	       struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "task.ids");
	const struct task_state *st = ckpt_state(run);
	const Ckpt__Task__Process *p = ckpt_record_by_id(run, "task.process", rec->id);

	if (p && task_saved(st, TASK_CWD) && !task_place_made(run, rec->id) &&
	    task_cwd_script(run, th, s, p->cwd, p->removed, err) < 0)
		return -err->err;
	if (task_saved(st, TASK_CREDS))
		task_ids_script(s, rec->credentials);
	return ckpt_script_run(s, th, err);
}

int task_ids(struct ckpt_run *run, struct ckpt_error *err)
{
	for (size_t i = 0; i < ckpt_record_count(run, "task.thread"); i++) {
		const Ckpt__Task__Thread *rec = ckpt_record_at(run, "task.thread", i);
		struct ckpt_task *t;

		if (rec->index || !task_is_nested(run, rec->id))
			continue;
		t = ckpt_task_by_id(run, rec->id);
		if (!t)
			return ckpt_fail(err, ESRCH, "task %u was not made", rec->id);
		if (ids(run, t->threads[0], rec, err) < 0)
			return ckpt_wrap(err, "task %u", rec->id);
	}
	return 0;
}

/* ---- privileges ----------------------------------------------------------------------- */

/* After everything that could hit them: queued signals, open files. */
static int limits(struct ckpt_run *run, struct ckpt_script *s, struct ckpt_task *t,
		  const Ckpt__Task__Process *rec, struct ckpt_error *err)
{
	if (task_is_nested(run, t->id) && task_may_raise())
		return task_limits_set(t, rec, err);
	task_limits_script(ckpt_state(run), s, rec);
	return 0;
}

static int creds(struct ckpt_run *run, struct ckpt_script *s, const Ckpt__Task__Thread *rec,
		 struct ckpt_error *err)
{
	__attribute__((cleanup(task_inside_free))) struct task_inside inside = { 0 };
	struct task_state *st = ckpt_state(run);
	const bool nested = task_is_nested(run, rec->id);
	const bool born = !nested && task_born_creds(st, rec->credentials);
	int r = nested ? task_inside_of(run, rec, &inside, err) : 0;

	if (r < 0)
		return r;
	if (task_saved(st, TASK_CREDS) && !born)
		task_creds_script(st, s, rec->credentials, nested ? &inside : NULL);
	if (rec->credentials->no_new_privs)
		set_prctl(s, PR_SET_NO_NEW_PRIVS, 1, 0);
	/* a change of ids forgets it; nobody is born with one */
	if (rec->pdeath_signal || !born)
		set_prctl(s, PR_SET_PDEATHSIG, rec->pdeath_signal, 0);
	return 0;
}

/* Each change of ids in any thread resets it, so it comes after all of them. */
static void dumpable(struct ckpt_script *s, const Ckpt__Task__Process *rec)
{
	set_prctl(s, PR_SET_DUMPABLE, rec->dumpable, 0);
}

static int seal_other(struct ckpt_run *run, struct ckpt_thread *th, const Ckpt__Task__Thread *rec,
		      struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "task.creds");

	if (!rec->index)
		return 0;
	if (creds(run, s, rec, err) < 0)
		return -err->err;
	return ckpt_script_post(ckpt_steal_ptr(&s), th, err);
}

static int seal_leader(struct ckpt_run *run, struct ckpt_thread *th, const Ckpt__Task__Thread *rec,
		       struct ckpt_error *err)
{
	const Ckpt__Task__Process *p = ckpt_record_by_id(run, "task.process", rec->id);
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "task.creds");
	int r;

	if (rec->index)
		return 0;
	if (!p)
		return ckpt_fail(err, ESRCH, "task %u has no record of its process", rec->id);
	r = limits(run, s, th->task, p, err);
	if (r == 0)
		r = creds(run, s, rec, err);
	if (r < 0)
		return r;
	dumpable(s, p);
	return ckpt_script_post(ckpt_steal_ptr(&s), th, err);
}

/* They went there by name; now nobody goes elsewhere any more. */
static int is_there(struct ckpt_run *run, struct ckpt_thread *th, const Ckpt__Task__Thread *rec,
		    struct ckpt_error *err)
{
	const struct task_state *st = ckpt_state(run);
	const Ckpt__Task__Process *p = ckpt_record_by_id(run, "task.process", rec->id);

	if (rec->place)
		return task_cwd_check(run, st, th, rec->place->cwd, rec->place->removed, err);
	return rec->index || !p ? 0 : task_cwd_check(run, st, th, p->cwd, p->removed, err);
}

int task_seal_creds(struct ckpt_run *run, struct ckpt_error *err)
{
	int r = each_thread(run, seal_other, err);

	if (r == 0)
		r = ckpt_script_settle(run, err);
	if (r == 0)
		r = each_thread(run, is_there, err);
	return r < 0 ? r : each_thread(run, seal_leader, err);
}

/* ---- registers ------------------------------------------------------------------------- */

static bool deliverable(Ckpt__Task__Signal *const *list, size_t n, uint64_t sigmask)
{
	for (size_t i = 0; i < n; i++)
		if (!(sigmask >> (list[i]->signo - 1) & 1))
			return true;
	return false;
}

static int final(struct ckpt_run *run, struct ckpt_thread *th, const Ckpt__Task__Thread *rec,
		 struct ckpt_error *err)
{
	const Ckpt__Task__Process *p = ckpt_record_by_id(run, "task.process", rec->id);
	struct ckpt_final f = {
		.sigmask = rec->sigmask,
		.xstate = rec->xstate.len ? rec->xstate.data : NULL,
		.xstate_len = rec->xstate.len,
		.stop_signal = rec->index == 0 ? (int)p->stop_signal : 0,
	};

	TASK_COPY_REGS(&f.regs, rec->registers);
	task_restart(&f.regs, rec->restarted,
		     deliverable(rec->pending, rec->n_pending, rec->sigmask) ||
			     deliverable(p->pending, p->n_pending, rec->sigmask));
	return ckpt_set_final(th, &f, err);
}

int task_seal_final(struct ckpt_run *run, struct ckpt_error *err)
{
	return each_thread(run, final, err);
}
