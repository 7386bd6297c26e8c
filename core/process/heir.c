/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>

#include <ckpt/cleanup.h>
#include <ckpt/copies.h>
#include <ckpt/script.h>

#include "engine/engine.h"
#include "engine/run.h"
#include "process/copy.h"
#include "process/heir.h"
#include "process/spawn.h"
#include "process/uapi.h"

#define STOP_TIMEOUT_MS 10000
/* The engine's mappings may grow until the root is cloned. */
#define SLACK (1ULL << 30)
/* The end of user space with four and with five levels of page tables. */
#define TASK_SIZE      ((1ULL << 47) - 4096)
#define TASK_SIZE_LA57 ((1ULL << 56) - 4096)

#define RSEQ_FLAG_UNREGISTER 1

__asm__(".pushsection .text\n"
	"heir_syscall_at:\n\t"
	"syscall\n\t"
	"ud2\n"
	".popsection");
extern const char heir_syscall_at[];

uint64_t heir_syscall(void)
{
	return (uint64_t)(uintptr_t)heir_syscall_at;
}

int heir_reserve(struct proc_set *ps, struct ckpt_error *err)
{
	CKPT_AUTO_FILE FILE *f = fopen("/proc/self/maps", "re");
	unsigned long long start, end;
	char line[8192];
	int r = 0;

	if (!f)
		return ckpt_fail_sys(err, errno, "/proc/self/maps");
	while (!r && fgets(line, sizeof(line), f))
		if (sscanf(line, "%llx-%llx", &start, &end) == 2 && end <= TASK_SIZE)
			r = ckpt_reserve(ps->run, start > SLACK ? start - SLACK : 0, end + SLACK,
					 err);
	return r;
}

SPAWN_CHILD void heir_wait(void *arg)
{
	const int *go = arg;
	char c;

	/* else it would not see the end of the engine */
	sys6(SYS_close, go[1], 0, 0, 0, 0, 0);
	for (;;)
		if (sys6(SYS_read, go[0], (int64_t)(uintptr_t)&c, 1, 0, 0, 0) == 0)
			sys6(SYS_exit_group, 127, 0, 0, 0, 0, 0);
}

/* The kernel writes there, and the memory is about to go. */
static int forget_rseq(struct ckpt_agent *a, struct ckpt_error *err)
{
	struct rseq_configuration conf = { 0 };
	struct user_regs_struct regs;
	int r;

	/* a kernel without: */
	if (INSIST(ptrace(PTRACE_GET_RSEQ_CONFIGURATION, a->th->tid, sizeof(conf), &conf)) < 0)
		return errno == EIO || errno == EINVAL
			       ? 0
			       : ckpt_fail_sys(err, errno, "rseq(2) of the root skeleton");
	if (!conf.pointer)
		return 0;
	if (INSIST(ptrace(PTRACE_GETREGS, a->th->tid, NULL, &regs)))
		return ckpt_fail_sys(err, errno, "registers of the root skeleton");
	regs.orig_rax = (uint64_t)-1;
	regs.rip = heir_syscall();
	regs.rax = SYS_rseq;
	regs.rdi = conf.pointer;
	regs.rsi = conf.size;
	regs.rdx = RSEQ_FLAG_UNREGISTER;
	regs.r10 = conf.signature;
	r = step_syscall(a, &regs, err);
	return r || !regs.rax ? r
			      : ckpt_fail_sys(err, (int)-regs.rax, "rseq(2) in the root skeleton");
}

int heir_stop(struct ckpt_agent *a, struct ckpt_error *err)
{
	int r = interrupt_and_wait(a, false, STOP_TIMEOUT_MS, err);

	return r ? r : forget_rseq(a, err);
}

/* ---- what execve(2) would have done --------------------------------------------------- */

static void reset_signals(struct ckpt_script *s)
{
	/* struct sigaction as the kernel has it: SIG_DFL */
	const uint64_t none[4] = { 0 };
	const stack_t no_stack = { .ss_flags = SS_DISABLE };

	for (int sig = 1; sig < 65; sig++)
		if (sig != SIGKILL && sig != SIGSTOP)
			ckpt_script_add(s, SYS_rt_sigaction, CKPT_C(sig),
					CKPT_IN(none, sizeof(none)), CKPT_C(0), CKPT_C(8));
	ckpt_script_add(s, SYS_sigaltstack, CKPT_IN(&no_stack, sizeof(no_stack)), CKPT_C(0));
}

static void keep_fds(struct ckpt_script *s, const struct heir_fd keep[2])
{
	const int above = keep[1].target + 1;
	int op[2];

	/* out of the way: their numbers may be where the others go */
	for (int i = 0; i < 2; i++)
		op[i] = ckpt_script_add(s, SYS_fcntl, CKPT_C(keep[i].fd), CKPT_C(F_DUPFD_CLOEXEC),
					CKPT_C(above));
	for (int i = 0; i < 2; i++)
		ckpt_script_add(s, SYS_dup2, CKPT_R(op[i]), CKPT_C(keep[i].target));
	if (keep[0].target)
		ckpt_script_add(s, SYS_close_range, CKPT_C(0), CKPT_C(keep[0].target - 1),
				CKPT_C(0));
	ckpt_script_add(s, SYS_close_range, CKPT_C(above), CKPT_C(~0U), CKPT_C(0));
}

/* All but two ranges. */
static void unmap(struct ckpt_script *s, const struct range *a, const struct range *b)
{
	const struct range *lower = a->start < b->start ? a : b, *upper = lower == a ? b : a;
	const struct range gaps[] = { { 0, lower->start },
				      { lower->end, upper->start },
				      { upper->end, TASK_SIZE },
				      { TASK_SIZE, TASK_SIZE_LA57 } };

	for (size_t i = 0; i < CKPT_ARRAY_SIZE(gaps); i++) {
		if (gaps[i].end <= gaps[i].start)
			continue;
		ckpt_script_add(s, SYS_munmap, CKPT_C(gaps[i].start),
				CKPT_C(gaps[i].end - gaps[i].start));
		/* without five levels of page tables: */
		if (gaps[i].start == TASK_SIZE)
			ckpt_script_allow(s, EINVAL);
	}
}

int heir_strip(struct ckpt_agent *a, const struct heir_fd keep[2], struct ckpt_error *err)
{
	struct ckpt_run *run = a->ps->run;
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "heir");
	const struct ckpt_copies_memory *m = ckpt_copies_memory(run);
	const struct range agent = { a->seg->addr, a->seg->addr + a->seg->length },
			   memory = { m->start, m->end };
	int r;

	reset_signals(s);
	keep_fds(s, keep);
	ckpt_script_add(s, SYS_prctl, CKPT_C(PR_SET_NAME), CKPT_STR("ckpt-skeleton"));
	ckpt_script_add(s, SYS_prctl, CKPT_C(PR_SET_DUMPABLE), CKPT_C(1));
	ckpt_script_add(s, SYS_prctl, CKPT_C(PR_SET_KEEPCAPS), CKPT_C(0));
	/* refused where it is locked, and then execve(2) would not have cleared it either */
	ckpt_script_allow(s, EPERM);
	unmap(s, &agent, &memory);
	r = ckpt_script_run(s, a->th, err);
	/* the engine's helpers need not inherit it too */
	copy_drop_memory(m);
	return r;
}
