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

void fd_creator_of(struct ckpt_run *run, int fd, Ckpt__Fd__Credentials *c)
{
	const struct ckpt_task *task;
	struct ucred cred;

	ckpt__fd__credentials__init(c);
	if (!peer_cred(fd, &cred))
		return;
	task = cred.pid > 0 ? ckpt_task_by_pid(run, cred.pid) : NULL;
	c->task = task && !task->zombie ? task->id : 0;
	c->uid = cred.uid;
	c->gid = cred.gid;
}

int fd_creator_survey(struct ckpt_run *run, const struct ckpt_fd_found *f)
{
	Ckpt__Fd__Credentials c;

	fd_creator_of(run, f->fd, &c);
	if (c.task)
		return 0;
	return fd_refuse_detail(
		run, f, "peercred",
		"the process that made it (SO_PEERCRED) is not alive in the tree",
		"--allow-loss fd.peercred if nobody asks for the peer's process id");
}

int fd_creator_check(struct ckpt_run *run, const Ckpt__Fd__Credentials *c, uint32_t id,
		     struct ckpt_error *err)
{
	if (!c || (c->task && !fd_task_known(run, c->task)) || c->uid == UINT32_MAX ||
	    c->gid == UINT32_MAX)
		return fd_bad(err, "open file %u has no valid creator", id);
	return 0;
}

struct ckpt_task *fd_creator_task(struct ckpt_run *run, const Ckpt__Fd__Credentials *c)
{
	struct ckpt_task *t = c->task ? ckpt_task_by_id(run, c->task) : NULL;

	return t && !t->zombie ? t : NULL;
}

static bool other_ids(const Ckpt__Fd__Credentials *c)
{
	return c->uid != geteuid() || c->gid != getegid();
}

/* The real and saved ids stay the engine's, so that the way back is open. */
void fd_creator_enter(struct ckpt_script *s, const Ckpt__Fd__Credentials *c)
{
	if (!other_ids(c))
		return;
	ckpt_script_add(s, SYS_setresgid, CKPT_C(-1), CKPT_C(c->gid), CKPT_C(-1));
	ckpt_script_add(s, SYS_setresuid, CKPT_C(-1), CKPT_C(c->uid), CKPT_C(-1));
}

void fd_creator_leave(struct ckpt_script *s, const Ckpt__Fd__Credentials *c)
{
	if (!other_ids(c))
		return;
	ckpt_script_add(s, SYS_setresuid, CKPT_C(-1), CKPT_C(geteuid()), CKPT_C(-1));
	ckpt_script_add(s, SYS_setresgid, CKPT_C(-1), CKPT_C(getegid()), CKPT_C(-1));
}
