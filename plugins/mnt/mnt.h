/* SPDX-License-Identifier: MIT */
/* Internal to the plugin mnt: mount namespaces. */
#ifndef MNT_H
#define MNT_H

#include <limits.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <ckpt/copies.h>
#include <ckpt/fd.h>
#include <ckpt/mnt.h>
#include <ckpt/plugin.h>
#include <ckpt/quiet.h>

#include "mnt.pb-c.h"
#include "uapi.h"

enum { MNT_REC_FILESYSTEM = 1, MNT_REC_MOUNT, MNT_REC_INODE, MNT_REC_PLACE, MNT_REC_LAYER };

#define MNT_PAGES_NAME "mnt"

/* ---- kinds of filesystems (fstype.c) ------------------------------------------------ */

enum mnt_content {
	MNT_NOTHING, /* the kernel makes what is in it */
	MNT_INODES,  /* we save it */
};

struct mnt_fstype {
	const char *name;
	enum mnt_content content;
	enum ckpt_ns_type shows; /* CKPT_NS_TYPES: nothing */
	bool in_place;		 /* its options are paths: it is made where it is mounted */
};

/* NULL: we cannot make that one. */
const struct mnt_fstype *mnt_fstype(const char *name);
/* Flags that are locked one by one when another user namespace gets a copy of the mount. */
#define MNT_LOCKABLE \
	((uint32_t)(MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC))

/* The flags of a mount in mountinfo's words; -EINVAL: there is one that we do not know. */
int mnt_attr_parse(const char *text, uint32_t *attr);

/* ---- the model, dump and verify (model.c) --------------------------------------------- */

struct mnt_fs {
	uint32_t id; /* in the image; 0: from outside */
	uint32_t major, minor;
	const struct mnt_fstype *type; /* NULL: from outside */
	const struct ckpt_mount *first;
	uint32_t owner, shows;
	bool layered; /* an overlay on directories that ckpt sees, and the tree not any more */
	int probe;    /* a mount of it, to ask for its owner; -1 */
	bool asked;
};

struct mnt_mount {
	uint32_t id; /* in the image; 0: left out */
	uint32_t rank;
	const struct ckpt_ns *ns;
	const struct ckpt_mount *m;
	struct mnt_mount *parent; /* NULL: the root */
	size_t children;	  /* while peeling */
	uint64_t copy;		  /* STATX_MNT_ID, in the copy that is peeled */
	struct mnt_fs *fs;
	uint32_t attr;
	uint32_t loose; /* of one that is locked or held, or of the root: flags that are not locked
			 */
	bool top;	/* the root of its namespace */
	bool file, deleted, locked, seen;
	bool held; /* not locked, but flags of it are: it was bound from one that is */
	/* from outside */
	const char *key; /* the user's; or NULL */
	const struct ckpt_mount *host;
	char *path;
	uint32_t below;
	int fd; /* O_PATH of what is mounted, with nothing on top; -1 */
};

struct mnt_dir {
	dev_t dev;
	ino_t ino;
};

struct mnt_state {
	struct ckpt_run *run;
	bool modelled;
	struct mnt_fs **fs;
	size_t n_fs;
	struct mnt_mount *mounts; /* of all namespaces, those of one together */
	size_t n_mounts;
	const struct ckpt_mounts *own;
	uint32_t n_inodes;
	struct ckpt_pages *pages;
	struct mnt_dir *work; /* where overlays keep what they have in work: theirs alone */
	size_t n_work;
	char layer_path[PATH_MAX];
	bool disturbing; /* reading what files hold would be noticed: refused */
	/* restore */
	struct mnt_made *made;
};

struct mnt_state *mnt_state(struct ckpt_run *run, struct ckpt_error *err);
void mnt_state_free(void *state);

/* Look at all namespaces of the tree; once a run. */
int mnt_model(struct ckpt_run *run, struct mnt_state *st, struct ckpt_error *err);
int mnt_refuse(struct ckpt_run *run, const struct ckpt_ns *ns, const char *feature,
	       const char *object, const char *reason, const char *hint);

/* Which of ckpt's own mounts shows the same, and where (external.c); `host` stays NULL: none. */
void mnt_external_find(struct mnt_state *st, struct mnt_mount *m);
/* The user's key for a mount, or NULL. */
const char *mnt_external_key(struct ckpt_run *run, const char *point);
/* restore: the user's place for it, or NULL. */
const char *mnt_external_place(struct ckpt_run *run, const Ckpt__Mnt__Mount *m);
/* How many mounts of the list hide what `path` would find in `m`? */
uint32_t mnt_hidden_by(const struct ckpt_mounts *all, const struct ckpt_mount *m, const char *path);
bool mnt_path_below(const char *path, const char *top);

/* host.c: a filesystem in memory that goes with the tree, though ckpt sees it too. */
void mnt_survey_memory(struct ckpt_run *run, const struct mnt_mount *m);
/* Has the user said that it is the tree's own? */
bool mnt_is_named_own(const struct mnt_state *st, const struct ckpt_mount *m);
/* restore: is its place made before it is needed? */
bool mnt_host_comes(struct ckpt_run *run, const Ckpt__Mnt__Mount *rec);
/* restore: is what comes from outside still a mount of that kind? */
int mnt_plan_host(struct ckpt_run *run, const Ckpt__Mnt__Mount *rec, struct ckpt_error *err);

/* Locks, owners and roots of the mounts of one namespace, in a private copy of it (look.c). */
int mnt_look(struct ckpt_run *run, struct mnt_state *st, const struct ckpt_ns *ns,
	     struct ckpt_error *err);

/* STATX_MNT_ID. */
int mnt_mount_id(int dir, const char *name, uint64_t *id);

/* ---- places by their paths (path.c) ---------------------------------------------------- */

/* openat2(2) that does not leave `root`. */
int mnt_open_below(int root, const char *path, int flags, uint64_t resolve);
/* O_PATH of what is mounted there, without symbolic links on the way, and with no automount. */
int mnt_open_path(int at, const char *path);
/* Its last part may be one: it is opened itself. */
bool mnt_is_link(int fd);
/* The same of a place that the user has given: links are followed. */
int mnt_open_external(const char *place);
/* A detached mount of it, without those that are mounted on it. */
int mnt_clone(int fd);

/* ---- what would notice that content is read (notice.c) ----------------------------------- */

/* dump and verify, after fd has told: refuse what cannot be read without that. */
int mnt_notices_survey(struct ckpt_run *run, struct ckpt_error *err);
/* Has a file no holes? */
bool mnt_is_whole(const struct stat *st);
/* The lease on a file that any opening would break; NULL: there is none. */
const struct ckpt_lease *mnt_lease_of(struct ckpt_run *run, const struct stat *st);

/* ---- content (save.c, fill.c) ----------------------------------------------------- */

/* Of FS_IOC_GETFLAGS: what chattr(1) sets of a file in a tmpfs. */
#define MNT_FIXED ((uint32_t)(FS_IMMUTABLE_FL | FS_APPEND_FL))
#define MNT_FLAGS ((uint32_t)(MNT_FIXED | FS_NODUMP_FL | FS_NOATIME_FL | FS_CASEFOLD_FL))
/* What a disk's filesystem tells of how it keeps a file. */
#define MNT_INSIDE_FLAGS \
	((uint32_t)(FS_EXTENT_FL | FS_INDEX_FL | FS_INLINE_DATA_FL | FS_HUGE_FILE_FL))

/*
 * The highest inode number of a tmpfs that comes back: as many files may have to be made and
 * removed for it, a quarter of a million in a second.
 */
#define MNT_INO_MAX ((uint64_t)1 << 18)

typedef int mnt_maker(int dir, const char *name, const Ckpt__Mnt__Inode *rec,
		      struct ckpt_error *err);
/* number.c: files that have their number already and wait in the root for their place */
struct mnt_numbers {
	bool *waits; /* by record; NULL: none does */
	unsigned series;
};
int mnt_numbers_make(struct ckpt_run *run, struct mnt_numbers *m, int root, size_t first, size_t n,
		     mnt_maker *make, struct ckpt_error *err);
void mnt_numbers_name(const struct mnt_numbers *m, size_t at, char *buf, size_t size);

/* Owner, mode, times. */
void mnt_inode_of(Ckpt__Mnt__Inode *rec, const struct stat *st);
int mnt_inode_apply(int fd, const Ckpt__Mnt__Inode *rec, struct ckpt_error *err);
/* Find out where overlays work (overlay.c). */
int mnt_find_work(struct ckpt_run *run, struct mnt_state *st, struct ckpt_error *err);
/* Why it cannot be mounted again by its options, where it is; NULL: it can. */
const char *mnt_overlay_lost(const struct mnt_state *st, const struct mnt_mount *m);
/* restore, in a user namespace: take its first ids, for this task only. */
int mnt_take_owners_ids(int proc, struct ckpt_error *err);
/* Can it be, in ckpt's own namespace? */
bool mnt_overlay_layered(const struct mnt_state *st, const struct mnt_mount *m);
/* restore: is it made where it is mounted? */
bool mnt_in_place(const Ckpt__Mnt__Filesystem *rec);
/* restore: are its layers there? */
int mnt_overlay_plan(struct ckpt_run *run, const Ckpt__Mnt__Filesystem *rec);
bool mnt_is_work(const struct mnt_state *st, const struct stat *dir);
/* A directory with all that is in it, as the content of a filesystem. */
struct mnt_tree {
	uint32_t fs;
	int fd;		  /* O_PATH */
	const char *root; /* where it is in the filesystem */
	const char *what; /* for messages */
	const struct ckpt_ns *ns;
	bool watched; /* somebody would notice that it is read */
	bool numbers; /* its inode numbers mean something */
	bool apart;   /* the tree has these files by an overlay: its leases are on others */
};
int mnt_content_save(struct ckpt_run *run, struct mnt_state *st, const struct mnt_tree *t,
		     struct ckpt_error *err);
/* Of a regular file or FIFO that is mounted and has no name: what it holds, until *out is freed. */
struct mnt_parts;
int mnt_nameless_save(struct ckpt_run *run, struct mnt_state *st, const struct mnt_tree *t,
		      Ckpt__Mnt__Inode *rec, struct mnt_parts **out, struct ckpt_error *err);
void mnt_parts_free(struct mnt_parts *p);
/* Makes it, under a name for the moment. */
int mnt_nameless_fill(struct ckpt_run *run, int dir, const char *name, const Ckpt__Mnt__Inode *rec,
		      struct ckpt_error *err);
/*
 * Into a filesystem that is empty; `root` is a descriptor of its root directory. `settle`: when
 * nothing is done to its files any more, times that have changed meanwhile, and flags.
 */
int mnt_content_fill(struct ckpt_run *run, uint32_t fs, int root, bool settle,
		     struct ckpt_error *err);

/* ---- roots that have no name any more (nameless.c) --------------------------------------- */

/* The mount of a filesystem that shows most of it. */
const struct mnt_mount *mnt_widest(const struct mnt_state *st, const struct mnt_fs *fs);
/* Why it cannot be made again; NULL: it can. */
const char *mnt_nameless_lost(const struct mnt_state *st, const struct mnt_mount *m);

/* ---- layers of copies (layer.c) ------------------------------------------------------------ */

int mnt_layers_survey(struct ckpt_run *run, struct ckpt_error *err);
/* After all filesystems: `n` is how many of those have an id. */
int mnt_layers_collect(struct ckpt_run *run, struct mnt_state *st, uint32_t n,
		       struct ckpt_error *err);
int mnt_layers_plan(struct ckpt_run *run, struct ckpt_error *err);
extern const struct ckpt_layers_kind mnt_layers_kind;
/* plan.c: every value of the inodes. */
int mnt_plan_content(struct ckpt_run *run, struct ckpt_error *err);

/* ---- restore (make.c, source.c, stage.c, group.c)
 * ------------------------------------------------- */

struct mnt_made {
	int *fs;     /* by index of the record: a detached mount of the whole; -1 */
	int *mounts; /* by index of the record: detached, then in its place; -1 */
	int *first;  /* of places that others hide, a detached mount; -1 */
	const Ckpt__Mnt__Mount **rec; /* by index: looking records up by their type takes time */
	size_t *order;		      /* indices of the records, as they were made */
	int work;		      /* the namespace in which the copies are made */
	int stage;		      /* its root: whole filesystems */
	int below;		      /* what is below that: ckpt's own root */
	int held;  /* a copy of `work` by another user namespace: flags are locked */
	int shown; /* and of its root: the places of what is to be held */
	size_t n_fs, n_mounts;
};

void mnt_made_free(struct mnt_made *made);
int mnt_made_new(struct ckpt_run *run, struct mnt_made **out, struct ckpt_error *err);
/*
 * fsopen(2) and its kin, by the caller's credentials. Returns a detached mount.
 * `owner_of`: a file that has the ids of the options; -1: they are as they are.
 */
/*
 * Say the options of mountinfo to a filesystem context. `owner_of` is a file of
 * mnt_fs_ids: the options have ids of ckpt's user namespace, the caller may be in another.
 */
int mnt_fs_options(int fd, const char *type, const char *options, int owner_of,
		   struct ckpt_error *err);
int mnt_fs_ids(const char *options, struct ckpt_error *err);
int mnt_fs_message(int fd, const char *what, struct ckpt_error *err);
int mnt_fs_try(const Ckpt__Mnt__Filesystem *rec, struct ckpt_error *err);
bool mnt_has_option(const char *options, const char *name);
int mnt_fs_create(const Ckpt__Mnt__Filesystem *rec, int owner_of, struct ckpt_error *err);
bool mnt_fs_read_only(const Ckpt__Mnt__Filesystem *rec);
/* early.c: a devpts with open terminals, before the tasks. */
int mnt_make_terminals(struct ckpt_run *run, struct ckpt_error *err);
bool mnt_has_terminals(struct ckpt_run *run, const Ckpt__Mnt__Mount *rec);
/* Detached, empty; -1 in *out: it is made where it is mounted. */
int mnt_make_filesystem(struct ckpt_run *run, const Ckpt__Mnt__Filesystem *rec, int *out,
			struct ckpt_error *err);
int mnt_make_filesystems(struct ckpt_run *run, struct mnt_made *made, struct ckpt_error *err);
int mnt_make_sources(struct ckpt_run *run, struct mnt_made *made, struct ckpt_error *err);
int mnt_make_later_sources(struct ckpt_run *run, struct mnt_made *made, struct ckpt_error *err);
/* Flags and propagation of a detached mount, loose ones apart; these, when the others are locked.
 */
int mnt_prepare(int fd, const Ckpt__Mnt__Mount *rec, struct ckpt_error *err);
int mnt_set_loose(int fd, const Ckpt__Mnt__Mount *rec, struct ckpt_error *err);
/* A file or directory at that path, with the directories on the way. */
int mnt_make_point(int root, const char *point, bool file);
int mnt_delete_roots(struct ckpt_run *run, const struct mnt_made *made, struct ckpt_error *err);
int mnt_stage(struct ckpt_run *run, struct mnt_made *made, struct ckpt_ns *ns,
	      struct ckpt_error *err);
/* What its owner may take off. */
int mnt_stage_rest(struct ckpt_run *run, struct mnt_made *made, struct ckpt_ns *ns,
		   struct ckpt_error *err);
int mnt_join_groups(struct ckpt_run *run, struct mnt_made *made, struct ckpt_error *err);
const char *mnt_bytes(const ProtobufCBinaryData *b, char *buf, size_t size);

/* ---- directories in /proc of a process that has ended (gone.c) -------------------------- */

/* dump: is `fd`, with that path, such a one? The pid namespace and its number there; 0: no */
int mnt_gone_find(struct ckpt_run *run, int fd, const char *path, uint32_t *ns, uint32_t *number,
		  struct ckpt_error *err);
bool mnt_gone_is(const char *path, uint32_t number);

/* restore: a process of that number, for a while. */
struct mnt_gone {
	uint32_t number;
	uint32_t inside; /* what it is in its namespace: another one if that was not to be had */
	pid_t pid;
};

int mnt_gone_begin(struct ckpt_run *run, const struct ckpt_ns *ns, struct mnt_gone *gone,
		   struct ckpt_error *err);
void mnt_gone_end(struct mnt_gone *gone);
/* `path` as it is now; it may be written to `buf`. */
const char *mnt_gone_path(const struct mnt_gone *gone, const char *path, char *buf, size_t size);

/* ---- steps ------------------------------------------------------------------------------ */

int mnt_survey(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err);
int mnt_collect(struct ckpt_run *run, struct ckpt_error *err);
int mnt_plan(struct ckpt_run *run, struct ckpt_error *err);
int mnt_make(struct ckpt_run *run, struct ckpt_error *err);
int mnt_settle(struct ckpt_run *run, struct ckpt_error *err);
int mnt_places_survey(struct ckpt_run *run, struct ckpt_error *err);
int mnt_places_collect(struct ckpt_run *run, struct ckpt_error *err);
int mnt_places_plan(struct ckpt_run *run, struct ckpt_error *err);
/* For one of several copies: what of the machine would all of them show? */
int mnt_copies_plan(struct ckpt_run *run, struct ckpt_error *err);
int mnt_places_enter(struct ckpt_run *run, struct ckpt_error *err);
int mnt_place_takes(struct ckpt_run *run, const struct ckpt_task *t, struct ckpt_error *err);

#endif
