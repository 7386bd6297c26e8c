/* SPDX-License-Identifier: MIT */
/* Settings of a group: which are known, reading, and writing those of a group that was just made.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "cgroup.h"

/* In the order in which they can be written. Files that a group has not got are not there. */
static const struct {
	const char *file;
	bool always; /* tasks cannot be moved in, or groups below have no controllers, without */
} known[] = {
	{ CGROUP_TYPE, true }, /* of version 2; others depend on it */
	/* version 1 */
	{ "cgroup.clone_children", false },
	{ "notify_on_release", false },
	{ "cpuset.cpus", true },
	{ "cpuset.mems", true },
	{ "cpuset.cpu_exclusive", false },
	{ "cpuset.mem_exclusive", false },
	{ "cpuset.mem_hardwall", false },
	{ "cpuset.memory_migrate", false },
	{ "cpuset.memory_spread_page", false },
	{ "cpuset.memory_spread_slab", false },
	{ "cpuset.sched_load_balance", false },
	{ "cpuset.sched_relax_domain_level", false },
	{ "cpu.shares", false },
	{ "cpu.cfs_period_us", false },
	{ "cpu.cfs_quota_us", false },
	{ "cpu.cfs_burst_us", false },
	{ "memory.soft_limit_in_bytes", false },
	{ "memory.limit_in_bytes", false },
	{ "memory.memsw.limit_in_bytes", false },
	{ "memory.kmem.tcp.limit_in_bytes", false },
	{ "memory.swappiness", false },
	{ "blkio.weight", false },
	{ "net_cls.classid", false },
	/* version 2 */
	{ "cpuset.cpus.partition", false },
	{ "cpu.weight", false },
	{ "cpu.max", false },
	{ "cpu.max.burst", false },
	{ "cpu.uclamp.min", false },
	{ "cpu.uclamp.max", false },
	{ "io.weight", false },
	{ "io.max", false },
	{ "memory.min", false },
	{ "memory.low", false },
	{ "memory.high", false },
	{ "memory.max", false },
	{ "memory.swap.high", false },
	{ "memory.swap.max", false },
	{ "memory.zswap.max", false },
	{ "memory.oom.group", false },
	{ "cgroup.max.depth", false },
	{ "cgroup.max.descendants", false },
	/* both */
	{ "cpu.idle", false },
	{ "pids.max", false },
	{ CGROUP_SUBTREE, true },
};

bool cgroup_attribute_known(const char *file)
{
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(known); i++)
		if (!strcmp(known[i].file, file))
			return true;
	return false;
}

void cgroup_attributes_free(struct cgroup_attributes *a)
{
	for (size_t i = 0; i < a->n; i++)
		free(a->items[i].value);
	free(a->items);
	free(a->list);
}

int cgroup_attributes_read(int dir, bool all, bool threaded, struct cgroup_attributes *out,
			   struct ckpt_error *err)
{
	out->items = calloc(CKPT_ARRAY_SIZE(known), sizeof(*out->items));
	out->list = calloc(CKPT_ARRAY_SIZE(known), sizeof(*out->list));
	if (!out->items || !out->list)
		return ckpt_fail_sys(err, ENOMEM, "settings of a control group");
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(known); i++) {
		Ckpt__Cgroup__Attribute *a = &out->items[out->n];
		char *value = NULL;

		if ((all || known[i].always) && cgroup_read(dir, known[i].file, &value, err) < 0)
			return -err->err;
		/* a domain becomes a threaded one by the groups below it */
		if (value && !strcmp(known[i].file, CGROUP_TYPE) &&
		    (!threaded || strcmp(value, CGROUP_THREADED)))
			free(ckpt_steal_ptr(&value));
		if (!value)
			continue;
		ckpt__cgroup__attribute__init(a);
		a->file = (char *)(uintptr_t)known[i].file;
		a->value = value;
		out->list[out->n++] = a;
	}
	return 0;
}

static int write_one(int dir, const char *file, const char *value, size_t len,
		     struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = openat(dir, file, O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, value, len) < 0)
		return ckpt_fail_sys(err, errno, "writing \"%.*s\" to %s", (int)len, value, file);
	return 0;
}

int cgroup_switch(int dir, char sign, const char *name)
{
	CKPT_AUTO_FD int fd = openat(dir, CGROUP_SUBTREE, O_WRONLY | O_CLOEXEC);

	return fd < 0 || dprintf(fd, "%c%s", sign, name) < 0 ? -errno : 0;
}

/* "cpu memory" is written as "+cpu +memory". */
static int enable(int dir, const char *names, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *copy = strdup(names);
	char *save = NULL;

	if (!copy)
		return ckpt_fail_sys(err, ENOMEM, CGROUP_SUBTREE);
	for (char *name = strtok_r(copy, " ", &save); name; name = strtok_r(NULL, " ", &save)) {
		int r = cgroup_switch(dir, '+', name);

		if (r < 0)
			return ckpt_fail_sys(err, r, "+%s to " CGROUP_SUBTREE, name);
	}
	return 0;
}

bool cgroup_in_list(const char *list, char between, const char *word, size_t len)
{
	for (const char *p = list; p; p = strchr(p, between) ? strchr(p, between) + 1 : NULL)
		if (!strncmp(p, word, len) && (!p[len] || p[len] == between || p[len] == '\n'))
			return true;
	return false;
}

/* A file is named after its controller: "memory.max". */
char *cgroup_needs(const Ckpt__Cgroup__Group *rec)
{
	size_t size = 1;
	char *names;

	for (size_t i = 0; i < rec->n_attributes; i++)
		size += strlen(rec->attributes[i]->file) + strlen(rec->attributes[i]->value) + 2;
	names = calloc(1, size);
	for (size_t i = 0; names && !*rec->hierarchy && i < rec->n_attributes; i++) {
		const Ckpt__Cgroup__Attribute *a = rec->attributes[i];
		const size_t len = strcspn(a->file, "."), at = strlen(names);

		if (!strcmp(a->file, CGROUP_SUBTREE))
			snprintf(names + at, size - at, "%s%s", at ? " " : "", a->value);
		else if (*a->value && strncmp(a->file, "cgroup.", 7) != 0)
			snprintf(names + at, size - at, "%s%.*s", at ? " " : "", (int)len, a->file);
	}
	return names;
}

/* Files with a line a device take one line at a time. */
static int write_lines(int dir, const char *file, const char *value, struct ckpt_error *err)
{
	int r = 0;

	while (r == 0 && *value) {
		size_t n = strcspn(value, "\n");

		r = write_one(dir, file, value, n, err);
		value += n + (value[n] != 0);
	}
	return r;
}

static int write_owner(int dir, const Ckpt__Cgroup__Group *rec, struct ckpt_error *err)
{
	static const char *const files[] = { "cgroup.procs", "cgroup.threads", "tasks",
					     CGROUP_SUBTREE };

	if (fchown(dir, rec->uid, rec->gid) || fchmod(dir, rec->mode & 07777))
		return ckpt_fail_sys(err, errno, "its owner and mode");
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(files); i++)
		if (fchownat(dir, files[i], rec->files_uid, rec->files_gid, 0) && errno != ENOENT)
			return ckpt_fail_sys(err, errno, "owner of %s", files[i]);
	return 0;
}

int cgroup_attributes_write(int dir, const Ckpt__Cgroup__Group *rec, bool late,
			    struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; i < rec->n_attributes && r == 0; i++) {
		const Ckpt__Cgroup__Attribute *a = rec->attributes[i];

		if (late != (!*rec->hierarchy && strcmp(a->file, CGROUP_TYPE)))
			continue;
		if (!strcmp(a->file, CGROUP_SUBTREE))
			r = enable(dir, a->value, err);
		else
			r = write_lines(dir, a->file, a->value, err);
	}
	return r < 0 || late ? r : write_owner(dir, rec, err);
}
