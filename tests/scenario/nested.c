/* SPDX-License-Identifier: MIT
 *
 * Two pid namespaces, one in the other, and in the inner one a busy program with threads, zombies
 *that ended in different ways, a session of its own, a process group, and an orphan whose session
 *leader is dead:
 *
 *	root -> init of the outer namespace -> init of the inner one -> worker -> its children
 *	                                                             -> the orphan
 *
 * The worker looks at all of that from inside when the root asks it through a pipe.
 */
#include "victim.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 6 };

struct answer {
	char text[256]; /* empty: all is well */
};

static int question[2], reply[2];
static pid_t outer_init;

/* the worker's */
static pid_t me, leader, member, exited, killed, orphan, dead_leader;
static atomic_ulong rounds[THREADS];
static unsigned long rounds_seen[THREADS];
static atomic_bool wrong;
static pid_t thread_ids[THREADS];

static _Noreturn void sleep_forever(void)
{
	for (;;)
		pause();
}

static pid_t fork_sleeper(void)
{
	pid_t pid = MUST(fork());
	if (pid == 0)
		sleep_forever();
	return pid;
}

static _Noreturn void *work(void *argument)
{
	size_t index = (uintptr_t)argument;
	pid_t id = gettid();
	thread_ids[index] = id;
	for (;;) {
		unsigned long sum = 0, again = 0;
		for (unsigned long i = 0; i < 5000; i++)
			sum += victim_word(index, i);
		for (unsigned long i = 0; i < 5000; i++)
			again += victim_word(index, i);
		struct timespec time = { .tv_nsec = 1000000 };
		if (sum != again || gettid() != id || (index % 2 && nanosleep(&time, NULL) < 0))
			atomic_store(&wrong, true);
		atomic_fetch_add(&rounds[index], 1);
	}
}

static void start_threads(void)
{
	pthread_t thread;
	for (size_t i = 0; i < THREADS; i++)
		MUST_ZERO(pthread_create(&thread, NULL, work, (void *)(uintptr_t)i));
}

static void make_zombies(void)
{
	siginfo_t info;
	exited = MUST(fork());
	if (exited == 0)
		_exit(3);
	killed = fork_sleeper();
	MUST(kill(killed, SIGTERM));
	MUST(waitid(P_PID, (id_t)exited, &info, WEXITED | WNOWAIT));
	MUST(waitid(P_PID, (id_t)killed, &info, WEXITED | WNOWAIT));
}

static void make_sessions(void)
{
	leader = MUST(fork());
	if (leader == 0) {
		MUST(setsid());
		sleep_forever();
	}
	member = fork_sleeper();
	MUST(setpgid(member, member));
	while (getsid(leader) != leader)
		sched_yield();
}

/* The leader of the orphan's session dies and is reaped; the orphan falls to the namespace's init.
 */
static void make_orphan(void)
{
	int ends[2];
	MUST(pipe(ends));
	dead_leader = MUST(fork());
	if (dead_leader == 0) {
		MUST(setsid());
		pid_t pid = MUST(fork());
		if (pid == 0) {
			close(ends[0]);
			close(ends[1]);
			sleep_forever();
		}
		MUST(write(ends[1], &pid, sizeof(pid)));
		_exit(0);
	}
	MUST(read(ends[0], &orphan, sizeof(orphan)));
	MUST(waitpid(dead_leader, NULL, 0));
	close(ends[0]);
	close(ends[1]);
}

static void check_zombie(pid_t pid, int code, int status)
{
	siginfo_t info = { 0 };
	if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT | WNOHANG) < 0)
		victim_fail("zombie %d: %s", pid, strerror(errno));
	else
		CHECK(info.si_pid == pid && info.si_code == code && info.si_status == status,
		      "zombie %d: pid %d, code %d, status %d", pid, info.si_pid, info.si_code,
		      info.si_status);
}

static void check_inside(void)
{
	CHECK(getpid() == me && syscall(SYS_gettid) == me, "pid %d, tid %ld, were %d", getpid(),
	      syscall(SYS_gettid), me);
	CHECK(getppid() == 1, "parent %d", getppid());
	CHECK(getsid(0) == me && getpgid(0) == me, "session %d, group %d of %d", getsid(0),
	      getpgid(0), me);
	CHECK(getsid(leader) == leader && getpgid(leader) == leader, "leader %d: session %d",
	      leader, getsid(leader));
	CHECK(getsid(member) == me && getpgid(member) == member, "member %d: session %d, group %d",
	      member, getsid(member), getpgid(member));
	CHECK(getsid(orphan) == dead_leader && getpgid(orphan) == dead_leader,
	      "orphan %d: session %d, group %d, were %d", orphan, getsid(orphan), getpgid(orphan),
	      dead_leader);
	CHECK(kill(dead_leader, 0) < 0 && errno == ESRCH, "the dead leader %d lives", dead_leader);
	check_zombie(exited, CLD_EXITED, 3);
	check_zombie(killed, CLD_KILLED, SIGTERM);
	CHECK(!atomic_load(&wrong), "a thread saw what it should not");
	for (size_t i = 0; i < THREADS; i++) {
		CHECK(victim_goes_on(&rounds[i], rounds_seen[i]), "thread %d has stopped",
		      thread_ids[i]);
		CHECK(syscall(SYS_tgkill, me, thread_ids[i], 0) == 0, "thread %d is gone",
		      thread_ids[i]);
		rounds_seen[i] = atomic_load(&rounds[i]);
	}
}

static _Noreturn void worker(void)
{
	MUST(setsid());
	me = getpid();
	make_sessions();
	make_orphan();
	make_zombies();
	start_threads();
	/* the first answer says that all this stands */
	for (struct answer answer = { 0 };;) {
		char byte;
		MUST(write(reply[1], &answer, sizeof(answer)));
		MUST(read(question[0], &byte, 1));
		snprintf(answer.text, sizeof(answer.text), "%s", victim_judge(check_inside));
	}
}

/* The first process of a new namespace; what it starts is the rest of its life. */
static pid_t start_namespace(void (*init)(void))
{
	pid_t pid = (pid_t)syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0);
	if (pid == 0) {
		MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
		init();
		sleep_forever();
	}
	return pid;
}

static void inner(void)
{
	if (MUST(fork()) == 0)
		worker();
}

static void outer(void)
{
	MUST(start_namespace(inner));
}

static void check(void)
{
	struct answer answer = { .text = "no answer" };
	CHECK(kill(outer_init, 0) == 0, "the outer init is gone");
	if (write(question[1], "?", 1) != 1 ||
	    read(reply[0], &answer, sizeof(answer)) != sizeof(answer))
		victim_fail("the worker does not answer: %s", strerror(errno));
	CHECK(!answer.text[0], "%s", answer.text);
}

int main(int argc, char **argv)
{
	struct answer ready;
	victim_init(argc, argv);
	MUST(pipe(question));
	MUST(pipe(reply));
	outer_init = start_namespace(outer);
	if (outer_init < 0)
		victim_skip("pid namespaces: %s", strerror(errno));
	MUST(read(reply[0], &ready, sizeof(ready)));
	victim_ready();
	victim_serve(check);
}
