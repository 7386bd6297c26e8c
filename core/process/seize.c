/* SPDX-License-Identifier: MIT */
/* Stopping a tree and letting it go. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "engine/run.h"
#include "process/execing.h"
#include "process/guard.h"
#include "process/set.h"
#include "process/uapi.h"

#define STOP_TIMEOUT_MS 3000
#define STUCK_MS	500   /* after it: is it in uninterruptible sleep still? */
#define STARVED_MS	60000 /* for one that is waiting for a processor */
#define MOST_PROGRAMS	100   /* that a process executes one after the other while it is stopped */
#define MOST_PASSES	1000

enum { VANISHED = 1 }; /* a child, before it was stopped */

/* Call fn for each thread id of a task, in the kernel's order. */
static int each_tid(const struct ckpt_task *t, int (*fn)(void *arg, pid_t tid, struct ckpt_error *),
		    void *arg, struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = openat(t->procfd, "task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CKPT_AUTO_DIR DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *e;

	if (!dir)
		return ckpt_fail_sys(err, errno == ENOENT ? ESRCH : errno, "process %d: threads",
				     (int)t->pid);
	ckpt_steal_fd(&fd);
	while ((e = ckpt_next_entry(dir))) {
		int r = e->d_name[0] == '.' ? 0 : fn(arg, atoi(e->d_name), err);

		if (r)
			return r;
	}
	return errno ? ckpt_fail_sys(err, errno, "process %d: threads", (int)t->pid) : 0;
}

static struct ckpt_thread *find_thread(const struct ckpt_task *t, pid_t tid)
{
	for (size_t i = 0; i < t->n_threads; i++)
		if (t->threads[i]->tid == tid)
			return t->threads[i];
	return NULL;
}

struct scan {
	struct proc_set *ps;
	struct execing *execing;
	struct task_node *task;
	bool found_new;
	bool kept; /* its threads are the keeper's at once */
};

/*
 * Does that file of /proc tell of a zombie, or of nobody any more? One that cannot be read does
 * not: what is alive must not be taken for dead.
 */
static bool is_over(const struct ckpt_task *t, const char *path)
{
	struct ckpt_error why = { 0 };
	CKPT_AUTO_FREE char *stat = NULL;
	int64_t state = 0;

	if (INSIST(ckpt_proc_read(t, path, &stat, &why)) < 0)
		return why.err == ENOENT || why.err == ESRCH;
	ckpt_proc_stat_field(stat, 3, &state);
	return state == 'Z' || state == 'X';
}

static int collect_stop(struct ckpt_thread *th, struct ckpt_error *err);

bool is_exiting(const struct ckpt_thread *th)
{
	char path[40];

	snprintf(path, sizeof(path), "task/%d/stat", (int)th->tid);
	return is_over(th->task, path);
}

static pid_t tracer_of(const struct ckpt_thread *th)
{
	struct ckpt_error ignored = { 0 };
	CKPT_AUTO_FREE char *status = NULL;
	char path[40], tracer[16] = "0";

	snprintf(path, sizeof(path), "task/%d/status", (int)th->tid);
	if (INSIST(ckpt_proc_read(th->task, path, &status, &ignored)) >= 0)
		ckpt_proc_field(status, "TracerPid", tracer, sizeof(tracer));
	return (pid_t)atoi(tracer);
}

static int fail_seize(const struct ckpt_thread *th, int e, struct ckpt_error *err)
{
	const pid_t tracer = tracer_of(th);

	ckpt_fail_as(err,
		     e != EPERM ? CKPT_EXIT_FAILED
		     : tracer	? CKPT_EXIT_REFUSED
				: CKPT_EXIT_PRIVILEGE,
		     e, "task %d (%s): thread %d: PTRACE_SEIZE: %s", (int)th->task->pid,
		     th->task->comm, (int)th->tid, ckpt_errno_name(e));
	if (tracer)
		return ckpt_hint(err, "process %d traces it (strace, gdb): let it detach first",
				 (int)tracer);
	return ckpt_hint(err, "it needs CAP_SYS_PTRACE: run ckpt as root");
}

static bool has_gone(const struct ckpt_thread *th)
{
	char path[40];

	snprintf(path, sizeof(path), "task/%d", (int)th->tid);
	return INSIST(faccessat(th->task->procfd, path, F_OK, 0)) &&
	       (errno == ENOENT || errno == ESRCH);
}

static int seize_thread(struct scan *s, struct ckpt_thread *th, struct ckpt_error *err);

/* From the engine to the keeper, while its task is still being stopped: it runs for a moment. */
static int hand_over(struct scan *s, struct ckpt_thread *th, struct ckpt_error *err)
{
	if (INSIST(ckpt_ptrace(th, PTRACE_DETACH, NULL, NULL)) && errno != ESRCH)
		return ckpt_fail_sys(err, errno, "thread %d: PTRACE_DETACH", (int)th->tid);
	th->agent->state = THREAD_FREE;
	th->agent->tracer = &s->ps->keeper;
	return seize_thread(s, th, err);
}

static int fail_suspend(const struct ckpt_thread *th, int e, struct ckpt_error *err)
{
	ckpt_fail_as(err, CKPT_EXIT_PRIVILEGE, e, "thread %d: suspending its filter: %s",
		     (int)th->tid, ckpt_errno_name(e));
	return ckpt_hint(err, "it needs CAP_SYS_ADMIN in the initial user namespace, and ckpt must "
			      "not be under a seccomp filter itself");
}

/* It is not one of the task's, but has the number of one that was? Then it goes on. */
static bool is_stranger(struct ckpt_thread *th)
{
	if (!has_gone(th))
		return false;
	INSIST(ckpt_ptrace(th, PTRACE_DETACH, NULL, NULL));
	th->agent->state = THREAD_GONE;
	return true;
}

/*
 * A filter must not be asked about the agent's calls. It is suspended when the thread stands and
 * not before: about calls of its own it has to be asked. Nor later: a thread that still runs may
 * give its filters to one that stands (SECCOMP_FILTER_FLAG_TSYNC). ckpt may not be allowed to.
 * Who has one is asked when all of the task stand (look_again()).
 */
static int look_after(struct scan *s, struct ckpt_thread *th, struct ckpt_error *err)
{
	if (th->task->stopped && !th->agent->tracer && s->ps->keeper.shares)
		return hand_over(s, th, err);
	if (INSIST(ckpt_ptrace(th, PTRACE_SETOPTIONS, NULL,
			       PTRACE_O_TRACESYSGOOD | PTRACE_O_SUSPEND_SECCOMP))) {
		const int e = errno;

		if (rescue_is_filtered(th) && !is_stranger(th))
			return fail_suspend(th, e, err);
	}
	return 0;
}

/*
 * One that was seized while it executed another program has a new number, and is ours already.
 */
static bool is_ours(const struct scan *s, struct ckpt_thread *th)
{
	const pid_t tracer = tracer_of(th);

	if (tracer && tracer == s->ps->keeper.pid)
		th->agent->tracer = &s->ps->keeper;
	return ckpt_is_tracer(s->ps->run, tracer);
}

static int ask_for(struct scan *s, struct ckpt_thread *th)
{
	const long r = INSIST(ckpt_ptrace(th, PTRACE_SEIZE, NULL, PTRACE_O_TRACESYSGOOD));
	const int e = errno;

	return !r || (e == EPERM && is_ours(s, th)) ? 0 : e;
}

/*
 * SEIZE, INTERRUPT and wait, one thread after the other: between its stop and
 * the roll-back of its system call a thread would see an EINTR if we died.
 */
static int stop_thread(struct scan *s, struct ckpt_thread *th, struct ckpt_error *err)
{
	int r = ask_for(s, th);

	if (r) {
		/* one that is exiting answers EPERM as well */
		if (r != ESRCH && !is_exiting(th))
			return fail_seize(th, r, err);
		th->dead = r != ESRCH && th->tid == th->task->pid;
		th->agent->state = THREAD_GONE;
		return 0;
	}
	s->ps->seized = true;
	th->agent->state = THREAD_SEIZED;
	/*
	 * A task that is stopped by a signal reports that by itself; an
	 * additional interrupt would stay pending and surface later.
	 */
	if (!th->task->stopped && INSIST(ckpt_ptrace(th, PTRACE_INTERRUPT, NULL, NULL)) &&
	    errno != ESRCH)
		return ckpt_fail_sys(err, errno, "thread %d: PTRACE_INTERRUPT", (int)th->tid);
	return collect_stop(th, err);
}

static int seize_thread(struct scan *s, struct ckpt_thread *th, struct ckpt_error *err)
{
	int r;

	/* at once: who is handed over is stopped twice, which sleeps do not always hide */
	if ((s->ps->keep_all || s->kept) && s->ps->keeper.shares)
		th->agent->tracer = &s->ps->keeper;
	s->execing->keeper = s->ps->keeper.pid;
	s->execing->asking = th;
	r = stop_thread(s, th, err);
	s->execing->asking = NULL;
	return r || th->agent->state != THREAD_STOPPED ? r : look_after(s, th, err);
}

static int hide_stop(struct ckpt_thread *th, struct ckpt_error *err)
{
	struct ckpt_error why = { 0 };
	int r = rollback(th, &why);

	if (!r)
		th->agent->state = THREAD_STOPPED;
	if (r == -ESRCH)
		th->agent->state = THREAD_GONE;
	else if (r)
		*err = why;
	return r == -ESRCH ? 0 : r;
}

static bool is_uninterruptible(const struct ckpt_thread *th)
{
	struct ckpt_error ignored = { 0 };
	CKPT_AUTO_FREE char *stat = NULL;
	int64_t state = 0;
	char path[40];

	snprintf(path, sizeof(path), "task/%d/stat", (int)th->tid);
	if (INSIST(ckpt_proc_read(th->task, path, &stat, &ignored)) >= 0)
		ckpt_proc_stat_field(stat, 3, &state);
	return state == 'D';
}

/*
 * Whoever does not stop is in uninterruptible sleep, or gets no processor: on a busy machine, at a
 * low priority. One of these sleeps, too, but not for long.
 */
static int wait_patiently(const struct ckpt_thread *th, int *status)
{
	int r = wait_stop(th->agent->tracer, th->tid, STOP_TIMEOUT_MS, status);
	bool slept = false;

	for (int ms = STOP_TIMEOUT_MS; r == -ETIMEDOUT && ms < STARVED_MS; ms += STUCK_MS) {
		const bool sleeps = is_uninterruptible(th);

		if ((sleeps && slept) || is_exiting(th))
			break;
		slept = sleeps;
		r = wait_stop(th->agent->tracer, th->tid, STUCK_MS, status);
	}
	return r;
}

/* Collect the stop of a thread seized before. */
static int collect_stop(struct ckpt_thread *th, struct ckpt_error *err)
{
	for (;;) {
		int status, r = wait_patiently(th, &status);

		if (r == -ESRCH) {
			th->agent->state = THREAD_GONE;
			return 0;
		}
		/* of a main thread nobody is told while there are others */
		if (r == -ETIMEDOUT && th->tid == th->task->pid && is_exiting(th)) {
			th->dead = true;
			th->agent->state = THREAD_GONE;
			return 0;
		}
		if (r == -ETIMEDOUT) {
			ckpt_fail_as(err, CKPT_EXIT_REFUSED, ETIMEDOUT,
				     "task %d (%s): thread %d does not stop: it %s",
				     (int)th->task->pid, th->task->comm, (int)th->tid,
				     is_uninterruptible(th) ? "is in uninterruptible sleep"
							    : "gets no processor");
			return ckpt_hint(err, "a parent in vfork(2) waits for its child to exec; "
					      "try again in a moment");
		}
		if (r)
			return ckpt_fail_sys(err, r, "thread %d: waitpid(2)", (int)th->tid);
		if (is_event_stop(status)) {
			th->task->stopped |= WSTOPSIG(status) != SIGTRAP;
			th->agent->state = THREAD_CAUGHT;
			return hide_stop(th, err);
		}
		/* a signal was on its way: let it be delivered, the interrupt is still pending */
		if (INSIST(ckpt_ptrace(th, PTRACE_CONT, NULL,
				       status >> 16 ? 0L : WSTOPSIG(status))))
			return ckpt_fail_sys(err, errno, "thread %d: PTRACE_CONT", (int)th->tid);
	}
}

static int note_thread(void *arg, pid_t tid, struct ckpt_error *err)
{
	struct scan *s = arg;
	struct ckpt_thread *th = find_thread(&s->task->pub, tid);

	if (th)
		return 0;
	s->found_new = true;
	th = set_add_thread(s->task, tid, err);
	if (!th)
		return -ENOMEM;
	/* the leader stands first, whatever order readdir gives */
	if (tid == s->task->pub.pid && s->task->pub.n_threads > 1) {
		s->task->pub.threads[s->task->pub.n_threads - 1] = s->task->pub.threads[0];
		s->task->pub.threads[0] = th;
	}
	if (!s->ps->run->live)
		return seize_thread(s, th, err);
	th->dead = tid == s->task->pub.pid && is_exiting(th);
	return 0;
}

/* A main thread that has ended does not show whether the others stand still. */
static int note_stop(void *arg, pid_t tid, struct ckpt_error *err)
{
	struct ckpt_task *t = arg;
	struct ckpt_error ignored = { 0 };
	CKPT_AUTO_FREE char *stat = NULL;
	int64_t state = 0;
	char path[40];

	(void)err;
	snprintf(path, sizeof(path), "task/%d/stat", (int)tid);
	if (ckpt_proc_read(t, path, &stat, &ignored) >= 0)
		ckpt_proc_stat_field(stat, 3, &state);
	t->stopped |= state == 'T';
	return 0;
}

static void drop_gone_threads(struct ckpt_task *t)
{
	size_t kept = 0;

	for (size_t i = 0; i < t->n_threads; i++) {
		struct ckpt_thread *th = t->threads[i];

		if (th->agent->state == THREAD_GONE && th->tid != t->pid) {
			free(th->agent);
			free(th);
		} else {
			t->threads[kept++] = th;
		}
	}
	t->n_threads = kept;
}

/* When all of a task stand, who has a filter has it for good; until then another may have given it.
 */
static int look_again(struct scan *s, struct ckpt_error *err)
{
	struct ckpt_task *t = &s->task->pub;
	int r = rescue_ask_filters(t, err);

	for (size_t i = 0; !r && i < t->n_threads; i++) {
		struct ckpt_agent *a = t->threads[i]->agent;

		if (a->state != THREAD_STOPPED || (!a->tracer && !a->filtered) ||
		    is_stranger(a->th) || a->tracer || !s->ps->keeper.shares)
			continue;
		r = hand_over(s, a->th, err);
		/* it has run: whom has it made? */
		s->found_new = true;
	}
	return r;
}

/* The main thread has ended: with the last of the others it is a zombie, as any process. */
static int without_main(struct scan *s, struct ckpt_error *err)
{
	struct ckpt_task *t = &s->task->pub;

	/* or has it been reaped, or has another thread executed a program and is the main one? */
	if (faccessat(t->procfd, "stat", F_OK, 0) || !is_exiting(t->threads[0]))
		return ckpt_fail_sys(err, ESRCH, "process %d", (int)t->pid);
	if (t->n_threads > 1)
		return set_main_ended(s->task, err);
	t->zombie = true;
	t->threads[0]->agent->state = THREAD_FREE;
	return 0;
}

/* All threads of one task, until a pass finds no new one. */
static int take_task(struct scan *s, struct ckpt_error *err)
{
	struct ckpt_task *t = &s->task->pub;

	if (t->zombie)
		return set_add_thread(s->task, t->pid, err) ? 0 : -ENOMEM;
	if (s->task->main_over)
		each_tid(t, note_stop, t, err);
	s->kept = !s->ps->run->live && rescue_shows_filter(t);
	do {
		int r;

		s->found_new = false;
		r = each_tid(t, note_thread, s, err);
		if (!r && !s->found_new && !s->ps->run->live)
			r = look_again(s, err);
		if (r)
			return r;
	} while (s->found_new && !s->ps->run->live);
	drop_gone_threads(t);
	if (t->n_threads && t->threads[0]->dead)
		return without_main(s, err);
	if (!t->n_threads || t->threads[0]->agent->state == THREAD_GONE || execing_has_gone(t))
		return ckpt_fail_sys(err, ESRCH, "process %d", (int)t->pid);
	return 0;
}

/*
 * Add a process and stop it; -ESRCH: it has vanished, or has executed another program. A parent
 * stands, so whoever is not its child has the number of one that was.
 */
static int take_once(struct proc_set *ps, struct execing *x, pid_t pid, struct ckpt_task *parent,
		     struct ckpt_error *err)
{
	struct scan s = { .ps = ps, .execing = x };
	int r;

	s.task = set_add(ps, pid, parent, err);
	if (s.task && parent && !ps->run->live && s.task->ppid != parent->pid) {
		set_drop_last(ps);
		return VANISHED;
	}
	r = s.task ? take_task(&s, err) : -err->err;
	if (r == -ESRCH && s.task) {
		execing_reap(&s.task->pub);
		set_drop_last(ps);
	}
	return r;
}

/* A child that vanishes meanwhile is none. */
static int take_process(struct proc_set *ps, struct execing *x, pid_t pid, struct ckpt_task *parent,
			struct ckpt_error *err)
{
	char path[32];
	int r = -ESRCH;

	snprintf(path, sizeof(path), "/proc/%d", (int)pid);
	for (int i = 0; r == -ESRCH && i < MOST_PROGRAMS && !access(path, F_OK); i++) {
		struct ckpt_error why = { 0 };

		r = take_once(ps, x, pid, parent, &why);
		if (r < 0 && r != -ESRCH)
			*err = why;
	}
	if (r != -ESRCH)
		return r;
	if (access(path, F_OK))
		return parent ? VANISHED : ckpt_fail_sys(err, ESRCH, "process %d", (int)pid);
	ckpt_fail_as(err, CKPT_EXIT_REFUSED, EAGAIN,
		     "process %d executes one program after the other", (int)pid);
	return ckpt_hint(err, "dump again in a moment");
}

static bool is_known(const struct proc_set *ps, pid_t pid)
{
	for (size_t i = 0; i < ps->n; i++)
		if (ps->tasks[i]->pub.pid == pid)
			return true;
	return false;
}

/* Is it to be stopped when all others have been? */
static bool is_left(struct proc_set *ps, pid_t pid)
{
	for (size_t i = 0; ps->last && i < ps->last->n; i++) {
		if (ps->last->pids[i] != pid)
			continue;
		ps->left = true;
		return true;
	}
	return false;
}

/* The children of one thread, from /proc/PID/task/TID/children. VANISHED: one of them has. */
static int take_children_of(struct proc_set *ps, struct execing *x, struct ckpt_thread *th,
			    struct ckpt_error *err)
{
	struct ckpt_error why = { 0 };
	CKPT_AUTO_FREE char *text = NULL;
	char path[48], *p, *end;
	int lost = 0;

	snprintf(path, sizeof(path), "task/%d/children", (int)th->tid);
	if (ckpt_proc_read(th->task, path, &text, &why) < 0) {
		if (ps->run->live)
			return 0;
		*err = why;
		return -why.err;
	}
	for (p = text; *p; p = end) {
		long pid = strtol(p, &end, 10);
		int r;

		if (end == p)
			break;
		if (is_known(ps, (pid_t)pid) || is_left(ps, (pid_t)pid))
			continue;
		r = take_process(ps, x, (pid_t)pid, th->task, err);
		if (r < 0)
			return r;
		lost |= r;
	}
	return lost;
}

/* One look at the children of all tasks, of those that it adds too. VANISHED: one of them has. */
static int take_pass(struct proc_set *ps, struct execing *x, struct ckpt_error *err)
{
	int lost = 0;

	for (size_t i = 0; i < ps->n; i++) {
		struct ckpt_task *t = &ps->tasks[i]->pub;

		for (size_t k = 0; !t->zombie && k < t->n_threads; k++) {
			int r = take_children_of(ps, x, t->threads[k], err);

			if (r < 0)
				return r;
			lost |= r;
		}
	}
	return lost;
}

/*
 * All below the root, of which `r` came. Passes go on until one adds nothing and misses nobody: a
 * child that died before it was stopped may have left children to a reaper whose own were read
 * already.
 */
static int take_rest(struct proc_set *ps, struct execing *x, int r, struct ckpt_error *err)
{
	size_t before = 0;

	for (int i = 0; i < MOST_PASSES; i++) {
		if (r < 0 || (!r && ps->n == before))
			return r;
		before = ps->n;
		r = take_pass(ps, x, err);
		if (ps->run->live)
			return r < 0 ? r : 0;
	}
	ckpt_fail_as(err, CKPT_EXIT_REFUSED, EAGAIN, "its processes come and go");
	return ckpt_hint(err, "dump again in a moment");
}

static int take_tree(struct proc_set *ps, struct execing *x, pid_t root, struct ckpt_error *err)
{
	int r = take_rest(ps, x, take_process(ps, x, root, NULL, err), err);

	if (r || !ps->left)
		return r;
	nanosleep(&ps->last->moment, NULL);
	ps->last = NULL;
	return take_rest(ps, x, 0, err);
}

static int no_process(pid_t root, struct ckpt_error *err)
{
	ckpt_fail_as(err, CKPT_EXIT_FAILED, ESRCH, "there is no process %d", (int)root);
	return ckpt_hint(err, "pids are those of the pid namespace that ckpt runs in");
}

/* The beginning of it, which has what is asked for. */
static bool read_of(pid_t pid, const char *file, char text[1024])
{
	CKPT_AUTO_FD int fd = -1;
	char path[32];
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, file);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : read(fd, text, 1023);
	if (n <= 0)
		return false;
	text[n] = '\0';
	return true;
}

/* /proc shows a thread as if it were a process. */
static int check_leader(pid_t root, struct ckpt_error *err)
{
	char text[1024], tgid[16];

	if (root <= 0 || !read_of(root, "status", text) ||
	    ckpt_proc_field(text, "Tgid", tgid, sizeof(tgid)))
		return no_process(root, err);
	if (atoi(tgid) == root)
		return 0;
	ckpt_fail_as(err, CKPT_EXIT_USAGE, EINVAL, "%d is a thread of process %s", (int)root, tgid);
	return ckpt_hint(err, "-t %s", tgid);
}

static bool parent_of(pid_t pid, pid_t *parent)
{
	char stat[1024];
	int64_t n;

	if (!read_of(pid, "stat", stat) || ckpt_proc_stat_field(stat, 4, &n))
		return false;
	*parent = (pid_t)n;
	return true;
}

static int check_root(pid_t root, struct ckpt_error *err)
{
	pid_t p = getpid();
	int r = check_leader(root, err);

	if (r)
		return r;
	do {
		if (p != root)
			continue;
		ckpt_fail_as(err, CKPT_EXIT_REFUSED, EINVAL,
			     "process %d is ckpt itself or one of its ancestors", (int)root);
		return ckpt_hint(err, "run ckpt from outside the tree");
	} while (parent_of(p, &p) && p > 0);
	return 0;
}

static int take_root(struct proc_set *ps, pid_t root, struct ckpt_error *err)
{
	struct execing x = { 0 };
	int r = check_root(root, err);

	if (!r && !ps->run->live)
		r = execing_begin(&x, err);
	if (!r)
		r = take_tree(ps, &x, root, err);
	execing_end(&x);
	if (r)
		return r;
	if (ps->tasks[0]->pub.zombie)
		return ckpt_fail_as(err, CKPT_EXIT_REFUSED, ESRCH, "process %d is a zombie",
				    (int)root);
	set_sort(ps);
	return 0;
}

int proc_scan(struct proc_set *ps, pid_t root, struct ckpt_error *err)
{
	return take_root(ps, root, err);
}

int proc_get_ready(struct proc_set *ps, struct ckpt_error *err)
{
	return keeper_start(&ps->keeper, err);
}

int proc_seize(struct proc_set *ps, pid_t root, struct ckpt_error *err)
{
	int r;

	ps->last = ps->run->last;
	r = take_root(ps, root, err);
	if (r)
		return r;
	ps->phase = 1;
	return proc_read_ahead(ps, err);
}

/* ---- letting go -------------------------------------------------------------------- */

static int detach(struct ckpt_thread *th)
{
	struct ckpt_agent *a = th->agent;
	struct ckpt_error ignored = { 0 };

	/* the seizure failed half-way: its stop is made invisible all the same */
	if (a->state == THREAD_SEIZED)
		collect_stop(th, &ignored);
	if (a->state == THREAD_CAUGHT)
		hide_stop(th, &ignored);
	if (a->state != THREAD_STOPPED && a->state != THREAD_SEIZED && a->state != THREAD_CAUGHT)
		return 0;
	a->state = THREAD_FREE;
	if (a->stop_pending)
		INSIST(syscall(SYS_tgkill, th->task->pid, th->tid, SIGSTOP));
	/* with its tracer gone it is let go too */
	return !INSIST(ckpt_ptrace(th, PTRACE_DETACH, NULL, NULL)) || errno == ESRCH ||
			       (a->tracer && (errno == EPIPE || errno == ECONNRESET))
		       ? 0
		       : -errno;
}

/* All or none, also if ckpt dies meanwhile, unless there is no room for a guard. */
static int kill_all(struct proc_set *ps, struct ckpt_error *err)
{
	AUTO_GUARD struct guard guard = { .engine = -1 };
	struct ckpt_error ignored = { 0 };
	int failed = 0;

	guard_start(&guard, ps, GUARD_TASKS, &ignored);
	for (size_t i = 0; i < ps->n; i++) {
		struct ckpt_task *t = &ps->tasks[i]->pub;
		int r = t->zombie ? 0 : (int)INSIST(signal_task(t, SIGKILL));

		if (r && r != -ESRCH)
			failed = ckpt_fail_sys(err, r, "task %d: SIGKILL", (int)t->pid);
	}
	return failed;
}

static int kill_tree(struct proc_set *ps, struct ckpt_error *err)
{
	size_t alive = ps->n;
	int r = kill_all(ps, err);

	if (r)
		return r;
	for (int i = 0; alive && i < 10000; i++)
		alive = await_deaths(ps);
	for (size_t i = 0; i < ps->n; i++)
		for (size_t k = 0; k < ps->tasks[i]->pub.n_threads; k++)
			ps->tasks[i]->pub.threads[k]->agent->state = THREAD_GONE;
	if (alive)
		return ckpt_fail_sys(err, ETIMEDOUT, "%zu tasks do not die", alive);
	wait_for_reaper(ps);
	return 0;
}

int proc_release(struct proc_set *ps, enum ckpt_after after, struct ckpt_error *err)
{
	struct ckpt_error second = { 0 };
	int r = 0, failed;

	ps->phase = 0;
	if (!ps->seized)
		return 0;
	ps->seized = false;
	if (after == CKPT_AFTER_KILL)
		return kill_tree(ps, err);
	failed = proc_agents_out(ps, err);
	r = run_before_release(ps->run, failed ? &second : err);
	failed = failed ? failed : r;
	for (size_t i = 0; i < ps->n; i++) {
		struct ckpt_task *t = &ps->tasks[i]->pub;

		if (t->zombie)
			continue;
		/* queued while it is in a ptrace stop, it takes effect before any user code runs */
		if (after == CKPT_AFTER_STOP && !t->stopped)
			INSIST(kill(t->pid, SIGSTOP));
		for (size_t k = t->n_threads; k-- > 0;) {
			r = detach(t->threads[k]);
			if (r && !failed)
				failed = ckpt_fail_sys(err, r, "task %d: PTRACE_DETACH",
						       (int)t->pid);
		}
	}
	if (failed) {
		err->exit = CKPT_EXIT_LOST;
		ckpt_hint(err, "look at the states of the tasks in /proc");
	}
	return failed;
}
