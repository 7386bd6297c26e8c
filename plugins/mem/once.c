/* SPDX-License-Identifier: MIT */
/*
 * Memory that processes share by fork is stored once: a page that is mapped more
 * than once is known by the number of its frame, and where it was stored first is
 * where all others find it, if they hold the same: the tree stands still, but the
 * kernel may move pages between frames all the time.
 */
#include <fcntl.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "mem.h"

#define FRAME	  ((1ull << 55) - 1)
#define EXCLUSIVE (1ull << 56) /* mapped once */
#define PRESENT	  (1ull << 63)

uint64_t mem_once_frame(uint64_t entry)
{
	return entry & PRESENT && !(entry & EXCLUSIVE) ? entry & FRAME : 0;
}

/* Open addressing; the size is a power of two, and half of it stays free. */
static size_t slot_of(const struct mem_once *o, uint64_t frame)
{
	size_t i = (size_t)(frame * 0x9e3779b97f4a7c15ull >> 20) & (o->size - 1);

	while (o->frame[i] && o->frame[i] != frame)
		i = (i + 1) & (o->size - 1);
	return i;
}

uint64_t mem_once_hash(const void *page)
{
	return XXH3_64bits(page, MEM_PAGE);
}

bool mem_once_find(const struct mem_once *o, uint64_t frame, uint64_t *place, uint64_t *hash)
{
	size_t i;

	if (!o->n || !frame)
		return false;
	i = slot_of(o, frame);
	*place = o->place[i];
	*hash = o->hash[i];
	return o->frame[i] != 0;
}

static int enlarge(struct mem_once *o, struct ckpt_error *err)
{
	struct mem_once old = *o;

	o->size = old.size ? old.size * 2 : 4096;
	o->frame = calloc(o->size, sizeof(*o->frame));
	o->place = calloc(o->size, sizeof(*o->place));
	o->hash = calloc(o->size, sizeof(*o->hash));
	if (!o->frame || !o->place || !o->hash) {
		mem_once_free(o);
		*o = old;
		return ckpt_fail(err, ENOMEM, "out of memory");
	}
	for (size_t i = 0; i < old.size; i++) {
		size_t k = old.frame[i] ? slot_of(o, old.frame[i]) : 0;

		if (!old.frame[i])
			continue;
		o->frame[k] = old.frame[i];
		o->place[k] = old.place[i];
		o->hash[k] = old.hash[i];
	}
	mem_once_free(&old);
	return 0;
}

int mem_once_add(struct mem_once *o, uint64_t frame, uint64_t place, uint64_t hash,
		 struct ckpt_error *err)
{
	size_t i;
	int r = o->n * 2 >= o->size ? enlarge(o, err) : 0;

	if (r < 0 || !frame)
		return r;
	i = slot_of(o, frame);
	if (!o->frame[i])
		o->n++;
	o->frame[i] = frame;
	o->place[i] = place;
	o->hash[i] = hash;
	return 0;
}

void mem_once_free(struct mem_once *o)
{
	free(o->frame);
	free(o->place);
	free(o->hash);
	*o = (struct mem_once){ 0 };
}
