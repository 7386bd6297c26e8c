/* SPDX-License-Identifier: MIT
 *
 * nest PIDFILE LOG HOST GROUP COMMAND...: a command below a small init in a container of all eight
 * types of namespaces, as container runtimes make them: a root of its own, tmpfs on /run, /tmp and
 * /dev, proc, sysfs, devpts and mqueue, the control group GROUP (which is there) as the root of its
 * hierarchy, clocks that are ahead. PIDFILE receives the init's pid as the caller sees it. It lives
 * until it is killed.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <net/if.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif

#define NEED(call) need((long)(call), #call, __LINE__)

static const unsigned long no_dev = MS_NOSUID | MS_NODEV,
			   nothing = MS_NOSUID | MS_NODEV | MS_NOEXEC;

static int need(long value, const char *call, int line)
{
	if (value >= 0)
		return (int)value;
	fprintf(stderr, "nest:%d: %s: %s\n", line, call, strerror(errno));
	exit(1);
}

static void put(const char *path, const char *text)
{
	int fd = NEED(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));

	NEED(write(fd, text, strlen(text)) == (ssize_t)strlen(text) ? 0 : -1);
	close(fd);
}

static void mount_new(const char *type, const char *at, unsigned long flags, const char *options)
{
	mkdir(at, 0755);
	NEED(mount(type, at, type, flags, options));
}

/* ---- before there is a user namespace: a root with what is in every container ------- */

static void bind_devices(void)
{
	static const char *const names[] = { "null", "zero", "full", "random", "urandom", "tty" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		char from[32], to[32];

		snprintf(from, sizeof(from), "/dev/%s", names[i]);
		snprintf(to, sizeof(to), "dev/%s", names[i]);
		close(NEED(open(to, O_CREAT | O_WRONLY, 0644)));
		NEED(mount(from, to, NULL, MS_BIND, NULL));
	}
	NEED(symlink("/proc/self/fd", "dev/fd"));
	NEED(symlink("pts/ptmx", "dev/ptmx"));
}

static void lay_out_root(void)
{
	NEED(unshare(CLONE_NEWNS));
	NEED(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
	NEED(mount("/", "/mnt", NULL, MS_BIND, NULL));
	NEED(chdir("/mnt"));
	mount_new("tmpfs", "dev", MS_NOSUID, "mode=755");
	mount_new("tmpfs", "run", no_dev, "mode=755,size=512m");
	mount_new("tmpfs", "tmp", no_dev, "mode=1777,size=512m");
	mount_new("tmpfs", "dev/shm", no_dev, "mode=1777");
	bind_devices();
	/* fully visible ones, without which the inner ones are not allowed */
	mount_new("proc", "proc", 0, NULL);
	mount_new("sysfs", "sys", 0, NULL);
	NEED(mkdir("run/old", 0755));
	NEED(syscall(SYS_pivot_root, ".", "run/old"));
	NEED(chdir("/"));
	NEED(umount2("/run/old", MNT_DETACH));
	NEED(rmdir("/run/old"));
}

/* ---- inside ---------------------------------------------------------------------------- */

static void lay_out_inside(const char *host)
{
	struct ifreq lo = { .ifr_name = "lo", .ifr_flags = IFF_UP };
	int fd = NEED(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));

	NEED(ioctl(fd, SIOCSIFFLAGS, &lo));
	close(fd);
	NEED(sethostname(host, strlen(host)));
	NEED(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
	mount_new("proc", "/proc", nothing, NULL);
	mount_new("sysfs", "/sys", nothing | MS_RDONLY, NULL);
	/* there need not be one of version 2 */
	mount("cgroup2", "/sys/fs/cgroup", "cgroup2", nothing, NULL);
	mount_new("devpts", "/dev/pts", MS_NOSUID | MS_NOEXEC,
		  "newinstance,ptmxmode=0666,mode=620");
	mount_new("mqueue", "/dev/mqueue", nothing, NULL);
}

static _Noreturn void be_init(const char *host, int log, char **command)
{
	int null;

	setsid();
	lay_out_inside(host);
	null = NEED(open("/dev/null", O_RDWR));
	NEED(dup2(null, 0));
	NEED(dup2(log, 1));
	NEED(dup2(log, 2));
	NEED(syscall(SYS_close_range, 3, ~0U, 0));
	if (NEED(fork()) == 0) {
		setsid();
		NEED(execvp(command[0], command));
	}
	NEED(prctl(PR_SET_NAME, "nest-init"));
	for (;;)
		if (wait(NULL) < 0)
			pause();
}

/* ---- making it --------------------------------------------------------------------------- */

static void hear(int fd)
{
	char c;

	NEED(read(fd, &c, 1) == 1 ? 0 : -1);
}

static void write_maps(pid_t pid)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/uid_map", pid);
	put(path, "0 0 65536\n");
	snprintf(path, sizeof(path), "/proc/%d/gid_map", pid);
	put(path, "0 0 65536\n");
}

/* In between: enters the namespaces, and leaves after the fork. Returns in the init only. */
static void enter(int told, int tell)
{
	pid_t init;

	setsid();
	NEED(unshare(CLONE_NEWUSER));
	NEED(write(tell, "", 1));
	hear(told);
	NEED(setgid(0));
	NEED(setuid(0));
	NEED(setgroups(0, NULL));
	NEED(prctl(PR_SET_DUMPABLE, 1));
	NEED(unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET |
		     CLONE_NEWCGROUP | CLONE_NEWTIME));
	put("/proc/self/timens_offsets", "monotonic 100000 0\nboottime 100000 0\n");
	init = NEED(fork());
	if (init) {
		/* our pid namespace is still the caller's */
		NEED(write(tell, &init, sizeof(init)));
		_exit(0);
	}
}

int main(int argc, char **argv)
{
	int go[2], ready[2], pidfile, log, status;
	char path[512];
	pid_t maker, init = 0;

	if (argc < 6)
		return 2;
	pidfile = NEED(open(argv[1], O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0644));
	log = NEED(open(argv[2], O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0644));
	if (argv[4][0]) {
		snprintf(path, sizeof(path), "%s/cgroup.procs", argv[4]);
		put(path, "0");
	}
	lay_out_root();
	NEED(pipe2(go, O_CLOEXEC));
	NEED(pipe2(ready, O_CLOEXEC));
	maker = NEED(fork());
	if (maker == 0) {
		close(go[1]);
		close(ready[0]);
		enter(go[0], ready[1]);
		be_init(argv[3], log, argv + 5);
	}
	close(ready[1]);
	hear(ready[0]);
	write_maps(maker);
	NEED(write(go[1], "", 1));
	NEED(waitpid(maker, &status, 0));
	NEED(!status && read(ready[0], &init, sizeof(init)) == sizeof(init) ? 0 : -1);
	NEED(dprintf(pidfile, "%d\n", init));
	return 0;
}
