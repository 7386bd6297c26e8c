/* SPDX-License-Identifier: MIT */
/*
 * Pseudo terminals with both ends in the tree: one with a session, a foreground and a background
 * group, as a shell would have it; one in every mode; one that is hung up; a master alone.
 */
#include "victim.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#define INTR_KEY 0x0b

static int shell_master, mode_master, mode_slave, hung_slave, lone_master, closed_master;
static pid_t shell, front;
static int lines, interrupts, shown = 41;
static struct termios wanted;

/* ---- inside the terminal --------------------------------------------------------- */

static int tty;
static volatile sig_atomic_t n_interrupts;

static void say(const char *text)
{
	if (write(tty, text, strlen(text)) < 0)
		_exit(1);
}

/* In a signal handler; there is no end to the checks of a fault run. */
static void put_number(char *to, int digits, int n)
{
	for (; digits--; n /= 10)
		to[digits] = (char)('0' + n % 10);
}

static void on_interrupt(int sig)
{
	char text[] = "int 00000\n";

	(void)sig;
	put_number(text + 4, 5, ++n_interrupts);
	say(text);
}

static void on_resize(int sig)
{
	char text[] = "rows 00000\n";
	struct winsize w;

	(void)sig;
	if (ioctl(tty, TIOCGWINSZ, &w))
		_exit(1);
	put_number(text + 5, 5, w.ws_row);
	say(text);
}

/* A job in the foreground: answers lines and signals. */
static void job(void)
{
	struct sigaction interrupt = { .sa_handler = on_interrupt, .sa_flags = SA_RESTART };
	struct sigaction resize = { .sa_handler = on_resize, .sa_flags = SA_RESTART };
	char line[64], answer[96];
	int n = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	setpgid(0, 0);
	tty = open("/dev/tty", O_RDWR);
	sigaction(SIGINT, &interrupt, NULL);
	sigaction(SIGWINCH, &resize, NULL);
	/* the shell puts us into the foreground */
	while (tcgetpgrp(tty) != getpid())
		usleep(1000);
	say("front\n");
	for (;;) {
		ssize_t len = read(0, line, sizeof(line) - 1);

		if (len <= 0)
			_exit(1);
		line[len] = '\0';
		n++;
		snprintf(answer, sizeof(answer), "%d %d %s", n, tcgetpgrp(tty) == getpid(), line);
		say(answer);
	}
}

static void idle(int detach)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	setpgid(0, 0);
	if (detach)
		ioctl(0, TIOCNOTTY);
	for (;;)
		pause();
}

static void run_shell(int slave)
{
	pid_t pid;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (setsid() < 0 || ioctl(slave, TIOCSCTTY, 0))
		_exit(1);
	for (int i = 0; i < 3; i++)
		dup2(slave, i);
	signal(SIGTTOU, SIG_IGN);
	for (int i = 0; i < 2; i++)
		if (!fork())
			idle(i);
	pid = fork();
	if (!pid) {
		signal(SIGTTOU, SIG_DFL);
		job();
	}
	setpgid(pid, pid);
	tcsetpgrp(0, pid);
	for (;;)
		pause();
}

/* ---- outside of it ------------------------------------------------------------------ */

static const char *next_line(void)
{
	static char text[128];
	size_t n = 0;

	while (n < sizeof(text) - 1) {
		struct pollfd p = { .fd = shell_master, .events = POLLIN };

		if (poll(&p, 1, 30000) <= 0 || read(shell_master, text + n, 1) != 1)
			break;
		if (text[n++] == '\n')
			break;
	}
	text[n] = '\0';
	return text;
}

static void check_line(const char *sent, size_t len, const char *expected)
{
	const char *got;

	CHECK(write(shell_master, sent, len) == (ssize_t)len, "writing: %s", strerror(errno));
	got = next_line();
	CHECK(!strcmp(got, expected), "the terminal says '%s', not '%s'", got, expected);
}

static void check_shell(void)
{
	struct termios now;
	struct winsize w;
	char sent[32], expected[64];
	const char *got;

	CHECK(!tcgetattr(shell_master, &now), "tcgetattr: %s", strerror(errno));
	CHECK(now.c_lflag == wanted.c_lflag && now.c_iflag == wanted.c_iflag &&
		      now.c_oflag == wanted.c_oflag && now.c_cflag == wanted.c_cflag &&
		      !memcmp(now.c_cc, wanted.c_cc, sizeof(now.c_cc)) &&
		      cfgetospeed(&now) == B9600,
	      "termios has changed");
	CHECK(!ioctl(shell_master, TIOCGWINSZ, &w) && w.ws_row == shown && w.ws_col == 132,
	      "the window is %u x %u", w.ws_row, w.ws_col);
	CHECK(tcgetsid(shell_master) == shell, "the session is %d, was %d", tcgetsid(shell_master),
	      shell);
	CHECK(tcgetpgrp(shell_master) == front, "the foreground is %d, was %d",
	      tcgetpgrp(shell_master), front);
	lines++;
	snprintf(sent, sizeof(sent), "line %d\n", lines);
	snprintf(expected, sizeof(expected), "%d 1 %s", lines, sent);
	check_line(sent, strlen(sent), expected);
	interrupts++;
	snprintf(expected, sizeof(expected), "int %05d\n", interrupts);
	check_line((char[]){ INTR_KEY }, 1, expected);
	w.ws_row = (unsigned short)++shown;
	CHECK(!ioctl(shell_master, TIOCSWINSZ, &w), "TIOCSWINSZ: %s", strerror(errno));
	snprintf(expected, sizeof(expected), "rows %05d\n", shown);
	got = next_line();
	CHECK(!strcmp(got, expected), "the terminal says '%s', not '%s'", got, expected);
}

static void check_modes(void)
{
	int locked = 0, packet = 0, exclusive = 0, n = 0;
	char buf[16] = { 0 };
	struct stat st;

	CHECK(!ioctl(mode_master, TIOCGPTLCK, &locked) && locked, "it is not locked");
	CHECK(!ioctl(mode_master, TIOCGPKT, &packet) && packet, "packet mode is off");
	CHECK(!ioctl(mode_slave, TIOCGEXCL, &exclusive) && exclusive, "it is not exclusive");
	CHECK(!fstat(mode_slave, &st) && st.st_uid == 12 && st.st_gid == 34 &&
		      (st.st_mode & 07777) == 0612,
	      "the node is of %u:%u, %o", st.st_uid, st.st_gid, st.st_mode);
	CHECK(fcntl(mode_slave, F_GETFL) & O_NONBLOCK, "the slave may block");
	CHECK(write(mode_slave, "x", 1) == 1, "writing to the slave: %s", strerror(errno));
	CHECK((n = (int)read(mode_master, buf, sizeof(buf))) == 2 && !buf[0] && buf[1] == 'x',
	      "the master reads %d bytes", n);
}

static void check(void)
{
	char byte;
	struct pollfd p = { .fd = lone_master, .events = POLLIN };

	check_shell();
	check_modes();
	CHECK(read(hung_slave, &byte, 1) <= 0, "the hung up slave can be read");
	CHECK(write(hung_slave, "x", 1) < 0 && errno == EIO, "the hung up slave can be written");
	CHECK(poll(&p, 1, 0) == 0, "the lone master is ready: %#x", p.revents);
	p.fd = closed_master;
	CHECK(poll(&p, 1, 0) == 1 && p.revents & POLLHUP, "the closed one is not: %#x", p.revents);
}

/* ---- building ---------------------------------------------------------------------- */

static int open_master(void)
{
	int fd = MUST(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));

	MUST(grantpt(fd));
	MUST(unlockpt(fd));
	return fd;
}

static int open_slave(int master, int flags)
{
	return (int)MUST(open(ptsname(master), flags | O_NOCTTY | O_CLOEXEC));
}

static void build_shell(void)
{
	struct winsize w = { .ws_row = (unsigned short)shown, .ws_col = 132, .ws_xpixel = 7 };
	int slave;

	shell_master = open_master();
	slave = open_slave(shell_master, O_RDWR);
	MUST(tcgetattr(slave, &wanted));
	wanted.c_lflag &= ~(tcflag_t)(ECHO | ECHOE | ECHOK);
	wanted.c_oflag = 0;
	wanted.c_cc[VINTR] = INTR_KEY;
	cfsetspeed(&wanted, B9600);
	MUST(tcsetattr(slave, TCSANOW, &wanted));
	MUST(tcgetattr(slave, &wanted));
	MUST(ioctl(slave, TIOCSWINSZ, &w));
	shell = MUST(fork());
	if (!shell)
		run_shell(slave);
	close(slave);
	if (strcmp(next_line(), "front\n") != 0)
		victim_die("no job in the foreground");
	front = MUST(tcgetpgrp(shell_master));
}

static void build_modes(void)
{
	int on = 1, hung_master;

	mode_master = open_master();
	mode_slave = open_slave(mode_master, O_WRONLY | O_NONBLOCK);
	MUST(fchown(mode_slave, 12, 34));
	MUST(fchmod(mode_slave, 0612));
	MUST(ioctl(mode_master, TIOCPKT, &on));
	MUST(ioctl(mode_master, TIOCSPTLCK, &on));
	MUST(ioctl(mode_slave, TIOCEXCL));
	hung_master = open_master();
	hung_slave = open_slave(hung_master, O_RDWR);
	close(hung_master);
	lone_master = open_master();
	closed_master = open_master();
	close(open_slave(closed_master, O_RDWR));
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	build_shell();
	build_modes();
	victim_ready();
	victim_serve(check);
}
