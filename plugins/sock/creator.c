/* SPDX-License-Identifier: MIT */
/*
 * SO_PEERCRED and SO_PEERGROUPS name whoever called socketpair(2) or listen(2), for ever. So those
 * calls are made by the same task, with the same effective ids and groups.
 */
#include "internal.h"

#include <grp.h>
#include <sys/socket.h>
#include <sys/syscall.h>

/* What one operation of a script takes. */
#define MAX_GROUPS 8192

static bool peer_cred(int fd, struct ucred *cred)
{
	socklen_t len = sizeof(*cred);

	return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, cred, &len);
}

static void read_creator(struct ckpt_run *run, int fd, Ckpt__Sock__Credentials *c)
{
	const struct ckpt_task *task;
	struct ucred cred;

	if (!peer_cred(fd, &cred))
		return;
	task = cred.pid > 0 ? ckpt_task_by_pid(run, cred.pid) : NULL;
	c->task = task && !task->zombie ? task->id : 0;
	c->uid = cred.uid;
	c->gid = cred.gid;
}

static int read_groups(int fd, Ckpt__Sock__Credentials *c, struct ckpt_error *err)
{
	socklen_t len = MAX_GROUPS * sizeof(*c->groups);

	c->groups = malloc(len);
	if (!c->groups)
		return ckpt_fail_sys(err, ENOMEM, "groups of a socket's creator");
	/* a socket that nobody has connected or listened with has none */
	c->groups_known = !getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, c->groups, &len);
	c->n_groups = c->groups_known ? len / sizeof(*c->groups) : 0;
	if (!c->groups_known && errno == ERANGE)
		return ckpt_fail(err, E2BIG, "a socket's creator has more than %d groups",
				 MAX_GROUPS);
	return 0;
}

void sock_creator_free(Ckpt__Sock__Credentials *c)
{
	free(c->groups);
	c->groups = NULL;
}

int sock_creator_of(struct ckpt_run *run, int fd, Ckpt__Sock__Credentials *c,
		    struct ckpt_error *err)
{
	ckpt__sock__credentials__init(c);
	read_creator(run, fd, c);
	return read_groups(fd, c, err);
}

int sock_creator_survey(struct ckpt_run *run, const struct ckpt_fd_found *f)
{
	Ckpt__Sock__Credentials c = CKPT__SOCK__CREDENTIALS__INIT;

	read_creator(run, f->fd, &c);
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
	    c->gid == UINT32_MAX || c->n_groups > MAX_GROUPS)
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

static bool other_groups(const Ckpt__Sock__Credentials *c)
{
	gid_t own[MAX_GROUPS];
	int n = c->groups_known ? getgroups(MAX_GROUPS, own) : -1;

	return c->groups_known && ((size_t)n != c->n_groups ||
				   (n && memcmp(own, c->groups, (size_t)n * sizeof(*own)) != 0));
}

bool sock_same_creator(const Ckpt__Sock__Credentials *a, const Ckpt__Sock__Credentials *b)
{
	return a->task == b->task && a->uid == b->uid && a->gid == b->gid &&
	       a->groups_known == b->groups_known && a->n_groups == b->n_groups &&
	       (!a->n_groups || !memcmp(a->groups, b->groups, a->n_groups * sizeof(*a->groups)));
}

static void take_groups(struct ckpt_script *s, const uint32_t *groups, size_t n)
{
	/* a buffer of nothing is none */
	ckpt_script_add(s, SYS_setgroups, CKPT_C(n),
			n ? CKPT_IN(groups, n * sizeof(*groups)) : CKPT_C(0));
}

/* The real and saved ids stay the engine's, so that the way back is open. */
void sock_creator_enter(struct ckpt_script *s, const Ckpt__Sock__Credentials *c)
{
	if (other_groups(c))
		take_groups(s, c->groups, c->n_groups);
	if (!other_ids(c))
		return;
	ckpt_script_add(s, SYS_setresgid, CKPT_C(-1), CKPT_C(c->gid), CKPT_C(-1));
	ckpt_script_add(s, SYS_setresuid, CKPT_C(-1), CKPT_C(c->uid), CKPT_C(-1));
}

void sock_creator_leave(struct ckpt_script *s, const Ckpt__Sock__Credentials *c)
{
	gid_t own[MAX_GROUPS];
	int n;

	if (other_ids(c)) {
		ckpt_script_add(s, SYS_setresuid, CKPT_C(-1), CKPT_C(geteuid()), CKPT_C(-1));
		ckpt_script_add(s, SYS_setresgid, CKPT_C(-1), CKPT_C(getegid()), CKPT_C(-1));
	}
	n = other_groups(c) ? getgroups(MAX_GROUPS, own) : -1;
	if (n >= 0)
		take_groups(s, own, (size_t)n);
}
