/* SPDX-License-Identifier: MIT */
/*
 * The keeper: a child that makes the agents' segments and keeps them attached.
 *
 * A segment is marked for removal as soon as somebody is attached, so that it
 * cannot outlive its users. Two moments remain in which a SIGKILL would do
 * harm: between making and marking it would stay behind for good; and a thread
 * that was just given registers that lead to shmat(2) must find it, while a
 * dying process lets go of its memory before it lets go of its tracees. So
 * somebody else makes the segments and holds on to them for these moments. The
 * keeper is in a session of its own (a signal to our process group does not
 * reach it), has no descriptor but the socket that tells it of our end, and
 * goes away a moment after us.
 */
#include <errno.h>
#include <linux/close_range.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/ipc.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <ckpt/cleanup.h>

#include "process/keeper.h"

struct request {
	uint64_t length;
	uid_t uid;
};

/* The task attaches with its own credentials: nobody but its user may. */
static int give(int shmid, uid_t uid)
{
	struct shmid_ds ds;

	if (shmctl(shmid, IPC_STAT, &ds))
		return -errno;
	ds.shm_perm.uid = uid;
	return shmctl(shmid, IPC_SET, &ds) ? -errno : 0;
}

static int make(const struct request *rq)
{
	int shmid = shmget(IPC_PRIVATE, rq->length, IPC_CREAT | SHM_NORESERVE | 0700), r;
	bool attached;

	if (shmid < 0)
		return -errno;
	attached = shmat(shmid, NULL, 0) != (void *)-1;
	r = attached ? 0 : -errno;
	/* it can still be attached by its number, and goes away with the last user */
	shmctl(shmid, IPC_RMID, NULL);
	if (!r)
		r = give(shmid, rq->uid);
	return r ? r : shmid;
}

static void __attribute__((noreturn)) keep(int sock)
{
	const struct timespec linger = { 0, 250000000 };
	struct request rq;
	sigset_t all;
	ssize_t n;

	setsid();
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	prctl(PR_SET_NAME, "ckpt-keeper");
	dup2(sock, 0);
	syscall(SYS_close_range, 1U, ~0U, 0);
	while ((n = recv(0, &rq, sizeof(rq), 0)) != 0) {
		int reply = n == sizeof(rq) ? make(&rq) : -EPROTO;

		if (n < 0 && errno == EINTR)
			continue;
		if (send(0, &reply, sizeof(reply), MSG_NOSIGNAL) < 0)
			break;
	}
	nanosleep(&linger, NULL);
	_exit(0);
}

int keeper_start(struct keeper *k, struct ckpt_error *err)
{
	CKPT_AUTO_FD int theirs = -1;
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
		return ckpt_fail_sys(err, errno, "socketpair(2) to the keeper");
	theirs = ends[0];
	k->socket = ends[1];
	k->pid = fork();
	if (!k->pid)
		keep(theirs);
	if (k->pid < 0) {
		int e = errno;

		k->pid = 0;
		close(k->socket);
		return ckpt_fail_sys(err, e, "fork(2) of the keeper");
	}
	return 0;
}

int keeper_make(struct keeper *k, uint64_t length, uid_t uid, struct ckpt_error *err)
{
	const struct request rq = { .length = length, .uid = uid };
	int reply = -EPIPE;

	if (send(k->socket, &rq, sizeof(rq), MSG_NOSIGNAL) != sizeof(rq) ||
	    recv(k->socket, &reply, sizeof(reply), 0) != sizeof(reply))
		return ckpt_fail_sys(err, errno ? errno : EPIPE, "asking the keeper");
	return reply < 0 ? ckpt_fail_sys(err, reply, "shared memory for the agent") : reply;
}

void keeper_stop(struct keeper *k)
{
	if (k->pid <= 0)
		return;
	kill(k->pid, SIGKILL);
	while (waitpid(k->pid, NULL, 0) < 0 && errno == EINTR)
		;
	close(k->socket);
	k->pid = 0;
}
