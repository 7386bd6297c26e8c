/* SPDX-License-Identifier: MIT
 *
 * Pid namespaces that nobody is in, for children to come: of a process, of one in a user namespace,
 * of one that went to a user namespace afterwards, of a thread alone; and one whose first process
 * has ended. The first child of each is its pid 1, and there is no second.
 */
#include "victim.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PLAIN, NESTED, OUTER, THREAD, ENDED, PROCESSES };
enum { ANSWER = 80 };

static const char *const names[PROCESSES] = {
	[PLAIN] = "plain",   [NESTED] = "nested", [OUTER] = "outer",
	[THREAD] = "thread", [ENDED] = "ended",
};

static int request[PROCESSES][2], reply[PROCESSES][2];

static bool has_link(void)
{
	char link[64];

	return readlink("/proc/thread-self/ns/pid_for_children", link, sizeof(link)) > 0;
}

/* What a child is there; -1: there is none. */
static int born(void)
{
	pid_t pid = fork();
	int status = 0;

	if (pid == 0)
		_exit(getpid() & 0x7f);
	if (pid < 0 || waitpid(pid, &status, 0) < 0)
		return -1;
	return WEXITSTATUS(status);
}

/* NULL, or what is wrong. One that was used is replaced, so that it can be asked again. */
static const char *judge(int which)
{
	int own;

	if (which == ENDED)
		return !has_link() ? "it has no link" : born() != -1 ? "a child was born" : NULL;
	if (has_link())
		return "somebody was in it";
	/* it could not go back from there */
	if (which == OUTER)
		return NULL;
	if (born() != 1)
		return "its first child is not pid 1";
	if (born() != -1 || !has_link())
		return "it has a second child";
	own = MUST(open("/proc/thread-self/ns/pid", O_RDONLY | O_CLOEXEC));
	MUST(setns(own, CLONE_NEWPID));
	MUST(unshare(CLONE_NEWPID));
	close(own);
	return NULL;
}

static _Noreturn void serve(int which)
{
	char c;

	while (read(request[which][0], &c, 1) == 1) {
		const char *wrong = judge(which);
		char text[ANSWER] = "";

		if (wrong)
			snprintf(text, sizeof(text), "%s", wrong);
		if (write(reply[which][1], text, sizeof(text)) < 0)
			break;
	}
	_exit(1);
}

static void *be_thread(void *arg)
{
	(void)arg;
	MUST(unshare(CLONE_NEWPID));
	serve(THREAD);
	return NULL;
}

static _Noreturn void be(int which)
{
	pthread_t thread;

	MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
	if (which == THREAD) {
		MUST_ZERO(pthread_create(&thread, NULL, be_thread, NULL));
		for (;;)
			pause();
	}
	/* in one of its own, to which it may go back */
	if (which == NESTED) {
		MUST(unshare(CLONE_NEWUSER | CLONE_NEWPID));
		if (MUST(fork()))
			for (;;)
				pause();
		MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
	}
	MUST(unshare(CLONE_NEWPID));
	if (which == OUTER)
		MUST(unshare(CLONE_NEWUSER));
	if (which == ENDED)
		MUST(born());
	serve(which);
}

static void check(void)
{
	for (int i = 0; i < PROCESSES; i++) {
		char text[ANSWER] = "no answer";

		if (write(request[i][1], "", 1) != 1 ||
		    read(reply[i][0], text, sizeof(text)) != sizeof(text))
			victim_fail("%s does not answer", names[i]);
		CHECK(!text[0], "%s: %s", names[i], text);
	}
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	for (int i = 0; i < PROCESSES; i++) {
		MUST(pipe(request[i]));
		MUST(pipe(reply[i]));
		if (MUST(fork()) == 0)
			be(i);
	}
	check();
	victim_ready();
	victim_serve(check);
}
