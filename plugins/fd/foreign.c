/* SPDX-License-Identifier: MIT */
/*
 * Who outside the tree has our pipes and sockets open. The kernel keeps no list
 * of holders, so all of /proc is read, once a run and only if there is a pipe or
 * socket to ask about.
 */
#include "internal.h"

#include <fcntl.h>

static int by_pid(const void *a, const void *b)
{
	pid_t x = *(const pid_t *)a, y = *(const pid_t *)b;

	return (x > y) - (x < y);
}

static int by_ino(const void *va, const void *vb)
{
	const struct fd_foreign *a = va, *b = vb;

	if (a->socket != b->socket)
		return a->socket ? 1 : -1;
	if (a->dev != b->dev)
		return a->dev > b->dev ? 1 : -1;
	if (a->ino != b->ino)
		return a->ino > b->ino ? 1 : -1;
	return (a->pid > b->pid) - (a->pid < b->pid);
}

struct scan {
	struct fd_state *st;
	size_t cap;
};

static int add(struct scan *s, const struct fd_foreign *f)
{
	struct fd_state *st = s->st;

	if (st->n_foreign == s->cap) {
		size_t want = s->cap ? s->cap * 2 : 256;
		struct fd_foreign *more = realloc(st->foreign, want * sizeof(*more));

		if (!more)
			return -ENOMEM;
		st->foreign = more;
		s->cap = want;
	}
	st->foreign[st->n_foreign++] = *f;
	return 0;
}

static int scan_link(void *arg, pid_t pid, pid_t tid, int base, const char *num)
{
	struct scan *s = arg;
	struct fd_foreign f = { .pid = pid, .num = atoi(num) };
	char path[32], link[64];
	struct stat sb;
	ssize_t len;

	(void)tid;
	snprintf(path, sizeof(path), "fd/%.20s", num);
	len = readlinkat(base, path, link, sizeof(link) - 1);
	if (len < 0)
		return 0;
	link[len] = '\0';
	f.socket = !strncmp(link, "socket:[", 8);
	if (f.socket || !strncmp(link, "pipe:[", 6)) {
		f.ino = strtoull(strchr(link, '[') + 1, NULL, 10);
	} else if (s->st->has_private && link[0] == '/' && !fstatat(base, path, &sb, 0) &&
		   (S_ISFIFO(sb.st_mode) || (S_ISREG(sb.st_mode) && !sb.st_nlink))) {
		f.dev = sb.st_dev;
		f.ino = sb.st_ino;
	} else {
		return 0;
	}
	return add(s, &f);
}

static int scan_all(struct ckpt_run *run, struct fd_state *st, struct ckpt_error *err)
{
	struct scan scan = { .st = st };
	const struct ckpt_table_look look = { scan_link, &scan };
	size_t n = ckpt_task_count(run);
	CKPT_AUTO_FREE pid_t *ours = calloc(n + 1, sizeof(pid_t));
	CKPT_AUTO_DIR DIR *proc = opendir("/proc");
	int r = 0;

	/* only then the files of strangers are worth a look */
	for (size_t i = 0; i < st->n_files && !st->has_private; i++)
		st->has_private = st->files[i].first->link[0] == '/' &&
				  (S_ISFIFO(st->files[i].first->st.st_mode) ||
				   !st->files[i].first->st.st_nlink);
	if (!proc || !ours)
		return ckpt_fail_sys(err, errno, "/proc");
	for (size_t i = 0; i < n; i++)
		ours[i] = ckpt_task_at(run, i)->pid;
	qsort(ours, n, sizeof(*ours), by_pid);
	for (struct dirent *d; !r && (d = ckpt_next_entry(proc));) {
		pid_t pid = atoi(d->d_name);

		if (pid > 0 && !bsearch(&pid, ours, n, sizeof(*ours), by_pid) &&
		    !ckpt_is_engine(pid))
			r = ckpt_tables_look(&look, pid);
	}
	r = r ? r : -errno;
	if (r)
		return ckpt_fail_sys(err, r, "looking for holders of pipes and sockets");
	if (st->n_foreign)
		qsort(st->foreign, st->n_foreign, sizeof(*st->foreign), by_ino);
	st->foreign_known = true;
	return 0;
}

static void describe(const struct fd_foreign *f, char *buf, size_t size)
{
	char path[40], comm[32] = "?";
	CKPT_AUTO_FD int fd = -1;
	ssize_t len;

	snprintf(path, sizeof(path), "/proc/%d/comm", f->pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	len = fd >= 0 ? read(fd, comm, sizeof(comm) - 1) : -1;
	if (len > 0)
		comm[len - 1] = '\0';
	snprintf(buf, size, "process %d (%s) as fd %d", f->pid, comm, f->num);
}

/* A process that has it open, as text. `dev` is 0 but for FIFOs: pipes and sockets have numbers of
 * their own. */
static int find_holder(struct ckpt_run *run, struct fd_state *st, bool is_socket, uint64_t dev,
		       uint64_t ino, char *buf, size_t size, struct ckpt_error *err)
{
	const struct fd_foreign wanted = { .socket = is_socket, .dev = dev, .ino = ino };
	size_t lo = 0, hi;

	if (!st->foreign_known) {
		int r = scan_all(run, st, err);

		if (r)
			return r;
	}
	hi = st->n_foreign;
	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (by_ino(&st->foreign[mid], &wanted) < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	if (lo == st->n_foreign || st->foreign[lo].socket != is_socket ||
	    st->foreign[lo].dev != dev || st->foreign[lo].ino != ino)
		return 0;
	describe(&st->foreign[lo], buf, size);
	return 1;
}

int fd_foreign(struct ckpt_run *run, struct fd_state *st, bool is_socket, uint64_t ino, char *buf,
	       size_t size, struct ckpt_error *err)
{
	return find_holder(run, st, is_socket, 0, ino, buf, size, err);
}

int fd_refuse_foreign(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	char who[96], reason[192], hint[256];
	struct fd_state *st = fd_state(run);
	int r = find_holder(run, st, S_ISSOCK(f->st.st_mode), f->link[0] == '/' ? f->st.st_dev : 0,
			    f->st.st_ino, who, sizeof(who), err);

	if (r <= 0)
		return r;
	snprintf(reason, sizeof(reason), "the other side leaves the tree: %s has it open too", who);
	snprintf(
		hint, sizeof(hint),
		"dump a tree that includes that process, or give -o fd.external=%s, and at restore "
		"-o fd.inherit=%s:FD",
		f->link, f->link);
	return fd_refuse(run, f, "external", reason, hint);
}
