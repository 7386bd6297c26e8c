/* SPDX-License-Identifier: MIT */
/*
 * Loads damaged copies of an image through the engine (a dry-run restore), each
 * in a process of its own, and checks how that ends:
 *
 *	plain damage      files cut short, bits flipped: refused as a bad image (exit 4)
 *	forged records    damaged payloads with all checksums made right again, so that
 *	                  decoder and plan steps see them: any verdict, but no crash
 *
 * Every variant follows from its number alone: -o NUMBER makes one again and
 * leaves it in the scratch directory beside the image.
 *
 * -e FILE:TYPE:ID=HEX loads one copy in which a record of that type (the plugin's number)
 * has another field: HEX is its encoding. With a + before it, it is a further record, behind
 * all others, that differs from that one so. ID 0 is the last one.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ckpt/ckpt.h>
#include <ckpt/cleanup.h>

#include "image/format.h"
#include "manifest.pb-c.h"

#define TIMEOUT_S     20
#define MANIFEST_FILE "manifest.img"
#define EXIT_CRASH    86 /* what a sanitizer ends a process with */

/* Sanitizers read these; without one they are of no effect. */
const char *__asan_default_options(void);
const char *__ubsan_default_options(void);
const char *__asan_default_options(void)
{
	return "exitcode=86:detect_leaks=0";
}
const char *__ubsan_default_options(void)
{
	return "exitcode=86";
}

struct bytes {
	uint8_t *p;
	size_t n;
};

struct file {
	char name[256];
	struct bytes data;
	size_t *frames; /* where each begins; the last is the end frame */
	size_t n_frames;
};

struct fuzz {
	const char *image;
	char scratch[4096];
	struct ckpt *ckpt;
	struct file *files; /* record files; [0] is the manifest */
	size_t n_files;
	unsigned long count, rejected, accepted, crashed, wrong;
};

/* One damaged copy. */
struct variant {
	const struct file *file;
	struct bytes data; /* the file's new content */
	bool forged;
	char what[200];
};

static void die(const char *fmt, ...) CKPT_PRINTF(1, 2) __attribute__((noreturn));
static void die(const char *fmt, ...)
{
	va_list ap;

	fputs("image-fuzz: ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	exit(2);
}

static void *need(void *p)
{
	if (!p)
		die("out of memory");
	return p;
}

static struct bytes make_bytes(size_t n)
{
	return (struct bytes){ need(calloc(1, n + 1)), n };
}

/* ---- files ------------------------------------------------------------------- */

static void path_of(char out[4352], const char *dir, const char *name)
{
	snprintf(out, 4352, "%.4000s/%.255s", dir, name);
}

static struct bytes read_file(const char *dir, const char *name)
{
	char path[4352];
	struct stat st;
	struct bytes b;
	CKPT_AUTO_FD int fd = -1;

	path_of(path, dir, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0)
		die("%s: %s", path, strerror(errno));
	b = make_bytes((size_t)st.st_size);
	if (read(fd, b.p, b.n) != (ssize_t)b.n)
		die("%s: cannot be read", path);
	return b;
}

static void write_file(const char *dir, const char *name, const uint8_t *p, size_t n)
{
	char path[4352];
	CKPT_AUTO_FD int fd = -1;

	path_of(path, dir, name);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || write(fd, p, n) != (ssize_t)n)
		die("%s: %s", path, strerror(errno));
}

static void find_frames(struct file *f)
{
	size_t at = sizeof(struct image_file_header);
	struct image_frame_header h;

	while (at + sizeof(h) <= f->data.n) {
		f->frames = need(reallocarray(f->frames, f->n_frames + 1, sizeof(*f->frames)));
		f->frames[f->n_frames++] = at;
		memcpy(&h, f->data.p + at, sizeof(h));
		at += sizeof(h) + le32toh(h.length);
	}
	if (at != f->data.n || f->n_frames < 1)
		die("%s is no record file", f->name);
}

static void add_file(struct fuzz *z, const char *name)
{
	struct file *f;

	z->files = need(reallocarray(z->files, z->n_files + 1, sizeof(*z->files)));
	f = &z->files[z->n_files++];
	*f = (struct file){ 0 };
	snprintf(f->name, sizeof(f->name), "%s", name);
	f->data = read_file(z->image, name);
	find_frames(f);
	write_file(z->scratch, name, f->data.p, f->data.n);
}

static size_t payload_len(const struct file *f, size_t frame)
{
	struct image_frame_header h;

	memcpy(&h, f->data.p + f->frames[frame], sizeof(h));
	return le32toh(h.length);
}

static Image__Manifest *unpack_manifest(const struct fuzz *z)
{
	const struct file *f = &z->files[0];

	return need(image__manifest__unpack(NULL, payload_len(f, 0),
					    f->data.p + f->frames[0] +
						    sizeof(struct image_frame_header)));
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct file *)a)->name, ((const struct file *)b)->name);
}

/* Copy the small files, link the large ones. */
static void make_scratch(struct fuzz *z)
{
	Image__Manifest *m;

	snprintf(z->scratch, sizeof(z->scratch), "%.4000s.fuzz-XXXXXX", z->image);
	if (!mkdtemp(z->scratch))
		die("%s: %s", z->scratch, strerror(errno));
	add_file(z, MANIFEST_FILE);
	m = unpack_manifest(z);
	for (size_t i = 0; i < m->n_files; i++) {
		char from[4352], to[4352];

		if (m->files[i]->kind == IMAGE__FILE__KIND__RECORDS) {
			add_file(z, m->files[i]->name);
			continue;
		}
		path_of(from, z->image, m->files[i]->name);
		path_of(to, z->scratch, m->files[i]->name);
		if (link(from, to) < 0)
			die("link %s: %s", to, strerror(errno));
	}
	image__manifest__free_unpacked(m, NULL);
	qsort(z->files + 1, z->n_files - 1, sizeof(*z->files), by_name);
}

static void remove_scratch(const struct fuzz *z)
{
	CKPT_AUTO_DIR DIR *d = opendir(z->scratch);
	struct dirent *e;
	char path[4352];

	while (d && (e = readdir(d))) {
		path_of(path, z->scratch, e->d_name);
		if (e->d_name[0] != '.')
			unlink(path);
	}
	rmdir(z->scratch);
}

/* ---- forging ------------------------------------------------------------------- */

/* The file with its n-th frame replaced, and that frame's hash right. */
static struct bytes replace_frame(const struct file *f, size_t nth, uint32_t number,
				  const struct bytes *payload)
{
	const size_t at = f->frames[nth];
	const size_t head = sizeof(struct image_frame_header);
	const size_t rest = at + head + payload_len(f, nth);
	struct bytes out = make_bytes(at + head + payload->n + f->data.n - rest);
	struct image_frame_header h = { 0, htole32(number), htole32((uint32_t)payload->n) };
	struct image_file_header file;

	memcpy(&file, f->data.p, sizeof(file));
	memcpy(out.p, f->data.p, at);
	memcpy(out.p + at, &h, head);
	memcpy(out.p + at + head, payload->p, payload->n);
	memcpy(out.p + at + head + payload->n, f->data.p + rest, f->data.n - rest);
	h.hash = htole64(image_frame_hash(&file, nth, out.p + at, payload->n));
	memcpy(out.p + at, &h, head);
	return out;
}

/* A manifest that says of the variant's file what is now true of it. */
static struct bytes forge_manifest(const struct fuzz *z, const struct variant *v)
{
	Image__Manifest *m = unpack_manifest(z);
	struct bytes payload, out;

	for (size_t i = 0; i < m->n_files; i++) {
		if (strcmp(m->files[i]->name, v->file->name) != 0)
			continue;
		m->files[i]->size = v->data.n;
		m->files[i]->xxh3 = m->files[i]->kind == IMAGE__FILE__KIND__PAGES
					    ? image_pages_hash(v->data.p, 0, v->data.n / IMAGE_PAGE)
					    : XXH3_64bits(v->data.p, v->data.n);
	}
	payload = make_bytes(image__manifest__get_packed_size(m));
	image__manifest__pack(m, payload.p);
	out = replace_frame(&z->files[0], 0, 1, &payload);
	free(payload.p);
	image__manifest__free_unpacked(m, NULL);
	return out;
}

static size_t below(unsigned *seed, size_t n)
{
	return n ? ((size_t)rand_r(seed) << 16 ^ (size_t)rand_r(seed)) % n : 0;
}

/* Replace `cut` bytes at `at` by `n` bytes. */
static void exchange(struct bytes *b, size_t at, size_t cut, const uint8_t *p, size_t n)
{
	struct bytes out = make_bytes(b->n - cut + n);

	memcpy(out.p, b->p, at);
	memcpy(out.p + at, p, n);
	memcpy(out.p + at + n, b->p + at + cut, b->n - at - cut);
	free(b->p);
	*b = out;
}

static const char *mutate(struct bytes *b, unsigned *seed)
{
	static const uint8_t edges[] = { 0x00, 0x01, 0x7f, 0x80, 0xff };
	static const uint8_t huge[] = { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1 };
	static const uint8_t large[] = { 0xff, 0xff, 0xff, 0xff, 0x0f };
	const size_t at = below(seed, b->n), left = b->n - at;
	const size_t some = left ? 1 + below(seed, left < 16 ? left : 16) : 0;
	uint8_t copy[16];

	switch (b->n ? below(seed, 10) : 5) {
	case 0:
	case 1:
	case 2:
		b->p[at] ^= (uint8_t)(1u << below(seed, 8));
		return "bit flipped";
	case 3:
		b->p[at] = edges[below(seed, sizeof(edges))];
		return "byte set";
	case 4:
		b->n = at;
		return "cut short";
	case 5:
		exchange(b, at, left ? 1 : 0, huge, sizeof(huge));
		return "64-bit varint";
	case 6:
		exchange(b, at, 1, large, sizeof(large));
		return "32-bit varint";
	case 7:
		exchange(b, at, some, copy, 0);
		return "bytes left out";
	case 8:
		memcpy(copy, b->p + at, some);
		exchange(b, at, 0, copy, some);
		return "bytes doubled";
	default:
		for (size_t i = 0; i < some; i++)
			copy[i] = (uint8_t)rand_r(seed);
		exchange(b, at, some, copy, some);
		return "bytes replaced";
	}
}

static void forge(struct variant *v, unsigned *seed)
{
	const struct file *f = v->file;
	const size_t nth = below(seed, f->n_frames);
	struct bytes payload = make_bytes(payload_len(f, nth));
	struct image_frame_header h;
	const char *how;
	uint32_t number;

	memcpy(&h, f->data.p + f->frames[nth], sizeof(h));
	number = le32toh(h.number);
	memcpy(payload.p, f->data.p + f->frames[nth] + sizeof(h), payload.n);
	if (below(seed, 16) == 0) {
		number = (uint32_t)below(seed, 12);
		how = "other type";
	} else {
		how = mutate(&payload, seed);
	}
	v->data = replace_frame(f, nth, number, &payload);
	v->forged = true;
	snprintf(v->what, sizeof(v->what), "%.100s: forged record %zu, %s", f->name, nth, how);
	free(payload.p);
}

/* The file with one frame more before its end. */
static struct bytes add_frame(const struct file *f, uint32_t number, const struct bytes *payload)
{
	const size_t nth = f->n_frames - 1, at = f->frames[nth];
	const size_t head = sizeof(struct image_frame_header);
	struct bytes out = make_bytes(f->data.n + head + payload->n);
	struct image_frame_header h = { 0, htole32(number), htole32((uint32_t)payload->n) };
	struct image_frame_header end = { 0, htole32(IMAGE_FRAME_END), htole32(8) };
	uint8_t *put = out.p + at, *last = put + head + payload->n;
	const uint64_t count = htole64(nth + 1);
	struct image_file_header file;

	memcpy(&file, f->data.p, sizeof(file));
	memcpy(out.p, f->data.p, at);
	memcpy(put, &h, head);
	memcpy(put + head, payload->p, payload->n);
	h.hash = htole64(image_frame_hash(&file, nth, put, payload->n));
	memcpy(put, &h, head);
	memcpy(last, &end, head);
	memcpy(last + head, &count, sizeof(count));
	end.hash = htole64(image_frame_hash(&file, nth + 1, last, sizeof(count)));
	memcpy(last, &end, head);
	return out;
}

static uint64_t varint(const uint8_t *p, size_t n, size_t *at)
{
	uint64_t v = 0;

	for (unsigned shift = 0; *at < n && shift < 64; shift += 7) {
		v |= (uint64_t)(p[*at] & 0x7f) << shift;
		if (!(p[(*at)++] & 0x80))
			break;
	}
	return v;
}

/* A record's id is its first field. */
static uint64_t id_of(const struct file *f, size_t frame)
{
	const uint8_t *p = f->data.p + f->frames[frame] + sizeof(struct image_frame_header);
	size_t at = 1;

	return payload_len(f, frame) && p[0] == 1 << 3 ? varint(p, payload_len(f, frame), &at) : 0;
}

/* Where the field at `at` ends; its number. */
static size_t field_end(const struct bytes *b, size_t at, uint64_t *number)
{
	uint64_t tag = varint(b->p, b->n, &at), size;

	*number = tag >> 3;
	if ((tag & 7) == 0) {
		varint(b->p, b->n, &at);
	} else if ((tag & 7) == 2) {
		size = varint(b->p, b->n, &at);
		at += size;
	} else {
		at += (tag & 7) == 1 ? 8 : 4;
	}
	if (at > b->n)
		die("a record that is not understood");
	return at;
}

/* Records are encoded in one way only: fields in order of their numbers. */
static void set_field(struct bytes *b, const uint8_t *p, size_t n)
{
	const struct bytes one = { (uint8_t *)(uintptr_t)p, n };
	uint64_t number, other;
	size_t at = 0, end = 0;

	field_end(&one, 0, &number);
	while (end < b->n) {
		size_t next = field_end(b, end, &other);

		if (other > number)
			break;
		if (other < number)
			at = next;
		end = next;
	}
	exchange(b, at, end - at, p, n);
}

/* What an edit asks for; false: there is no such record. */
static bool edit(const struct fuzz *z, const char *what, struct variant *v)
{
	bool more = *what == '+';
	const char *hex = strchr(what, '=');
	char name[64];
	unsigned number, id, byte;
	size_t found = SIZE_MAX, n = 0;
	uint8_t field[128];
	struct bytes payload;

	if (!hex || sscanf(what + more, "%63[^:]:%u:%u=", name, &number, &id) != 3)
		die("-e %s: FILE:TYPE:ID=HEX", what);
	for (size_t i = 0; i < z->n_files; i++)
		if (!strcmp(z->files[i].name, name))
			v->file = &z->files[i];
	for (size_t i = 0; v->file && i + 1 < v->file->n_frames; i++) {
		struct image_frame_header h;

		memcpy(&h, v->file->data.p + v->file->frames[i], sizeof(h));
		if (le32toh(h.number) == number && (!id || id_of(v->file, i) == id))
			found = i;
	}
	if (found == SIZE_MAX)
		return false;
	payload = make_bytes(payload_len(v->file, found));
	memcpy(payload.p,
	       v->file->data.p + v->file->frames[found] + sizeof(struct image_frame_header),
	       payload.n);
	for (hex++; n < sizeof(field) && sscanf(hex, "%2x", &byte) == 1; hex += 2)
		field[n++] = (uint8_t)byte;
	set_field(&payload, field, n);
	v->data = more ? add_frame(v->file, number, &payload)
		       : replace_frame(v->file, found, number, &payload);
	v->forged = true;
	free(payload.p);
	return true;
}

/* ---- plain damage --------------------------------------------------------------- */

/* The i-th of n places, spread over the file; each of them before any comes twice. */
static size_t spread(size_t size, size_t i, size_t n)
{
	return n >= size ? i % size : (size_t)((unsigned __int128)size * i / n);
}

static void cut(struct variant *v, size_t at)
{
	v->data = make_bytes(at);
	memcpy(v->data.p, v->file->data.p, at);
	snprintf(v->what, sizeof(v->what), "%.100s: cut to %zu bytes", v->file->name, at);
}

static void flip(struct variant *v, size_t at, unsigned bit)
{
	v->data = make_bytes(v->file->data.n);
	memcpy(v->data.p, v->file->data.p, v->data.n);
	v->data.p[at] ^= (uint8_t)(1u << bit);
	snprintf(v->what, sizeof(v->what), "%.100s: bit %u of byte %zu flipped", v->file->name, bit,
		 at);
}

static struct variant make_variant(const struct fuzz *z, unsigned long number)
{
	const unsigned long nth = number / 4 / z->n_files;
	const unsigned long each = z->count / 4 / z->n_files + 1;
	struct variant v = { .file = &z->files[number / 4 % z->n_files] };
	unsigned seed = (unsigned)number + 1;
	const size_t size = v.file->data.n;

	if (number % 4 == 0)
		cut(&v, spread(size, nth, each));
	else if (number % 4 == 1)
		flip(&v, spread(size, nth, each), (unsigned)((nth + nth / size) % 8));
	else
		forge(&v, &seed);
	return v;
}

static void put_variant(const struct fuzz *z, const struct variant *v)
{
	struct bytes manifest;

	write_file(z->scratch, v->file->name, v->data.p, v->data.n);
	if (!v->forged || v->file == &z->files[0])
		return;
	manifest = forge_manifest(z, v);
	write_file(z->scratch, MANIFEST_FILE, manifest.p, manifest.n);
	free(manifest.p);
}

static void take_back(const struct fuzz *z, const struct variant *v)
{
	write_file(z->scratch, v->file->name, v->file->data.p, v->file->data.n);
	if (v->forged)
		write_file(z->scratch, MANIFEST_FILE, z->files[0].data.p, z->files[0].data.n);
}

/* ---- running ---------------------------------------------------------------------- */

static void load_in_child(const struct fuzz *z, bool loud)
{
	struct ckpt_restore_args args = { .dir = z->scratch, .dry_run = true };
	struct rlimit none = { 0, 0 };
	struct ckpt_result result = { 0 };
	struct ckpt_error err = { 0 };
	int r;

	setrlimit(RLIMIT_CORE, &none);
	alarm(TIMEOUT_S);
	r = ckpt_restore(z->ckpt, &args, &result, &err);
	ckpt_result_free(&result);
	if (loud && r < 0)
		fprintf(stderr, "%s\n", err.text);
	_exit(r == 0 ? CKPT_EXIT_OK : err.exit == CKPT_EXIT_OK ? CKPT_EXIT_FAILED : (int)err.exit);
}

/* The wait status of a load of the scratch directory. */
static int load(const struct fuzz *z, bool loud)
{
	int status;
	pid_t pid = fork();

	if (pid < 0)
		die("fork: %s", strerror(errno));
	if (pid == 0)
		load_in_child(z, loud);
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			die("waitpid: %s", strerror(errno));
	return status;
}

static bool is_crash(int status)
{
	return !WIFEXITED(status) || WEXITSTATUS(status) >= EXIT_CRASH;
}

static bool is_allowed(const struct variant *v, int code)
{
	if (!v->forged)
		return code == CKPT_EXIT_IMAGE;
	return code == CKPT_EXIT_OK || code == CKPT_EXIT_FAILED || code == CKPT_EXIT_REFUSED ||
	       code == CKPT_EXIT_IMAGE || code == CKPT_EXIT_PRIVILEGE;
}

static void try_variant(struct fuzz *z, unsigned long number, bool keep)
{
	struct variant v = make_variant(z, number);
	int status;

	put_variant(z, &v);
	status = load(z, keep);
	if (is_crash(status)) {
		z->crashed++;
		printf("variant %lu: %s: crashed, %s %d\n", number, v.what,
		       WIFSIGNALED(status) ? "signal" : "exit",
		       WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
	} else if (!is_allowed(&v, WEXITSTATUS(status))) {
		z->wrong++;
		printf("variant %lu: %s: exit %d\n", number, v.what, WEXITSTATUS(status));
	} else if (keep) {
		printf("variant %lu: %s: exit %d, as it may\n", number, v.what,
		       WEXITSTATUS(status));
	}
	if (!is_crash(status) && WEXITSTATUS(status) == 0)
		z->accepted++;
	else if (!is_crash(status))
		z->rejected++;
	if (!keep)
		take_back(z, &v);
	free(v.data.p);
}

static void free_all(struct fuzz *z)
{
	ckpt_free(z->ckpt);
	for (size_t i = 0; i < z->n_files; i++) {
		free(z->files[i].data.p);
		free(z->files[i].frames);
	}
	free(z->files);
}

/* Load one edited copy; the verdict is what this program ends with. */
static int try_edit(struct fuzz *z, const char *what)
{
	struct variant v = { 0 };
	int status;

	if (!edit(z, what, &v))
		die("-e %s: there is no such record", what);
	put_variant(z, &v);
	status = load(z, true);
	free(v.data.p);
	remove_scratch(z);
	free_all(z);
	return is_crash(status) ? EXIT_CRASH : WEXITSTATUS(status);
}

static void open_engine(struct fuzz *z, const char *plugin_path)
{
	struct ckpt_error err = { 0 };
	int r = ckpt_new(&z->ckpt, NULL, NULL, &err);

	if (r == 0 && plugin_path)
		r = ckpt_set(z->ckpt, "plugin-path", plugin_path, "command line", &err);
	if (r == 0)
		r = ckpt_load(z->ckpt, &err);
	if (r < 0)
		die("%s", err.text);
}

int main(int argc, char **argv)
{
	struct fuzz z = { .count = 4000 };
	const char *plugin_path = NULL, *what = NULL;
	long only = -1;
	int opt, status;

	while ((opt = getopt(argc, argv, "e:n:o:p:")) != -1) {
		if (opt == 'n')
			z.count = strtoul(optarg, NULL, 10);
		else if (opt == 'e')
			what = optarg;
		else if (opt == 'o')
			only = strtol(optarg, NULL, 10);
		else if (opt == 'p')
			plugin_path = optarg;
		else
			die("usage: image-fuzz [-n COUNT] [-o NUMBER] [-e EDIT] [-p PLUGINDIR] "
			    "IMAGEDIR");
	}
	if (optind != argc - 1)
		die("usage: image-fuzz [-n COUNT] [-o NUMBER] [-e EDIT] [-p PLUGINDIR] IMAGEDIR");
	z.image = argv[optind];
	for (size_t n = strlen(argv[optind]); n > 1 && argv[optind][n - 1] == '/'; n--)
		argv[optind][n - 1] = '\0';
	open_engine(&z, plugin_path);
	make_scratch(&z);
	status = load(&z, true);
	if (is_crash(status) || WEXITSTATUS(status) == CKPT_EXIT_IMAGE)
		die("the undamaged copy in %s is not accepted", z.scratch);

	if (what)
		return try_edit(&z, what);
	if (only >= 0) {
		try_variant(&z, (unsigned long)only, true);
		printf("left in %s\n", z.scratch);
	} else {
		for (unsigned long i = 0; i < z.count; i++)
			try_variant(&z, i, false);
		remove_scratch(&z);
	}
	printf("%lu variants, %lu rejected, %lu accepted, %lu crashed\n",
	       z.rejected + z.accepted + z.crashed, z.rejected, z.accepted, z.crashed);
	status = z.crashed || z.wrong;
	free_all(&z);
	return status;
}
