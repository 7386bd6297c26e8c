/* SPDX-License-Identifier: MIT */
/* Where this libckpt finds its files: in the build tree beside it, or installed. */
#ifndef CKPT_ENGINE_PATHS_H
#define CKPT_ENGINE_PATHS_H

#include <stddef.h>
#include <sys/stat.h>

#include <ckpt/error.h>

enum { PATHS_MAX = 3 };

struct settings;

struct paths {
	char *dir[PATHS_MAX];	   /* in order of searching */
	struct stat is[PATHS_MAX]; /* all zero: none is there */
	size_t n;
};

/* Plugin and profile directories; they need not exist. */
int paths_plugins(struct paths *p, struct settings *s, struct ckpt_error *err);
int paths_profiles(struct paths *p, struct settings *s, struct ckpt_error *err);
/* Candidates for ckpt.conf; the first that exists counts. */
int paths_config(struct paths *p, struct settings *s, struct ckpt_error *err);
void paths_free(struct paths *p);

#endif
