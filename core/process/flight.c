/* SPDX-License-Identifier: MIT */
/*
 * Scripts under way. Whoever needs the results waits for his script; others are posted
 * and waited for together, so that their threads are at work at the same time, and while
 * the engine writes the next one.
 */
#include <errno.h>
#include <string.h>

#include "engine/run.h"
#include "process/script.h"
#include "process/set.h"

/* So that no two threads write to one line of the cache. */
#define ALIGN(n) (((n) + 63) & ~(size_t)63)

static int check(const struct ckpt_script *s, const struct ckpt_thread *th, struct ckpt_error *err)
{
	if (!s || s->failed)
		return ckpt_fail_sys(err, s ? s->failed : ENOMEM, "script %s",
				     s ? s->name : "without memory");
	if (th->agent->state != THREAD_SEATED)
		return ckpt_fail(err, EINVAL, "%s: thread %d has no agent", s->name, (int)th->tid);
	return 0;
}

static struct flights *flights_of(const struct ckpt_run *run)
{
	return &run_procs(run)->flights;
}

/* The lowest free part of the segment's script area: its pages are the most used ones. */
static bool find_room(const struct flights *all, struct flight *f)
{
	const struct segment *seg = f->th->agent->seg;

	f->at = 0;
	for (size_t i = 0; i < MAX_FLIGHTS; i++) {
		const struct flight *o = &all->list[i];

		if (!o->s || o == f || !o->len || o->th->agent->seg != seg ||
		    f->at + f->len <= o->at || o->at + ALIGN(o->len) <= f->at)
			continue;
		f->at = o->at + ALIGN(o->len);
		i = (size_t)-1;
	}
	return f->at + f->len <= AGENT_SCRIPT_SIZE;
}

/* The oldest that is posted, of those with that segment or of all. */
static struct flight *oldest(struct flights *all, const struct segment *seg)
{
	struct flight *found = NULL;

	for (size_t i = 0; i < MAX_FLIGHTS; i++) {
		struct flight *f = &all->list[i];

		if (f->s && f->len && (!seg || f->th->agent->seg == seg) &&
		    (!found || f->turn < found->turn))
			found = f;
	}
	return found;
}

static int finish(struct flights *all, struct flight *f, struct ckpt_error *err);

static void finish_unasked(struct flights *all, struct flight *f)
{
	struct ckpt_error why = { 0 };

	if (finish(all, f, &why) < 0 && !all->failed.err)
		all->failed = why;
}

/* Post the next portion. Others are waited for where there is no room. */
static int launch(struct flights *all, struct flight *f, struct ckpt_error *err)
{
	struct ckpt_agent *a = f->th->agent;
	size_t len;
	int r;

	portion_cut(f);
	len = f->len;
	while (!find_room(all, f)) {
		/* whoever waits for room has none */
		f->len = 0;
		finish_unasked(all, oldest(all, a->seg));
		f->len = len;
	}
	portion_encode(f);
	a->seat->ops = segment_script_addr(a->seg) + f->at;
	a->seat->n_ops = (uint32_t)(f->to - f->from);
	r = agent_post(a, AGENT_RUN, err);
	if (r)
		f->len = 0;
	return r;
}

/* Wait for the portion that was posted. */
static int land(struct flight *f, struct ckpt_error *err)
{
	const struct agent_seat *seat = f->th->agent->seat;
	const size_t n = f->to - f->from;
	uint32_t executed, failed;
	int r = agent_wait(f->th->agent, err);

	if (r) {
		f->len = 0;
		return ckpt_wrap(err, "%s", f->s->name);
	}
	/* once: others may be able to write there */
	executed = __atomic_load_n(&seat->executed, __ATOMIC_RELAXED);
	failed = __atomic_load_n(&seat->failed, __ATOMIC_RELAXED);
	f->len = 0;
	if (failed ? !executed || executed > n : executed != n)
		return ckpt_fail(err, EPROTO,
				 "%s: thread %d: the agent says that it made %u of %zu calls",
				 f->s->name, (int)f->th->tid, executed, n);
	portion_decode(f, executed);
	return failed ? portion_failed(f, executed, err) : 0;
}

static int finish(struct flights *all, struct flight *f, struct ckpt_error *err)
{
	int r = f->len ? land(f, err) : 0;

	while (!r && f->to < f->s->n) {
		r = launch(all, f, err);
		if (!r)
			r = land(f, err);
	}
	if (f->owned)
		ckpt_script_free(f->s);
	f->s = NULL;
	return r;
}

static struct flight *take_off(struct flights *all, struct ckpt_script *s, struct ckpt_thread *th)
{
	struct flight *f = NULL;

	for (size_t i = 0; i < MAX_FLIGHTS && !f; i++)
		if (!all->list[i].s)
			f = &all->list[i];
	if (!f) {
		f = oldest(all, NULL);
		finish_unasked(all, f);
	}
	*f = (struct flight){ .s = s, .th = th, .turn = ++all->turn };
	s->run->scripts++;
	return f;
}

/* The one that took off last. */
static struct flight *last_of(struct flights *all)
{
	size_t i = 0;

	while (all->list[i].turn != all->turn)
		i++;
	return &all->list[i];
}

/* What was posted to that thread has to be done, and well, before the next. */
static int finish_those_of(struct flights *all, const struct ckpt_thread *th,
			   struct ckpt_error *err)
{
	for (size_t i = 0; i < MAX_FLIGHTS; i++) {
		struct flight *f = &all->list[i];
		int r = f->s && f->th == th ? finish(all, f, err) : 0;

		if (r)
			return r;
	}
	return 0;
}

int ckpt_script_run(struct ckpt_script *s, struct ckpt_thread *th, struct ckpt_error *err)
{
	struct flights *all;

	if (check(s, th, err))
		return -err->err;
	all = flights_of(s->run);
	if (finish_those_of(all, th, err))
		return -err->err;
	return finish(all, take_off(all, s, th), err);
}

int ckpt_script_begin(struct ckpt_script *s, struct ckpt_thread *th, struct ckpt_error *err)
{
	struct flights *all;
	struct flight *f;

	if (check(s, th, err))
		return -err->err;
	all = flights_of(s->run);
	if (!s->n)
		return 0;
	if (finish_those_of(all, th, err))
		return -err->err;
	f = take_off(all, s, th);
	if (!launch(all, f, err))
		return 0;
	f->s = NULL;
	return -err->err;
}

int ckpt_script_post(struct ckpt_script *s, struct ckpt_thread *th, struct ckpt_error *err)
{
	int r = ckpt_script_begin(s, th, err);

	if (r || !s->n) {
		ckpt_script_free(s);
		return r;
	}
	last_of(flights_of(s->run))->owned = true;
	return 0;
}

int ckpt_script_settle(struct ckpt_run *run, struct ckpt_error *err)
{
	struct flights *all = flights_of(run);
	struct flight *f;
	int r;

	while ((f = oldest(all, NULL)))
		finish_unasked(all, f);
	r = -all->failed.err;
	if (r && err)
		*err = all->failed;
	all->failed = (struct ckpt_error){ 0 };
	return r;
}

int flights_settle(struct ckpt_run *run, int r, struct ckpt_error *err)
{
	struct ckpt_error posted = { 0 };

	if (ckpt_script_settle(run, &posted) >= 0)
		return r;
	if (r < 0) {
		if (!err->hint[0])
			ckpt_hint(err, "what may have been the reason: %s", posted.text);
		return r;
	}
	*err = posted;
	return -posted.err;
}

int execute_last(struct ckpt_script *s, struct ckpt_thread *th, struct ckpt_error *err)
{
	struct flights *all;
	struct flight *f;
	int r;

	if (check(s, th, err))
		return -err->err;
	/* the area is its own until it is dead: nobody hears when it has read the script */
	r = ckpt_script_settle(s->run, err);
	if (r)
		return r;
	all = flights_of(s->run);
	f = take_off(all, s, th);
	r = launch(all, f, err);
	f->s = NULL;
	return r;
}
