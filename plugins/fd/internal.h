/* SPDX-License-Identifier: MIT */
/* Shared by the files of the plugin `fd`. */
#ifndef FD_INTERNAL_H
#define FD_INTERNAL_H

#include <fcntl.h>

#include <ckpt/fd.h>
#include <ckpt/mnt.h>
#include <ckpt/pid.h>
#include <ckpt/plugin.h>

#include "fd.pb-c.h"

enum fd_record {
	FD_TABLE = 1,
	FD_FILE,
	FD_REGULAR,
	FD_DEVICE,
	FD_PIPE,
	FD_PIPE_END,
	FD_EVENTFD,
	FD_TIMERFD,
	FD_EPOLL,
	FD_SIGNALFD = 20,
	FD_PIDFD,
	FD_OPATH,
	FD_PROC,
	FD_ASYNC,
	FD_DELETED,
	FD_MEMFD,
	FD_GHOST_END,
	FD_LOCK,
	FD_INOTIFY,
	FD_OTHER_NAME,
	FD_DEAD_DIRECTORY,
	FD_DEAD_END,
	FD_SYSFILE,
	FD_THREAD_TABLE,
	FD_EXTERNAL = 50,
};

/* ---- what was found (dump, verify) ---------------------------------------- */

struct fd_file;

/* One descriptor of one task. */
struct fd_entry {
	const struct ckpt_task *task;
	int num;
	bool cloexec;
	int flags;
	int64_t pos;
	uint64_t mnt, ino; /* of fdinfo: those of the kernel's inode, which never change */
	uint64_t key;	   /* tells descriptions of one inode apart where fdinfo does */
	struct stat st;
	char *link, *fdinfo;
	/*
	 * What the parent has under the same number: one more than its index, 0: something else.
	 * Then the texts are the parent's, and `cloexec` is not known.
	 */
	size_t same;
	bool gone;		 /* the task has closed it meanwhile */
	struct fd_entry *leader; /* the first one of the same description */
	struct fd_file *file;
	struct fd_entry *next; /* of the same description */
	/*
	 * On its way in a socket of the task, or a thread's alone: the process does not have it;
	 * `num` is free there.
	 */
	bool in_flight;
	int own;	 /* a duplicate in the engine then, or -1 */
	uint32_t thread; /* its index, if a thread has it in a table of its own; else 0 */
};

/* A table that a single thread has. */
struct fd_own_table {
	struct ckpt_task *task;
	uint32_t thread; /* its index */
	/* by number; `same`: one more than the index, in the state, of an entry of the same file */
	struct fd_entry *entries;
	size_t n;
};

/* One open file description. */
struct fd_file {
	uint32_t id;
	struct fd_entry *first;
	const struct ckpt_extension *kind;
	const char *plugin;
	bool out;	/* refused, or lost by permission */
	bool out_async; /* its owner and signal are, or it has none */
	bool out_locks;
	struct fd_entry *last;
	struct fd_entry *own; /* those of threads with tables of their own, by `next` */
	int fd;		      /* a duplicate in the engine; -1: none now */
	void *ahead;	      /* the kind's; while collecting */
	void *known;	      /* the kind's: what its survey has found for its record, or NULL */
	/* what was asked of it: once */
	bool looked, no_owner;
	int domain, type, protocol, listening;
};

/* The inode of a pipe, FIFO or socket that a process outside the tree has open. */
struct fd_foreign {
	uint64_t dev; /* of FIFOs and files without a name, else 0 */
	uint64_t ino;
	pid_t pid;
	int num;
	bool socket;
};

/* A kind and whose it is. */
struct fd_kind_of {
	const struct ckpt_extension *ext;
	const char *plugin;
};

/* A descriptor of the engine that was made with another and waits for its turn. */
struct fd_stashed {
	uint32_t id;
	int fd;
};

/* pipes, sockets, event files, timers */
#define FD_NAMELESS 4
#define FD_SOCKETS  1

struct fd_state {
	struct fd_kind_of *kinds; /* all that are on */
	size_t n_kinds;
	struct ckpt_task **holders; /* by task: the first that has its table */
	struct fd_own_table *own;   /* by task and thread */
	size_t n_own;
	/* by task that holds the table, then number; then those in flight */
	struct fd_entry *entries;
	size_t n, n_held;      /* all, those that tasks have */
	struct fd_file *files; /* by id */
	size_t n_files;
	size_t n_dups; /* files with duplicates that stay from survey to collect: the first ones */
	struct fd_file **by_inode;	 /* by device, inode, id */
	bool foreign_known, has_private; /* FIFOs, files without a name */
	struct fd_foreign *foreign;	 /* by inode */
	size_t n_foreign;
	uint64_t *detached; /* the kernel's numbers of mounts that are in no namespace */
	size_t n_detached;
	struct stat nameless[FD_NAMELESS]; /* an example of each; st_dev 0: none */
	dev_t plain_dev;		   /* an ordinary filesystem seen last */
	int scratch[2], scratch_capacity;  /* a pipe to copy into; capacity 0: none */
	int probe[2];			   /* one of two buffers; there if the first is not 0 */
	struct ckpt_pages *pages;	   /* content; NULL: none yet. The engine closes it */
	/* restore */
	int *clones; /* of mounts that are in no namespace; -1 */
	size_t n_clones;
	struct fd_stashed *stash;
	size_t n_stash, cap_stash;
};

/* Inodes with a POSIX lock, which belongs to a table and not to a description. */
struct fd_locked {
	uint64_t *ino; /* sorted */
	size_t n;
	bool unknown; /* the kernel does not tell: any may have one */
};

/* The state of this run, made on first use; NULL: out of memory. */
struct fd_state *fd_state(struct ckpt_run *run);
void fd_state_free(void *state);
/* Forget what an earlier look found. */
void fd_found_clear(struct fd_state *st);
/* Duplicate descriptions ahead of the look at them, as many as may be, and close them again. */
int fd_dups_open(struct fd_state *st, struct ckpt_error *err);
void fd_dups_close(struct fd_state *st);

int fd_scan(struct ckpt_run *run, struct fd_state *st, struct ckpt_error *err);
/* Add the one that `own` is, as if the task had it under that number; takes `own`. */
int fd_scan_own(struct fd_state *st, const struct ckpt_task *task, int num, int own,
		struct ckpt_error *err);
/* Add what is in flight and open nowhere else. */
int fd_flights_find(struct ckpt_run *run, struct fd_state *st, struct ckpt_error *err);
void fd_flights_close(struct fd_state *st);
/* restore: tasks close what was lent to them until it was sent. */
int fd_flights_land(struct ckpt_run *run, struct ckpt_error *err);
/* The descriptors below a directory of /proc: DIR/fd, DIR/fdinfo. Numbers are sorted. */
int fd_scan_numbers(int dir, int **nums, size_t *n);
int fd_scan_entry(const struct fd_state *st, int dir, int num, struct fd_entry *e);
/* A descriptor, task or table that goes away is no failure while nothing is stopped. */
bool fd_vanished(int e);
/* A number that the table of that task has not, nor the own one of any thread of those with it. */
int fd_free_number(const struct fd_state *st, const struct ckpt_task *holder);
/* For kcmp(2): where the kernel can find an entry. */
pid_t fd_entry_pid(const struct fd_entry *e);
int fd_entry_num(const struct fd_entry *e);
/* As ckpt_kcmp_file(). */
int fd_entry_kcmp(const struct fd_entry *a, const struct fd_entry *b);
/* The kind of a description, into file->kind, if there is one. */
int fd_kind_of(struct ckpt_run *run, struct fd_file *file, const struct ckpt_fd_found *f,
	       struct ckpt_error *err);

int fd_identify(struct ckpt_run *run, struct fd_state *st, struct ckpt_error *err);
/* Which tasks share a table, and which threads have one for themselves. */
int fd_find_tables(struct ckpt_run *run, struct fd_state *st, struct ckpt_error *err);

/* ---- tables of single threads (thread.c) ------------------------------------- */

/* Read them; what only they have is added as if their process had it too. */
int fd_threads_scan(struct ckpt_run *run, struct fd_state *st, struct ckpt_error *err);
/* After fd_identify(). */
void fd_threads_identify(struct fd_state *st);
void fd_threads_clear(struct fd_state *st);
int fd_threads_collect(struct ckpt_run *run, const struct fd_state *st, struct ckpt_error *err);
int fd_threads_plan(struct ckpt_run *run, struct ckpt_error *err);
/* In the image: has that thread's own table that file under that number? */
bool fd_thread_has(struct ckpt_run *run, uint32_t task, uint32_t thread, uint32_t num,
		   uint32_t file);

/* Entries of a table by number; returns how many. */
size_t fd_entries_of(const struct fd_state *st, const struct ckpt_task *holder,
		     const struct fd_entry **out);
/* Describe for a kind, until fd_described(). 1: gone meanwhile. */
int fd_describe(struct ckpt_run *run, struct fd_file *file, struct ckpt_fd_found *f,
		struct ckpt_error *err);
void fd_described(const struct fd_state *st, struct fd_file *file);
/* Let kinds ask ahead about those of `n` files that have a duplicate. */
int fd_look_ahead(struct fd_file *files, size_t n, struct ckpt_error *err);
/* Files of an inode, in order of id; returns how many. */
size_t fd_files_of(const struct fd_state *st, dev_t dev, ino_t ino, struct fd_file *const **out);
/* The file that this task has under that number, or NULL. */
const struct fd_entry *fd_entry_find(const struct fd_state *st, const struct ckpt_task *task,
				     int num);

/*
 * A process outside the tree that has this pipe or socket open, as text in buf;
 * 0: none.
 */
int fd_foreign(struct ckpt_run *run, struct fd_state *st, bool is_socket, uint64_t ino, char *buf,
	       size_t size, struct ckpt_error *err);

/* ---- refusals --------------------------------------------------------------- */

/*
 * Refuse a description; always 1, the kinds' word for "leave it out", or a
 * negative errno that is not the refusal itself.
 */
int fd_refuse(struct ckpt_run *run, const struct ckpt_fd_found *f, const char *feature,
	      const char *reason, const char *hint);
/* Refuse a detail of it: 0 if the user allows to go on without the detail, else 1. */
int fd_refuse_detail(struct ckpt_run *run, const struct ckpt_fd_found *f, const char *feature,
		     const char *reason, const char *hint);
/* Refuse what gets a name for a moment when it is made again, if its mount takes none. 0: it does.
 */
int fd_refuse_readonly(struct ckpt_run *run, const struct ckpt_fd_found *f, const char *feature,
		       struct ckpt_error *err);
/* Refuse a description of no kind, by the best name for it. */
int fd_refuse_unknown(struct ckpt_run *run, const struct ckpt_fd_found *f);
/* Refuse a pipe or socket of which somebody outside holds an end. 0: nobody. */
int fd_refuse_foreign(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err);

/* Value of a "key: value" line of fdinfo, in this base; -ENOENT. */
int fd_info_u64(const char *fdinfo, const char *key, int base, uint64_t *value);

/* ---- records ------------------------------------------------------------------ */

/* A path of an image as a string; NULL if it is none. */
/* Plan: list that what was saved by this path is not found there; `why`: ckpt_stat_in()'s. */
int fd_missing(struct ckpt_run *run, const char *path, int why, const char *hint);
/*
 * Restore: is it what was saved, or, where that is gone, of the same owner, and open to no
 * fewer? Else whoever may rename it has put there what he could not have opened himself.
 */
bool fd_is_same(const struct stat *st, const Ckpt__Fd__Owner *owner, uint64_t dev, uint64_t ino);
const char *fd_image_path(const ProtobufCBinaryData *b, char *buf, size_t size);

/* fs.nr_open has no higher value */
#define FD_NUM_MAX 0x3fffffc0
/* The thread of the tree with that id, by task and ckpt_thread_number(); NULL: there is none. */
const struct ckpt_task *fd_thread_find(struct ckpt_run *run, pid_t tid, uint32_t *number);
/* In the image: has the task that file under that number? */
bool fd_table_has(struct ckpt_run *run, uint32_t task, uint32_t num, uint32_t file);
/* Fill st->kinds, which who asks for a kind needs. */
int fd_kinds_list(struct ckpt_run *run, struct fd_state *st);
/* The kind of a saved file, or NULL. */
const struct ckpt_extension *fd_kind_find(struct ckpt_run *run, const Ckpt__Fd__File *file);
/*
 * What several descriptions have in common is checked with the one whose id it has: is there
 * one, of the same kind as `file`?
 */
int fd_planned_as(struct ckpt_run *run, uint32_t object, const Ckpt__Fd__File *file,
		  struct ckpt_error *err);

int fd_stash_put(struct fd_state *st, uint32_t id, int fd, struct ckpt_error *err);
/* -1: nothing there. */
int fd_stash_take(struct fd_state *st, uint32_t id);

/* ---- handles --------------------------------------------------------------------- */

/* <fcntl.h> has struct file_handle, with _GNU_SOURCE. */
struct fd_handle {
	struct file_handle h;
	unsigned char bytes[MAX_HANDLE_SZ];
};

/* Calls fn with an O_PATH descriptor of each mount of that filesystem, until it says true. */
bool fd_each_mount(dev_t dev, bool (*fn)(int mount, void *arg), void *arg);
/* The same, in the mount namespaces of the tree. */
bool fd_each_mount_of_tree(struct ckpt_run *run, dev_t dev, bool (*fn)(int mount, void *arg),
			   void *arg);
int fd_handle_get(int fd, struct fd_handle *h);
bool fd_handle_is_same(const struct fd_handle *a, const struct fd_handle *b);
/* As open_by_handle_at(2) with O_PATH, in the mount of an O_PATH descriptor. */
int fd_handle_in(int mount, struct fd_handle *h);
/* As O_PATH; -ESTALE: it is not there. */
int fd_handle_open(struct fd_handle *h, dev_t dev, ino_t ino);
/*
 * dump: a file of the overlay `dev`, by the handle that fdinfo tells: its path (PATH_MAX), the
 * mount namespace in which that holds, and what it is (overlay.c).
 */
bool fd_overlay_find(struct ckpt_run *run, dev_t dev, const struct fd_handle *h, uint32_t *mnt,
		     char *path, struct stat *st);

/* ---- paths ------------------------------------------------------------------------ */

/* Refuse a file whose link is no path that leads to it, for ckpt. 0: it does. */
int fd_place_survey(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err);
/* The mount namespace in which the path holds. */
int fd_place_mnt(struct ckpt_run *run, const struct ckpt_fd_found *f, uint32_t *mnt,
		 struct ckpt_error *err);
/* Refuse files on filesystems of the kernel's own making. 0: an ordinary one. */
int fd_filesystem_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
			 struct ckpt_error *err);
/* What open(2) can bring back; the kernel adds O_LARGEFILE (0100000) itself. */
#define FD_OPEN_FLAGS                                                                  \
	(O_ACCMODE | O_APPEND | O_NONBLOCK | O_DIRECT | O_SYNC | O_DSYNC | O_NOATIME | \
	 O_DIRECTORY | O_NOFOLLOW | 0100000)
/* The directory of a path, in buf; "/" for a file of the root. NULL: too long. */
const char *fd_directory_of(const char *path, size_t len, char *buf, size_t size);
/* Refuse what is not in ckpt's own mount namespace. 0: it is. */
int fd_own_mount_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
			struct ckpt_error *err);
/* ---- mounts that are in no namespace (detached.c) ------------------------------------ */

bool fd_is_detached(struct ckpt_run *run, const struct ckpt_fd_found *f);
int fd_detached_survey(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err);
/* `root` has room for PATH_MAX. */
int fd_detached_collect(struct ckpt_run *run, const struct ckpt_fd_found *f,
			Ckpt__Fd__Detached *rec, char *root, struct ckpt_error *err);
int fd_detached_plan(struct ckpt_run *run, const Ckpt__Fd__Detached *rec, const char *path,
		     const Ckpt__Fd__File *file, struct ckpt_error *err);
int fd_detached_open(struct ckpt_run *run, const Ckpt__Fd__Detached *rec, const char *path,
		     int open_flags, struct ckpt_error *err);
void fd_detached_free(struct fd_state *st);

/* Was it deleted while another name is left? */
bool fd_has_other_name(const struct ckpt_fd_found *f);
/* A directory that was removed? */
bool fd_is_dead_directory(const struct ckpt_fd_found *f);
/* Is it below /proc? Then it is the kind `proc`'s. */
bool fd_below_proc(const struct ckpt_fd_found *f);
/* Is it below /sys? Then it is the kind `sysfs`'s. */
bool fd_below_sys(const struct ckpt_fd_found *f);

/*
 * restore of one of several copies: would all of them have in common what is open there? Then
 * that is listed as missing.
 */
bool fd_copies_check(struct ckpt_run *run, uint32_t mnt, const char *path,
		     const Ckpt__Fd__File *file);
/*
 * restore: open what a record leads to, by the detached mount or by the path in the mount
 * namespace; -EIO if it is of another type than it was.
 */
int fd_open_saved(struct ckpt_run *run, uint32_t mnt, const Ckpt__Fd__Detached *detached,
		  const ProtobufCBinaryData *path, int flags, uint32_t type,
		  struct ckpt_error *err);

/*
 * dump: does root hold it, of ckpt's own user namespace? For what the kernel gives and lets by its
 * opener's credentials, who will be ckpt.
 */
int fd_holder_is_root(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err);
/* procmem.c: of a file of the task's in /proc */
int fd_procmem_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
		      const struct ckpt_task *t, struct ckpt_error *err);

/*
 * restore: open a file that has just been made, or found, once more. `name` is its present name in
 * a directory whose owner may put another file there: -EEXIST.
 */
int fd_open_made(int made, const char *name, int flags, struct ckpt_error *err);

/* ---- content of files without a name ------------------------------------------------ */

#define FD_PAGE		4096ULL
#define FD_DELETED_MARK " (deleted)"

/* Is it a deleted file, one of O_TMPFILE, or a memfd? Then its name says nothing. */
bool fd_is_ghost(const struct ckpt_fd_found *f);
/* A POSIX message queue, which the plugin ipc saves. */
bool fd_is_queue(const struct ckpt_fd_found *f);
/* Save what the file holds; the lists are the caller's to free with fd_ghost_free(). */
int fd_content_save(struct ckpt_run *run, int fd, Ckpt__Fd__Ghost *g, struct ckpt_error *err);
int fd_xattrs_save(int fd, Ckpt__Fd__Ghost *g, struct ckpt_error *err);
void fd_ghost_free(Ckpt__Fd__Ghost *g);
int fd_content_check(struct ckpt_run *run, const Ckpt__Fd__Ghost *g, struct ckpt_error *err);
/* Into a new file. */
int fd_content_restore(struct ckpt_run *run, int fd, const Ckpt__Fd__Ghost *g,
		       struct ckpt_error *err);
int fd_xattrs_restore(int fd, const Ckpt__Fd__Ghost *g, struct ckpt_error *err);

/* Are there as many huge pages as it needs? */
int fd_huge_plan(struct ckpt_run *run, const Ckpt__Fd__Ghost *g);

/* ---- locks -------------------------------------------------------------------------- */

/* in the image */
enum fd_lock_kind { FD_LOCK_POSIX = 1, FD_LOCK_OFD, FD_LOCK_FLOCK, FD_LOCK_LEASE };

int fd_locked_read(struct fd_locked *l); /* -ENOMEM */
bool fd_is_locked(const struct fd_locked *l, uint64_t ino);
/* Tell those who open files of the tree by a name who would notice (notice.c). */
int fd_notices_tell(struct ckpt_run *run, struct fd_state *st, struct ckpt_error *err);
/* Refuse locks that cannot be saved. 0: nothing of that, or lost by permission. */
int fd_locks_survey(struct ckpt_run *run, struct fd_file *file, const struct ckpt_fd_found *f);
int fd_locks_collect(struct ckpt_run *run, struct fd_state *st, struct ckpt_error *err);
int fd_locks_plan(struct ckpt_run *run, struct ckpt_error *err);
/* restore: POSIX locks, or all others. */
int fd_locks_take(struct ckpt_run *run, bool posix, struct ckpt_error *err);

/* ---- owner and signal ------------------------------------------------------------ */

/* Has the description an owner, or a signal of its own? */
bool fd_async_any(int fd, int flags);
/* Refuse owners that cannot be saved. 0: nothing of that, or lost by permission. */
int fd_async_survey(struct ckpt_run *run, struct fd_file *file, const struct ckpt_fd_found *f);
int fd_async_collect(struct ckpt_run *run, const struct fd_file *file,
		     const struct ckpt_fd_found *f, struct ckpt_error *err);
int fd_async_plan(struct ckpt_run *run, struct ckpt_error *err);
/* `holder` has the file as `num`. */
int fd_async_apply(struct ckpt_run *run, uint32_t file, struct ckpt_task *holder, int num,
		   struct ckpt_error *err);

/* ---- owners ------------------------------------------------------------------- */

void fd_owner_of(const struct stat *st, Ckpt__Fd__Owner *owner);
/* Make it so; the descriptor is a fresh pipe. */
int fd_owner_apply(int fd, const Ckpt__Fd__Owner *owner, struct ckpt_error *err);
int fd_owner_check(const Ckpt__Fd__Owner *owner, uint32_t id, struct ckpt_error *err);

/* Is there such a task in the image? */
bool fd_task_known(struct ckpt_run *run, uint32_t id);
/* How many living threads the image has of it; 0: it has no such task. */
size_t fd_threads_known(struct ckpt_run *run, uint32_t id);
/* Has it the thread of that ckpt_thread_number()? */
bool fd_thread_known(struct ckpt_run *run, uint32_t id, uint32_t number);
/* Is it ckpt's own mount namespace (0), or one of the image? */
bool fd_mnt_known(struct ckpt_run *run, uint32_t mnt);

/* ---- kinds ---------------------------------------------------------------------- */

extern const struct ckpt_fd_kind fd_kind_regular;
extern const struct ckpt_fd_kind fd_kind_device;
extern const struct ckpt_fd_kind fd_kind_pipe;
extern const struct ckpt_fd_kind fd_kind_fifo;
extern const struct ckpt_fd_kind fd_kind_inotify;
extern const struct ckpt_fd_kind fd_kind_deleted;
extern const struct ckpt_fd_kind fd_kind_memfd;
extern const struct ckpt_fd_kind fd_kind_other_name;
extern const struct ckpt_fd_kind fd_kind_dead_directory;
extern const struct ckpt_fd_kind fd_kind_signalfd;
extern const struct ckpt_fd_kind fd_kind_pidfd;
extern const struct ckpt_fd_kind fd_kind_opath;
extern const struct ckpt_fd_kind fd_kind_proc;
extern const struct ckpt_fd_kind fd_kind_sysfs;
extern const struct ckpt_fd_kind fd_kind_eventfd;
extern const struct ckpt_fd_kind fd_kind_timerfd;
extern const struct ckpt_fd_kind fd_kind_epoll;
extern const struct ckpt_fd_kind fd_kind_external;

/* The kind external, if the user has listed this description; else NULL. */
const struct ckpt_extension *fd_external(struct ckpt_run *run, const struct ckpt_fd_found *f);
/* Is every -o fd.inherit asked for? */
int fd_plan_inherit(struct ckpt_run *run, struct ckpt_error *err);

extern const struct ckpt_share_kind fd_share;

/* What kinds may ask about the rest of the tree. */
extern const struct ckpt_fd_tree fd_tree;

#endif
