/* SPDX-License-Identifier: MIT
 *
 * Makes one system call of a program fail:
 *
 *	fault [-t | -c] [-k | -x COMMAND] [-n N] [-e ERRNO] [-s NAME] [-o FILE] [-l LIST] --
 *	      PROGRAM ARGS...
 *
 * runs PROGRAM and lets its N-th system call (its N-th call of NAME with -s) return ERRNO (a
 * number, EIO without -e) without being made. Writes "CALLS NAME", the number of calls seen and
 * the name of the failed one ("-": none was), to FILE, and the names of all calls that can fail,
 * one a line, to LIST ("-": one that cannot). Ends as the program does, which is left alone once
 * its call has failed.
 *
 * With -k it kills the caller there, by SIGKILL, before the call is made. With -x a shell runs
 * COMMAND there, while the caller stands still; then the call is made. FAULT_PID is PROGRAM.
 *
 * Only the main thread's calls count, with -t only those of the other threads, with -c only those
 * of the processes that PROGRAM and its children fork. There can be one tracer: whom one of them
 * seizes is left to it, from the request on.
 */
#include <errno.h>
#include <fcntl.h>
#include <seccomp.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <sys/syscall.h>
#include <unistd.h>

enum part { MAIN, THREAD, CHILD };

struct plan {
	unsigned long position;
	long error;
	int nr; /* -1: any */
	enum part part;
	bool kill;
	const char *command, *output;
	FILE *list;
};

struct seen {
	unsigned long calls;
	long failed; /* number of the call, -1: none yet */
	pid_t failing;
};

enum { MOST = 4096 };

/* Whom we trace. */
static struct tracee {
	pid_t tid;
	enum part part;
} tracees[MOST];
static size_t n_tracees;

static _Noreturn void die(const char *what)
{
	fprintf(stderr, "fault: %s: %s\n", what, strerror(errno));
	exit(125);
}

static _Noreturn void usage(void)
{
	fputs("usage: fault [-t | -c] [-k | -x COMMAND] [-n N] [-e ERRNO] [-s SYSCALL] "
	      "[-o FILE] [-l LIST] -- PROGRAM ARGS...\n",
	      stderr);
	exit(125);
}

static struct plan parse(int argc, char **argv)
{
	struct plan plan = { .error = EIO, .nr = -1 };
	for (int c; (c = getopt(argc, argv, "+tckx:n:e:s:o:l:")) != -1;) {
		switch (c) {
		case 't':
			plan.part = THREAD;
			break;
		case 'c':
			plan.part = CHILD;
			break;
		case 'x':
			plan.command = optarg;
			break;
		case 'k':
			plan.kill = true;
			break;
		case 'n':
			plan.position = strtoul(optarg, NULL, 10);
			break;
		case 'e':
			plan.error = strtol(optarg, NULL, 10);
			break;
		case 's':
			plan.nr = seccomp_syscall_resolve_name(optarg);
			if (plan.nr == __NR_SCMP_ERROR)
				usage();
			break;
		case 'o':
			plan.output = optarg;
			break;
		case 'l':
			plan.list = fopen(optarg, "we");
			if (!plan.list)
				die(optarg);
			break;
		default:
			usage();
		}
	}
	if (optind == argc)
		usage();
	return plan;
}

static struct tracee *find(pid_t tid)
{
	for (size_t i = 0; i < n_tracees; i++)
		if (tracees[i].tid == tid)
			return &tracees[i];
	return NULL;
}

static struct tracee *add(pid_t tid, enum part part)
{
	if (n_tracees == MOST) {
		errno = E2BIG;
		die("processes");
	}
	tracees[n_tracees] = (struct tracee){ .tid = tid, .part = part };
	return &tracees[n_tracees++];
}

static void forget(pid_t tid)
{
	struct tracee *t = find(tid);

	if (t)
		*t = tracees[--n_tracees];
}

static int options_of(const struct plan *plan)
{
	return PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL |
	       (plan->part == MAIN ? 0 : PTRACE_O_TRACECLONE) |
	       (plan->part == CHILD ? PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK : 0);
}

static pid_t start(char **argv, const struct plan *plan)
{
	int go[2], status;
	char c = 0;
	pid_t pid;

	if (pipe2(go, O_CLOEXEC))
		die("pipe2");
	pid = fork();
	if (pid < 0)
		die("fork");
	if (pid == 0) {
		/* it is let go one day, and may hang */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (read(go[0], &c, 1) == 1)
			execvp(argv[0], argv);
		die(argv[0]);
	}
	if (ptrace(PTRACE_SEIZE, pid, 0, options_of(plan)) < 0 ||
	    ptrace(PTRACE_INTERRUPT, pid, 0, 0) < 0)
		die("PTRACE_SEIZE");
	if (waitpid(pid, &status, __WALL) != pid || !WIFSTOPPED(status))
		die("waitpid");
	add(pid, MAIN);
	if (write(go[1], &c, 1) != 1)
		die("write");
	close(go[0]);
	close(go[1]);
	return pid;
}

/*
 * A call that ends the program, or that is no call, cannot fail. brk(2) fails by returning an
 * address, and futex(2) as the C library's own locks use it does not fail at all: the library ends
 * the program at an error that the kernel does not give, as it does for rseq(2). set_tid_address(2)
 * and gettid(2) cannot fail either, nor timer_delete(2) of a timer that is there.
 */
static bool can_fail(long nr)
{
	return nr != SYS_futex && nr != SYS_brk && nr != SYS_set_tid_address && nr != SYS_rseq &&
	       nr != SYS_gettid && nr != SYS_timer_delete && nr != SYS_exit &&
	       nr != SYS_exit_group && nr != SYS_rt_sigreturn && nr != SYS_execve;
}

static void write_report(const char *path, const struct seen *seen)
{
	char *name = seen->failed < 0 ? NULL
				      : seccomp_syscall_resolve_num_arch(SCMP_ARCH_NATIVE,
									 (int)seen->failed);
	FILE *file = fopen(path, "w");
	if (!file)
		die(path);
	fprintf(file, "%lu %s\n", seen->calls, name ? name : "-");
	fclose(file);
	free(name);
}

static void note(FILE *list, long nr)
{
	char *name =
		can_fail(nr) ? seccomp_syscall_resolve_num_arch(SCMP_ARCH_NATIVE, (int)nr) : NULL;
	fprintf(list, "%s\n", name ? name : "-");
	free(name);
}

/* The last of its numbers is the one that its namespace knows it by. */
static size_t numbers_of(pid_t tid, pid_t numbers[32])
{
	char path[64], line[512];
	size_t n = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)tid);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file)) {
		char *at = line + strlen("NSpid:"), *end;

		if (strncmp(line, "NSpid:", strlen("NSpid:")))
			continue;
		for (long number; n < 32 && (number = strtol(at, &end, 10), end != at); at = end)
			numbers[n++] = (pid_t)number;
	}
	if (file)
		fclose(file);
	return n;
}

/* Which tracee is it that the caller calls `pid`? 0: none. */
static pid_t named(pid_t caller, pid_t pid)
{
	pid_t own[32], theirs[32];
	const size_t level = numbers_of(caller, own);

	for (size_t i = 0; level && i < n_tracees; i++)
		if (numbers_of(tracees[i].tid, theirs) >= level && theirs[level - 1] == pid)
			return tracees[i].tid;
	return 0;
}

/* What a stop is left with: the signal that it was for. */
static long signal_of(int status)
{
	return status >> 16 || WSTOPSIG(status) == (SIGTRAP | 0x80) ? 0 : WSTOPSIG(status);
}

static void let_go(pid_t tid)
{
	int status;

	ptrace(PTRACE_INTERRUPT, tid, 0, 0);
	if (waitpid(tid, &status, __WALL) == tid && WIFSTOPPED(status))
		ptrace(PTRACE_DETACH, tid, 0, signal_of(status));
	forget(tid);
}

static bool is_over(const struct seen *seen)
{
	return seen->failed >= 0 && !seen->failing;
}

static void act(pid_t tid, const struct plan *plan, struct seen *seen)
{
	if (plan->kill) {
		kill(tid, SIGKILL);
	} else if (plan->command) {
		if (system(plan->command))
			fprintf(stderr, "fault: %s failed\n", plan->command);
	} else {
		ptrace(PTRACE_POKEUSER, tid, offsetof(struct user_regs_struct, orig_rax), -1L);
		seen->failing = tid;
	}
	/* in case the program never ends */
	if (plan->output)
		write_report(plan->output, seen);
}

static void on_entry(pid_t tid, long nr, const struct plan *plan, struct seen *seen)
{
	seen->calls++;
	if (plan->list)
		note(plan->list, nr);
	if (seen->calls != plan->position || (!plan->kill && !plan->command && !can_fail(nr)))
		return;
	seen->failed = nr;
	act(tid, plan, seen);
	/* one in vfork(2) stops when it goes on */
	for (size_t i = 0; is_over(seen) && i < n_tracees; i++)
		if (tracees[i].tid != tid)
			ptrace(PTRACE_INTERRUPT, tracees[i].tid, 0, 0);
}

static void on_syscall(const struct tracee *t, const struct plan *plan, struct seen *seen)
{
	struct __ptrace_syscall_info info;
	const pid_t tid = t->tid;
	const bool counts = t->part == plan->part;
	long nr;

	if (ptrace(PTRACE_GET_SYSCALL_INFO, tid, sizeof(info), &info) < 0)
		return;
	if (info.op == PTRACE_SYSCALL_INFO_EXIT && seen->failing == tid) {
		ptrace(PTRACE_POKEUSER, tid, offsetof(struct user_regs_struct, rax), -plan->error);
		seen->failing = 0;
		for (size_t i = 0; i < n_tracees; i++)
			if (tracees[i].tid != tid)
				ptrace(PTRACE_INTERRUPT, tracees[i].tid, 0, 0);
	}
	if (info.op != PTRACE_SYSCALL_INFO_ENTRY)
		return;
	nr = (long)info.entry.nr;
	if (counts && (plan->nr < 0 || nr == plan->nr))
		on_entry(tid, nr, plan, seen);
	if (nr == SYS_ptrace && info.entry.args[0] == PTRACE_SEIZE) {
		const pid_t whom = named(tid, (pid_t)info.entry.args[1]);

		if (whom && whom != tid)
			let_go(whom);
	}
}

/* A clone(2) whose child sends no SIGCHLD is reported as a thread's, and may be a process. */
static enum part part_of(pid_t tid, pid_t pid)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/task/%d", (int)pid, (int)tid);
	return access(path, F_OK) ? CHILD : THREAD;
}

/* Let it go on from its stop; one whose calls do not count is left alone. */
static void go_on(pid_t tid, int status, const struct plan *plan, const struct seen *seen)
{
	const struct tracee *t = find(tid);
	const bool stays = status >> 16 == PTRACE_EVENT_STOP && WSTOPSIG(status) != SIGTRAP;
	const bool over = is_over(seen) || (t->part == CHILD && plan->part != CHILD);

	if (ptrace(over ? PTRACE_DETACH : (stays ? PTRACE_LISTEN : PTRACE_SYSCALL), tid, 0,
		   stays ? 0 : signal_of(status)) < 0 &&
	    errno != ESRCH)
		die("PTRACE_SYSCALL");
	if (over)
		forget(tid);
}

/* What we still trace would end with us. */
static void let_all_go(void)
{
	while (n_tracees)
		let_go(tracees[0].tid);
}

static int follow(pid_t pid, const struct plan *plan, struct seen *seen)
{
	int status = PTRACE_EVENT_STOP << 16 | SIGTRAP << 8 | 0x7f;
	pid_t tid = pid;
	bool begun = false;

	for (;;) {
		const struct tracee *t = find(tid);

		if (!t)
			t = add(tid, part_of(tid, pid));
		/* what is before is ours */
		begun |= status >> 16 == PTRACE_EVENT_EXEC;
		if (begun && !(status >> 16) && WSTOPSIG(status) == (SIGTRAP | 0x80))
			on_syscall(t, plan, seen);
		go_on(tid, status, plan, seen);
		for (;;) {
			tid = waitpid(-1, &status, __WALL);
			if (tid < 0)
				die("waitpid");
			if (WIFSTOPPED(status))
				break;
			forget(tid);
			if (tid == pid)
				return status;
		}
	}
}

int main(int argc, char **argv)
{
	struct plan plan = parse(argc, argv);
	struct seen seen = { .failed = -1 };
	const pid_t pid = start(argv + optind, &plan);
	char text[16];
	int status;

	snprintf(text, sizeof(text), "%d", (int)pid);
	setenv("FAULT_PID", text, 1);
	status = follow(pid, &plan, &seen);
	let_all_go();
	if (plan.list)
		fclose(plan.list);
	if (plan.output)
		write_report(plan.output, &seen);
	if (WIFSIGNALED(status)) {
		signal(WTERMSIG(status), SIG_DFL);
		raise(WTERMSIG(status));
	}
	return WEXITSTATUS(status);
}
