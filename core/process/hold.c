/* SPDX-License-Identifier: MIT */
/*
 * Keeping a tree from going on after the engine's death, for as long as somebody who outlives it
 * has something of the tree's in his hands.
 */
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/run.h"
#include "process/set.h"

static void add_to_all(const struct proc_set *ps, uint32_t by)
{
	for (size_t i = 0; i < ps->n; i++)
		if (ps->tasks[i]->seg)
			__atomic_add_fetch(&segment_header(ps->tasks[i]->seg)->hold, by,
					   __ATOMIC_SEQ_CST);
}

static int hold(const struct proc_set *ps)
{
	uint32_t died = 0;

	/* an agent looks the other way round: at the owner, then at the hold */
	add_to_all(ps, 1);
	for (size_t i = 0; i < ps->n; i++)
		if (ps->tasks[i]->seg)
			died |= __atomic_load_n(&segment_header(ps->tasks[i]->seg)->owner,
						__ATOMIC_SEQ_CST) &
				AGENT_OWNER_DIED;
	if (!died)
		return 0;
	add_to_all(ps, (uint32_t)-1);
	return -ESRCH;
}

static int hold_and_run(struct ckpt_run *run, int (*fn)(void *arg), void *arg)
{
	const struct proc_set *ps = run_procs(run);
	int r = hold(ps);

	if (r < 0)
		return r;
	r = fn(arg);
	add_to_all(ps, (uint32_t)-1);
	return r;
}

int ckpt_run_holding(struct ckpt_run *run, int (*fn)(void *arg), void *arg, const char *what,
		     struct ckpt_error *err)
{
	sigset_t all, before;
	int status, r;
	pid_t pid;

	/* signals of ckpt's terminal leave the child alone */
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, &before);
	pid = fork();
	if (!pid) {
		setsid(); /* who kills all of our process group leaves it alone too */
		_exit(-hold_and_run(run, fn, arg));
	}
	sigprocmask(SIG_SETMASK, &before, NULL);
	if (pid < 0)
		return ckpt_fail_sys(err, errno, "fork(2)");
	do
		r = waitpid(pid, &status, 0);
	while (r < 0 && errno == EINTR);
	if (r < 0 || !WIFEXITED(status))
		return ckpt_fail(err, EPROTO, "the reader of %s was killed", what);
	return WEXITSTATUS(status) ? ckpt_fail_sys(err, WEXITSTATUS(status), "reading %s", what)
				   : 0;
}
