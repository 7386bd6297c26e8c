/* SPDX-License-Identifier: MIT */
/*
 * POSIX timers on the CPU clocks of the process and of its threads, by any of their names, as
 * watchdogs and profilers have them. They go off when, and only when, whose clock it is works.
 *
 * test: verify=no
 */
#include "victim.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>

enum { PROCESS, PROCESS_BY_NUMBER, MAIN, OTHER, OTHER_TO_OTHER, TIMERS, STEP_NS = 10000000 };

static volatile sig_atomic_t seen[TIMERS];
static volatile sig_atomic_t astray;
static sem_t work, worked;
static pthread_t other;
static pid_t other_tid;

static void count(int signo, siginfo_t *info, void *context)
{
	const int which = info->si_value.sival_int;

	(void)signo;
	(void)context;
	seen[which]++;
	if (which == OTHER_TO_OTHER && syscall(SYS_gettid) != other_tid)
		astray = 1;
}

static long long worked_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void burn(void)
{
	const long long end = worked_ns() + 12LL * STEP_NS;

	while (worked_ns() < end)
		;
}

static void *other_thread(void *arg)
{
	(void)arg;
	other_tid = (pid_t)syscall(SYS_gettid);
	sem_post(&worked);
	for (;;) {
		while (sem_wait(&work))
			;
		burn();
		sem_post(&worked);
	}
	return NULL;
}

static void wait_for_other(void)
{
	while (sem_wait(&worked))
		;
}

static void make(int which, clockid_t clock)
{
	const struct itimerspec step = { { 0, STEP_NS }, { 0, STEP_NS } };
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL,
				  .sigev_signo = SIGRTMIN + which,
				  .sigev_value.sival_int = which };
	const struct sigaction action = { .sa_sigaction = count,
					  .sa_flags = SA_SIGINFO | SA_RESTART };
	timer_t timer;

	if (which == OTHER_TO_OTHER) {
		event.sigev_notify = SIGEV_THREAD_ID;
		event._sigev_un._tid = other_tid;
	}
	MUST(sigaction(SIGRTMIN + which, &action, NULL));
	MUST(timer_create(clock, &event, &timer));
	MUST(timer_settime(timer, 0, &step, NULL));
}

static void check_counts(const char *who, const bool expected[TIMERS])
{
	for (int i = 0; i < TIMERS; i++) {
		CHECK(!expected[i] || seen[i] >= 3, "%s worked: timer %d went off %d times", who, i,
		      (int)seen[i]);
		CHECK(expected[i] || seen[i] <= 2, "%s worked, timer %d went off %d times", who, i,
		      (int)seen[i]);
		seen[i] = 0;
	}
}

static void check(void)
{
	for (int i = 0; i < TIMERS; i++)
		seen[i] = 0;
	burn();
	check_counts("the main thread", (bool[]){ true, true, true, false, false });
	sem_post(&work);
	wait_for_other();
	check_counts("the other thread", (bool[]){ true, true, false, true, true });
	CHECK(!astray, "a signal for the other thread came elsewhere");
}

int main(int argc, char **argv)
{
	clockid_t clock;

	victim_init(argc, argv);
	sem_init(&work, 0, 0);
	sem_init(&worked, 0, 0);
	if (pthread_create(&other, NULL, other_thread, NULL))
		victim_die("pthread_create");
	wait_for_other();
	make(PROCESS, CLOCK_PROCESS_CPUTIME_ID);
	if (clock_getcpuclockid(getpid(), &clock))
		victim_die("clock_getcpuclockid");
	make(PROCESS_BY_NUMBER, clock);
	if (pthread_getcpuclockid(pthread_self(), &clock))
		victim_die("pthread_getcpuclockid");
	make(MAIN, clock);
	if (pthread_getcpuclockid(other, &clock))
		victim_die("pthread_getcpuclockid");
	make(OTHER, clock);
	make(OTHER_TO_OTHER, clock);
	victim_ready();
	victim_serve(check);
}
