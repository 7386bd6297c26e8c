/* SPDX-License-Identifier: MIT */
/*
 * dump and verify: files of the tree opened for reading so that nobody who watches them is told
 * (inotify(7), fanotify(7)), which takes permission events of fanotify, and CAP_SYS_ADMIN in the
 * initial user namespace. A lease is not minded: see ckpt_lease_at() of <ckpt/fd.h>. Since 0.1.
 */
#ifndef CKPT_QUIET_H
#define CKPT_QUIET_H

#include <ckpt/error.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ckpt_run;
struct ckpt_quiet;

/* Does the kernel have it? 0, or a negative errno. */
CKPT_API int ckpt_quiet_probe(struct ckpt_error *err);
/* Would it work with the mount of that descriptor, which must be ckpt's alone? The same. */
CKPT_API int ckpt_quiet_try(struct ckpt_run *run, int mount);

/*
 * Up to the end, files of that mount are opened by the calling thread with ckpt_quiet_open()
 * only. From the first time on ckpt has another thread, until the run ends. NULL: it failed.
 */
CKPT_API struct ckpt_quiet *ckpt_quiet_begin(struct ckpt_run *run, int mount,
					     struct ckpt_error *err);
/* NULL is nothing. */
CKPT_API void ckpt_quiet_end(struct ckpt_quiet *q);
/* openat(2) for reading, with O_NOATIME and O_NONBLOCK; or a negative errno. NULL: as usual. */
CKPT_API int ckpt_quiet_open(struct ckpt_quiet *q, int dir, const char *name, int flags);

/*
 * One file, of whatever mount, by a link of /proc. If nothing is watched, `flags` are those of
 * openat(2). Returns a descriptor, or a negative errno.
 */
CKPT_API int ckpt_open_unnoticed(struct ckpt_run *run, int dir, const char *path, int flags,
				 struct ckpt_error *err);

#ifdef __cplusplus
}
#endif
#endif
