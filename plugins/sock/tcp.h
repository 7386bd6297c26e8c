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
};

/* What is read of a connection before what its other end has received is. */
struct sock_tcp_look {
	uint64_t ino;
	uint8_t state;
	uint32_t seq, queued, unsent; /* the kernel's numbers, a FIN included */
	uint8_t *out;
	size_t len; /* of the data alone */
};

/* The kernel's lists of TCP sockets in all network namespaces, read once a look. */
int sock_tcp_diag(struct ckpt_run *run, struct ckpt_error *err);
/* The socket of that namespace that is bound to `src` and connected to `dst`, or NULL. */
const struct sock_tcp_diag *sock_tcp_find(const struct sock_state *st, const struct ckpt_ns *net,
					  const union sock_address *src,
					  const union sock_address *dst);
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

/* The same for all of the port in ckpt's own namespace, with that address or of any. */
void sock_tcp_clear_port(const struct sock_state *st, const union sock_address *local);

/* Set a TCP option that is an integer: 0 or a negative errno. */
int sock_tcp_set(int fd, int name, int value);
/* Into and out of the repair mode, in a live tree: one at a time, and as it was before. */
int sock_repair_enter(struct sock_state *st, int fd);
int sock_repair_leave(struct sock_state *st, int fd);
void sock_guard_stop(struct sock_state *st);
/* When all sockets are bound and listen: connect those that wait to be accepted. */
int sock_tcp_settle(struct ckpt_run *run, struct ckpt_error *err);

/* Before anything is bound: end what is left of the image's connections. */
int sock_tcp_sweep(struct ckpt_run *run);

int sock_tcp_plan(struct ckpt_run *run, uint32_t id, struct ckpt_error *err);
int sock_tcp_open(struct ckpt_run *run, const struct ckpt_fd_slot *slot, struct ckpt_error *err);

#endif
