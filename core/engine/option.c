/* SPDX-License-Identifier: MIT */
#include "engine/option.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <ckpt/cleanup.h>

#include "engine/text.h"

struct unit {
	const char *name;
	int64_t factor;
};

static const struct unit size_units[] = {
	{ "", 1 },	    { "K", 1LL << 10 }, { "M", 1LL << 20 },
	{ "G", 1LL << 30 }, { "T", 1LL << 40 }, { NULL, 0 },
};

static const struct unit duration_units[] = {
	{ "", 1 }, { "ms", 1 }, { "s", 1000 }, { "m", 60000 }, { "h", 3600000 }, { NULL, 0 },
};

static const struct unit no_units[] = { { "", 1 }, { NULL, 0 } };

static const struct {
	const char *word;
	bool value;
} bool_words[] = {
	{ "yes", true }, { "no", false },  { "true", true }, { "false", false },
	{ "on", true },	 { "off", false }, { "1", true },    { "0", false },
};

/* What `ckpt plugins` and the errors call the types, and what a number may carry behind it. */
static const struct {
	const char *name;
	const struct unit *units;
	const char *wanted;
} types[] = {
	[CKPT_OPT_BOOL] = { "bool", NULL, "yes or no" },
	[CKPT_OPT_INT] = { "int", no_units, "a number" },
	[CKPT_OPT_SIZE] = { "size", size_units, "a size such as 4096, 64K, 16M or 2G" },
	[CKPT_OPT_DURATION] = { "duration", duration_units,
				"a duration such as 500ms, 10s, 5m or 1h" },
	[CKPT_OPT_ENUM] = { "enum", NULL, "one of its choices" },
	[CKPT_OPT_STRING] = { "string", NULL, "a text" },
	[CKPT_OPT_LIST] = { "list", NULL, "a text" },
};

const char *option_type_name(enum ckpt_option_type type)
{
	return (size_t)type < CKPT_ARRAY_SIZE(types) ? types[type].name : "unknown";
}

static int bad(const struct ckpt_option *o, const char *text, struct ckpt_error *err)
{
	return ckpt_fail_as(err, CKPT_EXIT_USAGE, EINVAL,
			    "'%s' is not a value for '%s', which wants %s", text, o->name,
			    types[o->type].wanted);
}

static int parse_bool(const struct ckpt_option *o, const char *text, int64_t *out,
		      struct ckpt_error *err)
{
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(bool_words); i++) {
		if (strcasecmp(text, bool_words[i].word))
			continue;
		*out = bool_words[i].value;
		return 0;
	}
	return bad(o, text, err);
}

static int parse_number(const struct ckpt_option *o, const char *text, int64_t *out,
			struct ckpt_error *err)
{
	const struct unit *u = types[o->type].units;
	char *end;
	int64_t n;

	/* strtoll() would skip blanks and take a plus sign */
	if (!(*text >= '0' && *text <= '9') && *text != '-')
		return bad(o, text, err);
	errno = 0;
	n = strtoll(text, &end, 10);
	if (errno || end == text)
		return bad(o, text, err);
	while (u->name && strcasecmp(end, u->name))
		u++;
	if (!u->name || __builtin_mul_overflow(n, u->factor, &n))
		return bad(o, text, err);
	if (o->type != CKPT_OPT_INT && n < 0)
		return bad(o, text, err);
	if ((o->min || o->max) && (n < o->min || n > o->max))
		return ckpt_fail_as(err, CKPT_EXIT_USAGE, ERANGE,
				    "'%s' is out of range for '%s': %" PRId64 " to %" PRId64, text,
				    o->name, o->min, o->max);
	*out = n;
	return 0;
}

static int parse_enum(const struct ckpt_option *o, const char *text, struct ckpt_error *err)
{
	size_t n = 0;

	for (; o->values[n]; n++)
		if (!strcmp(text, o->values[n]))
			return 0;
	return fail_unknown(err, o->name, "choice", text, o->values, n);
}

static int add_item(struct opt_value *v, const char *text, struct ckpt_error *err)
{
	if (!*text) {
		for (size_t i = 0; i < v->n_items; i++)
			free(v->items[i]);
		v->n_items = 0;
		free(ckpt_steal_ptr(&v->items));
		return 0;
	}
	if (!VEC_ROOM(v->items, v->n_items))
		return fail_nomem(err);
	v->items[v->n_items] = strdup(text);
	if (!v->items[v->n_items])
		return fail_nomem(err);
	v->n_items++;
	return 0;
}

int option_set(const struct ckpt_option *o, struct opt_value *v, const char *text,
	       const char *origin, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *copy = strdup(text);
	CKPT_AUTO_FREE char *from = strdup(origin);
	int64_t number = 0;
	int r = 0;

	if (!copy || !from)
		return fail_nomem(err);
	if (o->type == CKPT_OPT_BOOL)
		r = parse_bool(o, text, &number, err);
	else if (types[o->type].units)
		r = parse_number(o, text, &number, err);
	else if (o->type == CKPT_OPT_ENUM)
		r = parse_enum(o, text, err);
	else if (o->type == CKPT_OPT_LIST)
		r = add_item(v, text, err);
	if (r < 0)
		return r;
	free(v->text);
	free(v->origin);
	v->set = true;
	v->number = number;
	v->text = ckpt_steal_ptr(&copy);
	v->origin = ckpt_steal_ptr(&from);
	return 0;
}

void option_clear(struct opt_value *v)
{
	for (size_t i = 0; i < v->n_items; i++)
		free(v->items[i]);
	free(v->items);
	free(v->text);
	free(v->origin);
	*v = (struct opt_value){ 0 };
}

int option_check(const struct ckpt_option *o, struct ckpt_error *err)
{
	struct opt_value v = { 0 };
	int r;

	if (!text_is_name(o->name))
		return ckpt_fail(err, EINVAL, "option '%s' has a bad name", o->name);
	if ((size_t)o->type >= CKPT_ARRAY_SIZE(types))
		return ckpt_fail(err, EINVAL, "option '%s' has a type that this ckpt does not know",
				 o->name);
	if (o->type == CKPT_OPT_ENUM && (!o->values || !o->values[0]))
		return ckpt_fail(err, EINVAL, "option '%s' is an enum without choices", o->name);
	if (!o->help)
		return ckpt_fail(err, EINVAL, "option '%s' has no help", o->name);
	if (!o->def)
		return 0;
	r = option_set(o, &v, o->def, "default", err);
	option_clear(&v);
	if (r < 0) {
		if (err)
			err->exit = CKPT_EXIT_OK;
		return ckpt_wrap(err, "the default of option '%s'", o->name);
	}
	return 0;
}
