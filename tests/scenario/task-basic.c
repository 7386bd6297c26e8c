/* SPDX-License-Identifier: MIT
 *
 * test: ignore= itimer
 *
 * The state of processes and threads: signals (handlers, masks, pending ones with their values),
 * alternate stacks, vector registers of a thread that never stops computing, calls that block and
 * must not see an EINTR, timers, credentials of children that gave up theirs, names, priorities,
 * limits, robust futexes, rseq, a stopped child.
 */
#include "victim.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/futex.h>
#include <linux/securebits.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/rseq.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* a flag of the kernel's that libc adds and shows */
#define RESTORER 0x04000000

enum { N_QUEUED = 3, FIRST_RT = 40, PRIVATE_RT = 45, N_BLOCKED = 6, N_CHILDREN = 3 };

/* ---- a thread whose vector registers must survive anything -------------------- */

static pid_t spinner_tid;
static atomic_bool stop_spinning, spinning_bad, spun;

static void *spin(void *unused)
{
	/* the loop touches no vector register, so each value has to stay where it was put */
	static const uint64_t in[8]
		__attribute__((aligned(64))) = { 11, 22, 33, 44, 55, 66, 77, 88 };
	uint64_t out[8] __attribute__((aligned(64))) = { 0 };
	bool avx = __builtin_cpu_supports("avx");

	spinner_tid = gettid();
	atomic_store(&spun, true);
	if (avx)
		__asm__ volatile("vmovdqu (%1), %%ymm7\n\tvmovdqu 32(%1), %%ymm15\n"
				 "1:\tcmpb $0, (%2)\n\tje 1b\n\t"
				 "vmovdqu %%ymm7, (%0)\n\tvmovdqu %%ymm15, 32(%0)\n\tvzeroupper"
				 :
				 : "r"(out), "r"(in), "r"(&stop_spinning)
				 : "memory", "xmm7", "xmm15");
	else
		__asm__ volatile("movdqu (%1), %%xmm7\n\tmovdqu 32(%1), %%xmm15\n"
				 "1:\tcmpb $0, (%2)\n\tje 1b\n\t"
				 "movdqu %%xmm7, (%0)\n\tmovdqu %%xmm15, 32(%0)"
				 :
				 : "r"(out), "r"(in), "r"(&stop_spinning)
				 : "memory", "xmm7", "xmm15");
	for (int i = 0; i < 8; i++)
		if ((avx || i % 4 < 2) && out[i] != in[i])
			atomic_store(&spinning_bad, true);
	return NULL;
}

static pthread_t spinner;

static void start_spinning(void)
{
	atomic_store(&stop_spinning, false);
	atomic_store(&spun, false);
	MUST_ZERO(pthread_create(&spinner, NULL, spin, NULL));
	/* until then its id is another's */
	while (!atomic_load(&spun))
		sched_yield();
}

/* pthread_join() waits on the futex that the kernel clears before the thread is gone. */
static bool joined(pthread_t thread, pid_t tid)
{
	bool done;

	while (!tgkill(getpid(), tid, 0))
		usleep(1000);
	done = pthread_tryjoin_np(thread, NULL) == 0;
	CHECK(done, "the end of a thread is not announced");
	return done;
}

static void check_spinning(void)
{
	atomic_store(&stop_spinning, true);
	if (!joined(spinner, spinner_tid))
		return;
	CHECK(!atomic_load(&spinning_bad), "vector registers have changed");
	start_spinning();
}

/* ---- threads that block ----------------------------------------------------------- */

static int pipes[N_BLOCKED][2], epoll;
static uint32_t futex_word;
static atomic_ulong woken[N_BLOCKED];
static atomic_int blocked_errno;
static unsigned long woken_seen[N_BLOCKED];

static long block(size_t how)
{
	struct pollfd poll_fd = { .fd = pipes[how][0], .events = POLLIN };
	struct epoll_event event;
	fd_set set;

	switch (how) {
	case 0:
		return poll(&poll_fd, 1, -1);
	case 1:
		return epoll_wait(epoll, &event, 1, -1);
	case 2:
		return poll(&poll_fd, 1, 1000000);
	case 3:
		FD_ZERO(&set);
		FD_SET(pipes[how][0], &set);
		return select(pipes[how][0] + 1, &set, NULL, NULL, NULL);
	case 4:
		return syscall(SYS_futex, &futex_word, FUTEX_WAIT, __atomic_load_n(&futex_word, 5),
			       NULL, NULL, 0);
	default:
		return 0; /* the read below is what blocks */
	}
}

static _Noreturn void *blocked(void *argument)
{
	size_t how = (uintptr_t)argument;
	char byte;

	for (;;) {
		if (block(how) < 0 && (how != 4 || errno != EAGAIN))
			atomic_store(&blocked_errno, errno);
		if (how != 4 && read(pipes[how][0], &byte, 1) != 1)
			atomic_store(&blocked_errno, errno);
		atomic_fetch_add(&woken[how], 1);
	}
}

static atomic_int sleep_bad;
static atomic_ulong sleeps;
static unsigned long sleeps_seen;

static long long now_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static _Noreturn void *sleeper(void *unused)
{
	for (;;) {
		struct timespec t = { .tv_nsec = 60000000 };
		long long start = now_ns(CLOCK_MONOTONIC);

		if (nanosleep(&t, &t) || now_ns(CLOCK_MONOTONIC) - start < 60000000)
			atomic_store(&sleep_bad, errno ? errno : -1);
		atomic_fetch_add(&sleeps, 1);
	}
}

static void start_blocked(void)
{
	pthread_t thread;

	epoll = MUST(epoll_create1(EPOLL_CLOEXEC));
	for (size_t i = 0; i < N_BLOCKED; i++)
		MUST(pipe(pipes[i]));
	struct epoll_event event = { .events = EPOLLIN };

	MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, pipes[1][0], &event));
	for (size_t i = 0; i < N_BLOCKED; i++)
		MUST_ZERO(pthread_create(&thread, NULL, blocked, (void *)(uintptr_t)i));
	MUST_ZERO(pthread_create(&thread, NULL, sleeper, NULL));
}

static void check_blocked(void)
{
	for (size_t i = 0; i < N_BLOCKED; i++) {
		CHECK(atomic_load(&woken[i]) == woken_seen[i], "blocked thread %zu woke by itself",
		      i);
		if (i == 4) {
			__atomic_add_fetch(&futex_word, 1, __ATOMIC_SEQ_CST);
			syscall(SYS_futex, &futex_word, FUTEX_WAKE, 1, NULL, NULL, 0);
		} else if (write(pipes[i][1], "x", 1) != 1)
			victim_fail("pipe %zu: %s", i, strerror(errno));
	}
	for (size_t i = 0; i < N_BLOCKED; i++) {
		CHECK(victim_goes_on(&woken[i], woken_seen[i]) &&
			      atomic_load(&woken[i]) == woken_seen[i] + 1,
		      "blocked thread %zu was not woken", i);
		woken_seen[i] = atomic_load(&woken[i]);
	}
	CHECK(!atomic_load(&blocked_errno), "a blocked call returned %s",
	      strerror(atomic_load(&blocked_errno)));
	CHECK(!atomic_load(&sleep_bad), "a sleep returned %d or early", atomic_load(&sleep_bad));
	CHECK(victim_goes_on(&sleeps, sleeps_seen), "the sleeper sleeps on");
	sleeps_seen = atomic_load(&sleeps);
}

/* ---- signals ------------------------------------------------------------------------- */

static sigset_t held;
static char alt_stack[32768];
static atomic_int handled;

static void on_signal(int sig, siginfo_t *info, void *context)
{
	char here;

	if (&here >= alt_stack && &here < alt_stack + sizeof(alt_stack))
		atomic_fetch_add(&handled, 1);
}

static void queue_signals(void)
{
	for (int i = 0; i < N_QUEUED; i++)
		MUST(sigqueue(getpid(), FIRST_RT, (union sigval){ .sival_int = 100 + i }));
	MUST(kill(getpid(), SIGUSR2));
	MUST_ZERO(pthread_sigqueue(pthread_self(), PRIVATE_RT, (union sigval){ .sival_int = 7 }));
}

static void build_signals(void)
{
	struct sigaction a = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK };
	stack_t stack = { .ss_sp = alt_stack, .ss_size = sizeof(alt_stack) };

	sigaddset(&a.sa_mask, SIGHUP);
	MUST(sigaltstack(&stack, NULL));
	MUST(sigaction(SIGWINCH, &a, NULL));
	MUST(sigaction(FIRST_RT, &a, NULL));
	signal(SIGPIPE, SIG_IGN);
	sigemptyset(&held);
	sigaddset(&held, SIGUSR2);
	sigaddset(&held, FIRST_RT);
	sigaddset(&held, PRIVATE_RT);
	MUST_ZERO(pthread_sigmask(SIG_BLOCK, &held, NULL));
	queue_signals();
}

static void take(int sig, int code, int value)
{
	const struct timespec none = { 0 };
	siginfo_t info = { 0 };
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, sig);
	CHECK(sigtimedwait(&set, &info, &none) == sig, "signal %d is not pending", sig);
	CHECK(info.si_code == code && info.si_pid == getpid() &&
		      (code == SI_USER || info.si_value.sival_int == value),
	      "signal %d: code %d, pid %d, value %d", sig, info.si_code, info.si_pid,
	      info.si_value.sival_int);
}

static void check_signals(void)
{
	struct sigaction a, ignored;
	stack_t stack;
	sigset_t mask;
	int before = atomic_load(&handled);

	sigaction(SIGWINCH, NULL, &a);
	sigaction(SIGPIPE, NULL, &ignored);
	sigaltstack(NULL, &stack);
	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	CHECK(a.sa_sigaction == on_signal &&
		      (a.sa_flags & ~RESTORER) == (SA_SIGINFO | SA_ONSTACK) &&
		      sigismember(&a.sa_mask, SIGHUP),
	      "action of SIGWINCH: flags %#x", a.sa_flags);
	CHECK(ignored.sa_handler == SIG_IGN, "SIGPIPE is not ignored");
	CHECK(stack.ss_sp == alt_stack && stack.ss_size == sizeof(alt_stack) && !stack.ss_flags,
	      "alternate stack %p, flags %#x", stack.ss_sp, stack.ss_flags);
	CHECK(sigismember(&mask, FIRST_RT) && sigismember(&mask, SIGUSR1) &&
		      !sigismember(&mask, SIGWINCH),
	      "signal mask");
	raise(SIGWINCH);
	CHECK(atomic_load(&handled) == before + 1, "no handler ran on the alternate stack");
	for (int i = 0; i < N_QUEUED; i++)
		take(FIRST_RT, SI_QUEUE, 100 + i);
	take(SIGUSR2, SI_USER, 0);
	take(PRIVATE_RT, SI_QUEUE, 7);
	sigpending(&mask);
	CHECK(!sigismember(&mask, FIRST_RT) && !sigismember(&mask, SIGALRM),
	      "more signals pending than were sent");
	queue_signals();
}

/* ---- timers ---------------------------------------------------------------------------- */

enum { FAR_S = 4000 };

static int timer_ids[3];
static long long started;

static void build_timers(void)
{
	const struct itimerval far = { { 10, 20 }, { FAR_S, 0 } };
	const struct itimerspec spec = { { 5, 6 }, { FAR_S, 0 } };

	MUST(setitimer(ITIMER_REAL, &far, NULL));
	MUST(setitimer(ITIMER_VIRTUAL, &far, NULL));
	for (int i = 0; i < 3; i++) {
		struct sigevent event = { .sigev_notify = i ? SIGEV_SIGNAL : SIGEV_NONE,
					  .sigev_signo = FIRST_RT + i,
					  .sigev_value.sival_int = 50 + i };

		/* the kernel's own numbers, which glibc hides */
		MUST(syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &timer_ids[i]));
		MUST(syscall(SYS_timer_settime, timer_ids[i], 0, &spec, NULL));
	}
	MUST(syscall(SYS_timer_delete, timer_ids[1]));
	started = now_ns(CLOCK_MONOTONIC);
}

static void check_timers(void)
{
	struct itimerval real = { 0 }, virtual = { 0 };
	struct itimerspec spec = { 0 };
	long passed = (long)((now_ns(CLOCK_MONOTONIC) - started) / 1000000000);

	getitimer(ITIMER_REAL, &real);
	getitimer(ITIMER_VIRTUAL, &virtual);
	CHECK(real.it_interval.tv_sec == 10 && real.it_interval.tv_usec == 20 &&
		      real.it_value.tv_sec <= FAR_S && real.it_value.tv_sec >= FAR_S - passed - 2,
	      "ITIMER_REAL %ld s after %ld s", (long)real.it_value.tv_sec, passed);
	CHECK(virtual.it_interval.tv_usec == 20 && virtual.it_value.tv_sec > FAR_S / 2,
	      "ITIMER_VIRTUAL %ld s", (long)virtual.it_value.tv_sec);
	for (int i = 0; i < 3; i += 2) {
		if (syscall(SYS_timer_gettime, timer_ids[i], &spec) < 0)
			victim_fail("timer %d: %s", timer_ids[i], strerror(errno));
		CHECK(spec.it_interval.tv_sec == 5 && spec.it_interval.tv_nsec == 6 &&
			      spec.it_value.tv_sec <= FAR_S &&
			      spec.it_value.tv_sec >= FAR_S - passed - 2,
		      "timer %d: %ld s after %ld s", timer_ids[i], (long)spec.it_value.tv_sec,
		      passed);
	}
	CHECK(syscall(SYS_timer_gettime, timer_ids[1], &spec) < 0, "a deleted timer is back");
}

/* ---- threads of their own kind ------------------------------------------------------------ */

static pthread_mutex_t robust;
static pthread_t holder, odd;
static pid_t holder_tid;
static int leave[2];
static atomic_bool held_it;

/* Dies with the mutex. */
static void *hold(void *unused)
{
	char byte;

	holder_tid = gettid();
	pthread_mutex_lock(&robust);
	atomic_store(&held_it, true);
	if (read(leave[0], &byte, 1) != 1)
		victim_fail("the holder of the mutex was disturbed: %s", strerror(errno));
	return NULL;
}

static void start_holder(void)
{
	atomic_store(&held_it, false);
	MUST_ZERO(pthread_create(&holder, NULL, hold, NULL));
	while (!atomic_load(&held_it))
		sched_yield();
}

static void check_robust(void)
{
	int r;

	if (write(leave[1], "x", 1) != 1)
		victim_fail("pipe: %s", strerror(errno));
	if (!joined(holder, holder_tid))
		return;
	r = pthread_mutex_trylock(&robust);
	if (r != EOWNERDEAD) {
		victim_fail("the mutex of a dead thread: %s", strerror(r));
		return;
	}
	pthread_mutex_consistent(&robust);
	pthread_mutex_unlock(&robust);
	start_holder();
}

struct attributes {
	char comm[16];
	int policy, nice, slack, mce_kill, ioprio, pdeath, persona;
	cpu_set_t cpus;
};

static atomic_int odd_request, odd_answer;
static struct attributes odd_now, odd_before;

static void attributes(struct attributes *a)
{
	memset(a, 0, sizeof(*a));
	prctl(PR_GET_NAME, a->comm);
	a->policy = sched_getscheduler(0);
	errno = 0;
	a->nice = getpriority(PRIO_PROCESS, 0);
	a->slack = prctl(PR_GET_TIMERSLACK);
	a->mce_kill = prctl(PR_MCE_KILL_GET, 0, 0, 0, 0);
	a->ioprio = (int)syscall(SYS_ioprio_get, 1, 0);
	prctl(PR_GET_PDEATHSIG, &a->pdeath);
	a->persona = personality(0xffffffff);
	sched_getaffinity(0, sizeof(a->cpus), &a->cpus);
}

static _Noreturn void *oddity(void *unused)
{
	cpu_set_t cpus;
	const struct sched_param none = { 0 };

	CPU_ZERO(&cpus);
	CPU_SET(0, &cpus);
	MUST(prctl(PR_SET_NAME, "odd one"));
	MUST(prctl(PR_SET_TIMERSLACK, 123456));
	MUST(prctl(PR_MCE_KILL, PR_MCE_KILL_SET, PR_MCE_KILL_EARLY, 0, 0));
	MUST(sched_setaffinity(0, sizeof(cpus), &cpus));
	MUST(sched_setscheduler(0, SCHED_BATCH, &none));
	MUST(setpriority(PRIO_PROCESS, 0, 7));
	MUST(syscall(SYS_ioprio_set, 1, 0, 3 << 13)); /* idle */
	for (int done = 0;;) {
		if (atomic_load(&odd_request) == done) {
			nanosleep(&(struct timespec){ .tv_nsec = 5000000 }, NULL);
			continue;
		}
		attributes(&odd_now);
		atomic_store(&odd_answer, ++done);
	}
}

static void ask_odd(void)
{
	int n = atomic_fetch_add(&odd_request, 1) + 1;

	while (atomic_load(&odd_answer) != n)
		sched_yield();
}

static void build_threads(void)
{
	pthread_mutexattr_t attr;

	pthread_mutexattr_init(&attr);
	pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&robust, &attr);
	MUST(pipe(leave));
	start_holder();
	MUST_ZERO(pthread_create(&odd, NULL, oddity, NULL));
	ask_odd();
	odd_before = odd_now;
}

static void check_odd(void)
{
	ask_odd();
	CHECK(!strcmp(odd_now.comm, odd_before.comm), "thread name %s", odd_now.comm);
	CHECK(odd_now.policy == odd_before.policy, "policy %d", odd_now.policy);
	CHECK(odd_now.nice == odd_before.nice, "nice %d", odd_now.nice);
	CHECK(odd_now.slack == odd_before.slack, "timer slack %d", odd_now.slack);
	CHECK(odd_now.mce_kill == PR_MCE_KILL_EARLY, "PR_MCE_KILL %d", odd_now.mce_kill);
	CHECK(odd_now.ioprio == odd_before.ioprio, "I/O priority %#x", odd_now.ioprio);
	CHECK(odd_now.persona == odd_before.persona, "personality %#x", odd_now.persona);
	CHECK(CPU_EQUAL(&odd_now.cpus, &odd_before.cpus), "CPU affinity");
}

/* Registered, the kernel says on which CPU we are. */
static void check_rseq(void)
{
	struct rseq *area = (struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset);
	cpu_set_t all, one;

	if (!__rseq_size)
		return;
	sched_getaffinity(0, sizeof(all), &all);
	for (int cpu = 0; cpu < 2; cpu++) {
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		if (!CPU_ISSET(cpu, &all) || sched_setaffinity(0, sizeof(one), &one))
			continue;
		CHECK(area->cpu_id == (unsigned)cpu, "rseq says CPU %u on %d", area->cpu_id, cpu);
	}
	sched_setaffinity(0, sizeof(all), &all);
}

/* ---- processes ------------------------------------------------------------------------------ */

static pid_t children[N_CHILDREN], stopped;
static char *status_before[N_CHILDREN], *self_before;

struct told {
	int securebits, dumpable, pdeath, thp, slack, ambient;
};
static struct shared {
	atomic_int request[N_CHILDREN], answer[N_CHILDREN];
	struct told told[N_CHILDREN];
} * shared;
static struct told told_before[N_CHILDREN];

static void set_caps(uint32_t permitted, uint32_t effective, uint32_t inheritable)
{
	struct __user_cap_header_struct head = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct data[2] = { { effective, permitted, inheritable } };

	MUST(syscall(SYS_capset, &head, data));
}

/* An ordinary user with supplementary groups. */
static void become_user(void)
{
	const gid_t groups[] = { 1000, 27, 44 };

	MUST(setgroups(3, groups));
	MUST(setresgid(1000, 1000, 1000));
	MUST(setresuid(1000, 1000, 1000));
	MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
}

/* Different ids in each place, some capabilities in each set, securebits with a lock. */
static void become_odd(void)
{
	const uint32_t some = 1U << CAP_NET_RAW | 1U << CAP_CHOWN | 1U << CAP_KILL |
			      1U << CAP_SETPCAP | 1U << CAP_SETUID;

	MUST(setgroups(0, NULL));
	MUST(setresgid(5, 6, 7));
	MUST(prctl(PR_CAPBSET_DROP, CAP_SYS_TIME, 0, 0, 0));
	MUST(prctl(PR_SET_SECUREBITS, SECBIT_KEEP_CAPS | SECBIT_NO_SETUID_FIXUP));
	MUST(setresuid(1001, 1002, 1003));
	set_caps(some, some, 1U << CAP_NET_RAW | 1U << CAP_FOWNER);
	MUST(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_NET_RAW, 0, 0));
	MUST(prctl(PR_SET_SECUREBITS,
		   SECBIT_NO_SETUID_FIXUP | SECBIT_NOROOT | SECBIT_NOROOT_LOCKED));
	set_caps(1U << CAP_NET_RAW | 1U << CAP_KILL, 1U << CAP_KILL,
		 1U << CAP_NET_RAW | 1U << CAP_FOWNER);
	MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
	MUST(prctl(PR_SET_DUMPABLE, 1));
}

static void become_private(void)
{
	MUST(prctl(PR_SET_DUMPABLE, 0));
	MUST(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0));
	MUST(prctl(PR_SET_PDEATHSIG, SIGHUP));
}

static _Noreturn void serve(int index)
{
	struct told *t = &shared->told[index];

	for (;;) {
		if (atomic_load(&shared->request[index]) == atomic_load(&shared->answer[index])) {
			nanosleep(&(struct timespec){ .tv_nsec = 5000000 }, NULL);
			continue;
		}
		t->securebits = prctl(PR_GET_SECUREBITS);
		t->dumpable = prctl(PR_GET_DUMPABLE);
		prctl(PR_GET_PDEATHSIG, &t->pdeath);
		t->thp = prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0);
		t->slack = prctl(PR_GET_TIMERSLACK);
		t->ambient = prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, CAP_NET_RAW, 0, 0);
		atomic_fetch_add(&shared->answer[index], 1);
	}
}

static void ask(int index)
{
	int n = atomic_fetch_add(&shared->request[index], 1) + 1;

	while (atomic_load(&shared->answer[index]) != n)
		sched_yield();
}

/* The lines of a status that must not change. */
static char *status_of(pid_t pid)
{
	static const char *const keys[] = { "Name:",   "Umask:",  "State:",  "Uid:",
					    "Gid:",    "Groups:", "CapInh:", "CapPrm:",
					    "CapEff:", "CapBnd:", "CapAmb:", "NoNewPrivs:" };
	char *path = NULL, *kept = calloc(1, 8192), *save = NULL;

	if (asprintf(&path, "/proc/%d/status", pid) < 0 || !kept)
		victim_die("no memory");
	char *text = victim_read(path);

	for (char *line = text ? strtok_r(text, "\n", &save) : NULL; line;
	     line = strtok_r(NULL, "\n", &save))
		for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++)
			if (!strncmp(line, keys[i], strlen(keys[i])) &&
			    (i != 2 || strchr(line, 'T')))
				strcat(strcat(kept, line), "; ");
	free(path);
	free(text);
	return kept;
}

static void build_children(void)
{
	static void (*const become[N_CHILDREN])(void) = { become_user, become_odd, become_private };

	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	for (int i = 0; i < N_CHILDREN; i++) {
		children[i] = MUST(fork());
		if (children[i] == 0) {
			become[i]();
			serve(i);
		}
		ask(i);
		told_before[i] = shared->told[i];
		status_before[i] = status_of(children[i]);
	}
	stopped = MUST(fork());
	if (stopped == 0)
		for (;;)
			pause();
	MUST(kill(stopped, SIGSTOP));
	MUST(waitpid(stopped, NULL, WUNTRACED));
}

static void check_children(void)
{
	for (int i = 0; i < N_CHILDREN; i++) {
		char *now = status_of(children[i]);

		CHECK(!strcmp(now, status_before[i]), "child %d was \"%s\", is \"%s\"", i,
		      status_before[i], now);
		free(now);
		ask(i);
		const struct told *a = &told_before[i], *b = &shared->told[i];

		CHECK(!memcmp(a, b, sizeof(*a)),
		      "child %d: securebits %#x %#x, dumpable %d %d, pdeath %d %d, thp %d %d, "
		      "slack %d %d, ambient %d %d",
		      i, a->securebits, b->securebits, a->dumpable, b->dumpable, a->pdeath,
		      b->pdeath, a->thp, b->thp, a->slack, b->slack, a->ambient, b->ambient);
	}
	char *status = status_of(stopped);

	CHECK(strstr(status, "T (stopped)"), "the stopped child is not: %s", status);
	free(status);
}

static const int resources[] = { RLIMIT_CORE, RLIMIT_NOFILE, RLIMIT_STACK, RLIMIT_FSIZE };

static void build_self(void)
{
	MUST(prctl(PR_SET_NAME, "task (basic) x"));
	umask(027);
	MUST(chdir(victim_dir()));
	MUST(personality(ADDR_NO_RANDOMIZE));
	for (size_t i = 0; i < 4; i++) {
		struct rlimit limit = { 1000 + i, 2000 + i };

		if (resources[i] == RLIMIT_STACK || resources[i] == RLIMIT_FSIZE)
			limit = (struct rlimit){ 4 << 20, 64 << 20 };
		MUST(setrlimit((__rlimit_resource_t)resources[i], &limit));
	}
	for (int i = 0; i < 2; i++) {
		int fd = MUST(open(i ? "/proc/self/oom_score_adj" : "/proc/self/coredump_filter",
				   O_WRONLY));

		MUST(write(fd, i ? "300" : "0x13", i ? 3 : 4));
		close(fd);
	}
	/* the victim leads a session of its own; not all kernels have it */
	int group = open("/proc/self/autogroup", O_WRONLY);

	if (group >= 0)
		MUST(write(group, "1", 1));
	close(group);
}

/* What is behind the number of the group, which is another each time. */
static const char *autogroup(const char *text)
{
	const char *nice = text ? strstr(text, "nice ") : NULL;

	return nice ? nice : "none\n";
}

static char *self_text(void)
{
	char *filter = victim_read("/proc/self/coredump_filter"), *text = NULL;
	char *oom = victim_read("/proc/self/oom_score_adj"), *status = status_of(getpid());
	char *limits = victim_read("/proc/self/limits"), cwd[4096];
	char *group = victim_read("/proc/self/autogroup");

	if (asprintf(&text, "%s cwd %s, filter %s, oom %s, personality %#x, session %s%s", status,
		     getcwd(cwd, sizeof(cwd)), filter, oom, personality(0xffffffff),
		     autogroup(group), limits) < 0)
		victim_die("no memory");
	free(group);
	free(filter);
	free(oom);
	free(status);
	free(limits);
	return text;
}

static void check_self(void)
{
	char *now = self_text();
	size_t i = 0;

	while (now[i] && now[i] == self_before[i])
		i++;
	CHECK(!now[i] && !self_before[i], "was \"%.60s\", is \"%.60s\"",
	      self_before + (i > 20 ? i - 20 : 0), now + (i > 20 ? i - 20 : 0));
	free(now);
}

static void check(void)
{
	check_spinning();
	check_blocked();
	check_signals();
	check_timers();
	check_robust();
	check_odd();
	check_rseq();
	check_children();
	check_self();
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	build_children();
	build_self();
	build_signals();
	build_timers();
	build_threads();
	start_blocked();
	victim_settle();
	start_spinning();
	self_before = self_text();
	victim_ready();
	victim_serve(check);
}
