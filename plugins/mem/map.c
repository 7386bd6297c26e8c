/* SPDX-License-Identifier: MIT */
/*
 * The memory of every task, made by scripts in it: clear everything but the
 * agent, map, fill, protect, advise, lock, and tell the kernel the layout.
 */
#include <asm/prctl.h>
#include <fcntl.h>
#include <linux/prctl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>

#include "family.h"

#ifndef ARCH_MAP_VDSO_64
#define ARCH_MAP_VDSO_64 0x2003
#endif

struct mapper {
	struct mem_job j;
	struct mem_lender lend;
	uint64_t agent_start, agent_end;
	uint64_t scratch; /* room for one piece of memory to be moved into place; 0: none */
	const struct mem_family *family; /* or NULL */
	const struct mem_kin *kin;	 /* this task in it, or NULL */
	int exe_num;			 /* number of the executed file in the task; -1 */
	int *prots;			 /* what each mapping allows until it is filled */
};

/* ---- lending ----------------------------------------------------------------- */

/*
 * Places in the lender's table: read-only files, writable ones, shared objects, the executed file.
 */
static size_t slots(const struct mem_image *im)
{
	return im->n_files * 2 + im->n_shared + 1;
}

static int lend_file(struct mapper *m, uint32_t id, bool write, struct ckpt_error *err)
{
	const struct mem_image *im = m->j.im;
	size_t slot = id - 1 + (write ? im->n_files : 0);

	return mem_lend_file(&m->lend, m->j.s, slot, im, im->files[id - 1],
			     write ? O_RDWR : O_RDONLY, err);
}

static int lend_shared(struct mapper *m, uint32_t id)
{
	return mem_lend(&m->lend, m->j.s, m->j.im->n_files * 2 + id - 1, m->lend.shared[id - 1]);
}

/* PR_SET_MM_MAP takes the number out of a structure: it has to be known beforehand. */
static int lend_exe(struct mapper *m, struct ckpt_error *err)
{
	const mem_space_rec *sp = m->j.ti->space;
	int op;

	m->exe_num = -1;
	if (!sp->exe || !sp->start_code)
		return 0;
	/*
	 * With the others closed, above the restored descriptors there are two of ckpt's,
	 * and maybe this file: the number after these is free.
	 */
	mem_lend_end(&m->lend, m->j.s);
	op = mem_lend_file(&m->lend, m->j.s, slots(m->j.im) - 1, m->j.im,
			   m->j.im->files[sp->exe - 1], O_RDONLY, err);
	if (op < 0)
		return op;
	m->exe_num = ckpt_engine_fd(m->j.run) + 3;
	ckpt_script_add(m->j.s, SYS_fcntl, CKPT_R(op), CKPT_C(F_DUPFD_CLOEXEC), CKPT_C(m->exe_num));
	ckpt_script_expect(m->j.s, m->exe_num);
	return 0;
}

/* Run what the script has so far, and start a new one. */
static int run_script(struct mapper *m, struct ckpt_error *err)
{
	int r;

	mem_lend_end(&m->lend, m->j.s);
	r = ckpt_script_run(m->j.s, m->j.task->threads[0], err);
	mem_lend_drop(&m->lend);
	ckpt_script_free(m->j.s);
	m->j.s = ckpt_script_new(m->j.run, "mem.map");
	return r;
}

/*
 * The same without waiting: what is lent stays open until mappers_settle(). Whoever shares
 * descriptors with others does not take numbers while they do.
 */
static int start_script(struct mapper *m, struct ckpt_error *err)
{
	int r;

	if (ckpt_table_users(m->j.task) > 1)
		return run_script(m, err);
	mem_lend_end(&m->lend, m->j.s);
	r = ckpt_script_post(ckpt_steal_ptr(&m->j.s), m->j.task->threads[0], err);
	m->j.s = ckpt_script_new(m->j.run, "mem.map");
	return r;
}

/* ---- places ---------------------------------------------------------------------- */

#define KEPT 3

/* Ranges that a task keeps while it is mapped, in order: the agent's, and what it has inherited. */
static size_t kept_ranges(const struct mapper *m, struct mem_range kept[KEPT])
{
	const struct mem_family *f = m->family;
	size_t n = 0;

	kept[n++] = (struct mem_range){ m->agent_start, m->agent_end };
	for (; f; f = f->before) {
		size_t at = n;

		if (!f->start)
			continue;
		for (; at && kept[at - 1].start > f->start; at--)
			kept[at] = kept[at - 1];
		kept[at] = (struct mem_range){ f->start, f->end };
		n++;
	}
	return n;
}

/* A stretch of `len` bytes that touches neither a mapping nor what is kept. */
static uint64_t find_hole(const struct mapper *m, uint64_t len)
{
	const mem_vmas_rec *v = m->j.ti->vmas;
	const uint64_t gap = 256 * MEM_PAGE;
	uint64_t at = 1ull << 32;
	struct mem_range kept[KEPT];
	size_t n = kept_ranges(m, kept), k = 0;

	for (size_t i = 0; i <= v->n_vma; i++) {
		uint64_t end = i < v->n_vma ? v->vma[i]->start : MEM_TASK_SIZE;

		for (; k < n && kept[k].start < end; k++) {
			if (kept[k].start > at && kept[k].start - at >= len + gap)
				return at;
			if (kept[k].end + gap > at)
				at = kept[k].end + gap;
		}
		if (end > at && end - at >= len + gap)
			return at;
		if (i < v->n_vma && v->vma[i]->end + gap > at)
			at = v->vma[i]->end + gap;
	}
	return 0;
}

/* Where the mappings end that follow each other without a gap from the v-th on. */
static uint64_t chain_end(const mem_vmas_rec *m, size_t v)
{
	while (v + 1 < m->n_vma && m->vma[v + 1]->start == m->vma[v]->end)
		v++;
	return m->vma[v]->end;
}

static uint64_t longest_seam_piece(const mem_vmas_rec *m)
{
	uint64_t max = MEM_PAGE;
	size_t v = 0;

	for (size_t i = 0; i < m->n_seam; i++) {
		uint64_t end;

		while (v < m->n_vma && m->vma[v]->end <= m->seam[i])
			v++;
		if (v == m->n_vma)
			break;
		end = i + 1 < m->n_seam ? m->seam[i + 1] : UINT64_MAX;
		if (end > m->vma[v]->end)
			end = chain_end(m, v) < end ? chain_end(m, v) : end;
		if (end - m->seam[i] > max)
			max = end - m->seam[i];
	}
	return max;
}

/* ---- mapping ------------------------------------------------------------------------ */

static void clear(struct mapper *m)
{
	struct ckpt_script *s = m->j.s;
	struct mem_range kept[KEPT];
	size_t n = kept_ranges(m, kept);
	uint64_t from = 0;

	for (size_t i = 0; i < n; i++) {
		if (kept[i].start > from)
			ckpt_script_add(s, SYS_munmap, CKPT_C(from), CKPT_C(kept[i].start - from));
		from = kept[i].end;
	}
	ckpt_script_add(s, SYS_munmap, CKPT_C(from), CKPT_C(MEM_TASK_SIZE_LA57 - from));
	/* without five levels of page tables: */
	ckpt_script_allow(s, EINVAL);
	if (from < MEM_TASK_SIZE)
		ckpt_script_add(s, SYS_munmap, CKPT_C(from), CKPT_C(MEM_TASK_SIZE - from));
}

static void advise(struct ckpt_script *s, uint64_t start, uint64_t len, const mem_vma_rec *v)
{
	for (const struct mem_advice *a = mem_advices; a->flag; a++)
		/* these two follow from the kind of mapping */
		if (v->flags & a->flag &&
		    !(v->flags & MEM_DROPPABLE && a->flag & (MEM_WIPEONFORK | MEM_DONTDUMP)))
			ckpt_script_add(s, SYS_madvise, CKPT_C(start), CKPT_C(len),
					CKPT_C(a->advice));
	if (v->name[0]) {
		ckpt_script_add(s, SYS_prctl, CKPT_C(PR_SET_VMA), CKPT_C(PR_SET_VMA_ANON_NAME),
				CKPT_C(start), CKPT_C(len), CKPT_STR(v->name));
		/* names are an option of the kernel's */
		ckpt_script_allow(s, EINVAL);
	}
}

static void map_at(struct ckpt_script *s, uint64_t start, uint64_t len, int prot, int flags,
		   struct ckpt_arg fd, uint64_t offset)
{
	/* never over something: the agent would be the first victim of a bad image */
	ckpt_script_add(s, SYS_mmap, CKPT_C(start), CKPT_C(len), CKPT_C(prot),
			CKPT_C(flags | MAP_FIXED_NOREPLACE), fd, CKPT_C(offset));
	ckpt_script_expect(s, (int64_t)start);
}

/*
 * A piece of anonymous memory that the kernel shall not merge with its
 * predecessor: it gets its first page elsewhere, which fixes where its pages
 * count from, and is moved into place.
 */
static void map_apart(struct mapper *m, uint64_t start, uint64_t len, int prot,
		      const mem_vma_rec *v)
{
	struct ckpt_script *s = m->j.s;
	uint64_t at = m->scratch;

	map_at(s, at, len, prot, mem_map_flags(v), CKPT_C(-1), 0);
	ckpt_script_add(s, SYS_madvise, CKPT_C(at), CKPT_C(MEM_PAGE), CKPT_C(MADV_POPULATE_WRITE));
	ckpt_script_allow(s, EINVAL);
	advise(s, at, len, v);
	ckpt_script_add(s, SYS_mremap, CKPT_C(at), CKPT_C(len), CKPT_C(len),
			CKPT_C(MREMAP_MAYMOVE | MREMAP_FIXED), CKPT_C(start));
	ckpt_script_expect(s, (int64_t)start);
	ckpt_script_add(s, SYS_madvise, CKPT_C(start), CKPT_C(MEM_PAGE), CKPT_C(MADV_DONTNEED));
}

static void map_anon(struct mapper *m, const mem_vma_rec *v, int prot, size_t *seam)
{
	const mem_vmas_rec *all = m->j.ti->vmas;
	uint64_t at = v->start;
	bool apart = false;

	while (*seam < all->n_seam && all->seam[*seam] <= v->start)
		++*seam;
	while (at < v->end) {
		uint64_t end = v->end;

		/* memory that cannot be touched has nothing to keep it apart by */
		if (m->scratch && *seam < all->n_seam && all->seam[*seam] < v->end &&
		    prot & PROT_WRITE && !(v->flags & MEM_HUGETLB))
			end = all->seam[(*seam)++];
		if (apart) {
			map_apart(m, at, end - at, prot, v);
		} else {
			map_at(m->j.s, at, end - at, prot, mem_map_flags(v), CKPT_C(-1), 0);
			advise(m->j.s, at, end - at, v);
		}
		apart = true;
		at = end;
	}
}

struct ext_call {
	const struct ckpt_vma_kind *kind;
	struct mapper *m;
	uint64_t start;
};

static int ask_map(struct ckpt_run *run, void *arg, struct ckpt_error *err)
{
	struct ext_call *c = arg;

	return c->kind->map(run, c->m->j.task, c->start, c->m->j.s, err);
}

static int map_extension(struct mapper *m, const mem_vma_rec *v, struct ckpt_error *err)
{
	const char *plugin;
	const struct ckpt_extension *e = mem_extension(m->j.run, v->name, &plugin);
	struct ext_call c = { e ? e->ops : NULL, m, v->start };

	if (!e)
		return ckpt_fail(err, ENOENT, "no plugin has the kind '%s'", v->name);
	return ckpt_call_as(m->j.run, plugin, ask_map, &c, err);
}

static int map_vma(struct mapper *m, const mem_vma_rec *v, int prot, size_t *seam,
		   struct ckpt_error *err)
{
	int op;

	switch (v->kind) {
	case MEM_SPECIAL:
		return 0;
	case MEM_EXTENSION:
		return map_extension(m, v, err);
	case MEM_PRIVATE_ANON:
		map_anon(m, v, prot, seam);
		return 0;
	case MEM_SHARED_ANON:
		op = lend_shared(m, v->object);
		break;
	default:
		op = lend_file(m, v->object, v->flags & MEM_MAYWRITE, err);
	}
	if (op < 0)
		return op;
	map_at(m->j.s, v->start, v->end - v->start, prot, mem_map_flags(v), CKPT_R(op), v->offset);
	advise(m->j.s, v->start, v->end - v->start, v);
	return 0;
}

static void map_vdso(struct mapper *m)
{
	const mem_vmas_rec *v = m->j.ti->vmas;

	for (size_t i = 0; i < v->n_vma; i++) {
		if (v->vma[i]->kind != MEM_SPECIAL)
			continue;
		/* comes in one piece; the address is only a hint, the check below tells */
		ckpt_script_add(m->j.s, SYS_arch_prctl, CKPT_C(ARCH_MAP_VDSO_64),
				CKPT_C(v->vma[i]->start));
		return;
	}
}

/* Is a part of that mapping, or group of mappings, inherited? */
static bool is_inherited(const struct mapper *m, const mem_vma_rec *v)
{
	for (uint64_t at = v->start; m->kin && at < v->end;
	     at = mem_seam_after(m->j.ti->vmas, at, v->end))
		if (mem_inherited(m->family, m->kin, at))
			return true;
	return false;
}

/* Mappings [i, next), which are `v` together: what is inherited is moved, the rest is made. */
static int map_inherited(struct mapper *m, const mem_vma_rec *v, int *prots, size_t i, size_t next,
			 size_t *seam, struct ckpt_error *err)
{
	mem_vma_rec part = *v;
	int r = 0;

	for (; i < next; i++)
		prots[i] = PROT_READ | PROT_WRITE;
	for (part.end = v->start; !r && part.end < v->end;) {
		const struct mem_use *u = mem_inherited(m->family, m->kin, part.end);

		part.start = part.end;
		part.end = mem_seam_after(m->j.ti->vmas, part.start, v->end);
		part.offset = v->offset + (part.start - v->start);
		if (u) {
			mem_inherit(m->family, m->kin, u, m->j.s);
			advise(m->j.s, part.start, part.end - part.start, v);
		} else {
			r = map_vma(m, &part, PROT_READ | PROT_WRITE, seam, err);
		}
	}
	return r;
}

static int map_groups(struct mapper *m, int *prots, struct ckpt_error *err)
{
	const mem_vmas_rec *all = m->j.ti->vmas;
	char name[MEM_NAME_MAX];
	size_t seam = 0, next;

	for (size_t i = 0; i < all->n_vma; i = next) {
		mem_vma_rec v = *all->vma[i];
		int r;

		next = mem_group_end(all, prots, i);
		v.end = all->vma[next - 1]->end;
		r = is_inherited(m, &v) ? map_inherited(m, &v, prots, i, next, &seam, err)
					: map_vma(m, &v, prots[i], &seam, err);
		if (r < 0)
			return ckpt_wrap(err, "%s", mem_rec_name(m->j.im, &v, name, sizeof(name)));
		r = m->lend.open < MEM_MAX_OPEN ? 0 : run_script(m, err);
		if (r < 0)
			return r;
	}
	return 0;
}

static int map_all(struct mapper *m, struct ckpt_error *err)
{
	const struct mem_task_image *ti = m->j.ti;
	int r;

	m->prots = calloc(ti->vmas->n_vma + 1, sizeof(*m->prots));
	if (!m->prots)
		return ckpt_fail(err, ENOMEM, "out of memory");
	mem_first_prots(ti, m->prots);
	clear(m);
	map_vdso(m);
	r = map_groups(m, m->prots, err);
	for (const struct mem_family *f = m->family; f; f = f->before)
		if (f->start)
			ckpt_script_add(m->j.s, SYS_munmap, CKPT_C(f->start),
					CKPT_C(f->end - f->start));
	return r;
}

/* Contents are in place: what the mappings shall be like from now on. */
static void protect_all(struct mapper *m)
{
	const struct mem_task_image *ti = m->j.ti;

	for (size_t i = 0; i < ti->pages->n_guard; i++)
		ckpt_script_add(m->j.s, SYS_madvise, CKPT_C(ti->pages->guard[i] * MEM_PAGE),
				CKPT_C(ti->pages->guards[i] * MEM_PAGE),
				CKPT_C(MADV_GUARD_INSTALL));
	for (size_t i = 0; i < ti->vmas->n_vma; i++) {
		const mem_vma_rec *v = ti->vmas->vma[i];

		if (m->prots[i] != (int)v->prot)
			ckpt_script_add(m->j.s, SYS_mprotect, CKPT_C(v->start),
					CKPT_C(v->end - v->start), CKPT_C(v->prot));
	}
}

/* ---- afterwards: the layout, locks ---------------------------------------------------- */

static void lock_all(struct mapper *m)
{
	const mem_vmas_rec *all = m->j.ti->vmas;

	for (size_t i = 0; i < all->n_vma; i++) {
		const mem_vma_rec *v = all->vma[i];

		if (!(v->flags & MEM_LOCKED))
			continue;
		ckpt_script_add(m->j.s, SYS_mlock2, CKPT_C(v->start), CKPT_C(v->end - v->start),
				CKPT_C(v->flags & MEM_ONFAULT ? MLOCK_ONFAULT : 0));
		/* locked, but there is nothing that could be brought in: PROT_NONE, past a file */
		ckpt_script_allow(m->j.s, ENOMEM);
	}
}

/* After the last mapping: it would be populated, and count, before it is filled. */
static void lock_future(struct mapper *m)
{
	if (m->j.ti->space->lock_future)
		ckpt_script_add(m->j.s, SYS_mlockall, CKPT_C(m->j.ti->space->lock_future));
}

static void seal_all(struct mapper *m)
{
	const mem_vmas_rec *all = m->j.ti->vmas;

	for (size_t i = 0; i < all->n_vma; i++)
		if (all->vma[i]->flags & MEM_SEALED)
			ckpt_script_add(m->j.s, SYS_mseal, CKPT_C(all->vma[i]->start),
					CKPT_C(all->vma[i]->end - all->vma[i]->start), CKPT_C(0));
}

/*
 * The auxiliary vector is a pointer within the structure; its buffer rides along
 * as a sixth argument, which prctl(2) does not look at.
 */
static void set_layout(struct mapper *m)
{
	const mem_space_rec *sp = m->j.ti->space;
	struct prctl_mm_map map = {
		.start_code = sp->start_code,
		.end_code = sp->end_code,
		.start_data = sp->start_data,
		.end_data = sp->end_data,
		.start_brk = sp->start_brk,
		.brk = sp->brk,
		.start_stack = sp->start_stack,
		.arg_start = sp->arg_start,
		.arg_end = sp->arg_end,
		.env_start = sp->env_start,
		.env_end = sp->env_end,
		.auxv_size = (uint32_t)sp->auxv.len,
		.exe_fd = (uint32_t)m->exe_num,
	};
	int op;

	if (!sp->start_code)
		return;
	op = ckpt_script_add(m->j.s, SYS_prctl, CKPT_C(PR_SET_MM), CKPT_C(PR_SET_MM_MAP),
			     CKPT_IN(&map, sizeof(map)), CKPT_C(sizeof(map)), CKPT_C(0),
			     CKPT_IN(sp->auxv.data, sp->auxv.len));
	if (sp->auxv.len)
		ckpt_script_pointer(m->j.s, op, 2, offsetof(struct prctl_mm_map, auxv), op, 5, 0);
}

/* ---- one task --------------------------------------------------------------------------- */

/* The mappings, writable as yet. */
static int task_begin(struct mapper *m, struct ckpt_error *err)
{
	int r;

	ckpt_agent_range(m->j.run, &m->agent_start, &m->agent_end);
	if (m->j.ti->vmas->n_seam)
		m->scratch = find_hole(m, longest_seam_piece(m->j.ti->vmas));
	r = map_all(m, err);
	mem_policies_script(m->j.s, m->j.ti->vmas);
	return r < 0 ? r : start_script(m, err);
}

static int task_protect(struct mapper *m, struct ckpt_error *err)
{
	int r;

	protect_all(m);
	r = lend_exe(m, err);
	if (r < 0)
		return r;
	set_layout(m);
	if (m->exe_num >= 0)
		ckpt_script_add(m->j.s, SYS_close, CKPT_C(m->exe_num));
	lock_all(m);
	lock_future(m);
	seal_all(m);
	return start_script(m, err);
}

static int task_end(struct mapper *m, struct ckpt_error *err)
{
	int r = mem_fill_forced(&m->j, err);

	return r ? r : mem_map_check(&m->j, err);
}

/* ---- all tasks -------------------------------------------------------------------------- */

/* What all tasks' mappings are made from, and those that are being made. */
struct mappers {
	struct ckpt_run *run;
	const struct mem_image *im;
	const struct mem_family *family;
	int pages_fd;
	int *shared;
	struct mapper *m;
	size_t n;
	size_t lent; /* descriptors that scripts under way may want */
};

static void mappers_free(struct mappers *all)
{
	for (size_t i = 0; i < all->n; i++) {
		ckpt_script_free(all->m[i].j.s);
		mem_lend_free(&all->m[i].lend);
		free(all->m[i].prots);
	}
	for (size_t i = 0; all->shared && i < all->im->n_shared; i++)
		if (all->shared[i] >= 0)
			close(all->shared[i]);
	free(all->shared);
	free(all->m);
}

static int mappers_init(struct mappers *all, struct ckpt_error *err)
{
	all->m = calloc(ckpt_task_count(all->run) + 1, sizeof(*all->m));
	all->shared = calloc(all->im->n_shared + 1, sizeof(*all->shared));
	if (!all->m || !all->shared)
		return ckpt_fail(err, ENOMEM, "out of memory");
	memset(all->shared, -1, all->im->n_shared * sizeof(*all->shared));
	return 0;
}

static int mappers_settle(struct mappers *all, struct ckpt_error *err)
{
	int r = ckpt_script_settle(all->run, err);

	for (size_t i = 0; i < all->n; i++)
		mem_lend_drop(&all->m[i].lend);
	all->lent = 0;
	return r;
}

/* Of more tasks than are at work at a time none need be open. */
#define MAX_LENT 64

static int mappers_started(struct mappers *all, const struct mapper *m, struct ckpt_error *err)
{
	for (size_t i = 0; i < m->lend.n; i++)
		all->lent += m->lend.slot[i].fd >= 0;
	return all->lent < MAX_LENT ? 0 : mappers_settle(all, err);
}

static int add_task(struct mappers *all, struct mem_filler *f, struct ckpt_task *t,
		    struct ckpt_error *err)
{
	const struct mem_task_image *ti = t->zombie ? NULL : mem_image_task(all->im, t->id);
	struct mapper *m = &all->m[all->n];
	int r;

	if (!ti)
		return 0;
	all->n++;
	*m = (struct mapper){ .j = { .run = all->run,
				     .im = all->im,
				     .ti = ti,
				     .task = t,
				     .s = ckpt_script_new(all->run, "mem.map"),
				     .pages_fd = all->pages_fd },
			      .family = all->family,
			      .kin = mem_family_kin(all->family, t->id),
			      .exe_num = -1 };
	m->j.keep = m->kin ? &m->kin->keep : NULL;
	r = mem_lend_init(&m->lend, all->run, slots(all->im), err);
	m->lend.shared = all->shared;
	if (!r)
		r = task_begin(m, err);
	if (!r)
		r = mappers_started(all, m, err);
	return r < 0 ? r : mem_fill_task(f, &m->j, err);
}

static int each_mapper(struct mappers *all, int (*fn)(struct mapper *, struct ckpt_error *),
		       struct ckpt_error *err)
{
	char name[64];

	for (size_t i = 0; i < all->n; i++) {
		int r = fn(&all->m[i], err);

		if (!r)
			r = mappers_started(all, &all->m[i], err);
		if (r < 0)
			return ckpt_wrap(err, "%s",
					 mem_task_name(all->m[i].j.task, name, sizeof(name)));
	}
	return mappers_settle(all, err);
}

static int map_tasks(struct mappers *all, struct ckpt_error *err)
{
	MEM_AUTO_FILLER struct mem_filler f = { .pages_fd = all->pages_fd };
	char name[64];
	int r = mem_shared_make(&f, all->run, all->im, all->shared, err);

	for (size_t i = 0; !r && i < ckpt_task_count(all->run); i++) {
		struct ckpt_task *t = ckpt_task_at(all->run, i);

		r = add_task(all, &f, t, err);
		if (r < 0)
			return ckpt_wrap(err, "%s", mem_task_name(t, name, sizeof(name)));
	}
	if (!r)
		r = mappers_settle(all, err);
	if (!r)
		r = mem_fill_run(&f, err);
	for (size_t i = 0; !r && i < all->im->n_shared; i++)
		if (all->im->ghost[i] && !all->im->shared[i]->open)
			r = mem_ghost_finish(all->im->ghost[i], &all->shared[i], err);
	if (r < 0)
		return r;
	r = each_mapper(all, task_protect, err);
	return r < 0 ? r : each_mapper(all, task_end, err);
}

int mem_map(struct ckpt_run *run, struct ckpt_error *err)
{
	CKPT_AUTO_FD int pages_fd = -1;
	struct mappers all;
	struct mem_state *st;
	uint64_t size;
	int r = mem_state_get(run, &st, err);

	if (!r)
		r = ckpt_pages_open(run, MEM_PAGES_NAME, &pages_fd, &size, err);
	if (!r)
		r = mem_early_check(run, st->family, err);
	if (r < 0)
		return r;
	all = (struct mappers){
		.run = run, .im = st->image, .family = st->family, .pages_fd = pages_fd
	};
	r = mappers_init(&all, err);
	if (!r)
		r = map_tasks(&all, err);
	mappers_free(&all);
	return r;
}
