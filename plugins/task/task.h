/* SPDX-License-Identifier: MIT */
/* Inside the plugin task. */
#ifndef PLUGIN_TASK_H
#define PLUGIN_TASK_H

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/resource.h>

#include <ckpt/nodes.h>
#include <ckpt/pid.h>
#include <ckpt/plugin.h>

#include "task.pb-c.h"

enum { TASK_REC_SAVED = 1, TASK_REC_THREAD = 2, TASK_REC_PROCESS = 3 };

/* The features, as indexes into the table and bits of masks. */
enum task_feature {
	TASK_XSTATE,
	TASK_ACTIONS,
	TASK_PENDING,
	TASK_ALTSTACK,
	TASK_RSEQ,
	TASK_ROBUST,
	TASK_CLEAR_TID,
	TASK_ITIMERS,
	TASK_TIMERS,
	TASK_COMM,
	TASK_CREDS,
	TASK_NNP,
	TASK_DUMPABLE,
	TASK_PDEATH,
	TASK_NICE,
	TASK_AUTOGROUP,
	TASK_SCHED,
	TASK_AFFINITY,
	TASK_IOPRIO,
	TASK_OOM,
	TASK_LIMITS,
	TASK_UMASK,
	TASK_CWD,
	TASK_REMOVED_CWD,
	TASK_SHARED_FS,
	TASK_THREAD_FS,
	TASK_PERSONALITY,
	TASK_TIMERSLACK,
	TASK_MCE_KILL,
	TASK_THP,
	TASK_SPECULATION,
	TASK_COREDUMP,
	TASK_STOPPED,
	TASK_MEMBARRIER,
	TASK_LDT,
	TASK_NUMA,
	TASK_N_FEATURES
};
extern const struct ckpt_feature task_features[TASK_N_FEATURES + 1];

#define TASK_N_SIGNALS 64
#define TASK_N_LIMITS  16

/* Kernel structures that libc has no type for. */
struct task_sigaction {
	uint64_t handler, flags, restorer, mask;
};
struct task_stack {
	uint64_t sp;
	uint32_t flags, pad;
	uint64_t size;
};
struct task_rseq {
	uint64_t address;
	uint32_t size, signature, flags, pad;
};
struct task_sched_attr {
	uint32_t size, policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime, deadline, period;
	uint32_t util_min, util_max;
};
#ifndef SCHED_DEADLINE
#define SCHED_DEADLINE 6
#endif
#define TASK_SCHED_EXT 7

/* PR_THP_DISABLE_EXCEPT_ADVISED, Linux 6.18 */
#define TASK_THP_FLAGS 2

/* What only ptrace shows, of one thread: taken before the agents go in. */
struct task_peek {
	pid_t tid;
	struct task_rseq rseq;
	uint32_t restarted;
	siginfo_t *own, *shared; /* shared: with the leader only */
	size_t n_own, n_shared;
	bool stop; /* a SIGSTOP is on its way: it cannot be blocked, so it cannot be queued again */
};

struct task_held;

struct task_state {
	struct task_peek *peeks;
	size_t n_peeks;
	uint64_t saved; /* restore: mask of features in the image */
	/* dump, by task: the first that it shares cwd, root and umask with; 0: none */
	uint32_t *fs_first;
	/* dump: threads that have these for themselves, by tid; NULL: not asked yet */
	pid_t *own_place;
	size_t n_own_place;
	/* dump and verify: records that wait for what comes late */
	struct task_held *held;
	size_t n_held, cap_held;
	bool hold_threads;
	/* ckpt's own, once they were needed */
	struct task_creds *mine;
	struct task_sched *own_sched;
	uint32_t own_personality;
	struct task_born *born; /* restore */
	unsigned xstate_size;	/* of this processor; 0: not asked yet */
};

/* The run's state, made on first use; NULL if out of memory. */
struct task_state *task_state(struct ckpt_run *run, struct ckpt_error *err);
void task_state_free(void *state);
const struct task_peek *task_peeked(const struct task_state *st, pid_t tid);
bool task_saved(const struct task_state *st, enum task_feature f);

/*
 * Shall this piece of state, which the object has, go into the image? Refuses by
 * name if its feature is off.
 */
bool task_want(struct ckpt_run *run, enum task_feature f, const struct ckpt_task *t,
	       const char *object);
/* An error that only says that the task has gone, in a tree that is not stopped. */
bool task_gone(const struct ckpt_run *run, int r);
void task_path(char *buf, size_t size, const struct ckpt_thread *th, const char *what);
int task_signals(siginfo_t *infos, size_t n, Ckpt__Task__Signal **recs, Ckpt__Task__Signal ***list,
		 struct ckpt_error *err);
int task_refuse(struct ckpt_run *run, const struct ckpt_task *t, const char *feature,
		const char *object, const char *reason, const char *hint);

/* ---- pieces, each with its way in and out ------------------------------------- */

/* credentials.c */
struct task_creds {
	Ckpt__Task__Credentials msg;
	uint32_t uids[4], gids[4];
	uint32_t *groups;
};
int task_creds_read(const char *status, uint32_t securebits, struct task_creds *out,
		    struct ckpt_error *err);
void task_creds_free(struct task_creds *c);
/* Would a task of this restore have the same without being told? */
bool task_creds_is_own(struct task_state *st, const struct task_creds *c);
bool task_creds_same(const Ckpt__Task__Credentials *a, const Ckpt__Task__Credentials *b);
int task_creds_plan(struct ckpt_run *run, struct task_state *st, const Ckpt__Task__Thread *rec,
		    struct ckpt_error *err);
/* Is it a task of a user namespace below ckpt's: does another set of privileges count for it? */
bool task_is_nested(struct ckpt_run *run, uint32_t id);
/* The ids, with all capabilities kept: what has to be done before a user namespace is joined. */
void task_ids_script(struct ckpt_script *s, const Ckpt__Task__Credentials *c);
struct task_inside;
/* All of it; `inside`: in its user namespace, and with its main thread's ids. NULL: in ckpt's. */
void task_creds_script(struct task_state *st, struct ckpt_script *s,
		       const Ckpt__Task__Credentials *c, const struct task_inside *inside);
bool task_ids_same(const Ckpt__Task__Credentials *a, const Ckpt__Task__Credentials *b);

/* inside.c: ids that a thread takes when its process is in a user namespace of its own */
struct task_inside {
	/* as numbers there, real, effective, saved, filesystem; -1: those of the main thread */
	int64_t uids[4], gids[4];
	uint32_t *groups; /* NULL: those of the main thread */
	size_t n_groups;
};
/* 1: not to be had there. */
int task_inside_of(struct ckpt_run *run, const Ckpt__Task__Thread *rec, struct task_inside *out,
		   struct ckpt_error *err);
void task_inside_free(struct task_inside *in);
int task_inside_plan(struct ckpt_run *run, const Ckpt__Task__Thread *rec, struct ckpt_error *err);
void task_inside_script(struct ckpt_script *s, const struct task_inside *in);

/* label.c */
#define TASK_LABEL_SIZE 4096
void task_label_own(char *buf, size_t size);
int task_labels_survey(struct ckpt_run *run, struct ckpt_error *err);
void task_label_plan(struct ckpt_run *run, const Ckpt__Task__Saved *saved);

/* domain.c: Landlock */
struct task_domains {
	struct task_stand_in *list;
	size_t n;
};
/* One operation, whose result is the first answer. */
int task_domain_ask(struct ckpt_script *s);
/* For all threads, before the first one is checked: what it takes goes on meanwhile. */
int task_domain_begin(struct ckpt_run *run, struct task_domains *d, const struct ckpt_thread *th,
		      size_t index, int64_t first_answer, struct ckpt_error *err);
int task_domain_check(struct ckpt_run *run, struct task_domains *d, struct ckpt_thread *th,
		      size_t index, int64_t first_answer, const Ckpt__Task__Credentials *c,
		      struct ckpt_error *err);
void task_domains_free(struct task_domains *d);

/* scheduling.c */
struct task_sched {
	Ckpt__Task__Scheduling msg;
	uint32_t cpus[1024];
	uint32_t util_min, util_max; /* of 1024; both 0: the kernel has no clamps */
};
/* `tid` 0: ckpt's own. */
int task_sched_look(pid_t tid, struct task_sched *out, struct ckpt_error *err);
int task_sched_read(struct ckpt_run *run, const struct ckpt_thread *th, struct task_sched *out,
		    struct ckpt_error *err);
int task_sched_plan(struct ckpt_run *run, struct task_state *st, const Ckpt__Task__Thread *rec,
		    struct ckpt_error *err);
int task_sched_set(const struct task_state *st, pid_t tid, const Ckpt__Task__Scheduling *m,
		   struct ckpt_error *err);

/*
 * autogroup.c: whose processor time is shared out as one, by session. Not saved of the group that
 * ckpt is in itself.
 */
int task_autogroup_read(struct ckpt_run *run, const struct ckpt_task *t, Ckpt__Task__Process *rec,
			struct ckpt_error *err);
int task_autogroup_plan(struct ckpt_run *run, const Ckpt__Task__Process *rec,
			struct ckpt_error *err);
int task_autogroup_set(struct ckpt_run *run, struct ckpt_task *t, const Ckpt__Task__Process *rec,
		       struct ckpt_error *err);

/* limits.c */
int task_limits_read(struct ckpt_run *run, const struct ckpt_task *t, Ckpt__Task__Limit *limits,
		     size_t *n, struct ckpt_error *err);
int task_limits_plan(struct ckpt_run *run, const Ckpt__Task__Process *rec, struct ckpt_error *err);
/* Is it the initial user namespace that we are in: the one that maps everything to itself? */
bool task_in_first_namespace(void);
/* May we raise hard limits and lower oom_score_adj? */
bool task_may_raise(void);
/* Those that differ from what it was born with. */
void task_limits_script(const struct task_state *st, struct ckpt_script *s,
			const Ckpt__Task__Process *rec);
/* From outside, for a task that may not raise its own. */
int task_limits_set(const struct ckpt_task *t, const Ckpt__Task__Process *rec,
		    struct ckpt_error *err);

/*
 * born.c: what the skeletons have of what is to be set. Whoever is to have the same need not
 * be told: of 200 threads each is told a dozen things otherwise.
 */
struct task_born {
	bool creds_known, limits_known, sched_known;
	struct task_creds creds;
	struct rlimit limits[TASK_N_LIMITS]; /* by resource */
	struct task_sched sched;
	long oom_score_adj, coredump_filter; /* LONG_MIN: not known */
	bool policy;			     /* of memory: ckpt's own is not the usual one */
};
int task_born_look(struct ckpt_run *run, struct ckpt_error *err);
void task_born_free(struct task_born *born);
/* Plan: rid ckpt of what skeletons would inherit, or tell. */
void task_born_plain(struct ckpt_run *run);
bool task_born_creds(const struct task_state *st, const Ckpt__Task__Credentials *c);
bool task_born_limit(const struct task_state *st, const Ckpt__Task__Limit *l);
/* But for processors. */
bool task_born_sched(const struct task_state *st, const Ckpt__Task__Scheduling *m);

/* space.c: what the kernel keeps with an address space, beside memory */
struct task_space_asked {
	int registered, tried, ldt; /* operations */
};
void task_space_ask(struct ckpt_script *s, struct task_space_asked *asked);
struct task_segments {
	Ckpt__Task__Segment *entry, **list;
};
void task_segments_free(struct task_segments *s);
int task_space_take(struct ckpt_run *run, const struct ckpt_task *t, const struct ckpt_script *s,
		    const struct task_space_asked *asked, Ckpt__Task__Process *rec,
		    struct task_segments *segments, struct ckpt_error *err);
int task_space_plan(struct ckpt_run *run, const Ckpt__Task__Process *rec, struct ckpt_error *err);

/* policy.c: the memory policy of a thread */
struct task_policy {
	Ckpt__Task__Policy msg;
	uint32_t nodes[CKPT_MAX_NODES];
};
struct task_policy_told {
	uint32_t mode;
	struct ckpt_nodes nodes;
};
/* The operation that asks for it, and what came of it. */
int task_policy_ask(struct ckpt_script *s);
void task_policy_take(const struct ckpt_script *s, int op, struct task_policy_told *out);
void task_policy_read(struct ckpt_run *run, const struct ckpt_thread *th,
		      const struct task_policy_told *told, struct task_policy *p,
		      Ckpt__Task__Thread *rec);
/* Is ckpt's own another one than nearly everybody has? */
bool task_policy_is_odd(void);
int task_policy_plan(struct ckpt_run *run, const Ckpt__Task__Thread *rec, struct ckpt_error *err);
void task_policy_script(const struct task_state *st, struct ckpt_script *s,
			const Ckpt__Task__Thread *rec);

/* due.c: what comes between task.peek and task.collect. CLOCK_MONOTONIC. */
struct task_span {
	int64_t from, to;
};
int64_t task_now(void);
/* Of each process, and of its threads after it. */
int task_hold_process(struct ckpt_run *run, const struct ckpt_thread *leader,
		      const Ckpt__Task__Process *rec, struct task_span asked,
		      struct ckpt_error *err);
int task_hold_thread(struct ckpt_run *run, const struct ckpt_thread *th,
		     const Ckpt__Task__Thread *rec, struct ckpt_error *err);
void task_held_free(struct task_state *st);

/* timers.c; `asked`: when it was asked how much is left */
int task_timers_read(struct ckpt_run *run, const struct ckpt_task *t, Ckpt__Task__PosixTimer **list,
		     size_t *n, struct task_span *asked, struct ckpt_error *err);
int task_timers_plan(struct ckpt_run *run, const Ckpt__Task__Process *rec, struct ckpt_error *err);
int task_timers_set(struct ckpt_run *run, struct ckpt_task *t, const Ckpt__Task__Process *rec,
		    struct ckpt_error *err);

/* place.c: root, working directory, umask */
int task_places_survey(struct ckpt_run *run, struct ckpt_error *err);
/* Fills fs_first. */
int task_places_collect(struct ckpt_run *run, struct ckpt_error *err);
/* Has a thread them for itself? Known from task_places_collect() on. */
bool task_has_own_place(const struct task_state *st, const struct ckpt_thread *th);
struct task_place {
	Ckpt__Task__Place msg;
	Ckpt__Task__Removed removed;
	char cwd[4096];
};
int task_place_read(struct ckpt_run *run, const struct ckpt_thread *th, struct task_place *place,
		    struct ckpt_error *err);
/* Has another plugin put the task where it is to be? */
bool task_place_made(struct ckpt_run *run, uint32_t id);
/* 1: it was removed, and `removed` tells what it was like. */
int task_cwd_read(struct ckpt_run *run, const struct ckpt_thread *th, char *cwd, size_t size,
		  Ckpt__Task__Removed *removed, struct ckpt_error *err);
int task_place_plan(struct ckpt_run *run, const struct task_state *st, uint32_t id,
		    const Ckpt__Task__Place *place, struct ckpt_error *err);
int task_cwd_script(struct ckpt_run *run, struct ckpt_thread *th, struct ckpt_script *s,
		    const char *cwd, const Ckpt__Task__Removed *removed, struct ckpt_error *err);
/* When the script has run: is the thread where it was to go? */
int task_cwd_check(struct ckpt_run *run, const struct task_state *st, const struct ckpt_thread *th,
		   const char *cwd, const Ckpt__Task__Removed *removed, struct ckpt_error *err);
int task_place_script(struct ckpt_run *run, struct ckpt_thread *th, struct ckpt_script *s,
		      const struct task_state *st, const Ckpt__Task__Place *place,
		      struct ckpt_error *err);
extern const struct ckpt_share_kind task_share_fs;

/* seal.c: what a thread may have given up of speculation, in the order of records */
#define TASK_N_SPECULATION 3
extern const unsigned task_speculations[TASK_N_SPECULATION];
/* What has to be set to be told that again; 0: nothing. */
uint32_t task_speculation(size_t which, uint32_t told);

/* plan.c: the tiles of AMX are in no record: who has them is refused, or loses them. */
void task_xstate_without_tiles(uint8_t *xstate, size_t len);

/* restart.c: what a copy must do where the kernel would restart a call of the original */
uint32_t task_restarted(const struct ckpt_thread *th);
bool task_restart_known(uint32_t restarted);
void task_restart(struct user_regs_struct *regs, uint32_t restarted, bool signal);

/* ring.c: the operation that asks for the first one, and what its result means */
int task_ring_ask(struct ckpt_script *s);
int task_ring_check(struct ckpt_run *run, struct ckpt_thread *th, int64_t first,
		    struct ckpt_error *err);

/* hardware.c: what a stopped thread has beside registers is refused */
#define TASK_CS 0x33 /* of 64-bit code */
void task_hardware_look(struct ckpt_run *run, const struct ckpt_thread *th);

/* Between a message and struct user_regs_struct, either way: the fields have the same names. */
#define TASK_COPY_REGS(to, from)                                                           \
	do {                                                                               \
		(to)->r15 = (from)->r15, (to)->r14 = (from)->r14, (to)->r13 = (from)->r13; \
		(to)->r12 = (from)->r12, (to)->rbp = (from)->rbp, (to)->rbx = (from)->rbx; \
		(to)->r11 = (from)->r11, (to)->r10 = (from)->r10, (to)->r9 = (from)->r9;   \
		(to)->r8 = (from)->r8, (to)->rax = (from)->rax, (to)->rcx = (from)->rcx;   \
		(to)->rdx = (from)->rdx, (to)->rsi = (from)->rsi, (to)->rdi = (from)->rdi; \
		(to)->orig_rax = (from)->orig_rax, (to)->rip = (from)->rip;                \
		(to)->cs = (from)->cs, (to)->eflags = (from)->eflags;                      \
		(to)->rsp = (from)->rsp, (to)->ss = (from)->ss;                            \
		(to)->fs_base = (from)->fs_base, (to)->gs_base = (from)->gs_base;          \
		(to)->ds = (from)->ds, (to)->es = (from)->es, (to)->fs = (from)->fs;       \
		(to)->gs = (from)->gs;                                                     \
	} while (0)

/* ---- steps ------------------------------------------------------------------------ */

int task_survey(struct ckpt_run *run, struct ckpt_error *err);
int task_peek(struct ckpt_run *run, struct ckpt_error *err);
/* Append what is queued for a stopped thread, or with PTRACE_PEEKSIGINFO_SHARED its process. */
int task_queue(const struct ckpt_thread *th, uint32_t flags, siginfo_t **out, size_t *n,
	       struct ckpt_error *err);
int task_due(struct ckpt_run *run, struct ckpt_error *err);
int task_collect(struct ckpt_run *run, struct ckpt_error *err);
int task_collect_process(struct ckpt_run *run, const struct ckpt_task *t, struct ckpt_error *err);
int task_plan(struct ckpt_run *run, struct ckpt_error *err);
int task_ids(struct ckpt_run *run, struct ckpt_error *err);
int task_seal_space(struct ckpt_run *run, struct ckpt_error *err);
int task_seal_priority(struct ckpt_run *run, struct ckpt_error *err);
int task_seal_process(struct ckpt_run *run, struct ckpt_error *err);
int task_seal_thread(struct ckpt_run *run, struct ckpt_error *err);
int task_seal_creds(struct ckpt_run *run, struct ckpt_error *err);
int task_seal_final(struct ckpt_run *run, struct ckpt_error *err);

#define TASK_BAD(err, ...) ckpt_fail_as((err), CKPT_EXIT_IMAGE, EBADMSG, __VA_ARGS__)

#endif
