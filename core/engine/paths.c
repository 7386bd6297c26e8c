/* SPDX-License-Identifier: MIT */
#include "engine/paths.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ckpt/cleanup.h>

#include "engine/text.h"

/* The directory of the object that this function is linked into, links resolved. */
static char *own_dir(void)
{
	CKPT_AUTO_FREE char *path = NULL;
	Dl_info info;
	char *slash;

	if (!dladdr((const void *)(uintptr_t)&paths_plugins, &info) || !info.dli_fname)
		return NULL;
	path = realpath(info.dli_fname, NULL);
	if (!path)
		return NULL;
	slash = strrchr(path, '/');
	if (!slash)
		return NULL;
	*slash = '\0';
	return ckpt_steal_ptr(&path);
}

static int add(struct paths *p, const char *base, const char *tail, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *path = NULL;
	CKPT_AUTO_FREE char *real = NULL;

	if (!base)
		return 0;
	if (asprintf(&path, "%s%s", base, tail) < 0) {
		path = NULL;
		return fail_nomem(err);
	}
	/* installed, the directory beside the library is the configured one: once is enough */
	real = realpath(path, NULL);
	for (size_t i = 0; real && i < p->n; i++)
		if (!strcmp(p->dir[i], real))
			return 0;
	p->dir[p->n++] = real ? ckpt_steal_ptr(&real) : ckpt_steal_ptr(&path);
	return 0;
}

int paths_plugins(struct paths *p, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *own = own_dir();
	int r;

	*p = (struct paths){ 0 };
	r = add(p, own, "/plugins", err);
	if (!r)
		r = add(p, own, "/ckpt/plugins", err);
	if (!r)
		r = add(p, CKPT_PLUGINDIR, "", err);
	return r;
}

int paths_profiles(struct paths *p, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *own = own_dir();
	int r;

	*p = (struct paths){ 0 };
	r = add(p, CKPT_SYSCONFDIR, "/profiles", err);
	if (!r)
		r = add(p, own, "/conf/profiles", err);
	if (!r)
		r = add(p, CKPT_PROFILEDIR, "", err);
	return r;
}

int paths_config(struct paths *p, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *own = own_dir();
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
