/* SPDX-License-Identifier: MIT */
#include "cli.h"

int cli_verify(struct cli *c)
{
	const struct ckpt_verify_args a = { .dir = c->dir, .pid = c->pid };
	struct ckpt_error err = { 0 };
	struct ckpt_result r;
	int ret, code;

	cli_catch_signals(c->ckpt);
	cli_watch(c);
	ret = ckpt_verify(c->ckpt, &a, &r, &err);
	cli_print_differences(c, &r);
	code = cli_report(c, &r, &err);
	if (!ret && !c->json)
		cli_summary("no differences", &r);
	ckpt_result_free(&r);
	return code;
}
