/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "cli.h"

/*
 * A job of our shell. The shell knows us, not the job: when the job stops, so do
 * we, and when the shell lets us go on, the job does, with the foreground if we
 * were given it.
 */
static void stop_with(int tty, pid_t root)
{
	pid_t group = getpgid(root);

	raise(SIGSTOP);
	if (tcgetpgrp(tty) == getpgrp())
		tcsetpgrp(tty, group);
	kill(-group, SIGCONT);
}

/* Of its end, or with `stops` its next stop. */
static int next_status(pid_t root, bool stops, int *status)
{
	siginfo_t info;

	while (waitid(P_PID, (id_t)root, &info,
		      WEXITED | WNOWAIT | __WALL | (stops ? WSTOPPED : 0)))
		if (errno != EINTR)
			return -errno;
	/* once it is reaped its number may be another's, and no signal must go there */
	if (info.si_code != CLD_STOPPED)
		cli_forward_signals(0);
	while (waitpid(root, status, __WALL | WUNTRACED) < 0)
		if (errno != EINTR)
			return -errno;
	return 0;
}

/* The root is our child: end as it ends, like a shell that ran it. */
static int wait_for(struct cli *c, pid_t root)
{
	int tty = c->shell_job ? open("/dev/tty", O_RDWR | O_CLOEXEC) : -1;
	pid_t group = getpgid(root);
	struct ckpt_error err = { 0 };
	int status = 0, r;

	cli_forward_signals(root);
	if (tty >= 0)
		/* the terminal is taken back from the background */
		signal(SIGTTOU, SIG_IGN);
	while (!(r = next_status(root, tty >= 0, &status)) && WIFSTOPPED(status))
		stop_with(tty, root);
	if (r) {
		ckpt_fail_sys(&err, r, "restore: wait for pid %d", (int)root);
		return cli_error(c, &err);
	}
	if (tty >= 0 && tcgetpgrp(tty) == group)
		tcsetpgrp(tty, getpgrp());
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int restore(struct cli *c, struct pidfile *p, pid_t *root)
{
	struct ckpt_restore_args a = { .dir = c->dir, .dry_run = c->dry_run };
	struct ckpt_error err = { 0 };
	struct ckpt_result r;
	int ret, code;

	if (p->path && pidfile_prepare(p, &err) < 0)
		return cli_error(c, &err);
	cli_catch_signals(c->ckpt);
	ret = ckpt_restore(c->ckpt, &a, &r, &err);
	if (!ret && p->path && pidfile_write(p, a.root, &err) < 0) {
		ckpt_hint(&err, "the tree runs, its root is pid %d", (int)a.root);
		r.exit = err.exit = CKPT_EXIT_FAILED;
	}
	c->done = !ret && !c->dry_run;
	code = cli_report(c, &r, &err);
	if (!ret && !c->json)
		cli_summary(c->dry_run ? "nothing is missing" : "restored", &r);
	if (c->stats && !c->json)
		cli_stats(&r);
	fflush(stdout);
	ckpt_result_free(&r);
	*root = ret < 0 ? 0 : a.root;
	return code;
}

int cli_restore(struct cli *c)
{
	struct pidfile p = { .option = "--pidfile",
			     .path = c->dry_run ? NULL : c->pidfile,
			     .fd = -1 };
	pid_t root = 0;
	int code = restore(c, &p, &root);

	pidfile_end(&p);
	if (root && !c->detach && !c->dry_run)
		return wait_for(c, root);
	return code;
}
