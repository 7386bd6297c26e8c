/* SPDX-License-Identifier: MIT */
/* What an image of a copy has of the copy's layers, for its own copies. */
#ifndef CKPT_ENGINE_LAYERS_H
#define CKPT_ENGINE_LAYERS_H

#include "engine/ancestor.h"

/* Check them. */
int layers_plan(struct ancestor *a, struct ckpt_error *err);
/* The directory of the i-th; NULL: those were all. */
const char *layers_path(struct ancestor *a, size_t i);
int layers_fill(struct ancestor *a, size_t i, int upper, struct ckpt_error *err);

#endif
