/* SPDX-License-Identifier: MIT */
/*
 * Which network namespace a socket belongs to. It is the one that its maker was in, and
 * need not be its holder's. So the engine goes there to look at it and to make it again.
 */
#include "internal.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

static int cookie_of(int fd, uint64_t *cookie)
{
	socklen_t len = sizeof(*cookie);

	return getsockopt(fd, SOL_SOCKET, SO_NETNS_COOKIE, cookie, &len) ? -errno : 0;
}

static int cookie_here(uint64_t *cookie)
{
	CKPT_AUTO_FD int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	return fd < 0 ? -errno : cookie_of(fd, cookie);
}

void sock_net_leave(struct sock_place *place)
{
	if (place->back < 0)
		return;
	/* our own: nothing can keep us from going back */
	(void)setns(place->back, CLONE_NEWNET);
	close(place->back);
	place->back = -1;
}

int sock_net_enter(const struct ckpt_ns *ns, struct sock_place *place, struct ckpt_error *err)
{
	if (ns->own)
		return 0;
	place->back = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
	if (place->back < 0)
		return ckpt_fail_sys(err, errno, "/proc/thread-self/ns/net");
	if (setns(ns->fd, CLONE_NEWNET) == 0)
		return 0;
	close(place->back);
	place->back = -1;
	return ckpt_fail_sys(err, errno, "setns(2) to the %s", ns->name);
}

int sock_net_each(struct ckpt_run *run,
		  int (*fn)(struct sock_state *st, const struct ckpt_ns *ns, void *arg), void *arg,
		  const char *what, struct ckpt_error *err)
{
	for (size_t i = 0; i < ckpt_ns_count(run); i++) {
		const struct ckpt_ns *ns = ckpt_ns_at(run, i);
		SOCK_PLACE(place);
		int r;

		/* not made yet: nothing is there */
		if (ns->type != CKPT_NS_NET || (!ns->own && ns->fd < 0))
			continue;
		r = sock_net_enter(ns, &place, err);
		if (r < 0)
			return r;
		r = fn(sock_state(run), ns, arg);
		if (r)
			return ckpt_fail_sys(err, r, "%s", what);
	}
	return 0;
}

static int learn(struct sock_state *st, const struct ckpt_ns *ns, void *arg)
{
	struct sock_net *more;

	(void)arg;
	for (size_t i = 0; i < st->n_nets; i++)
		if (st->nets[i].ns == ns)
			return 0;
	more = realloc(st->nets, (st->n_nets + 1) * sizeof(*more));
	if (!more)
		return -ENOMEM;
	st->nets = more;
	more[st->n_nets].ns = ns;
	return cookie_here(&more[st->n_nets++].cookie);
}

static const struct ckpt_ns *known(const struct sock_state *st, uint64_t cookie)
{
	for (size_t i = 0; i < st->n_nets; i++)
		if (st->nets[i].cookie == cookie)
			return st->nets[i].ns;
	return NULL;
}

/* One that nobody is in: its sockets keep it. The kernel's lists lack them so far. */
static int ask_socket(struct ckpt_run *run, int fd, struct ckpt_error *err)
{
	struct sock_state *st = sock_state(run);
	CKPT_AUTO_FD int net = ioctl(fd, SIOCGSKNS);

	if (net < 0)
		return ckpt_fail_sys(err, errno, "SIOCGSKNS");
	if (!ckpt_ns_find(run, net, err))
		return -err->err;
	st->tcp_known = st->diag_known = false;
	st->n_tcp = st->n_diag = st->n_waiting = 0;
	return sock_net_each(run, learn, NULL, "SO_NETNS_COOKIE", err);
}

int sock_net_of(struct ckpt_run *run, int fd, const struct ckpt_ns **ns, struct ckpt_error *err)
{
	struct sock_state *st = sock_state(run);
	uint64_t cookie = 0;
	int r = st->n_nets ? 0 : sock_net_each(run, learn, NULL, "SO_NETNS_COOKIE", err);

	if (r < 0)
		return r;
	r = cookie_of(fd, &cookie);
	if (r < 0)
		return ckpt_fail_sys(err, r, "SO_NETNS_COOKIE");
	*ns = known(st, cookie);
	if (*ns)
		return 0;
	r = ask_socket(run, fd, err);
	*ns = known(st, cookie);
	return r < 0 || *ns ? r : ckpt_fail(err, ENOENT, "a socket of no network namespace");
}

int sock_net_survey(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	const struct ckpt_ns *ns;
	int r = sock_net_of(run, f->fd, &ns, err);

	if (r < 0)
		return r;
	if (!ns->own && !ckpt_feature_on(run, "netns"))
		return sock_refuse(run, f, "netns",
				   "it belongs to a network namespace other than ckpt's, and the "
				   "feature sock.netns is switched off",
				   "switch it on");
	return 0;
}

int sock_net_collect(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	Ckpt__Sock__Place rec = CKPT__SOCK__PLACE__INIT;
	const struct ckpt_ns *ns;
	int r = sock_net_of(run, f->fd, &ns, err);

	/* of one that is left out: it comes back in ckpt's own */
	if (r < 0 || ns->own || ns->lost)
		return r;
	rec.id = f->file;
	rec.netns = ns->id;
	return ckpt_record_put(run, SOCK_REC_PLACE, &rec.base, err);
}

int sock_net_plan(struct ckpt_run *run, struct ckpt_error *err)
{
	for (size_t i = 0; i < ckpt_record_count(run, "sock.place"); i++) {
		const Ckpt__Sock__Place *rec = ckpt_record_at(run, "sock.place", i);
		const struct ckpt_ns *ns = ckpt_ns_by_id(run, rec->netns);

		if (!ns || ns->type != CKPT_NS_NET || !sock_file_known(run, rec->id))
			return ckpt_fail_image(err, "open file %u: no network namespace %u",
					       rec->id, rec->netns);
	}
	return 0;
}

struct ckpt_ns *sock_net_saved(struct ckpt_run *run, uint32_t file)
{
	ssize_t i = ckpt_record_index(run, "sock.place", file);
	const Ckpt__Sock__Place *rec = i < 0 ? NULL : ckpt_record_at(run, "sock.place", (size_t)i);

	return rec ? ckpt_ns_by_id(run, rec->netns) : ckpt_ns_own(run, CKPT_NS_NET);
}

int sock_new(struct ckpt_run *run, uint32_t file, int family, int type, int protocol,
	     struct sock_place *place, struct ckpt_error *err)
{
	int r = sock_net_enter(sock_net_saved(run, file), place, err);
	int fd = r < 0 ? r : socket(family, type | SOCK_CLOEXEC, protocol);

	return r < 0 || fd >= 0 ? fd : ckpt_fail_sys(err, errno, "socket(2)");
}

bool sock_interface_ok(const char *name, uint32_t index)
{
	return strlen(name) < IFNAMSIZ && index <= INT32_MAX && !name[0] == !index;
}

static const char no_interface[] = "the interface must be there before the restore, by its name";

void sock_interface_plan(struct ckpt_run *run, uint32_t file, const char *name)
{
	const struct ckpt_ns *ns = sock_net_saved(run, file);

	if (name[0] && ns && ns->own && !ckpt_plan_only(run) && !if_nametoindex(name))
		ckpt_unmet(run, CKPT_EXIT_FAILED, no_interface,
			   "a socket, open file %u, needs the interface %s, which is not there",
			   file, name);
}

int sock_interface_now(const char *name, struct ckpt_error *err)
{
	unsigned now = name[0] ? if_nametoindex(name) : 0;

	if (now || !name[0])
		return (int)now;
	ckpt_fail_sys(err, ENODEV, "the interface %s of a socket", name);
	return ckpt_hint(err, "%s", no_interface);
}
