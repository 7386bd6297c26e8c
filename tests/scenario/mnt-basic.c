/* SPDX-License-Identifier: MIT */
/*
 * A tree in which each process has a view of the files of its own:
 *
 *	root       a mount namespace that began as a copy, with some mounts more: a tmpfs full of
 *	           all kinds of files, a read-only bind of a part of it, one mount on another, a
 *	           shared one with a slave, what is unbindable, a bind of a directory that is gone
 *	jail       in the first namespace, with a root and working directory of its own
 *	container  a namespace where all is new: a tmpfs as root with /proc, /dev, /tmp, and the
 *	           old root gone
 *
 * The root asks the others through pipes.
 */
#include "victim.h"

#include <fcntl.h>
#include <ftw.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { JAIL, CONTAINER, HELPERS };

static int question[HELPERS][2], reply[HELPERS][2];
static const char *top; /* where the root mounts */
static unsigned long long tree_hash, mounts_hash;
static unsigned count;

static unsigned long long mix(unsigned long long h, const void *data, size_t len)
{
	const unsigned char *p = data;

	for (size_t i = 0; i < len; i++)
		h = (h ^ p[i]) * 1099511628211ull;
	return h;
}

/* ---- what there is to see ------------------------------------------------------------- */

/* Lines of mountinfo without what only numbers things, of this place and below. */
static unsigned long long hash_mounts(const char *below)
{
	char *text = victim_read("/proc/self/mountinfo"), *save = NULL;
	unsigned long long h = 14695981039346656037ull;

	for (char *l = strtok_r(text, "\n", &save); l; l = strtok_r(NULL, "\n", &save)) {
		char root[512], point[512], flags[512], *rest = strstr(l, " - ");

		if (!rest || sscanf(l, "%*d %*d %*s %511s %511s %511s", root, point, flags) != 3 ||
		    strncmp(point, below, strlen(below)) != 0)
			continue;
		h = mix(h, root, strlen(root));
		h = mix(h, point, strlen(point));
		h = mix(h, flags, strlen(flags));
		h = mix(h, rest, strlen(rest));
		h = mix(h, strstr(l, " shared:") ? "s" : "-", 1);
		h = mix(h, strstr(l, " master:") ? "m" : "-", 1);
		h = mix(h, strstr(l, " unbindable") ? "u" : "-", 1);
	}
	free(text);
	return h;
}

static unsigned long long walk_hash;

static int visit(const char *path, const struct stat *st, int flag, struct FTW *at)
{
	unsigned long long parts[] = { st->st_mode,
				       st->st_uid,
				       st->st_gid,
				       st->st_nlink,
				       S_ISREG(st->st_mode) ? (unsigned long long)st->st_size : 0,
				       (unsigned long long)st->st_mtim.tv_sec,
				       (unsigned long long)st->st_mtim.tv_nsec,
				       S_ISREG(st->st_mode) ? (unsigned long long)st->st_blocks : 0,
				       st->st_rdev };
	char value[64] = "";
	unsigned long long h = mix(14695981039346656037ull, path, strlen(path));

	(void)flag;
	(void)at;
	h = mix(h, parts, sizeof(parts));
	if (lgetxattr(path, "trusted.mark", value, sizeof(value) - 1) > 0)
		h = mix(h, value, strlen(value));
	if (S_ISLNK(st->st_mode) && readlink(path, value, sizeof(value) - 1) > 0)
		h = mix(h, value, strlen(value));
	/* in whatever order the directory shows them */
	walk_hash += h;
	return 0;
}

static unsigned long long hash_tree(const char *path)
{
	walk_hash = 0;
	MUST(nftw(path, visit, 16, FTW_PHYS | FTW_MOUNT));
	return walk_hash;
}

static const char *in(const char *dir, const char *name)
{
	static char buf[8][512];
	static unsigned at;
	char *p = buf[at++ % 8];

	snprintf(p, sizeof(buf[0]), "%s/%s", dir, name);
	return p;
}

/* ---- helpers ----------------------------------------------------------------------------- */

static _Noreturn void answer(int which, void (*check)(void))
{
	victim_answer(question[which][0], reply[which][1], check);
}

static void ask(int which, const char *name)
{
	victim_ask(question[which][1], reply[which][0], "%s", name);
}

static void check_jail(void)
{
	char path[64];
	struct stat st;

	CHECK(!lstat("/only-here", &st), "the root is not that of the jail");
	CHECK(lstat("/etc", &st) && errno == ENOENT, "there is /etc in the jail");
	CHECK(getcwd(path, sizeof(path)) && !strcmp(path, "/work"), "it is not in /work");
	CHECK(!lstat("../only-here", &st) && !lstat("../../../only-here", &st),
	      "the jail has a way out");
}

static void start_jail(void)
{
	const char *dir = victim_path("jail");

	if (MUST(fork()))
		return;
	MUST(prctl(PR_SET_NAME, "jail"));
	MUST(mkdir(dir, 0755));
	MUST(chroot(dir));
	MUST(mkdir("/work", 0755));
	MUST(chdir("/work"));
	victim_write("/only-here", "");
	MUST(write(reply[JAIL][1], "", 1));
	answer(JAIL, check_jail);
}

/* ---- the container ------------------------------------------------------------------------- */

static unsigned long long container_hash, container_mounts;
static int container_file;

static void check_container(void)
{
	char text[16];
	struct stat st;

	CHECK(hash_mounts("/") == container_mounts, "its mounts are others");
	CHECK(hash_tree("/tmp") == container_hash, "/tmp is another");
	CHECK(access("/victim-dir", F_OK) && access("/old", F_OK), "there is an old root");
	CHECK(!stat("/dev/null", &st) && S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3),
	      "/dev/null is none");
	CHECK(pread(container_file, text, 6, 0) == 6 && !memcmp(text, "inside", 6),
	      "an open file has other content");
	CHECK(!access("/proc/self/status", F_OK), "/proc shows no process");
	CHECK(mount("x", "/tmp/on", "tmpfs", 0, NULL) == 0, "it cannot mount: %s", strerror(errno));
	CHECK(umount("/tmp/on") == 0, "it cannot unmount: %s", strerror(errno));
}

static void start_container(void)
{
	if (MUST(fork()))
		return;
	MUST(prctl(PR_SET_NAME, "container"));
	MUST(unshare(CLONE_NEWNS));
	MUST(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
	MUST(mount("root", victim_path("c"), "tmpfs", MS_NOSUID, "mode=755,size=4m"));
	MUST(chdir(victim_path("c")));
	MUST(mkdir("proc", 0555));
	MUST(mkdir("dev", 0755));
	MUST(mkdir("tmp", 01777));
	MUST(mkdir("host", 0755));
	MUST(mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL));
	MUST(mount("dev", "dev", "tmpfs", MS_NOSUID, "mode=755"));
	MUST(close(MUST(open("dev/null", O_CREAT | O_WRONLY, 0644))));
	MUST(mount("/dev/null", "dev/null", NULL, MS_BIND, NULL));
	MUST(mkdir("dev/pts", 0755));
	MUST(mount("devpts", "dev/pts", "devpts", MS_NOSUID | MS_NOEXEC,
		   "newinstance,ptmxmode=0666,mode=620"));
	MUST(mkdir("dev/mqueue", 0755));
	MUST(mount("mqueue", "dev/mqueue", "mqueue", MS_NOSUID, NULL));
	MUST(mkdir("sys", 0755));
	MUST(mount("sysfs", "sys", "sysfs", MS_RDONLY, NULL));
	MUST(mkdir("ram", 0755));
	MUST(mount("ram", "ram", "ramfs", 0, "mode=700"));
	MUST(mount("tmp", "tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777,size=1m,nr_inodes=100"));
	MUST(mount("/usr", "host", NULL, MS_BIND, NULL));
	MUST(mount(NULL, "host", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOATIME, NULL));
	MUST(mkdir("old", 0755));
	MUST(syscall(SYS_pivot_root, ".", "old"));
	MUST(chdir("/"));
	MUST(umount2("/old", MNT_DETACH));
	MUST(rmdir("/old"));
	victim_write("/ram/file", "in a ramfs");
	victim_write("/tmp/file", "inside");
	MUST(mkdir("/tmp/on", 0700));
	container_file = MUST(open("/tmp/file", O_RDWR));
	container_hash = hash_tree("/tmp");
	container_mounts = hash_mounts("/");
	MUST(write(reply[CONTAINER][1], "", 1));
	answer(CONTAINER, check_container);
}

/* ---- the root ------------------------------------------------------------------------------ */

static int counter_fd, fifo_fd, deleted_fd, dir_fd, listener, bind_fd;
static unsigned *mapped;

static void bind_socket(void)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };

	listener = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
	snprintf(a.sun_path, sizeof(a.sun_path), "%s", in(top, "socket"));
	MUST(bind(listener, (struct sockaddr *)&a, sizeof(a)));
	MUST(listen(listener, 4));
}

static void fill(void)
{
	struct timespec times[2] = { { 1000000000, 5 }, { 1100000000, 123456789 } };
	struct timespec early[2] = { { -3, 5 }, { -2, 123456789 } };
	int fd;

	victim_write(in(top, "file"), "some text");
	MUST(chown(in(top, "file"), 1234, 4321));
	MUST(chmod(in(top, "file"), 04711));
	MUST(link(in(top, "file"), in(top, "other-name")));
	MUST(symlink("../nowhere/at/all", in(top, "symlink")));
	MUST(lchown(in(top, "symlink"), 7, 8));
	MUST(mkfifo(in(top, "fifo"), 0600));
	MUST(mknod(in(top, "device"), S_IFBLK | 0640, makedev(7, 77)));
	MUST(mkdir(in(top, "dir"), 02755));
	MUST(mkdir(in(top, "dir/below"), 0700));
	victim_write(in(top, "dir/below/deep"), "deep");
	MUST(setxattr(in(top, "dir"), "trusted.mark", "a mark", 6, 0));
	fd = MUST(open(in(top, "sparse"), O_RDWR | O_CREAT, 0600));
	MUST(pwrite(fd, "end", 3, (1 << 20) + 5));
	MUST(pwrite(fd, "middle", 6, 1 << 19));
	MUST(futimens(fd, early));
	close(fd);
	MUST(mkdir(in(top, "over"), 0755));
	MUST(mkdir(in(top, "ro"), 0755));
	MUST(mkdir(in(top, "gone"), 0755));
	MUST(mkdir(in(top, "gone-at"), 0755));
	MUST(mkdir(in(top, "shared"), 0755));
	MUST(mkdir(in(top, "slave"), 0755));
	MUST(mkdir(in(top, "unbindable"), 0755));
	MUST(utimensat(AT_FDCWD, in(top, "file"), times, 0));
	MUST(utimensat(AT_FDCWD, in(top, "symlink"), times, AT_SYMLINK_NOFOLLOW));
	MUST(utimensat(AT_FDCWD, in(top, "dir"), times, 0));
}

static void mount_on(void)
{
	MUST(mount(in(top, "dir"), in(top, "ro"), NULL, MS_BIND, NULL));
	MUST(mount(NULL, in(top, "ro"), NULL,
		   MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOEXEC | MS_NODIRATIME, NULL));
	MUST(mount("lower", in(top, "over"), "tmpfs", 0, "size=64k"));
	victim_write(in(top, "over/lower"), "below the other");
	MUST(mount("upper", in(top, "over"), "tmpfs", 0, "size=128k,mode=700,uid=5,gid=6"));
	victim_write(in(top, "over/upper"), "on top");
	MUST(mount(in(top, "gone"), in(top, "gone-at"), NULL, MS_BIND, NULL));
	MUST(rmdir(in(top, "gone")));
	MUST(mount("shared", in(top, "shared"), "tmpfs", 0, NULL));
	MUST(mkdir(in(top, "shared/point"), 0755));
	MUST(mount(NULL, in(top, "shared"), NULL, MS_SHARED, NULL));
	MUST(mount(in(top, "shared"), in(top, "slave"), NULL, MS_BIND, NULL));
	MUST(mount(NULL, in(top, "slave"), NULL, MS_SLAVE, NULL));
	MUST(mount("unbindable", in(top, "unbindable"), "tmpfs", 0, NULL));
	MUST(mount(NULL, in(top, "unbindable"), NULL, MS_UNBINDABLE, NULL));
}

static void open_things(void)
{
	counter_fd = MUST(open(in(top, "counter"), O_RDWR | O_CREAT, 0600));
	MUST(ftruncate(counter_fd, 4096));
	mapped = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, counter_fd, 0);
	if (mapped == MAP_FAILED)
		victim_die("mmap: %s", strerror(errno));
	fifo_fd = MUST(open(in(top, "fifo"), O_RDWR));
	MUST(write(fifo_fd, "queued", 6));
	deleted_fd = MUST(open(in(top, "deleted"), O_RDWR | O_CREAT, 0600));
	MUST(write(deleted_fd, "still there", 11));
	MUST(unlink(in(top, "deleted")));
	dir_fd = MUST(open(in(top, "dir"), O_RDONLY | O_DIRECTORY));
	bind_fd = MUST(open(in(top, "ro/below"), O_PATH));
}

static void check_open(void)
{
	char text[32];
	struct stat st;

	CHECK(*mapped == count, "the mapped counter is %u, not %u", *mapped, count);
	count++;
	CHECK(pwrite(counter_fd, &count, sizeof(count), 0) == sizeof(count), "pwrite: %s",
	      strerror(errno));
	CHECK(*mapped == count, "what was written is not what is mapped");
	CHECK(read(fifo_fd, text, 6) == 6 && !memcmp(text, "queued", 6),
	      "the FIFO is not as it was");
	CHECK(write(fifo_fd, "queued", 6) == 6, "writing to the FIFO: %s", strerror(errno));
	CHECK(pread(deleted_fd, text, 11, 0) == 11 && !memcmp(text, "still there", 11),
	      "the deleted file has another content");
	CHECK(!fstatat(dir_fd, "below/deep", &st, 0), "the open directory is another");
	CHECK(!fstatat(bind_fd, "deep", &st, 0), "the directory opened as a place is another");
}

static void check_socket(void)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM, 0), got;

	snprintf(a.sun_path, sizeof(a.sun_path), "%s", in(top, "socket"));
	CHECK(!connect(fd, (struct sockaddr *)&a, sizeof(a)), "connecting to the socket: %s",
	      strerror(errno));
	got = accept(listener, NULL, NULL);
	CHECK(got >= 0, "accept: %s", strerror(errno));
	close(got);
	close(fd);
}

static void check_mounts(void)
{
	struct stat st;

	CHECK(hash_mounts(victim_dir()) == mounts_hash, "the mounts are others");
	CHECK(open(in(top, "ro/new"), O_CREAT | O_WRONLY, 0600) < 0 && errno == EROFS,
	      "the read-only mount takes a file: %s", strerror(errno));
	CHECK(victim_holds(in(top, "over/upper"), "on top"), "the upper mount has another content");
	CHECK(!umount(in(top, "over")), "the upper mount stays: %s", strerror(errno));
	CHECK(victim_holds(in(top, "over/lower"), "below the other"), "there is no mount below");
	CHECK(!mount("upper", in(top, "over"), "tmpfs", 0, "size=128k,mode=700,uid=5,gid=6"),
	      "mounting it again: %s", strerror(errno));
	victim_write(in(top, "over/upper"), "on top");
	CHECK(!mount("new", in(top, "shared/point"), "tmpfs", 0, NULL),
	      "mounting on the shared one");
	victim_write(in(top, "shared/point/seen"), "");
	CHECK(!access(in(top, "slave/point/seen"), F_OK), "the slave does not receive");
	CHECK(!umount(in(top, "shared/point")), "unmounting: %s", strerror(errno));
	CHECK(access(in(top, "slave/point/seen"), F_OK), "the slave has kept it");
	CHECK(mkdir(in(top, "gone-at/new"), 0700) && errno == ENOENT,
	      "the deleted directory is alive: %s", strerror(errno));
	CHECK(mount(in(top, "unbindable"), in(top, "over"), NULL, MS_BIND, NULL) && errno == EINVAL,
	      "the unbindable mount can be bound");
	CHECK(!lstat(in(top, "other-name"), &st) && st.st_nlink == 2, "the hard link is none");
}

static void check(void)
{
	CHECK(hash_tree(top) == tree_hash, "the tmpfs is another");
	check_mounts();
	check_open();
	check_socket();
	ask(JAIL, "jail");
	ask(CONTAINER, "container");
	tree_hash = hash_tree(top);
	mounts_hash = hash_mounts(victim_dir());
}

int main(int argc, char **argv)
{
	char c;

	victim_init(argc, argv);
	for (int i = 0; i < HELPERS; i++) {
		MUST(pipe(question[i]));
		MUST(pipe(reply[i]));
	}
	top = strdup(victim_path("m"));
	MUST(mkdir(top, 0755));
	MUST(mkdir(victim_path("c"), 0755));
	start_jail();
	start_container();
	for (int i = 0; i < HELPERS; i++)
		MUST(read(reply[i][0], &c, 1));
	MUST(unshare(CLONE_NEWNS));
	MUST(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
	MUST(mount("everything", top, "tmpfs", MS_NOSUID | MS_STRICTATIME, "size=8m,mode=751"));
	fill();
	mount_on();
	open_things();
	bind_socket();
	tree_hash = hash_tree(top);
	mounts_hash = hash_mounts(victim_dir());
	victim_ready();
	victim_serve(check);
}
