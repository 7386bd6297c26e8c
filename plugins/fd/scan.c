/* SPDX-License-Identifier: MIT */
/* All descriptors of all tasks, read from outside. */
#include "internal.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

bool fd_vanished(int e)
{
	return e == ENOENT || e == ESRCH || e == EBADF || e == EACCES;
}

static int by_number(const void *a, const void *b)
{
	int x = *(const int *)a, y = *(const int *)b;

	return (x > y) - (x < y);
}

static int list_numbers(DIR *dir, int **out, size_t *n)
{
	size_t cap = 0;

	for (struct dirent *d; (d = ckpt_next_entry(dir));) {
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
	if (errno)
		return -errno;
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

/* Links of files without a name, whose inode can be known without following the link. */
static const struct {
	const char *start;
	bool numbered; /* else all share one inode */
} nameless[FD_NAMELESS] = { { "pipe:[", true },
			    [FD_SOCKETS] = { "socket:[", true },
			    { "anon_inode:[event", false },
			    { "anon_inode:[timerfd]", false } };

/*
 * Which filesystem the pipes, sockets and anonymous inodes of this kernel are on
 * is asked once, of examples; the rest is in the link, and following it is the most
 * expensive part of the scan.
 */
static void look_at_nameless(struct fd_state *st)
{
	int fds[FD_NAMELESS] = { -1, socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0),
				 eventfd(0, EFD_CLOEXEC),
				 timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC) };
	int ends[2] = { -1, -1 };

	if (!pipe2(ends, O_CLOEXEC))
		fds[0] = ends[0];
	for (size_t i = 0; i < FD_NAMELESS; i++) {
		if (fds[i] < 0 || fstat(fds[i], &st->nameless[i]))
			st->nameless[i].st_dev = 0;
		if (fds[i] >= 0)
			close(fds[i]);
	}
	if (ends[1] >= 0)
		close(ends[1]);
}

static int read_stat(const struct fd_state *st, int dir, const char *path, const char *link,
		     struct stat *out)
{
	for (size_t i = 0; i < FD_NAMELESS; i++) {
		size_t len = strlen(nameless[i].start);

		if (!st->nameless[i].st_dev || strncmp(link, nameless[i].start, len) != 0)
			continue;
		*out = st->nameless[i];
		if (nameless[i].numbered)
			out->st_ino = strtoull(link + len, NULL, 10);
		return 0;
	}
	/* the magic link is followed, so this is the file, whatever its name leads to */
	return fstatat(dir, path, out, 0) ? -errno : 0;
}

int fd_scan_entry(const struct fd_state *st, int dir, int num, struct fd_entry *e)
{
	char path[24], link[4200];
	uint64_t v;
	ssize_t len;
	int r;

	snprintf(path, sizeof(path), "fd/%d", num);
	len = readlinkat(dir, path, link, sizeof(link) - 1);
	if (len < 0)
		return -errno;
	link[len] = '\0';
	e->link = strdup(link);
	if (!e->link)
		return -ENOMEM;
	r = read_stat(st, dir, path, link, &e->st);
	if (r)
		return r;
	snprintf(path, sizeof(path), "fdinfo/%d", num);
	r = read_fdinfo(dir, path, &e->fdinfo);
	if (r)
		return r;
	if (fd_info_u64(e->fdinfo, "flags", 8, &v))
		return -EPROTO;
	e->cloexec = v & O_CLOEXEC;
	e->flags = (int)(v & ~(uint64_t)O_CLOEXEC);
	if (fd_info_u64(e->fdinfo, "pos", 10, &v))
		return -EPROTO;
	e->pos = (int64_t)v;
	if (fd_info_u64(e->fdinfo, "mnt_id", 10, &e->mnt) ||
	    fd_info_u64(e->fdinfo, "ino", 10, &e->ino))
		return -EPROTO;
	if (!fd_info_u64(e->fdinfo, "eventfd-id", 10, &v))
		e->key = v;
	return 0;
}

static int fail_entry(const struct fd_entry *e, int r, struct ckpt_error *err)
{
	return ckpt_fail_sys(err, r, "task %u (%s): /proc/%d/fd/%d", e->task->id, e->task->comm,
			     e->task->pid, e->num);
}

int fd_scan_own(struct fd_state *st, const struct ckpt_task *task, int num, int own,
		struct ckpt_error *err)
{
	CKPT_AUTO_FD int self = open("/proc/self", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CKPT_AUTO_FD int taken = own;
	struct fd_entry *e;
	int r;

	if (self < 0)
		return ckpt_fail_sys(err, errno, "/proc/self");
	e = realloc(st->entries, (st->n + 1) * sizeof(*e));
	if (!e)
		return ckpt_fail(err, ENOMEM, "out of memory");
	st->entries = e;
	e += st->n;
	*e = (struct fd_entry){ .task = task, .num = num };
	r = fd_scan_entry(st, self, own, e);
	if (r) {
		free(e->link);
		free(e->fdinfo);
		return ckpt_fail_sys(err, r, "/proc/self/fd/%d", own);
	}
	e->cloexec = false;
	e->in_flight = true;
	e->own = ckpt_steal_fd(&taken);
	st->n++;
	return 0;
}

/* ---- the numbers of all tasks ------------------------------------------------------ */

/* One task's numbers. */
struct table {
	const struct ckpt_task *task;
	int *nums;
	size_t n;
};

struct scan {
	struct fd_state *st;
	bool live;
	struct table *tables;
	size_t n_tables;
	bool compare; /* a child's numbers with those of its parent */
	struct fd_locked locked;
};

/*
 * Comparing a number saves 8 us. But who has locked which file must be known then, and the kernel's
 * list of all locks waits for an RCU grace period: 5 to 20 ms.
 */
#define MANY_NUMBERS 2048

int fd_scan_numbers(int at, int **nums, size_t *n)
{
	int fd = openat(at, "fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CKPT_AUTO_DIR DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
	int r = dir ? list_numbers(dir, nums, n) : -errno;

	if (!dir && fd >= 0)
		close(fd);
	return r;
}

static int list_table(void *arg, size_t i, struct ckpt_error *err)
{
	const struct scan *s = arg;
	struct table *t = &s->tables[i];
	int e = -fd_scan_numbers(t->task->procfd, &t->nums, &t->n);

	if (!e || (s->live && fd_vanished(e)))
		return 0;
	return ckpt_fail_sys(err, e, "task %u (%s): /proc/%d/fd", t->task->id, t->task->comm,
			     t->task->pid);
}

static int list_all(struct ckpt_run *run, struct scan *s, struct ckpt_error *err)
{
	struct fd_state *st = s->st;
	int r;

	s->tables = calloc(ckpt_task_count(run) + 1, sizeof(*s->tables));
	if (!s->tables)
		return ckpt_fail(err, ENOMEM, "out of memory");
	for (size_t i = 0; i < ckpt_task_count(run); i++) {
		const struct ckpt_task *t = ckpt_task_at(run, i);

		if (!t->zombie && st->holders[t->id - 1] == t)
			s->tables[s->n_tables++].task = t;
	}
	r = ckpt_parallel(s->n_tables, list_table, s, err);
	if (r)
		return r;
	for (size_t i = 0; i < s->n_tables; i++)
		st->n += s->tables[i].n;
	st->n_held = st->n;
	st->entries = calloc(st->n + 1, sizeof(*st->entries));
	if (!st->entries)
		return ckpt_fail(err, ENOMEM, "out of memory");
	for (size_t i = 0, at = 0; i < s->n_tables; i++)
		for (size_t k = 0; k < s->tables[i].n; k++, at++) {
			st->entries[at].task = s->tables[i].task;
			st->entries[at].num = s->tables[i].nums[k];
		}
	return 0;
}

/* ---- what is behind them ------------------------------------------------------------- */

/*
 * Most descriptors of a child are its parent's: the kernel's word for that costs a third of
 * what reading about them again costs.
 */
static const struct fd_entry *inherited(const struct scan *s, const struct fd_entry *e)
{
	const struct ckpt_task *parent = e->task->parent;
	const struct fd_entry *p = parent ? fd_entry_find(s->st, parent, e->num) : NULL;

	return p && !ckpt_kcmp_file(e->task, e->num, p->task, p->num) ? p : NULL;
}

static int fill_entry(const struct scan *s, size_t i, struct ckpt_error *err)
{
	struct fd_entry *e = &s->st->entries[i];
	const struct fd_entry *p = s->compare ? inherited(s, e) : NULL;
	int r;

	if (p) {
		e->same = (size_t)(p - s->st->entries) + 1;
		return 0;
	}
	r = fd_scan_entry(s->st, e->task->procfd, e->num, e);
	if (r && s->live && fd_vanished(-r)) {
		e->gone = true;
		return 0;
	}
	return r ? fail_entry(e, r, err) : 0;
}

/* The list of locks is the first of what is looked at: waiting for it costs no processor time. */
static int look(void *arg, size_t i, struct ckpt_error *err)
{
	struct scan *s = arg;

	if (i)
		return fill_entry(s, i - 1, err);
	return s->compare && fd_locked_read(&s->locked) ? ckpt_fail(err, ENOMEM, "out of memory")
							: 0;
}

/* Parents come before their children, so what is taken over is complete. */
static int take_over(const struct scan *s, struct ckpt_error *err)
{
	for (size_t i = 0; i < s->st->n; i++) {
		struct fd_entry *e = &s->st->entries[i];
		const struct fd_entry *p = e->same ? &s->st->entries[e->same - 1] : NULL;
		struct fd_entry own = { .task = e->task, .num = e->num };
		int r;

		if (!p)
			continue;
		if (!fd_is_locked(&s->locked, p->st.st_ino)) {
			own = *p;
			own.task = e->task;
			own.num = e->num;
			own.same = p->same ? p->same : e->same;
			*e = own;
			continue;
		}
		r = fd_scan_entry(s->st, own.task->procfd, own.num, &own);
		*e = own;
		if (r)
			return fail_entry(e, r, err);
	}
	return 0;
}

static void drop_gone(struct fd_state *st)
{
	size_t n = 0;

	for (size_t i = 0; i < st->n; i++) {
		if (st->entries[i].gone) {
			free(st->entries[i].link);
			free(st->entries[i].fdinfo);
			continue;
		}
		st->entries[n++] = st->entries[i];
	}
	st->n = st->n_held = n;
}

int fd_scan(struct ckpt_run *run, struct fd_state *st, struct ckpt_error *err)
{
	struct scan s = { .st = st, .live = ckpt_is_live(run) };
	int r;

	look_at_nameless(st);
	r = list_all(run, &s, err);
	s.compare = !s.live && s.n_tables > 1 && st->n >= MANY_NUMBERS;
	if (!r)
		r = ckpt_parallel(st->n + 1, look, &s, err);
	if (!r)
		r = take_over(&s, err);
	drop_gone(st);
	for (size_t i = 0; i < s.n_tables; i++)
		free(s.tables[i].nums);
	free(s.tables);
	free(s.locked.ino);
	return r;
}

/* ---- descriptions ---------------------------------------------------------------------- */

/* Duplicates are kept from survey to collect, as long as enough numbers are left. */
#define DUPS_MAX 4096

static int socket_int(int fd, int name)
{
	int v = -1;
	socklen_t len = sizeof(v);

	return getsockopt(fd, SOL_SOCKET, name, &v, &len) ? -1 : v;
}

/* Take a duplicate of a description, and ask what only a duplicate tells. */
static int look_at(struct fd_file *file, struct ckpt_error *err)
{
	struct fd_entry *e = file->first;

	file->fd = e->in_flight ? fcntl(e->own, F_DUPFD_CLOEXEC, 0)
				: ckpt_get_fd(e->task, e->num, err);
	if (file->fd < 0 && e->in_flight)
		return ckpt_fail_sys(err, errno, "F_DUPFD_CLOEXEC");
	if (file->fd < 0)
		return file->fd;
	if (file->looked)
		return 0;
	/* of pipes and sockets the scan knows only the inode's number */
	if ((S_ISFIFO(e->st.st_mode) || S_ISSOCK(e->st.st_mode)) && fstat(file->fd, &e->st)) {
		int r = ckpt_fail_sys(err, errno, "fstat(2)");

		close(ckpt_steal_fd(&file->fd));
		return r;
	}
	file->domain = file->type = file->protocol = file->listening = -1;
	if (S_ISSOCK(e->st.st_mode)) {
		file->domain = socket_int(file->fd, SO_DOMAIN);
		file->type = socket_int(file->fd, SO_TYPE);
		file->protocol = socket_int(file->fd, SO_PROTOCOL);
		file->listening = socket_int(file->fd, SO_ACCEPTCONN);
	}
	file->no_owner = !fd_async_any(file->fd, e->flags);
	file->looked = true;
	return 0;
}

static int open_dup(void *arg, size_t i, struct ckpt_error *err)
{
	struct fd_state *st = arg;
	int r = look_at(&st->files[i], err);

	/* one that is gone is gone for fd_describe() too */
	return r == -ENOMEM ? r : 0;
}

/*
 * The kernel makes a table of descriptors larger by doubling it, and if threads share it then waits
 * for an RCU grace period (5 to 20 ms) each time. So it grows while there are none. That it cannot
 * is found out later.
 */
static void make_room(const struct fd_state *st, size_t n)
{
	const int any = st->n ? st->entries->task->procfd : -1;
	CKPT_AUTO_FD int low = fcntl(any, F_DUPFD_CLOEXEC, 0);
	CKPT_AUTO_FD int high = low < 0 ? -1 : fcntl(any, F_DUPFD_CLOEXEC, low + (int)n);

	(void)high;
}

int fd_dups_open(struct fd_state *st, struct ckpt_error *err)
{
	struct rlimit lim;

	st->n_dups = DUPS_MAX;
	if (!getrlimit(RLIMIT_NOFILE, &lim) && lim.rlim_cur / 4 < st->n_dups)
		st->n_dups = lim.rlim_cur / 4;
	if (st->n_dups > st->n_files)
		st->n_dups = st->n_files;
	make_room(st, st->n_dups);
	return ckpt_parallel(st->n_dups, open_dup, st, err);
}

void fd_dups_close(struct fd_state *st)
{
	for (size_t i = 0; i < st->n_dups; i++)
		if (st->files[i].fd >= 0)
			close(ckpt_steal_fd(&st->files[i].fd));
	st->n_dups = 0;
}

static void fill_found(const struct fd_file *file, struct ckpt_fd_found *f)
{
	const struct fd_entry *e = file->first;

	*f = (struct ckpt_fd_found){
		.file = file->id,
		.task = e->task,
		.num = e->num,
		.link = e->link,
		.fdinfo = e->fdinfo,
		.st = e->st,
		.flags = e->flags & ~O_ASYNC,
		.pos = e->pos,
		.fd = file->fd,
		.domain = file->domain,
		.type = file->type,
		.protocol = file->protocol,
		.listening = file->listening,
		.tree = &fd_tree,
		.ahead = file->ahead,
	};
}

int fd_describe(struct ckpt_run *run, struct fd_file *file, struct ckpt_fd_found *f,
		struct ckpt_error *err)
{
	int r = file->fd >= 0 ? 0 : look_at(file, err);

	if (r)
		return ckpt_is_live(run) && fd_vanished(-r) ? 1 : r;
	fill_found(file, f);
	if (ckpt_is_live(run))
		f->file = 0;
	return 0;
}

/* What one description costs to ask about is worth no thread, a dozen are. */
#define FILES_A_PORTION 16

static int look_ahead(void *arg, size_t i, struct ckpt_error *err)
{
	struct fd_file *file = (struct fd_file *)arg + i;
	const struct ckpt_fd_kind *kind = file->out ? NULL : file->kind->ops;
	struct ckpt_fd_found f;

	(void)err;
	/* kinds built before there was that word in the structure do not have it */
	if (!kind || file->fd < 0 || kind->size <= offsetof(struct ckpt_fd_kind, ahead) ||
	    !kind->ahead)
		return 0;
	fill_found(file, &f);
	file->ahead = kind->ahead(&f);
	return 0;
}

int fd_look_ahead(struct fd_file *files, size_t n, struct ckpt_error *err)
{
	return ckpt_parallel_by(n, FILES_A_PORTION, look_ahead, files, err);
}

void fd_described(const struct fd_state *st, struct fd_file *file)
{
	if (file->id > st->n_dups && file->fd >= 0)
		close(ckpt_steal_fd(&file->fd));
}
