/* SPDX-License-Identifier: MIT */
/*
 * The namespaces of a copy, seen from inside: what shows a namespace (proc,
 * mqueue, devpts, control groups) is mounted again where it was, so that it shows
 * the copy's.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <ckpt/cleanup.h>

#include "process/copy.h"
#include "process/mounts.h"

#define COPY_LAYER "ckpt-layer-"

static char *read_mounts(void)
{
	CKPT_AUTO_FILE FILE *f = fopen("/proc/self/mountinfo", "re");
	CKPT_AUTO_FREE char *text = NULL;
	size_t cap = 0;

	return f && getdelim(&text, &cap, 0, f) > 0 ? ckpt_steal_ptr(&text) : NULL;
}

/* ---- propagation ----------------------------------------------------------------------- */

/*
 * What is mounted in a copy stays in it; what is mounted outside shows in it, as in
 * any tree. A mount that was shared stays so, within the copy.
 */
static int part_mounts(const struct mount_table *t, struct ckpt_error *err)
{
	if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL))
		return ckpt_fail_sys(err, errno, "mount(2): MS_SLAVE of /");
	for (size_t i = 0; i < t->pub.n; i++) {
		const struct ckpt_mount *m = &t->list[i];

		/* one that another hides cannot be reached by its path */
		if (m->peers && mount(NULL, m->point, NULL, MS_SHARED, NULL) && errno != EINVAL &&
		    errno != ENOENT && errno != EACCES)
			return ckpt_fail_sys(err, errno, "mount(2): MS_SHARED of %s", m->point);
	}
	return 0;
}

/* ---- what shows a namespace ---------------------------------------------------------------- */

/* The options of a filesystem without rw and ro, which are flags. */
static const char *data_of(const char *options)
{
	if (strncmp(options, "rw", 2) != 0 && strncmp(options, "ro", 2) != 0)
		return options;
	return options[2] == ',' ? options + 3 : "";
}

/* "gid=5,mode=620,noprefix" */
static int configure(int fs, const char *data)
{
	CKPT_AUTO_FREE char *copy = strdup(data);
	char *save = NULL;
	int r = copy ? 0 : -ENOMEM;

	for (char *o = copy ? strtok_r(copy, ",", &save) : NULL; o && !r;
	     o = strtok_r(NULL, ",", &save)) {
		char *eq = strchr(o, '=');

		if (eq)
			*eq = '\0';
		if (fsconfig(fs, eq ? FSCONFIG_SET_STRING : FSCONFIG_SET_FLAG, o,
			     eq ? eq + 1 : NULL, 0))
			r = -errno;
	}
	return r;
}

static bool is_read_only(const struct ckpt_mount *m)
{
	return !strncmp(m->attr, "ro", 2) && (!m->attr[2] || m->attr[2] == ',');
}

/* Another mount lies on it, or on what it is in: its path leads elsewhere. */
static bool is_hidden(const struct ckpt_mount *m)
{
	struct statx sx;

	return statx(AT_FDCWD, m->point, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, STATX_MNT_ID,
		     &sx) ||
	       !(sx.stx_mask & STATX_MNT_ID) || sx.stx_mnt_id != m->id;
}

/* What is bound elsewhere of the machine's devpts (/dev/ptmx) would still make its terminals. */
static int renew_ptmx(const struct mount_table *t, const struct ckpt_mount *pts,
		      struct ckpt_error *err)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/ptmx", pts->point);
	for (size_t i = 0; i < t->pub.n; i++) {
		const struct ckpt_mount *m = &t->list[i];

		if (strcmp(m->type, "devpts") || strcmp(m->root, "/ptmx") ||
		    m->major != pts->major || m->minor != pts->minor || is_hidden(m))
			continue;
		if (mount(path, m->point, NULL, MS_BIND, NULL))
			return ckpt_fail_sys(err, errno, "mounting %s at %s", path, m->point);
	}
	return 0;
}

/*
 * Moved into place: mount(2) refuses to lay a hierarchy of control groups over
 * itself, though the root is another one.
 */
static int renew(const struct mount_table *t, const struct ckpt_mount *m, const char *data,
		 struct ckpt_error *err)
{
	const unsigned attr = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC |
			      (strcmp(m->type, "devpts") ? MOUNT_ATTR_NODEV : 0) |
			      (is_read_only(m) ? MOUNT_ATTR_RDONLY : 0);
	CKPT_AUTO_FD int fs = -1, mnt = -1;
	int r;

	/* of control groups, the machine's root is above the copy's: "/../.." */
	if (strspn(m->root, "/.") != strlen(m->root) || is_hidden(m))
		return 0;
	fs = fsopen(m->type, FSOPEN_CLOEXEC);
	r = fs < 0 ? -errno : configure(fs, data);
	if (!r && (fsconfig(fs, FSCONFIG_SET_STRING, "source", m->source, 0) ||
		   fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0)))
		r = -errno;
	if (r)
		return ckpt_fail_sys(err, r, "%s for %s", m->type, m->point);
	mnt = fsmount(fs, FSMOUNT_CLOEXEC, attr);
	if (mnt < 0 || move_mount(mnt, "", AT_FDCWD, m->point, MOVE_MOUNT_F_EMPTY_PATH))
		return ckpt_fail_sys(err, errno, "mounting %s at %s", m->type, m->point);
	return strcmp(m->type, "devpts") ? 0 : renew_ptmx(t, m, err);
}

static int renew_all(const struct mount_table *t, struct ckpt_error *err)
{
	static const char *const shows[] = { "mqueue", "devpts", "cgroup", "cgroup2", "proc" };
	int r = 0;

	for (size_t k = 0; k < CKPT_ARRAY_SIZE(shows); k++)
		for (size_t i = 0; !r && i < t->pub.n; i++)
			if (!strcmp(t->list[i].type, shows[k]))
				r = renew(t, &t->list[i],
					  strcmp(shows[k], "cgroup2") ? data_of(t->list[i].options)
								      : "",
					  err);
	return r;
}

/* ---- layers -------------------------------------------------------------------------------- */

static bool below(const char *path, const char *dir)
{
	size_t len = strlen(dir);

	return !strncmp(path, dir, len) && (path[len] == '/' || len == 1);
}

static int check_layer(const struct mount_table *t, const char *path, struct ckpt_error *err)
{
	for (size_t i = 0; i < t->pub.n; i++)
		if (below(t->list[i].point, path) && strcmp(t->list[i].point, path) != 0) {
			ckpt_fail_as(err, CKPT_EXIT_REFUSED, EBUSY,
				     "--layer %s: %s is mounted below it, and would not show", path,
				     t->list[i].point);
			return ckpt_hint(err, "take that mount off, or give layers beside it");
		}
	return 0;
}

/* statvfs(3) and mount(2) have the same numbers for these */
#define KEPT_FLAGS (MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOATIME)

/* The root of an overlay has the attributes of its upper directory. */
static int make_upper(const char *dir, const struct stat *like, struct ckpt_error *err)
{
	const struct timespec times[2] = { like->st_atim, like->st_mtim };

	if (mkdir(dir, 0700) || chown(dir, like->st_uid, like->st_gid) ||
	    chmod(dir, like->st_mode & 07777) || utimensat(AT_FDCWD, dir, times, 0))
		return ckpt_fail_sys(err, errno, "%s", dir);
	return 0;
}

void copy_layer_source(const struct copy_layer *l, char buf[COPY_LAYER_SOURCE_SIZE])
{
	int at = snprintf(buf, COPY_LAYER_SOURCE_SIZE, COPY_LAYER "%u-", l->place);

	for (size_t i = 0; i < sizeof(l->number); i++)
		at += snprintf(buf + at, COPY_LAYER_SOURCE_SIZE - (size_t)at, "%02x", l->number[i]);
}

bool copy_layer_parse(const char *source, struct copy_layer *out)
{
	char again[COPY_LAYER_SOURCE_SIZE];
	int at = 0;

	if (sscanf(source, COPY_LAYER "%u-%n", &out->place, &at) != 1 || !at)
		return false;
	for (size_t i = 0; i < sizeof(out->number); i++) {
		unsigned byte;

		if (sscanf(source + at + 2 * i, "%2x", &byte) != 1)
			return false;
		out->number[i] = (uint8_t)byte;
	}
	copy_layer_source(out, again);
	return !strcmp(source, again);
}

/*
 * Where what is written goes: a directory of the user's, or a tmpfs at the very place, below
 * the overlay, so that it needs no directory outside.
 */
static int open_top(const struct copy_place *p, size_t i, struct ckpt_error *err)
{
	char dir[PATH_MAX];
	int fd;

	if (p->upper) {
		snprintf(dir, sizeof(dir), "%s/%u/%zu", p->upper, p->index, i + 1);
		if (mkdir(dir, 0700))
			return ckpt_fail_sys(err, errno, "mkdir(2) of %s", dir);
	} else {
		snprintf(dir, sizeof(dir), "%s", p->layers[i]);
		if (mount("ckpt-layer", dir, "tmpfs", MS_NOSUID | MS_NODEV, "mode=700"))
			return ckpt_fail_sys(err, errno, "mount(2) of a tmpfs at %s", dir);
	}
	fd = open(dir, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? ckpt_fail_sys(err, errno, "%s", dir) : fd;
}

static int write_number(int top, const struct copy_layer *l, const char *path,
			struct ckpt_error *err)
{
	const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
	CKPT_AUTO_FD int fd = openat(top, COPY_LAYER_NUMBER, flags, 0400);
	const ssize_t len = (ssize_t)strlen(path);

	if (fd < 0 || write(fd, l->number, sizeof(l->number)) != (ssize_t)sizeof(l->number) ||
	    write(fd, path, (size_t)len) != len)
		return ckpt_fail_sys(err, errno, "the file " COPY_LAYER_NUMBER);
	return 0;
}

/* An overlay that is mounted does not see what is put into its directories. */
static int fill_upper(const struct copy_place *p, size_t i, const char *upper,
		      struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = open(upper, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	int r = fd < 0 ? ckpt_fail_sys(err, errno, "%s", upper) : 0;

	if (!r && p->fill)
		r = p->fill(p->fill_arg, i, fd, err);
	return r < 0 ? ckpt_wrap(err, "the layer of %s", p->layers[i]) : 0;
}

static int add_layer(const struct copy_place *p, size_t i, int *top, struct ckpt_error *err)
{
	const char *path = p->layers[i];
	CKPT_AUTO_FD int lower = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	struct copy_layer layer = { .place = (unsigned)i + 1 };
	char upper[64], work[64], options[256], name[COPY_LAYER_SOURCE_SIZE];
	struct statvfs fs;
	struct stat st;
	int r;

	if (lower < 0 || fstat(lower, &st) || fstatvfs(lower, &fs))
		return ckpt_fail_sys(err, errno, "--layer %s", path);
	*top = open_top(p, i, err);
	if (*top < 0)
		return *top;
	snprintf(upper, sizeof(upper), "/proc/self/fd/%d/upper", *top);
	snprintf(work, sizeof(work), "/proc/self/fd/%d/work", *top);
	if (getrandom(layer.number, sizeof(layer.number), 0) != (ssize_t)sizeof(layer.number))
		return ckpt_fail_sys(err, errno, "getrandom(2)");
	copy_layer_source(&layer, name);
	r = make_upper(upper, &st, err);
	if (!r)
		r = fill_upper(p, i, upper, err);
	if (!r && mkdir(work, 0700))
		r = ckpt_fail_sys(err, errno, "%s", work);
	if (!r)
		r = write_number(*top, &layer, path, err);
	if (r)
		return r;
	snprintf(options, sizeof(options), "lowerdir=/proc/self/fd/%d,upperdir=%s,workdir=%s",
		 lower, upper, work);
	if (mount(name, path, "overlay", fs.f_flag & KEPT_FLAGS, options))
		return ckpt_fail_sys(err, errno, "mount(2) of an overlay at %s", path);
	return 0;
}

static int add_layers(const struct copy_place *p, const struct mount_table *t, int *tops,
		      struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; !r && i < p->n_layers; i++)
		r = check_layer(t, p->layers[i], err);
	for (size_t i = 0; !r && i < p->n_layers; i++)
		r = add_layer(p, i, &tops[i], err);
	return r;
}

/* ---- how copies differ --------------------------------------------------------------------- */

static int write_index(const struct copy_place *p, struct ckpt_error *err)
{
	const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
	CKPT_AUTO_FD int fd = -1;
	char text[16];
	int n = snprintf(text, sizeof(text), "%u\n", p->index);

	/* what lies there may be a FIFO, or another user's */
	if (!unlink(p->index_file) || errno == ENOENT)
		fd = open(p->index_file, flags, 0444);
	if (fd < 0 || fchmod(fd, 0444) || write(fd, text, (size_t)n) != n)
		return ckpt_fail_sys(err, errno, "--index-file %s", p->index_file);
	return 0;
}

static int name_host(const struct copy_place *p, struct ckpt_error *err)
{
	struct utsname un;
	char name[sizeof(un.nodename) + 32];

	if (!p->host_suffix)
		return 0;
	if (uname(&un))
		return ckpt_fail_sys(err, errno, "uname(2)");
	snprintf(name, sizeof(name), "%s%s%u", un.nodename, p->host_suffix, p->index);
	if (sethostname(name, strlen(name)))
		return ckpt_fail_sys(err, errno, "sethostname(2) to %s", name);
	return 0;
}

static int loopback_up(struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct ifreq req = { .ifr_name = "lo", .ifr_flags = IFF_UP | IFF_LOOPBACK | IFF_RUNNING };

	if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &req))
		return ckpt_fail_sys(err, errno, "the loopback device");
	return 0;
}

int copy_furnish(const struct copy_place *p, int *tops, struct ckpt_error *err)
{
	struct mount_table t = { 0 };
	CKPT_AUTO_FREE char *text = read_mounts();
	int r = text ? mount_table_parse(&t, text) : -EIO;

	if (r)
		ckpt_fail_sys(err, r, "/proc/self/mountinfo");
	else
		r = part_mounts(&t, err);
	if (!r)
		r = add_layers(p, &t, tops, err);
	if (!r && p->index_file)
		r = write_index(p, err);
	if (!r)
		r = name_host(p, err);
	if (!r)
		r = loopback_up(err);
	/* the last: what is open of /proc until then is the machine's */
	if (!r)
		r = renew_all(&t, err);
	free(t.list);
	return r;
}
