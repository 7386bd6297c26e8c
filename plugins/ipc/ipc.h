/* SPDX-License-Identifier: MIT */
/* Inside the plugin ipc. */
#ifndef PLUGIN_IPC_H
#define PLUGIN_IPC_H

#include <sys/ipc.h>

#include <ckpt/fd.h>
#include <ckpt/ns.h>
#include <ckpt/plugin.h>
#include <ckpt/vma.h>

#include "ipc.pb-c.h"

enum {
	IPC_REC_NAMESPACE = 1,
	IPC_REC_SEGMENT = 2,
	IPC_REC_ATTACHMENT = 3,
	IPC_REC_SEMAPHORES = 4,
	IPC_REC_QUEUE = 5,
	IPC_REC_UNDO = 6,
	IPC_REC_MQUEUE = 7,
	IPC_REC_DESCRIPTOR = 8,
	IPC_REC_COUNTERS = 9,
};

#define IPC_PAGES	"sysv"
#define IPC_MAX_NUMBER	0x7fffffffU
#define IPC_MAX_MESSAGE (32U << 20)

/* dump: a segment, found before the agents bring theirs. */
struct ipc_segment {
	const struct ckpt_ns *ns;
	int number;
	uint32_t key;
	uid_t uid, cuid;
	gid_t gid, cgid;
	uint32_t mode; /* with SHM_DEST and SHM_LOCKED */
	uint64_t size;
	uint64_t attached; /* mappings in all tasks of the machine */
	uint32_t id;	   /* of its record; 0: none */
	bool huge;
	bool fleeting; /* the end of any attachment would remove it: it is not to be touched */
};

/* dump: a set of semaphores that tasks of the tree may have adjustments for. */
struct ipc_set {
	const struct ckpt_ns *ns;
	int number;
	uint32_t id; /* of its record; 0: in ckpt's own namespace */
	size_t n;
};

/* dump: who used an object last, as far as it is known. */
struct ipc_users {
	const struct ckpt_task *inside;
	int outside; /* a living process that is not of the tree */
};

/* dump: semaphores or a queue of the tree's in ckpt's own namespace. */
struct ipc_own {
	bool queue, lost; /* lost: refused, or left out with the user's leave */
	int number;
};

/* restore: what ckpt's own namespace has in the place of an object. */
struct ipc_found {
	bool there, same;
	int user; /* a living process */
	bool key_taken, place_taken;
};

struct ipc_state {
	size_t looked;		      /* at so many namespaces */
	struct ipc_segment *segments; /* by namespace, then by place */
	size_t n_segments;
	struct ipc_set *sets;
	size_t n_sets;
	struct ipc_own *own;
	size_t n_own;
	struct ipc_mqueues *roots; /* posix.h */
	size_t n_roots;
	bool own_root; /* ckpt's own namespace is among them */
	struct ipc_mqueue **mqueues;
	size_t n_mqueues;
	uint32_t n_records;
	struct ckpt_pages *pages; /* made with the first segment */
	/* restore */
	bool *made;		   /* by record: to be removed if the restore fails */
	bool *made_objects;	   /* the same of semaphores, then of queues */
	struct ipc_remade *remade; /* POSIX queues, by record */
	size_t n_remade;
};

struct ipc_state *ipc_state(struct ckpt_run *run, struct ckpt_error *err);
void ipc_state_free(void *state);

/* Run fn(arg) in an ipc namespace, with ckpt's own privileges. */
int ipc_in(struct ckpt_run *run, const struct ckpt_ns *ns,
	   int (*fn)(void *arg, struct ckpt_error *err), void *arg, struct ckpt_error *err);
void ipc_fill_object(Ckpt__Ipc__Object *o, const struct ckpt_ns *ns, int number,
		     const struct ipc_perm *p);
/*
 * In a namespace: let the next object of that kind ("shm", "sem", "msg") have this
 * number, and be created by these ids; afterwards, be who we were. One with another
 * number is removed.
 */
int ipc_begin(const char *kind, const Ckpt__Ipc__Object *o, struct ckpt_error *err);
int ipc_end(const char *kind, const Ckpt__Ipc__Object *o, int number, struct ckpt_error *err);

/* segment.c */
int ipc_look(struct ckpt_run *run, struct ckpt_error *err);
struct ipc_segment *ipc_find(struct ipc_state *st, const struct ckpt_ns *ns, int number);
int ipc_put_segment(struct ckpt_run *run, struct ipc_segment *s, struct ckpt_error *err);
int ipc_put_segments(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err);
int ipc_make_segment(struct ckpt_run *run, const Ckpt__Ipc__Segment *rec, struct ckpt_error *err);
/* Mark it for removal, if it was. */
int ipc_settle_segment(struct ckpt_run *run, const Ckpt__Ipc__Segment *rec, struct ckpt_error *err);
int ipc_plan_own(struct ckpt_run *run, const Ckpt__Ipc__Segment *rec, struct ckpt_error *err);
int ipc_make_own(struct ckpt_run *run, struct ckpt_error *err);
void ipc_unmake_own(struct ckpt_run *run);
int ipc_settle_own(struct ckpt_run *run, struct ckpt_error *err);

/* semaphore.c */
int ipc_count_semaphores(struct ckpt_run *run, const struct ckpt_ns *ns, size_t *n,
			 struct ckpt_error *err);
int ipc_list_own_sets(struct ckpt_run *run, struct ckpt_error *err);
/* The values of all of its semaphores; -EINVAL or -EIDRM: it has gone. */
int ipc_read_set(struct ckpt_run *run, const struct ipc_set *set, unsigned short *values,
		 struct ckpt_error *err);
int ipc_put_semaphores(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err);
int ipc_make_semaphores(struct ckpt_run *run, const Ckpt__Ipc__Semaphores *rec,
			struct ckpt_error *err);

int ipc_survey_own_sets(struct ckpt_run *run, struct ckpt_error *err);
int ipc_plan_own_set(struct ckpt_run *run, const Ckpt__Ipc__Semaphores *rec);
int ipc_make_own_set(struct ckpt_run *run, const Ckpt__Ipc__Semaphores *rec, bool *made,
		     struct ckpt_error *err);

/* own.c */
/* The id of the task, 0 for others than living ones of the tree. */
uint32_t ipc_user(struct ckpt_run *run, int pid);
bool ipc_lives(int pid);
void ipc_note_user(struct ckpt_run *run, struct ipc_users *u, int pid);
int ipc_judge(struct ckpt_run *run, const struct ipc_users *u, bool queue, int number,
	      struct ckpt_error *err);
/* NULL: it is not the tree's. */
const struct ipc_own *ipc_find_own(const struct ipc_state *st, bool queue, int number);
bool ipc_is_saved(const struct ipc_state *st, const struct ckpt_ns *ns, bool queue, int number);
int ipc_survey_own(struct ckpt_run *run, struct ckpt_error *err);
int ipc_put_own(struct ckpt_run *run, struct ckpt_error *err);
int ipc_plan_object(struct ckpt_run *run, const Ckpt__Ipc__Object *o, const char *what,
		    const struct ipc_found *f);
int ipc_make_own_objects(struct ckpt_run *run, struct ckpt_error *err);
void ipc_unmake_own_objects(struct ckpt_run *run);
int ipc_make_users(struct ckpt_run *run, struct ckpt_error *err);

/* attach.c */
/* Is it as long as the mapping that mem has recorded and kept a place for? */
bool ipc_attachment_fits(struct ckpt_run *run, const Ckpt__Ipc__Attachment *a);

/* undo.c */
int ipc_collect_undo(struct ckpt_run *run, struct ckpt_error *err);
int ipc_plan_undo(struct ckpt_run *run, struct ckpt_error *err);
int ipc_make_undo(struct ckpt_run *run, struct ckpt_error *err);

/* queue.c */
int ipc_count_queues(struct ckpt_run *run, const struct ckpt_ns *ns, size_t *n,
		     struct ckpt_error *err);
int ipc_put_queues(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err);
int ipc_make_queue(struct ckpt_run *run, const Ckpt__Ipc__Queue *rec, struct ckpt_error *err);
int ipc_survey_own_queues(struct ckpt_run *run, struct ckpt_error *err);
int ipc_plan_own_queue(struct ckpt_run *run, const Ckpt__Ipc__Queue *rec);
int ipc_make_own_queue(struct ckpt_run *run, const Ckpt__Ipc__Queue *rec, bool *made,
		       struct ckpt_error *err);

/* posix.c, mqueue.c: POSIX message queues */
int ipc_look_for_mqueues(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err);
int ipc_survey_mqueues(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err);
int ipc_put_mqueues(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err);
int ipc_plan_mqueues(struct ckpt_run *run, struct ckpt_error *err);
int ipc_make_mqueues(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err);
/* Unlink those that were. */
int ipc_settle_mqueues(struct ckpt_run *run, struct ckpt_error *err);
void ipc_unmake_mqueues(struct ckpt_run *run);
void ipc_free_mqueues(struct ipc_state *st);

/* setting.c */
/* In a namespace: do its segments go as soon as nobody has them attached? */
bool ipc_rmid_forced(void);
int ipc_put_namespace(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err);
bool ipc_setting_known(const char *name);
/* All limits as high as they were or are, or (final) as they were. */
int ipc_set(struct ckpt_run *run, const struct ckpt_ns *ns, bool final, struct ckpt_error *err);

/* counter.c */
int ipc_put_counters(struct ckpt_run *run, struct ckpt_error *err);
int ipc_plan_counters(struct ckpt_run *run, struct ckpt_error *err);
/* Before the namespace has any objects. */
int ipc_set_counters(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err);
/* An object that did not come as asked for (-1: none): nobody else is to get its number. */
void ipc_drop(const char *kind, int number);

/* plan.c */
int ipc_plan(struct ckpt_run *run, struct ckpt_error *err);

extern const struct ckpt_vma_kind ipc_mapping;
extern const struct ckpt_fd_kind ipc_mqueue_kind;
extern const struct ckpt_ns_kind ipc_kind;

#endif
