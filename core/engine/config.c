/* SPDX-License-Identifier: MIT */
/* ckpt.conf and profiles: ini files whose lines become settings. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ini.h>

#include <ckpt/cleanup.h>
#include <ckpt/ckpt.h>

#include "engine/engine.h"
#include "engine/paths.h"
#include "engine/text.h"

struct config {
	struct settings *s;
	const char *path, *label;
	enum setting_layer layer;
	FILE *file;
	int line;
	bool long_line, line_open;
	struct ckpt_error *err;
	int result;
};

static const char *const sections[] = { "ckpt", "plugins", "plugin NAME" };

/*
 * inih counts no lines for its handler, but calls it right after the line was
 * read: so this reader counts. It also sees lines that do not fit inih's buffer,
 * which would otherwise be taken for two.
 */
static char *read_line(char *buf, int size, void *stream)
{
	struct config *cf = stream;

	if (!fgets(buf, size, cf->file))
		return NULL;
	if (!cf->line_open)
		cf->line++;
	cf->line_open = !strchr(buf, '\n') && !feof(cf->file);
	if (cf->line_open)
		cf->long_line = true;
	return buf;
}

/* A plugin's line: PLUGIN.KEY=VALUE, as -o takes it. */
static int plugin_line(struct config *cf, const char *plugin, const char *key, const char *value,
		       const char *origin)
{
	CKPT_AUTO_FREE char *assignment = NULL;

	if (asprintf(&assignment, "%s.%s=%s", plugin, key, value) < 0) {
		assignment = NULL;
		return fail_nomem(cf->err);
	}
	return settings_add(cf->s, "option", assignment, origin, cf->layer, cf->err);
}

static int one_line(struct config *cf, const char *section, const char *key, const char *value,
		    const char *origin)
{
	if (!strcmp(section, "ckpt"))
		return settings_add(cf->s, key, value, origin, cf->layer, cf->err);
	if (!strncmp(section, "plugin ", 7))
		return plugin_line(cf, section + 7 + strspn(section + 7, " "), key, value, origin);
	if (strcmp(section, "plugins"))
		return fail_unknown(cf->err, origin, "section", section, sections,
				    CKPT_ARRAY_SIZE(sections));
	if (!strcmp(value, "on"))
		return settings_add(cf->s, "plugin", key, origin, cf->layer, cf->err);
	if (!strcmp(value, "off"))
		return settings_add(cf->s, "no-plugin", key, origin, cf->layer, cf->err);
	return ckpt_fail_as(cf->err, CKPT_EXIT_USAGE, EINVAL,
			    "%s: plugin %s is on or off, not '%s'", origin, key, value);
}

static int on_line(void *user, const char *section, const char *key, const char *value)
{
	struct config *cf = user;
	CKPT_AUTO_FREE char *origin = NULL;

	if (cf->result < 0)
		return 0;
	if (asprintf(&origin, "%s:%d", cf->path, cf->line) < 0) {
		origin = NULL;
		cf->result = fail_nomem(cf->err);
		return 0;
	}
	cf->result = one_line(cf, section, key, value, cf->label ? cf->label : origin);
	/* whoever mends a profile needs the line, too */
	if (cf->result < 0 && cf->label)
		ckpt_wrap(cf->err, "%s", origin);
	return cf->result >= 0;
}

int config_read(struct settings *s, const char *path, enum setting_layer layer, const char *label,
		struct ckpt_error *err)
{
	CKPT_AUTO_FILE FILE *file = fopen(path, "re");
	struct config cf = { s, path, label, layer, file, 0, false, false, err, 0 };
	int bad;

	if (!file) {
		int e = errno;

		ckpt_fail_sys(err, e, "%s", path);
		if (err)
			err->exit = CKPT_EXIT_USAGE;
		return -e;
	}
	bad = ini_parse_stream(read_line, &cf, on_line, &cf);
	if (cf.result < 0)
		return cf.result;
	if (cf.long_line)
		return ckpt_fail_as(err, CKPT_EXIT_USAGE, EINVAL,
				    "%s: a line is too long (lists may go on in an indented line)",
				    path);
	if (bad)
		return ckpt_fail_as(err, CKPT_EXIT_USAGE, EINVAL,
				    "%s:%d: neither a [section] nor a KEY = VALUE", path, bad);
	return ferror(file) ? ckpt_fail_sys(err, EIO, "%s: read", path) : 0;
}

/* Where a user may not look nothing is kept for him. */
static bool is_absent(int e)
{
	return e == ENOENT || e == ENOTDIR || e == EACCES;
}

static char *profile_file(const char *dir, const char *name)
{
	char *path;

	return asprintf(&path, "%s/%s.conf", dir, name) < 0 ? NULL : path;
}

/* Names of the profiles in a directory, for the error that suggests one. */
static int add_profile_names(const char *dir, char ***names, size_t *n, struct ckpt_error *err)
{
	CKPT_AUTO_DIR DIR *d = opendir(dir);
	struct dirent *e;

	while (d && (e = readdir(d))) {
		size_t len = strlen(e->d_name);

		if (len < 6 || strcmp(e->d_name + len - 5, ".conf"))
			continue;
		if (!VEC_ROOM(*names, *n) || !((*names)[*n] = strndup(e->d_name, len - 5)))
			return fail_nomem(err);
		++*n;
	}
	return 0;
}

static int no_profile(const struct paths *dirs, const struct setting *chosen,
		      struct ckpt_error *err)
{
	char **names = NULL;
	size_t n = 0;
	int r = 0;

	for (size_t i = 0; !r && i < dirs->n; i++)
		r = add_profile_names(dirs->dir[i], &names, &n, err);
	if (!r)
		r = fail_unknown(err, chosen->origin, "profile", chosen->value,
				 (const char *const *)names, n);
	for (size_t i = 0; i < n; i++)
		free(names[i]);
	free(names);
	return r;
}

static int read_profile(struct settings *s, const struct paths *dirs, const struct setting *chosen,
			struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *label = NULL;

	if (asprintf(&label, "profile %s", chosen->value) < 0) {
		label = NULL;
		return fail_nomem(err);
	}
	for (size_t i = 0; i < dirs->n; i++) {
		CKPT_AUTO_FREE char *path = profile_file(dirs->dir[i], chosen->value);

		if (!path)
			return fail_nomem(err);
		if (access(path, F_OK) == 0)
			return config_read(s, path, LAYER_PROFILE, label, err);
		if (!is_absent(errno))
			return ckpt_fail_sys(err, errno, "%s", path);
	}
	return no_profile(dirs, chosen, err);
}

int config_profile(struct settings *s, struct ckpt_error *err)
{
	const struct setting *chosen = settings_last(s, SET_PROFILE);
	struct setting own;
	struct paths dirs;
	int r;

	if (!chosen)
		return 0;
	/* the list moves while the profile is added to it; the strings stay */
	own = *chosen;
	r = paths_profiles(&dirs, s, err);
	if (!r)
		r = read_profile(s, &dirs, &own, err);
	paths_free(&dirs);
	return r;
}

/* The first default ckpt.conf that exists; none is fine. */
static int read_default(struct settings *s, struct ckpt_error *err)
{
	struct paths files;
	int r = paths_config(&files, s, err);

	for (size_t i = 0; !r && i < files.n; i++) {
		if (access(files.dir[i], F_OK) == 0)
			r = config_read(s, files.dir[i], LAYER_CONFIG, NULL, err);
		else if (is_absent(errno))
			continue;
		else
			r = ckpt_fail_sys(err, errno, "%s", files.dir[i]);
		break;
	}
	paths_free(&files);
	return r;
}

int ckpt_read_config(struct ckpt *c, const char *path, struct ckpt_error *err)
{
	if (c->loaded)
		return ckpt_fail(err, EBUSY, "settings count only before ckpt_load()");
	return path ? config_read(&c->settings, path, LAYER_CONFIG, NULL, err)
		    : read_default(&c->settings, err);
}
