/* SPDX-License-Identifier: MIT */
/*
 * A program in filesystems in memory of its own that notices everything: inotify watches for all
 * events on every directory, on files and on its own program, and leases, for reading and for
 * writing, of which some are on files that are watched too. Nothing happens to these files but what
 * it does.
 */
#include "victim.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BYTES 20000
#define HOLE  (8 << 20)

static const char *const directories[] = {
	"whole", "whole/a", "whole/a/deep", "whole/bb", "whole/bin",
};

static unsigned long *mapped, *copied, *gone;
static int in, leased, shared, sparse, empty, fifo, writer, sock;
static unsigned rounds;

static char *at(const char *dir, const char *name)
{
	char *path = NULL;

	if (asprintf(&path, "%s/%s", victim_path(dir), name) < 0)
		victim_die("no memory");
	return path;
}

/* The program goes on in a copy of itself that is on the filesystem in memory. */
static void move_in(char **argv)
{
	const char *path;
	struct stat st;
	int from, to;

	if (getenv("MOVED_IN"))
		return;
	victim_own_mounts();
	MUST(mkdir(victim_path("whole/bin"), 0755));
	MUST(mkdir(victim_path("whole/a/deep"), 0755));
	path = victim_path("whole/bin/program");
	from = MUST(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
	to = MUST(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0755));
	MUST(fstat(from, &st));
	for (off_t left = st.st_size; left;)
		left -= MUST(sendfile(to, from, NULL, (size_t)left));
	close(to);
	MUST(setenv("MOVED_IN", "1", 1));
	MUST(execv(path, argv));
}

static int make(const char *dir, const char *name, int flags)
{
	close(MUST(open(at(dir, name), O_WRONLY | O_CREAT | O_CLOEXEC, 0640)));
	return (int)MUST(open(at(dir, name), flags | O_CLOEXEC));
}

static void fill(int fd, off_t from)
{
	for (unsigned i = 0; i < BYTES / sizeof(long); i++) {
		unsigned long word = victim_word(7, i);

		MUST(pwrite(fd, &word, sizeof(word), from + (off_t)(i * sizeof(word))));
	}
}

static void build_files(void)
{
	struct sockaddr_un name = { .sun_family = AF_UNIX };
	int first;

	fill(make("whole/a", "plain", O_RDWR), 0);
	close(make("whole/a", "two names", O_RDWR));
	MUST(link(at("whole/a", "two names"), at("whole/a/deep", "another name")));
	MUST(symlink("plain", at("whole/a", "link")));
	make("whole/bb", "nothing in it", O_RDONLY);
	victim_write(at("whole/bb", "hidden"), "mounted, and without a name");
	victim_write(at("whole/bb", "hiding"), "");
	MUST(mount(at("whole/bb", "hidden"), at("whole/bb", "hiding"), NULL, MS_BIND, NULL));
	MUST(unlink(at("whole/bb", "hidden")));
	MUST(mknod(at("whole/a", "null"), S_IFCHR | 0600, 0x103));
	MUST(mkfifo(at("whole/a", "fifo"), 0600));
	/* the writing end is the first that is found */
	first = MUST(open(at("whole/a", "fifo"), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
	writer = MUST(open(at("whole/a", "fifo"), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
	fifo = MUST(open(at("whole/a", "fifo"), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
	close(first);
	sock = MUST(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
	MUST(chdir(victim_path("whole/a")));
	strcpy(name.sun_path, "socket");
	MUST(bind(sock, (struct sockaddr *)&name, sizeof(name)));
	MUST(listen(sock, 1));
	MUST(chdir("/"));
}

/* Files that are in use in other ways. */
static void build_uses(void)
{
	struct flock lock = { .l_type = F_WRLCK };
	int fd;

	fd = make("whole/a", "mapped", O_RDWR);
	fill(fd, 0);
	mapped = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	copied = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	MUST(mapped == MAP_FAILED || copied == MAP_FAILED ? -1 : 0);
	close(fd);
	fd = make("whole/a", "mapped and deleted", O_RDWR);
	fill(fd, 0);
	gone = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	MUST(gone == MAP_FAILED ? -1 : 0);
	close(fd);
	MUST(unlink(at("whole/a", "mapped and deleted")));
	fill(make("whole/a", "deleted", O_RDWR), 0);
	MUST(unlink(at("whole/a", "deleted")));
	MUST(open(at("whole", "bb"), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	MUST(fcntl(make("whole/a", "locked", O_RDWR), F_SETLK, &lock));
	MUST(chdir(victim_path("whole/a/deep")));
}

static void build_leases(void)
{
	/* holes are read through the description, which nobody watches */
	MUST(mount("other", victim_path("other"), "tmpfs", 0, NULL));
	sparse = make("other", "sparse", O_RDWR);
	fill(sparse, HOLE);
	leased = make("whole/a", "leased", O_RDWR);
	fill(leased, 0);
	MUST(lseek(leased, 12345, SEEK_SET));
	/* nothing is in it that could not be read */
	empty = make("whole/a", "empty", O_WRONLY);
	shared = make("whole/a", "shared", O_RDONLY);
	MUST(fcntl(leased, F_SETLEASE, F_WRLCK));
	MUST(fcntl(sparse, F_SETLEASE, F_WRLCK));
	MUST(fcntl(empty, F_SETLEASE, F_WRLCK));
	MUST(fcntl(shared, F_SETLEASE, F_RDLCK));
}

static void watch(void)
{
	in = MUST(inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
	for (unsigned i = 0; i < sizeof(directories) / sizeof(*directories); i++)
		MUST(inotify_add_watch(in, victim_path(directories[i]), IN_ALL_EVENTS));
	MUST(inotify_add_watch(in, at("whole/a", "plain"), IN_ALL_EVENTS));
	MUST(inotify_add_watch(in, at("whole/bin", "program"), IN_ALL_EVENTS));
	MUST(inotify_add_watch(in, at("whole/a", "leased"), IN_ALL_EVENTS));
	MUST(inotify_add_watch(in, at("whole/a", "fifo"), IN_OPEN | IN_CLOSE | IN_ATTRIB));
}

static unsigned drain(void)
{
	union {
		struct inotify_event ev;
		char room[4096];
	} u;
	unsigned events = 0;

	for (ssize_t n; (n = read(in, &u, sizeof(u))) > 0; events++)
		;
	return events;
}

static void check_quiet(void)
{
	union {
		struct inotify_event ev;
		char room[sizeof(struct inotify_event) + 256];
	} u = { 0 };
	ssize_t n = read(in, &u, sizeof(u));
	sigset_t waiting;

	CHECK(n < 0 && errno == EAGAIN, "an event: watch %d, mask %#x, %s", u.ev.wd, u.ev.mask,
	      n > 0 && u.ev.len ? u.ev.name : "");
	sigpending(&waiting);
	CHECK(!sigismember(&waiting, SIGIO), "a lease is being broken");
	CHECK(fcntl(leased, F_GETLEASE) == F_WRLCK, "the lease is %d", fcntl(leased, F_GETLEASE));
	CHECK(fcntl(sparse, F_GETLEASE) == F_WRLCK, "that on the sparse file is %d",
	      fcntl(sparse, F_GETLEASE));
	CHECK(fcntl(empty, F_GETLEASE) == F_WRLCK, "that on the empty file is %d",
	      fcntl(empty, F_GETLEASE));
	CHECK(fcntl(shared, F_GETLEASE) == F_RDLCK, "that for reading is %d",
	      fcntl(shared, F_GETLEASE));
}

static void check_data(int fd, off_t from, const char *what)
{
	struct stat st;

	CHECK(!fstat(fd, &st) && st.st_size >= from + BYTES, "%s has %ld bytes", what,
	      (long)st.st_size);
	CHECK(st.st_blocks * 512 < BYTES + 65536, "%s has no holes any more: %ld blocks", what,
	      (long)st.st_blocks);
	for (unsigned i = 0; i < BYTES / sizeof(long); i++) {
		unsigned long word = 0;

		CHECK(pread(fd, &word, sizeof(word), from + (off_t)(i * sizeof(word))) ==
				      sizeof(word) &&
			      word == victim_word(7, i),
		      "word %u of %s is another one", i, what);
	}
}

static void check(void)
{
	unsigned seen = 0;
	int fd;

	check_quiet();
	CHECK(mapped[100] == victim_word(7, 100) + rounds, "the mapping has another word");
	CHECK(copied[200] == victim_word(7, 200) + rounds, "the private mapping has another word");
	CHECK(gone[300] == victim_word(7, 300) + rounds, "that of a deleted file has another word");
	mapped[100]++;
	copied[200]++;
	gone[300]++;
	check_data(leased, 0, "the file with a lease");
	check_data(sparse, HOLE, "the sparse file");
	CHECK(lseek(leased, 0, SEEK_CUR) == 12345, "its position is %ld",
	      (long)lseek(leased, 0, SEEK_CUR));
	/* it stays at the end of what is compared, in a page of its own */
	if (rounds)
		CHECK(pread(leased, &seen, sizeof(seen), 40960) == sizeof(seen) && seen == rounds,
		      "round %u, not %u", seen, rounds);
	rounds++;
	CHECK(pwrite(leased, &rounds, sizeof(rounds), 40960) == sizeof(rounds), "writing: %s",
	      strerror(errno));
	/* without a hole, or it could not be read unnoticed */
	CHECK(!posix_fallocate(leased, 0, 45056), "fallocate: %s", strerror(errno));
	if (rounds > 1)
		CHECK(read(fifo, &seen, sizeof(seen)) == sizeof(seen) && seen == rounds - 1,
		      "the FIFO has %u", seen);
	CHECK(write(writer, &rounds, sizeof(rounds)) == sizeof(rounds), "the FIFO: %s",
	      strerror(errno));
	drain();
	CHECK(victim_holds(at("whole/bb", "hiding"), "mounted, and without a name"),
	      "the deleted file is another");
	drain();
	fd = open(at("whole/a", "link"), O_RDONLY | O_CLOEXEC);
	close(fd);
	CHECK(fd >= 0 && drain(), "opening a file is no event");
}

int main(int argc, char **argv)
{
	sigset_t set;

	victim_init(argc, argv);
	move_in(argv);
	sigemptyset(&set);
	sigaddset(&set, SIGIO);
	MUST(sigprocmask(SIG_BLOCK, &set, NULL));
	build_files();
	build_uses();
	build_leases();
	watch();
	victim_ready();
	victim_serve(check);
}
