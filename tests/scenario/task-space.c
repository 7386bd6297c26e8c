/* SPDX-License-Identifier: MIT
 *
 * What the kernel keeps with an address space: registrations for membarrier(2), of each kind, in a
 * process with threads and in its children; segments of modify_ldt(2), the first and the last one,
 * one of them in a segment register.
 */
#include "victim.h"

#include <asm/ldt.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define GET_REGISTRATIONS (1 << 9)
#define N_CHILDREN	  3
#define MAGIC		  0x5e6ce27u

enum { READ = 0, WRITE = 0x11, NUMBER = 3 };

struct state {
	long registrations, private, core, rseq, ldt;
	unsigned char table[LDT_ENTRIES * LDT_ENTRY_SIZE];
};

static struct state before;
static int to[N_CHILDREN], from[N_CHILDREN];
/* what each child has registered with */
static const int kinds[N_CHILDREN] = { 0, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE,
				       MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED };

static long membarrier(int command)
{
	long r = syscall(SYS_membarrier, command, 0, 0);

	return r < 0 ? -errno : r;
}

static void look(struct state *s)
{
	memset(s, 0, sizeof(*s));
	/* a kernel before 6.3 does not tell */
	s->registrations = membarrier(GET_REGISTRATIONS);
	s->private = membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
	s->core = membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE);
	s->rseq = membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ);
	s->ldt = (int)syscall(SYS_modify_ldt, READ, s->table, sizeof(s->table));
}

/* What the segment in %gs begins with. */
static unsigned through_gs(void)
{
	unsigned value;

	__asm__ volatile("movl %%gs:0, %0" : "=r"(value));
	return value;
}

static void check(void)
{
	static struct state now;

	look(&now);
	/* who has registered for one kind is told to have registered for the plain one as well */
	CHECK(now.registrations == before.registrations &&
		      (now.private == before.private || before.private == -EPERM) &&
		      now.core == before.core && now.rseq == before.rseq,
	      "registrations %#lx, barriers %ld %ld %ld; were %#lx, %ld %ld %ld", now.registrations,
	      now.private, now.core, now.rseq, before.registrations, before.private, before.core,
	      before.rseq);
	if (now.ldt != before.ldt || memcmp(now.table, before.table, sizeof(now.table))) {
		victim_fail("the segments have changed, or are gone");
		return;
	}
	if (before.ldt)
		CHECK(through_gs() == MAGIC, "there is %#x in the segment", through_gs());
	for (int i = 0; i < N_CHILDREN && to[i]; i++)
		victim_ask(to[i], from[i], "child %d", i);
}

static void write_segment(struct user_desc d)
{
	/* an int, in a long */
	if ((int)syscall(SYS_modify_ldt, WRITE, &d, sizeof(d)))
		victim_die("modify_ldt: segment %u", d.entry_number);
}

static void build_segments(void)
{
	unsigned *below = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	unsigned long none;

	if (syscall(SYS_modify_ldt, READ, &none, sizeof(none)) < 0)
		return;
	*below = MAGIC;
	write_segment((struct user_desc){ .entry_number = NUMBER,
					  .base_addr = (unsigned)(uintptr_t)below,
					  .limit = 4095,
					  .seg_32bit = 1,
					  .useable = 1 });
	write_segment((struct user_desc){ .entry_number = NUMBER + 1,
					  .base_addr = 0x12345678,
					  .limit = 0xfedcb,
					  .seg_32bit = 1,
					  .contents = MODIFY_LDT_CONTENTS_CODE,
					  .read_exec_only = 1,
					  .limit_in_pages = 1 });
	write_segment((struct user_desc){ .entry_number = LDT_ENTRIES - 1,
					  .base_addr = 0x87654321,
					  .limit = 17,
					  .seg_32bit = 1,
					  .contents = MODIFY_LDT_CONTENTS_STACK,
					  .seg_not_present = 1 });
	__asm__ volatile("movw %w0, %%gs" : : "r"(NUMBER << 3 | 7));
}

static void child(int i)
{
	int there[2], back[2];

	MUST(pipe(there));
	MUST(pipe(back));
	if (MUST(fork())) {
		close(there[0]);
		close(back[1]);
		to[i] = there[1];
		from[i] = back[0];
		return;
	}
	close(there[1]);
	close(back[0]);
	if (kinds[i])
		MUST(syscall(SYS_membarrier, kinds[i], 0, 0));
	for (int k = 0; k < i; k++) {
		close(to[k]);
		close(from[k]);
	}
	memset(to, 0, sizeof(to));
	look(&before);
	victim_answer(there[0], back[1], check);
}

static void *stay(void *unused)
{
	for (;;)
		pause();
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t thread;
	long known;

	victim_init(argc, argv);
	known = membarrier(MEMBARRIER_CMD_QUERY);
	if (!(known & MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED))
		victim_skip("a kernel without membarrier(2)");
	for (int i = 0; i < N_CHILDREN; i++)
		child(i);
	MUST_ZERO(pthread_create(&thread, NULL, stay, NULL));
	for (int bit = MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED;
	     bit <= MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_RSEQ; bit <<= 2)
		if (known & bit)
			MUST(syscall(SYS_membarrier, bit, 0, 0));
	build_segments();
	look(&before);
	victim_ready();
	victim_serve(check);
}
