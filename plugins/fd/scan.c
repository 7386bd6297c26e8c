/* SPDX-License-Identifier: MIT */
/* All descriptors of all tasks, read from outside. */
#include "internal.h"

#include <fcntl.h>
#include <sys/socket.h>

/* A descriptor, task or table that goes away is no failure while nothing is stopped. */
static bool vanished(const struct ckpt_run *run, int e)
{
	return ckpt_is_live(run) && (e == ENOENT || e == ESRCH || e == EBADF || e == EACCES);
}

static int by_number(const void *a, const void *b)
{
	int x = *(const int *)a, y = *(const int *)b;

	return (x > y) - (x < y);
}

static int list_numbers(DIR *dir, int **out, size_t *n)
{
	size_t cap = 0;

	for (struct dirent *d; (d = readdir(dir));) {
		if (d->d_name[0] < '0' || d->d_name[0] > '9')
			continue;
		if (*n == cap) {
			size_t want = cap ? cap * 2 : 64;
			int *more = realloc(*out, want * sizeof(**out));

			if (!more)
				return -ENOMEM;
			*out = more;
			cap = want;
		}
		(*out)[(*n)++] = atoi(d->d_name);
	}
	if (*n)
		qsort(*out, *n, sizeof(**out), by_number);
	return 0;
}

int fd_info_u64(const char *fdinfo, const char *key, int base, uint64_t *value)
{
	size_t len = strlen(key);

	for (const char *line = fdinfo; line && *line; line = strchr(line, '\n')) {
		if (*line == '\n')
			line++;
		if (strncmp(line, key, len) || line[len] != ':')
			continue;
		*value = strtoull(line + len + 1, NULL, base);
		return 0;
	}
	return -ENOENT;
}

/* Whole, whatever its size: an epoll's grows with its targets. */
static int read_fdinfo(int dirfd, const char *name, char **out)
{
	CKPT_AUTO_FD int fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC);
	CKPT_AUTO_FREE char *buf = NULL;
	size_t len = 0, cap = 0;

	if (fd < 0)
		return -errno;
	for (;;) {
		ssize_t got;

		if (cap - len < 1024) {
			char *more = realloc(buf, cap = cap ? cap * 4 : 2048);

			if (!more)
				return -ENOMEM;
			buf = more;
		}
		got = read(fd, buf + len, cap - len - 1);
		if (got < 0)
			return -errno;
		len += (size_t)got;
		/* one record: the kernel gives all of it, or fills the buffer */
		if (len < cap - 1)
			break;
	}
	buf[len] = '\0';
	*out = realloc(buf, len + 1);
	if (!*out)
		*out = buf;
	buf = NULL;
	return 0;
}

/*
 * Which filesystem the pipes, sockets and anonymous inodes of this kernel are on
 * is asked once; the rest is in the link, and following it is the most expensive
 * part of the scan.
 */
static int read_stat(struct fd_state *st, int links, const char *name, const char *link,
		     struct stat *out)
{
	static const struct {
		const char *start;
		bool numbered; /* else all share one inode */
	} known[FD_NAMELESS] = { { "pipe:[", true },
				 { "socket:[", true },
				 { "anon_inode:[event", false },
				 { "anon_inode:[timerfd]", false } };
	size_t i = 0;

	while (i < FD_NAMELESS && strncmp(link, known[i].start, strlen(known[i].start)) != 0)
		i++;
	if (i == FD_NAMELESS || !st->nameless[i].st_dev) {
		/* the magic link is followed, so this is the file, whatever its name leads to */
		if (fstatat(links, name, out, 0))
			return -errno;
		if (i < FD_NAMELESS)
			st->nameless[i] = *out;
		return 0;
	}
	*out = st->nameless[i];
	if (known[i].numbered)
		out->st_ino = strtoull(link + strlen(known[i].start), NULL, 10);
	return 0;
}

static int read_entry(struct fd_state *st, int links, int infos, struct fd_entry *e)
{
	char name[16], link[4200];
	uint64_t v;
	ssize_t len;
	int r;

	snprintf(name, sizeof(name), "%d", e->num);
	len = readlinkat(links, name, link, sizeof(link) - 1);
	if (len < 0)
		return -errno;
	link[len] = '\0';
	r = read_stat(st, links, name, link, &e->st);
	if (!r)
		r = read_fdinfo(infos, name, &e->fdinfo);
	if (r)
		return r;
	e->link = strdup(link);
	if (!e->link)
		return -ENOMEM;
	if (fd_info_u64(e->fdinfo, "flags", 8, &v))
		return -EPROTO;
	e->cloexec = v & O_CLOEXEC;
	e->flags = (int)(v & ~(uint64_t)O_CLOEXEC);
	if (fd_info_u64(e->fdinfo, "pos", 10, &v))
		return -EPROTO;
	e->pos = (int64_t)v;
	if (!fd_info_u64(e->fdinfo, "eventfd-id", 10, &v))
		e->key = v;
	return 0;
}

static struct fd_entry *new_entry(struct fd_state *st, const struct ckpt_task *task, int num)
{
	struct fd_entry *e;

	if (st->n == st->cap) {
		size_t cap = st->cap ? st->cap * 2 : 256;

		e = realloc(st->entries, cap * sizeof(*e));
		if (!e)
			return NULL;
		st->entries = e;
		st->cap = cap;
	}
	e = &st->entries[st->n];
	*e = (struct fd_entry){ .task = task, .num = num };
	return e;
}

int fd_scan_own(struct fd_state *st, const struct ckpt_task *task, int num, int own,
		struct ckpt_error *err)
{
	CKPT_AUTO_FD int links = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CKPT_AUTO_FD int infos = open("/proc/self/fdinfo", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CKPT_AUTO_FD int taken = own;
	struct fd_entry *e;
	int r;

	if (links < 0 || infos < 0)
		return ckpt_fail_sys(err, errno, "/proc/self/fd");
	e = new_entry(st, task, own);
	if (!e)
		return ckpt_fail(err, ENOMEM, "out of memory");
	r = read_entry(st, links, infos, e);
	if (r) {
		free(e->link);
		free(e->fdinfo);
		return ckpt_fail_sys(err, r, "/proc/self/fd/%d", own);
	}
	e->num = num;
	e->cloexec = false;
	e->in_flight = true;
	e->own = ckpt_steal_fd(&taken);
	st->n++;
	return 0;
}

static int scan_numbers(struct ckpt_run *run, struct fd_state *st, const struct ckpt_task *task,
			int links, int infos, const int *nums, size_t n, struct ckpt_error *err)
{
	for (size_t i = 0; i < n; i++) {
		struct fd_entry *e = new_entry(st, task, nums[i]);
		int r;

		if (!e)
			return ckpt_fail(err, ENOMEM, "out of memory");
		r = read_entry(st, links, infos, e);
		if (r) {
			free(e->link);
			free(e->fdinfo);
			if (vanished(run, -r))
				continue;
			return ckpt_fail_sys(err, r, "task %u (%s): /proc/%d/fd/%d", task->id,
					     task->comm, task->pid, nums[i]);
		}
		st->n++;
	}
	return 0;
}

static int scan_task(struct ckpt_run *run, struct fd_state *st, const struct ckpt_task *task,
		     struct ckpt_error *err)
{
	CKPT_AUTO_FREE int *nums = NULL;
	CKPT_AUTO_DIR DIR *dir = NULL;
	CKPT_AUTO_FD int infos = -1;
	size_t n = 0;
	int fd, r;

	fd = openat(task->procfd, "fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	infos = openat(task->procfd, "fdinfo", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	dir = fd >= 0 ? fdopendir(fd) : NULL;
	if (!dir || infos < 0) {
		r = errno;
		if (fd >= 0 && !dir)
			close(fd);
		if (vanished(run, r))
			return 0;
		return ckpt_fail_sys(err, r, "task %u (%s): /proc/%d/fd", task->id, task->comm,
				     task->pid);
	}
	r = list_numbers(dir, &nums, &n);
	if (r)
		return ckpt_fail(err, r, "out of memory");
	return scan_numbers(run, st, task, fd, infos, nums, n, err);
}

int fd_scan(struct ckpt_run *run, struct fd_state *st, struct ckpt_error *err)
{
	for (size_t i = 0; i < ckpt_task_count(run); i++) {
		const struct ckpt_task *task = ckpt_task_at(run, i);
		bool mine = !task->zombie && st->holders[task->id - 1] == task;
		int r = mine ? scan_task(run, st, task, err) : 0;

		if (r)
			return r;
	}
	st->n_held = st->n;
	return 0;
}

static int socket_int(int fd, int name)
{
	int v = -1;
	socklen_t len = sizeof(v);

	return getsockopt(fd, SOL_SOCKET, name, &v, &len) ? -1 : v;
}

int fd_describe(struct ckpt_run *run, const struct fd_file *file, struct ckpt_fd_found *f,
		struct ckpt_error *err)
{
	const struct fd_entry *e = file->first;

	*f = (struct ckpt_fd_found){
		.file = ckpt_is_live(run) ? 0 : file->id,
		.task = e->task,
		.num = e->num,
		.link = e->link,
		.fdinfo = e->fdinfo,
		.st = e->st,
		.flags = e->flags & ~O_ASYNC,
		.pos = e->pos,
		.tree = &fd_tree,
	};
	f->domain = f->type = f->protocol = f->listening = -1;
	f->fd = e->in_flight ? fcntl(e->own, F_DUPFD_CLOEXEC, 0)
			     : ckpt_get_fd(e->task, e->num, err);
	if (f->fd < 0 && e->in_flight)
		return ckpt_fail_sys(err, errno, "F_DUPFD_CLOEXEC");
	if (f->fd < 0)
		return vanished(run, -f->fd) ? 1 : f->fd;
	/* of pipes and sockets the scan knows only the inode's number */
	if ((S_ISFIFO(f->st.st_mode) || S_ISSOCK(f->st.st_mode)) && fstat(f->fd, &f->st)) {
		close(f->fd);
		return ckpt_fail_sys(err, errno, "fstat(2)");
	}
	if (!S_ISSOCK(f->st.st_mode))
		return 0;
	f->domain = socket_int(f->fd, SO_DOMAIN);
	f->type = socket_int(f->fd, SO_TYPE);
	f->protocol = socket_int(f->fd, SO_PROTOCOL);
	f->listening = socket_int(f->fd, SO_ACCEPTCONN);
	return 0;
}
