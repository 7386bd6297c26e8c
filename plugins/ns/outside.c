/* SPDX-License-Identifier: MIT */
/*
 * Namespaces that processes outside the tree are in as well. The tree's would be made anew,
 * and the two would not meet again; of a pid namespace the kernel kills them with the tree.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ckpt/mnt.h>
#include <ckpt/parallel.h>

#include "internal.h"

/* One process, and which of the tree's namespaces it is in. */
struct other {
	pid_t pid;
	struct ckpt_ns *in[CKPT_NS_TYPES]; /* NULL: in none of that type */
};

struct search {
	struct ckpt_ns **ns; /* those that are saved, by type and number */
	size_t n_ns;
	bool type[CKPT_NS_TYPES]; /* is there one? */
	struct other *other;
	size_t n, cap;
};

static int by_number(const void *a, const void *b)
{
	const struct ckpt_ns *x = *(struct ckpt_ns *const *)a, *y = *(struct ckpt_ns *const *)b;

	if (x->type != y->type)
		return x->type < y->type ? -1 : 1;
	return x->ino < y->ino ? -1 : x->ino > y->ino;
}

static struct ckpt_ns *find(const struct search *s, enum ckpt_ns_type type, uint64_t ino)
{
	const struct ckpt_ns want = { .type = type, .ino = ino }, *key = &want;
	struct ckpt_ns **found = bsearch(&key, s->ns, s->n_ns, sizeof(*s->ns), by_number);

	return found ? *found : NULL;
}

/* What `ckpt branch` leaves in a copy's namespaces, with nothing else for a command line. */
static bool is_first_of_copy(pid_t pid)
{
	char path[40], text[16] = "";
	CKPT_AUTO_FD int fd = -1;

	snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	return fd >= 0 && read(fd, text, sizeof(text) - 1) > 0 && !strcmp(text, "ckpt-init");
}

static void refuse(struct ckpt_run *run, const struct ckpt_ns *ns, pid_t pid)
{
	char reason[96], copy[128];
	const struct ckpt_blocker b = {
		.feature = "shared-outside",
		.task = ns->member,
		.object = ns->name,
		.reason = reason,
		.hint = is_first_of_copy(pid) ? copy
					      : "dump the tree that the namespace begins with, or "
						"end that process",
	};

	snprintf(copy, sizeof(copy),
		 "save a copy from within: nsenter -a -t %d ckpt dump -t N, with its number there",
		 (int)pid);
	snprintf(reason, sizeof(reason), "process %d, which is outside the tree, is in it too",
		 (int)pid);
	ckpt_refuse(run, &b);
}

/* A mount that keeps it when the tree is gone: "net:[4026532177]" is its root. */
static void refuse_named(struct ckpt_run *run, const struct ckpt_ns *ns, const char *point)
{
	char reason[PATH_MAX + 96];
	const struct ckpt_blocker b = {
		.feature = "shared-outside",
		.task = ns->member,
		.object = ns->name,
		.reason = reason,
		.hint = "unmount that, or allow the loss: the name stays with the old namespace",
	};

	snprintf(reason, sizeof(reason), "%s, which is outside the tree, is a name of it", point);
	ckpt_refuse(run, &b);
}

static int name_mounts(struct ckpt_run *run, const struct search *s, struct ckpt_error *err)
{
	const struct ckpt_mounts *all;
	int r = ckpt_mounts(run, ckpt_ns_own(run, CKPT_NS_MNT), &all, err);

	for (size_t i = 0; r == 0 && i < all->n; i++) {
		const struct ckpt_mount *m = &all->list[i];
		unsigned long long ino;
		char type[16];

		if (strcmp(m->type, "nsfs") || sscanf(m->root, "%15[a-z]:[%llu]", type, &ino) != 2)
			continue;
		for (size_t k = 0; k < s->n_ns; k++)
			if (s->ns[k]->ino == ino &&
			    !strcmp(type, ckpt_ns_type_name(s->ns[k]->type)))
				refuse_named(run, s->ns[k], m->point);
	}
	return r;
}

/* A helper of this run's, which is where it has something to do. */
static bool is_ours(pid_t pid)
{
	CKPT_AUTO_FILE FILE *f = NULL;
	char path[64];
	int parent = 0;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	f = fopen(path, "re");
	/* a helper's name is ckpt's, so it has no brackets or spaces */
	return f && fscanf(f, "%*d (%*[^)]) %*c %d", &parent) == 1 && parent == getpid();
}

/* A system has hundreds of processes, and each link costs a walk: only types that matter. */
static int look(void *arg, size_t i, struct ckpt_error *err)
{
	const struct search *s = arg;
	struct other *o = &s->other[i];

	for (int type = 0; type < CKPT_NS_TYPES; type++) {
		char path[64];
		struct stat st;

		if (!s->type[type])
			continue;
		snprintf(path, sizeof(path), "/proc/%d/ns/%s", (int)o->pid,
			 ckpt_ns_type_name((enum ckpt_ns_type)type));
		/* it ends, or has ended */
		if (!stat(path, &st))
			o->in[type] = find(s, (enum ckpt_ns_type)type, st.st_ino);
	}
	return 0;
}

static int add_other(struct search *s, pid_t pid)
{
	struct other *more = s->other;

	if (s->n == s->cap) {
		s->cap = s->cap ? 2 * s->cap : 256;
		more = reallocarray(s->other, s->cap, sizeof(*more));
	}
	if (!more)
		return -ENOMEM;
	s->other = more;
	s->other[s->n++] = (struct other){ .pid = pid };
	return 0;
}

static int list_others(struct ckpt_run *run, struct search *s)
{
	DIR *proc = opendir("/proc");
	int r = proc ? 0 : -errno;

	for (const struct dirent *d; !r && (d = ckpt_next_entry(proc));) {
		pid_t pid = (pid_t)strtol(d->d_name, NULL, 10);

		if (pid > 0 && !ckpt_task_by_pid(run, pid))
			r = add_other(s, pid);
	}
	r = r ? r : -errno;
	if (proc)
		closedir(proc);
	return r;
}

static int list_saved(struct ckpt_run *run, struct search *s)
{
	s->ns = calloc(ckpt_ns_count(run) + 1, sizeof(struct ckpt_ns *));
	if (!s->ns)
		return -ENOMEM;
	for (size_t i = 0; i < ckpt_ns_count(run); i++) {
		struct ckpt_ns *ns = ckpt_ns_at(run, i);

		if (!ns_is_saved(ns))
			continue;
		s->ns[s->n_ns++] = ns;
		s->type[ns->type] = true;
	}
	qsort(s->ns, s->n_ns, sizeof(struct ckpt_ns *), by_number);
	return 0;
}

/* One process of a namespace is enough to be named. */
static void name_them(struct ckpt_run *run, const struct search *s, bool *seen)
{
	for (size_t i = 0; i < s->n; i++) {
		const struct other *o = &s->other[i];

		for (int type = 0; type < CKPT_NS_TYPES; type++) {
			const struct ckpt_ns *ns = o->in[type];
			size_t nth = 0;

			while (ns && s->ns[nth] != ns)
				nth++;
			if (!ns || seen[nth] || is_ours(o->pid))
				continue;
			seen[nth] = true;
			refuse(run, ns, o->pid);
		}
	}
}

static void search_free(struct search *s)
{
	free(s->ns);
	free(s->other);
}

int ns_outside(struct ckpt_run *run, struct ckpt_error *err)
{
	__attribute__((cleanup(search_free))) struct search s = { 0 };
	CKPT_AUTO_FREE bool *seen = NULL;
	int r = list_saved(run, &s);

	if (!r && !s.n_ns)
		return 0;
	if (!r)
		r = list_others(run, &s);
	seen = calloc(s.n_ns + 1, sizeof(*seen));
	if (r < 0 || !seen)
		return ckpt_fail_sys(err, r < 0 ? r : -ENOMEM,
				     "looking for processes outside the tree");
	r = ckpt_parallel(s.n, look, &s, err);
	if (!r)
		name_them(run, &s, seen);
	return r ? r : name_mounts(run, &s, err);
}
