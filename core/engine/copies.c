/* SPDX-License-Identifier: MIT */
/* What copies of an image have in common: the machine's files, but for layers. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ckpt/mnt.h>

#include "engine/engine.h"
#include "engine/run.h"
#include "engine/text.h"
#include "process/copy.h"
#include "process/mounts.h"
#include "process/set.h"

static bool below(const char *path, const char *dir)
{
	size_t len = strlen(dir);

	return !strncmp(path, dir, len) && (len == 1 || !path[len] || path[len] == '/');
}

bool copy_covers(char *const *list, size_t n, const char *path)
{
	for (size_t i = 0; i < n; i++)
		if (below(path, list[i]))
			return true;
	return false;
}

bool ckpt_is_copy(const struct ckpt_run *run)
{
	return run->ctx->copy;
}

const char *ckpt_copies_layer(const struct ckpt_run *run, size_t i)
{
	const struct copy_place *p = run->ctx->copy;

	return p && i < p->n_layers ? p->layers[i] : NULL;
}

bool ckpt_layer_brings(const struct ckpt_run *run, const char *path)
{
	const struct copy_place *p = run->ctx->copy;

	for (size_t i = 0; p && i < p->n_layers; i++)
		if (p->saved[i] && below(path, p->layers[i]))
			return true;
	return false;
}

const struct ckpt_copies_memory *ckpt_copies_memory(const struct ckpt_run *run)
{
	const struct copy_place *p = run->ctx->copy;

	return p && p->memory.end > p->memory.start ? &p->memory : NULL;
}

uint64_t ckpt_run_number(const struct ckpt_run *run)
{
	const struct copy_place *p = run->ctx->copy;

	return p ? p->number : (uint64_t)getpid();
}

int ckpt_copies_tell(struct ckpt_run *run, uint32_t mnt, const char *point, const char *host,
		     struct ckpt_error *err)
{
	struct mount_tables *all = &run_procs(run)->mounts;
	struct mount_shown m = { mnt, strdup(point), host ? strdup(host) : NULL };

	if (!m.point || (host && !m.host) || !VEC_ROOM(all->shown, all->n_shown)) {
		free(m.point);
		free(m.host);
		return fail_nomem(err);
	}
	all->shown[all->n_shown++] = m;
	return 0;
}

static const struct mount_shown *mount_of(struct ckpt_run *run, uint32_t mnt, const char *path)
{
	const struct mount_tables *all = &run_procs(run)->mounts;
	const struct mount_shown *best = NULL;

	for (size_t i = 0; i < all->n_shown; i++) {
		const struct mount_shown *m = &all->shown[i];

		/* of two at one point, the later lies on top */
		if (m->mnt == mnt && below(path, m->point) &&
		    (!best || strlen(m->point) >= strlen(best->point)))
			best = m;
	}
	return best;
}

/* Where ckpt sees it. False: only the tree does. What nobody has told of is taken for shared. */
static bool outside(struct ckpt_run *run, uint32_t mnt, const char *path, char *to, size_t size)
{
	const struct mount_shown *m = mnt ? mount_of(run, mnt, path) : NULL;
	const struct copy_place *p = run->ctx->copy;
	const char *rest = path;

	if (m && !m->host)
		return false;
	if (m)
		rest += strcmp(m->point, "/") ? strlen(m->point) : 0;
	snprintf(to, size, "%s%s", m && strcmp(m->host, "/") ? m->host : "", rest);
	/* a mount is taken without what lies on it: a layer below its root does not show */
	return !copy_covers(p->layers, p->n_layers, m ? m->host : to);
}

bool ckpt_copies_collide(struct ckpt_run *run, uint32_t mnt, const char *path)
{
	char place[2 * PATH_MAX];

	return run->ctx->copy && outside(run, mnt, path, place, sizeof(place));
}

bool ckpt_copies_share(struct ckpt_run *run, uint32_t mnt, const char *path)
{
	const struct copy_place *p = run->ctx->copy;
	char place[2 * PATH_MAX];

	return p && outside(run, mnt, path, place, sizeof(place)) &&
	       !copy_covers(p->shared, p->n_shared, place);
}
