/* SPDX-License-Identifier: MIT */
/*
 * What the user said, as key and value with its origin, not yet checked against
 * plugins. One table of keys serves ckpt_set(), ckpt.conf and profiles.
 */
#ifndef CKPT_ENGINE_SETTINGS_H
#define CKPT_ENGINE_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>

#include <ckpt/error.h>

/* Later layers win over earlier ones; within a layer, later settings do. */
enum setting_layer { LAYER_CONFIG, LAYER_PROFILE, LAYER_EXPLICIT };

enum setting_id {
	SET_PLUGIN,
	SET_NO_PLUGIN,
	SET_WITHOUT,
	SET_ALLOW_LOSS,
	SET_OPTION,
	SET_PLUGIN_PATH,
	SET_PROFILE,
	SET_LAYER,
	SET_UPPER,
	SET_SHARED,
	SET_INDEX_FILE,
	SET_HOST_SUFFIX,
	SET_VERBOSE,
	SET_LOG_FILE,
	SET_JSON,
};

struct setting {
	enum setting_id id;
	enum setting_layer layer;
	char *value, *origin;
};

struct settings {
	struct setting *list; /* in order of counting: by layer, then as given */
	size_t n;
	char *own_dir; /* of libckpt, once somebody has asked (paths.c) */
};

void settings_free(struct settings *s);
int settings_add(struct settings *s, const char *key, const char *value, const char *origin,
		 enum setting_layer layer, struct ckpt_error *err);
/* The setting of this id that counts, or NULL. */
const struct setting *settings_last(const struct settings *s, enum setting_id id);
/* The long option of an id: "allow-loss". */
const char *setting_name(enum setting_id id);

/* Read an ini file into the layer. `label` is the origin, or NULL for FILE:LINE. */
int config_read(struct settings *s, const char *path, enum setting_layer layer, const char *label,
		struct ckpt_error *err);
/* Find the profile that the settings choose, if they do, and read it. */
int config_profile(struct settings *s, struct ckpt_error *err);

#endif
