/* SPDX-License-Identifier: MIT
 *
 * Memory policies: of threads that have different ones, of a child; of mappings whole and in part,
 * private and shared, with pages and without. One node is enough for all of them.
 */
#include "victim.h"

#include <linux/mempolicy.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE	 4096ul
#define N_PLACES 10

struct policy {
	int mode;
	unsigned long nodes[16];
};

static const struct policy kinds[] = {
	{ MPOL_BIND | MPOL_F_STATIC_NODES, { 0x5 } },
	{ MPOL_INTERLEAVE, { 1 } },
	{ MPOL_PREFERRED | MPOL_F_RELATIVE_NODES, { 0x1 } },
	{ MPOL_LOCAL, { 0 } },
};

static char *places[N_PLACES];
static struct policy place_before[N_PLACES], self_before, threads_before[2];
static struct policy asked[2];
static atomic_int request, answered;
static int to, from;

static void of(void *place, struct policy *p)
{
	memset(p, 0, sizeof(*p));
	p->mode = -1;
	syscall(SYS_get_mempolicy, &p->mode, p->nodes, 1024, place, place ? MPOL_F_ADDR : 0);
}

static void compare(const char *what, int i, const struct policy *now, const struct policy *was)
{
	CHECK(!memcmp(now, was, sizeof(*now)), "%s %d: policy %#x of %#lx, was %#x of %#lx", what,
	      i, now->mode, now->nodes[0], was->mode, was->nodes[0]);
}

static void *thread(void *number)
{
	const long i = (long)number;

	if (i)
		MUST(syscall(SYS_set_mempolicy, kinds[1].mode, kinds[1].nodes, 64));
	for (int done = 0;;) {
		if (atomic_load(&request) == done) {
			usleep(2000);
			continue;
		}
		of(NULL, &asked[i]);
		done++;
		atomic_fetch_add(&answered, 1);
	}
	return NULL;
}

static void ask_threads(void)
{
	const int n = 2 * (atomic_fetch_add(&request, 1) + 1);

	while (atomic_load(&answered) < n)
		usleep(1000);
}

static void check(void)
{
	struct policy now;

	of(NULL, &now);
	compare("thread", 0, &now, &self_before);
	for (int i = 0; i < N_PLACES; i++) {
		of(places[i], &now);
		compare("place", i, &now, &place_before[i]);
	}
	if (!to)
		return;
	ask_threads();
	for (int i = 0; i < 2; i++)
		compare("thread", i + 1, &asked[i], &threads_before[i]);
	victim_ask(to, from, "the child");
}

static void bind_to(char *at, size_t pages, int kind)
{
	const struct policy *p = &kinds[kind];

	MUST(syscall(SYS_mbind, at, pages * PAGE, p->mode, p->nodes[0] ? p->nodes : NULL,
		     p->nodes[0] ? 64 : 0, 0));
}

static char *map(size_t pages, int prot, int flags, int fd)
{
	void *at = mmap(NULL, pages * PAGE, prot, flags | (fd < 0 ? MAP_ANONYMOUS : 0), fd, 0);

	return MUST((long)at) ? at : NULL;
}

static void build_places(void)
{
	const int rw = PROT_READ | PROT_WRITE;
	int file = MUST(memfd_create("policy", 0)), segment;

	MUST(ftruncate(file, 4 * PAGE));
	/* all of it, with pages */
	places[0] = map(8, rw, MAP_PRIVATE, -1);
	bind_to(places[0], 8, 0);
	memset(places[0], 1, 8 * PAGE);
	/* a part of one that has pages, and a part of one that has none */
	places[1] = map(8, rw, MAP_PRIVATE, -1);
	memset(places[1], 2, 8 * PAGE);
	places[2] = places[1] + 2 * PAGE;
	bind_to(places[2], 3, 1);
	places[3] = map(8, rw, MAP_PRIVATE | MAP_NORESERVE, -1);
	places[4] = places[3] + 4 * PAGE;
	bind_to(places[4], 2, 2);
	bind_to(places[4] + 2 * PAGE, 1, 3);
	/* a reservation, shared memory, a file in memory, its private pages */
	places[5] = map(16, PROT_NONE, MAP_PRIVATE | MAP_NORESERVE, -1);
	bind_to(places[5], 16, 3);
	places[6] = map(4, rw, MAP_SHARED, -1);
	bind_to(places[6], 4, 1);
	places[6][0] = 3;
	places[7] = map(4, rw, MAP_SHARED, file);
	bind_to(places[7], 2, 0);
	places[8] = map(4, rw, MAP_PRIVATE, file);
	bind_to(places[8], 4, 2);
	places[8][0] = 4;
	/* a segment of System V, its second half */
	segment = MUST(shmget(IPC_PRIVATE, 4 * PAGE, 0600));
	places[9] = (char *)shmat(segment, NULL, 0) + 2 * PAGE;
	bind_to(places[9], 2, 1);
	MUST(shmctl(segment, IPC_RMID, NULL));
}

static void build_child(void)
{
	int there[2], back[2];

	MUST(pipe(there));
	MUST(pipe(back));
	if (MUST(fork())) {
		close(there[0]);
		close(back[1]);
		to = there[1];
		from = back[0];
		return;
	}
	close(there[1]);
	close(back[0]);
	/* not its parent's */
	MUST(syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0));
	bind_to(places[0], 8, 3);
	of(NULL, &self_before);
	of(places[0], &place_before[0]);
	victim_answer(there[0], back[1], check);
}

int main(int argc, char **argv)
{
	pthread_t threads[2];

	victim_init(argc, argv);
	if (syscall(SYS_get_mempolicy, NULL, NULL, 0, NULL, 0) < 0)
		victim_skip("a kernel without nodes of memory");
	build_places();
	for (int i = 0; i < N_PLACES; i++)
		of(places[i], &place_before[i]);
	MUST(syscall(SYS_set_mempolicy, kinds[0].mode, kinds[0].nodes, 64));
	build_child();
	for (long i = 0; i < 2; i++)
		MUST_ZERO(pthread_create(&threads[i], NULL, thread, (void *)i));
	of(NULL, &self_before);
	ask_threads();
	memcpy(threads_before, asked, sizeof(asked));
	victim_ready();
	victim_serve(check);
}
