/* SPDX-License-Identifier: MIT */
/*
 * pidfds of single threads (PIDFD_THREAD): of this process and of a child, of main threads, of
 * threads that have ended and of a process that was reaped; one that a child shares, one that is
 * waited for in an epoll, and one that is nowhere but in a message.
 */
#include "victim.h"

#include <fcntl.h>
#include <linux/kcmp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef PIDFD_THREAD
#define PIDFD_THREAD O_EXCL
#endif
#define INFO_EXIT (1u << 3)

struct info {
	unsigned long mask, cgroup;
	unsigned pid, tgid, ppid, ids[8];
	int exit_code;
};
#define INFO_GET _IOWR(0xFF, 11, struct info)

struct worker {
	pthread_t thread;
	pid_t tid;
	int end[2]; /* a byte: end with that exit status, 0 by pthread_exit(3) */
	int pidfd;
};

static struct worker quiet, waited, carried, gone, failed;
static int main_fd, child_fd, child_thread_fd, reaped_fd, epoll, mail[2];
static pid_t child, *child_tid;
static int fds_before;

static void *work(void *arg)
{
	struct worker *w = arg;
	char c = 0;

	__atomic_store_n(&w->tid, (pid_t)syscall(SYS_gettid), __ATOMIC_RELEASE);
	while (read(w->end[0], &c, 1) < 0)
		;
	if (c)
		syscall(SYS_exit, c);
	return NULL;
}

static int thread_fd(pid_t tid, int flags)
{
	return (int)MUST(syscall(SYS_pidfd_open, tid, PIDFD_THREAD | flags));
}

static void start(struct worker *w, int flags)
{
	w->tid = 0;
	MUST(pipe2(w->end, O_CLOEXEC));
	MUST_ZERO(pthread_create(&w->thread, NULL, work, w));
	while (!__atomic_load_n(&w->tid, __ATOMIC_ACQUIRE))
		sched_yield();
	w->pidfd = thread_fd(w->tid, flags);
}

static void end(struct worker *w, char status)
{
	CHECK(write(w->end[1], &status, 1) == 1, "telling a thread: %s", strerror(errno));
	pthread_join(w->thread, NULL);
	close(w->end[0]);
	close(w->end[1]);
}

static int readable(int fd, int timeout)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, timeout) == 1 ? p.revents : 0;
}

/* The kernel tells of the end before it forgets the thread. */
static void await_forgotten(int fd)
{
	while (readable(fd, -1) == POLLIN)
		sched_yield();
}

static void *idle(void *arg)
{
	__atomic_store_n(child_tid, (pid_t)syscall(SYS_gettid), __ATOMIC_RELEASE);
	for (;;)
		pause();
	return arg;
}

static void build_child(void)
{
	pthread_t thread;

	child_tid = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	child = MUST(fork());
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		MUST_ZERO(pthread_create(&thread, NULL, idle, NULL));
		for (;;)
			pause();
	}
	while (!__atomic_load_n(child_tid, __ATOMIC_ACQUIRE))
		sched_yield();
	child_fd = thread_fd(child, 0);
	child_thread_fd = thread_fd(*child_tid, O_NONBLOCK);
}

static void build_reaped(void)
{
	pid_t pid = MUST(fork());

	if (!pid)
		for (;;)
			pause();
	reaped_fd = thread_fd(pid, 0);
	MUST(kill(pid, SIGKILL));
	MUST(waitpid(pid, NULL, 0));
}

static void send_carried(void)
{
	char control[CMSG_SPACE(sizeof(int))] = { 0 }, byte = 'x';
	struct iovec io = { &byte, 1 };
	struct msghdr h = { .msg_iov = &io,
			    .msg_iovlen = 1,
			    .msg_control = control,
			    .msg_controllen = sizeof(control) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&h);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &carried.pidfd, sizeof(int));
	MUST(sendmsg(mail[1], &h, 0));
	close(carried.pidfd);
}

static void receive_carried(void)
{
	char control[CMSG_SPACE(sizeof(int))], byte;
	struct iovec io = { &byte, 1 };
	struct msghdr h = { .msg_iov = &io,
			    .msg_iovlen = 1,
			    .msg_control = control,
			    .msg_controllen = sizeof(control) };
	struct cmsghdr *c;

	carried.pidfd = -1;
	if (recvmsg(mail[0], &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) == 1 && (c = CMSG_FIRSTHDR(&h)))
		memcpy(&carried.pidfd, CMSG_DATA(c), sizeof(int));
}

static void wait_for(struct worker *w)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.u64 = 4711 };

	MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, w->pidfd, &ev));
}

static void build(void)
{
	MUST(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, mail));
	epoll = MUST(epoll_create1(EPOLL_CLOEXEC));
	start(&quiet, O_NONBLOCK);
	MUST(fcntl(quiet.pidfd, F_SETFD, 0));
	build_child();
	start(&waited, 0);
	wait_for(&waited);
	start(&carried, 0);
	send_carried();
	start(&gone, 0);
	end(&gone, 0);
	await_forgotten(gone.pidfd);
	start(&failed, O_NONBLOCK);
	end(&failed, 7);
	await_forgotten(failed.pidfd);
	main_fd = thread_fd(getpid(), 0);
	build_reaped();
}

/* ---- checks ------------------------------------------------------------------------- */

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

static void check_living(int fd, pid_t tid, int flags, int cloexec, const char *what)
{
	CHECK(fcntl(fd, F_GETFL) == (O_RDWR | PIDFD_THREAD | flags), "%s: flags %#o", what,
	      fcntl(fd, F_GETFL));
	CHECK(fcntl(fd, F_GETFD) == cloexec, "%s: descriptor flags %d", what, fcntl(fd, F_GETFD));
	CHECK(pid_in(fd) == tid, "%s: pidfd of %d, not %d", what, pid_in(fd), tid);
	CHECK(!readable(fd, 0), "%s is reported dead", what);
	CHECK(!syscall(SYS_pidfd_send_signal, fd, 0, NULL, 0), "%s: signalling: %s", what,
	      strerror(errno));
}

static void check_dead(int fd, int flags, int status, const char *what)
{
	struct info info = { .mask = INFO_EXIT };

	CHECK(fcntl(fd, F_GETFL) == (O_RDWR | PIDFD_THREAD | flags), "%s: flags %#o", what,
	      fcntl(fd, F_GETFL));
	CHECK(pid_in(fd) == -1, "%s: pidfd of %d", what, pid_in(fd));
	CHECK(readable(fd, 0) & POLLHUP, "%s is not reported: %#x", what, readable(fd, 0));
	CHECK(!ioctl(fd, INFO_GET, &info) && info.mask & INFO_EXIT && info.exit_code == status,
	      "%s: status %#x", what, (unsigned)info.exit_code);
}

static void check_waited(void)
{
	struct epoll_event ev = { 0 };

	CHECK(epoll_wait(epoll, &ev, 1, 0) == 0, "the epoll reports %#x", ev.events);
	end(&waited, 3);
	CHECK(epoll_wait(epoll, &ev, 1, 60000) == 1 && ev.data.u64 == 4711,
	      "the epoll does not report the end of a thread");
	await_forgotten(waited.pidfd);
	check_dead(waited.pidfd, 0, 3 << 8, "the thread that was waited for");
	close(waited.pidfd);
	start(&waited, 0);
	wait_for(&waited);
}

static void check(void)
{
	check_living(quiet.pidfd, quiet.tid, O_NONBLOCK, 0, "a thread");
	CHECK(!syscall(SYS_kcmp, getpid(), child, KCMP_FILE, quiet.pidfd, quiet.pidfd),
	      "the child has another pidfd of a thread");
	check_living(waited.pidfd, waited.tid, 0, FD_CLOEXEC, "a thread in an epoll");
	check_living(main_fd, getpid(), 0, FD_CLOEXEC, "the main thread");
	check_living(child_fd, child, 0, FD_CLOEXEC, "the child's main thread");
	check_living(child_thread_fd, *child_tid, O_NONBLOCK, FD_CLOEXEC, "the child's thread");
	check_dead(gone.pidfd, 0, 0, "a thread that has ended");
	check_dead(failed.pidfd, O_NONBLOCK, 7 << 8, "a thread that has failed");
	check_dead(reaped_fd, 0, SIGKILL, "a reaped process");
	receive_carried();
	CHECK(carried.pidfd >= 0, "the message brings nothing");
	if (carried.pidfd >= 0) {
		check_living(carried.pidfd, carried.tid, 0, FD_CLOEXEC, "a thread in a message");
		send_carried();
	}
	check_waited();
	CHECK(victim_count_fds() == fds_before, "%d descriptors, not %d", victim_count_fds(),
	      fds_before);
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	if (!victim_thread_pidfds())
		victim_skip("this kernel has no pidfds of threads");
	build();
	fds_before = victim_count_fds();
	victim_ready();
	victim_serve(check);
}
