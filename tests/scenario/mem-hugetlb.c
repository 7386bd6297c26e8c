/* SPDX-License-Identifier: MIT */
/*
 * Memory of the pool of huge pages: private, written in part, read-only, reserved and
 * not; shared by two processes, without a file and by memfds that are open or not.
 *
 * test: huge-pages=20
 */
#include "victim.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <signal.h>
#include <unistd.h>

enum { HUGE = 2 << 20 };

static unsigned char *partly, *constant, *common, *again, *named, *seen;
static int memfd, ask[2], answer[2];

static unsigned char *map(size_t pages, int flags, int fd)
{
	unsigned char *at = mmap(NULL, pages * HUGE, PROT_READ | PROT_WRITE,
				 MAP_HUGETLB | 21 << 26 | flags, fd, 0);

	if (at == MAP_FAILED)
		victim_skip("the machine has no %zu huge pages: %s", pages, strerror(errno));
	return at;
}

static unsigned char want(size_t i)
{
	/* holes of zeros in between */
	return i >> 16 & 1 ? 0 : (unsigned char)victim_word(7, i);
}

static void fill(unsigned char *at, size_t seed)
{
	for (size_t i = 0; i < HUGE; i++)
		at[i] = want(i + seed);
}

static size_t differs(const unsigned char *at, size_t seed)
{
	size_t i = 1;

	while (i < HUGE && at[i] == want(i + seed))
		i += 13;
	return i < HUGE ? i : 0;
}

/* Says what it sees, and writes in turn. */
static _Noreturn void child(void)
{
	char c;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (read(ask[0], &c, 1) == 1) {
		unsigned char see[2] = { common[0], named[0] };

		common[HUGE]++;
		named[HUGE]++;
		if (write(answer[1], see, 2) != 2)
			break;
	}
	_exit(0);
}

static void build_shared(void)
{
	common = map(2, MAP_SHARED | MAP_ANONYMOUS, -1);
	fill(common, 2);
	memfd = MUST(memfd_create("huge ones", MFD_HUGETLB | 21U << 26 | MFD_ALLOW_SEALING));
	MUST(ftruncate(memfd, 3L * HUGE));
	named = map(3, MAP_SHARED, memfd);
	again = map(1, MAP_SHARED, memfd);
	fill(named + 2 * HUGE, 3);
	MUST(fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK));
	MUST(lseek(memfd, 77, SEEK_SET));
	int closed = MUST(memfd_create("closed", MFD_HUGETLB | 21U << 26));
	MUST(ftruncate(closed, HUGE));
	seen = map(1, MAP_SHARED | MAP_NORESERVE, closed);
	fill(seen, 4);
	close(closed);
	MUST(pipe(ask));
	MUST(pipe(answer));
	if (!MUST(fork()))
		child();
}

static void check_private(void)
{
	size_t a = differs(partly, 0), b = differs(constant + HUGE, 1);

	CHECK(!a, "byte %zu is %x", a, partly[a]);
	CHECK(!b, "constant byte %zu is %x", b, constant[HUGE + b]);
	/* it can still be written to */
	partly[0]++;
	partly[HUGE + 5]++;
	CHECK(partly[HUGE + 4] == 0 && partly[HUGE + 5] != 0, "the second page is %x %x",
	      partly[HUGE + 4], partly[HUGE + 5]);
}

static void check_shared(void)
{
	static unsigned char counts;
	size_t a = differs(common, 2), b = differs(named + 2 * HUGE, 3), c = differs(seen, 4);
	unsigned char see[2] = { 0 };
	unsigned char byte = 0;

	CHECK(!a, "byte %zu of shared memory is %x", a, common[a]);
	CHECK(!b, "byte %zu of the memfd is %x", b, named[2 * HUGE + b]);
	CHECK(!c, "byte %zu of the closed memfd is %x", c, seen[c]);
	CHECK(common[HUGE] == counts && named[HUGE] == counts, "the child wrote %d %d, not %d",
	      common[HUGE], named[HUGE], counts);
	common[0]++;
	named[0]++;
	CHECK(again[0] == named[0], "the second view is another's");
	CHECK(write(ask[1], "x", 1) == 1 && read(answer[0], see, 2) == 2 && see[0] == common[0] &&
		      see[1] == named[0],
	      "the child sees %d %d, not %d %d", see[0], see[1], common[0], named[0]);
	counts++;
	CHECK(common[HUGE] == counts && named[HUGE] == counts, "the child writes elsewhere");
	CHECK(pread(memfd, &byte, 1, 0) == 1 && byte == named[0], "the memfd reads %d", byte);
	CHECK(lseek(memfd, 0, SEEK_CUR) == 77, "it is at %ld", (long)lseek(memfd, 0, SEEK_CUR));
	CHECK(fcntl(memfd, F_GET_SEALS) == F_SEAL_SHRINK, "seals %#x", fcntl(memfd, F_GET_SEALS));
}

static void check(void)
{
	check_private();
	check_shared();
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	partly = map(2, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	constant = map(3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
	fill(partly, 0);
	fill(constant + HUGE, 1);
	MUST(mprotect(constant, 3UL * HUGE, PROT_READ));
	MUST(madvise(partly, 2UL * HUGE, MADV_DONTFORK));
	build_shared();
	victim_ready();
	victim_serve(check);
}
