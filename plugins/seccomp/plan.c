/* SPDX-License-Identifier: MIT */
/* Check the records, and find out which filters are installed before a task is cloned from. */
#include <stdio.h>

#include "seccomp.h"

/* Filters in which one that was tried already is looked for. */
#define NEAR 256

#define BAD(err, ...) ckpt_fail_image((err), __VA_ARGS__)

static const Ckpt__Seccomp__Filter *filter(struct ckpt_run *run, uint32_t id)
{
	return ckpt_record_at(run, "seccomp.filter", id - 1);
}

static uint32_t depth(struct ckpt_run *run, uint32_t f)
{
	uint32_t n = 0;

	for (; f; f = filter(run, f)->before)
		n++;
	return n;
}

uint32_t seccomp_common(struct ckpt_run *run, uint32_t a, uint32_t b)
{
	uint32_t da = depth(run, a), db = depth(run, b);

	for (; da > db; da--)
		a = filter(run, a)->before;
	for (; db > da; db--)
		b = filter(run, b)->before;
	while (a != b) {
		a = filter(run, a)->before;
		b = filter(run, b)->before;
	}
	return a;
}

/* ---- values -------------------------------------------------------------------------- */

/* One that stands before another has the lower number, so there are no circles. */
static int check_filters(struct ckpt_run *run, struct ckpt_error *err)
{
	size_t n = ckpt_record_count(run, "seccomp.filter");
	CKPT_AUTO_FREE uint16_t *depths = calloc(n + 1, sizeof(*depths));

	if (!depths)
		return ckpt_fail_sys(err, ENOMEM, "%zu filters", n);
	for (size_t i = 0; i < n; i++) {
		const Ckpt__Seccomp__Filter *f = ckpt_record_at(run, "seccomp.filter", i);
		size_t len = f->program.len;

		if (f->id != i + 1 || f->before >= f->id)
			return BAD(err, "seccomp filter %u stands after %u", f->id, f->before);
		if (!len || len % sizeof(struct sock_filter) ||
		    len > SECCOMP_MAX_INSNS * sizeof(struct sock_filter))
			return BAD(err, "seccomp filter %u: %zu bytes", f->id, len);
		depths[f->id] = (uint16_t)(depths[f->before] + 1);
		if (depths[f->id] > SECCOMP_MAX_DEPTH)
			return BAD(err, "more than %d seccomp filters for one thread",
				   SECCOMP_MAX_DEPTH);
	}
	return 0;
}

static bool seen_before(struct ckpt_run *run, const Ckpt__Seccomp__Filter *f)
{
	for (uint32_t i = f->id > NEAR ? f->id - NEAR : 1; i < f->id; i++) {
		const ProtobufCBinaryData *p = &filter(run, i)->program;

		if (p->len == f->program.len && !memcmp(p->data, f->program.data, p->len))
			return true;
	}
	return false;
}

/* What came from this kernel just now need not be tried. */
static int try_filters(struct ckpt_run *run, struct ckpt_error *err)
{
	for (size_t i = 0; i < ckpt_record_count(run, "seccomp.filter"); i++) {
		const Ckpt__Seccomp__Filter *f = ckpt_record_at(run, "seccomp.filter", i);
		size_t n = f->program.len / sizeof(struct sock_filter);
		int r;

		if (seen_before(run, f))
			continue;
		r = seccomp_trial((const struct sock_filter *)(const void *)f->program.data, n,
				  err);
		if (r == -EINVAL)
			return BAD(err, "seccomp filter %u: the kernel does not take it", f->id);
		if (r < 0)
			return err->err ? r : ckpt_fail_sys(err, r, "seccomp filter %u", f->id);
	}
	return 0;
}

/* What the plan takes from pid's record of a task, by the message's own description. */
struct pid_task {
	uint32_t id;
	size_t n_threads;
	bool zombie;
};

static int pid_task(struct ckpt_run *run, size_t i, struct pid_task *out, struct ckpt_error *err)
{
	const ProtobufCMessage *m = ckpt_record_at(run, "pid.task", i);
	const uint8_t *base = (const uint8_t *)m;
	const ProtobufCFieldDescriptor *id, *threads, *zombie;

	id = protobuf_c_message_descriptor_get_field_by_name(m->descriptor, "id");
	threads = protobuf_c_message_descriptor_get_field_by_name(m->descriptor, "threads");
	zombie = protobuf_c_message_descriptor_get_field_by_name(m->descriptor, "zombie");
	if (!id || !threads || !zombie)
		return BAD(err, "records of another plugin pid than this seccomp knows");
	memcpy(&out->id, base + id->offset, sizeof(out->id));
	memcpy(&out->n_threads, base + threads->quantifier_offset, sizeof(out->n_threads));
	out->zombie = *(void *const *)(const void *)(base + zombie->offset) != NULL;
	return 0;
}

static int check_thread(struct ckpt_run *run, const Ckpt__Seccomp__Thread *t,
			const struct pid_task *of, struct ckpt_error *err)
{
	if (of->zombie || t->index >= of->n_threads)
		return BAD(err, "task %u has no thread %u", t->id, t->index);
	if (t->strict ? t->filter != 0
		      : !t->filter || t->filter > ckpt_record_count(run, "seccomp.filter"))
		return BAD(err, "task %u, thread %u: seccomp filter %u", t->id, t->index,
			   t->filter);
	return 0;
}

/*
 * The threads of a task, whose records begin at *at: what they all have. A thread
 * without a record has no filter.
 */
static int common_of(struct ckpt_run *run, const struct pid_task *of, size_t *at, uint32_t *common,
		     struct ckpt_error *err)
{
	size_t n = ckpt_record_count(run, "seccomp.thread"), seen = 0;

	*common = 0;
	for (; *at < n; ++*at, seen++) {
		const Ckpt__Seccomp__Thread *t = ckpt_record_at(run, "seccomp.thread", *at);
		const Ckpt__Seccomp__Thread *last =
			seen ? ckpt_record_at(run, "seccomp.thread", *at - 1) : NULL;
		int r;

		if (t->id != of->id)
			break;
		r = check_thread(run, t, of, err);
		if (r < 0)
			return r;
		if (last && last->index >= t->index)
			return BAD(err, "task %u: seccomp of thread %u after that of %u", t->id,
				   t->index, last->index);
		*common = seen ? seccomp_common(run, *common, t->filter) : t->filter;
	}
	if (seen < of->n_threads)
		*common = 0;
	return 0;
}

/* ---- who inherits what ------------------------------------------------------------------ */

struct seccomp_task *seccomp_task(struct seccomp_state *st, uint32_t id)
{
	size_t lo = 0, hi = st->n_tasks;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (st->tasks[mid].id == id)
			return &st->tasks[mid];
		if (st->tasks[mid].id < id)
			lo = mid + 1;
		else
			hi = mid;
	}
	return NULL;
}

int seccomp_planned(struct ckpt_run *run, uint32_t id, uint32_t maker, struct ckpt_error *err)
{
	struct seccomp_state *st = seccomp_state(run, err);
	struct seccomp_task *more;

	if (!st)
		return -ENOMEM;
	more = realloc(st->tasks, (st->n_tasks + 1) * sizeof(*more));
	if (!more)
		return ckpt_fail_sys(err, ENOMEM, "tasks");
	st->tasks = more;
	more[st->n_tasks++] = (struct seccomp_task){ .id = id, .maker = maker };
	return 0;
}

/* Which tasks are cloned from which is a tree, but its order need not be that of ids. */
static void inherit(struct ckpt_run *run, struct seccomp_state *st)
{
	bool again = true;

	for (size_t i = 0; i < st->n_tasks; i++)
		st->tasks[i].inherited = st->tasks[i].common;
	while (again) {
		again = false;
		for (size_t i = st->n_tasks; i-- > 0;) {
			struct seccomp_task *t = &st->tasks[i];
			struct seccomp_task *m = t->zombie ? NULL : seccomp_task(st, t->maker);
			uint32_t common;

			if (!m)
				continue;
			common = seccomp_common(run, m->inherited, t->inherited);
			again |= common != m->inherited;
			m->inherited = common;
		}
	}
}

static int load_tasks(struct ckpt_run *run, struct seccomp_state *st, struct ckpt_error *err)
{
	size_t at = 0, n = ckpt_record_count(run, "pid.task");

	/* without pid, who is missed elsewhere, nothing is planned */
	if (st->n_tasks != n)
		return n ? ckpt_fail(err, EPROTO, "the plugin pid planned %zu of %zu tasks",
				     st->n_tasks, n)
			 : 0;
	for (size_t i = 0; i < n; i++) {
		struct pid_task of = { 0 };
		int r = pid_task(run, i, &of, err);

		if (r == 0)
			r = common_of(run, &of, &at, &st->tasks[i].common, err);
		if (r < 0)
			return r;
		st->tasks[i].zombie = of.zombie;
	}
	if (at != ckpt_record_count(run, "seccomp.thread")) {
		const Ckpt__Seccomp__Thread *t = ckpt_record_at(run, "seccomp.thread", at);

		return BAD(err, "seccomp of task %u, which is not there or out of order", t->id);
	}
	inherit(run, st);
	return 0;
}

/* ---- listeners ------------------------------------------------------------------------- */

static bool has(struct ckpt_run *run, uint32_t f, uint32_t wanted)
{
	return seccomp_common(run, f, wanted) == wanted;
}

/* How often a filter would be installed, and whether always before descriptors are. */
static size_t installations(struct ckpt_run *run, struct seccomp_state *st, uint32_t f)
{
	size_t n = 0;

	for (size_t i = 0; i < st->n_tasks; i++) {
		struct seccomp_task *m = seccomp_task(st, st->tasks[i].maker);

		if (!st->tasks[i].zombie && has(run, st->tasks[i].common, f) &&
		    !(m && has(run, m->inherited, f)))
			n++;
	}
	for (size_t i = 0; i < ckpt_record_count(run, "seccomp.thread"); i++) {
		const Ckpt__Seccomp__Thread *t = ckpt_record_at(run, "seccomp.thread", i);

		if (has(run, t->filter, f) && !has(run, seccomp_task(st, t->id)->common, f))
			n += 2;
	}
	return n;
}

static int plan_listener(struct ckpt_run *run, struct seccomp_state *st, struct ckpt_error *err)
{
	const Ckpt__Seccomp__Listener *l = ckpt_record_at(run, "seccomp.listener", 0);
	const Ckpt__Seccomp__Filter *f;

	if (!l)
		return 0;
	if (ckpt_record_count(run, "seccomp.listener") > 1)
		return BAD(err, "more than one seccomp listener");
	if (!l->filter || l->filter > ckpt_record_count(run, "seccomp.filter"))
		return BAD(err, "seccomp listener of filter %u", l->filter);
	f = filter(run, l->filter);
	if (!seccomp_notifies((const struct sock_filter *)(const void *)f->program.data,
			      f->program.len / sizeof(struct sock_filter)))
		return BAD(err, "seccomp listener of filter %u, which asks nobody", l->filter);
	st->listens = l->filter;
	if (installations(run, st, l->filter) == 1)
		return 0;
	return ckpt_unmet(
		run, CKPT_EXIT_REFUSED,
		"give --without seccomp.listener --allow-loss seccomp.listener at the dump",
		"the filter of a seccomp listener was inherited in a way that cannot be "
		"repeated: some children or threads of its task have it and some not");
}

/* ---- the step --------------------------------------------------------------------------- */

static bool ckpt_is_filtered(void)
{
	CKPT_AUTO_FILE FILE *f = fopen("/proc/thread-self/status", "re");
	CKPT_AUTO_FREE char *text = NULL;
	size_t cap = 0;

	return f && getdelim(&text, &cap, 0, f) > 0 && seccomp_mode(text) > 0;
}

int seccomp_plan(struct ckpt_run *run, struct ckpt_error *err)
{
	struct seccomp_state *st = seccomp_state(run, err);
	int r = st ? check_filters(run, err) : -ENOMEM;

	if (r == 0)
		r = load_tasks(run, st, err);
	if (r == 0)
		r = plan_listener(run, st, err);
	if (r < 0 || ckpt_plan_only(run))
		return r;
	if (ckpt_is_filtered())
		return ckpt_unmet(run, CKPT_EXIT_PRIVILEGE,
				  "run ckpt outside of the container or service that filters it",
				  "ckpt is under a seccomp filter, which all tasks would inherit");
	return try_filters(run, err);
}
