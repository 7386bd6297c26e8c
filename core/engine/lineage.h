/* SPDX-License-Identifier: MIT */
/*
 * Which images a tree comes from: noted with its first process, read when it is saved
 * again. The note is an extended attribute of the process's pidfd (Linux 6.17), so it ends
 * with the process, whoever reaps it, and nobody sees it who has not CAP_SYS_ADMIN. Where
 * the kernel has no such thing, nothing is noted.
 */
#ifndef CKPT_ENGINE_LINEAGE_H
#define CKPT_ENGINE_LINEAGE_H

#include <ckpt/error.h>

#include "image/image.h"

/* Its ancestors, for the image that is made of it. */
int lineage_read(int pidfd, struct image_info *info, struct ckpt_error *err);
/* It goes on from that image; `copy`: its number, 0: none; `restored`: not left running. */
void lineage_note(int pidfd, const struct image_info *from, unsigned copy, bool restored);

#endif
