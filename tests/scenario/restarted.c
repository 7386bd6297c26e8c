/* SPDX-License-Identifier: MIT */
/*
 * Threads that wait by syscall(3), whose code does not tell for what, and that were stopped and
 * continued meanwhile: all that is left to see is restart_syscall(2) and its arguments.
 */
#include "victim.h"

#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define HOUR 3600

static struct sleeper {
	pthread_t thread;
	pid_t tid;
	unsigned long rounds; /* of calls that have ended as they must */
	long result;
	int error;
} sleepers[4];

static pthread_cond_t begun = PTHREAD_COND_INITIALIZER;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t word;
static int ends[2];
static struct timespec left[2];

/* What number i waits in. Nothing around its arguments is left to chance. */
static long wait_in(size_t i)
{
	static const struct timespec hour = { .tv_sec = HOUR };
	struct pollfd fds[2] = { { .fd = ends[0], .events = POLLIN }, { .fd = -1 } };

	switch (i) {
	case 0:
		return syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, word, &hour, NULL, 0);
	case 1:
		return syscall(SYS_poll, fds, 2, HOUR * 1000, NULL, NULL, NULL);
	case 2:
		return syscall(SYS_nanosleep, &hour, &left[0], 0, 0, 0, 0);
	default:
		return syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &hour, &left[1], 0, 0);
	}
}

static void *sleeper(void *arg)
{
	struct sleeper *s = arg;

	for (;;) {
		pthread_mutex_lock(&lock);
		s->tid = gettid();
		pthread_cond_signal(&begun);
		pthread_mutex_unlock(&lock);
		errno = 0;
		s->result = wait_in((size_t)(s - sleepers));
		s->error = errno;
		__atomic_add_fetch(&s->rounds, 1, __ATOMIC_RELEASE);
	}
	return NULL;
}

static void interrupt(int sig)
{
	(void)sig;
}

/* Is it in that call? */
static bool is_in(pid_t tid, long nr)
{
	char path[64], *text;
	bool found;

	snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", tid);
	text = victim_read(path);
	found = text && strtol(text, NULL, 10) == nr && text[0] != 'r';
	free(text);
	return found;
}

static bool stands_still(pid_t pid)
{
	char path[32], *text, *state;
	bool found;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	text = victim_read(path);
	state = text ? strrchr(text, ')') : NULL;
	found = state && state[2] == 'T';
	free(text);
	return found;
}

/* Whoever sleeps is in restart_syscall(2) then. */
static void stop_and_go(void)
{
	static const long calls[] = { SYS_futex, SYS_poll, SYS_nanosleep, SYS_clock_nanosleep };
	const pid_t parent = getpid();
	pid_t child;

	for (size_t i = 0; i < 4; i++)
		while (!is_in(sleepers[i].tid, calls[i]))
			usleep(1000);
	child = MUST(fork());
	if (!child) {
		kill(parent, SIGSTOP);
		while (!stands_still(parent))
			usleep(1000);
		kill(parent, SIGCONT);
		_exit(0);
	}
	while (waitpid(child, NULL, 0) < 0)
		if (errno != EINTR)
			victim_die("waitpid: %s", strerror(errno));
	for (size_t i = 0; i < 4; i++)
		while (!is_in(sleepers[i].tid, SYS_restart_syscall))
			usleep(1000);
}

/* Ends the call of number i. */
static void end(size_t i)
{
	switch (i) {
	case 0:
		word++;
		MUST(syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0));
		break;
	case 1:
		MUST(write(ends[1], "x", 1));
		break;
	default:
		pthread_kill(sleepers[i].thread, SIGUSR2);
	}
}

static void check_sleeper(size_t i)
{
	struct sleeper *s = &sleepers[i];
	const unsigned long before = __atomic_load_n(&s->rounds, __ATOMIC_ACQUIRE);
	char c;

	end(i);
	CHECK(victim_goes_on(&s->rounds, before), "call %zu does not end", i);
	if (i == 1) {
		CHECK(s->result == 1 && read(ends[0], &c, 1) == 1, "poll: %ld, %s", s->result,
		      strerror(s->error));
		/* it may have looked again before that was read */
		return;
	}
	if (i == 0) {
		CHECK(!s->result, "futex: %ld, %s", s->result, strerror(s->error));
		return;
	}
	CHECK(s->result == -1 && s->error == EINTR, "sleep %zu: %ld, %s", i, s->result,
	      strerror(s->error));
	CHECK(left[i - 2].tv_sec > HOUR / 2 && left[i - 2].tv_sec < HOUR,
	      "sleep %zu: %ld s are left", i, (long)left[i - 2].tv_sec);
}

static void check(void)
{
	for (size_t i = 0; i < 4; i++)
		check_sleeper(i);
	stop_and_go();
}

int main(int argc, char **argv)
{
	struct sigaction act = { .sa_handler = interrupt };

	victim_init(argc, argv);
	MUST(pipe(ends));
	MUST(sigaction(SIGUSR2, &act, NULL));
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < 4; i++) {
		MUST_ZERO(pthread_create(&sleepers[i].thread, NULL, sleeper, &sleepers[i]));
		while (!sleepers[i].tid)
			pthread_cond_wait(&begun, &lock);
	}
	pthread_mutex_unlock(&lock);
	stop_and_go();
	victim_ready();
	victim_serve(check);
}
