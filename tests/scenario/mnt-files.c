/* SPDX-License-Identifier: MIT */
/*
 * A container, pid and mount namespace, whose first process has files of its own /proc and
 * /sys open: of itself, of the other process there, of nobody; and a cgroup's, where the
 * machine has one mounted. It has files open, too, by a mount that it has taken off since:
 * the old root, and a read-only bind.
 */
#include "victim.h"

#include <fcntl.h>
#include <grp.h>
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
static int old_file, old_dir, bound_dir, bound_file;
static unsigned writes;

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

/* By mounts that are in no namespace. */
static void check_detached(void)
{
	char text[16] = "", wanted[16];
	int fd;

	CHECK(pread(old_file, text, 8, 0) == (writes ? 8 : 0), "the old root's file: %s", text);
	snprintf(wanted, sizeof(wanted), "%08u", writes);
	CHECK(!writes || !strcmp(text, wanted), "it holds '%s', not '%s'", text, wanted);
	snprintf(wanted, sizeof(wanted), "%08u", ++writes);
	CHECK(pwrite(old_file, wanted, 8, 0) == 8, "writing to it: %s", strerror(errno));
	CHECK(!faccessat(old_dir, "held", F_OK, 0), "the old root's directory is another");
	CHECK(!faccessat(bound_dir, "inner", F_OK, 0) && has_link(bound_dir, "/"),
	      "the bound directory is another");
	CHECK(faccessat(bound_dir, "../../held", F_OK, 0) &&
		      !faccessat(bound_dir, "../inner", F_OK, 0),
	      "it has a way up");
	fd = openat(bound_dir, "inner", O_RDWR);
	CHECK(fd < 0 && errno == EROFS, "it is not read-only: %s", strerror(errno));
	CHECK(pread(bound_file, text, 5, 0) == 5 && !memcmp(text, "inner", 5) &&
		      has_link(bound_file, "/inner"),
	      "the bound file is another");
}

static void check_container(void)
{
	char text[4096] = "";

	check_detached();
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

static void open_detached(void)
{
	struct {
		struct file_handle h;
		char room[MAX_HANDLE_SZ];
	} handle = { .h.handle_bytes = MAX_HANDLE_SZ };
	int fd, mount_id;

	old_dir = MUST(open(victim_path("held-dir"), O_RDONLY | O_DIRECTORY));
	old_file = MUST(open(victim_path("held-dir/held"), O_RDWR));
	if (name_to_handle_at(old_file, "", &handle.h, &mount_id, AT_EMPTY_PATH))
		victim_skip("no file handles: %s", strerror(errno));
	MUST(mkdir(victim_path("held-dir/sub"), 0755));
	fd = MUST(open(victim_path("held-dir/sub/inner"), O_CREAT | O_RDWR, 0644));
	MUST(write(fd, "inner", 5));
	close(fd);
	MUST(mkdir(victim_path("bound"), 0755));
	MUST(mount(victim_path("held-dir/sub"), victim_path("bound"), NULL, MS_BIND, NULL));
	MUST(mount(NULL, victim_path("bound"), NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NODEV,
		   NULL));
	bound_dir = MUST(open(victim_path("bound"), O_PATH | O_DIRECTORY));
	bound_file = MUST(open(victim_path("bound/inner"), O_RDONLY));
	MUST(umount2(victim_path("bound"), MNT_DETACH));
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
	MUST(prctl(PR_SET_NAME, "container"));
	MUST(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
	open_detached();
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
	victim_answer(question[0], reply[1], check_container);
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
	char c;

	CHECK(leads_to(host_sys, "/sys/class/net"), "/sys/class/net is another");
	if (cgroup_file >= 0)
		CHECK(pread(cgroup_file, &c, 1, 0) >= 0, "the cgroup's file: %s", strerror(errno));
	victim_ask(question[1], reply[0], "container");
}

int main(int argc, char **argv)
{
	gid_t groups[700];
	char c;

	victim_init(argc, argv);
	/* so many that its pid namespace is not told by the first page of /proc/PID/status */
	for (size_t i = 0; i < sizeof(groups) / sizeof(*groups); i++)
		groups[i] = (gid_t)(100000 + i);
	MUST(setgroups(sizeof(groups) / sizeof(*groups), groups));
	MUST(pipe(question));
	MUST(pipe(reply));
	MUST(mkdir(victim_path("c"), 0755));
	MUST(mkdir(victim_path("held-dir"), 0755));
	MUST(close(MUST(open(victim_path("held-dir/held"), O_CREAT | O_WRONLY, 0644))));
	if (MUST(syscall(SYS_clone, CLONE_NEWPID | CLONE_NEWNS | SIGCHLD, 0, 0, 0, 0)) == 0)
		container();
	MUST(read(reply[0], &c, 1));
	host_sys = MUST(open("/sys/class/net", O_RDONLY | O_DIRECTORY));
	open_cgroup();
	victim_ready();
	victim_serve(check);
}
