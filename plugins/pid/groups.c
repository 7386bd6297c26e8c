/* SPDX-License-Identifier: MIT */
/* Put tasks into their process groups, and end those that are to be dead. */
#include <linux/prctl.h>
#include <linux/securebits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "pid.h"

int pid_group_actor(const struct pid_plan *p, int node)
{
	const struct pid_node *n = &p->nodes[node];

	/* without a group of the image: whatever it was born into */
	if (n->group < 0 || n->now_group == n->group)
		return PID_IN_GROUP;
	if (pid_plan_covers(p, n->ns, p->nodes[n->group].ns))
		return node;
	if (n->maker >= 0 && pid_plan_covers(p, p->nodes[n->maker].ns, p->nodes[n->group].ns))
		return n->maker;
	return PID_NO_ACTOR;
}

/* A node's number as seen in namespace `ns`. */
static int number(const struct pid_plan *p, int node, uint32_t ns, int32_t *nr,
		  struct ckpt_error *err)
{
	const struct pid_node *n = &p->nodes[node];
	uint32_t level = p->ns[ns]->level;
	CKPT_AUTO_FREE char *text = NULL;
	struct pid_numbers shown;
	ssize_t len;

	if (n->n_pids) {
		*nr = n->pids[level];
		return 0;
	}
	len = ckpt_proc_read(n->task, "status", &text, err);
	if (len < 0)
		return (int)len;
	if (pid_status_numbers(text, "NSpid", &shown) < 0 || shown.n <= level)
		return ckpt_fail(err, EINVAL, "/proc/%d/status: no NSpid of level %u", n->task->pid,
				 level);
	*nr = shown.nr[level];
	return 0;
}

static int join(struct ckpt_run *run, const struct pid_plan *p, int node, struct ckpt_error *err)
{
	const struct pid_node *n = &p->nodes[node];
	int actor = pid_group_actor(p, node), r;
	int32_t who = 0, group = 0;

	if (actor < 0)
		return 0;
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "pid.groups");

	r = number(p, n->group, p->nodes[actor].ns, &group, err);
	if (r == 0 && actor != node)
		r = number(p, node, p->nodes[actor].ns, &who, err);
	if (r < 0)
		return r;
	ckpt_script_add(s, SYS_setpgid, CKPT_C(who), CKPT_C(group));
	return ckpt_script_run(s, p->nodes[actor].task->threads[0], err);
}

int pid_groups(struct ckpt_run *run, struct ckpt_error *err)
{
	struct pid_plan *p = ckpt_state(run);

	/* leaders first: a group is there once its leader is in it */
	for (int members = 0; members < 2; members++) {
		for (size_t i = 0; i < p->n; i++) {
			char name[48];

			if ((p->nodes[i].group != (int)i) != members)
				continue;
			if (join(run, p, (int)i, err) < 0)
				return ckpt_wrap(err, "%s",
						 pid_node_name(&p->nodes[i], name, sizeof(name)));
		}
	}
	return 0;
}

/* A dead leader or parent: it ends and its maker reaps it. */
static int end_helper(struct ckpt_run *run, struct pid_plan *p, int node, struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "pid.reap");
	struct pid_node *n = &p->nodes[node], *maker = &p->nodes[n->maker];
	int32_t nr;
	int r = number(p, node, maker->ns, &nr, err);

	if (r == 0)
		r = ckpt_end_task(run, n->task, 0, err);
	if (r < 0)
		return r;
	ckpt_script_add(s, SYS_wait4, CKPT_C(nr), CKPT_C(0), CKPT_C(__WALL), CKPT_C(0));
	ckpt_script_expect(s, nr);
	return ckpt_script_run(s, maker->task->threads[0], err);
}

/* What still shows of a zombie: its name and ids, also in its parent's waitid(2). */
static int end_zombie(struct ckpt_run *run, struct pid_node *n, struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "pid.zombie");
	const Ckpt__Pid__Zombie *z = n->rec->zombie;
	const struct ckpt_ns *user = ckpt_ns_seat(run, n->id, 0)->ns[CKPT_NS_USER];
	int r;

	/* with all capabilities kept */
	ckpt_script_add(s, SYS_prctl, CKPT_C(PR_SET_SECUREBITS), CKPT_C(SECBIT_NO_SETUID_FIXUP),
			CKPT_C(0), CKPT_C(0), CKPT_C(0));
	ckpt_script_add(s, SYS_prctl, CKPT_C(PR_SET_NAME), CKPT_STR(z->comm));
	ckpt_script_add(s, SYS_setresgid, CKPT_C(z->gids[0]), CKPT_C(z->gids[1]),
			CKPT_C(z->gids[2]));
	ckpt_script_add(s, SYS_setresuid, CKPT_C(z->uids[0]), CKPT_C(z->uids[1]),
			CKPT_C(z->uids[2]));
	r = ckpt_script_run(s, n->task->threads[0], err);
	/* its user namespace shows too */
	if (r == 0 && !user->own)
		r = ckpt_ns_enter(run, n->task->threads[0], user, err);
	return r < 0 ? r : ckpt_end_task(run, n->task, (int)z->status, err);
}

/* The signals of these deaths were consumed long ago: those still pending are saved as such. */
static int drain(struct ckpt_run *run, struct pid_node *n, unsigned deaths, struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "pid.drain");
	const struct timespec none = { 0 };
	uint64_t all = ~0ULL;

	for (unsigned i = 0; i < deaths; i++) {
		ckpt_script_add(s, SYS_rt_sigtimedwait, CKPT_IN(&all, sizeof(all)), CKPT_C(0),
				CKPT_IN(&none, sizeof(none)), CKPT_C(sizeof(all)));
		/* signals below SIGRTMIN do not queue, so there may be fewer */
		ckpt_script_allow(s, EAGAIN);
	}
	return ckpt_script_run(s, n->task->threads[0], err);
}

int pid_end(struct ckpt_run *run, struct ckpt_error *err)
{
	struct pid_plan *p = ckpt_state(run);
	CKPT_AUTO_FREE unsigned *deaths = calloc(p->n, sizeof(*deaths));
	int r = 0;

	if (!deaths)
		return ckpt_fail_sys(err, ENOMEM, "zombies");
	/* youngest first: the orphans of one may be the makers of another */
	for (size_t i = p->n_ops; i-- > 0 && r == 0;) {
		struct pid_node *n = &p->nodes[p->ops[i].node];

		if (p->ops[i].kind != PID_OP_MAKE || n->kind == PID_TASK)
			continue;
		deaths[n->maker]++;
		r = end_helper(run, p, p->ops[i].node, err);
	}
	for (size_t i = 0; i < p->n_tasks && r == 0; i++) {
		struct pid_node *n = &p->nodes[i];

		if (!n->rec->zombie)
			continue;
		if (n->parent >= 0)
			deaths[n->parent]++;
		r = end_zombie(run, n, err);
	}
	for (size_t i = 0; i < p->n_tasks && r == 0; i++)
		if (deaths[i] && !p->nodes[i].rec->zombie)
			r = drain(run, &p->nodes[i], deaths[i], err);
	return r;
}
