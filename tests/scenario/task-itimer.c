/* SPDX-License-Identifier: MIT */
/*
 * A periodic interval timer that has gone off: it is started again when its signal is taken, and
 * until then shows nothing but its interval.
 */
#include "victim.h"

#include <signal.h>
#include <sys/time.h>
#include <time.h>

static sigset_t alarm_set;

static bool take(void)
{
	const struct timespec patience = { .tv_sec = 30 };

	return sigtimedwait(&alarm_set, NULL, &patience) == SIGALRM;
}

static void wait_until_gone_off(void)
{
	const struct timespec moment = { .tv_nsec = 1000000 };
	struct itimerval v;

	do {
		nanosleep(&moment, NULL);
		MUST(getitimer(ITIMER_REAL, &v));
	} while (v.it_value.tv_sec || v.it_value.tv_usec);
}

static void check(void)
{
	struct itimerval v;
	sigset_t pending;

	CHECK(!getitimer(ITIMER_REAL, &v) && v.it_interval.tv_usec == 20000,
	      "its interval is %ld us", (long)v.it_interval.tv_usec);
	CHECK(!sigpending(&pending) && sigismember(&pending, SIGALRM), "its signal is not pending");
	for (int i = 0; i < 3; i++)
		CHECK(take(), "signal %d does not come", i);
	wait_until_gone_off();
}

int main(int argc, char **argv)
{
	const struct itimerval periodic = { { 0, 20000 }, { 0, 20000 } };

	victim_init(argc, argv);
	sigemptyset(&alarm_set);
	sigaddset(&alarm_set, SIGALRM);
	MUST(sigprocmask(SIG_BLOCK, &alarm_set, NULL));
	MUST(setitimer(ITIMER_REAL, &periodic, NULL));
	wait_until_gone_off();
	victim_ready();
	victim_serve(check);
}
