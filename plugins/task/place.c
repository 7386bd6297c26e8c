/* SPDX-License-Identifier: MIT */
/*
 * Where a task is: root, working directory and umask are one object of the kernel's,
 * which all threads of a process have in common. Processes may share it (CLONE_FS),
 * and a thread may have one of its own (unshare(CLONE_FS)).
 */
#include <ckpt/mnt.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <ckpt/ns.h>

#include "task.h"

/* A process, or a thread that differs from it. */
struct holder {
	const struct ckpt_task *task;
	pid_t tid;
};

static bool is_thread(const struct holder *h)
{
	return h->tid != ckpt_task_tid(h->task);
}

static int kcmp_fs(pid_t a, pid_t b)
{
	long r = syscall(SYS_kcmp, a, b, KCMP_FS, 0, 0);

	return r < 0 ? -errno : (int)r;
}

static int by_tid(const void *a, const void *b)
{
	pid_t x = *(const pid_t *)a, y = *(const pid_t *)b;

	return (x > y) - (x < y);
}

static bool has_own(const struct ckpt_thread *th)
{
	return th != th->task->threads[0] && kcmp_fs(ckpt_task_tid(th->task), th->tid) > 0;
}

bool task_has_own_place(const struct task_state *st, const struct ckpt_thread *th)
{
	return st->n_own_place &&
	       bsearch(&th->tid, st->own_place, st->n_own_place, sizeof(*st->own_place), by_tid);
}

/* Threads are many, and asking about each costs some microseconds: once a run. */
static int find_own_places(struct ckpt_run *run, struct task_state *st)
{
	size_t cap = 0;

	/* what a running tree told may have changed */
	if (st->own_place && !ckpt_is_live(run))
		return 0;
	for (size_t i = 0; i < ckpt_task_count(run); i++)
		cap += ckpt_task_at(run, i)->n_threads;
	free(st->own_place);
	st->n_own_place = 0;
	st->own_place = calloc(cap + 1, sizeof(*st->own_place));
	if (!st->own_place)
		return -ENOMEM;
	for (size_t i = 0; i < ckpt_task_count(run); i++) {
		const struct ckpt_task *t = ckpt_task_at(run, i);

		for (size_t k = 1; k < t->n_threads && !t->zombie; k++)
			if (has_own(t->threads[k]))
				st->own_place[st->n_own_place++] = t->threads[k]->tid;
	}
	qsort(st->own_place, st->n_own_place, sizeof(*st->own_place), by_tid);
	return 0;
}

/* ---- survey ------------------------------------------------------------------------- */

static int same_file(const struct holder *h, const char *link, const char *path)
{
	char of[64];
	struct stat a, b;

	snprintf(of, sizeof(of), "task/%d/%s", h->tid, link);
	if (fstatat(h->task->procfd, of, &a, 0) < 0)
		return -errno;
	return stat(path, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

struct question {
	const struct ckpt_place_kind *kind;
	const struct ckpt_task *task;
};

static int ask(struct ckpt_run *run, void *arg, struct ckpt_error *err)
{
	const struct question *q = arg;

	return q->kind->takes(run, q->task, err);
}

/* 1: another plugin sees to where this process is. */
static int is_taken(struct ckpt_run *run, const struct holder *h, struct ckpt_error *err)
{
	const struct ckpt_extension *e;
	const char *plugin;
	int r = 0;

	for (size_t i = 0;
	     !r && !is_thread(h) && (e = ckpt_extension_at(run, CKPT_PLACE_POINT, i, &plugin));
	     i++) {
		struct question q = { e->ops, h->task };

		r = ckpt_call_as(run, plugin, ask, &q, err);
	}
	return r;
}

static struct holder holder_of(const struct ckpt_thread *th)
{
	return (struct holder){ th->task, th->tid };
}

static void parent_of(const char *path, char *dir, size_t size)
{
	const char *slash = strrchr(path, '/');

	snprintf(dir, size, "%.*s", slash && slash != path ? (int)(slash - path) : 1, path);
}

/*
 * Is it a directory that was removed, while the one that it was in is there? Cuts the
 * kernel's mark off. On some filesystems such a one keeps a link: the name decides.
 */
static bool was_removed(const struct holder *h, char *cwd, struct stat *st)
{
	const char mark[] = " (deleted)";
	size_t len = strlen(cwd), cut = sizeof(mark) - 1;
	char link[64], dir[4096];
	struct stat parent;

	snprintf(link, sizeof(link), "task/%d/cwd", h->tid);
	if (len <= cut || strcmp(cwd + len - cut, mark) != 0 || !stat(cwd, &parent) ||
	    fstatat(h->task->procfd, link, st, 0))
		return false;
	cwd[len - cut] = 0;
	parent_of(cwd, dir, sizeof(dir));
	if (!stat(dir, &parent) && S_ISDIR(parent.st_mode) && parent.st_dev == st->st_dev)
		return true;
	cwd[len - cut] = ' ';
	return false;
}

static int root_and_cwd(struct ckpt_run *run, const struct holder *h, struct ckpt_error *err)
{
	const struct ckpt_task *t = h->task;
	char cwd[4096], link[64];
	struct stat st;
	ssize_t len;
	int r = is_taken(run, h, err);

	if (r)
		return r > 0 || task_gone(run, r) ? 0 : r;
	snprintf(link, sizeof(link), "task/%d/cwd", h->tid);
	len = ckpt_proc_link(t, link, cwd, sizeof(cwd), err);
	r = same_file(h, "root", "/proc/self/root");
	if (task_gone(run, r) || task_gone(run, (int)len))
		return 0;
	if (r < 0)
		return ckpt_fail_sys(err, r, "/proc/%d/task/%d/root", t->pid, h->tid);
	if (len < 0)
		return (int)len;
	if (!r) {
		task_refuse(run, t, "root", "root directory", "it is not the one that ckpt has",
			    "run ckpt in the same root, or switch the plugin mnt on");
		return 0;
	}
	r = same_file(h, "cwd", cwd);
	if (task_gone(run, r))
		return 0;
	if (r < 0)
		return ckpt_fail_sys(err, r, "/proc/%d/task/%d/cwd", t->pid, h->tid);
	if (!r && was_removed(h, cwd, &st))
		ckpt_refuse_off(run, "removed-cwd", t, cwd);
	else if (!r)
		task_refuse(run, t, "cwd", cwd,
			    "the working directory has no path any more, nor has the one that it "
			    "was in",
			    "change to a directory that exists");
	return 0;
}

static int by_kernel(const void *va, const void *vb)
{
	const struct holder *a = va, *b = vb;
	int order = kcmp_fs(a->tid, b->tid);

	if (order == 1 || order == 2)
		return order == 1 ? -1 : 1;
	/* equal ones next to each other, in a repeatable order: processes first, by id */
	if (is_thread(a) != is_thread(b))
		return is_thread(a) ? 1 : -1;
	if (a->task->id != b->task->id)
		return a->task->id < b->task->id ? -1 : 1;
	return (a->tid > b->tid) - (a->tid < b->tid);
}

/* setns(2) wants a place that nobody else has (userns_install()): it cannot be shared before. */
static bool is_led(struct ckpt_run *run, const struct ckpt_task *t)
{
	const struct ckpt_ns *user = ckpt_ns_of_task(run, t, CKPT_NS_USER);
	const struct ckpt_ns *mnt = ckpt_ns_of_task(run, t, CKPT_NS_MNT);

	return (!user->own && !user->lost) || (!mnt->own && !mnt->lost);
}

static bool cannot_share(struct ckpt_run *run, const struct holder *first, const struct holder *h)
{
	return is_led(run, first->task) || is_led(run, h->task);
}

static void refuse_shared(struct ckpt_run *run, const struct holder *first, const struct holder *h)
{
	char object[128];

	snprintf(object, sizeof(object),
		 "working directory and umask of %d, shared with task %u (%.15s)", h->tid,
		 first->task->id, first->task->comm);
	if (is_thread(h))
		task_refuse(run, h->task, "thread-fs", object,
			    "a thread that shares them with others than its own process cannot be "
			    "made again",
			    "let the thread call unshare(CLONE_FS)");
	else if (ckpt_refuse_off(run, "shared-fs", h->task, object) == 1 &&
		 cannot_share(run, first, h))
		task_refuse(run, h->task, "nested-fs", object,
			    "processes that share them in a user or mount namespace of their own "
			    "cannot be made again",
			    "try again when the one that shares them has ended, as a browser's "
			    "helper does, or let it call unshare(CLONE_FS)");
}

static int list_holders(struct ckpt_run *run, struct holder **out, size_t *n)
{
	struct ckpt_error ignored = { 0 };
	struct task_state *st = task_state(run, &ignored);
	int r = st ? find_own_places(run, st) : -ENOMEM;

	if (r < 0)
		return r;
	*out = calloc(ckpt_task_count(run) + st->n_own_place + 1, sizeof(**out));
	if (!*out)
		return -ENOMEM;
	for (size_t i = 0; i < ckpt_task_count(run); i++) {
		const struct ckpt_task *t = ckpt_task_at(run, i);

		for (size_t k = 0; k < t->n_threads && !t->zombie; k++)
			if (!k || task_has_own_place(st, t->threads[k]))
				(*out)[(*n)++] = (struct holder){ t, t->threads[k]->tid };
	}
	return 0;
}

static void survey_thread(struct ckpt_run *run, const struct holder *h)
{
	char object[80];

	snprintf(object, sizeof(object), "working directory and umask of thread %d", h->tid);
	ckpt_refuse_off(run, "thread-fs", h->task, object);
}

/* The first of those that share something, and another of them. */
typedef void (*pair_fn)(struct ckpt_run *run, const struct holder *first, const struct holder *h);

static void each_shared(struct ckpt_run *run, struct holder *list, size_t n, pair_fn fn)
{
	if (n > 1)
		qsort(list, n, sizeof(*list), by_kernel);
	for (size_t i = 0, j; i < n; i = j)
		for (j = i + 1; j < n && kcmp_fs(list[i].tid, list[j].tid) == 0; j++)
			fn(run, &list[i], &list[j]);
}

int task_places_survey(struct ckpt_run *run, struct ckpt_error *err)
{
	CKPT_AUTO_FREE struct holder *list = NULL;
	size_t n = 0;
	int r = list_holders(run, &list, &n);

	if (r < 0)
		return ckpt_fail_sys(err, r, "%zu tasks", ckpt_task_count(run));
	for (size_t i = 0; i < n && r == 0; i++) {
		r = root_and_cwd(run, &list[i], err);
		if (is_thread(&list[i]))
			survey_thread(run, &list[i]);
	}
	each_shared(run, list, n, refuse_shared);
	return r;
}

/* ---- collect -------------------------------------------------------------------------- */

static void note_shared(struct ckpt_run *run, const struct holder *first, const struct holder *h)
{
	struct task_state *st = ckpt_state(run);

	/* where it cannot be, the user has allowed to lose it */
	if (!is_thread(h) && !is_thread(first) && !cannot_share(run, first, h))
		st->fs_first[h->task->id - 1] = first->task->id;
}

int task_places_collect(struct ckpt_run *run, struct ckpt_error *err)
{
	struct task_state *st = task_state(run, err);
	CKPT_AUTO_FREE struct holder *list = NULL;
	size_t n = 0;

	if (!st)
		return -err->err;
	free(st->fs_first);
	st->fs_first = calloc(ckpt_task_count(run) + 1, sizeof(*st->fs_first));
	if (!st->fs_first || list_holders(run, &list, &n))
		return ckpt_fail_sys(err, ENOMEM, "%zu tasks", ckpt_task_count(run));
	if (ckpt_feature_on(run, "shared-fs"))
		each_shared(run, list, n, note_shared);
	return 0;
}

int task_cwd_read(struct ckpt_run *run, const struct ckpt_thread *th, char *cwd, size_t size,
		  Ckpt__Task__Removed *removed, struct ckpt_error *err)
{
	struct holder h = holder_of(th);
	char path[64], dir[4096];
	struct stat st;

	task_path(path, sizeof(path), th, "cwd");
	if (ckpt_proc_link(th->task, path, cwd, size, err) < 0)
		return -err->err;
	if (!was_removed(&h, cwd, &st))
		return 0;
	if (!ckpt_feature_on(run, task_features[TASK_REMOVED_CWD].name)) {
		parent_of(cwd, dir, sizeof(dir));
		snprintf(cwd, size, "%s", dir);
		return 0;
	}
	ckpt__task__removed__init(removed);
	removed->uid = st.st_uid;
	removed->gid = st.st_gid;
	removed->mode = st.st_mode & 07777;
	return 1;
}

int task_place_read(struct ckpt_run *run, const struct ckpt_thread *th, struct task_place *place,
		    struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *status = NULL;
	char path[64], mask[16];
	int r;

	task_path(path, sizeof(path), th, "status");
	if (ckpt_proc_read(th->task, path, &status, err) < 0)
		return -err->err;
	if (ckpt_proc_field(status, "Umask", mask, sizeof(mask)) < 0)
		return ckpt_fail(err, EINVAL, "/proc/%d/%s: no Umask", th->task->pid, path);
	r = task_cwd_read(run, th, place->cwd, sizeof(place->cwd), &place->removed, err);
	if (r < 0)
		return r;
	ckpt__task__place__init(&place->msg);
	place->msg.umask = (uint32_t)strtoul(mask, NULL, 8);
	place->msg.cwd = place->cwd;
	place->msg.removed = r ? &place->removed : NULL;
	return 0;
}

/* ---- restore ------------------------------------------------------------------------ */

/* A task went there by name: is it where the name leads without a link that is not root's? */
static int check_there(struct ckpt_run *run, const struct ckpt_thread *th, const char *dir,
		       struct ckpt_error *err)
{
	struct stat is, there;
	char link[40];
	int r;

	/* in a namespace of its own, and left out of what is put back there: its names are others
	 */
	if (!ckpt_ns_of_task(run, th->task, CKPT_NS_MNT)->own)
		return 0;
	r = ckpt_stat_in(run, 0, dir, false, &there);
	if (r == -ELOOP) {
		r = ckpt_open_in(run, 0, dir, O_PATH | O_DIRECTORY, 0, err);
		return r < 0 ? r : close(r);
	}
	snprintf(link, sizeof(link), "task/%d/cwd", th->tid);
	if (r < 0 || fstatat(th->task->procfd, link, &is, 0))
		return ckpt_fail_sys(err, r < 0 ? r : errno, "the directory %s", dir);
	if (is.st_dev == there.st_dev && is.st_ino == there.st_ino)
		return 0;
	return ckpt_fail(err, ESTALE, "%s was replaced meanwhile", dir);
}

int task_cwd_check(struct ckpt_run *run, const struct task_state *st, const struct ckpt_thread *th,
		   const char *cwd, const Ckpt__Task__Removed *removed, struct ckpt_error *err)
{
	if (!task_saved(st, TASK_CWD) || removed || task_place_made(run, th->task->id))
		return 0;
	return check_there(run, th, cwd, err);
}

/*
 * Whoever may write to the directory above can put something else in the place of a fresh one, and
 * the task is privileged still: its name is not trusted. A link is not followed, and it gets its
 * owner once it is known to be a directory that is gone (getcwd(2) says ENOENT of one).
 */
static void remade_script(struct ckpt_script *s, const char *name,
			  const Ckpt__Task__Removed *removed)
{
	int fd;

	ckpt_script_add(s, SYS_mkdir, CKPT_STR(name), CKPT_C(0700));
	fd = ckpt_script_add(s, SYS_open, CKPT_STR(name),
			     CKPT_C(O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
	ckpt_script_add(s, SYS_rmdir, CKPT_STR(name));
	ckpt_script_add(s, SYS_fchdir, CKPT_R(fd));
	ckpt_script_add(s, SYS_close, CKPT_R(fd));
	ckpt_script_add(s, SYS_getcwd, CKPT_OUT(64), CKPT_C(64));
	ckpt_script_expect(s, -ENOENT);
	ckpt_script_add(s, SYS_chown, CKPT_STR("."), CKPT_C(removed->uid), CKPT_C(removed->gid));
	ckpt_script_add(s, SYS_chmod, CKPT_STR("."), CKPT_C(removed->mode));
}

/* Nothing is made in the directory above before it is known to be the one. */
static int go_above(struct ckpt_run *run, struct ckpt_thread *th, const char *cwd,
		    struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "task.cwd");
	char dir[4096];
	int r;

	parent_of(cwd, dir, sizeof(dir));
	ckpt_script_add(s, SYS_chdir, CKPT_STR(dir));
	r = ckpt_script_run(s, th, err);
	return r < 0 ? r : check_there(run, th, dir, err);
}

/* A removed one is made again, under another name if the old one is taken, and removed again. */
int task_cwd_script(struct ckpt_run *run, struct ckpt_thread *th, struct ckpt_script *s,
		    const char *cwd, const Ckpt__Task__Removed *removed, struct ckpt_error *err)
{
	const char *name = strrchr(cwd, '/') + 1;
	struct stat st;
	char other[64];
	int r;

	if (!removed) {
		ckpt_script_add(s, SYS_chdir, CKPT_STR(cwd));
		return 0;
	}
	r = go_above(run, th, cwd, err);
	if (r < 0)
		return r;
	snprintf(other, sizeof(other), ".ckpt-%llu", (unsigned long long)ckpt_run_number(run));
	remade_script(s, ckpt_stat_in(run, 0, cwd, true, &st) ? name : other, removed);
	return 0;
}

int task_place_script(struct ckpt_run *run, struct ckpt_thread *th, struct ckpt_script *s,
		      const struct task_state *st, const Ckpt__Task__Place *place,
		      struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *own = ckpt_script_new(run, "task.place");
	int r;

	ckpt_script_add(own, SYS_unshare, CKPT_C(CLONE_FS));
	r = ckpt_script_run(own, th, err);
	if (r < 0)
		return r;
	if (task_saved(st, TASK_UMASK))
		ckpt_script_add(s, SYS_umask, CKPT_C(place->umask));
	return task_saved(st, TASK_CWD)
		       ? task_cwd_script(run, th, s, place->cwd, place->removed, err)
		       : 0;
}

bool task_place_made(struct ckpt_run *run, uint32_t id)
{
	return ckpt_record_by_id(run, "mnt.place", id) != NULL;
}

int task_place_plan(struct ckpt_run *run, const struct task_state *st, uint32_t id,
		    const Ckpt__Task__Place *place, struct ckpt_error *err)
{
	const Ckpt__Task__Removed *removed = place->removed;
	char dir[4096];
	struct stat there;
	int r;

	if (place->umask > 0777 || place->cwd[0] != '/' || strlen(place->cwd) >= sizeof(dir) ||
	    (removed && removed->mode > 07777))
		return TASK_BAD(err, "umask or working directory");
	if (removed)
		parent_of(place->cwd, dir, sizeof(dir));
	else
		snprintf(dir, sizeof(dir), "%s", place->cwd);
	if (!task_saved(st, TASK_CWD) || task_place_made(run, id))
		return 0;
	r = ckpt_stat_in(run, 0, dir, false, &there);
	if (r == -ELOOP)
		ckpt_link_unmet(run, dir);
	else if (r < 0 || !S_ISDIR(there.st_mode))
		ckpt_unmet(run, CKPT_EXIT_FAILED, "make that directory",
			   "task %u: the directory %s, %s, is not there", id, dir,
			   removed ? "which its working directory was in" : "where it works");
	return 0;
}

static uint32_t shares_with(struct ckpt_run *run, uint32_t task)
{
	const Ckpt__Task__Process *p = ckpt_record_by_id(run, "task.process", task);

	return p ? p->shares_fs : 0;
}

const struct ckpt_share_kind task_share_fs = {
	.size = sizeof(struct ckpt_share_kind),
	.flag = CLONE_FS,
	.with = shares_with,
	.what = "working directory and umask",
};
