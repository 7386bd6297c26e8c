/* SPDX-License-Identifier: MIT */
/* Human text goes to stdout, messages to stderr or the log file. */
#include <inttypes.h>
#include <string.h>

#include "cli.h"

static void print_error(const struct cli *c, const struct ckpt_error *err)
{
	fprintf(c->log, "ckpt: %s\n", err->text);
	if (*err->hint)
		fprintf(c->log, "  %s\n", err->hint);
}

static int exit_code(const struct ckpt_error *err)
{
	return err->exit == CKPT_EXIT_OK ? CKPT_EXIT_FAILED : (int)err->exit;
}

int cli_error(const struct cli *c, const struct ckpt_error *err)
{
	if (c->json && c->cmd) {
		struct ckpt_result r = { .exit = (enum ckpt_exit)exit_code(err) };

		ckpt_print_result(&r, c->cmd->name, err, stdout);
		putchar('\n');
	}
	print_error(c, err);
	return exit_code(err);
}

int cli_end(const struct cli *c, int ret, const struct ckpt_error *err)
{
	if (ret >= 0)
		return CKPT_EXIT_OK;
	print_error(c, err);
	return exit_code(err);
}

static void print_finding(const struct cli *c, size_t number, const struct ckpt_finding *f)
{
	fprintf(c->log, "%3zu. ", number);
	if (f->task)
		fprintf(c->log, "%s, pid %d: ", f->task, f->pid);
	if (f->object)
		fprintf(c->log, "%s\n     %s: %s\n", f->object, f->plugin, f->reason);
	else
		fprintf(c->log, "%s: %s\n", f->plugin, f->reason);
	if (f->hint && *f->hint)
		fprintf(c->log, "     way out: %s\n", f->hint);
	if (f->allowable)
		fprintf(c->log, "     or go on without it: --allow-loss %s%s%s\n", f->plugin,
			f->feature ? "." : "", f->feature ? f->feature : "");
}

static void print_losses(const struct cli *c, const struct ckpt_result *r)
{
	for (size_t i = 0; i < r->n_losses; i++) {
		const struct ckpt_finding *f = &r->losses[i];

		fprintf(c->log, "ckpt: lost, as allowed: %s%s%s: %s%s%s (%s)\n", f->plugin,
			f->feature ? "." : "", f->feature ? f->feature : "", f->task ? f->task : "",
			f->task ? ": " : "", f->object, f->reason);
	}
}

int cli_report(const struct cli *c, const struct ckpt_result *r, const struct ckpt_error *err)
{
	if (c->json) {
		ckpt_print_result(r, c->cmd->name, err, stdout);
		putchar('\n');
		fflush(stdout);
	}
	print_losses(c, r);
	if (err->err)
		print_error(c, err);
	for (size_t i = 0; i < r->n_blockers; i++)
		print_finding(c, i + 1, &r->blockers[i]);
	return err->err ? exit_code(err) : (int)r->exit;
}

void cli_print_differences(const struct cli *c, const struct ckpt_result *r)
{
	for (size_t i = 0; !c->json && i < r->n_differences; i++) {
		const struct ckpt_difference *d = &r->differences[i];

		printf("%s: %s%s%s -> %s\n", d->where, d->field ? d->field : "",
		       d->field ? ": " : "", d->before ? d->before : "(none)",
		       d->after ? d->after : "(none)");
	}
}

/* "1 thread", "2 threads": counters are named in the plural. */
static void print_count(const struct ckpt_counter *k)
{
	size_t len = strlen(k->name);

	if (k->value == 1 && len > 1 && k->name[len - 1] == 's')
		len -= len > 3 && !strcmp(k->name + len - 3, "ses") ? 2 : 1;
	printf("%" PRIu64 " %.*s", k->value, (int)len, k->name);
}

static void print_bytes(uint64_t n)
{
	static const char *const units[] = { "bytes", "KiB", "MiB", "GiB", "TiB" };
	double v = (double)n;
	size_t u = 0;

	for (; v >= 1024 && u < CKPT_ARRAY_SIZE(units) - 1; u++)
		v /= 1024;
	printf(u ? "%.1f %s" : "%.0f %s", v, units[u]);
}

void cli_summary(const char *what, const struct ckpt_result *r)
{
	printf("%s", what);
	for (size_t i = 0; i < r->n_counters; i++) {
		const struct ckpt_counter *k = &r->counters[i];

		fputs(i ? ", " : ": ", stdout);
		if (!strcmp(k->name, "bytes"))
			print_bytes(k->value);
		else
			print_count(k);
	}
	printf("; %.1f ms", (double)r->total_us / 1000);
	if (r->frozen_us)
		printf(", the tree stood still for %.1f ms", (double)r->frozen_us / 1000);
	putchar('\n');
}

static void print_cost(const struct ckpt_cost *c)
{
	printf("%-20s %10.2f %10.2f %8" PRIu64 " %8" PRIu64 " %8" PRIu64 "\n", c->name,
	       (double)c->us / 1000, (double)c->cpu_us / 1000, c->records, c->scripts, c->calls);
}

void cli_stats(const struct ckpt_result *r)
{
	struct ckpt_cost sum = { .name = (char *)"all steps" };

	printf("%-20s %10s %10s %8s %8s %8s\n", "step", "ms", "cpu ms", "records", "scripts",
	       "calls");
	for (size_t i = 0; i < r->n_steps; i++) {
		const struct ckpt_cost *c = &r->steps[i];

		print_cost(c);
		sum.us += c->us;
		sum.cpu_us += c->cpu_us;
		sum.records += c->records;
		sum.scripts += c->scripts;
		sum.calls += c->calls;
	}
	print_cost(&sum);
}
