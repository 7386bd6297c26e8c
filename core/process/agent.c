/* SPDX-License-Identifier: MIT */
/*
 * Putting agents into the threads of a stopped tree, and taking them out.
 *
 * Every step is ordered so that a thread finds its way back by itself if this
 * process dies right after it: until a thread is in the agent's loop its
 * registers lead there, once there it watches the engine, and its seat's exit
 * data are complete before it is sent.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "process/frame.h"
#include "process/keeper.h"
#include "process/set.h"
#include "process/uapi.h"

#define STOP_TIMEOUT_MS 3000
#define XSTATE_ROOM	(16u << 10) /* AMX makes it 11 KiB */
#define SCRIPT_PATIENCE 600	    /* seconds that one portion of a script may take */

static long futex(uint32_t *word, int op, uint32_t val, const struct timespec *timeout)
{
	return syscall(SYS_futex, word, op, val, timeout, NULL, 0);
}

int agent_post(struct ckpt_agent *a, uint32_t command, struct ckpt_error *err)
{
	if (a->state != THREAD_SEATED)
		return ckpt_fail(err, EINVAL, "thread %d has no agent", (int)a->th->tid);
	a->seat->command = command;
	a->seq++;
	__atomic_store_n(&a->seat->seq, a->seq, __ATOMIC_RELEASE);
	futex(&a->seat->seq, FUTEX_WAKE, 1, NULL);
	return 0;
}

/* Something happened to a seated thread that the agent did not report. */
static int handle_event(struct ckpt_agent *a, int status, struct ckpt_error *err)
{
	int sig = WSTOPSIG(status), event = status >> 16;

	if (!WIFSTOPPED(status)) {
		a->state = THREAD_GONE;
		return ckpt_fail_sys(err, ESRCH, "thread %d died while the agent was in it",
				     (int)a->th->tid);
	}
	if (event == PTRACE_EVENT_FORK || event == PTRACE_EVENT_VFORK ||
	    event == PTRACE_EVENT_CLONE)
		return skeleton_adopt(a, err);
	if (!event && sig != SIGSTOP && sig != SIGTRAP) {
		/* all signals that can be blocked are; this one was forced */
		a->state = THREAD_STOPPED;
		return ckpt_fail(err, EFAULT, "thread %d: %s in the agent", (int)a->th->tid,
				 strsignal(sig));
	}
	if (!event && sig == SIGSTOP)
		a->stop_pending = true;
	if (ptrace(PTRACE_CONT, a->th->tid, NULL, 0L))
		return ckpt_fail_sys(err, errno, "thread %d: PTRACE_CONT", (int)a->th->tid);
	return 0;
}

int agent_wait(struct ckpt_agent *a, struct ckpt_error *err)
{
	const struct timespec slice = { 0, 2000000 };
	time_t deadline = time(NULL) + SCRIPT_PATIENCE;
	uint32_t done;

	while ((done = __atomic_load_n(&a->seat->done, __ATOMIC_ACQUIRE)) != a->seq) {
		int status;
		pid_t r = waitpid(a->th->tid, &status, __WALL | WNOHANG);

		if (r > 0) {
			int e = handle_event(a, status, err);

			if (e)
				return e;
			continue;
		}
		if (time(NULL) > deadline)
			return ckpt_fail_sys(err, ETIMEDOUT, "thread %d: the agent is stuck",
					     (int)a->th->tid);
		/* a wake-up that was lost costs a slice, not the run */
		if (futex(&a->seat->done, FUTEX_WAIT, done, &slice) && errno == ETIMEDOUT)
			futex(&a->seat->seq, FUTEX_WAKE, 1, NULL);
	}
	return 0;
}

/* ---- in --------------------------------------------------------------------------------- */

static int fill_exit(struct ckpt_agent *a, const struct gadgets *g, bool last,
		     struct ckpt_error *err)
{
	struct agent_exit *x = &a->seat->exit;
	int r = read_xstate(a, err);

	if (r)
		return r;
	if (sizeof(struct agent_seat) + FRAME_CONTEXT_SIZE + a->xstate_len + 16 > a->seg->seat_size)
		return ckpt_fail(err, E2BIG, "thread %d: extended state of %zu bytes",
				 (int)a->th->tid, a->xstate_len);
	x->sp = a->th->regs.rsp;
	x->gadget = g->syscall_ret;
	x->sigreturn = g->sigreturn;
	x->pop_rax = g->pop_rax;
	x->uc_len = FRAME_CONTEXT_SIZE;
	x->uc_fpstate = FRAME_FPSTATE_AT;
	x->fp_len = (uint32_t)a->xstate_len + FRAME_XSTATE_EXTRA;
	x->last = last;
	frame_fill(a->seat->frame, a->th, a->xstate, a->xstate_len);
	return 0;
}

static struct user_regs_struct loop_regs(const struct ckpt_agent *a,
					 const struct user_regs_struct *regs)
{
	struct user_regs_struct r = *regs;

	r.rip = a->seg->addr;
	r.rbx = a->seat_addr;
	r.orig_rax = (uint64_t)-1;
	r.eflags = 0x202;
	return r;
}

/*
 * Registers before mask: a thread that goes on with all signals blocked must
 * already be on its way to the agent, which gives the mask back when it leaves.
 */
static int go(struct ckpt_agent *a, const struct user_regs_struct *regs, struct ckpt_error *err)
{
	const uint64_t all = ~0ULL;

	if (ptrace(PTRACE_SETREGS, a->th->tid, NULL, regs) ||
	    ptrace(PTRACE_SETSIGMASK, a->th->tid, sizeof(all), &all) ||
	    ptrace(PTRACE_CONT, a->th->tid, NULL, 0L))
		return ckpt_fail_sys(err, errno, "thread %d: entering the agent", (int)a->th->tid);
	a->state = THREAD_SEATED;
	return 0;
}

int agent_enter(struct ckpt_agent *a, const struct user_regs_struct *regs, struct ckpt_error *err)
{
	struct user_regs_struct r = loop_regs(a, regs);

	return go(a, &r, err);
}

/* Undo an entry that failed before the agent was reached; the thread is stopped. */
static void back_to_self(struct ckpt_agent *a)
{
	ptrace(PTRACE_SETSIGMASK, a->th->tid, sizeof(a->th->sigmask), &a->th->sigmask);
	ptrace(PTRACE_SETREGS, a->th->tid, NULL, &a->th->regs);
	a->seat->taken = 0;
	a->seat = NULL;
}

/*
 * The first thread maps the segment on its way: shmat(2) from an instruction of
 * the task's own text, whose "ret" then finds the agent's address on the stack.
 * That word goes below the red zone, where nothing lives.
 */
static int enter_by_shmat(struct ckpt_agent *a, int mem, const struct gadgets *g,
			  struct ckpt_error *err)
{
	struct user_regs_struct r = loop_regs(a, &a->th->regs);
	uint64_t slot = (a->th->regs.rsp - 256) & ~15ULL, entry = a->seg->addr;
	pid_t tid = a->th->tid;
	int e;

	a->word_at = slot;
	if (pread(mem, &a->word, sizeof(a->word), (off_t)slot) != sizeof(a->word) ||
	    pwrite(mem, &entry, sizeof(entry), (off_t)slot) != sizeof(entry))
		return ckpt_fail_sys(err, errno, "thread %d: its stack is not writable", (int)tid);
	r.rip = g->syscall_ret;
	r.rsp = slot;
	r.rax = SYS_shmat;
	r.rdi = (uint64_t)a->seg->shmid;
	r.rsi = a->seg->addr;
	r.rdx = SHM_EXEC;
	e = call_once(a, &r, err);
	/* let go where it is, it finds its way through the agent like one whose engine died */
	if (e)
		return e;
	/*
	 * Without the segment it must not get to that "ret": the fault would be forced,
	 * and with SIGSEGV blocked that takes the program's action for it away.
	 */
	if (r.rax != a->seg->addr) {
		back_to_self(a);
		return ckpt_fail_sys(err, (int)-r.rax, "thread %d: shmat(2) of the agent",
				     (int)tid);
	}
	if (ptrace(PTRACE_CONT, tid, NULL, 0L))
		return ckpt_fail_sys(err, errno, "thread %d: entering the agent", (int)tid);
	a->state = THREAD_SEATED;
	return 0;
}

static int first_report(struct ckpt_agent *a, struct ckpt_error *err)
{
	int r;

	a->seat->n_ops = 0;
	r = agent_post(a, AGENT_RUN, err);
	if (!r)
		r = agent_wait(a, err);
	if (r && a->state == THREAD_STOPPED)
		back_to_self(a);
	return r;
}

static uid_t effective_uid(const struct ckpt_task *t)
{
	CKPT_AUTO_FREE char *text = NULL;
	struct ckpt_error ignored = { 0 };
	char value[96];
	unsigned real, effective = 0;

	if (ckpt_proc_read(t, "status", &text, &ignored) >= 0 &&
	    !ckpt_proc_field(text, "Uid", value, sizeof(value)) &&
	    sscanf(value, "%u %u", &real, &effective) == 2)
		return effective;
	return 0;
}

static int seat_thread(struct task_node *t, struct ckpt_thread *th, bool first, int mem,
		       struct ckpt_error *err)
{
	struct ckpt_agent *a = th->agent;
	int r;

	a->seg = t->seg;
	a->seq = 0;
	a->seat = segment_seat(t->seg, &a->seat_addr);
	if (!a->seat)
		return ckpt_fail(err, ENOSPC, "no seat left for thread %d", (int)th->tid);
	r = fill_exit(a, &t->gadgets, first, err);
	if (!r) {
		/* announced before it is sent: the one that unmaps waits for it */
		__atomic_store_n(&a->seat->taken, 1, __ATOMIC_RELEASE);
		r = first ? enter_by_shmat(a, mem, &t->gadgets, err)
			  : agent_enter(a, &th->regs, err);
	}
	if (r) {
		a->seat = NULL;
		return r;
	}
	r = first_report(a, err);
	if (first && pwrite(mem, &a->word, sizeof(a->word), (off_t)a->word_at) != sizeof(a->word) &&
	    !r)
		r = ckpt_fail_sys(err, errno, "thread %d: its stack", (int)th->tid);
	return r;
}

static uint32_t count_stopped(const struct task_node *t)
{
	uint32_t n = 0;

	for (size_t i = 0; i < t->pub.n_threads; i++)
		n += t->pub.threads[i]->agent->state == THREAD_STOPPED;
	return n;
}

/* What a task's agent needs, before any of its threads is touched. */
static int prepare_task(struct task_node *t, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *maps = NULL;
	CKPT_AUTO_FD int mem = ckpt_open_mem(&t->pub, err);
	int r;

	if (mem < 0)
		return mem;
	if (ckpt_proc_read(&t->pub, "maps", &maps, err) < 0)
		return -err->err;
	t->gadgets = t->ps->gadgets;
	r = same_gadgets(mem, maps, &t->gadgets) ? 0 : find_gadgets(mem, maps, &t->gadgets, err);
	t->ps->gadgets = t->gadgets;
	if (!r)
		r = segment_new(&t->ps->keeper, count_stopped(t), FRAME_CONTEXT_SIZE + XSTATE_ROOM,
				effective_uid(&t->pub), &t->seg, err);
	return r ? r : find_gap(maps, t->seg->length, &t->seg->addr, err);
}

/* All live threads of one task. The first to enter is the last to leave. */
static int task_in(struct task_node *t, struct ckpt_error *err)
{
	CKPT_AUTO_FD int mem = ckpt_open_mem(&t->pub, err);
	bool first = true;
	int r = mem < 0 ? mem : 0;

	for (size_t i = 0; !r && i < t->pub.n_threads; i++) {
		if (t->pub.threads[i]->agent->state != THREAD_STOPPED)
			continue;
		r = seat_thread(t, t->pub.threads[i], first, mem, err);
		first = false;
	}
	return r;
}

/* Run fn for each task that can have an agent. */
static int each_task(struct proc_set *ps, int (*fn)(struct task_node *, struct ckpt_error *),
		     struct ckpt_error *err)
{
	for (size_t i = 0; i < ps->n; i++) {
		struct task_node *t = ps->tasks[i];

		if (!t->pub.zombie && count_stopped(t) && fn(t, err))
			return ckpt_wrap(err, "task %u (%s)", t->pub.id, t->pub.comm);
	}
	return 0;
}

int proc_agents_in(struct proc_set *ps, struct ckpt_error *err)
{
	int r = each_task(ps, prepare_task, err);

	return r ? r : each_task(ps, task_in, err);
}

/* ---- out --------------------------------------------------------------------------------- */

/* Registers and mask as they were; the thread is in an event stop. */
static int restore_own(struct ckpt_agent *a, struct ckpt_error *err)
{
	struct ckpt_thread *th = a->th;

	/* in this order: with its own mask but in the agent, it still leaves by itself */
	if (ptrace(PTRACE_SETSIGMASK, th->tid, sizeof(th->sigmask), &th->sigmask) ||
	    ptrace(PTRACE_SETREGS, th->tid, NULL, &th->regs))
		return ckpt_fail_sys(err, errno, "thread %d: giving its registers back",
				     (int)th->tid);
	return 0;
}

/* A thread that need not unmap anything. */
static int thread_out(struct ckpt_agent *a, struct ckpt_error *err)
{
	int r = interrupt_and_wait(a, false, STOP_TIMEOUT_MS, err);

	if (!r)
		r = restore_own(a, err);
	if (!r)
		__atomic_store_n(&a->seat->taken, 0, __ATOMIC_RELEASE);
	a->seat = NULL;
	return r;
}

/* Let the thread run on until it has left a munmap(2). */
static int run_to_munmap(struct ckpt_agent *a, struct ckpt_error *err)
{
	pid_t tid = a->th->tid;
	bool in_munmap = false;
	int status, r;

	for (;;) {
		struct user_regs_struct regs;

		if (ptrace(PTRACE_SYSCALL, tid, NULL, 0L))
			return ckpt_fail_sys(err, errno, "thread %d: PTRACE_SYSCALL", (int)tid);
		r = wait_stop(tid, STOP_TIMEOUT_MS, &status);
		if (r)
			return ckpt_fail_sys(err, r, "thread %d: leaving the agent", (int)tid);
		if (status >> 16 || WSTOPSIG(status) != (SIGTRAP | 0x80)) {
			if (WSTOPSIG(status) == SIGSTOP)
				a->stop_pending = true;
			else if (!(status >> 16))
				return ckpt_fail(err, EFAULT,
						 "thread %d: %s while leaving the agent", (int)tid,
						 strsignal(WSTOPSIG(status)));
			continue;
		}
		if (ptrace(PTRACE_GETREGS, tid, NULL, &regs))
			return ckpt_fail_sys(err, errno, "thread %d: registers", (int)tid);
		if (in_munmap)
			return (int64_t)regs.rax
				       ? ckpt_fail_sys(err, (int)-regs.rax,
						       "thread %d: munmap(2) of the agent",
						       (int)tid)
				       : 0;
		/* at its entry the number is in orig_rax and rax says ENOSYS */
		in_munmap = (long)regs.orig_rax == SYS_munmap && (int64_t)regs.rax == -ENOSYS;
	}
}

/*
 * The thread that unmaps the segment leaves on the path on which it would leave
 * if we were dead; between its two system calls it is caught and given its
 * exact registers, so that a restart block survives.
 */
static int last_thread_out(struct ckpt_agent *a, struct ckpt_error *err)
{
	/* where the way out is built; a small stack of a program's own may have a neighbour there
	 */
	const size_t len = a->seat->exit.uc_len + a->seat->exit.fp_len + 512;
	const uint64_t at = a->seat->exit.sp - 128 - len;
	CKPT_AUTO_FREE uint8_t *was = malloc(len);
	CKPT_AUTO_FD int mem = ckpt_open_mem(a->th->task, err);
	ssize_t kept;
	int r;

	if (!was || mem < 0)
		return mem < 0 ? mem : ckpt_fail_sys(err, ENOMEM, "leaving the agent");
	r = interrupt_and_wait(a, false, STOP_TIMEOUT_MS, err);
	if (r)
		return r;
	kept = pread(mem, was, len, (off_t)at);
	a->seat->command = AGENT_LEAVE;
	__atomic_store_n(&a->seat->seq, ++a->seq, __ATOMIC_RELEASE);
	r = run_to_munmap(a, err);
	if (r)
		return r;
	a->seat = NULL;
	r = interrupt_and_wait(a, true, STOP_TIMEOUT_MS, err);
	if (!r)
		r = restore_own(a, err);
	if (!r && kept > 0 && pwrite(mem, was, (size_t)kept, (off_t)at) != kept)
		r = ckpt_fail_sys(err, errno, "thread %d: its stack", (int)a->th->tid);
	return r;
}

static int task_out(struct task_node *t, struct ckpt_error *err)
{
	struct ckpt_agent *last = NULL;
	int r = 0;

	for (size_t i = 0; i < t->pub.n_threads; i++) {
		struct ckpt_agent *a = t->pub.threads[i]->agent;
		int e = 0;

		if (!a->seat || a->state != THREAD_SEATED)
			continue;
		if (a->seat->exit.last)
			last = a;
		else
			e = thread_out(a, err);
		r = r ? r : e;
	}
	/* with another thread stuck inside, unmapping would kill it */
	if (!r && last)
		r = last_thread_out(last, err);
	segment_free(t->seg);
	t->seg = NULL;
	return r;
}

int proc_agents_out(struct proc_set *ps, struct ckpt_error *err)
{
	int failed = 0;

	for (size_t i = 0; i < ps->n; i++) {
		struct ckpt_error why = { 0 };
		struct task_node *t = ps->tasks[i];

		if (!t->seg)
			continue;
		if (task_out(t, &why) && !failed) {
			ckpt_wrap(&why, "task %u (%s)", t->pub.id, t->pub.comm);
			*err = why;
			failed = -why.err;
		}
	}
	return failed;
}
