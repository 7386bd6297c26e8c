/* SPDX-License-Identifier: MIT */
/* How a socket is refused. */
#include "internal.h"

#include <stdio.h>

static int refuse(struct ckpt_run *run, const struct ckpt_fd_found *f, const char *feature,
		  const char *reason, const char *hint)
{
	char object[512];

	snprintf(object, sizeof(object), "fd %d (%s)", f->num, f->link);
	return ckpt_refuse(run, &(struct ckpt_blocker){
					.feature = feature,
					.task = f->task,
					.object = object,
					.reason = reason,
					.hint = hint,
				});
}

int sock_refuse(struct ckpt_run *run, const struct ckpt_fd_found *f, const char *feature,
		const char *reason, const char *hint)
{
	int r = refuse(run, f, feature, reason, hint);

	return r < 0 && r != -ECANCELED ? r : 1;
}

int sock_refuse_detail(struct ckpt_run *run, const struct ckpt_fd_found *f, const char *feature,
		       const char *reason, const char *hint)
{
	int r = refuse(run, f, feature, reason, hint);

	return r == -ECANCELED ? 1 : r;
}

int sock_refuse_outside(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	char who[96], reason[192];
	int r = f->tree->outside(run, &f->st, who, sizeof(who), err);

	if (r <= 0)
		return r;
	snprintf(reason, sizeof(reason), "the other side leaves the tree: %s has it open too", who);
	return sock_refuse(run, f, "external", reason,
			   "dump a tree that includes that process, or start the program with this "
			   "descriptor redirected");
}

int sock_refuse_peer(struct ckpt_run *run, const struct ckpt_fd_found *f, uint32_t ino,
		     struct ckpt_error *err)
{
	struct stat other = { .st_mode = S_IFSOCK, .st_ino = ino };
	char who[96], reason[192], object[512];
	int r = f->tree->outside(run, &other, who, sizeof(who), err);

	if (r < 0)
		return r;
	if (!r) {
		snprintf(object, sizeof(object), "fd %d (%s), its other end", f->num, f->link);
		if (ckpt_refuse_off(run, "scm-only", f->task, object) <= 0)
			return 1;
	}
	if (r)
		snprintf(reason, sizeof(reason),
			 "its other end socket:[%u] is outside the tree: %s", ino, who);
	else
		snprintf(reason, sizeof(reason),
			 "its other end socket:[%u] is held by no process (on its way in a "
			 "message?)",
			 ino);
	return sock_refuse(run, f, "external", reason, "dump a tree that includes the other end");
}
