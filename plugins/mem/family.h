/* SPDX-License-Identifier: MIT */
/*
 * Memory that tasks share by fork and shall share again: who fills which page, and who
 * inherits it. A stretch is memory at scratch addresses, outside of everybody's final
 * layout. It is made and filled by the nearest common ancestor of those who share it,
 * before that one clones anybody; each of them moves its part into place.
 */
#ifndef PLUGIN_MEM_FAMILY_H
#define PLUGIN_MEM_FAMILY_H

#include <ckpt/copies.h>
#include <ckpt/pid.h>

#include "mem.h"

struct mem_extent {
	uint64_t page, n, place; /* address and place in the page file, in pages */
};

/* A task to be made, in the order in which they are cloned. */
struct mem_kin {
	uint32_t id, maker, depth;
	/* itself and its descendants are those with such a rank: [rank, rank + size) */
	uint32_t rank, size;
	const struct mem_task_image *ti; /* or NULL */
	struct mem_extent *extent;
	size_t n_extents;
	size_t use, n_uses; /* in order of their addresses */
	bool fills;
	struct mem_runs keep, drop; /* pages inherited that are its own, and those that are not */
	uint8_t *hidden;	    /* stretches not to be inherited by the next; NULL: none */
};

struct mem_stretch {
	/* pages, numbered as in the task that was the first to have them */
	uint64_t lo, hi;
	const mem_vma_rec *like;
	uint64_t file; /* what has to be added to such a number for the page of the file */
	uint32_t maker;
	uint32_t n_uses;
	uint64_t at; /* address of page lo; 0: nobody needs it */
};

/* A group of mappings of a task that is made of a part of a stretch. */
struct mem_use {
	uint32_t kin, stretch;
	uint64_t start, end; /* pages of the task */
	uint64_t shift;	     /* what has to be added for those of the stretch */
	bool gone;	     /* it turned out that its pages are not to be had */
};

/* A page of a stretch, as `kin` fills it. */
struct mem_entry {
	uint64_t slot, place;
	uint32_t stretch, kin;
};

/* A file, as it was found before the mounts of the tree were made (early.c). */
struct mem_early {
	dev_t dev;
	ino_t ino;
	bool there;
	bool noexec; /* by its mount */
	bool other;  /* not the one that its path leads to, as is known later */
};

struct mem_family {
	const struct mem_image *im;
	struct mem_early *early; /* by file; NULL: none was looked for */
	int clone;		 /* of the engine: of the mount at its root; -1 */
	struct mem_kin *kin;
	size_t n_kin;
	uint32_t *by_id; /* indexes, in order of ids */
	struct mem_stretch *stretch;
	size_t n_stretches, cap_stretches;
	struct mem_use *use; /* in order of kin and addresses */
	size_t n_uses, cap_uses;
	uint32_t *by_stretch;	 /* uses in order of stretches and ranks */
	struct mem_entry *entry; /* by stretch, slot, and the depth of kin, deepest first */
	size_t n_entries, cap_entries;
	uint64_t start, end; /* of the scratch addresses; 0: none */
	int pages_fd;	     /* of the engine */
	/*
	 * Of several copies: what ckpt itself has filled for all of them, whose stretches are
	 * the first ones here too; or NULL.
	 */
	const struct mem_family *before;
};

/*
 * Before there are copies: all tasks' memory, made by a first ancestor (index 0) whose
 * children are all tasks. NULL in *out: there is nothing worth it.
 */
int mem_family_plan_copies(struct ckpt_run *run, const struct mem_image *im, unsigned copies,
			   struct mem_family **out, struct ckpt_error *err);
/* NULL in *out: nothing is shared by fork. */
int mem_family_plan(struct ckpt_run *run, const struct mem_image *im, const struct ckpt_kin *kin,
		    size_t n, struct mem_family **out, struct ckpt_error *err);
void mem_family_free(struct mem_family *f);
struct mem_kin *mem_family_kin(const struct mem_family *f, uint32_t id);
/* Is `a` that task itself, or does it descend from it? */
static inline bool mem_kin_covers(const struct mem_kin *of, const struct mem_kin *a)
{
	return a->rank >= of->rank && a->rank - of->rank < of->size;
}
struct mem_range {
	uint64_t start, end;
};

/* Room outside of everybody's memory, and of `keep`, for all stretches that have no place yet;
 * without, they are nobody's. */
int mem_family_place(struct mem_family *f, const struct mem_range *keep, size_t n,
		     struct ckpt_error *err);

/* ---- files whose mounts are not there yet (early.c) -------------------------------------------
 */

/*
 * Look for files with private pages: those of other mount namespaces, or all. What is not found is
 * not shared.
 */
int mem_early_look(struct mem_family *f, bool all, struct ckpt_error *err);
bool mem_early_has(const struct mem_family *f, uint32_t file);
/* Is it what ckpt has mapped for all copies? */
bool mem_early_had(const struct mem_family *f, uint32_t file);
/* The operation whose result is its descriptor, as mem_lend_file(). */
int mem_early_lend(const struct mem_family *f, uint32_t file, struct mem_lender *l, size_t slot,
		   struct ckpt_script *s, struct ckpt_error *err);
/* A descriptor of the engine. */
int mem_early_open(const struct mem_family *f, uint32_t file, struct ckpt_error *err);
/* All stretches are made. */
void mem_early_done(struct mem_family *f);
/*
 * The mounts are there, and the tasks are in their places: what was mapped of another file, or
 * would show another path, is nobody's.
 */
int mem_early_check(struct ckpt_run *run, struct mem_family *f, struct ckpt_error *err);

/* ---- in the tasks (inherit.c) ------------------------------------------------ */

extern const struct ckpt_birth_kind mem_birth_kind;
extern const struct ckpt_copies_kind mem_copies_kind; /* copies.c */

/* What copies have got from ckpt by fork; NULL: they have not. */
const struct mem_family *mem_before_copies(struct ckpt_run *run);
/* Note what `kin` fills, in the memory of that process. */
int mem_family_fill(struct mem_family *f, uint32_t kin, pid_t pid, struct ckpt_error *err);

/* The use that group of mappings is made of, or NULL. */
const struct mem_use *mem_inherited(const struct mem_family *f, const struct mem_kin *k,
				    uint64_t start);
/* Move it into place; mappings of that task with all that is not its own dropped. */
void mem_inherit(const struct mem_family *f, const struct mem_kin *k, const struct mem_use *u,
		 struct ckpt_script *s);

#endif
