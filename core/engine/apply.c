/* SPDX-License-Identifier: MIT */
/* Settings meet plugins: names are checked, values parsed, switches thrown. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <ckpt/cleanup.h>

#include "engine/loader.h"
#include "engine/text.h"

int feature_index(const struct loaded_plugin *p, const char *feature)
{
	for (int i = 0; p->desc.features && p->desc.features[i].name; i++)
		if (!strcmp(p->desc.features[i].name, feature))
			return i;
	return -1;
}

int option_index(const struct loaded_plugin *p, const char *option)
{
	for (int i = 0; p->desc.options && p->desc.options[i].name; i++)
		if (!strcmp(p->desc.options[i].name, option))
			return i;
	return -1;
}

static int set_origin(char **where, const char *origin, struct ckpt_error *err)
{
	char *copy = strdup(origin);

	if (!copy)
		return fail_nomem(err);
	free(*where);
	*where = copy;
	return 0;
}

static size_t feature_names(const struct loaded_plugin *p, const char **names)
{
	size_t n = 0;

	for (; p->desc.features && p->desc.features[n].name; n++)
		names[n] = p->desc.features[n].name;
	return n;
}

static size_t option_names(const struct loaded_plugin *p, const char **names)
{
	size_t n = 0;

	for (; p->desc.options && p->desc.options[n].name; n++)
		names[n] = p->desc.options[n].name;
	return n;
}

/* Fail for a name that is in neither of the plugin's tables. */
static int unknown_of(const struct loaded_plugin *p, const char *what, const char *word,
		      size_t (*fill)(const struct loaded_plugin *, const char **), size_t max,
		      const char *origin, struct ckpt_error *err)
{
	CKPT_AUTO_FREE const char **names = calloc(max + 1, sizeof(*names));
	char title[96];

	if (!names)
		return fail_nomem(err);
	snprintf(title, sizeof(title), "%s of plugin %s", what, p->name);
	return fail_unknown(err, origin, title, word, names, fill(p, names));
}

static size_t count_names(const struct loaded_plugin *p, bool options)
{
	size_t n = 0;

	if (options)
		while (p->desc.options && p->desc.options[n].name)
			n++;
	else
		while (p->desc.features && p->desc.features[n].name)
			n++;
	return n;
}

static int unknown_feature(const struct loaded_plugin *p, const char *word, const char *origin,
			   struct ckpt_error *err)
{
	return unknown_of(p, "feature", word, feature_names, count_names(p, false), origin, err);
}

/* Split "PLUGIN.REST" (the syntax was checked by settings.c) and find the plugin. */
static int split(const struct plugin_set *ps, const struct setting *s, char **copy, char **rest,
		 struct loaded_plugin **p, struct ckpt_error *err)
{
	*copy = strdup(s->value);
	if (!*copy)
		return fail_nomem(err);
	*rest = strchr(*copy, '.');
	*(*rest)++ = '\0';
	*p = plugins_by_name(ps, *copy);
	return *p ? 0 : plugins_unknown(ps, *copy, s->origin, err);
}

static bool nearest_plugin(const struct plugin_set *ps, const char *name)
{
	for (size_t i = 0; i < ps->n; i++) {
		const char *one = ps->list[i]->name;

		if (text_nearest(name, &one, 1))
			return true;
	}
	return false;
}

static int apply_plugin(struct plugin_set *ps, const struct setting *s, struct ckpt_error *err)
{
	struct loaded_plugin *p = plugins_by_name(ps, s->value);

	if (p) {
		p->on = s->id == SET_PLUGIN;
		return set_origin(&p->origin, s->origin, err);
	}
	/* switching off what cannot be used anyway is fine */
	for (size_t i = 0; s->id == SET_NO_PLUGIN && i < ps->n_rejected; i++)
		if (!strcmp(ps->rejected[i].name, s->value))
			return 0;
	if (s->id == SET_NO_PLUGIN || s->layer == LAYER_EXPLICIT || nearest_plugin(ps, s->value))
		return plugins_unknown(ps, s->value, s->origin, err);
	/* `ckpt plugins` must work to find out why */
	if (!ps->missing.err) {
		plugins_unknown(ps, s->value, s->origin, &ps->missing);
		ps->missing.exit = CKPT_EXIT_REFUSED;
	}
	return ps->missing.err == ENOMEM ? fail_nomem(err) : 0;
}

static int apply_without(struct plugin_set *ps, const struct setting *s, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *copy = NULL;
	struct loaded_plugin *p;
	char *feature = NULL;
	int r = split(ps, s, &copy, &feature, &p, err);
	int i;

	if (r < 0)
		return r;
	i = feature_index(p, feature);
	if (i < 0)
		return unknown_feature(p, feature, s->origin, err);
	p->features[i].on = false;
	return set_origin(&p->features[i].origin, s->origin, err);
}

static int apply_option(struct plugin_set *ps, const struct setting *s, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *copy = NULL;
	struct loaded_plugin *p;
	char *key = NULL, *value;
	int r = split(ps, s, &copy, &key, &p, err);
	int i;

	if (r < 0)
		return r;
	value = strchr(key, '=');
	*value++ = '\0';
	i = option_index(p, key);
	if (i < 0)
		return unknown_of(p, "option", key, option_names, count_names(p, true), s->origin,
				  err);
	r = option_set(&p->desc.options[i], &p->options[i], value, s->origin, err);
	return r < 0 ? ckpt_wrap(err, "%s: %s", s->origin, p->name) : 0;
}

static int apply_loss(struct plugin_set *ps, const struct setting *s, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *plugin = strdup(s->value);
	CKPT_AUTO_FREE char *feature = NULL;
	CKPT_AUTO_FREE char *origin = strdup(s->origin);
	char *dot;

	if (!plugin || !origin || !VEC_ROOM(ps->losses, ps->n_losses))
		return fail_nomem(err);
	dot = strchr(plugin, '.');
	if (dot) {
		*dot = '\0';
		feature = strdup(dot + 1);
		if (!feature)
			return fail_nomem(err);
	}
	ps->losses[ps->n_losses++] =
		(struct loss_word){ ckpt_steal_ptr(&plugin), ckpt_steal_ptr(&feature),
				    ckpt_steal_ptr(&origin) };
	return 0;
}

/*
 * "none" wins over every other word. One on the command line (or from another
 * caller) beside it is a contradiction that somebody must see.
 */
static int apply_losses(struct plugin_set *ps, const struct settings *s, struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; !r && i < s->n; i++)
		if (s->list[i].id == SET_ALLOW_LOSS && !strcmp(s->list[i].value, "none"))
			r = set_origin(&ps->no_loss, s->list[i].origin, err);
	for (size_t i = 0; !r && i < s->n; i++) {
		const struct setting *l = &s->list[i];

		if (l->id != SET_ALLOW_LOSS || !strcmp(l->value, "none"))
			continue;
		if (!ps->no_loss) {
			r = apply_loss(ps, l, err);
		} else if (l->layer == LAYER_EXPLICIT) {
			r = ckpt_fail_as(err, CKPT_EXIT_USAGE, EINVAL,
					 "%s: allow-loss %s contradicts 'allow-loss = none' (%s)",
					 l->origin, l->value, ps->no_loss);
			ckpt_hint(err, "choose another profile, or accept no loss");
		}
	}
	return r;
}

static int by_plugin_and_name(const void *a, const void *b)
{
	const struct plugin_extension *x = a, *y = b;
	int d = strcmp(x->plugin->name, y->plugin->name);

	if (!d)
		d = strcmp(x->ext->point, y->ext->point);
	return d ? d : strcmp(x->ext->name, y->ext->name);
}

static int add_extension(struct plugin_set *ps, struct loaded_plugin *p,
			 const struct ckpt_extension *e, struct ckpt_error *err)
{
	for (size_t i = 0; i < ps->n_extensions; i++) {
		const struct plugin_extension *o = &ps->extensions[i];

		if (strcmp(o->ext->point, e->point) || strcmp(o->ext->name, e->name))
			continue;
		ckpt_fail_as(err, CKPT_EXIT_USAGE, EEXIST,
			     "plugins %s (%s) and %s (%s) both handle %s '%s'", o->plugin->name,
			     o->plugin->path, p->name, p->path, e->point, e->name);
		return ckpt_hint(err, "switch one of them off: --no-plugin %s", p->name);
	}
	if (!VEC_ROOM(ps->extensions, ps->n_extensions))
		return fail_nomem(err);
	ps->extensions[ps->n_extensions++] = (struct plugin_extension){ e, p };
	return 0;
}

static int collect_extensions(struct plugin_set *ps, struct ckpt_error *err)
{
	for (size_t i = 0; i < ps->n; i++) {
		struct loaded_plugin *p = ps->list[i];

		for (const struct ckpt_extension *e = p->desc.extensions; p->on && e && e->point;
		     e++) {
			int r = add_extension(ps, p, e, err);

			if (r < 0)
				return r;
		}
	}
	if (ps->n_extensions)
		qsort(ps->extensions, ps->n_extensions, sizeof(*ps->extensions),
		      by_plugin_and_name);
	return 0;
}

int plugins_apply(struct plugin_set *ps, const struct settings *s, struct ckpt_error *err)
{
	static int (*const apply[])(struct plugin_set *, const struct setting *,
				    struct ckpt_error *) = {
		[SET_PLUGIN] = apply_plugin,
		[SET_NO_PLUGIN] = apply_plugin,
		[SET_WITHOUT] = apply_without,
		[SET_OPTION] = apply_option,
	};
	int r;

	for (size_t i = 0; i < s->n; i++) {
		enum setting_id id = s->list[i].id;

		if ((size_t)id >= CKPT_ARRAY_SIZE(apply) || !apply[id])
			continue;
		r = apply[id](ps, &s->list[i], err);
		if (r < 0)
			return r;
	}
	r = apply_losses(ps, s, err);
	return r < 0 ? r : collect_extensions(ps, err);
}

/*
 * A plugin may name a blocker with a word that is not in its feature table, so
 * only a word close to one of the table's is taken as misspelt.
 */
static int check_loss_feature(const struct loaded_plugin *p, const struct loss_word *w,
			      struct ckpt_error *err)
{
	CKPT_AUTO_FREE const char **names = calloc(count_names(p, false) + 1, sizeof(*names));

	if (!names)
		return fail_nomem(err);
	if (feature_index(p, w->feature) >= 0 ||
	    !text_nearest(w->feature, names, feature_names(p, names)))
		return 0;
	return unknown_feature(p, w->feature, w->origin, err);
}

int plugins_check_losses(const struct plugin_set *ps, bool (*known)(void *arg, const char *name),
			 void *arg, struct ckpt_error *err)
{
	for (size_t i = 0; i < ps->n_losses; i++) {
		const struct loss_word *w = &ps->losses[i];
		const struct loaded_plugin *p = plugins_by_name(ps, w->plugin);
		int r = 0;

		if (p && w->feature)
			r = check_loss_feature(p, w, err);
		else if (!p && !(known && known(arg, w->plugin)))
			r = plugins_unknown(ps, w->plugin, w->origin, err);
		if (r < 0)
			return r;
	}
	return 0;
}

bool plugins_loss_allowed(const struct plugin_set *ps, const char *plugin, const char *feature)
{
	for (size_t i = 0; i < ps->n_losses; i++) {
		const struct loss_word *w = &ps->losses[i];

		if (strcmp(w->plugin, plugin))
			continue;
		if (!w->feature || (feature && !strcmp(w->feature, feature)))
			return true;
	}
	return false;
}

int plugins_complete(const struct plugin_set *ps, struct ckpt_error *err)
{
	if (ps->missing.err && err)
		*err = ps->missing;
	return -ps->missing.err;
}
