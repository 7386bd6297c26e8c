/* SPDX-License-Identifier: MIT */
/* restore: are the records consistent, are the numbers free? */
#include <stdio.h>
#include <string.h>

#include "tty.h"

const Ckpt__Tty__Pty *tty_pty(struct ckpt_run *run, uint32_t pty)
{
	for (size_t i = 0; i < ckpt_record_count(run, "tty.pty"); i++) {
		const Ckpt__Tty__Pty *rec = ckpt_record_at(run, "tty.pty", i);

		if (rec->id == pty)
			return rec;
	}
	return NULL;
}

const Ckpt__Tty__End *tty_end(struct ckpt_run *run, uint32_t file)
{
	for (size_t i = 0; i < ckpt_record_count(run, "tty.end"); i++) {
		const Ckpt__Tty__End *rec = ckpt_record_at(run, "tty.end", i);

		if (rec->id == file)
			return rec;
	}
	return NULL;
}

const Ckpt__Tty__Current *tty_current(struct ckpt_run *run, uint32_t file)
{
	for (size_t i = 0; i < ckpt_record_count(run, "tty.current"); i++) {
		const Ckpt__Tty__Current *rec = ckpt_record_at(run, "tty.current", i);

		if (rec->id == file)
			return rec;
	}
	return NULL;
}

static uint32_t number(const ProtobufCMessage *m, const char *name)
{
	const ProtobufCFieldDescriptor *f =
		protobuf_c_message_descriptor_get_field_by_name(m->descriptor, name);
	uint32_t v = 0;

	if (f && f->type == PROTOBUF_C_TYPE_UINT32 && f->label != PROTOBUF_C_LABEL_REPEATED)
		memcpy(&v, (const uint8_t *)m + f->offset, sizeof(v));
	return v;
}

bool tty_in_session(struct ckpt_run *run, uint32_t id, uint32_t session)
{
	for (size_t i = 0; i < ckpt_record_count(run, "pid.task"); i++) {
		const ProtobufCMessage *m = ckpt_record_at(run, "pid.task", i);

		if (number(m, "id") == id)
			return number(m, "session") == session;
	}
	return false;
}

int tty_termios_check(const Ckpt__Tty__Termios *t, struct ckpt_error *err)
{
	return t && (t->cc.len != TTY_CC_SIZE || t->line) ? ckpt_fail_image(err, "bad termios") : 0;
}

static int check_values(const Ckpt__Tty__Pty *p, struct ckpt_error *err)
{
	const Ckpt__Tty__Winsize *w = p->winsize;

	if (p->mode > 07777 || p->uid == UINT32_MAX || p->gid == UINT32_MAX)
		return ckpt_fail_image(err, "pty %u: bad mode", p->id);
	if (tty_termios_check(p->termios, err))
		return ckpt_wrap(err, "pty %u", p->id);
	if (w &&
	    (w->rows > 0xffff || w->columns > 0xffff || w->xpixel > 0xffff || w->ypixel > 0xffff))
		return ckpt_fail_image(err, "pty %u: bad window size", p->id);
	if (p->hung_up && (p->session || p->foreground || p->n_detached || p->slave_closed))
		return ckpt_fail_image(err, "pty %u: hung up, but in use", p->id);
	return 0;
}

static int check_session(struct ckpt_run *run, const Ckpt__Tty__Pty *p, struct ckpt_error *err)
{
	if (!p->session && (p->foreground || p->n_detached))
		return ckpt_fail_image(err, "pty %u: a group, but no session", p->id);
	if (p->session && !tty_in_session(run, p->session, p->session))
		return ckpt_fail_image(err, "pty %u: task %u leads no session", p->id, p->session);
	if (p->foreground && !tty_in_session(run, p->foreground, p->session))
		return ckpt_fail_image(err, "pty %u: task %u is not in its session", p->id,
				       p->foreground);
	for (size_t i = 0; i < p->n_detached; i++)
		if (!tty_in_session(run, p->detached[i], p->session))
			return ckpt_fail_image(err, "pty %u: task %u is not in its session", p->id,
					       p->detached[i]);
	return 0;
}

static int check_ends(struct ckpt_run *run, const Ckpt__Tty__Pty *p, struct ckpt_error *err)
{
	size_t masters = 0, slaves = 0;

	for (size_t i = 0; i < ckpt_record_count(run, "tty.end"); i++) {
		const Ckpt__Tty__End *e = ckpt_record_at(run, "tty.end", i);

		if (e->pty == p->id && !e->outer)
			*(e->master ? &masters : &slaves) += 1;
	}
	if (masters != (p->hung_up ? 0 : 1) || (p->slave_closed && slaves))
		return ckpt_fail_image(err, "pty %u: %zu masters and %zu slaves", p->id, masters,
				       slaves);
	return 0;
}

static int check_pty(struct ckpt_run *run, size_t at, struct ckpt_error *err)
{
	const Ckpt__Tty__Pty *p = ckpt_record_at(run, "tty.pty", at);
	char path[32];
	int r;

	if (tty_pty(run, p->id) != p)
		return ckpt_fail_image(err, "pty %u is there twice", p->id);
	for (size_t i = 0; p->session && i < at; i++)
		if (((const Ckpt__Tty__Pty *)ckpt_record_at(run, "tty.pty", i))->session ==
		    p->session)
			return ckpt_fail_image(err, "task %u has two controlling terminals",
					       p->session);
	r = check_values(p, err);
	if (!r)
		r = check_session(run, p, err);
	if (!r)
		r = check_ends(run, p, err);
	if (!r)
		r = tty_contained_plan(run, p, err);
	if (!r)
		r = tty_waiting_plan(p, !p->hung_up && tty_has_slave(run, p), err);
	snprintf(path, sizeof(path), TTY_PTS_DIR "/%u", p->id);
	if (!r && !TTY_DEVPTS(p->id) && !ckpt_plan_only(run) && !access(path, F_OK))
		r = ckpt_unmet(run, CKPT_EXIT_FAILED, "close that terminal",
			       "%s is another program's terminal now", path);
	return r;
}

static int check_order(struct ckpt_run *run, struct ckpt_error *err)
{
	static const char *const types[] = { "tty.end", "tty.current" };

	for (size_t k = 0; k < CKPT_ARRAY_SIZE(types); k++) {
		uint32_t last = 0;

		for (size_t i = 0; i < ckpt_record_count(run, types[k]); i++) {
			uint32_t id = number(ckpt_record_at(run, types[k], i), "id");

			if (i && id <= last)
				return ckpt_fail_image(err, "%s %u is not in order", types[k], id);
			last = id;
		}
	}
	return 0;
}

int tty_plan(struct ckpt_run *run, struct ckpt_error *err)
{
	int r = check_order(run, err);

	for (size_t i = 0; i < ckpt_record_count(run, "tty.pty") && !r; i++)
		r = check_pty(run, i, err);
	return r ? r : tty_outer_plan(run, err);
}
