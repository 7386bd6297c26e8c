/* SPDX-License-Identifier: MIT */
/* restore: pairs with their numbers, before the tasks; what closes doors, after the files. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

#include "tty.h"

struct tty_pair *tty_pair(struct ckpt_run *run, uint32_t pty)
{
	struct tty_state *st = tty_state(run);

	for (size_t i = 0; st && i < st->n_pairs; i++)
		if (st->pairs[i].rec->id == pty)
			return &st->pairs[i];
	return NULL;
}

/* ---- numbers ------------------------------------------------------------------------ */

struct spare {
	int *fds; /* pairs whose number nobody wants, held so that it is not given again */
	size_t n;
};

static void spare_free(struct spare *s)
{
	while (s->n)
		close(s->fds[--s->n]);
	free(s->fds);
}

static int keep_spare(struct spare *s, int fd)
{
	int *more = realloc(s->fds, (s->n + 1) * sizeof(*more));

	if (!more)
		return -ENOMEM;
	s->fds = more;
	s->fds[s->n++] = fd;
	return 0;
}

/* One more of that devpts; through the mount that this number's master was open through. */
static int open_next(struct ckpt_run *run, uint32_t fs, uint32_t mount, uint32_t *id,
		     struct ckpt_error *err)
{
	const struct tty_pair *pair;
	unsigned nr;
	int fd = tty_open_master(run, fs << TTY_PTY_BITS, mount, err);

	if (fd < 0)
		return fd;
	if (ioctl(fd, TIOCGPTN, &nr)) {
		close(ckpt_steal_fd(&fd));
		return ckpt_fail_sys(err, errno, "TIOCGPTN");
	}
	*id = fs << TTY_PTY_BITS | nr;
	pair = tty_pair(run, *id);
	if (!pair || pair->rec->mount == mount)
		return fd;
	/* its number is the lowest one again then */
	close(ckpt_steal_fd(&fd));
	return tty_open_master(run, *id, pair->rec->mount, err);
}

/* The kernel gives the lowest number that is free: all below the wanted ones are taken on the way.
 */
static int take_numbers(struct ckpt_run *run, struct tty_state *st, uint32_t fs,
			struct ckpt_error *err)
{
	__attribute__((cleanup(spare_free))) struct spare spare = { 0 };
	uint32_t last = 0, mount = 0, id = 0;
	size_t missing = 0;

	for (size_t i = 0; i < st->n_pairs; i++) {
		const Ckpt__Tty__Pty *rec = st->pairs[i].rec;

		if (TTY_DEVPTS(rec->id) != fs)
			continue;
		missing++;
		mount = rec->mount;
		if (rec->id > last)
			last = rec->id;
	}
	while (missing) {
		CKPT_AUTO_FD int fd = open_next(run, fs, mount, &id, err);
		struct tty_pair *pair = tty_pair(run, id);

		if (fd < 0)
			return fd;
		if (pair && pair->master < 0) {
			pair->master = ckpt_steal_fd(&fd);
			missing--;
			continue;
		}
		if (id > last)
			return ckpt_fail(err, EBUSY,
					 "the number of a terminal is taken by another "
					 "program");
		if (keep_spare(&spare, fd))
			return ckpt_fail(err, ENOMEM, "out of memory");
		ckpt_steal_fd(&fd);
	}
	return 0;
}

/* ---- making ------------------------------------------------------------------------- */

bool tty_has_slave(struct ckpt_run *run, const Ckpt__Tty__Pty *rec)
{
	if (rec->session || rec->slave_closed)
		return true;
	for (size_t i = 0; i < ckpt_record_count(run, "tty.end"); i++) {
		const Ckpt__Tty__End *e = ckpt_record_at(run, "tty.end", i);

		if (e->pty == rec->id && !e->master && !e->outer)
			return true;
	}
	return false;
}

static int own_node(struct ckpt_run *run, const Ckpt__Tty__Pty *rec, struct ckpt_error *err)
{
	int dir = tty_directory(run, rec->id, err);
	char name[16];
	struct stat st;

	if (dir < 0)
		return dir;
	snprintf(name, sizeof(name), "%u", TTY_NUMBER(rec->id));
	if (fstatat(dir, name, &st, 0) || !S_ISCHR(st.st_mode) ||
	    st.st_rdev != makedev(TTY_MAJOR_PTS, TTY_NUMBER(rec->id)))
		return ckpt_fail(err, ENODEV, TTY_PTS_DIR "/%s is not the terminal of /dev/ptmx",
				 name);
	if ((st.st_uid != rec->uid || st.st_gid != rec->gid) &&
	    fchownat(dir, name, rec->uid, rec->gid, 0))
		return ckpt_fail_sys(err, errno, "chown(2) of its node");
	if ((st.st_mode & 07777) != rec->mode && fchmodat(dir, name, rec->mode, 0))
		return ckpt_fail_sys(err, errno, "chmod(2) of its node");
	return 0;
}

static int make_pair(struct ckpt_run *run, struct tty_pair *pair, struct ckpt_error *err)
{
	int unlocked = 0, r;

	if (ioctl(pair->master, TIOCSPTLCK, &unlocked))
		return ckpt_fail_sys(err, errno, "TIOCSPTLCK");
	if (tty_has_slave(run, pair->rec)) {
		pair->slave = ioctl(pair->master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
		if (pair->slave < 0)
			return ckpt_fail_sys(err, errno, "TIOCGPTPEER");
	}
	/* through the master, whose settings are the slave's; nobody is there to be signalled */
	r = tty_setting_apply(pair->master, pair->rec->termios, pair->rec->winsize, err);
	return r ? r : own_node(run, pair->rec, err);
}

int tty_make(struct ckpt_run *run, struct ckpt_error *err)
{
	struct tty_state *st = tty_state(run);
	size_t n = ckpt_record_count(run, "tty.pty");
	int r = 0;

	if (!n)
		return 0;
	if (st)
		st->pairs = calloc(n, sizeof(*st->pairs));
	if (!st || !st->pairs)
		return ckpt_fail(err, ENOMEM, "out of memory");
	for (; st->n_pairs < n; st->n_pairs++)
		st->pairs[st->n_pairs] = (struct tty_pair){
			.rec = ckpt_record_at(run, "tty.pty", st->n_pairs),
			.master = -1,
			.slave = -1,
		};
	/* whoever has a number has all of its devpts */
	for (size_t i = 0; i < n && !r; i++)
		if (st->pairs[i].master < 0)
			r = take_numbers(run, st, TTY_DEVPTS(st->pairs[i].rec->id), err);
	for (size_t i = 0; i < n && !r; i++) {
		r = make_pair(run, &st->pairs[i], err);
		if (r)
			ckpt_wrap(err, "pty %u", st->pairs[i].rec->id);
	}
	ckpt_count(run, "terminals", n);
	return r;
}

/* ---- settling ------------------------------------------------------------------------- */

int tty_status_number(const struct ckpt_task *t, const char *key, int n, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *text = NULL;
	char line[512], *save = NULL;
	int count = 0, r = -1;

	if (ckpt_proc_read(t, "status", &text, err) < 0)
		return -err->err;
	if (ckpt_proc_field(text, key, line, sizeof(line)) < 0)
		return ckpt_fail(err, EPROTO, "/proc/%d/status: no %s", t->pid, key);
	for (char *w = strtok_r(line, "\t ", &save); w; w = strtok_r(NULL, "\t ", &save))
		if (count++ == n)
			r = atoi(w);
	if (n < 0)
		return count;
	return r > 0 ? r : ckpt_fail(err, ESRCH, "/proc/%d/status: no %s there", t->pid, key);
}

int tty_call_in(struct ckpt_run *run, int terminal, uint32_t task, unsigned long request,
		struct ckpt_arg arg, struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "tty.settle");
	struct ckpt_task *t = ckpt_task_by_id(run, task);
	int num, r;

	if (!t)
		return ckpt_fail_image(err, "no task %u", task);
	num = ckpt_lend_fd(run, t, terminal, err);
	if (num < 0)
		return num;
	ckpt_script_op(s, SYS_ioctl, 3, (struct ckpt_arg[]){ CKPT_C(num), CKPT_C(request), arg });
	r = ckpt_script_run(s, t->threads[0], err);
	return r ? r : ckpt_return_fd(run, t, num, err);
}

/* The group's number is the one that the leader, who calls, sees. */
static int set_foreground(struct ckpt_run *run, const struct tty_pair *pair, struct ckpt_error *err)
{
	const struct ckpt_task *leader = ckpt_task_by_id(run, pair->rec->session);
	const struct ckpt_task *member = ckpt_task_by_id(run, pair->rec->foreground);
	int level, group;

	if (!leader || !member)
		return ckpt_fail_image(err, "no task %u or %u", pair->rec->session,
				       pair->rec->foreground);
	level = tty_status_number(leader, "NStgid", -1, err);
	group = level < 0 ? level : tty_status_number(member, "NSpgid", level - 1, err);
	if (group < 0)
		return group;
	return tty_call_in(run, pair->slave, leader->id, TIOCSPGRP, CKPT_IN(&group, sizeof(group)),
			   err);
}

static int settle(struct ckpt_run *run, struct tty_pair *pair, struct ckpt_error *err)
{
	const Ckpt__Tty__Pty *rec = pair->rec;
	int on = 1, r = 0;

	for (size_t i = 0; i < rec->n_detached && !r; i++)
		r = tty_call_in(run, pair->slave, rec->detached[i], TIOCNOTTY, CKPT_C(0), err);
	if (!r && rec->foreground)
		r = set_foreground(run, pair, err);
	if (r)
		return r;
	r = tty_waiting_restore(pair, err);
	if (r)
		return r;
	if (rec->packet && ioctl(pair->master, TIOCPKT, &on))
		return ckpt_fail_sys(err, errno, "TIOCPKT");
	if (rec->exclusive && pair->slave >= 0 && ioctl(pair->slave, TIOCEXCL))
		return ckpt_fail_sys(err, errno, "TIOCEXCL");
	if (rec->locked && ioctl(pair->master, TIOCSPTLCK, &on))
		return ckpt_fail_sys(err, errno, "TIOCSPTLCK");
	return 0;
}

int tty_settle(struct ckpt_run *run, struct ckpt_error *err)
{
	struct tty_state *st = tty_state(run);

	for (size_t i = 0; st && i < st->n_pairs; i++) {
		struct tty_pair *pair = &st->pairs[i];

		if (settle(run, pair, err))
			return ckpt_wrap(err, "pty %u", pair->rec->id);
		/* ours was the last master of one that was hung up */
		if (pair->slave >= 0)
			close(ckpt_steal_fd(&pair->slave));
		close(ckpt_steal_fd(&pair->master));
	}
	return tty_outer_settle(run, err);
}
