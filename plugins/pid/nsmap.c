/* SPDX-License-Identifier: MIT */
/* The pid namespaces of a tree: who is below whom, as nsfs tells it. */
#include <fcntl.h>
#include <linux/nsfs.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include "pid.h"

static int file_ino(int fd, uint64_t *ino)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return -errno;
	*ino = st.st_ino;
	return 0;
}

static int path_ino(const char *path, uint64_t *ino)
{
	struct stat st;

	if (stat(path, &st) < 0)
		return -errno;
	*ino = st.st_ino;
	return 0;
}

static int append(struct pid_nsmap *m, const struct pid_ns *ns, struct ckpt_error *err)
{
	struct pid_ns *more = realloc(m->ns, (m->n + 1) * sizeof(*more));

	if (!more)
		return ckpt_fail_sys(err, ENOMEM, "table of pid namespaces");
	m->ns = more;
	m->ns[m->n] = *ns;
	m->ns[m->n].id = (uint32_t)m->n + 1;
	return (int)m->n++;
}

int pid_nsmap_init(struct pid_nsmap *m, struct ckpt_error *err)
{
	struct pid_ns own = { 0 };
	int r = path_ino("/proc/self/ns/pid", &own.ino);

	*m = (struct pid_nsmap){ 0 };
	if (r < 0)
		return ckpt_fail_sys(err, r, "/proc/self/ns/pid");
	r = append(m, &own, err);
	return r < 0 ? r : 0;
}

void pid_nsmap_free(struct pid_nsmap *m)
{
	free(m->ns);
	*m = (struct pid_nsmap){ 0 };
}

static int find(const struct pid_nsmap *m, uint64_t ino)
{
	for (size_t i = 0; i < m->n; i++)
		if (m->ns[i].ino == ino)
			return (int)i;
	return -1;
}

static int foreign_owner(int fd, bool *foreign)
{
	CKPT_AUTO_FD int owner = ioctl(fd, NS_GET_USERNS);
	uint64_t a = 0, b = 0;
	int r;

	/* an owner above our own user namespace is not shown */
	if (owner < 0) {
		*foreign = true;
		return errno == EPERM ? 0 : -errno;
	}
	r = file_ino(owner, &a);
	if (r == 0)
		r = path_ino("/proc/self/ns/user", &b);
	*foreign = r == 0 && a != b;
	return r;
}

/* Add the namespace of fd, its parents first. */
static int add(struct pid_nsmap *m, int fd, unsigned depth, struct ckpt_error *err)
{
	CKPT_AUTO_FD int up = -1;
	struct pid_ns ns = { 0 };
	int r = file_ino(fd, &ns.ino), parent;

	if (r < 0)
		return ckpt_fail_sys(err, r, "pid namespace: fstat(2)");
	r = find(m, ns.ino);
	if (r >= 0)
		return r;
	/* EPERM: the parent is out of our sight, so it is not below our own */
	up = ioctl(fd, NS_GET_PARENT);
	if (up < 0 || depth > PID_MAX_LEVELS)
		return ckpt_fail(err, EXDEV, "pid namespace %llu is not below the one ckpt runs in",
				 (unsigned long long)ns.ino);
	parent = add(m, up, depth + 1, err);
	if (parent < 0)
		return parent;
	r = foreign_owner(fd, &ns.foreign_owner);
	if (r < 0)
		return ckpt_fail_sys(err, r, "pid namespace %llu: NS_GET_USERNS",
				     (unsigned long long)ns.ino);
	ns.parent = m->ns[parent].id;
	ns.level = m->ns[parent].level + 1;
	return append(m, &ns, err);
}

int pid_nsmap_of(struct pid_nsmap *m, const struct ckpt_task *t, const char *link,
		 struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = -1;
	char text[64];
	unsigned long long ino;
	ssize_t len = ckpt_proc_link(t, link, text, sizeof(text), err);
	int r;

	if (len < 0)
		return (int)len;
	if (sscanf(text, "pid:[%llu]", &ino) == 1) {
		r = find(m, ino);
		if (r >= 0)
			return r;
	}
	fd = openat(t->procfd, link, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return ckpt_fail_sys(err, errno, "/proc/%d/%s", t->pid, link);
	return add(m, fd, 0, err);
}

bool pid_nsmap_covers(const struct pid_nsmap *m, uint32_t a, uint32_t b)
{
	while (b != a && b > 1)
		b = m->ns[b - 1].parent;
	return a == b;
}
