/* SPDX-License-Identifier: MIT */
/* Results: freeing, and as JSON. */
#include <inttypes.h>
#include <stdlib.h>

#include "engine/json.h"
#include "engine/run.h"

static void free_counters(struct ckpt_counter *list, size_t n)
{
	for (size_t i = 0; i < n; i++)
		free(list[i].name);
	free(list);
}

static void free_findings(struct ckpt_finding *list, size_t n)
{
	for (size_t i = 0; i < n; i++)
		finding_clear(&list[i]);
	free(list);
}

void ckpt_result_free(struct ckpt_result *r)
{
	free_findings(r->blockers, r->n_blockers);
	free_findings(r->losses, r->n_losses);
	for (size_t i = 0; i < r->n_differences; i++) {
		free(r->differences[i].where);
		free(r->differences[i].field);
		free(r->differences[i].before);
		free(r->differences[i].after);
	}
	free(r->differences);
	free_counters(r->counters, r->n_counters);
	for (size_t i = 0; i < r->n_steps; i++)
		free(r->steps[i].name);
	free(r->steps);
	*r = (struct ckpt_result){ 0 };
}

static void print_findings(FILE *out, const char *name, const struct ckpt_finding *list, size_t n)
{
	fprintf(out, ",\n \"%s\": [", name);
	for (size_t i = 0; i < n; i++) {
		const struct ckpt_finding *f = &list[i];

		fputs(i ? ",\n  {" : "\n  {", out);
		json_member(out, "", "plugin", f->plugin);
		json_member(out, ", ", "feature", f->feature);
		fprintf(out, ", \"pid\": %d", f->pid);
		json_member(out, ", ", "task", f->task);
		json_member(out, ", ", "object", f->object);
		json_member(out, ", ", "reason", f->reason);
		json_member(out, ", ", "hint", f->hint);
		fprintf(out, ", \"exit\": %d, \"allowable\": %s, \"passing\": %s}", (int)f->exit,
			f->allowable ? "true" : "false", f->passing ? "true" : "false");
	}
	fputs(n ? "\n ]" : "]", out);
}

static void print_differences(FILE *out, const struct ckpt_result *r)
{
	fputs(",\n \"differences\": [", out);
	for (size_t i = 0; i < r->n_differences; i++) {
		const struct ckpt_difference *d = &r->differences[i];

		fputs(i ? ",\n  {" : "\n  {", out);
		json_member(out, "", "where", d->where);
		json_member(out, ", ", "field", d->field);
		json_member(out, ", ", "before", d->before);
		json_member(out, ", ", "after", d->after);
		fputs("}", out);
	}
	fputs(r->n_differences ? "\n ]" : "]", out);
}

static void print_counters(FILE *out, const struct ckpt_result *r)
{
	fputs(",\n \"counters\": {", out);
	for (size_t i = 0; i < r->n_counters; i++) {
		fputs(i ? ", " : "", out);
		json_string(out, r->counters[i].name);
		fprintf(out, ": %" PRIu64, r->counters[i].value);
	}
	fputs("},\n \"steps\": [", out);
	for (size_t i = 0; i < r->n_steps; i++) {
		const struct ckpt_cost *c = &r->steps[i];

		fputs(i ? ",\n  {" : "\n  {", out);
		json_member(out, "", "name", c->name);
		fprintf(out,
			", \"us\": %" PRIu64 ", \"cpu_us\": %" PRIu64 ", \"records\": %" PRIu64
			", \"scripts\": %" PRIu64 ", \"calls\": %" PRIu64 "}",
			c->us, c->cpu_us, c->records, c->scripts, c->calls);
	}
	fputs(r->n_steps ? "\n ]" : "]", out);
}

void ckpt_print_result(const struct ckpt_result *r, const char *command,
		       const struct ckpt_error *err, FILE *out)
{
	fputs("{\"schema\": 1", out);
	json_member(out, ", ", "command", command);
	fprintf(out, ", \"exit\": %d", (int)r->exit);
	json_member(out, ", ", "error", err && err->err ? err->text : NULL);
	json_member(out, ", ", "hint", err && err->err && *err->hint ? err->hint : NULL);
	fprintf(out, ",\n \"total_us\": %" PRIu64 ", \"frozen_us\": %" PRIu64, r->total_us,
		r->frozen_us);
	print_findings(out, "blockers", r->blockers, r->n_blockers);
	print_findings(out, "losses", r->losses, r->n_losses);
	print_differences(out, r);
	print_counters(out, r);
	fputs("}", out);
}
