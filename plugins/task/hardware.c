/* SPDX-License-Identifier: MIT */
/*
 * What a thread has of the processor beside its registers, and only ptrace(2) shows: nothing of
 * it is saved.
 */
#include <asm/ldt.h>
#include <elf.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>

#include <ckpt/trace.h>

#include "task.h"

/* The kernel's slots for set_thread_area(2). */
enum { FIRST_TLS = 12, N_TLS = 3 };
#define DR_CONTROL 7

static void refuse(struct ckpt_run *run, const struct ckpt_thread *th, const char *feature,
		   const char *what, const char *hint)
{
	char object[96];

	snprintf(object, sizeof(object), "thread %d: %s", (int)th->tid, what);
	task_refuse(run, th->task, feature, object, "they are not saved", hint);
}

/* Nobody of ours could run in there. */
static void refuse_32_bit(struct ckpt_run *run, const struct ckpt_thread *th)
{
	char object[64];
	const struct ckpt_blocker b = { "32-bit",
					th->task,
					object,
					"it is in the middle of 32-bit code",
					"use the program's 64-bit build",
					true };

	snprintf(object, sizeof(object), "thread %d", (int)th->tid);
	ckpt_refuse(run, &b);
}

static bool has_tls(const struct ckpt_thread *th)
{
	for (int i = FIRST_TLS; i < FIRST_TLS + N_TLS; i++) {
		struct user_desc d = { .seg_not_present = 1 };

		/* a kernel without 32-bit programs has no such call for others either */
		if (ckpt_ptrace(th, PTRACE_GET_THREAD_AREA, i, &d) < 0)
			return false;
		if (!d.seg_not_present || d.base_addr || d.limit)
			return true;
	}
	return false;
}

/* That of ioperm(2); iopl(2) leaves nothing to be seen. */
static bool has_ports(const struct ckpt_thread *th)
{
	uint64_t some;
	struct iovec part = { &some, sizeof(some) };

	return ckpt_ptrace(th, PTRACE_GETREGSET, NT_386_IOPERM, &part) == 0;
}

/* A debugger that has gone may have left some. */
static bool has_breakpoints(const struct ckpt_thread *th)
{
	const size_t at = offsetof(struct user, u_debugreg) + DR_CONTROL * sizeof(unsigned long);
	unsigned long control = 0;

	return ckpt_ptrace(th, PTRACE_PEEKUSER, at, &control) == 0 && control;
}

void task_hardware_look(struct ckpt_run *run, const struct ckpt_thread *th)
{
	if (th->regs.cs != TASK_CS)
		refuse_32_bit(run, th);
	if (has_tls(th))
		refuse(run, th, "tls", "segments of set_thread_area(2)",
		       "use the program's 64-bit build");
	if (has_ports(th))
		refuse(run, th, "ports", "I/O ports of ioperm(2)", "let it give them up");
	if (has_breakpoints(th))
		refuse(run, th, "breakpoints", "hardware breakpoints",
		       "let a debugger take them off again");
}
