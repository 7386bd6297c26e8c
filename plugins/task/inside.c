/* SPDX-License-Identifier: MIT */
/*
 * Threads with other ids than their main thread, in a user namespace of their own. They are born
 * there with those of the main thread, and take theirs by the numbers that the namespace has for
 * them: what has none they can only have kept.
 */
#include <stdlib.h>
#include <sys/syscall.h>

#include <ckpt/ns.h>

#include "task.h"

enum { FILESYSTEM = 3 };

struct asking {
	const struct ckpt_ns_kind *kind;
	const struct ckpt_ns *ns;
	enum ckpt_ns_id what;
	uint32_t id;
	int64_t number;
};

static int ask(struct ckpt_run *run, void *arg, struct ckpt_error *err)
{
	struct asking *a = arg;

	(void)err;
	a->number = a->kind->id_inside ? a->kind->id_inside(run, a->ns, a->what, a->id) : -1;
	return 0;
}

static int64_t number_of(struct ckpt_run *run, const struct ckpt_ns *ns, enum ckpt_ns_id what,
			 uint32_t id)
{
	const struct ckpt_extension *e;
	const char *plugin;

	for (size_t i = 0; (e = ckpt_extension_at(run, CKPT_NS_POINT, i, &plugin)); i++) {
		struct asking a = { e->ops, ns, what, id, -1 };

		if (a.kind->type == CKPT_NS_USER && !ckpt_call_as(run, plugin, ask, &a, NULL))
			return a.number;
	}
	return -1;
}

/* Records are in order of ids and indexes. */
static const Ckpt__Task__Thread *main_thread(struct ckpt_run *run, uint32_t id)
{
	size_t lo = 0, hi = ckpt_record_count(run, "task.thread");

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		const Ckpt__Task__Thread *m = ckpt_record_at(run, "task.thread", mid);

		if (m->id == id && m->index == 0)
			return m;
		if (m->id < id)
			lo = mid + 1;
		else
			hi = mid;
	}
	return NULL;
}

/* 1: not to be had. Filesystem ids follow the effective ones when any of the others changes. */
static int translate(struct ckpt_run *run, const struct ckpt_ns *ns, enum ckpt_ns_id what,
		     const uint32_t *want, const uint32_t *have, int64_t *out)
{
	bool changes = false;

	for (size_t i = 0; i < 4; i++) {
		bool keeps = i == FILESYSTEM ? want[i] == (changes ? want[1] : have[FILESYSTEM])
					     : want[i] == have[i];

		out[i] = keeps ? -1 : number_of(run, ns, what, want[i]);
		if (!keeps && out[i] < 0)
			return 1;
		changes |= !keeps;
	}
	return 0;
}

static int groups(struct ckpt_run *run, const struct ckpt_ns *ns, const Ckpt__Task__Credentials *c,
		  struct task_inside *out, struct ckpt_error *err)
{
	out->groups = calloc(c->n_groups + 1, sizeof(*out->groups));
	if (!out->groups)
		return ckpt_fail_sys(err, ENOMEM, "groups");
	out->n_groups = c->n_groups;
	/* none at all needs setgroups(2) too */
	if (!c->n_groups && number_of(run, ns, CKPT_NS_GROUP, CKPT_NS_NO_ID) < 0)
		return 1;
	for (size_t i = 0; i < c->n_groups; i++) {
		int64_t number = number_of(run, ns, CKPT_NS_GROUP, c->groups[i]);

		if (number < 0)
			return 1;
		out->groups[i] = (uint32_t)number;
	}
	return 0;
}

int task_inside_of(struct ckpt_run *run, const Ckpt__Task__Thread *rec, struct task_inside *out,
		   struct ckpt_error *err)
{
	const struct ckpt_ns *ns = ckpt_ns_seat(run, rec->id, 0)->ns[CKPT_NS_USER];
	const Ckpt__Task__Thread *m = rec->index ? main_thread(run, rec->id) : NULL;
	const Ckpt__Task__Credentials *c = rec->credentials, *have = m ? m->credentials : NULL;
	int r;

	*out = (struct task_inside){ { -1, -1, -1, -1 }, { -1, -1, -1, -1 }, NULL, 0 };
	if (!have || task_ids_same(c, have))
		return 0;
	r = translate(run, ns, CKPT_NS_UID, c->uids, have->uids, out->uids);
	if (r == 0)
		r = translate(run, ns, CKPT_NS_GID, c->gids, have->gids, out->gids);
	if (r == 0 && (c->n_groups != have->n_groups ||
		       (c->n_groups &&
			memcmp(c->groups, have->groups, c->n_groups * sizeof(*c->groups)) != 0)))
		r = groups(run, ns, c, out, err);
	return r;
}

void task_inside_free(struct task_inside *in)
{
	free(in->groups);
}

int task_inside_plan(struct ckpt_run *run, const Ckpt__Task__Thread *rec, struct ckpt_error *err)
{
	__attribute__((cleanup(task_inside_free))) struct task_inside in = { 0 };
	int r = task_inside_of(run, rec, &in, err);

	if (r > 0)
		ckpt_unmet(run, CKPT_EXIT_REFUSED, "let all threads of a process have the same ids",
			   "task %u, thread %u: it has other ids than the main thread, which "
			   "cannot be taken in its user namespace",
			   rec->id, rec->index);
	return r < 0 ? r : 0;
}

static void set(struct ckpt_script *s, const int64_t *ids, long set_three, long set_filesystem)
{
	if (ids[0] >= 0 || ids[1] >= 0 || ids[2] >= 0)
		ckpt_script_add(s, set_three, CKPT_C(ids[0]), CKPT_C(ids[1]), CKPT_C(ids[2]));
	if (ids[FILESYSTEM] >= 0)
		ckpt_script_add(s, set_filesystem, CKPT_C(ids[FILESYSTEM]));
}

void task_inside_script(struct ckpt_script *s, const struct task_inside *in)
{
	if (in->groups)
		ckpt_script_add(s, SYS_setgroups, CKPT_C(in->n_groups),
				CKPT_IN(in->groups, in->n_groups * sizeof(*in->groups)));
	set(s, in->gids, SYS_setresgid, SYS_setfsgid);
	set(s, in->uids, SYS_setresuid, SYS_setfsuid);
}
