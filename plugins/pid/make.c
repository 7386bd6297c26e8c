/* SPDX-License-Identifier: MIT */
/* Make the tasks and threads of the plan. */
#include <fcntl.h>
#include <linux/prctl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>

#include "pid.h"

/* Let the thread's next child be born in the pid namespace of task `member`. */
static int enter(struct ckpt_run *run, struct ckpt_thread *th, const struct ckpt_task *member,
		 struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "pid.enter");
	CKPT_AUTO_FD int fd = openat(member->procfd, "ns/pid", O_RDONLY | O_CLOEXEC);
	int r, num;

	if (fd < 0)
		return ckpt_fail_sys(err, errno, "/proc/%d/ns/pid", member->pid);
	num = ckpt_lend_fd(run, th->task, fd, err);
	if (num < 0)
		return num;
	ckpt_script_add(s, SYS_setns, CKPT_C(num), CKPT_C(CLONE_NEWPID));
	r = ckpt_script_run(s, th, err);
	return r < 0 ? r : ckpt_return_fd(run, th->task, num, err);
}

/* The kernel wants the innermost number first. */
static struct ckpt_birth birth(pid_t *set_tid, const int32_t *nr, size_t n)
{
	for (size_t i = 0; i < n; i++)
		set_tid[i] = nr[n - 1 - i];
	return (struct ckpt_birth){ .set_tid = n ? set_tid : NULL, .n_set_tid = n };
}

static int make(struct ckpt_run *run, struct pid_plan *p, int node, struct ckpt_error *err)
{
	struct pid_node *n = &p->nodes[node];
	struct pid_node *maker = n->maker < 0 ? NULL : &p->nodes[n->maker];
	pid_t set_tid[PID_MAX_LEVELS];
	struct ckpt_birth b = birth(set_tid, n->pids, n->n_pids);
	bool first = pid_plan_init(p, n->ns) == node;
	bool outside = maker && !first && maker->ns != n->ns;
	int r = 0;

	b.exit_signal = n->rec ? n->rec->exit_signal : SIGCHLD;
	if (first)
		b.clone_flags = CLONE_NEWPID;
	b.clone_flags |= n->born_sharing;
	if (!maker) {
		/* ckpt waits for it, and then whoever adopts it */
		b.exit_signal = SIGCHLD;
		r = ckpt_make_root(run, n->id, &b, &n->task, err);
		return r == 0 ? pid_birth_born(run, n->task, false, err) : r;
	}
	r = pid_birth_cloning(run, maker->task, n->id, err);
	if (r == 0 && outside)
		r = enter(run, maker->task->threads[0], p->nodes[pid_plan_init(p, n->ns)].task,
			  err);
	if (r == 0)
		r = ckpt_make_child(run, maker->task, n->id, &b, &n->task, err);
	if (r == 0 && outside)
		r = enter(run, maker->task->threads[0], maker->task, err);
	if (r == 0)
		r = pid_birth_born(run, n->task, n->kind != PID_TASK, err);
	return r;
}

static int simple(struct ckpt_run *run, struct pid_node *n, enum pid_op_kind kind,
		  struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "pid.make");

	if (kind == PID_OP_SETSID)
		ckpt_script_add0(s, SYS_setsid);
	else
		ckpt_script_add(s, SYS_prctl, CKPT_C(PR_SET_CHILD_SUBREAPER), CKPT_C(1), CKPT_C(0),
				CKPT_C(0), CKPT_C(0));
	return ckpt_script_run(s, n->task->threads[0], err);
}

int pid_make(struct ckpt_run *run, struct ckpt_error *err)
{
	struct pid_plan *p = ckpt_state(run);
	int r = pid_birth_family(run, p, err);

	for (size_t i = 0; r == 0 && i < p->n_ops; i++) {
		struct pid_node *n = &p->nodes[p->ops[i].node];
		char name[48];

		if (p->ops[i].kind == PID_OP_MAKE)
			r = make(run, p, p->ops[i].node, err);
		else
			r = simple(run, n, p->ops[i].kind, err);
		if (r == 0 && p->ops[i].kind == PID_OP_SETSID)
			r = pid_session_made(run, n->task, err);
		if (r < 0)
			return ckpt_wrap(err, "%s", pid_node_name(n, name, sizeof(name)));
	}
	for (size_t i = 0; r == 0 && i < p->n_tasks; i++) {
		struct pid_node *n = &p->nodes[i];

		r = n->parts ? ckpt_unshare(run, n->task, n->parts, err) : 0;

		if (r < 0)
			return ckpt_wrap(err, "task %u", n->id);
	}
	ckpt_count(run, "processes", p->n_tasks);
	return r;
}

int pid_threads(struct ckpt_run *run, struct ckpt_error *err)
{
	struct pid_plan *p = ckpt_state(run);

	for (size_t i = 0; i < p->n_tasks; i++) {
		struct pid_node *n = &p->nodes[i];

		for (size_t k = 1; k < n->rec->n_threads; k++) {
			const Ckpt__Pid__Thread *rec = n->rec->threads[k];
			pid_t set_tid[PID_MAX_LEVELS];
			struct ckpt_birth b = birth(set_tid, rec->tids, rec->n_tids);
			struct ckpt_thread *th;
			int r = ckpt_make_thread(run, n->task, &b, &th, err);

			if (r < 0)
				return ckpt_wrap(err, "task %u: thread %zu", n->id, k);
		}
		ckpt_count(run, "threads", n->rec->n_threads);
	}
	return 0;
}

int pid_children_ns(struct ckpt_run *run, struct ckpt_error *err)
{
	struct pid_plan *p = ckpt_state(run);
	int r = 0;

	for (size_t i = 0; i < p->n_tasks; i++) {
		struct pid_node *n = &p->nodes[i];

		for (size_t k = 0; k < n->rec->n_threads && !n->rec->zombie && r == 0; k++) {
			uint32_t ns = n->rec->threads[k]->children_ns - 1;

			if (ns != n->ns)
				r = enter(run, n->task->threads[k],
					  p->nodes[pid_plan_init(p, ns)].task, err);
		}
	}
	return r;
}
