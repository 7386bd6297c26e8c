/* SPDX-License-Identifier: MIT */
/* The plugin mnt: mount namespaces, what is mounted in them, and where tasks stand in them. */
#include <errno.h>
#include <sys/syscall.h>

#include "mnt.h"

#define LIST(...) ((const char *const[]){ __VA_ARGS__, NULL })

static const struct ckpt_option options[] = {
	{ "external", CKPT_OPT_LIST, NULL, NULL, 0, 0,
	  "dump: /path/in/tree[:KEY] comes from outside; restore: {KEY|/path/in/tree}:/host/path" },
	{ "own", CKPT_OPT_LIST, NULL, NULL, 0, 0,
	  "dump: what is at /path/in/tree is saved though ckpt has it mounted too" },
	{ "layers", CKPT_OPT_BOOL, "yes", NULL, 0, 0,
	  "dump of a copy: what it has written below its layers is saved; no: it is left where it "
	  "is" },
	{ NULL, CKPT_OPT_BOOL, NULL, NULL, 0, 0, NULL },
};

static const struct ckpt_feature features[] = {
	{ "namespaces", "mount namespaces with their mounts" },
	{ "content", "the files of filesystems in memory (tmpfs, ramfs)" },
	{ "locked", "mounts that their user namespace must not take off stay locked" },
	{ "propagation", "shared, receiving and unbindable mounts" },
	{ "root", "root and working directories outside ckpt's own root" },
	{ "gone-root", "root directories in /proc of a process that has ended, as sandboxes have" },
	{ NULL, NULL },
};

static const struct ckpt_record_type records[] = {
	{ MNT_REC_FILESYSTEM, "filesystem", &ckpt__mnt__filesystem__descriptor },
	{ MNT_REC_MOUNT, "mount", &ckpt__mnt__mount__descriptor },
	{ MNT_REC_INODE, "inode", &ckpt__mnt__inode__descriptor },
	{ MNT_REC_PLACE, "place", &ckpt__mnt__place__descriptor },
	{ MNT_REC_LAYER, "layer", &ckpt__mnt__layer__descriptor },
	{ 0, NULL, NULL },
};

/* The place in the image is no property of a file. */
static const struct ckpt_field_rule rules[] = {
	{ "Inode", "atime_ns", CKPT_EQ_VOLATILE }, { "Inode", "mtime_ns", CKPT_EQ_DIFF },
	{ "Extent", "at", CKPT_EQ_VOLATILE },	   { "Mount", "rank", CKPT_EQ_VOLATILE },
	{ "Layer", "number", CKPT_EQ_VOLATILE },   { NULL, NULL, CKPT_EQ_VOLATILE },
};

static const struct ckpt_step steps[] = {
	{ CKPT_DUMP, "survey", "root and working directories that cannot be saved", LIST("seized"),
	  LIST("surveyed"), LIST("ns.survey"), mnt_places_survey, NULL },
	{ CKPT_DUMP, "notices", "refuse files that cannot be read without a trace", LIST("seized"),
	  LIST("surveyed"), LIST("ns.survey", "fd.survey"), mnt_notices_survey, NULL },
	{ CKPT_DUMP, "layers", "refuse a copy whose layers cannot be read", LIST("seized"),
	  LIST("surveyed"), NULL, mnt_layers_survey, NULL },
	{ CKPT_DUMP | CKPT_VERIFY, "collect", "save mounts and what filesystems in memory hold",
	  LIST("surveyed"), LIST("collected"), NULL, mnt_collect, NULL },
	{ CKPT_RESTORE, "plan", "check mounts, and what they need from outside", LIST("loaded"),
	  LIST("planned"), LIST("ns.plan"), mnt_plan, NULL },
	/* who is born inherits its terminal */
	{ CKPT_RESTORE, "terminals", "mount what has open terminals", LIST("namespaces-made"),
	  LIST("tasks-made"), NULL, mnt_make_terminals, NULL },
	/* proc shows a pid namespace, which must have its first process by then */
	{ CKPT_RESTORE, "make", "make mount namespaces", LIST("tasks-made"), LIST("tasks-placed"),
	  LIST("ns.fill"), mnt_make, NULL },
	{ CKPT_RESTORE, "places", "tasks go to their root and working directories",
	  LIST("mnt.make"), LIST("tasks-placed"), LIST("ns.join"), mnt_places_enter, NULL },
	/* before there are watches, which would notice, and leases, which flags would break */
	{ CKPT_RESTORE, "settle", "times of what was used meanwhile", LIST("threads-made"),
	  LIST("fd.finish"), LIST("fd.thread-tables", "sock.settle", "ipc.settle"), mnt_settle,
	  NULL },
	{ 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL },
};

/* Made by our own step, when pid namespaces are there. */
static int make_later(struct ckpt_run *run, struct ckpt_ns *ns, struct ckpt_error *err)
{
	(void)run, (void)ns, (void)err;
	return 0;
}

static const struct ckpt_ns_kind ns_kind = {
	.size = sizeof(struct ckpt_ns_kind),
	.type = CKPT_NS_MNT,
	.feature = "namespaces",
	.survey = mnt_survey,
	.make = make_later,
};

static const struct ckpt_place_kind place_kind = {
	.size = sizeof(struct ckpt_place_kind),
	.takes = mnt_place_takes,
};

static const struct ckpt_extension extensions[] = {
	{ CKPT_NS_POINT, "mnt", &ns_kind },
	{ CKPT_PLACE_POINT, "mnt", &place_kind },
	{ CKPT_LAYERS_POINT, "mnt", &mnt_layers_kind },
	{ NULL, NULL, NULL },
};

typedef int (*stage_fn)(struct ckpt_run *run, struct mnt_made *made, struct ckpt_ns *ns,
			struct ckpt_error *err);

static int each(struct ckpt_run *run, struct mnt_made *made, stage_fn fn, struct ckpt_error *err)
{
	for (size_t i = 0; i < ckpt_ns_count(run); i++) {
		struct ckpt_ns *ns = ckpt_ns_at(run, i);

		if (ns->type == CKPT_NS_MNT && !ns->own && fn(run, made, ns, err) < 0)
			return ckpt_wrap(err, "mount namespace %u", ns->id);
	}
	return 0;
}

int mnt_make(struct ckpt_run *run, struct ckpt_error *err)
{
	struct mnt_state *st = mnt_state(run, err);
	int r = st ? 0 : -ENOMEM;

	if (r == 0 && ckpt_record_count(run, "mnt.mount") && !st->made)
		r = mnt_made_new(run, &st->made, err);
	if (r < 0 || !st->made)
		return r;
	r = mnt_make_filesystems(run, st->made, err);
	if (r == 0)
		r = mnt_make_sources(run, st->made, err);
	if (r == 0)
		r = each(run, st->made, mnt_stage, err);
	if (r == 0)
		r = mnt_make_later_sources(run, st->made, err);
	if (r == 0)
		r = each(run, st->made, mnt_stage_rest, err);
	if (r == 0)
		r = mnt_delete_roots(run, st->made, err);
	if (r == 0)
		r = mnt_join_groups(run, st->made, err);
	ckpt_count(run, "mounts", st->made->n_mounts);
	return r;
}

int mnt_settle(struct ckpt_run *run, struct ckpt_error *err)
{
	struct mnt_state *st = mnt_state(run, err);
	int r = st ? 0 : -ENOMEM;

	for (size_t i = 0; r == 0 && st->made && i < st->made->n_fs; i++) {
		const Ckpt__Mnt__Filesystem *rec = ckpt_record_at(run, "mnt.filesystem", i);

		if (mnt_fstype(rec->type)->content == MNT_INODES && !mnt_fs_read_only(rec))
			r = mnt_content_fill(run, rec->id, st->made->fs[i], true, err);
	}
	return r;
}

static int probe_mount_setattr(struct ckpt_error *err)
{
	if (mount_setattr(-1, "", 0, NULL, 0) < 0 && errno == ENOSYS)
		return ckpt_fail_sys(err, ENOSYS, "mount_setattr(2): mount namespaces are refused");
	return 0;
}

static int probe_quiet(struct ckpt_error *err)
{
	int r = ckpt_quiet_probe(err);

	return r < 0 ? ckpt_wrap(err, "filesystems in memory that are watched are refused") : 0;
}

static const struct ckpt_need needs[] = {
	{ "mount_setattr(2)", false, probe_mount_setattr },
	{ "FAN_OPEN_PERM", false, probe_quiet },
	{ NULL, false, NULL },
};

CKPT_PLUGIN{
	CKPT_PLUGIN_HEADER,
	.name = "mnt",
	.version = "0.1.0",
	.summary = "mount namespaces, filesystems in memory, root directories",
	.license = "MIT",
	.options = options,
	.features = features,
	.records = records,
	.rules = rules,
	.steps = steps,
	.extensions = extensions,
	.needs = needs,
	.state_free = mnt_state_free,
};
