/* SPDX-License-Identifier: MIT */
/* The process layer's own view of the tasks of one run. */
#ifndef CKPT_PROCESS_SET_H
#define CKPT_PROCESS_SET_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <ckpt/plugin.h>
#include <ckpt/trace.h>

#include "agent/agent.h"
#include "process/flight.h"
#include "process/frame.h"
#include "process/keeper.h"
#include "process/mounts.h"
#include "process/notice.h"
#include "process/process.h"
#include "process/quiet.h"
#include "process/rescue.h"
#include "process/segment.h"

/* Where a thread is, as far as we know. */
enum thread_state {
	THREAD_FREE,	/* not ours (scanned only, or let go) */
	THREAD_SEIZED,	/* its stop is under way */
	THREAD_CAUGHT,	/* in a ptrace stop that is not yet made invisible */
	THREAD_STOPPED, /* in a ptrace stop, its registers its own */
	THREAD_SEATED,	/* running the agent's loop */
	THREAD_GONE,	/* exited under us */
};

/* A file of /proc that does not change while nothing happens to the task. */
struct kept_text {
	char *text; /* owned */
	size_t len;
	unsigned phase; /* of the set, when it was read */
};

struct ckpt_agent {
	struct ckpt_thread *th;
	struct proc_set *ps;
	enum thread_state state;
	struct keeper *tracer;	 /* NULL: the engine itself */
	bool filtered;		 /* it has a seccomp filter, when last asked */
	bool leaving;		 /* interrupted, to be given its registers */
	bool stop_pending;	 /* a SIGSTOP came while it sat in the agent: send it again later */
	struct segment *seg;	 /* while seated */
	struct agent_seat *seat; /* engine's address; while seated */
	uint64_t seat_addr;	 /* task's address of it */
	uint32_t seq;
	uint64_t posted;	      /* when, of that number: now_us() */
	struct rescue_thread *rescue; /* what the keeper knows of it; NULL: nothing */
	uint64_t word_at, word;	      /* what the way in overwrote, below the red zone */
	void *xstate;		      /* dump: its own, read before the agent came; owned */
	size_t xstate_len;
	size_t frame_len;		 /* the part of it that a signal frame holds */
	struct ckpt_final *final;	 /* restore; owned */
	struct kept_text status, cgroup; /* dump: below /proc/PID/task/TID */
};

/* restore: a descriptor table, of one task or of several that share it. */
struct fd_table {
	uint8_t *used; /* one byte a descriptor number, up to the highest of any task */
	size_t users;
	bool parted; /* the engine's pidfd in it is closed again */
};

/* A task with what only this layer knows. */
struct task_node {
	struct ckpt_task pub; /* first member: a ckpt_task is a task_node */
	struct segment *seg;  /* dump: the task's own; restore: the set's */
	struct kept_text stat;
	bool main_over; /* dump: when it was found its main thread had ended, others had not */
	pid_t ppid;	/* when it was found */
	struct proc_set *ps;
	struct gadgets gadgets;	  /* dump */
	int mem;		  /* dump: /proc/PID/mem while agents are in, else -1 */
	struct ckpt_agent *first; /* dump: the thread that enters first and leaves last */
	/* while they leave */
	struct ckpt_agent *last; /* the thread that unmaps the segment */
	uint8_t *below;		 /* what its stack held where its way out is built; owned */
	uint64_t below_at;
	ssize_t below_len;
	bool stuck; /* a thread could not be taken out */
	bool lost;  /* the keeper has died, and its threads have been taken out at once */
	/*
	 * Its agents are the keeper's to take out (rescue.c). The less time they are on their way
	 * the better: one such task after the other.
	 */
	bool guarded;
	/* restore */
	struct fd_table *files;
	bool ended; /* a zombie now */
	bool apart; /* it has joined another user namespace, and lost its power over the engine */
};

struct ns_table;  /* ns.h */
struct stop_last; /* engine/run.h */

struct range {
	uint64_t start, end;
};

struct proc_set {
	struct ckpt_run *run;
	struct task_node **tasks;
	size_t n, cap;
	bool seized;
	const struct stop_last *last; /* dump: not to be stopped yet; NULL: none, or not any more */
	bool left;		      /* one of these is there */
	bool keep_all; /* dump: the keeper traces all threads, for we may not come back from a look
			*/
	/*
	 * dump: counts what we do to the stopped tree; 0 while it is not stopped. Within one phase
	 * texts of /proc stay what they are, but for pending signals.
	 */
	unsigned phase;
	struct ns_table *ns;
	struct mount_tables mounts;
	struct notices notices;
	struct quiet_group *quiet; /* dump: once something was opened unnoticed */
	struct keeper keeper;	   /* dump: started before the tree stands still */
	struct segments segments;
	struct gadgets gadgets; /* dump: of the task before */
	struct xstate_ends xstate_ends;
	struct flights flights; /* scripts under way */
	bool restoring;
	/* restore */
	struct range *reserved;
	size_t n_reserved, cap_reserved;
	struct segment *seg;
	struct user_regs_struct born; /* what a skeleton has of registers, but for the agent's */
	uint64_t syscall_at;	      /* an instruction in the text of the task before */
	int max_fd;		      /* highest descriptor number of any task */
	int self_pidfd; /* pidfd of the engine: skeletons fetch descriptors through it */
	int channel[2]; /* sockets: the engine's end, and the one that all skeletons have */
	pid_t newborn;	/* cloned last, stopped, not yet seated */
	void *birth;	/* the stack on which the root was born */
	struct ckpt_script *spare; /* one that was freed, for its memory; or NULL */
};

static inline struct task_node *node_of(const struct ckpt_task *t)
{
	return (struct task_node *)t;
}

/* set.c */
struct task_node *set_add(struct proc_set *ps, pid_t pid, struct ckpt_task *parent,
			  struct ckpt_error *err);
struct ckpt_thread *set_add_thread(struct task_node *t, pid_t tid, struct ckpt_error *err);
/*
 * The main thread is dead and the others go on: the first of them (dump: the one with the lowest
 * number) stands for the task.
 */
int set_main_ended(struct task_node *t, struct ckpt_error *err);
/* Forget the thread added last. */
void set_drop_thread(struct task_node *t);
/* Forget the task added last. */
void set_drop_last(struct proc_set *ps);
/* Give ids: pre-order from the root, children by pid. */
void set_sort(struct proc_set *ps);

/* fdpass.c */
struct fd_table *fd_table_new(const struct proc_set *ps, const struct fd_table *copy_of);
void fd_table_put(struct fd_table *t);

/*
 * A system call that the kernel has no passing reason to refuse is asked for again: a thread
 * must not be left half-way because one of our own calls failed once. One that is dead stays so.
 */
#define INSIST(call)                                                                 \
	({                                                                           \
		long insist_;                                                        \
		for (int tries_ = 0; (insist_ = (call)) < 0 && tries_ < 2; tries_++) \
			;                                                            \
		insist_;                                                             \
	})

/* trace.c */
/* waitpid(2) without waiting, by the tracer (NULL: the engine). */
pid_t tracer_wait(struct keeper *tracer, pid_t tid, int *status);

/* wait.c */
/* Of CLOCK_MONOTONIC. */
uint64_t now_us(void);
/* Wait for a stop of one thread of the tracer's (NULL: the engine), at most timeout_ms; *status is
 * waitpid's. -ESRCH: it died. */
int wait_stop(struct keeper *tracer, pid_t tid, int timeout_ms, int *status);
bool is_event_stop(int status);
/*
 * Bring a tracee, running or (from_stop) in another kind of stop, to an event
 * stop, which lies before the kernel's restart of system calls. Signals that
 * arrive are delivered.
 */
int interrupt_and_wait(struct ckpt_agent *a, bool from_stop, int timeout_ms,
		       struct ckpt_error *err);

/* The two halves of it, to be done with many threads at once. */
int interrupt(struct ckpt_agent *a, bool from_stop, struct ckpt_error *err);
int wait_event_stop(struct ckpt_agent *a, int timeout_ms, struct ckpt_error *err);

/* One system call by single step over the instruction at regs->rip; regs afterwards. */
int step_syscall(struct ckpt_agent *a, struct user_regs_struct *regs, struct ckpt_error *err);

/*
 * One system call, of those that a signal does not interrupt, with the registers `regs` (the
 * instruction at their rip), all signals blocked; regs afterwards. The thread is then in an
 * event stop, past the call and before user code. Not by a single step: its SIGTRAP, which
 * is forced, sets that signal's action to the default where it is blocked or ignored. In
 * three steps, so that many threads make their calls at the same time.
 */
int call_start(struct ckpt_agent *a, const struct user_regs_struct *regs, struct ckpt_error *err);
int call_entered(struct ckpt_agent *a, struct ckpt_error *err);
int call_end(struct ckpt_agent *a, struct user_regs_struct *regs, struct ckpt_error *err);

/* procfs.c */
/* 0 if it cannot be told. */
uid_t effective_uid(const struct ckpt_task *t);
/* By pidfd, so that it never meets a stranger under a reused number. */
int signal_task(const struct ckpt_task *t, int sig);
/* Read of all threads what plugins will ask for, by all processors. */
int proc_read_ahead(struct proc_set *ps, struct ckpt_error *err);
/* Read the extended state of a stopped thread into a->xstate. */
int read_xstate(struct ckpt_agent *a, struct ckpt_error *err);

/* seize.c */
/*
 * Has that thread exited? waitpid(2) tells of a leader only when all other threads are reaped.
 */
bool is_exiting(const struct ckpt_thread *th);

/* death.c */
/*
 * How many are neither dead nor dying for certain; reaps what is ours to reap. A millisecond is
 * waited for one of them.
 */
size_t await_deaths(const struct proc_set *ps);
/* Give pid 1 some seconds to reap what it has inherited, so that numbers get free. */
void wait_for_reaper(const struct proc_set *ps);

/* rollback.c */
/* Make the registers of a just stopped thread those at which it shall go on. */
int rollback(struct ckpt_thread *th, struct ckpt_error *err);

/* agent.c */
int agent_post(struct ckpt_agent *a, uint32_t command, struct ckpt_error *err);
/* Wait until the agent has done what was posted. */
int agent_wait(struct ckpt_agent *a, struct ckpt_error *err);
/* Send a stopped thread into the loop at its seat. `regs` are what it has now. */
int agent_enter(struct ckpt_agent *a, const struct user_regs_struct *regs, struct ckpt_error *err);
/* The same for one that an agent has cloned, with all signals blocked like its parent. */
int agent_born(struct ckpt_agent *a, struct ckpt_error *err);

/* flight.c */
/* Run a script whose last operation does not come back. */
int execute_last(struct ckpt_script *s, struct ckpt_thread *th, struct ckpt_error *err);

/* skeleton.c */
/* A seated thread has cloned (PTRACE_EVENT_*): note the newcomer, let the parent go on. */
int skeleton_adopt(struct ckpt_agent *parent, struct ckpt_error *err);

/* The number at which every skeleton holds the engine's pidfd: above all restored ones. */
static inline int transport_fd(const struct proc_set *ps)
{
	return ps->max_fd + 1;
}

/* And the one of its end of the channel. */
static inline int channel_fd(const struct proc_set *ps)
{
	return ps->max_fd + 2;
}

#endif
