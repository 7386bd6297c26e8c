/* SPDX-License-Identifier: MIT */
/* Descriptors of /dev/tty: whichever terminal controlled the session that opened it. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

#include "tty.h"

static bool current_match(const struct ckpt_fd_found *f)
{
	return S_ISCHR(f->st.st_mode) && major(f->st.st_rdev) == TTY_MAJOR_AUX &&
	       minor(f->st.st_rdev) == TTY_MINOR_TTY;
}

/* The number of the pty behind; -1: none, or no pty. */
static int64_t index_of(const struct ckpt_fd_found *f)
{
	unsigned dev;

	if (ioctl(f->fd, TIOCGDEV, &dev) || ((dev >> 8) & 0xfff) != TTY_MAJOR_PTS)
		return -1;
	return (dev & 0xff) | ((dev >> 12) & 0xfff00);
}

/*
 * Which terminal it is only its number tells, which each devpts has: it is taken for that of
 * the holder's session. Where all terminals are of one devpts, the number is enough.
 */
static uint32_t key_of(struct ckpt_run *run, const struct tty_state *st,
		       const struct ckpt_fd_found *f)
{
	const struct tty_member *m = tty_member(run, st, f->task);
	uint32_t pty = m && m->has ? tty_of_session(st, m->session) : TTY_PTY_NONE;
	int64_t number = index_of(f);

	if (number < 0 || (pty != TTY_PTY_NONE && TTY_NUMBER(pty) == number))
		return number < 0 ? TTY_PTY_NONE : pty;
	return st->n_pts > 1 ? TTY_PTY_NONE : (uint32_t)number;
}

static int current_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
			  struct ckpt_error *err)
{
	static const char hint[] = "start the program with setsid(1), without a terminal";
	struct tty_state *st = tty_state(run);
	int r = tty_scan(run, st, err);
	uint32_t pty = r ? TTY_PTY_NONE : key_of(run, st, f);

	if (r)
		return r;
	if (index_of(f) >= 0 && tty_is_outer(run, st, TTY_MAJOR_PTS, (uint32_t)index_of(f)))
		return 0;
	if (pty == TTY_PTY_NONE)
		return tty_refuse(run, f, "hung-up",
				  index_of(f) < 0 ? "the terminal behind it is gone, or no pty"
						  : "it is not the terminal of its session",
				  "close it before the dump, or allow the loss");
	if (!tty_holder(st, pty, true, false) || tty_holder(st, pty, true, true))
		return tty_refuse(run, f, "external",
				  "the terminal behind it belongs to a process outside the tree",
				  hint);
	if (!tty_leader(run, st, pty))
		return tty_refuse(run, f, "session",
				  "no session of the tree is controlled by that terminal", hint);
	r = tty_need(run, f, "controlling");
	if (!r)
		r = tty_need(run, f, "pty");
	if (!r && TTY_DEVPTS(pty))
		r = tty_need(run, f, "contained");
	if (!r && TTY_DEVPTS(pty) && !ckpt_feature_on(run, "contained"))
		return 1;
	/* without its terminal there is nothing to open, with or without leave */
	return r ? r : !ckpt_feature_on(run, "controlling") || !ckpt_feature_on(run, "pty") ? 1 : 0;
}

static int current_collect(struct ckpt_run *run, const struct ckpt_fd_found *f,
			   struct ckpt_error *err)
{
	Ckpt__Tty__Current rec = CKPT__TTY__CURRENT__INIT;
	struct tty_state *st = tty_state(run);
	int r = index_of(f) < 0 ? ckpt_fail(err, ENODEV, "TIOCGDEV") : tty_scan(run, st, err);

	if (r)
		return r;
	rec.id = f->file;
	rec.outer = tty_is_outer(run, st, TTY_MAJOR_PTS, (uint32_t)index_of(f));
	if (rec.outer)
		return ckpt_record_put(run, TTY_REC_CURRENT, &rec.base, err);
	r = tty_put_pty(run, f, key_of(run, st, f), false, &rec.pty, err);
	return r ? r : ckpt_record_put(run, TTY_REC_CURRENT, &rec.base, err);
}

static int current_plan(struct ckpt_run *run, uint32_t file, struct ckpt_error *err)
{
	const Ckpt__Tty__Current *rec = tty_current(run, file);
	const Ckpt__Tty__Pty *pty = rec ? tty_pty(run, rec->pty) : NULL;

	if (!rec || (rec->outer ? !tty_outer(run) : !pty || !pty->session))
		return ckpt_fail_image(err, "open file %u is not a valid /dev/tty", file);
	return 0;
}

/* Only a member of the session gets that terminal by this name. */
static int current_open(struct ckpt_run *run, const struct ckpt_fd_slot *slot,
			struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *open_it = ckpt_script_new(run, "tty.current");
	CKPT_AUTO_SCRIPT struct ckpt_script *close_it = ckpt_script_new(run, "tty.current");
	const Ckpt__Tty__Current *rec = tty_current(run, slot->file);
	const Ckpt__Tty__Pty *pty = rec ? tty_pty(run, rec->pty) : NULL;
	struct ckpt_task *leader = pty ? ckpt_task_by_id(run, pty->session) : NULL;
	int op, r, fd;

	if (rec && rec->outer) {
		/* the tree is in ckpt's own session */
		fd = open("/dev/tty", (slot->flags & (O_ACCMODE | 0100000)) | O_CLOEXEC);
		return fd < 0 ? ckpt_fail_sys(err, errno, "open(2) of /dev/tty") : fd;
	}
	if (!leader)
		return ckpt_fail_image(err, "open file %u has no session", slot->file);
	op = ckpt_script_add(open_it, SYS_openat, CKPT_C(AT_FDCWD), CKPT_STR("/dev/tty"),
			     CKPT_C((slot->flags & (O_ACCMODE | 0100000)) | O_CLOEXEC));
	r = ckpt_script_run(open_it, leader->threads[0], err);
	if (r)
		return r;
	fd = ckpt_get_fd(leader, (int)ckpt_script_result(open_it, op), err);
	ckpt_script_add(close_it, SYS_close, CKPT_C(ckpt_script_result(open_it, op)));
	r = ckpt_script_run(close_it, leader->threads[0], err);
	if (r && fd >= 0)
		close(fd);
	return r ? r : fd;
}

const struct ckpt_fd_kind tty_kind_current = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = current_match,
	.survey = current_survey,
	.collect = current_collect,
	.plan = current_plan,
	.open = current_open,
	.own_pos = true,
};
