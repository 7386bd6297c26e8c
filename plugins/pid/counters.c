/* SPDX-License-Identifier: MIT */
/*
 * What a nested pid namespace counts with: the highest number that it gives out
 * (one for each namespace since Linux 6.14, not saved before), and the number given out last. And
 * whether memfds are executable there, which has nothing to do with numbers. The
 * files of /proc/sys act on the pid namespace of whoever uses them, so the
 * namespace's first process reads and writes them.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/vfs.h>

#include "pid.h"

#define PID_MAX_FILE "/proc/sys/kernel/pid_max"
#define LAST_FILE    "/proc/sys/kernel/ns_last_pid"
#define NOEXEC_FILE  "/proc/sys/vm/memfd_noexec" /* since Linux 6.3 */
#define TEXT_SIZE    16

/* Inode of the root directory of each proc filesystem (include/linux/proc_ns.h). */
#define PROC_ROOT_INO 1

/* Append reading a small file; returns the operation whose second buffer holds the text. */
static int add_read(struct ckpt_script *s, const char *path)
{
	int fd = ckpt_script_add(s, SYS_openat, CKPT_C(AT_FDCWD), CKPT_STR(path),
				 CKPT_C(O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
	int text = ckpt_script_add(s, SYS_read, CKPT_R(fd), CKPT_OUT(TEXT_SIZE),
				   CKPT_C(TEXT_SIZE - 1));

	ckpt_script_add(s, SYS_close, CKPT_R(fd));
	return text;
}

static uint32_t number(const struct ckpt_script *s, int op)
{
	return (uint32_t)strtoul(ckpt_script_out(s, op, 1), NULL, 10);
}

/*
 * Values do not tell: a new namespace starts with the highest limit there is, which is what
 * systemd gives to the whole machine.
 */
static bool has_own_pid_max(void)
{
	unsigned major = 0, minor = 0;
	struct utsname un;

	return !uname(&un) && sscanf(un.release, "%u.%u", &major, &minor) == 2 &&
	       (major > 6 || (major == 6 && minor >= 14));
}

struct answer {
	uint32_t max, last, noexec; /* the last one as in the record */
};

static bool has_noexec(void)
{
	return access(NOEXEC_FILE, F_OK) == 0;
}

static int open_path(int at, const char *path, uint64_t resolve)
{
	const struct open_how how = { .flags = O_PATH | O_CLOEXEC,
				      .resolve = resolve | RESOLVE_NO_SYMLINKS };

	return (int)syscall(SYS_openat2, at, path, &how, sizeof(how));
}

/*
 * Are these files, for the task, the kernel's own? What is elsewhere under such a name is the
 * tree's: it may say anything, or be a FIFO in which the task would wait for ever.
 */
static bool sees_own_files(const struct ckpt_task *t)
{
	const char *const files[] = { PID_MAX_FILE, LAST_FILE,
				      has_noexec() ? NOEXEC_FILE : LAST_FILE };
	CKPT_AUTO_FD int root = openat(t->procfd, "root", O_PATH | O_DIRECTORY | O_CLOEXEC);
	CKPT_AUTO_FD int proc = open_path(root, "proc", RESOLVE_IN_ROOT);
	struct statfs fs;
	struct stat st;

	if (proc < 0 || fstatfs(proc, &fs) || fs.f_type != PROC_SUPER_MAGIC || fstat(proc, &st) ||
	    st.st_ino != PROC_ROOT_INO)
		return false;
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(files); i++) {
		/* nothing is mounted above it, so in this filesystem it is the one of that name */
		CKPT_AUTO_FD int fd = open_path(proc, files[i] + strlen("/proc/"),
						RESOLVE_BENEATH | RESOLVE_NO_XDEV);

		if (fd < 0)
			return false;
	}
	return true;
}

static int ask_task(struct ckpt_run *run, struct ckpt_task *init, struct answer *a,
		    struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "pid.counters");
	int max_op = add_read(s, PID_MAX_FILE), last_op = add_read(s, LAST_FILE);
	int noexec_op = has_noexec() ? add_read(s, NOEXEC_FILE) : -1;
	int r = ckpt_script_run(s, init->threads[0], err);

	if (r < 0)
		return r;
	a->max = number(s, max_op);
	a->last = number(s, last_op);
	a->noexec = noexec_op < 0 ? 0 : number(s, noexec_op) + 1;
	return 0;
}

static int own_number(const char *path, uint32_t *n)
{
	CKPT_AUTO_FILE FILE *f = fopen(path, "re");

	return f && fscanf(f, "%u", n) == 1 ? 0 : -EIO;
}

static uint32_t own_pid_max(void)
{
	uint32_t max;

	return own_number(PID_MAX_FILE, &max) < 0 ? 0 : max;
}

/* In the namespace, by a process that has taken the number after the last one. */
static int look(void *arg, struct ckpt_error *err)
{
	struct answer *a = arg;

	a->max = own_pid_max();
	a->last = (uint32_t)syscall(SYS_getpid) - 1;
	a->noexec = 0;
	if (has_noexec() && own_number(NOEXEC_FILE, &a->noexec) < 0)
		return ckpt_fail(err, EIO, "reading " NOEXEC_FILE);
	a->noexec += has_noexec();
	return a->max ? 0 : ckpt_fail(err, EIO, "reading " PID_MAX_FILE);
}

static int read_counters(struct ckpt_run *run, struct pid_ns *ns, struct ckpt_task *init,
			 struct answer *a, struct ckpt_error *err)
{
	const struct ckpt_ns_place place = { .ns[CKPT_NS_PID] = ns->nsfs };

	struct ckpt_error no = { 0 };
	int r = sees_own_files(init) ? ask_task(run, init, a, &no) : -EACCES;

	if (r == 0)
		return 0;
	/* the task may not look */
	if (r != -EACCES) {
		if (err)
			*err = no;
		return r;
	}
	ns->touched = true;
	return ckpt_ns_run(run, &place, look, a, err);
}

int pid_collect_counters(struct ckpt_run *run, Ckpt__Pid__Namespace *rec, struct pid_ns *ns,
			 struct ckpt_error *err)
{
	struct ckpt_task *init = ckpt_task_by_id(run, rec->init);
	struct answer a;
	int r;

	if (!rec->parent || !init || init->zombie)
		return 0;
	r = read_counters(run, ns, init, &a, err);
	if (r < 0)
		return r;
	ns->last = a.last;
	if (ckpt_refuse_off(run, "counters", init,
			    "pid_max, the next number and memfd_noexec of its namespace") == 1) {
		rec->pid_max = has_own_pid_max() ? a.max : 0;
		rec->last_pid = a.last;
		rec->memfd_noexec = a.noexec;
	}
	return 0;
}

/* Whoever looked from inside has taken a number there, and on all levels above. */
int pid_put_back_counters(struct ckpt_run *run, const struct pid_nsmap *map, struct ckpt_error *err)
{
	bool touched = false;
	int r = 0;

	for (size_t i = map->n; i-- > 1 && r == 0;) {
		touched |= map->ns[i].touched;
		if (touched && map->ns[i].last)
			r = pid_write_last(run, map->ns[i].nsfs, map->ns[i].last, err);
	}
	return r;
}

int pid_check_counters(const Ckpt__Pid__Namespace *rec, struct ckpt_error *err)
{
	if (rec->pid_max > PID_LIMIT || rec->last_pid > PID_LIMIT || rec->memfd_noexec > 3)
		return ckpt_fail_as(err, CKPT_EXIT_IMAGE, EINVAL,
				    "pid namespace %u: pid_max %u, last number %u, memfd_noexec %d",
				    rec->id, rec->pid_max, rec->last_pid,
				    (int)rec->memfd_noexec - 1);
	return 0;
}

/* One of another kernel: here writing it would change the whole machine. */
void pid_plan_pid_max(struct ckpt_run *run, const Ckpt__Pid__Namespace *rec)
{
	const uint32_t own = own_pid_max();

	if (!rec->pid_max || rec->pid_max == own || has_own_pid_max())
		return;
	ckpt_unmet(run, CKPT_EXIT_PRIVILEGE, "restore on Linux 6.14 or newer",
		   "pid namespace %u had a pid_max of %u, and this kernel has one for all, %u",
		   rec->id, rec->pid_max, own);
}

int pid_plan_noexec(struct ckpt_run *run, const Ckpt__Pid__Namespace *rec)
{
	uint32_t own = 0;

	if (!rec->memfd_noexec)
		return 0;
	if (has_noexec() && own_number(NOEXEC_FILE, &own) == 0 && own > rec->memfd_noexec - 1)
		return ckpt_unmet(run, CKPT_EXIT_FAILED, "set it lower here for the restore",
				  "pid namespace %u: " NOEXEC_FILE " was %u, and here it is %u",
				  rec->id, rec->memfd_noexec - 1, own);
	if (!has_noexec() && rec->memfd_noexec > 1)
		return ckpt_unmet(run, CKPT_EXIT_PRIVILEGE, "restore on Linux 6.3 or newer",
				  "this kernel has no " NOEXEC_FILE);
	return 0;
}

static int write_number(const char *path, uint32_t value, struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0 || dprintf(fd, "%u", value) < 0)
		return ckpt_fail_sys(err, errno, "%u to %s", value, path);
	return 0;
}

/* It is never below that of the namespace above. */
static int write_noexec(uint32_t value, struct ckpt_error *err)
{
	uint32_t now;

	/* a kernel without the file allows all */
	if (!has_noexec())
		return value ? ckpt_fail(err, ENOENT, "there is no " NOEXEC_FILE) : 0;
	if (own_number(NOEXEC_FILE, &now) == 0 && now == value)
		return 0;
	return write_number(NOEXEC_FILE, value, err);
}

/* In the namespace. */
static int write_counters(void *arg, struct ckpt_error *err)
{
	const Ckpt__Pid__Namespace *rec = arg;
	int r = 0;

	if (rec->pid_max && rec->pid_max != own_pid_max())
		r = write_number(PID_MAX_FILE, rec->pid_max, err);
	if (r == 0 && rec->memfd_noexec)
		r = write_noexec(rec->memfd_noexec - 1, err);
	if (r == 0 && rec->last_pid)
		r = write_number(LAST_FILE, rec->last_pid, err);
	return r;
}

int pid_write_last(struct ckpt_run *run, const struct ckpt_ns *ns, uint32_t last,
		   struct ckpt_error *err)
{
	Ckpt__Pid__Namespace rec = CKPT__PID__NAMESPACE__INIT;
	const struct ckpt_ns_place place = { .ns[CKPT_NS_PID] = ns };

	rec.last_pid = last;
	if (ns->own)
		return write_number(LAST_FILE, last, err);
	return ckpt_ns_run(run, &place, write_counters, &rec, err);
}

/* After the last task and thread: each takes a number, and pid_max bounds set_tid. */
int pid_counters(struct ckpt_run *run, struct ckpt_error *err)
{
	struct pid_plan *p = ckpt_state(run);
	int r = 0;

	/* a helper takes a number on all levels above: the innermost first */
	for (size_t i = p->n_ns; i-- > 1 && r == 0;) {
		const struct ckpt_ns_place place = { .ns[CKPT_NS_PID] = p->nsfs[i] };
		const int init = pid_plan_init(p, (uint32_t)i);

		if (init >= 0 && p->nodes[init].task && !p->nodes[init].task->zombie)
			r = ckpt_ns_run(run, &place, write_counters, (void *)(uintptr_t)p->ns[i],
					err);
	}
	return r;
}
