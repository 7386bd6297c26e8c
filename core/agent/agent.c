/* SPDX-License-Identifier: MIT */
/*
 * The agent: runs syscall scripts inside a task. Freestanding, position
 * independent, built for general registers only: it never touches the FPU or
 * vector state of the thread that it borrows.
 *
 * Leaving without help is what makes a dump safe against the death of the
 * engine: the thread builds on its own stack what the kernel would have put
 * there for a signal handler (below the red zone, or on the unused alternate
 * stack), and then makes two system calls from instructions of the task's own
 * text: one that gives up the segment, and rt_sigreturn(2), which restores all
 * registers, the extended state and the signal mask at once.
 */
#include <stddef.h>
#include <stdint.h>

#include <asm/unistd.h>
#include <linux/futex.h>

#include "agent.h"
#include "offsets.h"
#include "syscall.h"

_Static_assert(offsetof(struct agent_seat, frame) == SEAT_STACK_TOP, "offsets.h is stale");
_Static_assert(sizeof(struct agent_header) <= AGENT_HEADER_SIZE, "header too large");

#define RED_ZONE     128
#define ALL_SIGNALS  (~0ULL)
#define SIG_SETMASK_ 2
#define SS_ONSTACK_  1
#define SS_DISABLE_  2
#define UC_STACK     16 /* offset of uc_stack in struct ucontext */

void agent_main(struct agent_seat *seat) __attribute__((noreturn));
void agent_jump(const uint64_t regs[WAY_N]) __attribute__((noreturn));

static inline uint32_t load(const uint32_t *p)
{
	return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

static struct agent_header *header_of(const struct agent_seat *seat)
{
	return (struct agent_header *)(seat->base + AGENT_CODE_SIZE);
}

static void copy(uint8_t *to, const uint8_t *from, uint64_t n)
{
	__asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) : : "memory");
}

/* ---- scripts ---------------------------------------------------------------- */

static int fine(const struct agent_op *op)
{
	if (op->check == AGENT_CHECK_ANY)
		return 1;
	if (op->check == AGENT_CHECK_EXACT)
		return op->result == op->expect;
	return op->result >= 0 || op->result < -4095 ||
	       (op->allow && op->result == -(int64_t)op->allow);
}

static void run(struct agent_seat *seat)
{
	struct agent_op *ops = (struct agent_op *)seat->ops;
	int64_t a[AGENT_MAX_ARGS];
	uint32_t i, k;

	seat->failed = 0;
	for (i = 0; i < seat->n_ops; i++) {
		for (k = 0; k < AGENT_MAX_ARGS; k++) {
			a[k] = ops[i].args[k];
			if (ops[i].refs & (1u << k))
				a[k] = ops[a[k]].result;
		}
		ops[i].result = sys6(ops[i].nr, a[0], a[1], a[2], a[3], a[4], a[5]);
		if (!fine(&ops[i])) {
			seat->failed = 1;
			i++;
			break;
		}
	}
	seat->executed = i;
}

/* ---- leaving ------------------------------------------------------------------ */

struct kernel_stack {
	uint64_t sp;
	int32_t flags;
	int32_t pad;
	uint64_t size;
};

/*
 * Where a signal frame of that size may go: the top address, or 0. The frame
 * also says what the alternate stack is to be, so *ss is left for it.
 */
static uint64_t frame_top(const struct agent_seat *seat, uint64_t need, struct kernel_stack *ss)
{
	uint64_t top = seat->exit.sp - RED_ZONE;
	uint64_t probe;

	/* a thread with an alternate stack may have a stack of its own that is too small */
	if (sys6(__NR_sigaltstack, 0, (int64_t)ss, 0, 0, 0, 0) == 0 &&
	    !(ss->flags & (SS_ONSTACK_ | SS_DISABLE_)) && ss->size >= need &&
	    seat->exit.sp - ss->sp > ss->size)
		top = ss->sp + ss->size;
	/* two writes of the current signal mask tell whether both ends are writable */
	for (probe = top - need; probe < top; probe += need - 16)
		if (sys6(__NR_rt_sigprocmask, SIG_SETMASK_, 0, (int64_t)(probe & ~7ULL), 8, 0, 0))
			return 0;
	return top;
}

/* Nothing but memory below the thread's stack, or of its unused alternate one, is changed. */
static int prepare(struct agent_seat *seat)
{
	struct agent_exit *x = &seat->exit;
	uint64_t need = x->uc_len + x->fp_len + 256;
	struct kernel_stack *ss = (struct kernel_stack *)(seat->frame + UC_STACK);
	uint64_t top = frame_top(seat, need, ss);
	uint64_t fp, uc, *way = seat->way, *chain;

	if (!top)
		return 0;
	fp = (top - x->fp_len) & ~63ULL;
	uc = (fp - x->uc_len) & ~15ULL;
	*(uint64_t *)(seat->frame + x->uc_fpstate) = fp;
	copy((uint8_t *)fp, seat->frame + x->uc_len, x->fp_len);
	copy((uint8_t *)uc, seat->frame, x->uc_len);

	/* rt_sigreturn(2) looks for the ucontext at the stack pointer */
	chain = (uint64_t *)uc;
	if (x->sigreturn) {
		*--chain = x->sigreturn;
	} else {
		*--chain = x->gadget;
		*--chain = __NR_rt_sigreturn;
		*--chain = x->pop_rax;
	}
	if (x->last) {
		way[WAY_RAX] = __NR_munmap;
		way[WAY_RDI] = seat->base;
		way[WAY_RSI] = header_of(seat)->length;
		way[WAY_RDX] = way[WAY_R10] = way[WAY_R8] = way[WAY_R9] = 0;
	} else {
		/* the kernel clears `taken`, after this thread has left this memory */
		way[WAY_RAX] = __NR_futex;
		way[WAY_RDI] = (uint64_t)&seat->taken;
		way[WAY_RSI] = FUTEX_WAKE_OP;
		way[WAY_RDX] = 0;
		way[WAY_R10] = 0;
		way[WAY_R8] = (uint64_t)&seat->taken;
		way[WAY_R9] = FUTEX_OP(FUTEX_OP_SET, 0, FUTEX_OP_CMP_EQ, 0);
	}
	way[WAY_RSP] = (uint64_t)chain;
	way[WAY_RIP] = x->gadget;
	return 1;
}

/* Without a system call: a filter may kill for any of them, now that nobody suspends it. */
static void stand_still(const struct agent_header *h)
{
	for (uint32_t i = 0; load(&h->guarded) && i < 1U << 28; i++)
		__asm__ volatile("pause");
}

static void nap(void)
{
	/* anew each time: the kernel writes back what is left of it */
	int64_t tick[2] = { 0, 1000000 };

	sys6(__NR_ppoll, 0, 0, (int64_t)tick, 0, 0, 0);
}

/* Somebody who outlives the engine works on the tree; bounded, for he may be killed too. */
static void wait_for_hold(const struct agent_header *h)
{
	for (uint32_t ms = 0; __atomic_load_n(&h->hold, __ATOMIC_SEQ_CST) && ms < 10000; ms++)
		nap();
}

/*
 * The engine is dead. The seat that unmaps the segment waits for the others; a
 * thread that was about to be sent here never comes if the engine died between
 * announcing it and setting its registers, so the wait is bounded.
 */
static void leave_orphaned(struct agent_seat *seat)
{
	struct agent_header *h = header_of(seat);
	uint32_t i, ms, busy = seat->exit.last;

	sys6(__NR_futex, (int64_t)&h->owner, FUTEX_WAKE, 0x7fffffff, 0, 0, 0);
	wait_for_hold(h);
	for (ms = 0; busy && ms < 3000; ms++) {
		busy = 0;
		for (i = 0; i < h->n_seats; i++) {
			struct agent_seat *s = (struct agent_seat *)(seat->base + AGENT_SEATS_AT +
								     (uint64_t)i * h->seat_size);
			busy |= s != seat && load(&s->taken);
		}
		if (busy)
			nap();
	}
	/* it fails only if the stack is not writable */
	if (prepare(seat))
		agent_jump(seat->way);
}

/* ---- the loop ------------------------------------------------------------------ */

struct waitv {
	uint64_t val;
	uint64_t uaddr;
	uint32_t flags;
	uint32_t reserved;
};

/*
 * Wait for a command or for the engine's death. Without a timeout, on purpose:
 * a timed wait would overwrite the restart block that the thread's own
 * interrupted system call may need.
 */
static void wait_for(struct agent_seat *seat, uint32_t seq, uint32_t owner)
{
	struct waitv w[2];

	w[0].val = seq;
	w[0].uaddr = (uint64_t)&seat->seq;
	w[1].val = owner;
	w[1].uaddr = (uint64_t)&header_of(seat)->owner;
	w[0].flags = w[1].flags = 2; /* FUTEX_32, shared */
	w[0].reserved = w[1].reserved = 0;
	sys6(449 /* futex_waitv, Linux 5.16 */, (int64_t)w, 2, 0, 0, 0, 0);
}

void agent_main(struct agent_seat *seat)
{
	uint64_t all = ALL_SIGNALS;
	uint32_t seen = 0;

	if (load(&header_of(seat)->owner) & AGENT_OWNER_DIED)
		stand_still(header_of(seat));
	sys6(__NR_rt_sigprocmask, SIG_SETMASK_, (int64_t)&all, 0, 8, 0, 0);
	for (;;) {
		uint32_t seq = load(&seat->seq);
		uint32_t owner = load(&header_of(seat)->owner);

		if (owner & AGENT_OWNER_DIED) {
			stand_still(header_of(seat));
			leave_orphaned(seat);
		}
		if (seq == seen) {
			wait_for(seat, seq, owner);
			continue;
		}
		seen = seq;
		__atomic_store_n(&seat->busy, 1, __ATOMIC_RELEASE);
		if (seat->command == AGENT_RUN)
			run(seat);
		else if (seat->command == AGENT_PREPARE)
			seat->failed = !prepare(seat);
		__atomic_store_n(&seat->busy, 0, __ATOMIC_RELEASE);
		__atomic_store_n(&seat->done, seq, __ATOMIC_RELEASE);
		if (load(&header_of(seat)->owner) & AGENT_OWNER_DIED)
			continue;
		sys6(__NR_futex, (int64_t)&seat->done, FUTEX_WAKE, 1, 0, 0, 0);
	}
}
