/* SPDX-License-Identifier: MIT */
/*
 * Mappings of files without a name (memfds and deleted files; closed, or open too), and
 * mappings sealed by mseal(2).
 *
 * That a shared mapping which can never be writable had been made through a writable
 * descriptor is the flag "sh", which has no effect.
 *
 * test: ignore=flags: \['me', 'mr', 'ms', 'rd', 'sh'\] ->
 */
#include "victim.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SYS_mseal
#define SYS_mseal 462
#endif

enum { PAGE = 4096, SIZE = 5 * PAGE + 1234, ROOM = 6 * PAGE, MODIFIED = 1234567890 };

struct view {
	unsigned char *at;
	int prot, flags;
};

static struct object {
	const char *name;
	bool memfd, keep;
	int seals;
	struct view view[2];
	int fd;
} objects[] = {
	{ .name = "closed", .memfd = true, .seals = F_SEAL_SHRINK | F_SEAL_GROW },
	{ .name = "open", .memfd = true, .keep = true, .seals = F_SEAL_SEAL },
	{ .name = "unlinked" },
	{ .name = "unlinked-open", .keep = true },
	{ .name = "removed/too/unlinked" },
	{ .name = "removed/too/unlinked-open", .keep = true },
};
enum { OBJECTS = sizeof(objects) / sizeof(objects[0]), DIRTY = 2 * PAGE };

static unsigned char *readonly, *sealed;
static int readonly_fd;
static pid_t child;
static int ask[2], answer[2];
static unsigned char round_number;
static bool have_mseal;

static unsigned char byte(size_t object, size_t i)
{
	return (unsigned char)(victim_word(object + 3, i) | 1);
}

static void put(int fd, size_t object)
{
	unsigned char *buf = malloc(SIZE);

	for (size_t i = 0; i < SIZE; i++)
		buf[i] = byte(object, i);
	/* a hole in the middle */
	memset(buf + 3 * PAGE, 0, PAGE);
	MUST(ftruncate(fd, SIZE));
	if (pwrite(fd, buf, 3 * PAGE, 0) != 3 * PAGE ||
	    pwrite(fd, buf + 4 * PAGE, SIZE - 4 * PAGE, 4 * PAGE) != SIZE - 4 * PAGE)
		victim_die("pwrite: %s", strerror(errno));
	free(buf);
}

static unsigned char *map(int fd, int prot, int flags)
{
	unsigned char *at = mmap(NULL, ROOM, prot, flags, fd, 0);

	if (at == MAP_FAILED)
		victim_die("mmap: %s", strerror(errno));
	return at;
}

/* One that is in a directory loses that too. */
static void make_directories(const char *name)
{
	if (!strchr(name, '/'))
		return;
	MUST(mkdir(victim_path("removed"), 0755));
	MUST(mkdir(victim_path("removed/too"), 0755));
}

static void remove_directories(const char *name)
{
	if (!strchr(name, '/'))
		return;
	MUST(rmdir(victim_path("removed/too")));
	MUST(rmdir(victim_path("removed")));
}

static void build(struct object *o, size_t number)
{
	struct timespec times[2] = { { MODIFIED, 7 }, { MODIFIED, 8 } };
	char *path = victim_path(o->name);

	make_directories(o->name);
	o->fd = o->memfd ? MUST(memfd_create(o->name, MFD_ALLOW_SEALING | MFD_CLOEXEC))
			 : MUST(open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600));
	put(o->fd, number);
	MUST(fchown(o->fd, 1234, 4321));
	MUST(fchmod(o->fd, 0640));
	o->view[0].at = map(o->fd, PROT_READ | PROT_WRITE, MAP_SHARED);
	o->view[1].at = map(o->fd, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	o->view[1].at[DIRTY] = 0xee;
	if (o->memfd)
		MUST(fcntl(o->fd, F_ADD_SEALS, o->seals));
	MUST(futimens(o->fd, times));
	if (!o->memfd)
		MUST(unlink(path));
	remove_directories(o->name);
	if (!o->keep)
		close(o->fd);
	free(path);
}

static void build_readonly(void)
{
	readonly_fd = MUST(memfd_create("read-only", MFD_ALLOW_SEALING));
	put(readonly_fd, 9);
	MUST(fcntl(readonly_fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK));
	readonly = map(readonly_fd, PROT_READ, MAP_SHARED);
}

static void build_sealed(void)
{
	sealed = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (size_t i = 0; i < ROOM; i++)
		sealed[i] = byte(20, i);
	MUST(mprotect(sealed + PAGE, PAGE, PROT_READ));
	have_mseal = !syscall(SYS_mseal, sealed, 3 * PAGE, 0);
}

/* Somebody else who has the shared views. */
static void build_child(void)
{
	MUST(pipe(ask));
	MUST(pipe(answer));
	child = MUST(fork());
	if (child)
		return;
	for (;;) {
		unsigned char n;

		if (read(ask[0], &n, 1) != 1)
			_exit(0);
		for (size_t i = 0; i < OBJECTS; i++)
			objects[i].view[0].at[1] = (unsigned char)(n + i);
		MUST(write(answer[1], &n, 1));
	}
}

static void check_content(const struct object *o, size_t number)
{
	for (size_t i = 2; i < SIZE; i++) {
		unsigned char want = i / PAGE == 3 ? 0 : byte(number, i);

		CHECK(o->view[0].at[i] == want, "%s: shared byte %zu is %x", o->name, i,
		      o->view[0].at[i]);
		CHECK(o->view[1].at[i] == (i == DIRTY ? 0xee : want), "%s: private byte %zu is %x",
		      o->name, i, o->view[1].at[i]);
	}
	for (size_t i = SIZE; i < ROOM; i++)
		CHECK(!o->view[0].at[i], "%s: byte %zu beyond the end is %x", o->name, i,
		      o->view[0].at[i]);
}

static void check_file(const struct object *o)
{
	char path[80], link[400];
	struct stat st;
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/self/map_files/%lx-%lx", (unsigned long)o->view[0].at,
		 (unsigned long)o->view[0].at + ROOM);
	n = readlink(path, link, sizeof(link) - 1);
	CHECK(n > 0, "%s: readlink: %s", o->name, strerror(errno));
	link[n > 0 ? n : 0] = 0;
	CHECK(strstr(link, o->name) && strstr(link, " (deleted)"), "%s is now %s", o->name, link);
	fd = open(path, O_RDONLY);
	CHECK(fd >= 0 && !fstat(fd, &st), "%s: %s", o->name, strerror(errno));
	CHECK(st.st_size == SIZE && st.st_nlink == 0, "%s: size %ld, %ld links", o->name,
	      (long)st.st_size, (long)st.st_nlink);
	CHECK(st.st_uid == 1234 && st.st_gid == 4321 && (st.st_mode & 07777) == 0640,
	      "%s: %d.%d %o", o->name, (int)st.st_uid, (int)st.st_gid, st.st_mode);
	if (o->memfd)
		CHECK(fcntl(fd, F_GET_SEALS) == o->seals, "%s: seals %x", o->name,
		      fcntl(fd, F_GET_SEALS));
	close(fd);
}

static void check_shared(void)
{
	unsigned char n = ++round_number, got;

	MUST(write(ask[1], &n, 1));
	MUST(read(answer[0], &got, 1));
	for (size_t i = 0; i < OBJECTS; i++) {
		const struct object *o = &objects[i];

		CHECK(o->view[0].at[1] == (unsigned char)(n + i),
		      "%s: what the child wrote does not show", o->name);
		CHECK(o->view[1].at[1] == (unsigned char)(n + i),
		      "%s: it does not show in the private mapping", o->name);
		if (!o->keep)
			continue;
		CHECK(pread(o->fd, &got, 1, 1) == 1 && got == (unsigned char)(n + i),
		      "%s: it does not show in the file", o->name);
	}
}

static void check_sealed(void)
{
	for (size_t i = 0; i < ROOM; i++)
		CHECK(sealed[i] == byte(20, i), "sealed byte %zu is %x", i, sealed[i]);
	if (!have_mseal)
		return;
	for (size_t page = 0; page < 3; page++) {
		CHECK(mprotect(sealed + page * PAGE, PAGE, PROT_NONE) < 0 && errno == EPERM,
		      "the seal of page %zu is gone", page);
	}
	CHECK(!mprotect(sealed + 3 * PAGE, PAGE, PROT_READ | PROT_WRITE), "mprotect: %s",
	      strerror(errno));
}

static void check(void)
{
	for (size_t i = 0; i < OBJECTS; i++) {
		check_content(&objects[i], i);
		check_file(&objects[i]);
	}
	CHECK(readonly[77] == byte(9, 77), "read-only memfd: byte 77 is %x", readonly[77]);
	CHECK(mprotect(readonly, PAGE, PROT_READ | PROT_WRITE) < 0, "it became writable");
	CHECK(fcntl(readonly_fd, F_GET_SEALS) == (F_SEAL_WRITE | F_SEAL_SHRINK), "seals %x",
	      fcntl(readonly_fd, F_GET_SEALS));
	check_shared();
	check_sealed();
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	for (size_t i = 0; i < OBJECTS; i++)
		build(&objects[i], i);
	build_readonly();
	build_sealed();
	build_child();
	close(ask[0]);
	close(answer[1]);
	victim_ready();
	victim_serve(check);
}
