/* SPDX-License-Identifier: MIT */
/* What a run keeps to open files without an event. */
#ifndef CKPT_PROCESS_QUIET_H
#define CKPT_PROCESS_QUIET_H

struct quiet_group;

/* Its thread has ended then. NULL in it is nothing. */
void quiet_free(struct quiet_group **g);

#endif
