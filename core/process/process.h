/* SPDX-License-Identifier: MIT */
/*
 * What the engine asks of the process layer: stop a tree, let it go, put agents
 * in and out, make skeletons and start them. The rest of the layer is public
 * (<ckpt/task.h>, <ckpt/script.h>).
 */
#ifndef CKPT_PROCESS_PROCESS_H
#define CKPT_PROCESS_PROCESS_H

#include <ckpt/ckpt.h>
#include <ckpt/plugin.h>

struct proc_set; /* the tasks of one run; made by proc_new(), kept in the run */

struct proc_set *proc_new(struct ckpt_run *run, struct ckpt_error *err);
/* Frees memory and descriptors. Whatever is still held is resumed (dump) or killed (restore). */
void proc_free(struct proc_set *ps);
/* What helpers in namespaces were run on. */
void proc_ns_run_free(struct ckpt_run *run);

/* ---- dump and verify ------------------------------------------------------ */

/* Find the tree's tasks without stopping anything (dry run). */
int proc_scan(struct proc_set *ps, pid_t root, struct ckpt_error *err);
/* What takes time and can be done before the tree stands still; then proc_seize(). */
int proc_get_ready(struct proc_set *ps, struct ckpt_error *err);
/*
 * A look at a tree that runs, for what would make us wait once it is stopped: that is refused. What
 * cannot be looked at is the seizure's to complain of.
 */
int proc_look_ahead(struct proc_set *ps, pid_t root, struct ckpt_error *err);
/*
 * Refuse servers of filesystems in the tree, and who decides about opens: when it stands nobody
 * answers. By the texts of links alone, since a look at a file may be what waits.
 */
int proc_check_servers(struct proc_set *ps, struct ckpt_error *err);
/*
 * End the process from a thread that is not the tracer, as if it had been killed: the tree goes on,
 * whatever the tracer waits for. Does not return.
 */
void proc_end_process(struct proc_set *ps, int status) __attribute__((noreturn));
/* Stop every thread of the tree, re-scanning until nothing new appears. */
int proc_seize(struct proc_set *ps, pid_t root, struct ckpt_error *err);
/* Who is in which namespace (<ckpt/ns.h>); after one of the two. */
int proc_scan_namespaces(struct proc_set *ps, struct ckpt_error *err);
/* Put an agent into every live thread, so that scripts can run. */
int proc_agents_in(struct proc_set *ps, struct ckpt_error *err);
/* Take them out again: registers and masks as before, nothing mapped. */
int proc_agents_out(struct proc_set *ps, struct ckpt_error *err);
/* Has all of the tree stood still since it was stopped? If not, what was collected is worth
 * nothing. */
int proc_check_whole(struct proc_set *ps, struct ckpt_error *err);
/*
 * Let go. CKPT_AFTER_RUN: everything goes on as before. CKPT_AFTER_STOP: stopped by
 * SIGSTOP. CKPT_AFTER_KILL: killed, and gone from /proc when it returns. A tree
 * that could not be resumed is CKPT_EXIT_LOST.
 */
int proc_release(struct proc_set *ps, enum ckpt_after after, struct ckpt_error *err);

/* ---- restore ---------------------------------------------------------------- */

/* Can ckpt execute a skeleton here? */
int proc_check_stub(struct ckpt_error *err);
/* In planning: will proc_prepare() find a place, after what was reserved, and skeletons begin? */
int proc_check_place(struct proc_set *ps, struct ckpt_error *err);
/* After planning: choose the agent's place from what ckpt_reserve() said, make the arena. */
int proc_prepare(struct proc_set *ps, struct ckpt_error *err);
/* Apply the final states, unmap the agents, let all tasks run. */
int proc_run(struct proc_set *ps, pid_t *root, struct ckpt_error *err);
/*
 * After a step that returned r: wait for the scripts that it posted, and report the first
 * failure. The step's own may be what followed from it: then that is its hint.
 */
int flights_settle(struct ckpt_run *run, int r, struct ckpt_error *err);
/* Kill every skeleton and reap what is ours. */
void proc_abort(struct proc_set *ps);

#endif
