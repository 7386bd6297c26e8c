/* SPDX-License-Identifier: MIT */
/* Maps of ids, as records hold them. */
#include "user.h"

struct user_list user_map_of(const Ckpt__User__Maps *rec, enum user_map which)
{
	switch (which) {
	case USER_UIDS:
		return (struct user_list){ rec->uids, rec->n_uids };
	case USER_GIDS:
		return (struct user_list){ rec->gids, rec->n_gids };
	default:
		return (struct user_list){ rec->projids, rec->n_projids };
	}
}

int64_t user_up(const struct user_list *map, uint32_t id)
{
	for (size_t i = 0; i < map->n; i++) {
		const Ckpt__User__Extent *e = map->list[i];

		if (id >= e->first && id - e->first < e->count)
			return (int64_t)e->lower + (id - e->first);
	}
	return -1;
}

int64_t user_down(const struct user_list *map, uint32_t lower, uint32_t count)
{
	for (size_t i = 0; i < map->n; i++) {
		const Ckpt__User__Extent *e = map->list[i];

		if (lower >= e->lower && lower - e->lower < e->count &&
		    count <= e->count - (lower - e->lower))
			return (int64_t)e->first + (lower - e->lower);
	}
	return -1;
}

static bool overlap(uint32_t a, uint32_t b, const Ckpt__User__Extent *x,
		    const Ckpt__User__Extent *y)
{
	return a < b ? b - a < x->count : a - b < y->count;
}

/* The kernel's own rules (map_write()). */
int user_check(const struct user_list *map, const char *what, struct ckpt_error *err)
{
	if (map->n > USER_MAX_EXTENTS)
		return ckpt_fail_image(err, "%s map of %zu lines", what, map->n);
	for (size_t i = 0; i < map->n; i++) {
		const Ckpt__User__Extent *e = map->list[i];

		if (!e->count || e->first + (uint64_t)e->count > UINT32_MAX ||
		    e->lower + (uint64_t)e->count > UINT32_MAX)
			return ckpt_fail_image(err, "%s map: bad line %u %u %u", what, e->first,
					       e->lower, e->count);
		for (size_t k = 0; k < i; k++)
			if (overlap(e->first, map->list[k]->first, e, map->list[k]) ||
			    overlap(e->lower, map->list[k]->lower, e, map->list[k]))
				return ckpt_fail_image(err, "%s map: lines overlap at %u %u", what,
						       e->first, e->lower);
	}
	return 0;
}
