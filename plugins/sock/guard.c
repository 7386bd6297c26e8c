/* SPDX-License-Identifier: MIT */
/*
 * The repair mode of a connection that lives on: a socket that stays in it sends nothing any
 * more. And options that are set for a look at what waits in a socket, SO_PEEK_OFF above all. In
 * case ckpt is killed just then, a process that shares its descriptors puts the socket back.
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
	/* shared with it: the socket, or -1, is it in repair mode, and its options before */
	volatile struct slot {
		int fd, repair, reuse;
		unsigned n;
		struct before {
			int level, name, value;
		} option[SOCK_GUARDED_MAX];
	} * slot;
	int engine; /* pidfd */
};

/* Leaving the mode puts SO_REUSEADDR off. */
static int leave(volatile const struct slot *s)
{
	int r = 0, off;

	/* all of them have to be as they were, also where one cannot */
	for (unsigned i = s->n; i > 0; i--) {
		volatile const struct before *b = &s->option[i - 1];

		off = sock_put_back(s->fd, b->level, b->name, b->value);
		r = off ? off : r;
	}
	if (!s->repair)
		return r;
	off = sock_tcp_set(s->fd, TCP_REPAIR_QUEUE, TCP_NO_QUEUE);
	r = off ? off : r;
	off = sock_tcp_set(s->fd, TCP_REPAIR, SOCK_REPAIR_END);
	r = off ? off : r;
	off = sock_put_back(s->fd, SOL_SOCKET, SO_REUSEADDR, s->reuse);
	return off ? off : r;
}

static void watch(const struct sock_guard *g)
{
	struct pollfd p = { .fd = g->engine, .events = POLLIN };

	while (poll(&p, 1, -1) < 0 && errno == EINTR)
		;
	if (g->slot->fd >= 0)
		leave(g->slot);
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

/* From here on what is done to the socket is taken back if we die. */
static int guard(struct sock_state *st, int fd, bool repair)
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
	st->guard->slot->repair = repair;
	st->guard->slot->reuse = repair ? sock_int(fd, SOL_SOCKET, SO_REUSEADDR) : 0;
	st->guard->slot->n = 0;
	st->guard->slot->fd = fd;
	return 0;
}

int sock_guard_begin(struct sock_state *st, int fd)
{
	return guard(st, fd, false);
}

int sock_guard_set(struct sock_state *st, int level, int name, int value)
{
	volatile struct slot *s = st->guard->slot;
	const int before = sock_int(s->fd, level, name);

	/* what it was is not known: then it stays as it is; -1 of SO_PEEK_OFF is a value */
	if (s->n == SOCK_GUARDED_MAX || (before < 0 && name != SO_PEEK_OFF))
		return -EIO;
	s->option[s->n].level = level;
	s->option[s->n].name = name;
	s->option[s->n].value = before;
	s->n++;
	return sock_put_back(s->fd, level, name, value);
}

int sock_guard_end(struct sock_state *st)
{
	int r = leave(st->guard->slot);

	st->guard->slot->fd = -1;
	return r;
}

int sock_repair_enter(struct sock_state *st, int fd)
{
	int r = guard(st, fd, true);

	if (!r && sock_int(fd, SOL_SOCKET, SO_PEEK_OFF) >= 0)
		r = sock_guard_set(st, SOL_SOCKET, SO_PEEK_OFF, -1);
	if (!r) {
		r = sock_tcp_set(fd, TCP_REPAIR, SOCK_REPAIR_ON);
		if (!r)
			return 0;
		/* it is not in the mode, and not to be taken out of it */
		st->guard->slot->repair = false;
	}
	if (st->guard)
		(void)sock_repair_leave(st);
	return r;
}

int sock_repair_leave(struct sock_state *st)
{
	return sock_guard_end(st);
}

ssize_t sock_tcp_peek(struct sock_state *st, int fd, void *buf, size_t size)
{
	bool moves = sock_int(fd, SOL_SOCKET, SO_PEEK_OFF) >= 0;
	int r = moves ? guard(st, fd, false) : 0;
	ssize_t got;

	if (!r && moves)
		r = sock_guard_set(st, SOL_SOCKET, SO_PEEK_OFF, -1);
	got = r ? r : recv(fd, buf, size, MSG_PEEK | MSG_DONTWAIT);
	got = got < 0 && !r ? -errno : got;
	if (moves && st->guard)
		r = sock_repair_leave(st);
	return got >= 0 && r ? r : got;
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
