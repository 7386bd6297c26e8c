/* SPDX-License-Identifier: MIT */
#include "cli.h"

int cli_show(struct cli *c)
{
	struct ckpt_error err = { 0 };
	int r = ckpt_show(c->ckpt, c->operands[0], c->show_plugin, c->json, stdout, &err);

	return cli_end(c, r, &err);
}
