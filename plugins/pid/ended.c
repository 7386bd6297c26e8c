/* SPDX-License-Identifier: MIT */
/*
 * Main threads that ended before the others of their task. What is left of one is its number,
 * its name and its credentials, by which the kernel judges who may send the task a signal. Its
 * status shows in /proc; the task's parent is told that of the last thread.
 */
#include <linux/capability.h>
#include <linux/prctl.h>
#include <linux/securebits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>

#include "pid.h"

#define MAX_GROUPS 8192

const char *pid_main_path(const struct ckpt_task *t, const char *what, char *buf, size_t size)
{
	if (t->ended)
		pid_thread_path(buf, size, t->ended, what);
	else
		snprintf(buf, size, "%s", what);
	return buf;
}

static bool is_nested(struct ckpt_run *run, uint32_t id)
{
	return !ckpt_ns_seat(run, id, 0)->ns[CKPT_NS_USER]->own;
}

static bool same_line(const char *a, const char *b, const char *key)
{
	char x[64] = "", y[64] = "";

	ckpt_proc_field(a, key, x, sizeof(x));
	ckpt_proc_field(b, key, y, sizeof(y));
	return !strcmp(x, y);
}

/* Its task takes the ids of the others before it joins the namespace, and cannot change them then.
 */
static int same_ids(const struct ckpt_task *t, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *own = NULL, *others = NULL;
	char path[64];

	if (ckpt_proc_read(t, pid_main_path(t, "status", path, sizeof(path)), &own, err) < 0 ||
	    ckpt_proc_read(t, "status", &others, err) < 0)
		return -err->err;
	return same_line(own, others, "Uid") && same_line(own, others, "Gid");
}

int pid_ended_survey(struct ckpt_run *run, const struct ckpt_task *t, struct ckpt_error *err)
{
	struct ckpt_blocker b = { .feature = "dead-leader-thread",
				  .task = t,
				  .object = "main thread that has ended",
				  .hint = "end the program's other threads",
				  .no_loss = true };
	struct pid_stat st;
	char reason[80];
	int r;

	if (!t->ended)
		return 0;
	b.reason = "the feature pid.dead-leader-thread is switched off";
	if (!ckpt_feature_on(run, "dead-leader-thread"))
		return ckpt_refuse(run, &b) == -ENOMEM ? -ENOMEM : 0;
	r = pid_read_stat(t, &st, err);
	if (r < 0)
		return pid_gone(run, r) ? 0 : r;
	b.reason = reason;
	snprintf(reason, sizeof(reason), "it ended with 0x%llx, not by exit(2)",
		 (unsigned long long)st.exit_code);
	if (st.exit_code & ~0xff00)
		ckpt_refuse(run, &b);
	r = is_nested(run, t->id) ? same_ids(t, err) : 1;
	b.reason = "in a nested user namespace, it had other ids than the others";
	if (!r)
		ckpt_refuse(run, &b);
	return r < 0 && !pid_gone(run, r) ? r : 0;
}

/* ---- collect ---------------------------------------------------------------------------- */

static uint64_t hex(const char *status, const char *key)
{
	char text[32];

	return ckpt_proc_field(status, key, text, sizeof(text)) < 0 ? 0 : strtoull(text, NULL, 16);
}

static int read_groups(struct pid_ended *e, const char *status, struct ckpt_error *err)
{
	const char *p = strstr(status, "\nGroups:\t");
	char *end;

	if (!p)
		return ckpt_fail(err, EINVAL, "/proc status: no Groups");
	e->groups = calloc(MAX_GROUPS, sizeof(*e->groups));
	if (!e->groups)
		return ckpt_fail_sys(err, ENOMEM, "groups");
	for (p += 9;; p = end) {
		p += strspn(p, " \t");
		if (*p == '\n')
			break;
		if (e->msg.n_groups == MAX_GROUPS)
			return ckpt_fail(err, E2BIG, "more than %d groups", MAX_GROUPS);
		e->groups[e->msg.n_groups] = (uint32_t)strtoul(p, &end, 10);
		if (end == p)
			return ckpt_fail(err, EINVAL, "/proc status: Groups");
		e->msg.n_groups++;
	}
	e->msg.groups = e->groups;
	return 0;
}

int pid_ended_collect(struct ckpt_run *run, const struct ckpt_task *t, struct pid_ended *e,
		      struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *status = NULL;
	char path[64], value[8] = "0";
	struct pid_stat st;
	int r = pid_read_stat(t, &st, err);

	ckpt__pid__ended__init(&e->msg);
	if (r < 0)
		return r;
	if (ckpt_proc_read(t, pid_main_path(t, "status", path, sizeof(path)), &status, err) < 0)
		return -err->err;
	if (pid_status_numbers(status, "NSpid", &e->nr) < 0)
		return ckpt_fail(err, EINVAL, "/proc/%d/status: no NSpid", t->pid);
	if (ckpt_feature_on(run, "ids")) {
		e->msg.tids = e->nr.nr;
		e->msg.n_tids = e->nr.n;
	}
	e->msg.status = (uint32_t)st.exit_code;
	snprintf(e->comm, sizeof(e->comm), "%.*s", (int)sizeof(t->comm), t->comm);
	e->msg.comm = e->comm;
	pid_status_ids(status, "Uid", e->uids);
	pid_status_ids(status, "Gid", e->gids);
	e->msg.uids = e->uids;
	e->msg.gids = e->gids;
	e->msg.n_uids = e->msg.n_gids = 3;
	e->msg.sigmask = hex(status, "SigBlk");
	e->msg.inheritable = hex(status, "CapInh");
	e->msg.permitted = hex(status, "CapPrm");
	e->msg.effective = hex(status, "CapEff");
	ckpt_proc_field(status, "NoNewPrivs", value, sizeof(value));
	e->msg.no_new_privs = !strcmp(value, "1");
	return read_groups(e, status, err);
}

void pid_ended_free(struct pid_ended *e)
{
	free(e->groups);
}

/* ---- restore ---------------------------------------------------------------------------- */

bool pid_ended_valid(const Ckpt__Pid__Task *r)
{
	const Ckpt__Pid__Ended *e = r->ended;

	return !e || (!r->zombie && !(e->status & ~0xff00U) && e->n_uids == 3 && e->n_gids == 3 &&
		      e->n_groups <= MAX_GROUPS && strlen(e->comm) <= 15 &&
		      !e->n_tids == !r->threads[0]->n_tids);
}

static void capabilities(struct ckpt_script *s, const Ckpt__Pid__Ended *e)
{
	const struct __user_cap_header_struct head = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct data[2];

	for (unsigned i = 0; i < 2; i++)
		data[i] = (struct __user_cap_data_struct){
			.effective = (uint32_t)(e->effective >> 32 * i),
			.permitted = (uint32_t)(e->permitted >> 32 * i),
			.inheritable = (uint32_t)(e->inheritable >> 32 * i),
		};
	ckpt_script_add(s, SYS_capset, CKPT_IN(&head, sizeof(head)), CKPT_IN(data, sizeof(data)));
	/* what ckpt has not got it cannot give to who makes no use of it */
	ckpt_script_allow(s, EPERM);
}

int pid_ended_end(struct ckpt_run *run, struct ckpt_task *t, const Ckpt__Pid__Ended *e,
		  struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "pid.ended");
	int r;

	ckpt_script_add(s, SYS_prctl, CKPT_C(PR_SET_NAME), CKPT_STR(e->comm));
	if (e->no_new_privs)
		ckpt_script_add(s, SYS_prctl, CKPT_C(PR_SET_NO_NEW_PRIVS), CKPT_C(1), CKPT_C(0),
				CKPT_C(0), CKPT_C(0));
	if (!is_nested(run, t->id)) {
		ckpt_script_add(s, SYS_prctl, CKPT_C(PR_SET_SECUREBITS),
				CKPT_C(SECBIT_NO_SETUID_FIXUP), CKPT_C(0), CKPT_C(0), CKPT_C(0));
		ckpt_script_add(s, SYS_setgroups, CKPT_C(e->n_groups),
				CKPT_IN(e->groups, e->n_groups * sizeof(*e->groups)));
		ckpt_script_add(s, SYS_setresgid, CKPT_C(e->gids[0]), CKPT_C(e->gids[1]),
				CKPT_C(e->gids[2]));
		ckpt_script_add(s, SYS_setresuid, CKPT_C(e->uids[0]), CKPT_C(e->uids[1]),
				CKPT_C(e->uids[2]));
	}
	capabilities(s, e);
	r = ckpt_script_run(s, t->threads[0], err);
	return r < 0 ? r : ckpt_end_main(run, t, (int)e->status, e->sigmask, err);
}
