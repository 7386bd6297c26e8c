/* SPDX-License-Identifier: MIT */
/* The plugin ns: which namespaces there are, who owns them and who is in them. */
#include <fcntl.h>
#include <linux/nsfs.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#include "internal.h"

#ifndef PIDFD_GET_PID_FOR_CHILDREN_NAMESPACE
#define PIDFD_GET_PID_FOR_CHILDREN_NAMESPACE 0xff06
#endif

#define LIST(...) ((const char *const[]){ __VA_ARGS__, NULL })

static const struct ckpt_feature features[] = {
	{ "descriptors", "descriptors of namespaces, which nobody need be in" },
	{ NULL, NULL },
};

static const struct ckpt_record_type records[] = {
	{ NS_REC_NAMESPACE, "namespace", &ckpt__ns__namespace__descriptor },
	{ NS_REC_TASK, "task", &ckpt__ns__task__descriptor },
	{ NS_REC_DESCRIPTOR, "descriptor", &ckpt__ns__descriptor__descriptor },
	{ 0, NULL, NULL },
};

static const struct ckpt_step steps[] = {
	/* descriptors may hold namespaces that no task is in */
	{ CKPT_DUMP, "survey", "refuse namespaces that no plugin saves", LIST("seized"),
	  LIST("surveyed"), LIST("fd.survey"), ns_survey, NULL },
	{ CKPT_DUMP | CKPT_VERIFY, "collect", "save namespaces and who is in them",
	  LIST("surveyed"), LIST("collected"), LIST("fd.collect"), ns_collect, NULL },
	{ CKPT_RESTORE, "plan", "owners, parents and members", LIST("loaded"), LIST("planned"),
	  NULL, ns_plan, NULL },
	{ CKPT_RESTORE, "make", "make the namespaces, owners first", LIST("planned"),
	  LIST("namespaces-made"), NULL, ns_make, NULL },
	{ CKPT_RESTORE, "join", "tasks join all but the user namespace", LIST("tasks-made"),
	  LIST("tasks-placed"), LIST("mnt.make"), ns_join, NULL },
	{ CKPT_RESTORE, "join-user", "tasks join their user namespaces", LIST("memory-mapped"),
	  LIST("threads-made"), LIST("task.ids"), ns_join_user, NULL },
	{ CKPT_RESTORE, "join-threads", "threads that are elsewhere", LIST("threads-made"),
	  LIST("sealed"), NULL, ns_join_threads, NULL },
	{ CKPT_RESTORE, "settle", "what the making of the tasks has moved", LIST("ns.join-threads"),
	  LIST("sealed"), LIST("task.creds", "fd.finish", "pid.counters"), ns_settle, NULL },
	{ 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL },
};

static const struct ckpt_extension extensions[] = {
	{ CKPT_FD_POINT, "descriptors", &ns_descriptor },
	{ NULL, NULL, NULL },
};

static int probe_nsfs(struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = open("/proc/self/ns/user", O_RDONLY | O_CLOEXEC);

	if (fd >= 0 && ioctl(fd, NS_GET_NSTYPE) >= 0)
		return 0;
	return ckpt_fail_sys(err, errno, "NS_GET_NSTYPE");
}

static int probe_pidfd(struct ckpt_error *err)
{
	CKPT_AUTO_FD int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
	CKPT_AUTO_FD int fd = self < 0 ? -1 : ioctl(self, PIDFD_GET_PID_FOR_CHILDREN_NAMESPACE, 0);

	if (fd >= 0)
		return 0;
	return ckpt_fail_sys(err, errno,
			     "PIDFD_GET_PID_FOR_CHILDREN_NAMESPACE: pid namespaces of nested user "
			     "namespaces cannot be made again");
}

static const struct ckpt_need needs[] = {
	{ "nsfs", true, probe_nsfs },
	{ "pidfd namespaces", false, probe_pidfd },
	{ NULL, false, NULL },
};

CKPT_PLUGIN{
	CKPT_PLUGIN_HEADER,   .name = "ns",
	.version = "0.1.0",   .summary = "namespaces, their owners, and which task is in which",
	.license = "MIT",     .flags = CKPT_PLUGIN_ESSENTIAL,
	.features = features, .records = records,
	.steps = steps,	      .extensions = extensions,
	.needs = needs,
};
