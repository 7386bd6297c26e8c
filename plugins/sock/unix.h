/* SPDX-License-Identifier: MIT */
/* Shared by the kinds of unix sockets. */
#ifndef SOCK_UNIX_H
#define SOCK_UNIX_H

#include "internal.h"

#include <ckpt/mnt.h>
#include <limits.h>
#include <sys/un.h>

#define SOCK_NAME_SIZE sizeof(((struct sockaddr_un *)0)->sun_path)
/* the bits of the kernel's sk_shutdown */
#define SOCK_NO_RECV 1
#define SOCK_NO_SEND 2
#define SOCK_SHUT    (SOCK_NO_RECV | SOCK_NO_SEND)

/* A name as found, and its record. */
struct sock_name {
	char text[SOCK_NAME_SIZE + 1];
	size_t len; /* of the path without NUL, or of the abstract name without its leading NUL */
	bool abstract;
	bool present; /* its file is there, and this socket's */
	uint32_t mnt; /* the mount namespace of the file */
	struct stat st;
	char dir[PATH_MAX];
	char now[PATH_MAX]; /* where the file is, if not where it was bound; else empty */
	Ckpt__Sock__UnixName rec;
	Ckpt__Sock__Owner owner;
};

/* From an address; false: there is no name in it. */
bool sock_name_take(const struct sockaddr_un *a, size_t len, struct sock_name *n);
/* Of a socket, or its peer. 1: it has one; 0: none; negative errno: not connected. */
int sock_name_read(int fd, bool peer, struct sock_name *n);
bool sock_name_same(const struct sock_name *a, const struct sock_name *b);
/* Find the file of a name read from a socket that was bound to it. */
bool sock_name_locate(struct ckpt_run *run, int fd, struct sock_name *n);
/* An O_PATH descriptor of the file that the socket is bound to, or -1. */
int sock_unix_file(int fd);
/* Refuse a socket with a name that cannot be bound again. 0: fine. */
int sock_name_survey(struct ckpt_run *run, const struct ckpt_fd_found *f);
/* Points into *n. */
const Ckpt__Sock__UnixName *sock_name_record(struct sock_name *n);

/* NULL is a valid name: none. */
int sock_name_plan(struct ckpt_run *run, const Ckpt__Sock__UnixName *n, uint32_t id,
		   struct ckpt_error *err);
bool sock_name_equal(const Ckpt__Sock__UnixName *a, const Ckpt__Sock__UnixName *b);
socklen_t sock_name_address(const Ckpt__Sock__UnixName *n, struct sockaddr_un *a);
int sock_bind(struct ckpt_run *run, int fd, const Ckpt__Sock__UnixName *n, struct ckpt_error *err);

/* Make a socket listen as the creator, so that SO_PEERCRED of its clients names it. */
int sock_listen_as(struct ckpt_run *run, const Ckpt__Sock__Credentials *creator, int fd,
		   uint32_t backlog, struct ckpt_error *err);
/* A duplicate of a listening socket of the image, which is made if it is not there yet. */
int sock_listener(struct ckpt_run *run, uint32_t id, struct ckpt_error *err);

/* UnixEnd.form */
enum sock_form { SOCK_PAIR, SOCK_NAMED, SOCK_UNCONNECTED, SOCK_FREE_DGRAM, SOCK_PENDING };

/* ---- ends ------------------------------------------------------------------------- */

/* Any look at messages takes the error away; a stream's bytes can be counted first. */
bool sock_has_error(const struct ckpt_fd_found *f);
/* What surveys, collections and plans of all ends have in common. */
int sock_end_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
		    const struct sock_unix_diag *d, struct ckpt_error *err);
/* Fill the rest of a record and put it. */
int sock_end_collect(struct ckpt_run *run, const struct ckpt_fd_found *f,
		     const struct sock_unix_diag *d, Ckpt__Sock__UnixEnd *rec,
		     struct ckpt_error *err);
int sock_end_plan(struct ckpt_run *run, const Ckpt__Sock__UnixEnd *rec, struct ckpt_error *err);
/* Queues, shutdowns, options of a connected pair; sv[0] is `end`. Puts both into the stash. */
int sock_end_finish(struct ckpt_run *run, const Ckpt__Sock__UnixEnd *end, int sv[2],
		    struct ckpt_error *err);
int sock_end_shut(int fd, uint32_t bits, struct ckpt_error *err);
/* The file of the other end, 0 if it is closed (or left out). */
uint32_t sock_end_peer(struct ckpt_run *run, const struct ckpt_fd_found *f,
		       const struct sock_unix_diag *d);
/* The end's entry in the kernel's list; NULL, with *r set, if it is refused or failed. */
const struct sock_unix_diag *sock_end_find(struct ckpt_run *run, const struct ckpt_fd_found *f,
					   int *r, struct ckpt_error *err);

/*
 * The socket that listens to this name as seen from `d`, or NULL. `same`: a socket that was
 * accepted there, if there is one, and so has its very file.
 */
const struct sock_unix_diag *sock_unix_listener(const struct sock_state *st,
						const struct sock_unix_diag *d,
						const struct sock_unix_diag *same,
						const struct sock_name *n);

/* ---- connections that wait to be accepted ----------------------------------------------- */

/* Where this socket waits, or NULL. */
const struct sock_waiting *sock_waiting_find(const struct sock_state *st, uint32_t client);
/* Refuse a listening socket's queue if not all that wait in it can be saved. 0: fine. */
int sock_waiting_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
			const struct sock_unix_diag *d, struct ckpt_error *err);
/* Of one that waits. */
int sock_pending_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
			const struct sock_unix_diag *d, const struct sock_waiting *w,
			struct ckpt_error *err);
int sock_pending_collect(struct ckpt_run *run, const struct ckpt_fd_found *f,
			 const struct sock_unix_diag *d, const struct sock_waiting *w,
			 struct ckpt_error *err);
int sock_pending_plan(struct ckpt_run *run, const Ckpt__Sock__UnixEnd *rec, struct ckpt_error *err);
/* No two of them have one place. */
int sock_pending_order(struct ckpt_run *run, struct ckpt_error *err);
/* When all other connections are made: they connect in order. */
int sock_pending_settle(struct ckpt_run *run, struct ckpt_error *err);

/* Connect as the one who has done so before; the listening socket is a descriptor of ours. */
int sock_connect_as(struct ckpt_run *run, const Ckpt__Sock__Credentials *who,
		    const Ckpt__Sock__UnixName *to, int fd, int listener, struct ckpt_error *err);

/* Room for the largest queue that is saved. */
#define SOCK_QUEUE_MAX	  (32u << 20)
#define SOCK_QUEUE_SNDBUF (4 * (int)SOCK_QUEUE_MAX)

/* What the kernel takes with one message. */
#define SOCK_FILES_MAX 253

/* When all descriptors are installed: what waits for them to be sent is sent. */
int sock_end_settle(struct ckpt_run *run, struct ckpt_error *err);
/* When all descriptors are installed: dgram sockets get their queues and peers. */
int sock_dgram_settle(struct ckpt_run *run, struct ckpt_error *err);

/* Send one message; `to` NULL: the peer. */
ssize_t sock_message_send(struct ckpt_run *run, int fd, const Ckpt__Sock__UnixMessage *m,
			  size_t from, const struct sockaddr_un *to, socklen_t to_len,
			  struct ckpt_error *err);

#endif
