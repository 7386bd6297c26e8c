/* SPDX-License-Identifier: MIT */
/*
 * The plugin SDK: the one header that a plugin includes. The built-in plugins
 * use nothing else. See docs/plugin-authors.md for a first plugin in ten minutes.
 *
 * A plugin is a shared object `ckpt-NAME.so` exporting one function,
 * ckpt_plugin_entry_v1(), which returns a constant descriptor. The engine
 * orders the steps of all plugins by their edges and calls them one after the
 * other, in one thread.
 */
#ifndef CKPT_PLUGIN_H
#define CKPT_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ckpt/cleanup.h>
#include <ckpt/error.h>
#include <ckpt/option.h>
#include <ckpt/parallel.h>
#include <ckpt/record.h>
#include <ckpt/script.h>
#include <ckpt/task.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * ABI of this header. A plugin is loaded if its major is the host's and its
 * minor is not above the host's; tables and structures only grow at their end.
 */
#define CKPT_ABI_MAJOR 0
#define CKPT_ABI_MINOR 1

/* The kinds of run, as a bit mask: a collector says CKPT_DUMP | CKPT_VERIFY. */
enum ckpt_run_kind {
	CKPT_DUMP = 1,
	CKPT_RESTORE = 2,
	CKPT_VERIFY = 4,
};

/*
 * Milestones, the engine's own nodes in the graph:
 *   dump:    seized surveyed collected memory-saved planned committed released
 *   verify:  loaded seized surveyed collected released compared
 *   restore: loaded planned namespaces-made tasks-made tasks-placed
 *            files-installed memory-mapped threads-made sealed running
 * Steps between `seized` and `surveyed` look from outside and refuse what is
 * not supported; they run in `dump --dry-run` too, on a tree that is not
 * stopped. Steps between `surveyed` and `collected` may run scripts in tasks.
 * Steps between `loaded` and `planned` check the image and list what is
 * missing, without side effects: a dump runs them as well, over its own image,
 * before it lets go of the tree.
 */

/*
 * A step: one node of the graph, known as "PLUGIN.name". Tables end with
 * name == NULL. `after` and `before` are hard edges: the named step or
 * milestone must exist in that run. `wants` orders only if the other is there.
 * The lists end with NULL; a NULL list is empty. Since 0.1.
 */
struct ckpt_step {
	unsigned runs; /* mask of enum ckpt_run_kind */
	const char *name;
	const char *help; /* one line for `ckpt graph` */
	const char *const *after;
	const char *const *before;
	const char *const *wants;
	int (*fn)(struct ckpt_run *run, struct ckpt_error *err);
	/*
	 * Called in reverse order, for the steps that have run and the one that
	 * failed: takes back what fn did outside the tree, which may be a part
	 * of it. May be NULL (restored tasks are killed by the engine itself).
	 */
	void (*undo)(struct ckpt_run *run);
};

/*
 * An extension: handles one kind of object inside another plugin's area.
 * `point` names the area ("fd", "vma"), `ops` points at the structure that the
 * area's header defines (<ckpt/fd.h>: struct ckpt_fd_kind). Built-in kinds
 * register the same way. Two extensions of one point with equal names are a
 * load error. Tables end with point == NULL. Since 0.1.
 */
struct ckpt_extension {
	const char *point;
	const char *name;
	const void *ops;
};

/* What a plugin needs of kernel and privileges: one line of `ckpt check`. */
struct ckpt_need {
	const char *name; /* "PTRACE_SEIZE", "CAP_SYS_PTRACE" */
	bool required;	  /* false: there is a fallback, `why` names it */
	/* 0: there; else a negative errno, and why in err->text, what to do in err->hint */
	int (*probe)(struct ckpt_error *err);
};

/* The descriptor. All tables may be NULL. Since 0.1. */
struct ckpt_plugin {
	uint32_t size; /* sizeof(struct ckpt_plugin) at the author's build */
	uint16_t abi_major, abi_minor;
	const char *name;    /* [a-z][a-z0-9-]*, as in the file name */
	const char *version; /* the plugin's own */
	const char *summary; /* one line */
	const char *license; /* SPDX identifier */
	const struct ckpt_option *options;
	const struct ckpt_feature *features;
	const struct ckpt_record_type *records;
	const struct ckpt_field_rule *rules;
	const struct ckpt_step *steps;
	const struct ckpt_extension *extensions;
	const struct ckpt_need *needs; /* ends with name == NULL */
	/* Free the state of ckpt_state_set(); called at the end of each run. */
	void (*state_free)(void *state);
	uint32_t flags; /* CKPT_PLUGIN_* */
	/*
	 * Words of blockers that pass by themselves when the tree runs on, as data on its
	 * way to a reader does; ends with NULL. If nothing else is in the way, the dump is
	 * tried again for a while.
	 */
	const char *const *passing;
};

/*
 * Every tree has state of this plugin's kind: a dump with it switched off is
 * refused, unless that loss is allowed.
 */
#define CKPT_PLUGIN_ESSENTIAL (1U << 0)

/*
 * The entry point. A plugin defines it with
 *     CKPT_PLUGIN { .name = "note", ... };
 */
#define CKPT_PLUGIN_ENTRY ckpt_plugin_entry_v1
typedef const struct ckpt_plugin *(*ckpt_plugin_entry_fn)(void);

#define CKPT_PLUGIN                                                 \
	static const struct ckpt_plugin ckpt_plugin_descriptor;     \
	CKPT_API const struct ckpt_plugin *CKPT_PLUGIN_ENTRY(void); \
	CKPT_API const struct ckpt_plugin *CKPT_PLUGIN_ENTRY(void)  \
	{                                                           \
		return &ckpt_plugin_descriptor;                     \
	}                                                           \
	static const struct ckpt_plugin ckpt_plugin_descriptor =

#define CKPT_PLUGIN_HEADER \
	.size = sizeof(struct ckpt_plugin), .abi_major = CKPT_ABI_MAJOR, .abi_minor = CKPT_ABI_MINOR

/* ---- what a step can ask of its run ------------------------------------- */

CKPT_API enum ckpt_run_kind ckpt_run_kind(const struct ckpt_run *run);

/*
 * True in the planning pass of a dump: the steps up to `planned` run while the
 * tree is there, so its ids and names are expected to be taken.
 */
CKPT_API bool ckpt_plan_only(const struct ckpt_run *run);

/* restore: the tree will be one of several copies of the image (`ckpt branch`). */
CKPT_API bool ckpt_is_copy(const struct ckpt_run *run);
/*
 * It will be one, and all copies share the file at this path: ckpt's own mount namespace (0)
 * or one of the tree's that shows the machine's files there, no layer covers it, and nobody
 * said that this is meant. To be asked after the step mnt.plan.
 */
CKPT_API bool ckpt_copies_share(struct ckpt_run *run, uint32_t mnt, const char *path);
/* As above, for what cannot be meant to be shared. */
CKPT_API bool ckpt_copies_collide(struct ckpt_run *run, uint32_t mnt, const char *path);
/* A directory that each copy has for itself; NULL: those were all. */
CKPT_API const char *ckpt_copies_layer(const struct ckpt_run *run, size_t i);
/*
 * For the plugin mnt, of each mount: in the namespace `mnt`, at `point` is what ckpt sees
 * at `host` (NULL: what is the tree's own).
 */
CKPT_API int ckpt_copies_tell(struct ckpt_run *run, uint32_t mnt, const char *point,
			      const char *host, struct ckpt_error *err);
/*
 * A number that no other restore at the same time has, as the pid is none where there are
 * copies: for the names of files that are there for a moment.
 */
CKPT_API uint64_t ckpt_run_number(const struct ckpt_run *run);

/*
 * True while the tree is not stopped (`dump --dry-run`): survey steps must
 * tolerate tasks that come and go (treat ENOENT and ESRCH as "gone").
 */
CKPT_API bool ckpt_is_live(const struct ckpt_run *run);

/*
 * Is it ckpt itself, or a helper that has its descriptors? They have duplicates of the
 * tree's, and are not who else might hold something.
 */
CKPT_API bool ckpt_is_engine(pid_t pid);

/* True in a dump that kills the tree at `released`. */
CKPT_API bool ckpt_kills(const struct ckpt_run *run);

/*
 * Have `fn` called at the last moment at which all tasks stand: no agent is in any of them any
 * more, and none has been let go. Not for a tree that is killed. If it fails in a dump or verify
 * the tree goes on all the same, and ckpt says that it is not as it was; a restore is given up.
 */
CKPT_API int ckpt_on_release(struct ckpt_run *run,
			     int (*fn)(struct ckpt_run *run, struct ckpt_error *err),
			     struct ckpt_error *err);

/* Per-plugin state of this run; state_free of the descriptor releases it. */
CKPT_API void ckpt_state_set(struct ckpt_run *run, void *state);
CKPT_API void *ckpt_state(struct ckpt_run *run);
/* The same, made of `size` zero bytes by calloc(3) on first use; NULL: out of memory. */
CKPT_API void *ckpt_state_make(struct ckpt_run *run, size_t size);

enum ckpt_log_level { CKPT_LOG_WARN, CKPT_LOG_INFO, CKPT_LOG_DEBUG, CKPT_LOG_TRACE };

/* One line to the run's log; the engine adds run and plugin. Shown at none, -v, -vv, -vvv. */
CKPT_API void ckpt_log(struct ckpt_run *run, enum ckpt_log_level level, const char *fmt, ...)
	CKPT_PRINTF(3, 4);

/*
 * A blocker: something that this ckpt cannot save. All fields but `feature`
 * and `task` are needed.
 */
struct ckpt_blocker {
	const char *feature;	      /* of the calling plugin, or a new name of its own: the
				       * word for --allow-loss PLUGIN.FEATURE; NULL: whole plugin */
	const struct ckpt_task *task; /* whose; NULL: the tree's */
	const char *object;	      /* "fd 7 (io_uring)", "mapping 7f00-7f10 /dev/kfd" */
	const char *reason;	      /* "established TCP connections are not saved yet" */
	const char *hint;	      /* the way out */
	bool no_loss; /* going on without is impossible, whatever --allow-loss says */
};

/*
 * Refuse. Returns 0 if the run goes on without the object because the user
 * allowed that loss (it is then listed as lost in summary and manifest): leave
 * the object out. Returns -ECANCELED otherwise: the blocker is on the list, go
 * on looking for more; the engine ends the run at the next milestone, exit 3.
 */
CKPT_API int ckpt_refuse(struct ckpt_run *run, const struct ckpt_blocker *b);

/*
 * As ckpt_refuse(), for an object whose feature is switched off. Does nothing
 * and returns 1 if the feature is on.
 */
CKPT_API int ckpt_refuse_off(struct ckpt_run *run, const char *feature,
			     const struct ckpt_task *task, const char *object);

/*
 * A reason why the image cannot be restored, in a planning step: all are
 * listed, the engine fails at `planned`. Returns 0 always: go on looking.
 */
CKPT_API int ckpt_unmet(struct ckpt_run *run, enum ckpt_exit exit, const char *hint,
			const char *fmt, ...) CKPT_PRINTF(4, 5);

/*
 * Walk the extensions of a point, in order of (plugin, name). Start with i = 0;
 * NULL ends. Extensions of plugins that are off are not listed. `plugin`, if
 * not NULL, is set to the name of the plugin that the extension comes from.
 */
CKPT_API const struct ckpt_extension *ckpt_extension_at(struct ckpt_run *run, const char *point,
							size_t i, const char **plugin);

/*
 * Call fn with the extension's plugin as the calling plugin, so that options,
 * features, records and state are those of the plugin it belongs to.
 */
CKPT_API int ckpt_call_as(struct ckpt_run *run, const char *plugin,
			  int (*fn)(struct ckpt_run *run, void *arg, struct ckpt_error *err),
			  void *arg, struct ckpt_error *err);

/* Counters for the summary ("pages 1234"): added up per name, shown in order of first use. */
CKPT_API void ckpt_count(struct ckpt_run *run, const char *name, uint64_t n);

#ifdef __cplusplus
}
#endif
#endif
