/* SPDX-License-Identifier: MIT */
/* Inside the plugin pid. */
#ifndef PLUGIN_PID_H
#define PLUGIN_PID_H

#include <ckpt/ns.h>
#include <ckpt/plugin.h>

#include "pid.pb-c.h"

enum { PID_REC_NAMESPACE = 1, PID_REC_TASK = 2, PID_REC_LEADER = 3 };

#define PID_OWN_NS 1 /* the namespace that ckpt runs in */

/* The kernel's MAX_PID_NS_LEVEL, with one for the outermost. */
#define PID_MAX_LEVELS 33
/* The kernel's PID_MAX_LIMIT. */
#define PID_LIMIT (4 * 1024 * 1024)

/* ---- reading (nsmap.c, read.c) -------------------------------------------- */

struct pid_ns {
	uint32_t id, parent, level;
	uint32_t init; /* task id, 0 until it was seen */
	uint64_t ino;
	struct ckpt_ns *nsfs;
	uint32_t last; /* the number given out last, once it was read */
	bool touched;  /* we have taken a number there to read it */
};

/* The pid namespaces of a tree, in order of being met; [0] is ckpt's own. */
struct pid_nsmap {
	struct ckpt_run *run;
	struct pid_ns *ns;
	size_t n;
};

int pid_nsmap_init(struct pid_nsmap *m, struct ckpt_run *run, struct ckpt_error *err);
void pid_nsmap_free(struct pid_nsmap *m);
#define PID_AUTO_NSMAP __attribute__((cleanup(pid_nsmap_free)))
/*
 * The namespace that a task is in, or that a thread's children will be born in, met
 * before or not, as an index. -EXDEV: not below ckpt's own.
 */
int pid_nsmap_of(struct pid_nsmap *m, const struct ckpt_task *t, struct ckpt_error *err);
int pid_nsmap_children(struct pid_nsmap *m, const struct ckpt_task *t, size_t thread,
		       struct ckpt_error *err);

struct pid_numbers {
	int32_t nr[PID_MAX_LEVELS];
	size_t n;
};
/* A line of numbers of a status text: NSpid, NSpgid, NSsid. */
int pid_status_numbers(const char *status, const char *key, struct pid_numbers *out);
/* Path below /proc/PID for one thread; `what` is a file's name. */
void pid_thread_path(char *buf, size_t size, const struct ckpt_thread *th, const char *what);

/* The same for what only the main thread shows, dead or alive. */
const char *pid_main_path(const struct ckpt_task *t, const char *what, char *buf, size_t size);
/* Real, effective and saved ids of a status text; 0 where there are none. */
void pid_status_ids(const char *status, const char *key, uint32_t *ids);

/* Parent, group and session of a task, and what else its stat line says. */
struct pid_stat {
	int64_t group, session, tty, exit_signal, exit_code;
};
int pid_read_stat(const struct ckpt_task *t, struct pid_stat *out, struct ckpt_error *err);

/* An error that only says that the task has gone, in a tree that is not stopped. */
bool pid_gone(const struct ckpt_run *run, int r);

/* ---- the extension point "session" (session.c) ------------------------------- */

/* 0: somebody takes care of a task's controlling terminal, or has refused it; 1: nobody. */
int pid_session_terminal(struct ckpt_run *run, const struct ckpt_task *t, int64_t tty,
			 struct ckpt_error *err);
/* 1: a leader outside the tree is as it should be; 0: to be refused. */
int pid_session_outside(struct ckpt_run *run, const struct ckpt_task *t, struct ckpt_error *err);
int pid_session_made(struct ckpt_run *run, struct ckpt_task *t, struct ckpt_error *err);

/* ---- the extension point "birth" (birth.c) ------------------------------------ */

struct pid_plan;
int pid_birth_planned(struct ckpt_run *run, const struct pid_plan *p, struct ckpt_error *err);
int pid_birth_family(struct ckpt_run *run, const struct pid_plan *p, struct ckpt_error *err);
int pid_birth_cloning(struct ckpt_run *run, struct ckpt_task *maker, uint32_t id,
		      struct ckpt_error *err);
/* `moment`: it is no task of the image. */
int pid_birth_born(struct ckpt_run *run, struct ckpt_task *t, bool moment, struct ckpt_error *err);
/* Is there an extension of that name, of a plugin that is on? */
bool pid_has_extension(struct ckpt_run *run, const char *point, const char *name);

/* ---- namespaces that nobody is in (empty.c) ------------------------------------- */

/* As in its record; 0: somebody is in it. */
enum { PID_NS_UNBORN = 1, PID_NS_ENDED = 2 };

/* dump: no process of the tree is in it. */
bool pid_ns_is_empty(const struct ckpt_ns *ns);
/* 1: it is not one that is only there for somebody's children; 0: it is, or is refused. */
int pid_empty_survey(struct ckpt_run *run, const struct ckpt_ns *ns);
int pid_empty_state(struct ckpt_run *run, const struct ckpt_ns *ns, uint32_t *state,
		    struct ckpt_error *err);
struct pid_plan;
/* Can this kernel make it? */
void pid_descriptor_plan(struct ckpt_run *run, const struct ckpt_ns *ns);
/*
 * One in which nobody is, or that is another user namespace's, is made by its descriptor
 * (PIDFD_GET_PID_FOR_CHILDREN_NAMESPACE, Linux 6.11). pid_probe_descriptor(): is that there?
 */
#define PID_NO_DESCRIPTOR \
	"this kernel has no descriptor of a pid namespace before its first process"
#define PID_NEW_KERNEL "use Linux 6.11 or newer"
bool pid_ns_is_anothers(const struct ckpt_ns *ns);
int pid_probe_descriptor(void);
int pid_empty_make(struct ckpt_run *run, const struct pid_plan *p, struct ckpt_error *err);

/* ---- counters of nested namespaces (counters.c) -------------------------------- */

int pid_collect_counters(struct ckpt_run *run, Ckpt__Pid__Namespace *rec, struct pid_ns *ns,
			 struct ckpt_error *err);
int pid_put_back_counters(struct ckpt_run *run, const struct pid_nsmap *map,
			  struct ckpt_error *err);
/* The number given out last in a namespace: the next one is one more, if it is free. */
int pid_write_last(struct ckpt_run *run, const struct ckpt_ns *ns, uint32_t last,
		   struct ckpt_error *err);
int pid_check_counters(const Ckpt__Pid__Namespace *rec, struct ckpt_error *err);
/* Can what memfds may be be had here? */
int pid_plan_noexec(struct ckpt_run *run, const Ckpt__Pid__Namespace *rec);
/* Or its pid_max? */
void pid_plan_pid_max(struct ckpt_run *run, const Ckpt__Pid__Namespace *rec);

/* ---- main threads that have ended (ended.c) ------------------------------------- */

/* Its record, and what that points to. */
struct pid_ended {
	Ckpt__Pid__Ended msg;
	struct pid_numbers nr;
	char comm[17];
	uint32_t uids[3], gids[3], *groups;
};

int pid_ended_survey(struct ckpt_run *run, const struct ckpt_task *t, struct ckpt_error *err);
int pid_ended_collect(struct ckpt_run *run, const struct ckpt_task *t, struct pid_ended *e,
		      struct ckpt_error *err);
void pid_ended_free(struct pid_ended *e);
bool pid_ended_valid(const Ckpt__Pid__Task *r);
int pid_ended_end(struct ckpt_run *run, struct ckpt_task *t, const Ckpt__Pid__Ended *e,
		  struct ckpt_error *err);

/* The first of a task's threads that is not made with the task. */
static inline size_t pid_first_thread(const Ckpt__Pid__Task *r)
{
	return r->ended ? 0 : 1;
}

/* ---- making (make.c) ------------------------------------------------------------ */

/* The kernel wants the innermost number first: the `inner` innermost ones. */
struct ckpt_birth pid_birth(pid_t *set_tid, const int32_t *nr, size_t n, size_t inner);

/* ---- steps ------------------------------------------------------------------ */

int pid_survey(struct ckpt_run *run, struct ckpt_error *err);
int pid_collect(struct ckpt_run *run, struct ckpt_error *err);
int pid_plan(struct ckpt_run *run, struct ckpt_error *err);
int pid_make(struct ckpt_run *run, struct ckpt_error *err);
int pid_groups(struct ckpt_run *run, struct ckpt_error *err);
int pid_end(struct ckpt_run *run, struct ckpt_error *err);
int pid_reserve(struct ckpt_run *run, struct ckpt_error *err);
int pid_threads(struct ckpt_run *run, struct ckpt_error *err);
int pid_outer_children_ns(struct ckpt_run *run, struct ckpt_error *err);
int pid_children_ns(struct ckpt_run *run, struct ckpt_error *err);
int pid_counters(struct ckpt_run *run, struct ckpt_error *err);

/* ---- the plan (plan.c, makers.c, order.c) ------------------------------------- */

enum pid_kind {
	PID_TASK,
	PID_LEADER, /* dead: made for its number, ends when its families stand */
	PID_MIDDLE, /* a parent that died after forking: made for its children's session */
};

struct pid_node {
	uint32_t id;
	enum pid_kind kind;
	const Ckpt__Pid__Task *rec; /* PID_TASK */
	uint32_t ns;		    /* index into plan->ns */
	const int32_t *pids;	    /* outermost first */
	size_t n_pids;
	int32_t own_pids[PID_MAX_LEVELS]; /* PID_MIDDLE: chosen here */
	int parent;			  /* index of the real parent; -1: ckpt */
	int maker;			  /* index of who clones it; -1: ckpt */
	int session, group;		  /* index of the leader; -1: that of ckpt */
	bool early;			  /* to be made before its maker's setsid */
	uint64_t born_sharing;		  /* clone flags: what it has in common with its maker */
	uint64_t parts;			  /* of that, what it gives up when all are made */
	bool made;			  /* while ordering */
	int born_session, born_group;	  /* while ordering: as inherited */
	int now_session, now_group;
	struct ckpt_task *task; /* while restoring */
};

enum pid_op_kind { PID_OP_MAKE, PID_OP_SUBREAPER, PID_OP_SETSID };

struct pid_op {
	enum pid_op_kind kind;
	int node;
};

struct pid_plan {
	struct pid_node *nodes; /* tasks in order of their ids, then leaders, then middles */
	size_t n, n_tasks, cap;
	const Ckpt__Pid__Namespace **ns;
	struct ckpt_ns **nsfs; /* the same, as the engine has them */
	int *inits; /* node of each namespace's first process; -1: ckpt's own, or empty */
	size_t n_ns;
	struct pid_op *ops;
	size_t n_ops;
};

void pid_plan_free(void *plan);
/* The node of an id; -1: there is none. */
int pid_plan_node(const struct pid_plan *p, uint32_t id);
/* Index of the init of a namespace (by index); -1 for ckpt's own and empty ones. */
int pid_plan_init(const struct pid_plan *p, uint32_t ns);
/* Is namespace `b` (index) `a` or below it? */
bool pid_plan_covers(const struct pid_plan *p, uint32_t a, uint32_t b);
/* "task 3", "dead leader 9" for messages; static storage is the caller's. */
const char *pid_node_name(const struct pid_node *n, char *buf, size_t size);
bool pid_leads_session(const struct pid_plan *p, int node);
/* Who clones whom: fills `maker`, adds middles. Unmet ones are listed. */
int pid_plan_makers(struct ckpt_run *run, struct pid_plan *p, struct ckpt_error *err);
/* What is shared by birth (share.c): fills `born_sharing` and `parts`. */
int pid_plan_sharing(struct ckpt_run *run, struct pid_plan *p, struct ckpt_error *err);
/* In which order: fills ops. */
int pid_plan_order(struct ckpt_run *run, struct pid_plan *p, struct ckpt_error *err);
/* Are the numbers free on this machine? */
int pid_plan_numbers(struct ckpt_run *run, struct pid_plan *p, struct ckpt_error *err);

/* Who calls setpgid(2) for a node (itself, or its maker), or one of these. */
enum { PID_NO_ACTOR = -1, PID_IN_GROUP = -2 };
int pid_group_actor(const struct pid_plan *p, int node);

#endif
