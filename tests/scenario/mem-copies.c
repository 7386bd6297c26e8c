/* SPDX-License-Identifier: MIT */
/*
 * Much private memory in four tasks, some of it shared by fork, for copies of an image that
 * share what none of them has written to. Each check looks at all pages, writes to some,
 * and gives some back to the kernel, which must be zeros then.
 *
 * test: only=branch
 */
#include "victim.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#ifndef PR_SET_VMA
#define PR_SET_VMA	     0x53564d41
#define PR_SET_VMA_ANON_NAME 0
#endif

enum { PAGE = 4096, MIB = 1 << 20, MEMBERS = 4, COMMON = 16 * MIB, OWN = 9 * MIB, STATIC = MIB };
/* of 16 pages, which are written to by a check, which are given back and which never touched */
enum { WRITTEN = 3, DROPPED = 5, UNTOUCHED = 11 };

struct area {
	const char *name;
	unsigned char *at;
	size_t size;
	unsigned long seed; /* of those pages of it that the member has not from its parent */
	unsigned every;	    /* the member's own pages: all, or one of so many */
	int prot;
	bool anonymous;
};

static unsigned char data[STATIC] __attribute__((aligned(4096))) = { 1 };
static volatile unsigned long *counters; /* that all have in common, but no two copies */
static unsigned char *common;
static struct area areas[6];
static size_t n_areas;
static int self, ask[MEMBERS][2], answer[MEMBERS][2];
static unsigned long checks;

/* Others are as the root has filled them before it had children. */
static bool is_own(const struct area *a, size_t page)
{
	return page % a->every == (size_t)self % a->every;
}

static bool is_rewritten(const struct area *a, size_t page)
{
	return a->prot & PROT_WRITE && is_own(a, page) &&
	       (page % 16 == WRITTEN || page % 16 == DROPPED);
}

static bool is_untouched(const struct area *a, size_t page)
{
	return a->seed && a->every == 1 && page % 16 == UNTOUCHED;
}

static unsigned long want(const struct area *a, size_t page, size_t word)
{
	unsigned long seed = is_own(a, page) ? a->seed + (unsigned long)self : 0;

	if (is_untouched(a, page))
		return 0;
	return victim_word(seed + (is_rewritten(a, page) ? checks << 8 : 0), page * 512 + word) | 1;
}

static unsigned long *words_of(const struct area *a, size_t page)
{
	return (unsigned long *)(a->at + page * PAGE);
}

static void fill(const struct area *a, size_t page)
{
	for (size_t i = 0; i < PAGE / sizeof(unsigned long); i++)
		words_of(a, page)[i] = want(a, page, i);
}

static void check_page(const struct area *a, size_t page)
{
	const unsigned long *words = words_of(a, page);

	for (size_t i = page % 5; i < PAGE / sizeof(*words); i += 73)
		CHECK(words[i] == want(a, page, i), "member %d: %s: page %zu, word %zu is %lx",
		      self, a->name, page, i, words[i]);
}

static void drop_page(const struct area *a, size_t page)
{
	const unsigned long *words = words_of(a, page);

	CHECK(!madvise(a->at + page * PAGE, PAGE, MADV_DONTNEED), "madvise: %s", strerror(errno));
	for (size_t i = 0; i < PAGE / sizeof(*words); i += 31)
		CHECK(!words[i], "member %d: %s: page %zu is not zeros but %lx", self, a->name,
		      page, words[i]);
}

static void check_own(void)
{
	CHECK(counters[self] == checks, "member %d: %lu checks were counted, not %lu", self,
	      counters[self], checks);
	for (const struct area *a = areas; a < areas + n_areas; a++)
		for (size_t page = 0; page < a->size / PAGE; page++)
			check_page(a, page);
	counters[self] = ++checks;
	for (const struct area *a = areas; a < areas + n_areas; a++)
		for (size_t page = 0; page < a->size / PAGE; page++) {
			if (!is_rewritten(a, page))
				continue;
			if (page % 16 == DROPPED && a->anonymous)
				drop_page(a, page);
			fill(a, page);
		}
}

static void check(void)
{
	check_own();
	for (int m = 1; m < MEMBERS; m++)
		victim_ask(ask[m][1], answer[m][0], "member %d", m);
}

/* ---- building ---------------------------------------------------------------------------- */

static struct area *add(const char *name, void *at, size_t size, unsigned every, int prot)
{
	struct area *a = &areas[n_areas++];

	*a = (struct area){ name, at, size, 16 * n_areas, every, prot, at != data };
	for (size_t page = 0; page < size / PAGE; page++)
		if (is_own(a, page) && !is_untouched(a, page))
			fill(a, page);
	if (prot != (PROT_READ | PROT_WRITE))
		MUST(mprotect(at, size, prot));
	return a;
}

static void *map(size_t size, int flags)
{
	void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | flags, -1, 0);

	if (at == MAP_FAILED)
		victim_die("mmap: %s", strerror(errno));
	return at;
}

/* Its own memory: what most of a tree has. */
static void build(void)
{
	void *huge;

	add("common", common, COMMON, 8, PROT_READ | PROT_WRITE);
	add("data", data, STATIC, 2, PROT_READ | PROT_WRITE);
	add("own", map(OWN, MAP_PRIVATE), OWN, 1, PROT_READ | PROT_WRITE);
	/* a kernel may have no names */
	prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, areas[n_areas - 1].at, OWN, "mem-copies");
	add("constant", map(2 * MIB, MAP_PRIVATE), 2 * MIB, 1, PROT_READ);
	huge = map(4 * MIB, MAP_PRIVATE | MAP_NORESERVE);
	/* nor huge pages */
	madvise(huge, 4 * MIB, self % 2 ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	add("huge", huge, 4 * MIB, 1, PROT_READ | PROT_WRITE);
}

static void bear(int member)
{
	char ready;

	if (MUST(fork()) == 0) {
		self = member;
		build();
		MUST(write(answer[self][1], "", 1));
		victim_answer(ask[self][0], answer[self][1], check_own);
	}
	MUST(read(answer[member][0], &ready, 1));
}

int main(int argc, char **argv)
{
	struct area all = { "common", NULL, COMMON, 0, 1, PROT_READ, true };

	victim_init(argc, argv);
	counters = map(PAGE, MAP_SHARED);
	common = all.at = map(COMMON, MAP_PRIVATE);
	for (size_t page = 0; page < COMMON / PAGE; page++)
		fill(&all, page);
	all.at = data;
	for (size_t page = 0; page < STATIC / PAGE; page++)
		fill(&all, page);
	for (int m = 1; m < MEMBERS; m++) {
		MUST(pipe(ask[m]));
		MUST(pipe(answer[m]));
	}
	for (int m = 1; m < MEMBERS; m++)
		bear(m);
	build();
	victim_ready();
	victim_serve(check);
}
