/* SPDX-License-Identifier: MIT */
/*
 * Options and features that a plugin declares in its descriptor. The tables
 * feed the command line, ckpt.conf, profiles, help, man pages, completion and
 * `ckpt plugins --json`; a plugin never parses text itself.
 */
#ifndef CKPT_OPTION_H
#define CKPT_OPTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ckpt/error.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ckpt_run;

enum ckpt_option_type {
	CKPT_OPT_BOOL,	   /* yes/no, true/false, on/off, 1/0 */
	CKPT_OPT_INT,	   /* signed decimal */
	CKPT_OPT_SIZE,	   /* bytes, with K, M, G, T (powers of 1024) */
	CKPT_OPT_DURATION, /* milliseconds; ms, s, m, h */
	CKPT_OPT_ENUM,	   /* one of `values` */
	CKPT_OPT_STRING,
	CKPT_OPT_LIST, /* may be given several times; each adds an entry */
};

/* One option `-o PLUGIN.name=value`. Tables end with name == NULL. Since 0.1. */
struct ckpt_option {
	const char *name;
	enum ckpt_option_type type;
	const char *def;	   /* default, as the user would write it; NULL: none */
	const char *const *values; /* CKPT_OPT_ENUM: NULL-terminated choices */
	int64_t min, max;	   /* INT, SIZE, DURATION: both 0 means any */
	const char *help;	   /* one line */
};

/*
 * One feature: a piece of what the plugin saves that `--without PLUGIN.name`
 * switches off. A tree that needs a feature that is off is refused. Tables end
 * with name == NULL. Since 0.1.
 */
struct ckpt_feature {
	const char *name;
	const char *help; /* one line: what is saved */
};

/*
 * Values, for the calling step's own plugin. `name` must be in the plugin's
 * table (anything else is a programming error and aborts in debug builds).
 */
CKPT_API bool ckpt_opt_bool(struct ckpt_run *run, const char *name);
CKPT_API int64_t ckpt_opt_int(struct ckpt_run *run, const char *name); /* INT, SIZE, DURATION */
CKPT_API const char *ckpt_opt_string(struct ckpt_run *run,
				     const char *name); /* ENUM, STRING; NULL if unset */
CKPT_API size_t ckpt_opt_count(struct ckpt_run *run, const char *name);		      /* LIST */
CKPT_API const char *ckpt_opt_item(struct ckpt_run *run, const char *name, size_t i); /* LIST */

/* Is the feature of the calling step's plugin on? */
CKPT_API bool ckpt_feature_on(struct ckpt_run *run, const char *feature);

#ifdef __cplusplus
}
#endif
#endif
