/* SPDX-License-Identifier: MIT
 *
 * A paused container: two processes in a group of version 2 below a frozen one. They stand as long
 * as it is, go on when it is thawed, and stand again. DIR/groups lists the groups, so that they can
 * be removed.
 */
#include "victim.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WORKERS = 3 };

static char above[700], below[800];
static unsigned long *count; /* shared with them */

static void find_mount(char *mount_point)
{
	char path[256], type[32], *text = victim_read("/proc/mounts");

	for (char *line = text; line && *line; line = strchr(line, '\n') + 1)
		if (sscanf(line, "%*s %255s %31s", path, type) == 2 && !strcmp(type, "cgroup2"))
			strcpy(mount_point, path);
	free(text);
	if (!mount_point[0])
		victim_skip("no control groups of version 2");
}

static void make_groups(void)
{
	char mount_point[256] = "", own[300] = "", *text = victim_read("/proc/self/cgroup");
	char *line = text ? strstr(text, "0::") : NULL, list[1600];

	find_mount(mount_point);
	if (!line)
		victim_skip("no control groups of version 2");
	sscanf(line, "0::%299[^\n]", own);
	free(text);
	snprintf(above, sizeof(above), "%s%s/ckpt-test-%d", mount_point,
		 strcmp(own, "/") ? own : "", getpid());
	snprintf(below, sizeof(below), "%s/below", above);
	if (mkdir(above, 0755) || mkdir(below, 0755))
		victim_skip("%s: %s", above, strerror(errno));
	snprintf(list, sizeof(list), "%s\n%s\n", above, below);
	victim_write(victim_path("groups"), list);
}

static void put(const char *group, const char *file, const char *text)
{
	char path[900];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", group, file);
	fd = MUST(open(path, O_WRONLY));
	MUST(write(fd, text, strlen(text)));
	close(fd);
}

static bool is_frozen(void)
{
	char path[900], *text;
	bool frozen;

	snprintf(path, sizeof(path), "%s/cgroup.events", below);
	text = victim_read(path);
	frozen = text && strstr(text, "frozen 1");
	free(text);
	return frozen;
}

/* Who has been let go is on its way back for a moment. */
static void wait_frozen(void)
{
	for (int i = 0; i < 5000 && !is_frozen(); i++)
		usleep(1000);
}

static void *work(void *which)
{
	for (;;) {
		__atomic_add_fetch(&count[(long)which], 1, __ATOMIC_SEQ_CST);
		usleep(500);
	}
	return NULL;
}

static void start_workers(void)
{
	pthread_t thread;

	count = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (long i = 0; i < WORKERS - 1; i++) {
		if (MUST(fork()))
			continue;
		MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
		put(below, "cgroup.procs", "0");
		if (i == 0)
			MUST_ZERO(pthread_create(&thread, NULL, work, (void *)(WORKERS - 1L)));
		work((void *)i);
	}
	for (int i = 0; i < WORKERS; i++)
		CHECK(victim_goes_on(&count[i], 0), "worker %d does not work", i);
}

static void check(void)
{
	unsigned long before[WORKERS];
	char path[900];

	wait_frozen();
	snprintf(path, sizeof(path), "%s/cgroup.freeze", above);
	CHECK(is_frozen() && victim_holds(path, "1\n"), "the group is not frozen");
	memcpy(before, count, sizeof(before));
	usleep(20000);
	CHECK(!memcmp(before, count, sizeof(before)), "somebody works in the frozen group");
	put(above, "cgroup.freeze", "0");
	for (int i = 0; i < WORKERS; i++)
		CHECK(victim_goes_on(&count[i], before[i]), "worker %d does not go on", i);
	put(above, "cgroup.freeze", "1");
	wait_frozen();
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	make_groups();
	start_workers();
	put(above, "cgroup.freeze", "1");
	wait_frozen();
	victim_ready();
	victim_serve(check);
}
