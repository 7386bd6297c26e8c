/* SPDX-License-Identifier: MIT */
/*
 * Files that have lost the name by which they were opened, but not their last one. sem_open(3)
 * leaves every semaphore like that: it makes a file under a name of its own, links it to the one
 * that was asked for, and deletes the first. So do programs that make files with O_TMPFILE. The
 * other name is nearly always in the same directory.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ckpt/mnt.h>

#include "engine/run.h"

static const char deleted[] = " (deleted)";

/* The directory that the file was in. -1: it cannot be told. */
static int directory_of(struct ckpt_run *run, uint32_t mnt, const char *shown, char **dir)
{
	const size_t len = strlen(shown), tail = sizeof(deleted) - 1;
	struct ckpt_error ignored = { 0 };
	const char *slash;

	if (shown[0] != '/' || len <= tail || strcmp(shown + len - tail, deleted) != 0)
		return -1;
	slash = strrchr(shown, '/');
	*dir = strndup(shown, slash > shown ? (size_t)(slash - shown) : 1);
	return *dir ? ckpt_open_in(run, mnt, *dir, O_RDONLY | O_DIRECTORY, 0, &ignored) : -1;
}

/* The first of its names, so that each dump finds the same one. */
static bool first_name(DIR *dir, const struct stat *st, char name[NAME_MAX + 1])
{
	const struct dirent *e;
	struct stat now;

	name[0] = 0;
	while ((e = readdir(dir))) {
		if (e->d_type == DT_DIR || (name[0] && strcmp(e->d_name, name) > 0) ||
		    fstatat(dirfd(dir), e->d_name, &now, AT_SYMLINK_NOFOLLOW) ||
		    now.st_dev != st->st_dev || now.st_ino != st->st_ino)
			continue;
		snprintf(name, NAME_MAX + 1, "%s", e->d_name);
	}
	return name[0];
}

char *ckpt_other_name(struct ckpt_run *run, uint32_t mnt, const char *shown, const struct stat *st)
{
	CKPT_AUTO_FREE char *above = NULL;
	char name[NAME_MAX + 1], *path = NULL;
	const int fd = st->st_nlink ? directory_of(run, mnt, shown, &above) : -1;
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);

	if (!dir) {
		if (fd >= 0)
			close(fd);
		return NULL;
	}
	if (first_name(dir, st, name) && asprintf(&path, "%s/%s", above[1] ? above : "", name) < 0)
		path = NULL;
	closedir(dir);
	return path;
}
