/* SPDX-License-Identifier: MIT */
/* Memory policies, see <ckpt/nodes.h>. */
#include <errno.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ckpt/cleanup.h>
#include <ckpt/nodes.h>
#include <ckpt/plugin.h>

#define WEIGHTED_INTERLEAVE 6 /* Linux 6.9 */

static bool has(const struct ckpt_nodes *nodes, uint32_t i)
{
	return nodes->bits[i / 64] >> (i % 64) & 1;
}

static void add(struct ckpt_nodes *nodes, uint32_t i)
{
	if (i < CKPT_MAX_NODES)
		nodes->bits[i / 64] |= 1ULL << (i % 64);
}

size_t ckpt_nodes_list(const struct ckpt_nodes *nodes, uint32_t *list)
{
	size_t n = 0;

	for (uint32_t i = 0; i < CKPT_MAX_NODES; i++)
		if (has(nodes, i))
			list[n++] = i;
	return n;
}

void ckpt_nodes_set(struct ckpt_nodes *nodes, const uint32_t *list, size_t n)
{
	memset(nodes, 0, sizeof(*nodes));
	for (size_t i = 0; i < n; i++)
		add(nodes, list[i]);
}

static int check(uint32_t mode, const uint32_t *list, size_t n, struct ckpt_error *err)
{
	const uint32_t both = MPOL_F_STATIC_NODES | MPOL_F_RELATIVE_NODES;
	const uint32_t plain = mode & ~(uint32_t)MPOL_MODE_FLAGS;

	/* of nodes near by there is no set, of all others there is one (mpol_new()) */
	if (plain == MPOL_DEFAULT || plain > WEIGHTED_INTERLEAVE || (mode & both) == both ||
	    (plain == MPOL_LOCAL) != !n || (!n && mode != plain))
		return ckpt_fail_as(err, CKPT_EXIT_IMAGE, EBADMSG, "memory policy %#x", mode);
	for (size_t i = 0; i < n; i++)
		if (list[i] >= CKPT_MAX_NODES || (i && list[i] <= list[i - 1]))
			return ckpt_fail_as(err, CKPT_EXIT_IMAGE, EBADMSG, "memory policy: node %u",
					    list[i]);
	return 0;
}

/* Nodes that ckpt may have. */
static bool own_nodes(struct ckpt_nodes *nodes)
{
	memset(nodes, 0, sizeof(*nodes));
	return !syscall(SYS_get_mempolicy, NULL, nodes->bits, CKPT_MAX_NODES, NULL,
			MPOL_F_MEMS_ALLOWED);
}

/* All that have memory, as a list like "0-1,4". */
static void all_nodes(struct ckpt_nodes *nodes)
{
	CKPT_AUTO_FILE FILE *f = fopen("/sys/devices/system/node/has_memory", "re");
	unsigned first, last;
	int next = ',';

	for (; f && next == ',' && fscanf(f, "%u", &first) == 1; next = fgetc(f)) {
		last = first;
		(void)!fscanf(f, "-%u", &last);
		for (; first <= last && first < CKPT_MAX_NODES; first++)
			add(nodes, first);
	}
}

/* Does this kernel have it? There is no way to ask but to take it, for a moment. */
static bool is_known(uint32_t mode, size_t n, const struct ckpt_nodes *own)
{
	struct ckpt_nodes mine = { 0 };
	bool known;
	int was = MPOL_DEFAULT;

	if (syscall(SYS_get_mempolicy, &was, mine.bits, CKPT_MAX_NODES, NULL, 0))
		return false;
	known = !syscall(SYS_set_mempolicy, mode, n ? own->bits : NULL, n ? CKPT_NODES_SIZE : 0);
	(void)!syscall(SYS_set_mempolicy, was, mine.bits, CKPT_NODES_SIZE);
	return known;
}

int ckpt_policy_need(struct ckpt_run *run, uint32_t mode, const uint32_t *list, size_t n,
		     const char *what, struct ckpt_error *err)
{
	struct ckpt_nodes there;
	size_t found = 0, want = n;
	int r = check(mode, list, n, err);

	if (r < 0)
		return r;
	if (!own_nodes(&there) || !is_known(mode, n, &there)) {
		ckpt_unmet(run, CKPT_EXIT_FAILED, "restore on a kernel that has it",
			   "%s: memory policy %#x, which this kernel has not", what, mode);
		return 0;
	}
	/* a group of the tree's own may have other nodes */
	if (ckpt_record_count(run, "cgroup.member"))
		all_nodes(&there);
	for (size_t i = 0; i < n; i++)
		found += has(&there, list[i]);
	/* those count by their order, or are what was asked for, there or not */
	if (mode & MPOL_F_RELATIVE_NODES)
		want = 0;
	else if (mode & MPOL_F_STATIC_NODES)
		want = 1;
	if (found < want)
		ckpt_unmet(run, CKPT_EXIT_FAILED, "restore on a machine with these nodes",
			   "%s: its memory policy has %zu nodes, of which this machine has %zu",
			   what, n, found);
	return 0;
}
