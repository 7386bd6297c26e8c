/* SPDX-License-Identifier: MIT */
#include <string.h>

#include "cli.h"

int cli_graph(struct cli *c)
{
	struct ckpt_error err = { 0 };
	enum ckpt_run_kind kind = CKPT_VERIFY;

	if (!strcmp(c->operands[0], "dump"))
		kind = CKPT_DUMP;
	else if (!strcmp(c->operands[0], "restore"))
		kind = CKPT_RESTORE;
	return cli_end(c, ckpt_print_graph(c->ckpt, kind, c->dot, c->json, stdout, &err), &err);
}
