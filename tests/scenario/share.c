/* SPDX-License-Identifier: MIT
 *
 * Processes that share a descriptor table (CLONE_FILES), or working directory and umask (CLONE_FS),
 * and a thread that has the latter for itself:
 *
 *	root -> a -> middle -> deep	root, a and deep share a table, middle has left it
 *	     -> d -> e			d and e share another, and the working directory
 *	     -> f			shares the root's working directory, not its table
 *	a thread of the root with a working directory of its own
 *
 * Each answers questions through pipes of its own.
 */
#include "victim.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum op { HAS, OPEN, CLOSE, UMASK, CHDIR, PLACE, LOCKED };
enum who { A, MIDDLE, DEEP, D, E, F, THREAD, WORKERS };

struct question {
	enum op op;
	long value;
};

static int ask_pipe[WORKERS][2], answer_pipe[WORKERS][2];
static char *places[2]; /* that CHDIR goes to */
static int lock_fd;
static unsigned long rounds;

static long place(void)
{
	struct stat st;
	return stat(".", &st) < 0 ? -errno : (long)st.st_ino;
}

/* Whose lock is in the way of ours; 0: nobody's. */
static long locked(void)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	if (fcntl(lock_fd, F_GETLK, &lock) < 0)
		return -errno;
	return lock.l_type == F_UNLCK ? 0 : 1;
}

static long answer(const struct question *q)
{
	switch (q->op) {
	case HAS:
		return fcntl((int)q->value, F_GETFD) >= 0;
	case OPEN:
		return fcntl(STDIN_FILENO, F_DUPFD, (int)q->value);
	case CLOSE:
		return close((int)q->value);
	case UMASK:
		return (long)umask((mode_t)q->value);
	case CHDIR:
		return chdir(places[q->value]);
	case PLACE:
		return place();
	case LOCKED:
		return locked();
	}
	return -1;
}

static _Noreturn void serve(enum who me)
{
	struct question q;
	while (read(ask_pipe[me][0], &q, sizeof(q)) == sizeof(q)) {
		long value = answer(&q);
		if (write(answer_pipe[me][1], &value, sizeof(value)) != sizeof(value))
			break;
	}
	_exit(1);
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

/* As fork(2), with more in common. */
static pid_t born(unsigned long flags)
{
	pid_t pid = (pid_t)MUST(syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0));
	if (pid == 0)
		MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
	return pid;
}

static void make_a(void)
{
	if (born(CLONE_FILES))
		return;
	if (born(CLONE_FILES))
		serve(A);
	if (born(CLONE_FILES) == 0)
		serve(DEEP);
	MUST(unshare(CLONE_FILES));
	serve(MIDDLE);
}

static void make_d(void)
{
	if (born(0))
		return;
	MUST(chdir(places[0]));
	umask(031);
	if (born(CLONE_FILES | CLONE_FS) == 0)
		serve(E);
	serve(D);
}

static _Noreturn void *own_place(void *unused)
{
	MUST(unshare(CLONE_FS));
	MUST(chdir(places[1]));
	umask(07);
	serve(THREAD);
}

static void check_table(void)
{
	int number = 700 + (int)(rounds % 100), from_deep;
	CHECK(fcntl(STDIN_FILENO, F_DUPFD, number) == number, "%d is taken", number);
	CHECK(ask(A, HAS, number), "a does not see what the root has opened");
	CHECK(ask(DEEP, HAS, number), "deep does not see what the root has opened");
	CHECK(ask(THREAD, HAS, number), "a thread does not see what the root has opened");
	CHECK(!ask(MIDDLE, HAS, number), "middle sees what the root has opened");
	CHECK(!ask(D, HAS, number), "d sees what the root has opened");
	CHECK(!ask(F, HAS, number), "f sees what the root has opened");
	CHECK(ask(A, CLOSE, number) == 0 && fcntl(number, F_GETFD) < 0,
	      "the root still has what a has closed");
	from_deep = (int)ask(DEEP, OPEN, 800);
	CHECK(fcntl(from_deep, F_GETFD) >= 0, "the root does not see what deep has opened");
	CHECK(close(from_deep) == 0, "close: %s", strerror(errno));
	CHECK(ask(D, OPEN, 900) == 900 && ask(E, HAS, 900), "e does not see what d has opened");
	CHECK(fcntl(900, F_GETFD) < 0, "the root sees what d has opened");
	CHECK(ask(E, CLOSE, 900) == 0 && !ask(D, HAS, 900), "d still has what e has closed");
}

/* A lock belongs to the table. */
static void check_lock(void)
{
	CHECK(ask(A, LOCKED, 0) == 0, "the root's lock is in the way of a");
	CHECK(ask(DEEP, LOCKED, 0) == 0, "the root's lock is in the way of deep");
	CHECK(ask(MIDDLE, LOCKED, 0) == 1, "the root's lock is not in the way of middle");
	CHECK(ask(D, LOCKED, 0) == 1, "the root's lock is not in the way of d");
}

static void check_place(void)
{
	static mode_t expected_umask = 031, root_umask = 022;
	static long d_at;
	struct stat at[2], top;
	stat(places[0], &at[0]);
	stat(places[1], &at[1]);
	stat("/", &top);
	CHECK(ask(E, PLACE, 0) == (long)at[d_at].st_ino, "e is not where d has gone");
	d_at = !d_at;
	ask(D, CHDIR, d_at);
	CHECK(ask(E, PLACE, 0) == (long)at[d_at].st_ino, "e does not go with d");
	CHECK((mode_t)ask(E, UMASK, 0) == expected_umask, "e has another umask than d");
	expected_umask = 030 | (rounds & 7);
	ask(D, UMASK, expected_umask);
	CHECK((mode_t)ask(E, UMASK, expected_umask) == expected_umask, "e's umask does not follow");
	CHECK(place() == (long)top.st_ino && ask(A, PLACE, 0) == (long)top.st_ino,
	      "root or a is elsewhere");
	CHECK(ask(THREAD, PLACE, 0) == (long)at[1].st_ino, "the thread is elsewhere");
	CHECK(ask(THREAD, UMASK, 07) == 07, "the thread has another umask");
	CHECK(umask(root_umask) == root_umask, "the root has another umask");
	root_umask = 020 | (rounds & 7);
	umask(root_umask);
	CHECK((mode_t)ask(F, UMASK, root_umask) == root_umask, "f's umask does not follow");
	CHECK(ask(A, UMASK, 022) == 022, "a's umask does");
}

static void check(void)
{
	rounds++;
	check_table();
	check_lock();
	check_place();
}

int main(int argc, char **argv)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 5 };
	pthread_t thread;
	victim_init(argc, argv);
	umask(022);
	for (int i = 0; i < WORKERS; i++) {
		MUST(pipe(ask_pipe[i]));
		MUST(pipe(answer_pipe[i]));
	}
	places[0] = victim_path("one");
	places[1] = victim_path("two");
	for (int i = 0; i < 2; i++)
		MUST(mkdir(places[i], 0755));
	lock_fd = MUST(open(victim_path("locked"), O_RDWR | O_CREAT, 0644));
	make_a();
	make_d();
	if (born(CLONE_FS) == 0)
		serve(F);
	MUST(fcntl(lock_fd, F_SETLK, &lock));
	MUST_ZERO(pthread_create(&thread, NULL, own_place, NULL));
	for (int i = 0; i < WORKERS; i++)
		ask((enum who)i, PLACE, 0);
	victim_ready();
	victim_serve(check);
}
