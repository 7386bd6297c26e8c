/* SPDX-License-Identifier: MIT */
/* From which nodes a thread's memory is taken: set_mempolicy(2). */
#include <linux/mempolicy.h>
#include <stdio.h>
#include <sys/syscall.h>

#include "task.h"

int task_policy_ask(struct ckpt_script *s)
{
	int op = ckpt_script_add(s, SYS_get_mempolicy, CKPT_OUT(sizeof(uint32_t)),
				 CKPT_OUT(sizeof(struct ckpt_nodes)), CKPT_C(CKPT_MAX_NODES),
				 CKPT_C(0), CKPT_C(0));

	/* a kernel without it */
	ckpt_script_any(s);
	return op;
}

void task_policy_take(const struct ckpt_script *s, int op, struct task_policy_told *out)
{
	if (ckpt_script_result(s, op) < 0)
		return;
	memcpy(&out->mode, ckpt_script_out(s, op, 0), sizeof(out->mode));
	memcpy(&out->nodes, ckpt_script_out(s, op, 1), sizeof(out->nodes));
}

static bool own(struct task_policy_told *mine)
{
	return !syscall(SYS_get_mempolicy, &mine->mode, mine->nodes.bits, CKPT_MAX_NODES, NULL, 0);
}

bool task_policy_is_odd(void)
{
	struct task_policy_told mine = { 0 };

	return own(&mine) && mine.mode != MPOL_DEFAULT;
}

/* Like ckpt's own, which its tasks inherit? */
static bool is_own(const struct task_policy_told *told)
{
	struct task_policy_told mine = { 0 };

	return (!own(&mine) || mine.mode == told->mode) &&
	       !memcmp(&mine.nodes, &told->nodes, sizeof(mine.nodes));
}

void task_policy_read(struct ckpt_run *run, const struct ckpt_thread *th,
		      const struct task_policy_told *told, struct task_policy *p,
		      Ckpt__Task__Thread *rec)
{
	if (!ckpt_feature_on(run, task_features[TASK_NUMA].name)) {
		if (!is_own(told))
			task_want(run, TASK_NUMA, th->task, "memory policy");
		return;
	}
	if (told->mode == MPOL_DEFAULT)
		return;
	ckpt__task__policy__init(&p->msg);
	p->msg.mode = told->mode;
	p->msg.nodes = p->nodes;
	p->msg.n_nodes = ckpt_nodes_list(&told->nodes, p->nodes);
	rec->memory = &p->msg;
}

int task_policy_plan(struct ckpt_run *run, const Ckpt__Task__Thread *rec, struct ckpt_error *err)
{
	char what[48];

	if (!rec->memory)
		return 0;
	snprintf(what, sizeof(what), "task %u, thread %u", rec->id, rec->index);
	return ckpt_policy_need(run, rec->memory->mode, rec->memory->nodes, rec->memory->n_nodes,
				what, err);
}

void task_policy_script(const struct task_state *st, struct ckpt_script *s,
			const Ckpt__Task__Thread *rec)
{
	struct ckpt_nodes nodes;

	if (rec->memory) {
		const bool some = rec->memory->n_nodes;

		ckpt_nodes_set(&nodes, rec->memory->nodes, rec->memory->n_nodes);
		ckpt_script_add(s, SYS_set_mempolicy, CKPT_C(rec->memory->mode),
				some ? CKPT_IN(&nodes, sizeof(nodes)) : CKPT_C(0),
				CKPT_C(some ? CKPT_NODES_SIZE : 0));
	} else if (st->born->policy && task_saved(st, TASK_NUMA)) {
		ckpt_script_add(s, SYS_set_mempolicy, CKPT_C(MPOL_DEFAULT), CKPT_C(0), CKPT_C(0));
	}
}
