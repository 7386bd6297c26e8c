/* SPDX-License-Identifier: MIT */
/* Classic BPF programs that sort out what a socket receives (SO_ATTACH_FILTER). */
#include "internal.h"

#include <linux/filter.h>
#include <sys/socket.h>

#define PROGRAM_MAX BPF_MAXINSNS

/* The number of instructions, or a negative errno: EACCES for a program of eBPF. */
static int length_of(int fd)
{
	socklen_t len = 0;

	return getsockopt(fd, SOL_SOCKET, SO_GET_FILTER, NULL, &len) ? -errno : (int)len;
}

int sock_filter_survey(struct ckpt_run *run, const struct ckpt_fd_found *f)
{
	int n = length_of(f->fd);

	if (n == -EACCES)
		return sock_refuse(run, f, "socket-bpf",
				   "an eBPF program is attached to the socket",
				   "detach it before the dump, or allow the loss");
	if (n <= 0 || ckpt_feature_on(run, "socket-filter"))
		return 0;
	return sock_refuse_detail(run, f, "socket-filter",
				  "a filter is attached to the socket, and the feature "
				  "sock.socket-filter is switched off",
				  "switch it on");
}

int sock_filter_collect(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	CKPT_AUTO_FREE struct sock_filter *program = NULL;
	Ckpt__Sock__Filter rec = CKPT__SOCK__FILTER__INIT;
	int n = length_of(f->fd);
	socklen_t len = (socklen_t)n;

	if (n <= 0 || !ckpt_feature_on(run, "socket-filter"))
		return 0;
	program = calloc((size_t)n, sizeof(*program));
	if (!program)
		return ckpt_fail_sys(err, ENOMEM, "filter of a socket");
	if (getsockopt(f->fd, SOL_SOCKET, SO_GET_FILTER, program, &len) || (int)len != n)
		return ckpt_fail_sys(err, errno, "SO_GET_FILTER");
	rec.id = f->file;
	rec.program.data = (uint8_t *)program;
	rec.program.len = (size_t)n * sizeof(*program);
	rec.locked = sock_int(f->fd, SOL_SOCKET, SO_LOCK_FILTER) > 0;
	return ckpt_record_put(run, SOCK_REC_FILTER, &rec.base, err);
}

int sock_filter_plan(struct ckpt_run *run, struct ckpt_error *err)
{
	for (size_t i = 0; i < ckpt_record_count(run, "sock.filter"); i++) {
		const Ckpt__Sock__Filter *rec = ckpt_record_at(run, "sock.filter", i);

		if (!rec->program.len || rec->program.len % sizeof(struct sock_filter) ||
		    rec->program.len / sizeof(struct sock_filter) > PROGRAM_MAX ||
		    !sock_file_known(run, rec->id))
			return ckpt_fail_image(err, "open file %u has no valid filter", rec->id);
	}
	return 0;
}

int sock_filter_apply(struct ckpt_run *run, uint32_t file, int fd, struct ckpt_error *err)
{
	ssize_t i = ckpt_record_index(run, "sock.filter", file);
	const Ckpt__Sock__Filter *rec =
		i < 0 ? NULL : ckpt_record_at(run, "sock.filter", (size_t)i);
	struct sock_fprog program;
	int on = 1;

	if (!rec)
		return 0;
	program.len = (unsigned short)(rec->program.len / sizeof(struct sock_filter));
	program.filter = (struct sock_filter *)(void *)rec->program.data;
	if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) ||
	    (rec->locked && setsockopt(fd, SOL_SOCKET, SO_LOCK_FILTER, &on, sizeof(on))))
		return ckpt_fail_sys(err, errno, "SO_ATTACH_FILTER");
	return 0;
}

/* Kinds that are filled while they are made attach it themselves, before they hear from others. */
static bool attached_early(struct ckpt_run *run, uint32_t id)
{
	return ckpt_record_by_id(run, "sock.inet", id) ||
	       ckpt_record_by_id(run, "sock.netlink", id);
}

/* Those of sockets that are filled after they are made, and could filter that. */
int sock_filter_settle(struct ckpt_run *run, struct ckpt_error *err)
{
	const struct sock_state *st = sock_state(run);
	int r = 0;

	for (size_t i = 0; i < ckpt_record_count(run, "sock.filter") && !r; i++) {
		const Ckpt__Sock__Filter *rec = ckpt_record_at(run, "sock.filter", i);
		CKPT_AUTO_FD int fd = -1;

		if (attached_early(run, rec->id))
			continue;
		fd = st->tree ? st->tree->get(run, rec->id, err) : -ENOENT;
		if (fd < 0)
			return st->tree ? fd : ckpt_fail_image(err, "no socket %u", rec->id);
		r = sock_filter_apply(run, rec->id, fd, err);
	}
	return r;
}
