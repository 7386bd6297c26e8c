/* SPDX-License-Identifier: MIT */
/* Signals during a run, and while a restored tree is waited for. */
#include <errno.h>
#include <signal.h>

#include "cli.h"

/* A handler has no argument of ours. */
static struct ckpt *volatile running;
static volatile pid_t receiver;

static const int signals[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT };
static const int more_signals[] = { SIGUSR1, SIGUSR2 };

static void on_signal(int sig)
{
	int saved = errno;

	if (receiver > 0)
		kill(receiver, sig);
	else if (running)
		ckpt_cancel(running);
	errno = saved;
}

static void on_pipe(int sig)
{
	/* output that nobody reads must not kill us with a tree in our hands */
	(void)sig;
}

static void catch_signal(int sig, void (*fn)(int))
{
	struct sigaction sa = { .sa_handler = fn, .sa_flags = SA_RESTART };

	sigemptyset(&sa.sa_mask);
	sigaction(sig, &sa, NULL);
}

void cli_catch_signals(struct ckpt *ckpt)
{
	running = ckpt;
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(signals); i++)
		catch_signal(signals[i], on_signal);
	catch_signal(SIGPIPE, on_pipe);
}

void cli_forward_signals(pid_t pid)
{
	receiver = pid;
	for (size_t i = 0; pid && i < CKPT_ARRAY_SIZE(more_signals); i++)
		catch_signal(more_signals[i], on_signal);
}
