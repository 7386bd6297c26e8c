/* SPDX-License-Identifier: MIT
 *
 * Namespaces that are held by descriptors only: a user namespace with maps, what it owns (names, a
 * queue, a network, clocks, mounts, a cgroup root), and one below it; those of a child that lives;
 * and the victim's own. Who goes there must find what was there before.
 */
#include "victim.h"

#include <fcntl.h>
#include <linux/nsfs.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { USER, UTS, IPC, NET, TIME, CGROUP, MNT, INNER, INNER_UTS, HELD };

static const struct {
	const char *name;
	int flag, owner; /* owner: an index; -1: the victim's */
} held[HELD] = {
	[USER] = { "user", CLONE_NEWUSER, -1 },
	[UTS] = { "uts", CLONE_NEWUTS, USER },
	[IPC] = { "ipc", CLONE_NEWIPC, USER },
	[NET] = { "net", CLONE_NEWNET, USER },
	[TIME] = { "time", CLONE_NEWTIME, USER },
	[CGROUP] = { "cgroup", CLONE_NEWCGROUP, USER },
	[MNT] = { "mnt", CLONE_NEWNS, USER },
	[INNER] = { "user", CLONE_NEWUSER, USER },
	[INNER_UTS] = { "uts", CLONE_NEWUTS, INNER },
};

static int fds[HELD], twin, child_uts, child_pid, own_net;
static pid_t child;

static int open_of(pid_t pid, const char *name)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/ns/%s", pid, name);
	return MUST(open(path, O_RDONLY | O_CLOEXEC));
}

static void put(pid_t pid, const char *name, const char *text)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	fd = MUST(open(path, O_WRONLY));
	MUST(write(fd, text, strlen(text)) == (ssize_t)strlen(text) ? 0 : -1);
	close(fd);
}

static void loopback_up(void)
{
	struct ifreq lo = { .ifr_name = "lo", .ifr_flags = IFF_UP };
	int s = MUST(socket(AF_INET, SOCK_DGRAM, 0));

	MUST(ioctl(s, SIOCSIFFLAGS, &lo));
	close(s);
}

/* ---- building ------------------------------------------------------------------------- */

/* Two processes that end when what they have made is held. */
static _Noreturn void make_inner(int to, int from)
{
	char c;

	MUST(unshare(CLONE_NEWUSER | CLONE_NEWUTS));
	MUST(sethostname("inner", 5));
	MUST(write(to, "", 1));
	MUST(read(from, &c, 1));
	_exit(0);
}

static _Noreturn void make_outer(int to, int from)
{
	struct {
		long type;
		char text[8];
	} m = { 7, "queued" };
	char c, *segment;

	MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
	MUST(unshare(CLONE_NEWUSER));
	MUST(write(to, "", 1));
	MUST(read(from, &c, 1));
	MUST(setresgid(0, 0, 0));
	MUST(setresuid(0, 0, 0));
	MUST(prctl(PR_SET_DUMPABLE, 1));
	MUST(unshare(CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWTIME | CLONE_NEWCGROUP |
		     CLONE_NEWNS));
	put(getpid(), "timens_offsets", "monotonic 1000000 0");
	MUST(sethostname("held", 4));
	MUST(msgsnd(MUST(msgget(0x77, IPC_CREAT | 0600)), &m, sizeof(m.text), 0));
	segment = shmat(MUST(shmget(0x78, 4096, IPC_CREAT | 0600)), NULL, 0);
	strcpy(segment, "kept");
	loopback_up();
	MUST(mount("held", "/mnt", "tmpfs", 0, "size=64k"));
	close(MUST(open("/mnt/file", O_WRONLY | O_CREAT, 0600)));
	MUST(write(to, "", 1));
	MUST(read(from, &c, 1));
	_exit(0);
}

static void wait_for(int fd)
{
	char c;

	MUST(read(fd, &c, 1) == 1 ? 0 : -1);
}

static void hold(void)
{
	int up[2], down[2], inner_up[2], inner_down[2], status;
	pid_t outer, inner;

	MUST(pipe(up));
	MUST(pipe(down));
	outer = MUST(fork());
	if (outer == 0)
		make_outer(up[1], down[0]);
	wait_for(up[0]);
	put(outer, "uid_map", "0 100000 1000\n2000 300000 5");
	put(outer, "gid_map", "0 100000 1000");
	MUST(write(down[1], "", 1));
	wait_for(up[0]);
	for (int i = USER; i <= MNT; i++)
		fds[i] = open_of(outer, i == TIME ? "time_for_children" : held[i].name);
	MUST(pipe(inner_up));
	MUST(pipe(inner_down));
	inner = MUST(fork());
	if (inner == 0) {
		MUST(setns(fds[USER], CLONE_NEWUSER));
		MUST(setresgid(0, 0, 0));
		MUST(setresuid(0, 0, 0));
		make_inner(inner_up[1], inner_down[0]);
	}
	wait_for(inner_up[0]);
	fds[INNER] = open_of(inner, "user");
	fds[INNER_UTS] = open_of(inner, "uts");
	MUST(write(inner_down[1], "", 1));
	MUST(waitpid(inner, &status, 0));
	MUST(write(down[1], "", 1));
	MUST(waitpid(outer, &status, 0));
	for (int i = 0; i < 2; i++) {
		close(up[i]);
		close(down[i]);
		close(inner_up[i]);
		close(inner_down[i]);
	}
	twin = MUST(dup(fds[UTS]));
}

static void start_child(void)
{
	int to[2], own = open_of(getpid(), "pid");

	MUST(unshare(CLONE_NEWPID));
	MUST(pipe(to));
	child = MUST(fork());
	if (child == 0) {
		MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
		MUST(unshare(CLONE_NEWUTS));
		MUST(sethostname("child", 5));
		MUST(write(to[1], "", 1));
		for (;;)
			pause();
	}
	MUST(setns(own, CLONE_NEWPID));
	close(own);
	wait_for(to[0]);
	close(to[0]);
	close(to[1]);
	child_uts = open_of(child, "uts");
	child_pid = open_of(child, "pid");
	own_net = open_of(getpid(), "net");
}

/* ---- judging --------------------------------------------------------------------------- */

static bool same(int a, int b)
{
	struct stat x, y;

	return !fstat(a, &x) && !fstat(b, &y) && x.st_ino == y.st_ino && x.st_dev == y.st_dev;
}

static void check_relations(void)
{
	for (int i = 0; i < HELD; i++) {
		int owner = ioctl(fds[i],
				  held[i].flag == CLONE_NEWUSER ? NS_GET_PARENT : NS_GET_USERNS);
		int wanted = held[i].owner < 0 ? open_of(getpid(), "user") : fds[held[i].owner];

		CHECK(ioctl(fds[i], NS_GET_NSTYPE) == held[i].flag, "%s: another type",
		      held[i].name);
		CHECK(owner >= 0 && same(owner, wanted), "%s: another owner", held[i].name);
		CHECK(fcntl(fds[i], F_GETFD) == FD_CLOEXEC, "%s: FD_CLOEXEC", held[i].name);
		close(owner);
		if (held[i].owner < 0)
			close(wanted);
	}
	CHECK(same(twin, fds[UTS]) && fcntl(twin, F_GETFD) == 0, "the duplicate");
	for (int i = 0; i < 3; i++) {
		static const char *const names[] = { "uts", "pid", "net" };
		const int fd[] = { child_uts, child_pid, own_net };
		int now = open_of(i < 2 ? child : getpid(), names[i]);

		CHECK(same(now, fd[i]), "%s: not where somebody is", names[i]);
		close(now);
	}
}

static const char *visit_names(int fd)
{
	static struct utsname u;

	return setns(fd, CLONE_NEWUTS) || uname(&u) ? "?" : u.nodename;
}

/* In a child that goes there: the number of what is wrong, or 0. */
static int visit(void)
{
	struct ifreq lo = { .ifr_name = "lo" };
	struct timespec before, after;
	struct {
		long type;
		char text[8];
	} m;
	int id, s, status;
	const char *segment;
	pid_t pid;

	if (strcmp(visit_names(fds[UTS]), "held") || strcmp(visit_names(fds[INNER_UTS]), "inner"))
		return 1;
	if (setns(fds[IPC], CLONE_NEWIPC) || (id = msgget(0x77, 0)) < 0 ||
	    msgrcv(id, &m, sizeof(m.text), 0, MSG_COPY | IPC_NOWAIT) != sizeof(m.text) ||
	    strcmp(m.text, "queued"))
		return 2;
	segment = shmat(shmget(0x78, 0, 0), NULL, 0);
	if (segment == (void *)-1 || strcmp(segment, "kept"))
		return 9;
	if (setns(fds[NET], CLONE_NEWNET) || (s = socket(AF_INET, SOCK_DGRAM, 0)) < 0 ||
	    ioctl(s, SIOCGIFFLAGS, &lo) || !(lo.ifr_flags & IFF_UP))
		return 3;
	clock_gettime(CLOCK_MONOTONIC, &before);
	if (setns(fds[TIME], CLONE_NEWTIME) || clock_gettime(CLOCK_MONOTONIC, &after) ||
	    after.tv_sec - before.tv_sec < 900000)
		return 4;
	if (setns(fds[CGROUP], CLONE_NEWCGROUP))
		return 5;
	if (setns(fds[MNT], CLONE_NEWNS) || access("/mnt/file", F_OK))
		return 6;
	if (setns(fds[USER], CLONE_NEWUSER) || setresuid(2004, 2004, 2004))
		return 7;
	pid = fork();
	if (pid == 0)
		_exit(setuid(1500) == 0);
	return pid < 0 || waitpid(pid, &status, 0) < 0 || status ? 8 : 0;
}

static void check(void)
{
	int status = -1;
	pid_t pid;

	check_relations();
	pid = MUST(fork());
	if (pid == 0)
		_exit(visit());
	MUST(waitpid(pid, &status, 0));
	CHECK(status == 0, "who goes there finds: %x", status);
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	hold();
	start_child();
	victim_ready();
	victim_serve(check);
}
