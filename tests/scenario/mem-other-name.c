/* SPDX-License-Identifier: MIT */
/*
 * Mapped files that were deleted under the name by which they were opened, while another one is
 * left in that directory: sem_open(3) makes its semaphores so, and with O_TMPFILE it is the usual
 * way. They are mapped again by that other name, by which others have opened them meanwhile.
 *
 * test: ignore=maps .* what: .*(first|#[0-9]+) .deleted. -> .*(second|named)$
 */
#include "victim.h"

#include <fcntl.h>
#include <semaphore.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { SIZE = 8192 };

static sem_t *ours, *answer;
static unsigned char *linked, *unnamed;
static unsigned char rounds;

static unsigned char *map(int fd)
{
	unsigned char *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (at == MAP_FAILED)
		victim_die("mmap: %s", strerror(errno));
	close(fd);
	return at;
}

static void build_linked(void)
{
	int fd = MUST(open(victim_path("first"), O_RDWR | O_CREAT | O_EXCL, 0600));

	MUST(ftruncate(fd, SIZE));
	MUST(link(victim_path("first"), victim_path("second")));
	linked = map(fd);
	MUST(unlink(victim_path("first")));
}

static void build_unnamed(void)
{
	char path[64];
	int fd = MUST(open(victim_path("."), O_RDWR | O_TMPFILE, 0600));

	MUST(ftruncate(fd, SIZE));
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	MUST(linkat(AT_FDCWD, path, AT_FDCWD, victim_path("named"), AT_SYMLINK_FOLLOW));
	unnamed = map(fd);
}

/* Somebody else, who has mapped the same files by the names that are left. */
static void build_child(void)
{
	const pid_t parent = getpid();

	if (MUST(fork()))
		return;
	munmap(linked, SIZE);
	munmap(unnamed, SIZE);
	linked = map(MUST(open(victim_path("second"), O_RDWR)));
	unnamed = map(MUST(open(victim_path("named"), O_RDWR)));
	ours = (sem_t *)(linked + 1024);
	answer = ours + 1;
	while (getppid() == parent) {
		const struct timespec soon = { .tv_sec = time(NULL) + 1 };

		if (sem_timedwait(ours, &soon))
			continue;
		linked[SIZE - 1] = (unsigned char)(linked[0] + 1);
		unnamed[SIZE - 1] = (unsigned char)(unnamed[0] + 2);
		sem_post(answer);
	}
	_exit(0);
}

static void check(void)
{
	const struct timespec patience = { .tv_sec = time(NULL) + 30 };

	rounds++;
	linked[0] = unnamed[0] = rounds;
	sem_post(ours);
	CHECK(!sem_timedwait(answer, &patience), "no answer: %s", strerror(errno));
	CHECK(linked[SIZE - 1] == (unsigned char)(rounds + 1), "linked: %d in round %d",
	      linked[SIZE - 1], rounds);
	CHECK(unnamed[SIZE - 1] == (unsigned char)(rounds + 2), "unnamed: %d in round %d",
	      unnamed[SIZE - 1], rounds);
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	build_linked();
	build_unnamed();
	ours = (sem_t *)(linked + 1024);
	answer = ours + 1;
	sem_init(ours, 1, 0);
	sem_init(answer, 1, 0);
	build_child();
	victim_ready();
	victim_serve(check);
}
