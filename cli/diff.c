/* SPDX-License-Identifier: MIT */
#include "cli.h"

int cli_diff(struct cli *c)
{
	struct ckpt_error err = { 0 };
	struct ckpt_result r;
	int ret = ckpt_diff(c->ckpt, c->operands[0], c->operands[1], &r, &err);
	int code;

	cli_print_differences(c, &r);
	code = cli_report(c, &r, &err);
	if (!ret && !c->json)
		puts("no differences");
	ckpt_result_free(&r);
	return code;
}
