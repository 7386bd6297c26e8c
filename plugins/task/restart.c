/* SPDX-License-Identifier: MIT */
/*
 * Interrupted system calls. The kernel restarts a call of the original by itself;
 * in a copy the registers have to say "call it again", since the kernel's own
 * note of what to restart cannot be handed to another task.
 */
#include <linux/futex.h>
#include <poll.h>
#include <sys/syscall.h>
#include <time.h>

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

#define MAX_CLOCK   16
#define MAX_FDS	    (1 << 20) /* of a process, unless the administrator says otherwise */
#define POLL_EVENTS 0x2fff    /* those of poll(2) that have names, errors among them */

/* ---- by the arguments ------------------------------------------------------------ */

/* Does that address hold a time to wait for? */
static bool is_time(int mem, uint64_t at)
{
	struct timespec t;

	return at && pread(mem, &t, sizeof(t), (off_t)at) == (ssize_t)sizeof(t) && t.tv_sec >= 0 &&
	       t.tv_nsec >= 0 && t.tv_nsec < 1000000000;
}

static bool is_nanosleep(int mem, const struct user_regs_struct *r)
{
	return is_time(mem, r->rdi) && (!r->rsi || is_time(mem, r->rsi));
}

/* An absolute one leaves no note. */
static bool is_clock_nanosleep(int mem, const struct user_regs_struct *r)
{
	const int64_t clock = (int64_t)r->rdi;

	return clock >= INT32_MIN && clock < MAX_CLOCK && !(int32_t)r->rsi &&
	       is_time(mem, r->rdx) && (!r->r10 || is_time(mem, r->r10));
}

/* Only one that waits, and for a time, leaves a note. */
static bool is_futex(int mem, const struct user_regs_struct *r)
{
	const int op = (int)r->rsi & FUTEX_CMD_MASK;
	uint32_t word;

	return (op == FUTEX_WAIT || op == FUTEX_WAIT_BITSET) && !(r->rdi % sizeof(word)) &&
	       !((int)r->rsi & ~(FUTEX_CMD_MASK | FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME)) &&
	       pread(mem, &word, sizeof(word), (off_t)r->rdi) == (ssize_t)sizeof(word) &&
	       is_time(mem, r->r10);
}

static bool is_poll(int mem, const struct user_regs_struct *r)
{
	struct pollfd fds[64];
	const size_t n = r->rsi < CKPT_ARRAY_SIZE(fds) ? r->rsi : CKPT_ARRAY_SIZE(fds);
	const ssize_t len = (ssize_t)(n * sizeof(*fds));
	unsigned wanted = 0;

	if (r->rsi > MAX_FDS || !r->rdx || r->rdx > INT32_MAX ||
	    (len && pread(mem, fds, (size_t)len, (off_t)r->rdi) != len))
		return false;
	for (size_t i = 0; i < n; i++) {
		wanted |= (unsigned)fds[i].events;
		if (fds[i].fd > MAX_FDS || fds[i].events & ~POLL_EVENTS ||
		    fds[i].revents & ~(POLL_EVENTS | POLLERR | POLLHUP | POLLNVAL))
			return false;
	}
	/* zeros are no such list */
	return wanted || !n;
}

/* The calls that leave such a note; their arguments stay in their registers. */
static const struct {
	uint32_t nr;
	bool (*is)(int mem, const struct user_regs_struct *r);
} with_block[] = {
	{ SYS_nanosleep, is_nanosleep },
	{ SYS_clock_nanosleep, is_clock_nanosleep },
	{ SYS_poll, is_poll },
	{ SYS_futex, is_futex },
};

static bool has_block(uint32_t nr)
{
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(with_block); i++)
		if (with_block[i].nr == nr)
			return true;
	return false;
}

/* The only one of them that it can be. */
static uint32_t by_arguments(int mem, const struct user_regs_struct *r)
{
	uint32_t found = UNKNOWN;

	for (size_t i = 0; i < CKPT_ARRAY_SIZE(with_block); i++) {
		if (!with_block[i].is(mem, r))
			continue;
		if (found != UNKNOWN)
			return UNKNOWN;
		found = with_block[i].nr + 1;
	}
	return found;
}

/*
 * A call that was interrupted twice is restart_syscall by now. Its number may be in the
 * code that made the call: "mov $nr,%eax; syscall". syscall(3), by which libraries wait
 * for a futex, has moved it there from a register that has an argument by now. Returns
 * number + 1, 0 if it is not in such a call.
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
	if (code[0] == 0xb8 && code[5] == 0x0f && code[6] == 0x05 && has_block(nr))
		return nr + 1;
	return by_arguments(mem, &th->regs);
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
