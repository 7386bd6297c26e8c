/* SPDX-License-Identifier: MIT
 *
 * What has lost its name while in use: a file of which another name is left, directories that were
 * removed, open or as working directory of processes and of a thread; one whose name is used again.
 *
 * test: ignore=(what|cwd): \S+victim.reused \(deleted\) ->
 */
#include "victim.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define MODIFIED	  1234567890
#define KTIME_MAX_SECONDS 9223372036 /* the last date that the kernel knows */

static int first, second, reader, directory, directory_again, reused, reused_directory, timer;
static const int watched[] = { CLOCK_REALTIME, CLOCK_MONOTONIC };
static int watches[sizeof(watched) / sizeof(*watched)];
static int ask[2], answer[2];
static ino_t inode;
static unsigned long rounds;

static ino_t inode_of(int fd)
{
	struct stat st;
	return fstat(fd, &st) < 0 ? 0 : st.st_ino;
}

static bool holds(int fd, const char *text)
{
	char got[64] = { 0 };
	return pread(fd, got, sizeof(got) - 1, 0) >= 0 && !strcmp(got, text);
}

static int create(const char *name, const char *text)
{
	int fd = MUST(open(victim_path(name), O_RDWR | O_CREAT | O_EXCL, 0644));
	MUST(write(fd, text, strlen(text)));
	return fd;
}

/* A directory that is gone: nothing can be made in it, nothing is found from it. */
static bool is_dead(int at)
{
	struct stat st;
	return openat(at, "new", O_CREAT | O_WRONLY, 0600) < 0 && errno == ENOENT &&
	       fstatat(at, ".", &st, 0) == 0 && st.st_nlink == 0;
}

/* ---- workers: a process and a thread, in a directory that is gone ---------------------- */

static char worker(void)
{
	struct stat st;
	char path[64];
	if (!is_dead(AT_FDCWD))
		return 'd';
	if (stat(".", &st) < 0 || (st.st_mode & 07777) != 0751 || st.st_uid != 12)
		return 'm';
	return getcwd(path, sizeof(path)) || errno != ENOENT ? 'p' : 'y';
}

static _Noreturn void serve(void)
{
	char c;
	while (read(ask[0], &c, 1) == 1) {
		c = worker();
		if (write(answer[1], &c, 1) != 1)
			break;
	}
	_exit(1);
}

static void enter(const char *name)
{
	char *path = victim_path(name);
	MUST(mkdir(path, 0700));
	MUST(chown(path, 12, 34));
	MUST(chmod(path, 0751));
	MUST(chdir(path));
	MUST(rmdir(path));
}

static char thread_says;
static pthread_barrier_t turn;

static void *in_thread(void *unused)
{
	MUST(unshare(CLONE_FS));
	enter("of the thread");
	for (;;) {
		pthread_barrier_wait(&turn);
		thread_says = worker();
		pthread_barrier_wait(&turn);
	}
	return unused;
}

/* ---- checks ------------------------------------------------------------------------------ */

static void check_file(void)
{
	char text[32];
	struct stat st;
	int fd = open(victim_path("left"), O_RDWR);
	snprintf(text, sizeof(text), "round %lu", rounds);
	CHECK(fd >= 0 && inode_of(fd) == inode, "the other name leads elsewhere");
	CHECK(inode_of(first) == inode && inode_of(second) == inode && inode_of(reader) == inode,
	      "the descriptors lead elsewhere");
	CHECK(fstat(first, &st) == 0 && st.st_nlink == 1, "it has %lu names", (long)st.st_nlink);
	CHECK(access(victim_path("opened"), F_OK) < 0, "the deleted name is back");
	CHECK(lseek(second, 0, SEEK_CUR) == 3 && lseek(reader, 0, SEEK_CUR) == 5, "positions");
	CHECK(write(reader, "x", 1) < 0 && errno == EBADF, "the reader can write");
	CHECK(ftruncate(first, 0) == 0 && pwrite(first, text, strlen(text), 0) > 0, "write: %s",
	      strerror(errno));
	CHECK(holds(fd, text) && holds(second, text), "it is not the same file");
	CHECK(holds(reused, "old") && inode_of(reused) != inode, "the replaced file");
	close(fd);
}

static void check_directories(void)
{
	struct stat st;
	char answered;
	CHECK(is_dead(directory) && is_dead(directory_again) && is_dead(reused_directory),
	      "a directory is alive");
	CHECK(inode_of(directory) == inode_of(directory_again), "it was one directory");
	CHECK(inode_of(directory) != inode_of(reused_directory), "they were two");
	CHECK(fstat(directory, &st) == 0 && st.st_mtime == MODIFIED && st.st_uid == 56 &&
		      (st.st_mode & 07777) == 01710,
	      "owner, mode or time of the directory");
	/* whoever reads it answers */
	for (int i = 0; i < 4; i++)
		CHECK(write(ask[1], "?", 1) == 1 && read(answer[0], &answered, 1) == 1 &&
			      answered == 'y',
		      "the child says %c", answered);
	pthread_barrier_wait(&turn);
	pthread_barrier_wait(&turn);
	CHECK(thread_says == 'y', "the thread says %c", thread_says);
}

/* to be told when the clock is set, as systemd does: never due */
static void build_watches(void)
{
	const struct itimerspec never = { { 0 }, { .tv_sec = LONG_MAX } };

	for (size_t i = 0; i < sizeof(watched) / sizeof(*watched); i++) {
		watches[i] = MUST(timerfd_create(watched[i], TFD_NONBLOCK | TFD_CLOEXEC));
		MUST(timerfd_settime(watches[i], TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET,
				     &never, NULL));
	}
}

static void check_timer(void)
{
	struct itimerspec left;
	CHECK(timerfd_gettime(timer, &left) == 0 && left.it_value.tv_sec > 80000 &&
		      left.it_interval.tv_sec == 7,
	      "the timer has %ld s left", (long)left.it_value.tv_sec);
	for (size_t i = 0; i < sizeof(watched) / sizeof(*watched); i++) {
		struct timespec now;

		MUST(clock_gettime(watched[i], &now));
		CHECK(timerfd_gettime(watches[i], &left) == 0 &&
			      labs(left.it_value.tv_sec + now.tv_sec - KTIME_MAX_SECONDS) <= 2,
		      "a timer for changes of the clock has %ld s left",
		      (long)left.it_value.tv_sec);
	}
}

static void check(void)
{
	rounds++;
	check_file();
	check_directories();
	check_timer();
}

/* ---- building ------------------------------------------------------------------------------ */

static void build_file(void)
{
	first = create("opened", "some text");
	second = MUST(open(victim_path("opened"), O_RDWR | O_APPEND));
	reader = MUST(open(victim_path("opened"), O_RDONLY));
	MUST(lseek(second, 3, SEEK_SET));
	MUST(lseek(reader, 5, SEEK_SET));
	MUST(link(victim_path("opened"), victim_path("left")));
	MUST(unlink(victim_path("opened")));
	inode = inode_of(first);
	reused = create("reused", "old");
	MUST(link(victim_path("reused"), victim_path("left too")));
	MUST(unlink(victim_path("reused")));
	close(create("reused", "new"));
}

static void build_directories(void)
{
	struct timespec times[2] = { { .tv_nsec = UTIME_OMIT }, { .tv_sec = MODIFIED } };
	char *path = victim_path("directory");
	MUST(mkdir(path, 0700));
	directory = MUST(open(path, O_RDONLY | O_DIRECTORY));
	directory_again = MUST(open(path, O_RDONLY));
	MUST(rmdir(path));
	MUST(fchown(directory, 56, 78));
	MUST(fchmod(directory, 01710));
	MUST(futimens(directory, times));
	path = victim_path("reused directory");
	MUST(mkdir(path, 0700));
	reused_directory = MUST(open(path, O_RDONLY | O_DIRECTORY));
	MUST(rmdir(path));
}

static void build_workers(void)
{
	pthread_t thread;
	MUST(pipe(ask));
	MUST(pipe(answer));
	if (MUST(fork()) == 0) {
		MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
		enter("of the child");
		/* more of them in the same one, which is one name for each of them to come back to
		 */
		for (int i = 0; i < 3; i++) {
			if (MUST(fork()) == 0)
				break;
		}
		MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
		serve();
	}
	MUST_ZERO(pthread_barrier_init(&turn, NULL, 2));
	MUST_ZERO(pthread_create(&thread, NULL, in_thread, NULL));
}

int main(int argc, char **argv)
{
	struct itimerspec date = { { .tv_sec = 7 }, { 0 } };
	victim_init(argc, argv);
	build_file();
	build_directories();
	build_workers();
	timer = MUST(timerfd_create(CLOCK_REALTIME, 0));
	MUST(clock_gettime(CLOCK_REALTIME, &date.it_value));
	date.it_value.tv_sec += 90000;
	build_watches();
	MUST(timerfd_settime(timer, TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET, &date, NULL));
	check();
	victim_ready();
	victim_serve(check);
}
