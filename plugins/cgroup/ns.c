/* SPDX-License-Identifier: MIT */
/*
 * Cgroup namespaces: what they hold is their root in each hierarchy, the group that
 * their maker was in.
 */
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mount.h>

#include "cgroup.h"

#define HANDLE_ROOM 128

struct handle {
	struct file_handle h;
	char room[HANDLE_ROOM];
};

/* ---- dump: a hierarchy mounted inside of it shows its root ------------------------------- */

struct look {
	const struct cgroup_state *st;
	struct handle handles[CGROUP_MAX_HIERARCHIES];
};

static int configure(int fs, const char *name, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *copy = strdup(name);
	char *save = NULL;

	if (!copy)
		return ckpt_fail_sys(err, ENOMEM, "hierarchy %s", name);
	for (char *word = strtok_r(copy, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
		int r = strncmp(word, "name=", 5)
				? fsconfig(fs, FSCONFIG_SET_FLAG, word, NULL, 0)
				: fsconfig(fs, FSCONFIG_SET_STRING, "name", word + 5, 0);

		if (r == 0 && !strcmp(name, word) && word[0] == 'n' && word[4] == '=')
			r = fsconfig(fs, FSCONFIG_SET_FLAG, "none", NULL, 0);
		if (r)
			return ckpt_fail_sys(err, errno, "fsconfig(2) of hierarchy %s", name);
	}
	return 0;
}

static int mount_here(const char *name, struct ckpt_error *err)
{
	CKPT_AUTO_FD int fs = fsopen(*name ? "cgroup" : "cgroup2", FSOPEN_CLOEXEC);
	int fd, r;

	if (fs < 0)
		return ckpt_fail_sys(err, errno, "fsopen(2) of control groups");
	r = configure(fs, name, err);
	if (r < 0)
		return r;
	if (fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0))
		return ckpt_fail_sys(err, errno, "mounting hierarchy \"%s\"", name);
	fd = fsmount(fs, FSMOUNT_CLOEXEC, 0);
	return fd < 0 ? ckpt_fail_sys(err, errno, "fsmount(2) of hierarchy \"%s\"", name) : fd;
}

/* In the namespace. */
static int look(void *arg, struct ckpt_error *err)
{
	struct look *l = arg;

	for (size_t h = 0; h < l->st->n_hierarchies; h++) {
		CKPT_AUTO_FD int fd = mount_here(l->st->hierarchies[h].name, err);
		int mount_id;

		if (fd < 0)
			return fd;
		l->handles[h].h.handle_bytes = HANDLE_ROOM;
		if (name_to_handle_at(fd, "", &l->handles[h].h, &mount_id, AT_EMPTY_PATH))
			return ckpt_fail_sys(err, errno, "name_to_handle_at(2)");
	}
	return 0;
}

/* Where a descriptor below the hierarchy's root leads to, from there. */
static int path_of(int root, int fd, char *buf, size_t size, struct ckpt_error *err)
{
	char link[40], top[CGROUP_MAX_PATH];
	ssize_t n, len;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", root);
	len = readlink(link, top, sizeof(top) - 1);
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, buf, size - 1);
	if (n < 0 || len < 0 || (size_t)n >= size - 1)
		return ckpt_fail_sys(err, n < 0 || len < 0 ? errno : ENAMETOOLONG,
				     "path of a control group");
	buf[n] = 0;
	if (n < len || memcmp(buf, top, (size_t)len) || (buf[len] && buf[len] != '/'))
		return ckpt_fail(err, EXDEV,
				 "the root of the namespace is not below that of ckpt's own");
	memmove(buf, buf + len, (size_t)(n - len) + 1);
	return buf[0] ? 0 : snprintf(buf, size, "/") < 0;
}

static int root_group(struct ckpt_run *run, struct cgroup_state *st, size_t h,
		      struct handle *handle, uint32_t *id, struct ckpt_error *err)
{
	int root = cgroup_root(st, h, err);
	CKPT_AUTO_FD int fd = -1;
	char path[CGROUP_MAX_PATH];
	int r;

	if (root < 0)
		return root;
	fd = open_by_handle_at(root, &handle->h, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return ckpt_fail_sys(err, errno, "open_by_handle_at(2) of a namespace's root");
	r = path_of(root, fd, path, sizeof(path), err);
	return r < 0 ? r : cgroup_put(run, st, h, path, id, err);
}

/* ---- or what a member's groups are called on either side of it ------------------------------ */

struct names {
	const struct cgroup_state *st;
	char *path[CGROUP_MAX_HIERARCHIES];
};

static void names_free(struct names *n)
{
	for (size_t h = 0; h < CGROUP_MAX_HIERARCHIES; h++)
		free(n->path[h]);
}

static int note_name(void *arg, const char *name, const char *path, struct ckpt_error *err)
{
	struct names *n = arg;
	int h = cgroup_hierarchy(n->st, name);

	if (h < 0 || n->path[h])
		return 0;
	n->path[h] = strdup(path);
	return n->path[h] ? 0 : ckpt_fail_sys(err, ENOMEM, "control groups");
}

struct asking {
	const struct ckpt_task *task;
	char text[16384];
};

/* Not by ckpt_proc_read(), which may know the text as it is outside. */
static int read_inside(void *arg, struct ckpt_error *err)
{
	struct asking *a = arg;
	CKPT_AUTO_FD int fd = openat(a->task->procfd, "cgroup", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, a->text, sizeof(a->text) - 1);

	if (n < 0)
		return ckpt_fail_sys(err, errno, "/proc/%d/cgroup", (int)a->task->pid);
	/* what has filled the buffer may have been cut: it tells nothing then */
	a->text[n == sizeof(a->text) - 1 ? 0 : n] = 0;
	return 0;
}

static bool leads_out(const char *path)
{
	return !strncmp(path, "/..", 3) && (!path[3] || path[3] == '/');
}

/* The root is what is left of the outer name without the inner one; cuts `outer`. */
static bool cut_root(char *outer, const char *inner)
{
	size_t len = strlen(outer), cut = strcmp(inner, "/") ? strlen(inner) : 0;

	if (leads_out(inner) || leads_out(outer) || cut > len ||
	    strcmp(outer + len - cut, inner + (cut ? 0 : 1)) != 0)
		return false;
	snprintf(outer + len - cut, cut + 1, "%s", len == cut ? "/" : "");
	return true;
}

/*
 * A member's groups, as ckpt is told and as whoever is in the namespace is told: where the
 * member is below the roots that gives their names, for less than mounting each hierarchy.
 * 1: it does; 0: it does not.
 */
static int roots_by_name(struct ckpt_run *run, const struct ckpt_ns *ns, struct names *roots,
			 struct ckpt_error *err)
{
	const struct ckpt_ns_place place = { .ns[CKPT_NS_CGROUP] = ns };
	__attribute__((cleanup(names_free))) struct names inside = { .st = roots->st };
	CKPT_AUTO_FREE struct asking *a = calloc(1, sizeof(*a));
	CKPT_AUTO_FREE char *text = NULL;
	int r;

	if (!ns->member)
		return 0;
	if (!a)
		return ckpt_fail_sys(err, ENOMEM, "control groups");
	a->task = ns->member;
	if (ckpt_proc_read(ns->member, "cgroup", &text, err) < 0)
		return -err->err;
	r = ckpt_ns_run(run, &place, read_inside, a, err);
	if (r == 0)
		r = cgroup_each_line(text, note_name, roots, err);
	if (r == 0)
		r = cgroup_each_line(a->text, note_name, &inside, err);
	for (size_t h = 0; h < roots->st->n_hierarchies && r == 0; h++)
		if (!roots->path[h] || !inside.path[h] || !cut_root(roots->path[h], inside.path[h]))
			return 0;
	return r < 0 ? r : 1;
}

static int put_by_name(struct ckpt_run *run, struct cgroup_state *st, const struct names *roots,
		       uint32_t *ids, struct ckpt_error *err)
{
	int r = 0;

	for (size_t h = 0; h < st->n_hierarchies && r == 0; h++)
		r = cgroup_put(run, st, h, roots->path[h], &ids[h], err);
	return r;
}

static int put_by_mounts(struct ckpt_run *run, struct cgroup_state *st, const struct ckpt_ns *ns,
			 uint32_t *ids, struct ckpt_error *err)
{
	const struct ckpt_ns_place place = { .ns[CKPT_NS_CGROUP] = ns };
	CKPT_AUTO_FREE struct look *l = calloc(1, sizeof(*l));
	int r;

	if (!l)
		return ckpt_fail_sys(err, ENOMEM, "roots");
	l->st = st;
	r = ckpt_ns_run(run, &place, look, l, err);
	for (size_t h = 0; h < st->n_hierarchies && r == 0; h++)
		r = root_group(run, st, h, &l->handles[h], &ids[h], err);
	return r;
}

static int collect(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err)
{
	Ckpt__Cgroup__Namespace rec = CKPT__CGROUP__NAMESPACE__INIT;
	uint32_t ids[CGROUP_MAX_HIERARCHIES];
	struct cgroup_state *st = cgroup_state(run, err);
	__attribute__((cleanup(names_free))) struct names roots = { .st = st };
	int r = st ? roots_by_name(run, ns, &roots, err) : -err->err;

	if (r < 0)
		return r;
	r = r ? put_by_name(run, st, &roots, ids, err) : put_by_mounts(run, st, ns, ids, err);
	rec.id = ns->id;
	rec.roots = ids;
	rec.n_roots = st->n_hierarchies;
	return r < 0 ? r : ckpt_record_put(run, CGROUP_REC_NAMESPACE, &rec.base, err);
}

/* ---- restore --------------------------------------------------------------------------------- */

/* Values are checked by cgroup.plan. */
static int plan(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err)
{
	int r = ckpt_record_order(run, "cgroup.namespace", err);

	if (r < 0)
		return r;
	return ckpt_record_need(run, "cgroup.namespace", ns->id, err) ? 0 : -err->err;
}

struct job {
	int files[CGROUP_MAX_HIERARCHIES]; /* cgroup.procs of each root */
	size_t n;
	int fd;
};

/* In the owner: go to the roots, unshare. The files were opened by ckpt, whose rights count. */
static int make_here(void *arg, struct ckpt_error *err)
{
	struct job *j = arg;

	for (size_t i = 0; i < j->n; i++)
		if (write(j->files[i], "0", 1) < 0)
			return ckpt_fail_sys(err, errno, "moving to the namespace's root");
	if (unshare(CLONE_NEWCGROUP))
		return ckpt_fail_sys(err, errno, "unshare(2)");
	j->fd = open("/proc/thread-self/ns/cgroup", O_RDONLY | O_CLOEXEC);
	return j->fd < 0 ? ckpt_fail_sys(err, errno, "/proc/thread-self/ns/cgroup") : 0;
}

static int open_roots(struct ckpt_run *run, struct cgroup_state *st,
		      const Ckpt__Cgroup__Namespace *rec, struct job *j, struct ckpt_error *err)
{
	for (size_t i = 0; i < rec->n_roots; i++) {
		const Ckpt__Cgroup__Group *g = cgroup_record(run, rec->roots[i]);
		const char *target = cgroup_target(run, st, g);
		int h = cgroup_hierarchy(st, g->hierarchy);
		CKPT_AUTO_FD int dir = -1;

		/* the child is born there */
		if (h < 0 || !strcmp(target, st->hierarchies[h].own))
			continue;
		dir = cgroup_open(st, (size_t)h, target, err);
		if (dir < 0)
			return dir;
		j->files[j->n] = openat(dir, "cgroup.procs", O_WRONLY | O_CLOEXEC);
		if (j->files[j->n] < 0)
			return ckpt_fail_sys(err, errno, "cgroup.procs of %s:%s", g->hierarchy,
					     target);
		j->n++;
	}
	return 0;
}

static int make(struct ckpt_run *run, struct ckpt_ns *ns, struct ckpt_error *err)
{
	const Ckpt__Cgroup__Namespace *rec = ckpt_record_need(run, "cgroup.namespace", ns->id, err);
	const struct ckpt_ns_place place = { .ns[CKPT_NS_USER] = ns->owner };
	struct cgroup_state *st = cgroup_state(run, err);
	struct job j = { .fd = -1 };
	int r;

	if (!rec || !st)
		return -err->err;
	r = open_roots(run, st, rec, &j, err);
	if (r == 0)
		r = ckpt_ns_run(run, &place, make_here, &j, err);
	for (size_t i = 0; i < j.n; i++)
		close(j.files[i]);
	if (r < 0 && j.fd >= 0)
		close(j.fd);
	else
		ns->fd = j.fd;
	return r;
}

const struct ckpt_ns_kind cgroup_kind = {
	.size = sizeof(struct ckpt_ns_kind),
	.type = CKPT_NS_CGROUP,
	.feature = "namespaces",
	.collect = collect,
	.plan = plan,
	.make = make,
};
