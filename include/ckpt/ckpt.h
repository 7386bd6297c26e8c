/* SPDX-License-Identifier: MIT */
/*
 * The engine's API: what the ckpt command is built on. A plugin does not need it.
 * The library prints nothing and never exits; everything hangs off a context.
 */
#ifndef CKPT_CKPT_H
#define CKPT_CKPT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include <ckpt/error.h>
#include <ckpt/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CKPT_VERSION "0.1.0"

struct ckpt; /* a context: plugins, settings, log */

/* `log` gets whole lines without newline; NULL drops them. */
typedef void (*ckpt_log_fn)(void *arg, enum ckpt_log_level level, const char *line);

CKPT_API int ckpt_new(struct ckpt **out, ckpt_log_fn log, void *arg, struct ckpt_error *err);
CKPT_API void ckpt_free(struct ckpt *c);
/* The most detailed level that `log` wants; CKPT_LOG_WARN until set. */
CKPT_API void ckpt_set_log_level(struct ckpt *c, enum ckpt_log_level level);
/*
 * Ask the run in progress to stop between two steps and undo what it did
 * (-ECANCELED). After the image is committed, or just before the restored tree
 * runs, it is too late and ignored. Async-signal-safe.
 */
CKPT_API void ckpt_cancel(struct ckpt *c);

/*
 * A dump or verify waits for a filesystem that does not answer: for ten seconds while the tree
 * stands, or since a moment when the run was cancelled. The thread that waits cannot be made
 * to give up, so that only the end of the process lets the tree go on. `fn` is called in a thread
 * of the library's, must not wait for anything, and returns the status that the library then ends
 * the process with, or -1: go on waiting. Without it nobody watches.
 */
typedef int (*ckpt_hang_fn)(void *arg, const char *text);
CKPT_API void ckpt_on_hang(struct ckpt *c, ckpt_hang_fn fn, void *arg);

/* ---- settings: defaults, then ckpt.conf, the profile, ckpt_set(); later ones win ---- */

/*
 * Make one setting. `origin` says where it comes from, for `ckpt plugins`
 * ("command line"). Keys are the long options of the command line: "plugin",
 * "no-plugin", "without", "allow-loss", "option" (NAME.KEY=VALUE),
 * "plugin-path", "profile", "layer", "upper", "shared", "index-file", "host-suffix", and for
 * whoever writes the output "verbose", "log-file", "json". Names are checked by ckpt_load().
 */
CKPT_API int ckpt_set(struct ckpt *c, const char *key, const char *value, const char *origin,
		      struct ckpt_error *err);
/* The name that `word` most likely means, or NULL if none is near: for whoever has names of its
 * own. */
CKPT_API const char *ckpt_nearest(const char *word, const char *const *names, size_t n);
/* The value of the last setting of a key so far, or NULL. */
CKPT_API const char *ckpt_setting(const struct ckpt *c, const char *key);
/* Read an ini file; a missing one is -ENOENT. NULL: the default one, if it is there. */
CKPT_API int ckpt_read_config(struct ckpt *c, const char *path, struct ckpt_error *err);
/* As ckpt_set() of "profile": read by ckpt_load(), in place of the one that ckpt.conf names. */
CKPT_API int ckpt_use_profile(struct ckpt *c, const char *name, struct ckpt_error *err);

/* Find and load the plugins, check every setting against them, sort the graphs. */
CKPT_API int ckpt_load(struct ckpt *c, struct ckpt_error *err);

/* ---- runs -------------------------------------------------------------------- */

enum ckpt_after { CKPT_AFTER_KILL, CKPT_AFTER_RUN, CKPT_AFTER_STOP };

struct ckpt_dump_args {
	pid_t pid;
	const char *dir;
	enum ckpt_after after;
	bool dry_run;
	bool force; /* overwrite an image that is there */
	/* try again so long, letting the tree run between, while all that is in the way may pass */
	unsigned patience_ms;
};

struct ckpt_restore_args {
	const char *dir;
	bool dry_run;
	pid_t root; /* out: the root's pid */
	/* if set: asked when all is made and nobody runs yet; an error takes all of it back */
	int (*ready)(void *arg, pid_t root, struct ckpt_error *err);
	void *ready_arg;
};

/*
 * Copies of one image, each in namespaces of its own. What they have of their own
 * besides are settings: "layer", "upper", "shared", "index-file", "host-suffix".
 */
struct ckpt_branch_args {
	const char *dir;
	unsigned copies;
	pid_t *roots; /* out: the roots' pids as the caller sees them; room for all copies */
	/* if set: asked when all copies run; they end with an error of its, or with the caller */
	int (*running)(void *arg, const struct ckpt_branch_args *a, struct ckpt_error *err);
	void *running_arg;
};

#define CKPT_MAX_COPIES 1000

struct ckpt_verify_args {
	const char *dir;
	pid_t pid; /* 0: the pid that the image says */
};

/* A difference found by verify or diff: "task.creds 3 (redis): uid: 0 -> 1000". */
struct ckpt_difference {
	char *where;  /* "task.creds 3" */
	char *field;  /* "uid" */
	char *before; /* NULL: not there */
	char *after;
};

/* An item of a run's lists (blockers, losses, unmet conditions). */
struct ckpt_finding {
	char *plugin, *feature; /* feature may be NULL */
	int pid;		/* 0: none */
	char *task;		/* "task 3 (redis)", or NULL */
	char *object, *reason, *hint;
	enum ckpt_exit exit;
	bool allowable; /* a blocker that --allow-loss would pass */
	bool passing;	/* a blocker that may pass by itself */
};

struct ckpt_counter {
	char *name;
	uint64_t value;
};

/* What a step or milestone took. */
struct ckpt_cost {
	char *name;
	uint64_t us;	 /* by the clock */
	uint64_t cpu_us; /* processor time of ckpt's threads; not of the tasks, which run scripts */
	uint64_t records;	 /* that it put */
	uint64_t scripts, calls; /* that it ran in tasks, and system calls in them */
};

/* What a run came to. Free with ckpt_result_free(). */
struct ckpt_result {
	enum ckpt_exit exit;
	struct ckpt_finding *blockers, *losses;
	size_t n_blockers, n_losses;
	struct ckpt_difference *differences;
	size_t n_differences;
	struct ckpt_counter *counters;
	size_t n_counters;
	/* microseconds */
	uint64_t total_us, frozen_us;
	struct ckpt_cost *steps; /* in order of running */
	size_t n_steps;
};

CKPT_API void ckpt_result_free(struct ckpt_result *r);
/*
 * Write a result as one JSON object with a schema number; `command` is its
 * name, `err` the run's error (err->err 0: none). No trailing newline.
 */
CKPT_API void ckpt_print_result(const struct ckpt_result *r, const char *command,
				const struct ckpt_error *err, FILE *out);

/*
 * The runs return 0 or a negative errno with err->exit set; *r is filled in
 * both cases (blockers after a refusal).
 */
CKPT_API int ckpt_dump(struct ckpt *c, const struct ckpt_dump_args *a, struct ckpt_result *r,
		       struct ckpt_error *err);
CKPT_API int ckpt_restore(struct ckpt *c, struct ckpt_restore_args *a, struct ckpt_result *r,
			  struct ckpt_error *err);
/* Either all copies run, or none is left. */
CKPT_API int ckpt_branch(struct ckpt *c, const struct ckpt_branch_args *a, struct ckpt_result *r,
			 struct ckpt_error *err);
CKPT_API int ckpt_verify(struct ckpt *c, const struct ckpt_verify_args *a, struct ckpt_result *r,
			 struct ckpt_error *err);
CKPT_API int ckpt_diff(struct ckpt *c, const char *dir1, const char *dir2, struct ckpt_result *r,
		       struct ckpt_error *err);

/* ---- looking ------------------------------------------------------------------- */

/* Decode an image as text or JSON; `plugin` NULL: all. */
CKPT_API int ckpt_show(struct ckpt *c, const char *dir, const char *plugin, bool json, FILE *out,
		       struct ckpt_error *err);
/* The tables behind `ckpt plugins`, `graph` and `check`. */
CKPT_API int ckpt_print_plugins(struct ckpt *c, bool json, FILE *out, struct ckpt_error *err);
CKPT_API int ckpt_print_graph(struct ckpt *c, enum ckpt_run_kind run, bool dot, bool json,
			      FILE *out, struct ckpt_error *err);
CKPT_API int ckpt_print_check(struct ckpt *c, bool json, FILE *out, struct ckpt_error *err);

#ifdef __cplusplus
}
#endif
#endif
