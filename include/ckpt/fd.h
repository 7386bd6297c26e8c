/* SPDX-License-Identifier: MIT */
/*
 * The extension point "fd": kinds of open file descriptions, owned by the
 * plugin `fd`. A kind recognises a description, saves it in a record of its own
 * plugin, and opens it again at restore. Register it with
 *     { "fd", "eventfd", &eventfd_kind }
 * in the descriptor's extensions; the extension's name is also the name of the
 * feature that switches the kind off, so declare that feature too.
 */
#ifndef CKPT_FD_H
#define CKPT_FD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include <ckpt/error.h>
#include <ckpt/task.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ckpt_run;
struct ckpt_fd_tree;

/* An open file description as found in a live task. Borrowed, valid during the call. */
struct ckpt_fd_found {
	uint32_t file; /* symbolic id of the description; 0 while surveying a live tree */
	const struct ckpt_task *task; /* a task that holds it, and under which number */
	int num;
	const char *link;   /* readlink /proc/PID/fd/N */
	const char *fdinfo; /* text of /proc/PID/fdinfo/N */
	struct stat st;	    /* of the file behind */
	int flags;	    /* F_GETFL: access mode and status flags, but for O_ASYNC */
	int64_t pos;
	int fd; /* a duplicate in the engine (O_PATH ones included); not to be closed */
	/* of sockets, else -1: SO_DOMAIN, SO_TYPE, SO_PROTOCOL, SO_ACCEPTCONN */
	int domain, type, protocol, listening;
	const struct ckpt_fd_tree *tree; /* the rest of the tree, for kinds that come in pairs */
	const void *ahead; /* in collect(): what the kind's ahead() has returned; or NULL */
};

/*
 * What a kind may ask about the other descriptions of the tree, in survey and
 * collect. Ids given here are right in a live tree too, where `file` is 0. `out`
 * tells whether the description is left out: complete only when collecting.
 */
struct ckpt_fd_tree {
	uint32_t size; /* sizeof(struct ckpt_fd_tree) */
	/* The first description of that inode; 0: nobody in the tree has it open. */
	uint32_t (*of_inode)(struct ckpt_run *run, dev_t dev, ino_t ino, bool *out);
	/*
	 * A process outside the tree that has this pipe or socket (by the type in st_mode) open,
	 * as text: 1; 0: none; or a negative errno.
	 */
	int (*outside)(struct ckpt_run *run, const struct stat *st, char *buf, size_t size,
		       struct ckpt_error *err);
	/* The description that this descriptor of the engine is a duplicate of; 0: none. */
	uint32_t (*of_fd)(struct ckpt_run *run, int fd, bool *out);
	/*
	 * restore, after `files-installed`: a duplicate in the engine of a saved description,
	 * which the caller closes.
	 */
	int (*get)(struct ckpt_run *run, uint32_t file, struct ckpt_error *err);
};

/* A description being made at restore. */
struct ckpt_fd_slot {
	uint32_t file; /* symbolic id */
	int flags;     /* saved F_GETFL */
	int64_t pos;
	struct ckpt_task *owner;	 /* the task that shall create it if who creates matters */
	const struct ckpt_fd_tree *tree; /* to be kept for a later step, if it is of use */
};

struct ckpt_fd_kind {
	uint32_t size; /* sizeof(struct ckpt_fd_kind) */
	/* Is this one ours? More than one yes is an error naming both. */
	bool (*match)(const struct ckpt_fd_found *f);
	/*
	 * Look from outside and refuse what cannot be saved; may be NULL. 0: it can be
	 * saved; 1: refused with ckpt_refuse(), or lost by permission: it is left out;
	 * negative: failed.
	 */
	int (*survey)(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err);
	/* Put a record that carries f->file. */
	int (*collect)(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err);
	/* Check the record of this file without side effects; may be NULL. */
	int (*plan)(struct ckpt_run *run, uint32_t file, struct ckpt_error *err);
	/*
	 * Open it: returns a descriptor of the engine (closed by fd when all holders
	 * have it) or a negative errno. fd sets status flags and position afterwards
	 * unless `own_flags`/`own_pos` say that the kind has done so.
	 */
	int (*open)(struct ckpt_run *run, const struct ckpt_fd_slot *slot, struct ckpt_error *err);
	bool own_flags, own_pos;
	/*
	 * After all descriptors of all tasks are installed, the memory is mapped and the
	 * threads are made: what needs numbers in a task (epoll targets). Called once a
	 * description; `holder` is the first task that has it, as `num`. May be NULL.
	 */
	int (*finish)(struct ckpt_run *run, uint32_t file, struct ckpt_task *holder, int num,
		      struct ckpt_error *err);
	/* What F_GETFL may give for this kind, which then has no position; 0: anything. */
	uint32_t flags_ok;
	/* It wants to be asked about O_PATH descriptors, which are nothing but a place. */
	bool o_path;
	/*
	 * dump, before the survey: call `found` for each descriptor that is on its way in
	 * this description (SCM_RIGHTS), with a duplicate in the engine that stays the
	 * caller's. What nobody in the tree has open is then saved as all others are, and
	 * found with `of_fd` and `get`. Asked where fdinfo has `scm_fds`; may be NULL.
	 */
	int (*carried)(struct ckpt_run *run, const struct ckpt_fd_found *f,
		       int (*found)(struct ckpt_run *run, void *arg, int fd,
				    struct ckpt_error *err),
		       void *arg, struct ckpt_error *err);
	/*
	 * dump and verify, shortly before collect(): ask the description many questions that
	 * change nothing, for collect() to find the answers in f->ahead; freed by fd with free(3).
	 * Called by several threads at once, so it must keep to `f` (see ckpt_parallel()). Not
	 * called for all: collect() can do without. May be NULL.
	 */
	void *(*ahead)(const struct ckpt_fd_found *f);
	/*
	 * restore, after `threads-made`: what could not be opened before, since it leads to a
	 * thread. Returns a descriptor of the engine, which fd puts wherever what open() gave
	 * stands in for it, and closes; -ENOENT: open() gave the right one. May be NULL.
	 */
	int (*reopen)(struct ckpt_run *run, const struct ckpt_fd_slot *slot,
		      struct ckpt_error *err);
};

#define CKPT_FD_POINT "fd"

/*
 * Files without a name that are open and mapped too: fd saves what they hold, so
 * whoever saves mappings need not. There is a record "fd.memfd" or "fd.deleted" (one
 * message: id, ends, name, size, dev, ino, seals) for each, whose dev and ino are
 * those of the mapping at dump. After `files-installed` the file is to be had with
 * ckpt_get_fd() from any task and number that "fd.table" has for one of its `ends`.
 * Seals are set in the step fd.finish, after `threads-made`: a shared mapping of a file
 * with F_SEAL_WRITE must be made through a read-only description, or the seal fails.
 */

/*
 * dump and verify: what of the tree notices that a file is opened. fd tells of it in its survey
 * (of watches those of inotify), for whoever opens files of the tree by a name; known from the
 * step fd.survey to fd.collect. Since 0.1.
 */
struct ckpt_lease {
	struct stat st; /* of the file */
	bool write;	/* any opening breaks it; or only one for writing */
	/*
	 * A duplicate in the engine of the description that has it, owned by the run; -1: of a
	 * tree that runs. Its position is the program's.
	 */
	int fd;
	int flags;		      /* F_GETFL */
	const struct ckpt_task *task; /* a task that holds it, and under which number */
	int num;
};

/* For the plugin fd; what is given is copied. */
CKPT_API int ckpt_watch_tell(struct ckpt_run *run, dev_t dev, struct ckpt_error *err);
CKPT_API int ckpt_lease_tell(struct ckpt_run *run, const struct ckpt_lease *lease,
			     struct ckpt_error *err);
CKPT_API void ckpt_notices_clear(struct ckpt_run *run);
/* Is anything in that filesystem watched? */
CKPT_API bool ckpt_is_watched(struct ckpt_run *run, dev_t dev);
/* NULL: that were all. */
CKPT_API const struct ckpt_lease *ckpt_lease_at(struct ckpt_run *run, size_t i);

#ifdef __cplusplus
}
#endif
#endif
