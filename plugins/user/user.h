/* SPDX-License-Identifier: MIT */
/* Inside the plugin user. */
#ifndef PLUGIN_USER_H
#define PLUGIN_USER_H

#include <ckpt/ns.h>
#include <ckpt/plugin.h>

#include "user.pb-c.h"

enum { USER_REC_MAPS = 1 };

/* The kernel's UID_GID_MAP_MAX_EXTENTS, and what it takes in one write. */
#define USER_MAX_EXTENTS 340

enum user_map { USER_UIDS, USER_GIDS, USER_PROJIDS, USER_MAPS };

/* One map of a namespace. A NULL list is the identity: ckpt's own namespace. */
struct user_list {
	Ckpt__User__Extent **list;
	size_t n;
};

/* map.c */
struct user_list user_map_of(const Ckpt__User__Maps *rec, enum user_map which);
/* Which id of ckpt's is it? -1: none. */
int64_t user_up(const struct user_list *map, uint32_t id);
/* Where the namespace has ckpt's ids [lower, lower + count); -1: nowhere, or not in one piece. */
int64_t user_down(const struct user_list *map, uint32_t lower, uint32_t count);
int user_check(const struct user_list *map, const char *what, struct ckpt_error *err);

/* limits.c */
int user_limits_read(struct ckpt_run *run, const struct ckpt_ns *ns, Ckpt__User__Maps *rec,
		     struct ckpt_error *err);
void user_limits_free(Ckpt__User__Maps *rec);
int user_limits_plan(struct ckpt_run *run, const Ckpt__User__Maps *rec, struct ckpt_error *err);
int user_limits_write(struct ckpt_run *run, struct ckpt_ns *ns, struct ckpt_error *err);

/* collect.c */
int user_collect(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err);
void user_state_free(void *state);

#endif
