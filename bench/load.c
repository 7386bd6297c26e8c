/* SPDX-License-Identifier: MIT
 *
 * The loads that bench/run measures: `load KIND DIR`. They are victims like those of tests/scenario
 * and can be asked to check themselves. `load contain N COMMAND...` puts another program into
 * containers.
 */
#include "load.h"

#include "victim.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PAGE = 4096, THREADS = 200, FILES = 1000, PAIRS = 250, MAPPINGS = 10000, WORD_STEP = 61 };

static unsigned long *memory;
static size_t words;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static unsigned round_number, answered;
static int files[FILES], pairs[PAIRS][2], pipes[PAIRS][2], n_children;

static void *map(size_t size)
{
	void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		victim_die("mmap: %s", strerror(errno));
	return at;
}

static void fill(size_t size)
{
	words = size / sizeof(*memory);
	memory = map(size);
	for (size_t i = 0; i < words; i++)
		memory[i] = victim_word(11, i);
}

static void check_memory(void)
{
	for (size_t i = 0; i < words; i += WORD_STEP)
		CHECK(memory[i] == victim_word(11, i), "word %zu has changed", i);
}

static void small(void)
{
	fill(16UL << 20);
}

static void large(void)
{
	fill(1UL << 30);
}

static _Noreturn void *wait_for_round(void *unused)
{
	unsigned seen = 0;
	pthread_mutex_lock(&lock);
	for (;;) {
		while (round_number == seen)
			pthread_cond_wait(&changed, &lock);
		seen = round_number;
		answered++;
		pthread_cond_broadcast(&changed);
	}
}

static void threads(void)
{
	pthread_attr_t attr;
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 256 << 10);
	for (int i = 1; i < THREADS; i++) {
		pthread_t thread;
		MUST_ZERO(pthread_create(&thread, &attr, wait_for_round, NULL));
	}
	pthread_attr_destroy(&attr);
}

static void check_threads(void)
{
	pthread_mutex_lock(&lock);
	answered = 0;
	round_number++;
	pthread_cond_broadcast(&changed);
	while (answered < THREADS - 1)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
}

static void descriptors(void)
{
	for (int i = 0; i < FILES; i++) {
		char name[32];
		snprintf(name, sizeof(name), "file-%d", i);
		char *path = victim_path(name);
		files[i] = MUST(open(path, O_RDWR | O_CREAT, 0600));
		free(path);
		MUST(write(files[i], "0123456789", 10));
		MUST(lseek(files[i], i % 10, SEEK_SET));
	}
	for (int i = 0; i < PAIRS; i++) {
		MUST(pipe(pipes[i]));
		MUST(write(pipes[i][1], &i, sizeof(i)));
		MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pairs[i]));
		MUST(write(pairs[i][0], &i, sizeof(i)));
	}
}

static void check_descriptors(void)
{
	for (int i = 0; i < FILES; i++)
		CHECK(lseek(files[i], 0, SEEK_CUR) == i % 10, "file %d is at %ld", i,
		      (long)lseek(files[i], 0, SEEK_CUR));
	for (int i = 0; i < PAIRS; i++) {
		int got = -1;
		CHECK(read(pipes[i][0], &got, sizeof(got)) == sizeof(got) && got == i,
		      "pipe %d has %d", i, got);
		CHECK(write(pipes[i][1], &i, sizeof(i)) == sizeof(i), "pipe %d is full", i);
		CHECK(read(pairs[i][1], &got, sizeof(got)) == sizeof(got) && got == i,
		      "socket %d has %d", i, got);
		CHECK(write(pairs[i][0], &i, sizeof(i)) == sizeof(i), "socket %d is full", i);
	}
}

/* Alternating protections keep the kernel from joining neighbours. */
static void mappings(void)
{
	fill((size_t)MAPPINGS * PAGE);
	for (size_t i = 1; i < MAPPINGS; i += 2)
		MUST(mprotect((char *)memory + i * PAGE, PAGE, PROT_READ));
}

/* Every second page is written with zeros: it is there, and need not be saved. */
static void half(void)
{
	words = (1UL << 30) / sizeof(*memory);
	memory = map(1UL << 30);
	for (size_t i = 0; i < words; i++)
		memory[i] = i * sizeof(*memory) / PAGE % 2 ? 0 : victim_word(11, i);
}

static void check_half(void)
{
	for (size_t i = 0; i < words; i += WORD_STEP)
		CHECK(memory[i] == (i * sizeof(*memory) / PAGE % 2 ? 0 : victim_word(11, i)),
		      "word %zu has changed", i);
}

static void empty(void)
{
}

static void check_nothing(void)
{
}

static void reservation(void)
{
	void *at = mmap(NULL, 1UL << 40, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
			0);
	if (at == MAP_FAILED)
		victim_die("mmap: %s", strerror(errno));
	fill(1UL << 20);
}

/* Whoever is asked looks at its memory and answers. */
static _Noreturn void serve(int in, int out)
{
	char asked;
	while (read(in, &asked, 1) == 1) {
		const char *failed = victim_judge(check_memory);
		char answer = !*failed;
		MUST(write(out, &answer, 1));
	}
	_exit(0);
}

static void start_children(int n, size_t each)
{
	for (n_children = 0; n_children < n; n_children++) {
		int *ask = pipes[2 * n_children], *answer = pipes[2 * n_children + 1];
		MUST(pipe(ask));
		MUST(pipe(answer));
		if (MUST(fork()) == 0) {
			close(ask[1]);
			close(answer[0]);
			if (each)
				fill(each);
			serve(ask[0], answer[1]);
		}
		close(ask[0]);
		close(answer[1]);
	}
}

static void tree(void)
{
	start_children(99, 4UL << 20);
}

/* Filled before the fork and never written to again: physically there once. */
static void forked(void)
{
	fill(128UL << 20);
	start_children(3, 0);
}

static void check_children(void)
{
	check_memory();
	for (int i = 0; i < n_children; i++) {
		char answer = 0;
		MUST(write(pipes[2 * i][1], "", 1));
		CHECK(read(pipes[2 * i + 1][0], &answer, 1) == 1 && answer,
		      "child %d has lost its memory", i);
	}
}

static const struct kind {
	const char *name;
	void (*make)(void);
	void (*check)(void);
} kinds[] = {
	{ "empty", empty, check_nothing },
	{ "16M", small, check_memory },
	{ "1G", large, check_memory },
	{ "half", half, check_half },
	{ "tree", tree, check_children },
	{ "threads", threads, check_threads },
	{ "descriptors", descriptors, check_descriptors },
	{ "mappings", mappings, check_memory },
	{ "forked", forked, check_children },
	{ "reservation", reservation, check_memory },
	{ "containers", load_containers, load_check_containers },
	{ "mounts", load_mounts, load_check_mounts },
	{ "sockets", load_sockets, load_check_sockets },
};

int main(int argc, char **argv)
{
	if (argc > 3 && !strcmp(argv[1], "contain"))
		load_contain(atoi(argv[2]), argv + 3);
	victim_init(argc - 1, argv + 1);
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
		if (!strcmp(kinds[i].name, argv[1])) {
			kinds[i].make();
			victim_ready();
			victim_serve(kinds[i].check);
		}
	}
	victim_die("no load %s", argv[1]);
}
