/* SPDX-License-Identifier: MIT
 *
 * test: hold=yes
 * test: verify=no
 *
 * A process that is never idle: threads that compute, map and unmap, talk through pipes, sleep in
 * every way, and take timer signals, and a child at work on shared memory. Each of them notices
 * what must never be seen: a sleep that ends too early or with EINTR, a changed signal mask, a
 * wrong sum.
 *
 * A check parks the threads, and looks at what only then stands still. If DIR/hold exists, it
 * leaves them parked, so that an inventory from outside is comparable; the next check lets them go.
 */
#include "victim.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { PERIOD_US = 3000, MAP_PAGES = 16 };

struct shared {
	atomic_ulong rounds; /* of the child */
	atomic_bool bad;
};

static pthread_mutex_t park_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t park_changed = PTHREAD_COND_INITIALIZER;
static bool parking;
static unsigned parked, n_workers;

static atomic_ulong ticks;
static unsigned long ticks_seen, child_seen;
static struct shared *shared;
static int ping[2], pong[2], epoll;
static pid_t partner;
static char *maps_before;
static int fds_before;
static char complaint[256];
static atomic_bool complained;
static atomic_uint interrupted;
static char *hold_path;

__attribute__((format(printf, 1, 2))) static void complain(const char *fmt, ...)
{
	if (atomic_exchange(&complained, true))
		return;
	va_list args;
	va_start(args, fmt);
	vsnprintf(complaint, sizeof(complaint), fmt, args);
	va_end(args);
}

static long long now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Each worker calls this between two rounds of its work. */
static void rest(void)
{
	pthread_mutex_lock(&park_lock);
	if (parking) {
		parked++;
		pthread_cond_broadcast(&park_changed);
		while (parking)
			pthread_cond_wait(&park_changed, &park_lock);
		parked--;
	}
	pthread_mutex_unlock(&park_lock);
}

static void arm_timer(bool on)
{
	struct itimerval timer = { 0 };
	if (on)
		timer.it_interval.tv_usec = timer.it_value.tv_usec = PERIOD_US;
	setitimer(ITIMER_REAL, &timer, NULL);
}

static void park(void)
{
	arm_timer(false);
	pthread_mutex_lock(&park_lock);
	parking = true;
	while (parked < n_workers)
		pthread_cond_wait(&park_changed, &park_lock);
	pthread_mutex_unlock(&park_lock);
}

static void unpark(void)
{
	arm_timer(true);
	pthread_mutex_lock(&park_lock);
	parking = false;
	pthread_cond_broadcast(&park_changed);
	pthread_mutex_unlock(&park_lock);
}

static void compute(void)
{
	static double phase;
	double sum = 0, again = 0;
	unsigned long word = 0, other = 0;
	for (unsigned long i = 0; i < 20000; i++) {
		sum += phase * (double)i / 3.0;
		word += victim_word(7, i);
	}
	for (unsigned long i = 0; i < 20000; i++) {
		again += phase * (double)i / 3.0;
		other += victim_word(7, i);
	}
	if (sum < again || sum > again || word != other)
		complain("a computation went wrong: %g and %g, %lx and %lx", sum, again, word,
			 other);
	phase += 1.25;
}

static void map(void)
{
	size_t page = 4096;
	unsigned long *at = mmap(NULL, MAP_PAGES * page, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED) {
		complain("mmap: %s", strerror(errno));
		return;
	}
	size_t words = MAP_PAGES * page / sizeof(*at);
	for (size_t i = 0; i < words; i++)
		at[i] = victim_word(3, i);
	mprotect(at + words / 2, MAP_PAGES * page / 2, PROT_READ);
	for (size_t i = 0; i < words; i++) {
		if (at[i] != victim_word(3, i)) {
			complain("word %zu of a mapping changed", i);
			break;
		}
	}
	if (munmap(at, MAP_PAGES * page) < 0)
		complain("munmap: %s", strerror(errno));
}

static void sleep_a_while(void)
{
	struct timespec time = { .tv_nsec = 5000000 };
	long long begin = now_ns();
	if (nanosleep(&time, NULL) < 0)
		complain("nanosleep: %s", strerror(errno));
	else if (now_ns() - begin < time.tv_nsec)
		complain("nanosleep was %lld ns short", time.tv_nsec - (now_ns() - begin));
}

static void wait_for_events(void)
{
	struct epoll_event event;
	long long begin = now_ns();
	int n = epoll_wait(epoll, &event, 1, 7);
	if (n < 0 && errno == EINTR)
		atomic_fetch_add(&interrupted, 1);
	else if (n)
		complain("epoll_wait: %d, %s", n, strerror(errno));
	else if (now_ns() - begin < 6900000)
		complain("epoll_wait ended after %lld ns", now_ns() - begin);
}

static void wait_for_futex(void)
{
	static unsigned word = 42;
	struct timespec time = { .tv_nsec = 6000000 };
	long long begin = now_ns();
	long result = syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 42, &time, NULL, 0);
	if (result != -1 || errno != ETIMEDOUT)
		complain("futex: %ld, %s", result, strerror(errno));
	else if (now_ns() - begin < time.tv_nsec)
		complain("a futex wait ended after %lld ns", now_ns() - begin);
}

static void play_ping(void)
{
	static unsigned long sent;
	unsigned long got = 0;
	sent++;
	if (write(ping[1], &sent, sizeof(sent)) != sizeof(sent))
		complain("write: %s", strerror(errno));
	else if (read(pong[0], &got, sizeof(got)) != sizeof(got))
		complain("read: %s", strerror(errno));
	else if (got != sent + 1)
		complain("sent %lu, got %lu", sent, got);
}

/* Lives in read(2); it parks only in the sense that nobody writes to it. */
static _Noreturn void *play_pong(void *unused)
{
	for (;;) {
		unsigned long number;
		if (read(ping[0], &number, sizeof(number)) != sizeof(number))
			complain("pong: read: %s", strerror(errno));
		number++;
		if (write(pong[1], &number, sizeof(number)) != sizeof(number))
			complain("pong: write: %s", strerror(errno));
	}
}

static const struct work {
	const char *name;
	void (*round)(void);
} works[] = {
	{ "compute", compute },	     { "map", map },
	{ "sleep", sleep_a_while },  { "epoll", wait_for_events },
	{ "futex", wait_for_futex }, { "ping", play_ping },
};

static _Noreturn void *worker(void *argument)
{
	const struct work *work = argument;
	sigset_t wanted, found;
	sigfillset(&wanted);
	pthread_sigmask(SIG_SETMASK, &wanted, NULL);
	pthread_sigmask(SIG_SETMASK, NULL, &wanted);
	pthread_setname_np(pthread_self(), work->name);
	for (;;) {
		rest();
		work->round();
		pthread_sigmask(SIG_SETMASK, NULL, &found);
		if (memcmp(&wanted, &found, sizeof(found)) != 0)
			complain("the signal mask of %s has changed", work->name);
	}
}

static void on_alarm(int signal)
{
	atomic_fetch_add(&ticks, 1);
}

/* The only thread that takes SIGALRM: pause(2) must end with each tick and never without. */
static _Noreturn void *ticker(void *unused)
{
	sigset_t alarm_only;
	sigemptyset(&alarm_only);
	sigaddset(&alarm_only, SIGALRM);
	pthread_setname_np(pthread_self(), "ticker");
	for (;;) {
		sigset_t all_but;
		sigfillset(&all_but);
		sigdelset(&all_but, SIGALRM);
		unsigned long before = atomic_load(&ticks);
		sigsuspend(&all_but);
		if (atomic_load(&ticks) == before)
			complain("sigsuspend ended without a signal");
	}
}

static _Noreturn void child(void)
{
	MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
	for (;;) {
		struct timespec time = { .tv_nsec = 2000000 };
		if (nanosleep(&time, NULL) < 0)
			atomic_store(&shared->bad, true);
		atomic_fetch_add(&shared->rounds, 1);
	}
}

/*
 * Our mappings, without the inode number of the shared one, which only names it,
 * nor the blanks that pad a shorter number to the same column.
 */
static char *read_maps(void)
{
	char *maps = victim_read("/proc/self/maps");
	char *inode = maps ? strstr(maps, " 00:01 ") : NULL;
	if (inode)
		for (inode += strlen(" 00:01 "); (*inode >= '0' && *inode <= '9') || *inode == ' ';
		     inode++)
			*inode = '#';
	return maps;
}

/* The first line in which the mappings differ. */
static void report_maps(const char *now)
{
	const char *was = maps_before;

	for (;;) {
		size_t a = strcspn(was, "\n"), b = strcspn(now, "\n");

		if (a != b || strncmp(was, now, a) != 0) {
			victim_fail("mappings have changed: '%.*s' was '%.*s'", (int)b, now, (int)a,
				    was);
			return;
		}
		was += a + 1;
		now += b + 1;
	}
}

static void check_quiet(void)
{
	char *maps = read_maps();
	if (!maps || !maps_before)
		victim_fail("no maps: %s", strerror(errno));
	else if (strcmp(maps, maps_before) != 0)
		report_maps(maps);
	free(maps);
	CHECK(victim_count_fds() == fds_before, "%d descriptors, were %d", victim_count_fds(),
	      fds_before);
	CHECK(victim_status(getpid(), "TracerPid", 10) == 0, "somebody traces us");
	CHECK(victim_status(getpid(), "Threads", 10) == n_workers + 3, "%lld threads",
	      victim_status(getpid(), "Threads", 10));
	char *stat = victim_read("/proc/self/stat");
	CHECK(stat && strstr(stat, ") R "), "our state is not R: %s", stat);
	free(stat);
}

/* Last, since a test may excuse it (docs/compatibility.md), and the first complaint is what is
 * said. */
static void check_interruptions(void)
{
	unsigned times = atomic_exchange(&interrupted, 0);
	CHECK(!times, "epoll_wait was interrupted %u times", times);
}

static void check(void)
{
	CHECK(!atomic_load(&complained), "%s", complaint);
	CHECK(!atomic_load(&shared->bad), "the child's sleep was interrupted");
	CHECK(kill(partner, 0) == 0, "the child is gone");
	if (!parking) {
		CHECK(victim_goes_on(&ticks, ticks_seen), "the timer has stopped");
		CHECK(victim_goes_on(&shared->rounds, child_seen), "the child has stopped");
		park();
	}
	ticks_seen = atomic_load(&ticks);
	child_seen = atomic_load(&shared->rounds);
	check_quiet();
	check_interruptions();
	if (access(hold_path, F_OK) != 0)
		unpark();
}

static void start_threads(void)
{
	sigset_t all, old;
	pthread_t thread;
	sigfillset(&all);
	MUST_ZERO(pthread_sigmask(SIG_SETMASK, &all, &old));
	n_workers = sizeof(works) / sizeof(*works);
	for (unsigned i = 0; i < n_workers; i++)
		MUST_ZERO(pthread_create(&thread, NULL, worker, (void *)(uintptr_t)&works[i]));
	MUST_ZERO(pthread_create(&thread, NULL, play_pong, NULL));
	MUST_ZERO(pthread_create(&thread, NULL, ticker, NULL));
	sigaddset(&old, SIGALRM);
	MUST_ZERO(pthread_sigmask(SIG_SETMASK, &old, NULL));
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	hold_path = victim_path("hold");
	MUST(pipe(ping));
	MUST(pipe(pong));
	epoll = MUST(epoll_create1(0));
	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		victim_die("mmap: %s", strerror(errno));
	partner = MUST(fork());
	if (partner == 0)
		child();
	struct sigaction action = { .sa_handler = on_alarm };
	sigaction(SIGALRM, &action, NULL);
	start_threads();

	/* the heap and stdio reach their final size before the baseline is taken */
	for (int i = 0; i < 3; i++) {
		park();
		free(maps_before);
		maps_before = read_maps();
		fds_before = victim_count_fds();
		unpark();
	}
	victim_ready();
	victim_serve(check);
}
