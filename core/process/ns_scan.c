/* SPDX-License-Identifier: MIT */
/* dump: who is in which namespace, as /proc and nsfs tell it. */
#include <errno.h>
#include <fcntl.h>
#include <linux/nsfs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ckpt/cleanup.h>
#include <ckpt/parallel.h>

#include "engine/run.h"
#include "process/ns.h"
#include "process/set.h"
#include "process/uapi.h"

/* The kernel nests user and pid namespaces 32 deep. */
#define MAX_DEPTH 64

/* Each has eight links, or ten. */
#define THREADS_A_PORTION 8

static struct ckpt_ns *add(struct ns_table *t, int *fd, enum ckpt_ns_type type, unsigned depth,
			   struct ckpt_error *err);

/* A relative by ioctl(2). NULL without an error: out of our sight. */
static int relative(struct ns_table *t, int fd, unsigned long request, enum ckpt_ns_type type,
		    unsigned depth, struct ckpt_ns **out, struct ckpt_error *err)
{
	CKPT_AUTO_FD int other = ioctl(fd, request);

	*out = NULL;
	if (other < 0)
		return errno == EPERM ? 0 : ckpt_fail_sys(err, errno, "nsfs ioctl");
	if (depth > MAX_DEPTH)
		return ckpt_fail(err, ELOOP, "namespaces nested deeper than the kernel allows");
	*out = add(t, &other, type, depth + 1, err);
	return *out ? 0 : -err->err;
}

/* The namespace of *fd, which is taken if it is new; its relatives come before it. */
static struct ckpt_ns *add(struct ns_table *t, int *fd, enum ckpt_ns_type type, unsigned depth,
			   struct ckpt_error *err)
{
	struct ckpt_ns ns = { .type = type, .fd = *fd }, *found;
	struct stat st;
	int r = 0;

	if (fstat(*fd, &st)) {
		ckpt_fail_sys(err, errno, "fstat(2) of a namespace");
		return NULL;
	}
	ns.ino = st.st_ino;
	found = ns_find(t, type, ns.ino);
	if (found)
		return found;
	if (type == CKPT_NS_USER || type == CKPT_NS_PID)
		r = relative(t, *fd, NS_GET_PARENT, type, depth, &ns.parent, err);
	if (!r && type == CKPT_NS_USER)
		ns.owner = ns.parent;
	else if (!r)
		r = relative(t, *fd, NS_GET_USERNS, CKPT_NS_USER, depth, &ns.owner, err);
	if (r)
		return NULL;
	found = ns_append(t, &ns, err);
	if (found)
		ckpt_steal_fd(fd);
	return found;
}

struct ckpt_ns *ckpt_ns_find(struct ckpt_run *run, int fd, struct ckpt_error *err)
{
	CKPT_AUTO_FD int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	int flag = ioctl(fd, NS_GET_NSTYPE);

	if (copy < 0 || flag < 0) {
		ckpt_fail_sys(err, errno, "namespace behind a descriptor");
		return NULL;
	}
	for (int type = 0; type < CKPT_NS_TYPES; type++)
		if (ns_types[type].flag == flag)
			return add(run_procs(run)->ns, &copy, (enum ckpt_ns_type)type, 0, err);
	ckpt_fail(err, EOPNOTSUPP, "a namespace of type %#x", flag);
	return NULL;
}

/* ---- links of threads ---------------------------------------------------------------------- */

struct link {
	const char *name;
	enum ckpt_ns_type type;
	size_t at;   /* in struct ckpt_ns_seat */
	bool zombie; /* still there in a dead process */
};

#define SEAT(type) (offsetof(struct ckpt_ns_seat, ns) + (type) * sizeof(struct ckpt_ns *))

static const struct link links[] = {
	{ "user", CKPT_NS_USER, SEAT(CKPT_NS_USER), true },
	{ "pid", CKPT_NS_PID, SEAT(CKPT_NS_PID), true },
	{ "mnt", CKPT_NS_MNT, SEAT(CKPT_NS_MNT), false },
	{ "ipc", CKPT_NS_IPC, SEAT(CKPT_NS_IPC), false },
	{ "net", CKPT_NS_NET, SEAT(CKPT_NS_NET), false },
	{ "uts", CKPT_NS_UTS, SEAT(CKPT_NS_UTS), false },
	{ "cgroup", CKPT_NS_CGROUP, SEAT(CKPT_NS_CGROUP), false },
	{ "time", CKPT_NS_TIME, SEAT(CKPT_NS_TIME), false },
	{ "pid_for_children", CKPT_NS_PID, offsetof(struct ckpt_ns_seat, pid_for_children), false },
	{ "time_for_children", CKPT_NS_TIME, offsetof(struct ckpt_ns_seat, time_for_children),
	  false },
};

static struct ckpt_ns **slot(struct ckpt_ns_seat *seat, const struct link *l)
{
	return (struct ckpt_ns **)((char *)seat + l->at);
}

/* The pid namespace for children that has no process yet, or has lost its first one: no link. */
static int by_pidfd(const struct ckpt_thread *th)
{
	CKPT_AUTO_FD int fd = (int)syscall(SYS_pidfd_open, th->tid, PIDFD_THREAD);

	return fd < 0 ? -errno : ioctl(fd, PIDFD_GET_PID_FOR_CHILDREN_NAMESPACE, 0);
}

/* What one thread's links say, as numbers of nsfs; 0: to be asked again, one by one. */
struct found {
	const struct ckpt_thread *th;
	uint64_t ino[CKPT_ARRAY_SIZE(links)];
};

/*
 * All threads of a process are in the same user and pid namespace: the kernel lets neither
 * change while there are several.
 */
static bool is_common(const struct link *l)
{
	return l->zombie;
}

static int read_links(void *arg, size_t i, struct ckpt_error *err)
{
	struct found *f = (struct found *)arg + i;
	const struct ckpt_task *task = f->th->task;

	CKPT_AUTO_FD int dir = -1;
	char path[32];

	(void)err;
	snprintf(path, sizeof(path), "task/%d/ns", (int)f->th->tid);
	dir = openat(task->procfd, path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	for (size_t k = 0; dir >= 0 && k < CKPT_ARRAY_SIZE(links); k++) {
		char text[64];
		unsigned long long ino;
		ssize_t len;

		if (is_common(&links[k]) && f->th->tid != ckpt_task_tid(task))
			continue;
		len = readlinkat(dir, links[k].name, text, sizeof(text) - 1);
		text[len < 0 ? 0 : len] = 0;
		if (len > 0 && sscanf(strchrnul(text, ':'), ":[%llu]", &ino) == 1)
			f->ino[k] = ino;
	}
	return 0;
}

static int look(struct ns_table *t, const struct ckpt_thread *th, const struct link *l,
		uint64_t ino, struct ckpt_ns **out, struct ckpt_error *err)
{
	const struct ckpt_task *task = th->task;
	CKPT_AUTO_FD int fd = -1;
	char path[64];

	*out = ino ? ns_find(t, l->type, ino) : NULL;
	if (*out)
		return 0;
	snprintf(path, sizeof(path), "task/%d/ns/%s", (int)th->tid, l->name);
	fd = openat(task->procfd, path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT && l->at == offsetof(struct ckpt_ns_seat, pid_for_children))
		fd = by_pidfd(th);
	if (fd < 0)
		return ckpt_fail_sys(err, errno, "task %u (%s): /proc/%d/%s", task->id, task->comm,
				     (int)task->pid, path);
	*out = add(t, &fd, l->type, 0, err);
	return *out ? 0 : -err->err;
}

/*
 * `first`: a seat of the process of which what all threads have in common is known, or NULL.
 * *known: it is so of this one.
 */
static int one_thread(struct proc_set *ps, const struct found *f, const struct ckpt_ns_seat *first,
		      struct ckpt_ns_seat *seat, bool *known, struct ckpt_error *err)
{
	const struct ckpt_thread *th = f->th;
	struct ns_table *t = ps->ns;
	struct ckpt_task *task = th->task;
	bool dead = task->zombie;

	*known = !dead;
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(links); i++) {
		const struct link *l = &links[i];
		struct ckpt_ns *own = *slot(&t->own, l), **s = slot(seat, l);
		struct ckpt_error why = { 0 };

		if (first && is_common(l)) {
			*s = *(struct ckpt_ns *const *)((const char *)first + l->at);
			continue;
		}
		/* a kernel without that type */
		if (!own->ino || (dead && !l->zombie)) {
			*s = own;
			continue;
		}
		if (look(t, th, l, f->ino[i], s, &why)) {
			bool gone = why.err == ENOENT || why.err == ESRCH;

			if (!gone || (!ps->run->live && !dead)) {
				*err = why;
				return -why.err;
			}
			*s = own;
			*known = false;
		}
		if (!(*s)->member && l->at < offsetof(struct ckpt_ns_seat, pid_for_children))
			(*s)->member = task;
	}
	return 0;
}

/* The seats of one task, whose threads' links are at `found`; all alike are kept as one. */
static int one_task(struct proc_set *ps, const struct ckpt_task *task, const struct found *found,
		    struct ckpt_error *err)
{
	size_t n = task->n_threads ? task->n_threads : 1;
	struct ns_task *seats = ns_append_task(ps->ns, task->id, n, err);
	const struct ckpt_ns_seat *first = NULL;
	bool alike = true, known;

	if (!seats)
		return -ENOMEM;
	for (size_t k = 0; k < n; k++) {
		int r = one_thread(ps, &found[k], first, &seats->seats[k], &known, err);

		if (r)
			return r;
		if (!first && known)
			first = &seats->seats[k];
		alike &= !memcmp(&seats->seats[0], &seats->seats[k], sizeof(*seats->seats));
	}
	if (alike)
		seats->n = 1;
	return 0;
}

int proc_scan_namespaces(struct proc_set *ps, struct ckpt_error *err)
{
	/* a zombie may be known without a thread */
	CKPT_AUTO_FREE struct ckpt_thread *selves = calloc(ps->n + 1, sizeof(*selves));
	CKPT_AUTO_FREE struct found *found = NULL;
	size_t n = 0, at = 0;
	int r;

	for (size_t i = 0; i < ps->n; i++)
		n += ps->tasks[i]->pub.n_threads ? ps->tasks[i]->pub.n_threads : 1;
	found = calloc(n + 1, sizeof(*found));
	if (!found || !selves)
		return ckpt_fail_sys(err, ENOMEM, "namespaces of %zu threads", n);
	for (size_t i = 0; i < ps->n; i++) {
		struct ckpt_task *t = &ps->tasks[i]->pub;

		selves[i] = (struct ckpt_thread){ .task = t, .tid = t->pid };
		if (!t->n_threads)
			found[at++].th = &selves[i];
		for (size_t k = 0; k < t->n_threads; k++)
			found[at++].th = t->threads[k];
	}
	r = ckpt_parallel_by(n, THREADS_A_PORTION, read_links, found, err);
	at = 0;
	for (size_t i = 0; i < ps->n && !r; i++) {
		const struct ckpt_task *t = &ps->tasks[i]->pub;

		r = one_task(ps, t, &found[at], err);
		at += t->n_threads ? t->n_threads : 1;
	}
	return r;
}
