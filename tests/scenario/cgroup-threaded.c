/* SPDX-License-Identifier: MIT
 *
 * Threaded groups of version 2: a process whose threads are in groups of their own, one below
 * another, and a process that is in such a group as a whole but for one of its threads.
 * DIR/groups lists the groups, so that they can be removed.
 */
#include "victim.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAIN, FIRST, SECOND, CHILD, CHILD_THREAD, THREADS };

/* In the order in which they are made; "" holds the process, the others hold threads. */
static const char *const groups[] = { "", "/one", "/two", "/two/three" };

static const struct {
	const char *name, *group;
} threads[THREADS] = {
	[MAIN] = { "main", "" },
	[FIRST] = { "first", "/one" },
	[SECOND] = { "second", "/two/three" },
	[CHILD] = { "child", "/one" },
	[CHILD_THREAD] = { "thread of child", "/two" },
};

static char mount_point[256], base[600];
static pid_t *tids; /* shared with the child */

static void find_mount(void)
{
	char path[256], type[32], *text = victim_read("/proc/mounts");

	for (char *line = text; line && *line; line = strchr(line, '\n') + 1)
		if (sscanf(line, "%*s %255s %31s", path, type) == 2 && !strcmp(type, "cgroup2"))
			memcpy(mount_point, path, sizeof(path));
	free(text);
	if (!mount_point[0])
		victim_skip("no control groups of version 2");
}

/* The group of a thread, from the topmost one. */
static void group_of(pid_t pid, pid_t tid, char *out, size_t size)
{
	char file[64], *text, *line;

	snprintf(file, sizeof(file), "/proc/%d/task/%d/cgroup", pid, tid);
	text = victim_read(file);
	line = text ? strstr(text, "0::") : NULL;
	snprintf(out, size, "%.*s", line ? (int)strcspn(line + 3, "\n") : 0, line ? line + 3 : "");
	free(text);
}

static void put(const char *group, const char *file, const char *text)
{
	char path[1024];
	int fd;

	snprintf(path, sizeof(path), "%s%s%s/%s", mount_point, base, group, file);
	fd = MUST(open(path, O_WRONLY));
	MUST(write(fd, text, strlen(text)));
	close(fd);
}

static void make_groups(void)
{
	FILE *list = fopen(victim_path("groups"), "w");

	if (!list)
		victim_die("groups: %s", strerror(errno));
	for (size_t i = 0; i < sizeof(groups) / sizeof(*groups); i++) {
		char path[1024];

		snprintf(path, sizeof(path), "%s%s%s", mount_point, base, groups[i]);
		if (!i && access(mount_point, W_OK) < 0)
			victim_skip("%s: %s", mount_point, strerror(errno));
		MUST(mkdir(path, 0755));
		fprintf(list, "%s\n", path);
		if (i)
			put(groups[i], "cgroup.type", "threaded");
	}
	fclose(list);
}

static void *sit(void *arg)
{
	const int which = (int)(intptr_t)arg;

	put(threads[which].group, "cgroup.threads", "0");
	__atomic_store_n(&tids[which], gettid(), __ATOMIC_RELEASE);
	for (;;)
		pause();
	return NULL;
}

static void start(int which)
{
	pthread_t thread;

	MUST_ZERO(pthread_create(&thread, NULL, sit, (void *)(intptr_t)which));
	while (!__atomic_load_n(&tids[which], __ATOMIC_ACQUIRE))
		sched_yield();
}

static _Noreturn void be_child(void)
{
	MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
	put(threads[CHILD].group, "cgroup.procs", "0");
	start(CHILD_THREAD);
	sit((void *)(intptr_t)CHILD);
	_exit(1);
}

static void check(void)
{
	for (int i = 0; i < THREADS; i++) {
		char want[700], group[700];

		group_of(i < CHILD ? getpid() : tids[CHILD], tids[i], group, sizeof(group));
		snprintf(want, sizeof(want), "%s%s", base, threads[i].group);
		CHECK(!strcmp(group, want), "%s is in %s, not %s", threads[i].name, group, want);
	}
}

int main(int argc, char **argv)
{
	char own[512];
	int shared;

	victim_init(argc, argv);
	find_mount();
	group_of(getpid(), getpid(), own, sizeof(own));
	snprintf(base, sizeof(base), "%s/ckpt-test-%d", strcmp(own, "/") ? own : "", getpid());
	shared = MUST(open(victim_path("tids"), O_RDWR | O_CREAT | O_TRUNC, 0600));
	MUST(ftruncate(shared, 4096));
	tids = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, shared, 0);
	MUST(tids == MAP_FAILED ? -1 : 0);
	close(shared);
	make_groups();
	put("", "cgroup.procs", "0");
	tids[MAIN] = getpid();
	start(FIRST);
	start(SECOND);
	if (MUST(fork()) == 0)
		be_child();
	while (!__atomic_load_n(&tids[CHILD], __ATOMIC_ACQUIRE))
		sched_yield();
	victim_ready();
	victim_serve(check);
}
