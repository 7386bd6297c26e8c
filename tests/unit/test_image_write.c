/* SPDX-License-Identifier: MIT */
/* Writing images: round trip, modes, replacing, and what unfinished dumps leave behind. */
#include <sys/wait.h>

#include "image_fixture.h"
#include "image/internal.h"

static void round_trip(void **state)
{
	struct fixture *f = *state;
	struct image_reader *r;
	struct image_store st;
	const char *version = NULL;
	const Unit__Thing *t;
	uint64_t size;
	uint8_t page[8192];
	int fd;

	assert_ok(f, fix_write(f, false, "hello"));
	assert_ok(f, image_open(f->dir, &r, &f->err));
	assert_int_equal(image_reader_info(r)->root_pid, 42);
	assert_int_equal(strlen(image_reader_info(r)->uuid), 36);
	assert_true(image_reader_info(r)->created_ns > 0);
	assert_string_equal(image_reader_info(r)->machine, "x86_64");
	assert_string_equal(image_reader_plugin(r, 0, &version), "alpha");
	assert_string_equal(version, "");
	assert_string_equal(image_reader_plugin(r, 1, NULL), "beta");
	assert_null(image_reader_plugin(r, 2, NULL));

	image_store_init(&st);
	assert_ok(f, image_load(r, fix_section(&st, "alpha"), &f->err));
	assert_int_equal(image_count(&st, "alpha.thing"), 2);
	t = (const Unit__Thing *)image_at(&st, "alpha.thing", 0);
	assert_int_equal(t->id, 1);
	assert_string_equal(t->name, "hello");
	assert_int_equal(image_load(r, fix_section(&st, "gamma"), &f->err), -ENOENT);
	image_store_free(&st);

	assert_ok(f, image_reader_pages(r, "1", &fd, &size, &f->err));
	assert_int_equal(size, 8192);
	assert_int_equal(pread(fd, page, sizeof(page), 0), 8192);
	assert_int_equal(page[4999], 'x');
	assert_int_equal(page[5000], 0);
	assert_int_equal(page[8191], 0);
	assert_int_equal(write(fd, page, 1), -1);
	close(fd);
	assert_int_equal(image_reader_pages(r, "2", &fd, &size, &f->err), -ENOENT);
	image_reader_free(r);
}

static void versions_and_losses_are_kept(void **state)
{
	struct fixture *f = *state;
	char loss[] = "mem: \x1b[\xc2\x9b\xffx\n";
	char *losses[] = { (char *)"fd.tcp: fd 7", loss };
	struct image_ancestor from = { "01234567-89ab-cdef-0123-456789abcdef", 3, 4, 7 };
	struct image_info info = { .losses = losses,
				   .n_losses = 2,
				   .created_ns = 5,
				   .ancestors = &from,
				   .n_ancestors = 1 };
	struct image_writer *w;
	struct image_reader *r;
	struct image_store st;
	const char *version;
	uint64_t bytes = 0;

	image_store_init(&st);
	fix_section(&st, "alpha")->version = strdup("1.2");
	assert_ok(f, image_create(f->dir, false, &w, &f->err));
	assert_ok(f, image_commit(w, &st, &info, &bytes, &f->err));
	assert_true(bytes > 2 * sizeof(struct image_file_header));
	image_writer_free(w);
	image_store_free(&st);
	assert_ok(f, image_open(f->dir, &r, &f->err));
	assert_string_equal(image_reader_info(r)->uuid, info.uuid);
	assert_int_equal(image_reader_info(r)->n_losses, 2);
	assert_string_equal(image_reader_info(r)->losses[1], "mem: ?[???x?");
	assert_int_equal(image_reader_info(r)->created_ns, 5);
	assert_int_equal(image_reader_info(r)->n_ancestors, 1);
	assert_string_equal(image_reader_info(r)->ancestors[0].uuid, from.uuid);
	assert_int_equal(image_reader_info(r)->ancestors[0].created_ns, 3);
	assert_int_equal(image_reader_info(r)->ancestors[0].restored_ns, 4);
	assert_int_equal(image_reader_info(r)->ancestors[0].copy, 7);
	image_reader_plugin(r, 0, &version);
	assert_string_equal(version, "1.2");
	image_reader_free(r);
	info.losses = NULL;
	info.n_losses = 0;
	info.ancestors = NULL;
	image_info_free(&info);
}

static mode_t mode_of(const char *path)
{
	struct stat st;

	assert_int_equal(stat(path, &st), 0);
	return st.st_mode & 07777;
}

static void modes(void **state)
{
	struct fixture *f = *state;
	mode_t mask = umask(0);
	char path[256];

	assert_ok(f, fix_write(f, false, "x"));
	umask(mask);
	assert_int_equal(mode_of(f->dir), 0700);
	fix_path(f, "manifest.img", path);
	assert_int_equal(mode_of(path), 0600);
	fix_path(f, "alpha.img", path);
	assert_int_equal(mode_of(path), 0600);
	fix_path(f, "pages-1.raw", path);
	assert_int_equal(mode_of(path), 0600);
	assert_int_equal(fix_count_files(f), 4);
}

static void refused_directories(void **state)
{
	struct fixture *f = *state;
	struct image_writer *w;

	assert_int_equal(mkdir(f->dir, 0700), 0);
	assert_int_equal(chmod(f->dir, 01777), 0);
	assert_int_equal(image_create(f->dir, false, &w, &f->err), -EPERM);
	assert_true(f->err.hint[0] != '\0');
	assert_int_equal(chmod(f->dir, 0770), 0);
	assert_int_equal(image_create(f->dir, false, &w, &f->err), -EPERM);
	assert_int_equal(chmod(f->dir, 0755), 0);
	assert_ok(f, image_create(f->dir, false, &w, &f->err));
	image_writer_free(w);
	if (geteuid() == 0) {
		assert_int_equal(chown(f->dir, 12345, 12345), 0);
		assert_int_equal(image_create(f->dir, false, &w, &f->err), -EPERM);
	}
	strcat(f->dir, "/not/there");
	assert_int_equal(image_create(f->dir, false, &w, &f->err), -ENOENT);
	snprintf(f->dir, sizeof(f->dir), "%s/file", f->base);
	close(open(f->dir, O_CREAT | O_WRONLY, 0600));
	assert_int_equal(image_create(f->dir, false, &w, &f->err), -ENOTDIR);
}

static void one_writer_at_a_time(void **state)
{
	struct fixture *f = *state;
	struct image_writer *w, *other;

	assert_ok(f, image_create(f->dir, false, &w, &f->err));
	assert_int_equal(image_create(f->dir, true, &other, &f->err), -EBUSY);
	image_writer_free(w);
	assert_int_equal(access(f->dir, F_OK), -1);
}

static void given_up_leaves_nothing(void **state)
{
	struct fixture *f = *state;
	struct image_writer *w;
	struct ckpt_pages *p;
	uint64_t off;

	assert_int_equal(mkdir(f->dir, 0700), 0);
	fix_spill(f, "mine.txt", "x", 1);
	assert_ok(f, image_create(f->dir, false, &w, &f->err));
	assert_ok(f, image_writer_pages(w, "1", &p, &f->err));
	assert_ok(f, ckpt_pages_append(p, "abc", 3, &off, &f->err));
	assert_true(fix_exists(f, "pages-1.raw"));
	image_writer_free(w);
	assert_int_equal(fix_count_files(f), 1);
	assert_true(fix_exists(f, "mine.txt"));
}

static void replacing_needs_force(void **state)
{
	struct fixture *f = *state;
	char text[32];

	assert_ok(f, fix_write(f, false, "old"));
	assert_int_equal(fix_write(f, false, "new"), -EEXIST);
	assert_non_null(strstr(f->err.hint, "--force"));
	assert_ok(f, fix_read(f, text, sizeof(text)));
	assert_string_equal(text, "old");
	for (int i = 0; i < 3; i++) {
		assert_ok(f, fix_write(f, true, i % 2 ? "odd" : "even"));
		assert_ok(f, fix_read(f, text, sizeof(text)));
		assert_string_equal(text, i % 2 ? "odd" : "even");
		assert_int_equal(fix_count_files(f), 4);
	}
}

static void old_image_lives_until_the_commit(void **state)
{
	struct fixture *f = *state;
	struct image_writer *w;
	struct ckpt_pages *p;
	uint64_t off;
	char text[32];

	assert_ok(f, fix_write(f, false, "old"));
	assert_ok(f, image_create(f->dir, true, &w, &f->err));
	assert_ok(f, image_writer_pages(w, "1", &p, &f->err));
	assert_ok(f, ckpt_pages_append(p, "new", 3, &off, &f->err));
	assert_ok(f, fix_read(f, text, sizeof(text)));
	image_writer_free(w);
	assert_ok(f, fix_read(f, text, sizeof(text)));
	assert_string_equal(text, "old");
	assert_int_equal(fix_count_files(f), 4);
}

/* Dump in a child that ends without a word, as by SIGKILL. */
static void killed_dump(struct fixture *f, bool force)
{
	pid_t pid = fork();
	int status;

	assert_true(pid >= 0);
	if (pid == 0) {
		struct image_writer *w;
		struct ckpt_pages *p;
		uint64_t off;

		if (image_create(f->dir, force, &w, &f->err) < 0 ||
		    image_writer_pages(w, "1", &p, &f->err) < 0 ||
		    ckpt_pages_append(p, "new", 3, &off, &f->err) < 0)
			_exit(1);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void leftovers_of_a_killed_dump_go(void **state)
{
	struct fixture *f = *state;
	char text[32];

	killed_dump(f, false);
	assert_int_equal(fix_count_files(f), 2);
	fix_bad(f, "is not an image");
	fix_spill(f, "disk.img", "x", 1);
	fix_spill(f, "pages-2.raw", "x", 1);
	assert_ok(f, fix_write(f, false, "then"));
	assert_int_equal(fix_count_files(f), 6);
	assert_true(fix_exists(f, "disk.img") && fix_exists(f, "pages-2.raw"));

	killed_dump(f, true);
	assert_int_equal(fix_count_files(f), 8);
	assert_ok(f, fix_read(f, text, sizeof(text)));
	assert_string_equal(text, "then");
	assert_ok(f, fix_write(f, true, "last"));
	assert_int_equal(fix_count_files(f), 6);
	assert_ok(f, fix_read(f, text, sizeof(text)));
	assert_string_equal(text, "last");
}

/* Killed between the rename of the manifest and the removal of the old files. */
static void leftovers_of_a_killed_sweep_go(void **state)
{
	static const char journal[] = "ckpt journal 1\nalpha.img\nbeta.img\nold.img\n../x.img\n"
				      "manifest.img\nmine.txt\nunfin";
	struct fixture *f = *state;

	assert_ok(f, fix_write(f, false, "new"));
	fix_spill(f, "old.img", "x", 1);
	fix_spill(f, "mine.txt", "x", 1);
	fix_spill(f, "../x.img", "x", 1);
	fix_spill(f, ".ckpt-journal", journal, sizeof(journal) - 1);
	assert_ok(f, fix_read(f, NULL, 0));
	assert_ok(f, fix_write(f, true, "newer"));
	assert_false(fix_exists(f, "old.img"));
	assert_true(fix_exists(f, "mine.txt") && fix_exists(f, "../x.img"));
	assert_int_equal(fix_count_files(f), 5);
}

static void foreign_files_are_not_overwritten(void **state)
{
	struct fixture *f = *state;
	size_t len;
	uint8_t *buf;

	assert_int_equal(mkdir(f->dir, 0700), 0);
	fix_spill(f, "beta.img", "mine", 4);
	assert_int_equal(fix_write(f, false, "x"), -EEXIST);
	assert_int_equal(fix_count_files(f), 1);
	buf = fix_slurp(f, "beta.img", &len);
	assert_int_equal(len, 4);
	free(buf);
	fix_spill(f, ".ckpt-journal", "notes", 5);
	assert_int_equal(fix_write(f, false, "x"), -EEXIST);
	assert_int_equal(fix_count_files(f), 2);
}

static void damaged_image_is_not_replaced(void **state)
{
	struct fixture *f = *state;

	assert_ok(f, fix_write(f, false, "x"));
	fix_spill(f, "manifest.img", "nonsense", 8);
	assert_true(fix_write(f, true, "y") < 0);
	assert_int_equal(fix_count_files(f), 4);
}

static void pages(void **state)
{
	struct fixture *f = *state;
	const size_t big = (3 << 20) + 100;
	uint8_t *data = malloc(big), *back;
	struct image_info info = { 0 };
	struct image_writer *w;
	struct image_store st;
	struct ckpt_pages *p, *q;
	uint64_t off, size;
	size_t len;
	int fd;

	assert_non_null(data);
	for (size_t i = 0; i < big; i++)
		data[i] = (uint8_t)(i * 7 + i / 4096);
	image_store_init(&st);
	assert_ok(f, image_create(f->dir, false, &w, &f->err));
	assert_ok(f, image_writer_pages(w, "shm-1", &p, &f->err));
	assert_int_equal(image_writer_pages(w, "shm-1", &q, &f->err), -EINVAL);
	assert_int_equal(image_writer_pages(w, "../x", &q, &f->err), -EINVAL);
	assert_int_equal(image_writer_pages(w, "", &q, &f->err), -EINVAL);
	assert_ok(f, ckpt_pages_append(p, data, 1, &off, &f->err));
	assert_int_equal(off, 0);
	assert_ok(f, ckpt_pages_append(p, data, big, &off, &f->err));
	assert_int_equal(off, 4096);
	assert_ok(f, ckpt_pages_append(p, NULL, 0, &off, &f->err));
	assert_int_equal(off, 4096 + (3 << 20) + 4096);
	assert_ok(f, image_writer_reopen(w, "shm-1", &fd, &size, &f->err));
	assert_int_equal(size, off);
	close(fd);
	assert_int_equal(image_writer_reopen(w, "2", &fd, &size, &f->err), -ENOENT);
	assert_ok(f, image_commit(w, &st, &info, NULL, &f->err));
	image_writer_free(w);
	image_info_free(&info);
	back = fix_slurp(f, "pages-shm-1.raw", &len);
	assert_int_equal(len, off);
	assert_memory_equal(back + 4096, data, big);
	free(back);
	free(data);
}

/* Parts that are written in another order than their places were given out. */
static void pages_in_any_order(void **state)
{
	struct fixture *f = *state;
	struct image_info info = { .root_pid = 1 };
	struct image_writer *w;
	struct image_reader *reader;
	struct image_store st;
	struct ckpt_pages *p;
	uint8_t data[2 * 4096], *back;
	uint64_t first, second;
	size_t len;

	memset(data, 'x', sizeof(data));
	image_store_init(&st);
	assert_ok(f, image_create(f->dir, false, &w, &f->err));
	assert_ok(f, image_writer_pages(w, "any", &p, &f->err));
	assert_ok(f, ckpt_pages_reserve(p, 5000, &first, &f->err));
	assert_ok(f, ckpt_pages_reserve(p, 10, &second, &f->err));
	assert_int_equal(second, 2 * 4096);
	assert_ok(f, ckpt_pages_write(p, second, "0123456789", 10, &f->err));
	assert_ok(f, ckpt_pages_write(p, first, data, 5000, &f->err));
	assert_ok(f, image_commit(w, &st, &info, NULL, &f->err));
	image_writer_free(w);
	image_info_free(&info);
	assert_ok(f, image_open(f->dir, &reader, &f->err));
	image_reader_free(reader);
	back = fix_slurp(f, "pages-any.raw", &len);
	assert_int_equal(len, 3 * 4096);
	assert_memory_equal(back, data, 5000);
	assert_memory_equal(back + second, "0123456789", 11);
	free(back);
}

/* A place that nobody wrote to must not become an image. */
static void pages_that_are_missing(void **state)
{
	struct fixture *f = *state;
	struct image_info info = { .root_pid = 1 };
	struct image_writer *w;
	struct image_store st;
	struct ckpt_pages *p;
	uint64_t off;

	image_store_init(&st);
	assert_ok(f, image_create(f->dir, false, &w, &f->err));
	assert_ok(f, image_writer_pages(w, "any", &p, &f->err));
	assert_ok(f, ckpt_pages_reserve(p, 4096, &off, &f->err));
	assert_int_equal(image_commit(w, &st, &info, NULL, &f->err), -EIO);
	image_writer_free(w);
	image_info_free(&info);
}

static void discarded_pages(void **state)
{
	struct ckpt_error err = { 0 };
	uint64_t off = 1;

	assert_int_equal(ckpt_pages_append(image_pages_discard(), "x", 1, &off, &err), 0);
	assert_int_equal(off, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		fix_test(round_trip),
		fix_test(versions_and_losses_are_kept),
		fix_test(modes),
		fix_test(refused_directories),
		fix_test(one_writer_at_a_time),
		fix_test(given_up_leaves_nothing),
		fix_test(replacing_needs_force),
		fix_test(old_image_lives_until_the_commit),
		fix_test(leftovers_of_a_killed_dump_go),
		fix_test(leftovers_of_a_killed_sweep_go),
		fix_test(foreign_files_are_not_overwritten),
		fix_test(damaged_image_is_not_replaced),
		fix_test(pages),
		fix_test(pages_in_any_order),
		fix_test(pages_that_are_missing),
		cmocka_unit_test(discarded_pages),
	};

	return cmocka_run_group_tests_name("image writing", tests, NULL, NULL);
}
