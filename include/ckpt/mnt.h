/* SPDX-License-Identifier: MIT */
/*
 * Mounts and places. A path means something in one mount namespace only: what
 * /proc/PID/fd, map_files and cwd show of a file begins at the root of the mount
 * namespace that its mount is in, which need not be that of the task. So records
 * keep a path together with the id of that namespace (<ckpt/ns.h>), and files are
 * looked up and opened through its root. 0 stands for ckpt's own namespace.
 */
#ifndef CKPT_MNT_H
#define CKPT_MNT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include <ckpt/error.h>
#include <ckpt/ns.h>
#include <ckpt/task.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ckpt_run;

/* One line of mountinfo, unescaped. */
struct ckpt_mount {
	uint32_t id, parent; /* the kernel's numbers: STATX_MNT_ID, mnt_id of fdinfo */
	uint32_t major, minor;
	const char *root;  /* of the mount, within its filesystem */
	const char *point; /* where it is mounted, from the root of the namespace */
	const char *attr;  /* its own flags: "rw,nosuid,relatime" */
	bool unbindable;
	uint32_t peers, master; /* propagation groups, 0: none */
	const char *type, *source;
	const char *options; /* of the filesystem, escaped as the kernel writes them */
};

struct ckpt_mounts {
	size_t n;
	const struct ckpt_mount *list; /* in the order in which they were made; [0] may be any */
	const struct ckpt_mount *root; /* the one that `/` leads to */
};

/* dump: the mounts of a namespace, read once a run. Owned by the run. */
CKPT_API int ckpt_mounts(struct ckpt_run *run, const struct ckpt_ns *ns,
			 const struct ckpt_mounts **out, struct ckpt_error *err);

/* An O_PATH descriptor of a namespace's root directory. Owned by the run. */
CKPT_API int ckpt_mnt_root(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err);

/*
 * dump: in which mount namespace is the mount of this descriptor of the engine?
 * 0: ckpt's own; its id; -ENOENT: in none that the tree has (unmounted lazily, or
 * never mounted); or another negative errno.
 */
CKPT_API int ckpt_mnt_of_fd(struct ckpt_run *run, int fd, struct ckpt_error *err);

/*
 * dump: the device number of the filesystem that a file is on, as its directories have it: on an
 * overlay other files may have that of a layer. `st`: what fstat(2) says of it. 0: its mount is in
 * no namespace of the run.
 */
CKPT_API dev_t ckpt_mnt_device(struct ckpt_run *run, int fd, const struct stat *st);

/*
 * As open(2) and stat(2), in the mount namespace `mnt`, where every `..` stays, of a path that
 * the kernel has told: it was one without symbolic links, and whoever owns a directory on the
 * way may have put one there since. None is followed, but in ckpt's own namespace those that
 * nobody but root can have made: others are -ELOOP. ckpt_stat_in() returns -EINPROGRESS in the
 * plan of a restore for a namespace that is not made yet: nothing can be said. What was looked
 * at is to be looked at again through the descriptor that is used.
 */
CKPT_API int ckpt_open_in(struct ckpt_run *run, uint32_t mnt, const char *path, int flags,
			  mode_t mode, struct ckpt_error *err);
CKPT_API int ckpt_stat_in(struct ckpt_run *run, uint32_t mnt, const char *path, bool nofollow,
			  struct stat *st);
/* Since 0.1. An O_PATH descriptor of the directory that a path is in; *name is its name there. */
CKPT_API int ckpt_open_above(struct ckpt_run *run, uint32_t mnt, const char *path,
			     const char **name, struct ckpt_error *err);
/* Plan of a restore: tell which link is in the way where ckpt_stat_in() says -ELOOP. */
CKPT_API int ckpt_link_unmet(struct ckpt_run *run, const char *path);

/*
 * dump: the path of a file that was deleted under another one, if that name was in the same
 * directory: `shown` as the kernel shows it, with " (deleted)" at its end, and what the file is.
 * The caller frees it. NULL: there is none. Since 0.1.
 */
CKPT_API char *ckpt_other_name(struct ckpt_run *run, uint32_t mnt, const char *shown,
			       const struct stat *st);

/*
 * Mounts that the plugin mnt saves. dump: all of them, known when the step ns.survey is done;
 * restore: those of a devpts with open terminals, and its other mounts as far as they are made,
 * known from the step mnt.terminals on. Others are not listed then.
 */
struct ckpt_mount_saved {
	uint32_t id;	 /* of the record "mnt.mount"; 0: the whole of a filesystem */
	uint32_t fs;	 /* of the record "mnt.filesystem"; 0: from outside */
	uint32_t kernel; /* dump: STATX_MNT_ID */
	dev_t dev;	 /* dump: as stat(2) has it */
	bool locked;	 /* in another user namespace's way: it is made when tasks are there */
	bool directory;
	int fd; /* O_PATH, borrowed; -1 */
};

/* NULL: that were all. */
CKPT_API const struct ckpt_mount_saved *ckpt_mount_saved(struct ckpt_run *run, size_t i);
/* For the plugin mnt; `m` is copied. */
CKPT_API int ckpt_mount_tell(struct ckpt_run *run, const struct ckpt_mount_saved *m,
			     struct ckpt_error *err);

/*
 * restore: files are made by the engine as if by these ids, all its capabilities kept: a
 * filesystem of a user namespace takes none from ids that it does not know. To be given
 * back before anything else is done.
 */
struct ckpt_ids {
	uid_t uid;
	gid_t gid;
	int securebits;
	bool taken;
};

CKPT_API int ckpt_ids_take(struct ckpt_ids *old, uid_t uid, gid_t gid, struct ckpt_error *err);
CKPT_API void ckpt_ids_give_back(struct ckpt_ids *old);
#define CKPT_AUTO_IDS __attribute__((cleanup(ckpt_ids_give_back)))

/*
 * A directory that was removed together with what was in it, but for a file that is still
 * in use. ckpt_dirs_look(): is the nearest directory above `path` (or itself) there? 0 and
 * what it is, or a negative errno as ckpt_stat_in(). restore: ckpt_dirs_open() makes what is
 * missing, for as long as the file takes to be made again and to lose its name.
 */
struct ckpt_dirs {
	int base; /* the nearest that was there; -1 */
	int fd;	  /* O_PATH of the directory; -1 */
	char made[4096];
	int lock; /* -1: none */
};

CKPT_API int ckpt_dirs_look(struct ckpt_run *run, uint32_t mnt, const char *path, struct stat *st);
CKPT_API int ckpt_dirs_open(struct ckpt_run *run, uint32_t mnt, const char *path,
			    struct ckpt_dirs *dirs, struct ckpt_error *err);
CKPT_API void ckpt_dirs_remove(struct ckpt_dirs *dirs);
#define CKPT_NO_DIRS           \
	{                      \
		-1, -1, "", -1 \
	}
#define CKPT_AUTO_DIRS __attribute__((cleanup(ckpt_dirs_remove)))

/*
 * The extension point "place", asked by the plugin task: whoever saves root and working
 * directories that are not found from ckpt's own root. Register with
 *     { CKPT_PLACE_POINT, "mnt", &place_kind }
 */
struct ckpt_place_kind {
	uint32_t size; /* sizeof(struct ckpt_place_kind) */
	/*
	 * dump: 1: the directories of this task are its business, also to refuse; 0: they are
	 * found from ckpt's own root. At restore it has put the task there by `tasks-placed`
	 * if there is a record "mnt.place" of the task's id.
	 */
	int (*takes)(struct ckpt_run *run, const struct ckpt_task *t, struct ckpt_error *err);
};

#define CKPT_PLACE_POINT "place"

#ifdef __cplusplus
}
#endif
#endif
