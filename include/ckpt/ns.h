/* SPDX-License-Identifier: MIT */
/*
 * Namespaces: which ones the tasks of a run are in, who owns whom, code that runs
 * inside of one, making one. And the extension point "ns", owned by the plugin
 * `ns`: a kind knows what a namespace of one type holds, and saves it in records
 * of its own plugin that carry the namespace's id. Register it with
 *     { CKPT_NS_POINT, "uts", &uts_kind }
 */
#ifndef CKPT_NS_H
#define CKPT_NS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <ckpt/error.h>
#include <ckpt/task.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ckpt_run;

enum ckpt_ns_type {
	CKPT_NS_USER,
	CKPT_NS_PID,
	CKPT_NS_MNT,
	CKPT_NS_IPC,
	CKPT_NS_NET,
	CKPT_NS_UTS,
	CKPT_NS_CGROUP,
	CKPT_NS_TIME,
	CKPT_NS_TYPES
};

/* A namespace. Owned by the run; read-only but for the plugin ns and the kind of its type. */
struct ckpt_ns {
	uint32_t id; /* symbolic, unique over all types; those of ckpt itself are 1 + type */
	enum ckpt_ns_type type;
	bool own;     /* the one that ckpt runs in: never made, never saved */
	bool lost;    /* dump: left out with the user's leave; its members will be in ckpt's own */
	uint64_t ino; /* dump: of the nsfs file */
	int fd;	      /* owned by the run; restore: -1 until it is made */
	struct ckpt_ns
		*owner; /* user namespace; of a user namespace its parent. NULL: out of sight */
	struct ckpt_ns *parent;	  /* of a user or pid namespace. NULL: out of sight */
	struct ckpt_task *member; /* dump: the first task that is in it, or NULL */
	char name[32];		  /* for messages: "uts namespace 4026532177" */
};

/* "uts"; and the flag for setns(2) and unshare(2), CLONE_NEWUTS. */
CKPT_API const char *ckpt_ns_type_name(enum ckpt_ns_type type);
CKPT_API int ckpt_ns_type_flag(enum ckpt_ns_type type);

/* All namespaces known so far, owners and parents before the others. dump: from `seized` on. */
CKPT_API size_t ckpt_ns_count(struct ckpt_run *run);
CKPT_API struct ckpt_ns *ckpt_ns_at(struct ckpt_run *run, size_t i);
CKPT_API struct ckpt_ns *ckpt_ns_by_id(struct ckpt_run *run, uint32_t id); /* or NULL */
CKPT_API struct ckpt_ns *ckpt_ns_own(struct ckpt_run *run, enum ckpt_ns_type type);

/* Is `ns` the user (or pid) namespace `above`, or somewhere below it? */
CKPT_API bool ckpt_ns_below(const struct ckpt_ns *ns, const struct ckpt_ns *above);

/* Where a thread is. Never NULL, but for pid_for_children which has come to its end (dump). */
struct ckpt_ns_seat {
	struct ckpt_ns *ns[CKPT_NS_TYPES];
	struct ckpt_ns *pid_for_children, *time_for_children;
};

/*
 * Where a task's thread is: in a dump as found, in a restore as saved (known from
 * the step ns.plan on, before there are tasks). Of index 0 for a task whose threads
 * are all in the same. Never NULL: who is not known is where ckpt is.
 */
CKPT_API const struct ckpt_ns_seat *ckpt_ns_seat(struct ckpt_run *run, uint32_t task,
						 size_t thread);
/* How many different seats to ask for: 1, or one a thread. */
CKPT_API size_t ckpt_ns_seats(struct ckpt_run *run, uint32_t task);
/* The namespace that the task's leader is in. */
CKPT_API struct ckpt_ns *ckpt_ns_of_task(struct ckpt_run *run, const struct ckpt_task *t,
					 enum ckpt_ns_type type);

/*
 * dump: which one is behind this nsfs descriptor of the engine? One that no task is
 * in (held by a descriptor or a bind mount) is added, with its owners and parents;
 * to be asked before ns.collect.
 */
CKPT_API struct ckpt_ns *ckpt_ns_find(struct ckpt_run *run, int fd, struct ckpt_error *err);

/* ---- code inside namespaces ---------------------------------------------------- */

struct ckpt_ns_place {
	const struct ckpt_ns *ns[CKPT_NS_TYPES]; /* NULL: where ckpt is */
	/*
	 * Take these ids, with all capabilities kept, before the user namespace is
	 * joined: ids as ckpt's own user namespace has them.
	 */
	bool ids;
	uid_t uid;
	gid_t gid;
	/*
	 * Run in a copy of the engine's memory: for a time namespace, which cannot be
	 * joined otherwise. Then nothing but the value, the error and descriptors
	 * come back.
	 */
	bool copy;
};

/*
 * Run fn(arg) in a child that is in these namespaces, the user namespace joined last
 * (with all capabilities there). The engine waits meanwhile; the child shares its
 * memory and its descriptors, so fn may allocate, fill *err and open descriptors
 * for the engine. It has a working directory, root and credentials of its own and
 * must not call exit(3). Dies with ckpt. Returns fn's value.
 */
CKPT_API int ckpt_ns_run(struct ckpt_run *run, const struct ckpt_ns_place *place,
			 int (*fn)(void *arg, struct ckpt_error *err), void *arg,
			 struct ckpt_error *err);

/* ---- restore ------------------------------------------------------------------- */

/*
 * Make the namespace, empty, owned by ns->owner, below ns->parent, and set ns->fd. Not for
 * user namespaces. A pid namespace's parent must have its first process by then.
 */
CKPT_API int ckpt_ns_make(struct ckpt_run *run, struct ckpt_ns *ns, struct ckpt_error *err);

/* What a new user namespace starts with. */
struct ckpt_ns_maps {
	uid_t owner; /* ids of ckpt's user namespace that the parent has too */
	gid_t group;
	bool deny_setgroups;
	/* lines as a member of the parent writes them; NULL or empty: not written */
	const char *uid_map, *gid_map, *projid_map;
};

/* Make a user namespace below ns->parent, and set ns->fd. */
CKPT_API int ckpt_ns_make_user(struct ckpt_run *run, struct ckpt_ns *ns,
			       const struct ckpt_ns_maps *maps, struct ckpt_error *err);

/*
 * Let a skeleton's thread join a namespace that is made; of a pid namespace: let its
 * next child be born there. A user namespace comes after all others: the task must have
 * a single thread, gets all capabilities there, and keeps none over ckpt's.
 */
CKPT_API int ckpt_ns_enter(struct ckpt_run *run, struct ckpt_thread *th, const struct ckpt_ns *ns,
			   struct ckpt_error *err);

/*
 * The task that has this time namespace for its children and is not in it itself: only that
 * one could have made it. 0: there is none, or there are several; `n` counts them.
 */
CKPT_API uint32_t ckpt_ns_maker(struct ckpt_run *run, const struct ckpt_ns *ns, size_t *n);
/*
 * Has the maker to be in the owner for that, or in a time namespace of its own? Then it is
 * made when tasks join their user namespaces, and nothing before that can hold it.
 */
CKPT_API bool ckpt_ns_is_late(struct ckpt_run *run, const struct ckpt_ns *ns);

/* For the plugin ns: what the image says. `ns` is copied; ids ascend. */
CKPT_API struct ckpt_ns *ckpt_ns_add(struct ckpt_run *run, const struct ckpt_ns *ns,
				     struct ckpt_error *err);
CKPT_API int ckpt_ns_place_task(struct ckpt_run *run, uint32_t task,
				const struct ckpt_ns_seat *seats, size_t n, struct ckpt_error *err);

/* ---- the extension point --------------------------------------------------------- */

#define CKPT_NS_NO_ID UINT32_MAX

enum ckpt_ns_id { CKPT_NS_UID, CKPT_NS_GID, CKPT_NS_GROUP /* supplementary: setgroups(2) */ };

/* What namespaces of one type hold. Functions may be NULL. Since 0.1. */
struct ckpt_ns_kind {
	uint32_t size; /* sizeof(struct ckpt_ns_kind) */
	enum ckpt_ns_type type;
	/* The feature of the kind's plugin that switches it off. */
	const char *feature;
	/* dump: refuse what of its content cannot be saved, with ckpt_refuse(). Not for own ones.
	 */
	int (*survey)(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err);
	/* dump and verify: put its records. */
	int (*collect)(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err);
	/* restore: check its records, without side effects. */
	int (*plan)(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err);
	/* NULL: ckpt_ns_make(). Owners and parents are made. */
	int (*make)(struct ckpt_run *run, struct ckpt_ns *ns, struct ckpt_error *err);
	/* All namespaces are made, but for pid namespaces: give it its content. */
	int (*fill)(struct ckpt_run *run, struct ckpt_ns *ns, struct ckpt_error *err);
	/* The tasks are complete and about to be let go: what their making has moved. */
	int (*settle)(struct ckpt_run *run, struct ckpt_ns *ns, struct ckpt_error *err);
	/*
	 * A time namespace that make() has left to the task that has it for its children only.
	 * The task is in the owner, and tasks that are in the new namespace join it after this.
	 */
	int (*make_in)(struct ckpt_run *run, struct ckpt_ns *ns, struct ckpt_task *t,
		       struct ckpt_error *err);
	/*
	 * restore: by which number may a task take an id of ckpt's when it is in that user
	 * namespace? -1: by none. CKPT_NS_NO_ID: 0, if it may take any.
	 */
	int64_t (*id_inside)(struct ckpt_run *run, const struct ckpt_ns *ns, enum ckpt_ns_id what,
			     uint32_t id);
};

#define CKPT_NS_POINT "ns"

#ifdef __cplusplus
}
#endif
#endif
