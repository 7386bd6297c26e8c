/* SPDX-License-Identifier: MIT */
/* What the files of the plugin net share. */
#ifndef CKPT_NET_NET_H
#define CKPT_NET_NET_H

#include <linux/if.h>
#include <netlink/attr.h>
#include <netlink/netlink.h>

#include <ckpt/fd.h>
#include <ckpt/ns.h>
#include <ckpt/plugin.h>

#include "net.pb-c.h"

enum { NET_REC_NETWORK = 1, NET_REC_TUN_END = 2 };

/* What a user sets of a link's flags; the others are state. */
#define NET_LINK_FLAGS (IFF_UP | IFF_NOARP | IFF_PROMISC | IFF_ALLMULTI | IFF_MULTICAST | IFF_DEBUG)

#define NET_MAX_LINKS	 4096
#define NET_MAX_ENTRIES	 65536
#define NET_MAX_SYSCTLS	 65536
#define NET_MAX_OFFLOADS 256
#define NET_MAX_QUEUES	 65536

/* A helper's work in one namespace. */
struct net_job {
	struct ckpt_run *run;
	struct ckpt_ns *ns;
	struct nl_sock *sk;
	Ckpt__Net__Network *net;
	/* dump: links with something that is not saved; IPsec was refused; what ends by itself */
	bool odd_links, xfrm, finite, vlans, owned, flowtables;
};

struct net_end;	  /* tun.c */
struct net_ahead; /* sysctl.c */

/* What is known during a run. */
struct net_state {
	struct net_end *ends; /* of devices of /dev/net/tun */
	size_t n;
	struct net_ahead *ahead; /* settings of namespaces that are asked for next */
};
/* Made on first use; NULL: out of memory. */
struct net_state *net_state(struct ckpt_run *run);

/* ---- netlink.c ---- */

struct net_request {
	int type, flags;
	const void *header;
	size_t header_len;
};

/* Run fn(job) with a route socket in job's namespace. */
int net_run(struct net_job *job, int (*fn)(struct net_job *job, struct ckpt_error *err),
	    struct ckpt_error *err);
/* Ask for a dump; `each` gets every message. */
int net_dump(struct net_job *job, const struct net_request *q,
	     int (*each)(struct nlmsghdr *h, void *arg, struct ckpt_error *err), void *arg,
	     struct ckpt_error *err);
/*
 * A message that was built with the result `built` is sent, and its answer waited for, unless
 * building failed; freed in any case. 0 or a negative NLE_ number of libnl.
 */
int net_finish(struct net_job *job, struct nl_msg *msg, int built);
/* All of a list of attributes. 0 or a negative NLE_ number. */
int net_put_all(struct nl_msg *msg, Ckpt__Net__Attribute *const *list, size_t n);

/* A further pointer at the end of a message's list. */
int net_append(void *list, size_t *n, void *item, struct ckpt_error *err);

/* ---- links.c: what there is; link_make.c: making it ---- */

int net_links_read(struct net_job *job, struct ckpt_error *err);
/* dump, on the namespace's own records: refuse links that cannot be made again. */
void net_links_refuse(struct net_job *job);
int net_links_make(struct net_job *job, struct ckpt_error *err);
int net_links_up(struct net_job *job, struct ckpt_error *err);
/* Until each link that has a carrier is known to have it, or for a while. */
int net_links_await(struct net_job *job, struct ckpt_error *err);
/* Is it one of the attributes that a link of the kind, or a port of a bridge, is set by? */
bool net_link_attribute_ok(const char *kind, uint32_t type);
#define NET_BRIDGE_PORT "port"
#define NET_ANY_LINK	"any"
#define NET_BIRTH	"birth" /* what a link can only be made with */
/* The link of that index in a record, or NULL. */
const Ckpt__Net__Link *net_link(const Ckpt__Net__Network *net, uint32_t index);

/* ---- tun.c: devices of /dev/net/tun, and the descriptors at their other end ---- */

extern const struct ckpt_fd_kind net_kind_tun;
/* `hardware` is the ARPHRD_ number. */
int net_tun_read(Ckpt__Net__Link *l, struct nlattr *data, unsigned hardware, bool carrier,
		 struct ckpt_error *err);
/* dump, after fd.survey: why it cannot be saved, or NULL. */
const char *net_tun_refused(const struct net_job *job, const Ckpt__Net__Link *l);
int net_tun_plan(struct ckpt_run *run, const Ckpt__Net__Link *l, struct ckpt_error *err);
int net_tun_make(struct net_job *job, const Ckpt__Net__Link *l, struct ckpt_error *err);
void net_ends_free(struct net_state *st);

/* ---- offload.c: what a link leaves to its device (ethtool -K) ---- */

int net_offloads_read(struct net_job *job, struct ckpt_error *err);
int net_offloads_set(struct net_job *job, struct ckpt_error *err);

/* ---- traffic.c: queueing disciplines and their classes ---- */

int net_traffic_read(struct net_job *job, struct ckpt_error *err);
/* dump, with the links read: refuse those that cannot be made again. */
int net_traffic_refuse(struct net_job *job, struct ckpt_error *err);
int net_traffic_plan(const Ckpt__Net__Network *net, struct ckpt_error *err);
int net_traffic_make(struct net_job *job, struct ckpt_error *err);

/* ---- external.c: veth pairs whose other end is outside ---- */

/* dump: is it named by the user? */
bool net_is_external(struct ckpt_run *run, const Ckpt__Net__Link *l);
/* dump: note what the other end is like, if ckpt can see it. */
int net_externals_look(struct net_job *job, struct ckpt_error *err);
int net_external_plan(struct ckpt_run *run, const Ckpt__Net__Link *l, struct ckpt_error *err);
int net_external_make(struct net_job *job, const Ckpt__Net__Link *l, struct ckpt_error *err);
/* Set the ends outside up; or connect them to what they are to be ports of. */
int net_externals_set(struct ckpt_run *run, const struct ckpt_ns *ns, const Ckpt__Net__Network *net,
		      bool attach, struct ckpt_error *err);

/* ---- entries.c: addresses, routes, rules, neighbours ---- */

int net_entries_read(struct net_job *job, struct ckpt_error *err);
/* dump: refuse what could not be made again, or not as it is. */
void net_entries_refuse(struct net_job *job);
int net_entries_plan(const Ckpt__Net__Network *net, struct ckpt_error *err);
/* Make the kernel's lists those of the record, for the kinds that belong before links are up. */
int net_entries_make(struct net_job *job, bool before_up, struct ckpt_error *err);

/* ---- sysctl.c ---- */

/* dump, outside of the namespace: its settings, read along with those of others. */
int net_sysctls_take(struct net_job *job, struct ckpt_error *err);
void net_ahead_free(struct net_ahead *a);
int net_sysctls_write(struct net_job *job, struct ckpt_error *err);
/* What a link loses when it comes up or gets its carrier (addrconf_notify()): conf/LINK/mtu. */
int net_sysctls_again(struct net_job *job, struct ckpt_error *err);
bool net_sysctl_name_ok(const char *name);

/* ---- nft.c, nft_compat.c ---- */

int net_nft_read(struct net_job *job, struct ckpt_error *err);
/* dump, in the namespace, with a record of its own. */
int net_nft_refuse(struct net_job *job, struct ckpt_error *err);
int net_nft_plan(const Ckpt__Net__Network *net, struct ckpt_error *err);
int net_nft_make(struct net_job *job, struct ckpt_error *err);

struct net_nft_protocol {
	uint8_t protocol;
	bool inverted;
};
/* The protocol that a rule with matches or targets of iptables is for. */
bool net_nft_protocol(const Ckpt__Net__NftItem *rule, struct net_nft_protocol *p);

/*
 * A match or target of iptables that the rule's words do not tell all of: it has a state of its
 * own, or refers to something elsewhere. NULL: none.
 */
const char *net_nft_stateful(const Ckpt__Net__NftItem *rule);

/* Move the counters out of the attributes; put them back into a copy of those. */
int net_nft_counters_take(Ckpt__Net__NftItem *it);
void net_nft_counters_put(const Ckpt__Net__NftItem *it, uint8_t *attributes);

/* ---- filter.c ---- */

/* fn(job) with a socket of that protocol. -ENOTSUP: the kernel does not know it. */
int net_speak(struct net_job *job, int protocol,
	      int (*fn)(struct net_job *job, struct ckpt_error *err), struct ckpt_error *err);
/* The same for a question: a kernel that does not know the protocol or the question has nothing to
 * tell. */
int net_ask(struct net_job *job, int protocol,
	    int (*fn)(struct net_job *job, struct ckpt_error *err), struct ckpt_error *err);

/* dump: refuse something of the namespace that is not saved. */
void net_refuse(struct net_job *job, const char *feature, const char *what);
/* dump: packet filters and other tables that are not saved. */
int net_filters_refuse(struct net_job *job, struct ckpt_error *err);

#endif
