/* SPDX-License-Identifier: MIT */
/* The subcommands and their options. */
#include "cli.h"

#define NO_OPTION                                \
	{                                        \
		NULL, 0, NULL, OPT_SETTING, NULL \
	}

const struct cli_option cli_globals[] = {
	{ "plugin", 0, "NAME", OPT_SETTING, "the plugin must be there, and is on" },
	{ "no-plugin", 0, "NAME", OPT_SETTING, "switch a plugin off" },
	{ "without", 0, "NAME.FEATURE", OPT_SETTING, "switch a feature of a plugin off" },
	{ "allow-loss", 0, "NAME[.FEATURE]", OPT_SETTING,
	  "go on without what the plugin, or the feature, cannot save" },
	{ "option", 'o', "NAME.KEY=VALUE", OPT_SETTING, "set an option of a plugin" },
	{ "profile", 0, "NAME", OPT_SETTING, "use the settings of a profile" },
	{ "config", 0, "FILE", OPT_CONFIG, "read FILE instead of the default ckpt.conf" },
	{ "plugin-path", 0, "DIR", OPT_SETTING, "search DIR for plugins first" },
	{ "json", 0, NULL, OPT_JSON, "print JSON on standard output" },
	{ "verbose", 'v', NULL, OPT_VERBOSE, "say more; -vv shows system calls, -vvv everything" },
	{ "log-file", 0, "FILE", OPT_SETTING, "append messages to FILE instead of standard error" },
	{ "help", 'h', NULL, OPT_HELP, "show this help" },
	{ "version", 0, NULL, OPT_VERSION, "show the version" },
	NO_OPTION,
};

#define STATS                                                                                 \
	{                                                                                     \
		"stats", 0, NULL, OPT_STATS, "print what each step took (JSON has it always)" \
	}

#define IMAGE_DIR                                                               \
	{                                                                       \
		"images-dir", 'D', "DIR", OPT_DIR, "the directory of the image" \
	}

static const struct cli_option dump_options[] = {
	{ "tree", 't', "PID", OPT_PID, "the root of the tree" },
	IMAGE_DIR,
	{ "shell-job", 'j', NULL, OPT_SHELL_JOB,
	  "the tree is a job of the shell that ckpt is started from" },
	{ "leave-running", 'R', NULL, OPT_LEAVE_RUNNING,
	  "let the tree go on instead of killing it" },
	{ "leave-stopped", 's', NULL, OPT_LEAVE_STOPPED, "leave the tree stopped (SIGSTOP)" },
	{ "dry-run", 0, NULL, OPT_DRY_RUN, "list what cannot be saved, touch nothing" },
	{ "force", 0, NULL, OPT_FORCE, "replace the image that is there" },
	{ "patience", 0, "SECONDS", OPT_PATIENCE,
	  "how long to try again while what is in the way may pass by itself (2)" },
	STATS,
	NO_OPTION,
};

static const struct cli_option restore_options[] = {
	IMAGE_DIR,
	{ "shell-job", 'j', NULL, OPT_SHELL_JOB,
	  "the tree is a job of the shell that ckpt is started from" },
	{ "detach", 'd', NULL, OPT_DETACH, "return when everything runs, do not wait for its end" },
	{ "pidfile", 0, "FILE", OPT_PIDFILE, "write the root's pid to FILE" },
	{ "dry-run", 0, NULL, OPT_DRY_RUN, "list what is missing, make nothing" },
	STATS,
	NO_OPTION,
};

static const struct cli_option branch_options[] = {
	IMAGE_DIR,
	{ "copies", 'n', "N", OPT_COPIES, "how many copies" },
	{ "pidfiles", 0, "PREFIX", OPT_PIDFILES,
	  "write the roots' pids to PREFIX.1, PREFIX.2 ..." },
	{ "layer", 0, "PATH", OPT_SETTING,
	  "what a copy writes below this directory stays in the copy" },
	{ "upper", 0, "DIR", OPT_SETTING,
	  "what copy N writes below the first layer is in DIR/N/1/upper, and stays there" },
	{ "shared", 0, "PATH", OPT_SETTING,
	  "copies may have the same files at or below PATH open for writing" },
	{ "index-file", 0, "PATH", OPT_SETTING,
	  "a file, below a layer, in which each copy finds its number" },
	{ "host-suffix", 0, "TEXT", OPT_SETTING,
	  "put TEXT and the copy's number behind the host name" },
	STATS,
	NO_OPTION,
};

static const struct cli_option verify_options[] = {
	IMAGE_DIR,
	{ "shell-job", 'j', NULL, OPT_SHELL_JOB,
	  "the tree is a job of the shell that ckpt is started from" },
	{ "tree", 't', "PID", OPT_PID, "the root of the live tree (else as in the image)" },
	NO_OPTION,
};

static const struct cli_option show_options[] = {
	{ "plugin", 0, "NAME", OPT_SHOW_PLUGIN, "only what this plugin saved" },
	NO_OPTION,
};

static const struct cli_option graph_options[] = {
	{ "dot", 0, NULL, OPT_DOT, "print it for graphviz" },
	NO_OPTION,
};

static const struct cli_option no_options[] = { NO_OPTION };

static const char *const graph_kinds[] = { "dump", "restore", "verify", NULL };

const struct cli_command cli_commands[CLI_N_COMMANDS] = {
	[CLI_DUMP] = { "dump", "", 0, NULL, "save a process tree", dump_options, true, true },
	[CLI_RESTORE] = { "restore", "", 0, NULL, "bring a saved tree back", restore_options, false,
			  true },
	[CLI_BRANCH] = { "branch", "", 0, NULL, "bring several copies of a saved tree to life",
			 branch_options, false, true },
	[CLI_VERIFY] = { "verify", "", 0, NULL, "compare a live tree with an image", verify_options,
			 false, true },
	[CLI_SHOW] = { "show", "DIR", 1, NULL, "decode an image", show_options, false, false },
	[CLI_DIFF] = { "diff", "DIR1 DIR2", 2, NULL, "compare two images", no_options, false,
		       false },
	[CLI_CHECK] = { "check", "", 0, NULL, "what this kernel and these privileges allow",
			no_options, false, false },
	[CLI_PLUGINS] = { "plugins", "", 0, NULL,
			  "list plugins, features, options and who set them", no_options, false,
			  false },
	[CLI_GRAPH] = { "graph", "dump|restore|verify", 1, graph_kinds,
			"show the order of steps, and why", graph_options, false, false },
};

const struct cli_exit cli_exits[] = {
	{ 0, "done" },
	{ 1, "failed, the tree is unharmed" },
	{ 2, "usage: bad command line or configuration" },
	{ 3, "refused: state that is not supported, or its plugin is off; nothing was touched" },
	{ 4, "the image is bad or incompatible" },
	{ 5, "a privilege or kernel feature is missing" },
	{ 6, "failed, and the original could not be resumed" },
	{ 7, "differences were found" },
	{ 0, NULL },
};
