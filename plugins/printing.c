/* SPDX-License-Identifier: MIT */
/*
 * libnl's archive is code for programs: where it prints messages (NLCB=debug) it reaches stdout and
 * stderr as if they were its own, which an object that is loaded cannot have. It gets copies here
 * (the linker's --wrap).
 */
#include <stdio.h>

extern FILE *__real_stdout, *__real_stderr;
extern FILE *__wrap_stdout, *__wrap_stderr;

__attribute__((visibility("hidden"))) FILE *__wrap_stdout, *__wrap_stderr;

__attribute__((constructor)) static void copy(void)
{
	__wrap_stdout = __real_stdout;
	__wrap_stderr = __real_stderr;
}
