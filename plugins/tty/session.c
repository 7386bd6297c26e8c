/* SPDX-License-Identifier: MIT */
/* Controlling terminals, for the plugin pid. */
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#include "tty.h"

static int refuse(struct ckpt_run *run, const struct ckpt_task *t, const char *feature,
		  const char *object, const char *reason, const char *hint)
{
	int r = ckpt_refuse(run, &(struct ckpt_blocker){
					 .feature = feature,
					 .task = t,
					 .object = object,
					 .reason = reason,
					 .hint = hint,
				 });

	return r == -ECANCELED ? 0 : r;
}

static int need(struct ckpt_run *run, const struct ckpt_task *t, const char *feature,
		const char *object)
{
	int r = ckpt_refuse_off(run, feature, t, object);

	return r > 0 || r == -ECANCELED ? 0 : r;
}

/* What the session needs beside the terminal, asked once, of its leader. */
static int leader(struct ckpt_run *run, const struct tty_state *st, const struct ckpt_task *t,
		  const char *object)
{
	const struct tty_member *m = tty_member(run, st, t);
	const struct ckpt_task *first = tty_foreground(run, st, t);
	int r = need(run, t, "controlling", object);

	if (!r)
		r = need(run, t, "pty", object);
	if (r || m->foreground == m->group)
		return r;
	if (!first)
		return refuse(run, t, "foreground-gone", object,
			      "its foreground process group has ended, and nobody has taken the "
			      "terminal back yet",
			      "dump again in a moment, or allow that its shell's group takes it");
	return need(run, t, "foreground", object);
}

static int session_terminal(struct ckpt_run *run, const struct ckpt_task *t, unsigned major,
			    unsigned minor, struct ckpt_error *err)
{
	static const char hint[] = "give --shell-job if the tree is a job of your shell, or start "
				   "the program with setsid(1), without a terminal";
	struct tty_state *st = tty_state(run);
	const struct tty_holder *h;
	char object[64], who[96], reason[192];
	int r = tty_scan(run, st, err);
	uint32_t pty = r ? TTY_PTY_NONE : tty_of_session(st, tty_member(run, st, t)->session);

	const bool known = pty != TTY_PTY_NONE;

	if (!known)
		pty = minor;
	if (r || (!TTY_DEVPTS(pty) && tty_is_outer(run, st, major, minor)))
		return r;
	snprintf(object, sizeof(object), "controlling terminal %u:%u", major, minor);
	if (major != TTY_MAJOR_PTS)
		return refuse(run, t, "terminal", object, "it is not a pseudo terminal", hint);
	snprintf(object, sizeof(object), "controlling terminal " TTY_PTS_DIR "/%u", minor);
	h = tty_holder(st, pty, true, true);
	if (h || !known) {
		snprintf(who, sizeof(who), "nobody that can be seen");
		if (h)
			tty_holder_name(h, who, sizeof(who));
		snprintf(reason, sizeof(reason), "it leaves the tree: %s has its master open", who);
		return refuse(run, t, "terminal", object, reason, hint);
	}
	if (!tty_leader(run, st, pty))
		return refuse(run, t, "terminal", object,
			      "the leader of its session is outside the tree", hint);
	return tty_leader(run, st, pty) == t ? leader(run, st, t, object) : 0;
}

static int session_outside(struct ckpt_run *run, const struct ckpt_task *t, struct ckpt_error *err)
{
	(void)t;
	(void)err;
	return ckpt_opt_bool(run, "shell-job");
}

/* Before it has children: they inherit the terminal, nobody else can get it later. */
static int session_made(struct ckpt_run *run, struct ckpt_task *t, struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "tty.session");
	struct tty_state *st = tty_state(run);
	struct tty_pair *pair = NULL;
	int num, r;

	for (size_t i = 0; st && i < st->n_pairs; i++)
		if (st->pairs[i].rec->session == t->id)
			pair = &st->pairs[i];
	if (!pair)
		return 0;
	num = ckpt_lend_fd(run, t, pair->slave, err);
	if (num < 0)
		return num;
	ckpt_script_add(s, SYS_ioctl, CKPT_C(num), CKPT_C(TIOCSCTTY), CKPT_C(0));
	r = ckpt_script_run(s, t->threads[0], err);
	return r ? r : ckpt_return_fd(run, t, num, err);
}

const struct ckpt_session_kind tty_session = {
	.size = sizeof(struct ckpt_session_kind),
	.terminal = session_terminal,
	.outside = session_outside,
	.made = session_made,
};
