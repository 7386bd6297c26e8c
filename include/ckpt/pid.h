/* SPDX-License-Identifier: MIT */
/*
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

#ifdef __cplusplus
}
#endif
#endif
