/* SPDX-License-Identifier: MIT */
#include "engine/paths.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <ckpt/cleanup.h>

#include "engine/settings.h"
#include "engine/text.h"

/* The directory of the object that this function is linked into, links resolved; found out once. */
static const char *own_dir(struct settings *s)
{
	CKPT_AUTO_FREE char *path = NULL;
	Dl_info info;
	char *slash;

	if (s->own_dir)
		return s->own_dir;
	if (!dladdr((const void *)(uintptr_t)&paths_plugins, &info) || !info.dli_fname)
		return NULL;
	path = realpath(info.dli_fname, NULL);
	if (!path)
		return NULL;
	slash = strrchr(path, '/');
	if (!slash)
		return NULL;
	*slash = '\0';
	s->own_dir = ckpt_steal_ptr(&path);
	return s->own_dir;
}

static int add(struct paths *p, const char *base, const char *tail, struct ckpt_error *err)
{
	struct stat *own = &p->is[p->n];
	char *path;

	if (!base)
		return 0;
	if (asprintf(&path, "%s%s", base, tail) < 0)
		return fail_nomem(err);
	/* installed, the directory beside the library is the configured one: once is enough */
	if (stat(path, own))
		*own = (struct stat){ 0 };
	for (size_t i = 0; own->st_ino && i < p->n; i++)
		if (p->is[i].st_dev == own->st_dev && p->is[i].st_ino == own->st_ino) {
			free(path);
			return 0;
		}
	p->dir[p->n++] = path;
	return 0;
}

int paths_plugins(struct paths *p, struct settings *s, struct ckpt_error *err)
{
	const char *own = own_dir(s);
	int r;

	*p = (struct paths){ 0 };
	r = add(p, own, "/plugins", err);
	if (!r)
		r = add(p, own, "/ckpt/plugins", err);
	if (!r)
		r = add(p, CKPT_PLUGINDIR, "", err);
	return r;
}

int paths_profiles(struct paths *p, struct settings *s, struct ckpt_error *err)
{
	const char *own = own_dir(s);
	int r;

	*p = (struct paths){ 0 };
	r = add(p, CKPT_SYSCONFDIR, "/profiles", err);
	if (!r)
		r = add(p, own, "/conf/profiles", err);
	if (!r)
		r = add(p, CKPT_PROFILEDIR, "", err);
	return r;
}

int paths_config(struct paths *p, struct settings *s, struct ckpt_error *err)
{
	const char *own = own_dir(s);
	int r;

	*p = (struct paths){ 0 };
	r = add(p, CKPT_SYSCONFDIR, "/ckpt.conf", err);
	if (!r)
		r = add(p, own, "/conf/ckpt.conf", err);
	return r;
}

void paths_free(struct paths *p)
{
	for (size_t i = 0; i < p->n; i++)
		free(p->dir[i]);
	*p = (struct paths){ 0 };
}
