/* SPDX-License-Identifier: MIT */
/* Files of an image: names, hashed writing, wary reading. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "image/internal.h"

/* Hashed and written in portions that are still in the cache for the second pass. */
#define PORTION ((size_t)1 << 20)
/* Write-back is started this often, so that the sync at the end has little left to wait for. */
#define WRITE_BACK ((uint64_t)32 << 20)

static bool is_name_char(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

bool image_name_ok(const char *name)
{
	size_t n = 0;

	for (; name[n]; n++)
		if (!is_name_char(name[n]) || n >= IMAGE_NAME_MAX)
			return false;
	return n > 0 && name[0] != '-' && name[0] != '_';
}

bool image_file_name_ok(const char *name)
{
	size_t n = strlen(name);

	if (n <= 4 || n >= IMAGE_PATH_MAX || name[0] == '.' ||
	    strcmp(name, IMAGE_MANIFEST_FILE) == 0)
		return false;
	for (size_t i = 0; i < n; i++)
		if (!is_name_char(name[i]) && name[i] != '.')
			return false;
	return strcmp(name + n - 4, ".img") == 0 || strcmp(name + n - 4, ".raw") == 0;
}

void image_file_name(char out[IMAGE_PATH_MAX], Image__File__Kind kind, const char *owner,
		     const char *tag)
{
	const bool pages = kind == IMAGE__FILE__KIND__PAGES;

	snprintf(out, IMAGE_PATH_MAX, "%s%s%s%s%s", pages ? "pages-" : "", owner, *tag ? "." : "",
		 tag, pages ? ".raw" : ".img");
}

int image_out_open(struct image_out *o, int dir, const char *name, struct ckpt_error *err)
{
	*o = (struct image_out){ .fd = -1 };
	snprintf(o->name, sizeof(o->name), "%s", name);
	o->hash = XXH3_createState();
	if (!o->hash)
		return ckpt_fail_sys(err, ENOMEM, "%s", name);
	XXH3_64bits_reset(o->hash);
	o->fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (o->fd < 0 && errno == EEXIST) {
		ckpt_fail(err, EEXIST, "%s is there already, and belongs to no image", name);
		return ckpt_hint(err, "remove it, or choose another directory");
	}
	if (o->fd < 0)
		return ckpt_fail_sys(err, errno, "create %s", name);
	return 0;
}

static int failed(struct image_out *o, int e, struct ckpt_error *err)
{
	__atomic_store_n(&o->failed, e, __ATOMIC_RELAXED);
	return ckpt_fail_sys(err, e, "write %s", o->name);
}

static int write_portion(struct image_out *o, const uint8_t *p, size_t len, struct ckpt_error *err)
{
	XXH3_64bits_update(o->hash, p, len);
	while (len) {
		ssize_t n = write(o->fd, p, len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return failed(o, n < 0 ? -errno : -EIO, err);
		p += n;
		len -= (size_t)n;
		o->size += (uint64_t)n;
	}
	return 0;
}

/* An early start of what has become a good deal; what goes wrong shows at the sync. */
static void start_write_back(struct image_out *o, uint64_t at, size_t len)
{
	uint64_t all = __atomic_add_fetch(&o->written, len, __ATOMIC_RELAXED);
	uint64_t from = at > WRITE_BACK ? at - WRITE_BACK : 0;

	if (all / WRITE_BACK != (all - len) / WRITE_BACK)
		(void)sync_file_range(o->fd, (off64_t)from, (off64_t)(at + len - from),
				      SYNC_FILE_RANGE_WRITE);
}

int image_out_write_pages(struct image_out *o, uint64_t at, const void *data, size_t len,
			  struct ckpt_error *err)
{
	const uint8_t *p = data;

	while (len) {
		size_t n = len < PORTION ? len : PORTION;
		uint64_t sum = image_pages_hash(p, at / IMAGE_PAGE, n / IMAGE_PAGE);

		for (size_t done = 0; done < n;) {
			ssize_t w = pwrite(o->fd, p + done, n - done, (off_t)(at + done));

			if (w < 0 && errno == EINTR)
				continue;
			if (w <= 0)
				return failed(o, w < 0 ? -errno : -EIO, err);
			done += (size_t)w;
		}
		__atomic_fetch_add(&o->sum, sum, __ATOMIC_RELAXED);
		start_write_back(o, at, n);
		p += n;
		at += n;
		len -= n;
	}
	return 0;
}

int image_out_write(struct image_out *o, const void *data, size_t len, struct ckpt_error *err)
{
	const uint8_t *p = data;

	if (o->failed)
		return ckpt_fail_sys(err, o->failed, "%s could not be written before", o->name);
	while (len) {
		size_t n = len < PORTION ? len : PORTION;
		int r = write_portion(o, p, n, err);

		if (r < 0)
			return r;
		p += n;
		len -= n;
	}
	return 0;
}

int image_out_end(struct image_out *o, uint64_t *hash, int *fd, struct ckpt_error *err)
{
	if (o->failed)
		return ckpt_fail_sys(err, o->failed, "%s could not be written before", o->name);
	if (o->paged && o->written != o->size)
		return ckpt_fail(err, EIO, "%s: %llu of %llu bytes were written", o->name,
				 (unsigned long long)o->written, (unsigned long long)o->size);
	/* only a hint: the caller's fsync(2) is what counts */
	sync_file_range(o->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
	*hash = o->paged ? o->sum : XXH3_64bits_digest(o->hash);
	*fd = ckpt_steal_fd(&o->fd);
	image_out_close(o);
	return 0;
}

void image_out_close(struct image_out *o)
{
	ckpt_cleanup_fd(&o->fd);
	o->fd = -1;
	XXH3_freeState(o->hash);
	o->hash = NULL;
}

int image_file_open(int dir, const char *name, uint64_t *size, int *fd, struct ckpt_error *err)
{
	/* O_NONBLOCK: a fifo put in place of a file must not make us wait */
	CKPT_AUTO_FD int f =
		openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	struct stat st;

	if (f < 0 && errno == ENOENT)
		return ckpt_fail_as(err, CKPT_EXIT_IMAGE, ENOENT, "%s is missing", name);
	if (f < 0 && errno == ELOOP)
		return image_bad(err, "%s is a symbolic link", name);
	if (f < 0 || fstat(f, &st) < 0)
		return ckpt_fail_as(err, CKPT_EXIT_IMAGE, errno, "%s cannot be opened: %s", name,
				    ckpt_errno_name(errno));
	if (!S_ISREG(st.st_mode))
		return image_bad(err, "%s is not a regular file", name);
	if (size)
		*size = (uint64_t)st.st_size;
	*fd = ckpt_steal_fd(&f);
	return 0;
}

int image_file_read(int fd, const char *name, void *buf, size_t len, struct ckpt_error *err)
{
	uint8_t *p = buf;

	while (len) {
		ssize_t n = read(fd, p, len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return ckpt_fail_as(err, CKPT_EXIT_IMAGE, errno, "%s cannot be read: %s",
					    name, ckpt_errno_name(errno));
		if (n == 0)
			return image_bad(err, "%s shrinks while it is read", name);
		p += n;
		len -= (size_t)n;
	}
	return 0;
}

int image_file_slurp(int dir, const char *name, uint64_t max, uint8_t **buf, size_t *len,
		     struct ckpt_error *err)
{
	CKPT_AUTO_FREE uint8_t *p = NULL;
	CKPT_AUTO_FD int fd = -1;
	uint64_t size;
	int r = image_file_open(dir, name, &size, &fd, err);

	if (r < 0)
		return r;
	if (size > max)
		return image_bad(err, "%s is too large: %llu bytes, the limit is %llu", name,
				 (unsigned long long)size, (unsigned long long)max);
	p = malloc(size + 1);
	if (!p)
		return ckpt_fail_sys(err, ENOMEM, "read %s", name);
	r = image_file_read(fd, name, p, size, err);
	if (r < 0)
		return r;
	*buf = ckpt_steal_ptr(&p);
	*len = size;
	return 0;
}
