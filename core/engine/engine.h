/* SPDX-License-Identifier: MIT */
/* The context: settings, plugins, graphs, log. */
#ifndef CKPT_ENGINE_ENGINE_H
#define CKPT_ENGINE_ENGINE_H

#include <signal.h>
#include <stdarg.h>

#include <ckpt/ckpt.h>

#include "engine/graph.h"
#include "engine/loader.h"
#include "engine/settings.h"

enum { GRAPH_DUMP, GRAPH_RESTORE, GRAPH_VERIFY, N_GRAPHS };

struct copy_place; /* process/copy.h */

struct ckpt {
	ckpt_log_fn log;
	void *log_arg;
	enum ckpt_log_level log_level;
	volatile sig_atomic_t cancelled;
	ckpt_hang_fn hang;
	void *hang_arg;

	const struct copy_place *copy; /* in the restore of a copy, else NULL */
	struct settings settings;
	bool loaded;
	struct plugin_set plugins;
	/* Sorted at ckpt_load(); a graph that has an error is one only for the runs that need it.
	 */
	struct graph graphs[N_GRAPHS];
	struct ckpt_error graph_errors[N_GRAPHS];
};

/* "dump", "restore", "verify" */
const char *run_kind_name(enum ckpt_run_kind kind);

/* The sorted graph of a kind of run, or its error. */
int engine_graph(struct ckpt *c, enum ckpt_run_kind kind, const struct graph **out,
		 struct ckpt_error *err);

/* -EINVAL unless ckpt_load() was called. */
int engine_need_loaded(const struct ckpt *c, struct ckpt_error *err);

/* For runs: loaded, and every plugin here that the configuration demands. */
int engine_need_complete(const struct ckpt *c, struct ckpt_error *err);

void engine_log(const struct ckpt *c, enum ckpt_log_level level, const char *fmt, ...)
	CKPT_PRINTF(3, 4);
void engine_vlog(const struct ckpt *c, enum ckpt_log_level level, const char *prefix,
		 const char *fmt, va_list ap) CKPT_PRINTF(4, 0);

#endif
