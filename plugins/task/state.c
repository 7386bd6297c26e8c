/* SPDX-License-Identifier: MIT */
/* Features, and what the steps of one run share. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/personality.h>

#include "task.h"

const struct ckpt_feature task_features[TASK_N_FEATURES + 1] = {
	[TASK_XSTATE] = { "xstate", "FPU, vector and other extended registers" },
	[TASK_ACTIONS] = { "actions", "signal handlers and ignored signals" },
	[TASK_PENDING] = { "pending", "pending signals with their siginfo" },
	[TASK_ALTSTACK] = { "altstack", "alternate signal stacks" },
	[TASK_RSEQ] = { "rseq", "restartable sequences" },
	[TASK_ROBUST] = { "robust-list", "lists of robust futexes" },
	[TASK_CLEAR_TID] = { "clear-tid", "the futex woken when a thread ends" },
	[TASK_ITIMERS] = { "itimers", "interval timers" },
	[TASK_TIMERS] = { "timers", "POSIX timers" },
	[TASK_COMM] = { "comm", "names of processes and threads" },
	[TASK_CREDS] = { "credentials", "user and group ids, capabilities, securebits" },
	[TASK_NNP] = { "no-new-privs", "PR_SET_NO_NEW_PRIVS" },
	[TASK_DUMPABLE] = { "dumpable", "PR_SET_DUMPABLE" },
	[TASK_PDEATH] = { "pdeath-signal", "PR_SET_PDEATHSIG" },
	[TASK_NICE] = { "nice", "nice values" },
	[TASK_AUTOGROUP] = { "autogroup", "nice values of sessions" },
	[TASK_SCHED] = { "scheduler", "scheduling policies and priorities" },
	[TASK_AFFINITY] = { "affinity", "CPU affinity" },
	[TASK_IOPRIO] = { "ioprio", "I/O priorities" },
	[TASK_OOM] = { "oom-score", "oom_score_adj" },
	[TASK_LIMITS] = { "limits", "resource limits" },
	[TASK_UMASK] = { "umask", "file mode creation masks" },
	[TASK_CWD] = { "cwd", "working directories" },
	[TASK_REMOVED_CWD] = { "removed-cwd", "working directories that were removed" },
	[TASK_SHARED_FS] = { "shared-fs", "processes that share working directory and umask" },
	[TASK_THREAD_FS] = { "thread-fs", "threads with working directory and umask of their own" },
	[TASK_PERSONALITY] = { "personality", "personality(2)" },
	[TASK_TIMERSLACK] = { "timer-slack", "PR_SET_TIMERSLACK" },
	[TASK_MCE_KILL] = { "mce-kill", "PR_MCE_KILL: when to be told of broken memory" },
	[TASK_THP] = { "thp", "PR_SET_THP_DISABLE" },
	[TASK_SPECULATION] = { "speculation", "PR_SET_SPECULATION_CTRL" },
	[TASK_COREDUMP] = { "coredump-filter", "coredump_filter" },
	[TASK_STOPPED] = { "stopped", "tasks stopped by a signal stay stopped" },
	[TASK_MEMBARRIER] = { "membarrier", "registrations of membarrier(2)" },
	[TASK_LDT] = { "ldt", "segments of modify_ldt(2)" },
	[TASK_NUMA] = { "numa", "memory policies of threads" },
	[TASK_N_FEATURES] = { NULL, NULL },
};

struct task_state *task_state(struct ckpt_run *run, struct ckpt_error *err)
{
	struct task_state *st = ckpt_state(run);

	if (st)
		return st;
	st = calloc(1, sizeof(*st));
	if (!st) {
		ckpt_fail_sys(err, ENOMEM, "state");
		return NULL;
	}
	st->own_personality = (uint32_t)personality(0xffffffff);
	ckpt_state_set(run, st);
	return st;
}

void task_state_free(void *state)
{
	struct task_state *st = state;

	if (!st)
		return;
	for (size_t i = 0; i < st->n_peeks; i++) {
		free(st->peeks[i].own);
		free(st->peeks[i].shared);
	}
	free(st->peeks);
	task_held_free(st);
	free(st->fs_first);
	free(st->own_place);
	free(st->own_sched);
	if (st->mine)
		task_creds_free(st->mine);
	free(st->mine);
	task_born_free(st->born);
	free(st);
}

static int by_tid(const void *a, const void *b)
{
	pid_t x = ((const struct task_peek *)a)->tid, y = ((const struct task_peek *)b)->tid;

	return x < y ? -1 : x > y;
}

const struct task_peek *task_peeked(const struct task_state *st, pid_t tid)
{
	struct task_peek key = { .tid = tid };

	return st->n_peeks ? bsearch(&key, st->peeks, st->n_peeks, sizeof(key), by_tid) : NULL;
}

bool task_saved(const struct task_state *st, enum task_feature f)
{
	return st->saved >> f & 1;
}

bool task_want(struct ckpt_run *run, enum task_feature f, const struct ckpt_task *t,
	       const char *object)
{
	return ckpt_refuse_off(run, task_features[f].name, t, object) == 1;
}

bool task_gone(const struct ckpt_run *run, int r)
{
	return ckpt_is_live(run) && (r == -ENOENT || r == -ESRCH);
}

void task_path(char *buf, size_t size, const struct ckpt_thread *th, const char *what)
{
	snprintf(buf, size, "task/%d/%s", th->tid, what);
}

int task_refuse(struct ckpt_run *run, const struct ckpt_task *t, const char *feature,
		const char *object, const char *reason, const char *hint)
{
	struct ckpt_blocker b = { feature, t, object, reason, hint, false };

	return ckpt_refuse(run, &b);
}
