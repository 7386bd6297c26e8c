/* SPDX-License-Identifier: MIT */
/* Reading an image: everything that the manifest says is checked before anything is used. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ckpt/parallel.h>

#include "image/internal.h"

#define PORTION ((size_t)256 << 10)
/* Of a page file; on the stack of a thread. */
#define PAGES_PORTION ((size_t)64 << 10)

/* Which file was checked: it must be the same one when it is used. */
struct seen_file {
	const Image__File *file;
	dev_t dev;
	ino_t ino;
};

struct image_reader {
	int dir;
	int lock; /* the manifest */
	uint8_t uuid[16];
	Image__Manifest *manifest;
	struct image_info info;	     /* strings are the manifest's */
	struct seen_file *files;     /* by kind and owner */
	const Image__File **records; /* in the manifest's order */
	size_t n_records;
};

void image_info_free(struct image_info *info)
{
	free(info->ckpt_version);
	free(info->kernel_release);
	free(info->kernel_version);
	free(info->machine);
	free(info->hostname);
	for (size_t i = 0; i < info->n_losses; i++)
		free(info->losses[i]);
	free(info->losses);
	free(info->ancestors);
	*info = (struct image_info){ 0 };
}

static int by_owner(const void *a, const void *b)
{
	const Image__File *x = ((const struct seen_file *)a)->file;
	const Image__File *y = ((const struct seen_file *)b)->file;

	return x->kind != y->kind ? (x->kind < y->kind ? -1 : 1) : strcmp(x->owner, y->owner);
}

static const struct seen_file *find_file(const struct image_reader *r, Image__File__Kind kind,
					 const char *owner)
{
	Image__File want = { .kind = kind, .owner = (char *)owner };
	const struct seen_file key = { .file = &want };

	return bsearch(&key, r->files, r->manifest->n_files, sizeof(*r->files), by_owner);
}

static int check_size(const Image__File *f, uint64_t size, struct ckpt_error *err)
{
	if (size == f->size)
		return 0;
	return image_bad(err, "%s is %s: %llu bytes, the manifest says %llu", f->name,
			 size < f->size ? "truncated" : "too long", (unsigned long long)size,
			 (unsigned long long)f->size);
}

static int hash_file(int fd, const Image__File *f, uint8_t *buf, XXH3_state_t *state,
		     struct ckpt_error *err)
{
	XXH3_64bits_reset(state);
	for (uint64_t left = f->size; left;) {
		size_t n = left < PORTION ? left : PORTION;
		int r = image_file_read(fd, f->name, buf, n, err);

		if (r < 0)
			return r;
		XXH3_64bits_update(state, buf, n);
		left -= n;
	}
	if (XXH3_64bits_digest(state) != f->xxh3)
		return image_bad(err, "%s is damaged: its checksum is not the manifest's", f->name);
	return 0;
}

struct page_file {
	int fd;
	const Image__File *file;
	uint64_t sum;
};

/* One portion: a loop that all processors share. */
static int sum_portion(void *arg, size_t i, struct ckpt_error *err)
{
	struct page_file *p = arg;
	const uint64_t at = (uint64_t)i * PAGES_PORTION, left = p->file->size - at;
	const size_t len = left < PAGES_PORTION ? left : PAGES_PORTION;
	uint8_t buf[PAGES_PORTION];

	for (size_t done = 0; done < len;) {
		ssize_t n = pread(p->fd, buf + done, len - done, (off_t)(at + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return ckpt_fail_as(err, CKPT_EXIT_IMAGE, errno, "%s cannot be read: %s",
					    p->file->name, ckpt_errno_name(errno));
		if (n == 0)
			return image_bad(err, "%s shrinks while it is read", p->file->name);
		done += (size_t)n;
	}
	__atomic_fetch_add(&p->sum, image_pages_hash(buf, at / IMAGE_PAGE, len / IMAGE_PAGE),
			   __ATOMIC_RELAXED);
	return 0;
}

static int sum_file(int fd, const Image__File *f, struct ckpt_error *err)
{
	struct page_file p = { .fd = fd, .file = f };
	int r;

	if (f->size % IMAGE_PAGE)
		return image_bad(err, "%s has an incomplete page", f->name);
	r = ckpt_parallel((size_t)((f->size + PAGES_PORTION - 1) / PAGES_PORTION), sum_portion, &p,
			  err);
	if (r == 0 && p.sum != f->xxh3)
		return image_bad(err, "%s is damaged: its checksum is not the manifest's", f->name);
	return r;
}

static int check_file(const struct image_reader *r, struct seen_file *s, uint8_t *buf,
		      XXH3_state_t *state, struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = -1;
	struct stat st;
	uint64_t size;
	int ret = image_file_open(r->dir, s->file->name, &size, &fd, err);

	if (ret == 0)
		ret = check_size(s->file, size, err);
	if (ret < 0)
		return ret;
	if (fstat(fd, &st) < 0)
		return ckpt_fail_as(err, CKPT_EXIT_IMAGE, errno, "%s cannot be opened: %s",
				    s->file->name, ckpt_errno_name(errno));
	s->dev = st.st_dev;
	s->ino = st.st_ino;
	(void)posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
	return s->file->kind == IMAGE__FILE__KIND__PAGES ? sum_file(fd, s->file, err)
							 : hash_file(fd, s->file, buf, state, err);
}

static int check_files(struct image_reader *r, struct ckpt_error *err)
{
	CKPT_AUTO_FREE uint8_t *buf = malloc(PORTION);
	XXH3_state_t *state = XXH3_createState();
	int ret = 0;

	if (!buf || !state)
		ret = ckpt_fail_sys(err, ENOMEM, "check the image");
	for (size_t i = 0; ret == 0 && i < r->manifest->n_files; i++)
		ret = check_file(r, &r->files[i], buf, state, err);
	XXH3_freeState(state);
	return ret;
}

static int fill_info(struct image_reader *r, struct ckpt_error *err)
{
	const Image__Manifest *m = r->manifest;

	r->info = (struct image_info){
		.ckpt_version = m->ckpt_version,
		.kernel_release = m->kernel_release,
		.kernel_version = m->kernel_version,
		.machine = m->machine,
		.hostname = m->hostname,
		.created_ns = m->created_ns,
		.root_pid = m->root_pid,
		.losses = m->losses,
		.n_losses = m->n_losses,
	};
	image_uuid_text(r->uuid, r->info.uuid);
	r->info.ancestors = calloc(m->n_ancestors + 1, sizeof(*r->info.ancestors));
	if (!r->info.ancestors)
		return ckpt_fail_sys(err, ENOMEM, "open the image");
	for (; r->info.n_ancestors < m->n_ancestors; r->info.n_ancestors++) {
		const Image__Ancestor *from = m->ancestors[r->info.n_ancestors];
		struct image_ancestor *a = &r->info.ancestors[r->info.n_ancestors];

		*a = (struct image_ancestor){ .created_ns = from->created_ns,
					      .restored_ns = from->restored_ns,
					      .copy = from->copy };
		/* the manifest's check has seen its length */
		memcpy(a->uuid, from->uuid, strlen(from->uuid));
	}
	return 0;
}

static int fill_files(struct image_reader *r, struct ckpt_error *err)
{
	const Image__Manifest *m = r->manifest;

	r->files = calloc(m->n_files + 1, sizeof(*r->files));
	r->records = calloc(m->n_files + 1, sizeof(*r->records));
	if (!r->files || !r->records)
		return ckpt_fail_sys(err, ENOMEM, "open the image");
	for (size_t i = 0; i < m->n_files; i++) {
		r->files[i].file = m->files[i];
		if (m->files[i]->kind == IMAGE__FILE__KIND__RECORDS)
			r->records[r->n_records++] = m->files[i];
	}
	qsort(r->files, m->n_files, sizeof(*r->files), by_owner);
	return 0;
}

/*
 * Files are opened when they are needed, and a dump that takes this image's place removes them. It
 * leaves one alone whose manifest is locked. Filesystems that have no locks have no such promise.
 */
static int lock_manifest(struct image_reader *r, struct ckpt_error *err)
{
	struct stat locked, named;

	for (;;) {
		if (r->lock >= 0)
			close(r->lock);
		r->lock = openat(r->dir, IMAGE_MANIFEST_FILE,
				 O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
		/* why it cannot be opened is found when it is read */
		if (r->lock < 0)
			return 0;
		if (flock(r->lock, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK) {
			ckpt_fail(err, EBUSY, "another ckpt is replacing that image");
			return ckpt_hint(err, "try again when that dump has ended");
		}
		if (fstat(r->lock, &locked) ||
		    fstatat(r->dir, IMAGE_MANIFEST_FILE, &named, AT_SYMLINK_NOFOLLOW) ||
		    (locked.st_ino == named.st_ino && locked.st_dev == named.st_dev))
			return 0;
	}
}

static int open_reader(struct image_reader *r, const char *dir, struct ckpt_error *err)
{
	int ret;

	r->dir = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (r->dir < 0)
		return ckpt_fail_as(err, CKPT_EXIT_IMAGE, errno, "%s cannot be opened: %s", dir,
				    ckpt_errno_name(errno));
	ret = lock_manifest(r, err);
	if (ret < 0)
		return ckpt_wrap(err, "%s", dir);
	ret = image_manifest_read(r->dir, IMAGE_MANIFEST_FILE, &r->manifest, r->uuid, err);
	if (ret == -ENOENT)
		return ckpt_fail_as(err, CKPT_EXIT_IMAGE, ENOENT,
				    "%s is not an image: there is no manifest.img", dir);
	if (ret == 0)
		ret = fill_files(r, err);
	if (ret == 0)
		ret = check_files(r, err);
	if (ret < 0)
		return ckpt_wrap(err, "%s", dir);
	return fill_info(r, err);
}

int image_open(const char *dir, struct image_reader **out, struct ckpt_error *err)
{
	struct image_reader *r = calloc(1, sizeof(*r));
	int ret;

	if (!r)
		return ckpt_fail_sys(err, ENOMEM, "open the image");
	r->dir = r->lock = -1;
	ret = open_reader(r, dir, err);
	if (ret < 0) {
		image_reader_free(r);
		return ret;
	}
	*out = r;
	return 0;
}

void image_reader_free(struct image_reader *r)
{
	if (!r)
		return;
	ckpt_cleanup_fd(&r->dir);
	ckpt_cleanup_fd(&r->lock);
	if (r->manifest)
		image__manifest__free_unpacked(r->manifest, NULL);
	free(r->files);
	free(r->records);
	free(r->info.ancestors);
	free(r);
}

const struct image_info *image_reader_info(const struct image_reader *r)
{
	return &r->info;
}

const char *image_reader_plugin(const struct image_reader *r, size_t i, const char **version)
{
	if (i >= r->n_records)
		return NULL;
	if (version)
		*version = r->records[i]->version;
	return r->records[i]->owner;
}

static int load_record(struct image_section *sec, const struct frame_reader *fr, uint32_t number,
		       const uint8_t *payload, size_t len, struct ckpt_error *err)
{
	const struct ckpt_record_type *type = image_type_by_number(sec, number);
	const unsigned long long nth = fr->seq - 1;
	ProtobufCMessage *msg;
	const char *why;
	int r;

	if (!type) {
		image_bad(err, "%s: record %llu has type %u, which plugin %s does not know",
			  fr->file, nth, number, sec->plugin);
		return ckpt_hint(err, "the image may be from a newer version of the plugin");
	}
	why = image_decode(type->descriptor, payload, len, &sec->left, &msg);
	if (why)
		return image_bad(err, "%s: record %llu (%s) %s", fr->file, nth, type->name, why);
	r = image_section_append(sec, type, msg, err);
	if (r < 0)
		protobuf_c_message_free_unpacked(msg, NULL);
	return r;
}

static int load_frames(struct image_section *sec, struct frame_reader *fr, struct ckpt_error *err)
{
	const uint8_t *payload;
	size_t len;
	uint32_t number;
	int r;

	while ((r = frame_read(fr, &number, &payload, &len, err)) > 0) {
		r = load_record(sec, fr, number, payload, len, err);
		if (r < 0)
			break;
	}
	return r;
}

int image_load(struct image_reader *r, struct image_section *sec, struct ckpt_error *err)
{
	const struct seen_file *s = find_file(r, IMAGE__FILE__KIND__RECORDS, sec->plugin);
	CKPT_AUTO_FREE uint8_t *buf = NULL;
	struct frame_reader fr;
	size_t len;
	int ret;

	if (!s)
		return ckpt_fail_as(err, CKPT_EXIT_IMAGE, ENOENT,
				    "the image has no records of plugin %s", sec->plugin);
	ret = image_section_check(sec, err);
	if (ret == 0)
		ret = image_file_slurp(r->dir, s->file->name, IMAGE_FILE_MAX, &buf, &len, err);
	if (ret == 0)
		ret = check_size(s->file, len, err);
	if (ret == 0)
		ret = frame_read_start(&fr, s->file->name, buf, len, sec->plugin, r->uuid, err);
	if (ret == 0)
		ret = load_frames(sec, &fr, err);
	if (ret < 0)
		return ret;
	free(sec->version);
	sec->version = strdup(s->file->version);
	return sec->version ? 0 : ckpt_fail_sys(err, ENOMEM, "load %s", s->file->name);
}

int image_reader_pages(struct image_reader *r, const char *name, int *fd, uint64_t *size,
		       struct ckpt_error *err)
{
	const struct seen_file *s = find_file(r, IMAGE__FILE__KIND__PAGES, name);
	CKPT_AUTO_FD int f = -1;
	struct stat st;
	uint64_t now;
	int ret;

	if (!s)
		return ckpt_fail_as(err, CKPT_EXIT_IMAGE, ENOENT, "the image has no page file %s",
				    name);
	ret = image_file_open(r->dir, s->file->name, &now, &f, err);
	if (ret == 0)
		ret = check_size(s->file, now, err);
	if (ret < 0)
		return ret;
	if (fstat(f, &st) < 0 || st.st_dev != s->dev || st.st_ino != s->ino)
		return image_bad(err, "%s was replaced while the image was in use", s->file->name);
	*fd = ckpt_steal_fd(&f);
	*size = now;
	return 0;
}
