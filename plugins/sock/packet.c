/* SPDX-License-Identifier: MIT */
/*
 * Packet sockets, as programs for DHCP and sniffers have them: what they are bound to, what
 * they have asked an interface for, options. Rings and fanout groups are refused.
 */
#include "internal.h"

#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <linux/netlink.h>
#include <linux/packet_diag.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <net/if.h>
#include <poll.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#define MEMBERS_MAX 64

static bool packet_match(const struct ckpt_fd_found *f)
{
	return f->domain == AF_PACKET;
}

/* What the kernel's list tells of one. */
struct look {
	uint64_t ino;
	bool found, ring, fanout, no_list;
	struct packet_diag_mclist members[MEMBERS_MAX];
	size_t n;
};

static void take_members(struct look *x, const struct rtattr *a)
{
	const struct packet_diag_mclist *m = RTA_DATA(a);
	size_t n = RTA_PAYLOAD(a) / sizeof(*m);

	/* one more than there is room for: refused */
	x->n = n;
	memcpy(x->members, m, (n < MEMBERS_MAX ? n : MEMBERS_MAX) * sizeof(*m));
}

static void take_socket(struct look *x, struct nlmsghdr *h)
{
	const struct packet_diag_msg *m = NLMSG_DATA(h);
	int left = (int)h->nlmsg_len - (int)NLMSG_LENGTH(sizeof(*m));

	if (m->pdiag_ino != x->ino)
		return;
	x->found = true;
	for (struct rtattr *a = (struct rtattr *)(uintptr_t)(m + 1); RTA_OK(a, left);
	     a = RTA_NEXT(a, left)) {
		x->ring |= a->rta_type == PACKET_DIAG_RX_RING || a->rta_type == PACKET_DIAG_TX_RING;
		x->fanout |= a->rta_type == PACKET_DIAG_FANOUT;
		if (a->rta_type == PACKET_DIAG_MCLIST)
			take_members(x, a);
	}
}

#define BUFFER 32768

static int read_list(int nl, struct look *x)
{
	struct {
		struct nlmsghdr h;
		struct packet_diag_req r;
	} q = { .h = { .nlmsg_len = sizeof(q),
		       .nlmsg_type = SOCK_DIAG_BY_FAMILY,
		       .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP },
		.r = { .sdiag_family = AF_PACKET,
		       .pdiag_show =
			       PACKET_SHOW_MCLIST | PACKET_SHOW_RING_CFG | PACKET_SHOW_FANOUT } };
	CKPT_AUTO_FREE char *buf = malloc(BUFFER);

	if (!buf)
		return -ENOMEM;
	if (send(nl, &q, sizeof(q), 0) != sizeof(q))
		return -errno;
	for (;;) {
		ssize_t len = recv(nl, buf, BUFFER, 0);
		unsigned left = len < 0 ? 0 : (unsigned)len;

		if (len < 0)
			return -errno;
		for (struct nlmsghdr *h = (void *)buf; NLMSG_OK(h, left); h = NLMSG_NEXT(h, left)) {
			const struct nlmsgerr *e = NLMSG_DATA(h);

			if (h->nlmsg_type == NLMSG_DONE)
				return 0;
			if (h->nlmsg_type == NLMSG_ERROR)
				return e->error ? e->error : -EPROTO;
			take_socket(x, h);
		}
	}
}

static int look_at(struct ckpt_run *run, const struct ckpt_fd_found *f, struct look *x,
		   struct ckpt_error *err)
{
	CKPT_AUTO_FD int nl = -1;
	const struct ckpt_ns *ns;
	SOCK_PLACE(place);
	int r = sock_net_of(run, f->fd, &ns, err);

	*x = (struct look){ .ino = f->st.st_ino };
	if (r < 0 || sock_net_enter(ns, &place, err) < 0)
		return -err->err;
	nl = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
	r = nl < 0 ? -errno : read_list(nl, x);
	/* a kernel without the module, or a machine that cannot load it */
	x->no_list = r == -ENOENT;
	return r && !x->no_list
		       ? ckpt_fail_sys(err, r,
				       "asking the kernel for its packet sockets (packet_diag)")
		       : 0;
}

/* The name of an interface of the socket's namespace; "" if there is none. */
static void name_of(int fd, unsigned index, char name[IFNAMSIZ])
{
	struct ifreq q = { .ifr_ifindex = (int)index };

	snprintf(name, IFNAMSIZ, "%s", index && !ioctl(fd, SIOCGIFNAME, &q) ? q.ifr_name : "");
}

/* The kernel notes that the interface is gone, and a new one does not change that. */
static bool has_lost_interface(int fd)
{
	struct sockaddr_ll local = { 0 };
	socklen_t len = sizeof(local);
	char name[IFNAMSIZ];

	if (getsockname(fd, (struct sockaddr *)&local, &len))
		return false;
	name_of(fd, (unsigned)local.sll_ifindex, name);
	return local.sll_ifindex && !name[0];
}

static int packet_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
			 struct ckpt_error *err)
{
	struct pollfd p = { .fd = f->fd, .events = POLLIN };
	struct look x;
	int r = sock_survey(run, f, err);

	if (!r)
		r = look_at(run, f, &x, err);
	if (r)
		return r;
	if (x.no_list)
		return sock_refuse(run, f, "packet",
				   "this kernel does not list packet sockets (packet_diag)",
				   "load the module af_packet_diag, or allow the loss");
	if (!x.found)
		return ckpt_is_live(run) ? 1
					 : ckpt_fail(err, ENOENT, "the kernel does not list it");
	if (x.ring || x.fanout || x.n > MEMBERS_MAX)
		return sock_refuse(run, f, "packet-ring",
				   "it has a ring in memory, a fanout group or many memberships",
				   "close it before the dump, or allow the loss");
	if (has_lost_interface(f->fd))
		return sock_refuse(run, f, "packet-interface",
				   "the interface that it is bound to is gone",
				   "let the program close it or bind it anew, or allow the loss");
	if (poll(&p, 1, 0) < 0)
		return ckpt_fail_sys(err, errno, "poll(2)");
	return p.revents & (POLLIN | POLLERR)
		       ? sock_refuse_detail(run, f, "packet-queue", "packets or errors wait",
					    "try again when the program has received them, or "
					    "--allow-loss sock.packet-queue: they are then lost")
		       : 0;
}

/* ---- collect ------------------------------------------------------------------------ */

struct record {
	Ckpt__Sock__Packet rec;
	Ckpt__Sock__PacketMember members[MEMBERS_MAX], *list[MEMBERS_MAX];
	char name[IFNAMSIZ], names[MEMBERS_MAX][IFNAMSIZ];
	struct sock_options options;
	Ckpt__Sock__Owner owner;
};

static void add_member(struct record *x, int fd, const struct packet_diag_mclist *m)
{
	Ckpt__Sock__PacketMember *to = &x->members[x->rec.n_members];

	ckpt__sock__packet_member__init(to);
	name_of(fd, m->pdmc_index, x->names[x->rec.n_members]);
	to->ifindex = m->pdmc_index;
	to->ifname = x->names[x->rec.n_members];
	to->type = m->pdmc_type;
	to->count = m->pdmc_count;
	to->address.data = (uint8_t *)(uintptr_t)m->pdmc_addr;
	to->address.len = m->pdmc_alen <= sizeof(m->pdmc_addr) ? m->pdmc_alen : 0;
	x->list[x->rec.n_members++] = to;
}

static int packet_collect(struct ckpt_run *run, const struct ckpt_fd_found *f,
			  struct ckpt_error *err)
{
	CKPT_AUTO_FREE struct record *x = calloc(1, sizeof(*x));
	struct sockaddr_ll local = { 0 };
	socklen_t len = sizeof(local);
	struct look look;

	if (!x)
		return ckpt_fail_sys(err, ENOMEM, "packet socket");
	if (getsockname(f->fd, (struct sockaddr *)&local, &len))
		return ckpt_fail_sys(err, errno, "getsockname(2)");
	if (look_at(run, f, &look, err) < 0 || sock_options_read(run, f, &x->options, err) < 0)
		return -err->err;
	ckpt__sock__packet__init(&x->rec);
	sock_owner_of(&f->st, &x->owner);
	name_of(f->fd, (unsigned)local.sll_ifindex, x->name);
	x->rec.id = f->file;
	x->rec.type = (uint32_t)f->type;
	x->rec.protocol = ntohs(local.sll_protocol);
	x->rec.ifindex = (uint32_t)local.sll_ifindex;
	x->rec.ifname = x->name;
	x->rec.owner = &x->owner;
	x->rec.options = x->options.ptr;
	x->rec.n_options = x->options.n;
	for (size_t i = 0; i < look.n && i < MEMBERS_MAX; i++)
		add_member(x, f->fd, &look.members[i]);
	x->rec.members = x->list;
	if (ckpt_record_put(run, SOCK_REC_PACKET, &x->rec.base, err))
		return -err->err;
	return sock_collect(run, f, err);
}

/* ---- restore ------------------------------------------------------------------------ */

static int packet_plan(struct ckpt_run *run, uint32_t id, struct ckpt_error *err)
{
	const Ckpt__Sock__Packet *rec = ckpt_record_need(run, "sock.packet", id, err);
	bool good;
	int r;

	if (!rec)
		return -EBADMSG;
	good = (rec->type == SOCK_RAW || rec->type == SOCK_DGRAM) && rec->protocol <= UINT16_MAX &&
	       sock_interface_ok(rec->ifname, rec->ifindex) && rec->n_members <= MEMBERS_MAX;
	for (size_t i = 0; i < rec->n_members && good; i++)
		good = rec->members[i]->address.len <= 8 && rec->members[i]->type <= UINT16_MAX &&
		       rec->members[i]->count <= 1000 && rec->members[i]->ifname[0] &&
		       sock_interface_ok(rec->members[i]->ifname, rec->members[i]->ifindex);
	if (!good)
		return ckpt_fail_image(err, "open file %u is not a valid packet socket", id);
	sock_interface_plan(run, id, rec->ifname);
	for (size_t i = 0; i < rec->n_members; i++)
		if (strcmp(rec->members[i]->ifname, rec->ifname) != 0)
			sock_interface_plan(run, id, rec->members[i]->ifname);
	r = sock_owner_check(rec->owner, id, err);
	return r ? r : sock_options_check(rec->options, rec->n_options, id, err);
}

static int join(int fd, const Ckpt__Sock__PacketMember *m, struct ckpt_error *err)
{
	struct packet_mreq q = { .mr_ifindex = sock_interface_now(m->ifname, err),
				 .mr_type = (unsigned short)m->type,
				 .mr_alen = (unsigned short)m->address.len };

	if (q.mr_ifindex < 0)
		return q.mr_ifindex;
	if (m->address.len)
		memcpy(q.mr_address, m->address.data, m->address.len);
	for (uint32_t i = 0; i < m->count; i++)
		if (setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &q, sizeof(q)))
			return ckpt_fail_sys(err, errno, "PACKET_ADD_MEMBERSHIP on %s", m->ifname);
	return 0;
}

static int set_up(struct ckpt_run *run, int fd, const Ckpt__Sock__Packet *rec,
		  struct ckpt_error *err)
{
	struct sockaddr_ll local = { .sll_family = AF_PACKET,
				     .sll_protocol = htons((uint16_t)rec->protocol) };
	int r = sock_options_apply(fd, rec->options, rec->n_options, err);

	/* made without a protocol, it hears nothing until it is bound */
	if (!r)
		r = sock_filter_apply(run, rec->id, fd, err);
	if (r)
		return r;
	local.sll_ifindex = sock_interface_now(rec->ifname, err);
	if (local.sll_ifindex < 0)
		return local.sll_ifindex;
	if ((rec->protocol || rec->ifindex) && bind(fd, (struct sockaddr *)&local, sizeof(local)))
		return ckpt_fail_sys(err, errno, "bind(2) of a packet socket to %s", rec->ifname);
	for (size_t i = 0; i < rec->n_members && !r; i++)
		r = join(fd, rec->members[i], err);
	return r ? r : sock_owner_apply(fd, rec->owner, err);
}

static int packet_open(struct ckpt_run *run, const struct ckpt_fd_slot *slot,
		       struct ckpt_error *err)
{
	const Ckpt__Sock__Packet *rec = ckpt_record_need(run, "sock.packet", slot->file, err);
	CKPT_AUTO_FD int fd = -1;
	SOCK_PLACE(place);
	int r;

	if (!rec)
		return -EBADMSG;
	fd = sock_new(run, slot->file, AF_PACKET, (int)rec->type, 0, &place, err);
	if (fd < 0)
		return fd;
	r = set_up(run, fd, rec, err);
	return r ? r : ckpt_steal_fd(&fd);
}

const struct ckpt_fd_kind sock_kind_packet = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = packet_match,
	.survey = packet_survey,
	.collect = packet_collect,
	.ahead = sock_options_ahead,
	.plan = packet_plan,
	.open = packet_open,
	.own_pos = true,
	.flags_ok = SOCK_FLAGS,
};
