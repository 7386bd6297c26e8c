/* SPDX-License-Identifier: MIT */
/* Inside the plugin cgroup. */
#ifndef PLUGIN_CGROUP_H
#define PLUGIN_CGROUP_H

#include <ckpt/ns.h>
#include <ckpt/plugin.h>

#include "cgroup.pb-c.h"

enum { CGROUP_REC_GROUP = 1, CGROUP_REC_MEMBER = 2, CGROUP_REC_NAMESPACE = 3 };

#define CGROUP_MAX_HIERARCHIES 32
#define CGROUP_MAX_PATH	       4096
#define CGROUP_MAX_VALUE       4096

/* A hierarchy that this machine has. */
struct cgroup_hierarchy {
	char *name; /* as in /proc/PID/cgroup; "": version 2 */
	char *own;  /* path of ckpt's own group */
	int root;   /* its topmost group that ckpt sees, opened when needed; -1 */
};

/* dump: a group that has a record */
struct cgroup_group {
	size_t hierarchy;
	char *path;
};

struct cgroup_made {
	size_t hierarchy;
	const char *path; /* of the record */
	const Ckpt__Cgroup__Group *rec;
};

/* dump, verify: a frozen group of version 2 */
struct cgroup_frozen {
	char *path;
	int dir;
};

/* restore: a controller that was switched on in a group that was here */
struct cgroup_enabled {
	size_t hierarchy;
	char *path, *name;
};

struct cgroup_state {
	struct cgroup_hierarchy hierarchies[CGROUP_MAX_HIERARCHIES];
	size_t n_hierarchies;
	char *mounts;		     /* mountinfo, once it was needed */
	struct cgroup_group *groups; /* ids are index + 1 */
	size_t n_groups;
	struct cgroup_made *made; /* restore: in this order */
	size_t n_made;
	struct cgroup_enabled *enabled;
	size_t n_enabled;
	struct cgroup_frozen *frozen; /* by settings of their own */
	size_t n_frozen;
	bool looked_for_frozen;
	pid_t watcher; /* freezes them again if ckpt dies; 0: nobody */
};

/* The run's state, made on first use, with the machine's hierarchies; NULL on failure. */
struct cgroup_state *cgroup_state(struct ckpt_run *run, struct ckpt_error *err);
void cgroup_state_free(void *state);

/* hierarchy.c */
/* Parse the lines of a /proc/PID/cgroup: fn is called with each hierarchy's name and path. */
int cgroup_each_line(const char *text,
		     int (*fn)(void *arg, const char *name, const char *path,
			       struct ckpt_error *err),
		     void *arg, struct ckpt_error *err);
int cgroup_load_hierarchies(struct cgroup_state *st, struct ckpt_error *err);
/* Index of a hierarchy; -ENOENT. */
int cgroup_hierarchy(const struct cgroup_state *st, const char *name);
/* Descriptor of the hierarchy's root, which the state keeps. */
int cgroup_root(struct cgroup_state *st, size_t h, struct ckpt_error *err);
/* Open a group's directory by its path from there; the caller closes it. */
int cgroup_open(struct cgroup_state *st, size_t h, const char *path, struct ckpt_error *err);
/* "cpu:/a/b" for messages. */
const char *cgroup_name(char *buf, size_t size, const char *hierarchy, const char *path);
/* A file of a group, trimmed; NULL: there is none. The caller frees it. */
int cgroup_read(int dir, const char *file, char **text, struct ckpt_error *err);

/* read.c */
int cgroup_survey(struct ckpt_run *run, struct ckpt_error *err);
int cgroup_collect(struct ckpt_run *run, struct ckpt_error *err);
/* Id of a group; makes its record, and those of the groups above it, if it is new. */
int cgroup_put(struct ckpt_run *run, struct cgroup_state *st, size_t h, const char *path,
	       uint32_t *id, struct ckpt_error *err);

/* By its own setting or by that of one above. 1: it is. */
int cgroup_is_frozen(int dir, struct ckpt_error *err);

/* frozen.c */
int cgroup_find_frozen(struct ckpt_run *run, struct cgroup_state *st, struct ckpt_error *err);
void cgroup_forget_frozen(struct cgroup_state *st);
/* Is one of those found the group of version 2 at this path, or above it? Is it the very one? */
bool cgroup_frozen_above(const struct cgroup_state *st, const char *path);
bool cgroup_was_frozen(const struct cgroup_state *st, const char *path);
/* A process in the group, or below, that is not of the tree (0: unseen), or -1. */
int cgroup_outsider(struct ckpt_run *run, int dir, pid_t *pid, struct ckpt_error *err);
/* One with those that are frozen with the group of version 2 at this path. */
int cgroup_frozen_outsider(struct ckpt_run *run, const struct cgroup_state *st, const char *path,
			   pid_t *pid, struct ckpt_error *err);
int cgroup_thaw(struct ckpt_run *run, struct ckpt_error *err);
int cgroup_plan_frozen(struct ckpt_run *run, struct cgroup_state *st, struct ckpt_error *err);
/* restore: when all is done */
int cgroup_freeze_later(struct ckpt_run *run, struct ckpt_error *err);

/* attributes.c */
struct cgroup_attributes {
	Ckpt__Cgroup__Attribute *items, **list;
	size_t n;
};
void cgroup_attributes_free(struct cgroup_attributes *a);
/*
 * What is set in a group: all limits, or without `all` only what no group can do without;
 * `threaded`: its type, if that is none that comes by itself.
 */
int cgroup_attributes_read(int dir, bool all, bool threaded, struct cgroup_attributes *out,
			   struct ckpt_error *err);
/* The file and the value of that. */
#define CGROUP_TYPE	"cgroup.type"
#define CGROUP_THREADED "threaded"
#define CGROUP_SUBTREE	"cgroup.subtree_control"
bool cgroup_attribute_known(const char *file);
/*
 * Give a group that was just made its owner and settings. Those of version 2 come later, when
 * nobody has to be in a group that has controllers for others: `late`.
 */
int cgroup_attributes_write(int dir, const Ckpt__Cgroup__Group *rec, bool late,
			    struct ckpt_error *err);
/* Write "+name" or "-name"; a negative errno. */
int cgroup_switch(int dir, char sign, const char *name);
/* The names of the controllers that a group's settings need in all groups above it, by a space. */
char *cgroup_needs(const Ckpt__Cgroup__Group *rec);
/* Is `word` in a list with that between its words? */
bool cgroup_in_list(const char *list, char between, const char *word, size_t len);

/* plan.c */
int cgroup_plan(struct ckpt_run *run, struct ckpt_error *err);
const Ckpt__Cgroup__Group *cgroup_record(struct ckpt_run *run, uint32_t id);
/* Shall what was in ckpt's own group come back in that of the ckpt that restores it? */
bool cgroup_follows(struct ckpt_run *run, const Ckpt__Cgroup__Group *g);
/* Where that group is on this machine now. */
const char *cgroup_target(struct ckpt_run *run, const struct cgroup_state *st,
			  const Ckpt__Cgroup__Group *g);

/* place.c */
int cgroup_make(struct ckpt_run *run, struct ckpt_error *err);
void cgroup_unmake(struct ckpt_run *run);
int cgroup_settings(struct ckpt_run *run, struct ckpt_error *err);
int cgroup_place(struct ckpt_run *run, struct ckpt_error *err);
int cgroup_threads(struct ckpt_run *run, struct ckpt_error *err);
/* Move a process (0: whoever writes) there by its file cgroup.procs, or a thread by `tasks`. */
int cgroup_move(struct cgroup_state *st, size_t h, const char *path, const char *file, pid_t pid,
		struct ckpt_error *err);

extern const struct ckpt_ns_kind cgroup_kind;

#endif
