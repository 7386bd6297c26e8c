/* SPDX-License-Identifier: MIT */
/* The directory of a new image: making it, and which ones are refused. */
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "image/writer.h"

/* Memory of processes goes in there: nobody else may be able to put files beside ours. */
static int check_private(int fd, const char *path, struct ckpt_error *err)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return ckpt_fail_sys(err, errno, "stat %s", path);
	if (st.st_uid != geteuid()) {
		ckpt_fail(err, EPERM, "%s belongs to user %u, not to us (user %u)", path, st.st_uid,
			  geteuid());
		return ckpt_hint(err, "name a directory that does not exist yet");
	}
	if (st.st_mode & (S_IWGRP | S_IWOTH)) {
		ckpt_fail(err, EPERM, "%s is writable by others (mode %04o)", path,
			  st.st_mode & 07777);
		return ckpt_hint(err, "chmod go-w, or name a directory that does not exist yet");
	}
	return 0;
}

/* The only writer, until the descriptor is closed: also by our death. */
static int lock(int fd, const char *path, struct ckpt_error *err)
{
	if (flock(fd, LOCK_EX | LOCK_NB) == 0)
		return 0;
	if (errno == EWOULDBLOCK)
		return ckpt_fail(err, EBUSY, "another ckpt is writing to %s", path);
	return ckpt_fail_sys(err, errno, "lock %s", path);
}

int image_directory_open(const char *path, bool *made, int *fd, struct ckpt_error *err)
{
	CKPT_AUTO_FD int dir = -1;
	int r;

	*made = mkdir(path, 0700) == 0;
	if (!*made && errno == ENOENT) {
		ckpt_fail_sys(err, ENOENT, "make directory %s", path);
		return ckpt_hint(err, "only the last directory of the path is made");
	}
	if (!*made && errno != EEXIST)
		return ckpt_fail_sys(err, errno, "make directory %s", path);
	dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return ckpt_fail_sys(err, errno, "open directory %s", path);
	r = check_private(dir, path, err);
	if (r == 0)
		r = lock(dir, path, err);
	if (r < 0)
		return r;
	*fd = ckpt_steal_fd(&dir);
	return 0;
}

int image_directory_sync(int dir, const char *path, struct ckpt_error *err)
{
	return fsync(dir) < 0 ? ckpt_fail_sys(err, errno, "fsync %s", path) : 0;
}

int image_directory_sync_entry(int dir, bool made, const char *path, struct ckpt_error *err)
{
	CKPT_AUTO_FD int parent = -1;

	/* whoever made it need not have synced it */
	parent = openat(dir, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (parent < 0 && errno == EACCES && !made)
		return 0;
	if (parent < 0 || fsync(parent) < 0)
		return ckpt_fail_sys(err, errno, "fsync the directory of %s", path);
	return 0;
}
