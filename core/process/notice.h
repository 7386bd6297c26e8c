/* SPDX-License-Identifier: MIT */
/* What would notice that a file of the tree is opened. */
#ifndef CKPT_PROCESS_NOTICE_H
#define CKPT_PROCESS_NOTICE_H

#include <ckpt/fd.h>

/* Kept in the proc_set of a run. */
struct notices {
	dev_t *watched;
	size_t n_watched;
	struct ckpt_lease *leases;
	size_t n_leases;
};

void notices_free(struct notices *all);

#endif
