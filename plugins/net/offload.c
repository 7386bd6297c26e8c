/* SPDX-License-Identifier: MIT */
/*
 * What a link leaves to its device (checksums, segmentation and so on, as `ethtool -K` sets them),
 * and how many of its queues are in use (`ethtool -L`). What somebody asked for is kept, and not
 * what comes of it; by name, since the numbers are the kernel's own.
 */
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "net.h"

#define WORDS 4 /* of bits; the kernel has 2 */
#define BITS  (WORDS * 32)

/* The kernel's structures ethtool_gfeatures, _sfeatures, _gstrings and _sset_info, with room. */
struct get {
	uint32_t cmd, size;
	struct ethtool_get_features_block words[WORDS];
};

struct set {
	uint32_t cmd, size;
	struct ethtool_set_features_block words[WORDS];
};

struct names {
	uint32_t cmd, set, len;
	char name[BITS][ETH_GSTRING_LEN];
};

struct sets {
	uint32_t cmd, reserved;
	uint64_t mask;
	uint32_t count;
};

struct talk {
	struct net_job *job;
	int fd;
	struct names names;
};

static int call(const struct talk *t, const Ckpt__Net__Link *l, void *data)
{
	struct ifreq req = { .ifr_data = data };

	strcpy(req.ifr_name, l->name);
	return ioctl(t->fd, SIOCETHTOOL, &req) < 0 ? -errno : 0;
}

/* They are the same for all links. */
static int ask_names(struct talk *t, const Ckpt__Net__Link *l)
{
	struct sets sets = { .cmd = ETHTOOL_GSSET_INFO, .mask = 1ULL << ETH_SS_FEATURES };
	int r;

	if (t->names.len)
		return 0;
	r = call(t, l, &sets);
	if (r < 0 || sets.count > BITS)
		return r < 0 ? r : -E2BIG;
	t->names.cmd = ETHTOOL_GSTRINGS;
	t->names.set = ETH_SS_FEATURES;
	t->names.len = sets.count;
	return call(t, l, &t->names);
}

static int ask(struct talk *t, const Ckpt__Net__Link *l, struct get *get)
{
	int r = ask_names(t, l);

	*get = (struct get){ .cmd = ETHTOOL_GFEATURES, .size = WORDS };
	if (r == 0)
		r = call(t, l, get);
	return r == 0 && get->size > WORDS ? -E2BIG : r;
}

static bool is_set(uint32_t word, uint32_t bit)
{
	return word >> bit % 32 & 1;
}

static int read_offloads(struct talk *t, Ckpt__Net__Link *l, struct ckpt_error *err)
{
	struct get get;
	int r = ask(t, l, &get);

	if (r < 0)
		return ckpt_fail_sys(err, r, "link %s: ETHTOOL_GFEATURES", l->name);
	for (uint32_t i = 0; i < t->names.len && i < get.size * 32; i++) {
		const bool on = is_set(get.words[i / 32].requested, i);
		char *name;

		if (!is_set(get.words[i / 32].available, i))
			continue;
		name = strndup(t->names.name[i], ETH_GSTRING_LEN);
		r = on ? net_append(&l->on, &l->n_on, name, err)
		       : net_append(&l->off, &l->n_off, name, err);
		if (r < 0) {
			free(name);
			return r;
		}
	}
	return 0;
}

/* A device without a choice does not answer. */
static int read_queues(struct talk *t, Ckpt__Net__Link *l, struct ckpt_error *err)
{
	struct ethtool_channels c = { .cmd = ETHTOOL_GCHANNELS };
	int r = call(t, l, &c);

	if (r < 0)
		return r == -EOPNOTSUPP
			       ? 0
			       : ckpt_fail_sys(err, r, "link %s: ETHTOOL_GCHANNELS", l->name);
	l->rx_queues = c.rx_count;
	l->tx_queues = c.tx_count;
	return 0;
}

static int read_one(struct talk *t, Ckpt__Net__Link *l, struct ckpt_error *err)
{
	int r = read_offloads(t, l, err);

	return r < 0 ? r : read_queues(t, l, err);
}

static int each(struct net_job *job,
		int (*fn)(struct talk *t, Ckpt__Net__Link *l, struct ckpt_error *err),
		struct ckpt_error *err)
{
	struct talk t = { .job = job, .fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0) };
	int r = t.fd < 0 ? ckpt_fail_sys(err, errno, "socket(2)") : 0;

	for (size_t i = 0; i < job->net->n_links && r == 0; i++)
		r = fn(&t, job->net->links[i], err);
	if (t.fd >= 0)
		close(t.fd);
	return r;
}

int net_offloads_read(struct net_job *job, struct ckpt_error *err)
{
	return each(job, read_one, err);
}

/* ---- restore ------------------------------------------------------------------------ */

static bool among(char *const *list, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (!strncmp(list[i], name, ETH_GSTRING_LEN))
			return true;
	return false;
}

static int set_offloads(struct talk *t, Ckpt__Net__Link *l, struct ckpt_error *err)
{
	struct set set = { .cmd = ETHTOOL_SFEATURES };
	size_t known = 0;
	bool same = true;
	struct get get;
	int r = ask(t, l, &get);

	set.size = get.size;
	for (uint32_t i = 0; r == 0 && i < t->names.len && i < get.size * 32; i++) {
		const bool on = among(l->on, l->n_on, t->names.name[i]);
		const uint32_t bit = 1U << i % 32;

		if (!(get.words[i / 32].available & bit) ||
		    (!on && !among(l->off, l->n_off, t->names.name[i])))
			continue;
		known++;
		set.words[i / 32].valid |= bit;
		set.words[i / 32].requested |= on ? bit : 0;
		same &= on == is_set(get.words[i / 32].requested, i);
	}
	if (r == 0 && known < l->n_on + l->n_off)
		ckpt_log(t->job->run, CKPT_LOG_WARN,
			 "link %s: %zu kinds of offload are not known to this kernel", l->name,
			 l->n_on + l->n_off - known);
	if (r == 0 && !same)
		r = call(t, l, &set);
	return r < 0 ? ckpt_fail_sys(err, r, "link %s: ETHTOOL_SFEATURES", l->name) : 0;
}

static int set_queues(struct talk *t, const Ckpt__Net__Link *l, struct ckpt_error *err)
{
	struct ethtool_channels c = { .cmd = ETHTOOL_GCHANNELS };
	int r = l->rx_queues ? call(t, l, &c) : 0;

	if (r == 0 && l->rx_queues && (c.rx_count != l->rx_queues || c.tx_count != l->tx_queues)) {
		c.cmd = ETHTOOL_SCHANNELS;
		c.rx_count = l->rx_queues;
		c.tx_count = l->tx_queues;
		r = call(t, l, &c);
	}
	return r < 0 ? ckpt_fail_sys(err, r, "link %s: %u and %u queues in use", l->name,
				     l->rx_queues, l->tx_queues)
		     : 0;
}

static int set_one(struct talk *t, Ckpt__Net__Link *l, struct ckpt_error *err)
{
	int r = set_queues(t, l, err);

	return r < 0 ? r : set_offloads(t, l, err);
}

int net_offloads_set(struct net_job *job, struct ckpt_error *err)
{
	return each(job, set_one, err);
}
