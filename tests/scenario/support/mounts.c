/* SPDX-License-Identifier: MIT */
/* Mounts of a victim's own, to make others from. */
#include "victim.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

void victim_own_mounts(void)
{
	MUST(unshare(CLONE_NEWNS));
	MUST(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
	MUST(mkdir(victim_path("whole"), 0755));
	MUST(mkdir(victim_path("part"), 0755));
	MUST(mkdir(victim_path("other"), 0755));
	MUST(mount("whole", victim_path("whole"), "tmpfs", 0, NULL));
	MUST(mkdir(victim_path("whole/a"), 0755));
	MUST(mkdir(victim_path("whole/bb"), 0755));
}

static void mount_hidden(const char *left, bool open_it)
{
	char *file = victim_path("whole/file"), *point = victim_path("whole/point");

	victim_own_mounts();
	victim_write(file, "hidden");
	victim_write(point, "");
	if (left)
		MUST(link(file, left));
	if (open_it)
		MUST(open(file, O_RDONLY));
	MUST(mount(file, point, NULL, MS_BIND, NULL));
	MUST(unlink(file));
}

void victim_mount_linked(void)
{
	mount_hidden(victim_path("whole/left"), false);
}

void victim_mount_open(void)
{
	mount_hidden(NULL, true);
}
