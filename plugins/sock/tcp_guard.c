/* SPDX-License-Identifier: MIT */
/*
 * The repair mode of a connection that lives on: a socket that stays in it sends nothing any
 * more. In case ckpt is killed just then, a process that shares its descriptors takes the
 * socket out.
 */
#include "tcp.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

struct sock_guard {
	pid_t pid;
	/* shared with it: the socket in repair mode, or -1, and its SO_REUSEADDR */
	volatile struct slot {
		int fd, reuse;
	} * slot;
	int engine; /* pidfd */
};

/* Leaving the mode puts SO_REUSEADDR off. */
static int leave(int fd, int reuse)
{
	int r = sock_tcp_set(fd, TCP_REPAIR_QUEUE, TCP_NO_QUEUE);
	int off = sock_tcp_set(fd, TCP_REPAIR, SOCK_REPAIR_END);

	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse)) && !r)
		r = -errno;
	return off ? off : r;
}

static void watch(const struct sock_guard *g)
{
	struct pollfd p = { .fd = g->engine, .events = POLLIN };

	while (poll(&p, 1, -1) < 0 && errno == EINTR)
		;
	if (g->slot->fd >= 0)
		leave(g->slot->fd, g->slot->reuse);
	_exit(0);
}

static int start(struct sock_guard *g)
{
	sigset_t all, before;
	void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (page == MAP_FAILED)
		return -errno;
	g->slot = page;
	g->slot->fd = -1;
	g->engine = (int)syscall(SYS_pidfd_open, getpid(), 0);
	if (g->engine < 0)
		return -errno;
	/* what is sent to the whole group is not meant for it */
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, &before);
	g->pid = (pid_t)syscall(SYS_clone, CLONE_FILES | SIGCHLD, NULL, NULL, NULL, NULL);
	if (!g->pid)
		watch(g);
	sigprocmask(SIG_SETMASK, &before, NULL);
	return g->pid < 0 ? -errno : 0;
}

int sock_repair_enter(struct sock_state *st, int fd)
{
	int r;

	if (!st->guard) {
		st->guard = calloc(1, sizeof(*st->guard));
		if (!st->guard)
			return -ENOMEM;
		st->guard->engine = -1;
		r = start(st->guard);
		if (r) {
			sock_guard_stop(st);
			return r;
		}
	}
	st->guard->slot->reuse = sock_int(fd, SOL_SOCKET, SO_REUSEADDR);
	st->guard->slot->fd = fd;
	r = sock_tcp_set(fd, TCP_REPAIR, SOCK_REPAIR_ON);
	if (r)
		st->guard->slot->fd = -1;
	return r;
}

int sock_repair_leave(struct sock_state *st, int fd)
{
	int r = leave(fd, st->guard->slot->reuse);

	st->guard->slot->fd = -1;
	return r;
}

void sock_guard_stop(struct sock_state *st)
{
	struct sock_guard *g = st->guard;

	if (!g)
		return;
	if (g->pid > 0)
		ckpt_end_child(g->pid);
	if (g->engine >= 0)
		close(g->engine);
	if (g->slot)
		munmap((void *)(uintptr_t)g->slot, 4096);
	free(g);
	st->guard = NULL;
}
