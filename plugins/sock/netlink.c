/* SPDX-License-Identifier: MIT */
/*
 * Netlink sockets of protocols in which the kernel keeps nothing else about a socket than
 * its port, its groups and its options.
 */
#include "genl.h"

#include <linux/audit.h>
#include <linux/netlink.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>

#ifndef NETLINK_LIST_MEMBERSHIPS
#define NETLINK_LIST_MEMBERSHIPS 9
#endif

static bool netlink_match(const struct ckpt_fd_found *f)
{
	return f->domain == AF_NETLINK;
}

static bool plain_protocol(int protocol)
{
	return protocol == NETLINK_ROUTE || protocol == NETLINK_SOCK_DIAG ||
	       protocol == NETLINK_XFRM || protocol == NETLINK_FIB_LOOKUP ||
	       protocol == NETLINK_KOBJECT_UEVENT || protocol == NETLINK_GENERIC ||
	       protocol == NETLINK_AUDIT;
}

/* ---- audit ------------------------------------------------------------------------ */

#define AUDIT_PATIENCE_MS 1000
/* of the first pid namespace, for ever */
#define FIRST_PID_NAMESPACE 0xeffffffcUL

struct audit_answer {
	struct nlmsghdr h;
	union {
		struct audit_status status;
		struct nlmsgerr error;
	};
};

/* Who gets the records. 0: nobody; -EPERM: ckpt is not told. */
static pid_t audit_daemon(void)
{
	CKPT_AUTO_FD int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_AUDIT);
	const struct nlmsghdr ask = { .nlmsg_len = sizeof(ask),
				      .nlmsg_type = AUDIT_GET,
				      .nlmsg_flags = NLM_F_REQUEST };
	struct pollfd p = { .fd = fd, .events = POLLIN };
	struct audit_answer a = { 0 };

	if (fd < 0 || send(fd, &ask, sizeof(ask), 0) != sizeof(ask))
		return -errno;
	if (poll(&p, 1, AUDIT_PATIENCE_MS) != 1 || recv(fd, &a, sizeof(a), 0) < 0)
		return -ETIMEDOUT;
	if (a.h.nlmsg_type == AUDIT_GET)
		return (pid_t)a.status.pid;
	return a.h.nlmsg_type == NLMSG_ERROR && a.error.error < 0 ? a.error.error : -EPROTO;
}

/*
 * All that the kernel keeps of a socket of audit is whether it is the daemon's. Only a process of
 * the first pid namespace can have become that, and nobody else is told who it is.
 */
static int audit_survey(struct ckpt_run *run, const struct ckpt_fd_found *f)
{
	const pid_t daemon = audit_daemon();
	struct stat st;

	if (daemon >= 0 && !ckpt_task_by_pid(run, daemon))
		return 0;
	if (daemon < 0 && !stat("/proc/self/ns/pid", &st) && st.st_ino != FIRST_PID_NAMESPACE)
		return 0;
	return sock_refuse(run, f, "netlink-protocol",
			   daemon < 0 ? "whether it is the audit daemon's cannot be told"
				      : "it is the audit daemon's",
			   "leave that out of the tree, or allow the loss");
}

static int netlink_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
			  struct ckpt_error *err)
{
	struct pollfd p = { .fd = f->fd, .events = POLLIN };
	char reason[96];
	int r;

	snprintf(reason, sizeof(reason), "netlink sockets of the protocol %d are not saved yet",
		 f->protocol);
	if (!plain_protocol(f->protocol))
		return sock_refuse(run, f, "netlink-protocol", reason,
				   "close it before the dump, or allow the loss");
	r = f->protocol == NETLINK_AUDIT ? audit_survey(run, f) : 0;
	if (!r)
		r = sock_survey(run, f, err);
	if (!r && f->protocol == NETLINK_GENERIC)
		r = sock_generic_survey(run, f, err);
	if (r)
		return r;
	if (poll(&p, 1, 0) < 0)
		return ckpt_fail_sys(err, errno, "poll(2)");
	if (p.revents & POLLERR)
		r = sock_refuse_detail(run, f, "socket-error", "an error waits to be reported",
				       "let the program receive it, or --allow-loss "
				       "sock.socket-error: it is then not reported");
	if (!r && p.revents & POLLIN)
		r = sock_refuse_detail(run, f, "netlink-queue", "messages wait to be received",
				       "try again when the program has received them, or "
				       "--allow-loss sock.netlink-queue: they are then lost");
	return r;
}

int sock_read_groups(int fd, uint32_t *groups, size_t *n)
{
	uint32_t bits[SOCK_GROUPS_MAX / 32] = { 0 };
	socklen_t len = sizeof(bits);

	*n = 0;
	if (getsockopt(fd, SOL_NETLINK, NETLINK_LIST_MEMBERSHIPS, bits, &len))
		return -errno;
	if (len > sizeof(bits))
		return -E2BIG;
	for (uint32_t i = 0; i < SOCK_GROUPS_MAX; i++)
		if (bits[i / 32] >> i % 32 & 1)
			groups[(*n)++] = i + 1;
	return 0;
}

static int netlink_collect(struct ckpt_run *run, const struct ckpt_fd_found *f,
			   struct ckpt_error *err)
{
	Ckpt__Sock__Netlink rec = CKPT__SOCK__NETLINK__INIT;
	struct sockaddr_nl local = { 0 }, peer = { 0 };
	socklen_t len = sizeof(local), peer_len = sizeof(peer);
	uint32_t groups[SOCK_GROUPS_MAX];
	struct sock_options options;
	Ckpt__Sock__Owner owner;
	int r = sock_read_groups(f->fd, groups, &rec.n_groups);

	if (r || getsockname(f->fd, (struct sockaddr *)&local, &len) ||
	    getpeername(f->fd, (struct sockaddr *)&peer, &peer_len))
		return ckpt_fail_sys(err, r ? r : errno, "reading a netlink socket");
	if (sock_options_read(run, f, &options, err))
		return -err->err;
	sock_owner_of(&f->st, &owner);
	rec.id = f->file;
	rec.type = (uint32_t)f->type;
	rec.protocol = (uint32_t)f->protocol;
	rec.port = local.nl_pid;
	rec.groups = groups;
	rec.peer_port = peer.nl_pid;
	rec.peer_groups = peer.nl_groups;
	rec.owner = &owner;
	rec.options = options.ptr;
	rec.n_options = options.n;
	if (f->protocol == NETLINK_GENERIC)
		r = sock_generic_put(run, &rec, err);
	else
		r = ckpt_record_put(run, SOCK_NETLINK, &rec.base, err);
	if (r)
		return r;
	return sock_collect(run, f, err);
}

/* ---- restore ---------------------------------------------------------------------- */

static int netlink_plan(struct ckpt_run *run, uint32_t id, struct ckpt_error *err)
{
	const Ckpt__Sock__Netlink *rec = ckpt_record_need(run, "sock.netlink", id, err);
	int r;

	if (!rec)
		return -EBADMSG;
	if ((rec->type != SOCK_RAW && rec->type != SOCK_DGRAM) || rec->protocol > INT32_MAX ||
	    !plain_protocol((int)rec->protocol))
		return ckpt_fail_image(err, "open file %u is not a valid netlink socket", id);
	for (size_t i = 0; i < rec->n_groups; i++)
		if (!rec->groups[i] || rec->groups[i] > SOCK_GROUPS_MAX)
			return ckpt_fail_image(err, "open file %u is in no valid group", id);
	r = sock_owner_check(rec->owner, id, err);
	if (!r)
		r = sock_generic_plan(run, rec, err);
	return r ? r : sock_options_check(rec->options, rec->n_options, id, err);
}

static int bind_netlink(int fd, const Ckpt__Sock__Netlink *rec, struct ckpt_error *err)
{
	struct sockaddr_nl local = { .nl_family = AF_NETLINK, .nl_pid = rec->port };
	struct sockaddr_nl peer = { .nl_family = AF_NETLINK,
				    .nl_pid = rec->peer_port,
				    .nl_groups = rec->peer_groups };

	if (rec->port && bind(fd, (struct sockaddr *)&local, sizeof(local))) {
		ckpt_fail_sys(err, errno, "bind(2) to netlink port %u of protocol %u", rec->port,
			      rec->protocol);
		return ckpt_hint(err, "another program, or the original, has it");
	}
	for (size_t i = 0; i < rec->n_groups; i++)
		if (setsockopt(fd, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &rec->groups[i],
			       sizeof(rec->groups[i])))
			return ckpt_fail_sys(err, errno, "NETLINK_ADD_MEMBERSHIP %u",
					     rec->groups[i]);
	if (sock_generic_join(fd, rec, err))
		return -err->err;
	if ((rec->peer_port || rec->peer_groups) &&
	    connect(fd, (struct sockaddr *)&peer, sizeof(peer)))
		return ckpt_fail_sys(err, errno, "connect(2) to netlink port %u", rec->peer_port);
	return 0;
}

static int netlink_open(struct ckpt_run *run, const struct ckpt_fd_slot *slot,
			struct ckpt_error *err)
{
	const Ckpt__Sock__Netlink *rec = ckpt_record_need(run, "sock.netlink", slot->file, err);
	CKPT_AUTO_FD int fd = -1;
	SOCK_PLACE(place);
	int r;

	if (!rec)
		return -EBADMSG;
	fd = sock_new(run, slot->file, AF_NETLINK, (int)rec->type, (int)rec->protocol, &place, err);
	if (fd < 0)
		return fd;
	r = sock_options_apply(fd, rec->options, rec->n_options, err);
	if (!r)
		r = sock_filter_apply(run, slot->file, fd, err);
	if (!r)
		r = bind_netlink(fd, rec, err);
	if (!r)
		r = sock_owner_apply(fd, rec->owner, err);
	return r ? r : ckpt_steal_fd(&fd);
}

const struct ckpt_fd_kind sock_kind_netlink = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = netlink_match,
	.survey = netlink_survey,
	.collect = netlink_collect,
	.ahead = sock_options_ahead,
	.plan = netlink_plan,
	.open = netlink_open,
	.own_pos = true,
	.flags_ok = SOCK_FLAGS,
};
