/* SPDX-License-Identifier: MIT */
/*
 * Five hundred threads, as of a server: each with its name, mask, memory of its own
 * and place to wait. A check lets all of them take one step.
 */
#include "victim.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { THREADS = 500, STACK = 64 << 10 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t begin = PTHREAD_COND_INITIALIZER, done = PTHREAD_COND_INITIALIZER;
static unsigned round_number, finished;
static pid_t tids[THREADS];
static pthread_t threads[THREADS];
static __thread unsigned steps;
static __thread unsigned long own;

static int own_signal(unsigned i)
{
	return SIGRTMIN + (int)(i % 29);
}

static sigset_t mask_of(unsigned i)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigaddset(&set, own_signal(i));
	return set;
}

/* Everything that this thread knows of itself. */
static void judge(unsigned i)
{
	const sigset_t want = mask_of(i);
	char name[16] = "", expected[16];
	sigset_t set;

	snprintf(expected, sizeof(expected), "worker %u", i);
	pthread_getname_np(pthread_self(), name, sizeof(name));
	pthread_sigmask(SIG_SETMASK, NULL, &set);
	CHECK(!strcmp(name, expected), "thread %u is called %s", i, name);
	CHECK(syscall(SYS_gettid) == tids[i], "thread %u is %ld, was %d", i, syscall(SYS_gettid),
	      tids[i]);
	for (int sig = 1; sig < SIGRTMAX; sig++)
		CHECK(sigismember(&set, sig) == sigismember(&want, sig),
		      "thread %u: signal %d in its mask", i, sig);
	CHECK(steps == round_number, "thread %u: step %u in round %u", i, steps, round_number);
	CHECK(own == victim_word(i, steps), "thread %u: its memory has changed", i);
}

/* Half of them wait for a condition, half for a signal of their own. Comes back with the lock. */
static void wait_for(unsigned i, unsigned seen)
{
	sigset_t set = mask_of(i);
	siginfo_t info;
	int sig;

	sigdelset(&set, SIGUSR1);
	sig = i % 2 ? sigwaitinfo(&set, &info) : own_signal(i);

	pthread_mutex_lock(&lock);
	CHECK(sig == own_signal(i), "thread %u: signal %d, %s", i, sig, strerror(errno));
	while (round_number == seen)
		pthread_cond_wait(&begin, &lock);
}

static _Noreturn void *worker(void *number)
{
	const unsigned i = (unsigned)(unsigned long)number;
	const sigset_t set = mask_of(i);
	char name[16];

	snprintf(name, sizeof(name), "worker %u", i);
	pthread_setname_np(pthread_self(), name);
	pthread_sigmask(SIG_SETMASK, &set, NULL);
	tids[i] = (pid_t)syscall(SYS_gettid);
	own = victim_word(i, 0);
	for (;;) {
		pthread_mutex_lock(&lock);
		if (++finished == THREADS)
			pthread_cond_signal(&done);
		pthread_mutex_unlock(&lock);
		wait_for(i, steps);
		own = victim_word(i, ++steps);
		judge(i);
		pthread_mutex_unlock(&lock);
	}
}

static void wait_for_all(void)
{
	pthread_mutex_lock(&lock);
	while (finished < THREADS)
		pthread_cond_wait(&done, &lock);
	pthread_mutex_unlock(&lock);
}

static void check(void)
{
	pthread_mutex_lock(&lock);
	round_number++;
	finished = 0;
	pthread_cond_broadcast(&begin);
	pthread_mutex_unlock(&lock);
	for (unsigned i = 1; i < THREADS; i += 2)
		pthread_kill(threads[i], own_signal(i));
	wait_for_all();
	victim_settle();
}

int main(int argc, char **argv)
{
	pthread_attr_t attr;

	victim_init(argc, argv);
	MUST_ZERO(pthread_attr_init(&attr));
	MUST_ZERO(pthread_attr_setstacksize(&attr, STACK));
	for (unsigned long i = 0; i < THREADS; i++)
		MUST_ZERO(pthread_create(&threads[i], &attr, worker, (void *)i));
	wait_for_all();
	victim_settle();
	victim_ready();
	victim_serve(check);
}
