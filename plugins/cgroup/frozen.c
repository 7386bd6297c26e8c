/* SPDX-License-Identifier: MIT */
/*
 * Frozen groups of version 2. A task in one stops for ptrace(2), but runs no agent, so a group is
 * thawed while all that is in it stands, and frozen again before anybody is let go. A child sees to
 * that if ckpt is killed meanwhile.
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "cgroup.h"

#define FREEZE "cgroup.freeze"

static int set_frozen(int dir, const char *value)
{
	CKPT_AUTO_FD int fd = openat(dir, FREEZE, O_WRONLY | O_CLOEXEC);

	return fd < 0 || write(fd, value, 1) != 1 ? -errno : 0;
}

/* ---- who is in it ------------------------------------------------------------------------ */

/* The first process that is not of the tree (0: one that ckpt does not see), or -1. */
static pid_t outsider_here(struct ckpt_run *run, int dir, struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = openat(dir, "cgroup.procs", O_RDONLY | O_CLOEXEC);
	CKPT_AUTO_FILE FILE *f = fd < 0 ? NULL : fdopen(fd, "r");
	pid_t pid;

	if (!f)
		return ckpt_fail_sys(err, errno, "cgroup.procs");
	fd = -1;
	while (fscanf(f, "%d", &pid) == 1)
		if (!ckpt_task_by_pid(run, pid))
			return pid;
	/* a group of threads does not tell: the one above that holds the processes does */
	return -1;
}

static pid_t outsider_below(struct ckpt_run *run, int dir, struct ckpt_error *err)
{
	pid_t found = outsider_here(run, dir, err);
	CKPT_AUTO_FD int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CKPT_AUTO_DIR DIR *list = copy < 0 ? NULL : fdopendir(copy);
	struct dirent *e;

	if (!list && !err->err)
		return ckpt_fail_sys(err, errno, "control groups below");
	copy = -1;
	while (found == -1 && !err->err && (e = ckpt_next_entry(list))) {
		CKPT_AUTO_FD int below = -1;

		if (e->d_type != DT_DIR || *e->d_name == '.')
			continue;
		below = openat(dir, e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (below >= 0)
			found = outsider_below(run, below, err);
	}
	return found;
}

static bool covers(const char *above, const char *path)
{
	size_t n = strlen(above);

	return !strncmp(above, path, n) && (n == 1 || !path[n] || path[n] == '/');
}

int cgroup_outsider(struct ckpt_run *run, int dir, pid_t *pid, struct ckpt_error *err)
{
	*pid = outsider_below(run, dir, err);
	return err->err ? -err->err : 0;
}

/* ---- dump and verify: which are frozen ------------------------------------------------------ */

int cgroup_frozen_outsider(struct ckpt_run *run, const struct cgroup_state *st, const char *path,
			   pid_t *pid, struct ckpt_error *err)
{
	int r = 0;

	*pid = -1;
	for (size_t i = 0; i < st->n_frozen && r == 0 && *pid < 0; i++)
		if (covers(st->frozen[i].path, path))
			r = cgroup_outsider(run, st->frozen[i].dir, pid, err);
	return r;
}

bool cgroup_frozen_above(const struct cgroup_state *st, const char *path)
{
	for (size_t i = 0; i < st->n_frozen; i++)
		if (covers(st->frozen[i].path, path))
			return true;
	return false;
}

bool cgroup_was_frozen(const struct cgroup_state *st, const char *path)
{
	for (size_t i = 0; i < st->n_frozen; i++)
		if (!strcmp(st->frozen[i].path, path))
			return true;
	return false;
}

/* By a setting of its own? */
static int note(struct cgroup_state *st, size_t h, const char *path, struct ckpt_error *err)
{
	struct ckpt_error none = { 0 };
	CKPT_AUTO_FD int dir = -1;
	CKPT_AUTO_FREE char *text = NULL;
	struct cgroup_frozen *more;

	/* ckpt is not frozen; and what cannot be looked at is refused elsewhere, if it matters */
	if (covers(path, st->hierarchies[h].own) || cgroup_was_frozen(st, path))
		return 0;
	dir = cgroup_open(st, h, path, &none);
	if (dir < 0 || cgroup_read(dir, FREEZE, &text, &none) < 0 || !text ||
	    strcmp(text, "1") != 0)
		return 0;
	more = reallocarray(st->frozen, st->n_frozen + 1, sizeof(*more));
	if (!more)
		return ckpt_fail_sys(err, ENOMEM, "control groups");
	st->frozen = more;
	more[st->n_frozen] = (struct cgroup_frozen){ strdup(path), -1 };
	if (!more[st->n_frozen].path)
		return ckpt_fail_sys(err, ENOMEM, "control groups");
	more[st->n_frozen++].dir = ckpt_steal_fd(&dir);
	return 0;
}

struct finding {
	struct cgroup_state *st;
	char *last; /* most tasks are where the one before is */
};

static int find(void *arg, const char *name, const char *path, struct ckpt_error *err)
{
	struct finding *f = arg;
	CKPT_AUTO_FREE char *above = strdup(path);
	int h = cgroup_hierarchy(f->st, name), r = 0;

	if (*name || h < 0 || !above || !strncmp(path, "/..", 3) ||
	    (f->last && !strcmp(f->last, path)))
		return above ? 0 : ckpt_fail_sys(err, ENOMEM, "control groups");
	for (char *end = above + strlen(above); r == 0 && end > above; end = strrchr(above, '/')) {
		*end = 0;
		if (*above)
			r = note(f->st, (size_t)h, above, err);
	}
	free(f->last);
	f->last = strdup(path);
	return r;
}

int cgroup_find_frozen(struct ckpt_run *run, struct cgroup_state *st, struct ckpt_error *err)
{
	struct finding f = { st, NULL };
	int r = 0;

	for (size_t i = 0; i < ckpt_task_count(run) && r == 0 && !st->looked_for_frozen; i++) {
		const struct ckpt_task *t = ckpt_task_at(run, i);
		CKPT_AUTO_FREE char *text = NULL;
		struct ckpt_error gone = { 0 };

		if (t->zombie || ckpt_proc_read(t, "cgroup", &text, &gone) < 0)
			continue;
		r = cgroup_each_line(text, find, &f, err);
	}
	free(f.last);
	st->looked_for_frozen = true;
	return r;
}

void cgroup_forget_frozen(struct cgroup_state *st)
{
	for (size_t i = 0; i < st->n_frozen; i++) {
		free(st->frozen[i].path);
		close(st->frozen[i].dir);
	}
	free(st->frozen);
	if (st->watcher > 0) {
		kill(st->watcher, SIGKILL);
		waitpid(st->watcher, NULL, 0);
	}
}

/* ---- thawed for a while -----------------------------------------------------------------------
 */

static int freeze_again(const struct cgroup_state *st)
{
	int r = 0;

	for (size_t i = 0; i < st->n_frozen; i++) {
		int one = set_frozen(st->frozen[i].dir, "1");

		r = r ? r : one;
	}
	return r;
}

static int release(struct ckpt_run *run, struct ckpt_error *err)
{
	struct cgroup_state *st = cgroup_state(run, err);
	int r = st ? freeze_again(st) : -ENOMEM;

	if (st && st->watcher > 0) {
		kill(st->watcher, SIGKILL);
		waitpid(st->watcher, NULL, 0);
		st->watcher = 0;
	}
	return r < 0 ? ckpt_fail_sys(err, -r, "freezing a control group again") : 0;
}

static bool is_needed(const struct cgroup_state *st, int fd)
{
	for (size_t i = 0; i < st->n_frozen; i++)
		if (st->frozen[i].dir == fd)
			return true;
	return false;
}

/* It has nothing of the tree's, so that nobody takes it for a process outside that has. */
static _Noreturn void watch(const struct cgroup_state *st, int ckpt)
{
	struct pollfd p = { .fd = ckpt, .events = POLLIN };

	setsid();
	prctl(PR_SET_NAME, "ckpt-freezer");
	for (int fd = 0; fd < ckpt; fd++)
		if (!is_needed(st, fd))
			close(fd);
	syscall(SYS_close_range, ckpt + 1, ~0U, 0);
	while (poll(&p, 1, -1) <= 0)
		;
	freeze_again(st);
	_exit(0);
}

static int start_watcher(struct cgroup_state *st, struct ckpt_error *err)
{
	/* above all that it needs */
	CKPT_AUTO_FD int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
	CKPT_AUTO_FD int high = -1;
	int highest = 0;
	sigset_t all, before;

	for (size_t i = 0; i < st->n_frozen; i++)
		highest = st->frozen[i].dir > highest ? st->frozen[i].dir : highest;
	high = self < 0 ? -1 : fcntl(self, F_DUPFD_CLOEXEC, highest + 1);
	if (high < 0)
		return ckpt_fail_sys(err, errno, "pidfd_open(2)");
	/* signals of ckpt's terminal are not for it */
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, &before);
	st->watcher = fork();
	if (st->watcher == 0)
		watch(st, high);
	sigprocmask(SIG_SETMASK, &before, NULL);
	return st->watcher < 0 ? ckpt_fail_sys(err, errno, "fork(2)") : 0;
}

int cgroup_thaw(struct ckpt_run *run, struct ckpt_error *err)
{
	struct cgroup_state *st = cgroup_state(run, err);
	int r = st ? cgroup_find_frozen(run, st, err) : -ENOMEM;
	pid_t pid;

	if (r < 0 || !st->n_frozen || ckpt_is_live(run))
		return r;
	/* refused already, in a dump */
	for (size_t i = 0; i < st->n_frozen && r == 0; i++) {
		r = cgroup_outsider(run, st->frozen[i].dir, &pid, err);
		if (r == 0 && pid >= 0)
			r = ckpt_fail(err, EBUSY,
				      "control group %s is frozen, with process %d in it",
				      st->frozen[i].path, (int)pid);
	}
	if (r == 0)
		r = ckpt_on_release(run, release, err);
	if (r == 0)
		r = start_watcher(st, err);
	for (size_t i = 0; i < st->n_frozen && r == 0; i++)
		if (set_frozen(st->frozen[i].dir, "0"))
			r = ckpt_fail_sys(err, errno, "thawing control group %s",
					  st->frozen[i].path);
	return r;
}

/* ---- restore ------------------------------------------------------------------------------- */

static int freeze(struct ckpt_run *run, struct ckpt_error *err)
{
	struct cgroup_state *st = cgroup_state(run, err);
	int h = st ? cgroup_hierarchy(st, "") : -ENOMEM, r = h < 0 ? h : 0;

	for (size_t i = 0; i < ckpt_record_count(run, "cgroup.group") && r == 0; i++) {
		const Ckpt__Cgroup__Group *g = ckpt_record_at(run, "cgroup.group", i);
		CKPT_AUTO_FD int dir = -1;
		pid_t pid = -1;

		if (!g->frozen)
			continue;
		dir = cgroup_open(st, (size_t)h, g->path, err);
		r = dir < 0 ? dir : cgroup_outsider(run, dir, &pid, err);
		if (r == 0 && pid >= 0)
			r = ckpt_fail(err, EBUSY,
				      "process %d is in control group %s, and is not "
				      "to be frozen with the tree",
				      (int)pid, g->path);
		if (r == 0 && set_frozen(dir, "1"))
			r = ckpt_fail_sys(err, errno, "freezing control group %s", g->path);
	}
	return r;
}

int cgroup_freeze_later(struct ckpt_run *run, struct ckpt_error *err)
{
	for (size_t i = 0; i < ckpt_record_count(run, "cgroup.group"); i++) {
		const Ckpt__Cgroup__Group *g = ckpt_record_at(run, "cgroup.group", i);

		if (g->frozen)
			return ckpt_on_release(run, freeze, err);
	}
	return 0;
}

int cgroup_plan_frozen(struct ckpt_run *run, struct cgroup_state *st, struct ckpt_error *err)
{
	const int h = cgroup_hierarchy(st, "");
	int r = 0;

	for (size_t i = 0; i < ckpt_record_count(run, "cgroup.group") && r == 0; i++) {
		const Ckpt__Cgroup__Group *g = ckpt_record_at(run, "cgroup.group", i);
		struct ckpt_error none = { 0 };
		CKPT_AUTO_FD int dir = -1;
		pid_t pid = -1;

		if (g->frozen && (*g->hierarchy || g->own))
			return ckpt_fail_image(err, "group %u cannot be frozen", g->id);
		if (h < 0 || *g->hierarchy || ckpt_plan_only(run) || cgroup_follows(run, g))
			continue;
		dir = cgroup_open(st, (size_t)h, g->path, &none);
		r = dir < 0 ? 0 : cgroup_is_frozen(dir, err);
		if (r == 1)
			r = ckpt_unmet(run, CKPT_EXIT_FAILED, "thaw it (write 0 to cgroup.freeze)",
				       "control group %s is frozen", g->path);
		if (r == 0 && dir >= 0 && g->frozen)
			r = cgroup_outsider(run, dir, &pid, err);
		if (r == 0 && pid >= 0)
			ckpt_unmet(run, CKPT_EXIT_FAILED, "move it elsewhere",
				   "process %d is in control group %s, which is to be frozen",
				   (int)pid, g->path);
	}
	return r;
}
