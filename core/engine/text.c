/* SPDX-License-Identifier: MIT */
#include "engine/text.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ckpt/cleanup.h>

#define NAME_MAX_EDIT 64 /* longer words are compared as far as this */

bool vec_room(void *array, size_t n, size_t size)
{
	void **p = array, *grown;

	if (n & (n - 1))
		return true;
	if (n > SIZE_MAX / 2 / size)
		return false;
	grown = realloc(*p, (n ? 2 * n : 1) * size);
	if (!grown)
		return false;
	*p = grown;
	return true;
}

int fail_nomem(struct ckpt_error *err)
{
	return ckpt_fail(err, ENOMEM, "out of memory");
}

static size_t min3(size_t a, size_t b, size_t c)
{
	size_t m = a < b ? a : b;

	return m < c ? m : c;
}

size_t text_distance(const char *a, const char *b)
{
	size_t rows[3][NAME_MAX_EDIT + 1];
	size_t *before = rows[0], *prev = rows[1], *cur = rows[2];
	size_t la = strnlen(a, NAME_MAX_EDIT), lb = strnlen(b, NAME_MAX_EDIT);

	for (size_t j = 0; j <= lb; j++)
		prev[j] = j;
	for (size_t i = 1; i <= la; i++) {
		size_t *spare = before;

		cur[0] = i;
		for (size_t j = 1; j <= lb; j++) {
			cur[j] = min3(prev[j] + 1, cur[j - 1] + 1,
				      prev[j - 1] + (a[i - 1] != b[j - 1]));
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
			    before[j - 2] + 1 < cur[j])
				cur[j] = before[j - 2] + 1;
		}
		before = prev;
		prev = cur;
		cur = spare;
	}
	return prev[lb];
}

const char *text_nearest(const char *word, const char *const *names, size_t n)
{
	/* a third of the letters wrong is a typing error, more is another word */
	size_t best = strlen(word) / 3 + 1;
	const char *found = NULL;

	for (size_t i = 0; i < n; i++) {
		size_t d = text_distance(word, names[i]);

		if (d > best || (found && d == best) || d >= strlen(names[i]))
			continue;
		best = d;
		found = names[i];
	}
	return found;
}

int fail_unknown(struct ckpt_error *err, const char *origin, const char *what, const char *word,
		 const char *const *names, size_t n)
{
	const char *near = text_nearest(word, names, n);
	size_t at = 0;

	ckpt_fail_as(err, CKPT_EXIT_USAGE, EINVAL, "%s: no %s '%s'", origin, what, word);
	if (near)
		return ckpt_hint(err, "did you mean '%s'?", near);
	if (!n)
		return ckpt_hint(err, "there are none here");
	ckpt_hint(err, "known: ");
	if (!err)
		return -EINVAL;
	for (size_t i = 0; i < n && at < sizeof(err->hint) - 8; i++) {
		at = strlen(err->hint);
		snprintf(err->hint + at, sizeof(err->hint) - at, "%s%s", i ? ", " : "", names[i]);
	}
	return -EINVAL;
}

bool text_is_name(const char *s)
{
	if (!s || *s < 'a' || *s > 'z')
		return false;
	/* strspn(3) makes a table first: all names of all plugins come by */
	while ((*s >= 'a' && *s <= 'z') || (*s >= '0' && *s <= '9') || *s == '-')
		s++;
	return !*s;
}

int text_each_word(const char *list, int (*fn)(void *arg, const char *word, struct ckpt_error *err),
		   void *arg, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *copy = strdup(list);
	char *save = NULL;

	if (!copy)
		return fail_nomem(err);
	for (char *w = strtok_r(copy, " \t\r\n", &save); w; w = strtok_r(NULL, " \t\r\n", &save)) {
		int r = fn(arg, w, err);

		if (r < 0)
			return r;
	}
	return 0;
}
