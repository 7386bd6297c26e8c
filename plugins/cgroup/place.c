/* SPDX-License-Identifier: MIT */
/* Make the groups that are missing, and move tasks and threads into theirs. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "cgroup.h"

int cgroup_move(struct cgroup_state *st, size_t h, const char *path, const char *file, pid_t pid,
		struct ckpt_error *err)
{
	CKPT_AUTO_FD int dir = cgroup_open(st, h, path, err);
	CKPT_AUTO_FD int fd = dir < 0 ? -1 : openat(dir, file, O_WRONLY | O_CLOEXEC);
	char name[160];

	if (dir < 0)
		return dir;
	if (fd < 0 || dprintf(fd, "%d\n", (int)pid) < 0)
		return ckpt_fail_sys(err, errno, "moving %d into control group %s by %s", (int)pid,
				     cgroup_name(name, sizeof(name), st->hierarchies[h].name, path),
				     file);
	return 0;
}

/* ---- making --------------------------------------------------------------------------- */

static int note_made(struct cgroup_state *st, size_t h, const Ckpt__Cgroup__Group *g)
{
	struct cgroup_made *more = realloc(st->made, (st->n_made + 1) * sizeof(*more));

	if (!more)
		return -ENOMEM;
	st->made = more;
	more[st->n_made++] = (struct cgroup_made){ h, g->path, g };
	return 0;
}

static int make(struct cgroup_state *st, const Ckpt__Cgroup__Group *g, struct ckpt_error *err)
{
	const char *path = g->path;
	int h = cgroup_hierarchy(st, g->hierarchy);
	CKPT_AUTO_FD int dir = -1;
	char name[160];
	int root, r;

	if (h < 0)
		return ckpt_fail(err, ENODEV, "no hierarchy \"%s\"", g->hierarchy);
	root = cgroup_root(st, (size_t)h, err);
	if (root < 0)
		return root;
	cgroup_name(name, sizeof(name), g->hierarchy, path);
	if (mkdirat(root, path + 1, 0755)) {
		return errno == EEXIST ? 0
				       : ckpt_fail_sys(err, errno, "making control group %s", name);
	}
	if (note_made(st, (size_t)h, g)) {
		ckpt_remove(root, path + 1, AT_REMOVEDIR);
		return ckpt_fail_sys(err, ENOMEM, "control groups");
	}
	dir = cgroup_open(st, (size_t)h, path, err);
	r = dir < 0 ? dir : cgroup_attributes_write(dir, g, false, err);
	return r < 0 ? ckpt_wrap(err, "making control group %s", name) : 0;
}

/* Is it one that somebody is to be in, or above such a one? */
static bool is_above(const Ckpt__Cgroup__Group *a, const Ckpt__Cgroup__Group *b)
{
	size_t n = strlen(a->path);

	return !strncmp(a->path, b->path, n) && (n == 1 || !b->path[n] || b->path[n] == '/') &&
	       !strcmp(a->hierarchy, b->hierarchy);
}

static void mark(struct ckpt_run *run, bool *wanted, uint32_t id)
{
	const Ckpt__Cgroup__Group *g = cgroup_record(run, id);

	if (wanted[id] || cgroup_follows(run, g))
		return;
	for (uint32_t i = 1; i <= id; i++)
		wanted[i] |= is_above(cgroup_record(run, i), g);
}

int cgroup_make(struct ckpt_run *run, struct ckpt_error *err)
{
	struct cgroup_state *st = cgroup_state(run, err);
	size_t n = ckpt_record_count(run, "cgroup.group");
	CKPT_AUTO_FREE bool *wanted = calloc(n + 1, sizeof(*wanted));
	int r = 0;

	if (!st || !wanted)
		return st ? ckpt_fail_sys(err, ENOMEM, "control groups") : -err->err;
	for (size_t i = 0; i < ckpt_record_count(run, "cgroup.member"); i++) {
		const Ckpt__Cgroup__Member *m = ckpt_record_at(run, "cgroup.member", i);

		for (size_t k = 0; k < m->n_groups; k++)
			mark(run, wanted, m->groups[k]);
	}
	for (size_t i = 0; i < ckpt_record_count(run, "cgroup.namespace"); i++) {
		const Ckpt__Cgroup__Namespace *ns = ckpt_record_at(run, "cgroup.namespace", i);

		for (size_t k = 0; k < ns->n_roots; k++)
			mark(run, wanted, ns->roots[k]);
	}
	for (uint32_t id = 1; id <= n && r == 0; id++)
		if (wanted[id] && cgroup_record(run, id)->path[1])
			r = make(st, cgroup_record(run, id), err);
	/* a step that fails is not undone by the engine */
	if (r < 0)
		cgroup_unmake(run);
	return r;
}

/* What the machine has switched off since nobody was left who used it. */
static int enable_in(struct cgroup_state *st, size_t h, const char *path, const char *name,
		     struct ckpt_error *err)
{
	CKPT_AUTO_FD int dir = cgroup_open(st, h, path, err);
	CKPT_AUTO_FREE char *on = NULL;
	struct cgroup_enabled *more;
	int r = dir < 0 ? dir : cgroup_read(dir, CGROUP_SUBTREE, &on, err);

	if (r < 0 || !on || cgroup_in_list(on, ' ', name, strlen(name)))
		return r;
	more = reallocarray(st->enabled, st->n_enabled + 1, sizeof(*more));
	if (!more)
		return ckpt_fail_sys(err, ENOMEM, "control groups");
	st->enabled = more;
	r = cgroup_switch(dir, '+', name);
	if (r < 0)
		return ckpt_fail_sys(err, r, "+%s to " CGROUP_SUBTREE " of control group %s", name,
				     path);
	more[st->n_enabled++] = (struct cgroup_enabled){ h, strdup(path), strdup(name) };
	return more[st->n_enabled - 1].path && more[st->n_enabled - 1].name
		       ? 0
		       : ckpt_fail_sys(err, ENOMEM, "control groups");
}

/* In all groups above it, from the top. */
static int enable_above(struct cgroup_state *st, size_t h, const char *path, const char *name,
			struct ckpt_error *err)
{
	int r = enable_in(st, h, "/", name, err);

	for (const char *p = strchr(path + 1, '/'); p && r == 0; p = strchr(p + 1, '/')) {
		CKPT_AUTO_FREE char *above = strndup(path, (size_t)(p - path));

		r = above ? enable_in(st, h, above, name, err)
			  : ckpt_fail_sys(err, ENOMEM, "control groups");
	}
	return r;
}

static int settle(struct cgroup_state *st, const struct cgroup_made *m, struct ckpt_error *err)
{
	CKPT_AUTO_FD int dir = cgroup_open(st, m->hierarchy, m->path, err);
	CKPT_AUTO_FREE char *names = cgroup_needs(m->rec);
	char *save = NULL;
	int r = dir < 0 ? dir : names ? 0 : ckpt_fail_sys(err, ENOMEM, "control groups");

	for (char *name = r < 0 ? NULL : strtok_r(names, " ", &save); name && r == 0;
	     name = strtok_r(NULL, " ", &save))
		r = enable_above(st, m->hierarchy, m->path, name, err);
	return r < 0 ? r : cgroup_attributes_write(dir, m->rec, true, err);
}

/* Those above come first. */
int cgroup_settings(struct ckpt_run *run, struct ckpt_error *err)
{
	struct cgroup_state *st = cgroup_state(run, err);
	int r = st ? 0 : -err->err;

	for (size_t i = 0; r == 0 && i < st->n_made; i++)
		if (settle(st, &st->made[i], err) < 0)
			r = ckpt_wrap(err, "control group %s", st->made[i].path);
	return r;
}

void cgroup_unmake(struct ckpt_run *run)
{
	struct cgroup_state *st = ckpt_state(run);

	while (st && st->n_made > 0) {
		const struct cgroup_made *m = &st->made[--st->n_made];

		if (ckpt_remove(st->hierarchies[m->hierarchy].root, m->path + 1, AT_REMOVEDIR))
			ckpt_log(run, CKPT_LOG_WARN, "control group %s:%s stays: %s",
				 st->hierarchies[m->hierarchy].name, m->path,
				 ckpt_errno_name(errno));
	}
	for (size_t i = st ? st->n_enabled : 0; i--;) {
		const struct cgroup_enabled *e = &st->enabled[i];
		struct ckpt_error ignored = { 0 };
		CKPT_AUTO_FD int dir =
			e->path && e->name ? cgroup_open(st, e->hierarchy, e->path, &ignored) : -1;

		/* whoever uses it by now keeps it */
		if (dir >= 0)
			cgroup_switch(dir, '-', e->name);
	}
}

/* ---- moving -------------------------------------------------------------------------------- */

static int move(struct ckpt_run *run, const Ckpt__Cgroup__Member *m, pid_t id, const char *file,
		struct ckpt_error *err)
{
	struct cgroup_state *st = cgroup_state(run, err);
	int r = st ? 0 : -err->err;

	for (size_t k = 0; k < m->n_groups && r == 0; k++) {
		const Ckpt__Cgroup__Group *g = cgroup_record(run, m->groups[k]);
		int h = cgroup_hierarchy(st, g->hierarchy);

		/* it was born there */
		if (h < 0 || !strcmp(cgroup_target(run, st, g), st->hierarchies[h].own))
			continue;
		r = cgroup_move(st, (size_t)h, g->path, file, id, err);
	}
	return r < 0 ? ckpt_wrap(err, "task %u", m->id) : 0;
}

/* Before the memory, which is charged to the group that its task is in. */
int cgroup_place(struct ckpt_run *run, struct ckpt_error *err)
{
	int r = cgroup_freeze_later(run, err);

	for (size_t i = 0; i < ckpt_record_count(run, "cgroup.member") && r == 0; i++) {
		const Ckpt__Cgroup__Member *m = ckpt_record_at(run, "cgroup.member", i);
		const struct ckpt_task *t = ckpt_task_by_id(run, m->id);

		if (m->index)
			continue;
		if (!t)
			return ckpt_fail(err, ESRCH, "task %u was not made", m->id);
		r = move(run, m, t->pid, "cgroup.procs", err);
	}
	return r;
}

static bool is_in(const Ckpt__Cgroup__Member *m, uint32_t group)
{
	for (size_t k = 0; m && k < m->n_groups; k++)
		if (m->groups[k] == group)
			return true;
	return false;
}

/* Those that its process is not in: version 2 takes a thread only where it has threaded groups. */
static int move_thread(struct ckpt_run *run, struct cgroup_state *st, const Ckpt__Cgroup__Member *m,
		       const Ckpt__Cgroup__Member *leader, pid_t tid, struct ckpt_error *err)
{
	int r = 0;

	for (size_t k = 0; k < m->n_groups && r == 0; k++) {
		const Ckpt__Cgroup__Group *g = cgroup_record(run, m->groups[k]);
		int h = cgroup_hierarchy(st, g->hierarchy);

		if (h >= 0 && !is_in(leader, m->groups[k]))
			r = cgroup_move(st, (size_t)h, cgroup_target(run, st, g),
					*g->hierarchy ? "tasks" : "cgroup.threads", tid, err);
	}
	return r;
}

int cgroup_threads(struct ckpt_run *run, struct ckpt_error *err)
{
	struct cgroup_state *st = cgroup_state(run, err);
	const Ckpt__Cgroup__Member *leader = NULL;
	int r = st ? 0 : -err->err;

	for (size_t i = 0; i < ckpt_record_count(run, "cgroup.member") && r == 0; i++) {
		const Ckpt__Cgroup__Member *m = ckpt_record_at(run, "cgroup.member", i);
		const struct ckpt_task *t = m->index ? ckpt_task_by_id(run, m->id) : NULL;

		if (!m->index) {
			leader = m;
			continue;
		}
		if (!t || m->index >= t->n_threads)
			return ckpt_fail(err, ESRCH, "task %u, thread %u was not made", m->id,
					 m->index);
		r = move_thread(run, st, m, leader && leader->id == m->id ? leader : NULL,
				t->threads[m->index]->tid, err);
	}
	return r;
}
