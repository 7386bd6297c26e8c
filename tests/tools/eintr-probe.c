/* SPDX-License-Identifier: MIT
 *
 * Why a SIGKILL of ckpt between a thread's stop and the roll-back of its call can show: a call
 * that answers a stop with EINTR has done so before the thread stands, and a tracer's death lets
 * the thread go on with what its registers say. Nobody can come in between, but a tracer that
 * does not die: with one, the roll-back hides the stop. Prints what the thread saw.
 */
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

static _Noreturn void die(const char *what)
{
	perror(what);
	exit(1);
}

/* Says what epoll_wait(2) has returned: 'E' for EINTR, 't' for its timeout. */
static _Noreturn void wait_for_nothing(int to)
{
	struct epoll_event event;
	int epoll = epoll_create1(0);
	int r;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (write(to, "b", 1) != 1)
		_exit(1);
	r = epoll_wait(epoll, &event, 1, 1000);
	_exit(write(to, r < 0 && errno == EINTR ? "E" : "t", 1) != 1);
}

static bool sleeps(pid_t pid)
{
	char path[32], state = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	file = fopen(path, "re");
	if (!file || fscanf(file, "%*d %*s %c", &state) != 1)
		die(path);
	fclose(file);
	return state == 'S';
}

static _Noreturn void trace(pid_t pid, bool roll_back)
{
	struct user_regs_struct regs;
	int status;

	if (ptrace(PTRACE_SEIZE, pid, 0, 0) || ptrace(PTRACE_INTERRUPT, pid, 0, 0) ||
	    waitpid(pid, &status, __WALL) != pid || ptrace(PTRACE_GETREGS, pid, 0, &regs))
		die("ptrace");
	printf("in the stop rax is %lld; ", (long long)regs.rax);
	if (roll_back) {
		regs.rax = regs.orig_rax;
		regs.rip -= 2;
		regs.orig_rax = (unsigned long long)-1;
		if (ptrace(PTRACE_SETREGS, pid, 0, &regs))
			die("PTRACE_SETREGS");
	}
	fflush(stdout);
	raise(SIGKILL);
	_exit(1);
}

static void probe(const char *when, bool roll_back)
{
	int ends[2];
	pid_t pid, tracer;
	char c = 0;

	printf("tracer killed %s: ", when);
	fflush(stdout);
	if (pipe(ends) || (pid = fork()) < 0)
		die("fork");
	if (!pid)
		wait_for_nothing(ends[1]);
	if (read(ends[0], &c, 1) != 1)
		die("read");
	while (!sleeps(pid))
		usleep(1000);
	tracer = fork();
	if (!tracer)
		trace(pid, roll_back);
	waitpid(tracer, NULL, 0);
	if (read(ends[0], &c, 1) != 1)
		die("read");
	printf("epoll_wait %s\n", c == 'E' ? "returned EINTR" : "went on to its timeout");
	waitpid(pid, NULL, 0);
	close(ends[0]);
	close(ends[1]);
}

int main(void)
{
	probe("before the roll-back", false);
	probe("after it", true);
	return 0;
}
