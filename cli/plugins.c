/* SPDX-License-Identifier: MIT */
#include "cli.h"

static int plugins(const struct cli *c, FILE *out, struct ckpt_error *err)
{
	return ckpt_print_plugins(c->ckpt, c->json, out, err);
}

int cli_plugins(struct cli *c)
{
	return cli_print(c, plugins);
}
