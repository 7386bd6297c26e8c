/* SPDX-License-Identifier: MIT */
/* Check the records against each other, and lay them out as nodes with indexes. */
#include <stdio.h>
#include <stdlib.h>

#include "pid.h"

void pid_plan_free(void *plan)
{
	struct pid_plan *p = plan;

	if (!p)
		return;
	free(p->nodes);
	free(p->ns);
	free(p->nsfs);
	free(p->inits);
	free(p->ops);
	free(p);
}

int pid_plan_init(const struct pid_plan *p, uint32_t ns)
{
	return p->inits[ns];
}

bool pid_plan_covers(const struct pid_plan *p, uint32_t a, uint32_t b)
{
	while (b != a && b > 0)
		b = p->ns[b]->parent - 1;
	return a == b;
}

const char *pid_node_name(const struct pid_node *n, char *buf, size_t size)
{
	static const char *const words[] = { "task", "dead leader", "dead parent" };

	snprintf(buf, size, "%s %u", words[n->kind], n->id);
	return buf;
}

bool pid_leads_session(const struct pid_plan *p, int node)
{
	return p->nodes[node].session == node;
}

/* Nodes are sorted by id; -1 if there is none. */
int pid_plan_node(const struct pid_plan *p, uint32_t id)
{
	size_t lo = 0, hi = p->n;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;

		if (p->nodes[mid].id == id)
			return (int)mid;
		if (p->nodes[mid].id < id)
			lo = mid + 1;
		else
			hi = mid;
	}
	return -1;
}

static int load_namespaces(struct ckpt_run *run, struct pid_plan *p, struct ckpt_error *err)
{
	size_t n = ckpt_record_count(run, "pid.namespace");

	p->ns = calloc(n + 1, sizeof(*p->ns));
	p->inits = calloc(n + 1, sizeof(*p->inits));
	p->nsfs = calloc(n + 1, sizeof(struct ckpt_ns *));
	if (!p->ns || !p->inits || !p->nsfs)
		return ckpt_fail_sys(err, ENOMEM, "plan of %zu pid namespaces", n);
	p->n_ns = n;
	if (!n)
		return ckpt_fail_image(err, "no pid namespace in the image");
	for (size_t i = 0; i < n; i++) {
		const Ckpt__Pid__Namespace *r = ckpt_record_at(run, "pid.namespace", i);
		bool own = i == 0;

		p->ns[i] = r;
		if (r->id != i + 1 || own != (r->parent == 0) || r->parent > i ||
		    (own || r->empty) != (r->init == 0) || (own && r->empty) ||
		    r->empty > PID_NS_ENDED || (!own && p->ns[r->parent - 1]->empty))
			return ckpt_fail_image(err, "pid namespace %u: bad parent or first process",
					       r->id);
		if (r->level != (own ? 0 : p->ns[r->parent - 1]->level + 1) ||
		    r->level >= PID_MAX_LEVELS)
			return ckpt_fail_image(err, "pid namespace %u: bad level %u", r->id,
					       r->level);
		p->nsfs[i] = own ? ckpt_ns_own(run, CKPT_NS_PID) : ckpt_ns_by_id(run, r->ns);
		if (!p->nsfs[i] || p->nsfs[i]->type != CKPT_NS_PID || own != p->nsfs[i]->own ||
		    (!own && p->nsfs[i]->parent != p->nsfs[r->parent - 1]))
			return ckpt_fail_image(err, "pid namespace %u: not namespace %u", r->id,
					       r->ns);
		if (pid_check_counters(r, err))
			return -err->err;
		pid_plan_noexec(run, r);
		pid_plan_pid_max(run, r);
		if (r->empty || pid_ns_is_anothers(p->nsfs[i]))
			pid_descriptor_plan(run, p->nsfs[i]);
	}
	return 0;
}

static int check_pids(const struct pid_plan *p, uint32_t ns, const int32_t *nr, size_t n,
		      const char *what, struct ckpt_error *err)
{
	if (n && n != p->ns[ns]->level + 1)
		return ckpt_fail_image(err, "%s: %zu ids in a namespace of level %u", what, n,
				       p->ns[ns]->level);
	for (size_t i = 0; i < n; i++)
		if (nr[i] < 1 || nr[i] >= PID_LIMIT)
			return ckpt_fail_image(err, "%s: id %d is out of range", what, nr[i]);
	return 0;
}

static int check_zombie(const Ckpt__Pid__Task *r, const char *what, struct ckpt_error *err)
{
	const Ckpt__Pid__Zombie *z = r->zombie;
	uint32_t code, sig;

	if (!z)
		return 0;
	code = z->status >> 8;
	sig = z->status & 0xff;
	if (sig ? (code || sig > 64) : code > 0xff)
		return ckpt_fail_image(err, "%s: wait status %#x is none", what, z->status);
	if (r->n_threads != 1 || z->n_uids != 3 || z->n_gids != 3 || strlen(z->comm) > 15)
		return ckpt_fail_image(err, "%s: bad zombie", what);
	return 0;
}

/* What a task's record says by itself. */
static int check_task(const struct pid_plan *p, const Ckpt__Pid__Task *r, struct ckpt_error *err)
{
	char what[32];
	int e;

	snprintf(what, sizeof(what), "task %u", r->id);
	if (!r->ns || r->ns > p->n_ns || p->ns[r->ns - 1]->empty)
		return ckpt_fail_image(err, "%s: no pid namespace %u", what, r->ns);
	if (!r->n_threads)
		return ckpt_fail_image(err, "%s: no thread", what);
	if (!pid_ended_valid(r))
		return ckpt_fail_image(err, "%s: bad main thread", what);
	e = r->ended ? check_pids(p, r->ns - 1, r->ended->tids, r->ended->n_tids, what, err) : 0;
	if (e < 0)
		return e;
	if (r->exit_signal < 0 || r->exit_signal > 64)
		return ckpt_fail_image(err, "%s: exit signal %d", what, r->exit_signal);
	for (size_t k = 0; k < r->n_threads; k++) {
		const Ckpt__Pid__Thread *th = r->threads[k];

		e = check_pids(p, r->ns - 1, th->tids, th->n_tids, what, err);
		if (e < 0)
			return e;
		if ((th->n_tids == 0) != (r->threads[0]->n_tids == 0))
			return ckpt_fail_image(err, "%s: ids of some threads only", what);
		if (r->zombie)
			continue;
		if (!th->children_ns || th->children_ns > p->n_ns ||
		    !pid_plan_covers(p, r->ns - 1, th->children_ns - 1))
			return ckpt_fail_image(err, "%s: no pid namespace %u for children", what,
					       th->children_ns);
	}
	return check_zombie(r, what, err);
}

static int load_tasks(struct ckpt_run *run, struct pid_plan *p, struct ckpt_error *err)
{
	for (size_t i = 0; i < p->n_tasks; i++) {
		const Ckpt__Pid__Task *r = ckpt_record_at(run, "pid.task", i);
		struct pid_node *n = &p->nodes[i];
		int e;

		if (r->id == 0 || (i && r->id <= p->nodes[i - 1].id))
			return ckpt_fail_image(err, "task %u: not in order", r->id);
		e = check_task(p, r, err);
		if (e < 0)
			return e;
		*n = (struct pid_node){
			.id = r->id,
			.rec = r,
			.ns = r->ns - 1,
			.pids = r->ended ? r->ended->tids : r->threads[0]->tids,
			.n_pids = r->ended ? r->ended->n_tids : r->threads[0]->n_tids,
			.parent = -1,
		};
		p->n = i + 1;
		if ((i == 0) != (r->parent == 0))
			return ckpt_fail_image(err, "task %u: not exactly one root", r->id);
		if (!i)
			continue;
		/* pre-order: parents first, which also rules out circles */
		n->parent = pid_plan_node(p, r->parent);
		if (n->parent < 0 || (size_t)n->parent >= i || p->nodes[n->parent].rec->zombie)
			return ckpt_fail_image(err, "task %u: no living parent %u before it", r->id,
					       r->parent);
		if (!pid_plan_covers(p, p->nodes[n->parent].ns, n->ns))
			return ckpt_fail_image(
				err, "task %u: its pid namespace is not below its parent's", r->id);
	}
	return 0;
}

/* Who may not go to a namespace when it has its threads cannot have them either. */
static int check_children_ns(struct ckpt_run *run, const struct pid_plan *p, struct ckpt_error *err)
{
	for (size_t i = 0; i < p->n_tasks; i++) {
		const Ckpt__Pid__Task *r = p->nodes[i].rec;
		const struct ckpt_ns *user = ckpt_ns_seat(run, r->id, 0)->ns[CKPT_NS_USER];

		for (size_t k = 0; k < r->n_threads && !r->zombie && r->n_threads > 1; k++) {
			uint32_t ns = r->threads[k]->children_ns;

			if (ns != r->ns && !ckpt_ns_below(p->nsfs[ns - 1]->owner, user))
				return ckpt_fail_image(err,
						       "task %u: several threads, and pid "
						       "namespace %u for children",
						       r->id, ns);
		}
	}
	return 0;
}

static int load_leaders(struct ckpt_run *run, struct pid_plan *p, struct ckpt_error *err)
{
	for (size_t i = 0; i < ckpt_record_count(run, "pid.leader"); i++) {
		const Ckpt__Pid__Leader *r = ckpt_record_at(run, "pid.leader", i);
		struct pid_node *n = &p->nodes[p->n];
		char what[32];
		int e;

		snprintf(what, sizeof(what), "dead leader %u", r->id);
		if (r->id <= p->nodes[p->n - 1].id || !r->ns || r->ns > p->n_ns ||
		    p->ns[r->ns - 1]->empty)
			return ckpt_fail_image(err, "%s: bad id or pid namespace", what);
		e = check_pids(p, r->ns - 1, r->pids, r->n_pids, what, err);
		if (e < 0)
			return e;
		*n = (struct pid_node){
			.id = r->id,
			.kind = PID_LEADER,
			.ns = r->ns - 1,
			.pids = r->pids,
			.n_pids = r->n_pids,
			.parent = -1,
		};
		n->group = (int)p->n;
		/* a session made by a task that is gone, or a group in session `of` */
		n->session = r->session ? (int)p->n : r->of ? pid_plan_node(p, r->of) : -1;
		if (!r->session && r->of && n->session < 0)
			return ckpt_fail_image(err, "%s: no session %u", what, r->of);
		p->n++;
	}
	return 0;
}

/* References between families; a group lies within one session. */
static int link_families(struct pid_plan *p, struct ckpt_error *err)
{
	for (size_t i = 0; i < p->n_tasks; i++) {
		struct pid_node *n = &p->nodes[i];

		n->session = n->rec->session ? pid_plan_node(p, n->rec->session) : -1;
		n->group = n->rec->group ? pid_plan_node(p, n->rec->group) : -1;
		if ((n->rec->session && n->session < 0) || (n->rec->group && n->group < 0))
			return ckpt_fail_image(err,
					       "task %u: no leader of its session %u or group %u",
					       n->id, n->rec->session, n->rec->group);
	}
	for (size_t i = 0; i < p->n; i++) {
		const struct pid_node *n = &p->nodes[i];

		if (n->session >= 0 && p->nodes[n->session].session != n->session)
			return ckpt_fail_image(err, "task %u: %u leads no session", n->id,
					       p->nodes[n->session].id);
		if (n->group >= 0 && (p->nodes[n->group].group != n->group ||
				      p->nodes[n->group].session != n->session))
			return ckpt_fail_image(err, "task %u: %u leads no group of its session",
					       n->id, p->nodes[n->group].id);
		if (n->session == (int)i && n->group != (int)i)
			return ckpt_fail_image(err, "task %u: leads a session but not its group",
					       n->id);
	}
	return 0;
}

static int check_inits(struct pid_plan *p, struct ckpt_error *err)
{
	p->inits[0] = -1;
	for (size_t i = 1; i < p->n_ns; i++) {
		int at = p->ns[i]->empty ? -1 : pid_plan_node(p, p->ns[i]->init);
		const struct pid_node *n = at < 0 ? NULL : &p->nodes[at];

		p->inits[i] = at;
		if (p->ns[i]->empty)
			continue;
		if (!n || n->kind != PID_TASK || n->ns != i || n->rec->zombie ||
		    (n->n_pids && n->pids[n->n_pids - 1] != 1))
			return ckpt_fail_image(err,
					       "pid namespace %u: task %u is not its first process",
					       p->ns[i]->id, p->ns[i]->init);
	}
	return 0;
}

static int load(struct ckpt_run *run, struct pid_plan *p, struct ckpt_error *err)
{
	size_t leaders = ckpt_record_count(run, "pid.leader");
	int r = load_namespaces(run, p, err);

	if (r < 0)
		return r;
	p->n_tasks = ckpt_record_count(run, "pid.task");
	if (!p->n_tasks || p->n_tasks > PID_LIMIT || leaders > PID_LIMIT)
		return ckpt_fail_image(err, "%zu tasks and %zu dead leaders in the image",
				       p->n_tasks, leaders);
	/* each task can ask for one middle at most */
	p->cap = 2 * p->n_tasks + leaders;
	p->nodes = calloc(p->cap, sizeof(*p->nodes));
	if (!p->nodes)
		return ckpt_fail_sys(err, ENOMEM, "plan of %zu tasks", p->n_tasks);
	r = load_tasks(run, p, err);
	if (r == 0)
		r = check_children_ns(run, p, err);
	if (r == 0)
		r = load_leaders(run, p, err);
	if (r == 0)
		r = link_families(p, err);
	if (r == 0)
		r = check_inits(p, err);
	return r;
}

/* Each thread and each task that is made for a moment takes a place of its own. */
static void check_size(struct ckpt_run *run, const struct pid_plan *p)
{
	size_t places = p->n - p->n_tasks;

	for (size_t i = 0; i < p->n_tasks; i++)
		places += p->nodes[i].rec->n_threads + (p->nodes[i].rec->ended != NULL);
	if (places > CKPT_MAX_THREADS)
		ckpt_unmet(run, CKPT_EXIT_REFUSED, "save the tree in parts",
			   "%zu threads and dead leaders; a restore makes %d at most", places,
			   CKPT_MAX_THREADS);
}

int pid_plan(struct ckpt_run *run, struct ckpt_error *err)
{
	struct pid_plan *p = calloc(1, sizeof(*p));
	int r;

	if (!p)
		return ckpt_fail_sys(err, ENOMEM, "plan");
	ckpt_state_set(run, p);
	r = load(run, p, err);
	if (r == 0)
		r = pid_plan_makers(run, p, err);
	if (r == 0)
		r = pid_plan_sharing(run, p, err);
	if (r == 0)
		r = pid_plan_numbers(run, p, err);
	if (r == 0)
		r = pid_plan_order(run, p, err);
	if (r == 0)
		check_size(run, p);
	if (r == 0)
		r = pid_birth_planned(run, p, err);
	return r;
}
