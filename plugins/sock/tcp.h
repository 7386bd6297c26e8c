/* SPDX-License-Identifier: MIT */
/* Shared by what concerns TCP connections. */
#ifndef SOCK_TCP_H
#define SOCK_TCP_H

#include "inet.h"

#include <netinet/tcp.h>

#ifndef TCP_REPAIR_WINDOW
#define TCP_REPAIR_WINDOW 29
#endif
#define SOCK_REPAIR_ON	1
#define SOCK_REPAIR_OFF 0  /* with a probe of the other side's window */
#define SOCK_REPAIR_END -1 /* without one */

/* Of packets of ckpt's own, which pass where those of held connections do not. */
#define SOCK_HOLD_MARK 0x636b7074

/* What becomes of a connection; numbers of the image. */
enum sock_tcp_form {
	SOCK_TCP_INSIDE, /* both ends are in the tree */
	SOCK_TCP_KEPT,	 /* its other end is outside and waits */
	SOCK_TCP_LOST,	 /* as if the other end had reset it */
	SOCK_TCP_OVER,	 /* it has ended before the dump */
};

/* The kernel's struct tcp_repair_window. */
struct sock_window {
	uint32_t snd_wl1, snd_wnd, max_window, rcv_wnd, rcv_wup;
};

/* One of the kernel's TCP sockets; addresses of IPv4 as those of IPv6 that stand for them. */
struct sock_tcp_diag {
	uint32_t net; /* id of the namespace */
	uint8_t src[16], dst[16];
	uint16_t sport, dport; /* big endian, as in addresses */
	uint8_t state;
	uint32_t ino; /* 0: nobody has it open: not accepted yet, or closed */
	uint32_t received;
	uint32_t device; /* that it is bound to */
	uint8_t family;
	bool signs; /* with keys of TCP_MD5SIG */
	bool only6; /* IPV6_V6ONLY */
};

/* What is read of a connection before what its other end has received is. */
struct sock_tcp_look {
	uint64_t ino;
	uint8_t state;
	uint32_t seq, queued, unsent; /* the kernel's numbers, a FIN included */
	uint8_t *out;
	size_t len; /* of the data alone */
	enum sock_tcp_form form;
};

/* restore: an end in the making */
struct sock_end {
	const Ckpt__Sock__Tcp *rec;
	const struct ckpt_ns *net;
	int fd, lock;
	size_t sent; /* of rec->out */
};

/* The kernel's lists of TCP sockets in all network namespaces, read once a look. */
int sock_tcp_diag(struct ckpt_run *run, struct ckpt_error *err);
/* To be read anew. */
void sock_tcp_forget(struct sock_state *st);
/* The socket of that namespace that is bound to `src` and connected to `dst`, or NULL. */
const struct sock_tcp_diag *sock_tcp_find(const struct sock_state *st, const struct ckpt_ns *net,
					  const union sock_address *src,
					  const union sock_address *dst);
/*
 * The other end of a connection: in the same namespace, or else in another one of the tree.
 * NULL: there is none, or it cannot be told.
 */
const struct sock_tcp_diag *sock_tcp_other(struct ckpt_run *run, const struct ckpt_ns *net,
					   const union sock_address *local,
					   const union sock_address *peer);
/* How many in the list wait at this listening socket for accept(2) and are ours to connect again.
 */
unsigned sock_tcp_waiting(struct ckpt_run *run, const struct ckpt_fd_found *f);
/* The listening socket where this one waits; NULL: none. */
const struct sock_tcp_diag *sock_tcp_listener(const struct sock_state *st,
					      const struct sock_tcp_diag *waits);
/* Nothing that was sent to it is there yet. */
bool sock_tcp_untouched(const struct sock_tcp_diag *waits);
/* End what is left of a closed connection between these. 0: there is nothing now. */
int sock_tcp_clear(const union sock_address *src, const union sock_address *dst);

/* The same for all that have the port with that address, or any, unless somebody uses it. */
void sock_tcp_clear_port(const struct sock_state *st, const struct ckpt_ns *net,
			 const union sock_address *local);
/* Does somebody listen there, so that nobody else can? */
bool sock_tcp_listens(const struct sock_state *st, const struct ckpt_ns *net,
		      const union sock_address *local);

/* Set a TCP option that is an integer: 0 or a negative errno. */
int sock_tcp_set(int fd, int name, int value);
/* Into and out of the repair mode, in a live tree: one at a time, and as it was before. */
int sock_repair_enter(struct sock_state *st, int fd);
int sock_repair_leave(struct sock_state *st);
/* The first bytes that wait in a live one, as recv(2) with MSG_PEEK; SO_PEEK_OFF stays. */
ssize_t sock_tcp_peek(struct sock_state *st, int fd, void *buf, size_t size);
/* When all sockets are bound and listen: connect those that wait to be accepted. */
int sock_tcp_settle(struct ckpt_run *run, struct ckpt_error *err);

/* Before anything is bound: hold connections, end what is left of them. */
int sock_tcp_sweep(struct ckpt_run *run, struct ckpt_error *err);

/* Refuse one that signs what it sends: without the keys it would go on unsigned. 0: fine. */
int sock_tcp_keys_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
			 struct ckpt_error *err);

/* What the user wants of connections with the outside (-o net.tcp). */
enum sock_tcp_form sock_tcp_wish(struct ckpt_run *run);
/*
 * Of a connection whose other end is outside, or whose address is gone: refuse it, or tell
 * what is made of it. 0: saved; 1: refused.
 */
int sock_tcp_outside_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
			    const struct ckpt_ns *net, enum sock_tcp_form *form,
			    struct ckpt_error *err);
/* Of one that is over, or is to be: can the restore end it there? */
int sock_tcp_over_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
			 const struct ckpt_ns *net, struct ckpt_error *err);
/* Does the address belong to that namespace? */
bool sock_is_at(const struct ckpt_ns *net, const union sock_address *a);
bool sock_tcp_outside_plan(const Ckpt__Sock__Tcp *rec);
int sock_tcp_outside_open(struct ckpt_run *run, const Ckpt__Sock__Tcp *rec, struct ckpt_error *err);

/* Until this run ends, drop what the two say to each other. */
int sock_hold(struct sock_state *st, const struct ckpt_ns *net, const union sock_address *local,
	      const union sock_address *peer, struct ckpt_error *err);
/* The name of what holds them after a dump. */
const char *sock_hold_name(struct sock_state *st);
bool sock_hold_name_ok(const char *name);
int sock_hold_keep(struct ckpt_run *run, struct ckpt_error *err);
int sock_hold_end(struct ckpt_run *run, struct ckpt_error *err);
void sock_hold_free(struct sock_state *st);

struct sock_segment {
	union sock_address from, to;
	uint32_t seq, ack;
	uint16_t window;
	bool fin, rst;
};
/* Let the socket at `to` receive it, in the namespace that we are in. */
int sock_tcp_forge(const struct sock_segment *s);

/* One end, in repair mode, with its queues; then what it has of its own. */
int sock_tcp_new(const Ckpt__Sock__Tcp *rec, const struct ckpt_ns *net, bool options,
		 struct ckpt_error *err);
int sock_tcp_make_end(const struct sock_end *e, struct ckpt_error *err);
int sock_tcp_finish_end(const struct sock_end *e, struct ckpt_error *err);
/* Let it wait under its file's number, with the SO_REUSEADDR that it needs until all are bound. */
int sock_tcp_give_out(struct ckpt_run *run, const Ckpt__Sock__Tcp *rec, int fd,
		      struct ckpt_error *err);
bool sock_tcp_ends(const Ckpt__Sock__Tcp *rec, union sock_address *local, union sock_address *peer);
int sock_tcp_state(int fd);

/* When the namespaces are known: where an end was that is closed. */
int sock_tcp_plan_home(struct ckpt_run *run, const Ckpt__Sock__Tcp *rec, struct ckpt_error *err);
int sock_tcp_plan(struct ckpt_run *run, uint32_t id, struct ckpt_error *err);
int sock_tcp_open(struct ckpt_run *run, const struct ckpt_fd_slot *slot, struct ckpt_error *err);

#endif
