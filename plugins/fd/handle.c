/* SPDX-License-Identifier: MIT */
/*
 * Files found by their handle (open_by_handle_at(2)) instead of by a path. That
 * takes a descriptor of some mount of their filesystem.
 */
#include "internal.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/sysmacros.h>

/* Blanks in a mount point are octal in mountinfo. */
static void unescape(char *s)
{
	char *to = s;

	for (; *s; s++) {
		unsigned c;

		if (*s == '\\' && sscanf(s + 1, "%3o", &c) == 1) {
			*to++ = (char)c;
			s += 3;
		} else {
			*to++ = *s;
		}
	}
	*to = '\0';
}

bool fd_each_mount(dev_t dev, bool (*fn)(int mount, void *arg), void *arg)
{
	CKPT_AUTO_FILE FILE *mounts = fopen("/proc/self/mountinfo", "re");
	CKPT_AUTO_FREE char *line = NULL;
	size_t cap = 0;

	while (mounts && getline(&line, &cap, mounts) > 0) {
		unsigned maj, min;
		char point[PATH_MAX];
		CKPT_AUTO_FD int fd = -1;

		if (sscanf(line, "%*d %*d %u:%u %*s %4095s", &maj, &min, point) != 3 ||
		    maj != major(dev) || min != minor(dev))
			continue;
		unescape(point);
		fd = open(point, O_PATH | O_CLOEXEC);
		if (fd >= 0 && fn(fd, arg))
			return true;
	}
	return false;
}

static bool each_mount_in(struct ckpt_run *run, const struct ckpt_ns *ns, dev_t dev,
			  bool (*fn)(int mount, void *arg), void *arg)
{
	const struct ckpt_mounts *mounts;
	struct ckpt_error ignored = { 0 };

	if (ckpt_mounts(run, ns, &mounts, &ignored))
		return false;
	for (size_t i = 0; i < mounts->n; i++) {
		const struct ckpt_mount *m = &mounts->list[i];
		CKPT_AUTO_FD int fd = -1;
		struct stat st;

		if (makedev(m->major, m->minor) != dev)
			continue;
		fd = ckpt_open_in(run, ns->id, m->point, O_PATH | O_CLOEXEC, 0, &ignored);
		/* another one may be on top of it */
		if (fd >= 0 && !fstat(fd, &st) && st.st_dev == dev && fn(fd, arg))
			return true;
	}
	return false;
}

bool fd_each_mount_of_tree(struct ckpt_run *run, dev_t dev, bool (*fn)(int mount, void *arg),
			   void *arg)
{
	for (size_t i = 0; i < ckpt_ns_count(run); i++) {
		const struct ckpt_ns *ns = ckpt_ns_at(run, i);

		if (ns->type == CKPT_NS_MNT && !ns->own && each_mount_in(run, ns, dev, fn, arg))
			return true;
	}
	return false;
}

int fd_handle_get(int fd, struct fd_handle *h)
{
	int mount;

	h->h.handle_bytes = MAX_HANDLE_SZ;
	return name_to_handle_at(fd, "", &h->h, &mount, AT_EMPTY_PATH) ? -errno : 0;
}

bool fd_handle_is_same(const struct fd_handle *a, const struct fd_handle *b)
{
	return a->h.handle_type == b->h.handle_type && a->h.handle_bytes == b->h.handle_bytes &&
	       !memcmp(a->bytes, b->bytes, a->h.handle_bytes);
}

/*
 * The call takes no O_PATH descriptor, and to open the place for more is an event for who watches
 * it, and more yet if it is a device: it is the working directory for a moment.
 */
int fd_handle_in(int mount, struct fd_handle *h)
{
	CKPT_AUTO_FD int here = -1, fd = -1;
	struct fd_handle top;
	struct stat st;

	if (fstat(mount, &st))
		return -errno;
	/* of a mount that is one file */
	if (!S_ISDIR(st.st_mode)) {
		if (fd_handle_get(mount, &top) || !fd_handle_is_same(&top, h))
			return -ESTALE;
		fd = fcntl(mount, F_DUPFD_CLOEXEC, 0);
		return fd < 0 ? -errno : ckpt_steal_fd(&fd);
	}
	here = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (here < 0 || fchdir(mount))
		return -errno;
	fd = open_by_handle_at(AT_FDCWD, &h->h, O_PATH | O_CLOEXEC);
	if (fd < 0)
		fd = -errno;
	return fchdir(here) ? -errno : fd < 0 ? fd : ckpt_steal_fd(&fd);
}

struct search {
	struct fd_handle *handle;
	ino_t ino;
	int found;
};

static bool try_mount(int mount, void *arg)
{
	struct search *s = arg;
	CKPT_AUTO_FD int fd = fd_handle_in(mount, s->handle);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) || st.st_ino != s->ino)
		return false;
	s->found = ckpt_steal_fd(&fd);
	return true;
}

int fd_handle_open(struct fd_handle *h, dev_t dev, ino_t ino)
{
	struct search s = { .handle = h, .ino = ino, .found = -1 };

	return fd_each_mount(dev, try_mount, &s) ? s.found : -ESTALE;
}
