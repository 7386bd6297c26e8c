/* SPDX-License-Identifier: MIT */
/*
 * Memory policies: from which nodes of the machine memory is taken. As get_mempolicy(2) tells
 * them and set_mempolicy(2) and mbind(2) want them.
 */
#ifndef CKPT_NODES_H
#define CKPT_NODES_H

#include <stddef.h>
#include <stdint.h>

#include <ckpt/error.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ckpt_run;

/* More than any kernel knows (MAX_NUMNODES). */
#define CKPT_MAX_NODES 1024
struct ckpt_nodes {
	uint64_t bits[CKPT_MAX_NODES / 64];
};
/* The size that is told to set_mempolicy(2) and mbind(2), which take one off. */
#define CKPT_NODES_SIZE (CKPT_MAX_NODES + 1)

/* The numbers in a set, in order, into `list` (CKPT_MAX_NODES long); how many. */
CKPT_API size_t ckpt_nodes_list(const struct ckpt_nodes *nodes, uint32_t *list);
/* The way back. Numbers that are too large are left out. */
CKPT_API void ckpt_nodes_set(struct ckpt_nodes *nodes, const uint32_t *list, size_t n);

/*
 * restore, plan: could this policy be set here? `mode` is with its flags, `what` has it. Lists
 * with ckpt_unmet() what is missing; a policy that no kernel gives is an error of the image.
 */
CKPT_API int ckpt_policy_need(struct ckpt_run *run, uint32_t mode, const uint32_t *list, size_t n,
			      const char *what, struct ckpt_error *err);

#ifdef __cplusplus
}
#endif

#endif
