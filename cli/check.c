/* SPDX-License-Identifier: MIT */
#include "cli.h"

static int check(const struct cli *c, FILE *out, struct ckpt_error *err)
{
	return ckpt_print_check(c->ckpt, c->json, out, err);
}

int cli_check(struct cli *c)
{
	return cli_print(c, check);
}
