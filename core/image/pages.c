/* SPDX-License-Identifier: MIT */
/* Page files of an image being written. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "image/writer.h"

static const struct ckpt_pages *find_pages(const struct image_writer *w, const char *name)
{
	for (size_t i = 0; i < w->n_pages; i++)
		if (strcmp(w->pages[i]->owner, name) == 0)
			return w->pages[i];
	return NULL;
}

static struct ckpt_pages *new_pages(struct image_writer *w)
{
	struct ckpt_pages **grown = reallocarray(w->pages, w->n_pages + 1, sizeof(*grown));
	struct ckpt_pages *p = calloc(1, sizeof(*p));

	if (grown)
		w->pages = grown;
	if (p)
		p->out = calloc(1, sizeof(*p->out));
	if (grown && p && p->out)
		return p;
	if (p)
		free(p->out);
	free(p);
	return NULL;
}

int image_writer_pages(struct image_writer *w, const char *name, struct ckpt_pages **out,
		       struct ckpt_error *err)
{
	struct ckpt_pages *p;
	int r;

	if (!image_name_ok(name) || find_pages(w, name))
		return ckpt_fail(err, EINVAL, "\"%s\" cannot be the name of a new page file", name);
	if (w->n_pages >= IMAGE_FILES_MAX / 2)
		return ckpt_fail(err, E2BIG, "more than %u page files", IMAGE_FILES_MAX / 2);
	p = new_pages(w);
	if (!p)
		return ckpt_fail_sys(err, ENOMEM, "page file %s", name);
	memcpy(p->owner, name, strlen(name) + 1);
	r = image_writer_file(w, IMAGE__FILE__KIND__PAGES, name, p->out, err);
	p->out->paged = true;
	if (r < 0) {
		if (p->out->hash)
			image_out_close(p->out);
		free(p->out);
		free(p);
		return r;
	}
	w->pages[w->n_pages++] = p;
	*out = p;
	return 0;
}

int image_writer_reopen(const struct image_writer *w, const char *name, int *fd, uint64_t *size,
			struct ckpt_error *err)
{
	const struct ckpt_pages *p = find_pages(w, name);

	if (!p)
		return ckpt_fail(err, ENOENT, "the image has no page file %s", name);
	return image_file_open(w->dir, p->out->name, size, fd, err);
}

struct ckpt_pages *image_pages_discard(void)
{
	static const struct ckpt_pages discard;

	/* without a file behind, appending only reads it */
	return (struct ckpt_pages *)&discard;
}

int ckpt_pages_reserve(struct ckpt_pages *pages, size_t len, uint64_t *offset,
		       struct ckpt_error *err)
{
	const uint64_t whole = ((uint64_t)len + IMAGE_PAGE - 1) / IMAGE_PAGE * IMAGE_PAGE;
	struct image_out *o = pages->out;

	*offset = 0;
	if (!o)
		return 0;
	if (whole > IMAGE_PAGES_MAX - o->size)
		return ckpt_fail(err, E2BIG, "%s would be larger than %llu bytes", o->name,
				 (unsigned long long)IMAGE_PAGES_MAX);
	*offset = o->size;
	o->size += whole;
	return 0;
}

int ckpt_pages_write(struct ckpt_pages *pages, uint64_t offset, const void *data, size_t len,
		     struct ckpt_error *err)
{
	const size_t tail = len % IMAGE_PAGE, whole = len - tail;
	struct image_out *o = pages->out;
	uint8_t last[IMAGE_PAGE];
	int e, r;

	if (!o)
		return 0;
	e = __atomic_load_n(&o->failed, __ATOMIC_RELAXED);
	if (e)
		return ckpt_fail_sys(err, e, "%s could not be written before", o->name);
	r = image_out_write_pages(o, offset, data, whole, err);
	if (r < 0 || !tail)
		return r;
	memcpy(last, (const uint8_t *)data + whole, tail);
	memset(last + tail, 0, sizeof(last) - tail);
	return image_out_write_pages(o, offset + whole, last, sizeof(last), err);
}

int ckpt_pages_append(struct ckpt_pages *pages, const void *data, size_t len, uint64_t *offset,
		      struct ckpt_error *err)
{
	int r = ckpt_pages_reserve(pages, len, offset, err);

	return r < 0 ? r : ckpt_pages_write(pages, *offset, data, len, err);
}
