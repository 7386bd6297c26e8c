/* SPDX-License-Identifier: MIT */
/*
 * What comes from outside: mounts of a filesystem that ckpt's own namespace shows too,
 * and those that the user has named. They are not made but taken from there.
 */
#include <limits.h>
#include <stdio.h>

#include "mnt.h"

bool mnt_path_below(const char *path, const char *top)
{
	size_t len = strlen(top);

	if (len == 1)
		return path[0] == '/';
	return !strncmp(path, top, len) && (!path[len] || path[len] == '/');
}

static const struct ckpt_mount *by_id(const struct ckpt_mounts *all, uint32_t id)
{
	for (size_t i = 0; i < all->n; i++)
		if (all->list[i].id == id)
			return &all->list[i];
	return NULL;
}

static bool hangs_on(const struct ckpt_mounts *all, const struct ckpt_mount *m,
		     const struct ckpt_mount *top)
{
	/* a tree has no more levels than mounts */
	for (size_t i = 0; m && i < all->n; i++) {
		if (m->parent == top->id)
			return true;
		m = by_id(all, m->parent);
	}
	return false;
}

uint32_t mnt_hidden_by(const struct ckpt_mounts *all, const struct ckpt_mount *m, const char *path)
{
	uint32_t n = 0;

	for (size_t i = 0; i < all->n; i++)
		n += &all->list[i] != m && mnt_path_below(path, all->list[i].point) &&
		     hangs_on(all, &all->list[i], m);
	return n;
}

/* The path of a mount's root below another mount of the same filesystem, or NULL. */
static char *path_in(const struct ckpt_mount *m, const struct ckpt_mount *host)
{
	const char *rest = m->root + (strcmp(host->root, "/") ? strlen(host->root) : 0);
	const char *top = strcmp(host->point, "/") ? host->point : "";
	char *path;

	if (!mnt_path_below(m->root, host->root))
		return NULL;
	if (!strcmp(rest, "/"))
		rest = "";
	if (asprintf(&path, "%s%s", *top || *rest ? top : "/", rest) < 0)
		return NULL;
	return path;
}

void mnt_external_find(struct mnt_state *st, struct mnt_mount *m)
{
	const struct ckpt_mount *best = NULL;
	CKPT_AUTO_FREE char *best_path = NULL;
	uint32_t hidden = 0;

	for (size_t i = 0; i < st->own->n; i++) {
		const struct ckpt_mount *h = &st->own->list[i];
		CKPT_AUTO_FREE char *path = NULL;
		uint32_t below;

		if (h->major != m->m->major || h->minor != m->m->minor)
			continue;
		path = path_in(m->m, h);
		if (!path)
			continue;
		below = mnt_hidden_by(st->own, h, path);
		/* the same place, as in a copy of ckpt's own namespace, before any other */
		if (best &&
		    (below > hidden || (below == hidden && (!strcmp(best_path, m->m->point) ||
							    strcmp(path, m->m->point) != 0))))
			continue;
		best = h;
		hidden = below;
		free(best_path);
		best_path = ckpt_steal_ptr(&path);
	}
	m->host = best;
	m->below = hidden;
	m->path = ckpt_steal_ptr(&best_path);
}

/* "/path/in/tree[:KEY]" */
const char *mnt_external_key(struct ckpt_run *run, const char *point)
{
	for (size_t i = 0; i < ckpt_opt_count(run, "external"); i++) {
		const char *item = ckpt_opt_item(run, "external", i);
		size_t len = strlen(point);

		if (strncmp(item, point, len) != 0)
			continue;
		if (!item[len])
			return item;
		if (item[len] == ':' && item[len + 1])
			return item + len + 1;
	}
	return NULL;
}

/* "/path/in/tree:/host/path" or "KEY:/host/path" */
const char *mnt_external_place(struct ckpt_run *run, const Ckpt__Mnt__Mount *m)
{
	const ProtobufCBinaryData *names[] = { &m->key, &m->point };

	for (size_t i = 0; i < ckpt_opt_count(run, "external"); i++) {
		const char *item = ckpt_opt_item(run, "external", i);

		for (size_t k = 0; k < CKPT_ARRAY_SIZE(names); k++)
			if (names[k]->len && strlen(item) > names[k]->len + 1 &&
			    !memcmp(item, names[k]->data, names[k]->len) &&
			    item[names[k]->len] == ':' && item[names[k]->len + 1] == '/')
				return item + names[k]->len + 1;
	}
	return NULL;
}
