/* SPDX-License-Identifier: MIT */
/*
 * The ckpt command: one table of subcommands and options drives parsing,
 * --help, the man pages and the completion; one file a subcommand does the work.
 */
#ifndef CKPT_CLI_CLI_H
#define CKPT_CLI_CLI_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

#include <ckpt/ckpt.h>

enum cli_id {
	CLI_DUMP,
	CLI_RESTORE,
	CLI_BRANCH,
	CLI_VERIFY,
	CLI_SHOW,
	CLI_DIFF,
	CLI_CHECK,
	CLI_PLUGINS,
	CLI_GRAPH,
	CLI_N_COMMANDS,
};

enum cli_opt {
	OPT_SETTING, /* goes to ckpt_set() under its long name */
	OPT_VERBOSE,
	OPT_JSON,
	OPT_CONFIG,
	OPT_HELP,
	OPT_VERSION,
	OPT_PID,
	OPT_DIR,
	OPT_LEAVE_RUNNING,
	OPT_LEAVE_STOPPED,
	OPT_DRY_RUN,
	OPT_FORCE,
	OPT_PATIENCE,
	OPT_DETACH,
	OPT_SHELL_JOB,
	OPT_STATS,
	OPT_PIDFILE,
	OPT_PIDFILES,
	OPT_COPIES,
	OPT_DOT,
	OPT_SHOW_PLUGIN,
};

struct cli_option {
	const char *name;
	char letter;	 /* 0: none */
	const char *arg; /* what its value is called; NULL: it takes none */
	enum cli_opt id;
	const char *help;
};

struct cli_command {
	const char *name;
	const char *operands; /* for the synopsis: "DIR1 DIR2" */
	int n_operands;
	const char *const *choices; /* of the one operand; NULL: any. NULL ends */
	const char *summary;
	const struct cli_option *options; /* beside the global ones; name == NULL ends */
	bool needs_pid, needs_dir;
};

extern const struct cli_command cli_commands[CLI_N_COMMANDS];
extern const struct cli_option cli_globals[]; /* name == NULL ends */

struct cli_exit {
	int code;
	const char *meaning;
};

extern const struct cli_exit cli_exits[]; /* meaning == NULL ends */

/* What the command line said. */
struct cli {
	enum cli_id id;
	const struct cli_command *cmd;
	struct ckpt *ckpt;
	const char *operands[2];
	int n_operands;
	const char *config, *dir, *pidfile, *pidfiles, *show_plugin;
	pid_t pid;
	int verbose;
	unsigned patience_ms, copies;
	bool json, dry_run, force, detach, shell_job, stats, dot, help, version;
	bool done; /* a tree was saved, or restored: what fails from here on does not undo that */
	enum ckpt_after after;
	FILE *log;  /* where messages go */
	int eager;  /* log.c: the same, never waits; or -1 */
	char *held; /* what it has not taken yet */
	size_t n_held;
};

/* Parse everything; settings go into c->ckpt. Errors are CKPT_EXIT_USAGE. */
int cli_parse(struct cli *c, int argc, char **argv, struct ckpt_error *err);
void cli_help(const struct cli_command *cmd, FILE *out); /* NULL: of ckpt itself */

/* The subcommands; each returns the exit code. */
int cli_dump(struct cli *c);
int cli_restore(struct cli *c);
int cli_branch(struct cli *c);
int cli_verify(struct cli *c);
int cli_show(struct cli *c);
int cli_diff(struct cli *c);
int cli_check(struct cli *c);
int cli_plugins(struct cli *c);
int cli_graph(struct cli *c);

/* ---- output ---- */

/* A message about an error, with its hint; returns the exit code. */
int cli_error(struct cli *c, const struct ckpt_error *err);
/* A line of text without control characters. */
void cli_line(FILE *to, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The same in memory of the caller's; NULL if there is none. */
char *cli_clean(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
typedef int cli_printer(const struct cli *c, FILE *out, struct ckpt_error *err);
/* A command that only prints: its output, or if it failed before there was any, cli_error(). */
int cli_print(struct cli *c, cli_printer *print);
/*
 * What a run came to: JSON on stdout, or messages for blockers, losses and the
 * error. Returns the exit code; the summary of a success is the caller's.
 */
int cli_report(struct cli *c, const struct ckpt_result *r, const struct ckpt_error *err);
void cli_print_differences(const struct cli *c, const struct ckpt_result *r);
/* "saved 3 tasks, 12.3 MiB" and the like: the counters, then the times. */
void cli_summary(const char *what, const struct ckpt_result *r);
/* --stats: what each step took. */
void cli_stats(const struct ckpt_result *r);

/* ---- messages of a run (log.c) ---- */

void cli_log_to(struct cli *c, FILE *to);
/* Does not wait for whoever reads it. */
void cli_log(struct cli *c, const char *prefix, const char *text);
/* No tree stands still: what is held is written, however long that takes. */
void cli_log_all(struct cli *c);
void cli_log_end(struct cli *c);

/* ---- pid files (pidfile.c) ---- */

/*
 * One is made, with its space, before the restore: what can fail must fail while
 * nothing runs yet. It gets its name when the pid is known.
 */
struct pidfile {
	const char *option, *path; /* "--pidfile" */
	char *draft;
	int fd; /* -1 at first */
};

int pidfile_prepare(struct pidfile *p, struct ckpt_error *err);
int pidfile_write(struct pidfile *p, pid_t pid, struct ckpt_error *err);
void pidfile_end(struct pidfile *p);

/* SIGINT and the like ask the run to stop instead of killing ckpt. */
void cli_catch_signals(struct ckpt *ckpt);
/* End the process where a run can end in no other way (hang.c). */
void cli_watch(struct cli *c);
/* From now on they go to this process. */
void cli_forward_signals(pid_t pid);

#endif
