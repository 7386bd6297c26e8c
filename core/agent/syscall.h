/* SPDX-License-Identifier: MIT */
/* A system call without the C library: for code that must not touch errno. */
#ifndef CKPT_AGENT_SYSCALL_H
#define CKPT_AGENT_SYSCALL_H

#include <stdint.h>

static inline int64_t sys6(int64_t nr, int64_t a, int64_t b, int64_t c, int64_t d, int64_t e,
			   int64_t f)
{
	int64_t ret;
	register int64_t r10 __asm__("r10") = d;
	register int64_t r8 __asm__("r8") = e;
	register int64_t r9 __asm__("r9") = f;

	__asm__ volatile("syscall"
			 : "=a"(ret)
			 : "0"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return ret;
}

#endif
