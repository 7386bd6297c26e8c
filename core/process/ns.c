/* SPDX-License-Identifier: MIT */
/* The table of a run's namespaces: what is known, whoever found it. */
#include <errno.h>
#include <fcntl.h>
#include <linux/nsfs.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ckpt/cleanup.h>

#include "engine/run.h"
#include "process/ns.h"
#include "process/set.h"
#include "process/uapi.h"

const struct ns_type ns_types[CKPT_NS_TYPES] = {
	[CKPT_NS_USER] = { "user", CLONE_NEWUSER },
	[CKPT_NS_PID] = { "pid", CLONE_NEWPID },
	[CKPT_NS_MNT] = { "mnt", CLONE_NEWNS },
	[CKPT_NS_IPC] = { "ipc", CLONE_NEWIPC },
	[CKPT_NS_NET] = { "net", CLONE_NEWNET },
	[CKPT_NS_UTS] = { "uts", CLONE_NEWUTS },
	[CKPT_NS_CGROUP] = { "cgroup", CLONE_NEWCGROUP },
	[CKPT_NS_TIME] = { "time", CLONE_NEWTIME },
};

const char *ckpt_ns_type_name(enum ckpt_ns_type type)
{
	return type < CKPT_NS_TYPES ? ns_types[type].name : "?";
}

int ckpt_ns_type_flag(enum ckpt_ns_type type)
{
	return type < CKPT_NS_TYPES ? ns_types[type].flag : 0;
}

struct ckpt_ns *ns_find(const struct ns_table *t, enum ckpt_ns_type type, uint64_t ino)
{
	for (size_t i = 0; i < t->n; i++)
		if (t->ns[i]->type == type && t->ns[i]->ino == ino)
			return t->ns[i];
	return NULL;
}

struct ckpt_ns *ns_append(struct ns_table *t, const struct ckpt_ns *ns, struct ckpt_error *err)
{
	struct ckpt_ns **more = realloc(t->ns, (t->n + 1) * sizeof(struct ckpt_ns *));
	struct ckpt_ns *copy = malloc(sizeof(*copy));

	if (more)
		t->ns = more;
	if (!more || !copy) {
		free(copy);
		ckpt_fail_sys(err, ENOMEM, "table of namespaces");
		return NULL;
	}
	*copy = *ns;
	if (!copy->id)
		copy->id = t->n ? t->ns[t->n - 1]->id + 1 : 1;
	if (copy->ino)
		snprintf(copy->name, sizeof(copy->name), "%s namespace %llu",
			 ckpt_ns_type_name(copy->type), (unsigned long long)copy->ino);
	else
		snprintf(copy->name, sizeof(copy->name), "%s namespace #%u",
			 ckpt_ns_type_name(copy->type), copy->id);
	return t->ns[t->n++] = copy;
}

struct ns_task *ns_append_task(struct ns_table *t, uint32_t id, size_t n, struct ckpt_error *err)
{
	struct ckpt_ns_seat *seats = calloc(n ? n : 1, sizeof(*seats));
	struct ns_task *more = realloc(t->tasks, (t->n_tasks + 1) * sizeof(*more));

	if (more)
		t->tasks = more;
	if (!more || !seats) {
		free(seats);
		ckpt_fail_sys(err, ENOMEM, "namespaces of task %u", id);
		return NULL;
	}
	t->tasks[t->n_tasks] = (struct ns_task){ id, n ? n : 1, seats };
	return &t->tasks[t->n_tasks++];
}

/* ---- ckpt's own ----------------------------------------------------------------------- */

/* Its owner, if that is our own user namespace and not one above it, which we may not see. */
static int find_owner(struct ckpt_ns *ns, struct ckpt_ns *user, struct ckpt_error *err)
{
	CKPT_AUTO_FD int owner = ioctl(ns->fd, NS_GET_USERNS);
	struct stat st;

	if (owner < 0 && errno == EPERM)
		return 0;
	if (owner < 0 || fstat(owner, &st))
		return ckpt_fail_sys(err, errno, "owner of the own %s namespace",
				     ns_types[ns->type].name);
	if (st.st_ino == user->ino)
		ns->owner = user;
	return 0;
}

static int add_own(struct ns_table *t, enum ckpt_ns_type type, struct ckpt_error *err)
{
	struct ckpt_ns ns = { .id = 1 + type, .type = type, .own = true };
	CKPT_AUTO_FD int fd = -1;
	char path[40];
	struct stat st;

	snprintf(path, sizeof(path), "/proc/self/ns/%s", ns_types[type].name);
	ns.fd = fd = open(path, O_RDONLY | O_CLOEXEC);
	/* a kernel without that type: then no task has it either */
	if ((fd < 0 && errno != ENOENT) || (fd >= 0 && fstat(fd, &st)))
		return ckpt_fail_sys(err, errno, "%s", path);
	if (fd >= 0) {
		ns.ino = st.st_ino;
		if (type != CKPT_NS_USER && find_owner(&ns, t->own.ns[CKPT_NS_USER], err) < 0)
			return -err->err;
	}
	t->own.ns[type] = ns_append(t, &ns, err);
	if (!t->own.ns[type])
		return -ENOMEM;
	ckpt_steal_fd(&fd);
	return 0;
}

struct ns_table *ns_new(struct ckpt_error *err)
{
	struct ns_table *t = calloc(1, sizeof(*t));

	if (!t)
		ckpt_fail(err, ENOMEM, "out of memory");
	for (int type = 0; t && type < CKPT_NS_TYPES; type++)
		if (add_own(t, (enum ckpt_ns_type)type, err) < 0) {
			ns_free(t);
			return NULL;
		}
	if (t) {
		t->own.pid_for_children = t->own.ns[CKPT_NS_PID];
		t->own.time_for_children = t->own.ns[CKPT_NS_TIME];
	}
	return t;
}

void ns_free(struct ns_table *t)
{
	if (!t)
		return;
	for (size_t i = 0; i < t->n; i++) {
		if (t->ns[i]->fd >= 0)
			close(t->ns[i]->fd);
		free(t->ns[i]);
	}
	for (size_t i = 0; i < t->n_tasks; i++)
		free(t->tasks[i].seats);
	free(t->ns);
	free(t->tasks);
	free(t);
}

/* ---- what plugins ask ------------------------------------------------------------------ */

static struct ns_table *table(const struct ckpt_run *run)
{
	return run_procs(run)->ns;
}

size_t ckpt_ns_count(struct ckpt_run *run)
{
	return table(run)->n;
}

struct ckpt_ns *ckpt_ns_at(struct ckpt_run *run, size_t i)
{
	return i < table(run)->n ? table(run)->ns[i] : NULL;
}

struct ckpt_ns *ckpt_ns_by_id(struct ckpt_run *run, uint32_t id)
{
	const struct ns_table *t = table(run);

	for (size_t i = 0; i < t->n; i++)
		if (t->ns[i]->id == id)
			return t->ns[i];
	return NULL;
}

struct ckpt_ns *ckpt_ns_own(struct ckpt_run *run, enum ckpt_ns_type type)
{
	return table(run)->own.ns[type];
}

bool ckpt_ns_below(const struct ckpt_ns *ns, const struct ckpt_ns *above)
{
	while (ns && ns != above)
		ns = ns->parent;
	return ns != NULL;
}

static const struct ns_task *find_task(const struct ns_table *t, uint32_t id)
{
	size_t lo = 0, hi = t->n_tasks;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (t->tasks[mid].id == id)
			return &t->tasks[mid];
		if (t->tasks[mid].id < id)
			lo = mid + 1;
		else
			hi = mid;
	}
	return NULL;
}

const struct ckpt_ns_seat *ckpt_ns_seat(struct ckpt_run *run, uint32_t task, size_t thread)
{
	const struct ns_task *t = find_task(table(run), task);

	if (!t)
		return &table(run)->own;
	return &t->seats[thread < t->n ? thread : 0];
}

size_t ckpt_ns_seats(struct ckpt_run *run, uint32_t task)
{
	const struct ns_task *t = find_task(table(run), task);

	return t ? t->n : 1;
}

struct ckpt_ns *ckpt_ns_of_task(struct ckpt_run *run, const struct ckpt_task *t,
				enum ckpt_ns_type type)
{
	return ckpt_ns_seat(run, t->id, 0)->ns[type];
}

uint32_t ckpt_ns_maker(struct ckpt_run *run, const struct ckpt_ns *ns, size_t *n)
{
	const struct ns_table *t = table(run);
	uint32_t found = 0;

	*n = 0;
	for (size_t i = 0; i < t->n_tasks; i++) {
		const struct ckpt_ns_seat *seat = &t->tasks[i].seats[0];

		if (seat->time_for_children != ns || seat->ns[CKPT_NS_TIME] == ns)
			continue;
		found = t->tasks[i].id;
		++*n;
	}
	return *n == 1 ? found : 0;
}

bool ckpt_ns_is_late(struct ckpt_run *run, const struct ckpt_ns *ns)
{
	size_t n;
	uint32_t maker = ns->type == CKPT_NS_TIME ? ckpt_ns_maker(run, ns, &n) : 0;

	return maker && (!ns->owner->own || !ckpt_ns_seat(run, maker, 0)->ns[CKPT_NS_TIME]->own);
}

/* ---- what an image says -------------------------------------------------------------------- */

struct ckpt_ns *ckpt_ns_add(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err)
{
	return ns_append(table(run), ns, err);
}

int ckpt_ns_place_task(struct ckpt_run *run, uint32_t task, const struct ckpt_ns_seat *seats,
		       size_t n, struct ckpt_error *err)
{
	struct ns_task *t = ns_append_task(table(run), task, n, err);

	if (!t)
		return -ENOMEM;
	memcpy(t->seats, seats, n * sizeof(*seats));
	return 0;
}
