/* SPDX-License-Identifier: MIT */
/* sock: sockets, as described in README.md. */
#include "tcp.h"
#include "unix.h"

#include <linux/netlink.h>
#include <stdio.h>
#include <sys/socket.h>

static const struct ckpt_option options[] = {
	{ .name = "check-families",
	  .type = CKPT_OPT_BOOL,
	  .def = "yes",
	  .help = "at restore, families of generic netlink must have the numbers of the dump" },
	{ 0 },
};

static const struct ckpt_feature features[] = {
	{ "inet-listen", "listening TCP sockets with their options" },
	{ "tcp", "TCP sockets that were never connected, bound or not" },
	{ "tcp-connected", "TCP connections of which both ends are in the tree" },
	{ "tcp-outside", "TCP connections with the outside, as -o net.tcp says" },
	{ "tcp-over", "TCP sockets whose connection has ended, with what they have received" },
	{ "tcp-pending", "TCP connections that wait to be accepted" },
	{ "raw", "raw sockets and those of ping" },
	{ "udp", "UDP sockets, bound, connected or neither" },
	{ "udp-queue", "datagrams that wait in UDP sockets" },
	{ "packet", "packet sockets with their memberships" },
	{ "netlink", "netlink sockets with their ports and groups" },
	{ "generic", "sockets of generic netlink, with the groups of its families" },
	{ "unix-listen", "listening unix sockets, named and abstract" },
	{ "unix-pair", "socketpairs with queued data" },
	{ "unix-stream", "unix stream and seqpacket sockets: connected by a name, bound, or new" },
	{ "unix-dgram", "unix dgram sockets, bound or connected, with queued messages" },
	{ "pending", "connections to unix sockets that wait to be accepted" },
	{ "scm-rights", "descriptors in flight: in messages that nobody has read" },
	{ "netns", "sockets that belong to a network namespace inside the tree" },
	{ "socket-filter", "classic BPF programs attached to sockets" },
	{ "multicast", "multicast groups that UDP sockets have joined" },
	{ "scm-only", "descriptors in flight that are open nowhere else" },
	{ NULL, NULL },
};

static const struct ckpt_record_type records[] = {
	{ SOCK_INET, "inet", &ckpt__sock__inet__descriptor },
	{ SOCK_UNIX_LISTEN, "unix-listen", &ckpt__sock__unix_listen__descriptor },
	{ SOCK_UNIX_END, "unix-end", &ckpt__sock__unix_end__descriptor },
	{ SOCK_TCP, "tcp", &ckpt__sock__tcp__descriptor },
	{ SOCK_NETLINK, "netlink", &ckpt__sock__netlink__descriptor },
	{ SOCK_REC_PLACE, "place", &ckpt__sock__place__descriptor },
	{ SOCK_REC_FILTER, "filter", &ckpt__sock__filter__descriptor },
	{ SOCK_REC_MULTICAST, "multicast", &ckpt__sock__multicast__descriptor },
	{ SOCK_REC_PACKET, "packet", &ckpt__sock__packet__descriptor },
	{ 0, NULL, NULL },
};

static const struct ckpt_extension extensions[] = {
	{ CKPT_FD_POINT, "inet-listen", &sock_kind_inet_listen },
	{ CKPT_FD_POINT, "tcp", &sock_kind_tcp },
	{ CKPT_FD_POINT, "tcp-connected", &sock_kind_tcp_connected },
	{ CKPT_FD_POINT, "raw", &sock_kind_raw },
	{ CKPT_FD_POINT, "udp", &sock_kind_udp },
	{ CKPT_FD_POINT, "packet", &sock_kind_packet },
	{ CKPT_FD_POINT, "netlink", &sock_kind_netlink },
	{ CKPT_FD_POINT, "unix-listen", &sock_kind_unix_listen },
	{ CKPT_FD_POINT, "unix-pair", &sock_kind_unix_pair },
	{ CKPT_FD_POINT, "unix-stream", &sock_kind_unix_stream },
	{ CKPT_FD_POINT, "unix-dgram", &sock_kind_unix_dgram },
	{ NULL, NULL, NULL },
};

/*
 * Somebody is about to accept or read them; a socket of a process that has ended is about to be
 * closed, if nothing but that process had wanted it.
 */
static const char *const passing[] = { "pending",      "pending-data",	"scm-elsewhere",
				       "peercred",     "udp-queue",	"raw-queue",
				       "packet-queue", "netlink-queue", NULL };

static int check_order(struct ckpt_run *run, const char *type, struct ckpt_error *err)
{
	uint32_t last = 0;

	for (size_t i = 0; i < ckpt_record_count(run, type); i++) {
		/* every record of this plugin begins with its id */
		const Ckpt__Sock__UnixEnd *rec = ckpt_record_at(run, type, i);

		if (rec->id <= last)
			return ckpt_fail_image(err, "records %s are not in order at %u", type,
					       rec->id);
		last = rec->id;
	}
	return 0;
}

/* The kinds that plan a type of record; none: it is of any socket. */
static const struct owner {
	const char *type, *kinds[5];
} owners[] = {
	{ "sock.inet", { "inet-listen", "tcp", "raw", "udp" } },
	{ "sock.unix-listen", { "unix-listen" } },
	{ "sock.unix-end", { "unix-pair", "unix-stream", "unix-dgram" } },
	{ "sock.tcp", { "tcp-connected" } },
	{ "sock.netlink", { "netlink" } },
	{ "sock.packet", { "packet" } },
	{ "sock.place", { NULL } },
	{ "sock.filter", { NULL } },
	{ "sock.multicast", { NULL } },
};
_Static_assert(CKPT_ARRAY_SIZE(owners) + 1 == CKPT_ARRAY_SIZE(records), "each type has an owner");

/*
 * Records refer to each other. One that no file of the right kind belongs to would be used
 * without having been planned.
 */
static int check_owners(struct ckpt_run *run, const struct owner *o, struct ckpt_error *err)
{
	for (size_t i = 0; i < ckpt_record_count(run, o->type); i++) {
		const Ckpt__Sock__UnixEnd *rec = ckpt_record_at(run, o->type, i);

		if (!sock_file_is(run, rec->id, o->kinds))
			return ckpt_fail_image(err, "open file %u is no socket of a record %s",
					       rec->id, o->type);
	}
	return 0;
}

static int plan(struct ckpt_run *run, struct ckpt_error *err)
{
	char type[32];
	int r = 0;

	if (!sock_state(run))
		return ckpt_fail(err, ENOMEM, "out of memory");
	for (size_t i = 0; records[i].name && !r; i++) {
		snprintf(type, sizeof(type), "sock.%s", records[i].name);
		r = check_order(run, type, err);
	}
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(owners) && !r; i++)
		r = check_owners(run, &owners[i], err);
	if (!r)
		r = sock_net_plan(run, err);
	if (!r)
		r = sock_filter_plan(run, err);
	if (!r)
		r = sock_multicast_plan(run, err);
	for (size_t i = 0; i < ckpt_record_count(run, "sock.tcp") && !r; i++)
		r = sock_tcp_plan_home(run, ckpt_record_at(run, "sock.tcp", i), err);
	return r ? r : sock_pending_order(run, err);
}

static int names(struct ckpt_run *run, struct ckpt_error *err)
{
	return sock_state(run) ? sock_tcp_sweep(run, err) : ckpt_fail(err, ENOMEM, "out of memory");
}

static int settle(struct ckpt_run *run, struct ckpt_error *err)
{
	struct sock_state *st = sock_state(run);
	int r;

	if (!st)
		return ckpt_fail(err, ENOMEM, "out of memory");
	r = sock_end_settle(run, err);
	if (!r)
		r = sock_dgram_settle(run, err);
	if (!r)
		r = sock_pending_settle(run, err);
	if (!r)
		r = sock_tcp_settle(run, err);
	if (!r)
		r = sock_filter_settle(run, err);
	sock_kept_close(st);
	return r;
}

static void names_undo(struct ckpt_run *run)
{
	struct sock_state *st = sock_state(run);

	if (st)
		sock_made_forget(st, true);
}

/* Their directories' mounts must not be kept busy while the tree runs. */
static int let_go(struct ckpt_run *run, struct ckpt_error *err)
{
	int r = sock_hold_end(run, err);

	if (!r)
		sock_made_forget(sock_state(run), false);
	return r;
}

/* A connection lives on by itself. */
static const struct ckpt_field_rule rules[] = {
	{ "Tcp", "send_seq", CKPT_EQ_VOLATILE },
	{ "Tcp", "out", CKPT_EQ_VOLATILE },
	{ "Tcp", "unsent", CKPT_EQ_VOLATILE },
	{ "Tcp", "receive_seq", CKPT_EQ_VOLATILE },
	{ "Tcp", "in", CKPT_EQ_VOLATILE },
	{ "Tcp", "timestamp", CKPT_EQ_VOLATILE },
	{ "Tcp", "window", CKPT_EQ_VOLATILE },
	{ "Tcp", "sndbuf", CKPT_EQ_VOLATILE },
	{ "Tcp", "rcvbuf", CKPT_EQ_VOLATILE },
	{ "Tcp", "hold", CKPT_EQ_VOLATILE },
	/* a module may be loaded at any time */
	{ "Netlink", "families", CKPT_EQ_VOLATILE },
	{ NULL, NULL, CKPT_EQ_VOLATILE },
};

#define LIST(...) ((const char *const[]){ __VA_ARGS__, NULL })

static const struct ckpt_step steps[] = {
	{ .runs = CKPT_RESTORE,
	  .name = "plan",
	  .help = "check the order of the records",
	  .after = LIST("loaded"),
	  .before = LIST("planned"),
	  .wants = LIST("ns.plan", "mnt.plan"),
	  .fn = plan },
	{ .runs = CKPT_RESTORE,
	  .name = "names",
	  .help = "end what is left of TCP connections; from here on, names that sockets were "
		  "bound "
		  "to are removed if the restore fails",
	  .after = LIST("tasks-made"),
	  .before = LIST("tasks-placed"),
	  .fn = names,
	  .undo = names_undo },
	{ .runs = CKPT_RESTORE,
	  .name = "settle",
	  .help = "send descriptors in flight, fill and connect dgram sockets, let go of those "
		  "that others were made with",
	  .after = LIST("files-installed"),
	  .before = LIST("sealed"),
	  .wants = LIST("fd.reopen"),
	  .fn = settle },
	{ .runs = CKPT_DUMP,
	  .name = "hold",
	  .help = "keep connections with the outside held until the restore, if the tree is gone",
	  .after = LIST("released"),
	  .before = LIST("ended"),
	  .fn = sock_hold_keep },
	{ .runs = CKPT_RESTORE,
	  .name = "let-go",
	  .help = "connections with the outside are no longer held by the dump",
	  .after = LIST("sealed"),
	  .before = LIST("running"),
	  .fn = let_go },
	{ .name = NULL },
};

static int probe_diag(struct ckpt_error *err)
{
	CKPT_AUTO_FD int nl = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);

	if (nl >= 0)
		return 0;
	ckpt_fail_sys(err, errno, "NETLINK_SOCK_DIAG");
	return ckpt_hint(err, "CONFIG_UNIX_DIAG is needed; without it unix sockets are refused");
}

static const struct ckpt_need needs[] = {
	{ "sock_diag(7)", false, probe_diag },
	{ NULL, false, NULL },
};

CKPT_PLUGIN{
	CKPT_PLUGIN_HEADER,	  .name = "sock",     .version = "0.1.0",
	.summary = "sockets",	  .license = "MIT",   .features = features,
	.records = records,	  .rules = rules,     .steps = steps,
	.extensions = extensions, .needs = needs,     .state_free = sock_state_free,
	.passing = passing,	  .options = options,
};
