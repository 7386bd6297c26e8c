/* SPDX-License-Identifier: MIT */
/* socketpair(2): both ends in the tree, or one that is left over from a closed other. */
#include "unix.h"

#include <sched.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

static bool unnamed(int fd, bool peer)
{
	struct sockaddr_un a;
	socklen_t len = sizeof(a);
	int r = peer ? getpeername(fd, (struct sockaddr *)&a, &len)
		     : getsockname(fd, (struct sockaddr *)&a, &len);

	return !r && len == sizeof(a.sun_family);
}

static bool unix_pair_match(const struct ckpt_fd_found *f)
{
	return f->domain == AF_UNIX && f->listening == 0 && unnamed(f->fd, false) &&
	       unnamed(f->fd, true);
}

static int unix_pair_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
			    struct ckpt_error *err)
{
	const struct sock_unix_diag *d;
	int r;

	d = sock_end_find(run, f, &r, err);
	if (d)
		r = sock_end_survey(run, f, d, err);
	return r ? r : sock_creator_survey(run, f);
}

static int unix_pair_collect(struct ckpt_run *run, const struct ckpt_fd_found *f,
			     struct ckpt_error *err)
{
	const struct sock_unix_diag *d = sock_unix_find(sock_state(run), f->st.st_ino);
	Ckpt__Sock__UnixEnd rec = CKPT__SOCK__UNIX_END__INIT;

	return sock_end_collect(run, f, d, &rec, err);
}

/* ---- restore ---------------------------------------------------------------------- */

static int unix_pair_plan(struct ckpt_run *run, uint32_t id, struct ckpt_error *err)
{
	const Ckpt__Sock__UnixEnd *rec = ckpt_record_need(run, "sock.unix-end", id, err);

	if (!rec)
		return -EBADMSG;
	if (rec->name || rec->peer_name || rec->accepted || rec->listener || rec->connector ||
	    rec->form != SOCK_PAIR)
		return ckpt_fail_image(err, "open file %u is not a valid socketpair", id);
	return sock_end_plan(run, rec, err);
}

/*
 * Pairs that one task has to make, in the order of their first ends: going into
 * a task costs more than a socketpair(2), so many are made at a time.
 */
#define BATCH 32
struct batch {
	const Ckpt__Sock__UnixEnd *end[BATCH];
	int sv[BATCH][2];
	size_t n;
};

/*
 * Files are opened in order of id. So of one creator's pairs, those from `rec` on
 * are not made yet, and they are all that a later call finds made.
 */
static void gather(struct ckpt_run *run, const Ckpt__Sock__UnixEnd *rec, size_t max,
		   struct batch *b)
{
	size_t n = ckpt_record_count(run, "sock.unix-end");
	const struct ckpt_ns *net = sock_net_saved(run, rec->id);

	b->n = 0;
	for (size_t i = (size_t)ckpt_record_index(run, "sock.unix-end", rec->id);
	     i < n && b->n < max; i++) {
		const Ckpt__Sock__UnixEnd *e = ckpt_record_at(run, "sock.unix-end", i);

		if (e->form != SOCK_PAIR || !e->creator ||
		    !sock_same_creator(e->creator, rec->creator) ||
		    sock_net_saved(run, e->id) != net || (e->peer && e->peer < e->id))
			continue;
		b->sv[b->n][0] = b->sv[b->n][1] = -1;
		b->end[b->n++] = e;
	}
}

static int fetch_pairs(struct ckpt_task *task, struct batch *b, const struct ckpt_script *made,
		       const int *ops, struct ckpt_script *close_them, struct ckpt_error *err)
{
	for (size_t i = 0; i < b->n; i++) {
		int nums[2];

		memcpy(nums, ckpt_script_out(made, ops[i], 3), sizeof(nums));
		for (int k = 0; k < 2; k++) {
			b->sv[i][k] = ckpt_get_fd(task, nums[k], err);
			if (b->sv[i][k] < 0)
				return b->sv[i][k];
			ckpt_script_add(close_them, SYS_close, CKPT_C(nums[k]));
		}
	}
	return 0;
}

/* The maker may have been in another network namespace than it is now: *num is lent to it. */
static int add_setns(struct ckpt_run *run, struct ckpt_script *s, struct ckpt_task *task,
		     const struct ckpt_ns *net, int *num, struct ckpt_error *err)
{
	CKPT_AUTO_FD int own =
		net->own ? open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC) : -1;

	*num = ckpt_lend_fd(run, task, net->own ? own : net->fd, err);
	if (*num >= 0)
		ckpt_script_add(s, SYS_setns, CKPT_C(*num), CKPT_C(CLONE_NEWNET));
	return *num < 0 ? *num : 0;
}

/* Made by their creator, fetched from there, closed there. */
static int make_in(struct ckpt_run *run, struct ckpt_task *task, struct batch *b,
		   struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "sock.socketpair");
	CKPT_AUTO_SCRIPT struct ckpt_script *close_them = ckpt_script_new(run, "sock.socketpair");
	const struct ckpt_ns *now = ckpt_ns_of_task(run, task, CKPT_NS_NET);
	const struct ckpt_ns *net = sock_net_saved(run, b->end[0]->id);
	int ops[BATCH], lent[2] = { -1, -1 }, r = 0;

	if (now != net)
		r = add_setns(run, s, task, net, &lent[0], err);
	sock_creator_enter(s, b->end[0]->creator);
	for (size_t i = 0; i < b->n; i++)
		ops[i] = ckpt_script_add(s, SYS_socketpair, CKPT_C(AF_UNIX),
					 CKPT_C(b->end[i]->type | SOCK_CLOEXEC), CKPT_C(0),
					 CKPT_OUT(2 * sizeof(int)));
	sock_creator_leave(s, b->end[0]->creator);
	if (r == 0 && now != net)
		r = add_setns(run, s, task, now, &lent[1], err);
	if (r == 0)
		r = ckpt_script_run(s, task->threads[0], err);
	for (int i = 0; i < 2 && r == 0; i++)
		if (lent[i] >= 0)
			r = ckpt_return_fd(run, task, lent[i], err);
	if (r == 0)
		r = fetch_pairs(task, b, s, ops, close_them, err);
	return r ? r : ckpt_script_run(close_them, task->threads[0], err);
}

static int make_pairs(struct ckpt_run *run, const Ckpt__Sock__UnixEnd *rec, struct batch *b,
		      struct ckpt_error *err)
{
	struct ckpt_task *task = sock_creator_task(run, rec->creator);
	SOCK_PLACE(place);
	int r;

	gather(run, rec, task ? BATCH : 1, b);
	if (task)
		return make_in(run, task, b, err);
	r = sock_net_enter(sock_net_saved(run, rec->id), &place, err);
	if (r < 0)
		return r;
	if (socketpair(AF_UNIX, (int)rec->type | SOCK_CLOEXEC, 0, b->sv[0]))
		return ckpt_fail_sys(err, errno, "socketpair(2)");
	return 0;
}

static int unix_pair_open(struct ckpt_run *run, const struct ckpt_fd_slot *slot,
			  struct ckpt_error *err)
{
	const Ckpt__Sock__UnixEnd *rec = ckpt_record_need(run, "sock.unix-end", slot->file, err);
	int fd = sock_stash_take(sock_state(run), slot->file), r;
	struct batch b;

	sock_state(run)->tree = slot->tree;
	if (fd >= 0 || !rec)
		return fd >= 0 ? fd : -EBADMSG;
	b.n = 0;
	r = make_pairs(run, rec, &b, err);
	for (size_t i = 0; i < b.n; i++) {
		if (!r)
			r = sock_end_finish(run, b.end[i], b.sv[i], err);
		for (int k = 0; k < 2; k++)
			if (b.sv[i][k] >= 0)
				close(b.sv[i][k]);
	}
	if (r)
		return r;
	fd = sock_stash_take(sock_state(run), slot->file);
	return fd >= 0 ? fd
		       : ckpt_fail_image(err, "open file %u is no end of its pair", slot->file);
}

const struct ckpt_fd_kind sock_kind_unix_pair = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = unix_pair_match,
	.survey = unix_pair_survey,
	.collect = unix_pair_collect,
	.ahead = sock_options_ahead,
	.plan = unix_pair_plan,
	.open = unix_pair_open,
	.carried = sock_carried,
	.own_pos = true,
	.flags_ok = SOCK_FLAGS,
};
