/* SPDX-License-Identifier: MIT */
/*
 * A filter of the task's may kill for one of the calls that an agent makes, or that lead into it
 * and out, once nobody suspends it; and a task that is stopped goes on when nobody is left. A
 * tracer that dies leaves such a thread at the worst place. So the keeper is its tracer before an
 * agent comes; the engine hands it its requests (trace.c), and the suspension ends for no moment.
 *
 * If the engine dies, agents of such tasks stand still, without a system call, until the keeper
 * has stopped the threads and given them their registers.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <ckpt/parallel.h>

#include "process/rescue.h"
#include "process/set.h"
#include "process/spawn.h"
#include "process/uapi.h"

#define FILTERS_A_PORTION 16 /* threads */

/* ---- in the engine ----------------------------------------------------------------- */

bool rescue_is_filtered(const struct ckpt_thread *th)
{
	CKPT_AUTO_FREE char *text = NULL;
	struct ckpt_error ignored = { 0 };
	char path[40], value[16];

	snprintf(path, sizeof(path), "task/%d/status", (int)th->tid);
	return INSIST(ckpt_proc_read(th->task, path, &text, &ignored)) < 0 ||
	       ckpt_proc_field(text, "Seccomp", value, sizeof(value)) || atoi(value);
}

bool rescue_shows_filter(const struct ckpt_task *t)
{
	CKPT_AUTO_FREE char *status = NULL;
	struct ckpt_error ignored = { 0 };
	char mode[16];

	return ckpt_proc_read(t, "status", &status, &ignored) >= 0 &&
	       !ckpt_proc_field(status, "Seccomp", mode, sizeof(mode)) && atoi(mode);
}

/* Of a thread that stands and is the engine's; what cannot be read counts as a filter. */
static int ask_filter(void *arg, size_t i, struct ckpt_error *err)
{
	struct ckpt_agent *a = ((struct ckpt_task *)arg)->threads[i]->agent;

	(void)err;
	a->filtered = a->state == THREAD_STOPPED && !a->tracer && rescue_is_filtered(a->th);
	return 0;
}

int rescue_ask_filters(struct ckpt_task *t, struct ckpt_error *err)
{
	return ckpt_parallel_by(t->n_threads, FILTERS_A_PORTION, ask_filter, t, err);
}

static bool has_kept(const struct task_node *t)
{
	for (size_t i = 0; i < t->pub.n_threads; i++)
		if (t->pub.threads[i]->agent->tracer)
			return true;
	return false;
}

int rescue_prepare(struct task_node *t, struct ckpt_error *err)
{
	struct agent_header *header = segment_header(t->seg);
	struct keeper *keeper = &t->ps->keeper;
	struct rescue *r;

	if (!has_kept(t))
		return 0;
	r = calloc(1, sizeof(*r) + t->pub.n_threads * sizeof(*r->threads));
	if (!r)
		return ckpt_fail_sys(err, ENOMEM, "agents");
	r->header = header;
	r->addr = t->seg->addr;
	r->length = t->seg->length;
	r->gadget = t->gadgets.syscall_ret;
	for (; r->n < t->pub.n_threads; r->n++) {
		struct ckpt_thread *th = t->pub.threads[r->n];

		r->threads[r->n] = (struct rescue_thread){
			.tid = th->tid,
			.kept = th->agent->tracer != NULL,
			.last = th->agent == t->first,
			.sigmask = th->sigmask,
			.regs = &th->regs,
		};
		th->agent->rescue = &r->threads[r->n];
	}
	t->guarded = true;
	header->guarded = 1;
	r->next = keeper->rescue;
	__atomic_store_n(&keeper->rescue, r, __ATOMIC_RELEASE);
	return 0;
}

void rescue_forget(struct task_node *t)
{
	struct rescue **at = &t->ps->keeper.rescue, *r;

	while ((r = *at) && r->header != segment_header(t->seg))
		at = &r->next;
	if (!r)
		return;
	for (size_t i = 0; i < t->pub.n_threads; i++)
		t->pub.threads[i]->agent->rescue = NULL;
	t->guarded = false;
	__atomic_store_n(&segment_header(t->seg)->guarded, 0, __ATOMIC_SEQ_CST);
	__atomic_store_n(at, r->next, __ATOMIC_RELEASE);
	free(r);
}

/* ---- in the keeper ------------------------------------------------------------------ */

#define PATIENCE_MS 5000

static inline SPAWN_PART int64_t trace(int request, pid_t tid, uint64_t addr, uint64_t data)
{
	return sys6(SYS_ptrace, request, tid, (int64_t)addr, (int64_t)data, 0, 0);
}

/* Until the dying engine has let go of it. */
static SPAWN_PART bool seize(pid_t tid)
{
	const struct timespec nap = { 0, 1000000 };

	for (int ms = 0; ms < PATIENCE_MS; ms++) {
		int64_t r = trace(PTRACE_SEIZE, tid, 0,
				  PTRACE_O_SUSPEND_SECCOMP | PTRACE_O_TRACESYSGOOD);

		if (!r)
			return true;
		if (r != -EPERM)
			return false;
		sys6(SYS_nanosleep, (int64_t)(uintptr_t)&nap, 0, 0, 0, 0, 0);
	}
	return false;
}

/* What a stop other than that of an event goes on with. */
static inline SPAWN_PART uint64_t signal_of(int stop)
{
	return stop == (SIGTRAP | 0x80) ? 0 : (uint64_t)stop;
}

/* Resume with `how` until it is in an event stop, or (entry) at a system call. */
static SPAWN_PART bool wait_for(pid_t tid, int how, bool entry)
{
	const struct timespec nap = { 0, 200000 };
	int status = 0;

	for (int tries = 0; tries < 5 * PATIENCE_MS;) {
		int64_t r = sys6(SYS_wait4, tid, (int64_t)(uintptr_t)&status, __WALL | WNOHANG, 0,
				 0, 0);
		int sig = status >> 8 & 0xff, event = status >> 16;

		if (r != tid) {
			if (r < 0 && r != -EINTR)
				return false;
			tries++;
			sys6(SYS_nanosleep, (int64_t)(uintptr_t)&nap, 0, 0, 0, 0, 0);
			continue;
		}
		if ((status & 0xff) != 0x7f)
			return false;
		if (entry ? sig == (SIGTRAP | 0x80) : event == PTRACE_EVENT_STOP)
			return true;
		trace(how, tid, 0, event ? 0 : signal_of(sig));
	}
	return false;
}

/*
 * Bring it to an event stop from wherever the engine has left it: the engine may have taken note
 * of a stop that it did not come to end. Signals that can be blocked are.
 */
static SPAWN_PART bool hold(pid_t tid)
{
	siginfo_t info;

	trace(PTRACE_INTERRUPT, tid, 0, 0);
	if (!trace(PTRACE_GETSIGINFO, tid, 0, (uint64_t)(uintptr_t)&info)) {
		if (info.si_code >> 8 == PTRACE_EVENT_STOP)
			return true;
		/* that of a system call says so in its code, other events too */
		trace(PTRACE_CONT, tid, 0, info.si_signo == SIGTRAP ? 0 : (uint64_t)info.si_signo);
	}
	return wait_for(tid, PTRACE_CONT, false);
}

static inline SPAWN_PART bool calls(const struct user_regs_struct *regs, long nr)
{
	return (long)regs->rax == nr || (long)regs->orig_rax == nr;
}

/* Is it in the agent, on its way there, or at the call that unmaps it? Else it is its own. */
static SPAWN_PART bool is_ours(const struct rescue *r, const struct user_regs_struct *regs,
			       bool *attached)
{
	const bool at_gadget = regs->rip == r->gadget || regs->rip == r->gadget + 2;

	*attached = regs->rip - r->addr < r->length ||
		    (at_gadget && (calls(regs, SYS_munmap) || regs->rax == r->addr));
	return *attached || (at_gadget && calls(regs, SYS_shmat));
}

static inline SPAWN_PART void give_back(const struct rescue_thread *t)
{
	trace(PTRACE_SETSIGMASK, t->tid, sizeof(t->sigmask), (uint64_t)(uintptr_t)&t->sigmask);
	trace(PTRACE_SETREGS, t->tid, 0, (uint64_t)(uintptr_t)t->regs);
}

/* The call's own registers, its own afterwards: caught in the stop before user code. */
static SPAWN_PART void unmap(const struct rescue *r, const struct rescue_thread *t)
{
	struct user_regs_struct regs = *(const struct user_regs_struct *)t->regs;

	regs.rip = r->gadget;
	regs.rax = SYS_munmap;
	regs.rdi = r->addr;
	regs.rsi = r->length;
	regs.orig_rax = (uint64_t)-1;
	regs.eflags = 0x202;
	trace(PTRACE_SETREGS, t->tid, 0, (uint64_t)(uintptr_t)&regs);
	trace(PTRACE_SYSCALL, t->tid, 0, 0);
	if (!wait_for(t->tid, PTRACE_SYSCALL, true))
		return;
	trace(PTRACE_INTERRUPT, t->tid, 0, 0);
	trace(PTRACE_CONT, t->tid, 0, 0);
	wait_for(t->tid, PTRACE_CONT, false);
}

static SPAWN_PART void free_thread(const struct rescue *r, const struct rescue_thread *t)
{
	struct user_regs_struct regs;
	bool attached;

	if (!t->held || trace(PTRACE_GETREGS, t->tid, 0, (uint64_t)(uintptr_t)&regs))
		return;
	if (is_ours(r, &regs, &attached)) {
		if (t->last && attached)
			unmap(r, t);
		if (t->last && !attached)
			trace(PTRACE_POKEDATA, t->tid, t->word_at, t->word);
		give_back(t);
	}
	trace(PTRACE_DETACH, t->tid, 0, 0);
}

/* One that the engine had begun: it may have something to clean up. */
static SPAWN_PART void finish_script(const struct rescue_thread *t)
{
	const struct timespec nap = { 0, 200000 };

	for (int i = 0; i < PATIENCE_MS && __atomic_load_n(&t->seat->busy, __ATOMIC_ACQUIRE); i++)
		sys6(SYS_nanosleep, (int64_t)(uintptr_t)&nap, 0, 0, 0, 0, 0);
}

/* Somebody who outlives the engine works on the tree; bounded, for he may be killed too. */
static SPAWN_PART void wait_for_hold(const struct agent_header *h)
{
	const struct timespec nap = { 0, 1000000 };

	for (int ms = 0; __atomic_load_n(&h->hold, __ATOMIC_SEQ_CST) && ms < 10000; ms++)
		sys6(SYS_nanosleep, (int64_t)(uintptr_t)&nap, 0, 0, 0, 0, 0);
}

static SPAWN_PART void rescue(struct rescue *r)
{
	struct agent_header *header = r->header;

	for (size_t i = 0; i < r->n; i++) {
		struct rescue_thread *t = &r->threads[i];

		if (!t->sent) {
			/* it is stopped, and has its own registers */
			if (t->kept)
				trace(PTRACE_DETACH, t->tid, 0, 0);
		} else if (t->kept || seize(t->tid)) {
			finish_script(t);
			t->held = hold(t->tid);
		}
	}
	wait_for_hold(header);
	/* the one that unmaps the segment is the last to leave it */
	for (size_t i = 0; i < r->n; i++)
		if (!r->threads[i].last)
			free_thread(r, &r->threads[i]);
	for (size_t i = 0; i < r->n; i++)
		if (r->threads[i].last)
			free_thread(r, &r->threads[i]);
	/* who could not be seized leaves by himself */
	__atomic_store_n(&header->guarded, 0, __ATOMIC_SEQ_CST);
}

SPAWN_PART void rescue_all(struct rescue *list)
{
	for (; list; list = list->next)
		rescue(list);
}

/* ---- in the engine, without a keeper ------------------------------------------------ */

static void lose_thread(struct ckpt_agent *a)
{
	const struct ckpt_thread *th = a->th;

	a->tracer = NULL;
	a->leaving = false;
	if (a->state == THREAD_GONE)
		return;
	a->state = THREAD_FREE;
	if (a->stop_pending)
		INSIST(syscall(SYS_tgkill, th->task->pid, th->tid, SIGSTOP));
}

void rescue_alone(struct proc_set *ps)
{
	if (ps->keeper.lost)
		return;
	ps->keeper.lost = true;
	for (size_t i = 0; i < ps->n; i++) {
		struct task_node *t = ps->tasks[i];

		for (size_t k = 0; k < t->pub.n_threads; k++) {
			struct ckpt_agent *a = t->pub.threads[k]->agent;

			t->lost |= a->rescue != NULL;
			/* who has none is to be seized first */
			if (a->rescue)
				a->rescue->kept = !a->tracer;
		}
	}
	rescue_all(ps->keeper.rescue);
	for (size_t i = 0; i < ps->n; i++) {
		struct task_node *t = ps->tasks[i];

		for (size_t k = 0; k < t->pub.n_threads; k++)
			if (t->lost || t->pub.threads[k]->agent->tracer)
				lose_thread(t->pub.threads[k]->agent);
	}
}
