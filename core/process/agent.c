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
#include <sched.h>
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

#include <ckpt/ns.h>

#include "process/frame.h"
#include "process/keeper.h"
#include "process/set.h"
#include "process/uapi.h"

#define STOP_TIMEOUT_MS 10000
#define RED_ZONE	128
#define SHORT_WAIT_US	100   /* of yielding before it is worth sleeping */
#define SHORT_SLICE	50000 /* nanoseconds of the first sleep; each is twice the last, up to: */
#define LONG_SLICE	3200000
#define SCRIPT_PATIENCE 600000000ULL /* microseconds that one portion of a script may take */

static long futex(uint32_t *word, int op, uint32_t val, const struct timespec *timeout)
{
	return syscall(SYS_futex, word, op, val, timeout, NULL, 0);
}

int agent_post(struct ckpt_agent *a, uint32_t command, struct ckpt_error *err)
{
	if (a->state != THREAD_SEATED)
		return ckpt_fail(err, EINVAL, "thread %d has no agent", (int)a->th->tid);
	a->seat->command = command;
	a->posted = now_us();
	a->seq++;
	__atomic_store_n(&a->seat->seq, a->seq, __ATOMIC_RELEASE);
	futex(&a->seat->seq, FUTEX_WAKE, 1, NULL);
	return 0;
}

static int seat_died(struct ckpt_agent *a, struct ckpt_error *err)
{
	a->state = THREAD_GONE;
	return ckpt_fail_sys(err, ESRCH, "thread %d died while the agent was in it",
			     (int)a->th->tid);
}

/* Something happened to a seated thread that the agent did not report. */
static int handle_event(struct ckpt_agent *a, int status, struct ckpt_error *err)
{
	int sig = WSTOPSIG(status), event = status >> 16;

	if (!WIFSTOPPED(status))
		return seat_died(a, err);
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
	if (INSIST(ckpt_ptrace(a->th, PTRACE_CONT, NULL, 0L)))
		return ckpt_fail_sys(err, errno, "thread %d: PTRACE_CONT", (int)a->th->tid);
	return 0;
}

static bool agent_is_done(const struct ckpt_agent *a)
{
	return __atomic_load_n(&a->seat->done, __ATOMIC_ACQUIRE) == a->seq;
}

int agent_wait(struct ckpt_agent *a, struct ckpt_error *err)
{
	struct timespec slice = { 0, SHORT_SLICE };
	/* of those that are under way together none is waited for much longer than the others */
	const uint64_t deadline = a->posted + SCRIPT_PATIENCE;
	uint32_t done;

	if (a->state == THREAD_FREE)
		return ckpt_fail_sys(err, EPIPE, "thread %d: it is let go", (int)a->th->tid);
	/* most scripts are short: two sleeps would cost more than they do */
	for (const uint64_t begin = now_us();
	     !agent_is_done(a) && now_us() - begin < SHORT_WAIT_US;)
		sched_yield();
	while ((done = __atomic_load_n(&a->seat->done, __ATOMIC_ACQUIRE)) != a->seq) {
		struct keeper *tracer = a->tracer;
		int status;
		pid_t r = (pid_t)INSIST(tracer_wait(tracer, a->th->tid, &status));

		if (r < 0 && tracer)
			return ckpt_fail_sys(err, errno, "thread %d: asking its tracer",
					     (int)a->th->tid);
		if (r > 0) {
			int e = handle_event(a, status, err);

			if (e)
				return e;
			continue;
		}
		if (now_us() > deadline)
			return ckpt_fail_sys(err, ETIMEDOUT, "thread %d: the agent is stuck",
					     (int)a->th->tid);
		/* an event of ptrace, or a wake-up that was lost, costs a slice */
		if (futex(&a->seat->done, FUTEX_WAIT, done, &slice) && errno == ETIMEDOUT)
			futex(&a->seat->seq, FUTEX_WAKE, 1, NULL);
		if (slice.tv_nsec < LONG_SLICE)
			slice.tv_nsec *= 2;
		else if (!agent_is_done(a) && is_exiting(a->th))
			return seat_died(a, err);
	}
	return 0;
}

/* What the way out is built of (agent.c), with room for its alignment. */
static size_t exit_length(size_t frame_len)
{
	return FRAME_CONTEXT_SIZE + frame_len + FRAME_XSTATE_EXTRA + 512;
}

/* ---- in --------------------------------------------------------------------------------- */

static int fill_exit(struct ckpt_agent *a, const struct gadgets *g, bool last,
		     struct ckpt_error *err)
{
	struct agent_exit *x = &a->seat->exit;
	/* of one thread it is known: who enters first was chosen by it */
	int r = a->xstate ? 0 : read_xstate(a, err);

	if (r)
		return r;
	if (sizeof(struct agent_seat) + FRAME_CONTEXT_SIZE + a->frame_len + FRAME_XSTATE_EXTRA >
	    a->seg->seat_size)
		return ckpt_fail(err, E2BIG, "thread %d: extended state of %zu bytes",
				 (int)a->th->tid, a->frame_len);
	x->sp = a->th->regs.rsp;
	x->gadget = g->syscall_ret;
	x->sigreturn = g->sigreturn;
	x->pop_rax = g->pop_rax;
	x->uc_len = FRAME_CONTEXT_SIZE;
	x->uc_fpstate = FRAME_FPSTATE_AT;
	x->fp_len = (uint32_t)a->frame_len + FRAME_XSTATE_EXTRA;
	x->last = last;
	frame_fill(a->seat->frame, a->th, a->xstate, a->frame_len);
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

/* For the keeper: whose registers has it? */
static void note_sent(const struct ckpt_agent *a, bool sent)
{
	if (a->rescue)
		__atomic_store_n(&a->rescue->sent, sent, __ATOMIC_RELEASE);
}

/*
 * Registers before mask: a thread that goes on with all signals blocked must
 * already be on its way to the agent, which gives the mask back when it leaves.
 */
static int go(struct ckpt_agent *a, const struct user_regs_struct *regs, struct ckpt_error *err)
{
	const uint64_t all = ~0ULL;

	note_sent(a, true);
	if (INSIST(ckpt_ptrace(a->th, PTRACE_SETREGS, NULL, regs)) ||
	    INSIST(ckpt_ptrace(a->th, PTRACE_SETSIGMASK, sizeof(all), &all)) ||
	    INSIST(ckpt_ptrace(a->th, PTRACE_CONT, NULL, 0L)))
		return ckpt_fail_sys(err, errno, "thread %d: entering the agent", (int)a->th->tid);
	a->state = THREAD_SEATED;
	return 0;
}

int agent_enter(struct ckpt_agent *a, const struct user_regs_struct *regs, struct ckpt_error *err)
{
	struct user_regs_struct r = loop_regs(a, regs);

	return go(a, &r, err);
}

int agent_born(struct ckpt_agent *a, struct ckpt_error *err)
{
	struct user_regs_struct r = loop_regs(a, &a->ps->born);

	if (INSIST(ptrace(PTRACE_SETREGS, a->th->tid, NULL, &r)) ||
	    INSIST(ptrace(PTRACE_CONT, a->th->tid, NULL, 0L)))
		return ckpt_fail_sys(err, errno, "thread %d: entering the agent", (int)a->th->tid);
	a->state = THREAD_SEATED;
	return 0;
}

/* Undo an entry that failed before the agent was reached; the thread is stopped. */
static void back_to_self(struct ckpt_agent *a)
{
	INSIST(ckpt_ptrace(a->th, PTRACE_SETSIGMASK, sizeof(a->th->sigmask), &a->th->sigmask));
	INSIST(ckpt_ptrace(a->th, PTRACE_SETREGS, NULL, &a->th->regs));
	note_sent(a, false);
	a->seat->taken = 0;
	a->seat = NULL;
}

/*
 * The first thread maps the segment on its way: shmat(2) from an instruction of
 * the task's own text, whose "ret" then finds the agent's address on the stack.
 * That word goes below the red zone, where nothing lives.
 */
static int start_shmat(struct ckpt_agent *a, int mem, const struct gadgets *g,
		       struct ckpt_error *err)
{
	struct user_regs_struct r = loop_regs(a, &a->th->regs);
	uint64_t slot = (a->th->regs.rsp - 256) & ~15ULL, entry = a->seg->addr;

	a->word_at = slot;
	if (INSIST(pread(mem, &a->word, sizeof(a->word), (off_t)slot)) != sizeof(a->word) ||
	    INSIST(pwrite(mem, &entry, sizeof(entry), (off_t)slot)) != sizeof(entry))
		return ckpt_fail_sys(err, errno, "thread %d: its stack is not writable",
				     (int)a->th->tid);
	r.rip = g->syscall_ret;
	r.rsp = slot;
	r.rax = SYS_shmat;
	r.rdi = (uint64_t)a->seg->shmid;
	r.rsi = a->seg->addr;
	r.rdx = SHM_EXEC;
	if (a->rescue) {
		a->rescue->word_at = slot;
		a->rescue->word = a->word;
	}
	note_sent(a, true);
	return call_start(a, &r, err);
}

/* Attached, but not to be entered: it is right behind that call. */
static void unmap_again(struct ckpt_agent *a, const struct user_regs_struct *behind)
{
	struct ckpt_error ignored = { 0 };
	struct user_regs_struct r = *behind;

	r.rip -= 2; /* the length of the system call instruction */
	r.orig_rax = (uint64_t)-1;
	r.rax = SYS_munmap;
	r.rdi = a->seg->addr;
	r.rsi = a->seg->length;
	if (!call_start(a, &r, &ignored) && !call_entered(a, &ignored) &&
	    !call_end(a, &r, &ignored))
		back_to_self(a);
}

/* It is the user's who attaches, so it is not the segment's mode. All such tasks are listed. */
static int refuse_entry(const struct ckpt_task *t, struct ckpt_error *err)
{
	const struct ckpt_blocker b = {
		.task = t,
		.object = "memory that is written and executed",
		.reason = "the agent needs it, and the task must not have it (PR_SET_MDWE, or a "
			  "security module)",
		.hint = "a service of systemd: MemoryDenyWriteExecute=no; SELinux: allow execmem",
		.no_loss = true,
	};

	ckpt_refuse(node_of(t)->ps->run, &b);
	return ckpt_fail_as(err, CKPT_EXIT_REFUSED, EACCES, "shmat(2) of the agent: EACCES");
}

static int end_shmat(struct ckpt_agent *a, struct ckpt_error *err)
{
	struct user_regs_struct r;
	pid_t tid = a->th->tid;
	int e = call_end(a, &r, err);

	if (e)
		return e;
	/*
	 * Without the segment it must not get to that "ret": the fault would be forced,
	 * and with SIGSEGV blocked that takes the program's action for it away.
	 */
	if (r.rax != a->seg->addr) {
		back_to_self(a);
		if ((int)-r.rax == EACCES)
			return refuse_entry(a->th->task, err);
		return ckpt_fail_sys(err, (int)-r.rax, "thread %d: shmat(2) of the agent",
				     (int)tid);
	}
	e = segment_shut(a->seg, err);
	if (e) {
		unmap_again(a, &r);
		return e;
	}
	if (INSIST(ckpt_ptrace(a->th, PTRACE_CONT, NULL, 0L)))
		return ckpt_fail_sys(err, errno, "thread %d: entering the agent", (int)tid);
	a->state = THREAD_SEATED;
	return 0;
}

/* A seat for the thread, with all that it needs to get out, and a first command to report on. */
static int prepare_seat(struct task_node *t, struct ckpt_thread *th, bool first,
			struct ckpt_error *err)
{
	struct ckpt_agent *a = th->agent;
	int r;

	a->seg = t->seg;
	a->seat = segment_seat(t->seg, &a->seat_addr);
	if (!a->seat)
		return ckpt_fail(err, ENOSPC, "no seat left for thread %d", (int)th->tid);
	r = fill_exit(a, &t->gadgets, first, err);
	if (r) {
		a->seat = NULL;
		return r;
	}
	if (a->rescue)
		a->rescue->seat = a->seat;
	a->seat->n_ops = 0;
	a->seat->command = AGENT_RUN;
	a->seat->seq = a->seq = 1;
	a->posted = now_us();
	/* announced before it is sent: the one that unmaps waits for it */
	__atomic_store_n(&a->seat->taken, 1, __ATOMIC_RELEASE);
	return 0;
}

static uint32_t count_stopped(const struct task_node *t)
{
	uint32_t n = 0;

	for (size_t i = 0; i < t->pub.n_threads; i++)
		n += t->pub.threads[i]->agent->state == THREAD_STOPPED;
	return n;
}

/*
 * Who enters first leaves last, by a signal frame below its stack pointer. (A thread
 * with a small stack may have an alternate one, but that is seen only from inside.)
 */
static int choose_first(struct task_node *t, const char *maps, struct ckpt_error *err)
{
	size_t need = 0;

	for (size_t i = 0; i < t->pub.n_threads; i++) {
		struct ckpt_agent *a = t->pub.threads[i]->agent;
		int r;

		if (a->state != THREAD_STOPPED)
			continue;
		r = read_xstate(a, err);
		if (r)
			return r;
		need = exit_length(a->frame_len) + RED_ZONE;
		t->first = a;
		if (room_below(maps, a->th->regs.rsp) >= need)
			return 0;
	}
	ckpt_fail_as(err, CKPT_EXIT_REFUSED, ENOSPC,
		     "none of its threads has %zu bytes left on its stack", need);
	return ckpt_hint(err, "one of them must be able to take a signal: try again in a moment");
}

/* The segment is made where the task can attach it: with its user, in its ipc namespace. */
static struct segment_users users_of(const struct task_node *t)
{
	const struct ckpt_ns *ns = ckpt_ns_of_task(t->ps->run, &t->pub, CKPT_NS_IPC);
	struct segment_users users = { .uid = effective_uid(&t->pub) };

	if (ns && !ns->own) {
		users.member = t->pub.pid;
		users.ns = ns->fd;
		users.own_ns = ckpt_ns_own(t->ps->run, CKPT_NS_IPC)->fd;
	}
	return users;
}

/* The kernel tells of all threads as much state as the processor may have, used or not. */
static uint32_t frame_room(const struct task_node *t)
{
	return FRAME_CONTEXT_SIZE + (uint32_t)t->first->xstate_len + FRAME_XSTATE_EXTRA;
}

/* What a task's agent needs, before any of its threads is touched. */
static int prepare_task(struct task_node *t, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *maps = NULL;
	const struct segment_users users = users_of(t);
	int r;

	t->mem = ckpt_open_mem(&t->pub, err);
	if (t->mem < 0)
		return t->mem;
	if (ckpt_proc_read(&t->pub, "maps", &maps, err) < 0)
		return -err->err;
	t->gadgets = t->ps->gadgets;
	r = same_gadgets(t->mem, maps, &t->gadgets) ? 0
						    : find_gadgets(t->mem, maps, &t->gadgets, err);
	t->ps->gadgets = t->gadgets;
	if (!r)
		r = choose_first(t, maps, err);
	if (!r)
		r = segment_new(&t->ps->segments, &t->ps->keeper, count_stopped(t), frame_room(t),
				&users, &t->seg, err);
	if (!r)
		r = find_gap(maps, t->seg->length, &t->seg->addr, err);
	return r ? r : rescue_prepare(t, err);
}

/*
 * All others get in at the same time, in stages: a stage is gone through for each of
 * them before the next begins, so that their threads run while we are busy with others.
 * Where one fails, the rest goes on: none may be left half-way.
 */
struct entry {
	struct task_node *t;
	struct ckpt_agent *first; /* the first to enter is the last to leave */
	int failed;
};

static int send_first(struct entry *e, struct ckpt_error *err)
{
	int r = prepare_seat(e->t, e->first->th, true, err);

	if (!r)
		r = start_shmat(e->first, e->t->mem, &e->t->gadgets, err);
	return r;
}

static int catch_first(struct entry *e, struct ckpt_error *err)
{
	return call_entered(e->first, err);
}

/* Once the first thread is in, what it found on its stack can be taken away. */
static int tidy_stack(struct entry *e, struct ckpt_error *err)
{
	struct ckpt_agent *a = e->first;

	/* it runs, and the place may be in use */
	if (a->state == THREAD_FREE)
		return 0;
	if (INSIST(pwrite(e->t->mem, &a->word, sizeof(a->word), (off_t)a->word_at)) ==
	    sizeof(a->word))
		return 0;
	return ckpt_fail_sys(err, errno, "thread %d: its stack", (int)a->th->tid);
}

static int seat_first(struct entry *e, struct ckpt_error *err)
{
	struct ckpt_error ignored = { 0 };
	int r = end_shmat(e->first, err);

	/* it goes on without us */
	if (r < 0 && e->first->state == THREAD_STOPPED)
		tidy_stack(e, &ignored);
	return r;
}

static int send_others(struct entry *e, struct ckpt_error *err)
{
	struct ckpt_task *t = &e->t->pub;
	int r = 0;

	for (size_t i = 0; !r && i < t->n_threads; i++) {
		struct ckpt_agent *a = t->threads[i]->agent;

		if (a == e->first || a->state != THREAD_STOPPED)
			continue;
		r = prepare_seat(e->t, t->threads[i], false, err);
		if (r)
			break;
		r = agent_enter(a, &t->threads[i]->regs, err);
		if (r)
			back_to_self(a);
	}
	return r;
}

static int await_all(struct entry *e, struct ckpt_error *err)
{
	struct ckpt_task *t = &e->t->pub;
	int r = 0;

	for (size_t i = 0; !r && i < t->n_threads; i++) {
		struct ckpt_agent *a = t->threads[i]->agent;

		if (!a->seat || a->state != THREAD_SEATED)
			continue;
		r = agent_wait(a, err);
		if (r && a->state == THREAD_STOPPED)
			back_to_self(a);
	}
	return r;
}

static const struct stage {
	int (*fn)(struct entry *e, struct ckpt_error *err);
	bool before_seat; /* what fails here finds its way out by itself, if anywhere */
	bool always;	  /* also for those that have failed */
} stages[] = {
	{ send_first, true, false },   { catch_first, true, false }, { seat_first, true, false },
	{ send_others, false, false }, { await_all, false, true },   { tidy_stack, false, true },
};

static void run_stage(const struct stage *s, struct entry *list, size_t n, struct ckpt_error *first)
{
	for (size_t i = 0; i < n; i++) {
		struct entry *e = &list[i];
		struct ckpt_error why = { 0 };

		if (!e->first || (e->failed && !s->always))
			continue;
		e->failed = s->fn(e, &why) ? -why.err : e->failed;
		if (!why.err)
			continue;
		if (!first->err) {
			ckpt_wrap(&why, "task %u (%s)", e->t->pub.id, e->t->pub.comm);
			*first = why;
		}
		if (s->before_seat) {
			e->first->seat = NULL;
			e->first = NULL;
		}
	}
}

static void enter(struct entry *list, size_t n, struct ckpt_error *first)
{
	for (size_t s = 0; s < CKPT_ARRAY_SIZE(stages); s++)
		run_stage(&stages[s], list, n, first);
}

int proc_agents_in(struct proc_set *ps, struct ckpt_error *err)
{
	CKPT_AUTO_FREE struct entry *list = calloc(ps->n + 1, sizeof(*list));
	struct ckpt_error why = { 0 };
	size_t n = 0, alone = ps->n;

	if (!list)
		return ckpt_fail_sys(err, ENOMEM, "agents");
	for (size_t i = 0; i < ps->n; i++) {
		struct task_node *t = ps->tasks[i];

		if (t->pub.zombie || !count_stopped(t))
			continue;
		if (prepare_task(t, err))
			return ckpt_wrap(err, "task %u (%s)", t->pub.id, t->pub.comm);
		list[t->guarded ? --alone : n++] = (struct entry){ .t = t, .first = t->first };
	}
	enter(list, n, &why);
	for (; alone < ps->n; alone++)
		enter(&list[alone], 1, &why);
	if (why.err)
		*err = why;
	return -why.err;
}

/* ---- out --------------------------------------------------------------------------------- */

/* Registers and mask as they were; the thread is in an event stop. */
static int restore_own(struct ckpt_agent *a, struct ckpt_error *err)
{
	struct ckpt_thread *th = a->th;

	/* in this order: with its own mask but in the agent, it still leaves by itself */
	if (INSIST(ckpt_ptrace(th, PTRACE_SETSIGMASK, sizeof(th->sigmask), &th->sigmask)) ||
	    INSIST(ckpt_ptrace(th, PTRACE_SETREGS, NULL, &th->regs)))
		return ckpt_fail_sys(err, errno, "thread %d: giving its registers back",
				     (int)th->tid);
	note_sent(a, false);
	return 0;
}

/* ---- threads that need not unmap anything ---- */

static int begin_out(struct task_node *t, struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; i < t->pub.n_threads; i++) {
		struct ckpt_agent *a = t->pub.threads[i]->agent;

		if (!a->seat || a->state != THREAD_SEATED || a == t->first)
			continue;
		a->leaving = !interrupt(a, false, err);
		r = a->leaving ? r : -err->err;
	}
	return r;
}

static int end_out(struct task_node *t, struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; i < t->pub.n_threads; i++) {
		struct ckpt_agent *a = t->pub.threads[i]->agent;
		int e;

		if (!a->leaving)
			continue;
		a->leaving = false;
		e = wait_event_stop(a, STOP_TIMEOUT_MS, err);
		if (!e)
			e = restore_own(a, err);
		if (!e)
			__atomic_store_n(&a->seat->taken, 0, __ATOMIC_RELEASE);
		a->seat = NULL;
		r = r ? r : e;
	}
	return r;
}

/*
 * ---- the one that unmaps the segment ----
 *
 * It leaves on the path on which it would leave if we were dead; between its two
 * system calls it is caught and given its exact registers, so that a restart block survives.
 */

static struct ckpt_agent *last_of(const struct task_node *t)
{
	struct ckpt_agent *a = t->first;

	return a && a->seat && a->state == THREAD_SEATED ? a : NULL;
}

/* Where the way out is built; a small stack of a program's own may have a neighbour there. */
static size_t frame_place(const struct ckpt_agent *a, uint64_t *at)
{
	const size_t len = exit_length(a->frame_len);

	*at = a->th->regs.rsp - RED_ZONE - len;
	return len;
}

static int ask_last(struct task_node *t, struct ckpt_error *err)
{
	struct ckpt_agent *a = last_of(t);
	uint64_t at;
	size_t len;

	if (!a)
		return 0;
	len = frame_place(a, &at);
	t->below = malloc(len);
	if (!t->below)
		return ckpt_fail_sys(err, ENOMEM, "leaving the agent");
	t->below_at = at;
	t->below_len = INSIST(pread(t->mem, t->below, len, (off_t)at));
	return agent_post(a, AGENT_PREPARE, err);
}

static int stop_last(struct task_node *t, struct ckpt_error *err)
{
	struct ckpt_agent *a = last_of(t);
	int r = a ? agent_wait(a, err) : 0;

	if (!r && a && a->seat->failed)
		r = ckpt_fail(err, EFAULT, "thread %d: no writable stack to leave the agent by",
			      (int)a->th->tid);
	if (!r && a) {
		t->last = a;
		r = interrupt(a, false, err);
	}
	return r;
}

/* Its registers are complete with one call: from here on it leaves, with us or without. */
static int send_last(struct task_node *t, struct ckpt_error *err)
{
	struct ckpt_agent *a = t->last;
	struct user_regs_struct regs;
	int r = a ? wait_event_stop(a, STOP_TIMEOUT_MS, err) : 0;

	if (!a || r)
		return r;
	regs = a->th->regs;
	regs.orig_rax = (uint64_t)-1;
	regs.eflags = 0x202;
	regs.rax = SYS_munmap;
	regs.rdi = t->seg->addr;
	regs.rsi = t->seg->length;
	/* what only the agent knows, and only the task uses */
	regs.rsp = a->seat->way[WAY_RSP];
	regs.rip = t->gadgets.syscall_ret;
	return call_start(a, &regs, err);
}

static int catch_last(struct task_node *t, struct ckpt_error *err)
{
	return t->last ? call_entered(t->last, err) : 0;
}

static int free_last(struct task_node *t, struct ckpt_error *err)
{
	struct ckpt_agent *a = t->last;
	struct user_regs_struct regs;
	int r = a ? call_end(a, &regs, err) : 0;

	if (!a || r)
		return r;
	if (regs.rax)
		return ckpt_fail_sys(err, (int)-regs.rax, "thread %d: munmap(2) of the agent",
				     (int)a->th->tid);
	a->seat = NULL;
	r = restore_own(a, err);
	if (!r && t->below_len > 0 &&
	    INSIST(pwrite(t->mem, t->below, (size_t)t->below_len, (off_t)t->below_at)) !=
		    t->below_len)
		r = ckpt_fail_sys(err, errno, "thread %d: its stack", (int)a->th->tid);
	return r;
}

static void forget_segment(struct task_node *t)
{
	/* the keeper takes out whom we could not, when we let go of it */
	if (t->stuck && !t->lost && t->guarded) {
		t->ps->keeper.left = true;
		return;
	}
	rescue_forget(t);
	segment_free(t->seg);
	t->seg = NULL;
	t->last = NULL;
	free(ckpt_steal_ptr(&t->below));
	if (t->mem >= 0)
		close(ckpt_steal_fd(&t->mem));
}

/* In stages, like the way in. With another thread stuck inside, unmapping would kill it. */
static void leave(struct task_node *const *list, size_t n, struct ckpt_error *first)
{
	static int (*const way_out[])(struct task_node *, struct ckpt_error *) = {
		begin_out, end_out, ask_last, stop_last, send_last, catch_last, free_last,
	};

	for (size_t s = 0; s < CKPT_ARRAY_SIZE(way_out); s++)
		for (size_t i = 0; i < n; i++) {
			struct ckpt_error why = { 0 };
			struct task_node *t = list[i];

			if (!t->seg || t->lost || (t->guarded && n > 1) || (t->stuck && s > 1))
				continue;
			t->stuck |= way_out[s](t, &why) != 0;
			if (why.err && !first->err) {
				ckpt_wrap(&why, "task %u (%s)", t->pub.id, t->pub.comm);
				*first = why;
			}
		}
}

int proc_agents_out(struct proc_set *ps, struct ckpt_error *err)
{
	struct ckpt_error first = { 0 };

	for (size_t i = 0; ps->n > 1 && i < ps->n; i++)
		if (ps->tasks[i]->seg && ps->tasks[i]->guarded)
			leave(&ps->tasks[i], 1, &first);
	leave(ps->tasks, ps->n, &first);
	for (size_t i = 0; i < ps->n; i++)
		if (ps->tasks[i]->seg)
			forget_segment(ps->tasks[i]);
	ps->phase += ps->phase != 0;
	if (first.err)
		*err = first;
	return -first.err;
}
