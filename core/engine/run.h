/* SPDX-License-Identifier: MIT */
/* The state of one run, shared by the engine's parts. */
#ifndef CKPT_ENGINE_RUN_H
#define CKPT_ENGINE_RUN_H

#include <stdint.h>

#include <ckpt/ckpt.h>
#include <ckpt/plugin.h>

#include "image/image.h"
#include "process/process.h"

struct loaded_plugin; /* engine/loader.h */
struct graph_node;    /* engine/graph.h */

/*
 * Processes that had something in the way of the dump that passes by itself: they are stopped when
 * all others have stood for a moment. What the others do, they see to then, and nothing new comes.
 */
struct stop_last {
	pid_t pids[16];
	size_t n;
	struct timespec moment;
};

struct ckpt_run {
	struct ckpt *ctx;
	enum ckpt_run_kind kind;
	bool plan_only;		       /* planning pass: no side effects */
	bool live;		       /* dry run: the tree is not stopped */
	struct loaded_plugin *current; /* whose step or callback runs; NULL: the engine */
	struct image_store store;
	struct image_writer *writer; /* dump, else NULL */
	struct image_reader *reader; /* restore and verify, else NULL */
	struct proc_set *procs;
	pid_t root_pid;
	const struct stop_last *last; /* dump; NULL: none */
	void **states;		      /* per loaded plugin, by its index */
	struct ckpt_result *result;
	uint64_t records, scripts, calls; /* put and run so far */
	uint64_t encoded;		  /* calls given to agents; counted by debug builds only */
	struct ckpt_finding *unmet;
	size_t n_unmet;
	const struct graph_node **ran; /* steps that have run, for undoing */
	size_t n_ran;
	size_t n_milestones;		     /* milestones that were reached */
	bool too_late;			     /* to cancel: past the point of no return */
	bool out_of_memory;		     /* while a finding was to be listed */
	const struct image_info *image_info; /* verify: losses of the image are losses here */
	void *arg;			     /* what the kind's own actions share */
	/* dump and verify: what must be taken back before the tree can go on */
	bool seized, agents_in;
	uint64_t seized_us;
	struct release_hook {
		struct loaded_plugin *plugin;
		int (*fn)(struct ckpt_run *run, struct ckpt_error *err);
	} * hooks;
	size_t n_hooks;
	void *helper_stack; /* of ckpt_ns_run(), while none runs; or NULL */
};

/* The process layer of a run (for core/process). */
static inline struct proc_set *run_procs(const struct ckpt_run *run)
{
	return run->procs;
}

/* Nobody has been let go yet: what plugins do then, for core/process (sdk.c). */
int run_before_release(struct ckpt_run *run, struct ckpt_error *err);

/* ---- the engine's own side (run.c) ---- */

/* What the engine does at a milestone, after all steps ordered before it. */
struct milestone_action {
	const char *milestone;
	int (*fn)(struct ckpt_run *run, struct ckpt_error *err);
};

int run_init(struct ckpt_run *run, struct ckpt *c, enum ckpt_run_kind kind, struct ckpt_result *r,
	     struct ckpt_error *err);
/* Frees states, tasks and lists; not store, reader and writer, which runs share. */
void run_fini(struct ckpt_run *run);
/* A section for every plugin that is on. */
int run_add_sections(struct ckpt_run *run, struct ckpt_error *err);
/*
 * Run steps and actions in order, up to and including the milestone `until`
 * (NULL: all). The actions' table ends with milestone == NULL.
 */
int run_execute(struct ckpt_run *run, const struct milestone_action *actions, const char *until,
		struct ckpt_error *err);
/* Undo the steps that have run, last one first. */
void run_undo(struct ckpt_run *run);
/* -ECANCELED with CKPT_EXIT_REFUSED if blockers are on the result's list. */
int run_check_blockers(const struct ckpt_run *run, struct ckpt_error *err);
/* Fail with all that is unmet on the result's list of blockers, if anything is. */
int run_check_unmet(struct ckpt_run *run, struct ckpt_error *err);
/* Add to *list (as ckpt_finding with copies). */
int finding_add(struct ckpt_finding **list, size_t *n, const struct ckpt_finding *f,
		struct ckpt_error *err);
void finding_clear(struct ckpt_finding *f);
/* Put the end of a run into result and error: "dump: ...", the exit class, the time. */
int run_finish(struct ckpt_result *r, const char *name, uint64_t started_us, int ret,
	       struct ckpt_error *err);
/* Load all sections that the plugins here can decode; others are refused (run_load.c). */
int run_load_sections(struct ckpt_run *run, struct ckpt_error *err);
/* Open the image and check that it can be used on this machine. */
int run_open_image(struct ckpt *c, const char *dir, struct image_reader **out,
		   struct ckpt_error *err);
/* The restore's planner over the records of a dump, without side effects. */
int run_plan(struct ckpt_run *dump, struct ckpt_error *err);

/* A dump and a verify treat the live tree alike (run_live.c). */
int live_seized(struct ckpt_run *run, struct ckpt_error *err);	  /* at `seized` */
int live_surveyed(struct ckpt_run *run, struct ckpt_error *err);  /* agents in */
int live_collected(struct ckpt_run *run, struct ckpt_error *err); /* agents out */
int live_release(struct ckpt_run *run, enum ckpt_after after, struct ckpt_error *err);
/* After a failure: steps undone, agents out, the tree goes on as if nothing had happened. */
void live_back_out(struct ckpt_run *run, struct ckpt_error *err);

uint64_t clock_us(void);
/* Of all threads of ckpt. */
uint64_t clock_cpu_us(void);

/* Text of a system call in strace notation is logged at this level (-vv). */
#define CKPT_LOG_SCRIPT CKPT_LOG_DEBUG

/* Does any log reader want lines of this level? Spares building strace lines. */
bool run_logs(const struct ckpt_run *run, enum ckpt_log_level level);

#endif
