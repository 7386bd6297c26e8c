/* SPDX-License-Identifier: MIT
 *
 * Control groups below the one that the test runs in, in version 2 and in one hierarchy of version
 * 1 (what of them the machine has mounted): a child in an inner group of a cgroup namespace whose
 * root is the outer group; a grandchild that went one further down; a thread in a group of its own.
 * DIR/groups lists the groups, so that they can be removed.
 */
#include "victim.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { N_HIERARCHIES = 2 };

/* One that is there: where it is mounted, the test's own group, what /proc/PID/cgroup calls it. */
struct hierarchy {
	char mount[256], own[512];
	const char *key; /* ":name:" */
	bool there;
};

static struct hierarchy hierarchies[N_HIERARCHIES] = { { .key = "::" }, { .key = ":pids:" } };
static int to_child[2], from_child[2];
static pid_t child, grandchild, thread;
static char base[64];

/* ---- finding hierarchies ----------------------------------------------------------- */

static bool find_mount(struct hierarchy *h)
{
	char device[64], path[256], type[32], options[256], *text = victim_read("/proc/mounts");

	for (char *line = text; line && *line; line = strchr(line, '\n') + 1) {
		if (sscanf(line, "%63s %255s %31s %255s", device, path, type, options) != 4)
			break;
		if (strcmp(h->key, "::") ? strcmp(type, "cgroup") || !strstr(options, ",pids")
					 : strcmp(type, "cgroup2"))
			continue;
		memcpy(h->mount, path, sizeof(path));
		free(text);
		return true;
	}
	free(text);
	return false;
}

/* The group of a process or thread as its cgroup file says. */
static void group_of(const char *file, const struct hierarchy *h, char *out, size_t size)
{
	char *text = victim_read(file), *line = text ? strstr(text, h->key) : NULL;

	out[0] = 0;
	if (line) {
		line += strlen(h->key);
		snprintf(out, size, "%.*s", (int)strcspn(line, "\n"), line);
	}
	free(text);
}

static void find_hierarchies(void)
{
	for (int i = 0; i < N_HIERARCHIES; i++) {
		struct hierarchy *h = &hierarchies[i];

		group_of("/proc/self/cgroup", h, h->own, sizeof(h->own));
		h->there = h->own[0] && find_mount(h);
		if (!strcmp(h->own, "/"))
			h->own[0] = 0;
	}
	if (!hierarchies[0].there && !hierarchies[1].there)
		victim_skip("no hierarchy of control groups that this test knows");
}

/* ---- groups --------------------------------------------------------------------------- */

static void directory(const struct hierarchy *h, const char *below, char *out, size_t size)
{
	snprintf(out, size, "%s%s/%s%s", h->mount, h->own, base, below);
}

static void make_groups(void)
{
	static const char *const below[] = { "", "/inner", "/inner/deep", "/thread" };
	FILE *list = fopen(victim_path("groups"), "w");

	if (!list)
		victim_die("groups: %s", strerror(errno));
	for (int i = 0; i < N_HIERARCHIES; i++)
		for (size_t k = 0; hierarchies[i].there && k < 4; k++) {
			char path[2048];

			directory(&hierarchies[i], below[k], path, sizeof(path));
			MUST(mkdir(path, 0755));
			fprintf(list, "%s\n", path);
		}
	fclose(list);
	if (hierarchies[1].there) {
		char path[2048];

		directory(&hierarchies[1], "/inner/pids.max", path, sizeof(path));
		int fd = MUST(open(path, O_WRONLY));
		MUST(write(fd, "123", 3));
		close(fd);
	}
}

static void move_to(const char *below, const char *file)
{
	for (int i = 0; i < N_HIERARCHIES; i++) {
		char path[2048];
		int fd;

		if (!hierarchies[i].there)
			continue;
		directory(&hierarchies[i], below, path, sizeof(path));
		snprintf(path + strlen(path), sizeof(path) - strlen(path), "/%s", file);
		fd = MUST(open(path, O_WRONLY));
		MUST(write(fd, "0", 1));
		close(fd);
	}
}

/* ---- tasks ---------------------------------------------------------------------------- */

/* In the namespace: what it says, as one byte a hierarchy. */
static void judge(char *out)
{
	for (int i = 0; i < N_HIERARCHIES; i++) {
		char path[512];

		group_of("/proc/self/cgroup", &hierarchies[i], path, sizeof(path));
		out[i] = !hierarchies[i].there || !strcmp(path, "/inner") ? 'y' : 'n';
	}
}

static _Noreturn void in_namespace(void)
{
	char c, verdict[N_HIERARCHIES];
	int ends[2];

	MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
	move_to("", "cgroup.procs");
	MUST(unshare(CLONE_NEWCGROUP));
	move_to("/inner", "cgroup.procs");
	MUST(pipe(ends));
	grandchild = MUST(fork());
	if (grandchild == 0) {
		MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
		move_to("/inner/deep", "cgroup.procs");
		MUST(write(ends[1], "", 1));
		for (;;)
			pause();
	}
	MUST(read(ends[0], &c, 1));
	MUST(write(from_child[1], &grandchild, sizeof(grandchild)));
	while (read(to_child[0], &c, 1) == 1) {
		judge(verdict);
		if (write(from_child[1], verdict, sizeof(verdict)) < 0)
			break;
	}
	_exit(1);
}

static _Noreturn void *in_group(void *ready)
{
	thread = gettid();
	if (hierarchies[1].there) {
		hierarchies[0].there = false;
		move_to("/thread", "tasks");
		hierarchies[0].there = hierarchies[0].mount[0] != 0;
	}
	__atomic_store_n((int *)ready, 1, __ATOMIC_RELEASE);
	for (;;)
		pause();
}

/* ---- the judge ---------------------------------------------------------------------------- */

static void expect(pid_t pid, pid_t tid, int i, const char *below)
{
	char file[64], path[512], want[640];

	if (!hierarchies[i].there)
		return;
	snprintf(file, sizeof(file), "/proc/%d/task/%d/cgroup", pid, tid);
	group_of(file, &hierarchies[i], path, sizeof(path));
	snprintf(want, sizeof(want), "%s/%s%s", hierarchies[i].own, base, below);
	CHECK(!strcmp(path, want), "task %d is in %s%s, not %s", tid, hierarchies[i].key, path,
	      want);
}

static void check(void)
{
	char verdict[N_HIERARCHIES] = "";

	for (int i = 0; i < N_HIERARCHIES; i++) {
		expect(child, child, i, "/inner");
		expect(grandchild, grandchild, i, "/inner/deep");
	}
	expect(getpid(), thread, 1, "/thread");
	CHECK(write(to_child[1], "", 1) == 1, "the child does not listen");
	CHECK(read(from_child[0], verdict, sizeof(verdict)) == sizeof(verdict), "no answer");
	CHECK(verdict[0] == 'y' && verdict[1] == 'y', "in the namespace: %.2s", verdict);
}

int main(int argc, char **argv)
{
	static int ready;
	pthread_t id;

	victim_init(argc, argv);
	snprintf(base, sizeof(base), "ckpt-test-%d", getpid());
	find_hierarchies();
	make_groups();
	MUST(pipe(to_child));
	MUST(pipe(from_child));
	child = MUST(fork());
	if (child == 0)
		in_namespace();
	MUST(read(from_child[0], &grandchild, sizeof(grandchild)));
	MUST_ZERO(pthread_create(&id, NULL, in_group, &ready));
	while (!__atomic_load_n(&ready, __ATOMIC_ACQUIRE))
		sched_yield();
	victim_ready();
	victim_serve(check);
}
