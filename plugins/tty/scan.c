/* SPDX-License-Identifier: MIT */
/*
 * Who has which pseudo terminal open, inside and outside the tree. The kernel
 * keeps no list of holders, so all of /proc is read, once a run and only if the
 * tree has a terminal.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "tty.h"

struct tty_state *tty_state(struct ckpt_run *run)
{
	struct tty_state *st = ckpt_state(run);

	if (!st) {
		st = calloc(1, sizeof(*st));
		if (!st)
			return NULL;
		st->outer = -1;
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
	free(st->pairs);
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

/* A node of another devpts, in some container, may have the same name and number. */
static int scan_link(struct tty_state *st, int proc, int dir, const char *num, pid_t pid,
		     const struct ckpt_task *task)
{
	struct tty_holder h = { .pid = pid, .num = atoi(num), .task = task };
	char link[64];
	struct stat file;
	ssize_t len = readlinkat(dir, num, link, sizeof(link) - 1);

	if (len < 0)
		return 0;
	link[len] = '\0';
	if (strncmp(link, TTY_PTS_DIR "/", strlen(TTY_PTS_DIR) + 1) && strcmp(link, "/dev/ptmx"))
		return 0;
	if (fstatat(dir, num, &file, 0) || !S_ISCHR(file.st_mode))
		return 0;
	if (major(file.st_rdev) == TTY_MAJOR_PTS) {
		h.pty = minor(file.st_rdev);
	} else {
		h.master = true;
		if (!master_index(proc, num, &h.pty))
			return 0;
	}
	if (file.st_dev != st->pts && strcmp(link, "/dev/ptmx"))
		return 0;
	return add(st, &h);
}

/* Processes end while we look: whatever cannot be opened has nothing open. */
static int scan_process(struct ckpt_run *run, struct tty_state *st, int all, const char *name)
{
	pid_t pid = atoi(name);
	CKPT_AUTO_FD int proc = openat(all, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CKPT_AUTO_DIR DIR *dir = NULL;
	int fd = proc < 0 ? -1 : openat(proc, "fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC), r = 0;

	if (fd < 0)
		return 0;
	dir = fdopendir(fd);
	if (!dir) {
		close(fd);
		return -ENOMEM;
	}
	for (struct dirent *d; !r && (d = readdir(dir));)
		if (d->d_name[0] != '.')
			r = scan_link(st, proc, fd, d->d_name, pid, ckpt_task_by_pid(run, pid));
	return r;
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

int tty_scan(struct ckpt_run *run, struct tty_state *st, struct ckpt_error *err)
{
	CKPT_AUTO_DIR DIR *proc = NULL;
	struct stat pts;
	int r;

	if (!st)
		return ckpt_fail(err, ENOMEM, "out of memory");
	if (st->known)
		return 0;
	st->pts = stat(TTY_PTS_DIR, &pts) ? 0 : pts.st_dev;
	r = scan_members(run, st, err);
	if (r)
		return r;
	proc = opendir("/proc");
	if (!proc)
		return ckpt_fail_sys(err, errno, "/proc");
	for (struct dirent *d; !r && (d = readdir(proc));)
		if (atoi(d->d_name) > 0 && atoi(d->d_name) != getpid())
			r = scan_process(run, st, dirfd(proc), d->d_name);
	if (r)
		return ckpt_fail_sys(err, r, "looking for holders of terminals");
	st->known = true;
	return 0;
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

const struct ckpt_task *tty_leader(struct ckpt_run *run, const struct tty_state *st, uint32_t pty)
{
	for (size_t i = 0; i < st->n_members; i++) {
		const struct tty_member *m = &st->members[i];
		const struct ckpt_task *t = ckpt_task_at(run, i);

		if (m->has && m->major == TTY_MAJOR_PTS && m->minor == pty && m->session == t->pid)
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
