/* SPDX-License-Identifier: MIT */
/*
 * What a copy has written below its layers. The layers are mounts of ckpt's own namespace then, so
 * they are no mounts of the tree's; what their upper directories hold is in the image all the same,
 * as it would end with the copy. The copies of that image get it before their layers are mounted.
 */
#include <errno.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <sys/vfs.h>

#include "mnt.h"

#define AGAIN "bring it back with ckpt branch --copies 1"

struct layer {
	const struct ckpt_mount *m;
	int upper;
	uint8_t number[CKPT_LAYER_NUMBER_SIZE];
};

/* The next one from *at on. 1: there is one; 0: those were all. */
static int next_layer(struct ckpt_run *run, size_t *at, struct layer *l, struct ckpt_error *err)
{
	const struct ckpt_mounts *own;
	int r = ckpt_mounts(run, ckpt_ns_own(run, CKPT_NS_MNT), &own, err);

	for (; r == 0 && *at < own->n; ++*at) {
		l->m = &own->list[*at];
		l->upper = ckpt_layer_upper(run, l->m, l->number, err);
		if (l->upper == -ENOENT)
			continue;
		++*at;
		return l->upper < 0 ? l->upper : 1;
	}
	return r;
}

static const char *way_out(int r)
{
	if (r == -EXDEV)
		return "choose a directory for the image that is not below a layer";
	if (r == -ENOTUNIQ)
		return "unmount it: what is mounted in a copy beside its layers ends with it";
	return "run ckpt in all namespaces of the copy (nsenter -a), or leave its layers where "
	       "they are: -o mnt.layers=no";
}

int mnt_layers_survey(struct ckpt_run *run, struct ckpt_error *err)
{
	struct ckpt_error why = { 0 };
	struct layer l = { 0 };
	size_t at = 0;
	int r;

	if (!ckpt_opt_bool(run, "layers"))
		return 0;
	while ((r = next_layer(run, &at, &l, &why)) != 0) {
		const struct ckpt_blocker b = { .feature = "layers",
						.object = l.m ? l.m->point : "",
						.reason = why.text,
						.hint = way_out(r) };

		if (r > 0)
			close(l.upper);
		else if (l.m)
			ckpt_refuse(run, &b);
		else
			return ckpt_fail(err, -r, "%s", why.text);
	}
	return 0;
}

static int save_layer(struct ckpt_run *run, struct mnt_state *st, const struct layer *l,
		      uint32_t id, struct ckpt_error *err)
{
	Ckpt__Mnt__Layer rec = CKPT__MNT__LAYER__INIT;
	struct mnt_tree t = { .fs = id,
			      .fd = l->upper,
			      .root = "/",
			      .what = l->m->point,
			      .ns = ckpt_ns_own(run, CKPT_NS_MNT),
			      .apart = true };
	struct statfs fs;
	int r;

	if (fstatfs(l->upper, &fs))
		return ckpt_fail_sys(err, errno, "fstatfs(2)");
	t.numbers = fs.f_type == TMPFS_MAGIC;
	rec.id = id;
	rec.path = (ProtobufCBinaryData){ strlen(l->m->point), (uint8_t *)(uintptr_t)l->m->point };
	rec.number = (ProtobufCBinaryData){ sizeof(l->number), (uint8_t *)(uintptr_t)l->number };
	r = ckpt_record_put(run, MNT_REC_LAYER, &rec.base, err);
	return r < 0 ? r : mnt_content_save(run, st, &t, err);
}

int mnt_layers_collect(struct ckpt_run *run, struct mnt_state *st, uint32_t n,
		       struct ckpt_error *err)
{
	struct layer l = { 0 };
	size_t at = 0;
	int r = 0;

	if (!ckpt_opt_bool(run, "layers"))
		return 0;
	while (r >= 0 && (r = next_layer(run, &at, &l, err)) > 0) {
		r = save_layer(run, st, &l, ++n, err);
		close(l.upper);
	}
	if (r < 0)
		ckpt_hint(err, "see to what is in it, or leave it where it is: -o mnt.layers=no");
	return r < 0 ? ckpt_wrap(err, "a layer of the copy") : 0;
}

/* ---- restore ----------------------------------------------------------------------------- */

/* Is it mounted here, that very one? Then there is nothing to bring back. */
static int is_here(struct ckpt_run *run, const Ckpt__Mnt__Layer *rec, struct ckpt_error *err)
{
	struct layer l = { 0 };
	size_t at = 0;
	int r;

	while ((r = next_layer(run, &at, &l, err)) > 0) {
		close(l.upper);
		if (rec->number.len == sizeof(l.number) &&
		    !memcmp(rec->number.data, l.number, sizeof(l.number)))
			return 1;
	}
	return r;
}

static int check_layer(struct ckpt_run *run, const Ckpt__Mnt__Layer *rec, struct ckpt_error *err)
{
	char path[PATH_MAX];
	int r;

	if (!rec->path.len || rec->path.len >= PATH_MAX || rec->path.data[0] != '/' ||
	    memchr(rec->path.data, 0, rec->path.len))
		return ckpt_fail_image(err, "layer %u is not valid", rec->id);
	if (ckpt_is_copy(run) || ckpt_plan_only(run))
		return 0;
	r = is_here(run, rec, err);
	if (r == 0)
		ckpt_unmet(run, CKPT_EXIT_REFUSED, AGAIN,
			   "the image is of a copy, and has what that wrote below %s",
			   mnt_bytes(&rec->path, path, sizeof(path)));
	return r < 0 ? r : 0;
}

int mnt_layers_plan(struct ckpt_run *run, struct ckpt_error *err)
{
	const Ckpt__Mnt__Layer *rec;
	int r = 0;

	for (size_t i = 0; r == 0 && (rec = ckpt_record_at(run, "mnt.layer", i)); i++)
		r = check_layer(run, rec, err);
	return r;
}

static int plan_for_copies(struct ckpt_run *run, struct ckpt_error *err)
{
	static const char *const ordered[] = { "mnt.filesystem", "mnt.inode", "mnt.layer" };
	int r = 0;

	for (size_t i = 0; i < CKPT_ARRAY_SIZE(ordered) && r == 0; i++)
		r = ckpt_record_order(run, ordered[i], err);
	return r < 0 ? r : mnt_plan_content(run, err);
}

static const char *path_for_copies(struct ckpt_run *run, size_t i)
{
	const Ckpt__Mnt__Layer *rec = ckpt_record_at(run, "mnt.layer", i);
	struct mnt_state *st = rec ? mnt_state(run, NULL) : NULL;

	return st ? mnt_bytes(&rec->path, st->layer_path, sizeof(st->layer_path)) : NULL;
}

static int fill_for_copies(struct ckpt_run *run, size_t i, int upper, struct ckpt_error *err)
{
	const Ckpt__Mnt__Layer *rec = ckpt_record_at(run, "mnt.layer", i);
	int r = mnt_content_fill(run, rec->id, upper, false, err);

	/* what is made in directories changes their times */
	return r < 0 ? r : mnt_content_fill(run, rec->id, upper, true, err);
}

const struct ckpt_layers_kind mnt_layers_kind = {
	.size = sizeof(struct ckpt_layers_kind),
	.plan = plan_for_copies,
	.path = path_for_copies,
	.fill = fill_for_copies,
};
