/* SPDX-License-Identifier: MIT */
/*
 * Devices of /dev/net/tun, and the descriptors at their other end. A device that goes with its
 * descriptors is made with as many of them, which wait in the engine for their holders: so its
 * carrier is there before addresses and routes are. Packets that wait to be read are lost, as
 * packets may be.
 */
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/if_arp.h>
#include <linux/if_tun.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "net.h"

#define DEVICE	   "/dev/net/tun"
#define MAX_QUEUES 256

#ifndef TUNGETDEVNETNS
#define TUNGETDEVNETNS _IO('T', 227)
#endif

/* A queue of a device, by namespace and name. */
struct net_end {
	uint32_t ns;
	char name[IFNAMSIZ];
	int fd; /* restore: until it is handed out */
};

void net_ends_free(struct net_state *st)
{
	for (size_t i = 0; i < st->n; i++)
		if (st->ends[i].fd >= 0)
			close(st->ends[i].fd);
	free(st->ends);
}

static int note(struct ckpt_run *run, uint32_t ns, const char *name, int fd, struct ckpt_error *err)
{
	struct net_state *st = net_state(run);
	struct net_end *more = st ? realloc(st->ends, (st->n + 1) * sizeof(*more)) : NULL;

	if (!more)
		return ckpt_fail_sys(err, ENOMEM, DEVICE);
	st->ends = more;
	more[st->n] = (struct net_end){ .ns = ns, .fd = fd };
	strncpy(more[st->n++].name, name, IFNAMSIZ - 1);
	return 0;
}

static size_t ends_of(struct ckpt_run *run, uint32_t ns, const char *name)
{
	const struct net_state *st = ckpt_state(run);
	size_t found = 0;

	for (size_t i = 0; st && i < st->n; i++)
		found += st->ends[i].ns == ns && !strcmp(st->ends[i].name, name);
	return found;
}

/* ---- links -------------------------------------------------------------------------- */

static uint32_t byte(const struct nlattr *a)
{
	return a ? nla_get_u8(a) : 0;
}

int net_tun_read(Ckpt__Net__Link *l, struct nlattr *data, unsigned hardware, bool carrier,
		 struct ckpt_error *err)
{
	struct nlattr *in[IFLA_TUN_MAX + 1] = { 0 };
	Ckpt__Net__Tun *t = malloc(sizeof(*t));

	if (!t)
		return ckpt_fail_sys(err, ENOMEM, "link %u", l->index);
	ckpt__net__tun__init(t);
	l->tun = t;
	if (data)
		nla_parse_nested(in, IFLA_TUN_MAX, data, NULL);
	t->type = byte(in[IFLA_TUN_TYPE]);
	t->pi = byte(in[IFLA_TUN_PI]);
	t->persistent = byte(in[IFLA_TUN_PERSIST]);
	t->multi_queue = byte(in[IFLA_TUN_MULTI_QUEUE]);
	t->owner = in[IFLA_TUN_OWNER] ? (int64_t)nla_get_u32(in[IFLA_TUN_OWNER]) : -1;
	t->group = in[IFLA_TUN_GROUP] ? (int64_t)nla_get_u32(in[IFLA_TUN_GROUP]) : -1;
	t->odd =
		hardware != (t->type == IFF_TAP ? ARPHRD_ETHER : ARPHRD_NONE) ||
		byte(in[IFLA_TUN_VNET_HDR]) ||
		(in[IFLA_TUN_NUM_DISABLED_QUEUES] && nla_get_u32(in[IFLA_TUN_NUM_DISABLED_QUEUES]));
	/* a single one shows as carrier alone */
	t->queues = in[IFLA_TUN_NUM_QUEUES] ? nla_get_u32(in[IFLA_TUN_NUM_QUEUES]) : carrier;
	return 0;
}

const char *net_tun_refused(const struct net_job *job, const Ckpt__Net__Link *l)
{
	const size_t ends = ends_of(job->run, job->ns->id, l->name);
	const Ckpt__Net__Tun *t = l->tun;

	if (t->odd || t->queues > MAX_QUEUES)
		return "it has headers for offloads, queues that are detached, or another type";
	if (ends < t->queues)
		return "a process outside the tree has it open (" DEVICE ")";
	if (ends > t->queues)
		return "its carrier is switched off, or its queues come and go";
	return !t->queues && !t->persistent ? "its carrier is switched off" : NULL;
}

static int plan_device(struct ckpt_run *run)
{
	struct stat st;

	if (stat(DEVICE, &st) || !S_ISCHR(st.st_mode) || st.st_rdev != makedev(10, 200))
		return ckpt_unmet(run, CKPT_EXIT_FAILED, "load the module tun",
				  "there is no " DEVICE);
	return 0;
}

int net_tun_plan(struct ckpt_run *run, const Ckpt__Net__Link *l, struct ckpt_error *err)
{
	const Ckpt__Net__Tun *t = l->tun;

	if (!t || strcmp(l->kind, "tun") != 0 || l->external ||
	    (t->type != IFF_TUN && t->type != IFF_TAP) || t->odd || t->queues > MAX_QUEUES ||
	    (t->queues > 1 && !t->multi_queue) || (!t->queues && !t->persistent) ||
	    t->owner >= UINT32_MAX || t->group >= UINT32_MAX)
		return ckpt_fail_image(err, "link %u: no device of " DEVICE, l->index);
	return plan_device(run);
}

/* One more queue; the first one makes the device. */
static int open_queue(const Ckpt__Net__Link *l, bool first, struct ckpt_error *err)
{
	const Ckpt__Net__Tun *t = l->tun;
	CKPT_AUTO_FD int fd = open(DEVICE, O_RDWR | O_CLOEXEC);
	unsigned index = l->index;
	struct ifreq req = { .ifr_flags = (short)(t->type | (t->pi ? 0 : IFF_NO_PI) |
						  (t->multi_queue ? IFF_MULTI_QUEUE : 0)) };

	if (fd < 0)
		return ckpt_fail_sys(err, errno, DEVICE);
	strncpy(req.ifr_name, l->name, IFNAMSIZ - 1);
	if ((first && ioctl(fd, TUNSETIFINDEX, &index)) || ioctl(fd, TUNSETIFF, &req))
		return ckpt_fail_sys(err, errno, "link %s: TUNSETIFF", l->name);
	if (first && ((t->owner >= 0 && ioctl(fd, TUNSETOWNER, (unsigned long)t->owner)) ||
		      (t->group >= 0 && ioctl(fd, TUNSETGROUP, (unsigned long)t->group)) ||
		      (t->persistent && ioctl(fd, TUNSETPERSIST, 1UL))))
		return ckpt_fail_sys(err, errno, "link %s: owner and persistence", l->name);
	return ckpt_steal_fd(&fd);
}

int net_tun_make(struct net_job *job, const Ckpt__Net__Link *l, struct ckpt_error *err)
{
	for (uint32_t i = 0; i < (l->tun->queues ? l->tun->queues : 1); i++) {
		CKPT_AUTO_FD int fd = open_queue(l, !i, err);

		if (fd < 0)
			return fd;
		if (l->tun->queues && note(job->run, job->ns->id, l->name, fd, err) < 0)
			return -err->err;
		if (l->tun->queues)
			ckpt_steal_fd(&fd);
	}
	return 0;
}

/* ---- descriptors -------------------------------------------------------------------- */

static bool tun_match(const struct ckpt_fd_found *f)
{
	return S_ISCHR(f->st.st_mode) && f->st.st_rdev == makedev(10, 200);
}

static int refuse(struct ckpt_run *run, const struct ckpt_fd_found *f, const char *feature,
		  const char *reason)
{
	char object[128];
	const struct ckpt_blocker b = {
		feature, f->task, object, reason, "let the program close it before the dump", true
	};

	snprintf(object, sizeof(object), "fd %d (%.64s)", f->num, f->link);
	return ckpt_refuse(run, &b) == -ECANCELED ? 1 : 0;
}

/* Whose device is it, and which? The name is empty if it has none yet. */
static int find(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ifreq *req,
		const struct ckpt_ns **ns, struct ckpt_error *err)
{
	CKPT_AUTO_FD int net = -1;

	*req = (struct ifreq){ 0 };
	if (ioctl(f->fd, TUNGETIFF, req) == 0)
		net = ioctl(f->fd, TUNGETDEVNETNS, 0);
	else if (errno == EBADFD)
		net = ioctl(f->fd, SIOCGSKNS, 0);
	if (net < 0)
		return ckpt_fail_sys(err, errno, "the device behind fd %d (" DEVICE ")", f->num);
	*ns = ckpt_ns_find(run, net, err);
	return *ns ? 0 : -err->err;
}

/* IFF_NOFILTER is the bit of IFF_NO_PI too, so it tells only of devices with headers. */
static bool is_filtered(int fd, const struct ifreq *req)
{
	struct sock_fprog program = { 0 };

	/* EINVAL: only a tap can have one */
	return !(req->ifr_flags & IFF_NOFILTER) ||
	       (!ioctl(fd, TUNGETFILTER, &program) && program.len);
}

static int tun_survey(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	const int odd = IFF_NAPI | IFF_NAPI_FRAGS | IFF_VNET_HDR | IFF_DETACH_QUEUE;
	const struct ckpt_ns *ns;
	struct ifreq req;
	int r = find(run, f, &req, &ns, err);

	if (r < 0)
		return r;
	if ((f->flags & O_ACCMODE) != O_RDWR)
		return refuse(run, f, "tun-details", "it is not open for both ways");
	if (!req.ifr_name[0])
		return 0;
	if (ns->own)
		return refuse(run, f, "tun-outside",
			      "its device is in the network namespace of ckpt, which is not saved");
	if (req.ifr_flags & odd || is_filtered(f->fd, &req))
		return refuse(run, f, "tun-details",
			      "headers for offloads, filters and detached queues are not saved");
	return note(run, ns->id, req.ifr_name, -1, err);
}

static int tun_collect(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	Ckpt__Net__TunEnd rec = CKPT__NET__TUN_END__INIT;
	const struct ckpt_ns *ns;
	struct ifreq req;
	int sndbuf = 0, r = find(run, f, &req, &ns, err);

	if (r < 0)
		return r;
	if (req.ifr_name[0] && ioctl(f->fd, TUNGETSNDBUF, &sndbuf))
		return ckpt_fail_sys(err, errno, "fd %d: TUNGETSNDBUF", f->num);
	rec.id = f->file;
	rec.ns = ns->id;
	rec.name = req.ifr_name;
	rec.sndbuf = (uint32_t)sndbuf;
	return ckpt_record_put(run, NET_REC_TUN_END, &rec.base, err);
}

static size_t records_of(struct ckpt_run *run, const Ckpt__Net__TunEnd *like)
{
	size_t found = 0;

	for (size_t i = 0; i < ckpt_record_count(run, "net.tun-end"); i++) {
		const Ckpt__Net__TunEnd *rec = ckpt_record_at(run, "net.tun-end", i);

		found += rec->ns == like->ns && !strcmp(rec->name, like->name);
	}
	return found;
}

static int tun_plan(struct ckpt_run *run, uint32_t file, struct ckpt_error *err)
{
	const Ckpt__Net__TunEnd *rec = ckpt_record_need(run, "net.tun-end", file, err);
	const struct ckpt_ns *ns = rec ? ckpt_ns_by_id(run, rec->ns) : NULL;
	const Ckpt__Net__Network *net;

	if (!rec)
		return -err->err;
	if (!ns || ns->type != CKPT_NS_NET || rec->sndbuf > INT32_MAX)
		return ckpt_fail_image(err, "open file %u: no network namespace", file);
	if (!rec->name[0])
		return plan_device(run);
	net = ns->own ? NULL : ckpt_record_need(run, "net.network", ns->id, err);
	for (size_t i = 0; net && i < net->n_links; i++)
		if (!strcmp(net->links[i]->name, rec->name) && net->links[i]->tun &&
		    net->links[i]->tun->queues == records_of(run, rec))
			return 0;
	return ckpt_fail_image(err, "open file %u: no device \"%.20s\" with so many ends", file,
			       rec->name);
}

static int open_plain(void *arg, struct ckpt_error *err)
{
	int *fd = arg;

	*fd = open(DEVICE, O_RDWR | O_CLOEXEC);
	return *fd < 0 ? ckpt_fail_sys(err, errno, DEVICE) : 0;
}

/* Where it is opened tells which namespace its device will be in. */
static int open_bare(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err)
{
	const struct ckpt_ns_place place = { .ns[CKPT_NS_NET] = ns->own ? NULL : ns };
	int fd = -1, r = ckpt_ns_run(run, &place, open_plain, &fd, err);

	return r < 0 ? r : fd;
}

static int tun_open(struct ckpt_run *run, const struct ckpt_fd_slot *slot, struct ckpt_error *err)
{
	const Ckpt__Net__TunEnd *rec = ckpt_record_need(run, "net.tun-end", slot->file, err);
	struct net_state *st = ckpt_state(run);
	int sndbuf;

	if (!rec)
		return -err->err;
	if (!rec->name[0])
		return open_bare(run, ckpt_ns_by_id(run, rec->ns), err);
	sndbuf = (int)rec->sndbuf;
	for (size_t i = 0; st && i < st->n; i++) {
		struct net_end *e = &st->ends[i];

		if (e->fd < 0 || e->ns != rec->ns || strcmp(e->name, rec->name) != 0)
			continue;
		if (sndbuf > 0 && ioctl(e->fd, TUNSETSNDBUF, &sndbuf))
			return ckpt_fail_sys(err, errno, "TUNSETSNDBUF %d", sndbuf);
		return ckpt_steal_fd(&e->fd);
	}
	return ckpt_fail(err, ENODEV, "no end of device %.20s is left", rec->name);
}

const struct ckpt_fd_kind net_kind_tun = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = tun_match,
	.survey = tun_survey,
	.collect = tun_collect,
	.plan = tun_plan,
	.open = tun_open,
	.own_pos = true,
	.flags_ok = O_ACCMODE | O_NONBLOCK | 0100000,
};
