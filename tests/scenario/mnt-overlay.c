/* SPDX-License-Identifier: MIT
 *
 * Containers whose root is an overlay on directories of the machine's, which they do not see any
 * more: one in a mount namespace only, and one that a user without privileges has made in a user
 * namespace, as rootless runtimes do. A tmpfs in it, a part of it bound elsewhere, an open file, a
 * file that was deleted, one of below that was written to and then deleted. In the first, watches
 * of a file below, of one that was changed, of a directory, and of the root.
 */
#include "victim.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#define OVERLAYFS_MAGIC 0x794c7630

enum { MACHINE, USER, CONTAINERS, FIRST = 100000 };

static int start[2], question[CONTAINERS][2], reply[CONTAINERS][2], file, nameless, watches;
static unsigned long rounds;

/* ---- in the container -------------------------------------------------------------------- */

static const struct {
	const char *path;
	uint32_t mask;
} watched[] = {
	{ "/lower", IN_OPEN }, { "/changed", IN_OPEN }, { "/dir", IN_CREATE }, { "/", IN_CREATE }
};

/* One event of each, in that order. */
static void check_watches(void)
{
	union {
		struct inotify_event ev;
		char room[4096];
	} u;
	const char *at = u.room;
	ssize_t n = read(watches, &u, sizeof(u));

	for (int i = 0; i < (int)(sizeof(watched) / sizeof(*watched)); i++) {
		const struct inotify_event *ev = (const void *)at;

		CHECK(at < u.room + n && ev->wd == i + 1 && ev->mask == watched[i].mask,
		      "no event of %s", watched[i].path);
		at += sizeof(*ev) + ev->len;
	}
	CHECK(at == u.room + n, "events that nobody has made");
}

static void watch(void)
{
	watches = MUST(inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
	for (size_t i = 0; i < sizeof(watched) / sizeof(*watched); i++)
		MUST(inotify_add_watch(watches, watched[i].path, watched[i].mask));
}

static void check_container(void)
{
	char text[16] = "", path[32];
	struct statfs fs = { 0 };
	struct stat bound, part;

	CHECK(!statfs("/", &fs) && fs.f_type == OVERLAYFS_MAGIC, "the root is %#lx",
	      (unsigned long)fs.f_type);
	CHECK(victim_holds("/lower", "from below") && victim_holds("/changed", "changed above"),
	      "files of the layers");
	CHECK(access("/deleted", F_OK) && errno == ENOENT, "what was deleted is back");
	CHECK(pread(file, text, 8, 0) == 8 && strtoul(text, NULL, 10) == rounds,
	      "the open file says %s, not %lu", text, rounds);
	snprintf(text, sizeof(text), "%07lu\n", ++rounds);
	CHECK(pwrite(file, text, 8, 0) == 8 && victim_holds("/dir/open", text),
	      "the open file is another one");
	snprintf(path, sizeof(path), "/bound/new%lu", rounds);
	victim_write(path, "new");
	snprintf(path, sizeof(path), "/made%lu", rounds);
	victim_write(path, "");
	CHECK(pread(nameless, text, 8, 0) == 5 && !strncmp(text, "above", 5),
	      "what was written to the deleted file");
	CHECK(!stat("/bound", &bound) && !stat("/dir", &part) && bound.st_ino == part.st_ino,
	      "the part that is bound");
	CHECK(victim_holds("/tmp/file", "in memory"), "the file in the tmpfs");
	if (watches)
		check_watches();
}

static void enter_root(int which)
{
	char options[1024], dir[256];

	snprintf(dir, sizeof(dir), "%s/%d", victim_dir(), which);
	snprintf(options, sizeof(options), "lowerdir=%s/lower,upperdir=%s/upper,workdir=%s/work%s",
		 dir, dir, dir, which == USER ? ",userxattr" : "");
	MUST(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
	strcat(dir, "/root");
	if (mount("over", dir, "overlay", 0, options))
		victim_skip("no overlay on %s: %s", dir, strerror(errno));
	MUST(chdir(dir));
	MUST(mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL));
	MUST(mount("/dev/null", "null", NULL, MS_BIND, NULL));
	MUST(syscall(SYS_pivot_root, ".", "old"));
	MUST(chdir("/"));
	MUST(umount2("/old", MNT_DETACH));
}

static _Noreturn void container(int which)
{
	char c;

	MUST(prctl(PR_SET_NAME, "container"));
	/* until its ids are there */
	MUST(read(start[0], &c, 1));
	if (which == USER) {
		MUST(setgid(0));
		MUST(setuid(0));
		MUST(prctl(PR_SET_DUMPABLE, 1));
	}
	enter_root(which);
	MUST(mount("tmp", "/tmp", "tmpfs", MS_NOSUID, "size=1m"));
	victim_write("/tmp/file", "in memory");
	MUST(mount("/dir", "/bound", NULL, MS_BIND, NULL));
	MUST(unlink("/deleted"));
	victim_write("/changed", "changed above");
	nameless = MUST(open("/written", O_RDWR | O_CLOEXEC));
	MUST(pwrite(nameless, "above", 5, 0));
	MUST(unlink("/written"));
	file = MUST(open("/dir/open", O_RDWR | O_CREAT | O_CLOEXEC, 0600));
	MUST(pwrite(file, "0000000\n", 8, 0));
	if (which == MACHINE)
		watch();
	MUST(write(reply[which][1], "", 1));
	victim_answer(question[which][0], reply[which][1], check_container);
}

/* ---- outside ------------------------------------------------------------------------------ */

static void own(const char *path, int which)
{
	if (which == USER)
		MUST(chown(path, FIRST, FIRST));
}

static void make_layers(int which)
{
	static const char *const dirs[] = {
		"",	      "/lower",	    "/upper",	  "/work",	 "/root",
		"/lower/dir", "/lower/tmp", "/lower/old", "/lower/proc", "/lower/bound"
	};
	static const char *const files[][2] = { { "lower", "from below" },
						{ "changed", "below" },
						{ "deleted", "" },
						{ "written", "below" },
						{ "null", "" } };
	char path[64];

	for (size_t i = 0; i < sizeof(dirs) / sizeof(*dirs); i++) {
		snprintf(path, sizeof(path), "%d%s", which, dirs[i]);
		MUST(mkdir(victim_path(path), 0755));
		own(victim_path(path), which);
	}
	for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++) {
		snprintf(path, sizeof(path), "%d/lower/%s", which, files[i][0]);
		victim_write(victim_path(path), files[i][1]);
		own(victim_path(path), which);
	}
}

static void start_container(int which)
{
	unsigned long flags = CLONE_NEWPID | CLONE_NEWNS | SIGCHLD;
	pid_t pid;
	char c;

	make_layers(which);
	if (which == USER)
		flags |= CLONE_NEWUSER;
	MUST(pipe(question[which]));
	MUST(pipe(reply[which]));
	pid = MUST(syscall(SYS_clone, flags, 0, 0, 0, 0));
	if (!pid)
		container(which);
	if (which == USER)
		victim_map(pid, "0 100000 1000");
	MUST(write(start[1], "", 1));
	if (read(reply[which][0], &c, 1) != 1)
		victim_die("no container");
}

static void check(void)
{
	char path[32], text[16];

	rounds++;
	snprintf(text, sizeof(text), "%07lu\n", rounds);
	for (int i = 0; i < CONTAINERS; i++) {
		victim_ask(question[i][1], reply[i][0], "container %d", i);
		snprintf(path, sizeof(path), "%d/upper/dir/open", i);
		CHECK(victim_holds(victim_path(path), text),
		      "what container %d writes is not in its upper directory", i);
	}
}

int main(int argc, char **argv)
{
	char above[256];

	victim_init(argc, argv);
	/* for the user */
	snprintf(above, sizeof(above), "%s/..", victim_dir());
	MUST(chmod(above, 0711));
	MUST(chmod(victim_dir(), 0711));
	MUST(pipe(start));
	for (int i = 0; i < CONTAINERS; i++)
		start_container(i);
	victim_ready();
	victim_serve(check);
}
