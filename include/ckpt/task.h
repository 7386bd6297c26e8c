/* SPDX-License-Identifier: MIT */
/*
 * Tasks: thread groups and their threads, in a dump the ones that are stopped,
 * in a restore the ones being made. Owned by the run; pointers stay valid until
 * its end. Fields are read-only for plugins; structures grow at their end.
 */
#ifndef CKPT_TASK_H
#define CKPT_TASK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/user.h>

#include <ckpt/error.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ckpt_run;
struct ckpt_agent; /* the agent's seat in a thread; opaque */

struct ckpt_thread {
	struct ckpt_task *task;
	pid_t tid; /* in the pid namespace of ckpt */
	bool dead; /* the main thread of a task whose others go on: its `ended` */
	/*
	 * dump: the registers at which the thread goes on, after the roll-back
	 * of calls that our own stop interrupted.
	 */
	struct user_regs_struct regs;
	uint64_t sigmask;
	struct ckpt_agent *agent;
};

struct ckpt_task {
	uint32_t id;		  /* symbolic: 1 is the root, then pre-order, children by pid */
	pid_t pid;		  /* in the pid namespace of ckpt */
	struct ckpt_task *parent; /* NULL for the root */
	char comm[16];
	bool zombie;
	bool stopped; /* by a job-control signal (SIGSTOP, SIGTSTP) when it was seized */
	int pidfd;    /* owned by the run; -1 for a zombie */
	int procfd;   /* directory /proc/PID; owned by the run */
	struct ckpt_thread **threads; /* [0] is the leader */
	size_t n_threads;
	/*
	 * A main thread that ended before the others, else NULL. It has the task's number and
	 * nothing else of it any more: it is not among `threads`, the first of which stands for
	 * the task, and whose pidfd (PIDFD_THREAD) and directory /proc/TID those above are. In
	 * texts of /proc NSpid is that thread's then, NStgid the task's.
	 */
	struct ckpt_thread *ended;
};

/* What to tell the kernel of where it wants to look at what the threads of a task have. */
static inline pid_t ckpt_task_tid(const struct ckpt_task *t)
{
	return t->n_threads ? t->threads[0]->tid : t->pid;
}

/* How threads of a task are called in images: 0 is the main thread, the others follow. */
static inline size_t ckpt_thread_number(const struct ckpt_task *t, size_t index)
{
	return index + (t->ended != NULL);
}

/* NULL: it has no such thread. */
static inline struct ckpt_thread *ckpt_thread_at(const struct ckpt_task *t, size_t number)
{
	size_t index = number - (t->ended != NULL);

	if (t->ended && !number)
		return t->ended;
	return index < t->n_threads ? t->threads[index] : NULL;
}

CKPT_API size_t ckpt_task_count(struct ckpt_run *run);
CKPT_API struct ckpt_task *ckpt_task_at(struct ckpt_run *run, size_t i);
CKPT_API struct ckpt_task *ckpt_task_by_id(struct ckpt_run *run, uint32_t id); /* or NULL */
CKPT_API struct ckpt_task *ckpt_task_by_pid(struct ckpt_run *run, pid_t pid);  /* or NULL */

/* The root's pid as given with -t; in restores 0. */
CKPT_API pid_t ckpt_root_pid(struct ckpt_run *run);

/* ---- /proc readers ------------------------------------------------------- */

/*
 * Read a file below /proc/PID ("status", "task/12/stat", "fdinfo/3") whole, NUL
 * terminated. The caller frees *out. Returns the length or a negative errno.
 */
CKPT_API ssize_t ckpt_proc_read(const struct ckpt_task *t, const char *path, char **out,
				struct ckpt_error *err);

/*
 * Is its program one of 64 bits? 1; 0: it is not; or a negative errno. The kernel's description of
 * it tells, as the program itself is not opened: its tree may watch it. Since 0.1.
 */
CKPT_API int ckpt_proc_is_64bit(const struct ckpt_task *t, struct ckpt_error *err);

/* readlink below /proc/PID, NUL terminated; returns the length or a negative errno. */
CKPT_API ssize_t ckpt_proc_link(const struct ckpt_task *t, const char *path, char *buf, size_t size,
				struct ckpt_error *err);

/* The value of a "Key:\tvalue" line in text read so, copied trimmed; -ENOENT if absent. */
CKPT_API int ckpt_proc_field(const char *text, const char *key, char *buf, size_t size);

/* The n-th field of a /proc/PID/stat text as proc(5) counts (pid is 1, comm 2). -ENOENT, -EINVAL.
 */
CKPT_API int ckpt_proc_stat_field(const char *text, unsigned n, int64_t *value);

/*
 * Kill a child of ckpt's own and wait for its end. One that cannot be killed is not waited for:
 * the errno of kill(2), negative.
 */
CKPT_API int ckpt_end_child(pid_t pid);

/* Open the task's /proc/PID/mem, read-write; the caller closes it. */
CKPT_API int ckpt_open_mem(const struct ckpt_task *t, struct ckpt_error *err);

/*
 * A duplicate of the task's descriptor `num` in the engine (pidfd_getfd(2));
 * the caller closes it.
 */
CKPT_API int ckpt_get_fd(const struct ckpt_task *t, int num, struct ckpt_error *err);

/* kcmp(2) order of two descriptors' open file descriptions: 0 equal, 1 less, 2 greater. */
CKPT_API int ckpt_kcmp_file(const struct ckpt_task *a, int fda, const struct ckpt_task *b, int fdb);

/* kcmp(2) of whole tables: type is KCMP_FILES, KCMP_FS, KCMP_VM, KCMP_SIGHAND, KCMP_IO. */
CKPT_API int ckpt_kcmp(const struct ckpt_task *a, const struct ckpt_task *b, int type);

/*
 * Descriptors of a process, of the tree or not: `fn` is called for each of each table that it has,
 * which are several if threads have their own. `base` is /proc/PID, or /proc/PID/task/TID: the
 * descriptor is base/fd/NUM. Ends with fn's first value other than 0, else 0; 0 too if the process
 * has gone meanwhile.
 */
struct ckpt_table_look {
	int (*fn)(void *arg, pid_t pid, pid_t tid, int base, const char *num);
	void *arg;
};

CKPT_API int ckpt_tables_look(const struct ckpt_table_look *look, pid_t pid);

/*
 * dump, verify: run `fn` in a child that has something of the tree's in hand for a moment (input
 * that it takes out and puts back). The child goes on if the engine is killed, and the tree does
 * not go on until it has ended, or ten seconds have passed. `fn` returns 0 or a negative errno,
 * allocates nothing, and says what it finds in memory that is mapped MAP_SHARED. `what` is for
 * messages: "a terminal's queues".
 */
CKPT_API int ckpt_run_holding(struct ckpt_run *run, int (*fn)(void *arg), void *arg,
			      const char *what, struct ckpt_error *err);

/* ---- registers beyond the general ones ------------------------------------ */

/*
 * dump: the extended state (NT_X86_XSTATE) of a stopped thread; caller frees.
 * Returns the size.
 */
CKPT_API ssize_t ckpt_get_xstate(const struct ckpt_thread *th, void **out, struct ckpt_error *err);

/* How many threads a restore can make, tasks that are there for a moment only included. */
#define CKPT_MAX_THREADS 16384

/* ---- restore: making tasks ------------------------------------------------ */

/* What a new task, or a new thread of one, is to be. */
struct ckpt_birth {
	uint64_t clone_flags; /* CLONE_NEWPID, CLONE_FILES, CLONE_FS ... beside those implied */
	const pid_t *set_tid; /* innermost pid namespace first; all levels down to ckpt's own */
	size_t n_set_tid;
	int exit_signal; /* SIGCHLD, or what the original had */
	/*
	 * Of a thread: reap this dead child just before, whose number is to be had then;
	 * 0: none.
	 */
	pid_t reap;
	/* set_tid has the numbers of all levels: ckpt knows who is born without looking for him */
	bool known;
};

/*
 * Make the root task: a skeleton, nothing but the agent and an arena, stopped
 * under the engine and killed if the engine dies. It is a child of ckpt.
 * `id` is the task's id in the image.
 */
CKPT_API int ckpt_make_root(struct ckpt_run *run, uint32_t id, const struct ckpt_birth *b,
			    struct ckpt_task **out, struct ckpt_error *err);

/* Make a skeleton as child of `parent`, cloned by it. */
CKPT_API int ckpt_make_child(struct ckpt_run *run, struct ckpt_task *parent, uint32_t id,
			     const struct ckpt_birth *b, struct ckpt_task **out,
			     struct ckpt_error *err);

/* Make a further thread of `task` (all sharing flags of a thread are implied). */
CKPT_API int ckpt_make_thread(struct ckpt_run *run, struct ckpt_task *task,
			      const struct ckpt_birth *b, struct ckpt_thread **out,
			      struct ckpt_error *err);

/* Make `n` further threads of `task` at once. All numbers are `known`, none is to be reaped. */
CKPT_API int ckpt_make_threads(struct ckpt_run *run, struct ckpt_task *task,
			       const struct ckpt_birth *b, size_t n, struct ckpt_error *err);

/*
 * Give a task its own copy of what it was born to share with its parent: CLONE_FILES
 * and CLONE_FS of clone_flags.
 */
CKPT_API int ckpt_unshare(struct ckpt_run *run, struct ckpt_task *task, uint64_t flags,
			  struct ckpt_error *err);

/* How many tasks have its descriptor table, itself included. */
CKPT_API size_t ckpt_table_users(const struct ckpt_task *task);

/* Let the thread made last of its task end and be forgotten: it has not got the ids it should. */
CKPT_API int ckpt_end_thread(struct ckpt_run *run, struct ckpt_thread *th, struct ckpt_error *err);

/*
 * Let the main thread of a task end alone, with that status and signal mask, while the others go
 * on: it becomes the task's `ended`. They are in the order in which they were made.
 */
CKPT_API int ckpt_end_main(struct ckpt_run *run, struct ckpt_task *task, int status,
			   uint64_t sigmask, struct ckpt_error *err);

/*
 * Let a skeleton end: it gets status `status` (as wait(2) encodes it: exit code
 * or killing signal) and stays a zombie until its parent reaps it. Returns when
 * it is dead. `status` with the core bit set is an error (-EOPNOTSUPP).
 */
CKPT_API int ckpt_end_task(struct ckpt_run *run, struct ckpt_task *task, int status,
			   struct ckpt_error *err);

/*
 * A range of addresses that the agent occupies in every task of this restore,
 * chosen by ckpt_reserve(). Known after `planned`.
 */
CKPT_API void ckpt_agent_range(struct ckpt_run *run, uint64_t *start, uint64_t *end);

/*
 * In a planning step: the agent must keep out of this range, since some task
 * has a mapping there.
 */
CKPT_API int ckpt_reserve(struct ckpt_run *run, uint64_t start, uint64_t end,
			  struct ckpt_error *err);

/* In a planning step: descriptor numbers up to `num` are used by some task. */
CKPT_API void ckpt_reserve_fd(struct ckpt_run *run, int num);

/*
 * Install engine descriptors in a task: fds[i] becomes number targets[i], with
 * FD_CLOEXEC if cloexec[i]. The engine's own stay open; the script is posted, so
 * that they have to until ckpt_script_settle(). targets must be distinct and not
 * in use in the task.
 */
CKPT_API int ckpt_install_fds(struct ckpt_run *run, struct ckpt_task *task, const int *fds,
			      const int *targets, const bool *cloexec, size_t n,
			      struct ckpt_error *err);

/*
 * Lend an engine descriptor to a task at a number above all restored ones;
 * returns the number. Take it back with ckpt_return_fd() before `running`.
 */
CKPT_API int ckpt_lend_fd(struct ckpt_run *run, struct ckpt_task *task, int fd,
			  struct ckpt_error *err);
CKPT_API int ckpt_return_fd(struct ckpt_run *run, struct ckpt_task *task, int num,
			    struct ckpt_error *err);

/*
 * The number at which each task holds a pidfd of ckpt until `running`: a script fetches
 * ckpt's descriptors through it with pidfd_getfd(2), as long as its task has not joined a
 * user namespace. It is above all restored ones. The next number is taken too; those
 * after it are free but for what is lent. Since 0.1.
 */
CKPT_API int ckpt_engine_fd(const struct ckpt_run *run);

/*
 * The state a thread starts from when it is let go, applied by the engine last,
 * after the agent was unmapped: general registers, extended state
 * (NT_X86_XSTATE), signal mask. Copied. `stop_signal`: if not 0, the task is
 * left stopped by that signal instead of running (set on the leader).
 */
struct ckpt_final {
	struct user_regs_struct regs;
	uint64_t sigmask;
	const void *xstate;
	size_t xstate_len;
	int stop_signal;
};
CKPT_API int ckpt_set_final(struct ckpt_thread *th, const struct ckpt_final *f,
			    struct ckpt_error *err);

#ifdef __cplusplus
}
#endif
#endif
