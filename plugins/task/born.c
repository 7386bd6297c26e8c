/* SPDX-License-Identifier: MIT */
/* What skeletons have by birth, seen at the first one. */
#include <limits.h>
#include <linux/securebits.h>
#include <stdlib.h>
#include <sys/prctl.h>

#include "task.h"

static int look_at_creds(struct task_born *born, const struct ckpt_task *t, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *status = NULL;
	/* the one bit that execve(2) takes away, which has made the first skeleton */
	const uint32_t bits = (uint32_t)prctl(PR_GET_SECUREBITS) & ~(uint32_t)SECBIT_KEEP_CAPS;
	int r;

	if (ckpt_proc_read(t, "status", &status, err) < 0)
		return -err->err;
	r = task_creds_read(status, bits, &born->creds, err);
	born->creds_known = r == 0;
	return r;
}

/* Whoever may not ask tells all tasks everything. */
static void look_at_limits(struct task_born *born, const struct ckpt_task *t)
{
	born->limits_known = true;
	for (size_t i = 0; i < TASK_N_LIMITS && born->limits_known; i++)
		born->limits_known =
			!prlimit(t->pid, (__rlimit_resource_t)i, NULL, &born->limits[i]);
}

static int number(const struct ckpt_task *t, const char *name, int base, long *v,
		  struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *text = NULL;

	if (ckpt_proc_read(t, name, &text, err) < 0)
		return -err->err;
	*v = strtol(text, NULL, base);
	return 0;
}

int task_born_look(struct ckpt_run *run, struct ckpt_error *err)
{
	struct task_state *st = ckpt_state(run);
	const struct ckpt_task *root = ckpt_task_at(run, 0);
	struct task_born *born = calloc(1, sizeof(*born));
	int r;

	if (!born)
		return ckpt_fail_sys(err, ENOMEM, "state");
	born->oom_score_adj = born->coredump_filter = LONG_MIN;
	st->born = born;
	born->policy = task_policy_is_odd();
	/* it has joined its user namespace by now, and is not like the others any more */
	if (!root || root->zombie || task_is_nested(run, root->id))
		return 0;
	look_at_limits(born, root);
	r = look_at_creds(born, root, err);
	if (r == 0)
		r = task_sched_look(root->pid, &born->sched, err);
	born->sched_known = r == 0;
	if (r == 0)
		r = number(root, "coredump_filter", 16, &born->coredump_filter, err);
	return r < 0 ? r : number(root, "oom_score_adj", 10, &born->oom_score_adj, err);
}

void task_born_free(struct task_born *born)
{
	if (born && born->creds_known)
		task_creds_free(&born->creds);
	free(born);
}

bool task_born_creds(const struct task_state *st, const Ckpt__Task__Credentials *c)
{
	return st->born->creds_known && task_creds_same(c, &st->born->creds.msg);
}

bool task_born_limit(const struct task_state *st, const Ckpt__Task__Limit *l)
{
	const struct rlimit *own = &st->born->limits[l->resource];

	return st->born->limits_known && own->rlim_cur == l->soft && own->rlim_max == l->hard;
}

bool task_born_sched(const struct task_state *st, const Ckpt__Task__Scheduling *m)
{
	const Ckpt__Task__Scheduling *own = &st->born->sched.msg;

	return st->born->sched_known && own->policy == m->policy && own->nice == m->nice &&
	       own->priority == m->priority && own->flags == m->flags && own->ioprio == m->ioprio &&
	       (!m->slice_ns || own->slice_ns == m->slice_ns);
}

/* What records say only of who has it: nobody is to have it from ckpt. */
static const struct {
	const char *name;
	int get, set;
	unsigned long usual;
	bool by_pointer;
} inherited[] = {
	{ "PR_SET_THP_DISABLE", PR_GET_THP_DISABLE, PR_SET_THP_DISABLE, 0, false },
	{ "PR_SET_MEMORY_MERGE", 68 /* PR_GET_MEMORY_MERGE */, 67, 0, false },
	{ "PR_SET_IO_FLUSHER", PR_GET_IO_FLUSHER, PR_SET_IO_FLUSHER, 0, false },
	{ "PR_SET_TSC", PR_GET_TSC, PR_SET_TSC, PR_TSC_ENABLE, true },
};

static bool is_usual(size_t i)
{
	int value = 0;
	long r = inherited[i].by_pointer ? prctl(inherited[i].get, &value)
					 : prctl(inherited[i].get, 0, 0, 0, 0);

	/* a kernel without it, or no privilege to look, has nothing to give */
	return r < 0 || (unsigned long)(inherited[i].by_pointer ? value : r) == inherited[i].usual;
}

void task_born_plain(struct ckpt_run *run)
{
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(inherited); i++) {
		if (!is_usual(i))
			prctl(inherited[i].set, inherited[i].usual, 0, 0, 0);
		if (!is_usual(i))
			ckpt_unmet(run, CKPT_EXIT_PRIVILEGE, "start ckpt without it",
				   "ckpt itself has %s, and so would all that it restores",
				   inherited[i].name);
	}
}
