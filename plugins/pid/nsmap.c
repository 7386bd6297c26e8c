/* SPDX-License-Identifier: MIT */
/* The pid namespaces of a tree, as the engine's registry has them: numbered anew, with levels. */
#include <stdio.h>
#include <stdlib.h>

#include "pid.h"

static int append(struct pid_nsmap *m, struct ckpt_ns *nsfs, const struct pid_ns *parent,
		  struct ckpt_error *err)
{
	struct pid_ns *more;
	struct pid_ns ns = { .nsfs = nsfs, .ino = nsfs->ino };

	if (parent) {
		ns.parent = parent->id;
		ns.level = parent->level + 1;
	}
	more = realloc(m->ns, (m->n + 1) * sizeof(*more));
	if (!more)
		return ckpt_fail_sys(err, ENOMEM, "table of pid namespaces");
	m->ns = more;
	ns.id = (uint32_t)m->n + 1;
	m->ns[m->n] = ns;
	return (int)m->n++;
}

int pid_nsmap_init(struct pid_nsmap *m, struct ckpt_run *run, struct ckpt_error *err)
{
	int r;

	*m = (struct pid_nsmap){ .run = run };
	r = append(m, ckpt_ns_own(run, CKPT_NS_PID), NULL, err);
	return r < 0 ? r : 0;
}

void pid_nsmap_free(struct pid_nsmap *m)
{
	free(m->ns);
	*m = (struct pid_nsmap){ 0 };
}

/* Add a namespace, its parents first. */
static int of_ns(struct pid_nsmap *m, struct ckpt_ns *ns, struct ckpt_error *err)
{
	int parent;

	for (size_t i = 0; i < m->n; i++)
		if (m->ns[i].nsfs == ns)
			return (int)i;
	if (!ckpt_ns_below(ns, ckpt_ns_own(m->run, CKPT_NS_PID)))
		return ckpt_fail(err, EXDEV, "pid namespace %llu is not below the one ckpt runs in",
				 (unsigned long long)ns->ino);
	parent = of_ns(m, ns->parent, err);
	return parent < 0 ? parent : append(m, ns, &m->ns[parent], err);
}

int pid_nsmap_of(struct pid_nsmap *m, const struct ckpt_task *t, struct ckpt_error *err)
{
	return of_ns(m, ckpt_ns_of_task(m->run, t, CKPT_NS_PID), err);
}

int pid_nsmap_children(struct pid_nsmap *m, const struct ckpt_task *t, size_t thread,
		       struct ckpt_error *err)
{
	return of_ns(m, ckpt_ns_seat(m->run, t->id, thread)->pid_for_children, err);
}
