/* SPDX-License-Identifier: MIT
 *
 * Threads that have left the descriptor table of their process (unshare(CLONE_FILES)), as those of
 * Samba do, and one that has not:
 *
 *	COPY	has what the process had then, some of it under each other's numbers
 *	OWN	has closed all of it: a file, pipe ends, an epoll, a deleted file, which nobody
 *		else has, and a lock in the way of the process' own
 *	PAIR	has a description in common with OWN alone
 *	PLAIN	shares the table of the process, as does a child
 */
#include "victim.h"

#include <fcntl.h>
#include <linux/kcmp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum op { HAS, OPEN, CLOSE, SEEK, FIRST, LOCKED, READ, WAIT };
enum who { COPY, OWN, PAIR, PLAIN, CHILD, WORKERS };
/* Numbers that a worker of an own table has. */
enum { FILE_NUM = 5, EPOLL = 40, READY = 41, GONE = 300, LOCK = 301, COMMON = 302 };

struct question {
	enum op op;
	long value;
};

static int ask_pipe[WORKERS][2], answer_pipe[WORKERS][2];
static int file, other, to_own[2], from_own[2], lock_fd;
static pid_t child, own_tid;
static const char content[] = "what nobody else has open";
static unsigned long rounds;

static long locked(int fd, int start)
{
	struct flock lock = {
		.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = 1
	};
	if (fcntl(fd, F_GETLK, &lock) < 0)
		return -errno;
	return lock.l_type != F_UNLCK;
}

static long wait_ready(int epoll)
{
	struct epoll_event ev = { 0 };
	int n = epoll_wait(epoll, &ev, 1, 0);
	return n == 1 ? (long)ev.data.u32 : n;
}

static long read_byte(int fd)
{
	char byte;
	return read(fd, &byte, 1) == 1 ? byte : -errno;
}

static long answer(const struct question *q)
{
	char byte;
	switch (q->op) {
	case HAS:
		return fcntl((int)q->value, F_GETFD);
	case OPEN:
		return fcntl(FILE_NUM, F_DUPFD_CLOEXEC, (int)q->value);
	case CLOSE:
		return close((int)q->value);
	case SEEK:
		return lseek((int)q->value, 1, SEEK_CUR);
	case FIRST:
		return pread((int)q->value, &byte, 1, 0) == 1 ? byte : -errno;
	case LOCKED:
		return locked(LOCK, (int)q->value);
	case READ:
		return read_byte((int)q->value);
	case WAIT:
		return wait_ready((int)q->value);
	}
	return -1;
}

static _Noreturn void serve(int in, int out)
{
	struct question q;
	while (read(in, &q, sizeof(q)) == sizeof(q)) {
		long value = answer(&q);
		if (write(out, &value, sizeof(value)) != sizeof(value))
			break;
	}
	for (;;)
		pause();
}

static long ask(enum who whom, enum op op, long value)
{
	struct question q = { op, value };
	long reply = -1000;
	if (write(ask_pipe[whom][1], &q, sizeof(q)) != sizeof(q) ||
	    read(answer_pipe[whom][0], &reply, sizeof(reply)) != sizeof(reply))
		victim_fail("worker %d does not answer", whom);
	return reply;
}

static _Noreturn void *plain(void *unused)
{
	serve(ask_pipe[PLAIN][0], answer_pipe[PLAIN][1]);
}

/* Two numbers change places, others are closed. */
static _Noreturn void *copy(void *unused)
{
	int aside;
	MUST(unshare(CLONE_FILES));
	aside = MUST(dup(file));
	MUST(dup2(other, file));
	MUST(dup2(aside, other));
	MUST(close(aside));
	MUST(close(lock_fd));
	MUST(fcntl(to_own[1], F_SETFD, FD_CLOEXEC));
	serve(ask_pipe[COPY][0], answer_pipe[COPY][1]);
}

static _Noreturn void *own(void *unused)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.u32 = 4711 };
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 20, .l_len = 5 };
	int in = ask_pipe[OWN][0], out = answer_pipe[OWN][1], fd;
	MUST(unshare(CLONE_FILES));
	MUST(dup2(in, 100));
	MUST(dup2(out, 101));
	MUST(dup2(to_own[0], 102));
	MUST(dup2(from_own[1], 103));
	MUST(syscall(SYS_close_range, 0, 99, 0));
	fd = MUST(open(victim_path("own"), O_RDWR | O_CREAT | O_CLOEXEC, 0640));
	MUST(dup3(fd, FILE_NUM, O_CLOEXEC));
	MUST(close(fd));
	MUST(write(FILE_NUM, content, sizeof(content)));
	fd = MUST(open(victim_path("gone"), O_RDWR | O_CREAT, 0640));
	MUST(unlink(victim_path("gone")));
	MUST(write(fd, content, sizeof(content)));
	MUST(dup2(fd, GONE));
	MUST(close(fd));
	fd = MUST(open(victim_path("locked"), O_RDWR));
	MUST(fcntl(fd, F_SETLK, &lock));
	MUST(dup2(fd, LOCK));
	/* closing any number of it would give the lock up */
	if (fd != 0)
		victim_die("the lowest number is %d", fd);
	fd = MUST(epoll_create1(0));
	MUST(dup2(fd, EPOLL));
	MUST(close(fd));
	MUST(dup2(102, READY));
	MUST(close(102));
	MUST(epoll_ctl(EPOLL, EPOLL_CTL_ADD, READY, &ev));
	/* PAIR is to have the very same */
	fd = MUST(open(victim_path("common"), O_RDWR | O_CREAT, 0640));
	MUST(dup2(fd, COMMON));
	MUST(close(fd));
	own_tid = (pid_t)syscall(SYS_gettid);
	if (write(103, "", 1) != 1)
		victim_die("write: %s", strerror(errno));
	serve(100, 101);
}

/* It fetches the description from the other thread's table. */
static _Noreturn void *pair(void *unused)
{
	int pidfd, fd;
	MUST(unshare(CLONE_FILES));
	pidfd = MUST(syscall(SYS_pidfd_open, own_tid, O_EXCL /* PIDFD_THREAD */));
	fd = MUST(syscall(SYS_pidfd_getfd, pidfd, COMMON, 0));
	MUST(dup2(fd, COMMON));
	MUST(close(fd));
	MUST(close(pidfd));
	serve(ask_pipe[PAIR][0], answer_pipe[PAIR][1]);
}

static void check_apart(void)
{
	static const enum who apart[] = { COPY, OWN, PAIR };
	int number = 700 + (int)(rounds % 100);
	CHECK(fcntl(STDIN_FILENO, F_DUPFD, number) == number, "%d is taken", number);
	CHECK(ask(PLAIN, HAS, number) == 0, "a plain thread does not see what is opened");
	CHECK(ask(CHILD, HAS, number) == 0, "a child that shares the table does not");
	for (int i = 0; i < 3; i++)
		CHECK(ask(apart[i], HAS, number) < 0, "thread %d sees what the process opens",
		      apart[i]);
	CHECK(close(number) == 0, "close: %s", strerror(errno));
	CHECK(ask(OWN, OPEN, number) == number, "number %d is taken in a thread", number);
	CHECK(fcntl(number, F_GETFD) < 0 && ask(PAIR, HAS, number) < 0,
	      "somebody sees what a thread opens");
	CHECK(ask(OWN, CLOSE, number) == 0, "a thread has not got what it has opened");
}

static void check_copy(void)
{
	long at = lseek(file, 0, SEEK_CUR), other_at = lseek(other, 0, SEEK_CUR);
	CHECK(ask(COPY, SEEK, other) == at + 1, "the position of a thread's copy is its own");
	CHECK(lseek(file, 0, SEEK_CUR) == at + 1, "a thread's copy is another description");
	CHECK(ask(COPY, SEEK, file) == other_at + 1 && lseek(other, 0, SEEK_CUR) == other_at + 1,
	      "a thread's second copy is another description");
	CHECK(ask(COPY, HAS, lock_fd) < 0, "a thread has what it has closed");
	CHECK(ask(COPY, HAS, to_own[1]) == FD_CLOEXEC && fcntl(to_own[1], F_GETFD) == 0,
	      "close-on-exec of a thread's copy");
}

static void check_own(void)
{
	static long at = sizeof(content), gone_at = sizeof(content);
	char byte = (char)('a' + rounds % 26);
	for (int i = 0; i < 100; i++)
		CHECK((ask(OWN, HAS, i) >= 0) ==
			      (i == 0 || i == FILE_NUM || i == EPOLL || i == READY),
		      "a thread's number %d", i);
	CHECK(ask(OWN, HAS, FILE_NUM) == FD_CLOEXEC, "close-on-exec of a thread's own");
	CHECK(ask(OWN, SEEK, FILE_NUM) == ++at, "the position of a thread's own file");
	CHECK(ask(OWN, SEEK, GONE) == ++gone_at, "the position of a thread's deleted file");
	CHECK(ask(OWN, FIRST, FILE_NUM) == 'w', "what is in a thread's own file");
	CHECK(ask(OWN, FIRST, GONE) == 'w', "what is in a thread's deleted file");
	CHECK(ask(OWN, WAIT, EPOLL) == 0, "a thread's epoll tells of nothing");
	MUST(write(to_own[1], &byte, 1));
	CHECK(ask(OWN, WAIT, EPOLL) == 4711, "a thread's epoll does not tell of its pipe");
	CHECK(ask(OWN, READ, READY) == byte, "a thread's pipe");
	CHECK(ask(PAIR, SEEK, COMMON) + 1 == ask(OWN, SEEK, COMMON),
	      "two threads have no description in common any more");
}

/* A lock belongs to the table. */
static void check_lock(void)
{
	CHECK(locked(lock_fd, 20) == 1, "a thread's lock is not in the way of the process");
	CHECK(ask(OWN, LOCKED, 20) == 0, "a thread's lock is in its own way");
	CHECK(ask(OWN, LOCKED, 10) == 1, "the lock of the process is not in the way of a thread");
	CHECK(locked(lock_fd, 10) == 0, "the lock of the process is in its own way");
}

static void check(void)
{
	rounds++;
	CHECK(!syscall(SYS_kcmp, getpid(), child, KCMP_FILES, 0, 0),
	      "the child's table is another");
	check_apart();
	check_copy();
	check_own();
	check_lock();
}

static void start(void *(*fn)(void *))
{
	pthread_t thread;
	MUST_ZERO(pthread_create(&thread, NULL, fn, NULL));
}

int main(int argc, char **argv)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 5 };
	char byte;
	victim_init(argc, argv);
	for (int i = 0; i < WORKERS; i++) {
		MUST(pipe(ask_pipe[i]));
		MUST(pipe(answer_pipe[i]));
	}
	MUST(pipe(to_own));
	MUST(pipe(from_own));
	file = MUST(open(victim_path("file"), O_RDWR | O_CREAT, 0644));
	other = MUST(open(victim_path("other"), O_RDWR | O_CREAT, 0644));
	MUST(lseek(other, 1000, SEEK_SET));
	lock_fd = MUST(open(victim_path("locked"), O_RDWR | O_CREAT, 0644));
	MUST(fcntl(lock_fd, F_SETLK, &lock));
	child = (pid_t)MUST(syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0));
	if (child == 0) {
		MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
		serve(ask_pipe[CHILD][0], answer_pipe[CHILD][1]);
	}
	start(own);
	MUST(read(from_own[0], &byte, 1));
	start(pair);
	start(copy);
	start(plain);
	for (int i = 0; i < WORKERS; i++)
		ask((enum who)i, HAS, 0);
	/* the thread's end is the only one */
	MUST(close(to_own[0]));
	victim_ready();
	victim_serve(check);
}
