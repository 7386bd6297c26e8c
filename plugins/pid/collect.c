/* SPDX-License-Identifier: MIT */
/* From the stopped tree to records: numbers become references, symbolic and checked. */
#include <linux/prctl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>

#include "pid.h"

/* A dead leader: known only by the numbers that its members still show. */
struct dead {
	int32_t pid; /* ckpt's level */
	struct pid_numbers nr;
	uint32_t ns;
	bool session;
	uint32_t of;
};

struct collect {
	struct ckpt_run *run;
	struct pid_nsmap map;
	struct dead *dead;
	size_t n_dead;
	uint32_t first_dead; /* id */
};

static void collect_free(struct collect *c)
{
	pid_nsmap_free(&c->map);
	free(c->dead);
}

/* The ancestor of namespace `ns` on that level. */
static uint32_t ns_at_level(const struct collect *c, uint32_t ns, uint32_t level)
{
	while (c->map.ns[ns - 1].level > level)
		ns = c->map.ns[ns - 1].parent;
	return ns;
}

/*
 * The id that stands for a leader's number. `shown` are the numbers as the member
 * sees them: those above the leader's own level read 0.
 */
static int leader_id(struct collect *c, const struct pid_numbers *shown, uint32_t member_ns,
		     bool session, uint32_t of, uint32_t *id, struct ckpt_error *err)
{
	const struct ckpt_task *t = ckpt_task_by_pid(c->run, shown->nr[0]);
	struct pid_numbers nr = *shown;
	struct dead *more;
	char path[32];

	/* a zombie that is left out is as good as gone */
	bool left_out = t && t->zombie && !ckpt_feature_on(c->run, "zombies");

	*id = 0;
	snprintf(path, sizeof(path), "/proc/%d", shown->nr[0]);
	if (t && !left_out) {
		*id = t->id;
		return 0;
	}
	/* led from outside: a loss that the survey got leave for */
	if (!ckpt_feature_on(c->run, "dead-leaders") || !shown->nr[0] ||
	    (!left_out && access(path, F_OK) == 0))
		return 0;
	while (nr.n > 1 && !nr.nr[nr.n - 1])
		nr.n--;
	for (size_t i = 0; i < c->n_dead; i++) {
		struct dead *d = &c->dead[i];

		if (d->pid != nr.nr[0])
			continue;
		*id = c->first_dead + (uint32_t)i;
		d->session = d->session || session;
		/* a member deeper down shows more levels */
		if (nr.n > d->nr.n) {
			d->nr = nr;
			d->ns = ns_at_level(c, member_ns, (uint32_t)nr.n - 1);
		}
		return 0;
	}
	more = realloc(c->dead, (c->n_dead + 1) * sizeof(*more));
	if (!more)
		return ckpt_fail_sys(err, ENOMEM, "dead leaders");
	c->dead = more;
	*id = c->first_dead + (uint32_t)c->n_dead;
	c->dead[c->n_dead++] = (struct dead){
		.pid = nr.nr[0],
		.nr = nr,
		.ns = ns_at_level(c, member_ns, (uint32_t)nr.n - 1),
		.session = session,
		.of = of,
	};
	return 0;
}

/* Families, from the task's status. */
static int families(struct collect *c, const struct ckpt_task *t, const char *status,
		    Ckpt__Pid__Task *rec, struct ckpt_error *err)
{
	struct pid_numbers sid, pgid;
	struct pid_stat st;
	int r = pid_read_stat(t, &st, err);

	if (r < 0)
		return r;
	rec->exit_signal =
		ckpt_feature_on(c->run, "exit-signal") ? (int32_t)st.exit_signal : SIGCHLD;
	if (pid_status_numbers(status, "NSsid", &sid) < 0 ||
	    pid_status_numbers(status, "NSpgid", &pgid) < 0)
		return ckpt_fail(err, EINVAL, "/proc/%d/status: no NSsid or NSpgid", t->pid);
	if (ckpt_feature_on(c->run, "sessions"))
		r = leader_id(c, &sid, rec->ns, true, 0, &rec->session, err);
	if (r == 0 && ckpt_feature_on(c->run, "groups"))
		r = leader_id(c, &pgid, rec->ns, false, rec->session, &rec->group, err);
	/* a session's leader leads its group too, with or without that feature */
	if (rec->session == t->id)
		rec->group = t->id;
	return r;
}

static int thread_record(struct collect *c, const struct ckpt_thread *th, size_t k,
			 const char *status, struct pid_numbers *nr, Ckpt__Pid__Thread *rec,
			 struct ckpt_error *err)
{
	struct ckpt_task *t = th->task;
	bool lost;
	int at;

	if (pid_status_numbers(status, "NSpid", nr) < 0)
		return ckpt_fail(err, EINVAL, "/proc/%d/task/%d/status: no NSpid", t->pid, th->tid);
	if (ckpt_feature_on(c->run, "ids")) {
		rec->tids = nr->nr;
		rec->n_tids = nr->n;
	}
	if (t->zombie)
		return 0;
	lost = pid_ns_is_empty(ckpt_ns_seat(c->run, t->id, k)->pid_for_children) &&
	       !ckpt_feature_on(c->run, "empty-namespaces");
	at = lost ? pid_nsmap_of(&c->map, t, err) : pid_nsmap_children(&c->map, t, k, err);
	if (at < 0)
		return at;
	rec->children_ns = c->map.ns[at].id;
	return 0;
}

static int subreaper(struct collect *c, const struct ckpt_task *t, Ckpt__Pid__Task *rec,
		     struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(c->run, "pid.subreaper");
	int op = ckpt_script_add(s, SYS_prctl, CKPT_C(PR_GET_CHILD_SUBREAPER),
				 CKPT_OUT(sizeof(int)));
	int r = ckpt_script_run(s, t->threads[0], err), on;

	if (r < 0)
		return r;
	memcpy(&on, ckpt_script_out(s, op, 1), sizeof(on));
	rec->subreaper = on && ckpt_refuse_off(c->run, "subreaper", t, "child subreaper") == 1;
	return 0;
}

void pid_status_ids(const char *status, const char *key, uint32_t *ids)
{
	char text[64];

	if (ckpt_proc_field(status, key, text, sizeof(text)) < 0 ||
	    sscanf(text, "%u %u %u", &ids[0], &ids[1], &ids[2]) != 3)
		ids[0] = ids[1] = ids[2] = 0;
}

static int put_zombie(struct collect *c, const struct ckpt_task *t, const char *status,
		      Ckpt__Pid__Task *rec, struct ckpt_error *err)
{
	Ckpt__Pid__Zombie z = CKPT__PID__ZOMBIE__INIT;
	uint32_t uids[3], gids[3];
	char comm[sizeof(t->comm) + 1];
	struct pid_stat st;
	int r = pid_read_stat(t, &st, err);

	if (r < 0)
		return r;
	snprintf(comm, sizeof(comm), "%s", t->comm);
	pid_status_ids(status, "Uid", uids);
	pid_status_ids(status, "Gid", gids);
	/* the core bit was refused, so without it is what the user agreed to */
	z.status = (uint32_t)st.exit_code & ~0x80U;
	z.comm = comm;
	z.uids = uids;
	z.gids = gids;
	z.n_uids = z.n_gids = 3;
	rec->zombie = &z;
	return ckpt_record_put(c->run, PID_REC_TASK, &rec->base, err);
}

/* The records of threads, with room for their numbers. */
struct rows {
	Ckpt__Pid__Thread *recs;
	Ckpt__Pid__Thread **list;
	struct pid_numbers *nr;
};

static void rows_free(struct rows *r)
{
	free(r->recs);
	free(r->list);
	free(r->nr);
}

static int rows_alloc(struct rows *r, size_t n, struct ckpt_error *err)
{
	r->recs = calloc(n, sizeof(*r->recs));
	r->list = calloc(n, sizeof(struct Ckpt__Pid__Thread *));
	r->nr = calloc(n, sizeof(*r->nr));
	if (!r->recs || !r->list || !r->nr)
		return ckpt_fail_sys(err, ENOMEM, "records of %zu threads", n);
	for (size_t i = 0; i < n; i++) {
		ckpt__pid__thread__init(&r->recs[i]);
		r->list[i] = &r->recs[i];
	}
	return 0;
}

static int one(struct collect *c, const struct ckpt_task *t, struct ckpt_error *err)
{
	__attribute__((cleanup(rows_free))) struct rows rows = { 0 };
	__attribute__((cleanup(pid_ended_free))) struct pid_ended ended = { 0 };
	const struct pid_numbers *nr;
	CKPT_AUTO_FREE char *status = NULL;
	Ckpt__Pid__Task rec = CKPT__PID__TASK__INIT;
	int r = rows_alloc(&rows, t->n_threads ? t->n_threads : 1, err), at;

	if (r < 0)
		return r;
	at = pid_nsmap_of(&c->map, t, err);
	if (at < 0)
		return at;
	if (ckpt_proc_read(t, "status", &status, err) < 0)
		return -err->err;
	rec.id = t->id;
	rec.parent = t->parent ? t->parent->id : 0;
	rec.ns = c->map.ns[at].id;
	rec.threads = rows.list;
	rec.n_threads = t->zombie ? 1 : t->n_threads;
	r = families(c, t, status, &rec, err);
	for (size_t k = 0; k < rec.n_threads && r == 0; k++) {
		CKPT_AUTO_FREE char *text = NULL;
		/* a zombie may be known without a thread */
		struct ckpt_thread self = { .task = (struct ckpt_task *)t, .tid = t->pid };
		const struct ckpt_thread *th = t->zombie ? &self : t->threads[k];
		char path[64];

		pid_thread_path(path, sizeof(path), th, "status");
		if (k && ckpt_proc_read(t, path, &text, err) < 0)
			return -err->err;
		r = thread_record(c, th, k, k ? text : status, &rows.nr[k], &rows.recs[k], err);
	}
	if (r == 0 && t->ended) {
		r = pid_ended_collect(c->run, t, &ended, err);
		rec.ended = &ended.msg;
	}
	if (r < 0)
		return r;
	nr = t->ended ? &ended.nr : &rows.nr[0];
	if (nr->nr[nr->n - 1] == 1 && at)
		c->map.ns[at].init = t->id;
	if (t->zombie)
		return ckpt_feature_on(c->run, "zombies") ? put_zombie(c, t, status, &rec, err) : 0;
	r = subreaper(c, t, &rec, err);
	return r < 0 ? r : ckpt_record_put(c->run, PID_REC_TASK, &rec.base, err);
}

static int put_leaders(struct collect *c, struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; i < c->n_dead && r == 0; i++) {
		Ckpt__Pid__Leader rec = CKPT__PID__LEADER__INIT;
		struct dead *d = &c->dead[i];

		rec.id = c->first_dead + (uint32_t)i;
		rec.ns = d->ns;
		rec.session = d->session;
		rec.of = d->session ? 0 : d->of;
		if (ckpt_feature_on(c->run, "ids")) {
			rec.pids = d->nr.nr;
			rec.n_pids = d->nr.n;
		}
		r = ckpt_record_put(c->run, PID_REC_LEADER, &rec.base, err);
	}
	return r;
}

static int put_namespaces(struct collect *c, struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; i < c->map.n && r == 0; i++) {
		Ckpt__Pid__Namespace rec = CKPT__PID__NAMESPACE__INIT;

		rec.id = c->map.ns[i].id;
		rec.parent = c->map.ns[i].parent;
		rec.level = c->map.ns[i].level;
		rec.ns = i ? c->map.ns[i].nsfs->id : 0;
		rec.init = c->map.ns[i].init;
		r = i ? pid_empty_state(c->run, c->map.ns[i].nsfs, &rec.empty, err) : 0;
		if (r == 0)
			r = pid_collect_counters(c->run, &rec, &c->map.ns[i], err);
		if (r == 0)
			r = ckpt_record_put(c->run, PID_REC_NAMESPACE, &rec.base, err);
	}
	return r < 0 ? r : pid_put_back_counters(c->run, &c->map, err);
}

int pid_collect(struct ckpt_run *run, struct ckpt_error *err)
{
	__attribute__((cleanup(collect_free))) struct collect c = { .run = run };
	int r = pid_nsmap_init(&c.map, run, err);

	for (size_t i = 0; i < ckpt_task_count(run); i++)
		if (ckpt_task_at(run, i)->id >= c.first_dead)
			c.first_dead = ckpt_task_at(run, i)->id + 1;
	for (size_t i = 0; i < ckpt_task_count(run) && r == 0; i++)
		r = one(&c, ckpt_task_at(run, i), err);
	if (r == 0)
		r = put_leaders(&c, err);
	return r < 0 ? r : put_namespaces(&c, err);
}
