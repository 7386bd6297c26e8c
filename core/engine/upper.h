/* SPDX-License-Identifier: MIT */
/* Directories of the user's for what copies write: DIR/COPY/LAYER, both counted from 1. */
#ifndef CKPT_ENGINE_UPPER_H
#define CKPT_ENGINE_UPPER_H

#include <ckpt/error.h>

/* One for each copy, where none may be yet; *made counts them, also after a failure. */
int upper_make(const char *dir, unsigned copies, unsigned *made, struct ckpt_error *err);
/* With all that is in them. */
void upper_remove(const char *dir, unsigned made);

#endif
