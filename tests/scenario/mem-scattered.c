/* SPDX-License-Identifier: MIT */
/*
 * More single pages than the kernel looks at in one go (512 of them, PAGEMAP_SCAN): in one mapping,
 * and in neighbours that are looked at together.
 */
#include "victim.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 1600, STRIDE = 3, PART = 40 * STRIDE };

static unsigned char *one, *many;

static unsigned char want(size_t page)
{
	return (unsigned char)(victim_word(5, page) | 1);
}

static unsigned char *scatter(void)
{
	unsigned char *at = mmap(NULL, (size_t)PAGES * STRIDE * PAGE, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		victim_die("mmap: %s", strerror(errno));
	MUST(madvise(at, (size_t)PAGES * STRIDE * PAGE, MADV_NOHUGEPAGE));
	for (size_t page = 0; page < PAGES * STRIDE; page += STRIDE)
		at[page * PAGE + page % PAGE] = want(page);
	return at;
}

static void check_one(const unsigned char *at, const char *name)
{
	/* those between are never touched: once read, they would be in the page table too */
	for (size_t page = 0; page < PAGES * STRIDE; page += STRIDE)
		CHECK(at[page * PAGE + page % PAGE] == want(page), "%s: page %zu", name, page);
}

static void check(void)
{
	check_one(one, "one mapping");
	check_one(many, "many mappings");
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	one = scatter();
	many = scatter();
	for (size_t page = 0; page < PAGES * STRIDE; page += 2 * PART)
		MUST(madvise(many + page * PAGE, (size_t)PART * PAGE, MADV_DONTDUMP));
	victim_ready();
	victim_serve(check);
}
