/* SPDX-License-Identifier: MIT */
/*
 * Places by the paths that the kernel has told, in which there are no symbolic links. One that
 * is there by the time of a restore was put there by whoever owns the directory: with ckpt's
 * privileges it would lead to what is none of its business.
 */
#include <linux/openat2.h>
#include <sys/syscall.h>

#include "mnt.h"

int mnt_open_below(int root, const char *path, int flags, uint64_t resolve)
{
	struct open_how how = { .flags = (uint64_t)(unsigned)(flags | O_CLOEXEC),
				.resolve = RESOLVE_IN_ROOT | resolve };

	return (int)syscall(SYS_openat2, root, *path ? path : "/", &how, sizeof(how));
}

int mnt_open_path(int at, const char *path)
{
	struct open_how how = { .flags = O_PATH | O_NOFOLLOW | O_CLOEXEC,
				.resolve = RESOLVE_NO_SYMLINKS };

	return (int)syscall(SYS_openat2, at, path, &how, sizeof(how));
}

bool mnt_is_link(int fd)
{
	struct stat st;

	return !fstat(fd, &st) && S_ISLNK(st.st_mode);
}

int mnt_open_external(const char *place)
{
	return open(place, O_PATH | O_CLOEXEC);
}

/*
 * An automount is cloned like any other: to ask for what is to be mounted there would change
 * what is outside of the tree, and bring nothing, as that does not arrive in a private copy.
 */
int mnt_clone(int fd)
{
	return open_tree(fd, "",
			 OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH | AT_NO_AUTOMOUNT);
}
