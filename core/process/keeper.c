/* SPDX-License-Identifier: MIT */
/*
 * The keeper: a child that makes the agents' segments and keeps them attached.
 *
 * A segment is marked for removal as soon as somebody is attached, so that it
 * cannot outlive its users. Two moments remain in which a SIGKILL would do
 * harm: between making and marking it would stay behind for good; and a thread
 * that was just given registers that lead to shmat(2) must find it, while a
 * dying process lets go of its memory before it lets go of its tracees. So
 * somebody else makes the segments and holds on to them for these moments. It is
 * also the tracer of those who must not lose one (rescue.c). The keeper is in a session of its own
 * (a signal to our process group does not reach it), has no descriptor but the socket that tells it
 * of our end and its ipc namespace, and goes away a moment after us.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/close_range.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ipc.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <ckpt/cleanup.h>
#include <ckpt/plugin.h>

#include "agent/agent.h"
#include "process/keeper.h"
#include "process/rescue.h"
#include "process/set.h"
#include "process/spawn.h"

struct request {
	uint32_t number;
	uid_t uid;
	gid_t gid;
	uint64_t length; /* of a segment; 0: a system call is asked for */
	void *at;
	char ns[40]; /* path of an ipc namespace; empty: ckpt's own */
	int64_t nr, args[KEEPER_ARGS];
};

struct reply {
	uint32_t number; /* the request's */
	int64_t result;
};

/* By the socket: look at the slot. Its number is nobody's. */
static const struct reply wake = { 0 };

/*
 * So often a slot is looked at before one sleeps: some 50 us. Where the other one gets no processor
 * that is for nothing, so it is less the next time.
 */
#define MOST_LOOKS  1000
#define LEAST_LOOKS 10

static inline SPAWN_PART void learn(int *looks, bool was_seen)
{
	*looks = was_seen ? MOST_LOOKS : *looks / 2;
	if (*looks < LEAST_LOOKS)
		*looks = LEAST_LOOKS;
}

/* Where the keeper holds its own ipc namespace; its socket is 0. */
enum { OWN_NAMESPACE = 1 };

static inline SPAWN_PART int64_t open_path(const char *path, int flags)
{
	return sys6(SYS_openat, AT_FDCWD, (int64_t)(uintptr_t)path, flags | O_CLOEXEC, 0, 0, 0);
}

/*
 * Segments of the agent's shall not show in the numbers that a namespace gives out
 * later, nor take the place of one that is to be restored: one that is asked for by
 * number leaves the counters alone, and the last places are those that nobody reaches by
 * himself. If it cannot be asked for, any number will do.
 */
static inline SPAWN_PART void ask_for_number(const char *number, size_t len)
{
	int64_t fd = open_path("/proc/sys/kernel/shm_next_id", O_WRONLY);

	if (fd < 0)
		return;
	sys6(SYS_write, fd, (int64_t)(uintptr_t)number, (int64_t)len, 0, 0, 0);
	sys6(SYS_close, fd, 0, 0, 0, 0, 0);
}

/*
 * The task attaches with its own credentials: nobody but its user may. It can still be
 * attached by its number after the mark, and goes away with the last user.
 */
static inline SPAWN_PART int64_t make(const struct request *rq)
{
	static const char high[] = "30000", any[] = "-1";
	struct shmid_ds ds = {
		.shm_perm = { .uid = rq->uid, .gid = rq->gid, .mode = 0700 },
	};
	int64_t shmid, at, r;

	ask_for_number(high, sizeof(high) - 1);
	shmid = sys6(SYS_shmget, IPC_PRIVATE, (int64_t)rq->length, IPC_CREAT | SHM_NORESERVE | 0700,
		     0, 0, 0);
	if (shmid < 0) {
		/* or somebody else would get what we have asked for */
		ask_for_number(any, sizeof(any) - 1);
		return shmid;
	}
	at = sys6(SYS_shmat, shmid, (int64_t)(uintptr_t)rq->at, rq->at ? SHM_REMAP : 0, 0, 0, 0);
	/* as INSIST(), which needs errno: it must not stay */
	for (int tries = 0; sys6(SYS_shmctl, shmid, IPC_RMID, 0, 0, 0, 0) && tries < 2; tries++)
		;
	if (at < 0 && at > -4096)
		return at;
	r = sys6(SYS_shmctl, shmid, IPC_SET, (int64_t)(uintptr_t)&ds, 0, 0, 0);
	return r ? r : shmid;
}

/*
 * The kernel walks 2,048 robust futexes of a thread that dies, ROBUST_LIST_LIMIT:
 * whoever waits in a larger tree hears of the engine's death from us.
 */
static inline SPAWN_PART void tell(const struct segments *all)
{
	const struct robust_list *p = &all->head.list;

	while ((p = __atomic_load_n(&p->next, __ATOMIC_ACQUIRE)) != &all->head.list) {
		/* no function of anybody else's is called here */
		const uintptr_t owner = (uintptr_t)p + SEGMENT_PAGE + AGENT_CODE_SIZE;

		__atomic_or_fetch((uint32_t *)owner, AGENT_OWNER_DIED, __ATOMIC_SEQ_CST);
		sys6(SYS_futex, (int64_t)owner, FUTEX_WAKE, INT_MAX, 0, 0, 0);
	}
}

static inline SPAWN_PART int64_t make_there(const struct request *rq)
{
	int64_t fd, r;

	if (!rq->ns[0])
		return make(rq);
	fd = open_path(rq->ns, O_RDONLY);
	r = fd < 0 ? fd : sys6(SYS_setns, fd, CLONE_NEWIPC, 0, 0, 0, 0);
	if (fd >= 0)
		sys6(SYS_close, fd, 0, 0, 0, 0, 0);
	if (r < 0)
		return r;
	r = make(rq);
	fd = sys6(SYS_setns, OWN_NAMESPACE, CLONE_NEWIPC, 0, 0, 0, 0);
	return fd < 0 ? fd : r;
}

#define TICK_US 20000

/*
 * A thread in execve(2) cannot be seized before all others of its task are gone, and they are not
 * gone before their tracer has taken note of it (execing.c): let a signal do so meanwhile.
 */
static inline SPAWN_PART int64_t serve(const struct request *rq)
{
	const struct itimerval ticks = { { 0, TICK_US }, { 0, TICK_US } }, none = { 0 };
	const bool may_hang = rq->nr == SYS_ptrace && rq->args[0] == PTRACE_SEIZE;
	int64_t r;

	if (rq->length)
		return make_there(rq);
	if (may_hang)
		sys6(SYS_setitimer, ITIMER_REAL, (int64_t)(uintptr_t)&ticks, 0, 0, 0, 0);
	r = sys6(rq->nr, rq->args[0], rq->args[1], rq->args[2], rq->args[3], 0, 0);
	if (may_hang)
		sys6(SYS_setitimer, ITIMER_REAL, (int64_t)(uintptr_t)&none, 0, 0, 0, 0);
	return r;
}

static SPAWN_PART void take_note_of_ends(int sig)
{
	siginfo_t info;

	for (;;) {
		info.si_pid = info.si_code = 0;
		/* a stop is the engine's to hear of, and would be told only once */
		if (sys6(SYS_waitid, P_ALL, 0, (int64_t)(uintptr_t)&info,
			 WEXITED | WNOHANG | WNOWAIT | __WALL, 0, 0) ||
		    !info.si_pid || info.si_code > CLD_DUMPED)
			break;
		sys6(SYS_waitid, P_PID, info.si_pid, 0, WEXITED | WNOHANG | __WALL, 0, 0);
	}
}

__asm__(".pushsection .text\n"
	"keeper_sigreturn:\n"
	"	mov $15, %eax\n" /* rt_sigreturn(2) */
	"	syscall\n"
	".popsection\n");
void keeper_sigreturn(void);

/* struct sigaction as the kernel has it. */
struct kernel_action {
	void (*handler)(int sig);
	uint64_t flags;
	void (*restorer)(void);
	uint64_t mask;
};
enum { WITH_RESTORER = 0x04000000 };

static inline SPAWN_PART void take_ticks(void)
{
	const struct kernel_action action = { take_note_of_ends, SA_RESTART | WITH_RESTORER,
					      keeper_sigreturn, ~0ULL };
	const uint64_t alarm_only = 1ULL << (SIGALRM - 1);

	if (!sys6(SYS_rt_sigaction, SIGALRM, (int64_t)(uintptr_t)&action, 0, sizeof(uint64_t), 0,
		  0))
		sys6(SYS_rt_sigprocmask, SIG_UNBLOCK, (int64_t)(uintptr_t)&alarm_only, 0,
		     sizeof(alarm_only), 0, 0);
}

/* Not before all threads of the engine's are killed: they would work on the tree at the same time.
 */
static inline SPAWN_PART void wait_for_the_end(const struct keeper *k)
{
	pid_t ending;

	while ((ending = __atomic_load_n(&k->ending, __ATOMIC_SEQ_CST)))
		sys6(SYS_futex, (int64_t)(uintptr_t)&k->ending, FUTEX_WAIT, ending, 0, 0, 0);
}

/* "SigPnd:\t0000000000000100": SIGKILL is the lowest bit of the third digit from the end. */
static inline SPAWN_PART bool has_sigkill(const char *text, int64_t n)
{
	static const char key[] = "\nSigPnd:\t";
	const int64_t digit = (int64_t)sizeof(key) - 1 + 16 - 3;

	for (int64_t i = 0; i + digit < n; i++) {
		int64_t k = 0;

		while (key[k] && text[i + k] == key[k])
			k++;
		if (!key[k])
			return text[i + digit] & 1;
	}
	return false;
}

/* "State:\tZ (zombie)": the main thread has ended already, and waits for another one. */
static inline SPAWN_PART bool is_zombie(const char *text, int64_t n)
{
	static const char key[] = "\nState:\tZ";

	for (int64_t i = 0; i + (int64_t)sizeof(key) - 1 <= n; i++) {
		int64_t k = 0;

		while (key[k] && text[i + k] == key[k])
			k++;
		if (!key[k])
			return true;
	}
	return false;
}

/*
 * A thread that waits for a filesystem may not even be ended by SIGKILL, and as long as it is there
 * our socket has no end. What is for it alone to do, it will not do any more.
 */
static inline SPAWN_PART bool is_killed(const struct keeper *k)
{
	enum { OVERLAP = 64 }; /* more than has_sigkill() and is_zombie() look for */
	const struct timespec nap = { 0, 100000000 };
	char text[4096];
	int64_t fd = open_path(k->engine_status, O_RDONLY), n, kept = 0;
	bool yes = false;

	if (fd < 0)
		return false;
	/* there may be 65,536 supplementary groups in it, before what we want to know */
	while (!yes && (n = sys6(SYS_read, fd, (int64_t)(uintptr_t)(text + kept),
				 (int64_t)sizeof(text) - kept, 0, 0, 0)) > 0) {
		n += kept;
		yes = has_sigkill(text, n) || is_zombie(text, n);
		kept = n < OVERLAP ? n : OVERLAP;
		for (int64_t i = 0; i < kept; i++)
			((volatile char *)text)[i] = text[n - kept + i];
	}
	sys6(SYS_close, fd, 0, 0, 0, 0, 0);
	if (!yes)
		return false;
	/* it may be about to end, in a call that is not over yet */
	sys6(SYS_nanosleep, (int64_t)(uintptr_t)&nap, 0, 0, 0, 0, 0);
	return true;
}

static inline SPAWN_PART void send_reply(const struct reply *reply)
{
	int64_t n;

	do
		n = sys6(SYS_sendto, 0, (int64_t)(uintptr_t)reply, sizeof(*reply), MSG_NOSIGNAL, 0,
			 0);
	while (n < 0 && n != -EPIPE && n != -ECONNRESET);
}

/* Is there a request in the slot that has no answer yet? */
static inline SPAWN_PART bool is_posted(const struct keeper_slot *s)
{
	return __atomic_load_n(&s->posted, __ATOMIC_SEQ_CST) != s->answered;
}

static inline SPAWN_PART void serve_slot(struct keeper_slot *s)
{
	const uint32_t number = __atomic_load_n(&s->posted, __ATOMIC_SEQ_CST);
	struct request rq = { .nr = s->nr };
	struct reply reply = { .number = number };

	if (number == s->answered)
		return;
	for (size_t i = 0; i < KEEPER_ARGS; i++)
		rq.args[i] = s->args[i];
	s->result = reply.result = serve(&rq);
	__atomic_store_n(&s->answered, number, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&s->awaited, __ATOMIC_SEQ_CST) == number)
		send_reply(&reply);
}

/* One request comes after the other: for a moment the next is waited for awake. */
static inline SPAWN_PART void serve_slots(struct keeper *k)
{
	struct keeper_slot *s = &k->slot;

	__atomic_store_n(&s->sleeps, 0, __ATOMIC_SEQ_CST);
	/* what has woken us does not count */
	serve_slot(s);
	for (int i = 0; k->spins && i < s->keeper_looks; i++) {
		if (is_posted(s)) {
			serve_slot(s);
			learn(&s->keeper_looks, true);
			i = 0;
		}
		__builtin_ia32_pause();
	}
	learn(&s->keeper_looks, false);
	__atomic_store_n(&s->sleeps, 1, __ATOMIC_SEQ_CST);
	/* whoever has posted it before that does not wake us */
	serve_slot(s);
}

/* It shares our memory (spawn.h), which so stays for as long as it lives. */
static SPAWN_CHILD void keep(void *arg)
{
	const struct timespec linger = { 0, 250000000 };
	const struct sched_param first = { .sched_priority = 1 };
	const struct timeval patience = { .tv_usec = 500000 };
	struct keeper *k = arg;
	struct request rq;
	int64_t n;

	take_ticks();
	sys6(SYS_setsid, 0, 0, 0, 0, 0, 0);
	sys6(SYS_prctl, PR_SET_NAME, (int64_t)(uintptr_t) "ckpt-keeper", 0, 0, 0, 0);
	sys6(SYS_dup2, k->theirs, 0, 0, 0, 0, 0);
	sys6(SYS_close_range, OWN_NAMESPACE, ~0U, 0, 0, 0, 0);
	open_path("/proc/self/ns/ipc", O_RDONLY); /* the lowest number: OWN_NAMESPACE */
	sys6(SYS_setsockopt, 0, SOL_SOCKET, SO_RCVTIMEO, (int64_t)(uintptr_t)&patience,
	     sizeof(patience), 0);
	while ((n = sys6(SYS_recvfrom, 0, (int64_t)(uintptr_t)&rq, sizeof(rq), 0, 0, 0)) != 0) {
		struct reply reply = { 0 };

		/* an error is not the engine's end: that is when there is nothing to read any more
		 */
		if (n == -EAGAIN && is_killed(k))
			break;
		if (n < 0)
			continue;
		if (n == sizeof(wake)) {
			serve_slots(k);
			continue;
		}
		reply.number = rq.number;
		reply.result = n == sizeof(rq) ? serve(&rq) : -EPROTO;
		send_reply(&reply);
	}
	if (k->shares)
		wait_for_the_end(k);
	if (k->shares && k->segments)
		tell(k->segments);
	/* those that are to be rescued wait without sleeping */
	if (__atomic_load_n(&k->rescue, __ATOMIC_ACQUIRE))
		sys6(SYS_sched_setscheduler, 0, SCHED_FIFO, (int64_t)(uintptr_t)&first, 0, 0, 0);
	rescue_all(__atomic_load_n(&k->rescue, __ATOMIC_ACQUIRE));
	sys6(SYS_nanosleep, (int64_t)(uintptr_t)&linger, 0, 0, 0, 0, 0);
	for (;;)
		sys6(SYS_exit_group, 0, 0, 0, 0, 0, 0);
}

int keeper_start(struct keeper *k, struct ckpt_error *err)
{
	struct clone_args args = { .exit_signal = SIGCHLD };
	CKPT_AUTO_FD int theirs = -1;
	cpu_set_t cpus;
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
		return ckpt_fail_sys(err, errno, "socketpair(2) to the keeper");
	theirs = k->theirs = ends[0];
	k->socket = ends[1];
	k->slot = (struct keeper_slot){ .sleeps = 1,
					.looks = MOST_LOOKS,
					.keeper_looks = MOST_LOOKS };
	/* on a single processor nobody works for who spins */
	k->spins = !sched_getaffinity(0, sizeof(cpus), &cpus) && CPU_COUNT(&cpus) > 1;
	snprintf(k->engine_status, sizeof(k->engine_status), "/proc/%d/status", (int)getpid());
	k->stack = malloc(SPAWN_STACK);
	k->pid = k->stack ? spawn(&args, k->stack, keep, k) : -ENOMEM;
	if (k->pid < 0) {
		int e = -k->pid;

		k->pid = 0;
		close(k->socket);
		free(ckpt_steal_ptr(&k->stack));
		return ckpt_fail_sys(err, e, "clone3(2) of the keeper");
	}
	k->shares = args.flags & CLONE_VM;
	return 0;
}

bool keeper_is_gone(long answer)
{
	return answer == -EPIPE || answer == -ECONNRESET;
}

/* Who asks must not be left without an answer by a signal, or by one call that failed. */
static int64_t send_it(const struct keeper *k, const void *message, size_t len)
{
	long n;

	do
		n = send(k->socket, message, len, MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	if (n != (long)len)
		return n < 0 ? -errno : -EPROTO;
	return 0;
}

static int64_t receive(const struct keeper *k, uint32_t number)
{
	struct reply reply = { 0 };
	long n;

	/* of one that was answered in time too, a reply may come */
	do
		n = INSIST(recv(k->socket, &reply, sizeof(reply), 0));
	while ((n < 0 && errno == EINTR) || (n == sizeof(reply) && reply.number != number));
	if (n != sizeof(reply))
		return n < 0 ? -errno : -EPIPE;
	return reply.result;
}

static bool is_answered(const struct keeper_slot *s, uint32_t number)
{
	return __atomic_load_n(&s->answered, __ATOMIC_SEQ_CST) == number;
}

/*
 * Each says what it is about to do before it looks once more what the other one has done, so that
 * not both sleep.
 */
static int64_t ask_by_slot(struct keeper *k, const struct request *rq)
{
	struct keeper_slot *s = &k->slot;
	int64_t r = 0;

	s->nr = rq->nr;
	for (size_t i = 0; i < KEEPER_ARGS; i++)
		s->args[i] = rq->args[i];
	__atomic_store_n(&s->posted, rq->number, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&s->sleeps, __ATOMIC_SEQ_CST))
		r = send_it(k, &wake, sizeof(wake));
	if (r < 0)
		return r;
	for (int i = 0; k->spins && i < s->looks && !is_answered(s, rq->number); i++)
		__builtin_ia32_pause();
	learn(&s->looks, is_answered(s, rq->number));
	__atomic_store_n(&s->awaited, rq->number, __ATOMIC_SEQ_CST);
	return is_answered(s, rq->number) ? s->result : receive(k, rq->number);
}

static int64_t ask_by_socket(struct keeper *k, const struct request *rq)
{
	int64_t r = send_it(k, rq, sizeof(*rq));

	return r < 0 ? r : receive(k, rq->number);
}

static int64_t ask(struct keeper *k, struct request *rq)
{
	int64_t r;

	pthread_mutex_lock(&k->asking);
	rq->number = ++k->asked;
	r = k->shares && !rq->length ? ask_by_slot(k, rq) : ask_by_socket(k, rq);
	pthread_mutex_unlock(&k->asking);
	return r;
}

long keeper_call(struct keeper *k, long nr, long a, long b, long c, long d)
{
	struct request rq = { .nr = nr, .args = { a, b, c, d } };

	return ask(k, &rq);
}

int keeper_make(struct keeper *k, uint64_t length, void *at, uid_t uid, pid_t member,
		struct ckpt_error *err)
{
	struct request rq = { .length = length, .at = at, .uid = uid, .gid = getegid() };
	int64_t shmid;

	if (member)
		snprintf(rq.ns, sizeof(rq.ns), "/proc/%d/ns/ipc", (int)member);
	shmid = ask(k, &rq);
	if (shmid == -ENOSPC) {
		ckpt_fail_as(err, CKPT_EXIT_REFUSED, ENOSPC,
			     "no shared memory for its agent: each process needs a segment of its "
			     "own, and kernel.shmmni or kernel.shmall is reached");
		return ckpt_hint(err, "raise it in the ipc namespace of the process: sysctl "
				      "kernel.shmmni=32768");
	}
	if (shmid < 0)
		return ckpt_fail_sys(err, (int)shmid, "shared memory for the agent");
	return (int)shmid;
}

/*
 * A thread that waits for a filesystem may outlive SIGKILL, and until it ends our descriptors are
 * not closed, and its tracees are not free. So the keeper is told that it has come to an end.
 * exit_group(2) kills all other threads, which so never come back to us, before it clears the word.
 */
void keeper_end_process(struct keeper *k, int status)
{
	/* nobody asks any more: who found the keeper gone would do its work */
	pthread_mutex_lock(&k->asking);
	if (k->pid > 0) {
		__atomic_store_n(&k->ending, 1, __ATOMIC_SEQ_CST);
		syscall(SYS_set_tid_address, &k->ending);
		shutdown(k->socket, SHUT_RDWR);
	}
	for (;;)
		syscall(SYS_exit_group, status);
}

/* Nobody will come for those who stand still: they leave by themselves. */
static void unguard(struct keeper *k)
{
	for (struct rescue *r = k->rescue; r; r = r->next)
		__atomic_store_n(&((struct agent_header *)r->header)->guarded, 0, __ATOMIC_SEQ_CST);
}

void keeper_stop(struct keeper *k)
{
	int r;

	if (k->pid <= 0)
		return;
	if (k->left) {
		/* it hears of our end, and ends itself; that is bounded */
		close(ckpt_steal_fd(&k->socket));
		do
			r = (int)waitpid(k->pid, NULL, __WALL);
		while (r < 0 && errno == EINTR);
		unguard(k);
	} else {
		r = ckpt_end_child(k->pid);
		close(ckpt_steal_fd(&k->socket));
	}
	k->pid = 0;
	/* that ends it too, and until then it is in our memory: on this stack, over this list */
	if (r < 0)
		return;
	free(ckpt_steal_ptr(&k->stack));
}
