/* SPDX-License-Identifier: MIT */
/* Signals during a run, and while a restored tree is waited for. */
#include <errno.h>
#include <signal.h>

#include "cli.h"

/* A handler has no argument of ours. */
static struct ckpt *volatile running;
static volatile pid_t receiver;
static volatile sig_atomic_t noted;

static const int signals[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT };
static const int more_signals[] = { SIGUSR1, SIGUSR2 };
/* a write that fails says why; output that nobody reads must not kill us with a tree in our hands
 */
static const int no_deaths[] = { SIGPIPE, SIGXFSZ };
/* a tree that stands must not wait for somebody to let us go on */
static const int stops[] = { SIGTSTP, SIGTTIN, SIGTTOU };

static void on_signal(int sig)
{
	int saved = errno;

	if (receiver > 0) {
		kill(receiver, sig);
	} else if (running) {
		noted = sig;
		ckpt_cancel(running);
	}
	errno = saved;
}

static void on_nothing(int sig)
{
	(void)sig;
}

/* What we were started to ignore stays so: nohup(1), jobs in a script's background. */
static void catch_signal(int sig, void (*fn)(int))
{
	struct sigaction sa = { .sa_handler = fn, .sa_flags = SA_RESTART }, old;

	sigemptyset(&sa.sa_mask);
	if (!sigaction(sig, NULL, &old) && old.sa_handler != SIG_IGN)
		sigaction(sig, &sa, NULL);
}

static void hold_stops(int how)
{
	sigset_t set;

	sigemptyset(&set);
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(stops); i++)
		sigaddset(&set, stops[i]);
	sigprocmask(how, &set, NULL);
}

void cli_catch_signals(struct ckpt *ckpt)
{
	running = ckpt;
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(signals); i++)
		catch_signal(signals[i], on_signal);
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(no_deaths); i++)
		catch_signal(no_deaths[i], on_nothing);
	hold_stops(SIG_BLOCK);
}

void cli_forward_signals(pid_t pid)
{
	receiver = pid;
	hold_stops(SIG_UNBLOCK);
	for (size_t i = 0; pid && i < CKPT_ARRAY_SIZE(more_signals); i++)
		catch_signal(more_signals[i], on_signal);
	/* it came when it was too late to cancel, and is the tree's as much as one that comes later
	 */
	if (pid && noted)
		kill(pid, noted);
}
