/* SPDX-License-Identifier: MIT */
/*
 * Processes whose main thread has ended while others go on: the root of the tree, one with ids of
 * its own, signals that wait and a family, one that is stopped, the first one of a pid namespace,
 * and one that ends: its parent hears of it when the last thread has.
 */
#include "victim.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct member {
	const char *name;
	void (*check)(void);
	int code; /* the main thread's end */
	uid_t uid;
	pid_t pid;
	int to, from;
};

static void check_rich(void);
static void check_child(void);
static void check_plain(void);
static void check_first(void);

static struct member rich = { .name = "rich main", .check = check_rich, .code = 5, .uid = 65534 };
static struct member stopped = { .name = "stopped main", .check = check_plain, .code = 6 };
static struct member first = { .name = "first main", .check = check_first, .code = 8 };
static struct member child = { .name = "child", .check = check_child };
static pid_t root, ending;
static int end_it[2];

/* in each member */
static const struct member *self;
static int in, out;
static pid_t pid, tid, parent;
static bool known;
static unsigned long seed, *memory, *shared;
static int file;
static timer_t timer;

static void end_main(const char *name, uid_t uid, int code)
{
	prctl(PR_SET_NAME, name);
	if (uid)
		syscall(SYS_setresuid, uid, uid, uid);
	syscall(SYS_exit, code);
}

static char state_of(pid_t of, pid_t thread)
{
	char path[64], *text, *at, state = 0;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", of, thread);
	text = victim_read(path);
	at = text ? strrchr(text, ')') : NULL;
	if (at)
		state = at[2];
	free(text);
	return state;
}

static void await_end(pid_t of)
{
	while (state_of(of, of) != 'Z')
		sched_yield();
}

static void *answer(void *arg)
{
	victim_answer(in, out, self->check);
	return arg;
}

static void *idle(void *arg)
{
	for (;;)
		pause();
	return arg;
}

static void run_member(void)
{
	pthread_t thread;

	if (self->check == check_child)
		answer(NULL);
	MUST_ZERO(pthread_create(&thread, NULL, answer, NULL));
	MUST_ZERO(pthread_create(&thread, NULL, idle, NULL));
	end_main(self->name, self->uid, self->code);
}

static void start(struct member *m)
{
	int there[2], back[2];

	MUST(pipe(there));
	MUST(pipe(back));
	m->pid = MUST(fork());
	if (!m->pid) {
		self = m;
		known = false;
		in = there[0];
		out = back[1];
		close(there[1]);
		close(back[0]);
		run_member();
	}
	close(there[0]);
	close(back[1]);
	m->to = there[1];
	m->from = back[0];
}

/* ---- in the members --------------------------------------------------------------------- */

static void know(unsigned long number)
{
	char name[32];
	const char *path;

	snprintf(name, sizeof(name), "mapped-%lu", number);
	path = victim_path(name);
	pid = getpid();
	tid = (pid_t)syscall(SYS_gettid);
	parent = getppid();
	/* a main thread that ends would set it off in its children */
	MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
	seed = number;
	memory = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	file = MUST(open(path, O_RDWR | O_CREAT | O_EXCL, 0600));
	MUST(unlink(path));
	MUST(ftruncate(file, 1 << 16));
	shared = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	for (unsigned i = 0; i < 8192; i++)
		memory[i] = shared[i] = victim_word(seed, i);
	known = true;
}

static void check_self(void)
{
	int signal = 0;

	CHECK(getpid() == pid && syscall(SYS_gettid) == tid, "%s: %d, thread %ld instead of %d, %d",
	      self->name, getpid(), syscall(SYS_gettid), pid, tid);
	CHECK(getppid() == parent, "%s: parent %d, not %d", self->name, getppid(), parent);
	CHECK(!prctl(PR_GET_PDEATHSIG, &signal) && signal == SIGKILL, "%s: pdeath signal %d",
	      self->name, signal);
	for (unsigned i = 0; i < 8192; i++)
		CHECK(memory[i] == victim_word(seed, i) && shared[i] == memory[i],
		      "%s: word %u of its memory", self->name, i);
	for (unsigned i = 0; i < 8192; i++)
		memory[i] = shared[i] = victim_word(seed + 1, i);
	seed++;
}

static void check_plain(void)
{
	if (!known)
		know(100);
	check_self();
	CHECK(state_of(pid, pid) == 'Z', "%s: its main thread is %c", self->name,
	      state_of(pid, pid));
}

static void check_first(void)
{
	if (!known)
		know(300);
	check_self();
	CHECK(getpid() == 1, "the first process is %d", getpid());
}

static void queue_signals(void)
{
	MUST(sigqueue(getpid(), SIGRTMIN + 4, (union sigval){ .sival_int = 4711 }));
	MUST(kill(getpid(), SIGUSR2));
	MUST(syscall(SYS_tgkill, getpid(), tid, SIGRTMIN + 5));
}

static void expect(int number, int code, int value)
{
	const struct timespec none = { 0 };
	siginfo_t info = { 0 };
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, number);
	CHECK(sigtimedwait(&set, &info, &none) == number && info.si_code == code &&
		      (code != SI_QUEUE || info.si_int == value),
	      "signal %d: %d with code %d, value %d", number, info.si_signo, info.si_code,
	      info.si_int);
}

static void check_rich(void)
{
	struct sigevent to = { .sigev_notify = SIGEV_NONE };
	const struct itimerspec hours = { .it_value.tv_sec = 36000 };
	struct itimerspec left = { 0 };

	if (!known) {
		know(1000);
		MUST(setsid());
		MUST(timer_create(CLOCK_MONOTONIC, &to, &timer));
		MUST(timer_settime(timer, 0, &hours, NULL));
		queue_signals();
		start(&child);
	}
	check_self();
	CHECK(getsid(0) == pid && getpgrp() == pid, "session %d, group %d", getsid(0), getpgrp());
	CHECK(!timer_gettime(timer, &left) && left.it_value.tv_sec > 0, "the timer is gone");
	CHECK(victim_status(pid, "Uid", 10) == 65534 && state_of(pid, pid) == 'Z',
	      "the main thread: uid %lld, state %c", victim_status(pid, "Uid", 10),
	      state_of(pid, pid));
	CHECK(geteuid() == 0, "euid %d", geteuid());
	expect(SIGRTMIN + 4, SI_QUEUE, 4711);
	expect(SIGUSR2, SI_USER, 0);
	/* glibc says SI_USER for SI_TKILL */
	expect(SIGRTMIN + 5, SI_USER, 0);
	queue_signals();
	victim_ask(child.to, child.from, "the child");
}

static void check_child(void)
{
	if (!known)
		know(5000);
	check_self();
}

/* ---- in the root ------------------------------------------------------------------------- */

static void *last(void *arg)
{
	char c;

	while (read(end_it[0], &c, 1) < 0)
		;
	syscall(SYS_exit, 9);
	return arg;
}

static void start_ending(void)
{
	pthread_t thread;

	MUST(pipe(end_it));
	ending = MUST(fork());
	if (!ending) {
		close(end_it[1]);
		MUST_ZERO(pthread_create(&thread, NULL, last, NULL));
		end_main("ending main", 0, 7);
	}
	close(end_it[0]);
	await_end(ending);
}

static void check_ending(void)
{
	int status = 0;

	CHECK(waitpid(ending, &status, WNOHANG) == 0, "it is reaped before its last thread ends");
	CHECK(write(end_it[1], "x", 1) == 1, "telling it: %s", strerror(errno));
	CHECK(waitpid(ending, &status, 0) == ending && status == 9 << 8, "it ended with %#x",
	      status);
	close(end_it[1]);
	start_ending();
}

static void stop(void)
{
	int status = 0;

	MUST(kill(stopped.pid, SIGSTOP));
	CHECK(waitpid(stopped.pid, &status, WUNTRACED) == stopped.pid && WIFSTOPPED(status),
	      "stopping: %#x", status);
}

static void check(void)
{
	CHECK(getpid() == root && state_of(root, root) == 'Z' && getppid() != root,
	      "the root: %d, its main thread %c", getpid(), state_of(root, root));
	victim_ask(rich.to, rich.from, "the rich one");
	victim_ask(first.to, first.from, "the first one of a namespace");
	CHECK(!kill(stopped.pid, SIGCONT), "SIGCONT: %s", strerror(errno));
	victim_ask(stopped.to, stopped.from, "the stopped one");
	stop();
	check_ending();
}

static void *serve(void *arg)
{
	await_end(root);
	await_end(rich.pid);
	await_end(stopped.pid);
	await_end(first.pid);
	start_ending();
	victim_ask(rich.to, rich.from, "the rich one");
	victim_ask(first.to, first.from, "the first one of a namespace");
	victim_ask(stopped.to, stopped.from, "the stopped one");
	stop();
	victim_ready();
	victim_serve(check);
	return arg;
}

int main(int argc, char **argv)
{
	int own;
	pthread_t thread;
	sigset_t set;

	victim_init(argc, argv);
	if (!victim_thread_pidfds())
		victim_skip("this kernel has no pidfds of threads");
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigaddset(&set, SIGUSR2);
	sigaddset(&set, SIGRTMIN + 4);
	sigaddset(&set, SIGRTMIN + 5);
	MUST(sigprocmask(SIG_BLOCK, &set, NULL));
	root = getpid();
	own = MUST(open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC));
	start(&rich);
	start(&stopped);
	MUST(unshare(CLONE_NEWPID));
	start(&first);
	MUST(setns(own, CLONE_NEWPID));
	close(own);
	MUST_ZERO(pthread_create(&thread, NULL, serve, NULL));
	end_main("root main", 0, 3);
}
