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

static int collect(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err)
{
	const struct ckpt_ns_place place = { .ns[CKPT_NS_CGROUP] = ns };
	Ckpt__Cgroup__Namespace rec = CKPT__CGROUP__NAMESPACE__INIT;
	uint32_t roots[CGROUP_MAX_HIERARCHIES];
	struct cgroup_state *st = cgroup_state(run, err);
	CKPT_AUTO_FREE struct look *l = calloc(1, sizeof(*l));
	int r;

	if (!st || !l)
		return st ? ckpt_fail_sys(err, ENOMEM, "roots") : -err->err;
	l->st = st;
	r = ckpt_ns_run(run, &place, look, l, err);
	rec.id = ns->id;
	rec.roots = roots;
	for (size_t h = 0; h < st->n_hierarchies && r == 0; h++)
		r = root_group(run, st, h, &l->handles[h], &roots[rec.n_roots++], err);
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
