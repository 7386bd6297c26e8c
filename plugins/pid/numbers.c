/* SPDX-License-Identifier: MIT */
/* The numbers of an image: distinct, and free on this machine. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "pid.h"

struct numbers {
	uint64_t *keys; /* namespace index and number; sorted */
	size_t n, cap;
};

static uint64_t key(uint32_t ns, int32_t nr)
{
	return (uint64_t)ns << 32 | (uint32_t)nr;
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static void numbers_free(struct numbers *s)
{
	free(s->keys);
}

/* One id on all its levels, innermost namespace first. */
static int add(struct numbers *s, const struct pid_plan *p, uint32_t ns, const int32_t *nr,
	       size_t n, struct ckpt_error *err)
{
	if (s->n + n > s->cap) {
		size_t cap = 2 * s->cap + n + 64;
		uint64_t *more = realloc(s->keys, cap * sizeof(*more));

		if (!more)
			return ckpt_fail_sys(err, ENOMEM, "%zu process ids", cap);
		s->keys = more;
		s->cap = cap;
	}
	for (; n > 0; n--, ns = p->ns[ns]->parent - 1)
		s->keys[s->n++] = key(ns, nr[n - 1]);
	return 0;
}

static bool taken_here(int32_t nr)
{
	/* threads answer too; a group lives on without its leader */
	return kill(nr, 0) == 0 || errno == EPERM || kill(-nr, 0) == 0 || errno == EPERM;
}

static void check_free(struct ckpt_run *run, const struct pid_node *n, const int32_t *nr,
		       size_t n_nr, int32_t pid_max)
{
	char path[40], comm[32] = "a process group", name[48];
	CKPT_AUTO_FILE FILE *f = NULL;

	if (!n_nr || ckpt_plan_only(run))
		return;
	pid_node_name(n, name, sizeof(name));
	if (nr[0] >= pid_max)
		ckpt_unmet(run, CKPT_EXIT_FAILED, "raise kernel.pid_max",
			   "%s: id %d is not below kernel.pid_max (%d)", name, nr[0], pid_max);
	if (!taken_here(nr[0]))
		return;
	snprintf(path, sizeof(path), "/proc/%d/comm", nr[0]);
	f = fopen(path, "re");
	if (f && fgets(comm, sizeof(comm), f))
		comm[strcspn(comm, "\n")] = 0;
	ckpt_unmet(run, CKPT_EXIT_FAILED,
		   "end that process, or restore in a new pid namespace (unshare -pf --mount-proc)",
		   "%s: id %d is taken by %s", name, nr[0], comm);
}

static int32_t read_pid_max(void)
{
	CKPT_AUTO_FILE FILE *f = fopen("/proc/sys/kernel/pid_max", "re");
	int v;

	return f && fscanf(f, "%d", &v) == 1 ? v : PID_LIMIT;
}

static int collect(struct ckpt_run *run, struct pid_plan *p, struct numbers *s,
		   struct ckpt_error *err)
{
	int32_t pid_max = read_pid_max();
	int r = 0;

	for (size_t i = 0; i < p->n && r == 0; i++) {
		const struct pid_node *n = &p->nodes[i];

		if (n->kind == PID_MIDDLE)
			continue;
		check_free(run, n, n->pids, n->n_pids, pid_max);
		r = add(s, p, n->ns, n->pids, n->n_pids, err);
		for (size_t k = n->rec ? pid_first_thread(n->rec) : 0;
		     n->rec && k < n->rec->n_threads && r == 0; k++) {
			const Ckpt__Pid__Thread *th = n->rec->threads[k];

			check_free(run, n, th->tids, th->n_tids, pid_max);
			r = add(s, p, n->ns, th->tids, th->n_tids, err);
		}
	}
	if (r < 0 || !s->n)
		return r;
	qsort(s->keys, s->n, sizeof(*s->keys), compare);
	for (size_t i = 1; i < s->n; i++)
		if (s->keys[i] == s->keys[i - 1])
			return ckpt_fail_as(err, CKPT_EXIT_IMAGE, EBADMSG,
					    "id %u is given twice in pid namespace %u",
					    (uint32_t)s->keys[i], (uint32_t)(s->keys[i] >> 32) + 1);
	return 0;
}

/* Numbers for the middles: used for a moment, so any that nobody else wants. */
static void choose(const struct pid_plan *p, const struct numbers *s, struct pid_node *n,
		   int32_t *next)
{
	uint32_t ns = n->ns;

	for (size_t i = n->n_pids; i > 0; i--, ns = p->ns[ns]->parent - 1) {
		uint64_t k;

		do
			k = key(ns, ++*next);
		while ((s->n && bsearch(&k, s->keys, s->n, sizeof(k), compare)) ||
		       (!ns && taken_here(*next)));
		n->own_pids[i - 1] = *next;
	}
}

int pid_plan_numbers(struct ckpt_run *run, struct pid_plan *p, struct ckpt_error *err)
{
	__attribute__((cleanup(numbers_free))) struct numbers s = { 0 };
	int32_t next = 300; /* the kernel keeps lower ones for its own start */
	int r = collect(run, p, &s, err);

	for (size_t i = 0; i < p->n && r == 0; i++)
		if (p->nodes[i].kind == PID_MIDDLE)
			choose(p, &s, &p->nodes[i], &next);
	return r;
}
