/* SPDX-License-Identifier: MIT */
/* dump and verify: all mounts of the tree, their filesystems, and what is ours to make. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <sys/sysmacros.h>

#include "mnt.h"

struct mnt_state *mnt_state(struct ckpt_run *run, struct ckpt_error *err)
{
	struct mnt_state *st = ckpt_state(run);

	if (st)
		return st;
	st = calloc(1, sizeof(*st));
	if (!st) {
		ckpt_fail(err, ENOMEM, "out of memory");
		return NULL;
	}
	st->run = run;
	ckpt_state_set(run, st);
	return st;
}

void mnt_state_free(void *state)
{
	struct mnt_state *st = state;

	if (!st)
		return;
	for (size_t i = 0; i < st->n_fs; i++)
		free(st->fs[i]);
	for (size_t i = 0; i < st->n_mounts; i++) {
		if (st->mounts[i].fd >= 0)
			close(st->mounts[i].fd);
		free(st->mounts[i].path);
	}
	free(st->fs);
	free(st->work);
	free(st->mounts);
	mnt_made_free(st->made);
	free(st);
}

int mnt_refuse(struct ckpt_run *run, const struct ckpt_ns *ns, const char *feature,
	       const char *object, const char *reason, const char *hint)
{
	struct ckpt_blocker b = { feature, ns->member, object, reason, hint, false };

	return ckpt_refuse(run, &b);
}

static bool is_ours(const struct ckpt_ns *ns)
{
	return ns->type == CKPT_NS_MNT && !ns->own && !ns->lost;
}

/* ---- filesystems ---------------------------------------------------------------------- */

static bool is_own(const struct mnt_state *st, const struct ckpt_mount *m)
{
	const bool whole = strcmp(m->type, "nsfs") != 0;

	for (size_t i = 0; i < st->own->n; i++) {
		const struct ckpt_mount *h = &st->own->list[i];

		/* all namespaces are in one filesystem: each counts as one of its own */
		if (h->major == m->major && h->minor == m->minor &&
		    (whole || !strcmp(h->root, m->root)))
			return true;
	}
	return false;
}

static int fs_of(struct mnt_state *st, struct mnt_mount *m, struct ckpt_error *err)
{
	const bool whole = strcmp(m->m->type, "nsfs") != 0;
	struct mnt_fs **more, *fs;

	for (size_t i = 0; i < st->n_fs; i++) {
		fs = st->fs[i];
		if (!m->key && fs->major == m->m->major && fs->minor == m->m->minor &&
		    (whole || !strcmp(fs->first->root, m->m->root))) {
			m->fs = fs;
			return 0;
		}
	}
	more = reallocarray(st->fs, st->n_fs + 1, sizeof(struct mnt_fs *));
	if (more)
		st->fs = more;
	fs = more ? calloc(1, sizeof(*fs)) : NULL;
	if (!fs)
		return ckpt_fail(err, ENOMEM, "out of memory");
	*fs = (struct mnt_fs){
		.major = m->m->major,
		.minor = m->m->minor,
		.first = m->m,
		.owner = ckpt_ns_own(st->run, CKPT_NS_USER)->id,
		.probe = -1,
	};
	if (!m->key && (!is_own(st, m->m) || mnt_is_named_own(st, m->m)))
		fs->type = mnt_fstype(m->m->type);
	/* a mount that the user has named stands alone */
	if (m->key)
		fs->major = fs->minor = UINT32_MAX;
	st->fs[st->n_fs++] = fs;
	m->fs = fs;
	return 0;
}

/* A process that is in the pid namespace of that proc itself has one number there. */
static int namespace_of_entry(int proc, const char *pid)
{
	CKPT_AUTO_FILE FILE *status = NULL;
	CKPT_AUTO_FREE char *line = NULL;
	char path[64], numbers[512] = "";
	size_t size = 0;

	snprintf(path, sizeof(path), "%.16s/status", pid);
	status = ckpt_open_lines(proc, path);
	/* it comes after all groups of the process */
	while (status && getline(&line, &size, status) > 0)
		if (ckpt_proc_field(line, "NSpid", numbers, sizeof(numbers)) == 0)
			break;
	if (!*numbers || strchr(numbers, '\t'))
		return -1;
	snprintf(path, sizeof(path), "%.16s/ns/pid", pid);
	return openat(proc, path, O_RDONLY | O_CLOEXEC);
}

static int pid_namespace_of(int top, const char *point, struct ckpt_error *err)
{
	CKPT_AUTO_DIR DIR *dir = NULL;
	int copy = openat(top, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), fd = -1;

	dir = copy < 0 ? NULL : fdopendir(copy);
	if (!dir)
		return ckpt_fail_sys(err, errno, "opening %s", point);
	/* not all of them are ours to look at; of a namespace that has ended there are none */
	for (struct dirent *d; fd < 0 && (d = readdir(dir));)
		if (atoi(d->d_name) > 0)
			fd = namespace_of_entry(top, d->d_name);
	return fd < 0 ? -ESRCH : fd;
}

/* One that is lost by permission is replaced by ckpt's own, as for its members. */
static uint32_t id_of(struct ckpt_run *run, const struct ckpt_ns *ns)
{
	return ns->lost ? ckpt_ns_own(run, ns->type)->id : ns->id;
}

/* The namespace behind a proc, or a file of nsfs. */
static int shown(struct ckpt_run *run, const struct mnt_mount *m, bool proc, uint32_t *id,
		 struct ckpt_error *err)
{
	CKPT_AUTO_FD int top = -1, fd = -1;
	const struct ckpt_ns *ns;
	char link[40];

	snprintf(link, sizeof(link), "/proc/self/fd/%d", m->fd);
	top = open(link, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (top < 0)
		return ckpt_fail_sys(err, errno, "opening %s", m->m->point);
	if (proc)
		fd = pid_namespace_of(top, m->m->point, err);
	if (proc && fd < 0)
		return fd == -ESRCH ? 0 : fd;
	ns = ckpt_ns_find(run, proc ? fd : top, err);
	if (!ns)
		return -err->err;
	*id = id_of(run, ns);
	return 0;
}

/* Where no call tells, it is that of a task that is in the mount namespace. */
static int find_shown(struct ckpt_run *run, struct mnt_mount *m, struct ckpt_error *err)
{
	struct mnt_fs *fs = m->fs;

	if (!fs->type || fs->shows || fs->type->shows == CKPT_NS_TYPES || !m->seen)
		return 0;
	if (!strcmp(fs->type->name, "nsfs"))
		return shown(run, m, false, &fs->shows, err);
	if (fs->type->shows == CKPT_NS_PID && !strcmp(m->m->root, "/"))
		return shown(run, m, true, &fs->shows, err);
	fs->shows = m->ns->member ? id_of(run, ckpt_ns_of_task(run, m->ns->member, fs->type->shows))
				  : ckpt_ns_own(run, fs->type->shows)->id;
	return 0;
}

/* ---- mounts --------------------------------------------------------------------------- */

#define NOBODY SIZE_MAX

static size_t index_of(const struct mnt_mount *list, size_t n, uint32_t kernel)
{
	for (size_t i = 0; i < n; i++)
		if (list[i].m->id == kernel)
			return i;
	return NOBODY;
}

/* Those that are not made in their turn. */
static unsigned class_of(const struct ckpt_mount *m)
{
	const struct mnt_fstype *type = mnt_fstype(m->type);

	if (!strcmp(m->type, "devpts"))
		return 2;
	return type && type->in_place;
}

struct sort {
	const struct mnt_mount *list;
	size_t n;
	size_t *parent;
	size_t *hides; /* how many that are to come would be laid on it instead of in their place */
	bool *done;
};

static void sort_free(struct sort *s)
{
	free(s->parent);
	free(s->hides);
	free(s->done);
}

/* Would the path of `m` lead into `other`, which it is not mounted on? */
static bool is_hidden_by(const struct sort *s, size_t m, size_t other)
{
	size_t next = m;

	for (size_t on = s->parent[m]; on != NOBODY; next = on, on = s->parent[on])
		if (s->parent[other] == on && other != next &&
		    mnt_path_below(s->list[next].m->point, s->list[other].m->point))
			return true;
	return false;
}

static void count_hidden(struct sort *s, size_t m, size_t by)
{
	for (size_t i = 0; i < s->n; i++)
		if (is_hidden_by(s, m, i))
			s->hides[i] += by;
}

/* The next to come: the first of the lowest class whose parent is there, and that hides nothing. */
static size_t next_of(const struct sort *s, bool hiding)
{
	const struct mnt_mount *list = s->list;
	const size_t *parent = s->parent;
	size_t best = NOBODY, orphan = NOBODY;
	unsigned lowest = UINT_MAX;

	for (size_t i = 0; i < s->n && lowest; i++) {
		if (s->done[i] || (!hiding && s->hides[i]) ||
		    (parent[i] != NOBODY && !s->done[parent[i]]))
			continue;
		if (list[i].top)
			return i;
		if (parent[i] == NOBODY)
			orphan = orphan == NOBODY ? i : orphan;
		else if (class_of(list[i].m) < lowest) {
			lowest = class_of(list[i].m);
			best = i;
		}
	}
	return best != NOBODY ? best : orphan;
}

/*
 * The order in which they can be mounted. A devpts with open terminals is made early, and
 * so listed before all others the next time, an overlay late: they are last here, always,
 * but before what lies over their place.
 */
static int parents_first(struct mnt_mount *list, size_t n, struct ckpt_error *err)
{
	CKPT_AUTO_FREE struct mnt_mount *sorted = calloc(n + 1, sizeof(*sorted));
	__attribute__((cleanup(sort_free))) struct sort s = {
		.list = list,
		.n = n,
		.parent = calloc(n + 1, sizeof(*s.parent)),
		.hides = calloc(n + 1, sizeof(*s.hides)),
		.done = calloc(n + 1, sizeof(*s.done)),
	};

	if (!sorted || !s.parent || !s.hides || !s.done)
		return ckpt_fail(err, ENOMEM, "out of memory");
	for (size_t i = 0; i < n; i++)
		s.parent[i] = list[i].top ? NOBODY : index_of(list, n, list[i].m->parent);
	for (size_t i = 0; i < n; i++)
		count_hidden(&s, i, 1);
	for (size_t k = 0; k < n; k++) {
		size_t i = next_of(&s, false);

		/* of a ring of parents, which the kernel has not, not even this finds one */
		if (i == NOBODY)
			i = next_of(&s, true);
		if (i == NOBODY)
			return ckpt_fail(err, EPROTO, "mountinfo makes no tree");
		s.done[i] = true;
		sorted[k] = list[i];
		count_hidden(&s, i, (size_t)-1);
	}
	memcpy(list, sorted, n * sizeof(*list));
	return 0;
}

static int add_namespace(struct ckpt_run *run, struct mnt_state *st, const struct ckpt_ns *ns,
			 struct ckpt_error *err)
{
	const struct ckpt_mounts *all;
	struct mnt_mount *more;
	int r = ckpt_mounts(run, ns, &all, err);

	if (r < 0)
		return r;
	more = reallocarray(st->mounts, st->n_mounts + all->n + 1, sizeof(*more));
	if (!more)
		return ckpt_fail(err, ENOMEM, "out of memory");
	st->mounts = more;
	more += st->n_mounts;
	for (size_t i = 0; i < all->n; i++) {
		const struct ckpt_mount *m = &all->list[i];

		more[i] = (struct mnt_mount){
			.ns = ns,
			.m = m,
			.rank = (uint32_t)(st->n_mounts + i),
			.top = m == all->root,
			.fd = -1,
		};
	}
	r = parents_first(more, all->n, err);
	if (r == 0)
		st->n_mounts += all->n;
	return r;
}

static void find_parents(struct mnt_state *st)
{
	for (size_t i = 0; i < st->n_mounts; i++) {
		struct mnt_mount *m = &st->mounts[i];

		for (size_t k = 0; k < st->n_mounts && !m->top && !m->parent; k++)
			if (st->mounts[k].ns == m->ns && st->mounts[k].m->id == m->m->parent)
				m->parent = &st->mounts[k];
	}
}

static bool is_deleted(const char *root)
{
	static const char mark[] = "//deleted";
	size_t len = strlen(root);

	return len > sizeof(mark) - 1 && !strcmp(root + len - (sizeof(mark) - 1), mark);
}

static int describe(struct ckpt_run *run, struct mnt_state *st, struct mnt_mount *m,
		    struct ckpt_error *err)
{
	m->key = mnt_external_key(run, m->m->point);
	/* what the user puts there instead has a name */
	m->deleted = !m->key && is_deleted(m->m->root);
	if (mnt_attr_parse(m->m->attr, &m->attr) < 0)
		m->attr = UINT32_MAX;
	return fs_of(st, m, err);
}

/* Who saves what is in them asks for their records. */
static int tell(struct ckpt_run *run, const struct mnt_mount *m, struct ckpt_error *err)
{
	const struct ckpt_mount_saved saved = {
		.id = m->id,
		.fs = m->fs->id,
		.kernel = m->m->id,
		.dev = makedev(m->m->major, m->m->minor),
		.locked = m->locked && !m->ns->owner->own,
		.directory = !m->file,
		.fd = m->fd,
	};

	return ckpt_mount_tell(run, &saved, err);
}

int mnt_model(struct ckpt_run *run, struct mnt_state *st, struct ckpt_error *err)
{
	uint32_t fs = 0, mounts = 0;
	int r = st->modelled ? 0 : ckpt_mounts(run, ckpt_ns_own(run, CKPT_NS_MNT), &st->own, err);

	if (r < 0 || st->modelled)
		return r;
	st->modelled = true;
	for (size_t i = 0; i < ckpt_ns_count(run) && r == 0; i++)
		if (is_ours(ckpt_ns_at(run, i)))
			r = add_namespace(run, st, ckpt_ns_at(run, i), err);
	find_parents(st);
	for (size_t i = 0; i < st->n_mounts && r == 0; i++)
		r = describe(run, st, &st->mounts[i], err);
	for (size_t i = 0; i < ckpt_ns_count(run) && r == 0; i++)
		if (is_ours(ckpt_ns_at(run, i)))
			r = mnt_look(run, st, ckpt_ns_at(run, i), err);
	for (size_t i = 0; i < st->n_mounts && r == 0; i++) {
		struct mnt_mount *m = &st->mounts[i];

		m->id = ++mounts;
		if (m->fs->type && !m->fs->id)
			m->fs->id = ++fs;
		r = find_shown(run, m, err);
		if (r == 0 && !m->fs->type && !m->key && !m->deleted && is_own(st, m->m))
			mnt_external_find(st, m);
	}
	for (size_t i = 0; i < st->n_mounts && r == 0; i++)
		r = tell(run, &st->mounts[i], err);
	return r;
}
