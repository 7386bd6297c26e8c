/* SPDX-License-Identifier: MIT */
/* The process layer's own view of the namespaces of one run. */
#ifndef CKPT_PROCESS_NS_H
#define CKPT_PROCESS_NS_H

#include <ckpt/ns.h>

struct proc_set;

/* A task's seats: one, or one a thread. */
struct ns_task {
	uint32_t id;
	size_t n;
	struct ckpt_ns_seat *seats;
};

struct ns_table {
	struct ckpt_ns **ns;
	size_t n;
	struct ns_task *tasks; /* by id */
	size_t n_tasks;
	struct ckpt_ns_seat own;
};

struct ns_type {
	const char *name;
	int flag;
};
extern const struct ns_type ns_types[CKPT_NS_TYPES];

/* With ckpt's own namespaces. */
struct ns_table *ns_new(struct ckpt_error *err);
void ns_free(struct ns_table *t);
struct ckpt_ns *ns_find(const struct ns_table *t, enum ckpt_ns_type type, uint64_t ino);
/* Append a copy; the descriptor is the table's from then on. */
struct ckpt_ns *ns_append(struct ns_table *t, const struct ckpt_ns *ns, struct ckpt_error *err);
/* Append a task without seats; ids ascend. */
struct ns_task *ns_append_task(struct ns_table *t, uint32_t id, size_t n, struct ckpt_error *err);

#endif
