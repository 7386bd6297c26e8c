/* SPDX-License-Identifier: MIT */
/* A loop divided among threads that live as long as the loop. */
#include <ckpt/parallel.h>

#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>

/* A thread costs what some dozens of small files in /proc cost. */
#define CHUNK	    32
#define MAX_THREADS 8
#define STACK_SIZE  (256u << 10)

struct loop {
	size_t n, next, chunk;
	int (*fn)(void *arg, size_t i, struct ckpt_error *err);
	void *arg;
	pthread_mutex_t lock; /* for what follows */
	size_t failed;	      /* SIZE_MAX: none */
	struct ckpt_error *err;
	int result;
};

static void note_failure(struct loop *l, size_t i, int r, const struct ckpt_error *why)
{
	pthread_mutex_lock(&l->lock);
	if (i < l->failed) {
		__atomic_store_n(&l->failed, i, __ATOMIC_RELAXED);
		l->result = r;
		if (l->err)
			*l->err = *why;
	}
	pthread_mutex_unlock(&l->lock);
}

/* Chunks are given out in order, so that what precedes a failure is always tried. */
static void work(struct loop *l)
{
	for (;;) {
		size_t from = __atomic_fetch_add(&l->next, l->chunk, __ATOMIC_RELAXED);

		if (from >= l->n || from > __atomic_load_n(&l->failed, __ATOMIC_RELAXED))
			return;
		for (size_t i = from; i < l->n && i < from + l->chunk; i++) {
			struct ckpt_error why = { 0 };
			int r = l->fn(l->arg, i, &why);

			if (r < 0) {
				note_failure(l, i, r, &why);
				return;
			}
		}
	}
}

static void *work_in_thread(void *arg)
{
	work(arg);
	return NULL;
}

static size_t count_threads(size_t useful)
{
	cpu_set_t set;
	size_t cpus = sched_getaffinity(0, sizeof(set), &set) ? 1 : (size_t)CPU_COUNT(&set);

	if (cpus > MAX_THREADS)
		cpus = MAX_THREADS;
	return useful < cpus ? useful : cpus;
}

/* One by one where no thread can be made: they are a matter of time only. */
static size_t start(pthread_t *threads, size_t n, struct loop *l)
{
	size_t started = 0;
	pthread_attr_t attr;
	sigset_t all, old;

	if (pthread_attr_init(&attr))
		return 0;
	pthread_attr_setstacksize(&attr, STACK_SIZE);
	/* signals are for the thread that runs the steps */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	while (started < n && !pthread_create(&threads[started], &attr, work_in_thread, l))
		started++;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	return started;
}

/* `worth`: so many objects are worth a thread. */
static int divide(struct loop *l, size_t worth)
{
	size_t wanted = count_threads(l->n / worth), started = 0;
	pthread_t threads[MAX_THREADS];

	pthread_mutex_init(&l->lock, NULL);
	if (wanted > 1)
		started = start(threads, wanted - 1, l);
	work(l);
	while (started)
		pthread_join(threads[--started], NULL);
	pthread_mutex_destroy(&l->lock);
	return l->result;
}

int ckpt_parallel(size_t n, int (*fn)(void *arg, size_t i, struct ckpt_error *err), void *arg,
		  struct ckpt_error *err)
{
	struct loop l = {
		.n = n, .chunk = CHUNK, .fn = fn, .arg = arg, .failed = (size_t)-1, .err = err
	};

	return divide(&l, 2 * CHUNK);
}

int ckpt_parallel_by(size_t n, size_t portion,
		     int (*fn)(void *arg, size_t i, struct ckpt_error *err), void *arg,
		     struct ckpt_error *err)
{
	struct loop l = {
		.n = n, .chunk = portion, .fn = fn, .arg = arg, .failed = (size_t)-1, .err = err
	};

	return divide(&l, portion);
}
