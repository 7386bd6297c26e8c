/* SPDX-License-Identifier: MIT */
/* Shared by the files of the plugin `sock`. */
#ifndef SOCK_INTERNAL_H
#define SOCK_INTERNAL_H

#include <ckpt/fd.h>
#include <ckpt/ns.h>
#include <ckpt/plugin.h>

#include "sock.pb-c.h"

#include <fcntl.h>

enum sock_record {
	SOCK_INET = 1,
	SOCK_UNIX_LISTEN,
	SOCK_UNIX_END,
	SOCK_TCP,
	SOCK_NETLINK,
	SOCK_REC_PLACE,
	SOCK_REC_FILTER,
	SOCK_REC_MULTICAST,
	SOCK_REC_PACKET,
};

/* bits of SO_BUF_LOCK */
#define SOCK_SNDBUF_LOCK  1
#define SOCK_RCVBUF_LOCK  2
#define SOCK_SO_PASSPIDFD 76 /* SO_PASSPIDFD, which older headers lack */
/* The only flags of F_GETFL that a socket has. */
/* all that fcntl(2) lets a socket have, but O_ASYNC, which is apart */
#define SOCK_FLAGS (O_RDWR | O_NONBLOCK | O_APPEND | O_NOATIME)

struct sock_held;
struct sock_tcp_diag;
struct sock_tcp_look;

struct sock_unix_diag {
	const struct ckpt_ns *net;
	uint32_t ino, peer;
	uint8_t type, state, shutdown;
	bool has_file;
	uint32_t file_ino, file_dev;
	uint32_t pending, backlog;   /* listening ones */
	size_t waiting;		     /* index of the first that waits there, of `pending` */
	uint8_t name[108], name_len; /* sun_path as bound, with the NUL of a path */
};

/* A connection that waits to be accepted. */
struct sock_waiting {
	uint32_t client; /* 0: closed */
	uint32_t listener;
	uint32_t place;
};

/* A descriptor of the engine that was made with another and waits for its turn. */
struct sock_stashed {
	uint32_t id;
	int fd;
};

/* A queue as it was read before it was known who has what came along open. */
struct sock_look {
	uint64_t ino;
	Ckpt__Sock__UnixEnd end; /* but its queue, empty */
	struct sock_carried {
		size_t message;
		int fd;
	} * carried;
	size_t n_carried;
};
void sock_look_free(struct sock_look *look);

#define SOCK_OPTIONS_MAX 192
#define SOCK_OPTION_DATA 64
/* Options of a new socket. */
struct sock_defaults {
	const struct ckpt_ns *ns;
	int domain, type, protocol;
	bool known[SOCK_OPTIONS_MAX];
	int value[SOCK_OPTIONS_MAX];
	size_t size[SOCK_OPTIONS_MAX];
	uint8_t data[SOCK_OPTIONS_MAX][SOCK_OPTION_DATA];
};

struct sock_state {
	bool diag_known;
	struct sock_unix_diag *diag; /* by inode */
	size_t n_diag;
	struct sock_waiting *waiting; /* by listener as the kernel lists them, then place */
	size_t n_waiting;
	bool tcp_known;
	struct sock_tcp_diag *tcp; /* by both ends */
	size_t n_tcp, cap_tcp;
	struct sock_tcp_look *sent; /* what connections have sent, until they are saved */
	size_t n_sent, cap_sent;
	struct sock_guard *guard;
	struct sock_look *looks; /* at queues with descriptors in flight, until they are saved */
	size_t n_looks;
	struct sock_net {
		uint64_t cookie;
		const struct ckpt_ns *ns;
	} * nets; /* ckpt's own and the tree's */
	size_t n_nets;
	/* connections with the outside whose packets we drop, and whose word that is */
	struct sock_held *held;
	size_t n_held;
	struct sock_holder {
		const struct ckpt_ns *net;
		int fd;
	} * holders;
	size_t n_holders;
	char hold_name[24];
	struct sock_defaults defaults[32];
	size_t n_defaults;
	/* restore */
	struct sock_stashed *stash;
	size_t n_stash, cap_stash;
	/* duplicates of sockets that others still need, until all descriptors are installed */
	struct sock_stashed *kept;
	size_t n_kept, cap_kept;
	/* pairs with descriptors in flight, filled when all descriptors are there */
	struct sock_deferred {
		const Ckpt__Sock__UnixEnd *end;
		int fd[2]; /* duplicates; fd[0] is `end` */
	} * deferred;
	size_t n_deferred;
	const struct ckpt_fd_tree *tree; /* of fd */
	/* names of sockets, to be removed if the restore fails */
	struct sock_made {
		int dir; /* O_PATH */
		char *base;
		dev_t dev;
		ino_t ino;
	} * made;
	size_t n_made, cap_made;
};

/* The state of this run, made on first use; NULL: out of memory. */
struct sock_state *sock_state(struct ckpt_run *run);
void sock_state_free(void *state);

/* ---- refusals --------------------------------------------------------------- */

/*
 * Refuse a description; always 1, the kinds' word for "leave it out", or a
 * negative errno that is not the refusal itself.
 */
int sock_refuse(struct ckpt_run *run, const struct ckpt_fd_found *f, const char *feature,
		const char *reason, const char *hint);
/* Refuse a detail of it: 0 if the user allows to go on without the detail, else 1. */
int sock_refuse_detail(struct ckpt_run *run, const struct ckpt_fd_found *f, const char *feature,
		       const char *reason, const char *hint);
/* Refuse a socket that somebody outside has open. 0: nobody. */
int sock_refuse_outside(struct ckpt_run *run, const struct ckpt_fd_found *f,
			struct ckpt_error *err);
/* Refuse because of the other end, which is outside the tree or on its way in a message. */
int sock_refuse_peer(struct ckpt_run *run, const struct ckpt_fd_found *f, uint32_t ino,
		     struct ckpt_error *err);

/* ---- records ------------------------------------------------------------------ */

/* A path of an image as a string; NULL if it is none. */
const char *sock_image_path(const ProtobufCBinaryData *b, char *buf, size_t size);
/* Is there such a task in the image? */
bool sock_task_known(struct ckpt_run *run, uint32_t id);
/* Is there such an open file description? */
bool sock_file_known(struct ckpt_run *run, uint32_t id);
/* And is it a socket of one of these kinds (NULL ends them; none: of any)? */
bool sock_file_is(struct ckpt_run *run, uint32_t id, const char *const *kinds);

int sock_stash_put(struct sock_state *st, uint32_t id, int fd, struct ckpt_error *err);
/* -1: nothing there. */
int sock_stash_take(struct sock_state *st, uint32_t id);

/* Keep a duplicate of an image's socket; look it up: -1 or a descriptor that is not to be closed.
 */
int sock_keep(struct sock_state *st, uint32_t id, int fd, struct ckpt_error *err);
int sock_kept(const struct sock_state *st, uint32_t id);
void sock_kept_close(struct sock_state *st);

/* Remember a name that a socket was bound to; take all of them away, or let them be. */
int sock_note_made(struct sock_state *st, int dir, const char *base, int file);
void sock_made_forget(struct sock_state *st, bool unlink_them);

/* ---- what all sockets have ------------------------------------------------------ */

void sock_owner_of(const struct stat *st, Ckpt__Sock__Owner *owner);
/* Make it so; the descriptor is a fresh socket. */
int sock_owner_apply(int fd, const Ckpt__Sock__Owner *owner, struct ckpt_error *err);
int sock_owner_check(const Ckpt__Sock__Owner *owner, uint32_t id, struct ckpt_error *err);

struct sock_options {
	Ckpt__Sock__Option opt[SOCK_OPTIONS_MAX];
	Ckpt__Sock__Option *ptr[SOCK_OPTIONS_MAX];
	uint8_t data[SOCK_OPTIONS_MAX][SOCK_OPTION_DATA];
	size_t n;
};
/* Ask for all of them ahead of time: `ahead` of the kinds. */
void *sock_options_ahead(const struct ckpt_fd_found *f);
/* Those that differ from a new socket's. */
int sock_options_read(struct ckpt_run *run, const struct ckpt_fd_found *f, struct sock_options *o,
		      struct ckpt_error *err);
int sock_options_check(Ckpt__Sock__Option *const *opt, size_t n, uint32_t id,
		       struct ckpt_error *err);
int sock_options_apply(int fd, Ckpt__Sock__Option *const *opt, size_t n, struct ckpt_error *err);

/* The sending buffer's size as SO_SNDBUF reads it, and who has set it (SO_BUF_LOCK). */
int sock_sndbuf_force(int fd, int size, int lock, struct ckpt_error *err);
int sock_buf_lock(int fd);

/* Refuse a socket of another network namespace, with a filter, or shared with the outside. */
int sock_survey(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err);
int sock_int(int fd, int level, int name);
/* Set an option of a socket of the living tree: asked for again, as it must not be left half-way.
 */
int sock_put_back(int fd, int level, int name, int value);

/* ---- lists that netlink gives (nl.c) -------------------------------------------------- */

struct nlmsghdr;
/* Receive all of one, that was asked for: `take` each message; not 0 ends that, and is returned. */
int sock_nl_list(int nl, char *buf, size_t size, int (*take)(void *arg, struct nlmsghdr *h),
		 void *arg);

/* ---- sockets of a live tree, while they are looked at (guard.c) ----------------------- */

enum { SOCK_GUARDED_MAX = 8 };
/*
 * From here on, what is set by sock_guard_set() is taken back by sock_guard_end(), or if ckpt is
 * killed by a process that waits for that. One socket at a time.
 */
int sock_guard_begin(struct sock_state *st, int fd);
int sock_guard_set(struct sock_state *st, int level, int name, int value);
int sock_guard_end(struct sock_state *st);
void sock_guard_stop(struct sock_state *st);

/* ---- filters, multicast groups ------------------------------------------------------ */

int sock_filter_survey(struct ckpt_run *run, const struct ckpt_fd_found *f);
int sock_filter_collect(struct ckpt_run *run, const struct ckpt_fd_found *f,
			struct ckpt_error *err);
int sock_filter_plan(struct ckpt_run *run, struct ckpt_error *err);
int sock_filter_apply(struct ckpt_run *run, uint32_t file, int fd, struct ckpt_error *err);
int sock_filter_settle(struct ckpt_run *run, struct ckpt_error *err);

int sock_multicast_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
			  struct ckpt_error *err);
int sock_multicast_collect(struct ckpt_run *run, const struct ckpt_fd_found *f,
			   struct ckpt_error *err);
int sock_multicast_plan(struct ckpt_run *run, struct ckpt_error *err);
int sock_multicast_apply(struct ckpt_run *run, uint32_t file, int fd, struct ckpt_error *err);

/* What is kept apart of any socket: its place and its filter. */
int sock_collect(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err);

/* ---- the network namespace it belongs to ------------------------------------------- */

/* The engine is elsewhere until this goes out of scope. */
struct sock_place {
	int back;
};
int sock_net_enter(const struct ckpt_ns *ns, struct sock_place *place, struct ckpt_error *err);
void sock_net_leave(struct sock_place *place);
#define SOCK_PLACE(name) __attribute__((cleanup(sock_net_leave))) struct sock_place name = { -1 }

/* Do something in ckpt's own and in each one of the tree. */
int sock_net_each(struct ckpt_run *run,
		  int (*fn)(struct sock_state *st, const struct ckpt_ns *ns, void *arg), void *arg,
		  const char *what, struct ckpt_error *err);
/* dump: of a socket of the tree. One that nobody is in is made known to the run. */
int sock_net_of(struct ckpt_run *run, int fd, const struct ckpt_ns **ns, struct ckpt_error *err);
/* Refuse one of another namespace than ckpt's if the feature is off. 0: fine. */
int sock_net_survey(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err);
int sock_net_collect(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err);
int sock_net_plan(struct ckpt_run *run, struct ckpt_error *err);
/* restore: where that file belongs. */
struct ckpt_ns *sock_net_saved(struct ckpt_run *run, uint32_t file);
/* A socket there, where the engine is then too. */
int sock_new(struct ckpt_run *run, uint32_t file, int family, int type, int protocol,
	     struct sock_place *place, struct ckpt_error *err);

/* ---- interfaces that a socket is bound to or has joined a group at -------------------- */

/* An image's name and number of one: both or none. */
bool sock_interface_ok(const char *name, uint32_t index);
/* plan: one that must be in ckpt's own namespace is looked for there. */
void sock_interface_plan(struct ckpt_run *run, uint32_t file, const char *name);
/*
 * restore, in the socket's namespace: the number that it has by now, for in ckpt's own it may
 * be another one. 0: it was none.
 */
int sock_interface_now(const char *name, struct ckpt_error *err);

/* ---- unix sockets ---------------------------------------------------------------- */

/* The kernel's lists of unix sockets in all network namespaces, read once a look. */
int sock_unix_diag(struct ckpt_run *run, struct ckpt_error *err);
const struct sock_unix_diag *sock_unix_find(const struct sock_state *st, uint64_t ino);
/* restore: the inode of the other end of a socket, in the namespace that we are in. */
int sock_unix_peer(int fd, uint32_t *peer);
/* How many descriptors wait in its queue. */
unsigned sock_in_flight(const struct ckpt_fd_found *f);

/* Who a socket's SO_PEERCRED names. */
int sock_creator_of(struct ckpt_run *run, int fd, Ckpt__Sock__Credentials *c,
		    struct ckpt_error *err);
void sock_creator_free(Ckpt__Sock__Credentials *c);
/* Refuse a creator outside the tree (feature peercred). 0: fine, or allowed. */
int sock_creator_survey(struct ckpt_run *run, const struct ckpt_fd_found *f);
int sock_creator_check(struct ckpt_run *run, const Ckpt__Sock__Credentials *c, uint32_t id,
		       struct ckpt_error *err);
/* The task in which a socket must be made, or NULL for anywhere. */
struct ckpt_task *sock_creator_task(struct ckpt_run *run, const Ckpt__Sock__Credentials *c);
bool sock_same_creator(const Ckpt__Sock__Credentials *a, const Ckpt__Sock__Credentials *b);
/* In a script: take on, and lay down, the creator's effective ids. */
void sock_creator_enter(struct ckpt_script *s, const Ckpt__Sock__Credentials *c);
void sock_creator_leave(struct ckpt_script *s, const Ckpt__Sock__Credentials *c);

/* The messages of a queue. */
int sock_queue_read(struct ckpt_run *run, const struct ckpt_fd_found *f, Ckpt__Sock__UnixEnd *end,
		    struct ckpt_error *err);
/* ckpt_fd_kind.carried of all unix sockets that have a queue */
int sock_carried(struct ckpt_run *run, const struct ckpt_fd_found *f,
		 int (*found)(struct ckpt_run *run, void *arg, int fd, struct ckpt_error *err),
		 void *arg, struct ckpt_error *err);
void sock_queue_free(Ckpt__Sock__UnixEnd *end);
int sock_queue_write(struct ckpt_run *run, int fd, const Ckpt__Sock__UnixEnd *to,
		     struct ckpt_error *err);

/* ---- kinds ---------------------------------------------------------------------- */

extern const struct ckpt_fd_kind sock_kind_inet_listen;
extern const struct ckpt_fd_kind sock_kind_tcp;
extern const struct ckpt_fd_kind sock_kind_tcp_connected;
extern const struct ckpt_fd_kind sock_kind_raw;
extern const struct ckpt_fd_kind sock_kind_udp;
extern const struct ckpt_fd_kind sock_kind_netlink;
extern const struct ckpt_fd_kind sock_kind_packet;
extern const struct ckpt_fd_kind sock_kind_unix_listen;
extern const struct ckpt_fd_kind sock_kind_unix_pair;
extern const struct ckpt_fd_kind sock_kind_unix_stream;
extern const struct ckpt_fd_kind sock_kind_unix_dgram;

#endif
