/* SPDX-License-Identifier: MIT */
/* The settings below /proc/sys/net, which shows those of whoever looks. */
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "net.h"

#define ROOT "/proc/sys/net"

/* Nearly all fit into the first; a list of every second port takes 200 KiB. */
#define USUAL_VALUE   4096
#define LONGEST_VALUE ((size_t)512 << 10)

/* Namespaces that are read at the same time; more would only hold memory. */
#define AT_ONCE 8

struct net_ahead {
	/* settings read ahead: in records with nothing else, taken by whoever asks first */
	Ckpt__Net__Network *net[AT_ONCE];
	const struct ckpt_ns *ns[AT_ONCE];
	size_t n;
};

static char *text_of(const char *buf, ssize_t n)
{
	return strndup(buf, (size_t)(n > 0 && buf[n - 1] == '\n' ? n - 1 : n));
}

/*
 * The value without the newline, the caller's; NULL with errno. What the kernel makes a text of
 * when it is asked comes with one call or not at all.
 */
static char *read_value(int dir, const char *name, int flags)
{
	CKPT_AUTO_FD int fd = openat(dir, name, flags | O_CLOEXEC);
	CKPT_AUTO_FREE char *big = NULL;
	char buf[USUAL_VALUE];
	ssize_t n = fd < 0 ? -1 : read(fd, buf, sizeof(buf));

	if (n < 0)
		return NULL;
	if ((size_t)n < sizeof(buf))
		return text_of(buf, n);
	big = malloc(LONGEST_VALUE);
	n = big ? pread(fd, big, LONGEST_VALUE, 0) : -1;
	if ((size_t)n == LONGEST_VALUE)
		errno = E2BIG;
	return n < 0 || (size_t)n == LONGEST_VALUE ? NULL : text_of(big, n);
}

static int add(struct net_job *job, const char *name, char *value, struct ckpt_error *err)
{
	Ckpt__Net__Sysctl *s = malloc(sizeof(*s));

	if (net_append(&job->net->sysctls, &job->net->n_sysctls, s, err) < 0) {
		free(s);
		free(value);
		return -ENOMEM;
	}
	ckpt__net__sysctl__init(s);
	s->name = strdup(name);
	s->value = value;
	return s->name ? 0 : ckpt_fail_sys(err, ENOMEM, ROOT "/%s", name);
}

static int walk(struct net_job *job, int root, const char *path, struct ckpt_error *err);

static int visit(struct net_job *job, int root, const char *path, unsigned char type,
		 struct ckpt_error *err)
{
	char *value;

	if (type == DT_DIR)
		return walk(job, root, path, err);
	/*
	 * What cannot be read has no value (stable_secret), what cannot be written is no setting:
	 * opening tells, since no privilege goes beyond the mode here. There are hundreds of them.
	 */
	value = type == DT_REG ? read_value(root, path, O_RDWR) : NULL;
	if (!value && type == DT_REG && (errno == ENOMEM || errno == E2BIG))
		return ckpt_fail_sys(err, errno, ROOT "/%s", path);
	return value ? add(job, path, value, err) : 0;
}

static int not_dots(const struct dirent *d)
{
	return d->d_name[0] != '.' || (d->d_name[1] && strcmp(d->d_name, "..") != 0);
}

static int walk(struct net_job *job, int root, const char *path, struct ckpt_error *err)
{
	struct dirent **names;
	int n = scandirat(root, path, &names, not_dots, alphasort), r = 0;

	if (n < 0)
		return ckpt_fail_sys(err, errno, ROOT "/%s", path);
	for (int i = 0; i < n; i++) {
		CKPT_AUTO_FREE char *below = NULL;

		if (r == 0 && asprintf(&below, "%s%s%s", strcmp(path, ".") ? path : "",
				       strcmp(path, ".") ? "/" : "", names[i]->d_name) < 0) {
			below = NULL;
			r = ckpt_fail_sys(err, ENOMEM, ROOT "/%s", path);
		}
		if (r == 0)
			r = visit(job, root, below, names[i]->d_type, err);
		free(names[i]);
	}
	free(names);
	return r;
}

static int read_settings(struct net_job *job, struct ckpt_error *err)
{
	CKPT_AUTO_FD int root = open(ROOT, O_PATH | O_DIRECTORY | O_CLOEXEC);

	if (root < 0)
		return ckpt_fail_sys(err, errno, ROOT);
	return walk(job, root, ".", err);
}

/* In a thread of its own, or the only one. */
static int read_there(void *arg, size_t i, struct ckpt_error *err)
{
	const struct net_ahead *a = arg;
	struct net_job job = { .net = a->net[i] };
	CKPT_AUTO_FD int back = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
	int r;

	if (back < 0)
		return ckpt_fail_sys(err, errno, "/proc/thread-self/ns/net");
	if (setns(a->ns[i]->fd, CLONE_NEWNET))
		return ckpt_fail_sys(err, errno, "joining the %s", a->ns[i]->name);
	r = read_settings(&job, err);
	if (setns(back, CLONE_NEWNET))
		return ckpt_fail_sys(err, errno, "going back to ckpt's network namespace");
	return r;
}

void net_ahead_free(struct net_ahead *a)
{
	for (size_t i = 0; a && i < a->n; i++)
		if (a->net[i])
			ckpt__net__network__free_unpacked(a->net[i], NULL);
	free(a);
}

/* This namespace and those that will be asked for next. */
static int read_some(struct ckpt_run *run, struct net_state *st, const struct ckpt_ns *first,
		     struct ckpt_error *err)
{
	struct net_ahead *a = calloc(1, sizeof(*a));
	bool begun = false;

	net_ahead_free(st->ahead);
	st->ahead = a;
	for (size_t i = 0; a && i < ckpt_ns_count(run) && a->n < AT_ONCE; i++) {
		const struct ckpt_ns *ns = ckpt_ns_at(run, i);

		begun |= ns == first;
		if (!begun || ns->type != CKPT_NS_NET || ns->own || ns->lost)
			continue;
		a->ns[a->n] = ns;
		a->net[a->n] = malloc(sizeof(*a->net[0]));
		if (!a->net[a->n])
			return ckpt_fail_sys(err, ENOMEM, "settings");
		ckpt__net__network__init(a->net[a->n++]);
	}
	return a ? ckpt_parallel_by(a->n, 1, read_there, a, err)
		 : ckpt_fail_sys(err, ENOMEM, "settings");
}

/* Those of this namespace, if they were read. */
static bool take(struct net_ahead *a, struct net_job *job)
{
	for (size_t i = 0; a && i < a->n; i++) {
		if (a->ns[i] != job->ns || !a->net[i])
			continue;
		job->net->sysctls = a->net[i]->sysctls;
		job->net->n_sysctls = a->net[i]->n_sysctls;
		free(ckpt_steal_ptr(&a->net[i]));
		return true;
	}
	return false;
}

/*
 * Some 550 files in each namespace are most of what it costs to save one. /proc shows each
 * thread those of its own, so threads read several namespaces at the same time.
 */
int net_sysctls_take(struct net_job *job, struct ckpt_error *err)
{
	struct net_state *st = net_state(job->run);
	int r;

	if (!st)
		return ckpt_fail_sys(err, ENOMEM, "settings");
	if (take(st->ahead, job))
		return 0;
	r = read_some(job->run, st, job->ns, err);
	if (r == 0 && !take(st->ahead, job))
		r = ckpt_fail(err, ENOENT, "the %s is not one that is saved", job->ns->name);
	return r;
}

bool net_sysctl_name_ok(const char *name)
{
	return name[0] && name[0] != '/' && strncmp(name, "../", 3) != 0 && !strstr(name, "/../") &&
	       strlen(name) < 256;
}

static int write_value(int root, const Ckpt__Net__Sysctl *s)
{
	CKPT_AUTO_FD int fd = openat(root, s->name, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
	size_t len = strlen(s->value), done = 0;
	ssize_t n;

	/* of a list the kernel takes a page at a time */
	do {
		n = fd < 0 ? -1 : write(fd, s->value + done, len - done);
		done += n > 0 ? (size_t)n : 0;
	} while (n > 0 && done < len);
	if (n < 0)
		return -errno;
	return done < len ? -EIO : 0;
}

static bool has_value(int root, const Ckpt__Net__Sysctl *s)
{
	CKPT_AUTO_FREE char *value = read_value(root, s->name, O_RDONLY);

	return value && !strcmp(value, s->value);
}

/* Those that `wanted` names; NULL: all. */
static int write_settings(struct net_job *job, bool (*wanted)(const char *name),
			  struct ckpt_error *err)
{
	CKPT_AUTO_FD int root = open(ROOT, O_PATH | O_DIRECTORY | O_CLOEXEC);
	const char *wrong = NULL;
	int why = 0;

	if (root < 0)
		return ckpt_fail_sys(err, errno, ROOT);
	/* some set others as well (ip_forward, conf/all/...): twice is enough for them to settle */
	for (int pass = 0; pass < 3; pass++) {
		wrong = NULL;
		for (size_t i = 0; i < job->net->n_sysctls; i++) {
			const Ckpt__Net__Sysctl *s = job->net->sysctls[i];

			if ((wanted && !wanted(s->name)) || has_value(root, s))
				continue;
			wrong = s->name;
			why = write_value(root, s);
		}
		if (!wrong)
			return 0;
	}
	return ckpt_fail_sys(err, why ? why : EINVAL, ROOT "/%s", wrong);
}

int net_sysctls_write(struct net_job *job, struct ckpt_error *err)
{
	return write_settings(job, NULL, err);
}

static bool is_mtu(const char *name)
{
	const char *last = strrchr(name, '/');

	return !strncmp(name, "ipv6/conf/", 10) && !strcmp(last, "/mtu");
}

int net_sysctls_again(struct net_job *job, struct ckpt_error *err)
{
	return write_settings(job, is_mtu, err);
}
