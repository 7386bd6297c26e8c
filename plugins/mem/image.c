/* SPDX-License-Identifier: MIT */
/* The records of an image, brought together by task, and the state that holds them. */
#include <stdio.h>
#include <string.h>

#include "family.h"

int mem_state_get(struct ckpt_run *run, struct mem_state **out, struct ckpt_error *err)
{
	struct mem_state *st = ckpt_state(run);

	if (!st) {
		st = calloc(1, sizeof(*st));
		if (!st)
			return ckpt_fail(err, ENOMEM, "out of memory");
		st->run = run;
		ckpt_state_set(run, st);
	}
	*out = st;
	return 0;
}

void mem_state_free(void *state)
{
	struct mem_state *st = state;

	if (!st)
		return;
	for (size_t i = 0; i < st->n_spaces; i++)
		mem_maps_free(&st->spaces[i].maps);
	for (size_t i = 0; i < st->n_files; i++) {
		free(st->files[i].path);
		free(st->files[i].seen);
		free(st->files[i].maps_path);
	}
	for (size_t i = 0; i < st->n_shared; i++)
		close(st->shared[i].fd);
	free(st->spaces);
	free(st->files);
	free(st->shared);
	mem_family_free(st->family);
	mem_image_free(st->image);
	free(st);
}

void mem_image_free(struct mem_image *im)
{
	if (!im)
		return;
	free(im->tasks);
	free(im->files);
	free(im->shared);
	free(im->ghost);
	free(im);
}

static int by_id(const void *a, const void *b)
{
	const struct mem_task_image *x = a, *y = b;

	return x->id < y->id ? -1 : x->id > y->id;
}

const struct mem_task_image *mem_image_task(const struct mem_image *im, uint32_t id)
{
	struct mem_task_image key = { .id = id };

	return im->n_tasks ? bsearch(&key, im->tasks, im->n_tasks, sizeof(key), by_id) : NULL;
}

static int load_tasks(struct ckpt_run *run, struct mem_image *im, struct ckpt_error *err)
{
	size_t n = ckpt_record_count(run, "mem.mm");

	if (ckpt_record_count(run, "mem.vmas") != n || ckpt_record_count(run, "mem.pages") != n)
		return ckpt_fail_image(err, "tasks, mappings and pages are not equal in number");
	im->tasks = calloc(n ? n : 1, sizeof(*im->tasks));
	if (!im->tasks)
		return ckpt_fail(err, ENOMEM, "out of memory");
	for (size_t i = 0; i < n; i++) {
		struct mem_task_image *t = &im->tasks[i];

		/* the writer puts all three in order of tasks */
		t->space = ckpt_record_at(run, "mem.mm", i);
		t->vmas = ckpt_record_at(run, "mem.vmas", i);
		t->pages = ckpt_record_at(run, "mem.pages", i);
		t->id = t->space->id;
		if (t->vmas->id != t->id || t->pages->id != t->id || (i && t[-1].id >= t->id))
			return ckpt_fail_image(err, "mappings of task %u are out of order", t->id);
	}
	im->n_tasks = n;
	return 0;
}

/*
 * Ids start at 1 and rise; a file that is not in the image (it was left out)
 * leaves a gap. Gaps are bounded by what the ids of real images can be.
 */
static int load_table(struct ckpt_run *run, const char *type, const void ***table, size_t *len,
		      struct ckpt_error *err)
{
	size_t n = ckpt_record_count(run, type), max = 0;

	for (size_t i = 0; i < n; i++) {
		/* both File and Shared begin with their id */
		uint32_t id = *(const uint32_t *)((const char *)ckpt_record_at(run, type, i) +
						  sizeof(ProtobufCMessage));

		if (id <= max || id > (1u << 24))
			return ckpt_fail_image(err, "%s: id %u is out of order", type, id);
		max = id;
	}
	*table = calloc(max ? max : 1, sizeof(**table));
	if (!*table)
		return ckpt_fail(err, ENOMEM, "out of memory");
	*len = max;
	for (size_t i = 0; i < n; i++) {
		const void *rec = ckpt_record_at(run, type, i);

		(*table)[*(const uint32_t *)((const char *)rec + sizeof(ProtobufCMessage)) - 1] =
			rec;
	}
	return 0;
}

_Static_assert(offsetof(mem_file_rec, id) == sizeof(ProtobufCMessage), "id is first");
_Static_assert(offsetof(mem_shared_rec, id) == sizeof(ProtobufCMessage), "id is first");

static int find_ghosts(struct mem_image *im, struct ckpt_error *err)
{
	im->ghost = calloc(im->n_shared + 1, sizeof(*im->ghost));
	if (!im->ghost)
		return ckpt_fail(err, ENOMEM, "out of memory");
	for (size_t i = 0; i < im->n_files; i++) {
		const mem_file_rec *f = im->files[i];

		if (!f || !f->ghost)
			continue;
		if (!f->content || f->content > im->n_shared || im->ghost[f->content - 1])
			return ckpt_fail_image(err, "file %u: there is no content %u of its own",
					       f->id, f->content);
		im->ghost[f->content - 1] = f;
	}
	return 0;
}

int mem_image_load(struct ckpt_run *run, struct mem_image **out, struct ckpt_error *err)
{
	struct mem_image *im = calloc(1, sizeof(*im));
	int r;

	if (!im)
		return ckpt_fail(err, ENOMEM, "out of memory");
	r = load_tasks(run, im, err);
	if (!r)
		r = load_table(run, "mem.file", (const void ***)&im->files, &im->n_files, err);
	if (!r)
		r = load_table(run, "mem.shared", (const void ***)&im->shared, &im->n_shared, err);
	if (!r)
		r = find_ghosts(im, err);
	if (r < 0) {
		mem_image_free(im);
		return r;
	}
	*out = im;
	return 0;
}

const char *mem_rec_name(const struct mem_image *im, const mem_vma_rec *v, char *buf, size_t size)
{
	bool file = v->kind == MEM_FILE_PRIVATE || v->kind == MEM_FILE_SHARED;
	const char *what = v->name;

	if (file && v->object && v->object <= im->n_files && im->files[v->object - 1])
		what = im->files[v->object - 1]->path;
	snprintf(buf, size, "mapping %llx-%llx%s%s", (unsigned long long)v->start,
		 (unsigned long long)v->end, what[0] ? " " : "", what);
	return buf;
}

bool mem_rec_mergeable(const mem_vma_rec *a, const mem_vma_rec *b)
{
	if (a->end != b->start || a->kind != b->kind || a->prot != b->prot ||
	    a->flags != b->flags || strcmp(a->name, b->name))
		return false;
	switch (a->kind) {
	case MEM_PRIVATE_ANON:
		/* a stack that grows has an end of its own */
		return !(a->flags & (MEM_GROWSDOWN | MEM_HUGETLB));
	case MEM_SHARED_ANON:
	case MEM_FILE_PRIVATE:
	case MEM_FILE_SHARED:
		return a->object == b->object && a->offset + (a->end - a->start) == b->offset;
	default:
		return false;
	}
}
