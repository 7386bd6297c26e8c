/* SPDX-License-Identifier: MIT */
/*
 * Listeners. The kernel does not tell whose one is: it must be that of the only
 * filter in the tree that asks a supervisor.
 */
#include <fcntl.h>

#include "seccomp.h"

static bool match(const struct ckpt_fd_found *f)
{
	return !strcmp(f->link, "anon_inode:seccomp notify");
}

/* The filter that asks; 0 and how many there are, if it is not exactly one. */
static uint32_t asking(const struct seccomp_state *st, size_t *n)
{
	uint32_t found = 0;

	*n = 0;
	for (size_t i = 0; i < st->n_filters; i++) {
		if (!st->filters[i].notifies)
			continue;
		found = (uint32_t)i + 1;
		++*n;
	}
	return *n == 1 ? found : 0;
}

static int survey(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	struct seccomp_state *st = seccomp_state(run, err);
	const char *reason;
	size_t n;
	int r;

	if (!st)
		return -ENOMEM;
	r = seccomp_peek(run, err);
	if (r < 0)
		return r;
	/* the filters of a tree that runs cannot be read */
	if (ckpt_is_live(run) || (asking(st, &n) && !st->listeners++))
		return 0;
	reason = n > 1 ? "it cannot be told which of several filters it belongs to"
		 : n   ? "there is another listener, and one filter that asks"
		       : "no task of the tree has a filter that asks it";
	r = ckpt_refuse(run,
			&(struct ckpt_blocker){
				.feature = ckpt_feature_on(run, "filters") ? "listener" : "filters",
				.task = f->task,
				.object = "seccomp listener",
				.reason = reason,
				.hint = "close it before the dump, or allow the loss",
			});
	return r == -ECANCELED ? 1 : r < 0 ? r : 1;
}

static int collect(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	const struct seccomp_state *st = seccomp_state(run, err);
	Ckpt__Seccomp__Listener rec = CKPT__SECCOMP__LISTENER__INIT;
	size_t n;

	if (!st)
		return -ENOMEM;
	rec.id = f->file;
	rec.filter = asking(st, &n);
	if (!rec.filter)
		return ckpt_fail(err, EPROTO, "a seccomp listener, and %zu filters that ask", n);
	return ckpt_record_put(run, SECCOMP_REC_LISTENER, &rec.base, err);
}

static int plan(struct ckpt_run *run, uint32_t id, struct ckpt_error *err)
{
	return ckpt_record_need(run, "seccomp.listener", id, err) ? 0 : -EBADMSG;
}

static int open_again(struct ckpt_run *run, const struct ckpt_fd_slot *slot, struct ckpt_error *err)
{
	struct seccomp_state *st = seccomp_state(run, err);
	int fd;

	if (!st)
		return -ENOMEM;
	if (st->listener < 0)
		return ckpt_fail(err, ESRCH, "open file %u: no task has installed its filter",
				 slot->file);
	fd = fcntl(st->listener, F_DUPFD_CLOEXEC, 0);
	return fd < 0 ? ckpt_fail_sys(err, errno, "fcntl(2) F_DUPFD_CLOEXEC") : fd;
}

const struct ckpt_fd_kind seccomp_listener = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = match,
	.survey = survey,
	.collect = collect,
	.plan = plan,
	.open = open_again,
	.own_pos = true,
};
