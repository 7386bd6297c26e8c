/* SPDX-License-Identifier: MIT */
/* Blockers, losses and unmet conditions: the lists that a run ends with. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ckpt/cleanup.h>

#include "engine/engine.h"
#include "engine/run.h"
#include "engine/text.h"

void finding_clear(struct ckpt_finding *f)
{
	free(f->plugin);
	free(f->feature);
	free(f->task);
	free(f->object);
	free(f->reason);
	free(f->hint);
	*f = (struct ckpt_finding){ 0 };
}

static bool copy_text(char **to, const char *from)
{
	*to = from ? strdup(from) : NULL;
	return !from || *to;
}

int finding_add(struct ckpt_finding **list, size_t *n, const struct ckpt_finding *f,
		struct ckpt_error *err)
{
	struct ckpt_finding copy = *f;
	bool ok = copy_text(&copy.plugin, f->plugin);

	ok &= copy_text(&copy.feature, f->feature);
	ok &= copy_text(&copy.task, f->task);
	ok &= copy_text(&copy.object, f->object);
	ok &= copy_text(&copy.reason, f->reason);
	ok &= copy_text(&copy.hint, f->hint);
	if (!ok || !VEC_ROOM(*list, *n)) {
		finding_clear(&copy);
		return fail_nomem(err);
	}
	(*list)[(*n)++] = copy;
	return 0;
}

/* Was the object lost when the image was made? "plugin.feature: object" */
static bool lost_in_image(const struct ckpt_run *run, const char *plugin, const char *feature)
{
	char word[256];
	size_t len;

	if (!run->image_info)
		return false;
	snprintf(word, sizeof(word), "%s%s%s:", plugin, feature ? "." : "", feature ? feature : "");
	len = strlen(word);
	for (size_t i = 0; i < run->image_info->n_losses; i++)
		if (!strncmp(run->image_info->losses[i], word, len))
			return true;
	return false;
}

static bool may_lose(const struct ckpt_run *run, const struct ckpt_blocker *b, const char *plugin)
{
	if (b->no_loss)
		return false;
	if (run->kind == CKPT_VERIFY && lost_in_image(run, plugin, b->feature))
		return true;
	return plugins_loss_allowed(&run->ctx->plugins, plugin, b->feature);
}

/* A feature may have the word's name, and does not pass while it is off. */
static bool passes(const struct loaded_plugin *p, const char *feature)
{
	int own = p && feature ? feature_index(p, feature) : -1;

	if (own >= 0 && !p->features[own].on)
		return false;
	for (size_t i = 0; p && feature && p->desc.passing && p->desc.passing[i]; i++)
		if (!strcmp(p->desc.passing[i], feature))
			return true;
	return false;
}

static bool same_text(const char *a, const char *b)
{
	return a && b ? !strcmp(a, b) : a == b;
}

/* What was lost in the survey already is met once more by the collectors. */
static bool is_listed(const struct ckpt_finding *list, size_t n, const struct ckpt_finding *f)
{
	for (size_t i = 0; i < n; i++)
		if (same_text(list[i].plugin, f->plugin) &&
		    same_text(list[i].feature, f->feature) && same_text(list[i].task, f->task) &&
		    same_text(list[i].object, f->object) && same_text(list[i].reason, f->reason))
			return true;
	return false;
}

int ckpt_refuse(struct ckpt_run *run, const struct ckpt_blocker *b)
{
	struct ckpt_result *r = run->result;
	const char *plugin = run->current ? run->current->name : "engine";
	bool lose = may_lose(run, b, plugin);
	char task[64];
	struct ckpt_finding f = {
		.plugin = (char *)plugin,
		.feature = (char *)b->feature,
		.object = (char *)b->object,
		.reason = (char *)b->reason,
		.hint = (char *)b->hint,
		.exit = CKPT_EXIT_REFUSED,
		.allowable = !b->no_loss && !run->ctx->plugins.no_loss,
		.passing = passes(run->current, b->feature),
	};
	int bad;

	if (b->task) {
		snprintf(task, sizeof(task), "task %u (%.15s)", b->task->id, b->task->comm);
		f.task = task;
		f.pid = b->task->pid;
	}
	if (lose && is_listed(r->losses, r->n_losses, &f))
		return 0;
	bad = lose ? finding_add(&r->losses, &r->n_losses, &f, NULL)
		   : finding_add(&r->blockers, &r->n_blockers, &f, NULL);
	/* a loss that cannot be listed would be silent */
	if (bad)
		run->out_of_memory = true;
	return lose && !bad ? 0 : -ECANCELED;
}

int ckpt_refuse_off(struct ckpt_run *run, const char *feature, const struct ckpt_task *task,
		    const char *object)
{
	const struct loaded_plugin *p = run->current;
	int i = p ? feature_index(p, feature) : -1;
	char reason[256], hint[256];
	struct ckpt_blocker b = { .feature = feature, .task = task, .object = object };

	if (i < 0 || p->features[i].on)
		return 1;
	snprintf(reason, sizeof(reason), "feature %s.%s is switched off (%s)", p->name, feature,
		 p->features[i].origin);
	snprintf(hint, sizeof(hint), "switch it on again: take back --without %s.%s", p->name,
		 feature);
	b.reason = reason;
	b.hint = hint;
	return ckpt_refuse(run, &b);
}

int ckpt_unmet(struct ckpt_run *run, enum ckpt_exit exit_class, const char *hint, const char *fmt,
	       ...)
{
	CKPT_AUTO_FREE char *text = NULL;
	struct ckpt_finding f = {
		.plugin = (char *)(run->current ? run->current->name : "engine"),
		.hint = (char *)hint,
		.exit = exit_class,
	};
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vasprintf(&text, fmt, ap);
	va_end(ap);
	if (n < 0)
		text = NULL;
	f.reason = text;
	if (!text || finding_add(&run->unmet, &run->n_unmet, &f, NULL) < 0)
		run->out_of_memory = true;
	return 0;
}

int run_check_blockers(const struct ckpt_run *run, struct ckpt_error *err)
{
	size_t n = run->result->n_blockers;

	if (run->out_of_memory)
		return fail_nomem(err);
	if (!n)
		return 0;
	return ckpt_fail_as(err, CKPT_EXIT_REFUSED, ECANCELED, "refused: %zu blocker%s", n,
			    n == 1 ? "" : "s");
}

/* Of several reasons, the one that no other setting can mend decides the exit class. */
static enum ckpt_exit gravest(const struct ckpt_finding *list, size_t n)
{
	static const enum ckpt_exit order[] = { CKPT_EXIT_IMAGE, CKPT_EXIT_PRIVILEGE,
						CKPT_EXIT_REFUSED };

	for (size_t k = 0; k < CKPT_ARRAY_SIZE(order); k++)
		for (size_t i = 0; i < n; i++)
			if (list[i].exit == order[k])
				return order[k];
	return list[0].exit ? list[0].exit : CKPT_EXIT_FAILED;
}

int run_check_unmet(struct ckpt_run *run, struct ckpt_error *err)
{
	struct ckpt_result *r = run->result;
	size_t n = run->n_unmet;

	if (run->out_of_memory)
		return fail_nomem(err);
	if (!n)
		return 0;
	for (size_t i = 0; i < n; i++) {
		int ret = finding_add(&r->blockers, &r->n_blockers, &run->unmet[i], err);

		if (ret < 0)
			return ret;
	}
	/* one reason is best said at once */
	if (n == 1)
		return ckpt_fail_as(err, gravest(run->unmet, n), ECANCELED,
				    "cannot be restored: %s: %s", run->unmet[0].plugin,
				    run->unmet[0].reason);
	return ckpt_fail_as(err, gravest(run->unmet, n), ECANCELED,
			    "cannot be restored, for %zu reasons", n);
}
