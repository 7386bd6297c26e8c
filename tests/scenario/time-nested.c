/* SPDX-License-Identifier: MIT
 *
 * Time namespaces for children only, in user namespaces: as `unshare -UT --fork` has one, in it
 * another like it, and one that was made before the task went to a user namespace of its own. Each
 * process tells its clocks and those of a new child: they go on, never back, and not faster than
 * those of the machine.
 */
#include "victim.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S 1000000000LL

enum { OUTER, INNER, INNERMOST, TURNED, TURNED_CHILD, PROCESSES };

/* What its clocks are ahead of the machine's, and those of its children, in 1000 s. */
static const struct {
	const char *name;
	int self, children;
} processes[PROCESSES] = {
	[OUTER] = { "outer", 0, 1 },
	[INNER] = { "inner", 1, 5 },
	[INNERMOST] = { "innermost", 5, 5 },
	[TURNED] = { "turned", 0, 3 },
	[TURNED_CHILD] = { "child of turned", 3, 3 },
};

struct answer {
	int64_t self[2], newborn[2]; /* monotonic, boottime */
};

static int request[PROCESSES][2], reply[PROCESSES][2];
static struct answer last[PROCESSES];
static int64_t machine_then[2];

static void look(int64_t *out)
{
	struct timespec m, b;

	clock_gettime(CLOCK_MONOTONIC, &m);
	clock_gettime(CLOCK_BOOTTIME, &b);
	out[0] = m.tv_sec * NS_PER_S + m.tv_nsec;
	out[1] = b.tv_sec * NS_PER_S + b.tv_nsec;
}

static void newborn(int64_t *out)
{
	int ends[2];
	pid_t pid;

	MUST(pipe(ends));
	pid = MUST(fork());
	if (pid == 0) {
		int64_t now[2];

		look(now);
		_exit(write(ends[1], now, sizeof(now)) != sizeof(now));
	}
	MUST(read(ends[0], out, 2 * sizeof(*out)));
	close(ends[0]);
	close(ends[1]);
	MUST(waitpid(pid, NULL, 0));
}

static _Noreturn void serve(int number)
{
	char c;

	MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
	while (read(request[number][0], &c, 1) == 1) {
		struct answer a;

		newborn(a.newborn);
		look(a.self);
		if (write(reply[number][1], &a, sizeof(a)) < 0)
			break;
	}
	_exit(1);
}

static void put(const char *name, const char *text)
{
	int fd = MUST(open(name, O_WRONLY));

	MUST(write(fd, text, strlen(text)) == (ssize_t)strlen(text) ? 0 : -1);
	close(fd);
}

static void new_user(void)
{
	MUST(unshare(CLONE_NEWUSER));
	put("/proc/self/uid_map", "0 0 1");
	put("/proc/self/setgroups", "deny");
	put("/proc/self/gid_map", "0 0 1");
}

static void new_time(int number)
{
	char text[80];

	MUST(unshare(CLONE_NEWTIME));
	snprintf(text, sizeof(text), "monotonic %d 5\nboottime %d 7\n",
		 1000 * processes[number].children, 1000 * processes[number].children);
	put("/proc/self/timens_offsets", text);
}

static void build(void)
{
	if (MUST(fork()) == 0) {
		new_user();
		new_time(OUTER);
		if (MUST(fork()))
			serve(OUTER);
		new_user();
		new_time(INNER);
		serve(MUST(fork()) ? INNER : INNERMOST);
	}
	if (MUST(fork()) == 0) {
		new_user();
		new_time(TURNED);
		new_user();
		serve(MUST(fork()) ? TURNED : TURNED_CHILD);
	}
}

static struct answer ask(int number)
{
	struct answer a = { { 0, 0 }, { 0, 0 } };

	if (write(request[number][1], "", 1) != 1 ||
	    read(reply[number][0], &a, sizeof(a)) != sizeof(a))
		victim_fail("%s does not answer", processes[number].name);
	return a;
}

/* One clock between two moments of the machine's. */
static void judge(const char *name, const char *whose, int64_t was, int64_t now, int64_t passed)
{
	CHECK(now >= was, "%s: %s clock has gone back: %lld ns", name, whose,
	      (long long)(now - was));
	CHECK(now - was <= passed, "%s: %s clock is ahead: %lld ns in %lld", name, whose,
	      (long long)(now - was), (long long)passed);
}

static void check(void)
{
	int64_t machine_before[2], machine_now[2];
	struct answer now[PROCESSES];

	look(machine_before);
	for (int i = 0; i < PROCESSES; i++)
		now[i] = ask(i);
	look(machine_now);
	for (int i = 0; i < PROCESSES; i++)
		for (int k = 0; k < 2; k++) {
			const int64_t passed = machine_now[k] - machine_then[k];

			/* where there is no namespace they are the machine's */
			judge(processes[i].name, "its", last[i].self[k], now[i].self[k], passed);
			judge(processes[i].name, "a new child's", last[i].newborn[k],
			      now[i].newborn[k], passed);
		}
	memcpy(last, now, sizeof(last));
	memcpy(machine_then, machine_before, sizeof(machine_then));
}

int main(int argc, char **argv)
{
	int64_t now[2];

	victim_init(argc, argv);
	if (access("/proc/self/timens_offsets", F_OK) < 0)
		victim_skip("no time namespaces");
	for (int i = 0; i < PROCESSES; i++) {
		MUST(pipe(request[i]));
		MUST(pipe(reply[i]));
	}
	build();
	look(machine_then);
	for (int i = 0; i < PROCESSES; i++)
		last[i] = ask(i);
	look(now);
	for (int i = 0; i < PROCESSES; i++) {
		const int64_t ahead = last[i].newborn[0] - now[0];

		CHECK(ahead / (1000 * NS_PER_S) >= processes[i].children - 1 &&
			      ahead / (1000 * NS_PER_S) <= processes[i].children,
		      "%s: its children are %lld ns ahead", processes[i].name, (long long)ahead);
	}
	victim_ready();
	victim_serve(check);
}
