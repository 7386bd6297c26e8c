/* SPDX-License-Identifier: MIT */
/*
 * Handing descriptors to skeletons: each holds a pidfd of the engine and
 * fetches what it needs with pidfd_getfd(2), one flat system call a descriptor.
 * A skeleton still has the engine's credentials, so it may; to one that has joined
 * a nested user namespace they are sent.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "engine/run.h"
#include "process/set.h"
#include "process/uapi.h"

void ckpt_reserve_fd(struct ckpt_run *run, int num)
{
	struct proc_set *ps = run_procs(run);

	if (num > ps->max_fd)
		ps->max_fd = num;
}

struct fd_table *fd_table_new(const struct proc_set *ps, const struct fd_table *copy_of)
{
	struct fd_table *t = calloc(1, sizeof(*t));

	if (t)
		t->used = calloc((size_t)ps->max_fd + 1, 1);
	if (!t || !t->used) {
		free(t);
		return NULL;
	}
	if (copy_of)
		memcpy(t->used, copy_of->used, (size_t)ps->max_fd + 1);
	t->users = 1;
	return t;
}

void fd_table_put(struct fd_table *t)
{
	if (!t || --t->users)
		return;
	free(t->used);
	free(t);
}

int ckpt_engine_fd(const struct ckpt_run *run)
{
	return transport_fd(run_procs(run));
}

size_t ckpt_table_users(const struct ckpt_task *task)
{
	return node_of(task)->files->users;
}

int ckpt_unshare(struct ckpt_run *run, struct ckpt_task *task, uint64_t flags,
		 struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "unshare");
	struct task_node *t = node_of(task);
	struct fd_table *own = NULL;
	int r;

	if (flags & CLONE_FILES && t->files->users > 1) {
		own = fd_table_new(t->ps, t->files);
		if (!own)
			return ckpt_fail_sys(err, ENOMEM, "task %u: descriptor table", task->id);
	}
	ckpt_script_add(s, SYS_unshare, CKPT_C(flags));
	r = ckpt_script_run(s, task->threads[0], err);
	if (r || !own) {
		fd_table_put(own);
		return r;
	}
	fd_table_put(t->files);
	t->files = own;
	return 0;
}

struct install {
	int fd, target;
	bool cloexec;
};

static int by_target(const void *a, const void *b)
{
	const struct install *x = a, *y = b;

	return (x->target > y->target) - (x->target < y->target);
}

static int lowest_free(const struct task_node *t, int from)
{
	while (from <= t->ps->max_fd && t->files->used[from])
		from++;
	return from;
}

/*
 * pidfd_getfd(2) gives the lowest free number, which we know: where that is the
 * target only the flag has to be set, else the descriptor is moved.
 */
static void add_install(struct ckpt_script *s, int transport, const struct install *in, int low)
{
	int got = ckpt_script_add(s, SYS_pidfd_getfd, CKPT_C(transport), CKPT_C(in->fd), CKPT_C(0));

	ckpt_script_expect(s, low);
	if (low == in->target) {
		if (!in->cloexec)
			ckpt_script_add(s, SYS_fcntl, CKPT_C(in->target), CKPT_C(F_SETFD),
					CKPT_C(0));
		return;
	}
	ckpt_script_add(s, SYS_dup3, CKPT_R(got), CKPT_C(in->target),
			CKPT_C(in->cloexec ? O_CLOEXEC : 0));
	ckpt_script_add(s, SYS_close, CKPT_R(got));
}

int ckpt_install_fds(struct ckpt_run *run, struct ckpt_task *task, const int *fds,
		     const int *targets, const bool *cloexec, size_t n, struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "install-fds");
	CKPT_AUTO_FREE struct install *in = calloc(n ? n : 1, sizeof(*in));
	struct task_node *t = node_of(task);
	int low = 0;

	if (!in)
		return ckpt_fail_sys(err, ENOMEM, "task %u: %zu descriptors", task->id, n);
	for (size_t i = 0; i < n; i++) {
		if (targets[i] < 0 || targets[i] > t->ps->max_fd)
			return ckpt_fail(err, EINVAL, "task %u: descriptor %d was not reserved",
					 task->id, targets[i]);
		in[i] = (struct install){ fds[i], targets[i], cloexec[i] };
	}
	qsort(in, n, sizeof(*in), by_target);
	for (size_t i = 0; i < n; i++) {
		if (t->files->used[in[i].target])
			return ckpt_fail(err, EEXIST, "task %u: descriptor %d twice", task->id,
					 in[i].target);
		low = lowest_free(t, low);
		add_install(s, transport_fd(t->ps), &in[i], low);
		t->files->used[in[i].target] = 1;
	}
	return ckpt_script_post(ckpt_steal_ptr(&s), task->threads[0], err);
}

/* Out of the way of the numbers to be restored. */
static int move_up(struct ckpt_run *run, struct ckpt_task *task, int low, struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "lend-fd");
	int high = ckpt_script_add(s, SYS_fcntl, CKPT_C(low), CKPT_C(F_DUPFD_CLOEXEC),
				   CKPT_C(channel_fd(run_procs(run)) + 1));
	int r;

	ckpt_script_add(s, SYS_close, CKPT_C(low));
	r = ckpt_script_run(s, task->threads[0], err);
	return r ? r : (int)ckpt_script_result(s, high);
}

/* A message of one byte with one descriptor, as the task receives it. */
struct parcel {
	struct msghdr head;
	struct iovec part;
	char byte;
	union {
		char room[CMSG_SPACE(sizeof(int))];
		struct cmsghdr head;
	} control;
};

static int send_fd(int channel, int fd, struct ckpt_error *err)
{
	struct parcel p = { .control.head = { CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS } };

	p.part = (struct iovec){ &p.byte, 1 };
	p.head.msg_iov = &p.part;
	p.head.msg_iovlen = 1;
	p.head.msg_control = &p.control;
	p.head.msg_controllen = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(&p.control.head), &fd, sizeof(fd));
	if (sendmsg(channel, &p.head, MSG_NOSIGNAL | MSG_DONTWAIT) == 1)
		return 0;
	return ckpt_fail_sys(err, errno, "sending a descriptor");
}

/* Credentials do not matter to who receives one. */
static int lend_by_message(struct ckpt_run *run, struct ckpt_task *task, int fd,
			   struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "lend-fd");
	struct parcel p = { .head = { .msg_iovlen = 1, .msg_controllen = sizeof(p.control) },
			    .part = { NULL, 1 } };
	int op, r = send_fd(run_procs(run)->channel[0], fd, err), got;

	if (r)
		return r;
	op = ckpt_script_add(s, SYS_recvmsg, CKPT_C(channel_fd(run_procs(run))),
			     CKPT_INOUT(&p, sizeof(p)), CKPT_C(MSG_CMSG_CLOEXEC));
	ckpt_script_pointer(s, op, 1, offsetof(struct parcel, head.msg_iov), op, 1,
			    offsetof(struct parcel, part));
	ckpt_script_pointer(s, op, 1, offsetof(struct parcel, part.iov_base), op, 1,
			    offsetof(struct parcel, byte));
	ckpt_script_pointer(s, op, 1, offsetof(struct parcel, head.msg_control), op, 1,
			    offsetof(struct parcel, control));
	ckpt_script_expect(s, 1);
	r = ckpt_script_run(s, task->threads[0], err);
	if (r)
		return r;
	memcpy(&p, ckpt_script_out(s, op, 1), sizeof(p));
	if (p.head.msg_controllen < CMSG_LEN(sizeof(int)) || p.control.head.cmsg_type != SCM_RIGHTS)
		return ckpt_fail_sys(err, EMFILE, "task %u: receiving a descriptor", task->id);
	memcpy(&got, CMSG_DATA(&p.control.head), sizeof(got));
	return move_up(run, task, got, err);
}

int ckpt_lend_fd(struct ckpt_run *run, struct ckpt_task *task, int fd, struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "lend-fd");
	int got, high, r;

	if (node_of(task)->apart)
		return lend_by_message(run, task, fd, err);
	got = ckpt_script_add(s, SYS_pidfd_getfd, CKPT_C(transport_fd(run_procs(run))), CKPT_C(fd),
			      CKPT_C(0));
	high = ckpt_script_add(s, SYS_fcntl, CKPT_R(got), CKPT_C(F_DUPFD_CLOEXEC),
			       CKPT_C(channel_fd(run_procs(run)) + 1));
	ckpt_script_add(s, SYS_close, CKPT_R(got));
	r = ckpt_script_run(s, task->threads[0], err);
	return r ? r : (int)ckpt_script_result(s, high);
}

int ckpt_return_fd(struct ckpt_run *run, struct ckpt_task *task, int num, struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "return-fd");

	ckpt_script_add(s, SYS_close, CKPT_C(num));
	return ckpt_script_run(s, task->threads[0], err);
}
