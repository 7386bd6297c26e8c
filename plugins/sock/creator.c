/* SPDX-License-Identifier: MIT */
/*
 * SO_PEERCRED names whoever called socketpair(2) or listen(2), for ever. So those
 * calls are made by the same task, with the same effective ids.
 */
#include "internal.h"

#include <sys/socket.h>
#include <sys/syscall.h>

static bool peer_cred(int fd, struct ucred *cred)
{
	socklen_t len = sizeof(*cred);

	return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, cred, &len);
}

void sock_creator_of(struct ckpt_run *run, int fd, Ckpt__Sock__Credentials *c)
{
	const struct ckpt_task *task;
	struct ucred cred;

	ckpt__sock__credentials__init(c);
	if (!peer_cred(fd, &cred))
		return;
	task = cred.pid > 0 ? ckpt_task_by_pid(run, cred.pid) : NULL;
	c->task = task && !task->zombie ? task->id : 0;
	c->uid = cred.uid;
	c->gid = cred.gid;
}

int sock_creator_survey(struct ckpt_run *run, const struct ckpt_fd_found *f)
{
	Ckpt__Sock__Credentials c;

	sock_creator_of(run, f->fd, &c);
	if (c.task)
		return 0;
	return sock_refuse_detail(
		run, f, "peercred",
		"the process that made it (SO_PEERCRED) is not alive in the tree",
		"--allow-loss sock.peercred if nobody asks for the peer's process id");
}

int sock_creator_check(struct ckpt_run *run, const Ckpt__Sock__Credentials *c, uint32_t id,
		       struct ckpt_error *err)
{
	if (!c || (c->task && !sock_task_known(run, c->task)) || c->uid == UINT32_MAX ||
	    c->gid == UINT32_MAX)
		return ckpt_fail_image(err, "open file %u has no valid creator", id);
	return 0;
}

struct ckpt_task *sock_creator_task(struct ckpt_run *run, const Ckpt__Sock__Credentials *c)
{
	struct ckpt_task *t = c->task ? ckpt_task_by_id(run, c->task) : NULL;

	return t && !t->zombie ? t : NULL;
}

static bool other_ids(const Ckpt__Sock__Credentials *c)
{
	return c->uid != geteuid() || c->gid != getegid();
}

bool sock_same_creator(const Ckpt__Sock__Credentials *a, const Ckpt__Sock__Credentials *b)
{
	return a->task == b->task && a->uid == b->uid && a->gid == b->gid;
}

/* The real and saved ids stay the engine's, so that the way back is open. */
void sock_creator_enter(struct ckpt_script *s, const Ckpt__Sock__Credentials *c)
{
	if (!other_ids(c))
		return;
	ckpt_script_add(s, SYS_setresgid, CKPT_C(-1), CKPT_C(c->gid), CKPT_C(-1));
	ckpt_script_add(s, SYS_setresuid, CKPT_C(-1), CKPT_C(c->uid), CKPT_C(-1));
}

void sock_creator_leave(struct ckpt_script *s, const Ckpt__Sock__Credentials *c)
{
	if (!other_ids(c))
		return;
	ckpt_script_add(s, SYS_setresuid, CKPT_C(-1), CKPT_C(geteuid()), CKPT_C(-1));
	ckpt_script_add(s, SYS_setresgid, CKPT_C(-1), CKPT_C(getegid()), CKPT_C(-1));
}
