/* SPDX-License-Identifier: MIT */
/*
 * Containers in containers: pid namespaces of user namespaces three deep, siblings, several of one
 * user namespace, one for children only, with threads at every level. Each process tells its ids on
 * all levels.
 */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "victim.h"

#define TEXT 16384

enum { INIT1, WORKER1, INIT2, WORKER2, INIT3, SIBLING, SECOND, UNSHARED, UNSHARED_INIT, SLOTS };

static const char *const names[SLOTS] = {
	"init 1",  "worker 1", "init 2",   "worker 2",	       "init 3",
	"sibling", "second",   "unshared", "init of unshared",
};

static struct {
	int request[2], reply[2];
	char *told;
} slots[SLOTS];

static void *idle(void *arg)
{
	(void)arg;
	for (;;)
		pause();
	return NULL;
}

static void start_threads(int n)
{
	pthread_t thread;

	for (int i = 0; i < n; i++)
		MUST_ZERO(pthread_create(&thread, NULL, idle, NULL));
}

static void put(pid_t pid, const char *name, const char *text)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	fd = MUST(open(path, O_WRONLY));
	MUST(write(fd, text, strlen(text)) == (ssize_t)strlen(text) ? 0 : -1);
	close(fd);
}

/* ---- telling ---------------------------------------------------------------------------- */

static size_t add_ids(char *text, size_t at, const char *path)
{
	static const char *const keys[] = { "Uid",    "Gid",   "NStgid", "NSpid",
					    "NSpgid", "NSsid", "PPid",	 "CapEff" };
	char *content = victim_read(path), *save = NULL;

	for (char *line = content ? strtok_r(content, "\n", &save) : NULL; line;
	     line = strtok_r(NULL, "\n", &save))
		for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
			if (!strncmp(line, keys[i], strlen(keys[i])))
				at += (size_t)snprintf(text + at, TEXT - at, "%s\n", line);
	free(content);
	return at;
}

static void describe(char *text)
{
	struct dirent **tids;
	struct utsname host;
	char path[300];
	char *map = victim_read("/proc/self/uid_map");
	int n = scandir("/proc/self/task", &tids, NULL, alphasort);
	size_t at;

	memset(text, 0, TEXT);
	uname(&host);
	at = (size_t)snprintf(text, TEXT, "pid %d parent %d group %d session %d host %s map %s",
			      getpid(), getppid(), getpgid(0), getsid(0), host.nodename, map);
	free(map);
	for (int i = 0; i < n; i++) {
		snprintf(path, sizeof(path), "/proc/self/task/%s/status", tids[i]->d_name);
		if (tids[i]->d_name[0] != '.')
			at = add_ids(text, at, path);
		free(tids[i]);
	}
	free(tids);
}

static _Noreturn void serve(int slot)
{
	static char text[TEXT];
	char c;

	MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
	while (read(slots[slot].request[0], &c, 1) == 1) {
		describe(text);
		for (size_t done = 0; done < TEXT;) {
			ssize_t n = write(slots[slot].reply[1], text + done, TEXT - done);

			if (n <= 0)
				_exit(1);
			done += (size_t)n;
		}
	}
	_exit(0);
}

static char *ask(int slot)
{
	char *text = calloc(1, TEXT + 1);
	size_t done = 0;
	ssize_t n = write(slots[slot].request[1], "", 1);

	while (n > 0 && done < TEXT) {
		n = read(slots[slot].reply[0], text + done, TEXT - done);
		done += n > 0 ? (size_t)n : 0;
	}
	return text;
}

/* ---- building ---------------------------------------------------------------------------- */

/* A child that is pid 1 of a pid namespace, and root of a user namespace if it has a map. */
static pid_t container(const char *map, const char *host)
{
	const unsigned long flags = CLONE_NEWPID | CLONE_NEWUTS | (map ? CLONE_NEWUSER : 0);
	int go[2];
	pid_t pid;
	char c;

	MUST(pipe(go));
	pid = (pid_t)MUST(syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0));
	if (pid == 0) {
		close(go[1]);
		MUST(read(go[0], &c, 1));
		close(go[0]);
		if (map) {
			MUST(setresgid(0, 0, 0));
			MUST(setresuid(0, 0, 0));
			MUST(prctl(PR_SET_DUMPABLE, 1));
		}
		MUST(sethostname(host, strlen(host)));
		return 0;
	}
	if (map) {
		/* its number here is not its number in /proc */
		char *children = victim_read("/proc/thread-self/children"), *last = children;
		char *save = NULL;

		for (char *word = strtok_r(children, " ", &save); word;
		     word = strtok_r(NULL, " ", &save))
			last = word;
		pid_t outer = atoi(last);

		free(children);
		if (geteuid())
			put(outer, "setgroups", "deny");
		put(outer, "uid_map", map);
		put(outer, "gid_map", map);
	}
	MUST(write(go[1], "", 1));
	close(go[0]);
	close(go[1]);
	return pid;
}

static void level3(void)
{
	if (container("0 0 1", "three"))
		return;
	start_threads(2);
	serve(INIT3);
}

static void level2(void)
{
	if (container("0 1000 1", "two"))
		return;
	level3();
	if (MUST(fork()) == 0) {
		start_threads(2);
		serve(WORKER2);
	}
	start_threads(3);
	serve(INIT2);
}

static _Noreturn void level1(void)
{
	if (MUST(fork()) == 0) {
		MUST(setsid());
		MUST(setresgid(1000, 1000, 1000));
		MUST(setresuid(1000, 1000, 1000));
		MUST(prctl(PR_SET_DUMPABLE, 1));
		level2();
		start_threads(2);
		serve(WORKER1);
	}
	if (!container(NULL, "second"))
		serve(SECOND);
	if (MUST(fork()) == 0) {
		MUST(unshare(CLONE_NEWPID));
		if (MUST(fork()) == 0)
			serve(UNSHARED_INIT);
		serve(UNSHARED);
	}
	start_threads(4);
	serve(INIT1);
}

static void check(void)
{
	for (int i = 0; i < SLOTS; i++) {
		char *now = ask(i);

		CHECK(!strcmp(now, slots[i].told), "%s is now\n%s and was\n%s", names[i], now,
		      slots[i].told);
		free(now);
	}
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	for (int i = 0; i < SLOTS; i++) {
		MUST(pipe(slots[i].request));
		MUST(pipe(slots[i].reply));
	}
	if (!container("0 100000 65536", "one"))
		level1();
	if (!container("0 200000 10\n10 300000 10", "sibling")) {
		start_threads(1);
		serve(SIBLING);
	}
	for (int i = 0; i < SLOTS; i++)
		slots[i].told = ask(i);
	victim_ready();
	victim_serve(check);
}
