/* SPDX-License-Identifier: MIT */
/* Inside the plugin mem. */
#ifndef PLUGIN_MEM_H
#define PLUGIN_MEM_H

#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <ckpt/mnt.h>
#include <ckpt/nodes.h>
#include <ckpt/plugin.h>
#include <ckpt/vma.h>

#include "mem.pb-c.h"

struct mem_image;
struct mem_family;

typedef Ckpt__Mem__File mem_file_rec;
typedef Ckpt__Mem__Space mem_space_rec;
typedef Ckpt__Mem__Vma mem_vma_rec;
typedef Ckpt__Mem__Vmas mem_vmas_rec;
typedef Ckpt__Mem__Pages mem_pages_rec;
typedef Ckpt__Mem__Shared mem_shared_rec;

enum { MEM_REC_FILE = 1, MEM_REC_SPACE, MEM_REC_VMAS, MEM_REC_PAGES, MEM_REC_SHARED };
#define MEM_PRIVATE_ANON CKPT__MEM__KIND__PRIVATE_ANON
#define MEM_SHARED_ANON	 CKPT__MEM__KIND__SHARED_ANON
#define MEM_FILE_PRIVATE CKPT__MEM__KIND__FILE_PRIVATE
#define MEM_FILE_SHARED	 CKPT__MEM__KIND__FILE_SHARED
#define MEM_SPECIAL	 CKPT__MEM__KIND__SPECIAL
#define MEM_EXTENSION	 CKPT__MEM__KIND__EXTENSION

#define MEM_PAGE       4096ull
#define MEM_PAGES_NAME "mem"
/* The end of user space with four and with five levels of page tables. */
#define MEM_TASK_SIZE	   ((1ull << 47) - MEM_PAGE)
#define MEM_TASK_SIZE_LA57 ((1ull << 56) - MEM_PAGE)

/* linux-libc-dev 6.1 has none of these. */
#ifndef MAP_DROPPABLE
#define MAP_DROPPABLE 0x08
#endif
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif
#ifndef SYS_mseal
#define SYS_mseal 462
#endif
#ifndef PR_SET_VMA
#define PR_SET_VMA	     0x53564d41
#define PR_SET_VMA_ANON_NAME 0
#endif

/* ---- flags of mappings (flags.c) -------------------------------------------- */

/*
 * What /proc/PID/smaps says in VmFlags. The lower ones are attributes that are
 * saved: their values are part of the image format.
 */
enum mem_attr {
	MEM_NORESERVE = 1 << 0,
	MEM_GROWSDOWN = 1 << 1,
	MEM_ACCOUNT = 1 << 2, /* was writable once: counts as committed memory */
	MEM_DONTFORK = 1 << 3,
	MEM_WIPEONFORK = 1 << 4,
	MEM_DONTDUMP = 1 << 5,
	MEM_HUGEPAGE = 1 << 6,
	MEM_NOHUGEPAGE = 1 << 7,
	MEM_MERGEABLE = 1 << 8,
	MEM_SEQUENTIAL = 1 << 9,
	MEM_RANDOM = 1 << 10,
	MEM_LOCKED = 1 << 11,
	MEM_ONFAULT = 1 << 12,
	MEM_MAYWRITE = 1 << 13, /* saved for shared files: was opened for writing */
	MEM_DROPPABLE = 1 << 14,
	MEM_SEALED = 1 << 15,
	MEM_HUGETLB = 1 << 21, /* memory of the pool of 2 MiB pages */
	MEM_ATTRS = ((1 << 16) - 1) | MEM_HUGETLB,
	MEM_ADVICE = MEM_DONTFORK | MEM_WIPEONFORK | MEM_DONTDUMP | MEM_HUGEPAGE | MEM_NOHUGEPAGE |
		     MEM_MERGEABLE | MEM_SEQUENTIAL | MEM_RANDOM,

	MEM_READ = 1 << 16,
	MEM_WRITE = 1 << 17,
	MEM_EXEC = 1 << 18,
	MEM_MAYREAD = 1 << 19,
	/* what cannot be saved; each has a line in mem_bad_flags[] */
	MEM_PFN = 1 << 20,
	MEM_SYNC = 1 << 22,
	MEM_UFFD = 1 << 23,
	MEM_SHADOW_STACK = 1 << 24,
	MEM_IGNORED = 1 << 25,
	MEM_DONTEXPAND = 1 << 26,
	MEM_UNKNOWN = 1 << 27,
};

/* The mask of a VmFlags text; the first code that is not known goes to unknown. */
uint32_t mem_flags_parse(const char *text, char unknown[3]);

struct mem_advice {
	uint32_t flag;
	int advice;
};
extern const struct mem_advice mem_advices[]; /* flag 0 ends */

struct mem_bad_flag {
	uint32_t flag;
	const char *feature, *reason, *hint;
	bool keep; /* going on without loses the property, not the mapping */
};
extern const struct mem_bad_flag mem_bad_flags[]; /* flag 0 ends */

/* ---- a live address space (maps.c) -------------------------------------------- */

struct mem_vma {
	uint64_t start, end, offset, ino;
	uint32_t major, minor;
	uint32_t flags;
	uint32_t object;
	int prot;
	Ckpt__Mem__Kind kind;
	int pkey;
	uint64_t huge_size; /* of its pages, if it has MEM_HUGETLB */
	bool shared, left_out;
	bool forked; /* some of its pages are mapped elsewhere too */
	bool alone;  /* none are */
	bool empty;  /* large, without a page in memory or swap */
	char unknown[3];
	const char *path, *flags_text; /* kept by the mem_maps */
	const struct ckpt_extension *ext;
	const char *ext_plugin;
};

/* Is it one that MADV_GUARD_INSTALL takes, and of which guard pages come back? */
static inline bool mem_may_be_guarded(const struct mem_vma *v)
{
	return !v->left_out && v->kind != MEM_SPECIAL && !(v->flags & (MEM_PFN | MEM_HUGETLB));
}

struct mem_maps {
	struct mem_block *kept; /* the strings that mappings point to */
	struct mem_vma *vma;
	size_t n;
};

/* Read "maps" or "smaps" of a task, [vsyscall] left out. -ESRCH if it has no memory (any more). */
int mem_maps_read(const struct ckpt_task *t, const char *file, struct mem_maps *out,
		  struct ckpt_error *err);
/* The same of an open file; what is in `out` is to be freed after an error, too. */
int mem_maps_from(int fd, struct mem_maps *out, struct ckpt_error *err);
void mem_maps_free(struct mem_maps *m);
#define MEM_AUTO_MAPS __attribute__((cleanup(mem_maps_free)))

/* "mapping 7f0000000000-7f0000001000 /path" */
#define MEM_NAME_MAX 4352
const char *mem_vma_name(const struct mem_vma *v, char *buf, size_t size);
struct ckpt_vma_found mem_vma_found(const struct ckpt_task *t, const struct mem_vma *v);
/* A file below /proc/PID. */
int mem_proc_open(const struct ckpt_task *t, const char *file, int flags, struct ckpt_error *err);
/* "task 3 (redis)" */
const char *mem_task_name(const struct ckpt_task *t, char *buf, size_t size);

/* ---- the vdso (vdso.c) --------------------------------------------------------- */

#define MEM_SPECIALS 4
struct mem_vdso {
	size_t n;
	struct {
		const char *name;
		uint64_t offset, size;
	} part[MEM_SPECIALS];
	uint64_t hash, code_offset, code_size;
};

/* That of the running kernel, read from ckpt itself. */
int mem_vdso_own(struct mem_vdso *v, struct ckpt_error *err);
uint64_t mem_hash(const void *data, size_t len);
bool mem_is_special(const char *path);

/* ---- what a dump knows (state) --------------------------------------------------- */

/* Files that have no name any more: `ghost` of their record. */
enum mem_ghost { MEM_NO_GHOST, MEM_MEMFD, MEM_DELETED };

struct mem_file {
	char *path, *seen; /* the second as /proc says it */
	uint32_t mnt;	   /* the mount namespace that the path is in */
	uint32_t seen_in;  /* that of the task where it was found */
	enum mem_ghost ghost;
	uint32_t content, seals; /* of a ghost: its shared object */
	struct stat st;
	uint32_t major, minor; /* as in maps; with ino the key for mappings */
	uint64_t ino;
	char *maps_path;
	const char *bad, *bad_feature; /* why it cannot be saved */
	const char *bad_hint;
	bool mapped;
};

struct mem_runs {
	uint64_t *start, *pages; /* in pages */
	size_t n, cap;
};
/* Room for one more of n elements; NULL: no memory, and the old ones are still there. */
void *mem_grow(void *array, size_t n, size_t *cap, size_t size);
int mem_runs_add(struct mem_runs *r, uint64_t start, uint64_t pages, struct ckpt_error *err);
/* The same, as a run of its own. */
int mem_runs_append(struct mem_runs *r, uint64_t start, uint64_t pages, struct ckpt_error *err);
void mem_runs_free(struct mem_runs *r);
#define MEM_AUTO_RUNS __attribute__((cleanup(mem_runs_free)))

struct mem_shared {
	uint32_t major, minor;
	uint64_t ino, size;
	int fd; /* of the object, for reading */
	bool ghost, huge;
};

struct mem_space {
	struct ckpt_task *task;
	struct mem_maps maps;
	uint64_t vdso;
	uint32_t exe; /* file id; 0: left out */
	bool no_layout, gone;
};

struct mem_state {
	struct ckpt_run *run;
	/* dump and verify */
	struct mem_space *spaces;
	size_t n_spaces;
	struct mem_file *files; /* id is index + 1 */
	size_t n_files, cap_files;
	struct mem_shared *shared; /* id is index + 1 */
	size_t n_shared;
	struct mem_vdso own_vdso;
	/* an image, indexed (image.c) */
	struct mem_image *image;
	struct mem_family *family; /* or NULL */
};

int mem_state_get(struct ckpt_run *run, struct mem_state **out, struct ckpt_error *err);
void mem_state_free(void *state);

/* ---- files (files.c) -------------------------------------------------------------- */

/*
 * The id of the file behind a mapping, known or new. 0: it cannot be saved, *bad
 * is the entry that says why (valid until the next call).
 */
int mem_file_of(struct mem_state *st, const struct ckpt_task *t, const struct mem_vma *v,
		uint32_t *id, const struct mem_file **bad, struct ckpt_error *err);
int mem_file_exe(struct mem_state *st, const struct ckpt_task *t, uint32_t *id,
		 const struct mem_file **bad, struct ckpt_error *err);
/* Why what is mapped under this name cannot be saved; NULL: it may be a file. */
struct mem_bad_path {
	const char *prefix, *feature, *reason, *hint;
};
const struct mem_bad_path *mem_bad_path(const char *path);
/* The shared anonymous object behind a mapping, known or new. */
int mem_shared_of(struct mem_state *st, const struct ckpt_task *t, const struct mem_vma *v,
		  uint32_t *id, struct ckpt_error *err);
/* An object as one more; its descriptor is taken over, also on failure; its id in *id. */
int mem_shared_add(struct mem_state *st, const struct mem_shared *s, uint32_t *id,
		   struct ckpt_error *err);
/* Open /proc/PID/map_files/START-END. */
int mem_open_map_file(const struct ckpt_task *t, const struct mem_vma *v, int flags,
		      struct ckpt_error *err);

/* ---- memory policies (policy.c) ------------------------------------------------------- */

struct mem_policy {
	uint32_t mode;
	struct ckpt_nodes nodes;
	uint32_t list[CKPT_MAX_NODES]; /* the same, as numbers */
	size_t n_list;
};

/* Those of a live address space; all NULL: there are none. */
struct mem_policies {
	uint32_t *of;		   /* by mapping: the number of its policy, or 0 */
	struct mem_policy *policy; /* number 1 is the first */
	size_t n, cap;
	Ckpt__Mem__Policy *rec, **list; /* as they are written */
};

int mem_policies_look(struct ckpt_run *run, const struct mem_space *sp, struct mem_policies *out,
		      struct ckpt_error *err);
void mem_policies_free(struct mem_policies *p);
#define MEM_AUTO_POLICIES __attribute__((cleanup(mem_policies_free)))
/* Have these two mappings the same? Whose have not are kept apart by that. */
bool mem_policies_same(const struct mem_policies *p, size_t i, size_t k);
void mem_policies_put(struct mem_policies *p, const struct mem_maps *maps, mem_vmas_rec *m);
int mem_policies_plan(struct ckpt_run *run, const mem_vmas_rec *m, struct ckpt_error *err);
/* Once everything is mapped, and before there are pages in it. */
void mem_policies_script(struct ckpt_script *s, const mem_vmas_rec *m);

/* ---- files without a name (ghost.c) ---------------------------------------------------- */

/* What a file is whose path leads nowhere; if it is a ghost, its path is made that of before. */
enum mem_ghost mem_ghost_kind(struct ckpt_run *run, struct mem_file *f, int fd);
/* Does the plugin fd save it? Known after the collecting. */
bool mem_ghost_is_open(struct ckpt_run *run, const struct stat *st);
/* What keeps it from being the file of the image, or NULL. */
const char *mem_file_differs(struct ckpt_run *run, const struct mem_image *im,
			     const mem_file_rec *f, const struct stat *st);
int mem_ghost_plan(struct ckpt_run *run, const struct mem_image *im, const mem_file_rec *f,
		   struct ckpt_error *err);
/* `open`: take it from a task that has it. Returns a descriptor. */
int mem_ghost_make(struct ckpt_run *run, const mem_file_rec *f, const mem_shared_rec *content,
		   struct ckpt_error *err);
/* After it was filled and mapped; *fd becomes read-only. */
int mem_ghost_finish(const mem_file_rec *f, int *fd, struct ckpt_error *err);

/* ---- page tables (scan.c) ------------------------------------------------------------ */

struct mem_scan {
	int fd;
	bool ioctl, guards; /* what the kernel can do */
	uint64_t *buf;
	/*
	 * How far a look may go beyond the mapping that is asked about: the end of the last
	 * of the following ones that are of its kind. Set by the caller, whose tasks stand still.
	 */
	uint64_t until;
	/* what the last look has found, in buf */
	uint64_t known_from, known_to;
	size_t n, at;
};

int mem_scan_open(struct ckpt_run *run, const struct ckpt_task *t, struct mem_scan *s,
		  struct ckpt_error *err);
void mem_scan_close(struct mem_scan *s);
#define MEM_AUTO_SCAN __attribute__((cleanup(mem_scan_close)))
/*
 * The pages of a private mapping that are its own: not the file's, not the zero
 * page. Guard pages go to `guards`.
 */
int mem_scan_vma(struct mem_scan *s, const struct mem_vma *v, struct mem_runs *runs,
		 struct mem_runs *guards, struct ckpt_error *err);
/* Only the guard pages, of a mapping of any kind: those of before Linux 6.16 do not show. */
int mem_scan_guards(struct mem_scan *s, const struct mem_vma *v, struct mem_runs *guards,
		    struct ckpt_error *err);
int mem_scan_probe(struct ckpt_error *err);

/* Read the entries of `n` pages from /proc/PID/pagemap. */
int mem_scan_entries(const struct mem_scan *s, uint64_t page, size_t n, uint64_t *entries,
		     struct ckpt_error *err);

/* ---- pages that are stored once (once.c) --------------------------------------------- */

struct mem_once_page {
	uint64_t frame;	      /* its number */
	uint64_t place, page; /* in the page file, and in the space that it was read from */
	size_t space;
};

struct mem_once {
	struct mem_once_page *page;
	size_t n, size;
};

/* The frame of a page that is mapped more than once, or 0. */
uint64_t mem_once_frame(uint64_t entry);
/* The page that was stored when it was in that frame, or NULL. */
const struct mem_once_page *mem_once_find(const struct mem_once *o, uint64_t frame);
int mem_once_add(struct mem_once *o, const struct mem_once_page *p, struct ckpt_error *err);
void mem_once_free(struct mem_once *o);

/* ---- an image, indexed (image.c) -------------------------------------------------------- */

struct mem_task_image {
	uint32_t id;
	const mem_space_rec *space;
	const mem_vmas_rec *vmas;
	const mem_pages_rec *pages;
};

struct mem_image {
	struct mem_task_image *tasks; /* sorted by id */
	size_t n_tasks;
	const mem_file_rec **files; /* id is index + 1 */
	size_t n_files;
	const mem_shared_rec **shared; /* id is index + 1 */
	const mem_file_rec **ghost;    /* whose content that is, or NULL */
	size_t n_shared;
};

/* The extension of a kind of mapping, and its plugin; NULL if there is none. */
const struct ckpt_extension *mem_extension(struct ckpt_run *run, const char *name,
					   const char **plugin);
int mem_image_load(struct ckpt_run *run, struct mem_image **out, struct ckpt_error *err);
void mem_image_free(struct mem_image *im);
const struct mem_task_image *mem_image_task(const struct mem_image *im, uint32_t id);
const char *mem_rec_name(const struct mem_image *im, const mem_vma_rec *v, char *buf, size_t size);

/* ---- the engine's descriptors in a task (lend.c) --------------------------------------------- */

struct mem_lent {
	int fd; /* of the engine, opened for this; -1 */
	int op; /* that fetches it in the present script; -1 */
};

struct mem_lender {
	struct ckpt_run *run;
	const int *shared; /* the engine's descriptors of shared objects */
	struct mem_lent *slot;
	size_t n, open;
};

int mem_lend_init(struct mem_lender *l, struct ckpt_run *run, size_t slots, struct ckpt_error *err);
/* The operation whose result is the descriptor; appended to the script on first use. */
int mem_lend(struct mem_lender *l, struct ckpt_script *s, size_t slot, int fd);
/* As above, of a file that is opened for it: O_RDONLY or O_RDWR. */
int mem_lend_file(struct mem_lender *l, struct ckpt_script *s, size_t slot,
		  const struct mem_image *im, const mem_file_rec *rec, int flags,
		  struct ckpt_error *err);
/* Append the closing of everything fetched; the engine's own are closed after the run, by drop. */
void mem_lend_end(struct mem_lender *l, struct ckpt_script *s);
void mem_lend_drop(struct mem_lender *l);
void mem_lend_free(struct mem_lender *l);

/* ---- mapping (map.c, fill.c) ---------------------------------------------------------------- */

/* ---- contents on their way to the page file (sink.c) ----------------------------------------- */

/* A portion and what is done to it fit into the second-level cache. */
#define MEM_PORTION	  ((size_t)256 << 10)
#define MEM_PORTION_PAGES (MEM_PORTION / MEM_PAGE)
#define MEM_PORTION_RUNS  MEM_PORTION_PAGES
#define MEM_SINK_SLOTS	  16
#define MEM_SINK_HELPERS  3

/* Where pages come from. */
struct mem_source {
	int fd;
	pid_t pid;     /* whose memory, or 0 */
	bool ends;     /* a file, whose last page may be incomplete */
	char name[64]; /* for messages */
};

struct mem_run_in {
	uint64_t page;
	uint32_t pages;
	bool drop_zeros;
	bool alone; /* nobody else has these pages */
};

/* Runs of pages that one thread saves in one go. */
struct mem_portion_in {
	struct mem_source from;
	struct mem_run_in run[MEM_PORTION_RUNS];
	size_t n, pages;
	struct mem_runs *out; /* where those that are stored are noted */
	uint64_t *begin;      /* where the place of its first page is noted, or NULL */
	bool last;	      /* close the source afterwards */
	bool forked;	      /* others may have these too: */
	size_t space;
	uint64_t frame[MEM_PORTION_PAGES];
};

struct mem_kept;

struct mem_sink {
	struct ckpt_pages *pages;
	struct mem_once *once;
	struct mem_portion_in *slot;
	char *buffer;		   /* of the step's thread */
	struct mem_kept *kept;	   /* too */
	uint64_t stored, zeros;	   /* pages */
	unsigned put, taken, turn; /* numbers of portions so far */
	pthread_t helper[MEM_SINK_HELPERS];
	unsigned helpers;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool ready, asked, ending;
	int failed;
	struct ckpt_error err;
};

int mem_sink_open(struct mem_sink *k, struct ckpt_pages *pages, struct mem_once *once,
		  struct ckpt_error *err);
/* Hand over a portion, which is copied. Errors may be those of earlier ones. */
int mem_sink_put(struct mem_sink *k, const struct mem_portion_in *p, struct ckpt_error *err);
/* Wait until all have their places. */
int mem_sink_drain(struct mem_sink *k, struct ckpt_error *err);
/* Wait until everything is written. */
int mem_sink_close(struct mem_sink *k, struct ckpt_error *err);
void mem_sink_free(struct mem_sink *k);
#define MEM_AUTO_SINK __attribute__((cleanup(mem_sink_free)))

/* ---- mapping and filling (map.c, fill.c) -------------------------------------------------------
 */

/* As many files are open in a task at once; then the script so far is run. */
#define MEM_MAX_OPEN 200

int mem_map_flags(const mem_vma_rec *v);
/* Is a shared object mapped without a reservation? */
bool mem_is_noreserve(const struct mem_image *im, uint32_t object);

/* Are there as many huge pages as the tasks of this image need? */
int mem_huge_plan(struct ckpt_run *run, const struct mem_image *im);
/* What each mapping has to allow while it is filled. */
void mem_first_prots(const struct mem_task_image *ti, int *prots);
/* Neighbours that differ in their final protection only are mapped in one go: the end of those. */
size_t mem_group_end(const mem_vmas_rec *m, const int *prots, size_t i);
/* The next seam, or the end. */
uint64_t mem_seam_after(const mem_vmas_rec *m, uint64_t at, uint64_t end);

/* One task being mapped. */
struct mem_job {
	struct ckpt_run *run;
	const struct mem_image *im;
	const struct mem_task_image *ti;
	struct ckpt_task *task;
	struct ckpt_script *s;
	const struct mem_runs *keep; /* pages that it has inherited; or NULL */
	int pages_fd;		     /* of the engine; -1: no page file */
};

/* What is to be copied from the page file to where: portions that one thread each takes. */
struct mem_portion {
	pid_t pid; /* whose memory; 0: the object `fd` */
	int fd;
	uint64_t offset; /* in the page file */
	size_t bytes;
	size_t first, n; /* places */
};

struct mem_filler {
	int pages_fd;
	struct mem_portion *portion;
	struct iovec *place; /* addresses, or offsets in an object */
	size_t n, cap, n_places, cap_places;
	uint64_t bytes;
	/* while they are at work */
	pthread_mutex_t lock;
	size_t next;
	int failed;
	struct ckpt_error err;
};

/* Never writable by its owner, so filled through /proc/PID/mem? */
bool mem_is_forced(const mem_vma_rec *v);
/* Note `len` bytes of the page file, for an address of a process, or an offset in `fd`. */
int mem_fill_note(struct mem_filler *f, pid_t pid, int fd, uint64_t at, uint64_t len,
		  uint64_t offset, struct ckpt_error *err);
/* Note the contents of all mappings of a task but the forced ones. */
int mem_fill_task(struct mem_filler *f, const struct mem_job *j, struct ckpt_error *err);
/* Copy everything that was noted; the mappings must be there and writable. */
int mem_fill_run(struct mem_filler *f, struct ckpt_error *err);
void mem_fill_free(struct mem_filler *f);
#define MEM_AUTO_FILLER __attribute__((cleanup(mem_fill_free)))
/* Fill the forced ones. */
int mem_fill_forced(struct mem_job *j, struct ckpt_error *err);
/* Make the shared objects and note their contents; fds[i] belongs to object i + 1. */
int mem_shared_make(struct mem_filler *f, struct ckpt_run *run, const struct mem_image *im,
		    int *fds, struct ckpt_error *err);
/* The live mappings of a restored task are those of the image. */
int mem_map_check(const struct mem_job *j, struct ckpt_error *err);

/* Does `b` continue `a` so that the kernel would merge them? */
bool mem_rec_mergeable(const mem_vma_rec *a, const mem_vma_rec *b);

/* ---- steps -------------------------------------------------------------------------------------
 */

int mem_survey(struct ckpt_run *run, struct ckpt_error *err);
int mem_collect(struct ckpt_run *run, struct ckpt_error *err);
int mem_save(struct ckpt_run *run, struct ckpt_error *err);
int mem_plan(struct ckpt_run *run, struct ckpt_error *err);
int mem_map(struct ckpt_run *run, struct ckpt_error *err);

extern const struct ckpt_need mem_needs[];

#endif
