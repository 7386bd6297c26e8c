/* SPDX-License-Identifier: MIT */
/* Inside the plugin ns. */
#ifndef PLUGIN_NS_H
#define PLUGIN_NS_H

#include <ckpt/fd.h>
#include <ckpt/ns.h>
#include <ckpt/plugin.h>

#include "ns.pb-c.h"

enum { NS_REC_NAMESPACE = 1, NS_REC_TASK = 2, NS_REC_DESCRIPTOR = 3 };

/* kinds.c */
/* The kind of a type, and whose it is. NULL: no plugin that is on has one. */
const struct ckpt_ns_kind *ns_kind(struct ckpt_run *run, enum ckpt_ns_type type,
				   const char **plugin);

enum ns_call { NS_SURVEY, NS_COLLECT, NS_PLAN, NS_MAKE, NS_FILL, NS_SETTLE, NS_MAKE_IN };
/* Let the kind of the namespace's type do something; 0 if it does not care. */
int ns_call(struct ckpt_run *run, enum ns_call what, struct ckpt_ns *ns, struct ckpt_error *err);
/* Let the kind make it in that task. */
int ns_make_in(struct ckpt_run *run, struct ckpt_ns *ns, struct ckpt_task *t,
	       struct ckpt_error *err);

/* survey.c */
/* dump and verify: which ones are left out? Blockers are listed. */
int ns_decide(struct ckpt_run *run, struct ckpt_error *err);
/* outside.c: refuse those that processes outside the tree are in too. */
int ns_outside(struct ckpt_run *run, struct ckpt_error *err);
/* Is it to be in the image? */
static inline bool ns_is_saved(const struct ckpt_ns *ns)
{
	return ns && !ns->own && !ns->lost;
}

/* held.c */
extern const struct ckpt_fd_kind ns_descriptor;

/* steps */
int ns_survey(struct ckpt_run *run, struct ckpt_error *err);
int ns_collect(struct ckpt_run *run, struct ckpt_error *err);
int ns_plan(struct ckpt_run *run, struct ckpt_error *err);
int ns_make(struct ckpt_run *run, struct ckpt_error *err);
int ns_join(struct ckpt_run *run, struct ckpt_error *err);
/* join.c */
int ns_join_user(struct ckpt_run *run, struct ckpt_error *err);
int ns_join_threads(struct ckpt_run *run, struct ckpt_error *err);
int ns_settle(struct ckpt_run *run, struct ckpt_error *err);

#endif
