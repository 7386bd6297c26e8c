/* SPDX-License-Identifier: MIT */
/*
 * Root and working directories that are not found from ckpt's own root: in another mount
 * namespace, or below a chroot(2). Those in ckpt's own root are the plugin task's.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <sys/syscall.h>

#include "mnt.h"

struct place {
	int mnt; /* -ENOENT: nowhere */
	char path[PATH_MAX];
	bool found;		/* the path leads there */
	uint32_t gone_ns, gone; /* in /proc of that process, which has ended; 0, 0 */
};

static bool same(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static int locate(struct ckpt_run *run, const struct ckpt_task *t, const char *link,
		  struct place *p, struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = openat(t->procfd, link, O_PATH | O_CLOEXEC);
	ssize_t len = ckpt_proc_link(t, link, p->path, sizeof(p->path), err);
	struct stat is, there;

	if (fd < 0 || len < 0)
		return ckpt_fail_sys(err, fd < 0 ? errno : (int)len, "/proc/%d/%s", t->pid, link);
	if (fstat(fd, &is))
		return ckpt_fail_sys(err, errno, "/proc/%d/%s", t->pid, link);
	p->mnt = ckpt_mnt_of_fd(run, fd, err);
	if (p->mnt < 0 && p->mnt != -ENOENT)
		return p->mnt;
	p->gone_ns = p->gone = 0;
	p->found = false;
	if (p->mnt < 0)
		return 0;
	p->found =
		!ckpt_stat_in(run, (uint32_t)p->mnt, p->path, false, &there) && same(&is, &there);
	return p->found ? 0 : mnt_gone_find(run, fd, p->path, &p->gone_ns, &p->gone, err);
}

/* One process at a time is brought back for a moment: two that have ended are one too many. */
static int locate_both(struct ckpt_run *run, const struct ckpt_task *t, struct place *root,
		       struct place *cwd, struct ckpt_error *err)
{
	int r = locate(run, t, "root", root, err);

	if (r == 0)
		r = locate(run, t, "cwd", cwd, err);
	if (r == 0 && root->gone_ns && cwd->gone_ns &&
	    (root->gone_ns != cwd->gone_ns || root->gone != cwd->gone))
		cwd->gone_ns = 0;
	return r;
}

static int has_own_root(const struct ckpt_task *t)
{
	CKPT_AUTO_FD int theirs = openat(t->procfd, "root", O_PATH | O_CLOEXEC);
	CKPT_AUTO_FD int ours = open("/", O_PATH | O_CLOEXEC);
	uint64_t a = 0, b = 0;
	struct stat sa, sb;

	if (theirs < 0 || ours < 0 || fstat(theirs, &sa) || fstat(ours, &sb) ||
	    mnt_mount_id(theirs, "", &a) < 0 || mnt_mount_id(ours, "", &b) < 0)
		return -errno;
	return a == b && same(&sa, &sb);
}

int mnt_place_takes(struct ckpt_run *run, const struct ckpt_task *t, struct ckpt_error *err)
{
	int r = has_own_root(t);
	struct place cwd;

	if (r < 0)
		return ckpt_fail_sys(err, r, "/proc/%d/root", t->pid);
	if (!r)
		return 1;
	r = locate(run, t, "cwd", &cwd, err);
	return r < 0 ? r : cwd.mnt != 0;
}

static bool has_left(struct ckpt_run *run, int r)
{
	return ckpt_is_live(run) && (r == -ENOENT || r == -ESRCH);
}

/* A namespace that is left out leaves its tasks where ckpt is. */
static bool is_lost(struct ckpt_run *run, const struct ckpt_task *t)
{
	return ckpt_ns_of_task(run, t, CKPT_NS_MNT)->lost;
}

static void refuse_lost(struct ckpt_run *run, const struct ckpt_task *t, const struct place *p,
			const char *object)
{
	struct ckpt_blocker b = { "root",
				  t,
				  object,
				  "its path does not lead there (any more)",
				  "let it change to a directory that exists",
				  false };

	if (p->gone_ns)
		ckpt_refuse_off(run, "gone-root", t, object);
	else if (!p->found)
		ckpt_refuse(run, &b);
}

static int survey_one(struct ckpt_run *run, const struct ckpt_task *t, struct ckpt_error *err)
{
	struct place root, cwd;
	int r = locate_both(run, t, &root, &cwd, err);

	if (r < 0)
		return has_left(run, r) ? 0 : r;
	refuse_lost(run, t, &root, "root directory");
	refuse_lost(run, t, &cwd, "working directory");
	return 0;
}

int mnt_places_survey(struct ckpt_run *run, struct ckpt_error *err)
{
	for (size_t i = 0; i < ckpt_task_count(run); i++) {
		const struct ckpt_task *t = ckpt_task_at(run, i);
		int r = t->zombie || is_lost(run, t) ? 0 : mnt_place_takes(run, t, err);

		if (has_left(run, r) || !r)
			continue;
		if (r > 0)
			r = ckpt_refuse_off(run, "root", t, "root or working directory");
		if (r == 1)
			r = survey_one(run, t, err);
		if (r < 0 && r != -ECANCELED)
			return r;
	}
	return 0;
}

/* What is lost with the user's leave leaves the task at the top of its namespace. */
static void settle_for(struct ckpt_run *run, const struct ckpt_task *t, struct place *p)
{
	const struct ckpt_ns *ns = ckpt_ns_of_task(run, t, CKPT_NS_MNT);

	if (p->found || (p->gone_ns && ckpt_feature_on(run, "gone-root")))
		return;
	*p = (struct place){ .mnt = ns->own ? 0 : (int)ns->id, .path = "/" };
}

static int collect_one(struct ckpt_run *run, const struct ckpt_task *t, struct ckpt_error *err)
{
	Ckpt__Mnt__Place rec = CKPT__MNT__PLACE__INIT;
	struct place root, cwd;
	int r = locate_both(run, t, &root, &cwd, err);

	if (r < 0)
		return r;
	settle_for(run, t, &root);
	settle_for(run, t, &cwd);
	rec.id = t->id;
	rec.root_mnt = (uint32_t)root.mnt;
	rec.root = (ProtobufCBinaryData){ strlen(root.path), (uint8_t *)root.path };
	rec.cwd_mnt = (uint32_t)cwd.mnt;
	rec.cwd = (ProtobufCBinaryData){ strlen(cwd.path), (uint8_t *)cwd.path };
	rec.gone_ns = root.gone_ns ? root.gone_ns : cwd.gone_ns;
	rec.gone = root.gone_ns ? root.gone : cwd.gone;
	return ckpt_record_put(run, MNT_REC_PLACE, &rec.base, err);
}

int mnt_places_collect(struct ckpt_run *run, struct ckpt_error *err)
{
	for (size_t i = 0; i < ckpt_task_count(run) && ckpt_feature_on(run, "root"); i++) {
		const struct ckpt_task *t = ckpt_task_at(run, i);
		int r = t->zombie || is_lost(run, t) ? 0 : mnt_place_takes(run, t, err);

		if (r > 0)
			r = collect_one(run, t, err);
		if (r < 0)
			return r;
	}
	return 0;
}

/* ---- restore ------------------------------------------------------------------------- */

static bool good(struct ckpt_run *run, uint32_t mnt, const ProtobufCBinaryData *path)
{
	const struct ckpt_ns *ns = mnt ? ckpt_ns_by_id(run, mnt) : NULL;

	return path->len && path->len < PATH_MAX && path->data[0] == '/' &&
	       !memchr(path->data, 0, path->len) && (!mnt || (ns && ns->type == CKPT_NS_MNT));
}

static bool good_gone(struct ckpt_run *run, const Ckpt__Mnt__Place *rec)
{
	const struct ckpt_ns *ns = rec->gone_ns ? ckpt_ns_by_id(run, rec->gone_ns) : NULL;

	return !rec->gone_ns || (ns && ns->type == CKPT_NS_PID && rec->gone && rec->gone < INT_MAX);
}

static void must_be_there(struct ckpt_run *run, const Ckpt__Mnt__Place *rec, uint32_t mnt,
			  const ProtobufCBinaryData *bytes)
{
	char path[PATH_MAX];
	struct stat st;
	int r;

	mnt_bytes(bytes, path, sizeof(path));
	if (rec->gone_ns && mnt_gone_is(path, rec->gone))
		return;
	if (mnt) {
		r = ckpt_stat_in(run, mnt, path, false, &st);
	} else {
		CKPT_AUTO_FD int fd = mnt_open_path(AT_FDCWD, path);

		r = fd < 0 ? -errno : mnt_is_link(fd) ? -ELOOP : 0;
	}
	if (r < 0 && r != -EINPROGRESS)
		ckpt_unmet(run, CKPT_EXIT_FAILED, "make that directory",
			   "task %u: its directory %s is not there: %s", rec->id, path,
			   r == -ELOOP ? "a symbolic link leads there" : ckpt_errno_name(-r));
}

int mnt_places_plan(struct ckpt_run *run, struct ckpt_error *err)
{
	const Ckpt__Mnt__Place *rec;

	for (size_t i = 0; (rec = ckpt_record_at(run, "mnt.place", i)); i++) {
		if (!ckpt_record_by_id(run, "pid.task", rec->id) ||
		    !good(run, rec->root_mnt, &rec->root) || !good(run, rec->cwd_mnt, &rec->cwd) ||
		    !good_gone(run, rec))
			return ckpt_fail_image(err, "the place of task %u is not valid", rec->id);
		must_be_there(run, rec, rec->root_mnt, &rec->root);
		must_be_there(run, rec, rec->cwd_mnt, &rec->cwd);
	}
	return 0;
}

static int lend(struct ckpt_run *run, struct ckpt_task *t, uint32_t mnt,
		const ProtobufCBinaryData *bytes, const struct mnt_gone *gone,
		struct ckpt_error *err)
{
	char buf[PATH_MAX], other[PATH_MAX + 16];
	const char *path =
		mnt_gone_path(gone, mnt_bytes(bytes, buf, sizeof(buf)), other, sizeof(other));
	CKPT_AUTO_FD int fd = mnt ? ckpt_open_in(run, mnt, path, O_PATH | O_DIRECTORY, 0, err)
				  : mnt_open_path(AT_FDCWD, path);

	if (fd < 0)
		return mnt ? fd : ckpt_fail_sys(err, errno, "opening %s", path);
	return ckpt_lend_fd(run, t, fd, err);
}

static int enter(struct ckpt_run *run, const Ckpt__Mnt__Place *rec, const struct mnt_gone *gone,
		 struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "mnt.places");
	struct ckpt_task *t = ckpt_task_by_id(run, rec->id);
	int root, cwd, r;

	if (!t)
		return ckpt_fail(err, ESRCH, "it was not made");
	root = lend(run, t, rec->root_mnt, &rec->root, gone, err);
	cwd = root < 0 ? root : lend(run, t, rec->cwd_mnt, &rec->cwd, gone, err);
	if (cwd < 0)
		return cwd;
	ckpt_script_add(s, SYS_fchdir, CKPT_C(root));
	ckpt_script_add(s, SYS_chroot, CKPT_STR("."));
	ckpt_script_add(s, SYS_fchdir, CKPT_C(cwd));
	r = ckpt_script_run(s, t->threads[0], err);
	if (r == 0)
		r = ckpt_return_fd(run, t, cwd, err);
	return r < 0 ? r : ckpt_return_fd(run, t, root, err);
}

/* All that are in the same place enter it while its process is there, from record `first` on. */
static int enter_gone(struct ckpt_run *run, size_t first, struct ckpt_error *err)
{
	const Ckpt__Mnt__Place *rec = ckpt_record_at(run, "mnt.place", first), *other;
	struct mnt_gone gone = { .number = rec->gone };
	int r = mnt_gone_begin(run, ckpt_ns_by_id(run, rec->gone_ns), &gone, err);

	for (size_t i = first; r == 0 && (other = ckpt_record_at(run, "mnt.place", i)); i++)
		if (other->gone_ns == rec->gone_ns && other->gone == rec->gone) {
			r = enter(run, other, &gone, err);
			if (r < 0)
				ckpt_wrap(err, "task %u", other->id);
		}
	mnt_gone_end(&gone);
	return r;
}

/* Is it the first one in that place? */
static bool comes_first(struct ckpt_run *run, size_t at)
{
	const Ckpt__Mnt__Place *rec = ckpt_record_at(run, "mnt.place", at);

	for (size_t i = 0; i < at; i++) {
		const Ckpt__Mnt__Place *other = ckpt_record_at(run, "mnt.place", i);

		if (other->gone_ns == rec->gone_ns && other->gone == rec->gone)
			return false;
	}
	return true;
}

int mnt_places_enter(struct ckpt_run *run, struct ckpt_error *err)
{
	const struct mnt_gone none = { 0 };
	const Ckpt__Mnt__Place *rec;
	int r = 0;

	for (size_t i = 0; r == 0 && (rec = ckpt_record_at(run, "mnt.place", i)); i++) {
		if (!rec->gone_ns) {
			r = enter(run, rec, &none, err);
			if (r < 0)
				ckpt_wrap(err, "task %u", rec->id);
		} else if (comes_first(run, i)) {
			r = enter_gone(run, i, err);
		}
	}
	return r;
}
