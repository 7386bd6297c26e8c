/* SPDX-License-Identifier: MIT */
/* Mounts of a victim's own, to make others from. */
#include "victim.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

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
