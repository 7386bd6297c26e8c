/* SPDX-License-Identifier: MIT */
/* Is a plugin's descriptor fit for this ckpt? */
#include <errno.h>
#include <string.h>

#include "engine/loader.h"
#include "engine/text.h"

/* The descriptor as 0.1 published it first: nothing can be shorter. */
#define DESC_MIN offsetof(struct ckpt_plugin, flags)

static int check_abi(const struct ckpt_plugin *d, struct ckpt_error *err)
{
	const unsigned ours = CKPT_ABI_MAJOR, theirs = d->abi_major;

	if (theirs != ours) {
		bool old = theirs < ours;

		ckpt_fail(err, EINVAL,
			  "built for plugin ABI %u.%u, this ckpt speaks %u.%u: the %s is too old",
			  d->abi_major, d->abi_minor, CKPT_ABI_MAJOR, CKPT_ABI_MINOR,
			  old ? "plugin" : "ckpt");
		return ckpt_hint(err, old ? "rebuild the plugin against this ckpt"
					  : "upgrade ckpt, or build the plugin against this one");
	}
	if (d->abi_minor > CKPT_ABI_MINOR) {
		ckpt_fail(err, EINVAL,
			  "built for plugin ABI %u.%u, this ckpt speaks %u.%u: the ckpt is too old",
			  d->abi_major, d->abi_minor, CKPT_ABI_MAJOR, CKPT_ABI_MINOR);
		return ckpt_hint(err, "upgrade ckpt, or build the plugin against this one");
	}
	if (d->size < DESC_MIN || (d->size > sizeof(*d) && d->abi_minor <= CKPT_ABI_MINOR))
		return ckpt_fail(
			err, EINVAL,
			"its descriptor has %u bytes, ABI %u.%u has %zu: use CKPT_PLUGIN_HEADER",
			d->size, CKPT_ABI_MAJOR, CKPT_ABI_MINOR, sizeof(*d));
	return 0;
}

static int check_texts(const struct ckpt_plugin *d, const char *name, struct ckpt_error *err)
{
	if (!text_is_name(d->name))
		return ckpt_fail(err, EINVAL, "its name '%s' is not [a-z][a-z0-9-]*",
				 d->name ? d->name : "");
	if (strcmp(d->name, name))
		return ckpt_fail(err, EINVAL,
				 "it calls itself '%s', so its file must be ckpt-%s.so", d->name,
				 d->name);
	if (!d->version || !d->summary || !d->license)
		return ckpt_fail(err, EINVAL, "its descriptor lacks a version, summary or license");
	return 0;
}

static int check_options(const struct ckpt_plugin *d, struct ckpt_error *err)
{
	for (const struct ckpt_option *o = d->options; o && o->name; o++) {
		int r = option_check(o, err);

		if (r < 0)
			return r;
		for (const struct ckpt_option *p = d->options; p < o; p++)
			if (!strcmp(p->name, o->name))
				return ckpt_fail(err, EINVAL, "option '%s' is there twice",
						 o->name);
	}
	for (const struct ckpt_feature *f = d->features; f && f->name; f++) {
		if (!text_is_name(f->name) || !f->help)
			return ckpt_fail(err, EINVAL, "feature '%s' has a bad name or no help",
					 f->name);
		for (const struct ckpt_feature *g = d->features; g < f; g++)
			if (!strcmp(g->name, f->name))
				return ckpt_fail(err, EINVAL, "feature '%s' is there twice",
						 f->name);
	}
	return 0;
}

static int check_records(const struct ckpt_plugin *d, struct ckpt_error *err)
{
	for (const struct ckpt_record_type *t = d->records; t && t->name; t++) {
		if (!text_is_name(t->name) || !t->descriptor || !t->number)
			return ckpt_fail(
				err, EINVAL,
				"record type '%s' has a bad name, number 0 or no descriptor",
				t->name);
		for (const struct ckpt_record_type *u = d->records; u < t; u++)
			if (!strcmp(u->name, t->name) || u->number == t->number)
				return ckpt_fail(
					err, EINVAL,
					"record types '%s' and '%s' share a name or number",
					u->name, t->name);
	}
	return 0;
}

static int check_steps(const struct ckpt_plugin *d, struct ckpt_error *err)
{
	const unsigned known = CKPT_DUMP | CKPT_RESTORE | CKPT_VERIFY;

	for (const struct ckpt_step *s = d->steps; s && s->name; s++) {
		if (!text_is_name(s->name) || !s->fn || !s->help)
			return ckpt_fail(err, EINVAL,
					 "step '%s' has a bad name, no function or no help",
					 s->name);
		if (!s->runs || (s->runs & ~known))
			return ckpt_fail(err, EINVAL, "step '%s' is for no kind of run known here",
					 s->name);
		for (const struct ckpt_step *t = d->steps; t < s; t++)
			if (!strcmp(t->name, s->name) && (t->runs & s->runs))
				return ckpt_fail(err, EINVAL, "step '%s' is there twice", s->name);
	}
	for (const struct ckpt_extension *e = d->extensions; e && e->point; e++) {
		if (!text_is_name(e->point) || !text_is_name(e->name) || !e->ops)
			return ckpt_fail(err, EINVAL,
					 "an extension of '%s' lacks name or operations", e->point);
		for (const struct ckpt_extension *f = d->extensions; f < e; f++)
			if (!strcmp(f->point, e->point) && !strcmp(f->name, e->name))
				return ckpt_fail(err, EINVAL, "extension %s:%s is there twice",
						 e->point, e->name);
	}
	for (const struct ckpt_need *n = d->needs; n && n->name; n++)
		if (!n->probe)
			return ckpt_fail(err, EINVAL, "need '%s' has no probe", n->name);
	return 0;
}

int descriptor_check(const struct ckpt_plugin *desc, const char *name, struct ckpt_error *err)
{
	int r = check_abi(desc, err);
	struct ckpt_plugin d = { 0 };

	if (r < 0)
		return r;
	/* behind desc->size there is memory of somebody else */
	memcpy(&d, desc, desc->size);
	r = check_texts(&d, name, err);
	if (!r)
		r = check_options(&d, err);
	if (!r)
		r = check_records(&d, err);
	if (!r)
		r = check_steps(&d, err);
	return r;
}
