/* SPDX-License-Identifier: MIT
 * test: only=kill
 *
 * Processes that do not survive a system call too many: one that may read and write and nothing
 * else, one with threads that may do no more, one in strict mode. And one that is stopped, and
 * goes on only when it is asked.
 */
#include "victim.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TIGHT, STRICT, STOPPED, THREADS, N_THREADS = 4, N = THREADS + N_THREADS };

static struct {
	int question[2], answer[2];
} pipes[N];
static pid_t stopped;

static void serve(int i)
{
	uint64_t v;

	while (read(pipes[i].question[0], &v, sizeof(v)) == sizeof(v)) {
		v = v * 3 + 1;
		if (write(pipes[i].answer[1], &v, sizeof(v)) != sizeof(v))
			break;
	}
	/* whatever else it called would kill it too */
	for (;;)
		read(pipes[i].question[0], &v, sizeof(v));
}

static void install_tight(unsigned flags)
{
	struct sock_filter program[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_read, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog p = { sizeof(program) / sizeof(program[0]), program };

	MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &p));
}

static void *thread(void *arg)
{
	serve((int)(intptr_t)arg);
	return NULL;
}

static void ask(int i)
{
	static uint64_t number;
	uint64_t v = ++number, got = 0;

	if (i == STOPPED)
		MUST(kill(stopped, SIGCONT));
	MUST(write(pipes[i].question[1], &v, sizeof(v)));
	MUST(read(pipes[i].answer[0], &got, sizeof(got)));
	CHECK(got == v * 3 + 1, "%d says %lu to %lu", i, got, v);
	if (i != STOPPED)
		return;
	MUST(kill(stopped, SIGSTOP));
	MUST(waitpid(stopped, NULL, WUNTRACED));
}

static void be(int i)
{
	MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
	MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	if (i == STRICT)
		MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT));
	if (i == TIGHT)
		install_tight(0);
	if (i == THREADS) {
		for (intptr_t k = 1; k < N_THREADS; k++) {
			pthread_t t;

			if (pthread_create(&t, NULL, thread, (void *)(i + k)))
				_exit(1);
			/* it is past what a thread begins with */
			ask((int)(i + k));
		}
		install_tight(SECCOMP_FILTER_FLAG_TSYNC);
	}
	serve(i);
}

static void check(void)
{
	pid_t dead = waitpid(-1, NULL, WNOHANG);

	CHECK(!dead, "child %d is dead", dead);
	if (dead)
		return;
	for (int i = 0; i < N; i++)
		ask(i);
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	for (int i = 0; i < N; i++) {
		MUST(pipe(pipes[i].question));
		MUST(pipe(pipes[i].answer));
	}
	for (int i = 0; i <= THREADS; i++) {
		pid_t pid = MUST(fork());

		if (!pid)
			be(i);
		if (i == STOPPED)
			stopped = pid;
	}
	MUST(kill(stopped, SIGSTOP));
	MUST(waitpid(stopped, NULL, WUNTRACED));
	victim_ready();
	victim_serve(check);
}
