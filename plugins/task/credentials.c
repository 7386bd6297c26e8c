/* SPDX-License-Identifier: MIT */
/* User and group ids, capabilities, securebits. */
#include <linux/capability.h>
#include <linux/prctl.h>
#include <linux/securebits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <ckpt/ns.h>

#include "task.h"

/* One operation of a script carries 32 KiB. */
#define MAX_GROUPS 8192

/* What follows "key:" in the text; NULL: no such line. */
static const char *line_of(const char *status, const char *key)
{
	size_t len = strlen(key);

	for (const char *p = status; p; p = strchr(p, '\n')) {
		p += *p == '\n';
		if (!strncmp(p, key, len) && p[len] == ':')
			return p + len + 1;
	}
	return NULL;
}

/* The next number of a line; false at its end. */
static bool next_number(const char **p, uint32_t *v)
{
	char *end;

	*p += strspn(*p, " \t");
	if (**p < '0' || **p > '9')
		return false;
	*v = (uint32_t)strtoul(*p, &end, 10);
	*p = end;
	return true;
}

static int list(const char *status, const char *key, uint32_t *out, size_t max, size_t *n)
{
	const char *p = line_of(status, key);
	uint32_t v;

	*n = 0;
	if (!p)
		return -EINVAL;
	while (next_number(&p, &v)) {
		if (*n == max)
			return -E2BIG;
		out[(*n)++] = v;
	}
	return 0;
}

static size_t count_groups(const char *status)
{
	const char *p = line_of(status, "Groups");
	size_t n = 0;
	uint32_t v;

	while (p && n <= MAX_GROUPS && next_number(&p, &v))
		n++;
	return n;
}

static int set(const char *status, const char *key, uint64_t *out)
{
	char text[32];
	int r = ckpt_proc_field(status, key, text, sizeof(text));

	*out = r < 0 ? 0 : strtoull(text, NULL, 16);
	return r;
}

int task_creds_read(const char *status, uint32_t securebits, struct task_creds *out,
		    struct ckpt_error *err)
{
	Ckpt__Task__Credentials *m = &out->msg;
	const struct {
		const char *key;
		uint64_t *to;
	} sets[] = {
		{ "CapInh", &m->inheritable }, { "CapPrm", &m->permitted },
		{ "CapEff", &m->effective },   { "CapBnd", &m->bounding },
		{ "CapAmb", &m->ambient },
	};
	const size_t n_groups = count_groups(status);
	uint64_t nnp = 0;
	int r = 0;

	ckpt__task__credentials__init(m);
	if (n_groups > MAX_GROUPS)
		return ckpt_fail(err, E2BIG, "more than %d groups", MAX_GROUPS);
	out->groups = calloc(n_groups + 1, sizeof(*out->groups));
	if (!out->groups)
		return ckpt_fail_sys(err, ENOMEM, "groups");
	m->uids = out->uids;
	m->gids = out->gids;
	m->groups = out->groups;
	if (list(status, "Uid", m->uids, 4, &m->n_uids) < 0 ||
	    list(status, "Gid", m->gids, 4, &m->n_gids) < 0)
		return ckpt_fail(err, EINVAL, "/proc status: no Uid or Gid");
	if (list(status, "Groups", m->groups, n_groups, &m->n_groups) < 0)
		return ckpt_fail(err, EINVAL, "/proc status: no Groups");
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(sets) && r == 0; i++)
		r = set(status, sets[i].key, sets[i].to);
	if (r == 0)
		r = set(status, "NoNewPrivs", &nnp);
	if (r < 0)
		return ckpt_fail_sys(err, r, "/proc status: capability sets");
	m->no_new_privs = nnp != 0;
	m->securebits = securebits;
	return 0;
}

void task_creds_free(struct task_creds *c)
{
	free(c->groups);
}

/* Ckpt's own, read once a run. */
static const struct task_creds *own(struct task_state *st, struct ckpt_error *err)
{
	CKPT_AUTO_FILE FILE *f = !st || st->mine ? NULL : fopen("/proc/self/status", "re");
	CKPT_AUTO_FREE struct task_creds *mine = NULL;
	CKPT_AUTO_FREE char *text = NULL;
	size_t cap = 0;

	if (!st || st->mine)
		return st ? st->mine : NULL;
	mine = calloc(1, sizeof(*mine));
	if (!mine || !f || getdelim(&text, &cap, 0, f) < 0) {
		ckpt_fail_sys(err, mine ? errno : ENOMEM, "/proc/self/status");
		return NULL;
	}
	if (task_creds_read(text, (uint32_t)prctl(PR_GET_SECUREBITS), mine, err) < 0) {
		task_creds_free(mine);
		return NULL;
	}
	st->mine = ckpt_steal_ptr(&mine);
	return st->mine;
}

bool task_ids_same(const Ckpt__Task__Credentials *a, const Ckpt__Task__Credentials *b)
{
	return b && b->n_uids == 4 && b->n_gids == 4 && a->n_groups == b->n_groups &&
	       !memcmp(a->uids, b->uids, 4 * sizeof(*a->uids)) &&
	       !memcmp(a->gids, b->gids, 4 * sizeof(*a->gids)) &&
	       (!a->n_groups || !memcmp(a->groups, b->groups, a->n_groups * sizeof(*a->groups)));
}

bool task_creds_same(const Ckpt__Task__Credentials *a, const Ckpt__Task__Credentials *b)
{
	return task_ids_same(a, b) && a->inheritable == b->inheritable &&
	       a->permitted == b->permitted && a->effective == b->effective &&
	       a->bounding == b->bounding && a->ambient == b->ambient &&
	       a->securebits == b->securebits;
}

bool task_creds_is_own(struct task_state *st, const struct task_creds *c)
{
	struct ckpt_error ignored = { 0 };
	const struct task_creds *mine = own(st, &ignored);

	return mine && task_creds_same(&c->msg, &mine->msg);
}

/* Capabilities that the restorer would have to have and has not, by name. */
static void lacking(struct ckpt_run *run, const Ckpt__Task__Thread *rec, uint64_t want,
		    uint64_t have, const char *what)
{
	for (unsigned c = 0; c < 64; c++) {
		char *name;

		if (!(want & ~have & (1ULL << c)))
			continue;
		name = cap_to_name((cap_value_t)c);
		ckpt_unmet(run, CKPT_EXIT_PRIVILEGE, "run ckpt with that capability",
			   "task %u, thread %u: %s capability %s: ckpt has not got it", rec->id,
			   rec->index, what, name ? name : "?");
		cap_free(name);
	}
}

/* Linux 6.14: SECBIT_EXEC_RESTRICT_FILE, SECBIT_EXEC_DENY_INTERACTIVE, and their locks */
#define EXEC_BIT  0x100
#define EXEC_BITS 0xf00

/* Anybody may set that one, and take it off again. */
static bool knows_exec_bits(void)
{
	int own = prctl(PR_GET_SECUREBITS);
	bool known = own >= 0 && prctl(PR_SET_SECUREBITS, own ^ EXEC_BIT) == 0;

	if (known)
		prctl(PR_SET_SECUREBITS, own);
	return known || own & EXEC_BITS;
}

bool task_is_nested(struct ckpt_run *run, uint32_t id)
{
	return !ckpt_ns_seat(run, id, 0)->ns[CKPT_NS_USER]->own;
}

int task_creds_plan(struct ckpt_run *run, struct task_state *st, const Ckpt__Task__Thread *rec,
		    struct ckpt_error *err)
{
	const Ckpt__Task__Credentials *c = rec->credentials;
	const struct task_creds *mine;

	if (!c || c->n_uids != 4 || c->n_gids != 4 || c->n_groups > MAX_GROUPS)
		return TASK_BAD(err, "credentials: bad lists");
	/* as the kernel keeps them (cap_capset(), cap_prctl_drop()) */
	if ((c->effective & ~c->permitted) || (c->ambient & ~(c->permitted & c->inheritable)) ||
	    (c->securebits & ~(SECURE_ALL_BITS | SECURE_ALL_LOCKS | EXEC_BITS)))
		return TASK_BAD(err, "credentials: capability sets contradict each other");
	if (!task_saved(st, TASK_CREDS))
		return 0;
	if (c->securebits & EXEC_BITS && !knows_exec_bits())
		ckpt_unmet(run, CKPT_EXIT_FAILED, "restore on Linux 6.14 or later",
			   "task %u, thread %u: securebits %#x are unknown to this kernel", rec->id,
			   rec->index, c->securebits);
	if (task_is_nested(run, rec->id))
		return task_inside_plan(run, rec, err);
	mine = own(st, err);
	if (!mine)
		return -err->err;
	if (mine->msg.no_new_privs && !c->no_new_privs)
		ckpt_unmet(run, CKPT_EXIT_PRIVILEGE, "run ckpt without no_new_privs",
			   "task %u, thread %u: has not given up new privileges (no_new_privs), "
			   "and ckpt has",
			   rec->id, rec->index);
	lacking(run, rec, c->permitted, mine->msg.permitted, "permitted");
	lacking(run, rec, c->bounding, mine->msg.bounding, "bounding");
	lacking(run, rec, c->inheritable, mine->msg.bounding | mine->msg.inheritable,
		"inheritable");
	return 0;
}

static void set_caps(struct ckpt_script *s, uint64_t p, uint64_t e, uint64_t i)
{
	const struct __user_cap_header_struct head = { _LINUX_CAPABILITY_VERSION_3, 0 };
	const struct __user_cap_data_struct data[2] = {
		{ (uint32_t)e, (uint32_t)p, (uint32_t)i },
		{ (uint32_t)(e >> 32), (uint32_t)(p >> 32), (uint32_t)(i >> 32) },
	};

	ckpt_script_add(s, SYS_capset, CKPT_IN(&head, sizeof(head)), CKPT_IN(data, sizeof(data)));
}

static void add_prctl(struct ckpt_script *s, int op, uint64_t a, uint64_t b)
{
	ckpt_script_add(s, SYS_prctl, CKPT_C(op), CKPT_C(a), CKPT_C(b), CKPT_C(0), CKPT_C(0));
}

/* Groups and gids need the uid's privileges. */
static void set_gids(struct ckpt_script *s, const Ckpt__Task__Credentials *c)
{
	ckpt_script_add(s, SYS_setgroups, CKPT_C(c->n_groups),
			CKPT_IN(c->groups, c->n_groups * sizeof(*c->groups)));
	ckpt_script_add(s, SYS_setresgid, CKPT_C(c->gids[0]), CKPT_C(c->gids[1]),
			CKPT_C(c->gids[2]));
	ckpt_script_add(s, SYS_setfsgid, CKPT_C(c->gids[3]));
}

static void set_uids(struct ckpt_script *s, const Ckpt__Task__Credentials *c)
{
	ckpt_script_add(s, SYS_setresuid, CKPT_C(c->uids[0]), CKPT_C(c->uids[1]),
			CKPT_C(c->uids[2]));
	ckpt_script_add(s, SYS_setfsuid, CKPT_C(c->uids[3]));
}

#define KEEP (SECBIT_NO_SETUID_FIXUP | SECBIT_KEEP_CAPS)

void task_ids_script(struct ckpt_script *s, const Ckpt__Task__Credentials *c)
{
	set_gids(s, c);
	add_prctl(s, PR_SET_SECUREBITS, KEEP, 0);
	set_uids(s, c);
}

/*
 * The bounding set bounds what can be made inheritable; NO_SETUID_FIXUP keeps all
 * sets over the change of uids; an ambient capability has to be permitted and
 * inheritable when it is raised; lock bits come last but for giving up what sets them.
 */
void task_creds_script(struct task_state *st, struct ckpt_script *s,
		       const Ckpt__Task__Credentials *c, const struct task_inside *inside)
{
	const bool nested = inside != NULL;
	struct ckpt_error ignored = { 0 };
	/* what ckpt's own set does not have need not be dropped; who joined has all there are */
	const struct task_creds *mine = nested ? NULL : own(st, &ignored);
	uint64_t all = (1ULL << cap_max_bits()) - 1;
	uint64_t have = nested ? all : mine ? mine->msg.permitted : c->permitted;
	uint64_t bounded = nested ? all : mine ? mine->msg.bounding : ~0ULL;

	if (!nested)
		set_gids(s, c);
	set_caps(s, have, have, c->inheritable);
	for (unsigned cap = 0; cap < 64; cap++)
		if (bounded & ~c->bounding & (1ULL << cap))
			add_prctl(s, PR_CAPBSET_DROP, cap, 0);
	add_prctl(s, PR_SET_SECUREBITS, KEEP, 0);
	if (nested)
		task_inside_script(s, inside);
	else
		set_uids(s, c);
	set_caps(s, have, have, c->inheritable);
	add_prctl(s, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0);
	for (unsigned cap = 0; cap < 64; cap++)
		if (c->ambient & (1ULL << cap))
			add_prctl(s, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, cap);
	add_prctl(s, PR_SET_SECUREBITS, c->securebits, 0);
	set_caps(s, c->permitted, c->effective, c->inheritable);
}
