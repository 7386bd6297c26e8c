/* SPDX-License-Identifier: MIT */
/*
 * inotify: its watches, under the numbers that the program knows. The kernel tells
 * a watched inode by a handle, which leads to a path. It gives out numbers one after
 * the other: what lies between is given to watches that nobody misses.
 */
#include "internal.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/inotify.h>
#include <sys/syscall.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sysmacros.h>
#include <time.h>

#define MASK_OK (IN_ALL_EVENTS | IN_EXCL_UNLINK | IN_ONESHOT)
/* Passing over a number costs two system calls. */
#define WD_MAX (1 << 20)
/* Watches that end leave an event each; the kernel keeps 16384. */
#define DRAIN_EVERY 8192
/* The kernel's limit of a queue, up to which one is filled until it overflows. */
#define QUEUE_LIMIT "/proc/sys/fs/inotify/max_queued_events"
#define QUEUE_MAX   (1L << 22)

struct watch {
	unsigned wd, mask;
	unsigned long ino, sdev;
	struct fd_handle handle;
};

static bool inotify_match(const struct ckpt_fd_found *f)
{
	return !strcmp(f->link, "anon_inode:inotify");
}

/* ---- from handle to path -------------------------------------------------------------- */

static int parse_watch(const char *lines, struct watch *w)
{
	/* alone: sscanf(3) measures all of the text that follows, each time */
	char line[256 + 2 * MAX_HANDLE_SZ];
	unsigned bytes, type, byte;
	int at = 0;

	snprintf(line, sizeof(line), "%.*s", (int)(strchrnul(lines, '\n') - lines), lines);
	if (sscanf(line,
		   "inotify wd:%x ino:%lx sdev:%lx mask:%x ignored_mask:%*x "
		   "fhandle-bytes:%x fhandle-type:%x f_handle:%n",
		   &w->wd, &w->ino, &w->sdev, &w->mask, &bytes, &type, &at) != 6 ||
	    !at || bytes > MAX_HANDLE_SZ)
		return -EOPNOTSUPP;
	w->handle.h.handle_bytes = bytes;
	w->handle.h.handle_type = (int)type;
	for (unsigned i = 0; i < bytes; i++) {
		if (sscanf(line + at + 2 * (size_t)i, "%2x", &byte) != 1)
			return -EOPNOTSUPP;
		w->handle.bytes[i] = (unsigned char)byte;
	}
	return 0;
}

struct place {
	uint32_t mnt; /* the namespace in which the path holds */
	char path[PATH_MAX];
	struct stat st;
};

struct resolving {
	struct ckpt_run *run;
	struct watch *w;
	struct place *place;
};

/* Does the path that the kernel has for this inode lead there? */
static bool try_mount(int mount, void *arg)
{
	const struct resolving *r = arg;
	struct place *p = r->place;
	CKPT_AUTO_FD int fd = fd_handle_in(mount, &r->w->handle);
	struct ckpt_error ignored = { 0 };
	struct stat a;
	char name[32];
	ssize_t len;
	int mnt;

	if (fd < 0 || fstat(fd, &a))
		return false;
	snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
	len = readlink(name, p->path, sizeof(p->path) - 1);
	mnt = ckpt_mnt_of_fd(r->run, fd, &ignored);
	if (len <= 0 || mnt < 0)
		return false;
	p->path[len] = '\0';
	p->mnt = (uint32_t)mnt;
	return p->path[0] == '/' && !ckpt_stat_in(r->run, p->mnt, p->path, true, &p->st) &&
	       a.st_dev == p->st.st_dev && a.st_ino == p->st.st_ino;
}

/* Try the mounts of its filesystem, one after the other, our own first. */
static bool resolve(struct ckpt_run *run, struct watch *w, struct place *place)
{
	struct resolving r = { run, w, place };
	/* the kernel's own form of a device number, with 20 bits for the minor */
	const dev_t dev = makedev(w->sdev >> 20, w->sdev & 0xfffff);

	return fd_each_mount(dev, try_mount, &r) ||
	       fd_each_mount_of_tree(run, dev, try_mount, &r) ||
	       fd_overlay_find(run, dev, &w->handle, &place->mnt, place->path, &place->st);
}

/* ---- dump ------------------------------------------------------------------------------ */

static const char *next_watch(const char *text)
{
	const char *line = strstr(text, "\ninotify ");

	return line ? line + 1 : NULL;
}

static int survey_watch(struct ckpt_run *run, const struct ckpt_fd_found *f, const char *line)
{
	struct watch w = { 0 };
	struct place place;
	char reason[160];

	if (parse_watch(line, &w) || w.mask & ~(unsigned)MASK_OK)
		snprintf(reason, sizeof(reason),
			 "the kernel's description of a watch is not understood (no file handle?)");
	else if (w.wd > WD_MAX)
		snprintf(reason, sizeof(reason), "watch %u: its number is too high", w.wd);
	else if (!resolve(run, &w, &place))
		snprintf(reason, sizeof(reason),
			 "watch %u: no path leads to what it watches (inode %lu of device %lu:%lu)",
			 w.wd, w.ino, w.sdev >> 20, w.sdev & 0xfffff);
	else
		return 0;
	return fd_refuse(run, f, "inotify", reason,
			 "let the program remove that watch before the dump, or allow the loss");
}

/*
 * Reading takes events out, and nothing puts them back in: a tree that goes on would miss them.
 * 1: they wait, and may be lost; 0: there are none, or they are in the way of the dump.
 */
static int waiting(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	int queued = 0, r;

	if (ioctl(f->fd, FIONREAD, &queued))
		return ckpt_fail_sys(err, errno, "FIONREAD");
	if (!queued)
		return 0;
	r = fd_refuse_detail(
		run, f, "inotify-queue", "events wait that nobody has read yet",
		"try again, or --allow-loss fd.inotify-queue: in place of these events "
		"the program then reads IN_Q_OVERFLOW, which says that some were lost");
	return r < 0 ? r : !r;
}

static int inotify_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
			  struct ckpt_error *err)
{
	int out = 0, r;

	for (const char *line = next_watch(f->fdinfo); line; line = next_watch(line)) {
		r = survey_watch(run, f, line);
		if (r < 0)
			return r;
		out |= r;
	}
	if (out)
		return out;
	r = waiting(run, f, err);
	return r < 0 ? r : 0;
}

static int by_wd(const void *va, const void *vb)
{
	const Ckpt__Fd__Watch *a = *(Ckpt__Fd__Watch *const *)va;
	const Ckpt__Fd__Watch *b = *(Ckpt__Fd__Watch *const *)vb;

	return (a->wd > b->wd) - (a->wd < b->wd);
}

static int add_watch(struct ckpt_run *run, Ckpt__Fd__Inotify *rec, const char *line,
		     struct ckpt_error *err)
{
	Ckpt__Fd__Watch *watch = malloc(sizeof(*watch));
	Ckpt__Fd__Owner *owner = malloc(sizeof(*owner));
	struct watch w = { 0 };
	struct place place;

	if (!watch || !owner) {
		free(watch);
		free(owner);
		return ckpt_fail(err, ENOMEM, "out of memory");
	}
	ckpt__fd__watch__init(watch);
	ckpt__fd__owner__init(owner);
	watch->owner = owner;
	rec->watches[rec->n_watches++] = watch;
	if (parse_watch(line, &w) || !resolve(run, &w, &place))
		return ckpt_fail(err, ENOENT, "what watch %u watches is gone", w.wd);
	watch->wd = (int32_t)w.wd;
	watch->mask = w.mask;
	watch->link = S_ISLNK(place.st.st_mode);
	watch->mnt = place.mnt;
	watch->dev = place.mnt ? 0 : place.st.st_dev;
	watch->ino = place.mnt ? 0 : place.st.st_ino;
	fd_owner_of(&place.st, owner);
	watch->path.data = (uint8_t *)strdup(place.path);
	watch->path.len = strlen(place.path);
	return watch->path.data ? 0 : ckpt_fail(err, ENOMEM, "out of memory");
}

/* An instance, and its watches, count for whoever made it; the kernel does not tell who that was.
 */
static int read_uid(const struct ckpt_task *holder, uint32_t *uid, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *status = NULL;
	char ids[64] = "";
	ssize_t len = ckpt_proc_read(holder, "status", &status, err);

	if (len < 0)
		return (int)len;
	if (ckpt_proc_field(status, "Uid", ids, sizeof(ids)) || sscanf(ids, "%*u %u", uid) != 1)
		return ckpt_fail(err, EPROTO, "/proc/%d/status is not understood", holder->pid);
	return 0;
}

static int inotify_collect(struct ckpt_run *run, const struct ckpt_fd_found *f,
			   struct ckpt_error *err)
{
	Ckpt__Fd__Inotify rec = CKPT__FD__INOTIFY__INIT;
	size_t n = 0;
	/* others may have been busy with the files since the survey */
	int r = waiting(run, f, err);

	if (r < 0)
		return r;
	rec.overflow = r;
	r = read_uid(f->task, &rec.uid, err);
	if (r < 0)
		return r;
	for (const char *line = next_watch(f->fdinfo); line; line = next_watch(line))
		n++;
	rec.id = f->file;
	rec.watches = calloc(n + 1, sizeof(*rec.watches));
	if (!rec.watches)
		return ckpt_fail(err, ENOMEM, "out of memory");
	for (const char *line = next_watch(f->fdinfo); line && !r; line = next_watch(line))
		r = add_watch(run, &rec, line, err);
	if (!r) {
		qsort(rec.watches, rec.n_watches, sizeof(*rec.watches), by_wd);
		r = ckpt_record_put(run, FD_INOTIFY, &rec.base, err);
	}
	for (size_t i = 0; i < rec.n_watches; i++) {
		free(rec.watches[i]->path.data);
		free(rec.watches[i]->owner);
		free(rec.watches[i]);
	}
	free(rec.watches);
	return r;
}

/* ---- restore --------------------------------------------------------------------------- */

static long queue_limit(void)
{
	CKPT_AUTO_FD int fd = open(QUEUE_LIMIT, O_RDONLY | O_CLOEXEC);
	char buf[24] = "";

	return fd < 0 || read(fd, buf, sizeof(buf) - 1) <= 0 ? 0 : atol(buf);
}

static int inotify_plan(struct ckpt_run *run, uint32_t id, struct ckpt_error *err)
{
	const Ckpt__Fd__Inotify *rec = ckpt_record_need(run, "fd.inotify", id, err);
	int32_t last = 0;

	if (!rec)
		return -EBADMSG;
	if (rec->overflow && queue_limit() > QUEUE_MAX)
		ckpt_unmet(run, CKPT_EXIT_FAILED, "lower it for the time of the restore",
			   "%s is above %ld: too much to fill a queue until it overflows",
			   QUEUE_LIMIT, QUEUE_MAX);
	for (size_t i = 0; i < rec->n_watches; i++) {
		const Ckpt__Fd__Watch *w = rec->watches[i];
		char buf[PATH_MAX];
		const char *path = fd_image_path(&w->path, buf, sizeof(buf));
		struct stat st;
		int r;

		if (!path || w->wd <= last || w->wd > WD_MAX || w->mask & ~(uint32_t)MASK_OK ||
		    !(w->mask & IN_ALL_EVENTS))
			return ckpt_fail_image(err, "watch %d of inotify %u is not valid", w->wd,
					       id);
		last = w->wd;
		r = ckpt_stat_in(run, w->mnt, path, true, &st);
		if (r == -ELOOP)
			fd_missing(run, path, r, NULL);
		else if (r != -EINPROGRESS && (r || S_ISLNK(st.st_mode) != w->link))
			ckpt_unmet(run, CKPT_EXIT_FAILED, "put it back where it was",
				   "%s, which is watched, is not there", path);
		else if (!r && !fd_is_same(&st, w->owner, w->dev, w->ino))
			ckpt_unmet(run, CKPT_EXIT_FAILED, "put it back where it was",
				   "%s, which is watched, is another file than it was, of another "
				   "owner or mode",
				   path);
	}
	return 0;
}

/* By a task, which the real and the saved id lead back. */
static int make_as(struct ckpt_run *run, struct ckpt_task *task, uid_t uid, struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *make = ckpt_script_new(run, "fd.inotify");
	CKPT_AUTO_SCRIPT struct ckpt_script *end = ckpt_script_new(run, "fd.inotify");
	int op, r, fd;

	ckpt_script_add(make, SYS_setresuid, CKPT_C(-1), CKPT_C(uid), CKPT_C(-1));
	op = ckpt_script_add(make, SYS_inotify_init1, CKPT_C(IN_CLOEXEC));
	ckpt_script_any(make);
	ckpt_script_add(make, SYS_setresuid, CKPT_C(-1), CKPT_C(geteuid()), CKPT_C(-1));
	r = ckpt_script_run(make, task->threads[0], err);
	if (r == 0 && ckpt_script_result(make, op) < 0)
		r = (int)ckpt_script_result(make, op);
	if (r < 0)
		return r;
	fd = ckpt_get_fd(task, (int)ckpt_script_result(make, op), err);
	ckpt_script_add(end, SYS_close, CKPT_C(ckpt_script_result(make, op)));
	r = ckpt_script_run(end, task->threads[0], err);
	if (r < 0 && fd >= 0)
		close(fd);
	return r < 0 ? r : fd;
}

static int inotify_open(struct ckpt_run *run, const struct ckpt_fd_slot *slot,
			struct ckpt_error *err)
{
	const Ckpt__Fd__Inotify *rec = ckpt_record_need(run, "fd.inotify", slot->file, err);
	int fd;

	if (!rec)
		return -EBADMSG;
	if (rec->uid == geteuid()) {
		fd = inotify_init1(IN_CLOEXEC);
		fd = fd < 0 ? -errno : fd;
	} else {
		fd = make_as(run, slot->owner, rec->uid, err);
	}
	if (fd >= 0)
		return fd;
	ckpt_fail_sys(err, fd, "inotify_init1(2) for user %u", rec->uid);
	if (fd == -EMFILE)
		ckpt_hint(err,
			  "raise /proc/sys/fs/inotify/max_user_instances: it counts those of all "
			  "programs of that user");
	return fd;
}

static int drain(int fd, struct ckpt_error *err)
{
	char buf[16384];
	int queued;

	for (;;) {
		if (ioctl(fd, FIONREAD, &queued))
			return ckpt_fail_sys(err, errno, "FIONREAD");
		if (!queued)
			return 0;
		if (read(fd, buf, sizeof(buf)) < 0)
			return ckpt_fail_sys(err, errno, "reading events of an inotify");
	}
}

/* Give out the numbers from *next up to that one, to a file that is nobody's. */
static int skip_numbers(int fd, int dummy, int32_t *next, int32_t to, struct ckpt_error *err)
{
	char path[32];
	int r = 0;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", dummy);
	for (; *next < to && !r; ++*next) {
		int wd = inotify_add_watch(fd, path, IN_ATTRIB);

		if (wd < 0)
			return ckpt_fail_sys(err, errno, "inotify_add_watch(2)");
		if (wd != *next)
			return ckpt_fail(err, EPROTO, "the kernel gave watch %d, not %d", wd,
					 *next);
		if (inotify_rm_watch(fd, wd))
			return ckpt_fail_sys(err, errno, "inotify_rm_watch(2)");
		if (*next % DRAIN_EVERY == 0)
			r = drain(fd, err);
	}
	return r;
}

/* Events that differ from the one before, until one more finds no room. */
static int fill_queue(int fd, int dummy, struct ckpt_error *err)
{
	static const struct timespec read_at[2] = { { 0, 0 }, { 0, UTIME_OMIT } };
	static const struct timespec written_at[2] = { { 0, UTIME_OMIT }, { 0, 0 } };
	int before, after = 0;

	do {
		before = after;
		for (int i = 0; i < 512; i++)
			if (futimens(dummy, i % 2 ? read_at : written_at))
				return ckpt_fail_sys(err, errno, "futimens(2)");
		if (ioctl(fd, FIONREAD, &after))
			return ckpt_fail_sys(err, errno, "FIONREAD");
	} while (after > before);
	return 0;
}

/* Read that many events. 1: the one that tells of the overflow was among them. */
static int read_events(int fd, long n, struct ckpt_error *err)
{
	union {
		struct inotify_event ev;
		char room[sizeof(struct inotify_event) + NAME_MAX + 1];
	} u;

	for (; n > 0; n--) {
		ssize_t len = read(fd, &u, sizeof(u.ev));

		/* somebody else's, with a name */
		if (len < 0 && errno == EINVAL)
			len = read(fd, &u, sizeof(u));
		if (len < 0)
			return ckpt_fail_sys(err, errno, "reading events of an inotify");
		if (u.ev.mask & IN_Q_OVERFLOW)
			return 1;
	}
	return 0;
}

static int try_overflow(int fd, int dummy, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *path = NULL;
	int wd, r;

	if (asprintf(&path, "/proc/self/fd/%d", dummy) < 0)
		return ckpt_fail(err, ENOMEM, "out of memory");
	wd = inotify_add_watch(fd, path, IN_ACCESS | IN_MODIFY);
	if (wd < 0)
		return ckpt_fail_sys(err, errno, "inotify_add_watch(2)");
	r = fill_queue(fd, dummy, err);
	/* while nothing fits into the queue: not the news of this one's end either */
	if (!r && inotify_rm_watch(fd, wd))
		r = ckpt_fail_sys(err, errno, "inotify_rm_watch(2)");
	return r ? r : read_events(fd, queue_limit(), err);
}

/*
 * The kernel itself says that events were lost: a queue that overflows ends with that.
 * Events that others cause meanwhile are among ours or after it.
 */
static int overflow(int fd, int dummy, struct ckpt_error *err)
{
	int r;

	/* again, if its limit was changed just now */
	for (int tries = 0; tries < 5; tries++) {
		r = drain(fd, err);
		if (!r)
			r = try_overflow(fd, dummy, err);
		if (r <= 0)
			return r;
	}
	return ckpt_fail(err, EPROTO, "a queue of an inotify does not overflow at its limit");
}

/* Through a descriptor, which leads to the very file that is meant. */
static int watch_again(struct ckpt_run *run, int fd, const Ckpt__Fd__Watch *w, const char *path,
		       struct ckpt_error *err)
{
	CKPT_AUTO_FD int file = ckpt_open_in(
		run, w->mnt, path, O_PATH | O_CLOEXEC | (w->link ? O_NOFOLLOW : 0), 0, err);
	struct stat st;
	char name[32];
	int wd;

	if (file < 0)
		return file;
	if (fstat(file, &st) || !fd_is_same(&st, w->owner, w->dev, w->ino))
		return ckpt_fail(err, EIO, "%s, which is watched, is no longer what it was", path);
	snprintf(name, sizeof(name), "/proc/self/fd/%d", file);
	wd = inotify_add_watch(fd, name, w->mask);
	return wd < 0 ? ckpt_fail_sys(err, errno, "inotify_add_watch(2) of %s", path) : wd;
}

/* After all files were opened: what the restore does to them is nobody's event. */
static int inotify_finish(struct ckpt_run *run, uint32_t id, struct ckpt_task *holder, int num,
			  struct ckpt_error *err)
{
	const Ckpt__Fd__Inotify *rec = ckpt_record_need(run, "fd.inotify", id, err);
	CKPT_AUTO_FD int dummy = memfd_create("ckpt", MFD_CLOEXEC);
	CKPT_AUTO_FD int fd = rec ? ckpt_get_fd(holder, num, err) : -1;
	int32_t next = 1;
	int r = 0;

	if (fd < 0)
		return rec ? fd : -EBADMSG;
	if (dummy < 0)
		return ckpt_fail_sys(err, errno, "memfd_create(2)");
	for (size_t i = 0; i < rec->n_watches && !r; i++, next++) {
		const Ckpt__Fd__Watch *w = rec->watches[i];
		char buf[PATH_MAX];
		const char *path = fd_image_path(&w->path, buf, sizeof(buf));
		int wd;

		r = skip_numbers(fd, dummy, &next, w->wd, err);
		if (r || !path)
			break;
		wd = watch_again(run, fd, w, path, err);
		if (wd < 0)
			return wd;
		if (wd != w->wd)
			return ckpt_fail(err, EEXIST,
					 "%s is now the same file as another that is "
					 "watched",
					 path);
	}
	if (r)
		return r;
	return rec->overflow ? overflow(fd, dummy, err) : drain(fd, err);
}

const struct ckpt_fd_kind fd_kind_inotify = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = inotify_match,
	.survey = inotify_survey,
	.collect = inotify_collect,
	.plan = inotify_plan,
	.open = inotify_open,
	.finish = inotify_finish,
	.own_pos = true,
};
