/* SPDX-License-Identifier: MIT */
#include <string.h>

#include "cli.h"

static int graph(const struct cli *c, FILE *out, struct ckpt_error *err)
{
	enum ckpt_run_kind kind = CKPT_VERIFY;

	if (!strcmp(c->operands[0], "dump"))
		kind = CKPT_DUMP;
	else if (!strcmp(c->operands[0], "restore"))
		kind = CKPT_RESTORE;
	return ckpt_print_graph(c->ckpt, kind, c->dot, c->json, out, err);
}

int cli_graph(struct cli *c)
{
	return cli_print(c, graph);
}
