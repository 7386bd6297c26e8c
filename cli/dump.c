/* SPDX-License-Identifier: MIT */
#include "cli.h"

int cli_dump(struct cli *c)
{
	static const char *const done[] = {
		[CKPT_AFTER_KILL] = "saved and killed",
		[CKPT_AFTER_RUN] = "saved, still running",
		[CKPT_AFTER_STOP] = "saved, left stopped",
	};
	const struct ckpt_dump_args a = {
		.pid = c->pid,
		.dir = c->dir,
		.after = c->after,
		.dry_run = c->dry_run,
		.force = c->force,
		.patience_ms = c->patience_ms,
	};
	struct ckpt_error err = { 0 };
	struct ckpt_result r;
	int ret, code;

	cli_catch_signals(c->ckpt);
	cli_watch(c);
	ret = ckpt_dump(c->ckpt, &a, &r, &err);
	c->done = !ret && !c->dry_run;
	code = cli_report(c, &r, &err);
	if (!ret && !c->json)
		cli_summary(c->dry_run ? "nothing is in the way" : done[c->after], &r);
	if (c->stats && !c->json)
		cli_stats(&r);
	ckpt_result_free(&r);
	return code;
}
