/* SPDX-License-Identifier: MIT */
#include "cli.h"

static int show(const struct cli *c, FILE *out, struct ckpt_error *err)
{
	return ckpt_show(c->ckpt, c->operands[0], c->show_plugin, c->json, out, err);
}

int cli_show(struct cli *c)
{
	return cli_print(c, show);
}
