/* SPDX-License-Identifier: MIT */
/* POSIX message queues, inside the plugin ipc. */
#ifndef PLUGIN_IPC_POSIX_H
#define PLUGIN_IPC_POSIX_H

#include <mqueue.h>
#include <sys/stat.h>

#include "ipc.h"

#define IPC_QUEUE_NAME 256
#define MQUEUE_MAGIC   0x19800202

/* dump: where the queues of an ipc namespace are. */
struct ipc_mqueues {
	const struct ckpt_ns *ns;
	dev_t dev;
};

struct ipc_mqueue {
	const struct ckpt_ns *ns;
	dev_t dev;
	ino_t ino;
	int fd;			   /* the engine's own, read-write, never blocking */
	char name[IPC_QUEUE_NAME]; /* without the slash; what it had, if it is unlinked */
	bool unlinked;
	bool seen, lost; /* surveyed, and not to be saved */
	uint32_t id;	 /* of its record; 0: none yet */
};

/* restore: one that is there again. */
struct ipc_remade {
	int fd;			   /* the engine's; -1: not yet */
	char name[IPC_QUEUE_NAME]; /* which it has now, until it is unlinked */
	bool made;		   /* it was not there before */
};

/* posix.c */
/* The directory of the caller's ipc namespace; -ENODEV: the kernel has none. */
int ipc_open_queues(struct ckpt_error *err);
struct ipc_mqueue *ipc_add_mqueue(struct ipc_state *st, const struct ckpt_ns *ns,
				  const struct stat *s, const char *name, struct ckpt_error *err);
/* 1: lost or refused. */
int ipc_survey_mqueue(struct ckpt_run *run, struct ipc_mqueue *q, const struct ckpt_task *t,
		      struct ckpt_error *err);
int ipc_put_mqueue(struct ckpt_run *run, struct ipc_mqueue *q, struct ckpt_error *err);

/* mqueue.c */
/* 1: a process outside the tree has it open, as text. */
int ipc_mqueue_outside(struct ckpt_run *run, dev_t dev, ino_t ino, char *buf, size_t size,
		       struct ckpt_error *err);

#endif
