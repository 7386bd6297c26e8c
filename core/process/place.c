/* SPDX-License-Identifier: MIT */
/* Files of another mount namespace, by their paths there. */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <linux/securebits.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "engine/run.h"
#include "process/mounts.h"
#include "process/uapi.h"

/* Renames on the way make the kernel give up a scoped lookup; no other process does many. */
#define TRIES 100

static int open_below(int root, const char *path, int flags, mode_t mode)
{
	struct open_how how = {
		.flags = (uint64_t)(unsigned)(flags | O_CLOEXEC),
		.mode = mode,
		/* the kernel names files without links; one that is there by now leads elsewhere */
		.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS,
	};

	for (int i = 0; i < TRIES; i++) {
		int fd = (int)syscall(SYS_openat2, root, path, &how, sizeof(how));

		if (fd >= 0 || errno != EAGAIN)
			return fd < 0 ? -errno : fd;
	}
	return -EAGAIN;
}

static const struct ckpt_ns *namespace(struct ckpt_run *run, uint32_t mnt)
{
	const struct ckpt_ns *ns = ckpt_ns_by_id(run, mnt);

	return ns && ns->type == CKPT_NS_MNT ? ns : NULL;
}

int ckpt_open_in(struct ckpt_run *run, uint32_t mnt, const char *path, int flags, mode_t mode,
		 struct ckpt_error *err)
{
	const struct ckpt_ns *ns = mnt ? namespace(run, mnt) : NULL;
	int root, fd;

	if (!mnt) {
		fd = open(path, flags | O_CLOEXEC, mode);
		return fd < 0 ? ckpt_fail_sys(err, errno, "open(2) of %s", path) : fd;
	}
	if (!ns)
		return ckpt_fail_image(err, "%s is in mount namespace %u, which there is not", path,
				       mnt);
	root = ckpt_mnt_root(run, ns, err);
	if (root < 0)
		return root;
	fd = open_below(root, path, flags, flags & (O_CREAT | __O_TMPFILE) ? mode : 0);
	return fd < 0 ? ckpt_fail_sys(err, fd, "open(2) of %s in mount namespace %u", path, mnt)
		      : fd;
}

int ckpt_stat_in(struct ckpt_run *run, uint32_t mnt, const char *path, bool nofollow,
		 struct stat *st)
{
	const struct ckpt_ns *ns = mnt ? namespace(run, mnt) : NULL;
	int root, fd, r;

	if (!mnt)
		return (nofollow ? lstat(path, st) : stat(path, st)) ? -errno : 0;
	if (!ns || ns->fd < 0)
		return run->kind == CKPT_RESTORE || run->plan_only ? -EINPROGRESS : -ENOENT;
	root = ckpt_mnt_root(run, ns, NULL);
	if (root < 0)
		return root;
	fd = open_below(root, path, O_PATH | (nofollow ? O_NOFOLLOW : 0), 0);
	if (fd < 0)
		return fd;
	r = fstat(fd, st) ? -errno : 0;
	close(fd);
	return r;
}

/* ---- whose files ------------------------------------------------------------------ */

/* A change of ids makes the engine's memory undumpable, as a set-user-id program's. */
static void set_ids(uid_t uid, gid_t gid)
{
	const int dumpable = prctl(PR_GET_DUMPABLE);

	setfsgid(gid);
	setfsuid(uid);
	if (prctl(PR_GET_DUMPABLE) != dumpable)
		prctl(PR_SET_DUMPABLE, dumpable == 1);
}

int ckpt_ids_take(struct ckpt_ids *old, uid_t uid, gid_t gid, struct ckpt_error *err)
{
	*old = (struct ckpt_ids){ .securebits = prctl(PR_GET_SECUREBITS) };
	old->uid = (uid_t)setfsuid((uid_t)-1);
	old->gid = (gid_t)setfsgid((gid_t)-1);
	if (old->uid == uid && old->gid == gid)
		return 0;
	/* else the capabilities over files would go with the ids */
	if (old->securebits < 0 ||
	    prctl(PR_SET_SECUREBITS, old->securebits | SECBIT_NO_SETUID_FIXUP))
		return ckpt_fail_sys(err, errno, "PR_SET_SECUREBITS");
	old->taken = true;
	set_ids(uid, gid);
	return 0;
}

void ckpt_ids_give_back(struct ckpt_ids *old)
{
	if (!old->taken)
		return;
	set_ids(old->uid, old->gid);
	prctl(PR_SET_SECUREBITS, old->securebits);
	old->taken = false;
}
