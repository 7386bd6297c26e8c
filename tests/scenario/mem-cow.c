/* SPDX-License-Identifier: MIT */
/*
 * Memory that a family of three generations shares by fork: each member has changed some
 * pages before it had children. One leads a session, one is the first of a pid namespace,
 * one has died and left its children to the root. What is shared must be so again, in
 * small pages and huge ones, and in the data of the program.
 */
#include "victim.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 1100, HUGE_PAGES = 1024, HUGE = 2 << 20, STATIC_PAGES = 64 };
enum { ROOT, SON, SON_1, SON_2, INIT, INIT_1, DEAD, ORPHAN_1, ORPHAN_2, MEMBERS };

static const int parent_of[MEMBERS] = { -1, ROOT, SON, SON, ROOT, INIT, ROOT, DEAD, DEAD };
static unsigned char *memory, *huge;
static unsigned char data[STATIC_PAGES * PAGE] __attribute__((aligned(4096))) = { 1 };
static int self, ask[MEMBERS][2], answer[MEMBERS][2];

/* Each page has one member that writes to it; the root does so after all were born. */
static int writer(size_t page)
{
	return (int)(page % 16);
}

/* Who wrote last to the page as that member sees it; -1: nobody since it was made. */
static int last_writer(int member, size_t page)
{
	for (int m = member; m >= 0; m = parent_of[m])
		if (m == writer(page))
			return m != ROOT || member == ROOT ? m : -1;
	return -1;
}

/* What the dead has left may be shared or not; its own pages each member writes again in each
 * check. */
static bool is_shared(size_t page)
{
	int last = last_writer(self, page);

	if (last == DEAD || last == self)
		return false;
	for (int m = 0; m < MEMBERS; m++)
		if (m != self && m != DEAD && m != last && last_writer(m, page) == last)
			return true;
	return false;
}

static unsigned char want(int who, size_t page, size_t i)
{
	return (unsigned char)((victim_word(page, i) + (unsigned long)who * 31) | 1);
}

static void fill(unsigned char *at, size_t page, int who)
{
	for (size_t i = 0; i < PAGE; i++)
		at[page * PAGE + i] = want(who, page, i);
}

static void write_own(void)
{
	for (size_t page = (size_t)self; page < PAGES; page += 16) {
		fill(memory, page, self);
		if (page < HUGE_PAGES)
			fill(huge, page, self);
		if (page < STATIC_PAGES)
			fill(data, page, self);
	}
}

static void check_area(const char *name, const unsigned char *at, size_t pages)
{
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);

	for (size_t page = 0; page < pages; page++) {
		uint64_t entry = 0;
		off_t where = (off_t)((uintptr_t)(at + page * PAGE) / PAGE * 8);

		CHECK(pread(fd, &entry, 8, where) == 8 && entry >> 63,
		      "member %d: %s: page %zu is not there", self, name, page);
		CHECK(!is_shared(page) || !(entry >> 56 & 1),
		      "member %d: %s: page %zu is not shared (%lx)", self, name, page, entry);
		for (size_t i = page % 7; i < PAGE; i += 61)
			CHECK(at[page * PAGE + i] == want(last_writer(self, page), page, i),
			      "member %d: %s: page %zu, byte %zu is %x", self, name, page, i,
			      at[page * PAGE + i]);
	}
	close(fd);
}

static void check_own(void)
{
	check_area("memory", memory, PAGES);
	check_area("huge pages", huge, HUGE_PAGES);
	check_area("data", data, STATIC_PAGES);
	/* still nobody else's business */
	write_own();
	check_area("memory", memory, PAGES);
}

static void check(void)
{
	check_own();
	for (int m = SON; m < MEMBERS; m++)
		if (m != DEAD)
			victim_ask(ask[m][1], answer[m][0], "member %d", m);
}

/* Its children first born are the first to be ready; the dead one is waited for. */
static void bear(int member)
{
	long flags = member == INIT ? CLONE_NEWPID | SIGCHLD : SIGCHLD;
	char ready;
	long pid = MUST(syscall(SYS_clone, flags, 0, 0, 0, 0));

	if (pid == 0) {
		self = member;
		if (self == SON_2)
			MUST(setsid());
		write_own();
		for (int m = member + 1; m < MEMBERS; m++)
			if (parent_of[m] == member)
				bear(m);
		if (self == DEAD)
			_exit(0);
		MUST(write(answer[self][1], "", 1));
		victim_answer(ask[self][0], answer[self][1], check_own);
	}
	if (member == DEAD)
		MUST(waitpid((pid_t)pid, NULL, 0));
	else
		MUST(read(answer[member][0], &ready, 1));
}

static unsigned char *map(size_t size)
{
	unsigned char *at =
		mmap(NULL, size + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		victim_die("mmap: %s", strerror(errno));
	return (unsigned char *)(((uintptr_t)at + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	MUST(prctl(PR_SET_CHILD_SUBREAPER, 1));
	memory = map(PAGES * PAGE);
	huge = map(HUGE_PAGES * PAGE);
	/* a kernel may have none */
	madvise(huge, HUGE_PAGES * PAGE, MADV_HUGEPAGE);
	for (size_t page = 0; page < PAGES; page++) {
		fill(memory, page, -1);
		if (page < HUGE_PAGES)
			fill(huge, page, -1);
		if (page < STATIC_PAGES)
			fill(data, page, -1);
	}
	for (int m = 0; m < MEMBERS; m++) {
		MUST(pipe(ask[m]));
		MUST(pipe(answer[m]));
	}
	for (int m = SON; m < MEMBERS; m++)
		if (parent_of[m] == ROOT)
			bear(m);
	write_own();
	victim_ready();
	victim_serve(check);
}
