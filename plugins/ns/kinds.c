/* SPDX-License-Identifier: MIT */
/* The extension point "ns": who saves namespaces of which type. */
#include "internal.h"

struct ask {
	const struct ckpt_ns_kind *kind;
	enum ns_call what;
	struct ckpt_ns *ns;
	struct ckpt_task *task; /* NS_MAKE_IN */
};

const struct ckpt_ns_kind *ns_kind(struct ckpt_run *run, enum ckpt_ns_type type,
				   const char **plugin)
{
	const struct ckpt_extension *e;

	for (size_t i = 0; (e = ckpt_extension_at(run, CKPT_NS_POINT, i, plugin)); i++) {
		const struct ckpt_ns_kind *kind = e->ops;

		if (kind->type == type)
			return kind;
	}
	*plugin = NULL;
	return NULL;
}

static int call(struct ckpt_run *run, void *arg, struct ckpt_error *err)
{
	const struct ask *a = arg;
	const struct ckpt_ns_kind *k = a->kind;

	switch (a->what) {
	case NS_SURVEY:
		return k->survey ? k->survey(run, a->ns, err) : 0;
	case NS_COLLECT:
		return k->collect ? k->collect(run, a->ns, err) : 0;
	case NS_PLAN:
		return k->plan ? k->plan(run, a->ns, err) : 0;
	case NS_MAKE:
		return k->make ? k->make(run, a->ns, err) : ckpt_ns_make(run, a->ns, err);
	case NS_FILL:
		return k->fill ? k->fill(run, a->ns, err) : 0;
	case NS_SETTLE:
		return k->settle ? k->settle(run, a->ns, err) : 0;
	case NS_MAKE_IN:
		return k->make_in ? k->make_in(run, a->ns, a->task, err)
				  : ckpt_fail(err, ENOTSUP, "no task can make it");
	}
	return 0;
}

static int ask(struct ckpt_run *run, struct ask *a, struct ckpt_error *err)
{
	const char *plugin;
	int r;

	a->kind = ns_kind(run, a->ns->type, &plugin);
	if (!a->kind)
		return 0;
	r = ckpt_call_as(run, plugin, call, a, err);
	return r < 0 && r != -ECANCELED ? ckpt_wrap(err, "%s: %s", plugin, a->ns->name) : r;
}

int ns_call(struct ckpt_run *run, enum ns_call what, struct ckpt_ns *ns, struct ckpt_error *err)
{
	return ask(run, &(struct ask){ .what = what, .ns = ns }, err);
}

int ns_make_in(struct ckpt_run *run, struct ckpt_ns *ns, struct ckpt_task *t,
	       struct ckpt_error *err)
{
	return ask(run, &(struct ask){ .what = NS_MAKE_IN, .ns = ns, .task = t }, err);
}
