/* SPDX-License-Identifier: MIT */
/* Sockets of generic netlink: what netlink.c does otherwise for them. */
#ifndef PLUGIN_SOCK_GENL_H
#define PLUGIN_SOCK_GENL_H

#include "internal.h"

#define SOCK_GROUPS_MAX 1024

/* netlink.c: the numbers of the groups that it is in, at most SOCK_GROUPS_MAX. */
int sock_read_groups(int fd, uint32_t *groups, size_t *n);

/* 1: refused. */
int sock_generic_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
			struct ckpt_error *err);
/* Put the record, which has the numbers of groups, with their names instead. */
int sock_generic_put(struct ckpt_run *run, Ckpt__Sock__Netlink *rec, struct ckpt_error *err);
int sock_generic_plan(struct ckpt_run *run, const Ckpt__Sock__Netlink *rec, struct ckpt_error *err);
int sock_generic_join(int fd, const Ckpt__Sock__Netlink *rec, struct ckpt_error *err);

#endif
