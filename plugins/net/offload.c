/* SPDX-License-Identifier: MIT */
/*
 * What a link leaves to its device: checksums, segmentation and so on, as `ethtool -K` sets them.
 * What somebody asked for is kept, and not what comes of it.
 */
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "net.h"

/* struct ethtool_gfeatures, with room */
struct get {
	uint32_t cmd, size;
	struct ethtool_get_features_block words[NET_MAX_OFFLOADS];
};

static int ask(int fd, const Ckpt__Net__Link *l, struct get *get)
{
	struct ifreq req = { .ifr_data = (void *)get };

	*get = (struct get){ .cmd = ETHTOOL_GFEATURES, .size = NET_MAX_OFFLOADS };
	strcpy(req.ifr_name, l->name);
	return ioctl(fd, SIOCETHTOOL, &req) ? -errno : 0;
}

static int read_one(int fd, Ckpt__Net__Link *l, struct ckpt_error *err)
{
	struct get get;
	int r = ask(fd, l, &get);

	if (r < 0)
		return ckpt_fail_sys(err, r, "link %s: ETHTOOL_GFEATURES", l->name);
	if (get.size > NET_MAX_OFFLOADS)
		return ckpt_fail(err, E2BIG, "link %s: %u words of offloads", l->name, get.size);
	l->offloads = calloc(NET_MAX_OFFLOADS, sizeof(*l->offloads));
	if (!l->offloads)
		return ckpt_fail_sys(err, ENOMEM, "link %s", l->name);
	l->n_offloads = get.size;
	for (size_t i = 0; i < l->n_offloads; i++)
		l->offloads[i] = get.words[i].requested & get.words[i].available;
	return 0;
}

static int each(struct net_job *job, int (*fn)(int fd, Ckpt__Net__Link *l, struct ckpt_error *err),
		struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	int r = 0;

	if (fd < 0)
		return ckpt_fail_sys(err, errno, "socket(2)");
	for (size_t i = 0; i < job->net->n_links && r == 0; i++)
		r = fn(fd, job->net->links[i], err);
	return r;
}

int net_offloads_read(struct net_job *job, struct ckpt_error *err)
{
	return each(job, read_one, err);
}

struct set {
	uint32_t cmd, size;
	struct ethtool_set_features_block words[NET_MAX_OFFLOADS];
};

static int set_one(int fd, Ckpt__Net__Link *l, struct ckpt_error *err)
{
	struct set set = { .cmd = ETHTOOL_SFEATURES, .size = (uint32_t)l->n_offloads };
	struct ifreq req = { .ifr_data = (void *)&set };
	struct get get;
	bool same = true;
	int r = ask(fd, l, &get);

	for (size_t i = 0; i < l->n_offloads && r == 0; i++) {
		set.words[i].valid = get.words[i].available;
		set.words[i].requested = l->offloads[i];
		same &= (get.words[i].requested & get.words[i].available) == l->offloads[i];
	}
	strcpy(req.ifr_name, l->name);
	if (r == 0 && !same && ioctl(fd, SIOCETHTOOL, &req) < 0)
		r = -errno;
	return r < 0 ? ckpt_fail_sys(err, r, "link %s: ETHTOOL_SFEATURES", l->name) : 0;
}

int net_offloads_set(struct net_job *job, struct ckpt_error *err)
{
	return each(job, set_one, err);
}
