/* SPDX-License-Identifier: MIT
 * test: only=races
 *
 * races WHAT DIR: when DIR/go is there, its last thread
 *
 *	tsync	gives all threads a filter that kills for the calls of an agent, and for some by
 *which a thread would leave it, then makes DIR/done;
 *	exec	executes this program anew, which makes DIR/done;
 *	filtered-exec	the same where all threads have a filter.
 *
 * Two that do nothing by themselves:
 *
 *	family	has a child and, by it, a grandchild, which is its own when the child is gone;
 *	ignoring	waits in epoll_wait(2) and ignores signals.
 *
 * races number PID DIR: a process with that number, nobody's child, which lasts until DIR/stop.
 */
#include "victim.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { N_THREADS = 3, FUTEX_WAITV = 449 };

static struct {
	int question[2], answer[2];
} pipes[N_THREADS];
static char *go, *done, *program;
static bool execs, filtered, installed;

static void make(const char *path)
{
	close(MUST(open(path, O_WRONLY | O_CREAT | O_EXCL, 0644)));
}

/* Light: for no call that a program makes when it begins. */
static void install(bool light)
{
#define KILL_FOR(nr)                                   \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1), \
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		KILL_FOR(SYS_shmat),
		KILL_FOR(FUTEX_WAITV),
		KILL_FOR(SYS_munmap),
		KILL_FOR(SYS_sigaltstack),
		KILL_FOR(SYS_rt_sigreturn),
		KILL_FOR(SYS_ppoll),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	const size_t n = sizeof(filter) / sizeof(filter[0]), few = 5;
	struct sock_fprog p = { (unsigned short)(light ? few + 1 : n), filter };

	if (light)
		filter[few] = filter[n - 1];
	MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &p));
}

static void wait_to_go(void)
{
	const struct timespec nap = { 0, 200000 };

	while (access(go, F_OK))
		nanosleep(&nap, NULL);
	if (execs) {
		execl(program, program, "executed", victim_dir(), NULL);
		victim_die("execl(3)");
	}
	install(false);
	__atomic_store_n(&installed, true, __ATOMIC_RELEASE);
	make(done);
}

static void *thread(void *arg)
{
	const int i = (int)(intptr_t)arg;
	uint64_t v;

	if (i == N_THREADS - 1) {
		char text[16];
		int fd = MUST(open(victim_path("tid"), O_WRONLY | O_CREAT, 0644));

		MUST(write(fd, text, (size_t)sprintf(text, "%d", gettid())));
		close(fd);
		wait_to_go();
	}
	while (read(pipes[i].question[0], &v, sizeof(v)) == sizeof(v)) {
		v = v * 3 + 1;
		MUST(write(pipes[i].answer[1], &v, sizeof(v)));
	}
	return NULL;
}

static void check(void)
{
	static uint64_t number;
	const bool all = __atomic_load_n(&installed, __ATOMIC_ACQUIRE);

	for (int i = 0; i < N_THREADS - !all; i++) {
		uint64_t v = ++number, got = 0;

		MUST(write(pipes[i].question[1], &v, sizeof(v)));
		MUST(read(pipes[i].answer[0], &got, sizeof(got)));
		CHECK(got == v * 3 + 1, "%d says %lu to %lu", i, got, v);
	}
	CHECK(victim_status(getpid(), "Seccomp", 10) == (all || filtered ? 2 : 0), "Seccomp: %lld",
	      victim_status(getpid(), "Seccomp", 10));
}

static void check_executed(void)
{
	CHECK(victim_status(getpid(), "Threads", 10) == 1, "Threads: %lld",
	      victim_status(getpid(), "Threads", 10));
}

static pid_t grandchild;

static void note(const char *name, pid_t pid)
{
	char text[16];
	int fd = MUST(open(victim_path(name), O_WRONLY | O_CREAT | O_EXCL, 0644));

	MUST(write(fd, text, (size_t)sprintf(text, "%d", pid)));
	close(fd);
}

static void check_family(void)
{
	CHECK(!kill(grandchild, 0), "the grandchild is gone");
}

/* The kernel reaps: whoever dies is gone at once. */
static void found_family(void)
{
	int told[2];

	MUST(prctl(PR_SET_CHILD_SUBREAPER, 1));
	signal(SIGCHLD, SIG_IGN);
	MUST(pipe(told));
	const pid_t child = MUST(fork());
	if (!child) {
		const pid_t pid = MUST(fork());

		if (pid)
			MUST(write(told[1], &pid, sizeof(pid)));
		for (;;)
			pause();
	}
	MUST(read(told[0], &grandchild, sizeof(grandchild)));
	close(told[0]);
	close(told[1]);
	note("child", child);
	note("grandchild", grandchild);
}

static void take_number(pid_t pid)
{
	const struct timespec nap = { 0, 1000000 };
	const uint64_t number = (uint64_t)(uintptr_t)&pid;
	/* struct clone_args: only the last two are not 0 */
	uint64_t args[10] = { [8] = number, [9] = 1 };

	if (MUST(syscall(SYS_clone3, args, sizeof(args))))
		exit(0);
	while (access(victim_path("stop"), F_OK) && !access(victim_dir(), F_OK))
		nanosleep(&nap, NULL);
	exit(0);
}

static unsigned long interrupted, woken;

static void *wait_for_events(void *arg)
{
	const int *fds = arg;
	struct epoll_event e;

	for (;;) {
		if (epoll_wait(fds[0], &e, 1, -1) == 1) {
			uint64_t v;

			MUST(read(fds[1], &v, sizeof(v)));
			__atomic_add_fetch(&woken, 1, __ATOMIC_RELEASE);
		} else {
			__atomic_add_fetch(&interrupted, 1, __ATOMIC_RELEASE);
		}
	}
	return NULL;
}

static int waiting[2];

static void check_ignoring(void)
{
	const unsigned long before = __atomic_load_n(&woken, __ATOMIC_ACQUIRE);
	const uint64_t one = 1;

	MUST(write(waiting[1], &one, sizeof(one)));
	while (__atomic_load_n(&woken, __ATOMIC_ACQUIRE) == before)
		usleep(1000);
	CHECK(!__atomic_load_n(&interrupted, __ATOMIC_ACQUIRE), "epoll_wait was interrupted");
}

/* SIGWINCH is ignored by default; the other thread of the two takes what the process gets. */
static void ignore(void)
{
	struct epoll_event e = { .events = EPOLLIN };
	sigset_t all, before;
	pthread_t t;

	signal(SIGUSR2, SIG_IGN);
	waiting[0] = MUST(epoll_create1(0));
	waiting[1] = MUST(eventfd(0, 0));
	MUST(epoll_ctl(waiting[0], EPOLL_CTL_ADD, waiting[1], &e));
	sigfillset(&all);
	sigdelset(&all, SIGWINCH);
	sigdelset(&all, SIGUSR2);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	if (pthread_create(&t, NULL, wait_for_events, waiting))
		victim_die("pthread_create(3)");
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

int main(int argc, char **argv)
{
	if (argc == 4 && !strcmp(argv[1], "number")) {
		const pid_t pid = atoi(argv[2]);

		argv[1] = argv[3];
		victim_init(2, argv);
		take_number(pid);
	}
	if (argc != 3)
		return 2;
	program = argv[0];
	filtered = !strcmp(argv[1], "filtered-exec");
	execs = filtered || !strcmp(argv[1], "exec");
	const bool executed = !strcmp(argv[1], "executed");
	const bool is_family = !strcmp(argv[1], "family"), ignores = !strcmp(argv[1], "ignoring");

	argv[1] = argv[2];
	victim_init(2, argv);
	go = victim_path("go");
	done = victim_path("done");
	if (executed) {
		make(done);
		victim_serve(check_executed);
	}
	if (is_family) {
		found_family();
		victim_ready();
		victim_serve(check_family);
	}
	if (ignores) {
		ignore();
		victim_ready();
		victim_serve(check_ignoring);
	}
	if (filtered)
		install(true);
	for (intptr_t i = 0; i < N_THREADS; i++) {
		pthread_t t;

		MUST(pipe(pipes[i].question));
		MUST(pipe(pipes[i].answer));
		if (pthread_create(&t, NULL, thread, (void *)i))
			victim_die("pthread_create(3)");
	}
	while (access(victim_path("tid"), F_OK))
		usleep(1000);
	victim_ready();
	victim_serve(check);
}
