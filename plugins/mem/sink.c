/* SPDX-License-Identifier: MIT */
/*
 * The way of page contents into the page file. The step says in portions what is to be
 * saved; whoever is free reads one, leaves out its zeros, waits for its turn to get a
 * place in the file, and writes it there. So all processors read and write at once, and
 * the file is the same every time. Threads start with the second large portion: small
 * trees do without.
 */
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "mem.h"

struct mem_kept {
	struct mem_stretch_of_pages {
		uint64_t page, n;
	} run[MEM_PORTION_PAGES];
	size_t n, pages;
	uint64_t zeros;
	uint64_t frame[MEM_PORTION_PAGES], page[MEM_PORTION_PAGES];
};

int mem_sink_open(struct mem_sink *k, struct ckpt_pages *pages, struct mem_once *once,
		  struct ckpt_error *err)
{
	*k = (struct mem_sink){ .pages = pages, .once = once };
	k->slot = calloc(MEM_SINK_SLOTS, sizeof(*k->slot));
	k->buffer = malloc(MEM_PORTION);
	if (!k->slot || !k->buffer)
		return ckpt_fail(err, ENOMEM, "out of memory");
	pthread_mutex_init(&k->lock, NULL);
	pthread_cond_init(&k->changed, NULL);
	k->ready = true;
	return 0;
}

/* ---- reading ------------------------------------------------------------------------- */

static int read_all(const struct mem_source *from, char *buf, size_t len, uint64_t offset)
{
	size_t done = 0;

	while (done < len) {
		ssize_t n = pread(from->fd, buf + done, len - done, (off_t)(offset + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (!n && from->ends && len - done < MEM_PAGE) {
			memset(buf + done, 0, len - done);
			return 0;
		}
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		done += (size_t)n;
	}
	return 0;
}

/*
 * Runs that nobody shares, in one call: twice as fast as /proc/PID/mem where pages are
 * huge. Not all of it is there if the task itself could not read it.
 */
static bool read_directly(const struct mem_portion_in *p, size_t first, size_t n, char *buf,
			  size_t len)
{
	struct iovec to = { buf, len }, from[MEM_PORTION_RUNS];

	for (size_t i = 0; i < n; i++)
		from[i] = (struct iovec){
			(void *)(uintptr_t)(p->run[first + i].page * MEM_PAGE),
			p->run[first + i].pages * MEM_PAGE,
		};
	return process_vm_readv(p->from.pid, &to, 1, from, n, 0) == (ssize_t)len;
}

static int read_portion(const struct mem_portion_in *p, char *buf, struct ckpt_error *err)
{
	size_t next;

	for (size_t i = 0; i < p->n; i = next) {
		size_t len = 0;

		for (next = i; next < p->n && p->run[next].alone == p->run[i].alone; next++)
			len += p->run[next].pages * MEM_PAGE;
		if (p->run[i].alone && read_directly(p, i, next - i, buf, len)) {
			buf += len;
			continue;
		}
		for (size_t k = i; k < next; k++) {
			const uint64_t at = p->run[k].page * MEM_PAGE;
			int r;

			len = p->run[k].pages * MEM_PAGE;
			r = read_all(&p->from, buf, len, at);
			if (r < 0)
				return ckpt_fail_sys(err, r, "%s%sreading memory at %llx",
						     p->from.name, *p->from.name ? ": " : "",
						     (unsigned long long)at);
			buf += len;
		}
	}
	return 0;
}

/* ---- leaving out zeros ----------------------------------------------------------------- */

static bool is_zero_page(const char *p)
{
	uint64_t first;

	memcpy(&first, p, sizeof(first));
	/* the C library compares with vectors and stops at the first difference */
	return !first && !memcmp(p, p + sizeof(first), MEM_PAGE - sizeof(first));
}

static void keep_page(struct mem_kept *kept, uint64_t page, uint64_t frame)
{
	struct mem_stretch_of_pages *last = kept->n ? &kept->run[kept->n - 1] : NULL;

	if (last && last->page + last->n == page)
		last->n++;
	else
		kept->run[kept->n++] = (struct mem_stretch_of_pages){ page, 1 };
	kept->page[kept->pages] = page;
	kept->frame[kept->pages++] = frame;
}

/* Which pages are kept; gaps in the buffer are closed. */
static void keep(const struct mem_portion_in *p, char *buf, struct mem_kept *kept)
{
	char *from = buf, *to = buf;
	size_t nth = 0;

	kept->n = kept->pages = 0;
	kept->zeros = 0;
	for (size_t i = 0; i < p->n; i++) {
		for (uint64_t k = 0; k < p->run[i].pages; k++, from += MEM_PAGE, nth++) {
			if (p->run[i].drop_zeros && is_zero_page(from)) {
				kept->zeros++;
				continue;
			}
			if (to != from)
				memcpy(to, from, MEM_PAGE);
			to += MEM_PAGE;
			keep_page(kept, p->run[i].page + k, p->forked ? p->frame[nth] : 0);
		}
	}
}

/* ---- in turn ------------------------------------------------------------------------- */

/* The place of a portion, and where its pages are noted. */
static int place(struct mem_sink *k, struct mem_portion_in *p, const struct mem_kept *kept,
		 uint64_t *at, struct ckpt_error *err)
{
	int r = ckpt_pages_reserve(k->pages, kept->pages * MEM_PAGE, at, err);

	if (!r && p->begin)
		*p->begin = *at;
	for (size_t i = 0; !r && i < kept->n; i++)
		r = mem_runs_add(p->out, kept->run[i].page, kept->run[i].n, err);
	for (size_t i = 0; !r && p->forked && i < kept->pages; i++) {
		const struct mem_once_page page = {
			.frame = kept->frame[i],
			.place = *at / MEM_PAGE + i,
			.page = kept->page[i],
			.space = p->space,
		};

		r = page.frame ? mem_once_add(k->once, &page, err) : 0;
	}
	k->zeros += kept->zeros;
	k->stored += kept->pages;
	return r;
}

static void fail(struct mem_sink *k, int r, const struct ckpt_error *err)
{
	if (!k->failed) {
		k->failed = r;
		k->err = *err;
	}
	pthread_cond_broadcast(&k->changed);
}

/* Take the next portion and do all that is to be done with it; called and left with the lock. */
static void work(struct mem_sink *k, char *buf, struct mem_kept *kept)
{
	const unsigned ticket = k->taken++;
	struct mem_portion_in *p = &k->slot[ticket % MEM_SINK_SLOTS];
	struct ckpt_error err = { 0 };
	uint64_t at = 0;
	int r;

	pthread_mutex_unlock(&k->lock);
	r = read_portion(p, buf, &err);
	if (!r)
		keep(p, buf, kept);
	pthread_mutex_lock(&k->lock);
	while (!k->failed && k->turn != ticket)
		pthread_cond_wait(&k->changed, &k->lock);
	if (k->failed)
		return;
	if (!r)
		r = place(k, p, kept, &at, &err);
	if (r < 0) {
		fail(k, r, &err);
		return;
	}
	if (p->last)
		close(p->from.fd);
	k->turn++;
	pthread_cond_broadcast(&k->changed);
	if (!kept->pages)
		return;
	pthread_mutex_unlock(&k->lock);
	r = ckpt_pages_write(k->pages, at, buf, kept->pages * MEM_PAGE, &err);
	pthread_mutex_lock(&k->lock);
	if (r < 0)
		fail(k, r, &err);
}

/* ---- threads ---------------------------------------------------------------------------- */

static void *help(void *arg)
{
	CKPT_AUTO_FREE struct mem_kept *kept = malloc(sizeof(*kept));
	CKPT_AUTO_FREE char *buf = malloc(MEM_PORTION);
	struct mem_sink *k = arg;

	/* without memory the others do it */
	if (!kept || !buf)
		return NULL;
	pthread_mutex_lock(&k->lock);
	while (!k->failed && (k->taken != k->put || !k->ending)) {
		if (k->taken == k->put)
			pthread_cond_wait(&k->changed, &k->lock);
		else
			work(k, buf, kept);
	}
	pthread_mutex_unlock(&k->lock);
	return NULL;
}

static void start_helpers(struct mem_sink *k)
{
	cpu_set_t set;
	int cpus = sched_getaffinity(0, sizeof(set), &set) ? 1 : CPU_COUNT(&set);
	sigset_t all, old;

	/* signals are for the thread that knows what to do with them */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	while (k->helpers < MEM_SINK_HELPERS && (int)k->helpers + 1 < cpus &&
	       !pthread_create(&k->helper[k->helpers], NULL, help, k))
		k->helpers++;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	k->asked = true;
}

static struct mem_kept *own_kept(struct mem_sink *k)
{
	if (!k->kept)
		k->kept = malloc(sizeof(*k->kept));
	return k->kept;
}

/* Work until there are no more than `most` portions that wait for their turn. */
static int reduce(struct mem_sink *k, unsigned most, struct ckpt_error *err)
{
	while (!k->failed && k->put - k->turn > most) {
		if (k->taken == k->put)
			pthread_cond_wait(&k->changed, &k->lock);
		else
			work(k, k->buffer, k->kept);
	}
	if (k->failed)
		*err = k->err;
	return k->failed;
}

int mem_sink_put(struct mem_sink *k, const struct mem_portion_in *p, struct ckpt_error *err)
{
	int r;

	if (!own_kept(k))
		return ckpt_fail(err, ENOMEM, "out of memory");
	if (!k->asked && k->put && p->pages == MEM_PORTION_PAGES)
		start_helpers(k);
	pthread_mutex_lock(&k->lock);
	r = reduce(k, MEM_SINK_SLOTS - 1, err);
	if (!r) {
		k->slot[k->put++ % MEM_SINK_SLOTS] = *p;
		pthread_cond_broadcast(&k->changed);
	}
	pthread_mutex_unlock(&k->lock);
	return r;
}

int mem_sink_drain(struct mem_sink *k, struct ckpt_error *err)
{
	int r;

	pthread_mutex_lock(&k->lock);
	r = reduce(k, 0, err);
	pthread_mutex_unlock(&k->lock);
	return r;
}

int mem_sink_close(struct mem_sink *k, struct ckpt_error *err)
{
	struct ckpt_error ignored;

	if (!k->ready)
		return 0;
	mem_sink_drain(k, &ignored);
	pthread_mutex_lock(&k->lock);
	k->ending = true;
	pthread_cond_broadcast(&k->changed);
	pthread_mutex_unlock(&k->lock);
	while (k->helpers)
		pthread_join(k->helper[--k->helpers], NULL);
	if (k->failed)
		*err = k->err;
	return k->failed;
}

void mem_sink_free(struct mem_sink *k)
{
	struct ckpt_error ignored;

	if (k->ready) {
		pthread_mutex_lock(&k->lock);
		if (k->turn != k->put && !k->failed)
			k->failed = -ECANCELED;
		pthread_mutex_unlock(&k->lock);
		mem_sink_close(k, &ignored);
		for (; k->turn != k->put; k->turn++)
			if (k->slot[k->turn % MEM_SINK_SLOTS].last)
				close(k->slot[k->turn % MEM_SINK_SLOTS].from.fd);
		pthread_cond_destroy(&k->changed);
		pthread_mutex_destroy(&k->lock);
	}
	free(k->kept);
	free(k->buffer);
	free(k->slot);
	*k = (struct mem_sink){ 0 };
}
