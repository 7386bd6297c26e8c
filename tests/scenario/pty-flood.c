/* SPDX-License-Identifier: MIT
 * test: verify=no
 *
 * A program that writes to its terminal as fast as it can, and the terminal that reads it: there
 * are always bytes under way, and none may be lost, doubled or overtaken.
 */
#include "victim.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <signal.h>
#include <termios.h>
#include <unistd.h>

static int master;
static atomic_ulong lines;
static atomic_bool wrong;
static char last[64];

static _Noreturn void flood(int slave)
{
	MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
	for (unsigned long n = 0;; n++) {
		char line[64];
		int length = snprintf(line, sizeof(line), "%lu %lx\n", n, victim_word(3, n));
		for (int at = 0; at < length;) {
			ssize_t put = write(slave, line + at, (size_t)(length - at));
			if (put <= 0)
				_exit(1);
			at += (int)put;
		}
	}
}

static void *read_all(void *unused)
{
	FILE *in = fdopen(master, "r");
	char line[64], expected[64];
	for (unsigned long n = 0; in && fgets(line, sizeof(line), in); n++) {
		snprintf(expected, sizeof(expected), "%lu %lx\r\n", n, victim_word(3, n));
		if (strcmp(line, expected) != 0) {
			snprintf(last, sizeof(last), "line %lu: %.40s", n, line);
			break;
		}
		atomic_fetch_add(&lines, 1);
	}
	atomic_store(&wrong, true);
	return NULL;
}

static void check(void)
{
	unsigned long from = atomic_load(&lines);
	while (!atomic_load(&wrong) && atomic_load(&lines) < from + 3000)
		usleep(1000);
	CHECK(!atomic_load(&wrong), "%s", last);
}

int main(int argc, char **argv)
{
	pthread_t thread;
	victim_init(argc, argv);
	master = MUST(posix_openpt(O_RDWR | O_NOCTTY));
	MUST(unlockpt(master));
	int slave = MUST(open(ptsname(master), O_RDWR | O_NOCTTY));
	if (MUST(fork()) == 0)
		flood(slave);
	close(slave);
	MUST_ZERO(pthread_create(&thread, NULL, read_all, NULL));
	check();
	victim_ready();
	victim_serve(check);
}
