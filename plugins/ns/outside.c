/* SPDX-License-Identifier: MIT */
/*
 * Namespaces that processes outside the tree are in as well. The tree's would be made anew,
 * and the two would not meet again; of a pid namespace the kernel kills them with the tree.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

static struct ckpt_ns *find(struct ckpt_run *run, enum ckpt_ns_type type, uint64_t ino)
{
	for (size_t i = 0; i < ckpt_ns_count(run); i++) {
		struct ckpt_ns *ns = ckpt_ns_at(run, i);

		if (ns->type == type && ns->ino == ino && ns_is_saved(ns))
			return ns;
	}
	return NULL;
}

static void refuse(struct ckpt_run *run, const struct ckpt_ns *ns, const char *pid)
{
	char reason[96];
	const struct ckpt_blocker b = {
		.feature = "shared-outside",
		.task = ns->member,
		.object = ns->name,
		.reason = reason,
		.hint = "dump the tree that the namespace begins with, or end that process",
	};

	snprintf(reason, sizeof(reason), "process %.20s, which is outside the tree, is in it too",
		 pid);
	ckpt_refuse(run, &b);
}

/* A helper of this run's, which is where it has something to do. */
static bool is_ours(const char *pid)
{
	CKPT_AUTO_FILE FILE *f = NULL;
	char path[64];
	int parent = 0;

	snprintf(path, sizeof(path), "/proc/%.20s/stat", pid);
	f = fopen(path, "re");
	/* a helper's name is ckpt's, so it has no brackets or spaces */
	return f && fscanf(f, "%*d (%*[^)]) %*c %d", &parent) == 1 && parent == getpid();
}

/* One process of a namespace is enough to be named; `seen` has a flag for each. */
static void look(struct ckpt_run *run, const char *pid, bool *seen)
{
	for (int type = 0; type < CKPT_NS_TYPES; type++) {
		struct ckpt_ns *ns;
		char path[64];
		struct stat st;

		snprintf(path, sizeof(path), "/proc/%.20s/ns/%s", pid,
			 ckpt_ns_type_name((enum ckpt_ns_type)type));
		/* it ends, or has ended */
		if (stat(path, &st))
			continue;
		ns = find(run, (enum ckpt_ns_type)type, st.st_ino);
		if (!ns || seen[ns->id] || is_ours(pid))
			continue;
		seen[ns->id] = true;
		refuse(run, ns, pid);
	}
}

static uint32_t highest_id(struct ckpt_run *run)
{
	uint32_t max = 0;

	for (size_t i = 0; i < ckpt_ns_count(run); i++)
		if (ns_is_saved(ckpt_ns_at(run, i)) && ckpt_ns_at(run, i)->id > max)
			max = ckpt_ns_at(run, i)->id;
	return max;
}

int ns_outside(struct ckpt_run *run, struct ckpt_error *err)
{
	uint32_t max = highest_id(run);
	CKPT_AUTO_FREE bool *seen = max ? calloc(max + 1, sizeof(*seen)) : NULL;
	DIR *proc;

	if (!max)
		return 0;
	proc = opendir("/proc");
	if (!seen || !proc) {
		if (proc)
			closedir(proc);
		return ckpt_fail_sys(err, errno, "looking for processes outside the tree");
	}
	for (const struct dirent *d; (d = readdir(proc));) {
		pid_t pid = (pid_t)strtol(d->d_name, NULL, 10);

		if (pid > 0 && !ckpt_task_by_pid(run, pid))
			look(run, d->d_name, seen);
	}
	closedir(proc);
	return 0;
}
