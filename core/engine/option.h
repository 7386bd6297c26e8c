/* SPDX-License-Identifier: MIT */
/* Typed values of plugin options. */
#ifndef CKPT_ENGINE_OPTION_H
#define CKPT_ENGINE_OPTION_H

#include <ckpt/option.h>

struct opt_value {
	bool set;
	int64_t number; /* BOOL, INT, SIZE, DURATION */
	char *text;	/* as given; for a LIST the entry given last */
	char **items;	/* LIST */
	size_t n_items;
	char *origin; /* "default", "FILE:12", "profile X", "command line"; NULL while unset */
};

/* "size", "duration", ... */
const char *option_type_name(enum ckpt_option_type type);

/*
 * Parse text into *v, replacing what was there (a LIST grows by one entry; an
 * empty text empties it). Errors are CKPT_EXIT_USAGE and say what would be fine.
 */
int option_set(const struct ckpt_option *o, struct opt_value *v, const char *text,
	       const char *origin, struct ckpt_error *err);
void option_clear(struct opt_value *v);

/* Is the declaration itself sound: name, known type, choices, its own default? */
int option_check(const struct ckpt_option *o, struct ckpt_error *err);

#endif
