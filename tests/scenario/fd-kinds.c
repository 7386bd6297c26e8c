/* SPDX-License-Identifier: MIT */
/*
 * Signalfds, pidfds (of the parent, a child, a zombie, itself, and one that was
 * reaped), O_PATH descriptors, FIFOs, files of /proc, owners of descriptors.
 */
#include "victim.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int sfd, child_sfd;
static int pid_self, pid_child, pid_zombie, pid_reaped, pid_killed, pid_dup;
static int thread_flag; /* of pid_dup */
static int reaped_events;
static pid_t child, zombie;
static int path_dir, path_file, path_link, path_proc;
static int fifo_r, fifo_w, fifo_rw, fifo_straight, quiet_r, left_r, late_r;
static int proc_status, proc_dir, proc_comm, proc_mem, proc_global;
static int own_r, own_w, grp_r, grp_w, plain_r, plain_w;
static int fds_before;
static unsigned char watched[64];
static off_t dir_pos, status_pos;

static pid_t spawn(void (*run)(void))
{
	pid_t pid = MUST(fork());

	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		run();
		_exit(0);
	}
	return pid;
}

static void wait_forever(void)
{
	for (;;)
		pause();
}

static void exit_42(void)
{
	_exit(42);
}

static int pidfd_of(pid_t pid, unsigned flags)
{
	return (int)MUST(syscall(SYS_pidfd_open, pid, flags));
}

static void build_signals(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	sigaddset(&set, SIGRTMIN + 3);
	MUST(sigprocmask(SIG_BLOCK, &set, NULL));
	sfd = MUST(signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
	sigaddset(&set, SIGHUP);
	child_sfd = MUST(signalfd(-1, &set, SFD_NONBLOCK));
	MUST(sigqueue(getpid(), SIGRTMIN + 3, (union sigval){ .sival_int = 77 }));
}

static int readable(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, 0) == 1 ? p.revents : 0;
}

static void build_pidfds(void)
{
	pid_t gone;
	int status;

	child = spawn(wait_forever);
	zombie = spawn(exit_42);
	MUST(waitid(P_PID, (id_t)zombie, &(siginfo_t){ 0 }, WEXITED | WNOWAIT));
	pid_self = pidfd_of(getpid(), 0);
	pid_child = pidfd_of(child, O_NONBLOCK);
	/* those of threads are newer than pidfds */
	thread_flag = victim_thread_pidfds() ? O_EXCL : 0;
	pid_dup = pidfd_of(child, (unsigned)thread_flag);
	pid_zombie = pidfd_of(zombie, 0);
	gone = spawn(exit_42);
	pid_reaped = pidfd_of(gone, 0);
	MUST(waitpid(gone, &status, 0));
	gone = spawn(wait_forever);
	pid_killed = pidfd_of(gone, O_NONBLOCK);
	MUST(kill(gone, SIGKILL));
	MUST(waitpid(gone, &status, 0));
	/* that they hang up, too, is newer than pidfds */
	reaped_events = readable(pid_killed);
	if (!(reaped_events & POLLIN))
		victim_die("the reaped are not reported: %#x", reaped_events);
}

static void build_paths(void)
{
	char *file = victim_path("file"), *link = victim_path("link");

	close(MUST(open(file, O_WRONLY | O_CREAT, 0600)));
	MUST(symlink(file, link));
	path_dir = MUST(open(victim_dir(), O_PATH | O_DIRECTORY));
	path_file = MUST(open(file, O_PATH | O_CLOEXEC));
	path_link = MUST(open(link, O_PATH | O_NOFOLLOW));
	path_proc = MUST(open("/proc/self", O_PATH | O_DIRECTORY));
}

static void build_fifos(void)
{
	char *path = victim_path("fifo"), *quiet = victim_path("quiet"),
	     *left = victim_path("left");
	int fd;

	MUST(mkfifo(path, 0640));
	fifo_r = MUST(open(path, O_RDONLY | O_NONBLOCK));
	fifo_w = MUST(open(path, O_WRONLY | O_CLOEXEC));
	fifo_rw = MUST(open(path, O_RDWR | O_NONBLOCK));
	fifo_straight = MUST(open(path, O_RDWR | O_NONBLOCK | O_NOFOLLOW));
	MUST(fcntl(fifo_w, F_SETPIPE_SZ, 128 * 1024));
	MUST(write(fifo_w, "queued in a fifo", 16));
	MUST(mkfifo(quiet, 0600));
	quiet_r = MUST(open(quiet, O_RDONLY | O_NONBLOCK));
	/* a writer has come and gone, and after it another reader has come */
	MUST(mkfifo(left, 0600));
	left_r = MUST(open(left, O_RDONLY | O_NONBLOCK));
	fd = MUST(open(left, O_WRONLY));
	MUST(write(fd, "left behind", 11));
	close(fd);
	late_r = MUST(open(left, O_RDONLY | O_NONBLOCK));
}

static void build_proc(void)
{
	char path[64], buf[100];

	snprintf(path, sizeof(path), "/proc/%d/comm", child);
	proc_comm = MUST(open(path, O_RDWR));
	proc_status = MUST(open("/proc/self/status", O_RDONLY));
	MUST(read(proc_status, buf, sizeof(buf)));
	status_pos = lseek(proc_status, 0, SEEK_CUR);
	proc_dir = MUST(open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	MUST(syscall(SYS_getdents64, proc_dir, buf, sizeof(buf)));
	dir_pos = lseek(proc_dir, 0, SEEK_CUR);
	proc_mem = MUST(open("/proc/self/mem", O_RDONLY));
	proc_global = MUST(open("/proc/sys/kernel/pid_max", O_RDONLY));
}

static void build_owners(void)
{
	struct f_owner_ex group = { F_OWNER_PGRP, getpid() };
	int p[2];

	MUST(pipe(p));
	own_r = p[0];
	own_w = p[1];
	MUST(fcntl(own_r, F_SETOWN, getpid()));
	MUST(fcntl(own_r, F_SETSIG, SIGRTMIN + 3));
	MUST(fcntl(own_r, F_SETFL, O_ASYNC | O_NONBLOCK));
	MUST(pipe(p));
	grp_r = p[0];
	grp_w = p[1];
	MUST(setresuid(-1, 65534, -1));
	MUST(fcntl(grp_r, F_SETOWN_EX, &group));
	MUST(setresuid(-1, 0, -1));
	MUST(pipe(p));
	plain_r = p[0];
	plain_w = p[1];
	MUST(fcntl(plain_r, F_SETSIG, SIGUSR2));
}

/* ---- checks ------------------------------------------------------------------------- */

static void check_flags(int fd, int flags, int cloexec, const char *what)
{
	int got = fcntl(fd, F_GETFL), fdflags = fcntl(fd, F_GETFD);

	CHECK(got == flags, "%s: flags %#o, not %#o", what, got, flags);
	CHECK(fdflags == cloexec, "%s: descriptor flags %d, not %d", what, fdflags, cloexec);
}

static void check_signals(void)
{
	struct signalfd_siginfo si = { 0 };

	check_flags(sfd, O_RDWR | O_NONBLOCK, FD_CLOEXEC, "signalfd");
	CHECK(read(sfd, &si, sizeof(si)) == sizeof(si) && si.ssi_signo == (unsigned)SIGRTMIN + 3 &&
		      si.ssi_int == 77,
	      "the pending signal reads %u with %d", si.ssi_signo, si.ssi_int);
	CHECK(read(sfd, &si, sizeof(si)) == -1 && errno == EAGAIN, "another signal is pending");
	CHECK(!kill(getpid(), SIGUSR2) && read(sfd, &si, sizeof(si)) == sizeof(si) &&
		      si.ssi_signo == SIGUSR2,
	      "the signalfd reads %u", si.ssi_signo);
	sigqueue(getpid(), SIGRTMIN + 3, (union sigval){ .sival_int = 77 });
}

static int pid_in(int fd)
{
	char path[48];
	char *text;
	int pid = 0;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	text = victim_read(path);
	if (text && strstr(text, "\nPid:"))
		pid = atoi(strstr(text, "\nPid:") + 5);
	free(text);
	return pid;
}

static void check_pidfds(void)
{
	siginfo_t si = { 0 };

	check_flags(pid_child, O_RDWR | O_NONBLOCK, FD_CLOEXEC, "pidfd");
	check_flags(pid_dup, O_RDWR | thread_flag, FD_CLOEXEC, "pidfd of a thread");
	CHECK(pid_in(pid_self) == getpid(), "pidfd of itself: %d", pid_in(pid_self));
	CHECK(pid_in(pid_child) == child, "pidfd of the child: %d", pid_in(pid_child));
	CHECK(pid_in(pid_dup) == child, "pidfd of the child's thread: %d", pid_in(pid_dup));
	CHECK(pid_in(pid_zombie) == zombie, "pidfd of the zombie: %d", pid_in(pid_zombie));
	CHECK(pid_in(pid_reaped) == -1, "pidfd of the reaped: %d", pid_in(pid_reaped));
	CHECK(!readable(pid_child) && !readable(pid_self), "the living are reported dead");
	CHECK(readable(pid_zombie) == POLLIN, "the zombie is not reported");
	CHECK(readable(pid_reaped) == reaped_events && readable(pid_killed) == reaped_events,
	      "the reaped are not reported: %#x %#x", readable(pid_reaped), readable(pid_killed));
	CHECK(!waitid(P_PIDFD, (id_t)pid_zombie, &si, WEXITED | WNOWAIT) && si.si_pid == zombie &&
		      si.si_status == 42,
	      "waitid of the zombie: pid %d, status %d", si.si_pid, si.si_status);
	CHECK(!syscall(SYS_pidfd_send_signal, pid_child, 0, NULL, 0), "signalling the child: %s",
	      strerror(errno));
	CHECK(syscall(SYS_pidfd_send_signal, pid_reaped, 0, NULL, 0) == -1 && errno == ESRCH,
	      "the reaped gets signals");
}

static void check_paths(void)
{
	struct stat a, b;
	char buf[4096];
	ssize_t n;
	int fd;

	check_flags(path_dir, O_PATH | O_DIRECTORY, 0, "directory");
	check_flags(path_file, O_PATH, FD_CLOEXEC, "file");
	check_flags(path_link, O_PATH | O_NOFOLLOW, 0, "link");
	fd = openat(path_dir, "file", O_RDONLY);
	CHECK(fd >= 0, "openat: %s", strerror(errno));
	CHECK(!fstat(fd, &a) && !fstat(path_file, &b) && a.st_ino == b.st_ino,
	      "the O_PATH file is another");
	close(fd);
	n = readlinkat(path_link, "", buf, sizeof(buf));
	CHECK(n == (ssize_t)strlen(victim_path("file")), "the link reads %zd bytes", n);
	fd = openat(path_proc, "stat", O_RDONLY);
	n = read(fd, buf, 20);
	CHECK(n > 0 && atoi(buf) == getpid(), "/proc/self through O_PATH is of %d", atoi(buf));
	close(fd);
}

static int polled(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	MUST(poll(&p, 1, 0));
	return p.revents;
}

static void check_fifos(void)
{
	char buf[64];

	check_flags(fifo_r, O_RDONLY | O_NONBLOCK | 0100000, 0, "fifo, reading end");
	check_flags(fifo_w, O_WRONLY | 0100000, FD_CLOEXEC, "fifo, writing end");
	check_flags(fifo_rw, O_RDWR | O_NONBLOCK | 0100000, 0, "fifo, both ends");
	check_flags(fifo_straight, O_RDWR | O_NONBLOCK | O_NOFOLLOW | 0100000, 0,
		    "fifo, O_NOFOLLOW");
	CHECK(fcntl(fifo_r, F_GETPIPE_SZ) == 128 * 1024, "fifo size %d",
	      fcntl(fifo_r, F_GETPIPE_SZ));
	CHECK(read(fifo_r, buf, sizeof(buf)) == 16 && !memcmp(buf, "queued in a fifo", 16),
	      "the fifo holds something else");
	CHECK(read(fifo_rw, buf, 1) == -1 && errno == EAGAIN, "the fifo holds more");
	CHECK(write(fifo_w, "queued in a fifo", 16) == 16, "fifo: %s", strerror(errno));
	CHECK(read(quiet_r, buf, 1) == 0, "the quiet fifo has a writer");
	CHECK(polled(quiet_r) == 0, "a fifo that never had a writer polls %x", polled(quiet_r));
	CHECK(polled(left_r) == (POLLIN | POLLHUP), "a fifo's reader, who had a writer, polls %x",
	      polled(left_r));
	CHECK(polled(late_r) == POLLIN, "a fifo's reader, who came too late, polls %x",
	      polled(late_r));
}

static void check_proc(void)
{
	char buf[4096];
	ssize_t n;

	check_flags(proc_status, O_RDONLY | 0100000, 0, "status");
	check_flags(proc_dir, O_RDONLY | O_DIRECTORY | 0100000, FD_CLOEXEC, "fd directory");
	CHECK(lseek(proc_status, 0, SEEK_CUR) == status_pos, "status is at %ld",
	      (long)lseek(proc_status, 0, SEEK_CUR));
	CHECK(lseek(proc_dir, 0, SEEK_CUR) == dir_pos, "the directory is at %ld",
	      (long)lseek(proc_dir, 0, SEEK_CUR));
	n = pread(proc_status, buf, sizeof(buf) - 1, 0);
	buf[n > 0 ? n : 0] = 0;
	CHECK(strstr(buf, "\nPid:") && atoi(strstr(buf, "\nPid:") + 5) == getpid(),
	      "status is of another process");
	n = pread(proc_comm, buf, sizeof(buf), 0);
	CHECK(n > 1, "comm of the child: %zd", n);
	watched[7]++;
	CHECK(pread(proc_mem, buf, 1, (off_t)(unsigned long)&watched[7]) == 1 &&
		      (unsigned char)buf[0] == watched[7],
	      "/proc/self/mem shows other memory");
	n = pread(proc_global, buf, sizeof(buf), 0);
	CHECK(n > 1, "pid_max reads %zd", n);
}

static void check_owners(void)
{
	struct f_owner_ex ex = { 0 };
	struct timespec now = { 0 };
	siginfo_t si = { 0 };
	uid_t ids[2] = { 0 };
	sigset_t set;
	char c;

	check_flags(own_r, O_RDONLY | O_ASYNC | O_NONBLOCK, 0, "owned pipe");
	CHECK(fcntl(own_r, F_GETOWN) == getpid(), "owner %d", fcntl(own_r, F_GETOWN));
	CHECK(fcntl(own_r, F_GETSIG) == SIGRTMIN + 3, "signal %d", fcntl(own_r, F_GETSIG));
	CHECK(!fcntl(grp_r, F_GETOWN_EX, &ex) && ex.type == F_OWNER_PGRP && ex.pid == getpid(),
	      "owner type %d, %d", ex.type, ex.pid);
	CHECK(!fcntl(grp_r, 17, ids) && ids[0] == 0 && ids[1] == 65534, "set by %u, %u", ids[0],
	      ids[1]);
	CHECK(fcntl(plain_r, F_GETSIG) == SIGUSR2 && !fcntl(plain_r, F_GETOWN), "signal %d",
	      fcntl(plain_r, F_GETSIG));
	/* the one that is pending comes first */
	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN + 3);
	sigtimedwait(&set, &si, &now);
	CHECK(write(own_w, "x", 1) == 1, "write: %s", strerror(errno));
	CHECK(sigtimedwait(&set, &si, &now) == SIGRTMIN + 3 && si.si_fd == own_r,
	      "the pipe sends no signal, or for %d", si.si_fd);
	CHECK(read(own_r, &c, 1) == 1, "read: %s", strerror(errno));
	while (sigtimedwait(&set, &si, &now) > 0)
		;
	sigqueue(getpid(), SIGRTMIN + 3, (union sigval){ .sival_int = 77 });
}

static void check(void)
{
	check_signals();
	check_pidfds();
	check_paths();
	check_fifos();
	check_proc();
	check_owners();
	CHECK(victim_count_fds() == fds_before, "%d descriptors, not %d", victim_count_fds(),
	      fds_before);
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	build_signals();
	build_pidfds();
	build_paths();
	build_fifos();
	build_proc();
	build_owners();
	fds_before = victim_count_fds();
	victim_ready();
	victim_serve(check);
}
