/* SPDX-License-Identifier: MIT */
/*
 * The extension points of the plugin `pid`.
 *
 * The extension point "session", owned by the plugin `pid`: what a session has
 * beside its members, which is its controlling terminal. Without an extension
 * pid refuses controlling terminals, and sessions that are led from outside the
 * tree. Register with
 *     { CKPT_SESSION_POINT, "terminal", &session_kind }
 */
#ifndef CKPT_PID_H
#define CKPT_PID_H

#include <stdbool.h>
#include <stdint.h>

#include <ckpt/error.h>
#include <ckpt/task.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ckpt_run;

struct ckpt_session_kind {
	uint32_t size; /* sizeof(struct ckpt_session_kind) */
	/*
	 * dump, while surveying: this task has a controlling terminal, of that device
	 * number. 0: it is taken care of, or refused with ckpt_refuse(); 1: not ours;
	 * negative: failed.
	 */
	int (*terminal)(struct ckpt_run *run, const struct ckpt_task *t, unsigned major,
			unsigned minor, struct ckpt_error *err);
	/*
	 * dump: the task's session or group is led from outside the tree. 1: that is as
	 * it should be, it will be that of ckpt at restore; 0: refuse it. May be NULL.
	 */
	int (*outside)(struct ckpt_run *run, const struct ckpt_task *t, struct ckpt_error *err);
	/*
	 * restore: this task has just made its session; whoever is cloned from it later
	 * inherits its controlling terminal. May be NULL.
	 */
	int (*made)(struct ckpt_run *run, struct ckpt_task *leader, struct ckpt_error *err);
};

#define CKPT_SESSION_POINT "session"

/*
 * The extension point "share": what processes can only have in common by birth, as
 * clone(2)'s CLONE_FILES and CLONE_FS make it. Who saves that state registers
 *     { CKPT_SHARE_POINT, "files", &share_kind }
 * and pid, which makes the tasks, sees to it that they are born with it, or finds out
 * while planning that this tree cannot be. Since 0.1.
 */
struct ckpt_share_kind {
	uint32_t size; /* sizeof(struct ckpt_share_kind) */
	uint64_t flag; /* CLONE_FILES, CLONE_FS */
	/*
	 * restore, from `loaded` on: the first of the tasks that this one shares it with;
	 * 0: it is that first one itself, or shares it with nobody.
	 */
	uint32_t (*with)(struct ckpt_run *run, uint32_t task);
	const char *what; /* "descriptor table" */
};

#define CKPT_SHARE_POINT "share"

/* A task to be made; also those that are there for a moment only and have nothing but an id. */
struct ckpt_kin {
	uint32_t id;
	uint32_t maker; /* index of who clones it, which is lower; the first is its own maker */
};

/*
 * The extension point "birth", owned by the plugin `pid` too: what a child inherits, and
 * must be there when it is cloned. All functions may be NULL. Since 0.1.
 */
struct ckpt_birth_kind {
	uint32_t size; /* sizeof(struct ckpt_birth_kind) */
	/*
	 * restore, at the end of pid.plan, for each task of the image in the order of ids: the
	 * task whose state it will inherit, by its id; 0: that of ckpt.
	 */
	int (*planned)(struct ckpt_run *run, uint32_t id, uint32_t maker, struct ckpt_error *err);
	/*
	 * restore: this task was cloned, its children were not. It has ckpt's credentials. If
	 * there is a function `family`, those that are there for a moment are told too.
	 */
	int (*born)(struct ckpt_run *run, struct ckpt_task *task, struct ckpt_error *err);
	/* restore, before the first task is made: who will clone whom, in that order */
	int (*family)(struct ckpt_run *run, const struct ckpt_kin *kin, size_t n,
		      struct ckpt_error *err);
	/*
	 * restore: `maker` will clone the task `id` next, or, if nobody in the family has that id,
	 * processes that do nothing and are gone before it goes on
	 */
	int (*cloning)(struct ckpt_run *run, struct ckpt_task *maker, uint32_t id,
		       struct ckpt_error *err);
};

#define CKPT_BIRTH_POINT "birth"

#ifdef __cplusplus
}
#endif
#endif
