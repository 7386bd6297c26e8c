/* SPDX-License-Identifier: MIT */
/*
 * dump and verify: files opened without an event for those who watch them. Whom fanotify(7) asks
 * for permission gets a descriptor of the file that is about to be opened, and what is done with
 * that is nobody's event. So a thread has itself asked, about a mount of ours or one inode, keeps
 * what it is given, and forbids the opening, which ends before it is an event.
 *
 * Ending a group waits until all processors have passed a point (SRCU): 2 to 20 ms. A browser has
 * a hundred files to be opened, so there is one group for a run, whose marks come and go.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/fanotify.h>
#include <sys/mman.h>
#include <unistd.h>

#include <ckpt/quiet.h>

#include "engine/run.h"
#include "process/quiet.h"
#include "process/set.h"

struct quiet_group {
	int fd, stop;
	pthread_t thread;
	bool running;
	pid_t caller;
	int got; /* by the thread: a descriptor, or a negative errno */
};

struct ckpt_quiet {
	struct quiet_group **group; /* of the run */
	unsigned mark;
	char path[]; /* of what is marked */
};

/* What the thread has got: nothing yet. */
#define NOTHING (-EIO)

static int group_new(void)
{
	int fd = fanotify_init(FAN_CLASS_CONTENT | FAN_CLOEXEC | FAN_REPORT_TID | FAN_NONBLOCK,
			       O_RDONLY | O_LARGEFILE | O_CLOEXEC | O_NOATIME | O_NONBLOCK);

	return fd < 0 ? -errno : fd;
}

/* `how`: FAN_MARK_ADD or FAN_MARK_REMOVE, with the kind of mark. */
static int mark(int group, unsigned how, const char *path)
{
	return fanotify_mark(group, how, FAN_OPEN_PERM | FAN_ONDIR, AT_FDCWD, path) ? -errno : 0;
}

int ckpt_quiet_probe(struct ckpt_error *err)
{
	CKPT_AUTO_FD int file = memfd_create("ckpt", MFD_CLOEXEC), group = -1;
	char path[40];
	int r;

	if (file < 0)
		return ckpt_fail_sys(err, errno, "memfd_create(2)");
	snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
	r = group = group_new();
	if (r >= 0)
		r = mark(group, FAN_MARK_ADD | FAN_MARK_INODE, path);
	return r < 0 ? ckpt_fail_sys(err, -r, "permission events of fanotify(7)") : 0;
}

/* ---- the thread ------------------------------------------------------------------------ */

static void answer(struct quiet_group *g, const struct fanotify_event_metadata *event)
{
	const bool ours = event->pid == g->caller;
	struct fanotify_response response = { event->fd, ours ? FAN_DENY : FAN_ALLOW };
	ssize_t ignored;

	if (event->fd < 0)
		return;
	if (ours)
		__atomic_store_n(&g->got, event->fd, __ATOMIC_SEQ_CST);
	/* it fails if nobody waits for it any more */
	ignored = write(g->fd, &response, sizeof(response));
	(void)ignored;
	if (!ours)
		close(event->fd);
}

static void *watch(void *arg)
{
	struct quiet_group *g = arg;
	struct pollfd list[2] = { { g->stop, POLLIN, 0 }, { g->fd, POLLIN, 0 } };
	struct fanotify_event_metadata events[16];

	for (;;) {
		const struct fanotify_event_metadata *event = events;
		ssize_t len;

		if (poll(list, 2, -1) < 0)
			continue;
		if (list[0].revents)
			return NULL;
		len = read(g->fd, events, sizeof(events));
		/* whoever was to be asked about has been killed meanwhile */
		if (len < 0 && errno == EAGAIN)
			continue;
		/* no descriptor is to be had: the kernel itself has forbidden it */
		if (len < 0) {
			int nothing = NOTHING;

			__atomic_compare_exchange_n(&g->got, &nothing, -errno, false,
						    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
		}
		for (; FAN_EVENT_OK(event, len); event = FAN_EVENT_NEXT(event, len))
			answer(g, event);
	}
}

static int start(struct quiet_group *g)
{
	sigset_t all, old;
	int r;

	/* signals are for the thread that runs the steps */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = pthread_create(&g->thread, NULL, watch, g);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	g->running = !r;
	return -r;
}

static void group_end(struct quiet_group *g)
{
	if (!g)
		return;
	if (g->running) {
		eventfd_write(g->stop, 1);
		pthread_join(g->thread, NULL);
	}
	if (g->stop >= 0)
		close(g->stop);
	if (g->fd >= 0)
		close(g->fd);
	free(g);
}

void quiet_free(struct quiet_group **g)
{
	group_end(*g);
	*g = NULL;
}

static int group_begin(struct quiet_group *g, struct ckpt_error *err)
{
	int r;

	g->fd = group_new();
	if (g->fd < 0)
		return ckpt_fail_as(err, CKPT_EXIT_PRIVILEGE, -g->fd,
				    "fanotify(7), to read what is watched without an event");
	g->stop = eventfd(0, EFD_CLOEXEC);
	if (g->stop < 0)
		return ckpt_fail_sys(err, errno, "eventfd(2)");
	r = start(g);
	return r < 0 ? ckpt_fail_sys(err, -r, "a thread to read what is watched") : 0;
}

/* The run's, with its thread. */
static int group_of(struct ckpt_run *run, struct quiet_group **found, struct ckpt_error *err)
{
	struct quiet_group **g = &run_procs(run)->quiet;

	if (!*g) {
		struct quiet_group *new = malloc(sizeof(*new));

		if (!new)
			return ckpt_fail(err, ENOMEM, "out of memory");
		*new = (struct quiet_group){ .fd = -1, .stop = -1, .got = NOTHING };
		if (group_begin(new, err) < 0) {
			group_end(new);
			return -err->err;
		}
		*g = new;
	}
	*found = *g;
	return 0;
}

/* ---- what is marked --------------------------------------------------------------------- */

static int unmark(struct ckpt_quiet *q)
{
	return mark((*q->group)->fd, FAN_MARK_REMOVE | q->mark, q->path);
}

static struct ckpt_quiet *quiet_new(struct ckpt_run *run, const char *path, unsigned kind,
				    struct ckpt_error *err)
{
	struct ckpt_quiet *q = malloc(sizeof(*q) + strlen(path) + 1);
	struct quiet_group *g = NULL;
	int r;

	if (!q) {
		ckpt_fail(err, ENOMEM, "out of memory");
		return NULL;
	}
	q->group = &run_procs(run)->quiet;
	q->mark = kind;
	strcpy(q->path, path);
	r = group_of(run, &g, err);
	if (!r) {
		g->caller = gettid();
		r = mark(g->fd, FAN_MARK_ADD | kind, path);
		if (r < 0)
			ckpt_fail_as(err, CKPT_EXIT_PRIVILEGE, -r,
				     "fanotify(7), to read what is watched without an event");
	}
	if (r < 0) {
		free(q);
		return NULL;
	}
	return q;
}

struct ckpt_quiet *ckpt_quiet_begin(struct ckpt_run *run, int mount, struct ckpt_error *err)
{
	char path[40];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", mount);
	return quiet_new(run, path, FAN_MARK_MOUNT, err);
}

void ckpt_quiet_end(struct ckpt_quiet *q)
{
	/* a mark that stays would have all who open it ask us */
	if (q && *q->group && unmark(q) < 0)
		quiet_free(q->group);
	free(q);
}

int ckpt_quiet_try(struct ckpt_run *run, int mount)
{
	struct ckpt_error why = { 0 };
	struct ckpt_quiet *q = ckpt_quiet_begin(run, mount, &why);

	if (!q)
		return -why.err;
	ckpt_quiet_end(q);
	return 0;
}

int ckpt_quiet_open(struct ckpt_quiet *q, int dir, const char *name, int flags)
{
	struct quiet_group *g = q ? *q->group : NULL;
	int fd, error;

	flags |= O_RDONLY | O_NOATIME | O_NONBLOCK | O_CLOEXEC;
	/* it has been ended, see ckpt_quiet_end() */
	if (q && !g)
		return NOTHING;
	if (g)
		__atomic_store_n(&g->got, NOTHING, __ATOMIC_SEQ_CST);
	fd = openat(dir, name, flags);
	error = -errno;
	/* what fanotify forbids */
	if (fd < 0 && g && error == -EPERM)
		return __atomic_load_n(&g->got, __ATOMIC_SEQ_CST);
	return fd < 0 ? error : fd;
}

int ckpt_open_unnoticed(struct ckpt_run *run, int dir, const char *path, int flags,
			struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *name = NULL;
	struct ckpt_error why = { 0 };
	struct ckpt_quiet *q;
	struct stat st;
	int fd;

	/* of some filesystems stat(2) has other numbers than a watch */
	if (!run_procs(run)->notices.n_watched) {
		fd = openat(dir, path, flags | O_CLOEXEC);
		return fd < 0 ? ckpt_fail_sys(err, errno, "opening it once more") : fd;
	}
	if (fstatat(dir, path, &st, 0))
		return ckpt_fail_sys(err, errno, "stat(2)");
	if ((*path == '/' ? asprintf(&name, "%s", path)
			  : asprintf(&name, "/proc/self/fd/%d/%s", dir, path)) < 0)
		return ckpt_fail(err, ENOMEM, "out of memory");
	q = quiet_new(run, name, FAN_MARK_INODE, &why);
	if (!q && ckpt_is_watched(run, st.st_dev))
		return ckpt_fail_as(err, why.exit, why.err, "%s", why.text);
	fd = ckpt_quiet_open(q, dir, path, 0);
	ckpt_quiet_end(q);
	return fd < 0 ? ckpt_fail_sys(err, -fd, "opening it once more") : fd;
}
