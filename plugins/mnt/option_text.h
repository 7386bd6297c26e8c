/* SPDX-License-Identifier: MIT */
/* The text of options in mountinfo. */
#ifndef MNT_OPTION_TEXT_H
#define MNT_OPTION_TEXT_H

#include <stdbool.h>
#include <string.h>

static inline bool mnt_is_octal(const char *at)
{
	return at[0] == '\\' && at[1] >= '0' && at[1] <= '3' && at[2] >= '0' && at[2] <= '7' &&
	       at[3] >= '0' && at[3] <= '7';
}

/*
 * The next option, NULL at the end; the text is taken apart. Security modules put a value with
 * commas between quotes, a list of memory nodes has them as they are, and everything else is
 * escaped.
 */
static inline char *mnt_option_next(char **rest)
{
	char *word = *rest + strspn(*rest, ","), *to = word;
	const bool nodes = !strncmp(word, "mpol=", 5);
	bool quoted = false;
	char *at = word;

	if (!*word)
		return NULL;
	for (; *at && (quoted || *at != ',' || (nodes && at[1] >= '0' && at[1] <= '9')); at++) {
		if (*at == '"' && (quoted || (to > word && to[-1] == '='))) {
			quoted = !quoted;
		} else if (mnt_is_octal(at)) {
			*to++ = (char)((at[1] - '0') << 6 | (at[2] - '0') << 3 | (at[3] - '0'));
			at += 3;
		} else {
			*to++ = *at;
		}
	}
	*rest = at + (*at == ',');
	*to = 0;
	return word;
}

#endif
