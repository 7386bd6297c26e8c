/* SPDX-License-Identifier: MIT */
/* Finding and loading plugins. */
#include "engine/loader.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <ckpt/cleanup.h>

#include "engine/paths.h"
#include "engine/text.h"

#define STRING_(x) #x
#define STRING(x)  STRING_(x)

static void plugin_free(struct loaded_plugin *p)
{
	for (size_t i = 0; p->options && p->desc.options[i].name; i++)
		option_clear(&p->options[i]);
	for (size_t i = 0; p->features && p->desc.features[i].name; i++)
		free(p->features[i].origin);
	free(p->options);
	free(p->features);
	free(p->origin);
	free(p->name);
	free(p->path);
	if (p->handle)
		dlclose(p->handle);
	free(p);
}

void plugins_free(struct plugin_set *ps)
{
	for (size_t i = 0; i < ps->n; i++)
		plugin_free(ps->list[i]);
	for (size_t i = 0; i < ps->n_rejected; i++) {
		free(ps->rejected[i].name);
		free(ps->rejected[i].path);
		free(ps->rejected[i].why);
	}
	for (size_t i = 0; i < ps->n_losses; i++) {
		free(ps->losses[i].plugin);
		free(ps->losses[i].feature);
		free(ps->losses[i].origin);
	}
	free(ps->list);
	free(ps->rejected);
	free(ps->extensions);
	free(ps->losses);
	free(ps->no_loss);
	*ps = (struct plugin_set){ 0 };
}

struct loaded_plugin *plugins_by_name(const struct plugin_set *ps, const char *name)
{
	for (size_t i = 0; i < ps->n; i++)
		if (!strcmp(ps->list[i]->name, name))
			return ps->list[i];
	return NULL;
}

static const struct rejected_plugin *rejected_by_name(const struct plugin_set *ps, const char *name)
{
	for (size_t i = 0; i < ps->n_rejected; i++)
		if (!strcmp(ps->rejected[i].name, name))
			return &ps->rejected[i];
	return NULL;
}

int plugins_unknown(const struct plugin_set *ps, const char *name, const char *origin,
		    struct ckpt_error *err)
{
	const struct rejected_plugin *rej = rejected_by_name(ps, name);
	CKPT_AUTO_FREE const char **names = calloc(ps->n + 1, sizeof(*names));

	if (rej)
		return ckpt_fail_as(err, CKPT_EXIT_USAGE, EINVAL,
				    "%s: plugin '%s' (%s) cannot be used: %s", origin, name,
				    rej->path, rej->why);
	if (!names)
		return fail_nomem(err);
	for (size_t i = 0; i < ps->n; i++)
		names[i] = ps->list[i]->name;
	return fail_unknown(err, origin, "plugin", name, names, ps->n);
}

static int reject(struct plugin_set *ps, const char *name, const char *path, const char *why,
		  bool masked, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *n = strdup(name);
	CKPT_AUTO_FREE char *p = strdup(path);
	CKPT_AUTO_FREE char *w = strdup(why);

	if (!n || !p || !w || !VEC_ROOM(ps->rejected, ps->n_rejected))
		return fail_nomem(err);
	ps->rejected[ps->n_rejected++] =
		(struct rejected_plugin){ ckpt_steal_ptr(&n), ckpt_steal_ptr(&p),
					  ckpt_steal_ptr(&w), masked };
	return 0;
}

static int make_tables(struct loaded_plugin *p, struct ckpt_error *err)
{
	size_t n_options = 0, n_features = 0;

	while (p->desc.options && p->desc.options[n_options].name)
		n_options++;
	while (p->desc.features && p->desc.features[n_features].name)
		n_features++;
	if (n_options)
		p->options = calloc(n_options, sizeof(*p->options));
	if (n_features)
		p->features = calloc(n_features, sizeof(*p->features));
	if ((n_options && !p->options) || (n_features && !p->features))
		return fail_nomem(err);
	for (size_t i = 0; i < n_options; i++) {
		const struct ckpt_option *o = &p->desc.options[i];
		int r = o->def ? option_set(o, &p->options[i], o->def, "default", err) : 0;

		if (r < 0)
			return r;
	}
	for (size_t i = 0; i < n_features; i++) {
		p->features[i].on = true;
		p->features[i].origin = strdup("default");
		if (!p->features[i].origin)
			return fail_nomem(err);
	}
	return 0;
}

static int insert_sorted(struct plugin_set *ps, struct loaded_plugin *p, struct ckpt_error *err)
{
	size_t at = ps->n;

	if (!VEC_ROOM(ps->list, ps->n))
		return fail_nomem(err);
	for (; at && strcmp(ps->list[at - 1]->name, p->name) > 0; at--)
		ps->list[at] = ps->list[at - 1];
	ps->list[at] = p;
	ps->n++;
	for (size_t i = 0; i < ps->n; i++)
		ps->list[i]->index = i;
	return 0;
}

int plugins_add(struct plugin_set *ps, const char *name, const char *path, void *handle,
		const struct ckpt_plugin *desc, struct ckpt_error *err)
{
	struct loaded_plugin *p;
	int r = descriptor_check(desc, name, err);

	if (r < 0)
		return r;
	p = calloc(1, sizeof(*p));
	if (!p)
		return fail_nomem(err);
	memcpy(&p->desc, desc, desc->size);
	p->name = strdup(name);
	p->path = strdup(path);
	p->on = true;
	p->origin = strdup("default");
	r = p->name && p->path && p->origin ? make_tables(p, err) : fail_nomem(err);
	if (!r)
		r = insert_sorted(ps, p, err);
	if (r < 0) {
		plugin_free(p);
		return r;
	}
	/* only now: on failure the caller still owns it */
	p->handle = handle;
	return 0;
}

/* A directory that is searched. */
struct search {
	const char *dir;
	int bad; /* what is wrong with it, for each file in it: 0 or a negative errno */
	struct ckpt_error why;
};

/* Whoever may write the file, or swap it, would run as root through us. */
static int check_owner(const char *path, const struct stat *st, const char *what,
		       struct ckpt_error *err)
{
	if (st->st_uid != 0)
		return ckpt_fail(err, EPERM, "%s %s belongs to uid %u, and ckpt runs as root", what,
				 path, st->st_uid);
	if (st->st_mode & (S_IWGRP | S_IWOTH))
		return ckpt_fail(err, EPERM,
				 "%s %s is writable by others (mode %03o), and ckpt runs as root",
				 what, path, st->st_mode & 0777);
	return 0;
}

static int check_directory(const char *dir, struct ckpt_error *err)
{
	struct stat st;

	if (geteuid() != 0)
		return 0;
	if (stat(dir, &st) < 0)
		return ckpt_fail_sys(err, errno, "%s", dir);
	return check_owner(dir, &st, "the directory", err);
}

/* Of a file that is no link the directory is the one that is searched. */
static int check_file(const struct search *in, const char *path, bool link, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *real = link ? realpath(path, NULL) : strdup(path);
	struct stat st;
	int r;

	if (!real || stat(real, &st) < 0)
		return ckpt_fail_sys(err, errno, "%s", path);
	if (!S_ISREG(st.st_mode))
		return ckpt_fail(err, EINVAL, "it is no regular file");
	r = geteuid() ? 0 : check_owner(real, &st, "the file", err);
	if (r < 0)
		return r;
	if (link) {
		*strrchr(real, '/') = '\0';
		return check_directory(*real ? real : "/", err);
	}
	if (in->bad)
		*err = in->why;
	return in->bad;
}

static int load_file(struct plugin_set *ps, const char *name, const char *path,
		     struct ckpt_error *err)
{
	const struct ckpt_plugin *desc;
	ckpt_plugin_entry_fn entry;
	void *handle;
	int r;

	/* it stays mapped: taking apart a page table at the end costs as much as loading did */
	handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (!handle)
		return ckpt_fail(err, EINVAL, "%s", dlerror());
	entry = (ckpt_plugin_entry_fn)(uintptr_t)dlsym(handle, STRING(CKPT_PLUGIN_ENTRY));
	desc = entry ? entry() : NULL;
	if (!entry)
		r = ckpt_fail(err, EINVAL,
			      "it does not export %s(): no plugin, or one of another ckpt",
			      STRING(CKPT_PLUGIN_ENTRY));
	else if (!desc)
		r = ckpt_fail(err, EINVAL, "%s() returned no descriptor",
			      STRING(CKPT_PLUGIN_ENTRY));
	else
		r = plugins_add(ps, name, path, handle, desc, err);
	if (r < 0)
		dlclose(handle);
	return r;
}

/* What a plugin's file is: 1 a link, 0 none, MASKED a link to /dev/null. */
enum { MASKED = 2 };

static int link_kind(const struct dirent *file, const char *path)
{
	char target[PATH_MAX];
	ssize_t n = file->d_type == DT_REG ? -1 : readlink(path, target, sizeof(target) - 1);

	return n < 0 ? 0 : n == 9 && !memcmp(target, "/dev/null", 9) ? MASKED : 1;
}

static int add_file(struct plugin_set *ps, const struct search *in, const struct dirent *file,
		    struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *name = strndup(file->d_name + 5, strlen(file->d_name) - 8);
	CKPT_AUTO_FREE char *path = NULL;
	struct ckpt_error why = { 0 };
	char text[sizeof(why.text) + sizeof(why.hint) + 3];
	int link;

	if (!name || asprintf(&path, "%s/%s", in->dir, file->d_name) < 0) {
		path = NULL;
		return fail_nomem(err);
	}
	if (plugins_by_name(ps, name) || rejected_by_name(ps, name))
		return 0;
	link = link_kind(file, path);
	if (link == MASKED)
		return reject(ps, name, path, "masked by a link to /dev/null", true, err);
	if (check_file(in, path, link, &why) == 0 && load_file(ps, name, path, &why) == 0)
		return 0;
	if (why.err == ENOMEM) {
		*err = why;
		return -ENOMEM;
	}
	snprintf(text, sizeof(text), "%s%s%s", why.text, *why.hint ? " - " : "", why.hint);
	return reject(ps, name, path, text, false, err);
}

static int is_plugin_file(const struct dirent *e)
{
	size_t len = strlen(e->d_name);

	return len > 8 && !strncmp(e->d_name, "ckpt-", 5) && !strcmp(e->d_name + len - 3, ".so");
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

int plugins_scan(struct plugin_set *ps, const char *dir, bool must, struct ckpt_error *err)
{
	struct search in = { .dir = dir };
	struct dirent **files = NULL;
	int n = scandir(dir, &files, is_plugin_file, by_name), r = 0;

	if (n < 0) {
		int e = errno;

		if (!must && (e == ENOENT || e == ENOTDIR))
			return 0;
		ckpt_fail_sys(err, e, "plugin path %s", dir);
		if (err)
			err->exit = CKPT_EXIT_USAGE;
		return -e;
	}
	in.bad = check_directory(dir, &in.why);
	for (int i = 0; i < n; i++) {
		if (!r)
			r = add_file(ps, &in, files[i], err);
		free(files[i]);
	}
	free(files);
	return r;
}

int plugins_find(struct plugin_set *ps, struct settings *s, struct ckpt_error *err)
{
	struct paths dirs;
	int r = 0;

	/* what was said last is searched first, as later settings win everywhere */
	for (size_t i = s->n; !r && i; i--)
		if (s->list[i - 1].id == SET_PLUGIN_PATH) {
			r = plugins_scan(ps, s->list[i - 1].value, true, err);
			if (r < 0)
				ckpt_wrap(err, "%s", s->list[i - 1].origin);
		}
	if (r < 0)
		return r;
	r = paths_plugins(&dirs, s, err);
	for (size_t i = 0; !r && i < dirs.n; i++)
		r = plugins_scan(ps, dirs.dir[i], false, err);
	paths_free(&dirs);
	return r;
}
