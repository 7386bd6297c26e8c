/* SPDX-License-Identifier: MIT */
/* The frame of a restore: where the agent lives, how tasks are let go, how all is undone. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "engine/run.h"
#include "process/guard.h"
#include "process/heir.h"
#include "process/set.h"
#include "process/uapi.h"

#define STOP_TIMEOUT_MS 10000
/* above the stub and its heap, below where the kernel puts its stack and vdso */
#define LOWEST_PLACE  0x10000000ULL
#define HIGHEST_PLACE 0x7e0000000000ULL
#define MARGIN	      (1ULL << 20)

int ckpt_reserve(struct ckpt_run *run, uint64_t start, uint64_t end, struct ckpt_error *err)
{
	struct proc_set *ps = run_procs(run);

	if (ps->n_reserved == ps->cap_reserved) {
		size_t cap = ps->cap_reserved ? 2 * ps->cap_reserved : 64;
		struct range *bigger = realloc(ps->reserved, cap * sizeof(*bigger));

		if (!bigger)
			return ckpt_fail_sys(err, ENOMEM, "reserved ranges");
		ps->reserved = bigger;
		ps->cap_reserved = cap;
	}
	ps->reserved[ps->n_reserved++] = (struct range){ start, end };
	return 0;
}

static int by_start(const void *a, const void *b)
{
	const struct range *x = a, *y = b;

	return (x->start > y->start) - (x->start < y->start);
}

static uint64_t find_place(struct proc_set *ps, uint64_t length)
{
	uint64_t from = LOWEST_PLACE;

	if (ps->n_reserved)
		qsort(ps->reserved, ps->n_reserved, sizeof(*ps->reserved), by_start);
	for (size_t i = 0; i < ps->n_reserved; i++) {
		const struct range *r = &ps->reserved[i];

		if (r->start > from && r->start - from >= length + 2 * MARGIN)
			break;
		if (r->end > from)
			from = r->end;
	}
	return from + length + 2 * MARGIN <= HIGHEST_PLACE ? from + MARGIN : 0;
}

/* Room for the restored descriptors, and for what is lent above them. */
static int check_nofile(const struct proc_set *ps, struct ckpt_error *err)
{
	const rlim_t need = (rlim_t)transport_fd(ps) + 64;
	struct rlimit lim;

	if (getrlimit(RLIMIT_NOFILE, &lim))
		return ckpt_fail_sys(err, errno, "getrlimit(2)");
	if (need <= lim.rlim_cur)
		return 0;
	ckpt_fail_as(err, CKPT_EXIT_PRIVILEGE, EMFILE,
		     "descriptor %d has to be restored, and the limit here is %llu", ps->max_fd,
		     (unsigned long long)lim.rlim_cur);
	return ckpt_hint(err, "raise it first: ulimit -Hn %llu", (unsigned long long)need);
}

int proc_check_place(struct proc_set *ps, struct ckpt_error *err)
{
	if (find_place(ps, segment_length(CKPT_MAX_THREADS, 0)))
		return proc_check_stub(err);
	return ckpt_fail_as(err, CKPT_EXIT_REFUSED, ENOMEM,
			    "no place for the agent between the mappings of all tasks");
}

int proc_prepare(struct proc_set *ps, struct ckpt_error *err)
{
	AUTO_KEEPER struct keeper keeper = { 0 };
	const struct segment_users users = { .uid = geteuid() };
	int r = check_nofile(ps, err);

	if (!r && heir_wanted(ps->run))
		r = heir_reserve(ps, err);
	if (!r)
		r = keeper_start(&keeper, err);
	if (!r)
		r = segment_new(&ps->segments, &keeper, CKPT_MAX_THREADS, 0, &users, &ps->seg, err);
	if (r)
		return r;
	ps->seg->addr = find_place(ps, ps->seg->length);
	if (!ps->seg->addr)
		return proc_check_place(ps, err);
	ps->self_pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
	if (ps->self_pidfd < 0)
		return ckpt_fail_sys(err, errno, "pidfd_open(2) of ckpt itself");
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ps->channel))
		return ckpt_fail_sys(err, errno, "socketpair(2)");
	return 0;
}

void ckpt_agent_range(struct ckpt_run *run, uint64_t *start, uint64_t *end)
{
	const struct segment *seg = run_procs(run)->seg;

	*start = seg ? seg->addr : 0;
	*end = seg ? seg->addr + seg->length : 0;
}

int ckpt_set_final(struct ckpt_thread *th, const struct ckpt_final *f, struct ckpt_error *err)
{
	struct ckpt_final *copy = calloc(1, sizeof(*copy));
	void *xstate = malloc(f->xstate_len ? f->xstate_len : 1);

	if (!copy || !xstate) {
		free(copy);
		free(xstate);
		return ckpt_fail_sys(err, ENOMEM, "thread %d: final state", (int)th->tid);
	}
	*copy = *f;
	if (f->xstate_len)
		memcpy(xstate, f->xstate, f->xstate_len);
	copy->xstate = xstate;
	if (th->agent->final)
		free((void *)th->agent->final->xstate);
	free(th->agent->final);
	th->agent->final = copy;
	return 0;
}

/* ---- letting go ------------------------------------------------------------------------ */

static int drop_transport(struct ckpt_run *run, struct ckpt_task *t, struct ckpt_error *err)
{
	struct fd_table *files = node_of(t)->files;
	struct ckpt_script *s;

	if (files->parted)
		return 0;
	files->parted = true;
	s = ckpt_script_new(run, "drop-transport");
	ckpt_script_add(s, SYS_close, CKPT_C(channel_fd(run_procs(run))));
	ckpt_script_add(s, SYS_close, CKPT_C(transport_fd(run_procs(run))));
	return ckpt_script_post(s, t->threads[0], err);
}

static int begin_stop(struct ckpt_run *run, struct ckpt_task *t, struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; !r && i < t->n_threads; i++) {
		struct ckpt_agent *a = t->threads[i]->agent;

		r = a->final ? interrupt(a, false, err)
			     : ckpt_fail(err, EINVAL, "no plugin says how thread %d goes on",
					 (int)a->th->tid);
	}
	return r;
}

static int end_stop(struct ckpt_run *run, struct ckpt_task *t, struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; !r && i < t->n_threads; i++)
		r = wait_event_stop(t->threads[i]->agent, STOP_TIMEOUT_MS, err);
	return r;
}

/* munmap(2) of the agent, by a system call instruction of the task's own text. */
static int start_unmap(struct ckpt_run *run, struct ckpt_task *t, struct ckpt_error *err)
{
	struct proc_set *ps = run_procs(run);
	CKPT_AUTO_FREE char *maps = NULL;
	CKPT_AUTO_FD int mem = ckpt_open_mem(t, err);
	struct user_regs_struct regs = t->threads[0]->agent->final->regs;
	int r;

	if (mem < 0)
		return mem;
	if (ckpt_proc_read(t, "maps", &maps, err) < 0)
		return -err->err;
	/* the agent's own text is no good for that: it would be found first */
	r = same_syscall(mem, maps, ps->syscall_at)
		    ? 0
		    : find_syscall(mem, maps, ps->seg->addr, &ps->syscall_at, err);
	if (r)
		return r;
	regs.rip = ps->syscall_at;
	regs.orig_rax = (uint64_t)-1;
	regs.rax = SYS_munmap;
	regs.rdi = ps->seg->addr;
	regs.rsi = ps->seg->length;
	return call_start(t->threads[0]->agent, &regs, err);
}

static int catch_unmap(struct ckpt_run *run, struct ckpt_task *t, struct ckpt_error *err)
{
	return call_entered(t->threads[0]->agent, err);
}

static int end_unmap(struct ckpt_run *run, struct ckpt_task *t, struct ckpt_error *err)
{
	struct user_regs_struct regs;
	int r = call_end(t->threads[0]->agent, &regs, err);

	if (!r && regs.rax)
		r = ckpt_fail_sys(err, (int)-regs.rax, "munmap(2) of the agent");
	return r;
}

static int apply_final(struct ckpt_thread *th, struct ckpt_error *err)
{
	struct ckpt_final *f = th->agent->final;
	struct iovec io = { (void *)f->xstate, f->xstate_len };

	if (f->xstate_len && INSIST(ptrace(PTRACE_SETREGSET, th->tid, NT_X86_XSTATE, &io)))
		return ckpt_fail_sys(err, errno, "thread %d: extended state", (int)th->tid);
	if (INSIST(ptrace(PTRACE_SETREGS, th->tid, NULL, &f->regs)))
		return ckpt_fail_sys(err, errno, "thread %d: registers", (int)th->tid);
	if (INSIST(ptrace(PTRACE_SETSIGMASK, th->tid, sizeof(f->sigmask), &f->sigmask)))
		return ckpt_fail_sys(err, errno, "thread %d: signal mask", (int)th->tid);
	return 0;
}

static int apply_finals(struct ckpt_run *run, struct ckpt_task *t, struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; !r && i < t->n_threads; i++)
		r = apply_final(t->threads[i], err);
	return r;
}

/* Queued while it is in a ptrace stop, it takes effect before any user code runs. */
static int keep_stopped(struct ckpt_run *run, struct ckpt_task *t, struct ckpt_error *err)
{
	int stop = t->threads[0]->agent->final->stop_signal;

	return stop && kill(t->pid, stop) ? ckpt_fail_sys(err, errno, "stopping it") : 0;
}

/* If ckpt dies it goes on, instead of being killed. */
static int set_free(struct ckpt_run *run, struct ckpt_task *t, struct ckpt_error *err)
{
	for (size_t i = 0; i < t->n_threads; i++)
		if (INSIST(ptrace(PTRACE_SETOPTIONS, t->threads[i]->tid, NULL, 0L)))
			return ckpt_fail_sys(err, errno, "thread %d: PTRACE_SETOPTIONS",
					     (int)t->threads[i]->tid);
	return 0;
}

static int let_go(struct ckpt_run *run, struct ckpt_task *t, struct ckpt_error *err)
{
	for (size_t i = t->n_threads; i-- > 0;) {
		if (INSIST(ptrace(PTRACE_DETACH, t->threads[i]->tid, NULL, NULL)))
			return ckpt_fail_sys(err, errno, "thread %d: PTRACE_DETACH",
					     (int)t->threads[i]->tid);
		t->threads[i]->agent->state = THREAD_FREE;
	}
	return 0;
}

static int each_alive(struct proc_set *ps,
		      int (*fn)(struct ckpt_run *, struct ckpt_task *, struct ckpt_error *),
		      struct ckpt_error *err)
{
	for (size_t i = 0; i < ps->n; i++) {
		struct ckpt_task *t = &ps->tasks[i]->pub;

		if (!ps->tasks[i]->ended && fn(ps->run, t, err))
			return ckpt_wrap(err, "task %u", t->id);
	}
	return 0;
}

/* Whoever is killed or set free by a death of ckpt, it is all or none. */
static int commit(struct proc_set *ps, struct ckpt_error *err)
{
	AUTO_GUARD struct guard guard = { .engine = -1 };
	int r = guard_start(&guard, ps, GUARD_THREADS, err);

	return r ? r : each_alive(ps, set_free, err);
}

int proc_run(struct proc_set *ps, pid_t *root, struct ckpt_error *err)
{
	/* each for all tasks, so that they work while others are told */
	static int (*const stages[])(struct ckpt_run *, struct ckpt_task *, struct ckpt_error *) = {
		begin_stop, end_stop,	  start_unmap,	catch_unmap,
		end_unmap,  apply_finals, keep_stopped,
	};
	int r;

	if (!ps->n)
		return ckpt_fail(err, EINVAL, "no plugin made a task");
	r = flights_settle(ps->run, each_alive(ps, drop_transport, err), err);
	for (size_t i = 0; !r && i < CKPT_ARRAY_SIZE(stages); i++)
		r = each_alive(ps, stages[i], err);
	if (!r)
		r = run_before_release(ps->run, err);
	if (!r)
		r = commit(ps, err);
	if (!r)
		r = each_alive(ps, let_go, err);
	if (r)
		return r;
	ps->restoring = false;
	*root = ps->tasks[0]->pub.pid;
	return 0;
}

/* ---- undoing ------------------------------------------------------------------------------ */

/* Children first: a pid namespace ends only when all that was made in it is reaped. */
void proc_abort(struct proc_set *ps)
{
	size_t left = ps->n;

	ps->restoring = false;
	for (size_t i = ps->n; i-- > 0;)
		if (!ps->tasks[i]->ended)
			signal_task(&ps->tasks[i]->pub, SIGKILL);
	if (ps->newborn)
		kill(ps->newborn, SIGKILL);
	for (int tries = 0; left && tries < 5000; tries++) {
		int status;

		while (waitpid(-1, &status, __WALL | WNOHANG) > 0)
			;
		left = await_deaths(ps);
	}
	wait_for_reaper(ps);
}
