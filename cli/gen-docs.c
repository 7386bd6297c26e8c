/* SPDX-License-Identifier: MIT */
/*
 * Runs at build time: man pages and the bash completion, from the tables of the
 * command line and the prose in docs/man. A prose file has sections that start
 * with "# TITLE"; indented lines are literal; `word` is bold.
 *
 *     gen-docs PROSE-DIR OUT-DIR
 */
#include <ctype.h>
#include <errno.h>
#include <string.h>

#include "cli.h"

struct page {
	const char *name;    /* "ckpt-dump" */
	const char *section; /* "8" */
	const char *summary;
	const struct cli_command *cmd; /* NULL: not of a subcommand */
	FILE *out, *prose;
};

/* ---- roff ---- */

static void put_char(FILE *out, char ch)
{
	if (ch == '-')
		fputs("\\-", out);
	else if (ch == '\\')
		fputs("\\e", out);
	else
		fputc(ch, out);
}

static void put_text(FILE *out, const char *s)
{
	bool bold = false;

	/* a line that starts with these would be a request */
	if (*s == '.' || *s == '\'')
		fputs("\\&", out);
	for (; *s; s++) {
		if (*s != '`') {
			put_char(out, *s);
			continue;
		}
		bold = !bold;
		fputs(bold ? "\\fB" : "\\fR", out);
	}
}

static void put_line(FILE *out, const char *s)
{
	put_text(out, s);
	fputc('\n', out);
}

static void put_bold(FILE *out, const char *before, const char *s)
{
	fputs(before, out);
	fputs("\\fB", out);
	put_text(out, s);
	fputs("\\fR", out);
}

/* ---- pieces from the tables ---- */

static void put_option(FILE *out, const struct cli_option *o)
{
	fputs(".TP\n", out);
	if (o->letter) {
		const char letter[] = { '-', o->letter, '\0' };

		put_bold(out, "", letter);
		fputs(", ", out);
	}
	put_bold(out, "", "--");
	put_bold(out, "", o->name);
	if (o->arg) {
		fputs(" \\fI", out);
		put_text(out, o->arg);
		fputs("\\fR", out);
	}
	fputc('\n', out);
	put_line(out, o->help);
}

static void put_options(FILE *out, const struct cli_option *o)
{
	for (; o->name; o++)
		put_option(out, o);
}

static void put_exits(FILE *out)
{
	fputs(".SH EXIT STATUS\n", out);
	for (const struct cli_exit *e = cli_exits; e->meaning; e++) {
		fprintf(out, ".TP\n%d\n", e->code);
		put_line(out, e->meaning);
	}
}

static void put_synopsis(const struct page *p)
{
	fputs(".SH SYNOPSIS\n", p->out);
	put_bold(p->out, "", "ckpt");
	if (!p->cmd) {
		fputs(" \\fICOMMAND\\fR [options]\n", p->out);
		return;
	}
	put_bold(p->out, " ", p->cmd->name);
	if (p->cmd->needs_pid)
		fputs(" \\fB\\-t\\fR \\fIPID\\fR", p->out);
	if (p->cmd->needs_dir)
		fputs(" \\fB\\-D\\fR \\fIDIR\\fR", p->out);
	if (*p->cmd->operands) {
		fputs(" \\fI", p->out);
		put_text(p->out, p->cmd->operands);
		fputs("\\fR", p->out);
	}
	fputs(" [options]\n", p->out);
}

static void put_commands(FILE *out)
{
	fputs(".SH COMMANDS\n", out);
	for (int i = 0; i < CLI_N_COMMANDS; i++) {
		fputs(".TP\n", out);
		put_bold(out, "", "ckpt-");
		put_bold(out, "", cli_commands[i].name);
		fputs("(8)\n", out);
		put_line(out, cli_commands[i].summary);
	}
}

/* The keys of [ckpt]: every option that is a setting, by its long name. */
static void put_keys(FILE *out)
{
	fputs(".SH KEYS OF [ckpt]\n", out);
	for (const struct cli_option *o = cli_globals; o->name; o++) {
		bool setting = o->id == OPT_SETTING || o->id == OPT_JSON || o->id == OPT_VERBOSE;

		if (!setting)
			continue;
		fputs(".TP\n", out);
		put_bold(out, "", o->name);
		fputs(" = \\fI", out);
		put_text(out, o->id == OPT_JSON	     ? "yes|no"
			      : o->id == OPT_VERBOSE ? "0..3"
						     : o->arg);
		fputs("\\fR\n", out);
		put_line(out, o->help);
	}
}

/* ---- prose ---- */

/*
 * Copy the sections of the prose file whose being "DESCRIPTION" is `first`: the
 * description comes before the options, the rest behind them.
 */
static void put_prose(const struct page *p, bool first)
{
	char line[1024];
	bool here = false, literal = false;

	rewind(p->prose);
	while (fgets(line, sizeof(line), p->prose)) {
		bool indented = line[0] == ' ' || line[0] == '\t';

		line[strcspn(line, "\n")] = '\0';
		if (line[0] == '#') {
			here = !strcmp(line, "# DESCRIPTION") == first;
			if (here)
				fprintf(p->out, ".SH %s\n", line + 2);
			continue;
		}
		if (!here)
			continue;
		if (literal && !indented)
			fputs(".fi\n.RE\n", p->out);
		else if (!literal && indented)
			fputs(".PP\n.RS 4\n.nf\n", p->out);
		literal = indented;
		if (!*line)
			fputs(".PP\n", p->out);
		else
			put_line(p->out, indented ? line + strspn(line, " \t") : line);
	}
	if (literal)
		fputs(".fi\n.RE\n", p->out);
}

/* ---- pages ---- */

static void put_see_also(const struct page *p)
{
	const char *sep = "";

	fputs(".SH SEE ALSO\n", p->out);
	if (p->cmd || strcmp(p->section, "8") != 0) {
		fputs("\\fBckpt\\fR(8)", p->out);
		sep = ", ";
	}
	for (int i = 0; i < CLI_N_COMMANDS; i++) {
		if (&cli_commands[i] == p->cmd)
			continue;
		fprintf(p->out, "%s\\fBckpt\\-%s\\fR(8)", sep, cli_commands[i].name);
		sep = ", ";
	}
	if (strcmp(p->section, "5") != 0)
		fputs(", \\fBckpt.conf\\fR(5)", p->out);
	fputc('\n', p->out);
}

static void put_page(const struct page *p)
{
	bool conf = !strcmp(p->section, "5");

	fprintf(p->out, ".TH %s %s \"\" \"ckpt " CKPT_VERSION "\"\n.SH NAME\n", p->name,
		p->section);
	put_text(p->out, p->name);
	fputs(" \\- ", p->out);
	put_line(p->out, p->summary);
	if (!conf)
		put_synopsis(p);
	put_prose(p, true);
	if (!p->cmd && !conf)
		put_commands(p->out);
	if (p->cmd && p->cmd->options->name) {
		fputs(".SH OPTIONS\n", p->out);
		put_options(p->out, p->cmd->options);
	}
	if (conf) {
		put_keys(p->out);
	} else if (!p->cmd) {
		fputs(".SH OPTIONS OF EVERY COMMAND\n", p->out);
		put_options(p->out, cli_globals);
	} else {
		fputs(".PP\nOptions that every command takes are described in \\fBckpt\\fR(8).\n",
		      p->out);
	}
	put_prose(p, false);
	if (!conf)
		put_exits(p->out);
	put_see_also(p);
}

static FILE *open_in(const char *dir, const char *name, const char *ext, const char *mode)
{
	char path[1024];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s.%s", dir, name, ext);
	f = fopen(path, mode);
	if (!f)
		fprintf(stderr, "gen-docs: %s: %s\n", path, strerror(errno));
	return f;
}

static bool write_page(const char *prose, const char *out, struct page p)
{
	CKPT_AUTO_FILE FILE *in = open_in(prose, p.name, "txt", "r");
	FILE *o = in ? open_in(out, p.name, p.section, "w") : NULL;

	if (!o)
		return false;
	p.prose = in;
	p.out = o;
	put_page(&p);
	return fclose(o) == 0;
}

static bool write_pages(const char *prose, const char *out)
{
	bool ok = write_page(
		prose, out,
		(struct page){ .name = "ckpt",
			       .section = "8",
			       .summary = "save a tree of processes and bring it back" });

	ok &= write_page(prose, out,
			 (struct page){ .name = "ckpt.conf",
					.section = "5",
					.summary = "configuration and profiles of ckpt" });
	for (int i = 0; i < CLI_N_COMMANDS; i++) {
		char name[32];

		snprintf(name, sizeof(name), "ckpt-%s", cli_commands[i].name);
		ok &= write_page(prose, out,
				 (struct page){ .name = name,
						.section = "8",
						.summary = cli_commands[i].summary,
						.cmd = &cli_commands[i] });
	}
	return ok;
}

/* ---- bash completion ---- */

static void put_words(FILE *out, const struct cli_option *o)
{
	for (; o->name; o++) {
		if (o->letter)
			fprintf(out, " -%c", o->letter);
		fprintf(out, " --%s", o->name);
	}
}

static void put_option_cases(FILE *out, const struct cli_option *o)
{
	for (; o->name; o++) {
		const char *how = "return";

		if (!o->arg)
			continue;
		if (!strcmp(o->arg, "DIR"))
			how = "COMPREPLY=($(compgen -d -- \"$cur\")); return";
		else if (!strcmp(o->arg, "FILE"))
			how = "COMPREPLY=($(compgen -f -- \"$cur\")); return";
		fprintf(out, "\t--%s", o->name);
		if (o->letter)
			fprintf(out, "|-%c", o->letter);
		fprintf(out, ") %s ;;\n", how);
	}
}

static void put_completion(FILE *out)
{
	fputs("# SPDX-License-Identifier: MIT\n# bash completion for ckpt " CKPT_VERSION
	      ", generated from its tables\n_ckpt()\n{\n"
	      "\tlocal cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} cmd= w\n"
	      "\tfor w in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n\t\tcase $w in\n\t\t",
	      out);
	for (int i = 0; i < CLI_N_COMMANDS; i++)
		fprintf(out, "%s%s", i ? "|" : "", cli_commands[i].name);
	fputs(") cmd=$w; break ;;\n\t\tesac\n\tdone\n\tcase $prev in\n", out);
	put_option_cases(out, cli_globals);
	for (int i = 0; i < CLI_N_COMMANDS; i++)
		put_option_cases(out, cli_commands[i].options);
	fputs("\tesac\n\tlocal words=\"", out);
	put_words(out, cli_globals);
	fputs("\" operands=\n\tcase $cmd in\n", out);
	for (int i = 0; i < CLI_N_COMMANDS; i++) {
		const struct cli_command *c = &cli_commands[i];

		fprintf(out, "\t%s) words+=\"", c->name);
		put_words(out, c->options);
		fputs("\"", out);
		if (c->choices) {
			fputs("; operands=\"", out);
			for (const char *const *w = c->choices; *w; w++)
				fprintf(out, " %s", *w);
			fputs("\"", out);
		} else if (c->n_operands) {
			fputs("; operands=$(compgen -d -- \"$cur\")", out);
		}
		fputs(" ;;\n", out);
	}
	fputs("\t'') operands=\"", out);
	for (int i = 0; i < CLI_N_COMMANDS; i++)
		fprintf(out, " %s", cli_commands[i].name);
	fputs("\" ;;\n\tesac\n\t[[ $cur == -* ]] || words=$operands\n"
	      "\tCOMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n}\ncomplete -F _ckpt ckpt\n",
	      out);
}

int main(int argc, char **argv)
{
	FILE *completion;

	if (argc != 3) {
		fputs("usage: gen-docs PROSE-DIR OUT-DIR\n", stderr);
		return 2;
	}
	if (!write_pages(argv[1], argv[2]))
		return 1;
	completion = open_in(argv[2], "ckpt", "bash", "w");
	if (!completion)
		return 1;
	put_completion(completion);
	return fclose(completion) == 0 ? 0 : 1;
}
