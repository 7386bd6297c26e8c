/* SPDX-License-Identifier: MIT */
/* Which hierarchies this machine has, and where they are mounted. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/vfs.h>

#include "cgroup.h"

#define CGROUP1_MAGIC 0x27e0eb
#define CGROUP2_MAGIC 0x63677270

int cgroup_each_line(const char *text,
		     int (*fn)(void *arg, const char *name, const char *path,
			       struct ckpt_error *err),
		     void *arg, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *copy = strdup(text);
	char *save = NULL;
	int r = 0;

	if (!copy)
		return ckpt_fail_sys(err, ENOMEM, "control groups");
	for (char *line = strtok_r(copy, "\n", &save); line && r == 0;
	     line = strtok_r(NULL, "\n", &save)) {
		/* a name may hold no colon, a path may */
		char *name = strchr(line, ':'), *path = name ? strchr(name + 1, ':') : NULL;

		if (!path)
			return ckpt_fail(err, EPROTO, "/proc/PID/cgroup: \"%s\"", line);
		*path++ = 0;
		r = fn(arg, name + 1, path, err);
	}
	return r;
}

static int add(void *arg, const char *name, const char *path, struct ckpt_error *err)
{
	struct cgroup_state *st = arg;
	struct cgroup_hierarchy *h = &st->hierarchies[st->n_hierarchies];

	if (st->n_hierarchies == CGROUP_MAX_HIERARCHIES)
		return ckpt_fail(err, E2BIG, "more than %d hierarchies of control groups",
				 CGROUP_MAX_HIERARCHIES);
	h->name = strdup(name);
	h->own = strdup(path);
	h->root = -1;
	st->n_hierarchies++;
	return h->name && h->own ? 0 : ckpt_fail_sys(err, ENOMEM, "control groups");
}

/* In the order of their names: the kernel's numbers are those of their mounting. */
static int by_name(const void *a, const void *b)
{
	const struct cgroup_hierarchy *x = a, *y = b;

	return strcmp(x->name, y->name);
}

int cgroup_load_hierarchies(struct cgroup_state *st, struct ckpt_error *err)
{
	CKPT_AUTO_FILE FILE *f = fopen("/proc/self/cgroup", "re");
	CKPT_AUTO_FREE char *text = NULL;
	size_t cap = 0;
	int r;

	/* a kernel without control groups has no such file */
	if (!f && errno == ENOENT)
		return 0;
	if (!f)
		return ckpt_fail_sys(err, errno, "/proc/self/cgroup");
	if (getdelim(&text, &cap, 0, f) < 0)
		return feof(f) ? 0 : ckpt_fail_sys(err, errno, "/proc/self/cgroup");
	r = cgroup_each_line(text, add, st, err);
	if (st->n_hierarchies)
		qsort(st->hierarchies, st->n_hierarchies, sizeof(st->hierarchies[0]), by_name);
	return r;
}

int cgroup_hierarchy(const struct cgroup_state *st, const char *name)
{
	for (size_t i = 0; i < st->n_hierarchies; i++)
		if (!strcmp(st->hierarchies[i].name, name))
			return (int)i;
	return -ENOENT;
}

/* mountinfo writes blanks of a path as \040 and so on. */
static void unescape(char *s)
{
	char *to = s;

	for (; *s; s++) {
		unsigned c;

		if (*s == '\\' && sscanf(s + 1, "%3o", &c) == 1) {
			*to++ = (char)c;
			s += 3;
		} else {
			*to++ = *s;
		}
	}
	*to = 0;
}

/* Where this line of mountinfo mounts the hierarchy as a whole; NULL: it does not. */
static char *mounted_at(const struct cgroup_hierarchy *h, char *line)
{
	char *dash = strstr(line, " - "), *fields[5], *save = NULL, type[16];
	const char *options;

	if (!dash || sscanf(dash + 3, "%15s", type) != 1 ||
	    strcmp(type, *h->name ? "cgroup" : "cgroup2"))
		return NULL;
	*dash = 0;
	options = strrchr(dash + 3, ' ');
	if (*h->name &&
	    (!options || !cgroup_in_list(options + 1, ',', h->name, strcspn(h->name, ","))))
		return NULL;
	for (size_t i = 0; i < 5; i++) {
		fields[i] = strtok_r(i ? NULL : line, " ", &save);
		if (!fields[i])
			return NULL;
	}
	if (strcmp(fields[3], "/"))
		return NULL;
	unescape(fields[4]);
	return fields[4];
}

static int open_root(const struct cgroup_hierarchy *h, const char *path)
{
	CKPT_AUTO_FD int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct statfs fs;

	if (fd < 0 || fstatfs(fd, &fs))
		return -errno;
	/* something else may lie over it */
	return fs.f_type == (*h->name ? CGROUP1_MAGIC : CGROUP2_MAGIC) ? ckpt_steal_fd(&fd)
								       : -ENOENT;
}

/* Read once: with ten hierarchies, reading it took as long as all that is done with it. */
static int load_mounts(struct cgroup_state *st, struct ckpt_error *err)
{
	CKPT_AUTO_FILE FILE *f = st->mounts ? NULL : fopen("/proc/self/mountinfo", "re");
	CKPT_AUTO_FREE char *text = NULL;
	size_t cap = 0;

	if (st->mounts)
		return 0;
	if (!f || getdelim(&text, &cap, 0, f) < 0)
		return ckpt_fail_sys(err, f ? EIO : errno, "/proc/self/mountinfo");
	st->mounts = ckpt_steal_ptr(&text);
	return 0;
}

/*
 * By a mount that is there. Mounting version 2 once more would take the options
 * of the machine's own mount away (nsdelegate).
 */
int cgroup_root(struct cgroup_state *st, size_t i, struct ckpt_error *err)
{
	struct cgroup_hierarchy *h = &st->hierarchies[i];
	int r = h->root >= 0 ? 0 : load_mounts(st, err);

	if (h->root >= 0 || r < 0)
		return r < 0 ? r : h->root;
	for (const char *p = st->mounts; *p; p += strcspn(p, "\n"), p += *p == '\n') {
		CKPT_AUTO_FREE char *line = strndup(p, strcspn(p, "\n"));
		char *at = line ? mounted_at(h, line) : NULL;
		int root = at ? open_root(h, at) : line ? -ENOENT : -ENOMEM;

		if (root >= 0)
			return h->root = root;
		if (root != -ENOENT && root != -ENOTDIR && root != -EACCES)
			return ckpt_fail_sys(err, root, "%s", at ? at : "/proc/self/mountinfo");
	}
	ckpt_fail(err, ENOENT, "control groups of \"%s\" are not mounted here",
		  *h->name ? h->name : "version 2");
	return ckpt_hint(err, "mount the hierarchy where ckpt sees it, below /sys/fs/cgroup");
}

int cgroup_open(struct cgroup_state *st, size_t h, const char *path, struct ckpt_error *err)
{
	char name[160];
	int root = cgroup_root(st, h, err), fd;

	if (root < 0)
		return root;
	fd = openat(root, path[1] ? path + 1 : ".",
		    O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return fd >= 0 ? fd
		       : ckpt_fail_sys(
				 err, errno, "control group %s",
				 cgroup_name(name, sizeof(name), st->hierarchies[h].name, path));
}

const char *cgroup_name(char *buf, size_t size, const char *hierarchy, const char *path)
{
	snprintf(buf, size, "%s:%s", hierarchy, path);
	return buf;
}

/* What this kernel, or a group of this kind, does not have. */
static bool is_absent(int e)
{
	return e == ENOENT || e == EOPNOTSUPP || e == EINVAL || e == ENODEV;
}

int cgroup_read(int dir, const char *file, char **out, struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = openat(dir, file, O_RDONLY | O_CLOEXEC);
	CKPT_AUTO_FREE char *text = fd < 0 ? NULL : malloc(CGROUP_MAX_VALUE);
	ssize_t n = text ? read(fd, text, CGROUP_MAX_VALUE - 1) : -1;

	*out = NULL;
	if (n < 0)
		return is_absent(errno) ? 0 : ckpt_fail_sys(err, errno, "reading %s", file);
	while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == ' '))
		n--;
	text[n] = 0;
	*out = ckpt_steal_ptr(&text);
	return 0;
}
