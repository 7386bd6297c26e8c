/* SPDX-License-Identifier: MIT */
/*
 * What newer kernels and C libraries have made of old state: a slice of processor time of one's
 * own (Linux 6.12), securebits for interpreters (6.14), huge pages where they are asked for only
 * (6.18), and waits whose number is in a register alone (glibc 2.41, musl), saved again after they
 * were interrupted before.
 */
#include "victim.h"

#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* one that is no kernel's default */
#define SLICE_NS      2345678
#define EXCEPT_WANTED 2
#define RESTRICT_FILE 0x100

struct attributes {
	uint32_t size, policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime, deadline, period;
};

static int wakes[2], answers[2], thp, bits;
static uint64_t slice;
static uint32_t word;
static unsigned rounds;

static uint64_t slice_now(void)
{
	struct attributes a = { 0 };

	MUST(syscall(SYS_sched_getattr, 0, &a, sizeof(a), 0));
	return a.runtime;
}

static long call(volatile long nr, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
	long result = nr;

	__asm__ volatile("nop; nop; nop; nop; nop; syscall"
			 : "+a"(result)
			 : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}

static void *polls(void *unused)
{
	struct pollfd wanted = { .fd = wakes[0], .events = POLLIN };
	char c = 0;

	for (;;) {
		long r = call(SYS_poll, (long)&wanted, 1, -1, 0, 0, 0);

		if (r != 1 || read(wakes[0], &c, 1) != 1)
			c = 'p';
		MUST(write(answers[1], &c, 1));
	}
	return unused;
}

static void *waits(void *unused)
{
	struct timespec until;

	MUST(clock_gettime(CLOCK_MONOTONIC, &until));
	until.tv_sec += 90000;
	for (uint32_t seen = 0;; seen++) {
		long r = call(SYS_futex, (long)&word, FUTEX_WAIT_BITSET_PRIVATE, seen, (long)&until,
			      0, FUTEX_BITSET_MATCH_ANY);

		MUST(write(answers[1], r == 0 || r == -EAGAIN ? "y" : "f", 1));
	}
	return unused;
}

static void check(void)
{
	char c[2] = "";

	CHECK(slice_now() == slice, "its slice is %lu ns, was %lu", (unsigned long)slice_now(),
	      (unsigned long)slice);
	CHECK(prctl(PR_GET_SECUREBITS) == bits, "its securebits are %#x, were %#x",
	      (unsigned)prctl(PR_GET_SECUREBITS), (unsigned)bits);
	CHECK(prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == thp, "huge pages: %d, was %d",
	      prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0), thp);
	/* they are left alone every other time: between two saves, that is */
	if (rounds++ % 2)
		return;
	MUST(write(wakes[1], "y", 1));
	CHECK(read(answers[0], c, 1) == 1 && c[0] == 'y', "the one who polls says %c", c[0]);
	__atomic_add_fetch(&word, 1, __ATOMIC_SEQ_CST);
	MUST(syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0));
	CHECK(read(answers[0], c, 1) == 1 && c[0] == 'y', "the one who waits says %c", c[0]);
	victim_settle();
}

int main(int argc, char **argv)
{
	struct attributes a = { .size = sizeof(a), .runtime = SLICE_NS };
	pthread_t thread;

	victim_init(argc, argv);
	MUST(pipe(wakes));
	MUST(pipe(answers));
	MUST_ZERO(pthread_create(&thread, NULL, polls, NULL));
	MUST_ZERO(pthread_create(&thread, NULL, waits, NULL));
	/* a kernel without takes the one and refuses the other */
	MUST(syscall(SYS_sched_setattr, 0, &a, 0));
	slice = slice_now();
	if (prctl(PR_SET_THP_DISABLE, 1, EXCEPT_WANTED, 0, 0))
		MUST(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0));
	prctl(PR_SET_SECUREBITS, RESTRICT_FILE);
	bits = prctl(PR_GET_SECUREBITS);
	thp = prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0);
	victim_settle();
	victim_ready();
	victim_serve(check);
}
