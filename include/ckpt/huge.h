/* SPDX-License-Identifier: MIT */
/*
 * Files and memory of the pool of 2 MiB pages, the only size that is saved. Their files
 * know no write(2), and their pages come from a pool that the administrator fills.
 */
#ifndef CKPT_HUGE_H
#define CKPT_HUGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ckpt/error.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ckpt_run;

#define CKPT_HUGE_PAGE (2048ull << 10)

/* Is it a file of such a pool (hugetlbfs, of any size of pages)? */
CKPT_API bool ckpt_is_huge(int fd);

/*
 * restore, plan: `what` needs `pages` of them. Lists what is missing with ckpt_unmet().
 * What is promised to others (resv_hugepages) does not count as free.
 */
CKPT_API int ckpt_huge_need(struct ckpt_run *run, uint64_t pages, const char *what);

/* Write to such a file, through a mapping: -ENOSPC where the pool is empty, never a SIGBUS. */
CKPT_API int ckpt_huge_write(int fd, const void *buf, size_t len, uint64_t at,
			     struct ckpt_error *err);

#ifdef __cplusplus
}
#endif

#endif
