/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli.h"

struct pidfiles {
	struct pidfile *list;
	char **paths;
	unsigned n;
};

static int prepare(struct pidfiles *f, const char *prefix, unsigned n, struct ckpt_error *err)
{
	f->list = calloc(n, sizeof(*f->list));
	f->paths = calloc(n, sizeof(*f->paths));
	if (!f->list || !f->paths)
		return ckpt_fail(err, ENOMEM, "out of memory");
	for (; f->n < n; f->n++) {
		struct pidfile *p = &f->list[f->n];
		int r;

		*p = (struct pidfile){ .option = "--pidfiles", .fd = -1 };
		if (asprintf(&f->paths[f->n], "%s.%u", prefix, f->n + 1) < 0) {
			f->paths[f->n] = NULL;
			return ckpt_fail(err, ENOMEM, "out of memory");
		}
		p->path = f->paths[f->n];
		r = pidfile_prepare(p, err);
		if (r < 0) {
			f->n++;
			return r;
		}
	}
	return 0;
}

static int all_run(void *arg, const struct ckpt_branch_args *a, struct ckpt_error *err)
{
	struct pidfiles *f = arg;
	int r = 0;

	unsigned n = 0;

	while (!r && n < f->n) {
		r = pidfile_write(&f->list[n], a->roots[n], err);
		n += !r;
	}
	/* no copy stays: then no file may tell of one */
	while (r && n--)
		unlink(f->paths[n]);
	return r;
}

static void end(struct pidfiles *f)
{
	for (unsigned i = 0; i < f->n; i++) {
		pidfile_end(&f->list[i]);
		free(f->paths[i]);
	}
	free(f->list);
	free(f->paths);
}

static int branch(struct cli *c, struct ckpt_branch_args *a, struct pidfiles *f)
{
	struct ckpt_error err = { 0 };
	struct ckpt_result r = { 0 };
	int ret, code;

	if (c->pidfiles && prepare(f, c->pidfiles, c->copies, &err) < 0)
		return cli_error(c, &err);
	cli_catch_signals(c->ckpt);
	ret = ckpt_branch(c->ckpt, a, &r, &err);
	c->done = !ret && !c->dry_run;
	code = cli_report(c, &r, &err);
	if (!ret && !c->json)
		cli_summary("branched", &r);
	if (c->stats && !c->json)
		cli_stats(&r);
	ckpt_result_free(&r);
	return code;
}

int cli_branch(struct cli *c)
{
	struct pidfiles f = { 0 };
	struct ckpt_error err = { 0 };
	struct ckpt_branch_args a = {
		.dir = c->dir,
		.copies = c->copies,
		.roots = calloc(c->copies, sizeof(pid_t)),
		.running = all_run,
		.running_arg = &f,
	};
	int code;

	if (!a.roots) {
		ckpt_fail(&err, ENOMEM, "out of memory");
		return cli_error(c, &err);
	}
	code = branch(c, &a, &f);
	end(&f);
	free(a.roots);
	return code;
}
