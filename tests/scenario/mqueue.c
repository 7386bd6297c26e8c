/* SPDX-License-Identifier: MIT
 *
 * POSIX message queues: in an ipc namespace of a child's own ones with priorities, one that nobody
 * has open, one without a name, one with a waiting receiver; and one in the namespace that the test
 * runs in. Each check takes the first message and sends it again.
 */
#include "victim.h"

#include <fcntl.h>
#include <mqueue.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LONGEST = 100, MOST = 6, OWNER = 1000 };

static int to_child[2], from_child[2];
static unsigned long rounds;

/* the child's */
static mqd_t both_ways, twin, receiver, nameless, waited;
static int answers[2];
static mqd_t own;

/* ---- building --------------------------------------------------------------------------- */

static mqd_t make(const char *name, int flags, long most)
{
	struct mq_attr attr = { .mq_maxmsg = most, .mq_msgsize = LONGEST };

	return MUST(mq_open(name, flags | O_CREAT | O_EXCL, 0600, &attr));
}

static void send_text(mqd_t q, const char *text, unsigned priority)
{
	MUST(mq_send(q, text, strlen(text), priority));
}

/* What it receives goes into a pipe. */
static void *wait_for_message(void *arg)
{
	char text[LONGEST];

	(void)arg;
	for (;;) {
		ssize_t n = mq_receive(waited, text, sizeof(text), NULL);

		if (n > 0)
			MUST(write(answers[1], text, (size_t)n) == n ? 0 : -1);
	}
	return NULL;
}

static void make_queues(void)
{
	pthread_t thread;
	mqd_t closed;

	both_ways = make("/both", O_RDWR | O_NONBLOCK, MOST);
	MUST(fchown(both_ways, OWNER, OWNER + 1));
	MUST(fchmod(both_ways, 0640));
	twin = MUST(dup(both_ways));
	receiver = MUST(mq_open("/both", O_RDONLY | O_CLOEXEC));
	send_text(both_ways, "first of 5", 5);
	send_text(both_ways, "low", 1);
	send_text(both_ways, "second of 5", 5);
	send_text(both_ways, "", 3);
	closed = make("/closed", O_RDWR, 2);
	send_text(closed, "nobody has it open", 32767);
	mq_close(closed);
	nameless = make("/gone", O_RDWR, 3);
	send_text(nameless, "without a name", 0);
	MUST(mq_unlink("/gone"));
	waited = make("/waited", O_RDWR, 1);
	MUST(pipe(answers));
	MUST_ZERO(pthread_create(&thread, NULL, wait_for_message, NULL));
}

/* ---- judging ------------------------------------------------------------------------------ */

static void check_first(mqd_t q, const char *wanted, unsigned priority)
{
	char text[LONGEST + 1] = "";
	unsigned got = 0;
	ssize_t n = mq_receive(q, text, LONGEST, &got);

	CHECK(n == (ssize_t)strlen(wanted) && !strcmp(text, wanted) && got == priority,
	      "\"%s\" of priority %u instead of \"%s\" of %u: %s", text, got, wanted, priority,
	      n < 0 ? strerror(errno) : "received");
	if (n >= 0)
		CHECK(mq_send(q, text, (size_t)n, got) == 0, "mq_send: %s", strerror(errno));
}

static void check_attributes(mqd_t q, long flags, long most, long now)
{
	struct mq_attr a = { 0 };

	CHECK(mq_getattr(q, &a) == 0 && a.mq_flags == flags && a.mq_maxmsg == most &&
		      a.mq_msgsize == LONGEST && a.mq_curmsgs == now,
	      "flags %lx, %ld messages of %ld bytes, %ld there", a.mq_flags, a.mq_maxmsg,
	      a.mq_msgsize, a.mq_curmsgs);
}

static void check_both(void)
{
	struct stat s = { 0 };
	char text[LONGEST];

	check_attributes(both_ways, O_NONBLOCK, MOST, 4);
	check_attributes(receiver, 0, MOST, 4);
	CHECK(fstat(both_ways, &s) == 0 && s.st_uid == OWNER && s.st_gid == OWNER + 1 &&
		      (s.st_mode & 07777) == 0640,
	      "owner %u:%u, mode %o", s.st_uid, s.st_gid, s.st_mode);
	check_first(both_ways, rounds % 2 ? "second of 5" : "first of 5", 5);
	check_first(twin, rounds % 2 ? "first of 5" : "second of 5", 5);
	check_first(both_ways, rounds % 2 ? "second of 5" : "first of 5", 5);
	CHECK(mq_send(receiver, "", 0, 0) < 0 && errno == EBADF, "the receiver can send");
	CHECK(fcntl(receiver, F_GETFD) == FD_CLOEXEC, "FD_CLOEXEC");
	for (int i = 0; i < MOST - 4; i++)
		CHECK(mq_send(both_ways, "more", 4, 9) == 0, "filling: %s", strerror(errno));
	CHECK(mq_send(both_ways, "", 0, 0) < 0 && errno == EAGAIN, "more than there is room for");
	for (int i = 0; i < MOST - 4; i++)
		CHECK(mq_receive(receiver, text, sizeof(text), NULL) == 4, "emptying");
}

static void check_others(void)
{
	mqd_t closed = mq_open("/closed", O_RDWR);
	char text[LONGEST] = "";

	CHECK(closed >= 0, "/closed: %s", strerror(errno));
	if (closed >= 0) {
		check_attributes(closed, 0, 2, 1);
		check_first(closed, "nobody has it open", 32767);
		mq_close(closed);
	}
	CHECK(mq_open("/gone", O_RDWR) < 0 && errno == ENOENT, "the unlinked one has a name");
	check_attributes(nameless, 0, 3, 1);
	check_first(nameless, "without a name", 0);
	CHECK(mq_send(waited, "wake", 4, 0) == 0 && read(answers[0], text, 4) == 4 &&
		      !memcmp(text, "wake", 4),
	      "the waiting thread: %s", text);
}

static void check_namespace(void)
{
	struct stat s;

	/* what cannot be used any more would only be waited for */
	if (fstat(both_ways, &s) || !S_ISREG(s.st_mode)) {
		victim_fail("no queue: %s", strerror(errno));
		return;
	}
	check_both();
	check_others();
	rounds++;
}

/* ---- tasks ---------------------------------------------------------------------------------- */

static _Noreturn void in_namespace(void)
{
	MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
	MUST(unshare(CLONE_NEWIPC));
	make_queues();
	MUST(write(from_child[1], "", 1));
	victim_answer(to_child[0], from_child[1], check_namespace);
}

static void check(void)
{
	struct stat s;

	if (fstat(own, &s) || !S_ISREG(s.st_mode)) {
		victim_fail("no queue of the test's namespace: %s", strerror(errno));
		return;
	}
	check_attributes(own, 0, 2, 2);
	check_first(own, "in the test's own namespace", 2);
	victim_ask(to_child[1], from_child[0], "in the namespace");
}

int main(int argc, char **argv)
{
	char c, name[64];

	victim_init(argc, argv);
	MUST(pipe(to_child));
	MUST(pipe(from_child));
	if (MUST(fork()) == 0)
		in_namespace();
	snprintf(name, sizeof(name), "/ckpt-test-%d", getpid());
	own = make(name, O_RDWR, 2);
	send_text(own, "behind", 1);
	send_text(own, "in the test's own namespace", 2);
	MUST(read(from_child[0], &c, 1));
	victim_ready();
	victim_serve(check);
}
