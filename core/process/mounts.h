/* SPDX-License-Identifier: MIT */
/* What a run knows of mount namespaces. */
#ifndef CKPT_PROCESS_MOUNTS_H
#define CKPT_PROCESS_MOUNTS_H

#include <ckpt/mnt.h>

struct mount_table {
	uint32_t ns;
	int root; /* O_PATH; -1: not asked for yet */
	bool known;
	struct ckpt_mounts pub;
	struct ckpt_mount *list;
	char *text; /* the strings are in here */
};

/* Of all namespaces of a run that were asked for; kept in its proc_set. */
/* restore of a copy: what is where in a mount namespace of the tree's. */
struct mount_shown {
	uint32_t mnt;
	char *point;
	char *host; /* where ckpt sees it; NULL: it is the tree's own */
};

struct mount_tables {
	struct mount_table **list;
	size_t n;
	struct ckpt_mount_saved *saved;
	size_t n_saved;
	struct mount_shown *shown;
	size_t n_shown;
};

/* Takes `text` over, also when it fails. */
int mount_table_parse(struct mount_table *t, char *text);

void mount_tables_free(struct mount_tables *all);

#endif
