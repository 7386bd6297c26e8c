/* SPDX-License-Identifier: MIT */
/* Inside the plugin seccomp. */
#ifndef PLUGIN_SECCOMP_H
#define PLUGIN_SECCOMP_H

#include <linux/filter.h>
#include <linux/seccomp.h>

#include <ckpt/fd.h>
#include <ckpt/pid.h>
#include <ckpt/plugin.h>

#include "seccomp.pb-c.h"

enum { SECCOMP_REC_FILTER = 1, SECCOMP_REC_THREAD = 2, SECCOMP_REC_LISTENER = 3 };

#define SECCOMP_MAX_INSNS 4096 /* BPF_MAXINSNS: of one filter */
/* Above the kernel's limit of instructions on one path, which has at least one a filter. */
#define SECCOMP_MAX_DEPTH 8192

/* A filter of the live tree: node of the tree that all threads' filters form. */
struct seccomp_filter {
	uint32_t before; /* index + 1 of the one installed before it; 0: none */
	bool log;
	bool notifies; /* it may return SECCOMP_RET_USER_NOTIF */
	size_t n;
	struct sock_filter *insns;
	const struct ckpt_task *holder; /* the first task that has it */
	size_t holders;			/* threads */
};

struct seccomp_thread {
	const struct ckpt_thread *thread;
	uint32_t id, index;
	bool strict;
	uint32_t filter; /* the last one; 0: none */
};

/* restore: a task of the image, and how far its leader's filters are installed. */
struct seccomp_task {
	uint32_t id, maker;
	bool zombie;
	uint32_t common;    /* last filter that all its threads have */
	uint32_t inherited; /* last one that it and all that are cloned from it have */
	uint32_t installed;
};

struct seccomp_state {
	/* dump, verify */
	bool peeked;
	struct seccomp_filter *filters;
	size_t n_filters;
	struct seccomp_thread *threads;
	size_t n_threads;
	size_t listeners;
	/* restore */
	struct seccomp_task *tasks; /* in order of ids */
	size_t n_tasks;
	int listener;	  /* descriptor of the engine; -1: none yet */
	uint32_t listens; /* filter that it is the listener of; 0: none */
};

/* The run's state, made on first use; NULL if out of memory. */
struct seccomp_state *seccomp_state(struct ckpt_run *run, struct ckpt_error *err);
void seccomp_state_free(void *state);

/* read.c: steps before the agents go in */
int seccomp_survey(struct ckpt_run *run, struct ckpt_error *err);
/* Reads the filters, the first time it is called. */
int seccomp_peek(struct ckpt_run *run, struct ckpt_error *err);
int seccomp_collect(struct ckpt_run *run, struct ckpt_error *err);
/* Mode of a thread as in its status: 0, 1 (strict), 2 (filters); -1: unknown here. */
int seccomp_mode(const char *status);
/* Does a program return SECCOMP_RET_USER_NOTIF, as far as can be told? */
bool seccomp_notifies(const struct sock_filter *insns, size_t n);

/* plan.c */
int seccomp_plan(struct ckpt_run *run, struct ckpt_error *err);
int seccomp_planned(struct ckpt_run *run, uint32_t id, uint32_t maker, struct ckpt_error *err);
struct seccomp_task *seccomp_task(struct seccomp_state *st, uint32_t id);
/* The last filter that both have; 0: none. */
uint32_t seccomp_common(struct ckpt_run *run, uint32_t a, uint32_t b);

/* trial.c: does the kernel take this program? 0, or what seccomp(2) says */
int seccomp_trial(const struct sock_filter *insns, size_t n, struct ckpt_error *err);

/* install.c */
int seccomp_born(struct ckpt_run *run, struct ckpt_task *t, struct ckpt_error *err);
int seccomp_place(struct ckpt_run *run, struct ckpt_error *err);
int seccomp_seal(struct ckpt_run *run, struct ckpt_error *err);

extern const struct ckpt_fd_kind seccomp_listener;
extern const struct ckpt_birth_kind seccomp_birth;

#endif
