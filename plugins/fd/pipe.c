/* SPDX-License-Identifier: MIT */
/*
 * Pipes: one record for the pipe, one for each end. The content is copied with
 * tee(2), which takes nothing out. Descriptions that were opened through
 * /proc/PID/fd show it by O_LARGEFILE, which pipe(2) does not set: they are
 * opened that way again.
 */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/uio.h>

#define LARGEFILE 0100000
#define FLAGS_OK  (O_ACCMODE | O_NONBLOCK | O_DIRECT | O_APPEND | O_NOFOLLOW | LARGEFILE)
/* of one record */
#define CONTENT_MAX (32u << 20)
/* two buffers */
#define PROBE_SIZE 8192

static bool pipe_match(const struct ckpt_fd_found *f)
{
	return S_ISFIFO(f->st.st_mode) && !strncmp(f->link, "pipe:[", 6);
}

static bool fifo_match(const struct ckpt_fd_found *f)
{
	return S_ISFIFO(f->st.st_mode) && f->link[0] == '/';
}

static int pipe_survey(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	int r = fifo_match(f) ? fd_place_survey(run, f, err) : 0;

	if (r)
		return r;
	if (f->flags & ~FLAGS_OK || (f->flags & O_NOFOLLOW && !fifo_match(f)))
		return fd_refuse(run, f, "open-flags", "the pipe has flags unknown to ckpt",
				 "allow the loss");
	/* notification queues (O_NOTIFICATION_PIPE) have no data that tee(2) could copy */
	if (fcntl(f->fd, F_GETPIPE_SZ) < 0)
		return fd_refuse(run, f, "pipe", "its size cannot be read",
				 "special pipes are not saved");
	return fd_refuse_foreign(run, f, err);
}

/* ---- content ------------------------------------------------------------------- */

struct content {
	uint8_t *data;
	ProtobufCBinaryData *chunks;
	protobuf_c_boolean *packets;
	size_t n, cap;
};

static int add_chunk(struct content *c, uint8_t *data, size_t len, bool packet)
{
	/* it follows the last one in memory too */
	if (c->n && !packet && !c->packets[c->n - 1]) {
		c->chunks[c->n - 1].len += len;
		return 0;
	}
	if (c->n == c->cap) {
		size_t cap = c->cap ? c->cap * 2 : 4;
		ProtobufCBinaryData *more = reallocarray(c->chunks, cap, sizeof(*more));
		protobuf_c_boolean *packets;

		if (more)
			c->chunks = more;
		packets = more ? reallocarray(c->packets, cap, sizeof(*packets)) : NULL;
		if (!packets)
			return -ENOMEM;
		c->packets = packets;
		c->cap = cap;
	}
	c->packets[c->n] = packet;
	c->chunks[c->n++] = (ProtobufCBinaryData){ len, data };
	return 0;
}

/* A pipe to copy into, as large as the one to copy; kept for the next. */
static int scratch_pipe(struct fd_state *st, int capacity, struct ckpt_error *err)
{
	if (!st->scratch_capacity && pipe2(st->scratch, O_NONBLOCK | O_CLOEXEC))
		return ckpt_fail_sys(err, errno, "pipe2(2)");
	if (st->scratch_capacity == capacity)
		return 0;
	st->scratch_capacity = -1;
	if (fcntl(st->scratch[1], F_SETPIPE_SZ, capacity) < 0)
		return ckpt_fail_sys(err, errno, "F_SETPIPE_SZ %d", capacity);
	st->scratch_capacity = capacity;
	return 0;
}

static bool is_readable(int flags)
{
	return (flags & O_ACCMODE) != O_WRONLY;
}

/* Fill the scratch pipe with what the pipe holds. */
static int copy_from(int in, const struct fd_state *st, struct ckpt_error *err)
{
	return tee(in, st->scratch[1], INT_MAX, SPLICE_F_NONBLOCK) < 0
		       ? ckpt_fail_sys(err, errno, "tee(2)")
		       : 0;
}

/*
 * tee(2) wants a readable description, and ours may be the writing end. Another one of the tree is
 * as good. To open one is an event for who watches a FIFO, so it is done if there is none.
 */
static int copy_pipe(struct ckpt_run *run, const struct ckpt_fd_found *f,
		     struct fd_file *const *files, size_t n, struct ckpt_error *err)
{
	const struct fd_state *st = fd_state(run);
	CKPT_AUTO_FD int readable = -1;
	char path[32];

	if (is_readable(f->flags))
		return copy_from(f->fd, st, err);
	for (size_t i = 0; i < n; i++) {
		struct ckpt_fd_found other;
		int r;

		if (!files[i]->first || !is_readable(files[i]->first->flags))
			continue;
		r = fd_describe(run, files[i], &other, err);
		if (r)
			return r < 0 ? r : ckpt_fail(err, ENOENT, "an end of the pipe is gone");
		r = copy_from(other.fd, st, err);
		fd_described(st, files[i]);
		return r;
	}
	snprintf(path, sizeof(path), "/proc/self/fd/%d", f->fd);
	readable = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	return readable < 0 ? ckpt_fail_sys(err, errno, "opening the pipe for reading")
			    : copy_from(readable, st, err);
}

static int probe_pipe(struct fd_state *st, struct ckpt_error *err)
{
	if (!st->probe[0] && pipe2(st->probe, O_NONBLOCK | O_CLOEXEC)) {
		st->probe[0] = 0;
		return ckpt_fail_sys(err, errno, "pipe2(2)");
	}
	if (fcntl(st->probe[1], F_SETPIPE_SZ, PROBE_SIZE) != PROBE_SIZE)
		return ckpt_fail_sys(err, errno, "F_SETPIPE_SZ %d", PROBE_SIZE);
	return 0;
}

/*
 * Take out the first buffer of the copy; returns its length. The probe has room for two: a byte of
 * it, then it as a whole. A read of the probe ends after the byte if that is of a packet, else it
 * goes on.
 */
static ssize_t take_buffer(const struct fd_state *st, uint8_t *to, size_t size, bool *packet)
{
	uint8_t byte;
	struct iovec iov[] = { { &byte, 1 }, { to, size } };
	ssize_t len, got;

	len = tee(st->scratch[0], st->probe[1], 1, SPLICE_F_NONBLOCK);
	if (len == 1)
		len = tee(st->scratch[0], st->probe[1], INT_MAX, SPLICE_F_NONBLOCK);
	if (len <= 0 || (size_t)len > size)
		return len < 0 ? -errno : -EIO;
	got = readv(st->probe[0], iov, CKPT_ARRAY_SIZE(iov));
	*packet = got == 1;
	if (*packet)
		got = 1 + read(st->probe[0], to, size);
	if (got != 1 + len || read(st->scratch[0], to, (size_t)len) != len)
		return -EIO;
	return len;
}

static int drain(struct fd_state *st, struct content *c, size_t total, struct ckpt_error *err)
{
	int r = probe_pipe(st, err);

	if (r)
		return r;
	c->data = malloc(total ? total : 1);
	if (!c->data)
		return ckpt_fail(err, ENOMEM, "out of memory");
	for (size_t at = 0; at < total;) {
		bool packet = false;
		ssize_t got = take_buffer(st, c->data + at, total - at, &packet);

		if (got < 0)
			return ckpt_fail_sys(err, (int)got, "copying the pipe's content");
		if (add_chunk(c, c->data + at, (size_t)got, packet))
			return ckpt_fail(err, ENOMEM, "out of memory");
		at += (size_t)got;
	}
	return 0;
}

static int read_content(struct ckpt_run *run, const struct ckpt_fd_found *f,
			struct fd_file *const *files, size_t n, int capacity, struct content *c,
			struct ckpt_error *err)
{
	struct fd_state *st = fd_state(run);
	int total = 0, copied = 0, r;

	if (ioctl(f->fd, FIONREAD, &total))
		return ckpt_fail_sys(err, errno, "FIONREAD");
	if (!total)
		return 0;
	if ((unsigned)total > CONTENT_MAX)
		return ckpt_fail(err, EFBIG, "the pipe holds %d bytes, more than ckpt saves",
				 total);
	r = scratch_pipe(st, capacity, err);
	if (!r)
		r = copy_pipe(run, f, files, n, err);
	if (!r && (ioctl(st->scratch[0], FIONREAD, &copied) || copied != total))
		r = ckpt_fail(err, EIO, "%d of %d bytes of the pipe could be copied", copied,
			      total);
	return r ? r : drain(st, c, (size_t)total, err);
}

/* ---- collect -------------------------------------------------------------------- */

static int put_pipe(struct ckpt_run *run, const struct ckpt_fd_found *f,
		    struct fd_file *const *files, size_t n, struct ckpt_error *err)
{
	CKPT_AUTO_FREE uint32_t *ends = calloc(n + 1, sizeof(uint32_t));
	Ckpt__Fd__Pipe rec = CKPT__FD__PIPE__INIT;
	struct content c = { 0 };
	Ckpt__Fd__Owner owner;
	int r;

	if (!ends)
		return ckpt_fail(err, ENOMEM, "out of memory");
	fd_owner_of(&f->st, &owner);
	rec.id = f->file;
	rec.owner = &owner;
	rec.ends = ends;
	if (fifo_match(f)) {
		rec.path = (ProtobufCBinaryData){ strlen(f->link), (uint8_t *)(uintptr_t)f->link };
		r = fd_place_mnt(run, f, &rec.mnt, err);
		if (r < 0)
			return r;
		rec.dev = rec.mnt ? 0 : f->st.st_dev;
		rec.ino = rec.mnt ? 0 : f->st.st_ino;
	}
	for (size_t i = 0; i < n; i++) {
		if (files[i]->out)
			continue;
		ends[rec.n_ends++] = files[i]->id;
	}
	rec.capacity = (uint32_t)fcntl(f->fd, F_GETPIPE_SZ);
	r = read_content(run, f, files, n, (int)rec.capacity, &c, err);
	rec.n_chunks = rec.n_packets = c.n;
	rec.chunks = c.chunks;
	rec.packets = c.packets;
	if (!r)
		r = ckpt_record_put(run, FD_PIPE, &rec.base, err);
	free(c.data);
	free(c.chunks);
	free(c.packets);
	return r;
}

/*
 * Who opened a FIFO for reading before there was a writer (O_NONBLOCK) is not told by POLLHUP that
 * there is none, until one has come and gone.
 */
static bool is_fresh(const struct ckpt_fd_found *f, struct fd_file *const *files, size_t n)
{
	struct pollfd p = { .fd = f->fd, .events = POLLIN };

	for (size_t i = 0; i < n; i++)
		if (files[i]->first->flags & O_ACCMODE)
			return false;
	return fifo_match(f) && poll(&p, 1, 0) >= 0 && !(p.revents & POLLHUP);
}

static int pipe_collect(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	Ckpt__Fd__PipeEnd rec = CKPT__FD__PIPE_END__INIT;
	struct fd_file *const *files;
	size_t n = fd_files_of(fd_state(run), f->st.st_dev, f->st.st_ino, &files), i = 0;
	int r = 0;

	while (i < n && files[i]->out)
		i++;
	if (i == n)
		return ckpt_fail(err, ENOENT, "the pipe is not among those found");
	rec.id = f->file;
	rec.pipe = files[i]->id;
	rec.fresh = is_fresh(f, files, n);
	if (rec.pipe == rec.id)
		r = put_pipe(run, f, files, n, err);
	return r ? r : ckpt_record_put(run, FD_PIPE_END, &rec.base, err);
}

/* ---- restore --------------------------------------------------------------------- */

static int check_fifo(struct ckpt_run *run, const Ckpt__Fd__Pipe *p, const Ckpt__Fd__File *file,
		      struct ckpt_error *err)
{
	char buf[PATH_MAX];
	const char *path = fd_image_path(&p->path, buf, sizeof(buf));
	struct stat st;
	int r;

	if (!path)
		return ckpt_fail_image(err, "the FIFO %u has no valid path", p->id);
	if (fd_copies_check(run, p->mnt, path, file))
		return 0;
	r = ckpt_stat_in(run, p->mnt, path, true, &st);
	if (r == -EINPROGRESS)
		return 0;
	if (r == -ELOOP)
		return fd_missing(run, path, r, NULL);
	if (r < 0 || !S_ISFIFO(st.st_mode))
		return ckpt_unmet(run, CKPT_EXIT_FAILED, "make it again: mkfifo",
				  "%s is not a FIFO", path);
	if (p->owner && !fd_is_same(&st, p->owner, p->dev, p->ino))
		return ckpt_unmet(run, CKPT_EXIT_FAILED, "put the FIFO back that was there",
				  "%s is another FIFO than it was, of another owner or mode", path);
	return 0;
}

static int check_pipe(struct ckpt_run *run, const Ckpt__Fd__Pipe *p, const Ckpt__Fd__File *file,
		      struct ckpt_error *err)
{
	bool writers = false, fresh = false;
	size_t total = 0;

	if (!p->capacity || p->capacity > INT_MAX || !p->n_ends || p->ends[0] != p->id)
		return ckpt_fail_image(err, "pipe %u is not valid", p->id);
	for (size_t i = 0; i < p->n_ends; i++) {
		const Ckpt__Fd__PipeEnd *e = ckpt_record_by_id(run, "fd.pipe-end", p->ends[i]);
		const Ckpt__Fd__File *other;

		if (!e || e->pipe != p->id || (i && p->ends[i] <= p->ends[i - 1]))
			return ckpt_fail_image(err, "end %u of pipe %u is not valid", p->ends[i],
					       p->id);
		other = ckpt_record_by_id(run, "fd.file", p->ends[i]);
		writers = writers || !other || other->flags & O_ACCMODE;
		fresh = fresh || e->fresh;
	}
	if (p->n_packets != p->n_chunks || (fresh && (writers || !p->path.len)))
		return ckpt_fail_image(err, "pipe %u is not valid", p->id);
	for (size_t i = 0; i < p->n_chunks; i++) {
		total += p->chunks[i].len;
		if (!p->chunks[i].len || total > p->capacity ||
		    (p->packets[i] && p->chunks[i].len > PIPE_BUF))
			return ckpt_fail_image(err, "the content of pipe %u is not valid", p->id);
	}
	if (p->path.len) {
		int r = check_fifo(run, p, file, err);

		if (r)
			return r;
	}
	return fd_owner_check(p->owner, p->id, err);
}

static int pipe_plan(struct ckpt_run *run, uint32_t id, struct ckpt_error *err)
{
	const Ckpt__Fd__PipeEnd *e = ckpt_record_need(run, "fd.pipe-end", id, err);
	const Ckpt__Fd__File *file = ckpt_record_need(run, "fd.file", id, err);
	const Ckpt__Fd__Pipe *p = e ? ckpt_record_need(run, "fd.pipe", e->pipe, err) : NULL;
	bool listed = false;

	if (!file || !p)
		return -EBADMSG;
	if (file->flags & ~(uint32_t)FLAGS_OK || (file->flags & O_ACCMODE) == O_ACCMODE ||
	    file->pos || strcmp(file->kind, p->path.len ? "fifo" : "pipe") != 0 ||
	    (p->path.len ? !(file->flags & LARGEFILE) : file->flags & O_NOFOLLOW))
		return ckpt_fail_image(err, "open file %u is not a valid end of a pipe", id);
	if (p->id == id)
		return check_pipe(run, p, file, err);
	for (size_t i = 0; i < p->n_ends && !listed; i++)
		listed = p->ends[i] == id;
	return listed ? fd_planned_as(run, p->id, file, err)
		      : ckpt_fail_image(err, "open file %u is not among its pipe's ends", id);
}

static int write_chunk(int fd, const ProtobufCBinaryData *chunk, bool packet)
{
	ssize_t put;

	if (fcntl(fd, F_SETFL, O_NONBLOCK | (packet ? O_DIRECT : 0)))
		return -errno;
	put = write(fd, chunk->data, chunk->len);
	return put < 0 ? -errno : (size_t)put != chunk->len ? -EIO : 0;
}

/* A write adds to the last page if there is room, but not to one that tee(2) has put there. */
static int tee_chunk(int fd, const ProtobufCBinaryData *chunk, size_t capacity)
{
	CKPT_AUTO_FD int rd = -1;
	CKPT_AUTO_FD int wr = -1;
	int ends[2], r;
	ssize_t put;

	if (pipe2(ends, O_NONBLOCK | O_CLOEXEC))
		return -errno;
	rd = ends[0];
	wr = ends[1];
	if (fcntl(wr, F_SETPIPE_SZ, capacity) < 0)
		return -errno;
	r = write_chunk(wr, chunk, false);
	if (r)
		return r;
	put = tee(rd, fd, chunk->len, SPLICE_F_NONBLOCK);
	return put < 0 ? -errno : (size_t)put != chunk->len ? -EIO : 0;
}

static int write_content(int fd, const Ckpt__Fd__Pipe *p, struct ckpt_error *err)
{
	for (size_t i = 0; i < p->n_chunks; i++) {
		bool packet = p->packets[i], before_packet = i + 1 < p->n_chunks && !packet;
		int r = before_packet ? tee_chunk(fd, &p->chunks[i], p->capacity)
				      : write_chunk(fd, &p->chunks[i], packet);

		if (r)
			return ckpt_fail_sys(err, r, "filling the pipe with its content");
	}
	return p->n_chunks && fcntl(fd, F_SETFL, 0) ? ckpt_fail_sys(err, errno, "F_SETFL") : 0;
}

/* O_NOFOLLOW stays among a file's flags, and /proc has nothing but links. */
static int make_named(struct ckpt_run *run, const Ckpt__Fd__Pipe *p, int end, uint32_t flags)
{
	const int mode = (int)flags & (O_ACCMODE | O_NOFOLLOW);
	struct ckpt_error ignored = { 0 };
	char buf[PATH_MAX];
	const char *path = fd_image_path(&p->path, buf, sizeof(buf));
	CKPT_AUTO_FD int fd = -1;
	struct stat st, is;

	if (!path || fstat(end, &is))
		return -1;
	fd = ckpt_open_in(run, p->mnt, path, mode | O_NONBLOCK | O_CLOEXEC, 0, &ignored);
	if (fd < 0 || fstat(fd, &st) || st.st_dev != is.st_dev || st.st_ino != is.st_ino) {
		errno = fd < 0 ? ignored.err : ESTALE;
		return -1;
	}
	return ckpt_steal_fd(&fd);
}

/* One end: pipe(2)'s own if it is still there and was one, else a description of its own. */
static int make_end(struct ckpt_run *run, const Ckpt__Fd__Pipe *p, int ends[2], uint32_t flags)
{
	int mode = (int)flags & O_ACCMODE;
	char path[32];

	if (!(flags & LARGEFILE) && mode != O_RDWR && ends[mode == O_WRONLY] >= 0)
		return ckpt_steal_fd(&ends[mode == O_WRONLY]);
	if (flags & O_NOFOLLOW)
		return make_named(run, p, ends[0] >= 0 ? ends[0] : ends[1], flags);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", ends[0] >= 0 ? ends[0] : ends[1]);
	return open(path, mode | O_NONBLOCK | O_CLOEXEC);
}

/* When an end is made: those of /proc/self/fd before pipe(2)'s own, which are needed to reach it.
 */
enum when { OPENED, OWN, FRESH, N_WHEN };

static enum when when_made(struct ckpt_run *run, const Ckpt__Fd__File *file)
{
	const Ckpt__Fd__PipeEnd *e = ckpt_record_by_id(run, "fd.pipe-end", file->id);

	return e && e->fresh ? FRESH : file->flags & LARGEFILE ? OPENED : OWN;
}

static int make_those(struct ckpt_run *run, const Ckpt__Fd__Pipe *p, enum when when, int ends[2],
		      struct ckpt_error *err)
{
	struct fd_state *st = fd_state(run);

	for (size_t i = 0; i < p->n_ends; i++) {
		const Ckpt__Fd__File *file = ckpt_record_by_id(run, "fd.file", p->ends[i]);
		int fd, r;

		if (!file || when_made(run, file) != when)
			continue;
		fd = make_end(run, p, ends, file->flags);
		if (fd < 0)
			return ckpt_fail_sys(err, errno, "opening end %u of the pipe", file->id);
		r = fd_stash_put(st, file->id, fd, err);
		if (r)
			return r;
	}
	return 0;
}

/* The end for both ways that has kept the FIFO alive, and would be a writer, becomes a reader. */
static int end_writing(int ends[2], struct ckpt_error *err)
{
	char path[32];
	int fd;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", ends[0]);
	fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return ckpt_fail_sys(err, errno, "opening the FIFO for reading");
	close(ckpt_steal_fd(&ends[1]));
	close(ends[0]);
	ends[0] = fd;
	return 0;
}

static bool has_fresh(struct ckpt_run *run, const Ckpt__Fd__Pipe *p)
{
	bool fresh = false;

	for (size_t i = 0; i < p->n_ends && !fresh; i++) {
		const Ckpt__Fd__PipeEnd *e = ckpt_record_by_id(run, "fd.pipe-end", p->ends[i]);

		fresh = e && e->fresh;
	}
	return fresh;
}

static int make_ends(struct ckpt_run *run, const Ckpt__Fd__Pipe *p, int ends[2],
		     struct ckpt_error *err)
{
	int r = 0;

	for (enum when w = OPENED; !r && w < N_WHEN; w++) {
		if (w == FRESH && has_fresh(run, p))
			r = end_writing(ends, err);
		if (!r)
			r = make_those(run, p, w, ends, err);
	}
	return r;
}

/*
 * pipe(2)'s two ends, or one of a FIFO that never waits. Who has the FIFO open for both
 * ways keeps it alive until all its ends are there.
 */
static int open_ends(struct ckpt_run *run, const Ckpt__Fd__Pipe *p, int ends[2],
		     struct ckpt_error *err)
{
	CKPT_AUTO_FD int seen = -1;
	char buf[PATH_MAX], self[32];
	const char *path;
	struct stat st;
	int queued;

	if (!p->path.len)
		return pipe2(ends, O_CLOEXEC) ? ckpt_fail_sys(err, errno, "pipe2(2)") : 0;
	path = fd_image_path(&p->path, buf, sizeof(buf));
	if (!path)
		return ckpt_fail_image(err, "the FIFO %u has no valid path", p->id);
	/* looked at before it is opened, which may wake up others */
	seen = ckpt_open_in(run, p->mnt, path, O_PATH | O_NOFOLLOW, 0, err);
	if (seen < 0)
		return seen;
	if (fstat(seen, &st))
		return ckpt_fail_sys(err, errno, "fstat(2)");
	if (!S_ISFIFO(st.st_mode) || !fd_is_same(&st, p->owner, p->dev, p->ino))
		return ckpt_fail(err, EIO, "%s is no longer the FIFO that it was", path);
	snprintf(self, sizeof(self), "/proc/self/fd/%d", seen);
	ends[0] = open(self, O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (ends[0] < 0)
		return ckpt_fail_sys(err, errno, "open(2) of %s", path);
	if (ioctl(ends[0], FIONREAD, &queued) || queued)
		return ckpt_fail(err, EBUSY, "the FIFO %s is in use by others", path);
	ends[1] = fcntl(ends[0], F_DUPFD_CLOEXEC, 0);
	return ends[1] < 0 ? ckpt_fail_sys(err, errno, "F_DUPFD") : 0;
}

static int make_pipe(struct ckpt_run *run, const Ckpt__Fd__Pipe *p, struct ckpt_error *err)
{
	CKPT_AUTO_FD int rd = -1;
	CKPT_AUTO_FD int wr = -1;
	int ends[2] = { -1, -1 }, r = open_ends(run, p, ends, err);

	if (!r && (uint32_t)fcntl(ends[1], F_GETPIPE_SZ) != p->capacity &&
	    fcntl(ends[1], F_SETPIPE_SZ, p->capacity) < 0)
		r = ckpt_fail_sys(err, errno, "F_SETPIPE_SZ %u", p->capacity);
	if (!r)
		r = write_content(ends[1], p, err);
	if (!r && !p->path.len)
		r = fd_owner_apply(ends[1], p->owner, err);
	if (!r)
		r = make_ends(run, p, ends, err);
	rd = ends[0];
	wr = ends[1];
	return r;
}

static int pipe_open(struct ckpt_run *run, const struct ckpt_fd_slot *slot, struct ckpt_error *err)
{
	const Ckpt__Fd__PipeEnd *e = ckpt_record_need(run, "fd.pipe-end", slot->file, err);
	int fd = fd_stash_take(fd_state(run), slot->file);
	const Ckpt__Fd__Pipe *p;
	int r;

	if (fd >= 0)
		return fd;
	p = e ? ckpt_record_need(run, "fd.pipe", e->pipe, err) : NULL;
	if (!p)
		return -EBADMSG;
	r = make_pipe(run, p, err);
	if (r)
		return r;
	fd = fd_stash_take(fd_state(run), slot->file);
	return fd >= 0 ? fd
		       : ckpt_fail_image(err, "open file %u is not among its pipe's ends",
					 slot->file);
}

const struct ckpt_fd_kind fd_kind_pipe = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = pipe_match,
	.survey = pipe_survey,
	.collect = pipe_collect,
	.plan = pipe_plan,
	.open = pipe_open,
	.own_pos = true,
};

const struct ckpt_fd_kind fd_kind_fifo = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = fifo_match,
	.survey = pipe_survey,
	.collect = pipe_collect,
	.plan = pipe_plan,
	.open = pipe_open,
	.own_pos = true,
};
