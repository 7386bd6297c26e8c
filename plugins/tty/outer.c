/* SPDX-License-Identifier: MIT */
/*
 * --shell-job: the tree is a job of the shell that ckpt is started from. Its
 * session and terminal are that shell's, at restore those of ckpt itself, which
 * all tasks are born into.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>

#include "tty.h"

/* ---- dump --------------------------------------------------------------------- */

bool tty_is_outer(struct ckpt_run *run, const struct tty_state *st, uint32_t major, uint32_t minor)
{
	const struct tty_member *root = st->n_members ? &st->members[0] : NULL;

	if (!ckpt_opt_bool(run, "shell-job") || !root || !root->has ||
	    tty_of_session(st, root->session) != TTY_PTY_NONE)
		return false;
	if (major == TTY_MAJOR_PTS && tty_holder(st, minor, true, false))
		return false;
	return root->major == major && root->minor == minor;
}

static int open_found(const struct tty_member *root, struct ckpt_error *err)
{
	char path[32];
	int fd;

	if (root->major != TTY_MAJOR_PTS)
		return ckpt_fail(err, ENODEV, "terminal %u:%u is no pseudo terminal", root->major,
				 root->minor);
	snprintf(path, sizeof(path), TTY_PTS_DIR "/%u", root->minor);
	fd = open(path, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
	return fd < 0 ? ckpt_fail_sys(err, errno, "open(2) of %s", path) : fd;
}

int tty_collect(struct ckpt_run *run, struct ckpt_error *err)
{
	struct tty_state *st = tty_state(run);
	Ckpt__Tty__Outer rec = CKPT__TTY__OUTER__INIT;
	CKPT_AUTO_FREE uint32_t *detached = NULL;
	const struct tty_member *root;
	const struct ckpt_task *first;
	struct tty_setting s;
	CKPT_AUTO_FD int fd = -1;
	int r;

	if (!ckpt_opt_bool(run, "shell-job"))
		return 0;
	r = tty_scan(run, st, err);
	if (r)
		return r;
	root = &st->members[0];
	if (!tty_is_outer(run, st, root->major, root->minor))
		return 0;
	fd = open_found(root, err);
	if (fd < 0)
		return fd;
	r = tty_setting_read(fd, &s);
	if (r)
		return ckpt_fail_sys(err, r, "TCGETS2");
	detached = calloc(st->n_members, sizeof(*detached));
	if (!detached)
		return ckpt_fail(err, ENOMEM, "out of memory");
	for (size_t i = 0; i < st->n_members; i++) {
		const struct ckpt_task *t = ckpt_task_at(run, i);

		if (!t->zombie && st->members[i].session == root->session && !st->members[i].has)
			detached[rec.n_detached++] = t->id;
	}
	first = tty_foreground(run, st, ckpt_task_at(run, 0));
	rec.foreground = first ? first->id : 0;
	rec.detached = detached;
	rec.termios = ckpt_feature_on(run, "termios") ? &s.termios : NULL;
	return ckpt_record_put(run, TTY_REC_OUTER, &rec.base, err);
}

/* ---- restore -------------------------------------------------------------------- */

const Ckpt__Tty__Outer *tty_outer(struct ckpt_run *run)
{
	return ckpt_record_at(run, "tty.outer", 0);
}

int tty_outer_open(int flags, struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = open("/dev/tty", O_RDWR | O_CLOEXEC);
	unsigned dev;
	char path[32];
	int own;

	if (fd < 0 || ioctl(fd, TIOCGDEV, &dev))
		return ckpt_fail_sys(err, errno, "/dev/tty");
	if (((dev >> 8) & 0xfff) != TTY_MAJOR_PTS)
		return ckpt_fail(err, ENODEV, "ckpt's terminal is no pseudo terminal");
	snprintf(path, sizeof(path), TTY_PTS_DIR "/%u", (dev & 0xff) | ((dev >> 12) & 0xfff00));
	own = open(path, flags | O_NOCTTY | O_CLOEXEC);
	return own < 0 ? ckpt_fail_sys(err, errno, "open(2) of %s", path) : own;
}

int tty_outer_plan(struct ckpt_run *run, struct ckpt_error *err)
{
	static const char hint[] = "start ckpt restore from a terminal, with --shell-job";
	const Ckpt__Tty__Outer *rec = tty_outer(run);
	struct ckpt_error local = { 0 };
	CKPT_AUTO_FD int fd = -1;

	if (!rec)
		return 0;
	if (ckpt_record_count(run, "tty.outer") > 1 || tty_termios_check(rec->termios, err) ||
	    (rec->foreground && !tty_in_session(run, rec->foreground, 0)))
		return ckpt_fail_image(err, "the job of a shell is not valid");
	for (size_t i = 0; i < rec->n_detached; i++)
		if (!tty_in_session(run, rec->detached[i], 0))
			return ckpt_fail_image(err, "task %u is not in the shell's session",
					       rec->detached[i]);
	if (!ckpt_opt_bool(run, "shell-job"))
		return ckpt_unmet(run, CKPT_EXIT_FAILED, hint, "the tree is a job of a shell");
	/* the dump itself may be started from anywhere */
	fd = ckpt_plan_only(run) ? -1 : tty_outer_open(O_RDWR, &local);
	if (fd < 0 && !ckpt_plan_only(run))
		return ckpt_unmet(run, CKPT_EXIT_FAILED, hint,
				  "the tree is a job of a shell, and ckpt has no terminal: %s",
				  local.text);
	return 0;
}

/* Without SIGTTOU, which stops whoever does that from the background. */
static int set_foreground(int fd, pid_t group)
{
	sigset_t block, before;
	int r;

	sigemptyset(&block);
	sigaddset(&block, SIGTTOU);
	sigprocmask(SIG_BLOCK, &block, &before);
	r = tcsetpgrp(fd, group) ? -errno : 0;
	sigprocmask(SIG_SETMASK, &before, NULL);
	return r;
}

/* Only if ckpt has the foreground does the tree get it. */
static int to_foreground(struct ckpt_run *run, const Ckpt__Tty__Outer *rec, struct ckpt_error *err)
{
	struct tty_state *st = tty_state(run);
	const struct ckpt_task *t = ckpt_task_by_id(run, rec->foreground);
	pid_t now = tcgetpgrp(st->outer);
	int group, r;

	if (!rec->foreground || now != getpgrp())
		return 0;
	group = t ? tty_status_number(t, "NSpgid", 0, err)
		  : ckpt_fail_image(err, "no task %u", rec->foreground);
	if (group < 0)
		return group;
	if (tty_setting_read(st->outer, &st->was))
		return ckpt_fail_sys(err, errno, "TCGETS2");
	st->changed = true;
	r = tty_setting_apply(st->outer, rec->termios, NULL, err);
	if (r || group == now)
		return r;
	r = set_foreground(st->outer, group);
	if (r)
		return ckpt_fail_sys(err, r, "TIOCSPGRP");
	st->displaced = now;
	return 0;
}

int tty_outer_settle(struct ckpt_run *run, struct ckpt_error *err)
{
	struct tty_state *st = tty_state(run);
	const Ckpt__Tty__Outer *rec = tty_outer(run);
	int r = 0;

	if (!rec)
		return 0;
	if (!st)
		return ckpt_fail(err, ENOMEM, "out of memory");
	st->outer = tty_outer_open(O_RDWR, err);
	if (st->outer < 0)
		return st->outer;
	for (size_t i = 0; i < rec->n_detached && !r; i++)
		r = tty_call_in(run, st->outer, rec->detached[i], TIOCNOTTY, CKPT_C(0), err);
	return r ? r : to_foreground(run, rec, err);
}

void tty_outer_undo(struct ckpt_run *run)
{
	struct tty_state *st = tty_state(run);
	struct ckpt_error ignored = { 0 };

	if (st && st->displaced)
		set_foreground(st->outer, st->displaced);
	if (st && st->changed)
		tty_setting_apply(st->outer, &st->was.termios, NULL, &ignored);
}
