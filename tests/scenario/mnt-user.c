/* SPDX-License-Identifier: MIT */
/*
 * Mount namespaces that belong to nested user namespaces. One is a copy, in which all that
 * was there before is locked, together with its flags, while flags that it was given since,
 * as by bubblewrap, and what was mounted since are not; of a bind of what is locked the flags
 * are, and it is not;
 * another is a container that its own root has put together, and in which nothing is; of the
 * third only flags of its root are locked, which is all that it has. They try that out when they
 * are asked through pipes.
 */
#include "victim.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COPY, CONTAINER, BARE, HELPERS };

static int question[HELPERS][2], reply[HELPERS][2];
static const char *top;

static const char *in(const char *dir, const char *name)
{
	static char buf[8][512];
	static unsigned at;
	char *p = buf[at++ % 8];

	snprintf(p, sizeof(buf[0]), "%s/%s", dir, name);
	return p;
}

static _Noreturn void answer(int which, void (*check)(void))
{
	MUST(write(reply[which][1], "", 1));
	victim_answer(question[which][0], reply[which][1], check);
}

static void ask(int which, const char *name)
{
	victim_ask(question[which][1], reply[which][0], "%s", name);
}

/* A user namespace with these ids. */
static void enter_user(const char *map)
{
	char path[64];
	int fd, done[2], go[2];
	pid_t parent = getpid();
	char c;

	MUST(pipe(done));
	MUST(pipe(go));
	if (MUST(fork()) == 0) {
		/* the writer: from outside, as a member of the parent's namespace */
		MUST(read(go[0], &c, 1));
		snprintf(path, sizeof(path), "/proc/%d/uid_map", parent);
		fd = MUST(open(path, O_WRONLY));
		MUST(write(fd, map, strlen(map)));
		snprintf(path, sizeof(path), "/proc/%d/gid_map", parent);
		fd = MUST(open(path, O_WRONLY));
		MUST(write(fd, map, strlen(map)));
		MUST(write(done[1], "", 1));
		_exit(0);
	}
	MUST(unshare(CLONE_NEWUSER));
	MUST(write(go[1], "", 1));
	MUST(read(done[0], &c, 1));
	MUST(wait(NULL));
	close(done[0]);
	close(done[1]);
	close(go[0]);
	close(go[1]);
	MUST(setresgid(0, 0, 0));
	MUST(setresuid(0, 0, 0));
}

/* And a mount namespace of its own. */
static void enter_namespaces(const char *map)
{
	enter_user(map);
	MUST(unshare(CLONE_NEWNS));
}

/* ---- a copy --------------------------------------------------------------------------- */

/* A bind of "later": what that was given with is locked here too, what it got since is not. */
static void bind_held(void)
{
	MUST(mount(in(top, "later"), in(top, "held"), NULL, MS_BIND, NULL));
}

static void check_held(void)
{
	const char *held = in(top, "held");
	const unsigned long how = MS_REMOUNT | MS_BIND;

	CHECK(mount(NULL, held, NULL, how | MS_RDONLY, NULL) && errno == EPERM,
	      "a locked flag of a bind can be taken away");
	CHECK(mount(NULL, held, NULL, how | MS_NODEV | MS_RDONLY | MS_NOATIME, NULL) &&
		      errno == EPERM,
	      "access times of a bind can be turned off");
	CHECK(!mount(NULL, held, NULL, how | MS_NODEV, NULL),
	      "a flag of a bind that is not locked cannot be taken away: %s", strerror(errno));
	CHECK(!umount(held), "a bind of a locked mount cannot be taken off: %s", strerror(errno));
	bind_held();
}

static void check_copy(void)
{
	const unsigned long same = MS_NOSUID | MS_NODEV | MS_NOEXEC;

	CHECK(umount(in(top, "given")) && errno == EINVAL, "a given mount can be taken off");
	CHECK(mount(NULL, in(top, "given"), NULL, MS_REMOUNT | MS_BIND | same, NULL) &&
		      errno == EPERM,
	      "the read-only flag of a given mount can be taken away");
	CHECK(umount(in(top, "later")) && errno == EINVAL,
	      "a mount with its own flags can be taken off");
	CHECK(mount(NULL, in(top, "later"), NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL) &&
		      errno == EPERM,
	      "a flag that it was given with can be taken away");
	CHECK(!mount(NULL, in(top, "later"), NULL, MS_REMOUNT | MS_BIND | MS_NODEV, NULL),
	      "it cannot take a flag of its own away: %s", strerror(errno));
	CHECK(!mount(NULL, in(top, "later"), NULL, MS_REMOUNT | MS_BIND | MS_NODEV | MS_RDONLY,
		     NULL),
	      "it cannot set it again: %s", strerror(errno));
	CHECK(mount(top, in(top, "own"), NULL, MS_BIND, NULL) && errno == EINVAL,
	      "what is below given mounts can be uncovered");
	CHECK(victim_holds(in(top, "own/file"), "its own"), "its own mount has other content");
	CHECK(!mount(NULL, in(top, "own"), NULL, MS_REMOUNT | MS_BIND, NULL),
	      "it cannot change the flags of its own mount: %s", strerror(errno));
	CHECK(!mount(NULL, in(top, "own"), NULL, MS_REMOUNT | MS_BIND | MS_NOSUID, NULL),
	      "it cannot change them back: %s", strerror(errno));
	CHECK(!umount(in(top, "own")), "its own mount stays: %s", strerror(errno));
	CHECK(!mount("own", in(top, "own"), "tmpfs", MS_NOSUID, "size=64k"), "mounting again: %s",
	      strerror(errno));
	victim_write(in(top, "own/file"), "its own");
	check_held();
}

static void start_copy(void)
{
	if (MUST(fork()))
		return;
	MUST(prctl(PR_SET_NAME, "copy"));
	enter_namespaces("0 0 65536\n");
	MUST(mount(NULL, in(top, "later"), NULL, MS_REMOUNT | MS_BIND | MS_NODEV | MS_RDONLY,
		   NULL));
	MUST(mount("own", in(top, "own"), "tmpfs", MS_NOSUID, "size=64k"));
	victim_write(in(top, "own/file"), "its own");
	bind_held();
	answer(COPY, check_copy);
}

/* ---- a container ------------------------------------------------------------------------ */

static int container_file;

static void check_container(void)
{
	struct stat st;
	char text[8];

	CHECK(!stat("/tmp/file", &st) && st.st_uid == 33 && st.st_gid == 44,
	      "the file belongs to %u:%u", st.st_uid, st.st_gid);
	CHECK(pread(container_file, text, 6, 0) == 6 && !memcmp(text, "inside", 6),
	      "an open file has other content");
	CHECK(!stat("/dev/null", &st) && S_ISCHR(st.st_mode), "there is no /dev/null");
	CHECK(!access("/usr/bin", F_OK), "there is no /usr");
	CHECK(access("/etc", F_OK), "there is an old root");
	CHECK(open("/usr/new", O_WRONLY | O_CREAT, 0600) < 0 && errno == EROFS,
	      "/usr can be written to: %s", strerror(errno));
	CHECK(!mount(NULL, "/tmp", NULL, MS_REMOUNT, "size=2m"), "its tmpfs is not its own: %s",
	      strerror(errno));
	CHECK(!mount(NULL, "/tmp", NULL, MS_REMOUNT, "size=1m"), "nor is it now: %s",
	      strerror(errno));
	CHECK(!mount("more", "/more", "tmpfs", 0, NULL), "it cannot mount: %s", strerror(errno));
	CHECK(!umount("/more"), "it cannot unmount: %s", strerror(errno));
}

static void start_container(void)
{
	if (MUST(fork()))
		return;
	MUST(prctl(PR_SET_NAME, "container"));
	enter_namespaces("0 100000 1000\n");
	MUST(mount("root", "/tmp", "tmpfs", MS_NOSUID, "mode=755"));
	MUST(chdir("/tmp"));
	MUST(mkdir("usr", 0755));
	MUST(mkdir("dev", 0755));
	MUST(mkdir("tmp", 01777));
	MUST(mkdir("more", 0755));
	MUST(mkdir("old", 0755));
	MUST(mount("/usr", "usr", NULL, MS_BIND | MS_REC, NULL));
	MUST(mount(NULL, "usr", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL));
	MUST(mount("dev", "dev", "tmpfs", MS_NOSUID, "mode=755"));
	MUST(close(MUST(open("dev/null", O_CREAT | O_WRONLY, 0644))));
	MUST(mount("/dev/null", "dev/null", NULL, MS_BIND, NULL));
	MUST(mkdir("dev/pts", 0755));
	MUST(mount("devpts", "dev/pts", "devpts", MS_NOSUID | MS_NOEXEC,
		   "newinstance,ptmxmode=0666,mode=620,gid=5"));
	MUST(mount("tmp", "tmp", "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=1777,uid=5,gid=6"));
	MUST(syscall(SYS_pivot_root, ".", "old"));
	MUST(chdir("/"));
	MUST(umount2("/old", MNT_DETACH));
	MUST(rmdir("/old"));
	victim_write("/tmp/file", "inside");
	MUST(chown("/tmp/file", 33, 44));
	container_file = MUST(open("/tmp/file", O_RDWR));
	answer(CONTAINER, check_container);
}

/* ---- a root and nothing else ------------------------------------------------------------ */

static void check_bare(void)
{
	CHECK(mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND | MS_NODEV, NULL) && errno == EPERM,
	      "a flag of its root can be taken away");
	CHECK(!mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV | MS_NOEXEC,
		     NULL),
	      "a flag cannot be added: %s", strerror(errno));
	CHECK(!mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV, NULL),
	      "and not be taken away: %s", strerror(errno));
}

static void start_bare(void)
{
	int ready[2], go[2];
	char c;

	if (MUST(fork()))
		return;
	MUST(prctl(PR_SET_NAME, "outside-bare"));
	MUST(pipe(ready));
	MUST(pipe(go));
	MUST(unshare(CLONE_NEWNS));
	MUST(mount("bare", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755"));
	MUST(chdir("/tmp"));
	MUST(mkdir("proc", 0755));
	MUST(mount("/proc", "proc", NULL, MS_BIND, NULL));
	MUST(syscall(SYS_pivot_root, ".", "."));
	MUST(umount2(".", MNT_DETACH));
	if (MUST(fork()) == 0) {
		MUST(prctl(PR_SET_NAME, "bare"));
		enter_user("0 0 65536\n");
		MUST(write(ready[1], "", 1));
		MUST(read(go[0], &c, 1));
		MUST(unshare(CLONE_NEWNS));
		answer(BARE, check_bare);
	}
	/* it was for the maps: nothing but the root is to be copied */
	MUST(read(ready[0], &c, 1));
	MUST(umount2("/proc", MNT_DETACH));
	MUST(write(go[1], "", 1));
	for (;;)
		pause();
}

static void check(void)
{
	ask(COPY, "copy");
	ask(CONTAINER, "container");
	ask(BARE, "bare");
	CHECK(!umount(in(top, "given")), "in the first namespace it is locked too: %s",
	      strerror(errno));
	CHECK(!mount("given", in(top, "given"), "tmpfs",
		     MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL),
	      "mounting it again: %s", strerror(errno));
}

int main(int argc, char **argv)
{
	char c;

	victim_init(argc, argv);
	for (int i = 0; i < HELPERS; i++) {
		MUST(pipe(question[i]));
		MUST(pipe(reply[i]));
	}
	MUST(unshare(CLONE_NEWNS));
	MUST(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
	top = victim_path("m");
	MUST(mkdir(top, 0755));
	MUST(mount("top", top, "tmpfs", 0, "mode=755"));
	MUST(mkdir(in(top, "given"), 0755));
	MUST(mkdir(in(top, "own"), 0755));
	MUST(mount("given", in(top, "given"), "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC,
		   NULL));
	MUST(mkdir(in(top, "later"), 0755));
	MUST(mount("later", in(top, "later"), "tmpfs", MS_NODEV, NULL));
	MUST(mkdir(in(top, "held"), 0755));
	start_copy();
	start_container();
	start_bare();
	for (int i = 0; i < HELPERS; i++)
		MUST(read(reply[i][0], &c, 1));
	victim_ready();
	victim_serve(check);
}
