/* SPDX-License-Identifier: MIT */
/* What is done about SIGTRAP, the signal of debuggers: here a handler, in a child ignored. */
#include "victim.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

static volatile sig_atomic_t traps;
static int checks;
static pid_t child;

static void on_trap(int sig)
{
	(void)sig;
	traps++;
}

static void check(void)
{
	checks++;
	CHECK(!raise(SIGTRAP) && traps == checks, "%d traps, not %d", (int)traps, checks);
	CHECK(!kill(child, SIGTRAP) && !usleep(1000) && victim_status(child, "SigIgn", 16) & 0x10,
	      "the child does not ignore SIGTRAP");
}

int main(int argc, char **argv)
{
	struct sigaction handler = { .sa_handler = on_trap }, ignore = { .sa_handler = SIG_IGN };

	victim_init(argc, argv);
	MUST(sigaction(SIGTRAP, &ignore, NULL));
	child = MUST(fork());
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	MUST(sigaction(SIGTRAP, &handler, NULL));
	victim_ready();
	victim_serve(check);
}
