/* SPDX-License-Identifier: MIT */
/*
 * The keeper: a child that keeps the agents' segments attached.
 *
 * A thread that was just given registers that lead to shmat(2) must find the
 * segment, also if we are killed before it runs. The segments are marked for
 * removal, and a dying process lets go of its memory before it lets go of its
 * tracees, so somebody else has to hold on to them for that moment. The keeper
 * is in a session of its own (a signal to our process group does not reach it),
 * holds no descriptor but the pipe that tells it of our end, and goes away a
 * second after us.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ckpt/cleanup.h>

#include "process/keeper.h"

static void __attribute__((noreturn)) keep(int pipe_end)
{
	sigset_t all;
	char c;

	setsid();
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	prctl(PR_SET_NAME, "ckpt-keeper");
	dup2(pipe_end, 0);
	syscall(SYS_close_range, 1U, ~0U, 0);
	while (read(0, &c, 1) < 0 && errno == EINTR)
		;
	sleep(1);
	_exit(0);
}

int keeper_start(struct keeper *k, struct ckpt_error *err)
{
	CKPT_AUTO_FD int theirs = -1;
	int ends[2];

	if (pipe2(ends, O_CLOEXEC))
		return ckpt_fail_sys(err, errno, "pipe2(2)");
	theirs = ends[0];
	k->pipe = ends[1];
	k->pid = fork();
	if (!k->pid) {
		close(ends[1]);
		keep(theirs);
	}
	if (k->pid < 0) {
		int e = errno;

		close(k->pipe);
		return ckpt_fail_sys(err, e, "fork(2) of the keeper");
	}
	return 0;
}

void keeper_stop(struct keeper *k)
{
	if (k->pid <= 0)
		return;
	kill(k->pid, SIGKILL);
	while (waitpid(k->pid, NULL, 0) < 0 && errno == EINTR)
		;
	close(k->pipe);
	k->pid = 0;
}
