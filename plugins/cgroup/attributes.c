/* SPDX-License-Identifier: MIT */
/* Settings of a group: which are known, reading, and writing those of a group that was just made.
 */
#include <fcntl.h>
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
	{ "cgroup.subtree_control", true },
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

/* "cpu memory" is written as "+cpu +memory". */
static int enable(int dir, const char *file, const char *names, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *copy = strdup(names);
	char *save = NULL;
	int r = 0;

	if (!copy)
		return ckpt_fail_sys(err, ENOMEM, "%s", file);
	for (char *name = strtok_r(copy, " ", &save); name && r == 0;
	     name = strtok_r(NULL, " ", &save)) {
		CKPT_AUTO_FREE char *word = NULL;

		if (asprintf(&word, "+%s", name) < 0)
			return ckpt_fail_sys(err, ENOMEM, "%s", file);
		r = write_one(dir, file, word, strlen(word), err);
	}
	return r;
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

int cgroup_attributes_write(int dir, const Ckpt__Cgroup__Group *rec, struct ckpt_error *err)
{
	static const char *const files[] = { "cgroup.procs", "cgroup.threads", "tasks",
					     "cgroup.subtree_control" };
	int r = 0;

	for (size_t i = 0; i < rec->n_attributes && r == 0; i++) {
		const Ckpt__Cgroup__Attribute *a = rec->attributes[i];

		if (!strcmp(a->file, "cgroup.subtree_control"))
			r = enable(dir, a->file, a->value, err);
		else
			r = write_lines(dir, a->file, a->value, err);
	}
	if (r == 0 && (fchown(dir, rec->uid, rec->gid) || fchmod(dir, rec->mode & 07777)))
		r = ckpt_fail_sys(err, errno, "its owner and mode");
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(files) && r == 0; i++)
		if (fchownat(dir, files[i], rec->files_uid, rec->files_gid, 0) && errno != ENOENT)
			r = ckpt_fail_sys(err, errno, "owner of %s", files[i]);
	return r;
}
