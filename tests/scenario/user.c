/* SPDX-License-Identifier: MIT */
/*
 * User namespaces: a container's root with threads, one of its users with a namespace of its own,
 * an unprivileged `unshare -Ur`, maps of hundreds of lines, none at all, ids that nobody mapped,
 * and a uts namespace whose owner has no tasks. Each process tells all it can see of itself.
 */
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
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

#define TEXT	32768
#define THREADS 5

struct process {
	const char *name;
	void (*become)(void);
	int request[2], reply[2];
	pid_t pid;
	char *told;
};

/* Between a process and the one that writes its maps. */
static int child_to_parent[2], parent_to_child[2];

static void wait_for(int fd)
{
	char c;

	MUST(read(fd, &c, 1) == 1 ? 0 : -1);
}

static void signal_to(int fd)
{
	MUST(write(fd, "", 1));
}

/* Its parent is in the same place as before, and may write the maps. */
static void unshare_mapped(int flags)
{
	MUST(unshare(flags));
	signal_to(child_to_parent[1]);
	wait_for(parent_to_child[0]);
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

static void map(pid_t pid, const char *uids, const char *gids)
{
	wait_for(child_to_parent[0]);
	put(pid, "uid_map", uids);
	put(pid, "gid_map", gids);
	signal_to(parent_to_child[1]);
}

static void ids(unsigned uid, unsigned gid)
{
	MUST(setresgid(gid, gid, gid));
	MUST(setresuid(uid, uid, uid));
}

/* ---- what the processes are ------------------------------------------------------------- */

static void *idle(void *arg)
{
	(void)arg;
	for (;;)
		pause();
	return NULL;
}

static void start_threads(void)
{
	pthread_t thread;

	for (int i = 0; i < THREADS; i++)
		MUST_ZERO(pthread_create(&thread, NULL, idle, NULL));
}

#define LIMIT_FILE "/proc/sys/user/max_uts_namespaces"

static void container_root(void)
{
	int limit;

	unshare_mapped(CLONE_NEWUSER | CLONE_NEWUTS);
	limit = MUST(open(LIMIT_FILE, O_WRONLY));
	MUST(write(limit, "1", 1));
	close(limit);
	ids(0, 0);
	MUST(setgroups(2, (gid_t[]){ 7, 60000 }));
	MUST(sethostname("container", 9));
	MUST(prctl(PR_SET_DUMPABLE, 1));
	start_threads();
}

/* Few rights of those that a container's root has. */
static void container_service(void)
{
	struct __user_cap_header_struct head = { _LINUX_CAPABILITY_VERSION_3, 0 };
	const unsigned chown = 1U << CAP_CHOWN, bind = 1U << CAP_NET_BIND_SERVICE;
	struct __user_cap_data_struct data[2] = { { chown, chown | bind, chown | bind } };

	unshare_mapped(CLONE_NEWUSER);
	ids(0, 0);
	MUST(prctl(PR_CAPBSET_DROP, CAP_SYS_ADMIN, 0, 0, 0));
	MUST(prctl(PR_CAPBSET_DROP, CAP_MKNOD, 0, 0, 0));
	MUST(setgroups(1, (gid_t[]){ 33 }));
	MUST(prctl(PR_SET_KEEPCAPS, 1));
	MUST(setresgid(33, 34, 35));
	MUST(setresuid(33, 34, 35));
	MUST(syscall(SYS_capset, &head, data));
	MUST(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_CHOWN, 0, 0));
	MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	MUST(prctl(PR_SET_DUMPABLE, 1));
}

/* As `unshare -Ur` of an ordinary user: groups stay, and cannot be changed any more. */
static void unprivileged(void)
{
	MUST(setgroups(2, (gid_t[]){ 1000, 1001 }));
	ids(1000, 1000);
	MUST(prctl(PR_SET_DUMPABLE, 1));
	MUST(unshare(CLONE_NEWUSER | CLONE_NEWUTS));
	put(getpid(), "uid_map", "0 1000 1");
	put(getpid(), "setgroups", "deny");
	put(getpid(), "gid_map", "0 1000 1");
	MUST(sethostname("unprivileged", 12));
	start_threads();
}

static void without_maps(void)
{
	MUST(unshare(CLONE_NEWUSER));
}

/* Its own ids are not mapped: who made the maps did not think of it. */
static void unmapped(void)
{
	ids(4000, 4001);
	MUST(prctl(PR_SET_DUMPABLE, 1));
	unshare_mapped(CLONE_NEWUSER);
}

/* A user of the container makes a namespace of its own: two levels. */
static void nested(void)
{
	unshare_mapped(CLONE_NEWUSER | CLONE_NEWUTS);
	ids(1000, 1000);
	MUST(prctl(PR_SET_DUMPABLE, 1));
	MUST(unshare(CLONE_NEWUSER | CLONE_NEWUTS));
	put(getpid(), "uid_map", "0 1000 1");
	put(getpid(), "setgroups", "deny");
	put(getpid(), "gid_map", "0 1000 1");
	MUST(sethostname("inner", 5));
	start_threads();
}

/* A namespace of names whose user namespace nobody is in, nor in the one above that. */
static void orphaned_names(void)
{
	int pipe_to[2], status;
	char path[64];
	pid_t pid;
	int fd;

	MUST(pipe(pipe_to));
	pid = MUST(fork());
	if (pid == 0) {
		MUST(unshare(CLONE_NEWUSER));
		signal_to(child_to_parent[1]);
		wait_for(parent_to_child[0]);
		ids(50, 50);
		MUST(prctl(PR_SET_DUMPABLE, 1));
		MUST(unshare(CLONE_NEWUSER | CLONE_NEWUTS));
		put(getpid(), "uid_map", "0 50 1");
		put(getpid(), "setgroups", "deny");
		put(getpid(), "gid_map", "0 50 1");
		MUST(sethostname("orphan", 6));
		signal_to(pipe_to[1]);
		pause();
	}
	map(pid, "0 200000 1000", "0 300000 1000");
	wait_for(pipe_to[0]);
	close(pipe_to[0]);
	close(pipe_to[1]);
	snprintf(path, sizeof(path), "/proc/%d/ns/uts", pid);
	fd = MUST(open(path, O_RDONLY));
	MUST(setns(fd, CLONE_NEWUTS));
	close(fd);
	MUST(kill(pid, SIGKILL));
	MUST(waitpid(pid, &status, 0));
}

static void lines(char *text, unsigned from, unsigned step)
{
	for (unsigned i = 0; i < 200; i++)
		text += sprintf(text, "%u %u %u\n", 3 * i, from + step * i, i % 3 + 1);
}

/* ---- telling ------------------------------------------------------------------------------- */

static size_t add_file(char *text, size_t at, const char *path)
{
	char *content = victim_read(path);

	at += (size_t)snprintf(text + at, TEXT - at, "%s: %s", path, content ? content : "?");
	free(content);
	return at;
}

static size_t add_status(char *text, size_t at)
{
	static const char *const keys[] = { "Uid",   "Gid", "Groups",	  "NStgid",
					    "NSpid", "Cap", "NoNewPrivs", "Threads" };
	char *content = victim_read("/proc/self/status"), *save = NULL;

	for (char *line = strtok_r(content, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
		for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
			if (!strncmp(line, keys[i], strlen(keys[i])))
				at += (size_t)snprintf(text + at, TEXT - at, "%s\n", line);
	free(content);
	return at;
}

static void describe(char *text)
{
	static const char *const files[] = { "/proc/self/uid_map", "/proc/self/gid_map",
					     "/proc/self/projid_map", "/proc/self/setgroups",
					     LIMIT_FILE };
	struct utsname names;
	size_t at = 0;

	memset(text, 0, TEXT);
	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
		at = add_file(text, at, files[i]);
	at = add_status(text, at);
	uname(&names);
	/* who may, may still: the same name again */
	snprintf(text + at, TEXT - at, "host %s (%d) dumpable %d securebits %d pdeath ok\n",
		 names.nodename, sethostname(names.nodename, strlen(names.nodename)),
		 prctl(PR_GET_DUMPABLE), prctl(PR_GET_SECUREBITS));
}

static _Noreturn void serve(const struct process *p)
{
	static char text[TEXT];
	char c;

	while (read(p->request[0], &c, 1) == 1) {
		describe(text);
		for (size_t done = 0; done < TEXT;) {
			ssize_t n = write(p->reply[1], text + done, TEXT - done);

			if (n <= 0)
				_exit(1);
			done += (size_t)n;
		}
	}
	_exit(0);
}

static char many_uids[TEXT], many_gids[TEXT];

static void many_lines(void)
{
	unshare_mapped(CLONE_NEWUSER);
	ids(0, 3);
	MUST(prctl(PR_SET_DUMPABLE, 1));
}

static struct process processes[] = {
	{ .name = "container", .become = container_root },
	{ .name = "service", .become = container_service },
	{ .name = "unprivileged", .become = unprivileged },
	{ .name = "without-maps", .become = without_maps },
	{ .name = "unmapped", .become = unmapped },
	{ .name = "nested", .become = nested },
	{ .name = "many-lines", .become = many_lines },
	{ .name = "orphaned-names", .become = orphaned_names },
};
#define N_PROCESSES (sizeof(processes) / sizeof(processes[0]))

static char *ask(const struct process *p)
{
	char *text = calloc(1, TEXT + 1);
	size_t done = 0;
	ssize_t n = write(p->request[1], "", 1);

	while (n > 0 && done < TEXT) {
		n = read(p->reply[0], text + done, TEXT - done);
		done += n > 0 ? (size_t)n : 0;
	}
	return text;
}

/* The first line in which two texts differ. */
static void differ(const char *who, const char *before, const char *after)
{
	while (*before && *after) {
		size_t a = strcspn(before, "\n"), b = strcspn(after, "\n");

		if (a != b || memcmp(before, after, a)) {
			victim_fail("%s: \"%.*s\" was \"%.*s\"", who, (int)b, after, (int)a,
				    before);
			return;
		}
		before += a + (before[a] == '\n');
		after += b + (after[b] == '\n');
	}
	CHECK(!*before && !*after, "%s: more or less lines", who);
}

static void check(void)
{
	for (size_t i = 0; i < N_PROCESSES; i++) {
		char *now = ask(&processes[i]);

		differ(processes[i].name, processes[i].told, now);
		free(now);
	}
}

static void start(struct process *p)
{
	const char *name = p->name;

	MUST(pipe(p->request));
	MUST(pipe(p->reply));
	p->pid = MUST(fork());
	if (p->pid == 0) {
		p->become();
		MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
		serve(p);
	}
	if (!strcmp(name, "unmapped"))
		map(p->pid, "0 100000 10", "5 100000 10");
	else if (!strcmp(name, "many-lines"))
		map(p->pid, many_uids, many_gids);
	else if (strcmp(name, "unprivileged") && strcmp(name, "without-maps") &&
		 strcmp(name, "orphaned-names"))
		map(p->pid, "0 100000 65536", "0 100000 65536");
	p->told = ask(p);
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	MUST(pipe(child_to_parent));
	MUST(pipe(parent_to_child));
	lines(many_uids, 500000, 5);
	lines(many_gids, 700000, 7);
	for (size_t i = 0; i < N_PROCESSES; i++)
		start(&processes[i]);
	victim_ready();
	victim_serve(check);
}
