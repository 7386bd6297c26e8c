/* SPDX-License-Identifier: MIT */
/* Make the tasks and threads of the plan. */
#include <fcntl.h>
#include <linux/prctl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>

#include "pid.h"

struct ckpt_birth pid_birth(pid_t *set_tid, const int32_t *nr, size_t n, size_t inner)
{
	for (size_t i = 0; i < inner; i++)
		set_tid[i] = nr[n - 1 - i];
	return (struct ckpt_birth){ .set_tid = inner ? set_tid : NULL,
				    .n_set_tid = inner,
				    .known = inner == n };
}

/* ckpt's next child is born there. */
static int enter_self(const struct ckpt_ns *ns, struct ckpt_error *err)
{
	return setns(ns->fd, CLONE_NEWPID) ? ckpt_fail_sys(err, errno, "joining the %s", ns->name)
					   : 0;
}

/* The root, for whom ckpt itself goes where its maker is. */
static int make_root(struct ckpt_run *run, struct pid_node *n, struct ckpt_birth *b,
		     const struct ckpt_ns *to, struct ckpt_error *err)
{
	int r = to ? enter_self(to, err) : 0, back;

	/* ckpt waits for it, and then whoever adopts it */
	b->exit_signal = SIGCHLD;
	if (r == 0)
		r = ckpt_make_root(run, n->id, b, &n->task, err);
	back = to ? enter_self(ckpt_ns_own(run, CKPT_NS_PID), r < 0 ? NULL : err) : 0;
	return r < 0 ? r : back;
}

static int make_child(struct ckpt_run *run, const struct pid_plan *p, struct pid_node *n,
		      const struct ckpt_birth *b, const struct ckpt_ns *to, struct ckpt_error *err)
{
	const struct pid_node *maker = &p->nodes[n->maker];
	struct ckpt_thread *th = maker->task->threads[0];
	int r = to ? ckpt_ns_enter(run, th, to, err) : 0;

	if (r == 0)
		r = ckpt_make_child(run, maker->task, n->id, b, &n->task, err);
	return r == 0 && to ? ckpt_ns_enter(run, th, p->nsfs[maker->ns], err) : r;
}

/* The first process of a namespace is there: so has the namespace a link. */
static int note_namespace(const struct pid_node *n, struct ckpt_ns *ns, struct ckpt_error *err)
{
	if (ns->fd >= 0)
		return 0;
	ns->fd = openat(n->task->procfd, "ns/pid", O_RDONLY | O_CLOEXEC);
	return ns->fd < 0 ? ckpt_fail_sys(err, errno, "/proc/%d/ns/pid", n->task->pid) : 0;
}

static int make(struct ckpt_run *run, struct pid_plan *p, int node, struct ckpt_error *err)
{
	struct pid_node *n = &p->nodes[node];
	struct ckpt_ns *ns = p->nsfs[n->ns], *to = NULL;
	pid_t set_tid[PID_MAX_LEVELS];
	struct ckpt_birth b = pid_birth(set_tid, n->pids, n->n_pids, n->n_pids);
	bool first = pid_plan_init(p, n->ns) == node;
	int r = 0;

	b.exit_signal = n->rec ? n->rec->exit_signal : SIGCHLD;
	b.clone_flags = n->born_sharing;
	/* a namespace belongs to the user namespace of its maker: to that of ckpt, or to one below
	 */
	if (first && ns->owner->own) {
		b.clone_flags |= CLONE_NEWPID;
	} else if (first) {
		r = ckpt_ns_make(run, ns, err);
		to = ns;
	} else if (n->maker >= 0 && p->nodes[n->maker].ns != n->ns) {
		to = ns;
	}
	if (r == 0 && n->maker >= 0)
		r = pid_birth_cloning(run, p->nodes[n->maker].task, n->id, err);
	if (r == 0)
		r = n->maker < 0 ? make_root(run, n, &b, to, err)
				 : make_child(run, p, n, &b, to, err);
	if (r == 0 && first)
		r = note_namespace(n, ns, err);
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
	return r < 0 ? r : pid_empty_make(run, p, err);
}
