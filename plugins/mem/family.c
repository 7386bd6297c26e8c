/* SPDX-License-Identifier: MIT */
/*
 * Who shares which pages by fork, computed from the image: pages with one place in the
 * page file. They were usually at the same address in all tasks, but need not be: a task
 * may have moved its part. What does not fit in is not shared, and filled for each task.
 */
#include <string.h>

#include "family.h"

#define NOBODY	   UINT32_MAX
#define SHARED	   (1u << 31) /* a place has more than one user; the rest is their ancestor */
#define CANDIDATES 8

struct plan {
	struct mem_family *f;
	unsigned copies;	     /* plan for so many, before they are made; 0: for one tree */
	bool forked;		     /* what tasks share by fork they shall share again */
	bool files;		     /* so are private pages of files by other mounts */
	uint32_t *kin_of, *entry_of; /* by place */
	uint32_t *users;	     /* too; NULL: does not matter */
	/* the group that is looked at */
	uint32_t kin;
	const mem_vma_rec *like;
	uint64_t start, end; /* pages */
};

/* ---- the tree --------------------------------------------------------------------- */

static uint32_t ancestor(const struct mem_family *f, uint32_t a, uint32_t b)
{
	while (!mem_kin_covers(&f->kin[a], &f->kin[b]))
		a = f->kin[a].maker;
	return a;
}

static int compare_ids(const void *a, const void *b, void *arg)
{
	const struct mem_kin *kin = arg;
	uint32_t x = kin[*(const uint32_t *)a].id, y = kin[*(const uint32_t *)b].id;

	return (x > y) - (x < y);
}

static int load_kin(struct mem_family *f, const struct ckpt_kin *kin, struct ckpt_error *err)
{
	CKPT_AUTO_FREE uint32_t *next = calloc(f->n_kin, sizeof(*next));

	f->kin = calloc(f->n_kin, sizeof(*f->kin));
	f->by_id = calloc(f->n_kin, sizeof(*f->by_id));
	if (!next || !f->kin || !f->by_id)
		return ckpt_fail(err, ENOMEM, "out of memory");
	for (uint32_t i = 0; i < f->n_kin; i++) {
		f->kin[i] = (struct mem_kin){ .id = kin[i].id,
					      .maker = kin[i].maker,
					      .depth = i ? f->kin[kin[i].maker].depth + 1 : 0,
					      .size = 1,
					      .ti = mem_image_task(f->im, kin[i].id) };
		f->by_id[i] = i;
	}
	for (size_t i = f->n_kin; i-- > 1;)
		f->kin[f->kin[i].maker].size += f->kin[i].size;
	for (size_t i = 0; i < f->n_kin; i++) {
		struct mem_kin *k = &f->kin[i];

		if (i) {
			k->rank = next[k->maker];
			next[k->maker] += k->size;
		}
		next[i] = k->rank + 1;
	}
	qsort_r(f->by_id, f->n_kin, sizeof(*f->by_id), compare_ids, f->kin);
	return 0;
}

struct mem_kin *mem_family_kin(const struct mem_family *f, uint32_t id)
{
	size_t lo = 0, hi = f ? f->n_kin : 0;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;
		struct mem_kin *k = &f->kin[f->by_id[mid]];

		if (k->id == id)
			return k;
		if (k->id < id)
			lo = mid + 1;
		else
			hi = mid;
	}
	return NULL;
}

/* Both lists of a task's pages rise; as one. */
static int load_extents(struct mem_kin *k, struct ckpt_error *err)
{
	const mem_pages_rec *g = k->ti->pages;
	uint64_t place = g->offset / MEM_PAGE;
	size_t a = 0, b = 0;

	k->extent = calloc(g->n_start + g->n_again + 1, sizeof(*k->extent));
	if (!k->extent)
		return ckpt_fail(err, ENOMEM, "out of memory");
	while (a < g->n_start || b < g->n_again) {
		struct mem_extent *e = &k->extent[k->n_extents++];

		if (b == g->n_again || (a < g->n_start && g->start[a] < g->again[b])) {
			*e = (struct mem_extent){ g->start[a], g->pages[a], place };
			place += g->pages[a++];
		} else {
			*e = (struct mem_extent){ g->again[b], g->agains[b], g->place[b] };
			b++;
		}
	}
	return 0;
}

/* ---- groups of mappings, and their pages -------------------------------------------- */

/* Can memory like that be made elsewhere, filled, and moved into place? */
static bool is_movable(const struct plan *p, const mem_vma_rec *v)
{
	const struct mem_image *im = p->f->im;

	if (v->flags & (MEM_DROPPABLE | MEM_MERGEABLE | MEM_HUGETLB) ||
	    !(v->flags & (MEM_ACCOUNT | MEM_NORESERVE)))
		return false;
	if (v->kind == MEM_PRIVATE_ANON)
		return true;
	if (v->kind != MEM_FILE_PRIVATE || im->files[v->object - 1]->ghost)
		return false;
	return (!p->copies && !im->files[v->object - 1]->mnt) || mem_early_has(p->f, v->object);
}

/*
 * Groups of mappings that are made in one go, cut at their seams: what was moved by its
 * program lies beside other memory, but was somewhere else when it was shared.
 */
static int each_group(struct plan *p, int (*fn)(struct plan *p, struct ckpt_error *err),
		      struct ckpt_error *err)
{
	const struct mem_task_image *ti = p->f->kin[p->kin].ti;
	const mem_vmas_rec *m = ti->vmas;
	int *prots = calloc(m->n_vma + 1, sizeof(*prots));
	size_t next;
	int r = 0;

	if (!prots)
		return ckpt_fail(err, ENOMEM, "out of memory");
	mem_first_prots(ti, prots);
	for (size_t i = 0; !r && i < m->n_vma; i = next) {
		next = mem_group_end(m, prots, i);
		p->like = m->vma[i];
		if (!is_movable(p, p->like))
			continue;
		for (uint64_t at = m->vma[i]->start, end = m->vma[next - 1]->end; !r && at < end;
		     at = p->end * MEM_PAGE) {
			p->start = at / MEM_PAGE;
			p->end = mem_seam_after(m, at, end) / MEM_PAGE;
			r = fn(p, err);
		}
	}
	free(prots);
	return r;
}

/* The next part of a task's extents within [start, end); *at: where to look, 0 at first. */
static bool next_part(const struct mem_kin *k, uint64_t start, uint64_t end, size_t *at,
		      struct mem_extent *part)
{
	size_t lo = *at, hi = k->n_extents;
	uint64_t cut;

	while (!*at && lo < hi) {
		size_t mid = (lo + hi) / 2;

		if (k->extent[mid].page + k->extent[mid].n <= start)
			lo = mid + 1;
		else
			hi = mid;
	}
	if (lo == k->n_extents || k->extent[lo].page >= end)
		return false;
	*part = k->extent[lo];
	cut = part->page < start ? start - part->page : 0;
	part->page += cut;
	part->place += cut;
	part->n -= cut;
	if (part->n > end - part->page)
		part->n = end - part->page;
	*at = lo + 1;
	return true;
}

static bool is_shared(uint32_t of)
{
	return of != NOBODY && of & SHARED;
}

static uint64_t count_pages(const struct plan *p)
{
	struct mem_extent e;
	uint64_t n = 0;

	for (size_t at = 0; next_part(&p->f->kin[p->kin], p->start, p->end, &at, &e);)
		n += e.n;
	return n;
}

/* ---- who has which place --------------------------------------------------------------- */

static int note_holders(struct plan *p, struct ckpt_error *err)
{
	const struct mem_kin *k = &p->f->kin[p->kin];
	uint32_t before = NOBODY, after = NOBODY;
	struct mem_extent e;

	for (size_t at = 0; next_part(k, p->start, p->end, &at, &e);)
		for (uint64_t i = 0; i < e.n; i++) {
			uint32_t *of = &p->kin_of[e.place + i];

			if (p->users)
				p->users[e.place + i]++;
			if (*of != before || before == NOBODY) {
				before = *of;
				after = before == NOBODY
						? p->kin
						: ancestor(p->f, before & ~SHARED, p->kin) | SHARED;
			}
			*of = after;
		}
	return 0;
}

/* ---- stretches ------------------------------------------------------------------------------- */

struct candidate {
	uint32_t stretch;
	uint64_t shift, n;
};

static bool is_alike(const mem_vma_rec *a, const mem_vma_rec *b)
{
	const uint32_t made_with =
		MEM_NORESERVE | MEM_GROWSDOWN | MEM_ACCOUNT | MEM_HUGEPAGE | MEM_NOHUGEPAGE;

	return a->kind == b->kind && a->object == b->object && !((a->flags ^ b->flags) & made_with);
}

static uint64_t file_page(const mem_vma_rec *v)
{
	return v->kind == MEM_FILE_PRIVATE ? (v->offset - v->start) / MEM_PAGE : 0;
}

/* Can this group be made of that stretch? */
static bool fits(const struct plan *p, const struct candidate *c)
{
	const struct mem_stretch *s = &p->f->stretch[c->stretch];
	uint64_t lo = p->start + c->shift, hi = p->end + c->shift;
	const struct mem_kin *k = &p->f->kin[p->kin];

	if (!is_alike(s->like, p->like) || lo >= hi || hi > MEM_TASK_SIZE_LA57 / MEM_PAGE)
		return false;
	if (p->like->kind == MEM_FILE_PRIVATE && file_page(p->like) != c->shift + s->file)
		return false;
	/* once only in each task */
	for (size_t i = k->use; i < k->use + k->n_uses; i++) {
		const struct mem_use *u = &p->f->use[i];

		if (u->stretch == c->stretch && u->start + u->shift < hi && lo < u->end + u->shift)
			return false;
	}
	return true;
}

/* What most of the group's pages belong to that were seen before. *shared: are there any to share?
 */
static bool find_stretch(const struct plan *p, struct candidate *best, bool *shared)
{
	struct candidate list[CANDIDATES] = { { 0 } };
	size_t n = 0, k = 0, at = 0;
	struct mem_extent e;

	*shared = false;
	while (next_part(&p->f->kin[p->kin], p->start, p->end, &at, &e))
		for (uint64_t i = 0; i < e.n; i++) {
			uint32_t entry = p->entry_of[e.place + i];
			const struct mem_entry *x;

			if (!is_shared(p->kin_of[e.place + i]))
				continue;
			*shared = true;
			if (entry == NOBODY)
				continue;
			x = &p->f->entry[entry];
			for (k = 0; k < n; k++)
				if (list[k].stretch == x->stretch &&
				    list[k].shift == x->slot - (e.page + i))
					break;
			if (k == n && n < CANDIDATES)
				list[n++] =
					(struct candidate){ x->stretch, x->slot - (e.page + i), 0 };
			if (k < n)
				list[k].n++;
		}
	best->n = 0;
	for (k = 0; k < n; k++)
		if (list[k].n > best->n && fits(p, &list[k]))
			*best = list[k];
	return best->n;
}

/*
 * Two tasks' different pages have no room in one stretch, and those of the second would be
 * filled in each copy. Is that less than to have its common ones a second time for all copies?
 */
static bool is_worth_joining(const struct plan *p, const struct candidate *c)
{
	return !p->copies || c->n >= (count_pages(p) - c->n) * (p->copies - 1);
}

static int new_stretch(struct plan *p, struct candidate *c, struct ckpt_error *err)
{
	struct mem_family *f = p->f;
	struct mem_stretch *all =
		mem_grow(f->stretch, f->n_stretches, &f->cap_stretches, sizeof(*all));

	if (!all)
		return ckpt_fail(err, ENOMEM, "out of memory");
	f->stretch = all;
	all[f->n_stretches] = (struct mem_stretch){ .lo = p->start,
						    .hi = p->end,
						    .like = p->like,
						    .file = file_page(p->like),
						    .maker = NOBODY };
	*c = (struct candidate){ .stretch = (uint32_t)f->n_stretches++ };
	return 0;
}

static int add_use(struct plan *p, const struct candidate *c, struct ckpt_error *err)
{
	struct mem_family *f = p->f;
	struct mem_stretch *s = &f->stretch[c->stretch];
	struct mem_use *all = mem_grow(f->use, f->n_uses, &f->cap_uses, sizeof(*all));

	if (!all)
		return ckpt_fail(err, ENOMEM, "out of memory");
	f->use = all;
	all[f->n_uses++] =
		(struct mem_use){ p->kin, c->stretch, p->start, p->end, c->shift, false };
	f->kin[p->kin].n_uses++;
	s->n_uses++;
	if (p->start + c->shift < s->lo)
		s->lo = p->start + c->shift;
	if (p->end + c->shift > s->hi)
		s->hi = p->end + c->shift;
	return 0;
}

static int add_entry(struct plan *p, const struct mem_entry *e, struct ckpt_error *err)
{
	struct mem_family *f = p->f;
	struct mem_entry *all = mem_grow(f->entry, f->n_entries, &f->cap_entries, sizeof(*all));

	if (!all)
		return ckpt_fail(err, ENOMEM, "out of memory");
	f->entry = all;
	p->entry_of[e->place] = (uint32_t)f->n_entries;
	all[f->n_entries++] = *e;
	return 0;
}

static size_t first_entry(const struct mem_family *f, uint32_t stretch, uint64_t slot)
{
	size_t lo = 0, hi = f->n_entries;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;
		const struct mem_entry *e = &f->entry[mid];

		if (e->stretch < stretch || (e->stretch == stretch && e->slot < slot))
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* What fewer pages cost as mappings on their way is more than their copies. */
#define WORTH_PAGES 16

static int add_entries(struct plan *p, const struct candidate *c, struct ckpt_error *err)
{
	struct mem_extent e;
	int r = 0;

	for (size_t at = 0; !r && next_part(&p->f->kin[p->kin], p->start, p->end, &at, &e);)
		for (uint64_t i = 0; !r && i < e.n; i++) {
			uint32_t of = p->kin_of[e.place + i], entry = p->entry_of[e.place + i];
			bool mine = entry != NOBODY && p->f->entry[entry].stretch == c->stretch;

			if (p->copies ? !mine : is_shared(of) && entry == NOBODY)
				r = add_entry(p,
					      &(struct mem_entry){ e.page + i + c->shift,
								   e.place + i, c->stretch,
								   p->copies ? 0 : of & ~SHARED },
					      err);
		}
	return r;
}

/*
 * A part of a stretch that was filled before: what tasks of this copy share, and what has
 * another page in its place there, their own ancestor fills.
 */
static int take_use(struct plan *p, const struct mem_use *u, struct ckpt_error *err)
{
	const struct mem_family *by = p->f->before;
	const struct candidate c = { u->stretch, u->shift, 0 };
	size_t at = 0, i = first_entry(by, u->stretch, u->start + u->shift);
	struct mem_extent e;
	int r = add_use(p, &c, err);

	while (!r && p->forked && next_part(&p->f->kin[p->kin], p->start, p->end, &at, &e))
		for (; !r && e.n; e.page++, e.place++, e.n--) {
			const uint32_t of = p->kin_of[e.place];
			const uint64_t slot = e.page + u->shift;

			if (!is_shared(of) || p->entry_of[e.place] != NOBODY)
				continue;
			while (i < by->n_entries && by->entry[i].stretch == u->stretch &&
			       by->entry[i].slot < slot)
				i++;
			/* the root's page would be everybody's, instead of the one that is there */
			if (i < by->n_entries && by->entry[i].stretch == u->stretch &&
			    by->entry[i].slot == slot &&
			    (by->entry[i].place == e.place || !(of & ~SHARED)))
				continue;
			r = add_entry(
				p, &(struct mem_entry){ slot, e.place, u->stretch, of & ~SHARED },
				err);
		}
	return r;
}

static int find_place(struct plan *p, struct ckpt_error *err)
{
	const struct mem_family *before = p->f->before;
	const struct mem_use *u = NULL;
	struct candidate c = { 0 };
	bool shared;
	int r = 0;

	/* a copy may see another file there, in its layer */
	if (before && (p->like->kind != MEM_FILE_PRIVATE || mem_early_had(p->f, p->like->object)))
		u = mem_inherited(before, mem_family_kin(before, p->f->kin[p->kin].id),
				  p->start * MEM_PAGE);
	if (u)
		return take_use(p, u, err);
	if (p->copies && count_pages(p) < WORTH_PAGES)
		return 0;
	if (!p->copies && !p->forked)
		return 0;
	if (!find_stretch(p, &c, &shared) || !p->forked || !is_worth_joining(p, &c)) {
		if (!shared && !p->copies)
			return 0;
		r = new_stretch(p, &c, err);
	}
	if (!r)
		r = add_use(p, &c, err);
	return r < 0 ? r : add_entries(p, &c, err);
}

/* ---- who fills what, and who keeps it -----------------------------------------------------------
 */

static int compare_entries(const void *a, const void *b, void *arg)
{
	const struct mem_entry *x = a, *y = b;
	const struct plan *p = arg;
	const struct mem_kin *kin = p->f->kin;

	if (x->stretch != y->stretch)
		return x->stretch < y->stretch ? -1 : 1;
	if (x->slot != y->slot)
		return x->slot < y->slot ? -1 : 1;
	if (kin[x->kin].depth != kin[y->kin].depth)
		return kin[x->kin].depth > kin[y->kin].depth ? -1 : 1;
	if (x->kin != y->kin)
		return x->kin < y->kin ? -1 : 1;
	if (p->users && p->users[x->place] != p->users[y->place])
		return p->users[x->place] > p->users[y->place] ? -1 : 1;
	return (x->place > y->place) - (x->place < y->place);
}

static void settle_entries(const struct plan *p)
{
	struct mem_family *f = p->f;
	const uint32_t least = p->copies ? 1 : 2;
	size_t n = 0;

	qsort_r(f->entry, f->n_entries, sizeof(*f->entry), compare_entries, (void *)p);
	for (size_t i = 0; i < f->n_entries; i++) {
		const struct mem_entry e = f->entry[i], *last = n ? &f->entry[n - 1] : NULL;
		struct mem_stretch *s = &f->stretch[e.stretch];

		/* a stretch that only one has is nothing to share; a page has one filler in a task
		 */
		if (s->n_uses < least || (last && last->stretch == e.stretch &&
					  last->slot == e.slot && last->kin == e.kin))
			continue;
		s->maker = s->maker == NOBODY ? e.kin : ancestor(f, s->maker, e.kin);
		f->kin[e.kin].fills = true;
		f->entry[n++] = e;
	}
	f->n_entries = n;
}

/* Entries of a family, in order of slots. */
struct cursor {
	const struct mem_family *f;
	uint32_t stretch;
	size_t i;
	uint64_t end;
};

static struct cursor look_at(const struct mem_family *f, const struct mem_use *u)
{
	return (struct cursor){ f, u->stretch,
				f ? first_entry(f, u->stretch, u->start + u->shift) : 0,
				u->end + u->shift };
}

/* The slot of the next one; UINT64_MAX: there is none. */
static uint64_t next_slot(const struct cursor *c)
{
	const struct mem_entry *e = c->f && c->i < c->f->n_entries ? &c->f->entry[c->i] : NULL;

	return e && e->stretch == c->stretch && e->slot < c->end ? e->slot : UINT64_MAX;
}

/* Who of the ancestors of `k` was the last to write there: the deepest; NULL: none. */
static const struct mem_entry *writer(struct cursor *c, uint64_t slot, const struct mem_kin *k)
{
	const struct mem_entry *found = NULL;

	for (; next_slot(c) == slot; c->i++) {
		const struct mem_entry *e = &c->f->entry[c->i];

		if (!found && (!k || mem_kin_covers(&c->f->kin[e->kin], k)))
			found = e;
	}
	return found;
}

/* What a task finds in its part of a stretch: its own pages are kept. */
static int sort_out(struct mem_family *f, const struct mem_use *u, struct ckpt_error *err)
{
	struct cursor here = look_at(f, u), before = look_at(f->before, u);
	struct mem_kin *k = &f->kin[u->kin];
	struct mem_extent own = { 0 };
	size_t n_drop = k->drop.n, at = 0;
	bool more = true;
	int r = 0;

	for (;;) {
		uint64_t slot = next_slot(&here), page;
		const struct mem_entry *found, *first;

		if (next_slot(&before) < slot)
			slot = next_slot(&before);
		if (slot == UINT64_MAX || r < 0)
			return r;
		found = writer(&here, slot, k);
		/* before there were copies all that was written was everybody's */
		first = writer(&before, slot, NULL);
		found = found ? found : first;
		if (!found)
			continue;
		page = slot - u->shift;
		while (more && own.page + own.n <= page)
			more = next_part(k, u->start, u->end, &at, &own);
		if (more && own.page <= page && own.place + (page - own.page) == found->place)
			r = mem_runs_add(&k->keep, page, 1, err);
		else if (k->drop.n > n_drop)
			r = mem_runs_add(&k->drop, page, 1, err);
		else /* not across the parts of two stretches */
			r = mem_runs_append(&k->drop, page, 1, err);
	}
}

static int compare_uses(const void *a, const void *b, void *arg)
{
	const struct mem_family *f = arg;
	const struct mem_use *x = &f->use[*(const uint32_t *)a];
	const struct mem_use *y = &f->use[*(const uint32_t *)b];

	if (x->stretch != y->stretch)
		return x->stretch < y->stretch ? -1 : 1;
	return f->kin[x->kin].rank < f->kin[y->kin].rank
		       ? -1
		       : f->kin[x->kin].rank > f->kin[y->kin].rank;
}

static int sort_uses(struct mem_family *f, struct ckpt_error *err)
{
	f->by_stretch = calloc(f->n_uses + 1, sizeof(*f->by_stretch));
	if (!f->by_stretch)
		return ckpt_fail(err, ENOMEM, "out of memory");
	for (uint32_t i = 0; i < f->n_uses; i++)
		f->by_stretch[i] = i;
	qsort_r(f->by_stretch, f->n_uses, sizeof(*f->by_stretch), compare_uses, f);
	return 0;
}

static int plan_all(struct plan *p, struct ckpt_error *err)
{
	struct mem_family *f = p->f;
	int r = 0;

	for (p->kin = 0; !r && p->kin < f->n_kin; p->kin++)
		if (f->kin[p->kin].ti)
			r = load_extents(&f->kin[p->kin], err);
	for (p->kin = 0; !r && p->kin < f->n_kin; p->kin++)
		if (f->kin[p->kin].ti)
			r = each_group(p, note_holders, err);
	for (p->kin = 0; !r && p->kin < f->n_kin; p->kin++) {
		f->kin[p->kin].use = f->n_uses;
		if (f->kin[p->kin].ti)
			r = each_group(p, find_place, err);
	}
	if (r < 0)
		return r;
	settle_entries(p);
	if (p->copies)
		return 0;
	r = sort_uses(f, err);
	for (size_t i = 0; !r && i < f->n_uses; i++)
		if (f->stretch[f->use[i].stretch].maker != NOBODY)
			r = sort_out(f, &f->use[i], err);
	return r;
}

static bool is_any_shared(const struct mem_image *im)
{
	for (size_t i = 0; i < im->n_tasks; i++)
		if (im->tasks[i].pages->n_again)
			return true;
	return false;
}

/* The stretches that are there already, with nothing but the root that has them. */
static int take_stretches(struct mem_family *f, struct ckpt_error *err)
{
	size_t n = f->before ? f->before->n_stretches : 0;

	f->stretch = calloc(n + 1, sizeof(*f->stretch));
	if (!f->stretch)
		return ckpt_fail(err, ENOMEM, "out of memory");
	f->n_stretches = n;
	f->cap_stretches = n + 1;
	for (size_t i = 0; i < n; i++) {
		f->stretch[i] = f->before->stretch[i];
		f->stretch[i].maker = f->stretch[i].at ? 0 : NOBODY;
		f->stretch[i].n_uses = 0;
	}
	return 0;
}

static int plan_family(struct plan *p, const struct ckpt_kin *kin, uint64_t places,
		       struct ckpt_error *err)
{
	CKPT_AUTO_FREE uint32_t *kin_of = malloc((places + 1) * sizeof(*kin_of));
	CKPT_AUTO_FREE uint32_t *entry_of = malloc((places + 1) * sizeof(*entry_of));
	CKPT_AUTO_FREE uint32_t *users = p->copies ? calloc(places + 1, sizeof(*users)) : NULL;
	struct mem_family *f = p->f;
	int r;

	p->kin_of = kin_of;
	p->entry_of = entry_of;
	p->users = users;
	if (!kin_of || !entry_of || (p->copies && !users))
		return ckpt_fail(err, ENOMEM, "out of memory");
	memset(kin_of, 0xff, (places + 1) * sizeof(*kin_of));
	memset(entry_of, 0xff, (places + 1) * sizeof(*entry_of));
	r = load_kin(f, kin, err);
	if (!r && p->files)
		r = mem_early_look(f, p->copies || f->before, err);
	if (!r)
		r = take_stretches(f, err);
	if (!r)
		r = plan_all(p, err);
	for (size_t i = 0; f->kin && i < f->n_kin; i++) {
		free(f->kin[i].extent);
		f->kin[i].extent = NULL;
	}
	return r;
}

/* The plan is made with `p`, whose family it is. */
static int make_plan(struct ckpt_run *run, struct plan *p, const struct mem_image *im,
		     const struct ckpt_kin *kin, size_t n, struct mem_family **out,
		     struct ckpt_error *err)
{
	struct mem_family *f = calloc(1, sizeof(*f));
	uint64_t size;
	int r;

	if (!f)
		return ckpt_fail(err, ENOMEM, "out of memory");
	*f = (struct mem_family){ .im = im,
				  .n_kin = n,
				  .pages_fd = -1,
				  .clone = -1,
				  .before = p->copies ? NULL : mem_before_copies(run) };
	p->f = f;
	p->files = ckpt_opt_bool(run, "share-files");
	r = ckpt_pages_open(run, MEM_PAGES_NAME, &f->pages_fd, &size, err);
	if (!r)
		r = plan_family(p, kin, size / MEM_PAGE, err);
	if (r < 0)
		mem_family_free(f);
	else
		*out = f;
	return r;
}

int mem_family_plan(struct ckpt_run *run, const struct mem_image *im, const struct ckpt_kin *kin,
		    size_t n, struct mem_family **out, struct ckpt_error *err)
{
	struct plan p = { .forked = n > 1 && is_any_shared(im) &&
				    ckpt_feature_on(run, "fork-shared") };

	*out = NULL;
	if (!n || (!p.forked && !mem_before_copies(run)))
		return 0;
	return make_plan(run, &p, im, kin, n, out, err);
}

int mem_family_plan_copies(struct ckpt_run *run, const struct mem_image *im, unsigned copies,
			   struct mem_family **out, struct ckpt_error *err)
{
	CKPT_AUTO_FREE struct ckpt_kin *kin = calloc(im->n_tasks + 1, sizeof(*kin));
	struct plan p = { .copies = copies, .forked = ckpt_feature_on(run, "fork-shared") };

	if (!kin)
		return ckpt_fail(err, ENOMEM, "out of memory");
	for (size_t i = 0; i < im->n_tasks; i++)
		kin[i + 1].id = im->tasks[i].id;
	return make_plan(run, &p, im, kin, im->n_tasks + 1, out, err);
}

void mem_family_free(struct mem_family *f)
{
	if (!f)
		return;
	for (size_t i = 0; f->kin && i < f->n_kin; i++) {
		free(f->kin[i].extent);
		free(f->kin[i].hidden);
		mem_runs_free(&f->kin[i].keep);
		mem_runs_free(&f->kin[i].drop);
	}
	if (f->pages_fd >= 0)
		close(f->pages_fd);
	mem_early_done(f);
	free(f->early);
	free(f->kin);
	free(f->by_id);
	free(f->stretch);
	free(f->use);
	free(f->by_stretch);
	free(f->entry);
	free(f);
}
