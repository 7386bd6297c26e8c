/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

#include "engine/upper.h"

static void name(char path[PATH_MAX], const char *dir, unsigned copy)
{
	snprintf(path, PATH_MAX, "%s/%u", dir, copy);
}

int upper_make(const char *dir, unsigned copies, unsigned *made, struct ckpt_error *err)
{
	char path[PATH_MAX];

	for (*made = 0; *made < copies; ++*made) {
		name(path, dir, *made + 1);
		if (!mkdir(path, 0700))
			continue;
		ckpt_fail_as(err, CKPT_EXIT_USAGE, errno, "--upper %s: making %s: %s", dir, path,
			     ckpt_errno_name(errno));
		return ckpt_hint(err, "give a directory in which no copies have written yet");
	}
	return 0;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
	(void)st;
	(void)kind;
	(void)at;
	/* what cannot be removed is left, and so is what it is in */
	remove(path);
	return 0;
}

void upper_remove(const char *dir, unsigned made)
{
	char path[PATH_MAX];

	for (unsigned i = 1; i <= made; i++) {
		name(path, dir, i);
		nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
	}
}
