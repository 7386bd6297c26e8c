/* SPDX-License-Identifier: MIT */
/* Plugins: found, judged, loaded, and set up as the settings say. */
#ifndef CKPT_ENGINE_LOADER_H
#define CKPT_ENGINE_LOADER_H

#include <ckpt/plugin.h>

#include "engine/option.h"
#include "engine/settings.h"

struct loaded_feature {
	bool on;
	char *origin;
};

struct loaded_plugin {
	char *name, *path;
	void *handle;		 /* dlopen; NULL for a descriptor given in process */
	struct ckpt_plugin desc; /* ours: fields that an older plugin lacks are NULL */
	size_t index;		 /* into plugin_set.list, and the run's states */
	bool on;
	char *origin;			 /* who says so */
	struct opt_value *options;	 /* as desc.options */
	struct loaded_feature *features; /* as desc.features */
};

/* A file that is no plugin of ours, or must not be one. */
struct rejected_plugin {
	char *name, *path, *why;
	bool masked; /* a link to /dev/null: wanted so */
};

struct plugin_extension {
	const struct ckpt_extension *ext;
	struct loaded_plugin *plugin;
};

struct loss_word {
	char *plugin, *feature; /* feature NULL: all of the plugin */
	char *origin;
};

struct plugin_set {
	struct loaded_plugin **list; /* by name */
	size_t n;
	struct rejected_plugin *rejected;
	size_t n_rejected;
	struct plugin_extension *extensions; /* by plugin, then name; of plugins that are on */
	size_t n_extensions;
	struct loss_word *losses;
	size_t n_losses;
	char *no_loss; /* who forbids every loss, or NULL */
	/* A plugin that a file demands and that is not here: an error only for runs. */
	struct ckpt_error missing;
};

void plugins_free(struct plugin_set *ps);

/* Search the directories of the settings and the default ones. */
int plugins_find(struct plugin_set *ps, struct settings *s, struct ckpt_error *err);

/* Search one directory; `must` if it was asked for by name. */
int plugins_scan(struct plugin_set *ps, const char *dir, bool must, struct ckpt_error *err);

/*
 * Judge a descriptor and add a plugin of it. `path` is for messages. `*reject`
 * tells a plugin that is not fit (-EINVAL, why in err) from a failure.
 */
int plugins_add(struct plugin_set *ps, const char *name, const char *path, void *handle,
		const struct ckpt_plugin *desc, struct ckpt_error *err);

struct loaded_plugin *plugins_by_name(const struct plugin_set *ps, const char *name);
int feature_index(const struct loaded_plugin *p, const char *feature); /* or -1 */
int option_index(const struct loaded_plugin *p, const char *option);   /* or -1 */

/* Is the descriptor fit for this ckpt? One sentence says why not (loader_check.c). */
int descriptor_check(const struct ckpt_plugin *desc, const char *name, struct ckpt_error *err);

/* Check every setting against the plugins and make it count (apply.c). */
int plugins_apply(struct plugin_set *ps, const struct settings *s, struct ckpt_error *err);

/*
 * Words of --allow-loss may name a plugin that is not here but that wrote the
 * image: `known` says so. Others are misspelt. NULL: nothing else is known.
 */
int plugins_check_losses(const struct plugin_set *ps, bool (*known)(void *arg, const char *name),
			 void *arg, struct ckpt_error *err);

/* For a run: is everything here that the configuration demands? */
int plugins_complete(const struct plugin_set *ps, struct ckpt_error *err);

/* Did the user allow to lose this? feature may be NULL. */
bool plugins_loss_allowed(const struct plugin_set *ps, const char *plugin, const char *feature);

/* Fail: no such plugin, with the nearest name, or with why it was rejected. */
int plugins_unknown(const struct plugin_set *ps, const char *name, const char *origin,
		    struct ckpt_error *err);

#endif
