/* SPDX-License-Identifier: MIT */
/*
 * Descriptors of namespaces: a kind of the extension point "fd". Such a namespace is saved like
 * all others, also if no task is in it.
 */
#include <fcntl.h>
#include <stdio.h>

#include "internal.h"

/* "uts:[4026532177]"; what was opened by the path of a bind mount is a file. */
static bool match(const struct ckpt_fd_found *f)
{
	for (int type = 0; type < CKPT_NS_TYPES; type++) {
		const char *name = ckpt_ns_type_name((enum ckpt_ns_type)type);
		size_t n = strlen(name);

		if (!strncmp(f->link, name, n) && !strncmp(f->link + n, ":[", 2))
			return true;
	}
	return false;
}

/* Whether it can be saved is found out with all others (survey.c). */
static int survey(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	return ckpt_ns_find(run, f->fd, err) ? 0 : -err->err;
}

/* One that is lost by permission is replaced by ckpt's own, as for its members. */
static int collect(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	const struct ckpt_ns *ns = ckpt_ns_find(run, f->fd, err);
	Ckpt__Ns__Descriptor rec = CKPT__NS__DESCRIPTOR__INIT;

	if (!ns)
		return -err->err;
	rec.id = f->file;
	rec.ns = ns_is_saved(ns) ? ns->id : ckpt_ns_own(run, ns->type)->id;
	return ckpt_record_put(run, NS_REC_DESCRIPTOR, &rec.base, err);
}

static int plan(struct ckpt_run *run, uint32_t file, struct ckpt_error *err)
{
	const Ckpt__Ns__Descriptor *rec = ckpt_record_need(run, "ns.descriptor", file, err);

	if (!rec)
		return -err->err;
	if (!ckpt_ns_by_id(run, rec->ns))
		return ckpt_fail_image(err, "open file %u: no namespace %u", file, rec->ns);
	if (ckpt_ns_is_late(run, ckpt_ns_by_id(run, rec->ns)))
		ckpt_unmet(run, CKPT_EXIT_REFUSED, "close it before the dump",
			   "open file %u: a time namespace that a task in a user or time namespace "
			   "has for its children",
			   file);
	return 0;
}

/* By the link, for an open file description of its own. */
static int open_again(struct ckpt_run *run, const struct ckpt_fd_slot *slot, struct ckpt_error *err)
{
	const Ckpt__Ns__Descriptor *rec = ckpt_record_need(run, "ns.descriptor", slot->file, err);
	const struct ckpt_ns *ns = rec ? ckpt_ns_by_id(run, rec->ns) : NULL;
	char path[40];
	int fd;

	if (!ns || ns->fd < 0)
		return ckpt_fail(err, ESRCH, "open file %u: its namespace was not made",
				 slot->file);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", ns->fd);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	return fd < 0 ? ckpt_fail_sys(err, errno, "opening the %s", ns->name) : fd;
}

const struct ckpt_fd_kind ns_descriptor = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = match,
	.survey = survey,
	.collect = collect,
	.plan = plan,
	.open = open_again,
	.own_pos = true,
};
