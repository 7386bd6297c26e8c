/* SPDX-License-Identifier: MIT */
/* The signal frame by which a thread leaves the agent on its own. */
#include <cpuid.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ckpt/cleanup.h>

#include "process/frame.h"

/* struct ucontext as the kernel lays it out (asm/ucontext.h clashes with glibc's). */
struct kernel_ucontext {
	uint64_t flags;
	uint64_t link;
	uint64_t stack_sp;
	uint64_t stack_flags;
	uint64_t stack_size;
	struct sigcontext mc;
	uint64_t sigmask;
};
_Static_assert(offsetof(struct kernel_ucontext, mc) == 40, "struct ucontext");

#define UC_FP_XSTATE	     1
#define UC_SIGCONTEXT_SS     2
#define UC_STRICT_RESTORE_SS 4

/*
 * Which call to make again? rt_sigreturn(2) forgets what restart_syscall(2) would go on with, and
 * that would be EINTR then: the call that was interrupted twice is named where it was made, in
 * "mov $number, %eax; syscall", as libc does it.
 */
static uint64_t call_of(const struct ckpt_thread *th)
{
	uint8_t text[7];
	uint32_t number;
	struct ckpt_error ignored = { 0 };
	CKPT_AUTO_FD int mem = -1;

	if (th->regs.orig_rax != SYS_restart_syscall)
		return th->regs.orig_rax;
	mem = ckpt_open_mem(th->task, &ignored);
	if (mem < 0 ||
	    pread(mem, text, sizeof(text), (off_t)(th->regs.rip - sizeof(text))) != sizeof(text) ||
	    text[0] != 0xb8 || text[5] != 0x0f || text[6] != 0x05)
		return th->regs.orig_rax;
	memcpy(&number, text + 1, sizeof(number));
	return number;
}

/* What the registers become if the thread has to go on without ptrace: no restart codes. */
static struct user_regs_struct plain_regs(const struct ckpt_thread *th)
{
	struct user_regs_struct r = th->regs;
	int64_t code = (int64_t)r.rax;

	if ((int64_t)r.orig_rax >= 0 && code <= -512 && code >= -516) {
		r.rax = call_of(th);
		r.rip -= 2;
	}
	return r;
}

static void fill_context(struct kernel_ucontext *uc, const struct ckpt_thread *th)
{
	const struct user_regs_struct r = plain_regs(th);

	memset(uc, 0, sizeof(*uc));
	uc->flags = UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS;
	uc->sigmask = th->sigmask;
	uc->mc.r8 = r.r8;
	uc->mc.r9 = r.r9;
	uc->mc.r10 = r.r10;
	uc->mc.r11 = r.r11;
	uc->mc.r12 = r.r12;
	uc->mc.r13 = r.r13;
	uc->mc.r14 = r.r14;
	uc->mc.r15 = r.r15;
	uc->mc.rdi = r.rdi;
	uc->mc.rsi = r.rsi;
	uc->mc.rbp = r.rbp;
	uc->mc.rbx = r.rbx;
	uc->mc.rdx = r.rdx;
	uc->mc.rax = r.rax;
	uc->mc.rcx = r.rcx;
	uc->mc.rsp = r.rsp;
	uc->mc.rip = r.rip;
	uc->mc.eflags = r.eflags;
	uc->mc.cs = (uint16_t)r.cs;
	uc->mc.__pad0 = (uint16_t)r.ss; /* ss, in the kernel's header */
}

#define XSTATE_LEGACY	 (512 + 64) /* FPU, SSE and the header with the mask of what is there */
#define XSTATE_BV_AT	 512
#define XSTATE_CPUID	 0xd
#define XSTATE_FIRST_EXT 2

/*
 * A thread that has never used AMX has a smaller state than the processor could have, and a frame
 * that is larger than the thread's state counts for nothing but FPU and SSE with rt_sigreturn(2).
 */
size_t frame_xstate_length(const void *xstate, size_t len, struct xstate_ends *ends)
{
	uint64_t present;
	size_t end = XSTATE_LEGACY;

	if (len <= XSTATE_LEGACY)
		return len;
	memcpy(&present, (const uint8_t *)xstate + XSTATE_BV_AT, sizeof(present));
	for (unsigned i = XSTATE_FIRST_EXT; i < CKPT_ARRAY_SIZE(ends->at); i++) {
		unsigned size, offset, c, d;

		if (!(present >> i & 1))
			continue;
		if (!ends->at[i] && __get_cpuid_count(XSTATE_CPUID, i, &size, &offset, &c, &d))
			ends->at[i] = offset + size;
		if (!ends->at[i])
			return len;
		end = ends->at[i] > end ? ends->at[i] : end;
	}
	return end < len ? end : len;
}

/* The extended state as a signal frame holds it: with its software-reserved bytes. */
static void fill_xstate(uint8_t *to, const void *xstate, size_t len)
{
	struct _fpx_sw_bytes sw = { 0 };

	memcpy(to, xstate, len);
	/* PTRACE_GETREGSET keeps the feature mask where the frame wants its description */
	memcpy(&sw.xstate_bv, to + 464, sizeof(sw.xstate_bv));
	sw.magic1 = FP_XSTATE_MAGIC1;
	sw.extended_size = (uint32_t)len + FP_XSTATE_MAGIC2_SIZE;
	sw.xstate_size = (uint32_t)len;
	memcpy(to + 464, &sw, sizeof(sw));
	memcpy(to + len, &(uint32_t){ FP_XSTATE_MAGIC2 }, FP_XSTATE_MAGIC2_SIZE);
}

_Static_assert(sizeof(struct kernel_ucontext) == FRAME_CONTEXT_SIZE, "frame.h is stale");
_Static_assert(offsetof(struct kernel_ucontext, mc.fpstate) == FRAME_FPSTATE_AT,
	       "frame.h is stale");
_Static_assert(FP_XSTATE_MAGIC2_SIZE == FRAME_XSTATE_EXTRA, "frame.h is stale");

void frame_fill(uint8_t *frame, const struct ckpt_thread *th, const void *xstate, size_t len)
{
	fill_context((struct kernel_ucontext *)frame, th);
	fill_xstate(frame + FRAME_CONTEXT_SIZE, xstate, len);
}
