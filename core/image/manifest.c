/* SPDX-License-Identifier: MIT */
/* Reading the manifest. It proves itself; the files that it lists are the reader's. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "image/internal.h"

#define MANIFEST_MAX ((uint64_t)IMAGE_PAYLOAD_MAX + 4096)

void image_uuid_text(const uint8_t uuid[16], char text[40])
{
	char *p = text;

	for (int i = 0; i < 16; i++)
		p += sprintf(p, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
			     uuid[i]);
}

bool image_uuid_ok(const char *text)
{
	for (size_t i = 0; i < 36; i++)
		if (i == 8 || i == 13 || i == 18 || i == 23
			    ? text[i] != '-'
			    : !strchr("0123456789abcdef", text[i]) || !text[i])
			return false;
	return !text[36];
}

static int decode(const uint8_t *data, size_t len, Image__Manifest **out, uint8_t uuid[16],
		  struct ckpt_error *err)
{
	size_t n, budget = IMAGE_MEMORY_MAX;
	struct frame_reader fr;
	ProtobufCMessage *msg;
	const uint8_t *payload;
	uint32_t number;
	const char *why;
	int r = frame_read_start(&fr, IMAGE_MANIFEST_FILE, data, len, IMAGE_MANIFEST, NULL, err);

	if (r == 0)
		r = frame_read(&fr, &number, &payload, &n, err);
	if (r < 0)
		return r;
	if (r == 0 || number != IMAGE_FRAME_MANIFEST)
		return image_bad(err, "%s has no manifest record", IMAGE_MANIFEST_FILE);
	why = image_decode(&image__manifest__descriptor, payload, n, &budget, &msg);
	if (why)
		return image_bad(err, "%s: its record %s", IMAGE_MANIFEST_FILE, why);
	*out = (Image__Manifest *)msg;
	memcpy(uuid, fr.header.uuid, sizeof(fr.header.uuid));
	r = frame_read(&fr, &number, &payload, &n, err);
	if (r > 0)
		return image_bad(err, "%s has a second record", IMAGE_MANIFEST_FILE);
	return r;
}

bool image_text_ok(const char *s)
{
	size_t n;

	for (; *s; s += n) {
		n = utf8_len(s);
		if (!n || utf8_is_control(s, n))
			return false;
	}
	return true;
}

static int check_texts(const Image__Manifest *m, struct ckpt_error *err)
{
	bool ok = image_text_ok(m->ckpt_version) && image_text_ok(m->kernel_release) &&
		  image_text_ok(m->kernel_version) && image_text_ok(m->machine) &&
		  image_text_ok(m->hostname);

	for (size_t i = 0; ok && i < m->n_losses; i++)
		ok = image_text_ok(m->losses[i]);
	for (size_t i = 0; ok && i < m->n_files; i++)
		ok = image_text_ok(m->files[i]->version);
	return ok ? 0
		  : image_bad(err, "%s has control characters in its texts", IMAGE_MANIFEST_FILE);
}

static int check_file(const Image__File *f, struct ckpt_error *err)
{
	const bool pages = f->kind == IMAGE__FILE__KIND__PAGES;

	if (!image_file_name_ok(f->name))
		return image_bad(err, "%s lists a file with a name that no image has",
				 IMAGE_MANIFEST_FILE);
	if (!image_name_ok(f->owner) || (!pages && strcmp(f->owner, IMAGE_MANIFEST) == 0))
		return image_bad(err, "%s: %s has an owner with a bad name", IMAGE_MANIFEST_FILE,
				 f->name);
	if (f->size > (pages ? IMAGE_PAGES_MAX : IMAGE_FILE_MAX))
		return image_bad(err, "%s: %s is too large: %llu bytes", IMAGE_MANIFEST_FILE,
				 f->name, (unsigned long long)f->size);
	if (pages && f->size % IMAGE_PAGE)
		return image_bad(err, "%s: %s does not consist of pages: %llu bytes",
				 IMAGE_MANIFEST_FILE, f->name, (unsigned long long)f->size);
	return 0;
}

static int by_name(const void *a, const void *b)
{
	return strcmp((*(Image__File *const *)a)->name, (*(Image__File *const *)b)->name);
}

static int by_owner(const void *a, const void *b)
{
	const Image__File *x = *(Image__File *const *)a, *y = *(Image__File *const *)b;

	return x->kind != y->kind ? (x->kind < y->kind ? -1 : 1) : strcmp(x->owner, y->owner);
}

static int check_unique(const Image__Manifest *m, int (*cmp)(const void *, const void *),
			struct ckpt_error *err)
{
	CKPT_AUTO_FREE Image__File **sorted = calloc(m->n_files + 1, sizeof(*sorted));

	if (!sorted)
		return ckpt_fail_sys(err, ENOMEM, "%s", IMAGE_MANIFEST_FILE);
	for (size_t i = 0; i < m->n_files; i++)
		sorted[i] = m->files[i];
	qsort(sorted, m->n_files, sizeof(*sorted), cmp);
	for (size_t i = 1; i < m->n_files; i++)
		if (cmp(&sorted[i - 1], &sorted[i]) == 0)
			return image_bad(err, "%s lists %s twice", IMAGE_MANIFEST_FILE,
					 sorted[i]->name);
	return 0;
}

static int check_ancestors(const Image__Manifest *m, struct ckpt_error *err)
{
	if (m->n_ancestors > IMAGE_ANCESTORS_MAX)
		return image_bad(err, "%s lists more than %u ancestors", IMAGE_MANIFEST_FILE,
				 IMAGE_ANCESTORS_MAX);
	for (size_t i = 0; i < m->n_ancestors; i++)
		if (!image_uuid_ok(m->ancestors[i]->uuid))
			return image_bad(err, "%s has an ancestor without a uuid",
					 IMAGE_MANIFEST_FILE);
	return 0;
}

static int check(const Image__Manifest *m, const uint8_t uuid[16], struct ckpt_error *err)
{
	char text[40];
	int r = 0;

	image_uuid_text(uuid, text);
	if (strcmp(m->uuid, text) != 0)
		return image_bad(err, "%s has two different uuids", IMAGE_MANIFEST_FILE);
	if (m->root_pid < 0)
		return image_bad(err, "%s has a bad root pid: %d", IMAGE_MANIFEST_FILE,
				 m->root_pid);
	if (m->n_files > IMAGE_FILES_MAX)
		return image_bad(err, "%s lists more than %u files", IMAGE_MANIFEST_FILE,
				 IMAGE_FILES_MAX);
	for (size_t i = 0; r == 0 && i < m->n_files; i++)
		r = check_file(m->files[i], err);
	if (r == 0)
		r = check_texts(m, err);
	if (r == 0)
		r = check_ancestors(m, err);
	if (r == 0)
		r = check_unique(m, by_name, err);
	if (r == 0)
		r = check_unique(m, by_owner, err);
	return r;
}

int image_manifest_read(int dir, const char *name, Image__Manifest **out, uint8_t uuid[16],
			struct ckpt_error *err)
{
	IMAGE_AUTO_MANIFEST Image__Manifest *m = NULL;
	CKPT_AUTO_FREE uint8_t *buf = NULL;
	size_t len;
	int r = image_file_slurp(dir, name, MANIFEST_MAX, &buf, &len, err);

	if (r == 0)
		r = decode(buf, len, &m, uuid, err);
	if (r == 0)
		r = check(m, uuid, err);
	if (r < 0)
		return r;
	*out = m;
	m = NULL;
	return 0;
}
