/* SPDX-License-Identifier: MIT */
/* Check every value of the image, and that this machine and these privileges can give it back. */
#include <cpuid.h>
#include <linux/prctl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/personality.h>
#include <sys/prctl.h>

#include "task.h"

/* No user address is above this, with five-level page tables either. */
#define USER_END     (1ULL << 56)
#define USER_SS	     0x2b
#define MIN_ALTSTACK 2048
#define RSEQ_ALIGN   32

/* What the plan takes from pid's record of a task, by the message's own description. */
struct pid_task {
	uint32_t id;
	size_t n_threads;
	bool zombie;
};

static int pid_task(struct ckpt_run *run, size_t i, struct pid_task *out, struct ckpt_error *err)
{
	const ProtobufCMessage *m = ckpt_record_at(run, "pid.task", i);
	const uint8_t *base = (const uint8_t *)m;
	const ProtobufCFieldDescriptor *id, *threads, *zombie;

	id = protobuf_c_message_descriptor_get_field_by_name(m->descriptor, "id");
	threads = protobuf_c_message_descriptor_get_field_by_name(m->descriptor, "threads");
	zombie = protobuf_c_message_descriptor_get_field_by_name(m->descriptor, "zombie");
	if (!id || !threads || !zombie)
		return TASK_BAD(err, "records of another plugin pid than this task knows");
	memcpy(&out->id, base + id->offset, sizeof(out->id));
	memcpy(&out->n_threads, base + threads->quantifier_offset, sizeof(out->n_threads));
	out->zombie = *(void *const *)(const void *)(base + zombie->offset) != NULL;
	return 0;
}

/* All living tasks and threads, in pid's order, and nothing else. */
static int complete(struct ckpt_run *run, struct ckpt_error *err)
{
	size_t at_thread = 0, at_process = 0;

	for (size_t i = 0; i < ckpt_record_count(run, "pid.task"); i++) {
		const Ckpt__Task__Process *p = ckpt_record_at(run, "task.process", at_process);
		struct pid_task t = { 0 };
		int r = pid_task(run, i, &t, err);

		if (r < 0)
			return r;
		if (t.zombie)
			continue;
		if (!p || p->id != t.id)
			return TASK_BAD(err, "no process record of task %u", t.id);
		at_process++;
		for (size_t k = 0; k < t.n_threads; k++) {
			const Ckpt__Task__Thread *th =
				ckpt_record_at(run, "task.thread", at_thread++);

			if (!th || th->id != t.id || th->index != k)
				return TASK_BAD(err, "no record of thread %zu of task %u", k, t.id);
		}
	}
	if (at_process != ckpt_record_count(run, "task.process") ||
	    at_thread != ckpt_record_count(run, "task.thread"))
		return TASK_BAD(err, "records of tasks that pid does not know");
	return 0;
}

static int load_saved(struct ckpt_run *run, struct task_state *st, struct ckpt_error *err)
{
	const Ckpt__Task__Saved *s = ckpt_record_at(run, "task.saved", 0);

	st->saved = 0;
	if (!s || ckpt_record_count(run, "task.saved") != 1)
		return TASK_BAD(err, "not exactly one list of saved features");
	for (size_t i = 0; i < s->n_features; i++) {
		size_t f = 0;

		while (f < TASK_N_FEATURES && strcmp(task_features[f].name, s->features[i]))
			f++;
		if (f == TASK_N_FEATURES)
			return TASK_BAD(err, "feature \"%.40s\" is unknown", s->features[i]);
		st->saved |= 1ULL << f;
	}
	if (!ckpt_plan_only(run))
		task_label_plan(run, s);
	return 0;
}

static int check_signals(Ckpt__Task__Signal *const *list, size_t n, struct ckpt_error *err)
{
	for (size_t i = 0; i < n; i++) {
		const Ckpt__Task__Signal *m = list[i];
		int signo;

		if (m->info.len != sizeof(siginfo_t))
			return TASK_BAD(err, "pending signal: %zu bytes of siginfo", m->info.len);
		memcpy(&signo, m->info.data, sizeof(signo));
		if (m->signo < 1 || m->signo > TASK_N_SIGNALS || m->signo == SIGKILL ||
		    m->signo == SIGSTOP || (int)m->signo != signo)
			return TASK_BAD(err, "pending signal %u", m->signo);
	}
	return 0;
}

static int check_registers(const Ckpt__Task__Thread *rec, struct ckpt_error *err)
{
	const Ckpt__Task__Registers *m = rec->registers;

	if (!m)
		return TASK_BAD(err, "no registers");
	if (m->cs != TASK_CS || m->ss != USER_SS)
		return TASK_BAD(err, "registers of no 64-bit program");
	if (m->rip >= USER_END || m->fs_base >= USER_END || m->gs_base >= USER_END)
		return TASK_BAD(err, "registers point out of user space");
	if (!task_restart_known(rec->restarted))
		return TASK_BAD(err, "restarted call %u", rec->restarted);
	return 0;
}

enum { XSTATE_BV = 512, XSTATE_HEADER_END = 576 };
#define XFEATURE_XTILEDATA (1ULL << 18)

void task_xstate_without_tiles(uint8_t *xstate, size_t len)
{
	uint64_t components;

	if (len < XSTATE_HEADER_END)
		return;
	memcpy(&components, xstate + XSTATE_BV, sizeof(components));
	components &= ~XFEATURE_XTILEDATA;
	memcpy(xstate + XSTATE_BV, &components, sizeof(components));
}

/* Asked once, not for every thread: each cpuid is an exit of a virtual machine. */
static unsigned xstate_size(struct task_state *st)
{
	unsigned eax, ecx, edx;

	if (!st->xstate_size)
		__cpuid_count(0xd, 0, eax, st->xstate_size, ecx, edx);
	return st->xstate_size;
}

/* Size and components of the extended state depend on the processor and its kernel. */
static int check_xstate(struct ckpt_run *run, struct task_state *st, const Ckpt__Task__Thread *rec,
			struct ckpt_error *err)
{
	const unsigned size = xstate_size(st);
	unsigned low, high;
	uint64_t components, enabled;

	if (rec->xstate.len < XSTATE_HEADER_END)
		return TASK_BAD(err, "extended state of %zu bytes", rec->xstate.len);
	memcpy(&components, rec->xstate.data + XSTATE_BV, sizeof(components));
	__asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
	/* a task has to ask for that one, which none does (validate_user_xstate_header()) */
	enabled = ((uint64_t)high << 32 | low) & ~XFEATURE_XTILEDATA;
	if (rec->xstate.len != size || (components & ~enabled))
		ckpt_unmet(run, CKPT_EXIT_IMAGE, "restore on a machine with the same processor",
			   "task %u, thread %u: extended registers of %zu bytes with components "
			   "%#llx, this processor has %u bytes and %#llx",
			   rec->id, rec->index, rec->xstate.len, (unsigned long long)components,
			   size, (unsigned long long)enabled);
	return 0;
}

static int check_addresses(const Ckpt__Task__Thread *rec, struct ckpt_error *err)
{
	const Ckpt__Task__AltStack *a = rec->altstack;
	const Ckpt__Task__Rseq *q = rec->rseq;

	if (a && ((a->flags & ~(1U << 31) /* SS_AUTODISARM */) || a->sp >= USER_END ||
		  a->size < MIN_ALTSTACK || a->size >= USER_END))
		return TASK_BAD(err, "alternate stack");
	if (q && (q->size < RSEQ_ALIGN || q->address % RSEQ_ALIGN || q->address >= USER_END))
		return TASK_BAD(err, "restartable sequence");
	if (rec->robust_list >= USER_END || rec->clear_tid >= USER_END)
		return TASK_BAD(err, "robust list or clear_child_tid");
	return 0;
}

static int check_thread(struct ckpt_run *run, struct task_state *st, const Ckpt__Task__Thread *rec,
			struct ckpt_error *err)
{
	int r = check_registers(rec, err);

	if (r == 0 && task_saved(st, TASK_XSTATE))
		r = check_xstate(run, st, rec, err);
	if (r == 0)
		r = check_addresses(rec, err);
	if (r == 0)
		r = check_signals(rec->pending, rec->n_pending, err);
	if (r == 0 && (strlen(rec->comm) > 15 || (rec->personality & PER_MASK) ||
		       rec->pdeath_signal > TASK_N_SIGNALS || rec->mce_kill > PR_MCE_KILL_DEFAULT ||
		       (rec->n_speculation != 0 && rec->n_speculation != 3)))
		return TASK_BAD(err, "name, personality or prctl values");
	if (r == 0 && rec->place)
		r = rec->index ? task_place_plan(run, st, rec->id, rec->place, err)
			       : TASK_BAD(err, "a place of the main thread's own");
	/* threads are placed when they have no say in the directory above any more */
	if (r == 0 && rec->place && rec->place->removed && task_is_nested(run, rec->id))
		ckpt_unmet(run, CKPT_EXIT_REFUSED,
			   "let the thread change to a directory that exists",
			   "task %u, thread %u: a removed working directory of its own, in a user "
			   "namespace",
			   rec->id, rec->index);
	if (r == 0)
		r = task_creds_plan(run, st, rec, err);
	if (r == 0)
		r = task_sched_plan(run, st, rec, err);
	if (r == 0)
		r = task_policy_plan(run, rec, err);
	return r;
}

static int check_actions(const Ckpt__Task__Process *rec, struct ckpt_error *err)
{
	for (size_t i = 0; i < rec->n_actions; i++) {
		uint32_t sig = rec->actions[i]->signo;

		if (sig < 1 || sig > TASK_N_SIGNALS || sig == SIGKILL || sig == SIGSTOP ||
		    (i && sig <= rec->actions[i - 1]->signo))
			return TASK_BAD(err, "action of signal %u", sig);
	}
	for (size_t i = 0; i < rec->n_itimers; i++)
		if (rec->itimers[i]->which > 2 || rec->itimers[i]->value_us < 0 ||
		    rec->itimers[i]->interval_us < 0)
			return TASK_BAD(err, "interval timer %u", rec->itimers[i]->which);
	return check_signals(rec->pending, rec->n_pending, err);
}

static void check_oom(struct ckpt_run *run, const Ckpt__Task__Process *rec)
{
	CKPT_AUTO_FILE FILE *f = fopen("/proc/self/oom_score_adj", "re");
	int own = 0;

	if (!f || fscanf(f, "%d", &own) != 1 || rec->oom_score_adj >= own || task_may_raise())
		return;
	ckpt_unmet(run, CKPT_EXIT_PRIVILEGE,
		   "run ckpt with CAP_SYS_RESOURCE, or dump with --without task.oom-score "
		   "--allow-loss task.oom-score",
		   "task %u: oom_score_adj %d is below ckpt's own (%d)", rec->id,
		   rec->oom_score_adj, own);
}

static int check_process(struct ckpt_run *run, const struct task_state *st,
			 const Ckpt__Task__Process *rec, struct ckpt_error *err)
{
	Ckpt__Task__Place place = CKPT__TASK__PLACE__INIT;
	int r = check_actions(rec, err);

	if (r < 0)
		return r;
	if (rec->oom_score_adj < -1000 || rec->oom_score_adj > 1000 || rec->dumpable > 1 ||
	    rec->thp_flags & ~(uint32_t)TASK_THP_FLAGS || (rec->thp_flags && !rec->thp_disabled))
		return TASK_BAD(err, "oom_score_adj, dumpable or huge pages");
	if (rec->stop_signal && rec->stop_signal != SIGSTOP && rec->stop_signal != SIGTSTP &&
	    rec->stop_signal != SIGTTIN && rec->stop_signal != SIGTTOU)
		return TASK_BAD(err, "stopped by signal %u", rec->stop_signal);
	/* setns(2) wants a place that nobody else has (userns_install()) */
	if (rec->shares_fs &&
	    (task_is_nested(run, rec->id) || task_is_nested(run, rec->shares_fs) ||
	     task_place_made(run, rec->id)))
		ckpt_unmet(run, CKPT_EXIT_REFUSED, "let it call unshare(CLONE_FS)",
			   "task %u shares its working directory with task %u, in a user or mount "
			   "namespace of its own",
			   rec->id, rec->shares_fs);
	place.cwd = rec->cwd;
	place.umask = rec->umask;
	place.removed = rec->removed;
	r = task_place_plan(run, st, rec->id, &place, err);
	if (r < 0)
		return r;
	if (task_saved(st, TASK_OOM))
		check_oom(run, rec);
	r = task_limits_plan(run, rec, err);
	if (r == 0)
		r = task_autogroup_plan(run, rec, err);
	if (r == 0)
		r = task_space_plan(run, rec, err);
	return r < 0 ? r : task_timers_plan(run, rec, err);
}

int task_plan(struct ckpt_run *run, struct ckpt_error *err)
{
	struct task_state *st = task_state(run, err);
	int r = st ? load_saved(run, st, err) : -err->err;

	if (r == 0)
		r = complete(run, err);
	if (r < 0)
		return r;
	task_born_plain(run);
	for (size_t i = 0; i < ckpt_record_count(run, "task.thread"); i++) {
		const Ckpt__Task__Thread *rec = ckpt_record_at(run, "task.thread", i);

		if (check_thread(run, st, rec, err) < 0)
			return ckpt_wrap(err, "task %u, thread %u", rec->id, rec->index);
	}
	for (size_t i = 0; i < ckpt_record_count(run, "task.process"); i++) {
		const Ckpt__Task__Process *rec = ckpt_record_at(run, "task.process", i);

		if (check_process(run, st, rec, err) < 0)
			return ckpt_wrap(err, "task %u", rec->id);
	}
	return 0;
}
