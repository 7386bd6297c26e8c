/* SPDX-License-Identifier: MIT */
/* The context's life, its log. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/run.h"
#include "engine/text.h"

static const enum ckpt_run_kind kinds[N_GRAPHS] = {
	[GRAPH_DUMP] = CKPT_DUMP,
	[GRAPH_RESTORE] = CKPT_RESTORE,
	[GRAPH_VERIFY] = CKPT_VERIFY,
};

const char *run_kind_name(enum ckpt_run_kind kind)
{
	if (kind == CKPT_DUMP)
		return "dump";
	return kind == CKPT_RESTORE ? "restore" : "verify";
}

int ckpt_new(struct ckpt **out, ckpt_log_fn log, void *arg, struct ckpt_error *err)
{
	struct ckpt *c = calloc(1, sizeof(*c));

	if (!c)
		return fail_nomem(err);
	c->log = log;
	c->log_arg = arg;
	*out = c;
	return 0;
}

void ckpt_free(struct ckpt *c)
{
	if (!c)
		return;
	for (size_t i = 0; i < N_GRAPHS; i++)
		graph_free(&c->graphs[i]);
	plugins_free(&c->plugins);
	settings_free(&c->settings);
	free(c);
}

void ckpt_set_log_level(struct ckpt *c, enum ckpt_log_level level)
{
	c->log_level = level;
}

void ckpt_cancel(struct ckpt *c)
{
	c->cancelled = 1;
}

void ckpt_on_hang(struct ckpt *c, ckpt_hang_fn fn, void *arg)
{
	c->hang = fn;
	c->hang_arg = arg;
}

void engine_vlog(const struct ckpt *c, enum ckpt_log_level level, const char *prefix,
		 const char *fmt, va_list ap)
{
	char line[2048];
	int n;

	if (!c->log || level > c->log_level)
		return;
	n = snprintf(line, sizeof(line), "%s", prefix);
	if (n < 0 || (size_t)n >= sizeof(line))
		n = 0;
	vsnprintf(line + n, sizeof(line) - (size_t)n, fmt, ap);
	c->log(c->log_arg, level, line);
}

void engine_log(const struct ckpt *c, enum ckpt_log_level level, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	engine_vlog(c, level, "", fmt, ap);
	va_end(ap);
}

bool run_logs(const struct ckpt_run *run, enum ckpt_log_level level)
{
	return run->ctx->log && level <= run->ctx->log_level;
}

static void log_plugins(const struct ckpt *c)
{
	for (size_t i = 0; i < c->plugins.n; i++) {
		const struct loaded_plugin *p = c->plugins.list[i];

		engine_log(c, CKPT_LOG_DEBUG, "plugin %s %s from %s: %s (%s)", p->name,
			   p->desc.version, p->path, p->on ? "on" : "off", p->origin);
	}
	for (size_t i = 0; i < c->plugins.n_rejected; i++) {
		const struct rejected_plugin *r = &c->plugins.rejected[i];

		engine_log(c, r->masked ? CKPT_LOG_DEBUG : CKPT_LOG_WARN,
			   "plugin %s not loaded: %s: %s", r->name, r->path, r->why);
	}
}

int ckpt_load(struct ckpt *c, struct ckpt_error *err)
{
	int r;

	if (c->loaded)
		return ckpt_fail(err, EBUSY, "ckpt_load() was called already");
	c->loaded = true;
	r = config_profile(&c->settings, err);
	if (!r)
		r = plugins_find(&c->plugins, &c->settings, err);
	if (!r)
		log_plugins(c);
	if (!r)
		r = plugins_apply(&c->plugins, &c->settings, err);
	for (size_t i = 0; !r && i < N_GRAPHS; i++) {
		struct ckpt_error *e = &c->graph_errors[i];

		/* `ckpt plugins` must work to find out why a graph has no order */
		if (graph_build(&c->graphs[i], kinds[i], &c->plugins, e) == -ENOMEM)
			r = fail_nomem(err);
	}
	return r;
}

int engine_need_loaded(const struct ckpt *c, struct ckpt_error *err)
{
	return c->loaded ? 0 : ckpt_fail(err, EINVAL, "ckpt_load() was not called");
}

int engine_need_complete(const struct ckpt *c, struct ckpt_error *err)
{
	int r = engine_need_loaded(c, err);

	return r < 0 ? r : plugins_complete(&c->plugins, err);
}

int engine_graph(struct ckpt *c, enum ckpt_run_kind kind, const struct graph **out,
		 struct ckpt_error *err)
{
	int r = engine_need_loaded(c, err);

	for (size_t i = 0; !r && i < N_GRAPHS; i++) {
		if (kinds[i] != kind)
			continue;
		*out = &c->graphs[i];
		if (!c->graph_errors[i].err)
			return 0;
		if (err)
			*err = c->graph_errors[i];
		return -c->graph_errors[i].err;
	}
	return r < 0 ? r : ckpt_fail(err, EINVAL, "no such kind of run");
}
