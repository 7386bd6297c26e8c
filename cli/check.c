/* SPDX-License-Identifier: MIT */
#include "cli.h"

int cli_check(struct cli *c)
{
	struct ckpt_error err = { 0 };

	return cli_end(c, ckpt_print_check(c->ckpt, c->json, stdout, &err), &err);
}
