/* SPDX-License-Identifier: MIT */
/*
 * What a file without a name holds, in the page file "fd". Holes are skipped by
 * asking for data, and pages of zeros are left out: what is written again is as
 * sparse as it can be, whatever the filesystem counts as data.
 */
#include <ckpt/huge.h>

#include "internal.h"

#include <fcntl.h>
#include <sys/xattr.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define PAGES_NAME "fd"
#define BUFFER	   (1ULL << 20)
/* Shorter runs of zeros are not worth an entry in the list. */
#define GAP (4 * FD_PAGE)

struct saver {
	struct ckpt_pages *pages;
	Ckpt__Fd__Ghost *g;
	size_t cap;
	uint8_t *buf;
};

static Ckpt__Fd__Extent *new_extent(struct saver *s, uint64_t offset)
{
	Ckpt__Fd__Extent *e = malloc(sizeof(*e));

	if (e && s->g->n_extents == s->cap) {
		size_t cap = s->cap ? s->cap * 2 : 16;
		Ckpt__Fd__Extent **more = realloc(s->g->extents, cap * sizeof(*more));

		if (!more) {
			free(e);
			return NULL;
		}
		s->g->extents = more;
		s->cap = cap;
	}
	if (!e)
		return NULL;
	ckpt__fd__extent__init(e);
	e->offset = offset;
	s->g->extents[s->g->n_extents++] = e;
	return e;
}

/* Append pages that follow the last extent, or are near enough, or begin another. */
static int add_run(struct saver *s, const uint8_t *data, uint64_t offset, uint64_t len,
		   struct ckpt_error *err)
{
	static const uint8_t zeros[GAP];
	size_t n = s->g->n_extents;
	Ckpt__Fd__Extent *e = n ? s->g->extents[n - 1] : NULL;
	uint64_t at, gap = e ? offset - e->offset - e->len : 0;
	int r = 0;

	if (!e || gap >= GAP) {
		e = new_extent(s, offset);
		gap = 0;
	}
	if (!e)
		return ckpt_fail(err, ENOMEM, "out of memory");
	if (gap)
		r = ckpt_pages_append(s->pages, zeros, gap, &at, err);
	if (!r)
		r = ckpt_pages_append(s->pages, data, len, &at, err);
	if (r < 0)
		return r;
	if (!e->len)
		e->at = at;
	e->len += gap + len;
	e->sum = XXH64(data, len, e->sum ^ offset);
	return 0;
}

static bool is_zero(const uint8_t *page)
{
	return !page[0] && !memcmp(page, page + 1, FD_PAGE - 1);
}

/* One buffer full, or what is left of the file, from an offset that is a multiple of pages. */
static int save_piece(struct saver *s, int fd, uint64_t offset, uint64_t len,
		      struct ckpt_error *err)
{
	uint64_t whole = (len + FD_PAGE - 1) / FD_PAGE * FD_PAGE, got = 0;

	while (got < len) {
		ssize_t n = pread(fd, s->buf + got, len - got, (off_t)(offset + got));

		if (n <= 0)
			return ckpt_fail_sys(err, n ? errno : EIO, "reading its content at %llu",
					     (unsigned long long)(offset + got));
		got += (uint64_t)n;
	}
	memset(s->buf + len, 0, whole - len);
	for (uint64_t i = 0, j; i < whole; i = j) {
		int r;

		j = i + FD_PAGE;
		if (is_zero(s->buf + i))
			continue;
		while (j < whole && !is_zero(s->buf + j))
			j += FD_PAGE;
		r = add_run(s, s->buf + i, offset + i, j - i, err);
		if (r)
			return r;
	}
	return 0;
}

/* Where data begins and ends; filesystems that know no holes say that all is data. */
static bool next_data(int fd, uint64_t from, uint64_t size, uint64_t *start, uint64_t *end)
{
	off_t data = lseek(fd, (off_t)from, SEEK_DATA), hole;

	if (data < 0 && errno == ENXIO)
		return false;
	*start = data < 0 ? from : (uint64_t)data / FD_PAGE * FD_PAGE;
	hole = data < 0 ? -1 : lseek(fd, data, SEEK_HOLE);
	*end = hole < 0 || (uint64_t)hole > size ? size : (uint64_t)hole;
	if (*start < from)
		*start = from;
	return *start < size;
}

int fd_content_save(struct ckpt_run *run, int fd, Ckpt__Fd__Ghost *g, struct ckpt_error *err)
{
	struct fd_state *st = fd_state(run);
	struct saver s = { .g = g };
	CKPT_AUTO_FREE uint8_t *buf = NULL;
	uint64_t start, end;
	int r = 0;

	if (!st->pages)
		r = ckpt_pages_create(run, PAGES_NAME, &st->pages, err);
	buf = r ? NULL : malloc(BUFFER);
	if (!buf)
		return r ? r : ckpt_fail(err, ENOMEM, "out of memory");
	s.buf = buf;
	s.pages = st->pages;
	for (uint64_t at = 0; !r && at < g->size && next_data(fd, at, g->size, &start, &end);) {
		for (at = start; !r && at < end;) {
			uint64_t len = end - at < BUFFER ? end - at : BUFFER;

			r = save_piece(&s, fd, at, len, err);
			/* where data ends within a page, the rest of the page is a hole */
			at += (len + FD_PAGE - 1) / FD_PAGE * FD_PAGE;
		}
	}
	return r;
}

static int save_xattr(int fd, Ckpt__Fd__Ghost *g, const char *name)
{
	Ckpt__Fd__Xattr *x = malloc(sizeof(*x));
	ssize_t len = fgetxattr(fd, name, NULL, 0);

	if (!x || len < 0) {
		free(x);
		return len < 0 ? -errno : -ENOMEM;
	}
	ckpt__fd__xattr__init(x);
	x->name = strdup(name);
	x->value.data = malloc((size_t)len + 1);
	x->value.len = (size_t)len;
	g->xattrs[g->n_xattrs++] = x;
	if (!x->name || !x->value.data)
		return -ENOMEM;
	return fgetxattr(fd, name, x->value.data, (size_t)len) == len ? 0 : -EIO;
}

int fd_xattrs_save(int fd, Ckpt__Fd__Ghost *g, struct ckpt_error *err)
{
	ssize_t len = flistxattr(fd, NULL, 0);
	CKPT_AUTO_FREE char *names = malloc(len > 0 ? (size_t)len : 1);
	size_t n = 0;
	int r = 0;

	if (len < 0 && errno == EOPNOTSUPP)
		return 0;
	if (!names)
		return ckpt_fail(err, ENOMEM, "out of memory");
	/* an overlay counts its own, which it does not tell then */
	if (len > 0)
		len = flistxattr(fd, names, (size_t)len);
	if (len < 0)
		return ckpt_fail_sys(err, errno, "flistxattr(2)");
	for (ssize_t i = 0; i < len; i++)
		n += !names[i];
	g->xattrs = calloc(n + 1, sizeof(*g->xattrs));
	if (!g->xattrs)
		return ckpt_fail(err, ENOMEM, "out of memory");
	for (const char *p = names; p < names + len && !r; p += strlen(p) + 1) {
		r = save_xattr(fd, g, p);
		if (r)
			ckpt_fail_sys(err, r, "extended attribute %s", p);
	}
	return r;
}

void fd_ghost_free(Ckpt__Fd__Ghost *g)
{
	for (size_t i = 0; i < g->n_extents; i++)
		free(g->extents[i]);
	for (size_t i = 0; i < g->n_xattrs; i++) {
		free(g->xattrs[i]->name);
		free(g->xattrs[i]->value.data);
		free(g->xattrs[i]);
	}
	free(g->extents);
	free(g->xattrs);
	g->n_extents = g->n_xattrs = 0;
}

/* ---- restore ---------------------------------------------------------------------- */

int fd_content_check(struct ckpt_run *run, const Ckpt__Fd__Ghost *g, struct ckpt_error *err)
{
	uint64_t size = 0, end = 0;
	CKPT_AUTO_FD int pages = -1;

	if (g->size > INT64_MAX - FD_PAGE)
		return ckpt_fail_image(err, "the size of file %u is not valid", g->id);
	if (g->n_extents) {
		int r = ckpt_pages_open(run, PAGES_NAME, &pages, &size, err);

		if (r)
			return ckpt_wrap(err, "content of file %u", g->id);
	}
	for (size_t i = 0; i < g->n_extents; i++) {
		const Ckpt__Fd__Extent *e = g->extents[i];

		if ((e->offset | e->len | e->at) % FD_PAGE || !e->len || e->offset < end ||
		    e->offset >= g->size || e->len > g->size + FD_PAGE - 1 - e->offset ||
		    e->at > size || e->len > size - e->at)
			return ckpt_fail_image(err, "the content of file %u is not valid", g->id);
		end = e->offset + e->len;
	}
	for (size_t i = 0; i < g->n_xattrs; i++)
		if (!*g->xattrs[i]->name || strlen(g->xattrs[i]->name) > 255 ||
		    g->xattrs[i]->value.len > 65536)
			return ckpt_fail_image(err, "an extended attribute of file %u is not valid",
					       g->id);
	return 0;
}

static int copy_extent(int pages, int fd, const Ckpt__Fd__Extent *e, uint64_t size, uint8_t *buf,
		       struct ckpt_error *err)
{
	uint64_t len = e->len < size - e->offset ? e->len : size - e->offset;

	for (uint64_t done = 0; done < len;) {
		uint64_t want = len - done < BUFFER ? len - done : BUFFER;
		ssize_t got = pread(pages, buf, want, (off_t)(e->at + done)), put = 0;

		if (got <= 0)
			return ckpt_fail_sys(err, got ? errno : EIO, "reading the page file");
		if (ckpt_is_huge(fd)) {
			int r = ckpt_huge_write(fd, buf, (size_t)got, e->offset + done, err);

			if (r)
				return r;
			put = got;
		}
		while (put < got) {
			ssize_t n = pwrite(fd, buf + put, (size_t)(got - put),
					   (off_t)(e->offset + done) + put);

			if (n <= 0)
				return ckpt_fail_sys(err, n ? errno : EIO, "writing its content");
			put += n;
		}
		done += (uint64_t)got;
	}
	return 0;
}

int fd_content_restore(struct ckpt_run *run, int fd, const Ckpt__Fd__Ghost *g,
		       struct ckpt_error *err)
{
	CKPT_AUTO_FREE uint8_t *buf = NULL;
	CKPT_AUTO_FD int pages = -1;
	uint64_t size;
	int r = 0;

	if (ftruncate(fd, (off_t)g->size))
		return ckpt_fail_sys(err, errno, "ftruncate(2) to %llu",
				     (unsigned long long)g->size);
	if (!g->n_extents)
		return 0;
	buf = malloc(BUFFER);
	if (!buf)
		return ckpt_fail(err, ENOMEM, "out of memory");
	r = ckpt_pages_open(run, PAGES_NAME, &pages, &size, err);
	for (size_t i = 0; i < g->n_extents && !r; i++)
		r = copy_extent(pages, fd, g->extents[i], g->size, buf, err);
	return r;
}

int fd_xattrs_restore(int fd, const Ckpt__Fd__Ghost *g, struct ckpt_error *err)
{
	for (size_t i = 0; i < g->n_xattrs; i++) {
		const Ckpt__Fd__Xattr *x = g->xattrs[i];

		if (fsetxattr(fd, x->name, x->value.data, x->value.len, 0))
			return ckpt_fail_sys(err, errno, "extended attribute %s", x->name);
	}
	return 0;
}
