/* SPDX-License-Identifier: MIT
 *
 * test: only=inventory
 *
 * Changes one thing about itself with each check, so that the inventory can prove that it notices.
 * `restless --list` prints the changes, each with a regular expression for the difference.
 */
#include "victim.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char *pages;
static int file, pair[2], ends[2], event;
static pid_t child;

static void *sleep_in_thread(void *unused)
{
	for (;;)
		pause();
	return unused;
}

static void new_mask(void)
{
	umask(0077);
}

static void new_name(void)
{
	MUST(prctl(PR_SET_NAME, "renamed"));
}

static void new_nice(void)
{
	MUST(setpriority(PRIO_PROCESS, 0, 5));
}

static void new_affinity(void)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(0, &set);
	MUST(sched_setaffinity(0, sizeof(set), &set));
}

static void new_policy(void)
{
	struct sched_param parameters = { 0 };
	MUST(sched_setscheduler(0, SCHED_BATCH, &parameters));
}

static void new_thread(void)
{
	pthread_t thread;
	MUST_ZERO(pthread_create(&thread, NULL, sleep_in_thread, NULL));
}

static void new_child(void)
{
	child = MUST(fork());
	if (child == 0) {
		MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
		sleep_in_thread(NULL);
	}
}

static void new_group(void)
{
	MUST(setpgid(child, child));
}

static void stopped_child(void)
{
	MUST(kill(child, SIGSTOP));
	siginfo_t info;
	MUST(waitid(P_PID, (id_t)child, &info, WSTOPPED | WNOWAIT));
}

static void dead_child(void)
{
	siginfo_t info;
	MUST(kill(child, SIGKILL));
	MUST(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT));
}

static void blocked_signal(void)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGWINCH);
	MUST_ZERO(pthread_sigmask(SIG_BLOCK, &set, NULL));
}

static void ignored_signal(void)
{
	signal(SIGHUP, SIG_IGN);
}

static void pending_signal(void)
{
	MUST_ZERO(pthread_kill(pthread_self(), SIGWINCH));
}

static void posix_timer(void)
{
	timer_t timer;
	struct sigevent none = { .sigev_notify = SIGEV_NONE };
	MUST(timer_create(CLOCK_MONOTONIC, &none, &timer));
}

static void new_limit(void)
{
	struct rlimit limit = { 100, 20000 };
	MUST(setrlimit(RLIMIT_NOFILE, &limit));
}

static void new_directory(void)
{
	MUST(chdir(victim_dir()));
}

static void new_descriptor(void)
{
	MUST(dup(file));
}

static void new_position(void)
{
	MUST(lseek(file, 7, SEEK_SET));
}

static void new_flags(void)
{
	MUST(fcntl(file, F_SETFL, O_APPEND));
}

static void close_on_exec(void)
{
	MUST(fcntl(file, F_SETFD, FD_CLOEXEC));
}

static void separate_description(void)
{
	MUST(close(file));
	file = MUST(open(victim_path("file"), O_RDWR | O_APPEND | O_CLOEXEC));
	MUST(lseek(file, 7, SEEK_SET));
}

static void pipe_content(void)
{
	MUST(write(ends[1], "x", 1));
}

static void pipe_size(void)
{
	MUST(fcntl(ends[0], F_SETPIPE_SZ, 1 << 17));
}

static void socket_content(void)
{
	MUST(write(pair[0], "x", 1));
}

static void socket_option(void)
{
	int on = 1;
	MUST(setsockopt(pair[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)));
}

static void event_count(void)
{
	MUST(eventfd_write(event, 3));
}

static void file_lock(void)
{
	struct flock lock = { .l_type = F_WRLCK, .l_len = 10 };
	MUST(fcntl(file, F_SETLK, &lock));
}

static void new_protection(void)
{
	MUST(mprotect(pages + 4096, 4096, PROT_READ));
}

static void new_advice(void)
{
	MUST(madvise(pages, 4096, MADV_DONTFORK));
}

static void new_mapping(void)
{
	if (mmap(NULL, 4096, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0) == MAP_FAILED)
		victim_die("mmap: %s", strerror(errno));
}

static void fewer_mappings(void)
{
	MUST(munmap(pages + 3 * 4096, 4096));
}

static void no_new_privileges(void)
{
	MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
}

static void fewer_capabilities(void)
{
	MUST(prctl(PR_CAPBSET_DROP, 0, 0, 0, 0));
}

static void new_groups(void)
{
	gid_t group = 4711;
	MUST(syscall(SYS_setgroups, 1, &group));
}

static void new_filter(void)
{
	struct sock_filter code = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog program = { 1, &code };
	MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program));
}

static const struct change {
	const char *name;
	void (*make)(void);
	const char *difference;
} changes[] = {
	{ "umask", new_mask, "Umask" },
	{ "name", new_name, "comm" },
	{ "nice", new_nice, "nice" },
	{ "affinity", new_affinity, "affinity" },
	{ "policy", new_policy, "policy" },
	{ "thread", new_thread, "threads \\d+: new" },
	{ "child", new_child, "^\\d+: new" },
	{ "process-group", new_group, "pgrp" },
	{ "stopped", stopped_child, "state: alive -> T" },
	{ "zombie", dead_child, "state: T -> Z" },
	{ "blocked-signal", blocked_signal, "SigBlk" },
	{ "ignored-signal", ignored_signal, "SigIgn" },
	{ "pending-signal", pending_signal, "SigPnd" },
	{ "posix-timer", posix_timer, "timers" },
	{ "limit", new_limit, "Max open files" },
	{ "directory", new_directory, "cwd" },
	{ "descriptor", new_descriptor, "fds \\d+: new" },
	{ "position", new_position, "pos: 7" },
	{ "flags", new_flags, "flags: " },
	{ "close-on-exec", close_on_exec, "flags: " },
	{ "description", separate_description, "description" },
	{ "pipe-content", pipe_content, "pipe queued: 0 -> 1" },
	{ "pipe-size", pipe_size, "pipe size" },
	{ "socket-content", socket_content, "socket queued: 0 -> 1" },
	{ "socket-option", socket_option, "passcred" },
	{ "event-count", event_count, "eventfd-count: 3" },
	{ "lock", file_lock, "lock: " },
	{ "protection", new_protection, "maps" },
	{ "advice", new_advice, "maps" },
	{ "mapping", new_mapping, "maps .*shmem#0|maps .*/dev/zero" },
	{ "unmapping", fewer_mappings, "maps" },
	{ "no-new-privileges", no_new_privileges, "NoNewPrivs" },
	{ "capabilities", fewer_capabilities, "CapBnd" },
	{ "groups", new_groups, "Groups" },
	{ "filter", new_filter, "Seccomp" },
};

enum { CHANGES = sizeof(changes) / sizeof(*changes) };

static void check(void)
{
	static unsigned next;
	if (next < CHANGES)
		changes[next++].make();
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "--list")) {
		for (size_t i = 0; i < CHANGES; i++)
			printf("%s\t%s\n", changes[i].name, changes[i].difference);
		return 0;
	}
	victim_init(argc, argv);
	file = MUST(open(victim_path("file"), O_RDWR | O_CREAT, 0644));
	event = MUST(eventfd(0, 0));
	MUST(pipe(ends));
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	pages = mmap(NULL, 4 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pages == MAP_FAILED)
		victim_die("mmap: %s", strerror(errno));
	victim_ready();
	victim_serve(check);
}
