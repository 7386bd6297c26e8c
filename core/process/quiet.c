/* SPDX-License-Identifier: MIT */
/*
 * dump and verify: files opened without an event for those who watch them. Whom fanotify(7) asks
 * for permission gets a descriptor of the file that is about to be opened, and what is done with
 * that is nobody's event. So a thread has itself asked, about a mount of ours or one inode, keeps
 * what it is given, and forbids the opening, which ends before it is an event.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/fanotify.h>
#include <sys/mman.h>
#include <unistd.h>

#include <ckpt/quiet.h>

#include "engine/run.h"
#include "process/set.h"

struct ckpt_quiet {
	int group, stop;
	pthread_t thread;
	bool running;
	pid_t caller;
	int got; /* by the thread: a descriptor, or a negative errno */
};

/* What the thread has got: nothing yet. */
#define NOTHING (-EIO)

static int group_of(const char *path, unsigned mark)
{
	CKPT_AUTO_FD int group =
		fanotify_init(FAN_CLASS_CONTENT | FAN_CLOEXEC | FAN_REPORT_TID | FAN_NONBLOCK,
			      O_RDONLY | O_LARGEFILE | O_CLOEXEC | O_NOATIME | O_NONBLOCK);

	if (group < 0 ||
	    fanotify_mark(group, FAN_MARK_ADD | mark, FAN_OPEN_PERM | FAN_ONDIR, AT_FDCWD, path))
		return -errno;
	return ckpt_steal_fd(&group);
}

int ckpt_quiet_try(int fd)
{
	CKPT_AUTO_FD int group = -1;
	char path[40];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	group = group_of(path, FAN_MARK_MOUNT);
	return group < 0 ? group : 0;
}

int ckpt_quiet_probe(struct ckpt_error *err)
{
	CKPT_AUTO_FD int file = memfd_create("ckpt", MFD_CLOEXEC), group = -1;
	char path[40];

	if (file < 0)
		return ckpt_fail_sys(err, errno, "memfd_create(2)");
	snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
	group = group_of(path, FAN_MARK_INODE);
	return group < 0 ? ckpt_fail_sys(err, -group, "permission events of fanotify(7)") : 0;
}

/* ---- the thread ------------------------------------------------------------------------ */

static void answer(struct ckpt_quiet *q, const struct fanotify_event_metadata *event)
{
	const bool ours = event->pid == q->caller;
	struct fanotify_response response = { event->fd, ours ? FAN_DENY : FAN_ALLOW };
	ssize_t ignored;

	if (event->fd < 0)
		return;
	if (ours)
		__atomic_store_n(&q->got, event->fd, __ATOMIC_SEQ_CST);
	/* it fails if nobody waits for it any more */
	ignored = write(q->group, &response, sizeof(response));
	(void)ignored;
	if (!ours)
		close(event->fd);
}

static void *watch(void *arg)
{
	struct ckpt_quiet *q = arg;
	struct pollfd list[2] = { { q->stop, POLLIN, 0 }, { q->group, POLLIN, 0 } };
	struct fanotify_event_metadata events[16];

	for (;;) {
		const struct fanotify_event_metadata *event = events;
		ssize_t len;

		if (poll(list, 2, -1) < 0)
			continue;
		if (list[0].revents)
			return NULL;
		len = read(q->group, events, sizeof(events));
		/* whoever was to be asked about has been killed meanwhile */
		if (len < 0 && errno == EAGAIN)
			continue;
		/* no descriptor is to be had: the kernel itself has forbidden it */
		if (len < 0) {
			int nothing = NOTHING;

			__atomic_compare_exchange_n(&q->got, &nothing, -errno, false,
						    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
		}
		for (; FAN_EVENT_OK(event, len); event = FAN_EVENT_NEXT(event, len))
			answer(q, event);
	}
}

static int start(struct ckpt_quiet *q)
{
	sigset_t all, old;
	int r;

	/* signals are for the thread that runs the steps */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = pthread_create(&q->thread, NULL, watch, q);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	q->running = !r;
	return -r;
}

static int begin(struct ckpt_quiet *q, const char *path, unsigned mark, struct ckpt_error *err)
{
	int r;

	q->caller = gettid();
	q->group = group_of(path, mark);
	if (q->group < 0)
		return ckpt_fail_as(err, CKPT_EXIT_PRIVILEGE, -q->group,
				    "fanotify(7), to read what is watched without an event");
	q->stop = eventfd(0, EFD_CLOEXEC);
	if (q->stop < 0)
		return ckpt_fail_sys(err, errno, "eventfd(2)");
	r = start(q);
	return r < 0 ? ckpt_fail_sys(err, -r, "a thread to read what is watched") : 0;
}

static struct ckpt_quiet *quiet_new(const char *path, unsigned mark, struct ckpt_error *err)
{
	struct ckpt_quiet *q = malloc(sizeof(*q));

	if (!q) {
		ckpt_fail(err, ENOMEM, "out of memory");
		return NULL;
	}
	*q = (struct ckpt_quiet){ .group = -1, .stop = -1, .got = NOTHING };
	if (begin(q, path, mark, err) < 0) {
		ckpt_quiet_end(q);
		return NULL;
	}
	return q;
}

struct ckpt_quiet *ckpt_quiet_begin(int mount, struct ckpt_error *err)
{
	char path[40];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", mount);
	return quiet_new(path, FAN_MARK_MOUNT, err);
}

void ckpt_quiet_end(struct ckpt_quiet *q)
{
	if (!q)
		return;
	if (q->running) {
		eventfd_write(q->stop, 1);
		pthread_join(q->thread, NULL);
	}
	if (q->stop >= 0)
		close(q->stop);
	if (q->group >= 0)
		close(q->group);
	free(q);
}

int ckpt_quiet_open(struct ckpt_quiet *q, int dir, const char *name, int flags)
{
	int fd, error;

	flags |= O_RDONLY | O_NOATIME | O_NONBLOCK | O_CLOEXEC;
	if (q)
		__atomic_store_n(&q->got, NOTHING, __ATOMIC_SEQ_CST);
	fd = openat(dir, name, flags);
	error = -errno;
	/* what fanotify forbids */
	if (fd < 0 && q && error == -EPERM)
		return __atomic_load_n(&q->got, __ATOMIC_SEQ_CST);
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
	q = quiet_new(name, FAN_MARK_INODE, &why);
	if (!q && ckpt_is_watched(run, st.st_dev))
		return ckpt_fail_as(err, why.exit, why.err, "%s", why.text);
	fd = ckpt_quiet_open(q, dir, path, 0);
	ckpt_quiet_end(q);
	return fd < 0 ? ckpt_fail_sys(err, -fd, "opening it once more") : fd;
}
