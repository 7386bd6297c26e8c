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
	void **states; /* per loaded plugin, by its index */
	struct ckpt_result *result;
	struct ckpt_finding *unmet;
	size_t n_unmet;
};

/* The process layer of a run (for core/process). */
static inline struct proc_set *run_procs(const struct ckpt_run *run)
{
	return run->procs;
}

/* Text of a system call in strace notation is logged at this level (-vv). */
#define CKPT_LOG_SCRIPT CKPT_LOG_DEBUG

/* Does any log reader want lines of this level? Spares building strace lines. */
bool run_logs(const struct ckpt_run *run, enum ckpt_log_level level);

#endif
