/* SPDX-License-Identifier: MIT */
/* One record a thread. */
#include <asm/prctl.h>
#include <linux/keyctl.h>
#include <linux/prctl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "task.h"

#define DEFAULT_SLACK_NS 50000

#ifndef ARCH_GET_CPUID
#define ARCH_GET_CPUID 0x1011
#endif
#ifndef ARCH_GET_XCOMP_PERM
#define ARCH_GET_XCOMP_PERM 0x1022
#endif
#ifndef ARCH_GET_XCOMP_GUEST_PERM
#define ARCH_GET_XCOMP_GUEST_PERM 0x1024
#endif

/* Linux 6.4 */
#define UNTAG_NOTHING "0xffffffffffffffff"

#define N_SPECULATION TASK_N_SPECULATION

/* Of a keyring every number is one too many. */
#define NEVER -1
/* What ckpt has, which asks for nothing. */
#define AS_OWN -2

/* Where the value arrives. */
enum where { RESULT, SECOND, FIFTH };

/* Rare state: not saved, so it has to be what every new task has. */
static const struct {
	const char *object;
	long nr, op, arg;
	enum where where; /* as result, or where an argument points */
	int64_t usual;
	const char *feature;
} rare[] = {
	{ "PR_SET_TSC", SYS_prctl, PR_GET_TSC, 0, SECOND, PR_TSC_ENABLE, "prctl" },
	/* flags of later kernels: with those of today no agent comes in (core/process/agent.c) */
	{ "PR_SET_MDWE", SYS_prctl, 66 /* PR_GET_MDWE */, 0, RESULT, 0, "prctl" },
	{ "PR_SET_MEMORY_MERGE", SYS_prctl, 68 /* PR_GET_MEMORY_MERGE */, 0, RESULT, 0, "prctl" },
	{ "PR_SET_IO_FLUSHER", SYS_prctl, PR_GET_IO_FLUSHER, 0, RESULT, 0, "prctl" },
	{ "core scheduling cookie", SYS_prctl, PR_SCHED_CORE, PR_SCHED_CORE_GET, FIFTH, 0,
	  "prctl" },
	{ "PR_TIMER_CREATE_RESTORE_IDS", SYS_prctl, 77, 2 /* ..._GET */, RESULT, 0, "prctl" },
	{ "CPUID faulting", SYS_arch_prctl, ARCH_GET_CPUID, 0, RESULT, 1, "prctl" },
	{ "permission for AMX (ARCH_REQ_XCOMP_PERM)", SYS_arch_prctl, ARCH_GET_XCOMP_PERM, 0,
	  SECOND, AS_OWN, "prctl" },
	{ "permission for AMX of guests (ARCH_REQ_XCOMP_GUEST_PERM)", SYS_arch_prctl,
	  ARCH_GET_XCOMP_GUEST_PERM, 0, SECOND, AS_OWN, "prctl" },
	{ "thread keyring", SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_THREAD_KEYRING, RESULT,
	  NEVER, "keyrings" },
	{ "process keyring", SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_PROCESS_KEYRING, RESULT,
	  NEVER, "keyrings" },
	{ "default keyring (KEYCTL_SET_REQKEY_KEYRING)", SYS_keyctl, KEYCTL_SET_REQKEY_KEYRING,
	  KEY_REQKEY_DEFL_NO_CHANGE, RESULT, KEY_REQKEY_DEFL_DEFAULT, "keyrings" },
};

/* What only the thread itself can tell. */
struct told {
	struct task_stack altstack;
	uint64_t clear_tid, timer_slack;
	int64_t mce_kill;
	uint32_t securebits, pdeath, personality;
	char comm[16];
	uint32_t speculation[N_SPECULATION];
	int64_t rare[CKPT_ARRAY_SIZE(rare)]; /* negative: there is none */
	int64_t domain;
	struct task_policy_told memory;
	int64_t ring;
};

/* Strict mode forbids the time stamp counter along with the system calls; it comes back with it. */
static bool is_strict(const struct ckpt_thread *th)
{
	CKPT_AUTO_FREE char *status = NULL;
	struct ckpt_error ignored = { 0 };
	char path[64], mode[16];

	task_path(path, sizeof(path), th, "status");
	return ckpt_proc_read(th->task, path, &status, &ignored) >= 0 &&
	       ckpt_proc_field(status, "Seccomp", mode, sizeof(mode)) == 0 && !strcmp(mode, "1");
}

/* The questions for it, and which operations they are. */
struct asking {
	struct ckpt_thread *th;
	struct told *told;
	struct ckpt_script *script;
	int stack, tid, slack, mce_kill, bits, pdeath, name, person, speculation, rare, domain,
		memory, ring;
};

static int begin(struct ckpt_run *run, struct asking *a, struct ckpt_error *err)
{
	struct ckpt_script *s = a->script = ckpt_script_new(run, "task.thread");

	a->stack =
		ckpt_script_add(s, SYS_sigaltstack, CKPT_C(0), CKPT_OUT(sizeof(a->told->altstack)));
	a->tid = ckpt_script_add(s, SYS_prctl, CKPT_C(PR_GET_TID_ADDRESS),
				 CKPT_OUT(sizeof(uint64_t)));
	a->slack = ckpt_script_add(s, SYS_prctl, CKPT_C(PR_GET_TIMERSLACK));
	a->mce_kill = ckpt_script_add(s, SYS_prctl, CKPT_C(PR_MCE_KILL_GET), CKPT_C(0), CKPT_C(0),
				      CKPT_C(0), CKPT_C(0));
	a->bits = ckpt_script_add(s, SYS_prctl, CKPT_C(PR_GET_SECUREBITS));
	a->pdeath =
		ckpt_script_add(s, SYS_prctl, CKPT_C(PR_GET_PDEATHSIG), CKPT_OUT(sizeof(uint32_t)));
	a->name =
		ckpt_script_add(s, SYS_prctl, CKPT_C(PR_GET_NAME), CKPT_OUT(sizeof(a->told->comm)));
	a->person = ckpt_script_add(s, SYS_personality, CKPT_C(0xffffffff));
	a->domain = task_domain_ask(s);
	for (size_t i = 0; i < N_SPECULATION; i++) {
		int op = ckpt_script_add(s, SYS_prctl, CKPT_C(PR_GET_SPECULATION_CTRL),
					 CKPT_C(task_speculations[i]), CKPT_C(0), CKPT_C(0),
					 CKPT_C(0));

		/* a kernel or processor without it */
		ckpt_script_any(s);
		a->speculation = i ? a->speculation : op;
	}
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(rare); i++) {
		int op = rare[i].where == SECOND
				 ? ckpt_script_add(s, rare[i].nr, CKPT_C(rare[i].op),
						   CKPT_OUT(sizeof(uint64_t)))
				 : ckpt_script_add(s, rare[i].nr, CKPT_C(rare[i].op),
						   CKPT_C(rare[i].arg), CKPT_C(0), CKPT_C(0),
						   rare[i].where == FIFTH
							   ? CKPT_OUT(sizeof(uint64_t))
							   : CKPT_C(0));

		ckpt_script_any(s);
		a->rare = i ? a->rare : op;
	}
	a->memory = task_policy_ask(s);
	a->ring = task_ring_ask(s);
	return ckpt_script_begin(s, a->th, err);
}

static void take_answers(const struct asking *a)
{
	const struct ckpt_script *s = a->script;
	struct told *out = a->told;

	memcpy(&out->altstack, ckpt_script_out(s, a->stack, 1), sizeof(out->altstack));
	memcpy(&out->clear_tid, ckpt_script_out(s, a->tid, 1), sizeof(out->clear_tid));
	memcpy(out->comm, ckpt_script_out(s, a->name, 1), sizeof(out->comm));
	out->personality = (uint32_t)ckpt_script_result(s, a->person);
	out->domain = ckpt_script_result(s, a->domain);
	memcpy(&out->pdeath, ckpt_script_out(s, a->pdeath, 1), sizeof(out->pdeath));
	out->timer_slack = (uint64_t)ckpt_script_result(s, a->slack);
	out->mce_kill = ckpt_script_result(s, a->mce_kill);
	out->securebits = (uint32_t)ckpt_script_result(s, a->bits);
	for (size_t i = 0; i < N_SPECULATION; i++) {
		int64_t v = ckpt_script_result(s, a->speculation + (int)i);

		out->speculation[i] = v < 0 ? 0 : (uint32_t)v;
	}
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(rare); i++) {
		int op = a->rare + (int)i;

		out->rare[i] = ckpt_script_result(s, op);
		if (out->rare[i] >= 0 && rare[i].where != RESULT)
			memcpy(&out->rare[i],
			       ckpt_script_out(s, op, rare[i].where == SECOND ? 1 : 4),
			       sizeof(out->rare[i]));
	}
	task_policy_take(s, a->memory, &out->memory);
	out->ring = ckpt_script_result(s, a->ring);
}

/* Some threads at the same time. */
static int ask_some(struct ckpt_run *run, struct asking *list, size_t n, struct ckpt_error *err)
{
	struct ckpt_error later = { 0 };
	int r = 0, settled;

	for (size_t i = 0; i < n && r == 0; i++)
		r = begin(run, &list[i], err);
	settled = ckpt_script_settle(run, r < 0 ? &later : err);
	r = r < 0 ? r : settled;
	for (size_t i = 0; i < n; i++) {
		if (r == 0)
			take_answers(&list[i]);
		ckpt_script_free(list[i].script);
	}
	return r;
}

/* More are not under way together anyway, and their scripts need memory. */
#define AT_ONCE 16

/* All threads, in the order of records. */
static int ask_all(struct ckpt_run *run, struct told *told, struct ckpt_error *err)
{
	struct asking list[AT_ONCE];
	size_t n = 0;
	int r = 0;

	for (size_t i = 0; i < ckpt_task_count(run) && r == 0; i++) {
		struct ckpt_task *t = ckpt_task_at(run, i);

		for (size_t k = 0; k < t->n_threads && !t->zombie && r == 0; k++) {
			list[n] = (struct asking){ .th = t->threads[k], .told = told };
			told++;
			n++;
			if (n == AT_ONCE) {
				r = ask_some(run, list, n, err);
				n = 0;
			}
		}
	}
	return r == 0 && n ? ask_some(run, list, n, err) : r;
}

/* ckpt's answer to a question whose answer depends on the machine. */
static int64_t own_answer(size_t i)
{
	uint64_t v = 0;

	return syscall(rare[i].nr, rare[i].op, &v) < 0 ? NEVER : (int64_t)v;
}

static void refuse_rare(struct ckpt_run *run, const struct ckpt_thread *th, const struct told *told)
{
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(rare); i++)
		if (told->rare[i] >= 0 &&
		    told->rare[i] != (rare[i].usual == AS_OWN ? own_answer(i) : rare[i].usual) &&
		    !(rare[i].op == PR_GET_TSC && is_strict(th)))
			task_refuse(run, th->task, rare[i].feature, rare[i].object,
				    "it is not saved", "run the program without it");
}

/* Everything that one record points at. */
struct parts {
	Ckpt__Task__Registers regs;
	Ckpt__Task__AltStack altstack;
	Ckpt__Task__Rseq rseq;
	struct task_creds creds;
	struct task_sched sched;
	struct task_policy memory;
	const struct told *told;
	void *xstate;
	char comm[32];
	struct task_place place;
	Ckpt__Task__Signal *signals;
	Ckpt__Task__Signal **signal_list;
	uint32_t speculation[N_SPECULATION];
};

static void parts_free(struct parts *p)
{
	task_creds_free(&p->creds);
	free(p->xstate);
	free(p->signals);
	free(p->signal_list);
}

int task_signals(siginfo_t *infos, size_t n, Ckpt__Task__Signal **recs, Ckpt__Task__Signal ***list,
		 struct ckpt_error *err)
{
	*recs = calloc(n + 1, sizeof(**recs));
	*list = calloc(n + 1, sizeof(**list));
	if (!*recs || !*list)
		return ckpt_fail_sys(err, ENOMEM, "%zu pending signals", n);
	for (size_t i = 0; i < n; i++) {
		Ckpt__Task__Signal *m = &(*recs)[i];

		ckpt__task__signal__init(m);
		m->signo = (uint32_t)infos[i].si_signo;
		m->code = infos[i].si_code;
		m->info.data = (uint8_t *)&infos[i];
		m->info.len = sizeof(infos[i]);
		(*list)[i] = m;
	}
	return 0;
}

static int registers(struct ckpt_run *run, struct ckpt_thread *th, Ckpt__Task__Thread *rec,
		     struct parts *p, struct ckpt_error *err)
{
	ssize_t len;

	ckpt__task__registers__init(&p->regs);
	TASK_COPY_REGS(&p->regs, &th->regs);
	rec->registers = &p->regs;
	rec->sigmask = th->sigmask;
	if (!task_want(run, TASK_XSTATE, th->task, "extended registers"))
		return 0;
	len = ckpt_get_xstate(th, &p->xstate, err);
	if (len < 0)
		return (int)len;
	rec->xstate.data = p->xstate;
	rec->xstate.len = (size_t)len;
	task_xstate_without_tiles(rec->xstate.data, rec->xstate.len);
	return 0;
}

static int from_peek(struct ckpt_run *run, struct ckpt_thread *th, Ckpt__Task__Thread *rec,
		     struct parts *p, struct ckpt_error *err)
{
	const struct task_peek *peek = task_peeked(ckpt_state(run), th->tid);

	if (!peek)
		return ckpt_fail(err, ESRCH, "thread %d: not looked at when it was stopped",
				 th->tid);
	rec->restarted = peek->restarted;
	/* that loss was allowed: as if a signal had ended the call */
	if (!task_restart_known(rec->restarted)) {
		rec->restarted = 0;
		p->regs.rax = (uint64_t)-EINTR;
		p->regs.orig_rax = (uint64_t)-1;
	}
	if (peek->rseq.address && task_want(run, TASK_RSEQ, th->task, "restartable sequences")) {
		ckpt__task__rseq__init(&p->rseq);
		p->rseq.address = peek->rseq.address;
		p->rseq.size = peek->rseq.size;
		p->rseq.signature = peek->rseq.signature;
		rec->rseq = &p->rseq;
	}
	if (!peek->n_own || !task_want(run, TASK_PENDING, th->task, "pending signals"))
		return 0;
	rec->n_pending = peek->n_own;
	return task_signals(peek->own, peek->n_own, &p->signals, &rec->pending, err);
}

static void from_task(struct ckpt_run *run, struct ckpt_thread *th, Ckpt__Task__Thread *rec,
		      struct parts *p)
{
	const struct ckpt_task *t = th->task;
	bool locked = false;

	refuse_rare(run, th, p->told);
	if (!(p->told->altstack.flags & SS_DISABLE) &&
	    task_want(run, TASK_ALTSTACK, t, "alternate signal stack")) {
		ckpt__task__alt_stack__init(&p->altstack);
		p->altstack.sp = p->told->altstack.sp;
		p->altstack.flags = p->told->altstack.flags & ~(uint32_t)SS_ONSTACK;
		p->altstack.size = p->told->altstack.size;
		rec->altstack = &p->altstack;
	}
	if (p->told->clear_tid && task_want(run, TASK_CLEAR_TID, t, "clear_child_tid"))
		rec->clear_tid = p->told->clear_tid;
	if (p->told->pdeath && task_want(run, TASK_PDEATH, t, "parent death signal"))
		rec->pdeath_signal = p->told->pdeath;
	rec->timer_slack = p->told->timer_slack;
	if (rec->timer_slack != DEFAULT_SLACK_NS &&
	    !task_want(run, TASK_TIMERSLACK, t, "timer slack"))
		rec->timer_slack = 0;
	if (p->told->mce_kill != PR_MCE_KILL_DEFAULT &&
	    task_want(run, TASK_MCE_KILL, t, "PR_MCE_KILL"))
		rec->mce_kill = (uint32_t)p->told->mce_kill + 1;
	for (size_t i = 0; i < N_SPECULATION; i++)
		locked |= task_speculation(i, p->told->speculation[i]) != 0;
	if (locked && task_want(run, TASK_SPECULATION, t, "speculation control")) {
		rec->speculation = (uint32_t *)(uintptr_t)p->told->speculation;
		rec->n_speculation = N_SPECULATION;
	}
	task_policy_read(run, th, &p->told->memory, &p->memory, rec);
}

static int from_proc(struct ckpt_run *run, struct ckpt_thread *th, Ckpt__Task__Thread *rec,
		     struct parts *p, struct ckpt_error *err)
{
	const struct ckpt_task *t = th->task;
	CKPT_AUTO_FREE char *status = NULL;
	char path[64], mask[32];
	void *head = NULL;
	size_t len = 0;
	int r;

	task_path(path, sizeof(path), th, "status");
	if (ckpt_proc_read(t, path, &status, err) < 0)
		return -err->err;
	r = task_creds_read(status, p->told->securebits, &p->creds, err);
	if (r < 0)
		return r;
	rec->credentials = &p->creds.msg;
	if (!ckpt_feature_on(run, task_features[TASK_CREDS].name) &&
	    !task_creds_is_own(task_state(run, err), &p->creds))
		task_want(run, TASK_CREDS, t, "credentials");
	if (p->creds.msg.no_new_privs && !task_want(run, TASK_NNP, t, "no_new_privs"))
		p->creds.msg.no_new_privs = false;
	if (ckpt_proc_field(status, "untag_mask", mask, sizeof(mask)) == 0 &&
	    strcmp(mask, UNTAG_NOTHING))
		task_refuse(run, t, "prctl", "tagged addresses (ARCH_ENABLE_TAGGED_ADDR)",
			    "they are not saved", "run the program without them");
	rec->personality = p->told->personality;
	if (rec->personality & PER_MASK)
		task_refuse(run, t, "personality", "execution domain",
			    "only PER_LINUX is supported", "run it without setarch(8)");
	rec->personality &= ~(uint32_t)PER_MASK;
	if (rec->personality != ((struct task_state *)ckpt_state(run))->own_personality &&
	    !task_want(run, TASK_PERSONALITY, t, "personality"))
		rec->personality = 0;
	if (task_want(run, TASK_COMM, t, "name"))
		snprintf(p->comm, sizeof(p->comm), "%.15s", p->told->comm);
	rec->comm = p->comm;
	if (syscall(SYS_get_robust_list, th->tid, &head, &len) < 0)
		return ckpt_fail_sys(err, errno, "thread %d: get_robust_list(2)", th->tid);
	if (head && task_want(run, TASK_ROBUST, t, "robust list"))
		rec->robust_list = (uint64_t)(uintptr_t)head;
	return 0;
}

static int one(struct ckpt_run *run, struct ckpt_thread *th, uint32_t index,
	       const struct told *told, struct task_domains *domains, struct ckpt_error *err)
{
	__attribute__((cleanup(parts_free))) struct parts p = { .told = told };
	Ckpt__Task__Thread rec = CKPT__TASK__THREAD__INIT;
	int r;

	rec.id = th->task->id;
	rec.index = index;
	r = registers(run, th, &rec, &p, err);
	if (r == 0)
		r = from_peek(run, th, &rec, &p, err);
	if (r == 0)
		from_task(run, th, &rec, &p);
	if (r == 0)
		r = task_ring_check(run, th, told->ring, err);
	if (r == 0)
		r = from_proc(run, th, &rec, &p, err);
	if (r == 0)
		r = task_domain_check(run, domains, th, index, told->domain, &p.creds.msg, err);
	if (r == 0)
		r = task_sched_read(run, th, &p.sched, err);
	rec.scheduling = &p.sched.msg;
	if (r == 0 && task_has_own_place(ckpt_state(run), th) &&
	    ckpt_feature_on(run, task_features[TASK_THREAD_FS].name)) {
		r = task_place_read(run, th, &p.place, err);
		rec.place = &p.place.msg;
	}
	p.signal_list = rec.pending;
	return r < 0 ? r : task_hold_thread(run, th, &rec, err);
}

static int put_saved(struct ckpt_run *run, struct ckpt_error *err)
{
	Ckpt__Task__Saved rec = CKPT__TASK__SAVED__INIT;
	char *names[TASK_N_FEATURES], label[TASK_LABEL_SIZE];

	task_label_own(label, sizeof(label));
	rec.label = label;
	for (size_t i = 0; i < TASK_N_FEATURES; i++)
		if (ckpt_feature_on(run, task_features[i].name))
			names[rec.n_features++] = (char *)task_features[i].name;
	rec.features = names;
	return ckpt_record_put(run, TASK_REC_SAVED, &rec.base, err);
}

static size_t count_threads(struct ckpt_run *run)
{
	size_t n = 0;

	for (size_t i = 0; i < ckpt_task_count(run); i++)
		n += ckpt_task_at(run, i)->n_threads;
	return n;
}

static int begin_domains(struct ckpt_run *run, const struct told *told,
			 struct task_domains *domains, struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; i < ckpt_task_count(run) && r == 0; i++) {
		const struct ckpt_task *t = ckpt_task_at(run, i);

		for (size_t k = 0; k < t->n_threads && !t->zombie && r == 0; k++)
			r = task_domain_begin(run, domains, t->threads[k], k, told++->domain, err);
		if (r < 0)
			ckpt_wrap(err, "task %u (%.15s)", t->id, t->comm);
	}
	return r;
}

int task_collect(struct ckpt_run *run, struct ckpt_error *err)
{
	CKPT_AUTO_FREE struct told *all = calloc(count_threads(run) + 1, sizeof(*all));
	__attribute__((cleanup(task_domains_free))) struct task_domains domains = { 0 };
	const struct told *told = all;
	int r = all ? put_saved(run, err) : ckpt_fail_sys(err, ENOMEM, "threads");

	if (r == 0)
		r = task_places_collect(run, err);
	if (r == 0)
		r = ask_all(run, all, err);
	if (r == 0)
		r = begin_domains(run, all, &domains, err);
	for (size_t i = 0; i < ckpt_task_count(run) && r == 0; i++) {
		struct ckpt_task *t = ckpt_task_at(run, i);

		if (t->zombie)
			continue;
		r = task_collect_process(run, t, err);
		for (size_t k = 0; k < t->n_threads && r == 0; k++)
			r = one(run, t->threads[k], (uint32_t)k, told++, &domains, err);
		if (r < 0)
			return ckpt_wrap(err, "task %u (%.15s)", t->id, t->comm);
	}
	return r;
}
