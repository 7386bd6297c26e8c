/* SPDX-License-Identifier: MIT */
/* Which groups tasks are in: refusals and records. */
#include <stdio.h>
#include <sys/stat.h>

#include "cgroup.h"

/* The groups of one thread, as paths by hierarchy. */
struct seat {
	struct cgroup_state *st;
	char *paths[CGROUP_MAX_HIERARCHIES];
};

static void seat_free(struct seat *s)
{
	for (size_t i = 0; i < CGROUP_MAX_HIERARCHIES; i++)
		free(s->paths[i]);
}

static int sit(void *arg, const char *name, const char *path, struct ckpt_error *err)
{
	struct seat *s = arg;
	int h = cgroup_hierarchy(s->st, name);

	if (h < 0)
		return ckpt_fail(err, EAGAIN, "the hierarchy \"%s\" was mounted just now", name);
	if (s->paths[h])
		return ckpt_fail(err, EPROTO, "two groups in one hierarchy");
	s->paths[h] = strdup(path);
	return s->paths[h] ? 0 : ckpt_fail_sys(err, ENOMEM, "control groups");
}

/* 1: the thread has gone from a running tree. */
static int read_seat(struct ckpt_run *run, const struct ckpt_thread *th, struct seat *s,
		     struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *text = NULL;
	char path[48];
	ssize_t len;

	s->st = cgroup_state(run, err);
	if (!s->st)
		return -err->err;
	snprintf(path, sizeof(path), "task/%d/cgroup", (int)th->tid);
	len = ckpt_proc_read(th->task, path, &text, err);
	if (len < 0)
		return ckpt_is_live(run) && (len == -ENOENT || len == -ESRCH) ? 1 : (int)len;
	return cgroup_each_line(text, sit, s, err);
}

static bool same_group(const struct seat *a, const struct seat *b, size_t h)
{
	return a->paths[h] && b->paths[h] ? !strcmp(a->paths[h], b->paths[h])
					  : !a->paths[h] == !b->paths[h];
}

static bool same_seat(const struct seat *a, const struct seat *b)
{
	for (size_t h = 0; h < a->st->n_hierarchies; h++)
		if (!same_group(a, b, h))
			return false;
	return true;
}

/* ---- refusing ------------------------------------------------------------------------ */

static int refuse(struct ckpt_run *run, const struct ckpt_task *t, const char *feature,
		  const char *object, const char *reason, const char *hint)
{
	ckpt_refuse(run, &(struct ckpt_blocker){ feature, t, object, reason, hint, false });
	return 0;
}

static bool is_outside(const char *path)
{
	return !strncmp(path, "/..", 3) && (!path[3] || path[3] == '/');
}

/* 1: it does. */
static int reads(int dir, const char *file, const char *value, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *text = NULL;
	int r = cgroup_read(dir, file, &text, err);

	return r < 0 ? r : text && !strcmp(text, value);
}

int cgroup_is_frozen(int dir, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *events = NULL;
	int r = cgroup_read(dir, "cgroup.events", &events, err);

	if (r == 0 && events && strstr(events, "frozen 1"))
		return 1;
	/* asked for, and not so yet */
	if (r == 0)
		r = reads(dir, "cgroup.freeze", "1", err);
	return r ? r : reads(dir, "freezer.state", "FROZEN", err);
}

/* Of a process's group: who is in those that make it so? */
static int survey_outsiders(struct ckpt_run *run, const struct ckpt_task *t,
			    const struct cgroup_state *st, const char *path, const char *object,
			    struct ckpt_error *err)
{
	char reason[128];
	pid_t pid;
	int r = cgroup_frozen_outsider(run, st, path, &pid, err);

	if (r < 0 || pid < 0)
		return r;
	snprintf(reason, sizeof(reason),
		 "it is frozen, and process %d that is not of the tree with it", (int)pid);
	ckpt_refuse(run, &(struct ckpt_blocker){ "frozen", t, object, reason,
						 "thaw it, or dump the tree that has all of them",
						 true });
	return 0;
}

/* For the time of a dump it is thawed: what was set by a group that ckpt sees, for processes. */
static int survey_frozen(struct ckpt_run *run, const struct ckpt_task *t,
			 const struct cgroup_state *st, size_t h, const char *path, bool thread,
			 const char *object, struct ckpt_error *err)
{
	if (*st->hierarchies[h].name || thread || !cgroup_frozen_above(st, path)) {
		ckpt_refuse(run, &(struct ckpt_blocker){ "frozen", t, object, "it is frozen",
							 "thaw it before the dump", true });
		return 0;
	}
	ckpt_refuse_off(run, "frozen", t, object);
	return survey_outsiders(run, t, st, path, object, err);
}

/* What of a group cannot come back. */
static int survey_group(struct ckpt_run *run, const struct ckpt_task *t, struct cgroup_state *st,
			size_t h, const char *path, bool thread, struct ckpt_error *err)
{
	CKPT_AUTO_FD int dir = -1;
	char object[256];
	int r;

	snprintf(object, sizeof(object), "control group %s:%s", st->hierarchies[h].name, path);
	if (is_outside(path))
		return refuse(run, t, "outside", object,
			      "it is not below the root of ckpt's cgroup namespace",
			      "run ckpt outside of that namespace");
	if (ckpt_refuse_off(run, "membership", t, object) != 1)
		return 0;
	dir = cgroup_open(st, h, path, err);
	if (dir < 0)
		return dir == -ENOENT && ckpt_is_live(run) ? 0 : dir;
	r = reads(dir, CGROUP_TYPE, CGROUP_THREADED, err);
	if (r == 1 && ckpt_refuse_off(run, "threaded", t, object) < 0)
		return 0;
	r = r < 0 ? r : cgroup_is_frozen(dir, err);
	return r == 1 ? survey_frozen(run, t, st, h, path, thread, object, err) : r;
}

/* The groups of a seat, but for ckpt's own and those that the leader is in too. */
static int survey_seat(struct ckpt_run *run, const struct ckpt_task *t, const struct seat *s,
		       const struct seat *leader, struct ckpt_error *err)
{
	int r = 0;

	for (size_t h = 0; h < s->st->n_hierarchies && r == 0; h++)
		if (s->paths[h] && strcmp(s->paths[h], s->st->hierarchies[h].own) &&
		    !(leader && same_group(leader, s, h)))
			r = survey_group(run, t, s->st, h, s->paths[h], leader != NULL, err);
	return r;
}

static int survey_task(struct ckpt_run *run, const struct ckpt_task *t, struct ckpt_error *err)
{
	__attribute__((cleanup(seat_free))) struct seat leader = { 0 };
	int r = read_seat(run, t->threads[0], &leader, err);

	if (r)
		return r < 0 ? r : 0;
	r = survey_seat(run, t, &leader, NULL, err);
	for (size_t k = 1; k < t->n_threads && r == 0; k++) {
		__attribute__((cleanup(seat_free))) struct seat s = { 0 };
		char object[48];

		r = read_seat(run, t->threads[k], &s, err);
		if (r == 0 && !same_seat(&leader, &s)) {
			snprintf(object, sizeof(object), "control groups of thread %d",
				 (int)t->threads[k]->tid);
			if (ckpt_refuse_off(run, "threads", t, object) == 1)
				r = survey_seat(run, t, &s, &leader, err);
		}
		r = r > 0 ? 0 : r;
	}
	return r;
}

int cgroup_survey(struct ckpt_run *run, struct ckpt_error *err)
{
	struct cgroup_state *st = cgroup_state(run, err);
	int r = st ? cgroup_find_frozen(run, st, err) : -err->err;

	for (size_t i = 0; i < ckpt_task_count(run) && r == 0; i++) {
		const struct ckpt_task *t = ckpt_task_at(run, i);

		/* a zombie has left its groups */
		r = t->zombie ? 0 : survey_task(run, t, err);
		if (r < 0)
			ckpt_wrap(err, "task %u (%.15s)", t->id, t->comm);
	}
	return r;
}

/* ---- records ------------------------------------------------------------------------------ */

static uint32_t find_group(const struct cgroup_state *st, size_t h, const char *path)
{
	for (size_t i = 0; i < st->n_groups; i++)
		if (st->groups[i].hierarchy == h && !strcmp(st->groups[i].path, path))
			return (uint32_t)i + 1;
	return 0;
}

/* Nobody needs to see where ckpt itself is, or what is above. */
static bool leads_to_own(const struct cgroup_hierarchy *h, const char *path)
{
	size_t n = strlen(path);

	return !strncmp(path, h->own, n) && (n == 1 || !h->own[n] || h->own[n] == '/');
}

/* What a restore needs to make it again. */
static int read_group(struct ckpt_run *run, int dir, Ckpt__Cgroup__Group *rec,
		      struct cgroup_attributes *attributes, struct ckpt_error *err)
{
	struct stat sb, files;
	int r;

	if (fstat(dir, &sb) || fstatat(dir, "cgroup.procs", &files, 0))
		return ckpt_fail_sys(err, errno, "control group %s", rec->path);
	/* the topmost one is never made */
	r = rec->path[1] ? cgroup_attributes_read(dir, ckpt_opt_bool(run, "attributes"),
						  ckpt_feature_on(run, "threaded"), attributes, err)
			 : 0;
	rec->uid = sb.st_uid;
	rec->gid = sb.st_gid;
	rec->mode = sb.st_mode & 07777;
	rec->files_uid = files.st_uid;
	rec->files_gid = files.st_gid;
	rec->attributes = attributes->list;
	rec->n_attributes = attributes->n;
	return r;
}

static int put_group(struct ckpt_run *run, struct cgroup_state *st, size_t h, const char *path,
		     struct ckpt_error *err)
{
	__attribute__((
		cleanup(cgroup_attributes_free))) struct cgroup_attributes attributes = { 0 };
	Ckpt__Cgroup__Group rec = CKPT__CGROUP__GROUP__INIT;
	struct ckpt_error local = { 0 };
	CKPT_AUTO_FD int dir = cgroup_open(st, h, path, &local);
	int r = 0;

	rec.id = (uint32_t)st->n_groups;
	rec.hierarchy = st->hierarchies[h].name;
	rec.path = (char *)(uintptr_t)path;
	rec.own = !strcmp(path, st->hierarchies[h].own);
	rec.frozen =
		!*rec.hierarchy && cgroup_was_frozen(st, path) && ckpt_feature_on(run, "frozen");
	rec.mode = 0755;
	if (dir >= 0)
		r = read_group(run, dir, &rec, &attributes, err);
	else if (dir != -ENOENT || !leads_to_own(&st->hierarchies[h], path)) {
		*err = local;
		return dir;
	}
	if (r < 0)
		return r;
	return ckpt_record_put(run, CGROUP_REC_GROUP, &rec.base, err);
}

static int add_group(struct ckpt_run *run, struct cgroup_state *st, size_t h, const char *path,
		     struct ckpt_error *err)
{
	struct cgroup_group *more = realloc(st->groups, (st->n_groups + 1) * sizeof(*more));
	char *copy = strdup(path);

	if (more)
		st->groups = more;
	if (!more || !copy) {
		free(copy);
		return ckpt_fail_sys(err, ENOMEM, "control groups");
	}
	more[st->n_groups++] = (struct cgroup_group){ h, copy };
	return put_group(run, st, h, path, err);
}

int cgroup_put(struct ckpt_run *run, struct cgroup_state *st, size_t h, const char *path,
	       uint32_t *id, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *above = strdup(path);
	int r = above ? 0 : ckpt_fail_sys(err, ENOMEM, "control groups");

	*id = find_group(st, h, path);
	if (*id || r < 0)
		return r;
	/* "/a/b": first "/", then "/a" */
	for (char *slash = above; r == 0 && slash && path[1]; slash = strchr(slash + 1, '/')) {
		char was = slash[slash == above];

		slash[slash == above] = 0;
		if (!find_group(st, h, above))
			r = add_group(run, st, h, above, err);
		slash[slash == above] = was;
	}
	if (r == 0)
		r = add_group(run, st, h, path, err);
	*id = (uint32_t)st->n_groups;
	return r;
}

static int put_member(struct ckpt_run *run, const struct ckpt_task *t, size_t index,
		      const struct seat *s, struct ckpt_error *err)
{
	Ckpt__Cgroup__Member rec = CKPT__CGROUP__MEMBER__INIT;
	uint32_t groups[CGROUP_MAX_HIERARCHIES];
	int r = 0;

	rec.id = t->id;
	rec.index = (uint32_t)index;
	rec.groups = groups;
	for (size_t h = 0; h < s->st->n_hierarchies && r == 0; h++) {
		bool own = s->paths[h] && !strcmp(s->paths[h], s->st->hierarchies[h].own);

		/* refused in the survey, or lost by permission */
		if (!s->paths[h] || is_outside(s->paths[h]) ||
		    (!own && !ckpt_feature_on(run, "membership")))
			continue;
		r = cgroup_put(run, s->st, h, s->paths[h], &groups[rec.n_groups], err);
		rec.n_groups++;
	}
	return r < 0 ? r : ckpt_record_put(run, CGROUP_REC_MEMBER, &rec.base, err);
}

/* Without that feature, threads stay with their process in version 2. */
static int keep_together(struct ckpt_run *run, const struct seat *leader, struct seat *s,
			 struct ckpt_error *err)
{
	int h = cgroup_hierarchy(s->st, "");

	if (h < 0 || !leader->paths[h] || ckpt_feature_on(run, "threaded"))
		return 0;
	free(s->paths[h]);
	s->paths[h] = strdup(leader->paths[h]);
	return s->paths[h] ? 0 : ckpt_fail_sys(err, ENOMEM, "control groups");
}

static int collect_task(struct ckpt_run *run, const struct ckpt_task *t, struct ckpt_error *err)
{
	__attribute__((cleanup(seat_free))) struct seat leader = { 0 };
	int r = read_seat(run, t->threads[0], &leader, err);

	if (r == 0)
		r = put_member(run, t, 0, &leader, err);
	for (size_t k = 1; k < t->n_threads && r == 0 && ckpt_feature_on(run, "threads"); k++) {
		__attribute__((cleanup(seat_free))) struct seat s = { 0 };

		r = read_seat(run, t->threads[k], &s, err);
		if (r == 0)
			r = keep_together(run, &leader, &s, err);
		if (r == 0 && !same_seat(&leader, &s))
			r = put_member(run, t, k, &s, err);
		r = r > 0 ? 0 : r;
	}
	return r < 0 ? ckpt_wrap(err, "task %u (%.15s)", t->id, t->comm) : 0;
}

int cgroup_collect(struct ckpt_run *run, struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; i < ckpt_task_count(run) && r == 0; i++) {
		const struct ckpt_task *t = ckpt_task_at(run, i);

		r = t->zombie ? 0 : collect_task(run, t, err);
	}
	return r;
}
