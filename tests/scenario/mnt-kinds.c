/* SPDX-License-Identifier: MIT */
/*
 * Two containers, one with a user namespace that does not have the machine's root, and mounts of
 * less usual kinds in each: an overlay on directories of one tmpfs or of two, with an open file and
 * one that is deleted, open and mapped; a host name's
 * namespace that nobody is in, held by a bind; cgroup2; a proc with options; tmpfs with limits; a
 * ramfs; a device and a file that are bound, a directory, files and a FIFO
 * that are bound and deleted.
 *
 * A mount of a hierarchy that ckpt has mounted too is a bind of that, with its source:
 * test: ignore=/cgroup source:
 * An overlay is mounted after all others.
 * test: ignore=mounts order of all:
 */
#include "victim.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PLAIN, USER, CONTAINERS };
#define LOWER 16 /* files, each for one check */

static int question[CONTAINERS][2], reply[CONTAINERS][2], start[2];
static int overlay_fd, deleted_fd;
static char *deleted_map;
/* of the overlay's upper layer */
static const char *top;
static unsigned count;
static char *mounts;

static int by_text(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Without numbers, which are new, and in whatever order: that of an overlay may be another. */
static char *read_mounts(void)
{
	char *text = victim_read("/proc/self/mountinfo"), *save = NULL, *lines[64] = { 0 };
	char *out = calloc(1, strlen(text) + 1), *at = out;
	size_t n = 0;

	for (char *l = strtok_r(text, "\n", &save); l && n < 64; l = strtok_r(NULL, "\n", &save)) {
		/* the file of a namespace is a number, and the source of a cgroup ckpt's own */
		if (strstr(l, " nsfs ") || strstr(l, " cgroup2 "))
			continue;
		for (int i = 0; i < 3; i++)
			l = strchr(l, ' ') + 1;
		lines[n++] = l;
	}
	qsort(lines, n, sizeof(lines[0]), by_text);
	for (size_t i = 0; i < n; i++)
		at += sprintf(at, "%s\n", lines[i]);
	free(text);
	return out;
}

/* ---- checks ------------------------------------------------------------------------------ */

static void check_overlay(void)
{
	char text[16] = "", path[64];
	struct stat st;
	int fd;

	CHECK(victim_holds("/over/lower", "from below"), "the lower file is another");
	CHECK(victim_holds("/over/upper", "on top"), "the upper file is another");
	CHECK(access("/over/deleted", F_OK) && errno == ENOENT, "a deleted file is there again");
	CHECK(!access("/base/lower/deleted", F_OK), "the lower one of it is gone");
	snprintf(text, sizeof(text), "%08u", ++count);
	snprintf(path, sizeof(path), "%s/upper/open", top);
	CHECK(pwrite(overlay_fd, text, 8, 0) == 8 && victim_holds("/over/open", text) &&
		      victim_holds(path, text),
	      "what is written to the open file is elsewhere");
	snprintf(path, sizeof(path), "/over/lower%u", count);
	fd = open(path, O_WRONLY);
	CHECK(count > LOWER || (fd >= 0 && write(fd, text, 8) == 8 && victim_holds(path, text)),
	      "a lower file is not copied up: %s", strerror(errno));
	close(fd);
	snprintf(path, sizeof(path), "/over/new%u", count);
	CHECK(!mkdir(path, 0700), "the overlay takes no directory: %s", strerror(errno));
	snprintf(path, sizeof(path), "%s/upper/new%u", top, count);
	CHECK(!access(path, F_OK), "what is made in the overlay is not in its upper directory");
	CHECK(pwrite(deleted_fd, text, 8, 4096) == 8 && !memcmp(deleted_map + 4096, text, 8) &&
		      !strcmp(deleted_map, "without a name"),
	      "the deleted file is another");
	CHECK(!fstat(deleted_fd, &st) && !st.st_nlink && access("/over/nameless", F_OK),
	      "the deleted file has %lu names", (unsigned long)st.st_nlink);
}

static int visit_held(void)
{
	char name[65] = "";
	int fd = open("/held", O_RDONLY);

	if (fd < 0 || setns(fd, CLONE_NEWUTS) || gethostname(name, sizeof(name)))
		return 1;
	return strcmp(name, "held") ? 2 : 0;
}

static void check_held(void)
{
	int status = -1;
	pid_t pid = fork();

	if (!pid)
		_exit(visit_held());
	waitpid(pid, &status, 0);
	CHECK(status == 0, "the namespace that is held: status %#x", status);
}

static void check_limits(void)
{
	static char much[65536];
	int fd = open("/small/data", O_RDWR | O_CREAT, 0600), made = 0;

	CHECK(pwrite(fd, much, sizeof(much), 0) >= 0 && pwrite(fd, much, 4096, sizeof(much)) < 0 &&
		      errno == ENOSPC,
	      "there is no limit of size: %s", strerror(errno));
	close(fd);
	unlink("/small/data");
	for (char path[32]; made < 16; made++) {
		snprintf(path, sizeof(path), "/small/%d", made);
		if (mkdir(path, 0700))
			break;
	}
	CHECK(made > 2 && made < 8 && errno == ENOSPC, "%d inodes: %s", made, strerror(errno));
	for (char path[32]; made--;) {
		snprintf(path, sizeof(path), "/small/%d", made);
		rmdir(path);
	}
}

static void check_hidden(void)
{
	struct stat one, two;
	int fd = open("/again", O_WRONLY);

	CHECK(!stat("/hidden", &one) && !stat("/again", &two) && one.st_ino == two.st_ino &&
		      !one.st_nlink && one.st_mode == (S_IFREG | 0640) && one.st_uid == 3 &&
		      one.st_gid == 4,
	      "the file without a name is another: mode %o, %u:%u", one.st_mode, one.st_uid,
	      one.st_gid);
	CHECK(victim_holds("/hidden", "without a name"), "there is something else in it");
	CHECK(open("/hidden", O_WRONLY) < 0 && errno == EROFS, "it can be written");
	CHECK(pwrite(fd, "without", 7, 0) == 7, "it cannot be written: %s", strerror(errno));
	close(fd);
	CHECK(!stat("/fifo", &one) && one.st_mode == (S_IFIFO | 0604) && !one.st_nlink,
	      "the FIFO is none: %o", one.st_mode);
	CHECK(access("/ram/.hidden", F_OK) && access("/ram/.fifo", F_OK), "they have names");
}

static void check_container(void)
{
	char *now = read_mounts(), byte = 'x';
	int null;

	CHECK(!strcmp(now, mounts), "the mounts are others: %s", now);
	free(now);
	check_overlay();
	check_held();
	check_limits();
	check_hidden();
	CHECK(victim_holds("/ram/file", "in a ramfs"), "the ramfs is another");
	CHECK(victim_holds("/bound", "a file"), "the bound file is another");
	CHECK(mkdir("/gone/in", 0700) && errno == ENOENT, "the deleted directory: %s",
	      strerror(errno));
	null = open("/null", O_RDWR);
	CHECK(null >= 0 && write(null, &byte, 1) == 1 && read(null, &byte, 1) == 0,
	      "the bound device is none: %s", strerror(errno));
	close(null);
	CHECK(access("/cgroup", F_OK) || !access("/cgroup/cgroup.procs", F_OK),
	      "the cgroup filesystem is none");
}

/* ---- building ---------------------------------------------------------------------------- */

static void hold_namespace(void)
{
	int ends[2];
	char path[64], c;
	pid_t pid;

	MUST(pipe(ends));
	pid = MUST(fork());
	if (!pid) {
		MUST(unshare(CLONE_NEWUTS));
		MUST(sethostname("held", 4));
		MUST(write(ends[1], "", 1));
		for (;;)
			pause();
	}
	MUST(read(ends[0], &c, 1));
	snprintf(path, sizeof(path), "/proc/%d/ns/uts", pid);
	MUST(close(MUST(open("/held", O_CREAT | O_WRONLY, 0644))));
	MUST(mount(path, "/held", NULL, MS_BIND, NULL));
	MUST(kill(pid, SIGKILL));
	MUST(waitpid(pid, NULL, 0));
	close(ends[0]);
	close(ends[1]);
}

static void mount_overlay(int which)
{
	char path[64], options[160];

	MUST(mkdir("/base", 0755));
	MUST(mkdir("/over", 0755));
	MUST(mount("base", "/base", "tmpfs", 0, "size=2m"));
	MUST(mkdir("/base/lower", 0755));
	top = which == USER ? "/base" : "/top";
	if (which != USER) {
		MUST(mkdir(top, 0755));
		MUST(mount("top", top, "tmpfs", 0, "size=2m"));
	}
	snprintf(path, sizeof(path), "%s/upper", top);
	MUST(mkdir(path, 0755));
	snprintf(path, sizeof(path), "%s/work", top);
	MUST(mkdir(path, 0755));
	victim_write("/base/lower/lower", "from below");
	victim_write("/base/lower/deleted", "");
	for (int i = 1; i <= LOWER; i++) {
		snprintf(path, sizeof(path), "/base/lower/lower%d", i);
		victim_write(path, "");
	}
	snprintf(options, sizeof(options),
		 "lowerdir=/base/lower,upperdir=%s/upper,workdir=%s/work%s", top, top,
		 which == USER ? ",userxattr" : ",xino=off");
	if (mount("over", "/over", "overlay", 0, options))
		victim_skip("no overlay on a tmpfs: %s", strerror(errno));
	MUST(unlink("/over/deleted"));
	victim_write("/over/upper", "on top");
	overlay_fd = MUST(open("/over/open", O_RDWR | O_CREAT | O_CLOEXEC, 0600));
	deleted_fd = MUST(open("/over/nameless", O_RDWR | O_CREAT | O_CLOEXEC, 0600));
	MUST(ftruncate(deleted_fd, 8192));
	MUST(pwrite(deleted_fd, "without a name", 15, 0));
	deleted_map = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, deleted_fd, 0);
	if (deleted_map == MAP_FAILED)
		victim_die("mmap: %s", strerror(errno));
	MUST(unlink("/over/nameless"));
}

static void enter_root(void)
{
	MUST(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
	MUST(mount("root", ".", "tmpfs", MS_NOSUID, "mode=755,size=1m"));
	MUST(chdir("../c"));
	for (const char *const *d = (const char *const[]){ "proc", "old", "small", "ram", NULL };
	     *d; d++)
		MUST(mkdir(*d, 0755));
	MUST(mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, "hidepid=invisible"));
	MUST(close(MUST(open("null", O_CREAT | O_WRONLY, 0644))));
	MUST(mount("/dev/null", "null", NULL, MS_BIND, NULL));
	MUST(syscall(SYS_pivot_root, ".", "old"));
	MUST(chdir("/"));
	MUST(umount2("/old", MNT_DETACH));
	MUST(rmdir("/old"));
}

/* As systemd-nspawn does in /proc: what is mounted has no name, and is mounted twice. */
static void hide_files(void)
{
	for (const char *const *p = (const char *const[]){ "/hidden", "/again", "/fifo", NULL }; *p;
	     p++)
		MUST(close(MUST(open(*p, O_CREAT | O_WRONLY, 0644))));
	victim_write("/ram/.hidden", "without a name");
	MUST(chown("/ram/.hidden", 3, 4));
	MUST(chmod("/ram/.hidden", 0640));
	MUST(mkfifo("/ram/.fifo", 0604));
	MUST(mount("/ram/.hidden", "/hidden", NULL, MS_BIND, NULL));
	MUST(mount("/hidden", "/again", NULL, MS_BIND, NULL));
	MUST(mount(NULL, "/hidden", NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL));
	MUST(mount("/ram/.fifo", "/fifo", NULL, MS_BIND, NULL));
	MUST(unlink("/ram/.hidden"));
	MUST(unlink("/ram/.fifo"));
}

static void mount_all(int which)
{
	enter_root();
	MUST(mount("small", "/small", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOATIME,
		   "size=64k,nr_inodes=8,mode=1777"));
	/* what is in memory without limit is for the machine's root alone */
	MUST(mount("ram", "/ram", which == USER ? "tmpfs" : "ramfs", 0, NULL));
	victim_write("/ram/file", "in a ramfs");
	victim_write("/file", "a file");
	hide_files();
	MUST(mkdir("/gone", 0755));
	MUST(mkdir("/ram/gone", 0755));
	MUST(mount("/ram/gone", "/gone", NULL, MS_BIND, NULL));
	MUST(rmdir("/ram/gone"));
	MUST(close(MUST(open("/bound", O_CREAT | O_WRONLY, 0644))));
	MUST(mount("/file", "/bound", NULL, MS_BIND, NULL));
	hold_namespace();
	mount_overlay(which);
	MUST(mkdir("/cgroup", 0755));
	if (mount("cgroup", "/cgroup", "cgroup2", MS_NOSUID, NULL))
		MUST(rmdir("/cgroup"));
	mounts = read_mounts();
}

static _Noreturn void container(int which)
{
	char c;

	MUST(prctl(PR_SET_NAME, "container"));
	/* until its ids are there */
	MUST(read(start[0], &c, 1));
	/* what is above is closed to whom the container belongs */
	MUST(chdir(victim_path("c")));
	if (which == USER) {
		MUST(setgid(0));
		MUST(setuid(0));
		MUST(prctl(PR_SET_DUMPABLE, 1));
	}
	mount_all(which);
	MUST(write(reply[which][1], "", 1));
	victim_answer(question[which][0], reply[which][1], check_container);
}

static void start_container(int which)
{
	unsigned long flags = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWCGROUP | SIGCHLD;
	pid_t pid;
	char c;

	if (which == USER)
		flags |= CLONE_NEWUSER;
	MUST(pipe(question[which]));
	MUST(pipe(reply[which]));
	pid = MUST(syscall(SYS_clone, flags, 0, 0, 0, 0));
	if (!pid)
		container(which);
	if (which == USER) {
		victim_map(pid, "0 100000 1000");
	}
	MUST(write(start[1], "", 1));
	if (read(reply[which][0], &c, 1) != 1)
		victim_die("no container");
}

static void check(void)
{
	for (int i = 0; i < CONTAINERS; i++)
		victim_ask(question[i][1], reply[i][0], "container %d", i);
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	MUST(pipe(start));
	MUST(mkdir(victim_path("c"), 0755));
	for (int i = 0; i < CONTAINERS; i++)
		start_container(i);
	victim_ready();
	victim_serve(check);
}
