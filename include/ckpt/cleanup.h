/* SPDX-License-Identifier: MIT */
/*
 * Cleanup attributes: a resource is released where its variable goes out of
 * scope, and handed on by a visible steal. Header only.
 */
#ifndef CKPT_CLEANUP_H
#define CKPT_CLEANUP_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static inline void ckpt_cleanup_fd(const int *fd)
{
	/* errno survives: the caller may be on its way out with it */
	int saved = errno;

	if (*fd >= 0)
		close(*fd);
	errno = saved;
}

static inline void ckpt_cleanup_free(void *p)
{
	free(*(void **)p);
}

static inline void ckpt_cleanup_file(FILE **f)
{
	if (*f)
		fclose(*f);
}

static inline void ckpt_cleanup_dir(DIR **d)
{
	if (*d)
		closedir(*d);
}

#define CKPT_AUTO_FD   __attribute__((cleanup(ckpt_cleanup_fd)))
#define CKPT_AUTO_FREE __attribute__((cleanup(ckpt_cleanup_free)))
#define CKPT_AUTO_FILE __attribute__((cleanup(ckpt_cleanup_file)))
#define CKPT_AUTO_DIR  __attribute__((cleanup(ckpt_cleanup_dir)))

/* unlinkat(2) of what was made for a moment: it must not stay because one call failed. */
static inline int ckpt_remove(int dir, const char *name, int flags)
{
	int r = unlinkat(dir, name, flags);

	for (int tries = 0; r && errno != ENOENT && errno != ENOTEMPTY && tries < 2; tries++)
		r = unlinkat(dir, name, flags);
	return r;
}

/* A file to be read line by line; NULL with errno. For /proc/PID, whose texts have no set length.
 */
static inline FILE *ckpt_open_lines(int dir, const char *path)
{
	int fd = openat(dir, path, O_RDONLY | O_CLOEXEC), saved;
	FILE *f = fd < 0 ? NULL : fdopen(fd, "r");

	if (!f && fd >= 0) {
		saved = errno;
		close(fd);
		errno = saved;
	}
	return f;
}

/* The next entry, or NULL: errno is 0 at the end of the directory, and says why before it. */
static inline struct dirent *ckpt_next_entry(DIR *dir)
{
	errno = 0;
	return readdir(dir);
}

/*
 * May that happen to whoever looks at processes that are not held, and means no more than that
 * there is nothing to see? They end meanwhile, and not all may be looked at.
 */
static inline bool ckpt_is_gone(int e)
{
	return e == ENOENT || e == ESRCH || e == EACCES;
}

/* Take the descriptor out of a CKPT_AUTO_FD variable. */
static inline int ckpt_steal_fd(int *fd)
{
	int r = *fd;

	*fd = -1;
	return r;
}

static inline void *ckpt_steal_ptr_(void *p)
{
	void *r = *(void **)p;

	*(void **)p = NULL;
	return r;
}

/* Take the pointer out of a CKPT_AUTO_FREE variable. */
#define ckpt_steal_ptr(p) ((__typeof__(*(p)))ckpt_steal_ptr_(p))

#define CKPT_ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

#endif
