/* SPDX-License-Identifier: MIT */
/* Reading damaged and hostile images. */
#include "image_fixture.h"
#include "image/internal.h"

static const char *const files[] = { "manifest.img", "alpha.img", "beta.img", "pages-1.raw" };

static void truncated_anywhere(void **state)
{
	struct fixture *f = *state;

	assert_ok(f, fix_write(f, false, "hello"));
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(files); i++) {
		size_t len;
		uint8_t *buf = fix_slurp(f, files[i], &len);

		for (size_t n = 0; n<len; n += len> 4096 ? 97 : 1) {
			fix_spill(f, files[i], buf, n);
			fix_bad(f, files[i]);
		}
		fix_spill(f, files[i], buf, len);
		free(buf);
	}
	assert_ok(f, fix_read(f, NULL, 0));
}

static void flipped_anywhere(void **state)
{
	struct fixture *f = *state;

	assert_ok(f, fix_write(f, false, "hello"));
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(files); i++) {
		size_t len;
		uint8_t *buf = fix_slurp(f, files[i], &len);

		for (size_t n = 0; n<len; n += len> 4096 ? 61 : 1) {
			buf[n] ^= (uint8_t)(1 << n % 8);
			fix_spill(f, files[i], buf, len);
			fix_bad(f, files[i]);
			buf[n] ^= (uint8_t)(1 << n % 8);
		}
		fix_spill(f, files[i], buf, len);
		free(buf);
	}
	assert_ok(f, fix_read(f, NULL, 0));
}

static void longer(void **state)
{
	struct fixture *f = *state;
	char text[100];

	assert_ok(f, fix_write(f, false, "hello"));
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(files); i++) {
		size_t len;
		uint8_t *buf = fix_slurp(f, files[i], &len);

		buf[len] = 0;
		fix_spill(f, files[i], buf, len + 1);
		snprintf(text, sizeof(text), i ? "%s is too long" : "%s has 1 bytes after its end",
			 files[i]);
		fix_bad(f, text);
		fix_spill(f, files[i], buf, len);
		free(buf);
	}
}

static void missing(void **state)
{
	struct fixture *f = *state;

	fix_bad(f, "cannot be opened");
	assert_ok(f, fix_write(f, false, "hello"));
	for (size_t i = CKPT_ARRAY_SIZE(files); i-- > 0;) {
		char path[256];

		fix_path(f, files[i], path);
		assert_int_equal(unlink(path), 0);
		fix_bad(f, i ? "is missing" : "is not an image: there is no manifest.img");
	}
}

static void replaced_by_other_kinds_of_file(void **state)
{
	struct fixture *f = *state;
	char path[256];

	assert_ok(f, fix_write(f, false, "hello"));
	fix_path(f, "beta.img", path);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(mkfifo(path, 0600), 0);
	fix_bad(f, "beta.img is not a regular file");
	assert_int_equal(unlink(path), 0);
	assert_int_equal(symlink("alpha.img", path), 0);
	fix_bad(f, "beta.img is a symbolic link");
	assert_int_equal(unlink(path), 0);
	assert_int_equal(mkdir(path, 0700), 0);
	fix_bad(f, "beta.img is not a regular file");
}

static void says_what_is_wrong(void **state)
{
	struct fixture *f = *state;
	size_t len;
	uint8_t *buf;

	assert_ok(f, fix_write(f, false, "hello"));
	buf = fix_slurp(f, "pages-1.raw", &len);
	fix_spill(f, "pages-1.raw", buf, 4096);
	fix_bad(f, "pages-1.raw is truncated: 4096 bytes, the manifest says 8192");
	buf[0] ^= 1;
	fix_spill(f, "pages-1.raw", buf, len);
	fix_bad(f, "pages-1.raw is damaged: its checksum is not the manifest's");
	free(buf);
}

static void file_of_another_image(void **state)
{
	struct fixture *f = *state;
	struct ckpt_error err = { 0 };
	struct frame_reader fr;
	uint8_t uuid[16] = { 1 };
	size_t len;
	uint8_t *buf;

	assert_ok(f, fix_write(f, false, "hello"));
	buf = fix_slurp(f, "beta.img", &len);
	assert_ok(f, fix_write(f, true, "hello"));
	/* replacing gave the files other names; the same content of another image */
	assert_int_equal(frame_read_start(&fr, "beta.img", buf, len, "beta", uuid, &err), -EBADMSG);
	assert_non_null(strstr(err.text, "belongs to another image"));
	assert_int_equal(frame_read_start(&fr, "beta.img", buf, len, "alpha", NULL, &err),
			 -EBADMSG);
	assert_non_null(strstr(err.text, "instead of"));
	assert_int_equal(frame_read_start(&fr, "beta.img", buf, len, "beta", NULL, &err), 0);
	free(buf);
}

/* ---- frames by themselves: what the manifest's checksum would find first ---- */

struct frames {
	uint8_t *buf;
	size_t len;
	size_t at[8]; /* of the n-th frame, and the end of the last */
};

/* Three records of equal length, and the end. */
static struct frames make_frames(struct fixture *f)
{
	struct ckpt_error err = { 0 };
	struct frames fr = { 0 };
	struct image_writer *w;
	struct image_store st;
	struct image_info info = { 0 };

	image_store_init(&st);
	fix_section(&st, "three");
	fix_put_plain(st.sections[0], "a");
	fix_put_plain(st.sections[0], "b");
	fix_put_plain(st.sections[0], "b");
	assert_int_equal(image_create(f->dir, false, &w, &err), 0);
	assert_int_equal(image_commit(w, &st, &info, NULL, &err), 0);
	image_writer_free(w);
	image_info_free(&info);
	image_store_free(&st);
	fr.buf = fix_slurp(f, "three.img", &fr.len);
	fr.at[0] = sizeof(struct image_file_header);
	for (int i = 0; i < 4; i++) {
		struct image_frame_header h;

		memcpy(&h, fr.buf + fr.at[i], sizeof(h));
		fr.at[i + 1] = fr.at[i] + sizeof(h) + h.length;
	}
	assert_int_equal(fr.at[4], fr.len);
	return fr;
}

/* Read all; the number of records or the error. */
static int read_frames(const uint8_t *buf, size_t len, struct ckpt_error *err)
{
	struct frame_reader fr;
	const uint8_t *payload;
	uint32_t number;
	size_t n;
	int r = frame_read_start(&fr, "three.img", buf, len, "three", NULL, err);

	if (r < 0)
		return r;
	while ((r = frame_read(&fr, &number, &payload, &n, err)) > 0)
		;
	return r < 0 ? r : (int)fr.seq;
}

static void frames_bad(const uint8_t *buf, size_t len, const char *text)
{
	struct ckpt_error err = { 0 };

	assert_int_equal(read_frames(buf, len, &err), -EBADMSG);
	assert_int_equal(err.exit, CKPT_EXIT_IMAGE);
	if (!strstr(err.text, text))
		fail_msg("\"%s\" is not in \"%s\"", text, err.text);
}

static void frames_in_the_wrong_place(void **state)
{
	struct ckpt_error err = { 0 };
	struct frames fr = make_frames(*state);
	const size_t n = fr.at[1] - fr.at[0];
	uint8_t *buf = malloc(fr.len + n);

	assert_non_null(buf);
	assert_int_equal(read_frames(fr.buf, fr.len, &err), 3);
	/* swapped, and swapped although they are equal */
	for (int i = 0; i < 2; i++) {
		memcpy(buf, fr.buf, fr.len);
		memcpy(buf + fr.at[i], fr.buf + fr.at[i + 1], n);
		memcpy(buf + fr.at[i + 1], fr.buf + fr.at[i], n);
		frames_bad(buf, fr.len, "wrong checksum");
	}
	/* doubled */
	memcpy(buf, fr.buf, fr.at[3]);
	memcpy(buf + fr.at[3], fr.buf + fr.at[2], n);
	memcpy(buf + fr.at[3] + n, fr.buf + fr.at[3], fr.len - fr.at[3]);
	frames_bad(buf, fr.len + n, "record 3 has a wrong checksum");
	/* left out: in the middle, last, the end */
	memcpy(buf, fr.buf, fr.at[1]);
	memcpy(buf + fr.at[1], fr.buf + fr.at[2], fr.len - fr.at[2]);
	frames_bad(buf, fr.len - n, "record 1 has a wrong checksum");
	memcpy(buf, fr.buf, fr.at[2]);
	memcpy(buf + fr.at[2], fr.buf + fr.at[3], fr.len - fr.at[3]);
	frames_bad(buf, fr.len - n, "record 2 has a wrong checksum");
	frames_bad(fr.buf, fr.at[3], "is truncated");
	/* more after the end */
	memcpy(buf, fr.buf, fr.len);
	memcpy(buf + fr.len, fr.buf + fr.at[0], n);
	frames_bad(buf, fr.len + n, "after its end");
	free(buf);
	free(fr.buf);
}

static void frames_of_another_file(void **state)
{
	struct frames fr = make_frames(*state);
	struct image_file_header h;

	/* a sound header of another image over our frames */
	memcpy(&h, fr.buf, sizeof(h));
	h.uuid[0] ^= 1;
	h.hash = image_header_hash(&h);
	memcpy(fr.buf, &h, sizeof(h));
	frames_bad(fr.buf, fr.len, "record 0 has a wrong checksum");
	h.format = 3;
	h.hash = image_header_hash(&h);
	memcpy(fr.buf, &h, sizeof(h));
	frames_bad(fr.buf, fr.len, "has format 3, this ckpt reads format 2");
	free(fr.buf);
}

/* Bytes that a forger with a calculator would write. */
static void frames_with_sound_checksums(void **state)
{
	struct frames fr = make_frames(*state);
	struct image_file_header file;
	struct image_frame_header h;
	uint8_t *end = fr.buf + fr.at[3];

	memcpy(&file, fr.buf, sizeof(file));
	end[sizeof(h)] = 2;
	memcpy(&h, end, sizeof(h));
	h.hash = image_frame_hash(&file, 3, end, h.length);
	memcpy(end, &h, sizeof(h));
	frames_bad(fr.buf, fr.len, "three.img has 3 records, its end says 2");
	h.length = IMAGE_PAYLOAD_MAX + 1;
	memcpy(end, &h, sizeof(h));
	frames_bad(fr.buf, fr.len, "the limit is");
	h.length = UINT32_MAX;
	memcpy(end, &h, sizeof(h));
	frames_bad(fr.buf, fr.len, "the limit is");
	h.length = 9;
	memcpy(end, &h, sizeof(h));
	frames_bad(fr.buf, fr.len, "record 3 has 9 bytes, 8 are there");
	free(fr.buf);
}

/* ---- forged manifests ---------------------------------------------------------- */

static void forge(struct fixture *f, Image__Manifest *m, const char *text)
{
	struct ckpt_error err = { 0 };
	char path[256];
	struct frame_writer fw;
	struct image_out out;
	uint8_t uuid[16] = { 0 };
	uint64_t hash;
	int dir = open(f->dir, O_RDONLY | O_DIRECTORY), fd = -1;

	assert_true(dir >= 0);
	fix_path(f, "manifest.img", path);
	unlink(path);
	assert_int_equal(image_out_open(&out, dir, "manifest.img", &err), 0);
	assert_int_equal(frame_write_start(&fw, &out, uuid, "manifest", &err), 0);
	assert_int_equal(frame_write(&fw, IMAGE_FRAME_MANIFEST, &m->base, &err), 0);
	assert_int_equal(frame_write_end(&fw, &err), 0);
	assert_int_equal(image_out_end(&out, &hash, &fd, &err), 0);
	close(fd);
	frame_writer_free(&fw);
	close(dir);
	fix_bad(f, text);
}

static void forge_ancestors(struct fixture *f, Image__Manifest *m)
{
	Image__Ancestor from = IMAGE__ANCESTOR__INIT, *list[IMAGE_ANCESTORS_MAX + 1];

	for (size_t i = 0; i <= IMAGE_ANCESTORS_MAX; i++)
		list[i] = &from;
	m->ancestors = list;
	m->n_ancestors = IMAGE_ANCESTORS_MAX + 1;
	from.uuid = m->uuid;
	forge(f, m, "more than 64 ancestors");
	m->n_ancestors = 1;
	for (size_t i = 0; i < 5; i++) {
		const char *const bad[] = { "", "0", "00000000-0000-0000-0000-00000000000",
					    "00000000-0000-0000-0000-00000000000X",
					    "00000000-0000-0000-0000-0000000000000" };

		from.uuid = (char *)bad[i];
		forge(f, m, "an ancestor without a uuid");
	}
	m->n_ancestors = 0;
}

static void forged_manifests(void **state)
{
	struct fixture *f = *state;
	Image__Manifest m = IMAGE__MANIFEST__INIT;
	Image__File a = IMAGE__FILE__INIT, b = IMAGE__FILE__INIT;
	Image__File *list[] = { &a, &b };

	assert_int_equal(mkdir(f->dir, 0700), 0);
	forge(f, &m, "two different uuids");
	m.uuid = (char *)"00000000-0000-0000-0000-000000000000";
	forge(f, &m, "the image has no records of plugin alpha");
	m.root_pid = -1;
	forge(f, &m, "bad root pid");
	m.root_pid = 1;
	m.hostname = (char *)"\x1b[2J";
	forge(f, &m, "control characters");
	m.hostname = (char *)"host";
	forge_ancestors(f, &m);
	m.files = list;
	m.n_files = 1;
	a.owner = (char *)"alpha";
	for (size_t i = 0; i < 8; i++) {
		const char *const names[] = {
			"",	   ".img",	   "../alpha.img", "/etc/passwd",
			"a/b.img", "manifest.img", ".x.img",	   "alpha.txt"
		};

		a.name = (char *)names[i];
		forge(f, &m, "a name that no image has");
	}
	a.name = (char *)"alpha.img";
	a.owner = (char *)"../x";
	forge(f, &m, "an owner with a bad name");
	a.owner = (char *)"manifest";
	forge(f, &m, "an owner with a bad name");
	a.owner = (char *)"alpha";
	a.size = IMAGE_FILE_MAX + 1;
	forge(f, &m, "too large");
	a.kind = IMAGE__FILE__KIND__PAGES;
	a.size = 4097;
	forge(f, &m, "does not consist of pages");
	a.size = UINT64_MAX - 4095;
	forge(f, &m, "too large");
	a.size = 0;
	a.kind = IMAGE__FILE__KIND__RECORDS;
	forge(f, &m, "alpha.img is missing");
	b = a;
	m.n_files = 2;
	forge(f, &m, "lists alpha.img twice");
	b.name = (char *)"beta.img";
	forge(f, &m, "twice");
	b.kind = (Image__File__Kind)7;
	forge(f, &m, "enum value");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		fix_test(truncated_anywhere),
		fix_test(flipped_anywhere),
		fix_test(longer),
		fix_test(missing),
		fix_test(replaced_by_other_kinds_of_file),
		fix_test(says_what_is_wrong),
		fix_test(file_of_another_image),
		fix_test(frames_in_the_wrong_place),
		fix_test(frames_of_another_file),
		fix_test(frames_with_sound_checksums),
		fix_test(forged_manifests),
	};

	return cmocka_run_group_tests_name("image damage", tests, NULL, NULL);
}
