/* SPDX-License-Identifier: MIT */
/*
 * Interrupted system calls. The kernel restarts a call of the original by itself;
 * in a copy the registers have to say "call it again", since the kernel's own
 * note of what to restart cannot be handed to another task.
 */
#include <sys/syscall.h>

#include "task.h"

/* The kernel's internal results, never seen by a program. */
enum {
	RESTART_SYS = 512,
	RESTART_NOINTR = 513,
	RESTART_NOHAND = 514,
	RESTART_BLOCK = 516,
};

#define SYSCALL_INSN_LEN 2
#define UNKNOWN		 0xffffffffU

/* The calls that leave such a note. */
static const uint32_t with_block[] = { SYS_nanosleep, SYS_clock_nanosleep, SYS_poll, SYS_futex };

static bool has_block(uint32_t nr)
{
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(with_block); i++)
		if (with_block[i] == nr)
			return true;
	return false;
}

/*
 * A call that was interrupted twice is restart_syscall by now. Its arguments are
 * still in their registers; its number is only in the code that made the call:
 * "mov $nr,%eax; syscall". Returns number + 1, 0 if it is not in such a call.
 */
uint32_t task_restarted(const struct ckpt_thread *th)
{
	uint8_t code[7];
	uint32_t nr;
	struct ckpt_error ignored = { 0 };

	if ((int64_t)th->regs.rax != -RESTART_BLOCK || th->regs.orig_rax != SYS_restart_syscall)
		return 0;
	CKPT_AUTO_FD int mem = ckpt_open_mem(th->task, &ignored);

	if (mem < 0 || pread(mem, code, sizeof(code), (off_t)(th->regs.rip - sizeof(code))) !=
			       (ssize_t)sizeof(code))
		return UNKNOWN;
	memcpy(&nr, code + 1, sizeof(nr));
	if (code[0] != 0xb8 || code[5] != 0x0f || code[6] != 0x05 || !has_block(nr))
		return UNKNOWN;
	return nr + 1;
}

bool task_restart_known(uint32_t restarted)
{
	return restarted == 0 || (restarted != UNKNOWN && has_block(restarted - 1));
}

/* A relative sleep has written what is left where the program wants to find it: sleep that. */
static void sleep_on(struct user_regs_struct *regs, uint64_t nr)
{
	const uint64_t absolute = 1;

	if (nr == SYS_nanosleep && regs->rsi)
		regs->rdi = regs->rsi;
	else if (nr == SYS_clock_nanosleep && !(regs->rsi & absolute) && regs->r10)
		regs->rdx = regs->r10;
}

/*
 * `signal`: one is about to be delivered. Then the kernel decides, by its handler,
 * between a restart and EINTR; "restart unless a handler runs" is what all the
 * calls with a note come to.
 */
void task_restart(struct user_regs_struct *regs, uint32_t restarted, bool signal)
{
	uint64_t nr = restarted ? restarted - 1 : regs->orig_rax;
	int64_t result = (int64_t)regs->rax;

	if ((int64_t)regs->orig_rax < 0)
		return;
	if (result != -RESTART_SYS && result != -RESTART_NOINTR && result != -RESTART_NOHAND &&
	    result != -RESTART_BLOCK)
		return;
	if (result == -RESTART_BLOCK)
		sleep_on(regs, nr);
	if (signal) {
		regs->orig_rax = nr;
		if (result == -RESTART_BLOCK)
			regs->rax = (uint64_t)-RESTART_NOHAND;
		return;
	}
	regs->rax = nr;
	regs->rip -= SYSCALL_INSN_LEN;
	regs->orig_rax = (uint64_t)-1;
}
