/* SPDX-License-Identifier: MIT */
/*
 * Files without a name: deleted ones (sparse, shared, replaced by another of that
 * name), O_TMPFILE, memfds with seals.
 *
 * test: ignore=what: \S+victim.#\d+ \(deleted\) ->
 * test: ignore=what: \S+victim.replaced \(deleted\) ->
 */
#include "victim.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#define FAR	 (6LL << 30)
#define BIG	 (3 << 20)
#define MODIFIED 1234567890

static int sparse, sparse_ro, replaced, wronly, tmp, tmp_ro, followed, empty;
static int memory, memory_ro, sealed, unsealable;
static int fds_before;
static pid_t child;
static int ask[2], answer[2];
static bool has_xattr;

static void fill(unsigned char *buf, size_t n, unsigned long seed)
{
	for (size_t i = 0; i < n; i++)
		buf[i] = (unsigned char)(victim_word(seed, i) | 1);
}

static void put(int fd, unsigned long seed, size_t n, off_t at)
{
	unsigned char *buf = malloc(n);

	fill(buf, n, seed);
	if (pwrite(fd, buf, n, at) != (ssize_t)n)
		victim_die("pwrite: %s", strerror(errno));
	free(buf);
}

static bool holds(int fd, unsigned long seed, size_t n, off_t at)
{
	unsigned char *want = malloc(n), *got = malloc(n);
	bool same;

	fill(want, n, seed);
	same = pread(fd, got, n, at) == (ssize_t)n && !memcmp(want, got, n);
	free(want);
	free(got);
	return same;
}

static void build_deleted(void)
{
	struct timespec times[2] = { { MODIFIED, 7 }, { MODIFIED, 8 } };
	char *path = victim_path("sparse");

	sparse = MUST(open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600));
	MUST(fchmod(sparse, 02751));
	MUST(fchown(sparse, 1234, 4321));
	MUST(fchmod(sparse, 02751));
	put(sparse, 1, BIG, 8192);
	put(sparse, 2, 5000, FAR);
	MUST(ftruncate(sparse, FAR + 100000));
	MUST(lseek(sparse, FAR + 77, SEEK_SET));
	has_xattr = !fsetxattr(sparse, "user.colour", "green", 5, 0);
	sparse_ro = MUST(open(path, O_RDONLY | O_NOFOLLOW));
	MUST(futimens(sparse, times));
	MUST(unlink(path));
	path = victim_path("replaced");
	replaced = MUST(open(path, O_RDWR | O_CREAT | O_APPEND, 0640));
	put(replaced, 3, 100, 0);
	MUST(unlink(path));
	close(MUST(open(path, O_WRONLY | O_CREAT, 0600)));
	path = victim_path("wronly");
	wronly = MUST(open(path, O_WRONLY | O_CREAT, 0600));
	put(wronly, 4, 4096, 0);
	followed = MUST(open(path, O_RDONLY));
	MUST(unlink(path));
	path = victim_path("empty");
	empty = MUST(open(path, O_RDWR | O_CREAT, 0600));
	MUST(unlink(path));
}

static void build_tmpfile(void)
{
	char path[64];

	tmp = MUST(open(victim_dir(), O_TMPFILE | O_RDWR, 0644));
	put(tmp, 5, 10000, 0);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", tmp);
	tmp_ro = MUST(open(path, O_RDONLY | O_CLOEXEC));
}

static void build_memfds(void)
{
	char path[64];

	memory = MUST(memfd_create("a name (deleted)", MFD_CLOEXEC | MFD_ALLOW_SEALING));
	put(memory, 6, 70000, 1 << 20);
	MUST(ftruncate(memory, 2 << 20));
	MUST(lseek(memory, 123, SEEK_SET));
	snprintf(path, sizeof(path), "/proc/self/fd/%d", memory);
	memory_ro = MUST(open(path, O_RDONLY));
	sealed = MUST(memfd_create("", MFD_ALLOW_SEALING));
	put(sealed, 7, 1000, 0);
	MUST(fchmod(sealed, 0600));
	MUST(fcntl(sealed, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
	unsealable = MUST(memfd_create("plain", 0));
}

/* Moves the position of what it shares, and adds to it. */
static void child_main(void)
{
	char c;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (read(ask[0], &c, 1) == 1) {
		lseek(sparse, 4242, SEEK_SET);
		if (pwrite(memory_ro, &c, 1, 0) != -1 || pwrite(memory, &c, 1, 0) != 1)
			c = '!';
		if (write(answer[1], &c, 1) != 1)
			break;
	}
	_exit(0);
}

/* ---- checks ------------------------------------------------------------------------- */

static void check_flags(int fd, int flags, int cloexec, const char *what)
{
	int got = fcntl(fd, F_GETFL), fdflags = fcntl(fd, F_GETFD);

	CHECK(got == flags, "%s: flags %#o, not %#o", what, got, flags);
	CHECK(fdflags == cloexec, "%s: descriptor flags %d, not %d", what, fdflags, cloexec);
}

static void check_deleted(void)
{
	struct stat st;
	char buf[16];

	check_flags(sparse, O_RDWR | 0100000, FD_CLOEXEC, "sparse");
	check_flags(sparse_ro, O_RDONLY | O_NOFOLLOW | 0100000, 0, "sparse, read-only");
	check_flags(replaced, O_RDWR | O_APPEND | 0100000, 0, "replaced");
	check_flags(wronly, O_WRONLY | 0100000, 0, "write-only");
	CHECK(lseek(sparse, 0, SEEK_CUR) == FAR + 77, "position %lld",
	      (long long)lseek(sparse, 0, SEEK_CUR));
	CHECK(!fstat(sparse, &st) && st.st_size == FAR + 100000 && !st.st_nlink &&
		      (st.st_mode & 07777) == 02751 && st.st_uid == 1234 && st.st_gid == 4321,
	      "size %lld, %lu links, mode %o, owner %u:%u", (long long)st.st_size,
	      (unsigned long)st.st_nlink, st.st_mode, st.st_uid, st.st_gid);
	CHECK(st.st_mtim.tv_sec == MODIFIED && st.st_mtim.tv_nsec == 8, "modified at %ld.%09ld",
	      (long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
	CHECK(st.st_blocks < (BIG + (1 << 20)) / 512, "it has %ld blocks", (long)st.st_blocks);
	CHECK(holds(sparse, 1, BIG, 8192) && holds(sparse_ro, 2, 5000, FAR), "its content differs");
	CHECK(pread(sparse, buf, 1, 100) == 1 && !buf[0] && pread(sparse, buf, 1, FAR - 1) == 1 &&
		      !buf[0],
	      "its holes are not empty");
	CHECK(lseek(sparse_ro, 8192 + BIG, SEEK_DATA) == FAR / 4096 * 4096, "data at %lld",
	      (long long)lseek(sparse_ro, 8192 + BIG, SEEK_DATA));
	lseek(sparse_ro, 0, SEEK_SET);
	CHECK(!has_xattr || (fgetxattr(sparse, "user.colour", buf, sizeof(buf)) == 5 &&
			     !memcmp(buf, "green", 5)),
	      "the attribute is lost");
	CHECK(holds(replaced, 3, 100, 0), "replaced: another content");
	CHECK(holds(followed, 4, 4096, 0), "write-only: another content");
	CHECK(!fstat(empty, &st) && !st.st_size && !st.st_nlink, "the empty one is %lld long",
	      (long long)st.st_size);
	CHECK(!stat(victim_path("replaced"), &st) && !st.st_size, "the new file is touched");
}

static void check_tmpfile(void)
{
	char from[64];
	char *to = victim_path("linked");
	struct stat st;

	check_flags(tmp, O_RDWR | O_TMPFILE | 0100000, 0, "O_TMPFILE");
	check_flags(tmp_ro, O_RDONLY | 0100000, FD_CLOEXEC, "O_TMPFILE, read-only");
	CHECK(holds(tmp, 5, 10000, 0) && holds(tmp_ro, 5, 10000, 0), "O_TMPFILE: other content");
	CHECK(!fstat(tmp, &st) && (st.st_mode & 0777) == 0644, "O_TMPFILE: mode %o", st.st_mode);
	snprintf(from, sizeof(from), "/proc/self/fd/%d", tmp);
	CHECK(!linkat(AT_FDCWD, from, AT_FDCWD, to, AT_SYMLINK_FOLLOW) && !unlink(to),
	      "it cannot be linked: %s", strerror(errno));
	/* no longer linkable now: once more, a new one */
	close(tmp);
	close(tmp_ro);
	build_tmpfile();
}

static void check_memfds(void)
{
	static unsigned char last;
	unsigned char c = ++last, got = 0;
	struct stat st;

	check_flags(memory, O_RDWR | 0100000, FD_CLOEXEC, "memfd");
	check_flags(memory_ro, O_RDONLY | 0100000, 0, "memfd, read-only");
	CHECK(lseek(memory, 0, SEEK_CUR) == 123, "memfd: position");
	CHECK(!fstat(memory, &st) && st.st_size == 2 << 20 && st.st_blocks < (1 << 20) / 512,
	      "memfd: %lld bytes, %ld blocks", (long long)st.st_size, (long)st.st_blocks);
	CHECK(holds(memory_ro, 6, 70000, 1 << 20), "memfd: other content");
	CHECK(fcntl(memory, F_GET_SEALS) == 0, "memfd: seals %#x", fcntl(memory, F_GET_SEALS));
	CHECK(fcntl(sealed, F_GET_SEALS) ==
		      (F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
	      "sealed memfd: seals %#x", fcntl(sealed, F_GET_SEALS));
	CHECK(holds(sealed, 7, 1000, 0), "sealed memfd: other content");
	CHECK(pwrite(sealed, &c, 1, 0) == -1 && errno == EPERM, "a sealed memfd is written to");
	CHECK(fcntl(unsealable, F_GET_SEALS) == F_SEAL_SEAL, "plain memfd: seals %#x",
	      fcntl(unsealable, F_GET_SEALS));
	CHECK(write(ask[1], &c, 1) == 1 && read(answer[0], &got, 1) == 1 && got == c,
	      "the child answers %d", got);
	CHECK(pread(memory_ro, &got, 1, 0) == 1 && got == c, "the child has another memfd");
	CHECK(lseek(sparse_ro, 0, SEEK_CUR) == 0 && lseek(sparse, 0, SEEK_CUR) == 4242,
	      "the child has another description");
	lseek(sparse, FAR + 77, SEEK_SET);
}

static void check(void)
{
	check_deleted();
	check_tmpfile();
	check_memfds();
	CHECK(victim_count_fds() == fds_before, "%d descriptors, not %d", victim_count_fds(),
	      fds_before);
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	build_deleted();
	build_tmpfile();
	build_memfds();
	MUST(pipe(ask));
	MUST(pipe(answer));
	child = MUST(fork());
	if (!child)
		child_main();
	close(ask[0]);
	close(answer[1]);
	fds_before = victim_count_fds();
	victim_ready();
	victim_serve(check);
}
