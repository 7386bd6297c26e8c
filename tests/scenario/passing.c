/* SPDX-License-Identifier: MIT
 *
 * test: only=refuse
 *
 * passing WHAT DIR: with its first check it comes to what cannot be saved, with the next that
 * passes, and so on.
 */
#include "victim.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int watcher, file, listener, client, ends[2];

/* ---- an event that nobody has read ------------------------------------------------------- */

static void event_init(void)
{
	file = MUST(open(victim_path("file"), O_RDWR | O_CREAT, 0644));
	watcher = MUST(inotify_init1(IN_NONBLOCK));
	MUST(inotify_add_watch(watcher, victim_path("file"), IN_MODIFY));
}

static void event_come(void)
{
	CHECK(pwrite(file, "x", 1, 0) == 1, "pwrite: %s", strerror(errno));
}

static void event_go(void)
{
	struct inotify_event event;

	CHECK(read(watcher, &event, sizeof(event)) == sizeof(event), "no event: %s",
	      strerror(errno));
}

/* ---- a connection that has sent something before it was accepted ---------------------------- */

static struct sockaddr_un address = { .sun_family = AF_UNIX };

static void connection_init(void)
{
	snprintf(address.sun_path, sizeof(address.sun_path), "%s", victim_path("socket"));
	listener = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
	MUST(bind(listener, (struct sockaddr *)&address, sizeof(address)));
	MUST(listen(listener, 1));
}

static void connection_come(void)
{
	client = socket(AF_UNIX, SOCK_STREAM, 0);
	CHECK(connect(client, (struct sockaddr *)&address, sizeof(address)) == 0 &&
		      write(client, "x", 1) == 1,
	      "connecting: %s", strerror(errno));
}

static void connection_go(void)
{
	int peer = accept(listener, NULL, NULL);
	char c = 0;

	CHECK(read(peer, &c, 1) == 1 && c == 'x', "what was sent: %d", c);
	close(peer);
	close(client);
}

/* ---- sockets of a process that has ended, as a browser has them of a tab that is closed -------
 */

static void creator_come(void)
{
	/* a child with our descriptors, but memory of its own */
	pid_t pid = (pid_t)syscall(SYS_clone, CLONE_FILES | SIGCHLD, NULL, NULL, NULL, NULL);

	if (!pid) {
		int pair[2];

		_exit(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) || dup2(pair[0], 100) < 0 ||
		      dup2(pair[1], 101) < 0 || close(pair[0]) || close(pair[1]));
	}
	CHECK(waitpid(pid, NULL, 0) == pid, "waitpid: %s", strerror(errno));
	ends[0] = 100;
	ends[1] = 101;
	CHECK(write(ends[0], "x", 1) == 1, "write: %s", strerror(errno));
}

static void creator_go(void)
{
	char c = 0;

	CHECK(read(ends[1], &c, 1) == 1 && c == 'x', "what was sent: %d", c);
	close(ends[0]);
	close(ends[1]);
}

/* ---- timers that go off one after the other, once, or again when nobody waits any more ---- */

enum { TIMERS = 400, APART_NS = 1000000, AGAIN_S = 100000 };

static timer_t timers[TIMERS];
static time_t again;

static void timer_init(void)
{
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN };
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN);
	MUST(sigprocmask(SIG_BLOCK, &set, NULL));
	for (int i = 0; i < TIMERS; i++)
		MUST(timer_create(CLOCK_MONOTONIC, &event, &timers[i]));
}

static void periodic_init(void)
{
	again = AGAIN_S;
	timer_init();
}

static void timer_come(void)
{
	for (int i = 0; i < TIMERS; i++) {
		const struct itimerspec soon = {
			.it_value.tv_nsec = (i + 1L) * APART_NS,
			.it_interval.tv_sec = again,
		};

		CHECK(timer_settime(timers[i], 0, &soon, NULL) == 0, "timer_settime: %s",
		      strerror(errno));
	}
}

static void timer_go(void)
{
	const struct timespec patience = { .tv_sec = 30 };
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN);
	for (int i = 0; i < TIMERS; i++)
		CHECK(sigtimedwait(&set, NULL, &patience) == SIGRTMIN, "signal %d does not come",
		      i);
}

/* ---- a process that shares the working directory in a user namespace, as browsers have ------ */

static pid_t helper;

static void helper_init(void)
{
	MUST(unshare(CLONE_NEWUSER));
}

static void helper_come(void)
{
	helper = (pid_t)syscall(SYS_clone, CLONE_FS | SIGCHLD, NULL, NULL, NULL, NULL);
	if (!helper)
		for (;;)
			pause();
	CHECK(helper > 0, "clone: %s", strerror(errno));
}

static void helper_go(void)
{
	CHECK(kill(helper, SIGKILL) == 0 && waitpid(helper, NULL, 0) == helper, "the helper: %s",
	      strerror(errno));
}

static const struct passing {
	const char *name;
	void (*init)(void), (*come)(void), (*go)(void);
} all[] = {
	{ "event", event_init, event_come, event_go },
	{ "connection", connection_init, connection_come, connection_go },
	{ "creator", NULL, creator_come, creator_go },
	{ "helper", helper_init, helper_come, helper_go },
	{ "timer", timer_init, timer_come, timer_go },
	{ "periodic", periodic_init, timer_come, timer_go },
}, *what;

static void check(void)
{
	static bool there;

	(there ? what->go : what->come)();
	there = !there;
}

int main(int argc, char **argv)
{
	victim_init(argc - 1, argv + 1);
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (!strcmp(argv[1], all[i].name))
			what = &all[i];
	if (!what)
		victim_die("passing WHAT DIR");
	if (what->init)
		what->init();
	victim_ready();
	victim_serve(check);
}
