/* SPDX-License-Identifier: MIT */
/* Private memory of the pool of huge pages: written in part, read-only, reserved and not. */
#include "victim.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { HUGE = 2 << 20, FREE_PAGES = 16 };

static unsigned char *partly, *constant;

static long pool(const char *name)
{
	char path[96];
	snprintf(path, sizeof(path), "/sys/kernel/mm/hugepages/hugepages-2048kB/%s", name);
	char *text = victim_read(path);
	long n = text ? atol(text) : -1;
	free(text);
	return n;
}

/* Enough for this and for its copy; what is missing is added for good. */
static void fill_pool(void)
{
	long missing = FREE_PAGES - (pool("free_hugepages") - pool("resv_hugepages"));
	FILE *f = missing > 0 ? fopen("/proc/sys/vm/nr_hugepages", "we") : NULL;

	if (f) {
		fprintf(f, "%ld", pool("nr_hugepages") + missing);
		fclose(f);
	}
	if (pool("free_hugepages") - pool("resv_hugepages") < FREE_PAGES)
		victim_skip("there are no huge pages");
}

static unsigned char *map(size_t pages, int flags)
{
	unsigned char *at =
		mmap(NULL, pages * HUGE, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | 21 << 26 | flags, -1, 0);

	if (at == MAP_FAILED)
		victim_die("mmap of huge pages: %s", strerror(errno));
	return at;
}

static unsigned char want(size_t i)
{
	/* holes of zeros in between */
	return i >> 16 & 1 ? 0 : (unsigned char)victim_word(7, i);
}

static void check(void)
{
	for (size_t i = 1; i < HUGE; i += 13) {
		CHECK(partly[i] == want(i), "byte %zu is %x", i, partly[i]);
		CHECK(constant[HUGE + i] == want(i + 1), "constant byte %zu is %x", i,
		      constant[HUGE + i]);
	}
	/* it can still be written to */
	partly[0]++;
	partly[HUGE + 5]++;
	CHECK(partly[HUGE + 4] == 0 && partly[HUGE + 5] != 0, "the second page is %x %x",
	      partly[HUGE + 4], partly[HUGE + 5]);
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	fill_pool();
	partly = map(2, 0);
	constant = map(3, MAP_NORESERVE);
	for (size_t i = 0; i < HUGE; i++) {
		partly[i] = want(i);
		constant[HUGE + i] = want(i + 1);
	}
	MUST(mprotect(constant, 3UL * HUGE, PROT_READ));
	MUST(madvise(partly, 2UL * HUGE, MADV_DONTFORK));
	victim_ready();
	victim_serve(check);
}
