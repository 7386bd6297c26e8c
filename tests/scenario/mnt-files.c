/* SPDX-License-Identifier: MIT */
/*
 * A container, pid and mount namespace, whose first process has files of its own /proc and
 * /sys open: of itself, of the other process there, of nobody; and a cgroup's, where the
 * machine has one mounted.
 */
#include "victim.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int question[2], reply[2];
static int other_status, own_maps, other_dir, proc_top, ostype, sys_dir, sys_file, sys_place;
static int host_sys, cgroup_file = -1;
static char first[64];

static bool leads_to(int fd, const char *path)
{
	struct stat a, b;

	return !fstat(fd, &a) && !stat(path, &b) && a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

static bool has_link(int fd, const char *wanted)
{
	char path[32], link[128];
	ssize_t len;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	len = readlink(path, link, sizeof(link) - 1);
	link[len > 0 ? len : 0] = 0;
	return !strcmp(link, wanted);
}

static void check_container(void)
{
	char text[4096] = "";

	CHECK(lseek(other_status, 0, SEEK_CUR) == 6, "the position is %ld",
	      (long)lseek(other_status, 0, SEEK_CUR));
	CHECK(pread(other_status, text, 10, 0) == 10 && !memcmp(text, "Name:\tneig", 10),
	      "/proc/2/status begins with '%s'", text);
	CHECK(has_link(other_status, "/proc/2/status"), "it is another file");
	CHECK(pread(own_maps, text, sizeof(text) - 1, 0) > 0 && strstr(text, "r-xp"),
	      "/proc/1/maps has no text");
	CHECK(leads_to(other_dir, "/proc/2"), "/proc/2 is another directory");
	CHECK(!faccessat(other_dir, "fd", F_OK, 0), "it has no descriptors");
	CHECK(leads_to(proc_top, "/proc") && !faccessat(proc_top, "2", F_OK, 0) &&
		      faccessat(proc_top, "3", F_OK, 0),
	      "/proc is another");
	CHECK(pread(ostype, text, 5, 0) == 5 && !memcmp(text, "Linux", 5), "ostype is another");
	CHECK(leads_to(sys_dir, "/sys/kernel") && has_link(sys_dir, "/sys/kernel"),
	      "/sys/kernel is another");
	CHECK(leads_to(sys_place, "/sys/fs"), "/sys/fs is another");
	memset(text, 0, sizeof(text));
	CHECK(pread(sys_file, text, sizeof(first) - 1, 0) > 0 && !strcmp(text, first),
	      "the file of /sys holds '%s', not '%s'", text, first);
}

static _Noreturn void neighbour(void)
{
	prctl(PR_SET_NAME, "neighbour");
	for (;;)
		pause();
}

static void open_files(void)
{
	char text[8];

	other_status = MUST(open("/proc/2/status", O_RDONLY));
	MUST(read(other_status, text, 6));
	own_maps = MUST(open("/proc/self/maps", O_RDONLY));
	other_dir = MUST(open("/proc/2", O_PATH | O_DIRECTORY));
	proc_top = MUST(open("/proc", O_RDONLY | O_DIRECTORY));
	ostype = MUST(open("/proc/sys/kernel/ostype", O_RDONLY));
	sys_dir = MUST(open("/sys/kernel", O_RDONLY | O_DIRECTORY));
	sys_place = MUST(open("/sys/fs", O_PATH));
	sys_file = MUST(open("/sys/kernel/fscaps", O_RDONLY));
	MUST(read(sys_file, first, sizeof(first) - 1));
}

static _Noreturn void container(void)
{
	char c;

	MUST(prctl(PR_SET_NAME, "container"));
	MUST(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
	MUST(mount("root", victim_path("c"), "tmpfs", MS_NOSUID, "mode=755,size=1m"));
	MUST(chdir(victim_path("c")));
	MUST(mkdir("proc", 0555));
	MUST(mkdir("sys", 0555));
	MUST(mkdir("old", 0755));
	MUST(mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL));
	MUST(mount("sysfs", "sys", "sysfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL));
	MUST(syscall(SYS_pivot_root, ".", "old"));
	MUST(chdir("/"));
	MUST(umount2("/old", MNT_DETACH));
	MUST(rmdir("/old"));
	if (MUST(fork()) == 0)
		neighbour();
	/* its name is what is looked at */
	for (;;) {
		char *name = victim_read("/proc/2/comm");
		bool there = name && !strcmp(name, "neighbour\n");

		free(name);
		if (there)
			break;
		sched_yield();
	}
	open_files();
	MUST(write(reply[1], "", 1));
	while (read(question[0], &c, 1) == 1) {
		char text[256] = "";

		snprintf(text, sizeof(text), "%s", victim_judge(check_container));
		if (write(reply[1], text, sizeof(text)) != sizeof(text))
			break;
	}
	_exit(1);
}

/* ---- the root ---------------------------------------------------------------------------- */

static void open_cgroup(void)
{
	char *mounts = victim_read("/proc/self/mounts"), *save = NULL;

	for (char *l = strtok_r(mounts, "\n", &save); l && cgroup_file < 0;
	     l = strtok_r(NULL, "\n", &save)) {
		char point[256], type[64], path[300];

		if (sscanf(l, "%*s %255s %63s", point, type) != 2 ||
		    (strcmp(type, "cgroup") && strcmp(type, "cgroup2")) ||
		    strncmp(point, "/sys/", 5) != 0)
			continue;
		snprintf(path, sizeof(path), "%s/cgroup.procs", point);
		cgroup_file = open(path, O_RDWR | O_CLOEXEC);
	}
	free(mounts);
}

static void check(void)
{
	char text[256] = "no answer";

	CHECK(leads_to(host_sys, "/sys/class/net"), "/sys/class/net is another");
	if (cgroup_file >= 0)
		CHECK(pread(cgroup_file, text, 1, 0) >= 0, "the cgroup's file: %s",
		      strerror(errno));
	if (write(question[1], "?", 1) != 1 || read(reply[0], text, sizeof(text)) != sizeof(text))
		snprintf(text, sizeof(text), "no answer");
	CHECK(!text[0], "container: %s", text);
}

int main(int argc, char **argv)
{
	char c;

	victim_init(argc, argv);
	MUST(pipe(question));
	MUST(pipe(reply));
	MUST(mkdir(victim_path("c"), 0755));
	if (MUST(syscall(SYS_clone, CLONE_NEWPID | CLONE_NEWNS | SIGCHLD, 0, 0, 0, 0)) == 0)
		container();
	MUST(read(reply[0], &c, 1));
	host_sys = MUST(open("/sys/class/net", O_RDONLY | O_DIRECTORY));
	open_cgroup();
	victim_ready();
	victim_serve(check);
}
