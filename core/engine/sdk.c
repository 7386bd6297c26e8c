/* SPDX-License-Identifier: MIT */
/* What a step can ask of its run, as long as it is about plugins and not tasks. */
#include <assert.h>
#include <errno.h>
#include <linux/kcmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/engine.h"
#include "engine/run.h"
#include "engine/text.h"

enum ckpt_run_kind ckpt_run_kind(const struct ckpt_run *run)
{
	return run->kind;
}

bool ckpt_plan_only(const struct ckpt_run *run)
{
	return run->plan_only;
}

bool ckpt_is_live(const struct ckpt_run *run)
{
	return run->live;
}

bool ckpt_is_engine(pid_t pid)
{
	const pid_t self = getpid();

	return pid == self || !syscall(SYS_kcmp, pid, self, KCMP_FILES, 0, 0);
}

bool ckpt_kills(const struct ckpt_run *run)
{
	const struct ckpt_dump_args *a = run->arg;

	return run->kind == CKPT_DUMP && !run->live && a && a->after == CKPT_AFTER_KILL;
}

int ckpt_on_release(struct ckpt_run *run, int (*fn)(struct ckpt_run *run, struct ckpt_error *err),
		    struct ckpt_error *err)
{
	struct release_hook *more = realloc(run->hooks, (run->n_hooks + 1) * sizeof(*more));

	if (!more)
		return ckpt_fail(err, ENOMEM, "out of memory");
	run->hooks = more;
	more[run->n_hooks++] = (struct release_hook){ run->current, fn };
	return 0;
}

int run_before_release(struct ckpt_run *run, struct ckpt_error *err)
{
	struct loaded_plugin *caller = run->current;
	int r = 0;

	while (run->n_hooks && r >= 0) {
		const struct release_hook *h = &run->hooks[--run->n_hooks];

		run->current = h->plugin;
		r = h->fn(run, err);
	}
	run->current = caller;
	return r;
}

pid_t ckpt_root_pid(struct ckpt_run *run)
{
	return run->root_pid;
}

void ckpt_state_set(struct ckpt_run *run, void *state)
{
	assert(run->current);
	if (run->current)
		run->states[run->current->index] = state;
}

void *ckpt_state(struct ckpt_run *run)
{
	assert(run->current);
	return run->current ? run->states[run->current->index] : NULL;
}

void *ckpt_state_make(struct ckpt_run *run, size_t size)
{
	void *state = ckpt_state(run);

	if (state)
		return state;
	state = calloc(1, size);
	if (state)
		ckpt_state_set(run, state);
	return state;
}

void ckpt_log(struct ckpt_run *run, enum ckpt_log_level level, const char *fmt, ...)
{
	char prefix[128];
	va_list ap;

	snprintf(prefix, sizeof(prefix), "%s%s: %s%s", run_kind_name(run->kind),
		 run->plan_only ? " plan" : "", run->current ? run->current->name : "",
		 run->current ? ": " : "");
	va_start(ap, fmt);
	engine_vlog(run->ctx, level, prefix, fmt, ap);
	va_end(ap);
}

void ckpt_count(struct ckpt_run *run, const char *name, uint64_t n)
{
	struct ckpt_result *r = run->result;

	for (size_t i = 0; i < r->n_counters; i++)
		if (!strcmp(r->counters[i].name, name)) {
			r->counters[i].value += n;
			return;
		}
	/* a summary may lack a number when memory is out; the run fails elsewhere */
	if (!VEC_ROOM(r->counters, r->n_counters))
		return;
	r->counters[r->n_counters].name = strdup(name);
	r->counters[r->n_counters].value = n;
	if (r->counters[r->n_counters].name)
		r->n_counters++;
}

/* ---- options and features of the calling plugin ---- */

static const struct opt_value *value_of(const struct ckpt_run *run, const char *name)
{
	static const struct opt_value unset;
	int i = run->current ? option_index(run->current, name) : -1;

	assert(i >= 0);
	return i < 0 ? &unset : &run->current->options[i];
}

bool ckpt_opt_bool(struct ckpt_run *run, const char *name)
{
	return value_of(run, name)->number != 0;
}

int64_t ckpt_opt_int(struct ckpt_run *run, const char *name)
{
	return value_of(run, name)->number;
}

const char *ckpt_opt_string(struct ckpt_run *run, const char *name)
{
	return value_of(run, name)->text;
}

size_t ckpt_opt_count(struct ckpt_run *run, const char *name)
{
	return value_of(run, name)->n_items;
}

const char *ckpt_opt_item(struct ckpt_run *run, const char *name, size_t i)
{
	const struct opt_value *v = value_of(run, name);

	return i < v->n_items ? v->items[i] : NULL;
}

bool ckpt_feature_on(struct ckpt_run *run, const char *feature)
{
	int i = run->current ? feature_index(run->current, feature) : -1;

	assert(i >= 0);
	return i >= 0 && run->current->features[i].on;
}

/* ---- extensions ---- */

const struct ckpt_extension *ckpt_extension_at(struct ckpt_run *run, const char *point, size_t i,
					       const char **plugin)
{
	const struct plugin_set *ps = &run->ctx->plugins;

	for (size_t k = 0; k < ps->n_extensions; k++) {
		if (strcmp(ps->extensions[k].ext->point, point) || i--)
			continue;
		if (plugin)
			*plugin = ps->extensions[k].plugin->name;
		return ps->extensions[k].ext;
	}
	return NULL;
}

int ckpt_call_as(struct ckpt_run *run, const char *plugin,
		 int (*fn)(struct ckpt_run *run, void *arg, struct ckpt_error *err), void *arg,
		 struct ckpt_error *err)
{
	struct loaded_plugin *caller = run->current;
	struct loaded_plugin *p = plugins_by_name(&run->ctx->plugins, plugin);
	int r;

	if (!p || !p->on)
		return ckpt_fail(err, ENOENT, "plugin %s is not here or off", plugin);
	run->current = p;
	r = fn(run, arg, err);
	run->current = caller;
	return r;
}

/* ---- records ---- */

int ckpt_record_put(struct ckpt_run *run, uint32_t number, const ProtobufCMessage *msg,
		    struct ckpt_error *err)
{
	struct image_section *sec;

	if (run->kind == CKPT_RESTORE)
		return ckpt_fail(err, EPERM, "a restore puts no records");
	sec = run->current ? image_section_find(&run->store, run->current->name) : NULL;
	if (!sec)
		return ckpt_fail(err, EINVAL, "the calling plugin has no records");
	run->records++;
	return image_put(sec, number, msg, err);
}

size_t ckpt_record_count(struct ckpt_run *run, const char *type)
{
	return image_count(&run->store, type);
}

const void *ckpt_record_at(struct ckpt_run *run, const char *type, size_t i)
{
	return image_at(&run->store, type, i);
}
