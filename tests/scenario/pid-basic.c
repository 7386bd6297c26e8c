/* SPDX-License-Identifier: MIT
 *
 * A family of everything that pid saves: sessions and groups with living and dead leaders, orphans
 * that a subreaper adopted, one born before its parent's setsid, exit signals, zombies, a nested
 * pid namespace with a child born into it from outside, a thread whose children would be born
 * there.
 *
 * All of it is written down as text when it stands, and each check writes it down again.
 */
#include "victim.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_PIDS = 32, CHILD_THREADS = 3 };

struct story {
	char text[16384];
	size_t len;
};

static pid_t pids[MAX_PIDS];
static const char *roles[MAX_PIDS];
static size_t n_pids;
static pid_t namespace_init, wanderer, zombies[8];
static size_t n_zombies;
static struct story before;

static _Noreturn void sleep_forever(void)
{
	for (;;)
		pause();
}

static pid_t remember(pid_t pid, const char *role)
{
	pids[n_pids] = pid;
	roles[n_pids++] = role;
	return pid;
}

static void wait_until(bool (*ready)(pid_t), pid_t pid)
{
	while (!ready(pid))
		sched_yield();
}

static bool leads_session(pid_t pid)
{
	return getsid(pid) == pid;
}

static bool is_our_child(pid_t pid)
{
	return victim_status(pid, "PPid", 10) == getpid();
}

/* A child that calls `fn` and then sleeps. */
static pid_t child(void (*fn)(void), int exit_signal, const char *role)
{
	pid_t pid = (pid_t)syscall(SYS_clone, exit_signal, 0, 0, 0, 0);

	if (pid == 0) {
		if (fn)
			fn();
		sleep_forever();
	}
	return remember(MUST(pid), role);
}

static void new_session(void)
{
	MUST(setsid());
}

/* Forks a sleeper through a parent that dies; tells its pid through the pipe. */
static int tell[2];

static void tell_sleeper(void)
{
	pid_t pid = MUST(fork());

	if (pid == 0)
		sleep_forever();
	MUST(write(tell[1], &pid, sizeof(pid)));
}

static void session_then_orphan(void)
{
	MUST(setsid());
	pid_t middle = MUST(fork());

	if (middle == 0) {
		tell_sleeper();
		_exit(0);
	}
	MUST(waitpid(middle, NULL, 0));
}

static void session_then_die(void)
{
	MUST(setsid());
	tell_sleeper();
	_exit(0);
}

static void child_then_session(void)
{
	tell_sleeper();
	MUST(setsid());
}

static pid_t told(const char *role)
{
	pid_t pid = 0;

	MUST(read(tell[0], &pid, sizeof(pid)));
	return remember(pid, role);
}

static void make_sessions(void)
{
	wait_until(leads_session, child(new_session, SIGCHLD, "leader"));
	child(session_then_orphan, SIGCHLD, "leader of an orphan");
	wait_until(is_our_child, told("orphan of a living leader"));
	pid_t dead = MUST(fork());

	if (dead == 0)
		session_then_die();
	pid_t orphan = told("orphan of a dead leader");

	MUST(waitpid(dead, NULL, 0));
	wait_until(is_our_child, orphan);
	wait_until(leads_session, child(child_then_session, SIGCHLD, "late leader"));
	told("older than its parent's session");
}

static void make_groups(void)
{
	pid_t leader = child(NULL, SIGCHLD, "group leader");
	pid_t member = child(NULL, SIGCHLD, "group member");
	pid_t gone = MUST(fork());

	if (gone == 0)
		sleep_forever();
	MUST(setpgid(leader, leader));
	MUST(setpgid(member, leader));
	MUST(setpgid(gone, gone));
	MUST(setpgid(child(NULL, SIGCHLD, "member of a dead leader's group"), gone));
	MUST(kill(gone, SIGKILL));
	MUST(waitpid(gone, NULL, 0));
}

static void zombie(int code, int sig)
{
	siginfo_t info;
	pid_t pid = MUST(fork());

	if (pid == 0) {
		prctl(PR_SET_NAME, "a zombie");
		if (sig) {
			MUST(setresgid(77, 78, 79));
			MUST(setresuid(66, 67, 68));
			raise(sig);
		}
		_exit(code);
	}
	zombies[n_zombies++] = pid;
	MUST(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT));
}

/* A zombie that leads a group of the living. */
static void zombie_leader(void)
{
	pid_t pid = MUST(fork());
	siginfo_t info;

	if (pid == 0)
		sleep_forever();
	MUST(setpgid(pid, pid));
	MUST(setpgid(child(NULL, SIGCHLD, "member of a zombie's group"), pid));
	MUST(kill(pid, SIGINT));
	zombies[n_zombies++] = pid;
	MUST(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT));
}

static void make_zombies(void)
{
	zombie(0, 0);
	zombie(255, 0);
	zombie(0, SIGKILL);
	zombie(0, SIGTERM);
	zombie(0, 40);
	zombie_leader();
}

static void *idle(void *unused)
{
	sleep_forever();
}

static void threads(void)
{
	pthread_t thread;

	for (int i = 0; i < CHILD_THREADS; i++)
		MUST_ZERO(pthread_create(&thread, NULL, idle, NULL));
}

static void init_of_namespace(void)
{
	MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
	if (MUST(fork()) == 0) {
		MUST(setsid());
		threads();
		sleep_forever();
	}
}

static int open_ns(pid_t pid)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/ns/pid", pid);
	return MUST(open(path, O_RDONLY | O_CLOEXEC));
}

static pthread_barrier_t wandered;

static void *wander(void *unused)
{
	int ns = open_ns(namespace_init);

	MUST(setns(ns, CLONE_NEWPID));
	close(ns);
	MUST(prctl(PR_SET_NAME, "wandered"));
	pthread_barrier_wait(&wandered);
	sleep_forever();
}

static void wander_off(void)
{
	pthread_t thread;

	MUST_ZERO(pthread_barrier_init(&wandered, NULL, 2));
	MUST_ZERO(pthread_create(&thread, NULL, wander, NULL));
	pthread_barrier_wait(&wandered);
}

static int outside_fds[2];

static void close_fds(void)
{
	close(outside_fds[0]);
	close(outside_fds[1]);
}

static void make_namespace(void)
{
	namespace_init = (pid_t)syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0);
	if (namespace_init == 0) {
		init_of_namespace();
		sleep_forever();
	}
	if (namespace_init < 0)
		victim_skip("pid namespaces: %s", strerror(errno));
	remember(namespace_init, "init");

	int inside = open_ns(namespace_init), own = open_ns(getpid());

	MUST(setns(inside, CLONE_NEWPID));
	outside_fds[0] = inside;
	outside_fds[1] = own;
	child(close_fds, SIGCHLD, "born into a namespace");
	MUST(setns(own, CLONE_NEWPID));
	close(inside);
	close(own);
	wanderer = child(wander_off, SIGCHLD, "with a thread elsewhere");
}

__attribute__((format(printf, 2, 3))) static void add(struct story *s, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	int n = vsnprintf(s->text + s->len, sizeof(s->text) - s->len, fmt, args);
	va_end(args);
	if (n > 0 && s->len + (size_t)n < sizeof(s->text))
		s->len += (size_t)n;
}

/* Some lines of a status text. */
static void add_status(struct story *s, const char *path)
{
	static const char *const keys[] = { "Name:",   "Tgid:",	 "PPid:", "NSpid:",
					    "NSpgid:", "NSsid:", "Uid:",  "Gid:" };
	char *text = victim_read(path), *save = NULL;

	if (!text) {
		add(s, "%s is gone\n", path);
		return;
	}
	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
		for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++)
			if (!strncmp(line, keys[i], strlen(keys[i])))
				add(s, "%s ", line);
	add(s, "\n");
	free(text);
}

static void add_task(struct story *s, pid_t pid, const char *role)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	char *stat = victim_read(path), *p = stat ? strrchr(stat, ')') : NULL;

	/* field 38, the exit signal; p is before field 3 */
	for (int field = 2; p && field < 38; field++)
		p = strchr(p + 1, ' ');
	add(s, "%s: exit signal %d ", role, p ? atoi(p) : -1);
	free(stat);
	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	add_status(s, path);
}

static void add_zombie(struct story *s, pid_t pid)
{
	siginfo_t info = { 0 };

	if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT | WNOHANG) < 0)
		add(s, "zombie %d: %s ", pid, strerror(errno));
	add(s, "zombie %d: code %d, status %d, uid %d ", info.si_pid, info.si_code, info.si_status,
	    info.si_uid);
	add_task(s, pid, "zombie");
}

/* Which threads would have their children in the nested namespace? */
static void add_wanderer(struct story *s)
{
	char *path = NULL, link[64] = "", there[64] = "";

	for (pid_t tid = wanderer; tid < wanderer + 64; tid++) {
		if (asprintf(&path, "/proc/%d/task/%d/ns/pid_for_children", wanderer, tid) < 0)
			victim_die("no memory");
		ssize_t n = readlink(path, link, sizeof(link) - 1);

		link[n < 0 ? 0 : n] = 0;
		free(path);
		if (asprintf(&path, "/proc/%d/ns/pid", namespace_init) < 0)
			victim_die("no memory");
		ssize_t m = readlink(path, there, sizeof(there) - 1);

		there[m < 0 ? 0 : m] = 0;
		free(path);
		if (n > 0)
			add(s, "thread %d: children %s\n", tid,
			    strcmp(link, there) ? "here" : "there");
	}
}

static void tell_story(struct story *s)
{
	int subreaper = 0;
	sigset_t pending;

	s->len = 0;
	for (size_t i = 0; i < n_pids; i++)
		add_task(s, pids[i], roles[i]);
	for (size_t i = 0; i < n_zombies; i++)
		add_zombie(s, zombies[i]);
	add_wanderer(s);
	prctl(PR_GET_CHILD_SUBREAPER, &subreaper);
	sigpending(&pending);
	add(s, "subreaper %d, SIGCHLD pending %d\n", subreaper, sigismember(&pending, SIGCHLD));
}

static void check(void)
{
	static struct story now;

	tell_story(&now);
	for (size_t i = 0; i < before.len || i < now.len; i++) {
		if (before.text[i] == now.text[i])
			continue;
		while (i > 0 && before.text[i - 1] != '\n')
			i--;
		victim_fail("was \"%.*s\", is \"%.*s\"", (int)strcspn(before.text + i, "\n"),
			    before.text + i, (int)strcspn(now.text + i, "\n"), now.text + i);
		return;
	}
}

static void block_children(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	MUST_ZERO(pthread_sigmask(SIG_BLOCK, &set, NULL));
}

static void drain_children(void)
{
	const struct timespec none = { 0 };
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	while (sigtimedwait(&set, NULL, &none) > 0)
		;
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	block_children();
	MUST(prctl(PR_SET_CHILD_SUBREAPER, 1));
	MUST(pipe(tell));
	make_sessions();
	make_groups();
	child(NULL, SIGUSR2, "exits with SIGUSR2");
	child(NULL, 0, "exits silently");
	child(threads, SIGCHLD, "threads");
	make_zombies();
	make_namespace();
	drain_children();
	victim_settle();
	tell_story(&before);
	victim_ready();
	victim_serve(check);
}
