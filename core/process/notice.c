/* SPDX-License-Identifier: MIT */
/* What of the tree would notice that somebody opens its files: watches and leases. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

#include "engine/run.h"
#include "process/set.h"

int ckpt_watch_tell(struct ckpt_run *run, dev_t dev, struct ckpt_error *err)
{
	struct notices *all = &run_procs(run)->notices;
	dev_t *more;

	if (ckpt_is_watched(run, dev))
		return 0;
	more = reallocarray(all->watched, all->n_watched + 1, sizeof(*more));
	if (!more)
		return ckpt_fail(err, ENOMEM, "out of memory");
	all->watched = more;
	more[all->n_watched++] = dev;
	return 0;
}

bool ckpt_is_watched(struct ckpt_run *run, dev_t dev)
{
	const struct notices *all = &run_procs(run)->notices;

	for (size_t i = 0; i < all->n_watched; i++)
		if (all->watched[i] == dev)
			return true;
	return false;
}

int ckpt_lease_tell(struct ckpt_run *run, const struct ckpt_lease *lease, struct ckpt_error *err)
{
	struct notices *all = &run_procs(run)->notices;
	struct ckpt_lease *more = reallocarray(all->leases, all->n_leases + 1, sizeof(*more)), *l;

	if (!more)
		return ckpt_fail(err, ENOMEM, "out of memory");
	all->leases = more;
	l = &more[all->n_leases];
	*l = *lease;
	if (l->fd >= 0)
		l->fd = fcntl(lease->fd, F_DUPFD_CLOEXEC, 0);
	if (lease->fd >= 0 && l->fd < 0)
		return ckpt_fail_sys(err, errno, "a descriptor of a file with a lease");
	all->n_leases++;
	return 0;
}

const struct ckpt_lease *ckpt_lease_at(struct ckpt_run *run, size_t i)
{
	const struct notices *all = &run_procs(run)->notices;

	return i < all->n_leases ? &all->leases[i] : NULL;
}

void notices_free(struct notices *all)
{
	for (size_t i = 0; i < all->n_leases; i++)
		if (all->leases[i].fd >= 0)
			close(all->leases[i].fd);
	free(all->leases);
	free(all->watched);
	*all = (struct notices){ 0 };
}

void ckpt_notices_clear(struct ckpt_run *run)
{
	notices_free(&run_procs(run)->notices);
}
