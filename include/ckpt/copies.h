/* SPDX-License-Identifier: MIT */
/*
 * What the copies of `ckpt branch` get from ckpt by fork. Each copy is restored by a
 * descendant of ckpt, and its root is a fork of that one if there is memory to be
 * inherited: so private memory that ckpt has filled once is shared by all copies, and
 * still follows every rule of anonymous memory.
 *
 * The extension point "copies", owned by the engine, which asks the first plugin that has one.
 * Since 0.1.
 */
#ifndef CKPT_COPIES_H
#define CKPT_COPIES_H

#include <stdbool.h>
#include <stdint.h>

#include <ckpt/error.h>
#include <ckpt/mnt.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ckpt_run;

struct ckpt_copies_memory {
	/* ckpt's own addresses: every root has them, and nothing else of ckpt's memory */
	uint64_t start, end;
	const void *plan; /* what the copies' runs have to know of it */
};

struct ckpt_copies_kind {
	uint32_t size; /* sizeof(struct ckpt_copies_kind) */
	/*
	 * In ckpt itself, before there are copies: the image is loaded, and no step has run.
	 * Makes and fills memory; the plan must stay until the state of this run is freed.
	 * The engine unmaps the memory, also after a failure; then, and if start and end
	 * are equal, each copy fills its own.
	 */
	int (*prepare)(struct ckpt_run *run, unsigned copies, struct ckpt_copies_memory *out,
		       struct ckpt_error *err);
};

#define CKPT_COPIES_POINT "copies"

/* restore of a copy: what was prepared; NULL: nothing. */
CKPT_API const struct ckpt_copies_memory *ckpt_copies_memory(const struct ckpt_run *run);

/*
 * Layers: what a copy writes below a directory is in an upper directory of its own, which an
 * image of that copy has. The extension point "layers", owned by the engine, which asks the
 * first plugin that has one. Since 0.1.
 */
struct ckpt_layers_kind {
	uint32_t size; /* sizeof(struct ckpt_layers_kind) */
	/*
	 * In ckpt itself, before there are copies, as prepare() above: check what the image has
	 * of layers, so that fill() can do without.
	 */
	int (*plan)(struct ckpt_run *run, struct ckpt_error *err);
	/* The directory of the i-th, from the root; NULL: those were all. */
	const char *(*path)(struct ckpt_run *run, size_t i);
	/*
	 * In the first process of a copy, which has nothing but its namespaces: `upper` is a
	 * descriptor of the upper directory, which is new, and not yet part of an overlay.
	 */
	int (*fill)(struct ckpt_run *run, size_t i, int upper, struct ckpt_error *err);
};

#define CKPT_LAYERS_POINT "layers"

#define CKPT_LAYER_NUMBER_SIZE 16

/*
 * A run in the namespaces of a copy: an O_PATH descriptor of the upper directory of the layer
 * that `m`, a mount of ckpt's own namespace, is; the caller closes it. `number` is one that no
 * other layer has. -ENOENT: it is none, or of a copy around this one. -ENOTUNIQ: it is one that
 * was mounted once more, or elsewhere. -EXDEV: the image is made in that layer itself. Or another
 * negative errno.
 */
CKPT_API int ckpt_layer_upper(const struct ckpt_run *run, const struct ckpt_mount *m,
			      uint8_t number[CKPT_LAYER_NUMBER_SIZE], struct ckpt_error *err);

/* restore of a copy: is the file below a layer that the image has? */
CKPT_API bool ckpt_layer_brings(const struct ckpt_run *run, const char *path);

#ifdef __cplusplus
}
#endif
#endif
