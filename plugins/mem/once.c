/* SPDX-License-Identifier: MIT */
/*
 * Memory that processes share by fork is stored once: a page that is mapped more
 * than once is known by the number of its frame, and where it was stored first is
 * where all others find it. The tree stands still, but the kernel may move pages
 * between frames all the time, so a frame only says whom to compare with.
 */
#include <string.h>

#include "mem.h"

#define FRAME	  ((1ull << 55) - 1)
#define EXCLUSIVE (1ull << 56) /* mapped once */
#define PRESENT	  (1ull << 63)
/* Frames of one allocation follow each other, and so do their slots. */
#define BLOCK 64u

uint64_t mem_once_frame(uint64_t entry)
{
	return entry & PRESENT && !(entry & EXCLUSIVE) ? entry & FRAME : 0;
}

/* Open addressing; the size is a power of two, and half of it stays free. */
static size_t slot_of(const struct mem_once *o, uint64_t frame)
{
	size_t block = (size_t)((frame / BLOCK) * 0x9e3779b97f4a7c15ull >> 20) * BLOCK;
	size_t i = (block + frame % BLOCK) & (o->size - 1);

	while (o->page[i].frame && o->page[i].frame != frame)
		i = (i + 1) & (o->size - 1);
	return i;
}

const struct mem_once_page *mem_once_find(const struct mem_once *o, uint64_t frame)
{
	const struct mem_once_page *p;

	if (!o->n || !frame)
		return NULL;
	p = &o->page[slot_of(o, frame)];
	return p->frame ? p : NULL;
}

static int enlarge(struct mem_once *o, struct ckpt_error *err)
{
	struct mem_once old = *o;

	o->size = old.size ? old.size * 2 : 4096;
	o->page = calloc(o->size, sizeof(*o->page));
	if (!o->page) {
		*o = old;
		return ckpt_fail(err, ENOMEM, "out of memory");
	}
	for (size_t i = 0; i < old.size; i++)
		if (old.page[i].frame)
			o->page[slot_of(o, old.page[i].frame)] = old.page[i];
	free(old.page);
	return 0;
}

int mem_once_add(struct mem_once *o, const struct mem_once_page *p, struct ckpt_error *err)
{
	size_t i;
	int r = o->n * 2 >= o->size ? enlarge(o, err) : 0;

	if (r < 0 || !p->frame)
		return r;
	i = slot_of(o, p->frame);
	if (!o->page[i].frame)
		o->n++;
	o->page[i] = *p;
	return 0;
}

void mem_once_free(struct mem_once *o)
{
	free(o->page);
	*o = (struct mem_once){ 0 };
}
