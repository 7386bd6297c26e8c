/* SPDX-License-Identifier: MIT */
/* Check the records, and that this machine has the hierarchies. */
#include <stdio.h>
#include <sys/stat.h>

#include "cgroup.h"

#define BAD(err, ...) ckpt_fail_image((err), __VA_ARGS__)

const Ckpt__Cgroup__Group *cgroup_record(struct ckpt_run *run, uint32_t id)
{
	return ckpt_record_at(run, "cgroup.group", id - 1);
}

bool cgroup_follows(struct ckpt_run *run, const Ckpt__Cgroup__Group *g)
{
	return g->own && !strcmp(ckpt_opt_string(run, "own"), "follow");
}

const char *cgroup_target(struct ckpt_run *run, const struct cgroup_state *st,
			  const Ckpt__Cgroup__Group *g)
{
	int h = cgroup_hierarchy(st, g->hierarchy);

	if (h >= 0 && cgroup_follows(run, g))
		return st->hierarchies[h].own;
	return g->path;
}

/* "/", or names that lead downwards. */
static bool is_path(const char *p, size_t len)
{
	if (!len || len >= CGROUP_MAX_PATH || p[0] != '/' || memchr(p, '\n', len))
		return false;
	if (len == 1)
		return true;
	for (size_t at = 0; at < len;) {
		const char *name = p + at + 1;
		const char *end = memchr(name, '/', len - at - 1);
		size_t n = end ? (size_t)(end - name) : len - at - 1;

		if (!n || (n == 1 && name[0] == '.') || (n == 2 && !memcmp(name, "..", 2)))
			return false;
		at += n + 1;
	}
	return true;
}

static int check_attributes(const Ckpt__Cgroup__Group *g, struct ckpt_error *err)
{
	for (size_t i = 0; i < g->n_attributes; i++) {
		const Ckpt__Cgroup__Attribute *a = g->attributes[i];

		if (!cgroup_attribute_known(a->file))
			return BAD(err, "control group %u: unknown setting \"%.64s\"", g->id,
				   a->file);
		if (!strcmp(a->file, CGROUP_TYPE) && strcmp(a->value, CGROUP_THREADED))
			return BAD(err, "control group %u: type \"%.20s\"", g->id, a->value);
		if (strlen(a->value) >= CGROUP_MAX_VALUE)
			return BAD(err, "control group %u: %s of %zu bytes", g->id, a->file,
				   strlen(a->value));
	}
	return 0;
}

/* The group above each has a record, before it. */
static bool has_parent(struct ckpt_run *run, const Ckpt__Cgroup__Group *g)
{
	const char *path = g->path;
	const char *slash = strrchr(path, '/');
	size_t len = slash == path ? 1 : (size_t)(slash - path);

	if (!path[1])
		return true;
	for (uint32_t i = 1; i < g->id; i++) {
		const Ckpt__Cgroup__Group *p = cgroup_record(run, i);

		if (strlen(p->path) == len && !memcmp(p->path, path, len) &&
		    !strcmp(p->hierarchy, g->hierarchy))
			return true;
	}
	return false;
}

static int check_groups(struct ckpt_run *run, struct ckpt_error *err)
{
	for (size_t i = 0; i < ckpt_record_count(run, "cgroup.group"); i++) {
		const Ckpt__Cgroup__Group *g = ckpt_record_at(run, "cgroup.group", i);
		int r;

		if (g->id != i + 1)
			return BAD(err, "control group %u out of order", g->id);
		if (!is_path(g->path, strlen(g->path)))
			return BAD(err, "control group %u: bad path", g->id);
		if (!has_parent(run, g))
			return BAD(err, "control group %u: the one above it is missing", g->id);
		if (g->mode & ~07777U)
			return BAD(err, "control group %u: mode %o", g->id, g->mode);
		r = check_attributes(g, err);
		if (r < 0)
			return r;
	}
	return 0;
}

/* One group at most in each hierarchy. */
static int check_list(struct ckpt_run *run, const uint32_t *groups, size_t n, const char *what,
		      struct ckpt_error *err)
{
	for (size_t i = 0; i < n; i++) {
		if (!groups[i] || groups[i] > ckpt_record_count(run, "cgroup.group") ||
		    n > CGROUP_MAX_HIERARCHIES)
			return BAD(err, "%s: control group %u", what, groups[i]);
		for (size_t k = 0; k < i; k++)
			if (!strcmp(cgroup_record(run, groups[i])->hierarchy,
				    cgroup_record(run, groups[k])->hierarchy))
				return BAD(err, "%s: two control groups of one hierarchy", what);
	}
	return 0;
}

static int check_members(struct ckpt_run *run, struct ckpt_error *err)
{
	const Ckpt__Cgroup__Member *last = NULL;
	int r = 0;

	for (size_t i = 0; i < ckpt_record_count(run, "cgroup.member") && r == 0; i++) {
		const Ckpt__Cgroup__Member *m = ckpt_record_at(run, "cgroup.member", i);
		char what[32];

		snprintf(what, sizeof(what), "task %u", m->id);
		if (last && (m->id < last->id || (m->id == last->id && m->index <= last->index)))
			return BAD(err, "%s: its control groups are out of order", what);
		if (!ckpt_record_by_id(run, "pid.task", m->id) || m->index >= CKPT_MAX_THREADS)
			return BAD(err, "%s, thread %u, is not there", what, m->index);
		r = check_list(run, m->groups, m->n_groups, what, err);
		last = m;
	}
	for (size_t i = 0; i < ckpt_record_count(run, "cgroup.namespace") && r == 0; i++) {
		const Ckpt__Cgroup__Namespace *n = ckpt_record_at(run, "cgroup.namespace", i);
		char what[40];

		snprintf(what, sizeof(what), "cgroup namespace %u", n->id);
		r = check_list(run, n->roots, n->n_roots, what, err);
	}
	return r;
}

/* A copy makes no groups of its own: what is not ckpt's would be one group for all copies. */
static void check_copies(struct ckpt_run *run)
{
	for (size_t i = 0; i < ckpt_record_count(run, "cgroup.group"); i++) {
		const Ckpt__Cgroup__Group *g = ckpt_record_at(run, "cgroup.group", i);
		bool used = false;

		for (size_t k = 0; !used && k < ckpt_record_count(run, "cgroup.member"); k++) {
			const Ckpt__Cgroup__Member *m = ckpt_record_at(run, "cgroup.member", k);

			for (size_t n = 0; n < m->n_groups; n++)
				used |= m->groups[n] == g->id;
		}
		for (size_t k = 0; !used && k < ckpt_record_count(run, "cgroup.namespace"); k++) {
			const Ckpt__Cgroup__Namespace *ns =
				ckpt_record_at(run, "cgroup.namespace", k);

			for (size_t n = 0; n < ns->n_roots; n++)
				used |= ns->roots[n] == g->id;
		}
		if (used && !cgroup_follows(run, g))
			ckpt_unmet(run, CKPT_EXIT_REFUSED,
				   "save the tree where all of it is in ckpt's own group",
				   "control group %s:%s would be the same for all copies",
				   g->hierarchy, g->path);
	}
}

/* One that is there already must hold threads, if they are to be held apart. */
static int check_threaded(struct ckpt_run *run, struct cgroup_state *st, size_t h,
			  const Ckpt__Cgroup__Group *g, struct ckpt_error *err)
{
	struct ckpt_error ignored = { 0 };
	CKPT_AUTO_FREE char *type = NULL;
	CKPT_AUTO_FD int dir = -1;

	if (!g->n_attributes || strcmp(g->attributes[0]->file, CGROUP_TYPE))
		return 0;
	dir = cgroup_open(st, h, g->path, &ignored);
	if (dir < 0)
		return 0;
	if (cgroup_read(dir, CGROUP_TYPE, &type, err) < 0)
		return -err->err;
	if (!type || strcmp(type, CGROUP_THREADED))
		ckpt_unmet(run, CKPT_EXIT_REFUSED, "remove that group before the restore",
			   "control group %s was threaded, and the one that is here is not",
			   g->path);
	return 0;
}

/* One that is to be made needs controllers: those of version 2 may be bound to a hierarchy of
 * version 1. */
static int check_controllers(struct ckpt_run *run, struct cgroup_state *st, size_t h,
			     const Ckpt__Cgroup__Group *g, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *needs = cgroup_needs(g), *here = NULL;
	struct ckpt_error ignored = { 0 };
	CKPT_AUTO_FD int dir = cgroup_open(st, h, g->path, &ignored);
	char *save = NULL;
	int root = dir >= 0 ? 0 : cgroup_root(st, h, &ignored);

	if (!needs)
		return ckpt_fail_sys(err, ENOMEM, "control groups");
	/* another check tells of a hierarchy that is not mounted */
	if (dir >= 0 || root < 0)
		return 0;
	if (cgroup_read(root, "cgroup.controllers", &here, err) < 0)
		return -err->err;
	for (char *name = strtok_r(needs, " ", &save); name; name = strtok_r(NULL, " ", &save))
		if (!here || !cgroup_in_list(here, ' ', name, strlen(name)))
			ckpt_unmet(run, CKPT_EXIT_PRIVILEGE,
				   "give version 2 that controller, or restore with --no-plugin "
				   "cgroup",
				   "control group %s needs the controller %s, which is not here",
				   g->path, name);
	return 0;
}

/*
 * Whoever makes a cgroup namespace goes to its root, and a group that has controllers for those
 * below it takes nobody (cgroup_migrate_vet_dst()), but for controllers of threads.
 */
static int check_root(struct ckpt_run *run, struct cgroup_state *st, const Ckpt__Cgroup__Group *g,
		      struct ckpt_error *err)
{
	static const char threads[] = "cpu cpuset perf_event pids";
	struct ckpt_error ignored = { 0 };
	CKPT_AUTO_FREE char *on = NULL;
	CKPT_AUTO_FD int dir = -1;
	int h = cgroup_hierarchy(st, g->hierarchy);
	char *save = NULL;

	if (h < 0 || *g->hierarchy || !g->path[1] || cgroup_follows(run, g))
		return 0;
	dir = cgroup_open(st, (size_t)h, g->path, &ignored);
	if (dir >= 0 && cgroup_read(dir, CGROUP_SUBTREE, &on, err) < 0)
		return -err->err;
	for (char *name = on ? strtok_r(on, " ", &save) : NULL; name;
	     name = strtok_r(NULL, " ", &save)) {
		if (cgroup_in_list(threads, ' ', name, strlen(name)))
			continue;
		ckpt_unmet(run, CKPT_EXIT_FAILED, "remove that group before the restore",
			   "control group %s, the root of a cgroup namespace, is here and has "
			   "controllers (%s), so that nobody can make the namespace",
			   g->path, name);
		break;
	}
	return 0;
}

static int check_roots(struct ckpt_run *run, struct cgroup_state *st, struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; i < ckpt_record_count(run, "cgroup.namespace"); i++) {
		const Ckpt__Cgroup__Namespace *ns = ckpt_record_at(run, "cgroup.namespace", i);

		for (size_t k = 0; k < ns->n_roots && r == 0; k++)
			r = check_root(run, st, cgroup_record(run, ns->roots[k]), err);
	}
	return r;
}

/* Is everything here that the groups need? Those that are missing are made. */
static int check_machine(struct ckpt_run *run, struct cgroup_state *st, struct ckpt_error *err)
{
	for (size_t i = 0; i < ckpt_record_count(run, "cgroup.group"); i++) {
		const Ckpt__Cgroup__Group *g = ckpt_record_at(run, "cgroup.group", i);
		struct ckpt_error local = { 0 };
		int h = cgroup_hierarchy(st, g->hierarchy);

		if (h >= 0 && !cgroup_follows(run, g) && g->path[1] &&
		    (check_threaded(run, st, (size_t)h, g, err) < 0 ||
		     check_controllers(run, st, (size_t)h, g, err) < 0))
			return -err->err;
		if (cgroup_follows(run, g) || g->path[1])
			continue;
		if (h < 0)
			ckpt_unmet(run, CKPT_EXIT_PRIVILEGE,
				   "mount that hierarchy, or restore without the plugin cgroup",
				   "control groups of \"%s\": this machine has no such hierarchy",
				   *g->hierarchy ? g->hierarchy : "version 2");
		else if (cgroup_root(st, (size_t)h, &local) < 0)
			ckpt_unmet(run, CKPT_EXIT_PRIVILEGE, local.hint, "%s", local.text);
	}
	return 0;
}

int cgroup_plan(struct ckpt_run *run, struct ckpt_error *err)
{
	struct cgroup_state *st = cgroup_state(run, err);
	int r = st ? check_groups(run, err) : -err->err;

	if (r == 0)
		r = check_members(run, err);
	if (r == 0 && ckpt_is_copy(run))
		check_copies(run);
	if (r == 0)
		r = cgroup_plan_frozen(run, st, err);
	/* in a dump the groups are there, with the tree in them */
	if (r == 0 && !ckpt_plan_only(run))
		r = check_roots(run, st, err);
	return r < 0 ? r : check_machine(run, st, err);
}
