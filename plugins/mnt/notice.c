/* SPDX-License-Identifier: MIT */
/*
 * dump and verify: whom reading the files of a filesystem in memory would disturb. Watches get
 * no event (<ckpt/quiet.h>). A lease for writing is broken by any opening, so such a file is read
 * through the description that has the lease.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/sysmacros.h>

#include "mnt.h"

#define RELEASE "let it release the lease before the dump (F_SETLEASE, F_UNLCK)"

const struct ckpt_lease *mnt_lease_of(struct ckpt_run *run, const struct stat *st)
{
	const struct ckpt_lease *l;

	for (size_t i = 0; (l = ckpt_lease_at(run, i)); i++)
		if (l->write && l->st.st_dev == st->st_dev && l->st.st_ino == st->st_ino)
			return l;
	return NULL;
}

/* Files of which we save what they hold. */
static const struct mnt_mount *saved_in(const struct mnt_state *st, dev_t dev)
{
	for (size_t i = 0; i < st->n_mounts; i++) {
		const struct mnt_mount *m = &st->mounts[i];

		if (m->fs->id && m->fs->type && m->fs->type->content == MNT_INODES && !m->file &&
		    !m->deleted && m->seen && m->fd >= 0 &&
		    makedev(m->fs->major, m->fs->minor) == dev)
			return m;
	}
	return NULL;
}

/* There is no leaving it out: the file would be empty. */
static void refuse(struct mnt_state *st, const struct ckpt_task *task, const char *object,
		   const char *reason, const char *hint)
{
	const struct ckpt_blocker b = { "content", task, object, reason, hint, true };

	ckpt_refuse(st->run, &b);
	st->disturbing = true;
}

/* ---- watches ------------------------------------------------------------------------- */

static void survey_watches(struct ckpt_run *run, struct mnt_state *st)
{
	for (size_t i = 0; i < st->n_fs; i++) {
		const dev_t dev = makedev(st->fs[i]->major, st->fs[i]->minor);
		const struct mnt_mount *m = saved_in(st, dev);
		char reason[160];
		int r;

		if (!m || !ckpt_is_watched(run, dev))
			continue;
		r = ckpt_quiet_try(run, m->fd);
		if (r == 0)
			continue;
		snprintf(reason, sizeof(reason),
			 "the tree watches its files, and without fanotify(7) (%s) ckpt cannot "
			 "read them without an event",
			 strerror(-r));
		refuse(st, m->ns->member, m->m->point, reason,
		       "run ckpt in the initial user namespace, on a kernel with "
		       "CONFIG_FANOTIFY_ACCESS_PERMISSIONS, or let the program remove its watches");
	}
}

/* ---- leases -------------------------------------------------------------------------- */

/* Why that file cannot be read without breaking the lease; NULL: it can, or nothing is in it. */
static const char *unreadable(struct ckpt_run *run, const struct ckpt_lease *l)
{
	if (!l->st.st_size)
		return NULL;
	if ((l->flags & O_ACCMODE) == O_WRONLY)
		return "it has a lease for writing, which any opening would break, and its "
		       "descriptor is for writing only";
	/* mapping it is no event, but fills the holes */
	if (ckpt_is_watched(run, l->st.st_dev) && !mnt_is_whole(&l->st))
		return "it has a lease for writing, its filesystem is watched, and it has holes: "
		       "it cannot be read without an event";
	return NULL;
}

static void survey_lease(struct mnt_state *st, const struct ckpt_lease *l)
{
	const char *reason = unreadable(st->run, l);
	char object[64];

	snprintf(object, sizeof(object), "fd %d", l->num);
	if (reason)
		refuse(st, l->task, object, reason, RELEASE);
}

static bool is_told(struct ckpt_run *run, dev_t dev, unsigned long long ino)
{
	const struct ckpt_lease *l;

	for (size_t i = 0; (l = ckpt_lease_at(run, i)); i++)
		if (l->st.st_dev == dev && l->st.st_ino == ino)
			return true;
	return false;
}

/* Leases of processes outside of the tree. */
static void survey_others(struct ckpt_run *run, struct mnt_state *st)
{
	CKPT_AUTO_FILE FILE *locks = fopen("/proc/locks", "re");
	char line[256];

	while (locks && fgets(line, sizeof(line), locks)) {
		char how[16], type[16], object[64], reason[128];
		unsigned long long ino;
		const struct mnt_mount *m;
		unsigned maj, min;
		int pid;

		if (sscanf(line, "%*d: LEASE %15s %15s %d %x:%x:%llu", how, type, &pid, &maj, &min,
			   &ino) != 6 ||
		    (!strcmp(type, "READ") && !strcmp(how, "ACTIVE")))
			continue;
		m = saved_in(st, makedev(maj, min));
		if (!m || is_told(run, makedev(maj, min), ino))
			continue;
		snprintf(object, sizeof(object), "inode %llu", ino);
		snprintf(reason, sizeof(reason),
			 "process %d, outside the tree, has a lease on this file of %.40s, which "
			 "reading would break",
			 pid, m->m->point);
		refuse(st, m->ns->member, object, reason, RELEASE);
	}
}

int mnt_notices_survey(struct ckpt_run *run, struct ckpt_error *err)
{
	struct mnt_state *st = mnt_state(run, err);
	const struct ckpt_lease *l;

	if (!st)
		return -ENOMEM;
	/* without a mount namespace of the tree's */
	if (!st->n_mounts || ckpt_feature_on(run, "content") != 1)
		return 0;
	survey_watches(run, st);
	for (size_t i = 0; (l = ckpt_lease_at(run, i)); i++)
		if (l->write && saved_in(st, l->st.st_dev))
			survey_lease(st, l);
	survey_others(run, st);
	return 0;
}
