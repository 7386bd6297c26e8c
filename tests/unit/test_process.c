/* SPDX-License-Identifier: MIT */
/*
 * The process layer without plugins: agents go in, run scripts and come out,
 * and a victim that checks itself sees nothing; also when its keeper dies in
 * the middle.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/engine.h"
#include "engine/run.h"
#include "process/script.h"
#include "process/set.h"

#define N_THREADS 4

/* What the victim tells, in memory shared with the test. */
struct board {
	volatile int check; /* set by the test: count to answer */
	volatile int answer;
	volatile int wrong; /* line of the first failed check */
	/*
	 * set while keepers are killed: death between a thread's stop and the
	 * roll-back of its call shows as the EINTR that signal(7) promises anyway
	 */
	volatile int eintr_is_fine;
	volatile int faults; /* how often the handler of SIGSEGV ran */
	volatile unsigned long turns[N_THREADS];
};

static struct board *board;

#define EXPECT(c)                                \
	do {                                     \
		if (!(c) && !board->wrong)       \
			board->wrong = __LINE__; \
	} while (0)

/* Keeps known values in vector and general registers over many turns. */
static void *spin(void *arg)
{
	volatile unsigned long *turns = arg;
	double x = 1.5;

	for (;;) {
		for (int i = 0; i < 1000; i++)
			__asm__ volatile("" : "+x"(x));
		EXPECT(x == 1.5);
		(*turns)++;
	}
	return NULL;
}

static void *sleep_in_nanosleep(void *arg)
{
	volatile unsigned long *turns = arg;

	for (;;) {
		struct timespec t = { 0, 3000000 }, a, b;

		clock_gettime(CLOCK_MONOTONIC, &a);
		EXPECT(nanosleep(&t, NULL) == 0);
		clock_gettime(CLOCK_MONOTONIC, &b);
		EXPECT((b.tv_sec - a.tv_sec) * 1000000000L + b.tv_nsec - a.tv_nsec >= 3000000);
		(*turns)++;
	}
	return NULL;
}

static void *sleep_in_epoll(void *arg)
{
	volatile unsigned long *turns = arg;
	int ep = epoll_create1(0);
	struct epoll_event e;

	for (;;) {
		int r = epoll_wait(ep, &e, 1, 5);

		EXPECT(r == 0 || (board->eintr_is_fine && errno == EINTR));
		(*turns)++;
	}
	return NULL;
}

static void *wait_forever(void *arg)
{
	static int word;
	volatile unsigned long *turns = arg;

	(*turns)++;
	EXPECT(syscall(SYS_futex, &word, 0, 0, NULL, NULL, 0) == 0);
	EXPECT(0); /* nobody wakes it */
	return arg;
}

static void on_fault(int sig)
{
	board->faults++;
}

static void __attribute__((noreturn)) victim(void)
{
	static void *(*const bodies[N_THREADS])(void *) = { spin, sleep_in_nanosleep,
							    sleep_in_epoll, wait_forever };
	sigset_t mask, now;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int sig = 1; sig < 32; sig++)
		signal(sig, SIG_DFL); /* cmocka catches some */
	signal(SIGSEGV, on_fault);
	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR2);
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
	for (int i = 0; i < N_THREADS; i++) {
		pthread_t t;

		pthread_create(&t, NULL, bodies[i], (void *)&board->turns[i]);
	}
	for (;;) {
		struct timespec t = { 0, 1000000 };

		EXPECT(nanosleep(&t, NULL) == 0);
		pthread_sigmask(SIG_SETMASK, NULL, &now);
		EXPECT(sigismember(&now, SIGUSR2) && !sigismember(&now, SIGUSR1));
		board->answer = board->check;
	}
}

/*
 * All of it has been through its loop once: a thread that starts maps what its
 * C library and its sanitizer need, which test_no_room would forbid.
 */
static pid_t start_victim(void)
{
	pid_t pid;

	memset(board, 0, sizeof(*board));
	board->check = 1;
	pid = fork();
	if (!pid)
		victim();
	for (int i = 0; i < N_THREADS; i++)
		while (!board->turns[i])
			usleep(1000);
	while (board->answer != board->check)
		usleep(1000);
	return pid;
}

static int setup(void **state)
{
	board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		     0);
	return board == MAP_FAILED;
}

/* The text of the victim's maps; the caller frees it. */
static char *maps_of(pid_t pid)
{
	char path[64], *text = NULL;
	size_t n = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	f = fopen(path, "r");
	assert_non_null(f);
	assert_true(getdelim(&text, &n, '\0', f) > 0);
	fclose(f);
	return text;
}

/*
 * Under a sanitizer the victim's allocator maps and names shadow memory as it
 * goes; there only the agent's segment is looked for.
 */
static bool same_maps(const char *now, const char *was)
{
#ifdef __SANITIZE_ADDRESS__
	return !strstr(now, "SYSV") && !strstr(was, "SYSV");
#else
	return !strcmp(now, was);
#endif
}

/* It turns, answers, has found nothing wrong, and has the mappings that it had. */
static void assert_unharmed(pid_t pid, const char *maps)
{
	unsigned long before[N_THREADS];
	char *now;

	for (int i = 0; i < N_THREADS; i++)
		before[i] = board->turns[i];
	board->check++;
	for (int i = 0; i < 30000 && board->answer != board->check; i++)
		usleep(1000);
	assert_int_equal(board->answer, board->check);
	for (int i = 0; i < N_THREADS - 1; i++) {
		for (int k = 0; k < 30000 && board->turns[i] == before[i]; k++)
			usleep(1000);
		assert_int_not_equal(board->turns[i], before[i]);
	}
	assert_int_equal(board->wrong, 0);
	now = maps_of(pid);
	assert_true(same_maps(now, maps));
	free(now);
}

static void keep(struct ckpt_run *run, struct ckpt *ctx)
{
	memset(run, 0, sizeof(*run));
	run->ctx = ctx;
	run->kind = CKPT_DUMP;
	run->procs = proc_new(run, NULL);
	assert_non_null(run->procs);
}

static void must(int r, const struct ckpt_error *err)
{
	if (r)
		fail_msg("%s (%s)", err->text, err->hint);
}

static void run_a_script(struct ckpt_run *run, struct ckpt_thread *th)
{
	struct ckpt_script *s = ckpt_script_new(run, "test");
	struct ckpt_error err = { 0 };
	int pid = ckpt_script_add0(s, SYS_getpid);
	int tid = ckpt_script_add0(s, SYS_gettid);
	int stack = ckpt_script_add(s, SYS_sigaltstack, CKPT_C(0), CKPT_OUT(24));

	for (int i = 0; i < 2000; i++)
		ckpt_script_add(s, SYS_getpgid, CKPT_R(pid));
	must(ckpt_script_run(s, th, &err), &err);
	assert_int_equal(ckpt_script_result(s, pid), th->task->pid);
	assert_int_equal(ckpt_script_result(s, tid), th->tid);
	assert_non_null(ckpt_script_out(s, stack, 1));
	ckpt_script_add(s, SYS_close, CKPT_C(9999));
	assert_int_equal(ckpt_script_run(s, th, &err), -EBADF);
	assert_non_null(strstr(err.text, "close(9999) = -1 EBADF"));
	ckpt_script_free(s);
}

/* More than may be under way at once, each too long for one portion; then one that fails. */
static void post_scripts(struct ckpt_run *run, struct ckpt_task *t)
{
	struct ckpt_error err = { 0 };
	const uint64_t calls = run->calls;

	for (int turn = 0; turn < 30; turn++) {
		struct ckpt_script *s = ckpt_script_new(run, "posted");

		for (int i = 0; i < 600; i++)
			ckpt_script_add0(s, SYS_getppid);
		must(ckpt_script_post(s, t->threads[(size_t)turn % t->n_threads], &err), &err);
	}
	must(ckpt_script_settle(run, &err), &err);
	assert_int_equal(run->calls - calls, 30 * 600);
	for (size_t i = 0; i < 2; i++) {
		struct ckpt_script *s = ckpt_script_new(run, "posted");

		ckpt_script_add(s, i ? SYS_getppid : SYS_close, CKPT_C(9999));
		must(ckpt_script_post(s, t->threads[i], &err), &err);
	}
	assert_int_equal(ckpt_script_settle(run, &err), -EBADF);
	assert_non_null(strstr(err.text, "close(9999)"));
	must(ckpt_script_settle(run, &err), &err);
}

/* What a seat says may be somebody else's word: it is checked before it is used. */
static void test_false_answers(void **state)
{
	static const struct {
		uint32_t executed, failed;
	} answers[] = { { 1U << 30, 0 }, { 1U << 30, 1 }, { 0, 1 }, { 3, 0 } };
	struct ckpt_error err = { 0 };
	struct ckpt_run run;
	struct ckpt *ctx;
	pid_t pid = start_victim();
	struct ckpt_thread *th;

	must(ckpt_new(&ctx, NULL, NULL, &err), &err);
	keep(&run, ctx);
	must(proc_get_ready(run.procs, &err), &err);
	must(proc_seize(run.procs, pid, &err), &err);
	must(proc_agents_in(run.procs, &err), &err);
	th = ckpt_task_at(&run, 0)->threads[0];
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(answers); i++) {
		CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(&run, "test");
		struct ckpt_agent *a = th->agent;

		for (int k = 0; k < 4; k++)
			ckpt_script_add0(s, SYS_getpid);
		must(ckpt_script_begin(s, th, &err), &err);
		must(agent_wait(a, &err), &err);
		a->seat->executed = answers[i].executed;
		a->seat->failed = answers[i].failed;
		assert_int_equal(ckpt_script_settle(&run, &err), -EPROTO);
	}
	must(proc_agents_out(run.procs, &err), &err);
	must(proc_release(run.procs, CKPT_AFTER_RUN, &err), &err);
	proc_free(run.procs);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	ckpt_free(ctx);
}

/* Once the task has it, nobody else can attach it. */
static void assert_shut(const struct ckpt_task *t)
{
	struct shmid_ds ds;

	assert_int_equal(shmctl(t->threads[0]->agent->seg->shmid, IPC_STAT, &ds), 0);
	assert_int_equal(ds.shm_perm.mode & 0777, 0400);
	assert_int_equal(ds.shm_perm.uid, geteuid());
}

static void test_in_and_out(void **state)
{
	struct ckpt_error err = { 0 };
	struct ckpt_run run;
	struct ckpt *ctx;
	pid_t pid = start_victim();
	char *maps = maps_of(pid);

	must(ckpt_new(&ctx, NULL, NULL, &err), &err);
	for (int round = 0; round < 20; round++) {
		struct ckpt_task *t;

		keep(&run, ctx);
		must(proc_get_ready(run.procs, &err), &err);
		must(proc_seize(run.procs, pid, &err), &err);
		assert_int_equal(ckpt_task_count(&run), 1);
		t = ckpt_task_at(&run, 0);
		assert_int_equal(t->n_threads, N_THREADS + 1);
		must(proc_agents_in(run.procs, &err), &err);
		assert_shut(t);
		for (size_t i = 0; i < t->n_threads; i++)
			run_a_script(&run, t->threads[i]);
		post_scripts(&run, t);
		must(proc_agents_out(run.procs, &err), &err);
		must(proc_release(run.procs, CKPT_AFTER_RUN, &err), &err);
		proc_free(run.procs);
		assert_unharmed(pid, maps);
	}
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	free(maps);
	ckpt_free(ctx);
}

/* Of a leader that is killed nobody hears while the other threads are not reaped. */
static void test_killed_victim(void **state)
{
	struct ckpt_error err = { 0 };
	struct ckpt_script *s;
	struct ckpt_run run;
	struct ckpt *ctx;
	pid_t pid = start_victim();

	must(ckpt_new(&ctx, NULL, NULL, &err), &err);
	keep(&run, ctx);
	must(proc_get_ready(run.procs, &err), &err);
	must(proc_seize(run.procs, pid, &err), &err);
	must(proc_agents_in(run.procs, &err), &err);
	kill(pid, SIGKILL);
	s = ckpt_script_new(&run, "test");
	ckpt_script_add0(s, SYS_getpid);
	assert_int_equal(ckpt_script_run(s, ckpt_task_at(&run, 0)->threads[0], &err), -ESRCH);
	ckpt_script_free(s);
	proc_free(run.procs);
	while (waitpid(-1, NULL, __WALL) > 0)
		;
	ckpt_free(ctx);
}

/*
 * The task has no room for the agent: the dump fails, and the program keeps its
 * action for SIGSEGV.
 */
static void test_no_room(void **state)
{
	const struct rlimit none = { 0, RLIM_INFINITY }, all = { RLIM_INFINITY, RLIM_INFINITY };
	struct ckpt_error err = { 0 };
	pid_t pid = start_victim();
	char *maps = maps_of(pid);
	struct ckpt_run run;
	struct ckpt *ctx;

	must(ckpt_new(&ctx, NULL, NULL, &err), &err);
	assert_int_equal(prlimit(pid, RLIMIT_AS, &none, NULL), 0);
	keep(&run, ctx);
	must(proc_get_ready(run.procs, &err), &err);
	must(proc_seize(run.procs, pid, &err), &err);
	assert_int_equal(proc_agents_in(run.procs, &err), -ENOMEM);
	assert_non_null(strstr(err.text, "shmat(2)"));
	must(proc_release(run.procs, CKPT_AFTER_RUN, &err), &err);
	proc_free(run.procs);
	assert_int_equal(prlimit(pid, RLIMIT_AS, &all, NULL), 0);
	assert_unharmed(pid, maps);
	kill(pid, SIGSEGV);
	for (int i = 0; i < 30000 && !board->faults; i++)
		usleep(1000);
	assert_int_equal(board->faults, 1);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	free(maps);
	ckpt_free(ctx);
}

/* A keeper that goes in and out until it is killed. */
static void __attribute__((noreturn)) keeper(pid_t pid)
{
	struct ckpt_error err = { 0 };
	struct ckpt_run run;
	struct ckpt *ctx;

	if (ckpt_new(&ctx, NULL, NULL, &err))
		_exit(1);
	for (;;) {
		keep(&run, ctx);
		if (proc_get_ready(run.procs, &err) || proc_seize(run.procs, pid, &err) ||
		    proc_agents_in(run.procs, &err) || proc_agents_out(run.procs, &err) ||
		    proc_release(run.procs, CKPT_AFTER_RUN, &err)) {
			fprintf(stderr, "keeper: %s\n", err.text);
			_exit(1);
		}
		proc_free(run.procs);
	}
}

static void test_killed_keepers(void **state)
{
	pid_t pid = start_victim();
	char *maps = maps_of(pid);

	board->eintr_is_fine = 1;
	srand(1);
	for (int round = 0; round < 100; round++) {
		pid_t k = fork();
		int status;

		if (!k)
			keeper(pid);
		usleep(1000 + (unsigned)rand() % 8000);
		kill(k, SIGKILL);
		assert_int_equal(waitpid(k, &status, 0), k);
		assert_true(WIFSIGNALED(status));
		/* the last to leave waits for the others: give it the time that it takes */
		for (int i = 0; i < 30000; i++) {
			char *now = maps_of(pid);
			bool same = same_maps(now, maps);

			free(now);
			if (same)
				break;
			usleep(1000);
		}
		assert_unharmed(pid, maps);
	}
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	free(maps);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_in_and_out),     cmocka_unit_test(test_false_answers),
		cmocka_unit_test(test_no_room),	       cmocka_unit_test(test_killed_victim),
		cmocka_unit_test(test_killed_keepers),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}
