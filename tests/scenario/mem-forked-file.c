/* SPDX-License-Identifier: MIT */
/*
 * Private mappings of files with pages that a family shares by fork, in a mount namespace of
 * their own: those that nobody has written to since are shared again, if the file is seen
 * through the machine's own root; given back, they are the file's. One of the family has
 * another root, from where the path is another. Another file is one of the namespace's
 * own: to all others its path leads to another one, alike in size and time.
 */
#include "victim.h"

#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 200, HIDDEN_PAGES = 20, CHILDREN = 3, JAILED = 3 };
enum kind { COMMON, FILES, OWN };

static const char machine[] = "/usr/bin/bash", hidden[] = "/usr/bin/sort";

struct area {
	const char *path;
	unsigned char *at;
	size_t pages;
	bool shared;	 /* to be so again */
	char shown[512]; /* by maps */
};

static struct area areas[2];
static int self, ask[CHILDREN][2], answer[CHILDREN][2];
/* the next page to be given back and written again: up to there none is common, since others may
 * have been asked before */
static size_t dropped;

static const char *own(const char *name)
{
	static char path[64];

	snprintf(path, sizeof(path), "%s/self/%s", self == JAILED ? "/local" : "/proc", name);
	return path;
}

static enum kind kind_of(size_t page)
{
	return page % 3 == 0 ? COMMON : page % 3 == 1 ? FILES : OWN;
}

static unsigned long want(size_t page, size_t word)
{
	return victim_word(kind_of(page) == OWN ? (unsigned long)self + 1 : 0, page * 512 + word);
}

static unsigned long *words_of(const struct area *a, size_t page)
{
	return (unsigned long *)(void *)(a->at + page * PAGE);
}

static void fill(const struct area *a, size_t page)
{
	for (size_t i = 0; i < PAGE / sizeof(long); i++)
		words_of(a, page)[i] = want(page, i);
}

static void fill_all(const struct area *a, enum kind kind)
{
	for (size_t page = 0; page < a->pages; page++)
		if (kind_of(page) == kind)
			fill(a, page);
}

/* The path that maps says; to be freed. */
static char *shown_of(const struct area *a)
{
	char start[32], *maps = victim_read(own("maps")), *line, *end;

	snprintf(start, sizeof(start), "%lx-", (unsigned long)(uintptr_t)a->at);
	line = maps ? strstr(maps, start) : NULL;
	end = line ? strchr(line, '\n') : NULL;
	/* a layer has a device number of its own */
	line = end ? memchr(line, '/', (size_t)(end - line)) : NULL;
	line = line ? strndup(line, (size_t)(end - line)) : NULL;
	free(maps);
	return line;
}

/* Is it the file's? Read through a descriptor that had nothing to do with the mapping. */
static void check_file_page(const struct area *a, size_t page)
{
	const char *path = self == JAILED && !strncmp(a->path, "/usr/", 5) ? a->path + 4 : a->path;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	unsigned char text[PAGE];

	CHECK(pread(fd, text, PAGE, (off_t)page * PAGE) == PAGE, "member %d: %s: %s", self, path,
	      strerror(errno));
	CHECK(!memcmp(text, a->at + page * PAGE, PAGE), "member %d: %s: page %zu is not the file's",
	      self, a->path, page);
	close(fd);
}

/* The kernel says of each page whether it is the file's, and whether somebody else maps it too. */
static void check_shared(const struct area *a, size_t page, int pagemap)
{
	uint64_t entry = 0;

	CHECK(pread(pagemap, &entry, 8, (off_t)((uintptr_t)a->at / PAGE + page) * 8) == 8,
	      "no page table entry");
	CHECK(entry >> 63 && !(entry >> 61 & 1), "member %d: %s: page %zu is the file's (%lx)",
	      self, a->path, page, entry);
	CHECK(!a->shared || self == JAILED || page <= dropped || !(entry >> 56 & 1),
	      "member %d: %s: page %zu is not shared (%lx)", self, a->path, page, entry);
}

static void check_page(const struct area *a, size_t page, int pagemap)
{
	if (kind_of(page) == FILES) {
		check_file_page(a, page);
		return;
	}
	for (size_t i = page % 5; i < PAGE / sizeof(long); i += 7)
		CHECK(words_of(a, page)[i] == want(page, i), "member %d: %s: page %zu, word %zu",
		      self, a->path, page, i);
	if (kind_of(page) == COMMON)
		check_shared(a, page, pagemap);
}

static void give_back(const struct area *a, size_t page)
{
	CHECK(!madvise(a->at + page * PAGE, PAGE, MADV_DONTNEED), "madvise: %s", strerror(errno));
	check_file_page(a, page);
	CHECK(!mprotect(a->at, a->pages * PAGE, PROT_READ | PROT_WRITE), "mprotect: %s",
	      strerror(errno));
	fill(a, page);
	CHECK(!mprotect(a->at, a->pages * PAGE, PROT_READ), "mprotect: %s", strerror(errno));
}

static void check_areas(void)
{
	int pagemap = open(own("pagemap"), O_RDONLY | O_CLOEXEC);

	for (const struct area *a = areas; a < areas + 2; a++) {
		char *line = shown_of(a);

		CHECK(line && !strcmp(line, a->shown), "member %d: maps shows %s instead of %s",
		      self, line, a->shown);
		free(line);
		for (size_t page = 0; page < a->pages; page++)
			check_page(a, page, pagemap);
	}
	for (const struct area *a = areas; a < areas + 2; a++) {
		/* one that is shared, and one of its own */
		if (dropped + 3 < a->pages / 2)
			give_back(a, dropped);
		give_back(a, a->pages / 3 * 3 - 1);
	}
	dropped += 3;
	close(pagemap);
}

static void check(void)
{
	check_areas();
	for (int i = 0; i < CHILDREN; i++)
		victim_ask(ask[i][1], answer[i][0], "child %d", i);
}

/* ---- building ---------------------------------------------------------------------------- */

static void settle(void)
{
	for (struct area *a = areas; a < areas + 2; a++) {
		char *line;

		fill_all(a, OWN);
		/* as relocated data is protected when the program starts */
		MUST(mprotect(a->at, a->pages * PAGE, PROT_READ));
		line = shown_of(a);
		snprintf(a->shown, sizeof(a->shown), "%s", line ? line : "nothing");
		free(line);
	}
}

static void bear(int member)
{
	char ready;

	MUST(pipe(ask[member - 1]));
	MUST(pipe(answer[member - 1]));
	if (MUST(fork()) == 0) {
		self = member;
		if (self == JAILED) {
			MUST(chroot("/usr"));
		}
		settle();
		MUST(write(answer[member - 1][1], "", 1));
		victim_answer(ask[member - 1][0], answer[member - 1][1], check_areas);
	}
	MUST(read(answer[member - 1][0], &ready, 1));
}

/* In a namespace of its own another file lies at that path. */
static void hide(void)
{
	char *copy = victim_path("copy");
	struct timespec times[2];
	unsigned char byte = 0;
	struct stat st;
	int from, fd;

	MUST(stat(hidden, &st));
	from = MUST(open(hidden, O_RDONLY | O_CLOEXEC));
	fd = MUST(open(copy, O_RDWR | O_CREAT | O_CLOEXEC, 0755));
	for (off_t left = st.st_size; left > 0;)
		left -= MUST(sendfile(fd, from, NULL, (size_t)left));
	close(from);
	for (size_t page = 0; page < HIDDEN_PAGES; page++) {
		MUST(pread(fd, &byte, 1, (off_t)page * PAGE + 7));
		byte ^= 0xff;
		MUST(pwrite(fd, &byte, 1, (off_t)page * PAGE + 7));
	}
	times[0] = st.st_atim;
	times[1] = st.st_mtim;
	MUST(futimens(fd, times));
	close(fd);
	MUST(mount(copy, hidden, NULL, MS_BIND, NULL));
}

static void map(struct area *a, const char *path, size_t pages, bool shared)
{
	int fd = MUST(open(path, O_RDONLY | O_CLOEXEC));

	*a = (struct area){ .path = path, .pages = pages, .shared = shared };
	a->at = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	if (a->at == MAP_FAILED)
		victim_die("mmap of %s: %s", path, strerror(errno));
	close(fd);
	fill_all(a, COMMON);
}

/* Copies must not have what they write to in common; the directory they have in a layer. */
static void be_read_only(void)
{
	struct mount_attr read_only = { .attr_set = MOUNT_ATTR_RDONLY };
	struct mount_attr writable = { .attr_clr = MOUNT_ATTR_RDONLY };

	MUST(mount(victim_dir(), victim_dir(), NULL, MS_BIND, NULL));
	MUST(mount_setattr(AT_FDCWD, "/", AT_RECURSIVE, &read_only, sizeof(read_only)));
	MUST(mount_setattr(AT_FDCWD, victim_dir(), 0, &writable, sizeof(writable)));
}

static bool is_on_root(const char *path)
{
	struct statx root, file;

	MUST(statx(AT_FDCWD, "/", 0, STATX_MNT_ID, &root));
	MUST(statx(AT_FDCWD, path, 0, STATX_MNT_ID, &file));
	return root.stx_mnt_id == file.stx_mnt_id;
}

int main(int argc, char **argv)
{
	bool on_root;

	victim_init(argc, argv);
	on_root = is_on_root(machine);
	MUST(unshare(CLONE_NEWNS));
	MUST(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
	be_read_only();
	/* for the one that has its root there */
	MUST(mount("proc", "/usr/local", "proc", 0, NULL));
	hide();
	map(&areas[0], machine, PAGES, on_root);
	map(&areas[1], hidden, HIDDEN_PAGES, false);
	for (int member = 1; member <= CHILDREN; member++)
		bear(member);
	settle();
	victim_ready();
	victim_serve(check);
}
