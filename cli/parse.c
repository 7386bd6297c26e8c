/* SPDX-License-Identifier: MIT */
/* The command line, driven by the table. Options may stand anywhere. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

struct parser {
	struct cli *c;
	int argc, at;
	char **argv;
	struct ckpt_error *err;
};

#define MAX_NAMES 64

static int usage(struct parser *p, const char *what, const char *word, const char *const *names,
		 size_t n)
{
	const char *near = ckpt_nearest(word, names, n);

	ckpt_fail_as(p->err, CKPT_EXIT_USAGE, EINVAL, "no %s '%s'", what, word);
	if (near)
		return ckpt_hint(p->err, "did you mean '%s'?", near);
	return ckpt_hint(p->err, p->c->cmd ? "see: ckpt %s --help" : "see: ckpt --help",
			 p->c->cmd ? p->c->cmd->name : "");
}

static const struct cli_option *find_in(const struct cli_option *table, const char *name,
					size_t len, char letter)
{
	for (; table->name; table++) {
		if (letter ? table->letter == letter
			   : strlen(table->name) == len && !strncmp(table->name, name, len))
			return table;
	}
	return NULL;
}

static const struct cli_option *find(const struct parser *p, const char *name, size_t len,
				     char letter)
{
	const struct cli_option *o = NULL;

	/* a subcommand's own meaning of a name comes first: show --plugin */
	if (p->c->cmd)
		o = find_in(p->c->cmd->options, name, len, letter);
	return o ? o : find_in(cli_globals, name, len, letter);
}

static int unknown_option(struct parser *p, const char *word)
{
	const char *names[MAX_NAMES];
	char own[MAX_NAMES][32];
	size_t n = 0;

	for (int global = 0; global < 2; global++) {
		const struct cli_option *o = global	 ? cli_globals
					     : p->c->cmd ? p->c->cmd->options
							 : NULL;

		for (; o && o->name && n < MAX_NAMES; o++, n++) {
			snprintf(own[n], sizeof(own[n]), "--%s", o->name);
			names[n] = own[n];
		}
	}
	return usage(p, "option", word, names, n);
}

static int set_pid(struct parser *p, const char *value)
{
	char *end;
	long n;

	errno = 0;
	n = strtol(value, &end, 10);
	if (errno || *end || n <= 0 || n > 0x7fffffff)
		return ckpt_fail_as(p->err, CKPT_EXIT_USAGE, EINVAL, "'%s' is no pid", value);
	p->c->pid = (pid_t)n;
	return 0;
}

static int set_copies(struct parser *p, const char *value)
{
	char *end;
	long n;

	errno = 0;
	n = strtol(value, &end, 10);
	if (errno || *end || n < 1 || n > CKPT_MAX_COPIES)
		return ckpt_fail_as(p->err, CKPT_EXIT_USAGE, EINVAL,
				    "'%s' is no number of copies (1 to %d)", value,
				    CKPT_MAX_COPIES);
	p->c->copies = (unsigned)n;
	return 0;
}

static int set_patience(struct parser *p, const char *value)
{
	char *end;
	double seconds;

	errno = 0;
	seconds = strtod(value, &end);
	if (errno || end == value || *end || !(seconds >= 0 && seconds <= 86400))
		return ckpt_fail_as(p->err, CKPT_EXIT_USAGE, EINVAL,
				    "'%s' is no number of seconds (0 to 86400)", value);
	p->c->patience_ms = (unsigned)(seconds * 1000);
	return 0;
}

static int set_after(struct parser *p, enum ckpt_after after)
{
	if (p->c->after != CKPT_AFTER_KILL && p->c->after != after)
		return ckpt_fail_as(p->err, CKPT_EXIT_USAGE, EINVAL,
				    "--leave-running and --leave-stopped exclude each other");
	p->c->after = after;
	return 0;
}

static int take(struct parser *p, const struct cli_option *o, const char *value)
{
	struct cli *c = p->c;

	switch (o->id) {
	case OPT_SETTING:
		return ckpt_set(c->ckpt, o->name, value, "command line", p->err);
	case OPT_SHELL_JOB:
		c->shell_job = true;
		return ckpt_set(c->ckpt, "option", "tty.shell-job=yes", "command line", p->err);
	case OPT_JSON:
		return ckpt_set(c->ckpt, "json", "yes", "command line", p->err);
	case OPT_VERBOSE:
		c->verbose += c->verbose < 3;
		return 0;
	case OPT_PID:
		return set_pid(p, value);
	case OPT_LEAVE_RUNNING:
		return set_after(p, CKPT_AFTER_RUN);
	case OPT_LEAVE_STOPPED:
		return set_after(p, CKPT_AFTER_STOP);
	case OPT_CONFIG:
		c->config = value;
		return 0;
	case OPT_DIR:
		c->dir = value;
		return 0;
	case OPT_PIDFILE:
		c->pidfile = value;
		return 0;
	case OPT_PIDFILES:
		c->pidfiles = value;
		return 0;
	case OPT_COPIES:
		return set_copies(p, value);
	case OPT_SHOW_PLUGIN:
		c->show_plugin = value;
		return 0;
	case OPT_HELP:
		c->help = true;
		return 0;
	case OPT_VERSION:
		c->version = true;
		return 0;
	case OPT_DRY_RUN:
		c->dry_run = true;
		return 0;
	case OPT_FORCE:
		c->force = true;
		return 0;
	case OPT_PATIENCE:
		return set_patience(p, value);
	case OPT_STATS:
		c->stats = true;
		return 0;
	case OPT_DETACH:
		c->detach = true;
		return 0;
	case OPT_DOT:
		c->dot = true;
		return 0;
	}
	return -EINVAL;
}

/* The value of an option: attached, or the next word. */
static int value_of(struct parser *p, const struct cli_option *o, const char *attached,
		    const char **value)
{
	*value = attached;
	if (!o->arg && attached)
		return ckpt_fail_as(p->err, CKPT_EXIT_USAGE, EINVAL, "--%s takes no value",
				    o->name);
	if (!o->arg || attached)
		return 0;
	if (p->at >= p->argc)
		return ckpt_fail_as(p->err, CKPT_EXIT_USAGE, EINVAL, "--%s wants %s", o->name,
				    o->arg);
	*value = p->argv[p->at++];
	return 0;
}

static int long_option(struct parser *p, const char *word)
{
	const char *name = word + 2, *eq = strchr(name, '='), *value;
	const struct cli_option *o = find(p, name, eq ? (size_t)(eq - name) : strlen(name), 0);
	int r;

	if (!o)
		return unknown_option(p, word);
	r = value_of(p, o, eq ? eq + 1 : NULL, &value);
	return r < 0 ? r : take(p, o, value);
}

/* "-vvR", "-t12", "-t 12" */
static int short_options(struct parser *p, const char *word)
{
	for (const char *l = word + 1; *l; l++) {
		const struct cli_option *o = find(p, "", 0, *l);
		const char *value;
		int r;

		if (!o)
			return ckpt_fail_as(p->err, CKPT_EXIT_USAGE, EINVAL, "no option '-%c'", *l);
		r = value_of(p, o, o->arg && l[1] ? l + 1 : NULL, &value);
		if (!r)
			r = take(p, o, value);
		if (r < 0 || o->arg)
			return r;
	}
	return 0;
}

static int operand(struct parser *p, const char *word)
{
	struct cli *c = p->c;
	const char *const *choice = c->cmd->choices;
	size_t n = 0;

	if (c->n_operands == c->cmd->n_operands)
		return ckpt_fail_as(p->err, CKPT_EXIT_USAGE, EINVAL, "'%s' is one word too many",
				    word);
	c->operands[c->n_operands++] = word;
	for (; choice && choice[n]; n++)
		if (!strcmp(word, choice[n]))
			return 0;
	return choice ? usage(p, "kind of run", word, choice, n) : 0;
}

/* How many words behind this one belong to it, as far as global options go. */
static int words_behind(const char *word)
{
	const struct cli_option *o = NULL;

	if (word[1] == '-')
		o = strchr(word, '=') ? NULL : find_in(cli_globals, word + 2, strlen(word) - 2, 0);
	else
		for (const char *l = word + 1; *l && (!o || !o->arg); l++) {
			o = find_in(cli_globals, "", 0, *l);
			if (o && o->arg && l[1])
				return 0;
		}
	return o && o->arg ? 1 : 0;
}

/*
 * The subcommand is looked for before anything else is parsed, since the options
 * behind it are its own: the first word that is neither an option nor a value.
 */
static int find_command(struct parser *p, int *where)
{
	const char *names[CLI_N_COMMANDS];
	int at = 1;

	while (at < p->argc && *p->argv[at] == '-' && strcmp(p->argv[at], "--") != 0)
		at += 1 + words_behind(p->argv[at]);
	if (at >= p->argc || !strcmp(p->argv[at], "--"))
		return 0;
	for (int k = 0; k < CLI_N_COMMANDS; k++) {
		names[k] = cli_commands[k].name;
		if (strcmp(p->argv[at], names[k]) != 0)
			continue;
		p->c->cmd = &cli_commands[k];
		p->c->id = (enum cli_id)k;
		*where = at;
		return 0;
	}
	return usage(p, "command", p->argv[at], names, CLI_N_COMMANDS);
}

static int check_complete(struct parser *p)
{
	const struct cli_command *cmd = p->c->cmd;

	if (cmd->needs_pid && !p->c->pid)
		ckpt_fail_as(p->err, CKPT_EXIT_USAGE, EINVAL, "-t PID is missing");
	else if (cmd->needs_dir && !p->c->dir && !(p->c->id == CLI_DUMP && p->c->dry_run))
		ckpt_fail_as(p->err, CKPT_EXIT_USAGE, EINVAL, "-D DIR is missing");
	else if (p->c->id == CLI_BRANCH && !p->c->copies)
		ckpt_fail_as(p->err, CKPT_EXIT_USAGE, EINVAL, "--copies N is missing");
	else if (p->c->n_operands < cmd->n_operands)
		ckpt_fail_as(p->err, CKPT_EXIT_USAGE, EINVAL, "%s is missing", cmd->operands);
	else
		return 0;
	return ckpt_hint(p->err, "see: ckpt %s --help", cmd->name);
}

static int parse_word(struct parser *p, const char *word, bool *only_operands)
{
	if (*only_operands || *word != '-' || !word[1])
		return operand(p, word);
	if (!strcmp(word, "--")) {
		*only_operands = true;
		return 0;
	}
	return word[1] == '-' ? long_option(p, word) : short_options(p, word);
}

static int no_command(struct parser *p)
{
	ckpt_fail_as(p->err, CKPT_EXIT_USAGE, EINVAL, "a command is missing");
	return ckpt_hint(p->err, "see: ckpt --help");
}

int cli_parse(struct cli *c, int argc, char **argv, struct ckpt_error *err)
{
	struct parser p = { c, argc, 1, argv, err };
	bool only_operands = false;
	int command = 0;
	int r = find_command(&p, &command);

	while (!r && p.at < argc) {
		const char *word = argv[p.at++];

		if (command && p.at - 1 == command)
			continue;
		if (!c->cmd && (*word != '-' || !strcmp(word, "--")))
			return no_command(&p);
		r = parse_word(&p, word, &only_operands);
	}
	if (r < 0 || c->help || c->version)
		return r;
	return c->cmd ? check_complete(&p) : no_command(&p);
}
