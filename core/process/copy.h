/* SPDX-License-Identifier: MIT */
/*
 * Copies of one image beside each other: each in namespaces of its own, below a
 * first process that reaps, in which the restore is an ordinary one.
 */
#ifndef CKPT_PROCESS_COPY_H
#define CKPT_PROCESS_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <ckpt/copies.h>

struct ckpt_run;

/* What a copy's namespaces look like. */
struct copy_place {
	unsigned index;	 /* from 1 */
	int lock;	 /* lockf(3): copies come one after the other */
	long pid_max;	 /* the machine's */
	uint64_t number; /* that no other restore has */
	/* canonical paths of directories; of what copies share on purpose */
	char *const *layers, *const *shared;
	size_t n_layers, n_shared;
	/* of the image: what an earlier copy had in that layer; 0: nothing */
	int (*fill)(void *arg, size_t layer, int upper, struct ckpt_error *err);
	const size_t *saved; /* by layer: is it the image's? */
	void *fill_arg;
	const char *upper;	 /* a directory for what is written below layers; NULL: memory */
	const char *index_file;	 /* NULL: none */
	const char *host_suffix; /* NULL: the name stays; else it and the index are added */
	/* of ckpt, for all copies: has the image; and memory, or none */
	const struct ckpt_run *ancestor;
	struct ckpt_copies_memory memory;
};

/* Is the path one of the list, or below one? */
bool copy_covers(char *const *list, size_t n, const char *path);

/* As ckpt itself sees it. */
long copy_pid_max(void);

/*
 * In the first process of a copy: mounts, layers, loopback, host name. `tops`: for each layer
 * a descriptor of the directory above its upper one, by which a dump of the copy finds that.
 */
int copy_furnish(const struct copy_place *p, int *tops, struct ckpt_error *err);

/* What the overlay of a layer is called: "ckpt-layer-1-" for the first, and its number in hex. */
struct copy_layer {
	unsigned place; /* from 1 on */
	uint8_t number[CKPT_LAYER_NUMBER_SIZE];
};
#define COPY_LAYER_SOURCE_SIZE 64
void copy_layer_source(const struct copy_layer *l, char buf[COPY_LAYER_SOURCE_SIZE]);
bool copy_layer_parse(const char *source, struct copy_layer *out);
/* A file beside its upper directory: the number, and the path of the layer. */
#define COPY_LAYER_NUMBER "number"
/* The descriptor that the first process of a copy has of that directory. */
#define COPY_TOP_FD(place) (4 + (int)(place))
/* All that it has for a command line. */
#define COPY_FIRST_NAME "ckpt-init"

/* This process has handed the memory down, or it is not to be. */
void copy_drop_memory(const struct ckpt_copies_memory *m);

/* What parent and copies share. */
struct copy_shared {
	int committed; /* one store decides for all copies: they stay though ckpt ends */
	struct ckpt_error errors[];
};

struct copy_job {
	struct copy_place place;
	struct copy_shared *shared;
	struct ckpt_error *err; /* in *shared */
	int parent_pidfd;
	/* the restore, in a child of the first process; its return value ends that child */
	int (*restore)(struct copy_job *job);
	/* in the first process: free what only the restore needs */
	void (*forget)(struct copy_job *job);
	void *arg;
	int channel; /* of the restore, to the parent */
};

/* Start a copy: the pid of its first process, which is a child of ours, or a negative errno. */
pid_t copy_start(struct copy_job *job);

#endif
