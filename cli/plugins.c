/* SPDX-License-Identifier: MIT */
#include "cli.h"

int cli_plugins(struct cli *c)
{
	struct ckpt_error err = { 0 };

	return cli_end(c, ckpt_print_plugins(c->ckpt, c->json, stdout, &err), &err);
}
