/* SPDX-License-Identifier: MIT */
/* Human text goes to stdout, messages to stderr or the log file. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ckpt/cleanup.h>

#include "cli.h"

/*
 * Names of tasks and files are the tree's, or an image's: what a terminal would act on is not
 * shown, nor anything that looks like a line of ours.
 */
static void blank_controls(char *s)
{
	for (; *s; s++) {
		const unsigned char c = (unsigned char)*s;

		/* U+0080 to U+009F are controls too */
		if (c == 0xc2 && ((unsigned char)s[1] & 0xe0) == 0x80)
			s[1] = '?';
		else if (c >= 0x20 && c != 0x7f)
			continue;
		*s = '?';
	}
}

__attribute__((format(printf, 1, 0))) static char *clean_line(const char *fmt, va_list ap)
{
	CKPT_AUTO_FREE char *text = NULL;
	char *line;

	if (vasprintf(&text, fmt, ap) < 0) {
		text = NULL;
		return NULL;
	}
	blank_controls(text);
	return asprintf(&line, "%s\n", text) < 0 ? NULL : line;
}

char *cli_clean(const char *fmt, ...)
{
	va_list ap;
	char *line;

	va_start(ap, fmt);
	line = clean_line(fmt, ap);
	va_end(ap);
	return line;
}

void cli_line(FILE *to, const char *fmt, ...)
{
	CKPT_AUTO_FREE char *line = NULL;
	va_list ap;

	va_start(ap, fmt);
	line = clean_line(fmt, ap);
	va_end(ap);
	if (line)
		fputs(line, to);
}

static void print_error(const struct cli *c, const struct ckpt_error *err)
{
	cli_line(c->log, "ckpt: %s", err->text);
	if (*err->hint)
		cli_line(c->log, "  %s", err->hint);
}

static int exit_code(const struct ckpt_error *err)
{
	return err->exit == CKPT_EXIT_OK ? CKPT_EXIT_FAILED : (int)err->exit;
}

int cli_error(struct cli *c, const struct ckpt_error *err)
{
	cli_log_all(c);
	if (c->json && c->cmd) {
		struct ckpt_result r = { .exit = (enum ckpt_exit)exit_code(err) };

		ckpt_print_result(&r, c->cmd->name, err, stdout);
		putchar('\n');
	}
	print_error(c, err);
	return exit_code(err);
}

int cli_print(struct cli *c, cli_printer *print)
{
	struct ckpt_error err = { 0 };
	CKPT_AUTO_FREE char *text = NULL;
	size_t len = 0;
	FILE *out = open_memstream(&text, &len);
	int r = out ? print(c, out, &err) : ckpt_fail_sys(&err, errno, "output");

	if (out && fclose(out) && r >= 0)
		r = ckpt_fail_sys(&err, errno, "output");
	if (r < 0 && !len)
		return cli_error(c, &err);
	fwrite(text, 1, len, stdout);
	if (r >= 0)
		return CKPT_EXIT_OK;
	print_error(c, &err);
	return exit_code(&err);
}

static void print_finding(const struct cli *c, size_t number, const struct ckpt_finding *f)
{
	char who[256] = "";

	if (f->task)
		snprintf(who, sizeof(who), "%s, pid %d: ", f->task, f->pid);
	if (f->object) {
		cli_line(c->log, "%3zu. %s%s", number, who, f->object);
		cli_line(c->log, "     %s: %s", f->plugin, f->reason);
	} else {
		cli_line(c->log, "%3zu. %s%s: %s", number, who, f->plugin, f->reason);
	}
	if (f->hint && *f->hint)
		cli_line(c->log, "     way out: %s", f->hint);
	if (f->allowable)
		cli_line(c->log, "     or go on without it: --allow-loss %s%s%s", f->plugin,
			 f->feature ? "." : "", f->feature ? f->feature : "");
}

static void print_losses(const struct cli *c, const struct ckpt_result *r)
{
	for (size_t i = 0; i < r->n_losses; i++) {
		const struct ckpt_finding *f = &r->losses[i];

		cli_line(c->log, "ckpt: lost, as allowed: %s%s%s: %s%s%s (%s)", f->plugin,
			 f->feature ? "." : "", f->feature ? f->feature : "",
			 f->task ? f->task : "", f->task ? ": " : "", f->object, f->reason);
	}
}

int cli_report(struct cli *c, const struct ckpt_result *r, const struct ckpt_error *err)
{
	cli_log_all(c);
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

		cli_line(stdout, "%s: %s%s%s -> %s", d->where, d->field ? d->field : "",
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
