/* SPDX-License-Identifier: MIT */
/*
 * A server of a filesystem that dies while the tree stands takes the thread of ours with it that
 * has asked: signals do not end that wait, and a step that waits looks at no flag. To end the
 * process always helps the tree, for the kernel and the keeper let it go (process/keeper.c). So
 * a thread that touches no filesystem but /proc looks whether another has not run at all for some
 * time, and whether that is in a call that asks a filesystem.
 */
#include "engine/watch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <ckpt/cleanup.h>
#include <ckpt/plugin.h>

#include "engine/engine.h"
#include "engine/run.h"

#define TICK_NS	     100000000
#define CANCELLED_US 500000   /* that long, once the user wants it to end */
#define STANDING_US  10000000 /* and in any case while the tree stands */

/* A call that asks a filesystem: which of its arguments tell what it is about. */
struct call {
	long nr;
	const char *name;
	int8_t fd, path;
	bool writes; /* may take long where nothing is wrong */
};

static const struct call calls[] = {
	{ -1, "reading a page", -1, -1, false },
	{ SYS_process_vm_readv, "process_vm_readv(2)", -1, -1, false },
	{ SYS_newfstatat, "stat(2)", 0, 1, false },
	{ SYS_stat, "stat(2)", -1, 0, false },
	{ SYS_lstat, "stat(2)", -1, 0, false },
	{ SYS_fstat, "stat(2)", 0, -1, false },
	{ SYS_statx, "stat(2)", 0, 1, false },
	{ SYS_openat, "open(2)", 0, 1, false },
	{ SYS_open, "open(2)", -1, 0, false },
	{ SYS_openat2, "open(2)", 0, 1, false },
	{ SYS_open_tree, "open_tree(2)", 0, 1, false },
	{ SYS_open_by_handle_at, "open_by_handle_at(2)", 0, -1, false },
	{ SYS_name_to_handle_at, "name_to_handle_at(2)", 0, 1, false },
	{ SYS_readlink, "readlink(2)", -1, 0, false },
	{ SYS_readlinkat, "readlink(2)", 0, 1, false },
	{ SYS_access, "access(2)", -1, 0, false },
	{ SYS_faccessat, "access(2)", 0, 1, false },
	{ SYS_faccessat2, "access(2)", 0, 1, false },
	{ SYS_statfs, "statfs(2)", -1, 0, false },
	{ SYS_fstatfs, "statfs(2)", 0, -1, false },
	{ SYS_getdents64, "getdents(2)", 0, -1, false },
	{ SYS_read, "read(2)", 0, -1, false },
	{ SYS_pread64, "read(2)", 0, -1, false },
	{ SYS_readv, "read(2)", 0, -1, false },
	{ SYS_preadv, "read(2)", 0, -1, false },
	{ SYS_preadv2, "read(2)", 0, -1, false },
	{ SYS_lseek, "lseek(2)", 0, -1, false },
	{ SYS_copy_file_range, "copy_file_range(2)", 0, -1, false },
	{ SYS_getxattr, "getxattr(2)", -1, 0, false },
	{ SYS_lgetxattr, "getxattr(2)", -1, 0, false },
	{ SYS_fgetxattr, "getxattr(2)", 0, -1, false },
	{ SYS_listxattr, "listxattr(2)", -1, 0, false },
	{ SYS_llistxattr, "listxattr(2)", -1, 0, false },
	{ SYS_flistxattr, "listxattr(2)", 0, -1, false },
	{ SYS_fcntl, "fcntl(2)", 0, -1, false },
	{ SYS_ioctl, "ioctl(2)", 0, -1, false },
	{ SYS_chdir, "chdir(2)", -1, 0, false },
	{ SYS_fchdir, "chdir(2)", 0, -1, false },
	{ SYS_inotify_add_watch, "inotify_add_watch(2)", -1, 1, false },
	{ SYS_fanotify_mark, "fanotify_mark(2)", 3, 4, false },
	{ SYS_mount, "mount(2)", -1, 1, false },
	{ SYS_umount2, "umount(2)", -1, 0, false },
	{ SYS_move_mount, "move_mount(2)", 0, 1, false },
	{ SYS_execveat, "execve(2)", 0, 1, false },
	{ SYS_linkat, "link(2)", 2, 3, true },
	{ SYS_close, "close(2)", 0, -1, true },
	{ SYS_write, "write(2)", 0, -1, true },
	{ SYS_pwrite64, "write(2)", 0, -1, true },
	{ SYS_writev, "write(2)", 0, -1, true },
	{ SYS_pwritev, "write(2)", 0, -1, true },
	{ SYS_pwritev2, "write(2)", 0, -1, true },
	{ SYS_fsync, "fsync(2)", 0, -1, true },
	{ SYS_fdatasync, "fsync(2)", 0, -1, true },
	{ SYS_sync_file_range, "fsync(2)", 0, -1, true },
	{ SYS_ftruncate, "ftruncate(2)", 0, -1, true },
	{ SYS_fallocate, "fallocate(2)", 0, -1, true },
	{ SYS_rename, "rename(2)", -1, 0, true },
	{ SYS_renameat, "rename(2)", 0, 1, true },
	{ SYS_renameat2, "rename(2)", 0, 1, true },
	{ SYS_unlink, "unlink(2)", -1, 0, true },
	{ SYS_unlinkat, "unlink(2)", 0, 1, true },
	{ SYS_mkdir, "mkdir(2)", -1, 0, true },
	{ SYS_mkdirat, "mkdir(2)", 0, 1, true },
};

/* ---- who does not run -------------------------------------------------------------------- */

static ssize_t read_small(const struct sleeper *s, const char *file, char *text, size_t size)
{
	CKPT_AUTO_FD int fd = -1;
	char path[64];
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/%s", (int)s->process, (int)s->tid, file);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : read(fd, text, size - 1);
	text[n < 0 ? 0 : n] = '\0';
	return n;
}

/* As long as it is: it has all supplementary groups, which may be 65,536. */
static char *read_status(const struct sleeper *s)
{
	size_t size = 4096;
	char *text = NULL, *more;
	ssize_t n = 0;

	while ((more = realloc(text, size))) {
		text = more;
		n = read_small(s, "status", text, size);
		if (n <= 0 || (size_t)n < size - 1)
			break;
		size *= 4;
	}
	if (more && n > 0)
		return text;
	free(text);
	return NULL;
}

/* How often it has left a processor; false: it is on one, or there is no such thread. */
static bool sleeps(const struct sleeper *s, uint64_t *switches)
{
	CKPT_AUTO_FREE char *text = read_status(s);
	char value[24];

	*switches = 0;
	if (!text || ckpt_proc_field(text, "State", value, sizeof(value)) || !strchr("SD", *value))
		return false;
	if (ckpt_proc_field(text, "voluntary_ctxt_switches", value, sizeof(value)))
		return false;
	*switches = strtoull(value, NULL, 10);
	if (ckpt_proc_field(text, "nonvoluntary_ctxt_switches", value, sizeof(value)))
		return false;
	*switches += strtoull(value, NULL, 10);
	return true;
}

/* Into the new list, with the time since when, if it is the same sleep as before. */
static void note(const struct watch *w, struct watch *now, pid_t process, pid_t tid)
{
	struct sleeper s = { .process = process, .tid = tid, .since = clock_us() };

	if (now->n == WATCH_MOST || !sleeps(&s, &s.switches))
		return;
	for (size_t i = 0; i < w->n; i++)
		if (w->list[i].tid == tid && w->list[i].switches == s.switches)
			s.since = w->list[i].since;
	now->list[now->n++] = s;
}

/* A helper in a namespace is a process of its own. */
static void note_children(const struct watch *w, struct watch *now, pid_t tid)
{
	const struct sleeper parent = { .process = getpid(), .tid = tid };
	char text[1024], *end;

	read_small(&parent, "children", text, sizeof(text));
	for (char *p = text; *p; p = end) {
		long pid = strtol(p, &end, 10);

		if (end == p)
			break;
		note(w, now, (pid_t)pid, (pid_t)pid);
	}
}

static void look(struct watch *w)
{
	const pid_t self = (pid_t)syscall(SYS_gettid);
	CKPT_AUTO_DIR DIR *dir = opendir("/proc/self/task");
	struct watch now = { 0 };
	struct dirent *e;

	while (dir && (e = readdir(dir))) {
		const pid_t tid = (pid_t)atoi(e->d_name);

		if (tid <= 0 || tid == self)
			continue;
		note(w, &now, getpid(), tid);
		note_children(w, &now, tid);
	}
	memcpy(w->list, now.list, now.n * sizeof(*now.list));
	w->n = now.n;
}

/* ---- what it waits for ------------------------------------------------------------------- */

/* Of another process, which may have our memory or not. */
static void read_text(pid_t process, uint64_t at, char *buf, size_t size)
{
	for (size_t n = 0; n < size - 1; n++) {
		struct iovec here = { buf + n, 1 }, there = { (void *)(uintptr_t)(at + n), 1 };

		if (process_vm_readv(process, &here, 1, &there, 1, 0) != 1)
			buf[n] = '\0';
		if (!buf[n])
			return;
	}
	buf[size - 1] = '\0';
}

static void read_link(const char *path, char *buf, size_t size)
{
	ssize_t n = readlink(path, buf, size - 1);

	buf[n < 0 ? 0 : n] = '\0';
}

/* /proc/12/fd/3 and its kin lead to a file; nothing that may wait is on the way to them. */
static bool is_task_link(const char *path)
{
	char rest[40];
	int pid;

	if (sscanf(path, "/proc/%d/%39s", &pid, rest) != 2)
		return false;
	if (!strncmp(rest, "fd/", 3))
		return !strchr(rest + 3, '/');
	if (!strncmp(rest, "map_files/", 10))
		return !strchr(rest + 10, '/');
	return !strcmp(rest, "cwd") || !strcmp(rest, "root") || !strcmp(rest, "exe");
}

/* false: it is a pipe, a socket or the like, and waits for something else than a filesystem. */
static bool describe(const struct sleeper *s, const struct call *c, const uint64_t *args, char *out,
		     size_t size)
{
	char path[256] = "", dir[PATH_MAX] = "", full[PATH_MAX + 300], at[64];

	if (c->path >= 0)
		read_text(s->process, args[c->path], path, sizeof(path));
	if (c->fd >= 0 && *path != '/' && (int)args[c->fd] >= 0) {
		snprintf(at, sizeof(at), "/proc/%d/fd/%d", (int)s->process, (int)args[c->fd]);
		read_link(at, dir, sizeof(dir));
		/* what is being closed has no link any more */
		if (*dir != '/' && (*dir || c->nr != SYS_close))
			return false;
	}
	snprintf(full, sizeof(full), "%s%s%s", dir, *dir && *path ? "/" : "", path);
	*dir = '\0';
	if (is_task_link(full))
		read_link(full, dir, sizeof(dir));
	snprintf(out, size, "%s%s%.400s%s%.400s", c->name, *full ? " of " : "", full,
		 *dir ? ", which is " : "", dir);
	return true;
}

static bool asks_filesystem(const struct sleeper *s, bool writes, char *out, size_t size)
{
	char text[256], *p;
	uint64_t args[6] = { 0 };
	long nr;

	if (read_small(s, "syscall", text, sizeof(text)) <= 0)
		return false;
	nr = strtol(text, &p, 10);
	if (p == text) /* "running" */
		return false;
	for (size_t i = 0; nr >= 0 && i < CKPT_ARRAY_SIZE(args); i++)
		args[i] = strtoull(p, &p, 16);
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(calls); i++)
		if (calls[i].nr == nr)
			return (writes || !calls[i].writes) &&
			       describe(s, &calls[i], args, out, size);
	return false;
}

/* ---- what to do --------------------------------------------------------------------------- */

/* Neither cancelled nor standing: it harms nobody. After the commit it would not be true. */
static uint64_t patience(const struct ckpt_run *run)
{
	if (__atomic_load_n(&run->too_late, __ATOMIC_RELAXED))
		return UINT64_MAX;
	if (run->ctx->cancelled)
		return CANCELLED_US;
	return __atomic_load_n(&run->seized, __ATOMIC_RELAXED) ? STANDING_US : UINT64_MAX;
}

/*
 * A signal is kept for the thread that it woke, and if that waits without an end nobody handles it.
 * Whoever changes his mask is asked as well.
 */
static void take_signals(const struct watch *w)
{
	sigset_t all;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &w->mask, NULL);
	pthread_sigmask(SIG_SETMASK, &all, NULL);
}

static void give_up(const struct watch *w, const struct sleeper *s, const char *what)
{
	struct ckpt *ctx = w->run->ctx;
	char text[1400];
	int status;

	snprintf(text, sizeof(text), "a filesystem has not answered for %.1f s: %s",
		 (double)(clock_us() - s->since) / 1000000, what);
	status = ctx->hang(ctx->hang_arg, text);
	if (status >= 0)
		proc_end_process(w->run->procs, status);
}

static void check(const struct watch *w)
{
	char what[1200];
	uint64_t switches;

	for (size_t i = 0; i < w->n; i++) {
		const struct sleeper *s = &w->list[i];
		const uint64_t slept = clock_us() - s->since;

		if (slept < CANCELLED_US || !asks_filesystem(s, true, what, sizeof(what)))
			continue;
		take_signals(w);
		/* the call is that of the sleep, if it still is that sleep */
		if (slept >= patience(w->run) &&
		    asks_filesystem(s, w->run->ctx->cancelled, what, sizeof(what)) &&
		    sleeps(s, &switches) && switches == s->switches)
			give_up(w, s, what);
	}
}

static bool wait_a_tick(struct watch *w)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += TICK_NS;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	return pthread_cond_timedwait(&w->wake, &w->lock, &until) == ETIMEDOUT;
}

static void *keep_watch(void *arg)
{
	struct watch *w = arg;

	pthread_mutex_lock(&w->lock);
	while (!w->over) {
		if (!wait_a_tick(w) || w->over)
			continue;
		pthread_mutex_unlock(&w->lock);
		look(w);
		check(w);
		pthread_mutex_lock(&w->lock);
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

void watch_start(struct watch *w, struct ckpt_run *run)
{
	pthread_condattr_t clock;
	sigset_t all;

	*w = (struct watch){ .run = run };
	if (!run->ctx->hang)
		return;
	pthread_mutex_init(&w->lock, NULL);
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&w->wake, &clock);
	pthread_condattr_destroy(&clock);
	/* signals are for those who can be interrupted by them */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &w->mask);
	w->started = !pthread_create(&w->thread, NULL, keep_watch, w);
	pthread_sigmask(SIG_SETMASK, &w->mask, NULL);
	if (!w->started)
		ckpt_log(run, CKPT_LOG_WARN, "no thread to watch over filesystems that hang");
}

void watch_stop(struct watch *w)
{
	if (!w->started)
		return;
	pthread_mutex_lock(&w->lock);
	w->over = true;
	pthread_cond_signal(&w->wake);
	pthread_mutex_unlock(&w->lock);
	pthread_join(w->thread, NULL);
	pthread_cond_destroy(&w->wake);
	pthread_mutex_destroy(&w->lock);
}
