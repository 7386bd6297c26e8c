/* SPDX-License-Identifier: MIT */
/*
 * Who has which pseudo terminal open, inside and outside the tree. The kernel
 * keeps no list of holders, so all of /proc is read, once a run and only if the
 * tree has a terminal.
 */
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include "tty.h"

struct tty_state *tty_state(struct ckpt_run *run)
{
	struct tty_state *st = ckpt_state(run);

	if (!st) {
		st = calloc(1, sizeof(*st));
		if (!st)
			return NULL;
		st->outer = -1;
		st->here = -1;
		ckpt_state_set(run, st);
	}
	return st;
}

void tty_state_free(void *state)
{
	struct tty_state *st = state;

	if (!st)
		return;
	for (size_t i = 0; i < st->n_pairs; i++) {
		if (st->pairs[i].slave >= 0)
			close(st->pairs[i].slave);
		if (st->pairs[i].master >= 0)
			close(st->pairs[i].master);
	}
	if (st->outer >= 0)
		close(st->outer);
	if (st->here >= 0)
		close(st->here);
	free(st->pairs);
	free(st->pts);
	free(st->holders);
	free(st->members);
	free(st->put);
	free(st);
}

static int add(struct tty_state *st, const struct tty_holder *h)
{
	if (st->n_holders == st->cap_holders) {
		size_t want = st->cap_holders ? st->cap_holders * 2 : 64;
		struct tty_holder *more = realloc(st->holders, want * sizeof(*more));

		if (!more)
			return -ENOMEM;
		st->holders = more;
		st->cap_holders = want;
	}
	st->holders[st->n_holders++] = *h;
	return 0;
}

/* A master's number, from its fdinfo. */
static bool master_index(int proc, const char *num, uint32_t *pty)
{
	char path[40], text[1024];
	CKPT_AUTO_FD int fd = -1;
	const char *at;
	ssize_t len;

	snprintf(path, sizeof(path), "fdinfo/%.16s", num);
	fd = openat(proc, path, O_RDONLY | O_CLOEXEC);
	len = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	if (len <= 0)
		return false;
	text[len] = '\0';
	at = strstr(text, "tty-index:");
	if (!at)
		return false;
	*pty = (uint32_t)strtoul(at + strlen("tty-index:"), NULL, 10);
	return true;
}

/* ---- which devpts ------------------------------------------------------------------- */

static bool is_devpts(int fd)
{
	struct statfs fs;

	return !fstatfs(fd, &fs) && fs.f_type == DEVPTS_SUPER_MAGIC;
}

/* /dev/ptmx may be a node of its own: then it belongs to the `pts` beside it. */
static dev_t devpts_beside(int proc, const char *link)
{
	const char *name = strrchr(link, '/');
	CKPT_AUTO_FD int fd = -1;
	char path[PATH_MAX + 16];
	struct stat st;

	if (!name)
		return 0;
	snprintf(path, sizeof(path), "root%.*s/pts", (int)(name - link), link);
	fd = openat(proc, path, O_PATH | O_CLOEXEC);
	return fd >= 0 && is_devpts(fd) && !fstat(fd, &st) ? st.st_dev : 0;
}

/* What is not found out is taken for the one that ckpt sees. */
static int key_of(struct tty_state *st, dev_t dev, uint32_t number, uint32_t *pty)
{
	size_t i = 0;
	dev_t *more;

	while (dev && i < st->n_pts && st->pts[i] != dev)
		i++;
	*pty = TTY_PTY_NONE;
	if (i == st->n_pts) {
		more = realloc(st->pts, (i + 1) * sizeof(*more));
		if (!more)
			return -ENOMEM;
		st->pts = more;
		st->pts[st->n_pts++] = dev;
	}
	if (i < UINT32_MAX >> TTY_PTY_BITS && number < TTY_PTY_LIMIT)
		*pty = (uint32_t)i << TTY_PTY_BITS | number;
	return 0;
}

int tty_of_fd(struct tty_state *st, const struct ckpt_fd_found *f, uint32_t *pty,
	      struct ckpt_error *err)
{
	unsigned number = minor(f->st.st_rdev);
	dev_t dev = f->st.st_dev;
	int r;

	*pty = TTY_PTY_NONE;
	if (major(f->st.st_rdev) == TTY_MAJOR_AUX) {
		if (ioctl(f->fd, TIOCGPTN, &number))
			return 0;
		if (!is_devpts(f->fd))
			dev = devpts_beside(f->task->procfd, f->link);
	}
	r = key_of(st, dev, number, pty);
	return r ? ckpt_fail_sys(err, r, "terminals") : 0;
}

static bool may_be_pty(const char *link, bool ours)
{
	return link[0] == '/' &&
	       (ours || strstr(link, "pts/") || strstr(link, "ptmx") || strstr(link, "console"));
}

static dev_t devpts_of(int base, const char *path, const char *link, const struct stat *file)
{
	CKPT_AUTO_FD int fd = openat(base, path, O_PATH | O_CLOEXEC);

	return fd >= 0 && is_devpts(fd) ? file->st_dev : devpts_beside(base, link);
}

struct scan {
	struct ckpt_run *run;
	struct tty_state *st;
};

/* A node of another devpts, in some container, may have the same name and number. */
static int scan_link(void *arg, pid_t pid, pid_t tid, int base, const char *num)
{
	const struct scan *s = arg;
	struct tty_holder h = { .pid = pid,
				.num = atoi(num),
				.task = ckpt_task_by_pid(s->run, pid) };
	char path[32], link[PATH_MAX];
	uint32_t number;
	struct stat file;
	ssize_t len;
	bool slave;
	int r;

	/* what a thread has for itself is not among its task's numbers */
	if (h.task && tid != pid)
		return 0;
	snprintf(path, sizeof(path), "fd/%.20s", num);
	len = readlinkat(base, path, link, sizeof(link) - 1);
	if (len < 0)
		return 0;
	link[len] = '\0';
	if (!may_be_pty(link, h.task) || fstatat(base, path, &file, 0) || !S_ISCHR(file.st_mode))
		return 0;
	slave = major(file.st_rdev) == TTY_MAJOR_PTS;
	number = minor(file.st_rdev);
	h.master = !slave;
	if (!slave && (file.st_rdev != makedev(TTY_MAJOR_AUX, TTY_MINOR_PTMX) ||
		       !master_index(base, num, &number)))
		return 0;
	r = key_of(s->st, slave ? file.st_dev : devpts_of(base, path, link, &file), number, &h.pty);
	return r || h.pty == TTY_PTY_NONE || (!h.task && ckpt_is_engine(pid)) ? r : add(s->st, &h);
}

static int scan_members(struct ckpt_run *run, struct tty_state *st, struct ckpt_error *err)
{
	st->n_members = ckpt_task_count(run);
	st->members = calloc(st->n_members + 1, sizeof(*st->members));
	if (!st->members)
		return ckpt_fail(err, ENOMEM, "out of memory");
	for (size_t i = 0; i < st->n_members; i++) {
		const struct ckpt_task *t = ckpt_task_at(run, i);
		struct tty_member *m = &st->members[i];
		int64_t group, session, tty, foreground;
		CKPT_AUTO_FREE char *text = NULL;
		ssize_t len = ckpt_proc_read(t, "stat", &text, err);

		if (len < 0 && ckpt_is_live(run))
			continue;
		if (len < 0)
			return (int)len;
		if (ckpt_proc_stat_field(text, 5, &group) ||
		    ckpt_proc_stat_field(text, 6, &session) ||
		    ckpt_proc_stat_field(text, 7, &tty) ||
		    ckpt_proc_stat_field(text, 8, &foreground))
			return ckpt_fail(err, EPROTO, "/proc/%d/stat", t->pid);
		m->group = (pid_t)group;
		m->session = (pid_t)session;
		m->foreground = (pid_t)foreground;
		m->has = tty != 0;
		/* the kernel's new_encode_dev() */
		m->major = ((uint32_t)tty >> 8) & 0xfff;
		m->minor = ((uint32_t)tty & 0xff) | (((uint32_t)tty >> 12) & 0xfff00);
	}
	return 0;
}

/* stat(5) tells a session's terminal by its number, which each devpts has; the master knows. */
static int scan_sessions(struct ckpt_run *run, struct tty_state *st, struct ckpt_error *err)
{
	for (size_t i = 0; i < st->n_holders; i++) {
		struct tty_holder *h = &st->holders[i];
		CKPT_AUTO_FD int fd = -1;

		if (!h->task || tty_holder(st, h->pty, true, false) != h)
			continue;
		fd = ckpt_get_fd(h->task, h->num, err);
		if (fd < 0 && !ckpt_is_live(run))
			return fd;
		if (fd < 0 || ioctl(fd, TIOCGSID, &h->session))
			h->session = 0;
	}
	return 0;
}

int tty_scan(struct ckpt_run *run, struct tty_state *st, struct ckpt_error *err)
{
	struct scan scan = { run, st };
	const struct ckpt_table_look look = { scan_link, &scan };
	CKPT_AUTO_DIR DIR *proc = NULL;
	struct stat pts;
	int r;

	if (!st)
		return ckpt_fail(err, ENOMEM, "out of memory");
	if (st->known)
		return 0;
	st->pts = calloc(1, sizeof(*st->pts));
	if (!st->pts)
		return ckpt_fail(err, ENOMEM, "out of memory");
	st->n_pts = 1;
	st->pts[0] = stat(TTY_PTS_DIR, &pts) ? 0 : pts.st_dev;
	r = scan_members(run, st, err);
	if (r)
		return r;
	proc = opendir("/proc");
	if (!proc)
		return ckpt_fail_sys(err, errno, "/proc");
	for (struct dirent *d; !r && (d = ckpt_next_entry(proc));)
		if (atoi(d->d_name) > 0)
			r = ckpt_tables_look(&look, atoi(d->d_name));
	r = r ? r : -errno;
	if (r)
		return ckpt_fail_sys(err, r, "looking for holders of terminals");
	r = scan_sessions(run, st, err);
	st->known = r == 0;
	return r;
}

const struct tty_holder *tty_holder(const struct tty_state *st, uint32_t pty, bool master,
				    bool outside)
{
	for (size_t i = 0; i < st->n_holders; i++) {
		const struct tty_holder *h = &st->holders[i];

		if (h->pty == pty && h->master == master && outside == !h->task)
			return h;
	}
	return NULL;
}

void tty_holder_name(const struct tty_holder *h, char *buf, size_t size)
{
	char path[40], comm[32] = "?";
	CKPT_AUTO_FD int fd = -1;
	ssize_t len;

	snprintf(path, sizeof(path), "/proc/%d/comm", h->pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	len = fd >= 0 ? read(fd, comm, sizeof(comm) - 1) : -1;
	if (len > 0)
		comm[len - 1] = '\0';
	snprintf(buf, size, "process %d (%s) as fd %d", h->pid, comm, h->num);
}

const struct tty_member *tty_member(struct ckpt_run *run, const struct tty_state *st,
				    const struct ckpt_task *t)
{
	for (size_t i = 0; i < st->n_members; i++)
		if (ckpt_task_at(run, i) == t)
			return &st->members[i];
	return NULL;
}

uint32_t tty_of_session(const struct tty_state *st, pid_t session)
{
	for (size_t i = 0; session && i < st->n_holders; i++)
		if (st->holders[i].session == session)
			return st->holders[i].pty;
	return TTY_PTY_NONE;
}

const struct ckpt_task *tty_leader(struct ckpt_run *run, const struct tty_state *st, uint32_t pty)
{
	const struct tty_holder *h = tty_holder(st, pty, true, false);

	for (size_t i = 0; h && h->session && i < st->n_members; i++) {
		const struct ckpt_task *t = ckpt_task_at(run, i);

		if (st->members[i].has && st->members[i].session == h->session &&
		    h->session == t->pid)
			return t;
	}
	return NULL;
}

const struct ckpt_task *tty_foreground(struct ckpt_run *run, const struct tty_state *st,
				       const struct ckpt_task *leader)
{
	const struct tty_member *l = tty_member(run, st, leader);
	const struct ckpt_task *dead = NULL;

	for (size_t i = 0; l && i < st->n_members; i++) {
		const struct ckpt_task *t = ckpt_task_at(run, i);

		if (st->members[i].session != l->session || st->members[i].group != l->foreground)
			continue;
		if (!t->zombie)
			return t;
		dead = t;
	}
	return dead;
}
