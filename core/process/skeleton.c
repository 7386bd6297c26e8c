/* SPDX-License-Identifier: MIT */
/*
 * Skeletons: tasks that are nothing but the agent and the segment. The root
 * executes a one-page program, so that nothing of the engine's memory,
 * descriptors or signal dispositions is left in it, unless it inherits memory
 * (heir.c); all others are cloned by their real parents.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/run.h"
#include "process/heir.h"
#include "process/script.h"
#include "process/set.h"
#include "process/spawn.h"
#include "process/uapi.h"

#define STOP_TIMEOUT_MS 10000
#define LINGER_MS	10000
#define LINGER_NAP_MS	2
#define END_TIMEOUT_US	(10 * 1000000ULL)
#define THREAD_FLAGS \
	(CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM)

extern const uint8_t stub_elf[], stub_elf_end[];

#ifndef MFD_EXEC
#define MFD_EXEC 0x10U
#endif

/* vm.memfd_noexec=2 refuses memfds that can be executed: a file that never had a name will do. */
static int open_nameless(void)
{
	static const char *const places[] = { "/dev/shm", "/run", "/tmp", "/var/tmp" };

	for (size_t i = 0; i < CKPT_ARRAY_SIZE(places); i++) {
		CKPT_AUTO_FD int fd = open(places[i], O_TMPFILE | O_RDWR | O_CLOEXEC, 0700);
		struct statvfs st;

		if (fd >= 0 && !fstatvfs(fd, &st) && !(st.f_flag & ST_NOEXEC))
			return ckpt_steal_fd(&fd);
	}
	errno = EACCES;
	return -1;
}

/* The stub as an executable file that nobody has open for writing. */
static int open_stub(struct ckpt_error *err)
{
	const size_t len = (size_t)(stub_elf_end - stub_elf);
	CKPT_AUTO_FD int fd = memfd_create("ckpt-skeleton", MFD_CLOEXEC | MFD_EXEC);
	char path[40];
	int ro;

	if (fd < 0 && errno == EACCES)
		fd = open_nameless();
	else if (fd < 0) /* MFD_EXEC is new in 6.3 */
		fd = memfd_create("ckpt-skeleton", MFD_CLOEXEC);
	if (fd < 0 && errno == EACCES) {
		ckpt_fail_as(err, CKPT_EXIT_PRIVILEGE, EACCES,
			     "no file for the skeleton that could be executed");
		return ckpt_hint(err, "sysctl vm.memfd_noexec=1, or a /dev/shm or /tmp that is not "
				      "mounted noexec");
	}
	if (fd < 0 || write(fd, stub_elf, len) != (ssize_t)len || fchmod(fd, 0755))
		return ckpt_fail_sys(err, errno, "file for the skeleton");
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	ro = open(path, O_RDONLY | O_CLOEXEC);
	return ro < 0 ? ckpt_fail_sys(err, errno, "%s", path) : ro;
}

int proc_check_stub(struct ckpt_error *err)
{
	CKPT_AUTO_FD int stub = open_stub(err);

	return stub < 0 ? stub : 0;
}

/* What the child that becomes the root needs to know. */
struct birth {
	int go[2], stub;
	struct heir_fd keep[2];
};

static inline int64_t sys3(int64_t nr, int64_t a, int64_t b, int64_t c)
{
	return sys6(nr, a, b, c, 0, 0, 0);
}

/* In the child: become the stub, with transport and channel as the only descriptors. */
static SPAWN_CHILD void become_stub(void *arg)
{
	const struct birth *b = arg;
	const char *argv[] = { "ckpt-skeleton", NULL }, *envp[] = { NULL };
	/* struct sigaction as the kernel has it: SIG_DFL; and an empty set */
	const uint64_t none[4] = { 0 };
	int64_t stub = -1, kept[2] = { -1, -1 };
	char c;

	/* or a ckpt that is killed before it seizes us would leave us waiting for ever */
	sys3(SYS_close, b->go[1], 0, 0);
	for (int sig = 1; sig < 65; sig++)
		sys6(SYS_rt_sigaction, sig, (int64_t)(uintptr_t)none, 0, 8, 0, 0);
	sys6(SYS_rt_sigprocmask, SIG_SETMASK, (int64_t)(uintptr_t)none, 0, 8, 0, 0);
	if (sys3(SYS_read, b->go[0], (int64_t)(uintptr_t)&c, 1) == 1) {
		sys3(SYS_close_range, 0, ~0U, CLOSE_RANGE_CLOEXEC);
		/* out of the way: their numbers may be where the others go */
		stub = sys3(SYS_fcntl, b->stub, F_DUPFD_CLOEXEC, b->keep[1].target + 1);
	}
	for (int i = 0; i < 2 && stub >= 0; i++)
		kept[i] = sys3(SYS_fcntl, b->keep[i].fd, F_DUPFD_CLOEXEC, b->keep[1].target + 1);
	for (int i = 0; i < 2 && stub >= 0; i++)
		if (sys3(SYS_dup2, kept[i], b->keep[i].target, 0) < 0)
			stub = -1;
	if (stub >= 0)
		sys6(SYS_execveat, stub, (int64_t)(uintptr_t) "", (int64_t)(uintptr_t)argv,
		     (int64_t)(uintptr_t)envp, AT_EMPTY_PATH, 0);
	for (;;)
		sys3(SYS_exit_group, 127, 0, 0);
}

static void birth_fds(const struct proc_set *ps, struct heir_fd keep[2])
{
	keep[0] = (struct heir_fd){ ps->self_pidfd, transport_fd(ps) };
	keep[1] = (struct heir_fd){ ps->channel[1], channel_fd(ps) };
}

/*
 * Since Linux 6.15 a task gives its number back after all else of it is gone, and may be preempted
 * before that: for a while clone3(2) finds a number taken that nobody has. True: try again.
 */
static bool lingers(const struct ckpt_birth *b, bool known, unsigned *waited,
		    struct ckpt_error *err)
{
	const struct timespec nap = { 0, LINGER_NAP_MS * 1000000L };

	if (!b->n_set_tid || *waited >= LINGER_MS ||
	    (known && (!kill(b->set_tid[b->n_set_tid - 1], 0) || errno != ESRCH)))
		return false;
	nanosleep(&nap, NULL);
	*waited += LINGER_NAP_MS;
	if (err)
		*err = (struct ckpt_error){ 0 };
	return true;
}

/* The stack outlives this call: if seizing it fails, the child is killed later. */
static pid_t clone_root(struct proc_set *ps, const struct ckpt_birth *b, const int go[2], int stub)
{
	struct clone_args args = {
		.flags = b->clone_flags,
		.exit_signal = (uint64_t)b->exit_signal,
		.set_tid = (uint64_t)(uintptr_t)b->set_tid,
		.set_tid_size = b->n_set_tid,
	};
	struct birth *birth;

	free(ps->birth);
	ps->birth = malloc(SPAWN_STACK + sizeof(*birth));
	if (!ps->birth)
		return -ENOMEM;
	birth = (struct birth *)((char *)ps->birth + SPAWN_STACK);
	*birth = (struct birth){ .go = { go[0], go[1] }, .stub = stub };
	birth_fds(ps, birth->keep);
	if (heir_wanted(ps->run))
		return spawn_apart(&args, ps->birth, heir_wait, birth->go);
	return spawn(&args, ps->birth, become_stub, birth);
}

/* Seize the child that waits at `go`, let it execute the stub, stop it at its first instruction. */
static int seize_root(struct ckpt_agent *a, int go, struct ckpt_error *err)
{
	const long options = PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEEXEC |
			     PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE;
	pid_t pid = a->th->tid;
	int status, r;

	if (INSIST(ptrace(PTRACE_SEIZE, pid, NULL, options | PTRACE_O_SUSPEND_SECCOMP)) &&
	    ptrace(PTRACE_SEIZE, pid, NULL, options))
		return ckpt_fail_sys(err, errno, "PTRACE_SEIZE of the root skeleton");
	a->state = THREAD_STOPPED;
	if (heir_wanted(a->ps->run))
		return heir_stop(a, err);
	if (write(go, "", 1) != 1)
		return ckpt_fail_sys(err, errno, "starting the root skeleton");
	r = wait_stop(NULL, pid, STOP_TIMEOUT_MS, &status);
	if (r || status >> 8 != (SIGTRAP | PTRACE_EVENT_EXEC << 8))
		return ckpt_fail_sys(err, r ? r : EPROTO, "the root skeleton does not start");
	/* execve(2) still has to return: its result would overwrite the registers */
	return interrupt_and_wait(a, true, STOP_TIMEOUT_MS, err);
}

static int take_seat(struct ckpt_agent *a, struct ckpt_error *err)
{
	a->seg = a->ps->seg;
	a->seat = segment_seat(a->seg, &a->seat_addr);
	if (!a->seat)
		return ckpt_fail(err, ENOSPC, "more than %u threads", a->seg->n_seats);
	a->seat->exit.last = 0;
	return 0;
}

static int map_segment(struct ckpt_agent *a, struct ckpt_error *err)
{
	struct user_regs_struct regs;
	int r;

	if (INSIST(ptrace(PTRACE_GETREGS, a->th->tid, NULL, &regs)))
		return ckpt_fail_sys(err, errno, "registers of the root skeleton");
	regs.orig_rax = (uint64_t)-1;
	if (heir_wanted(a->ps->run))
		regs.rip = heir_syscall();
	regs.rax = SYS_shmat;
	regs.rdi = (uint64_t)a->seg->shmid;
	regs.rsi = a->seg->addr;
	regs.rdx = SHM_EXEC;
	r = step_syscall(a, &regs, err);
	a->ps->born = regs;
	if (!r && regs.rax != a->seg->addr)
		r = ckpt_fail_sys(err, (int)-regs.rax, "shmat(2) in the root skeleton");
	return r ? r : agent_enter(a, &regs, err);
}

/* The table of a child: its parent's, or a copy. */
static struct fd_table *born_table(const struct proc_set *ps, const struct ckpt_task *parent,
				   uint64_t flags)
{
	struct fd_table *from = parent ? node_of(parent)->files : NULL;

	if (!from || !(flags & CLONE_FILES))
		return fd_table_new(ps, from);
	from->users++;
	return from;
}

/* A task of the restore, with its leader. */
static struct task_node *new_task(struct proc_set *ps, pid_t pid, uint32_t id,
				  struct ckpt_task *parent, uint64_t flags, struct ckpt_error *err)
{
	struct task_node *t = set_add(ps, pid, parent, err);

	if (!t)
		return NULL;
	t->pub.id = id;
	t->pub.zombie = t->pub.stopped = false;
	t->files = born_table(ps, parent, flags);
	if (!t->files) {
		ckpt_fail_sys(err, ENOMEM, "task %u", id);
		return NULL;
	}
	return set_add_thread(t, pid, err) ? t : NULL;
}

int ckpt_make_root(struct ckpt_run *run, uint32_t id, const struct ckpt_birth *b,
		   struct ckpt_task **out, struct ckpt_error *err)
{
	struct proc_set *ps = run_procs(run);
	CKPT_AUTO_FD int stub = open_stub(err);
	CKPT_AUTO_FD int go_read = -1, go_write = -1;
	struct ckpt_agent *a;
	struct task_node *t;
	unsigned waited = 0;
	int go[2], r;
	pid_t pid;

	if (stub < 0)
		return stub;
	if (pipe2(go, O_CLOEXEC))
		return ckpt_fail_sys(err, errno, "pipe2(2)");
	go_read = go[0];
	go_write = go[1];
	ps->restoring = true;
	do
		pid = clone_root(ps, b, go, stub);
	while (pid == -EEXIST && lingers(b, true, &waited, err));
	if (pid < 0)
		return ckpt_fail_sys(err, pid, "clone3(2) of the root with pid %d",
				     b->n_set_tid ? (int)b->set_tid[b->n_set_tid - 1] : 0);
	t = new_task(ps, pid, id, NULL, 0, err);
	if (!t) {
		ckpt_end_child(pid);
		return -err->err;
	}
	a = t->pub.threads[0]->agent;
	r = seize_root(a, go_write, err);
	if (!r)
		r = take_seat(a, err);
	if (!r)
		r = map_segment(a, err);
	if (!r && heir_wanted(run)) {
		struct heir_fd keep[2];

		birth_fds(ps, keep);
		r = heir_strip(a, keep, err);
	}
	if (!r)
		*out = &t->pub;
	return r;
}

/* ---- cloned by an agent ------------------------------------------------------------------ */

int skeleton_adopt(struct ckpt_agent *parent, struct ckpt_error *err)
{
	unsigned long tid = 0;
	int status, r;

	if (INSIST(ptrace(PTRACE_GETEVENTMSG, parent->th->tid, NULL, &tid)))
		return ckpt_fail_sys(err, errno, "thread %d: whom it cloned", (int)parent->th->tid);
	r = wait_stop(NULL, (pid_t)tid, STOP_TIMEOUT_MS, &status);
	if (r)
		return ckpt_fail_sys(err, r, "cloned thread %lu", tid);
	parent->ps->newborn = (pid_t)tid;
	if (INSIST(ptrace(PTRACE_CONT, parent->th->tid, NULL, 0L)))
		return ckpt_fail_sys(err, errno, "thread %d: PTRACE_CONT", (int)parent->th->tid);
	return 0;
}

struct clone_in {
	struct clone_args args;
	pid_t tids[64];
};

/* With known numbers nobody stops at the birth but the newcomer, who does so before it runs. */
static bool is_quiet(const struct ckpt_birth *b)
{
	return b->known && b->n_set_tid;
}

static int add_clone(struct ckpt_script *s, const struct ckpt_birth *b, uint64_t flags,
		     struct ckpt_error *err)
{
	const size_t room = b->n_set_tid * sizeof(pid_t);
	struct clone_in in = { .args = { .flags = b->clone_flags | flags,
					 .set_tid_size = b->n_set_tid } };
	int op;

	if (b->n_set_tid > CKPT_ARRAY_SIZE(in.tids))
		return ckpt_fail(err, E2BIG, "%zu pid namespace levels", b->n_set_tid);
	if (is_quiet(b))
		in.args.flags |= CLONE_UNTRACED | CLONE_PTRACE;
	in.args.exit_signal = flags & CLONE_THREAD ? 0 : (uint64_t)b->exit_signal;
	if (room)
		memcpy(in.tids, b->set_tid, room);
	op = ckpt_script_add(s, SYS_clone3, CKPT_IN(&in, sizeof(in.args) + room),
			     CKPT_C(sizeof(in.args)));
	if (room)
		ckpt_script_pointer(s, op, 0, offsetof(struct clone_args, set_tid), op, 0,
				    sizeof(in.args));
	return 0;
}

static int clone_failed(struct ckpt_error *err)
{
	if (err->err == EEXIST)
		ckpt_hint(err, "a process with that pid is running");
	return -err->err;
}

/* Wait until a newcomer with a known number is in its first stop. */
static int catch_newborn(pid_t tid, struct ckpt_error *err)
{
	int status, r = wait_stop(NULL, tid, STOP_TIMEOUT_MS, &status);

	return r ? ckpt_fail_sys(err, r, "cloned thread %d", (int)tid) : 0;
}

/* Let `by` call clone3(2); the newcomer's tid in our pid namespace is returned. */
static pid_t clone_by(struct ckpt_run *run, struct ckpt_thread *by, const struct ckpt_birth *b,
		      uint64_t flags, struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "clone");
	struct proc_set *ps = run_procs(run);
	unsigned waited = 0;
	int r;

	if (b->reap) {
		ckpt_script_add(s, SYS_wait4, CKPT_C(b->reap), CKPT_C(0), CKPT_C(__WALL),
				CKPT_C(0));
		ckpt_script_expect(s, b->reap);
	}
	r = add_clone(s, b, flags, err);
	if (r)
		return r;
	ps->newborn = 0;
	do
		r = ckpt_script_run(s, by, err);
	while (r == -EEXIST && !b->reap && lingers(b, b->known, &waited, err));
	if (r)
		return clone_failed(err);
	if (is_quiet(b)) {
		ps->newborn = b->set_tid[b->n_set_tid - 1];
		r = catch_newborn(ps->newborn, err);
	}
	if (r)
		return r;
	return ps->newborn ? ps->newborn : ckpt_fail(err, EPROTO, "clone3(2) made nothing");
}

static int seat_newborn(struct ckpt_thread *th, struct ckpt_error *err)
{
	int r = take_seat(th->agent, err);

	if (r)
		return r;
	th->agent->state = THREAD_STOPPED;
	th->agent->ps->newborn = 0; /* from now on it is found among the tasks */
	return agent_born(th->agent, err);
}

int ckpt_make_child(struct ckpt_run *run, struct ckpt_task *parent, uint32_t id,
		    const struct ckpt_birth *b, struct ckpt_task **out, struct ckpt_error *err)
{
	pid_t pid = clone_by(run, parent->threads[0], b, 0, err);
	struct task_node *t;
	int r;

	if (pid < 0)
		return pid;
	t = new_task(run_procs(run), pid, id, parent, b->clone_flags, err);
	if (!t) {
		kill(pid, SIGKILL);
		return -err->err;
	}
	r = seat_newborn(t->pub.threads[0], err);
	if (!r)
		*out = &t->pub;
	return r;
}

int ckpt_make_thread(struct ckpt_run *run, struct ckpt_task *task, const struct ckpt_birth *b,
		     struct ckpt_thread **out, struct ckpt_error *err)
{
	pid_t tid = clone_by(run, task->threads[0], b, THREAD_FLAGS, err);
	struct ckpt_thread *th;
	int r;

	if (tid < 0)
		return tid;
	th = set_add_thread(node_of(task), tid, err);
	if (!th)
		return -ENOMEM;
	r = seat_newborn(th, err);
	if (!r && out)
		*out = th;
	return r;
}

static int seat_threads(struct ckpt_task *task, const struct ckpt_birth *b, size_t n,
			struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; i < n && !r; i++) {
		struct ckpt_thread *th =
			set_add_thread(node_of(task), b[i].set_tid[b[i].n_set_tid - 1], err);

		r = th ? catch_newborn(th->tid, err) : -ENOMEM;
		if (!r)
			r = seat_newborn(th, err);
	}
	return r;
}

/* *made: how many there are now, also if the next one failed. */
static int make_some(struct ckpt_run *run, struct ckpt_task *task, const struct ckpt_birth *b,
		     size_t n, size_t *made, struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "clone");
	int r = 0, seated;

	*made = 0;
	for (size_t i = 0; i < n && !r; i++)
		r = is_quiet(&b[i]) && !b[i].reap
			    ? add_clone(s, &b[i], THREAD_FLAGS, err)
			    : ckpt_fail(err, EINVAL, "thread %zu has no number", i);
	if (r)
		return r;
	r = ckpt_script_run(s, task->threads[0], err);
	while (s && *made < n && s->ops[*made].ran && s->ops[*made].result > 0)
		++*made;
	seated = seat_threads(task, b, *made, err);
	return r ? r : seated;
}

int ckpt_make_threads(struct ckpt_run *run, struct ckpt_task *task, const struct ckpt_birth *b,
		      size_t n, struct ckpt_error *err)
{
	size_t made = 0;
	unsigned waited = 0;
	int r = 0;

	while (made < n && !r) {
		size_t more;

		r = make_some(run, task, b + made, n - made, &more, err);
		made += more;
		if (r == -EEXIST && lingers(&b[made], true, &waited, err))
			r = 0;
	}
	return r ? clone_failed(err) : 0;
}

/* ---- ending --------------------------------------------------------------------------------- */

static int build_end(struct ckpt_script *s, int status, struct ckpt_error *err)
{
	const struct rlimit no_core = { 0, 0 };
	const uint64_t none = 0;
	int pid;

	if (WIFEXITED(status)) {
		ckpt_script_add(s, SYS_exit_group, CKPT_C(WEXITSTATUS(status)));
		return 0;
	}
	if (!WIFSIGNALED(status) || WCOREDUMP(status))
		return ckpt_fail(err, EOPNOTSUPP, "exit status 0x%x cannot be made", status);
	ckpt_script_add(s, SYS_prlimit64, CKPT_C(0), CKPT_C(RLIMIT_CORE),
			CKPT_IN(&no_core, sizeof(no_core)), CKPT_C(0));
	pid = ckpt_script_add0(s, SYS_getpid);
	ckpt_script_add(s, SYS_kill, CKPT_R(pid), CKPT_C(WTERMSIG(status)));
	ckpt_script_add(s, SYS_rt_sigprocmask, CKPT_C(SIG_SETMASK), CKPT_IN(&none, sizeof(none)),
			CKPT_C(0), CKPT_C(sizeof(none)));
	return 0;
}

/*
 * As its tracer we are told of the death first; when we have taken note of it
 * the zombie goes to its real parent.
 */
static int wait_end(pid_t pid, int want, struct ckpt_error *err)
{
	for (;;) {
		int status = 0, r = wait_stop(NULL, pid, STOP_TIMEOUT_MS, &status);

		if (r == -ESRCH && (WIFEXITED(status) || WIFSIGNALED(status)))
			return status == want ? 0
					      : ckpt_fail(err, EPROTO,
							  "it ended with 0x%x instead of 0x%x",
							  status, want);
		if (r)
			return ckpt_fail_sys(err, r, "waiting for its end");
		if (INSIST(ptrace(PTRACE_CONT, pid, NULL,
				  status >> 16 ? 0L : (long)WSTOPSIG(status))))
			return ckpt_fail_sys(err, errno, "PTRACE_CONT");
	}
}

int ckpt_end_task(struct ckpt_run *run, struct ckpt_task *task, int status, struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "end");
	struct ckpt_agent *a = task->threads[0]->agent;
	int r = build_end(s, status, err);

	if (!r)
		r = execute_last(s, task->threads[0], err);
	if (!r)
		r = wait_end(task->pid, status, err);
	if (r)
		return ckpt_wrap(err, "task %u", task->id);
	a->state = THREAD_GONE;
	segment_give_back(a->seg, ckpt_steal_ptr(&a->seat));
	node_of(task)->ended = true;
	task->zombie = true;
	return 0;
}

int ckpt_end_thread(struct ckpt_run *run, struct ckpt_thread *th, struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "end-thread");
	struct ckpt_task *t = th->task;
	int r;

	if (t->n_threads < 2 || t->threads[t->n_threads - 1] != th)
		return ckpt_fail(err, EINVAL, "thread %d is not the last of its task",
				 (int)th->tid);
	ckpt_script_add(s, SYS_exit, CKPT_C(0));
	r = execute_last(s, th, err);
	if (!r)
		r = wait_end(th->tid, 0, err);
	if (r)
		return ckpt_wrap(err, "task %u", t->id);
	th->agent->state = THREAD_GONE;
	segment_give_back(th->agent->seg, ckpt_steal_ptr(&th->agent->seat));
	set_drop_thread(node_of(t));
	return 0;
}

/*
 * Nobody can detach from a dead main thread until all others are dead: it goes without a tracer,
 * by its agent. If ckpt dies the others are killed, and it with them.
 */
static int untrace(struct ckpt_agent *a, struct ckpt_error *err)
{
	int r = interrupt_and_wait(a, false, STOP_TIMEOUT_MS, err);

	if (!r && INSIST(ptrace(PTRACE_DETACH, a->th->tid, NULL, NULL)))
		r = ckpt_fail_sys(err, errno, "thread %d: PTRACE_DETACH", (int)a->th->tid);
	if (!r)
		a->state = THREAD_SEATED;
	return r;
}

int ckpt_end_main(struct ckpt_run *run, struct ckpt_task *task, int status, uint64_t sigmask,
		  struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "end-main");
	const uint64_t deadline = now_us() + END_TIMEOUT_US;
	struct ckpt_thread *th = task->threads[0];
	int r;

	if (task->ended || task->n_threads < 2 || !WIFEXITED(status))
		return ckpt_fail(err, EINVAL, "task %u cannot go on without its main thread",
				 task->id);
	ckpt_script_add(s, SYS_rt_sigprocmask, CKPT_C(SIG_SETMASK),
			CKPT_IN(&sigmask, sizeof(sigmask)), CKPT_C(0), CKPT_C(sizeof(sigmask)));
	ckpt_script_add(s, SYS_exit, CKPT_C(WEXITSTATUS(status)));
	r = ckpt_script_settle(run, err);
	if (!r)
		r = untrace(th->agent, err);
	if (!r)
		r = execute_last(s, th, err);
	while (!r && !is_exiting(th)) {
		const struct timespec nap = { 0, 100000 };

		if (now_us() > deadline)
			return ckpt_fail_sys(err, ETIMEDOUT, "task %u: the end of its main thread",
					     task->id);
		nanosleep(&nap, NULL);
	}
	if (r)
		return ckpt_wrap(err, "task %u", task->id);
	th->agent->state = THREAD_GONE;
	segment_give_back(th->agent->seg, ckpt_steal_ptr(&th->agent->seat));
	return set_main_ended(node_of(task), err);
}
