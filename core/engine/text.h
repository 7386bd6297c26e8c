/* SPDX-License-Identifier: MIT */
/* Small helpers for words and growing arrays, used all over the engine. */
#ifndef CKPT_ENGINE_TEXT_H
#define CKPT_ENGINE_TEXT_H

#include <stddef.h>
#include <stdbool.h>

#include <ckpt/error.h>

/*
 * Make room for one more element behind n: the array doubles at powers of two,
 * so no capacity has to be kept. False: out of memory, the array is as before.
 */
bool vec_room(void *array, size_t n, size_t size);
#define VEC_ROOM(array, n) vec_room(&(array), (n), sizeof(*(array)))

int fail_nomem(struct ckpt_error *err);

/* Edits (insert, remove, replace, swap of neighbours) from a to b. */
size_t text_distance(const char *a, const char *b);

/* The known name that `word` most likely means, or NULL if none is near. */
const char *text_nearest(const char *word, const char *const *names, size_t n);

/*
 * Fail with CKPT_EXIT_USAGE: "ORIGIN: no WHAT 'WORD'", with the nearest name as
 * hint, or all names when none is near.
 */
int fail_unknown(struct ckpt_error *err, const char *origin, const char *what, const char *word,
		 const char *const *names, size_t n);

/* "[a-z][a-z0-9-]*", what plugins, features, options and steps are called. */
bool text_is_name(const char *s);

/* Call fn for each word between whitespace; stops at the first error. */
int text_each_word(const char *list, int (*fn)(void *arg, const char *word, struct ckpt_error *err),
		   void *arg, struct ckpt_error *err);

#endif
