/* SPDX-License-Identifier: MIT */
/* The set of tasks of one run: adding, ordering, finding. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/run.h"
#include "process/ns.h"
#include "process/script.h"
#include "process/set.h"
#include "process/uapi.h"

/* What a desktop's session takes is less; the table has 32 KiB. */
#define DESCRIPTORS 4096

/* Two descriptors a task, and every file of a restore: the usual soft limit is too low. */
static void raise_nofile(void)
{
	struct rlimit lim;

	if (getrlimit(RLIMIT_NOFILE, &lim) || lim.rlim_cur == lim.rlim_max)
		return;
	lim.rlim_cur = lim.rlim_max;
	setrlimit(RLIMIT_NOFILE, &lim);
}

/*
 * The kernel makes a table of descriptors larger by doubling it, and where threads share it then
 * waits for an RCU grace period (5 to 20 ms) each time: here there are none yet, and no tree stands
 * still. Whoever needs more than that waits.
 */
static void make_room(void)
{
	CKPT_AUTO_FD int any = open("/", O_PATH | O_CLOEXEC);
	CKPT_AUTO_FD int high = any < 0 ? -1 : fcntl(any, F_DUPFD_CLOEXEC, DESCRIPTORS - 1);

	(void)high;
}

struct proc_set *proc_new(struct ckpt_run *run, struct ckpt_error *err)
{
	struct proc_set *ps = calloc(1, sizeof(*ps));

	if (!ps) {
		ckpt_fail(err, ENOMEM, "out of memory");
		return NULL;
	}
	raise_nofile();
	make_room();
	ps->run = run;
	ps->ns = ns_new(err);
	if (!ps->ns) {
		free(ps);
		return NULL;
	}
	ps->self_pidfd = ps->channel[0] = ps->channel[1] = -1;
	ps->max_fd = 2;
	return ps;
}

static void thread_free(struct ckpt_thread *th)
{
	if (!th)
		return;
	if (th->agent->final)
		free((void *)th->agent->final->xstate);
	free(th->agent->final);
	free(th->agent->status.text);
	free(th->agent->cgroup.text);
	free(th->agent->xstate);
	free(th->agent);
	free(th);
}

void set_drop_thread(struct task_node *t)
{
	thread_free(t->pub.threads[--t->pub.n_threads]);
}

static void task_free(struct task_node *t)
{
	while (t->pub.n_threads)
		set_drop_thread(t);
	thread_free(t->pub.ended);
	free(t->pub.threads);
	free(t->stat.text);
	if (t->mem >= 0)
		close(t->mem);
	fd_table_put(t->files);
	if (t->pub.pidfd >= 0)
		close(t->pub.pidfd);
	if (t->pub.procfd >= 0)
		close(t->pub.procfd);
	free(t);
}

void proc_free(struct proc_set *ps)
{
	struct ckpt_error ignored = { 0 };

	if (!ps)
		return;
	if (ps->restoring)
		proc_abort(ps);
	else if (ps->seized)
		proc_release(ps, CKPT_AFTER_RUN, &ignored);
	/* it may have something to do yet, with what is known of the tasks */
	keeper_stop(&ps->keeper);
	for (size_t i = 0; i < ps->n; i++)
		task_free(ps->tasks[i]);
	ns_free(ps->ns);
	mount_tables_free(&ps->mounts);
	notices_free(&ps->notices);
	quiet_free(&ps->quiet);
	segment_free(ps->seg);
	script_destroy(ps->spare);
	if (ps->self_pidfd >= 0)
		close(ps->self_pidfd);
	for (int i = 0; i < 2; i++)
		if (ps->channel[i] >= 0)
			close(ps->channel[i]);
	free(ps->tasks);
	free(ps->reserved);
	free(ps->birth);
	free(ps);
}

struct ckpt_thread *set_add_thread(struct task_node *t, pid_t tid, struct ckpt_error *err)
{
	struct ckpt_thread **threads =
		realloc(t->pub.threads, (t->pub.n_threads + 1) * sizeof(*threads));
	struct ckpt_thread *th = calloc(1, sizeof(*th));
	struct ckpt_agent *a = calloc(1, sizeof(*a));

	if (threads)
		t->pub.threads = threads;
	if (!threads || !th || !a) {
		free(th);
		free(a);
		ckpt_fail_sys(err, ENOMEM, "thread %d", (int)tid);
		return NULL;
	}
	th->task = &t->pub;
	th->tid = tid;
	th->agent = a;
	a->th = th;
	a->ps = t->ps;
	threads[t->pub.n_threads++] = th;
	return th;
}

static int by_tid(const void *a, const void *b)
{
	const struct ckpt_thread *x = *(struct ckpt_thread *const *)a;
	const struct ckpt_thread *y = *(struct ckpt_thread *const *)b;

	return (x->tid > y->tid) - (x->tid < y->tid);
}

/* /proc/TID is not listed, but it is there, with all that /proc/PID has. */
int set_main_ended(struct task_node *t, struct ckpt_error *err)
{
	struct ckpt_thread **threads = t->pub.threads, *ended = threads[0];
	CKPT_AUTO_FD int dir = -1, fd = -1;
	char path[32];

	if (!t->ps->restoring)
		qsort(threads + 1, t->pub.n_threads - 1, sizeof(*threads), by_tid);
	snprintf(path, sizeof(path), "/proc/%d", (int)threads[1]->tid);
	dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return ckpt_fail_sys(err, errno == ENOENT ? ESRCH : errno, "thread %d",
				     (int)threads[1]->tid);
	fd = (int)syscall(SYS_pidfd_open, threads[1]->tid, PIDFD_THREAD);
	if (fd < 0 && errno == EINVAL)
		return ckpt_fail_as(err, CKPT_EXIT_REFUSED, errno,
				    "process %d: its main thread has ended, and this kernel has no "
				    "pidfds of threads (Linux 6.9 has)",
				    (int)t->pub.pid);
	if (fd < 0)
		return ckpt_fail_sys(err, errno, "pidfd_open(2) of thread %d",
				     (int)threads[1]->tid);
	close(t->pub.procfd);
	close(t->pub.pidfd);
	t->pub.procfd = ckpt_steal_fd(&dir);
	t->pub.pidfd = ckpt_steal_fd(&fd);
	ended->dead = true;
	t->pub.ended = ended;
	memmove(threads, threads + 1, --t->pub.n_threads * sizeof(*threads));
	return 0;
}

/* comm, state and parent of a process, from its stat file. */
static int read_identity(struct task_node *t, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *stat = NULL;
	ssize_t n = ckpt_proc_read(&t->pub, "stat", &stat, err);
	int64_t state = 0, threads = 0, ppid = 0;
	const char *open, *close_;

	if (n < 0)
		return (int)n;
	open = strchr(stat, '(');
	close_ = strrchr(stat, ')');
	if (open && close_)
		snprintf(t->pub.comm, sizeof(t->pub.comm), "%.*s", (int)(close_ - open - 1),
			 open + 1);
	ckpt_proc_stat_field(stat, 3, &state);
	ckpt_proc_stat_field(stat, 4, &ppid);
	t->ppid = (pid_t)ppid;
	/* with other threads it is only the main one that has ended */
	ckpt_proc_stat_field(stat, 20, &threads);
	t->main_over = (state == 'Z' || state == 'X') && threads > 1;
	t->pub.zombie = (state == 'Z' || state == 'X') && !t->main_over;
	t->pub.stopped = state == 'T';
	return 0;
}

struct task_node *set_add(struct proc_set *ps, pid_t pid, struct ckpt_task *parent,
			  struct ckpt_error *err)
{
	struct task_node *t;
	char path[32];

	if (ps->n == ps->cap) {
		size_t cap = ps->cap ? 2 * ps->cap : 16;
		struct task_node **bigger = realloc(ps->tasks, cap * sizeof(*bigger));

		if (!bigger) {
			ckpt_fail_sys(err, ENOMEM, "task %d", (int)pid);
			return NULL;
		}
		ps->tasks = bigger;
		ps->cap = cap;
	}
	t = calloc(1, sizeof(*t));
	if (!t) {
		ckpt_fail_sys(err, ENOMEM, "task %d", (int)pid);
		return NULL;
	}
	snprintf(path, sizeof(path), "/proc/%d", (int)pid);
	t->ps = ps;
	t->mem = -1;
	t->pub.pid = pid;
	t->pub.parent = parent;
	t->pub.procfd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	t->pub.pidfd = t->pub.procfd < 0 ? -1 : (int)syscall(SYS_pidfd_open, pid, 0);
	if (t->pub.pidfd < 0)
		ckpt_fail_sys(err, errno == ENOENT ? ESRCH : errno, "process %d", (int)pid);
	if (t->pub.pidfd < 0 || read_identity(t, err)) {
		task_free(t);
		return NULL;
	}
	ps->tasks[ps->n++] = t;
	return t;
}

void set_drop_last(struct proc_set *ps)
{
	task_free(ps->tasks[--ps->n]);
}

static int by_pid(const void *a, const void *b)
{
	const struct task_node *x = *(struct task_node *const *)a;
	const struct task_node *y = *(struct task_node *const *)b;

	return (x->pub.pid > y->pub.pid) - (x->pub.pid < y->pub.pid);
}

/* Append `t` and what descends from it, in pre-order; `all` is sorted by pid. */
static void place(struct task_node **all, size_t n, struct task_node *t, struct task_node **out,
		  size_t *at)
{
	out[(*at)++] = t;
	t->pub.id = (uint32_t)*at;
	for (size_t i = 0; i < n; i++)
		if (all[i]->pub.parent == &t->pub)
			place(all, n, all[i], out, at);
}

/* Ids are given in an order that does not depend on when a task was found. */
void set_sort(struct proc_set *ps)
{
	CKPT_AUTO_FREE struct task_node **all = malloc(ps->n * sizeof(*all));
	struct task_node *root = NULL;
	size_t at = 0;

	if (!all)
		return;
	memcpy(all, ps->tasks, ps->n * sizeof(*all));
	qsort(all, ps->n, sizeof(*all), by_pid);
	for (size_t i = 0; i < ps->n; i++) {
		struct ckpt_task *t = &all[i]->pub;

		if (!t->parent)
			root = all[i];
		if (t->n_threads > 1)
			qsort(t->threads + 1, t->n_threads - 1, sizeof(*t->threads), by_tid);
	}
	if (root)
		place(all, ps->n, root, ps->tasks, &at);
}

size_t ckpt_task_count(struct ckpt_run *run)
{
	return run_procs(run) ? run_procs(run)->n : 0;
}

struct ckpt_task *ckpt_task_at(struct ckpt_run *run, size_t i)
{
	return i < ckpt_task_count(run) ? &run_procs(run)->tasks[i]->pub : NULL;
}

struct ckpt_task *ckpt_task_by_id(struct ckpt_run *run, uint32_t id)
{
	struct proc_set *ps = run_procs(run);

	if (ps && id && id <= ps->n && ps->tasks[id - 1]->pub.id == id)
		return &ps->tasks[id - 1]->pub;
	for (size_t i = 0; ps && i < ps->n; i++)
		if (ps->tasks[i]->pub.id == id)
			return &ps->tasks[i]->pub;
	return NULL;
}

struct ckpt_task *ckpt_task_by_pid(struct ckpt_run *run, pid_t pid)
{
	struct proc_set *ps = run_procs(run);

	for (size_t i = 0; ps && i < ps->n; i++)
		if (ps->tasks[i]->pub.pid == pid)
			return &ps->tasks[i]->pub;
	return NULL;
}
