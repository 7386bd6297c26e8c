/* SPDX-License-Identifier: MIT */
/*
 * The extension point "vma": kinds of mappings beyond anonymous memory and
 * regular files, owned by the plugin `mem`. A kind recognises a mapping by its
 * backing, saves it in a record of its own plugin and maps it again.
 */
#ifndef CKPT_VMA_H
#define CKPT_VMA_H

#include <stdbool.h>
#include <stdint.h>

#include <ckpt/error.h>
#include <ckpt/script.h>
#include <ckpt/task.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ckpt_run;

/* A mapping as found in /proc/PID/smaps. Borrowed, valid during the call. */
struct ckpt_vma_found {
	const struct ckpt_task *task;
	uint64_t start, end, pgoff; /* bytes */
	int prot;		    /* PROT_* */
	bool shared;
	uint32_t dev_major, dev_minor;
	uint64_t ino;
	const char *path;    /* as in maps: "/usr/lib/x", "[heap]", "/dev/kfd", "" */
	const char *vmflags; /* "rd wr mr mw me ac" */
};

/*
 * A kind is asked for every mapping that is not private anonymous memory or the
 * kernel's, and comes before what mem itself can do. Its name is kept in the
 * image: at restore, a plugin with a kind of that name must be there. Register it
 * with { "vma", "mydevice", &my_kind } in the descriptor's extensions. Since 0.1.
 */
struct ckpt_vma_kind {
	uint32_t size; /* sizeof(struct ckpt_vma_kind) */
	/* Is this one ours? More than one yes is an error naming both. */
	bool (*match)(const struct ckpt_vma_found *v);
	/*
	 * Look from outside and refuse what cannot be saved; may be NULL. 0: it can be
	 * saved; 1: refused with ckpt_refuse(), or lost by permission: it is left out;
	 * negative: failed.
	 */
	int (*survey)(struct ckpt_run *run, const struct ckpt_vma_found *v, struct ckpt_error *err);
	/* Put a record that carries the task's id and v->start. */
	int (*collect)(struct ckpt_run *run, const struct ckpt_vma_found *v,
		       struct ckpt_error *err);
	/*
	 * Append to the task's script what maps [start, ...) again, with
	 * MAP_FIXED_NOREPLACE. The task's other mappings may not be there yet. A
	 * descriptor may be lent with ckpt_lend_fd(); add a close(2) of it.
	 */
	int (*map)(struct ckpt_run *run, struct ckpt_task *task, uint64_t start,
		   struct ckpt_script *s, struct ckpt_error *err);
};

#define CKPT_VMA_POINT "vma"

#ifdef __cplusplus
}
#endif
#endif
