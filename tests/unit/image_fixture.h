/* SPDX-License-Identifier: MIT */
/* What the tests of core/image share: a scratch directory, types, a small image. */
#ifndef CKPT_TESTS_IMAGE_FIXTURE_H
#define CKPT_TESTS_IMAGE_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ckpt/cleanup.h>

#include "image/image.h"
#include "unit.pb-c.h"

enum { THING = 1, PLAIN = 2, LOOP = 3 };

static const struct ckpt_record_type fix_types[] = {
	{ THING, "thing", &unit__thing__descriptor },
	{ PLAIN, "plain", &unit__plain__descriptor },
	{ 0, NULL, NULL },
};

static const struct ckpt_field_rule fix_rules[] = {
	{ "Thing", "inode", CKPT_EQ_VOLATILE },
	{ "Inner", "time", CKPT_EQ_DIFF },
	{ NULL, NULL, CKPT_EQ_VOLATILE },
};

/* A scratch directory, and an image's place in it that does not exist yet. */
struct fixture {
	char base[64];
	char dir[128];
	struct ckpt_error err;
};

static inline int fix_setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	assert_non_null(f);
	strcpy(f->base, "/tmp/ckpt-unit-XXXXXX");
	assert_non_null(mkdtemp(f->base));
	snprintf(f->dir, sizeof(f->dir), "%s/img", f->base);
	*state = f;
	return 0;
}

static inline int fix_remove(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

static inline int fix_teardown(void **state)
{
	struct fixture *f = *state;

	nftw(f->base, fix_remove, 8, FTW_DEPTH | FTW_PHYS);
	free(f);
	return 0;
}

#define fix_test(fn) cmocka_unit_test_setup_teardown(fn, fix_setup, fix_teardown)

#define assert_ok(f, expr)                                                  \
	do {                                                                \
		int fix_r = (expr);                                         \
		if (fix_r < 0)                                              \
			fail_msg("%s: %d %s", #expr, fix_r, (f)->err.text); \
	} while (0)

static inline struct image_section *fix_section(struct image_store *st, const char *plugin)
{
	struct image_section *sec = image_section_add(st, plugin, fix_types, fix_rules);

	assert_non_null(sec);
	return sec;
}

static inline void fix_put_plain(struct image_section *sec, const char *text)
{
	struct ckpt_error err = { 0 };
	Unit__Plain p = UNIT__PLAIN__INIT;

	p.text = (char *)text;
	assert_int_equal(image_put(sec, PLAIN, &p.base, &err), 0);
}

static inline void fix_put_thing(struct image_section *sec, uint32_t id, const char *name)
{
	struct ckpt_error err = { 0 };
	Unit__Thing t = UNIT__THING__INIT;

	t.id = id;
	t.name = (char *)name;
	assert_int_equal(image_put(sec, THING, &t.base, &err), 0);
}

/* An image of two plugins and one page file of two pages, the second of them partly filled. */
static inline int fix_write(struct fixture *f, bool force, const char *text)
{
	struct image_writer *w;
	struct ckpt_pages *pages;
	struct image_store st;
	struct image_info info = { .root_pid = 42 };
	uint8_t data[5000];
	uint64_t off;
	int r = image_create(f->dir, force, &w, &f->err);

	if (r < 0)
		return r;
	memset(data, 'x', sizeof(data));
	image_store_init(&st);
	fix_put_thing(fix_section(&st, "alpha"), 1, text);
	fix_put_thing(st.sections[0], 2, "two");
	fix_put_plain(fix_section(&st, "beta"), text);
	assert_int_equal(image_writer_pages(w, "1", &pages, &f->err), 0);
	assert_int_equal(ckpt_pages_append(pages, data, sizeof(data), &off, &f->err), 0);
	r = image_commit(w, &st, &info, NULL, &f->err);
	image_writer_free(w);
	image_info_free(&info);
	image_store_free(&st);
	return r;
}

/* Open and load everything. */
static inline int fix_read(struct fixture *f, char *text, size_t size)
{
	struct image_reader *r;
	struct image_store st;
	const Unit__Plain *p;
	int ret = image_open(f->dir, &r, &f->err);

	if (ret < 0)
		return ret;
	image_store_init(&st);
	ret = image_load(r, fix_section(&st, "alpha"), &f->err);
	if (ret == 0)
		ret = image_load(r, fix_section(&st, "beta"), &f->err);
	if (ret == 0) {
		p = (const Unit__Plain *)image_at(&st, "beta.plain", 0);
		assert_non_null(p);
		if (text)
			snprintf(text, size, "%s", p->text);
	}
	image_store_free(&st);
	image_reader_free(r);
	return ret;
}

static inline void fix_path(const struct fixture *f, const char *name, char path[256])
{
	snprintf(path, 256, "%s/%s", f->dir, name);
}

static inline uint8_t *fix_slurp(const struct fixture *f, const char *name, size_t *len)
{
	char path[256];
	struct stat st;
	uint8_t *buf;
	int fd;

	fix_path(f, name, path);
	fd = open(path, O_RDONLY);
	assert_true(fd >= 0);
	assert_int_equal(fstat(fd, &st), 0);
	buf = malloc((size_t)st.st_size + 1);
	assert_non_null(buf);
	assert_int_equal(read(fd, buf, (size_t)st.st_size), st.st_size);
	close(fd);
	*len = (size_t)st.st_size;
	return buf;
}

static inline void fix_spill(const struct fixture *f, const char *name, const void *buf, size_t len)
{
	char path[256];
	int fd;

	fix_path(f, name, path);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, buf, len), (ssize_t)len);
	close(fd);
}

static inline bool fix_exists(const struct fixture *f, const char *name)
{
	char path[256];

	fix_path(f, name, path);
	return access(path, F_OK) == 0;
}

static inline size_t fix_count_files(const struct fixture *f)
{
	CKPT_AUTO_DIR DIR *d = opendir(f->dir);
	size_t n = 0;

	while (d && readdir(d))
		n++;
	return n > 2 ? n - 2 : 0;
}

/* The image must be refused as such, in words that have `text` in them. */
static inline void fix_bad(struct fixture *f, const char *text)
{
	f->err = (struct ckpt_error){ 0 };
	assert_true(fix_read(f, NULL, 0) < 0);
	assert_int_equal(f->err.exit, CKPT_EXIT_IMAGE);
	if (!strstr(f->err.text, text))
		fail_msg("\"%s\" is not in \"%s\"", text, f->err.text);
}

#endif
