/* SPDX-License-Identifier: MIT */
/*
 * Two containers, one with a user namespace, each with a devpts of its own, and terminals in
 * that: a shell with its session, foreground job and /dev/tty; one that is hung up; one whose
 * slave is bound to /dev/console; one whose master was opened by a ptmx that is bound
 * elsewhere. Outside of them is another terminal of the same number.
 *
 * A devpts with open terminals is mounted before all others.
 * test: ignore=mounts order of all:
 */
#include "victim.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <termios.h>
#include <unistd.h>

enum { PLAIN, USER, CONTAINERS };

static int question[CONTAINERS][2], reply[CONTAINERS][2], start[2];
static int shell_master, hung_slave, console_master, console, bound_master, bound_slave;
static int outer_master, outer_slave;
static pid_t shell, front;
static unsigned lines, bytes;

/* ---- in the terminal ------------------------------------------------------------------- */

static _Noreturn void job(void)
{
	char line[64], answer[128], name[64] = "none";
	unsigned n = 0;
	int tty = open("/dev/tty", O_RDWR);

	setpgid(0, 0);
	/* the shell gives us the foreground, and says so by one line */
	for (;;) {
		ssize_t len = read(0, line, sizeof(line) - 1);

		if (len <= 0)
			_exit(1);
		line[len] = 0;
		ttyname_r(0, name, sizeof(name));
		len = snprintf(answer, sizeof(answer), "%u %s %d %s", ++n, name,
			       tcgetpgrp(tty) == getpid(), line);
		if (write(tty, answer, (size_t)len) != len)
			_exit(1);
	}
}

static _Noreturn void run_shell(int slave)
{
	pid_t pid;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (setsid() < 0 || ioctl(slave, TIOCSCTTY, 0))
		_exit(1);
	for (int i = 0; i < 3; i++)
		dup2(slave, i);
	signal(SIGTTOU, SIG_IGN);
	signal(SIGTTIN, SIG_IGN);
	pid = fork();
	if (!pid) {
		/* it reads nothing before it is in front */
		setpgid(0, 0);
		tcsetpgrp(0, getpid());
		signal(SIGTTOU, SIG_DFL);
		job();
	}
	for (;;)
		pause();
}

/* ---- the container --------------------------------------------------------------------- */

static const char *ask_shell(void)
{
	static char text[256];
	size_t n = 0;
	char line[32];
	int len = snprintf(line, sizeof(line), "line %u\n", ++lines);

	if (write(shell_master, line, (size_t)len) != len)
		return strerror(errno);
	while (n < sizeof(text) - 1) {
		struct pollfd p = { .fd = shell_master, .events = POLLIN };

		if (poll(&p, 1, 30000) <= 0 || read(shell_master, text + n, 1) != 1)
			break;
		if (text[n++] == '\n')
			break;
	}
	text[n] = 0;
	return text;
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

static void check_pair(int master, int slave, const char *what)
{
	char sent = (char)('a' + bytes % 26), got = 0;

	CHECK(write(slave, &sent, 1) == 1 && read(master, &got, 1) == 1 && got == sent,
	      "%s: sent '%c', got '%c'", what, sent, got);
}

static void check_container(void)
{
	char wanted[128], name[64] = "", byte;
	const char *got = ask_shell();
	struct stat st;
	int fd;

	snprintf(wanted, sizeof(wanted), "%u /dev/pts/0 1 line %u\n", lines, lines);
	CHECK(!strcmp(got, wanted), "the terminal says '%s', not '%s'", got, wanted);
	CHECK(tcgetsid(shell_master) == shell && tcgetpgrp(shell_master) == front,
	      "session %d, foreground %d", tcgetsid(shell_master), tcgetpgrp(shell_master));
	CHECK(!ptsname_r(shell_master, name, sizeof(name)) && !strcmp(name, "/dev/pts/0"),
	      "its slave is '%s'", name);
	CHECK(has_link(shell_master, "/dev/pts/ptmx"), "the master is no /dev/pts/ptmx");
	CHECK(!stat("/dev/pts/0", &st) && st.st_uid == 7 && st.st_gid == 5 &&
		      (st.st_mode & 07777) == 0640,
	      "the node is of %u:%u, %o", st.st_uid, st.st_gid, st.st_mode);
	CHECK(read(hung_slave, &byte, 1) <= 0 && write(hung_slave, "x", 1) < 0 && errno == EIO,
	      "the hung up slave is alive");
	bytes++;
	check_pair(console_master, console, "console");
	CHECK(has_link(console, "/dev/console"), "the console is elsewhere");
	check_pair(bound_master, bound_slave, "bound");
	CHECK(has_link(bound_master, "/dev/ptmx"), "the bound ptmx is elsewhere");
	fd = ioctl(bound_master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
	CHECK(fd >= 0 && has_link(fd, "/dev/pts/3"), "the peer of the bound one is elsewhere");
	close(fd);
	fd = open("/dev/pts/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
	CHECK(fd >= 0 && !ptsname_r(fd, name, sizeof(name)) && !strcmp(name, "/dev/pts/4"),
	      "a new terminal is '%s'", name);
	close(fd);
}

static int open_master(const char *ptmx)
{
	int fd = MUST(open(ptmx, O_RDWR | O_NOCTTY | O_CLOEXEC));

	MUST(unlockpt(fd));
	return fd;
}

static void enter_root(void)
{
	MUST(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
	MUST(mount("root", victim_path("c"), "tmpfs", MS_NOSUID, "mode=755,size=1m"));
	MUST(chdir(victim_path("c")));
	MUST(mkdir("proc", 0555));
	MUST(mkdir("dev", 0755));
	MUST(mkdir("old", 0755));
	MUST(mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL));
	MUST(mount("dev", "dev", "tmpfs", MS_NOSUID, "mode=755"));
	MUST(close(MUST(open("dev/tty", O_CREAT | O_WRONLY, 0644))));
	MUST(mount("/dev/tty", "dev/tty", NULL, MS_BIND, NULL));
	MUST(mkdir("dev/pts", 0755));
	MUST(mount("devpts", "dev/pts", "devpts", MS_NOSUID | MS_NOEXEC,
		   "newinstance,ptmxmode=0666,mode=620,gid=5"));
	MUST(close(MUST(open("dev/ptmx", O_CREAT | O_WRONLY, 0644))));
	MUST(mount("dev/pts/ptmx", "dev/ptmx", NULL, MS_BIND, NULL));
	MUST(mkdir("dev/shm", 01777));
	MUST(mount("shm", "dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "size=1m"));
	MUST(syscall(SYS_pivot_root, ".", "old"));
	MUST(chdir("/"));
	MUST(umount2("/old", MNT_DETACH));
	MUST(rmdir("/old"));
}

static void open_terminals(void)
{
	int slave, hung;
	struct termios t;

	shell_master = open_master("/dev/pts/ptmx");
	slave = MUST(open("/dev/pts/0", O_RDWR | O_NOCTTY | O_CLOEXEC));
	MUST(fchown(slave, 7, 5));
	MUST(fchmod(slave, 0640));
	MUST(tcgetattr(slave, &t));
	t.c_lflag &= ~(tcflag_t)ECHO;
	t.c_oflag = 0;
	MUST(tcsetattr(slave, TCSANOW, &t));
	shell = MUST(fork());
	if (!shell)
		run_shell(slave);
	close(slave);
	hung = open_master("/dev/pts/ptmx");
	hung_slave = MUST(open("/dev/pts/1", O_RDWR | O_NOCTTY | O_CLOEXEC));
	console_master = open_master("/dev/pts/ptmx");
	MUST(close(MUST(open("/dev/console", O_CREAT | O_WRONLY, 0644))));
	MUST(mount("/dev/pts/2", "/dev/console", NULL, MS_BIND, NULL));
	console = MUST(open("/dev/console", O_RDWR | O_NOCTTY | O_CLOEXEC));
	bound_master = open_master("/dev/ptmx");
	bound_slave = MUST(open("/dev/pts/3", O_RDWR | O_NOCTTY | O_CLOEXEC));
	MUST(close(hung));
}

static _Noreturn void container(int which)
{
	char c;

	MUST(prctl(PR_SET_NAME, "container"));
	MUST(setsid());
	close(outer_master);
	close(outer_slave);
	/* until its ids are there */
	MUST(read(start[0], &c, 1));
	enter_root();
	open_terminals();
	/* the first answer tells that the job is in front */
	if (!strstr(ask_shell(), " 1 line 1\n"))
		victim_die("no job in the foreground");
	front = MUST(tcgetpgrp(shell_master));
	MUST(write(reply[which][1], "", 1));
	victim_answer(question[which][0], reply[which][1], check_container);
}

/* ---- the root ---------------------------------------------------------------------------- */

static void check(void)
{
	bytes++;
	check_pair(outer_master, outer_slave, "outside");
	for (int i = 0; i < CONTAINERS; i++)
		victim_ask(question[i][1], reply[i][0], "container %d", i);
}

static void start_container(int which)
{
	unsigned long flags = CLONE_NEWPID | CLONE_NEWNS | SIGCHLD;
	pid_t pid;
	char c;

	if (which == USER)
		flags |= CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWIPC;
	MUST(pipe(question[which]));
	MUST(pipe(reply[which]));
	pid = MUST(syscall(SYS_clone, flags, 0, 0, 0, 0));
	if (!pid)
		container(which);
	if (which == USER) {
		victim_map(pid, "0 0 1000");
	}
	MUST(write(start[1], "", 1));
	if (read(reply[which][0], &c, 1) != 1)
		victim_die("no container");
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	MUST(pipe(start));
	MUST(mkdir(victim_path("c"), 0755));
	outer_master = open_master("/dev/ptmx");
	outer_slave = MUST(open(ptsname(outer_master), O_RDWR | O_NOCTTY | O_CLOEXEC));
	for (int i = 0; i < CONTAINERS; i++)
		start_container(i);
	victim_ready();
	victim_serve(check);
}
