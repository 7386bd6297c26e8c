/* SPDX-License-Identifier: MIT */
/*
 * mlockall(2): a process that locks what it will map, its child that locks it when it is touched,
 * and another child that has neither: a fork does not pass it on.
 */
#include "victim.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, CHILDREN = 2 };

static const int modes[1 + CHILDREN] = { MCL_FUTURE, MCL_FUTURE | MCL_ONFAULT, 0 };
static char *earlier;
static int self, ask[CHILDREN][2], answer[CHILDREN][2];

static bool is_locked(char *at)
{
	return msync(at, PAGE, MS_INVALIDATE) < 0 && errno == EBUSY;
}

static void check_own(void)
{
	unsigned char there = 0;
	char *later = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(later != MAP_FAILED, "process %d: mmap: %s", self, strerror(errno));
	if (later == MAP_FAILED)
		return;
	CHECK(is_locked(later) == !!modes[self], "process %d: what is mapped later %s locked", self,
	      modes[self] ? "is not" : "is");
	CHECK(!mincore(later, PAGE, &there) && (there & 1) == (modes[self] == MCL_FUTURE),
	      "process %d: a new page is there: %d", self, there & 1);
	munmap(later, PAGE);
	CHECK(!is_locked(earlier), "process %d: what was mapped before is locked", self);
}

static void check(void)
{
	check_own();
	for (int i = 0; i < CHILDREN; i++)
		victim_ask(ask[i][1], answer[i][0], "child %d", i);
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	earlier = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(mlockall(modes[0]));
	for (int i = 0; i < CHILDREN; i++) {
		char ready;

		MUST(pipe(ask[i]));
		MUST(pipe(answer[i]));
		if (MUST(fork()) == 0) {
			self = i + 1;
			if (modes[self])
				MUST(mlockall(modes[self]));
			MUST(write(answer[i][1], "", 1));
			victim_answer(ask[i][0], answer[i][1], check_own);
		}
		MUST(read(answer[i][0], &ready, 1));
	}
	victim_ready();
	victim_serve(check);
}
