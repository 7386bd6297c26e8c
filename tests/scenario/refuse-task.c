/* SPDX-License-Identifier: MIT
 *
 * test: only=refuse
 *
 * As refuse.c: what a thread has that is not saved.
 */
#include "victim.h"

#include <asm/ldt.h>
#include <linux/io_uring.h>
#include <linux/keyctl.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#define I386_SET_THREAD_AREA 243

static pid_t other;

/* What a pointer of 32 bits leads to. */
static void *below_4g(void)
{
	return mmap(NULL, 8192, PROT_READ | PROT_WRITE | PROT_EXEC,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
}

static void tls(void)
{
	struct user_desc *d = below_4g();
	long r;

	*d = (struct user_desc){ .entry_number = -1U,
				 .base_addr = 0x1000,
				 .limit = 4095,
				 .seg_32bit = 1,
				 .useable = 1 };
	/* a 64-bit program has it by the door of the 32-bit ones only */
	__asm__ volatile("int $0x80"
			 : "=a"(r)
			 : "a"(I386_SET_THREAD_AREA), "b"(d)
			 : "memory", "r8", "r9", "r10", "r11");
	if ((int)r)
		victim_skip("set_thread_area(2): %s", strerror(-(int)r));
}

/* A child that a debugger has been at. */
static void breakpoint(void)
{
	const size_t at = offsetof(struct user, u_debugreg);

	other = MUST(fork());
	if (other == 0) {
		MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
		for (;;)
			pause();
	}
	MUST(ptrace(PTRACE_SEIZE, other, 0, 0));
	MUST(ptrace(PTRACE_INTERRUPT, other, 0, 0));
	MUST(waitpid(other, NULL, 0));
	if (ptrace(PTRACE_POKEUSER, other, at, breakpoint) ||
	    ptrace(PTRACE_POKEUSER, other, at + 7 * sizeof(long), 1))
		victim_skip("no hardware breakpoints: %s", strerror(errno));
	MUST(ptrace(PTRACE_DETACH, other, 0, 0));
}

static void default_keyring(void)
{
	if (syscall(SYS_keyctl, KEYCTL_SET_REQKEY_KEYRING, KEY_REQKEY_DEFL_USER_KEYRING) < 0)
		victim_skip("keyctl(2): %s", strerror(errno));
}

/* A child counts in a segment of 32-bit code. */
static void in_32_bit_code(void)
{
	unsigned char *code = below_4g();
	const uint32_t at = (uint32_t)(uintptr_t)code, count = at + 4096;
	/* incl count; jmp back */
	const unsigned char loop[] = { 0xff, 0x05, 0, 0, 0, 0, 0xeb, 0xf8 };
	const struct {
		uint32_t offset;
		uint16_t selector;
	} __attribute__((packed)) door = { at, 0x23 };

	memcpy(code, loop, sizeof(loop));
	memcpy(code + 2, &count, sizeof(count));
	other = MUST(fork());
	if (other == 0) {
		MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
		__asm__ volatile("movl %0, %%ds\n\tljmp *%1" : : "r"(0x2b), "m"(door));
	}
	usleep(50000);
	if (waitpid(other, NULL, WNOHANG) == other)
		victim_skip("no 32-bit code");
}

/* In memory of the program's, and known by a number that is no descriptor's. */
static void register_ring(void)
{
	/* IORING_SETUP_NO_MMAP | IORING_SETUP_REGISTERED_FD_ONLY, Linux 6.5 */
	struct io_uring_params p = { .flags = 1 << 14 | 1 << 15 };
	char *memory = below_4g();

	/* user_addr */
	p.cq_off.resv2 = (uint64_t)(uintptr_t)memory;
	p.sq_off.resv2 = (uint64_t)(uintptr_t)memory + 4096;
	if (syscall(SYS_io_uring_setup, 4, &p) < 0)
		victim_skip("io_uring_setup(2): %s", strerror(errno));
}

static void ring_registered(void)
{
	register_ring();
}

static void ring_second(void)
{
	struct io_uring_rsrc_update first = { .offset = 0 };

	register_ring();
	register_ring();
	/* IORING_UNREGISTER_RING_FDS, by the second */
	MUST(syscall(SYS_io_uring_register, 1, 21 | 1U << 31, &first, 1));
	/* the kernel takes it apart later, and interrupts us for that */
	usleep(300000);
}

static const struct mode {
	const char *name;
	void (*make)(void);
	const char *blocker;
} modes[] = {
	{ "tls", tls, "task tls .*set_thread_area" },
	{ "breakpoint", breakpoint, "task breakpoints .*hardware breakpoints" },
	{ "default-keyring", default_keyring, "task keyrings .*default keyring" },
	{ "ring-registered", ring_registered, "task io-uring .*a registered ring" },
	{ "ring-second", ring_second, "task io-uring .*a registered ring" },
	{ "32-bit-code", in_32_bit_code, "task 32-bit .*in the middle of 32-bit code" },
};

static void check(void)
{
	CHECK(victim_status(getpid(), "TracerPid", 10) == 0, "somebody traces us");
	CHECK(!other || kill(other, 0) == 0, "the child is gone");
}

int main(int argc, char **argv)
{
	const size_t n = sizeof(modes) / sizeof(*modes);

	if (argc == 2 && !strcmp(argv[1], "--list")) {
		for (size_t i = 0; i < n; i++)
			printf("%s\t%s\n", modes[i].name, modes[i].blocker);
		return 0;
	}
	victim_init(argc - 1, argv + 1);
	for (size_t i = 0; i < n; i++)
		if (!strcmp(modes[i].name, argv[1]))
			modes[i].make();
	victim_ready();
	victim_serve(check);
}
