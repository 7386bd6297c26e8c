/* SPDX-License-Identifier: MIT */
/* The plugin mem: address spaces and what is in them. */
#include "family.h"

static const char *const pagemap_ways[] = { "auto", "scan", "read", NULL };

static const struct ckpt_option options[] = {
	{ .name = "pagemap",
	  .type = CKPT_OPT_ENUM,
	  .def = "auto",
	  .values = pagemap_ways,
	  .help = "how page tables are read: PAGEMAP_SCAN, /proc/PID/pagemap, or what is there" },
	{ .name = "check-files",
	  .type = CKPT_OPT_BOOL,
	  .def = "yes",
	  .help = "at restore, mapped files must have the size, inode and mtime of the dump" },
	{ .name = "share-copies",
	  .type = CKPT_OPT_BOOL,
	  .def = "yes",
	  .help = "copies of an image share the pages of private memory until they write to them" },
	{ .name = "share-files",
	  .type = CKPT_OPT_BOOL,
	  .def = "yes",
	  .help = "so do private pages of files that are seen through mounts of the tree's or a "
		  "copy's" },
	{ 0 },
};

static const struct ckpt_feature features[] = {
	{ "private-anon", "private anonymous memory: heaps, stacks, allocators" },
	{ "shared-anon", "anonymous memory shared by several processes" },
	{ "file-private", "private file mappings with the pages that were changed" },
	{ "file-shared", "shared file mappings" },
	{ "vdso", "the kernel's code page and its data" },
	{ "mm-layout", "brk, the places of code, data, stack, arguments and environment" },
	{ "exe", "the link /proc/PID/exe" },
	{ "advice", "what madvise(2) has set" },
	{ "mlock", "locked memory" },
	{ "lock-future", "mlockall(MCL_FUTURE): what is mapped later is locked too" },
	{ "guard", "guard pages of MADV_GUARD_INSTALL" },
	{ "memfd", "mappings of memfds, with content and seals" },
	{ "deleted-file", "mappings of deleted files, with content" },
	{ "sealed", "mappings sealed by mseal(2)" },
	{ "hugetlb", "memory of huge page pools: private, shared, memfds" },
	{ "numa", "memory policies of mappings" },
	{ "fork-shared", "memory that processes share by fork stays shared" },
	{ NULL, NULL },
};

static const struct ckpt_record_type records[] = {
	{ MEM_REC_FILE, "file", &ckpt__mem__file__descriptor },
	{ MEM_REC_SPACE, "mm", &ckpt__mem__space__descriptor },
	{ MEM_REC_VMAS, "vmas", &ckpt__mem__vmas__descriptor },
	{ MEM_REC_PAGES, "pages", &ckpt__mem__pages__descriptor },
	{ MEM_REC_SHARED, "shared", &ckpt__mem__shared__descriptor },
	{ 0, NULL, NULL },
};

static const struct ckpt_field_rule rules[] = {
	{ "File", "dev", CKPT_EQ_VOLATILE },
	/* the program itself may write to what it maps */
	{ "File", "size", CKPT_EQ_DIFF },
	{ "File", "mtime_ns", CKPT_EQ_DIFF },
	{ "File", "ino", CKPT_EQ_DIFF },
	{ "Vmas", "seam", CKPT_EQ_VOLATILE },
	/* contents: not compared, the program goes on working */
	{ "Pages", "offset", CKPT_EQ_VOLATILE },
	{ "Pages", "start", CKPT_EQ_VOLATILE },
	{ "Pages", "pages", CKPT_EQ_VOLATILE },
	{ "Pages", "guard", CKPT_EQ_VOLATILE },
	{ "Pages", "guards", CKPT_EQ_VOLATILE },
	{ "Pages", "again", CKPT_EQ_VOLATILE },
	{ "Pages", "agains", CKPT_EQ_VOLATILE },
	{ "Pages", "place", CKPT_EQ_VOLATILE },
	{ "Shared", "ino", CKPT_EQ_VOLATILE },
	{ "Shared", "offset", CKPT_EQ_VOLATILE },
	{ "Shared", "start", CKPT_EQ_VOLATILE },
	{ "Shared", "pages", CKPT_EQ_VOLATILE },
	{ "Shared", "open", CKPT_EQ_VOLATILE },
	{ NULL, NULL, 0 },
};

#define NAMES(...) ((const char *const[]){ __VA_ARGS__, NULL })

static const struct ckpt_step steps[] = {
	{ .runs = CKPT_DUMP | CKPT_VERIFY,
	  .name = "survey",
	  .help = "look at every mapping, refuse what cannot be saved",
	  .after = NAMES("seized"),
	  .before = NAMES("surveyed"),
	  /* which files are watched */
	  .wants = NAMES("fd.survey"),
	  .fn = mem_survey },
	{ .runs = CKPT_DUMP | CKPT_VERIFY,
	  .name = "collect",
	  .help = "files, layouts and mappings",
	  .after = NAMES("surveyed"),
	  .before = NAMES("collected"),
	  .fn = mem_collect },
	{ .runs = CKPT_DUMP,
	  .name = "save",
	  .help = "page contents",
	  .after = NAMES("collected"),
	  .before = NAMES("memory-saved"),
	  /* it may refuse what is tried again at once */
	  .wants = NAMES("task.due"),
	  .fn = mem_save },
	{ .runs = CKPT_RESTORE,
	  .name = "plan",
	  .help = "check mappings, files, vdso and pages of the image",
	  .after = NAMES("loaded"),
	  .before = NAMES("planned"),
	  .wants = NAMES("mnt.plan"),
	  .fn = mem_plan },
	{ .runs = CKPT_RESTORE,
	  .name = "map",
	  .help = "map and fill the memory of every task",
	  .after = NAMES("files-installed"),
	  .before = NAMES("memory-mapped"),
	  .fn = mem_map },
	{ 0 },
};

static const struct ckpt_extension extensions[] = {
	{ CKPT_BIRTH_POINT, "memory", &mem_birth_kind },
	{ CKPT_COPIES_POINT, "memory", &mem_copies_kind },
	{ NULL, NULL, NULL },
};

CKPT_PLUGIN{
	CKPT_PLUGIN_HEADER,
	.name = "mem",
	.version = "0.1",
	.summary = "memory: mappings, their contents, and the layout of the address space",
	.license = "MIT",
	.options = options,
	.features = features,
	.records = records,
	.rules = rules,
	.steps = steps,
	.extensions = extensions,
	.needs = mem_needs,
	.state_free = mem_state_free,
	.flags = CKPT_PLUGIN_ESSENTIAL,
};
