/* SPDX-License-Identifier: MIT */
/*
 * The way of page contents into the page file. Buffers are filled by the step
 * and hashed and written by a thread, so that reading memory and writing the
 * image use two processors. The thread starts with the first full buffer: small
 * trees do without. Nothing else touches the page file meanwhile.
 */
#include <signal.h>
#include <string.h>
#include <sys/mman.h>

#include "mem.h"

static char *buffer(const struct mem_sink *k, unsigned i)
{
	return k->memory + (size_t)(i % MEM_SINK_BUFFERS) * MEM_SINK_BUFFER;
}

int mem_sink_open(struct mem_sink *k, struct ckpt_pages *pages, struct ckpt_error *err)
{
	void *memory = mmap(NULL, MEM_SINK_BUFFERS * MEM_SINK_BUFFER, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		return ckpt_fail_sys(err, errno, "mmap");
	*k = (struct mem_sink){ .pages = pages, .memory = memory };
	pthread_mutex_init(&k->lock, NULL);
	pthread_cond_init(&k->changed, NULL);
	return 0;
}

char *mem_sink_buffer(const struct mem_sink *k)
{
	return buffer(k, k->put);
}

static int append(struct mem_sink *k, const char *data, size_t len, struct ckpt_error *err)
{
	uint64_t at;
	int r = ckpt_pages_append(k->pages, data, len, &at, err);

	if (r < 0)
		return r;
	/* records are written before their pages: both must agree on the place */
	if (at != k->offset)
		return ckpt_fail(err, EIO, "page file: data went to %llu instead of %llu",
				 (unsigned long long)at, (unsigned long long)k->offset);
	k->offset += len;
	return 0;
}

static void *write_buffers(void *arg)
{
	struct mem_sink *k = arg;

	pthread_mutex_lock(&k->lock);
	while (!k->failed) {
		int r;

		if (k->taken == k->put) {
			if (k->ending)
				break;
			pthread_cond_wait(&k->changed, &k->lock);
			continue;
		}
		pthread_mutex_unlock(&k->lock);
		r = append(k, buffer(k, k->taken), k->used[k->taken % MEM_SINK_BUFFERS], &k->err);
		pthread_mutex_lock(&k->lock);
		k->failed = r;
		k->taken++;
		pthread_cond_signal(&k->changed);
	}
	pthread_mutex_unlock(&k->lock);
	return NULL;
}

/* Signals are for the thread that knows what to do with them. */
static bool start_thread(struct mem_sink *k)
{
	sigset_t all, old;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	k->threaded = !pthread_create(&k->thread, NULL, write_buffers, k);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return k->threaded;
}

int mem_sink_put(struct mem_sink *k, size_t len, struct ckpt_error *err)
{
	int r;

	if (!len)
		return 0;
	if (!k->threaded && (len < MEM_SINK_BUFFER || !start_thread(k)))
		return append(k, mem_sink_buffer(k), len, err);
	pthread_mutex_lock(&k->lock);
	k->used[k->put % MEM_SINK_BUFFERS] = len;
	k->put++;
	pthread_cond_signal(&k->changed);
	while (!k->failed && k->put - k->taken == MEM_SINK_BUFFERS)
		pthread_cond_wait(&k->changed, &k->lock);
	r = k->failed;
	if (r)
		*err = k->err;
	pthread_mutex_unlock(&k->lock);
	return r;
}

int mem_sink_close(struct mem_sink *k, struct ckpt_error *err)
{
	if (k->threaded) {
		pthread_mutex_lock(&k->lock);
		k->ending = true;
		pthread_cond_signal(&k->changed);
		pthread_mutex_unlock(&k->lock);
		pthread_join(k->thread, NULL);
		k->threaded = false;
	}
	if (k->failed)
		*err = k->err;
	return k->failed;
}

void mem_sink_free(struct mem_sink *k)
{
	struct ckpt_error ignored;

	if (!k->memory)
		return;
	mem_sink_close(k, &ignored);
	pthread_cond_destroy(&k->changed);
	pthread_mutex_destroy(&k->lock);
	munmap(k->memory, MEM_SINK_BUFFERS * MEM_SINK_BUFFER);
}
