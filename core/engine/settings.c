/* SPDX-License-Identifier: MIT */
#include "engine/settings.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <ckpt/cleanup.h>
#include <ckpt/ckpt.h>

#include "engine/engine.h"
#include "engine/text.h"

enum value_check { ANY, NAME, DOTTED, NAME_OR_DOTTED, ASSIGNMENT, PATH, COUNT, YES_NO };

/*
 * `words`: in a file the value is a list, each word a setting of its own.
 * `in_profile`: a profile says what is saved, not how it is reported.
 */
static const struct setting_key {
	const char *name;
	enum value_check check;
	bool words, in_file, in_profile;
	const char *wanted;
} keys[] = {
	[SET_PLUGIN] = { "plugin", NAME, true, true, true, "the name of a plugin" },
	[SET_NO_PLUGIN] = { "no-plugin", NAME, true, true, true, "the name of a plugin" },
	[SET_WITHOUT] = { "without", DOTTED, true, true, true, "PLUGIN.FEATURE" },
	[SET_ALLOW_LOSS] = { "allow-loss", NAME_OR_DOTTED, true, true, true,
			     "PLUGIN, PLUGIN.FEATURE or none" },
	[SET_OPTION] = { "option", ASSIGNMENT, false, true, true, "PLUGIN.KEY=VALUE" },
	[SET_PLUGIN_PATH] = { "plugin-path", ANY, false, true, false, "a directory" },
	[SET_PROFILE] = { "profile", NAME, false, true, false, "the name of a profile" },
	[SET_LAYER] = { "layer", PATH, true, true, true, "the path of a directory, from the root" },
	[SET_UPPER] = { "upper", PATH, false, true, true,
			"the path of a directory, from the root" },
	[SET_SHARED] = { "shared", PATH, true, true, true, "a path, from the root" },
	[SET_INDEX_FILE] = { "index-file", PATH, false, true, true,
			     "the path of a file, from the root" },
	[SET_HOST_SUFFIX] = { "host-suffix", ANY, false, true, true, "some characters" },
	[SET_VERBOSE] = { "verbose", COUNT, false, true, false, "0 to 3" },
	[SET_LOG_FILE] = { "log-file", ANY, false, true, false, "a file" },
	[SET_JSON] = { "json", YES_NO, false, true, false, "yes or no" },
};

const char *setting_name(enum setting_id id)
{
	return keys[id].name;
}

/* Is "PLUGIN.NAME" (followed by nothing) at s, up to len? */
static bool is_dotted(const char *s, size_t len)
{
	CKPT_AUTO_FREE char *copy = strndup(s, len);
	char *dot = copy ? strchr(copy, '.') : NULL;

	if (!dot)
		return false;
	*dot = '\0';
	return text_is_name(copy) && text_is_name(dot + 1);
}

static bool value_ok(enum value_check check, const char *v)
{
	const char *eq;

	switch (check) {
	case ANY:
		return *v != '\0';
	case NAME:
		return text_is_name(v);
	case DOTTED:
		return is_dotted(v, strlen(v));
	case NAME_OR_DOTTED:
		return text_is_name(v) || is_dotted(v, strlen(v));
	case ASSIGNMENT:
		eq = strchr(v, '=');
		return eq && is_dotted(v, (size_t)(eq - v));
	case PATH:
		return *v == '/';
	case COUNT:
		return *v >= '0' && *v <= '3' && !v[1];
	case YES_NO:
		return !strcmp(v, "yes") || !strcmp(v, "no");
	}
	return false;
}

/* Insert behind the last setting of the same or an earlier layer. */
static int insert(struct settings *s, enum setting_id id, const char *value, const char *origin,
		  enum setting_layer layer, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *v = strdup(value);
	CKPT_AUTO_FREE char *o = strdup(origin);
	size_t at = s->n;

	if (!v || !o || !VEC_ROOM(s->list, s->n))
		return fail_nomem(err);
	while (at && s->list[at - 1].layer > layer)
		at--;
	memmove(s->list + at + 1, s->list + at, (s->n - at) * sizeof(*s->list));
	s->list[at] = (struct setting){ id, layer, ckpt_steal_ptr(&v), ckpt_steal_ptr(&o) };
	s->n++;
	return 0;
}

static int find_key(const char *key, const char *origin, enum setting_layer layer,
		    enum setting_id *id, struct ckpt_error *err)
{
	const char *names[CKPT_ARRAY_SIZE(keys)];
	size_t n = 0;

	for (size_t i = 0; i < CKPT_ARRAY_SIZE(keys); i++) {
		bool here = layer == LAYER_EXPLICIT ||
			    (layer == LAYER_PROFILE ? keys[i].in_profile : keys[i].in_file);

		if (here && !strcmp(keys[i].name, key)) {
			*id = (enum setting_id)i;
			return 0;
		}
		if (here)
			names[n++] = keys[i].name;
	}
	return fail_unknown(err, origin, layer == LAYER_PROFILE ? "profile setting" : "setting",
			    key, names, n);
}

struct adding {
	struct settings *s;
	enum setting_id id;
	const char *origin;
	enum setting_layer layer;
};

static int add_one(void *arg, const char *value, struct ckpt_error *err)
{
	const struct adding *a = arg;

	if (!value_ok(keys[a->id].check, value))
		return ckpt_fail_as(err, CKPT_EXIT_USAGE, EINVAL, "%s: %s wants %s, not '%s'",
				    a->origin, keys[a->id].name, keys[a->id].wanted, value);
	return insert(a->s, a->id, value, a->origin, a->layer, err);
}

int settings_add(struct settings *s, const char *key, const char *value, const char *origin,
		 enum setting_layer layer, struct ckpt_error *err)
{
	struct adding a = { s, SET_PLUGIN, origin, layer };
	int r = find_key(key, origin, layer, &a.id, err);

	if (r < 0)
		return r;
	if (keys[a.id].words && layer != LAYER_EXPLICIT)
		return text_each_word(value, add_one, &a, err);
	return add_one(&a, value, err);
}

const struct setting *settings_last(const struct settings *s, enum setting_id id)
{
	for (size_t i = s->n; i; i--)
		if (s->list[i - 1].id == id)
			return &s->list[i - 1];
	return NULL;
}

void settings_free(struct settings *s)
{
	for (size_t i = 0; i < s->n; i++) {
		free(s->list[i].value);
		free(s->list[i].origin);
	}
	free(s->list);
	free(s->own_dir);
	*s = (struct settings){ 0 };
}

int ckpt_set(struct ckpt *c, const char *key, const char *value, const char *origin,
	     struct ckpt_error *err)
{
	if (c->loaded)
		return ckpt_fail(err, EBUSY, "settings count only before ckpt_load()");
	return settings_add(&c->settings, key, value, origin, LAYER_EXPLICIT, err);
}

const char *ckpt_setting(const struct ckpt *c, const char *key)
{
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(keys); i++) {
		const struct setting *s;

		if (strcmp(keys[i].name, key))
			continue;
		s = settings_last(&c->settings, (enum setting_id)i);
		return s ? s->value : NULL;
	}
	return NULL;
}

int ckpt_use_profile(struct ckpt *c, const char *name, struct ckpt_error *err)
{
	return ckpt_set(c, "profile", name, "command line", err);
}

const char *ckpt_nearest(const char *word, const char *const *names, size_t n)
{
	return text_nearest(word, names, n);
}
