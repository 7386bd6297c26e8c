/* SPDX-License-Identifier: MIT
 *
 * Every kind of mapping that is saved, with known content: private and shared, anonymous and of
 * files, changed and untouched, advised, locked, protected, reserved by the terabyte. The list of
 * mappings with their flags, the layout, the executed file and the vectors must be the same after
 * as before.
 */
#include "victim.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif

enum { PAGE = 4096, FILE_PAGES = 8, SMALL = 400 };

#ifndef MAP_DROPPABLE
#define MAP_DROPPABLE 0x08
#endif

#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)

/* ---- content ----------------------------------------------------------------------------------
 */

static void fill(void *at, unsigned long seed, size_t pages)
{
	unsigned long *word = at;
	for (size_t i = 0; i < pages * PAGE / sizeof(*word); i++)
		word[i] = victim_word(seed, i);
}

static bool holds(const void *at, unsigned long seed, size_t pages)
{
	const unsigned long *word = at;
	for (size_t i = 0; i < pages * PAGE / sizeof(*word); i++)
		if (word[i] != victim_word(seed, i))
			return false;
	return true;
}

static bool is_zero(const void *at, size_t pages)
{
	const unsigned long *word = at;
	for (size_t i = 0; i < pages * PAGE / sizeof(*word); i++)
		if (word[i])
			return false;
	return true;
}

static char *map(size_t pages, int prot, int flags)
{
	void *at = mmap(NULL, pages * PAGE, prot, flags, -1, 0);
	if (at == MAP_FAILED)
		victim_die("mmap of %zu pages: %s", pages, strerror(errno));
	return at;
}

/* ---- private memory ---------------------------------------------------------------------------
 */

static char *sparse, *dense, *zeros, *read_only, *hidden, *code, *reservation, *island, *heap,
	*deep;
static char *guarded, *small, *apart, *droppable;
static bool has_guards;
static void *brk_end;

#define RESERVED (4ULL << 40)

static void build_code(void)
{
	static const unsigned char returns_42[] = { 0xb8, 42, 0, 0, 0, 0xc3 };
	code = map(1, PROT_READ | PROT_WRITE, ANON);
	memcpy(code, returns_42, sizeof(returns_42));
	MUST(mprotect(code, PAGE, PROT_READ | PROT_EXEC));
}

/* Neighbours that are equal but got their pages before they met: the kernel keeps them apart. */
static void build_apart(void)
{
	apart = map(7, PROT_NONE, ANON);
	MUST(munmap(apart, 7 * PAGE));
	char *low = mmap(apart, 2 * PAGE, PROT_READ | PROT_WRITE, ANON | MAP_FIXED, -1, 0);
	fill(low, 60, 2);
	char *high =
		mmap(apart + 4 * PAGE, 3 * PAGE, PROT_READ | PROT_WRITE, ANON | MAP_FIXED, -1, 0);
	fill(high, 61, 1);
	char *gap =
		mmap(apart + 2 * PAGE, 2 * PAGE, PROT_READ | PROT_WRITE, ANON | MAP_FIXED, -1, 0);
	fill(gap, 62, 1);
}

static void build_private(void)
{
	sparse = map(768, PROT_READ | PROT_WRITE, ANON);
	for (size_t i = 0; i < 768; i += 3)
		fill(sparse + i * PAGE, 100 + i, 1);
	dense = map(4096, PROT_READ | PROT_WRITE, ANON);
	fill(dense, 2, 4096);
	zeros = map(64, PROT_READ | PROT_WRITE, ANON);
	memset(zeros, 0, 32 * PAGE);
	CHECK(is_zero(zeros + 32 * PAGE, 16), "new memory is not zero");
	fill(zeros + 63 * PAGE, 3, 1);
	read_only = map(4, PROT_READ | PROT_WRITE, ANON);
	fill(read_only, 4, 4);
	MUST(mprotect(read_only, 4 * PAGE, PROT_READ));
	hidden = map(4, PROT_READ | PROT_WRITE, ANON);
	fill(hidden, 5, 4);
	MUST(mprotect(hidden, 4 * PAGE, PROT_NONE));
	build_code();
	reservation = map(RESERVED / PAGE, PROT_NONE, ANON | MAP_NORESERVE);
	island = reservation + RESERVED / 2;
	MUST(mprotect(island, 16 * PAGE, PROT_READ | PROT_WRITE));
	fill(island + PAGE, 6, 3);
	heap = sbrk(5 * PAGE + 100);
	memset(heap, 'h', 5 * PAGE + 100);
	deep = map(32, PROT_READ | PROT_WRITE, ANON | MAP_GROWSDOWN);
	fill(deep + 30 * PAGE, 7, 2);
	guarded = map(8, PROT_READ | PROT_WRITE, ANON);
	fill(guarded, 8, 8);
	has_guards = !madvise(guarded + 2 * PAGE, 2 * PAGE, MADV_GUARD_INSTALL);
	/* the kernel may drop the content any time, so it is never looked at */
	droppable =
		mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_DROPPABLE | MAP_ANONYMOUS, -1, 0);
	if (droppable != MAP_FAILED)
		fill(droppable, 9, 2);
	if (has_guards && droppable != MAP_FAILED)
		MUST(madvise(droppable + 3 * PAGE, PAGE, MADV_GUARD_INSTALL));
	small = map(SMALL * 2, PROT_READ, ANON);
	for (size_t i = 0; i < SMALL; i++) {
		MUST(mprotect(small + i * 2 * PAGE, PAGE, PROT_READ | PROT_WRITE));
		*(size_t *)(small + i * 2 * PAGE) = i;
	}
	build_apart();
}

static bool readable(const char *at)
{
	char byte;
	struct iovec to = { &byte, 1 }, from = { (void *)(uintptr_t)at, 1 };
	return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1;
}

static void check_protected(void)
{
	CHECK(!readable(hidden), "PROT_NONE memory is readable");
	mprotect(hidden, 4 * PAGE, PROT_READ);
	CHECK(holds(hidden, 5, 4), "content of PROT_NONE memory");
	mprotect(hidden, 4 * PAGE, PROT_NONE);
	CHECK(holds(read_only, 4, 4), "content of read-only memory");
	CHECK(((int (*)(void))(uintptr_t)code)() == 42, "code");
	CHECK(holds(island + PAGE, 6, 3) && is_zero(island, 1) && is_zero(island + 4 * PAGE, 12),
	      "content in the middle of a reservation");
	CHECK(!readable(reservation) && !readable(reservation + RESERVED - 1),
	      "reservation is readable");
}

static void check_private(void)
{
	for (size_t i = 0; i < 768; i++)
		CHECK(i % 3 ? is_zero(sparse + i * PAGE, 1) : holds(sparse + i * PAGE, 100 + i, 1),
		      "page %zu of sparse memory", i);
	CHECK(holds(dense, 2, 4096), "dense memory");
	CHECK(is_zero(zeros, 63) && holds(zeros + 63 * PAGE, 3, 1), "zeros");
	check_protected();
	for (size_t i = 0; i < 5 * PAGE + 100; i++)
		CHECK(heap[i] == 'h', "byte %zu of the heap", i);
	CHECK(!brk_end || sbrk(0) == brk_end, "brk is %p, was %p", sbrk(0), brk_end);
	CHECK(holds(deep + 30 * PAGE, 7, 2), "memory that grows down");
	if (has_guards)
		CHECK(!readable(guarded + 2 * PAGE) && !readable(guarded + 3 * PAGE) &&
			      readable(guarded + PAGE) && holds(guarded + 4 * PAGE, 8, 0),
		      "guard pages");
	if (has_guards && droppable != MAP_FAILED)
		CHECK(!readable(droppable + 3 * PAGE) && readable(droppable + 2 * PAGE),
		      "guard pages of memory that may be dropped");
	for (size_t i = 0; i < SMALL; i++)
		CHECK(*(size_t *)(small + i * 2 * PAGE) == i, "small mapping %zu", i);
	CHECK(holds(apart, 60, 2) && holds(apart + 4 * PAGE, 61, 1) &&
		      holds(apart + 2 * PAGE, 62, 1),
	      "memory that is kept apart");
}

/* ---- shared memory ----------------------------------------------------------------------------
 */

struct shared {
	_Atomic unsigned question, answer;
	atomic_bool bad;
};

static struct shared *shared;
static char *ours, *theirs, *again, *lazy;

/* Pages 1 and 2 of three mappings with content, which others see elsewhere: Linux 6.15 */
static char *fence[3];
static bool has_fences;

static bool fenced(const char *at)
{
	return readable(at) && !readable(at + PAGE) && !readable(at + 2 * PAGE) &&
	       readable(at + 3 * PAGE);
}

/* The child's side: what the parent wrote is there, and what it writes itself, the parent sees. */
static _Noreturn void child(void)
{
	struct timespec tick = { 0, 1000000 };
	fill(theirs, 21, 8);
	for (;;) {
		unsigned q = atomic_load(&shared->question);
		if (q != atomic_load(&shared->answer)) {
			if (!holds(ours, 20 + q, 8) || (has_fences && !fenced(fence[0])))
				atomic_store(&shared->bad, true);
			fill(theirs, 1000 + q, 8);
			atomic_store(&shared->answer, q);
		}
		nanosleep(&tick, NULL);
	}
}

static void ask_child(void)
{
	struct timespec tick = { 0, 1000000 };
	unsigned q = atomic_load(&shared->question) + 1;
	fill(ours, 20 + q, 8);
	atomic_store(&shared->question, q);
	for (int i = 0; i < 10000 && atomic_load(&shared->answer) != q; i++)
		nanosleep(&tick, NULL);
	CHECK(atomic_load(&shared->answer) == q, "the child does not see shared memory");
	CHECK(!atomic_load(&shared->bad), "the child saw something else in shared memory");
	CHECK(holds(theirs, 1000 + q, 8), "what the child wrote to shared memory");
}

static void build_shared(void)
{
	char *all = map(64, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS);
	shared = (struct shared *)all;
	ours = all + 4 * PAGE;
	theirs = all + 16 * PAGE;
	lazy = all + 40 * PAGE;
	fence[0] = all + 48 * PAGE;
	fill(fence[0], 24, 4);
	has_fences = has_guards && !madvise(fence[0] + PAGE, 2 * PAGE, MADV_GUARD_INSTALL);
	fill(lazy, 23, 1);
	/* the pages leave our page tables, and stay in the object */
	MUST(madvise(lazy, PAGE, MADV_DONTNEED));
	pid_t pid = MUST(fork());
	if (pid == 0)
		child();
	ask_child();
	/* a part of the object a second time, elsewhere, read-only */
	again = mremap(ours, 0, 8 * PAGE, MREMAP_MAYMOVE);
	if (again == MAP_FAILED)
		victim_die("mremap: %s", strerror(errno));
	MUST(mprotect(again, 8 * PAGE, PROT_READ));
}

static void check_shared(void)
{
	unsigned q = atomic_load(&shared->question);
	CHECK(holds(theirs, 1000 + q, 8), "what the child had written to shared memory");
	CHECK(holds(ours, 20 + q, 8), "what we had written to shared memory");
	ask_child();
	CHECK(holds(again, 20 + q + 1, 8), "the second view of shared memory");
	CHECK(holds(lazy, 23, 1), "shared memory that is in nobody's page tables");
	CHECK(!has_fences || fenced(fence[0]), "guard pages in shared memory");
	CHECK(holds(fence[0], 24, 1), "shared memory with guard pages");
}

/* ---- files ------------------------------------------------------------------------------------
 */

static char *changed, *written, *looked_at, *beyond;
static int file_fd;
static unsigned long round_number;

static char *map_file(const char *name, int open_flags, int prot, int flags, size_t pages)
{
	int fd = MUST(open(victim_path(name), open_flags));
	void *at = mmap(NULL, pages * PAGE, prot, flags, fd, 0);
	if (at == MAP_FAILED)
		victim_die("mmap of %s: %s", name, strerror(errno));
	close(fd);
	return at;
}

static void make_file(const char *name, unsigned long seed, size_t pages)
{
	static char content[FILE_PAGES * PAGE];
	int fd = MUST(open(victim_path(name), O_RDWR | O_CREAT | O_TRUNC, 0644));
	fill(content, seed, pages);
	if (write(fd, content, pages * PAGE) != (ssize_t)(pages * PAGE))
		victim_die("write: %s", strerror(errno));
	close(fd);
}

static void build_files(void)
{
	make_file("private", 30, FILE_PAGES);
	make_file("shared", 31, FILE_PAGES);
	make_file("short", 32, 1);
	changed = map_file("private", O_RDONLY, PROT_READ | PROT_WRITE, MAP_PRIVATE, FILE_PAGES);
	fill(changed + 2 * PAGE, 33, 1);
	fill(changed + 5 * PAGE, 34, 1);
	memset(changed + 3 * PAGE, 0, PAGE);
	written = map_file("shared", O_RDWR, PROT_READ | PROT_WRITE, MAP_SHARED, FILE_PAGES);
	fill(written + PAGE, 35, 1);
	looked_at = map_file("shared", O_RDONLY, PROT_READ, MAP_SHARED, FILE_PAGES);
	fence[1] = map_file("shared", O_RDWR, PROT_READ | PROT_WRITE, MAP_SHARED, 4);
	fence[2] = map_file("shared", O_RDONLY, PROT_READ, MAP_SHARED, 4);
	for (size_t i = 1; i < 3 && has_fences; i++)
		MUST(madvise(fence[i] + PAGE, 2 * PAGE, MADV_GUARD_INSTALL));
	beyond = map_file("short", O_RDONLY, PROT_READ, MAP_PRIVATE, 4);
}

static bool file_page_is(const char *at, unsigned long seed, size_t page)
{
	for (size_t i = 0; i < PAGE / sizeof(long); i++)
		if (((const unsigned long *)at)[i] !=
		    victim_word(seed, page * (PAGE / sizeof(long)) + i))
			return false;
	return true;
}

static void check_files(void)
{
	static char content[PAGE];
	for (size_t i = 0; i < FILE_PAGES; i++) {
		const char *at = changed + i * PAGE;
		bool good = i == 2   ? holds(at, 33, 1)
			    : i == 5 ? holds(at, 34, 1)
			    : i == 3 ? is_zero(at, 1)
				     : file_page_is(at, 30, i);
		CHECK(good, "page %zu of a private file mapping", i);
	}
	CHECK(holds(written + PAGE, round_number ? 350 + round_number : 35, 1),
	      "shared file mapping");
	for (size_t i = 1; i < 3; i++)
		CHECK(!has_fences || fenced(fence[i]), "guard pages in a shared file mapping");
	round_number++;
	fill(written + PAGE, 350 + round_number, 1);
	CHECK(holds(looked_at + PAGE, 350 + round_number, 1), "two mappings of a file differ");
	file_fd = open(victim_path("shared"), O_RDONLY);
	CHECK(pread(file_fd, content, PAGE, PAGE) == PAGE && holds(content, 350 + round_number, 1),
	      "what was written to a shared mapping is not in the file");
	close(file_fd);
	CHECK(file_page_is(beyond, 32, 0) && !readable(beyond + PAGE),
	      "mapping beyond the end of a file");
}

/* ---- advice -----------------------------------------------------------------------------------
 */

static const int advices[] = { MADV_DONTFORK,	MADV_WIPEONFORK, MADV_DONTDUMP,	  MADV_HUGEPAGE,
			       MADV_NOHUGEPAGE, MADV_MERGEABLE,	 MADV_SEQUENTIAL, MADV_RANDOM };
enum { ADVICES = sizeof(advices) / sizeof(advices[0]) };
static char *advised[ADVICES], *locked, *on_fault, *locked_hidden, *huge;

static void build_advice(void)
{
	for (size_t i = 0; i < ADVICES; i++) {
		advised[i] = map(4, PROT_READ | PROT_WRITE, ANON);
		fill(advised[i], 40 + i, 2);
		/* huge pages and page merging are options of the kernel's */
		if (madvise(advised[i], 4 * PAGE, advices[i]) < 0 && errno != EINVAL)
			victim_die("madvise(%d): %s", advices[i], strerror(errno));
	}
	locked = map(4, PROT_READ | PROT_WRITE, ANON);
	MUST(mlock(locked, 4 * PAGE));
	fill(locked, 50, 1);
	on_fault = map(4, PROT_READ | PROT_WRITE, ANON);
	MUST(mlock2(on_fault, 4 * PAGE, MLOCK_ONFAULT));
	if (!victim_all_flags_named()) /* refused where the kernel has no name for it */
		MUST(munlock(on_fault, 4 * PAGE));
	fill(on_fault, 51, 1);
	locked_hidden = map(4, PROT_NONE, ANON);
	(void)!mlock(locked_hidden, 4 * PAGE);
	huge = map(2048, PROT_READ | PROT_WRITE, ANON);
	(void)madvise(huge, 2048 * PAGE, MADV_HUGEPAGE);
	fill(huge, 52, 1500);
}

static void check_advice(void)
{
	for (size_t i = 0; i < ADVICES; i++)
		CHECK(holds(advised[i], 40 + i, 2) && is_zero(advised[i] + 2 * PAGE, 2),
		      "memory with advice %d", advices[i]);
	CHECK(holds(locked, 50, 1) && is_zero(locked + PAGE, 3), "locked memory");
	CHECK(holds(on_fault, 51, 1), "memory that is locked when touched");
	CHECK(holds(huge, 52, 1500) && is_zero(huge + 1500 * PAGE, 548), "memory with huge pages");
}

/* ---- what the kernel says ---------------------------------------------------------------------
 */

enum { TEXT = 1 << 18 };
static char before[TEXT], now[TEXT], raw[8 * TEXT];

static void slurp(const char *path, char *to, size_t size)
{
	int fd = open(path, O_RDONLY);
	size_t length = 0;
	ssize_t n;
	while (fd >= 0 && length < size - 1 && (n = read(fd, to + length, size - 1 - length)) > 0)
		length += (size_t)n;
	to[length] = 0;
	if (fd >= 0)
		close(fd);
	if (length == size - 1)
		victim_die("%s is larger than expected", path);
}

/* Each mapping's line, without the inode number of shared memory, and its flags. Nothing is
 * allocated: that could change what is looked at. */
static void list_mappings(char *out)
{
	char *end = out;
	slurp("/proc/self/smaps", raw, sizeof(raw));
	for (char *line = raw, *next; line && *line; line = next) {
		next = strchr(line, '\n');
		if (next)
			*next++ = 0;
		char *anonymous = strstr(line, " 00:01 ");
		bool header = line[0] < 'A' || line[0] > 'Z';
		if (header && anonymous && strstr(line, "/dev/zero"))
			end += sprintf(end, "%.*s /dev/zero\n", (int)(anonymous - line), line);
		else if (header || !strncmp(line, "VmFlags", 7)) {
			/* "soft dirty", where kernels have that: who has looked, not what it is */
			char *dirty = header ? NULL : strstr(line, " sd");

			if (dirty)
				memmove(dirty, dirty + 3, strlen(dirty + 3) + 1);
			end += sprintf(end, "%s\n", line);
		}
	}
	*end = 0;
}

static void check_list(void)
{
	list_mappings(now);
	for (char *a = before, *b = now; *a || *b;) {
		size_t la = strcspn(a, "\n"), lb = strcspn(b, "\n");
		if (la != lb || memcmp(a, b, la)) {
			victim_fail("mappings: '%.*s' was '%.*s'", (int)lb, b, (int)la, a);
			return;
		}
		a += la + (a[la] != 0);
		b += lb + (b[lb] != 0);
	}
}

static const char *const texts[] = { "/proc/self/auxv", "/proc/self/cmdline",
				     "/proc/self/environ" };
static char saved_text[3][16384], saved_exe[4096];

static void check_texts(bool save)
{
	static char text[16384];
	char exe[4096] = "";
	for (size_t i = 0; i < 3; i++) {
		memset(text, 0, sizeof(text));
		slurp(texts[i], text, sizeof(text));
		if (save)
			memcpy(saved_text[i], text, sizeof(text));
		CHECK(!memcmp(saved_text[i], text, sizeof(text)), "%s has changed", texts[i]);
	}
	CHECK(readlink("/proc/self/exe", exe, sizeof(exe) - 1) > 0, "no exe link");
	if (save)
		strcpy(saved_exe, exe);
	CHECK(!strcmp(exe, saved_exe), "exe is '%s', was '%s'", exe, saved_exe);
}

static void check_vdso(void)
{
	struct timespec fast, slow;
	clock_gettime(CLOCK_MONOTONIC, &fast);
	CHECK(!memcmp((const void *)getauxval(AT_SYSINFO_EHDR), "\177ELF", 4), "no vdso");
	clock_gettime(CLOCK_MONOTONIC, &slow);
	CHECK(slow.tv_sec - fast.tv_sec < 10, "the vdso's clock is wrong");
}

static void check(void)
{
	check_list();
	check_texts(false);
	check_private();
	check_shared();
	check_files();
	check_advice();
	check_vdso();
	check_list();
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	build_shared();
	build_private();
	build_files();
	build_advice();
	check_texts(true);
	/* once for nothing: whatever checking itself maps is there then */
	list_mappings(before);
	check();
	brk_end = sbrk(0);
	list_mappings(before);
	victim_ready();
	victim_serve(check);
}
