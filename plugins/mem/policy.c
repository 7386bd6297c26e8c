/* SPDX-License-Identifier: MIT */
/* From which nodes a mapping's pages are taken: mbind(2). */
#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>

#include "mem.h"

/*
 * Nothing in smaps tells, and numa_maps walks all page tables; a question costs 0.4 us. What only
 * shows pages of a file that all share has no use for a policy.
 */
static bool may_have_one(const struct mem_vma *v)
{
	return !v->left_out && v->kind != MEM_SPECIAL &&
	       !(v->kind == MEM_FILE_PRIVATE && !(v->prot & PROT_WRITE));
}

static int ask(struct ckpt_script *s, const struct mem_vma *v, bool nodes)
{
	int op = ckpt_script_add(s, SYS_get_mempolicy, CKPT_OUT(sizeof(uint32_t)),
				 nodes ? CKPT_OUT(sizeof(struct ckpt_nodes)) : CKPT_C(0),
				 CKPT_C(nodes ? CKPT_MAX_NODES : 0), CKPT_C(v->start),
				 CKPT_C(MPOL_F_ADDR));

	/* of a tree that is not stopped it may be gone */
	ckpt_script_any(s);
	return op;
}

static uint32_t mode_of(const struct ckpt_script *s, int op)
{
	uint32_t mode = MPOL_DEFAULT;

	if (!ckpt_script_result(s, op))
		memcpy(&mode, ckpt_script_out(s, op, 0), sizeof(mode));
	return mode;
}

/* Which mappings have one at all: nearly always none. */
static int ask_all(struct ckpt_run *run, const struct mem_space *sp, bool *have, size_t *n,
		   struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "mem.policies");
	const struct mem_maps *maps = &sp->maps;
	int op = 0, r;

	for (size_t i = 0; i < maps->n; i++)
		if (may_have_one(&maps->vma[i]))
			ask(s, &maps->vma[i], false);
	r = ckpt_script_run(s, sp->task->threads[0], err);
	*n = 0;
	for (size_t i = 0; i < maps->n && r == 0; i++) {
		have[i] = may_have_one(&maps->vma[i]) && mode_of(s, op++) != MPOL_DEFAULT;
		*n += have[i];
	}
	return r;
}

/* Its number, known or new, from 1 on: there are few different ones. */
static int number_of(struct mem_policies *p, uint32_t mode, const struct ckpt_nodes *nodes,
		     uint32_t *number, struct ckpt_error *err)
{
	struct mem_policy *more;
	size_t i = 0;

	while (i < p->n &&
	       (p->policy[i].mode != mode || memcmp(&p->policy[i].nodes, nodes, sizeof(*nodes))))
		i++;
	*number = (uint32_t)i + 1;
	if (i < p->n)
		return 0;
	more = mem_grow(p->policy, p->n, &p->cap, sizeof(*more));
	if (!more)
		return ckpt_fail(err, ENOMEM, "out of memory");
	p->policy = more;
	more = &p->policy[p->n++];
	more->mode = mode;
	more->nodes = *nodes;
	more->n_list = ckpt_nodes_list(nodes, more->list);
	return 0;
}

static int ask_nodes(struct ckpt_run *run, const struct mem_space *sp, const bool *have,
		     struct mem_policies *out, struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "mem.policies");
	const struct mem_maps *maps = &sp->maps;
	int op = 0, r;

	for (size_t i = 0; i < maps->n; i++)
		if (have[i])
			ask(s, &maps->vma[i], true);
	r = ckpt_script_run(s, sp->task->threads[0], err);
	for (size_t i = 0; i < maps->n && r == 0; i++) {
		struct ckpt_nodes nodes;
		uint32_t mode;

		if (!have[i])
			continue;
		mode = mode_of(s, op);
		memcpy(&nodes, ckpt_script_out(s, op++, 1), sizeof(nodes));
		if (mode != MPOL_DEFAULT)
			r = number_of(out, mode, &nodes, &out->of[i], err);
	}
	return r;
}

int mem_policies_look(struct ckpt_run *run, const struct mem_space *sp, struct mem_policies *out,
		      struct ckpt_error *err)
{
	CKPT_AUTO_FREE bool *have = calloc(sp->maps.n + 1, sizeof(*have));
	size_t n = 0;
	int r;

	if (!have)
		return ckpt_fail(err, ENOMEM, "out of memory");
	/* a kernel without nodes */
	if (syscall(SYS_get_mempolicy, NULL, NULL, 0, NULL, 0) < 0)
		return 0;
	r = ask_all(run, sp, have, &n, err);
	if (r < 0 || !n ||
	    ckpt_refuse_off(run, "numa", sp->task, "memory policy of a mapping") != 1)
		return r;
	out->of = calloc(sp->maps.n + 1, sizeof(*out->of));
	out->rec = calloc(n, sizeof(*out->rec));
	out->list = calloc(n, sizeof(*out->list));
	if (!out->of || !out->rec || !out->list)
		return ckpt_fail(err, ENOMEM, "out of memory");
	return ask_nodes(run, sp, have, out, err);
}

void mem_policies_free(struct mem_policies *p)
{
	free(p->of);
	free(p->policy);
	free(p->rec);
	free(p->list);
}

bool mem_policies_same(const struct mem_policies *p, size_t i, size_t k)
{
	return !p->of || p->of[i] == p->of[k];
}

void mem_policies_put(struct mem_policies *p, const struct mem_maps *maps, mem_vmas_rec *m)
{
	m->policy = p->list;
	for (size_t i = 0; p->of && i < maps->n; i++) {
		Ckpt__Mem__Policy *rec = m->n_policy ? p->list[m->n_policy - 1] : NULL;
		struct mem_policy *one;

		if (!p->of[i])
			continue;
		if (rec && rec->end == maps->vma[i].start && mem_policies_same(p, i - 1, i)) {
			rec->end = maps->vma[i].end;
			continue;
		}
		one = &p->policy[p->of[i] - 1];
		rec = &p->rec[m->n_policy];
		ckpt__mem__policy__init(rec);
		rec->start = maps->vma[i].start;
		rec->end = maps->vma[i].end;
		rec->mode = one->mode;
		rec->nodes = one->list;
		rec->n_nodes = one->n_list;
		p->list[m->n_policy++] = rec;
	}
}

/* ---- the way back ------------------------------------------------------------- */

/* Is everything from start to end mapped? Looks on from *i, which is not behind it. */
static bool is_mapped(const mem_vmas_rec *m, size_t *i, uint64_t start, uint64_t end)
{
	for (; *i < m->n_vma && m->vma[*i]->start <= start; ++*i) {
		if (m->vma[*i]->end >= end)
			return true;
		if (m->vma[*i]->end > start)
			start = m->vma[*i]->end;
	}
	return false;
}

static bool is_same(const Ckpt__Mem__Policy *a, const Ckpt__Mem__Policy *b)
{
	return a->mode == b->mode && a->n_nodes == b->n_nodes &&
	       (!a->n_nodes || !memcmp(a->nodes, b->nodes, a->n_nodes * sizeof(*a->nodes)));
}

int mem_policies_plan(struct ckpt_run *run, const mem_vmas_rec *m, struct ckpt_error *err)
{
	uint64_t floor = 0;
	size_t at = 0;
	char what[96];

	for (size_t i = 0; i < m->n_policy; i++) {
		const Ckpt__Mem__Policy *p = m->policy[i];
		int r;

		if (p->start < floor || p->start >= p->end || (p->start | p->end) % MEM_PAGE ||
		    !is_mapped(m, &at, p->start, p->end))
			return ckpt_fail_image(err, "memory policy of %llx: nothing is mapped",
					       (unsigned long long)p->start);
		floor = p->end;
		if (i && is_same(p, m->policy[i - 1]))
			continue;
		snprintf(what, sizeof(what), "task %u, mapping %llx", m->id,
			 (unsigned long long)p->start);
		r = ckpt_policy_need(run, p->mode, p->nodes, p->n_nodes, what, err);
		if (r < 0)
			return r;
	}
	return 0;
}

void mem_policies_script(struct ckpt_script *s, const mem_vmas_rec *m)
{
	for (size_t i = 0; i < m->n_policy; i++) {
		const Ckpt__Mem__Policy *p = m->policy[i];
		struct ckpt_nodes nodes;

		ckpt_nodes_set(&nodes, p->nodes, p->n_nodes);
		ckpt_script_add(s, SYS_mbind, CKPT_C(p->start), CKPT_C(p->end - p->start),
				CKPT_C(p->mode),
				p->n_nodes ? CKPT_IN(&nodes, sizeof(nodes)) : CKPT_C(0),
				CKPT_C(p->n_nodes ? CKPT_NODES_SIZE : 0), CKPT_C(0));
	}
}
