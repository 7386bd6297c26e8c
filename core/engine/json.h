/* SPDX-License-Identifier: MIT */
/* What the JSON writers share; strings are image/image.h's json_string(). */
#ifndef CKPT_ENGINE_JSON_H
#define CKPT_ENGINE_JSON_H

#include <stdio.h>

#include "image/image.h"

/* sep, then "name": "text" or null */
static inline void json_member(FILE *out, const char *sep, const char *name, const char *text)
{
	fprintf(out, "%s\"%s\": ", sep, name);
	if (text)
		json_string(out, text);
	else
		fputs("null", out);
}

#endif
