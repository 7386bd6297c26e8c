/* SPDX-License-Identifier: MIT
 *
 * Makes one system call of a program fail:
 *
 *	fault [-t] [-k] [-n N] [-e ERRNO] [-s NAME] [-o FILE] [-l LIST] -- PROGRAM ARGS...
 *
 * runs PROGRAM and lets its N-th system call (its N-th call of NAME with -s) return ERRNO (a
 * number, EIO without -e) without being made. Writes "CALLS NAME", the number of calls seen and
 * the name of the failed one ("-": none was), to FILE, and the names of all calls that can fail,
 * one a line, to LIST ("-": one that cannot). Ends as the program does, which is left alone once
 * its call has failed.
 *
 * With -k it kills PROGRAM there, by SIGKILL, before the call is made.
 *
 * Only the main thread's calls count, with -t only those of the other threads. Processes are not
 * followed: what ckpt forks becomes its own tracee, and there can be one tracer.
 */
#include <errno.h>
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

struct plan {
	unsigned long position;
	long error;
	int nr; /* -1: any */
	bool threads;
	bool kill;
	const char *output;
	FILE *list;
};

struct seen {
	unsigned long calls;
	long failed; /* number of the call, -1: none yet */
	pid_t failing;
};

static _Noreturn void die(const char *what)
{
	fprintf(stderr, "fault: %s: %s\n", what, strerror(errno));
	exit(125);
}

static _Noreturn void usage(void)
{
	fputs("usage: fault [-t] [-k] [-n N] [-e ERRNO] [-s SYSCALL] [-o FILE] [-l LIST] -- "
	      "PROGRAM "
	      "ARGS...\n",
	      stderr);
	exit(125);
}

static struct plan parse(int argc, char **argv)
{
	struct plan plan = { .error = EIO, .nr = -1 };
	for (int c; (c = getopt(argc, argv, "+tkn:e:s:o:l:")) != -1;) {
		switch (c) {
		case 't':
			plan.threads = true;
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

static pid_t start(char **argv, const struct plan *plan)
{
	pid_t pid = fork();
	if (pid < 0)
		die("fork");
	if (pid == 0) {
		/* it is let go one day, and may hang */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		ptrace(PTRACE_TRACEME, 0, 0, 0);
		raise(SIGSTOP);
		execvp(argv[0], argv);
		die(argv[0]);
	}
	int status;
	if (waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status))
		die("waitpid");
	if (ptrace(PTRACE_SETOPTIONS, pid, 0,
		   PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL |
			   (plan->threads ? PTRACE_O_TRACECLONE : 0)) < 0)
		die("PTRACE_SETOPTIONS");
	return pid;
}

/*
 * A call that ends the program, or that is no call, cannot fail. brk(2) fails by returning an
 * address, and futex(2) as the C library's own locks use it does not fail at all: the library ends
 * the program at an error that the kernel does not give, as it does for rseq(2). set_tid_address(2)
 * cannot fail either.
 */
static bool can_fail(long nr)
{
	return nr != SYS_futex && nr != SYS_brk && nr != SYS_set_tid_address && nr != SYS_rseq &&
	       nr != SYS_exit && nr != SYS_exit_group && nr != SYS_rt_sigreturn && nr != SYS_execve;
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

static void on_syscall(pid_t tid, bool counts, const struct plan *plan, struct seen *seen)
{
	struct __ptrace_syscall_info info;
	if (ptrace(PTRACE_GET_SYSCALL_INFO, tid, sizeof(info), &info) < 0)
		return;
	if (info.op == PTRACE_SYSCALL_INFO_EXIT) {
		if (seen->failing != tid)
			return;
		ptrace(PTRACE_POKEUSER, tid, offsetof(struct user_regs_struct, rax), -plan->error);
		seen->failing = 0;
		return;
	}
	long nr = (long)info.entry.nr;
	if (info.op != PTRACE_SYSCALL_INFO_ENTRY || !counts || (plan->nr >= 0 && nr != plan->nr))
		return;
	seen->calls++;
	if (plan->list)
		note(plan->list, nr);
	if (seen->calls != plan->position || (!plan->kill && !can_fail(nr)))
		return;
	seen->failed = nr;
	if (plan->kill) {
		kill(tid, SIGKILL);
	} else {
		ptrace(PTRACE_POKEUSER, tid, offsetof(struct user_regs_struct, orig_rax), -1L);
		seen->failing = tid;
	}
	/* in case the program never ends */
	if (plan->output)
		write_report(plan->output, seen);
}

/* A clone(2) whose child sends no SIGCHLD is reported as a thread's, and may be a process. */
static bool is_thread(pid_t tid, pid_t pid)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/task/%d", (int)pid, (int)tid);
	return !access(path, F_OK);
}

static int follow(pid_t pid, const struct plan *plan, struct seen *seen)
{
	pid_t tid = pid;
	int signal = 0;
	for (;;) {
		bool over = (seen->failed >= 0 && !seen->failing) || !is_thread(tid, pid);
		int status;
		if (ptrace(over ? PTRACE_DETACH : PTRACE_SYSCALL, tid, 0, signal) < 0 &&
		    errno != ESRCH)
			die("PTRACE_SYSCALL");
		do
			tid = waitpid(-1, &status, __WALL);
		while (tid > 0 && tid != pid && !WIFSTOPPED(status));
		if (tid < 0)
			die("waitpid");
		if (!WIFSTOPPED(status))
			return status;
		signal = 0;
		if (WSTOPSIG(status) == (SIGTRAP | 0x80))
			on_syscall(tid, plan->threads == (tid != pid), plan, seen);
		else if (!(status >> 16) && (tid == pid || WSTOPSIG(status) != SIGSTOP))
			signal = WSTOPSIG(status);
	}
}

int main(int argc, char **argv)
{
	struct plan plan = parse(argc, argv);
	struct seen seen = { .failed = -1 };
	int status = follow(start(argv + optind, &plan), &plan, &seen);
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
