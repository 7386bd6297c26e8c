/* SPDX-License-Identifier: MIT
 *
 * Processes under seccomp: layers of filters, in another order for a thread than for its leader;
 * one that may read and write and nothing else; strict mode; threads that can be synchronised; and
 * a supervisor (the root) whose supervised family, parent and child, asks it through one listener.
 * One of them waits for its answer all the time.
 *
 * System call numbers that do not exist are used for questions: the kernel says ENOSYS, a filter
 * something else. Who breaks the rules dies of it, and is made anew.
 */
#include "victim.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FIRST = 10001, TWICE, THREADS_ONLY, SYNCED, ASKS };
enum { NOBODY = 65534 };

struct child {
	pid_t pid;
	int question[2], answer[2];
};

static struct child layered, tight, strict, synced, asking, waiting;
static int listener = -1;

/* ---- filters --------------------------------------------------------------------- */

/* `action` for one system call, the others are free. */
static long install(unsigned nr, unsigned action, unsigned flags)
{
	struct sock_filter program[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, action),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog p = { sizeof(program) / sizeof(program[0]), program };

	return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &p);
}

/* Nothing but read and write. */
static long install_tight(void)
{
	struct sock_filter program[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_read, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog p = { sizeof(program) / sizeof(program[0]), program };

	return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &p);
}

/* The errno of a system call that does not exist. */
static int verdict(long nr)
{
	return syscall(nr) < 0 ? errno : 0;
}

/* ---- children ---------------------------------------------------------------------- */

static pid_t start(struct child *c)
{
	MUST(pipe(c->question));
	MUST(pipe(c->answer));
	c->pid = MUST(fork());
	return c->pid;
}

static void started(struct child *c)
{
	char byte;

	close(c->question[0]);
	close(c->answer[1]);
	MUST(read(c->answer[0], &byte, 1));
}

static void stop(struct child *c)
{
	close(c->question[1]);
	close(c->answer[0]);
}

static void ask(struct child *c, char what)
{
	CHECK(write(c->question[1], &what, 1) == 1, "a child does not listen");
}

/* What it says; -1 if it is dead. */
static int answer(struct child *c)
{
	int value = -1;

	return read(c->answer[0], &value, sizeof(value)) == sizeof(value) ? value : -1;
}

/* Serves with two system calls: 'b' breaks the rules, anything else is answered. */
static _Noreturn void serve_tightly(struct child *c)
{
	char what;

	MUST(write(c->answer[1], "", 1));
	while (read(c->question[0], &what, 1) == 1) {
		int value = what + 1;

		if (what == 'b')
			syscall(SYS_getppid);
		if (write(c->answer[1], &value, sizeof(value)) < 0)
			break;
	}
	for (;;)
		syscall(SYS_exit, 1);
}

static void start_tight(void)
{
	if (start(&tight)) {
		started(&tight);
		return;
	}
	MUST(setresgid(NOBODY, NOBODY, NOBODY));
	MUST(setresuid(NOBODY, NOBODY, NOBODY));
	MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	MUST(install_tight());
	serve_tightly(&tight);
}

static void start_strict(void)
{
	if (start(&strict)) {
		started(&strict);
		return;
	}
	MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT));
	serve_tightly(&strict);
}

/* ---- layers ---------------------------------------------------------------------------- */

static int to_thread[2], from_thread[2];

static void *layered_thread(void *unused)
{
	char what;

	MUST(install(THREADS_ONLY, SECCOMP_RET_ERRNO | 7, 0));
	MUST(write(from_thread[1], "", 1));
	while (read(to_thread[0], &what, 1) == 1) {
		int value = verdict(THREADS_ONLY) * 10000 + verdict(TWICE) * 100 + verdict(FIRST);

		if (write(from_thread[1], &value, sizeof(value)) < 0)
			break;
	}
	return unused;
}

static void start_layered(void)
{
	pthread_t thread;
	char what;

	if (start(&layered)) {
		started(&layered);
		return;
	}
	MUST(pipe(to_thread));
	MUST(pipe(from_thread));
	MUST(install(FIRST, SECCOMP_RET_ERRNO | 5, 0));
	MUST(install(TWICE, SECCOMP_RET_ERRNO | 5, SECCOMP_FILTER_FLAG_LOG));
	/* a later filter's errno counts */
	MUST(install(TWICE, SECCOMP_RET_ERRNO | 6, SECCOMP_FILTER_FLAG_SPEC_ALLOW));
	MUST_ZERO(pthread_create(&thread, NULL, layered_thread, NULL));
	MUST(read(from_thread[0], &what, 1));
	MUST(write(layered.answer[1], "", 1));
	while (read(layered.question[0], &what, 1) == 1) {
		int value = 0;

		if (what == 't') {
			if (write(to_thread[1], "", 1) != 1 ||
			    read(from_thread[0], &value, sizeof(value)) != sizeof(value))
				value = -1;
		} else {
			value = verdict(THREADS_ONLY) * 10000 + verdict(TWICE) * 100 +
				verdict(FIRST);
		}
		if (write(layered.answer[1], &value, sizeof(value)) < 0)
			break;
	}
	_exit(1);
}

/* ---- threads that can be synchronised ---------------------------------------------------- */

static _Noreturn void *idle(void *unused)
{
	for (;;)
		pause();
}

static void start_synced(void)
{
	pthread_t thread;
	char what;

	if (start(&synced)) {
		started(&synced);
		return;
	}
	MUST(install(FIRST, SECCOMP_RET_ERRNO | 5, 0));
	for (int i = 0; i < 3; i++)
		MUST_ZERO(pthread_create(&thread, NULL, idle, NULL));
	MUST(write(synced.answer[1], "", 1));
	while (read(synced.question[0], &what, 1) == 1) {
		int value = (int)install(SYNCED, SECCOMP_RET_ERRNO | 8, SECCOMP_FILTER_FLAG_TSYNC);

		if (write(synced.answer[1], &value, sizeof(value)) < 0)
			break;
	}
	_exit(1);
}

/* ---- a family that asks --------------------------------------------------------------------- */

static _Noreturn void serve_asking(struct child *c)
{
	char what;

	while (read(c->question[0], &what, 1) == 1) {
		long value = syscall(ASKS, (long)what);
		int word = value < 0 ? -errno : (int)value;

		if (write(c->answer[1], &word, sizeof(word)) < 0)
			break;
	}
	_exit(1);
}

/* The child of the asking one inherits its filter. */
static void start_asking(void)
{
	int fd = -1;

	MUST(pipe(waiting.question));
	MUST(pipe(waiting.answer));
	if (start(&asking)) {
		int pidfd = MUST(syscall(SYS_pidfd_open, asking.pid, 0));

		close(asking.question[0]);
		close(asking.answer[1]);
		close(waiting.question[0]);
		close(waiting.answer[1]);
		MUST(read(asking.answer[0], &fd, sizeof(fd)));
		listener = MUST(syscall(SYS_pidfd_getfd, pidfd, fd, 0));
		close(pidfd);
		MUST(write(asking.question[1], "", 1));
		MUST(read(asking.answer[0], &waiting.pid, sizeof(waiting.pid)));
		return;
	}
	fd = MUST(install(ASKS, SECCOMP_RET_USER_NOTIF, SECCOMP_FILTER_FLAG_NEW_LISTENER));
	MUST(write(asking.answer[1], &fd, sizeof(fd)));
	MUST(read(asking.question[0], &fd, 1));
	close((int)fd);
	waiting.pid = MUST(fork());
	if (waiting.pid == 0)
		serve_asking(&waiting);
	MUST(write(asking.answer[1], &waiting.pid, sizeof(waiting.pid)));
	serve_asking(&asking);
}

/* Answer one question of `c`, unless its filter is gone and it has its verdict already. */
static int supervise(struct child *c, int value)
{
	struct pollfd fds[2] = {
		{ .fd = listener, .events = POLLIN },
		{ .fd = c->answer[0], .events = POLLIN },
	};
	struct seccomp_notif question = { 0 };
	struct seccomp_notif_resp reply = { 0 };

	if (poll(fds, 2, -1) < 0)
		return -1;
	if (!(fds[1].revents & POLLIN)) {
		if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &question) < 0)
			return -1;
		CHECK((pid_t)question.pid == c->pid && question.data.nr == ASKS,
		      "process %u asks for system call %d", question.pid, question.data.nr);
		reply.id = question.id;
		reply.val = value + (int)question.data.args[0];
		if (ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &reply) < 0)
			return -1;
	}
	return answer(c);
}

static void wait_for_question(void)
{
	struct pollfd fd = { .fd = listener, .events = POLLIN };

	ask(&waiting, 'w');
	poll(&fd, 1, -1);
}

/* ---- the judge ---------------------------------------------------------------------------- */

static void check_death(struct child *c, int signal, const char *name, void (*again)(void))
{
	int status = 0, value;

	ask(c, 'q');
	value = answer(c);
	CHECK(value == 'q' + 1, "%s: it answers %d", name, value);
	ask(c, 'b');
	value = answer(c);
	CHECK(value == -1, "%s: it may break the rules", name);
	if (value != -1) {
		kill(c->pid, SIGKILL);
		signal = SIGKILL;
	}
	waitpid(c->pid, &status, 0);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == signal, "%s: it ends with %#x", name,
	      status);
	stop(c);
	again();
}

static void check(void)
{
	int value;

	ask(&layered, 'm');
	value = answer(&layered);
	CHECK(value == ENOSYS * 10000 + 605, "the main thread's verdicts are %d", value);
	ask(&layered, 't');
	value = answer(&layered);
	CHECK(value == 70605, "the other thread's verdicts are %d", value);
	check_death(&tight, SIGSYS, "filter", start_tight);
	check_death(&strict, SIGKILL, "strict mode", start_strict);
	ask(&synced, 's');
	value = answer(&synced);
	CHECK(value == 0, "synchronising threads: %d", value);
	/* the others wait for the filters of all */
	if (value)
		return;
	value = supervise(&waiting, 1000);
	CHECK(value == 1000 + 'w', "the waiting one got %d", value);
	ask(&asking, 'a');
	value = supervise(&asking, 2000);
	CHECK(value == 2000 + 'a', "the asking one got %d", value);
	wait_for_question();
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	start_layered();
	start_tight();
	start_strict();
	start_synced();
	start_asking();
	wait_for_question();
	victim_ready();
	victim_serve(check);
}
