/* SPDX-License-Identifier: MIT */
/* fd: open files, as described in README.md. */
#include "internal.h"
#include "steps.h"

#include <linux/kcmp.h>
#include <sys/syscall.h>

static const char *const changed_values[] = { "shorter", "refuse", "ignore", NULL };

static const struct ckpt_option options[] = {
	{ .name = "changed-files",
	  .type = CKPT_OPT_ENUM,
	  .def = "shorter",
	  .values = changed_values,
	  .help = "at restore, refuse regular files that became shorter, that changed at all, or "
		  "none" },
	{ .name = "external",
	  .type = CKPT_OPT_LIST,
	  .help = "at dump, leave out what KEY names: pipe:[INODE], socket:[INODE], file:PATH, "
		  "tty" },
	{ .name = "inherit",
	  .type = CKPT_OPT_LIST,
	  .help = "at restore, KEY:FD connects the external KEY with this descriptor of ckpt's" },
	{ .name = NULL },
};

static const struct ckpt_feature features[] = {
	{ "regular", "regular files and directories, by path" },
	{ "device", "null, zero, full, random, urandom" },
	{ "pipe", "pipes with content, size and flags" },
	{ "eventfd", "eventfds with their counts" },
	{ "timerfd", "timerfds with remaining time and unread expirations" },
	{ "epoll", "epolls with their targets" },
	{ "fifo", "named FIFOs with content" },
	{ "deleted", "files deleted while open, and those of O_TMPFILE, with content" },
	{ "memfd", "memfds with content and seals" },
	{ "other-name", "files deleted while open of which another name is left" },
	{ "dead-directory", "directories removed while open" },
	{ "detached", "files of mounts that are in no namespace any more" },
	{ "signalfd", "signalfds with their masks" },
	{ "pidfd", "pidfds of tasks in the tree, dead ones and reaped ones" },
	{ "thread-pidfd", "pidfds of single threads (PIDFD_THREAD), living and dead" },
	{ "o-path", "O_PATH descriptors" },
	{ "proc", "files and directories of /proc" },
	{ "sysfs", "files and directories of /sys, also of cgroups" },
	{ "inotify", "inotify with its watches" },
	{ "locks", "POSIX, OFD and flock(2) locks, leases" },
	{ "owner", "who gets signals about a descriptor (F_SETOWN, F_SETSIG, O_ASYNC)" },
	{ "shared-tables", "descriptor tables that processes share (CLONE_FILES)" },
	{ "thread-tables", "descriptor tables of single threads (unshare(CLONE_FILES))" },
	{ "external", "what leaves the tree and is listed with -o fd.external" },
	{ NULL, NULL },
};

static const struct ckpt_record_type records[] = {
	{ FD_TABLE, "table", &ckpt__fd__table__descriptor },
	{ FD_FILE, "file", &ckpt__fd__file__descriptor },
	{ FD_REGULAR, "regular", &ckpt__fd__regular__descriptor },
	{ FD_DEVICE, "device", &ckpt__fd__device__descriptor },
	{ FD_PIPE, "pipe", &ckpt__fd__pipe__descriptor },
	{ FD_PIPE_END, "pipe-end", &ckpt__fd__pipe_end__descriptor },
	{ FD_EVENTFD, "eventfd", &ckpt__fd__eventfd__descriptor },
	{ FD_TIMERFD, "timerfd", &ckpt__fd__timerfd__descriptor },
	{ FD_EPOLL, "epoll", &ckpt__fd__epoll__descriptor },
	{ FD_SIGNALFD, "signalfd", &ckpt__fd__signalfd__descriptor },
	{ FD_PIDFD, "pidfd", &ckpt__fd__pidfd__descriptor },
	{ FD_OPATH, "o-path", &ckpt__fd__opath__descriptor },
	{ FD_PROC, "proc", &ckpt__fd__proc__descriptor },
	{ FD_ASYNC, "async", &ckpt__fd__async__descriptor },
	{ FD_DELETED, "deleted", &ckpt__fd__ghost__descriptor },
	{ FD_MEMFD, "memfd", &ckpt__fd__ghost__descriptor },
	{ FD_GHOST_END, "ghost-end", &ckpt__fd__ghost_end__descriptor },
	{ FD_LOCK, "lock", &ckpt__fd__lock__descriptor },
	{ FD_INOTIFY, "inotify", &ckpt__fd__inotify__descriptor },
	{ FD_OTHER_NAME, "other-name", &ckpt__fd__other_name__descriptor },
	{ FD_DEAD_DIRECTORY, "dead-directory", &ckpt__fd__dead_directory__descriptor },
	{ FD_DEAD_END, "dead-end", &ckpt__fd__dead_end__descriptor },
	{ FD_SYSFILE, "sysfs", &ckpt__fd__sysfile__descriptor },
	{ FD_THREAD_TABLE, "thread-table", &ckpt__fd__thread_table__descriptor },
	{ FD_EXTERNAL, "external", &ckpt__fd__external__descriptor },
	{ 0, NULL, NULL },
};

/* Time passes, and others write to files; a device number is the mount's of the day. */
static const struct ckpt_field_rule rules[] = {
	{ "Timerfd", "value_ns", CKPT_EQ_VOLATILE },
	{ "Timerfd", "ticks", CKPT_EQ_VOLATILE },
	{ "Timerfd", "armed", CKPT_EQ_VOLATILE },
	{ "Regular", "size", CKPT_EQ_VOLATILE },
	{ "Regular", "mtime_ns", CKPT_EQ_VOLATILE },
	{ "Regular", "dev", CKPT_EQ_VOLATILE },
	{ "Opath", "dev", CKPT_EQ_VOLATILE },
	/* a name that is in use again by then is replaced by another */
	{ "OtherName", "path", CKPT_EQ_VOLATILE },
	{ "DeadDirectory", "name", CKPT_EQ_VOLATILE },
	{ "Ghost", "dev", CKPT_EQ_VOLATILE },
	{ "Ghost", "ino", CKPT_EQ_VOLATILE },
	/* a name that is in use again by then is replaced by another */
	{ "Ghost", "name", CKPT_EQ_VOLATILE },
	{ "Ghost", "atime_ns", CKPT_EQ_VOLATILE },
	{ "Ghost", "mtime_ns", CKPT_EQ_VOLATILE },
	{ "Extent", "at", CKPT_EQ_VOLATILE },
	{ "Opath", "ino", CKPT_EQ_VOLATILE },
	{ "Pipe", "dev", CKPT_EQ_VOLATILE },
	{ "Pipe", "ino", CKPT_EQ_VOLATILE },
	{ "Watch", "dev", CKPT_EQ_VOLATILE },
	{ "Watch", "ino", CKPT_EQ_VOLATILE },
	{ "Watch", "owner", CKPT_EQ_VOLATILE },
	{ "External", "key", CKPT_EQ_VOLATILE },
	{ NULL, NULL, CKPT_EQ_VOLATILE },
};

/* Events that somebody is about to read, connections that are being made. */
static const char *const passing[] = { "inotify-queue", "tcp", NULL };

#define LIST(...) ((const char *const[]){ __VA_ARGS__, NULL })

static const struct ckpt_step steps[] = {
	{ .runs = CKPT_DUMP | CKPT_VERIFY,
	  .name = "survey",
	  .help = "list all descriptors, find shared descriptions, refuse what is not saved",
	  .after = LIST("seized"),
	  .before = LIST("surveyed"),
	  .fn = fd_survey },
	{ .runs = CKPT_DUMP | CKPT_VERIFY,
	  .name = "collect",
	  .help = "save descriptor tables and descriptions",
	  .after = LIST("surveyed"),
	  .before = LIST("collected"),
	  .wants = LIST("mnt.collect"),
	  .fn = fd_collect },
	{ .runs = CKPT_RESTORE,
	  .name = "plan",
	  .help = "check the descriptions and that what they name is there",
	  .after = LIST("loaded"),
	  .before = LIST("planned"),
	  .wants = LIST("ns.plan", "mnt.plan"),
	  .fn = fd_plan },
	{ .runs = CKPT_RESTORE,
	  .name = "install",
	  .help = "open all descriptions and install them in their tasks",
	  .after = LIST("tasks-placed"),
	  .before = LIST("files-installed"),
	  .fn = fd_install },
	/* from there on such a thread does not see what is lent to its process */
	{ .runs = CKPT_RESTORE,
	  .name = "thread-tables",
	  .help = "give threads descriptor tables of their own",
	  .after = LIST("threads-made"),
	  .before = LIST("fd.finish"),
	  .wants = LIST("fd.reopen", "sock.settle", "ns.join-threads"),
	  .fn = fd_threads_install },
	{ .runs = CKPT_RESTORE,
	  .name = "reopen",
	  .help = "put pidfds of threads in the place of what stands in for them",
	  .after = LIST("threads-made"),
	  .before = LIST("fd.finish"),
	  .fn = fd_reopen },
	{ .runs = CKPT_RESTORE,
	  .name = "finish",
	  .help = "what needs numbers in tasks: targets of epolls, watches, owners, locks",
	  .after = LIST("threads-made"),
	  .before = LIST("sealed"),
	  /* watches notice what is done to files, and leases break */
	  .wants = LIST("sock.settle", "ipc.settle", "tty.settle", "cgroup.threads"),
	  .fn = fd_finish },
	{ .name = NULL },
};

static const struct ckpt_extension extensions[] = {
	{ CKPT_FD_POINT, "regular", &fd_kind_regular },
	{ CKPT_FD_POINT, "device", &fd_kind_device },
	{ CKPT_FD_POINT, "pipe", &fd_kind_pipe },
	{ CKPT_FD_POINT, "eventfd", &fd_kind_eventfd },
	{ CKPT_FD_POINT, "timerfd", &fd_kind_timerfd },
	{ CKPT_FD_POINT, "epoll", &fd_kind_epoll },
	{ CKPT_FD_POINT, "fifo", &fd_kind_fifo },
	{ CKPT_FD_POINT, "deleted", &fd_kind_deleted },
	{ CKPT_FD_POINT, "memfd", &fd_kind_memfd },
	{ CKPT_FD_POINT, "other-name", &fd_kind_other_name },
	{ CKPT_FD_POINT, "dead-directory", &fd_kind_dead_directory },
	{ CKPT_FD_POINT, "inotify", &fd_kind_inotify },
	{ CKPT_FD_POINT, "signalfd", &fd_kind_signalfd },
	{ CKPT_FD_POINT, "pidfd", &fd_kind_pidfd },
	{ CKPT_FD_POINT, "o-path", &fd_kind_opath },
	{ CKPT_FD_POINT, "proc", &fd_kind_proc },
	{ CKPT_FD_POINT, "sysfs", &fd_kind_sysfs },
	{ CKPT_FD_POINT, "external", &fd_kind_external },
	{ CKPT_SHARE_POINT, "files", &fd_share },
	{ NULL, NULL, NULL },
};

static int probe_kcmp(struct ckpt_error *err)
{
	if (syscall(SYS_kcmp, getpid(), getpid(), KCMP_FILES, 0, 0) == 0)
		return 0;
	ckpt_fail_sys(err, errno, "kcmp(2)");
	return ckpt_hint(err, "a kernel with CONFIG_KCMP and CAP_SYS_PTRACE are needed");
}

static const struct ckpt_need needs[] = {
	{ "kcmp(2)", true, probe_kcmp },
	{ NULL, false, NULL },
};

CKPT_PLUGIN{
	CKPT_PLUGIN_HEADER, .name = "fd",
	.version = "0.1.0", .summary = "descriptor tables and open files",
	.license = "MIT",   .flags = CKPT_PLUGIN_ESSENTIAL,
	.options = options, .features = features,
	.records = records, .rules = rules,
	.steps = steps,	    .extensions = extensions,
	.needs = needs,	    .state_free = fd_state_free,
	.passing = passing,
};
