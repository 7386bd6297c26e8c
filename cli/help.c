/* SPDX-License-Identifier: MIT */
/* --help, from the table. */
#include "cli.h"

static void print_options(const struct cli_option *o, FILE *out)
{
	for (; o->name; o++) {
		char left[48];

		snprintf(left, sizeof(left), "%c%c%s --%s%s%s", o->letter ? '-' : ' ',
			 o->letter ? o->letter : ' ', o->letter ? "," : " ", o->name,
			 o->arg ? " " : "", o->arg ? o->arg : "");
		fprintf(out, "  %-34s %s\n", left, o->help);
	}
}

void cli_help(const struct cli_command *cmd, FILE *out)
{
	if (cmd) {
		fprintf(out, "usage: ckpt %s%s%s%s%s [options]\n  %s\n", cmd->name,
			cmd->needs_pid ? " -t PID" : "", cmd->needs_dir ? " -D DIR" : "",
			cmd->n_operands ? " " : "", cmd->operands, cmd->summary);
		if (cmd->options->name) {
			fputs("\noptions:\n", out);
			print_options(cmd->options, out);
		}
	} else {
		fputs("usage: ckpt COMMAND [options]\n  save a tree of processes and bring it "
		      "back\n\n"
		      "commands:\n",
		      out);
		for (int i = 0; i < CLI_N_COMMANDS; i++)
			fprintf(out, "  %-9s %-22s %s\n", cli_commands[i].name,
				cli_commands[i].operands, cli_commands[i].summary);
	}
	fputs("\neverywhere:\n", out);
	print_options(cli_globals, out);
}
