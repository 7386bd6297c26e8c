/* SPDX-License-Identifier: MIT */
/*
 * Memory that a family shares by fork: pages that nobody has written to since (stored
 * once, and shared again), pages that one of them has, pages whose protection or place differs.
 */
#include "victim.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 1500, CHILDREN = 3, MOVED = 700, PROTECTED = 900 };

static unsigned char *memory, *moved;
static int self, ask[CHILDREN][2], answer[CHILDREN][2];

/* Member m writes to every page p with p % 11 == m; the first three are never written to again. */
static bool is_own(int member, size_t page)
{
	return member >= 0 && page % 11 == (size_t)member + 3;
}

static unsigned char want(int member, size_t page, size_t i)
{
	if (is_own(member, page) && i == page % PAGE)
		return (unsigned char)(0xc0 + member);
	/* every seventh page holds zeros */
	return page % 7 ? (unsigned char)(victim_word(page, i) | 1) : 0;
}

static bool is_arranged(size_t page)
{
	return (page >= MOVED && page < MOVED + 10) || (page >= PROTECTED && page < PROTECTED + 10);
}

static void write_own(void)
{
	for (size_t page = 0; page < PAGES; page++)
		if (is_own(self, page) && !(moved && is_arranged(page)))
			memory[page * PAGE + page % PAGE] = (unsigned char)(0xc0 + self);
}

static void arrange(void)
{
	write_own();
	/* one of them has a part elsewhere, and a part that cannot be written to */
	if (self != 1)
		return;
	moved = mmap(NULL, 10 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (mremap(memory + MOVED * PAGE, 10 * PAGE, 10 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED,
		   moved) != moved)
		_exit(9);
	MUST(mprotect(memory + PROTECTED * PAGE, 10 * PAGE, PROT_READ));
}

/* The kernel says of each page whether somebody else maps it too. */
static void check_shared(void)
{
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);

	for (size_t page = 0; page < PAGES; page++) {
		const unsigned char *at = memory + page * PAGE;
		uint64_t entry = 0;

		if (moved && page >= MOVED && page < MOVED + 10)
			at = moved + (page - MOVED) * PAGE;
		if (is_own(self, page) || page % 7 == 0)
			continue;
		CHECK(pread(fd, &entry, 8, (off_t)((uintptr_t)at / PAGE * 8)) == 8,
		      "no page table entry");
		CHECK(entry >> 63 && !(entry >> 56 & 1), "member %d: page %zu is not shared (%lx)",
		      self, page, entry);
	}
	close(fd);
}

static void check_pages(void)
{
	check_shared();
	for (size_t page = 0; page < PAGES; page++) {
		const unsigned char *at = memory + page * PAGE;

		if (moved && page >= MOVED && page < MOVED + 10)
			at = moved + (page - MOVED) * PAGE;
		for (size_t i = 0; i < PAGE; i += page % 50 ? 97 : 1)
			CHECK(at[i] == want(self, page, i), "member %d: page %zu, byte %zu is %x",
			      self, page, i, at[i]);
		CHECK(at[page % PAGE] == want(self, page, page % PAGE), "member %d: page %zu", self,
		      page);
	}
	/* still nobody else's business */
	write_own();
	check_shared();
}

static void check(void)
{
	check_pages();
	for (int i = 0; i < CHILDREN; i++)
		victim_ask(ask[i][1], answer[i][0], "child %d", i);
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	memory = mmap(NULL, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (size_t page = 0; page < PAGES; page++)
		for (size_t i = 0; i < PAGE; i++)
			memory[page * PAGE + i] = want(-1, page, i);
	for (int i = 0; i < CHILDREN; i++) {
		MUST(pipe(ask[i]));
		MUST(pipe(answer[i]));
		if (MUST(fork()) == 0) {
			self = i + 1;
			arrange();
			MUST(write(answer[i][1], "", 1));
			victim_answer(ask[i][0], answer[i][1], check_pages);
		}
		char ready;
		MUST(read(answer[i][0], &ready, 1));
	}
	arrange();
	victim_ready();
	victim_serve(check);
}
