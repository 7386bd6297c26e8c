/* SPDX-License-Identifier: MIT */
/* The plugin pid: which tasks and threads there are, their ids and families. */
#include <fcntl.h>
#include <linux/nsfs.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>

#include "pid.h"

#define LIST(...) ((const char *const[]){ __VA_ARGS__, NULL })

#define CAP_BIT_SYS_ADMIN	   (1ULL << 21)
#define CAP_BIT_CHECKPOINT_RESTORE (1ULL << 40)

static const struct ckpt_feature features[] = {
	{ "ids", "process and thread ids at every level" },
	{ "threads", "threads" },
	{ "nested-namespaces", "pid namespaces inside the tree" },
	{ "empty-namespaces", "pid namespaces for children that nobody is in" },
	{ "sessions", "sessions" },
	{ "groups", "process groups" },
	{ "dead-leaders", "sessions and groups whose leader is dead" },
	{ "dead-leader-thread", "main threads that ended before others" },
	{ "zombies", "zombies with their wait status" },
	{ "subreaper", "PR_SET_CHILD_SUBREAPER" },
	{ "exit-signal", "exit signals other than SIGCHLD" },
	{ "counters", "pid_max, the next number and vm.memfd_noexec of nested namespaces" },
	{ NULL, NULL },
};

static const struct ckpt_record_type records[] = {
	{ PID_REC_NAMESPACE, "namespace", &ckpt__pid__namespace__descriptor },
	{ PID_REC_TASK, "task", &ckpt__pid__task__descriptor },
	{ PID_REC_LEADER, "leader", &ckpt__pid__leader__descriptor },
	{ 0, NULL, NULL },
};

/* A tree that runs gives out numbers. */
static const struct ckpt_field_rule rules[] = {
	{ "Namespace", "last_pid", CKPT_EQ_DIFF },
	{ NULL, NULL, 0 },
};

static const struct ckpt_step steps[] = {
	{ CKPT_DUMP, "survey", "refuse what of ids and families cannot be saved", LIST("seized"),
	  LIST("surveyed"), NULL, pid_survey, NULL },
	{ CKPT_DUMP | CKPT_VERIFY, "collect", "save ids and families", LIST("surveyed"),
	  LIST("collected"), NULL, pid_collect, NULL },
	{ CKPT_RESTORE, "plan", "order of making tasks, numbers that are taken", LIST("loaded"),
	  LIST("planned"), LIST("ns.plan"), pid_plan, NULL },
	{ CKPT_RESTORE, "make", "clone the tasks, their namespaces and sessions",
	  LIST("namespaces-made"), LIST("tasks-made"), NULL, pid_make, NULL },
	{ CKPT_RESTORE, "groups", "process groups", LIST("pid.make"), LIST("tasks-made"), NULL,
	  pid_groups, NULL },
	{ CKPT_RESTORE, "reserve", "keep the numbers of threads to come", LIST("pid.groups"),
	  LIST("tasks-made"), LIST("pid.end"), pid_reserve, NULL },
	{ CKPT_RESTORE, "end", "end zombies and dead leaders", LIST("pid.groups"),
	  LIST("tasks-made"), NULL, pid_end, NULL },
	{ CKPT_RESTORE, "threads", "make the threads", LIST("memory-mapped"), LIST("threads-made"),
	  LIST("ns.join-user"), pid_threads, NULL },
	{ CKPT_RESTORE, "outer-children-ns", "those that the task's user namespace has no say in",
	  LIST("memory-mapped"), LIST("ns.join-user"), NULL, pid_outer_children_ns, NULL },
	{ CKPT_RESTORE, "children-ns", "namespaces for children to come", LIST("threads-made"),
	  LIST("sealed"), NULL, pid_children_ns, NULL },
	{ CKPT_RESTORE, "counters", "limits and next numbers of namespaces", LIST("threads-made"),
	  LIST("sealed"), NULL, pid_counters, NULL },
	{ 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL },
};

static int probe_set_tid(struct ckpt_error *err)
{
	CKPT_AUTO_FILE FILE *f = fopen("/proc/self/status", "re");
	unsigned long long caps = 0;
	char line[256];

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "CapEff: %llx", &caps) == 1)
			break;
	if (caps & (CAP_BIT_SYS_ADMIN | CAP_BIT_CHECKPOINT_RESTORE))
		return 0;
	ckpt_hint(err, "run as root, or with CAP_CHECKPOINT_RESTORE");
	return ckpt_fail(err, EPERM, "neither CAP_CHECKPOINT_RESTORE nor CAP_SYS_ADMIN");
}

static int probe_nsfs(struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
	CKPT_AUTO_FD int owner = fd < 0 ? -1 : ioctl(fd, NS_GET_USERNS);

	/* EPERM: the call is there, the owner out of sight */
	if (owner >= 0 || errno == EPERM)
		return 0;
	return ckpt_fail_sys(err, errno, "NS_GET_USERNS");
}

static const struct ckpt_need needs[] = {
	{ "clone3 set_tid", true, probe_set_tid },
	{ "nsfs ioctls", true, probe_nsfs },
	{ NULL, false, NULL },
};

CKPT_PLUGIN{
	CKPT_PLUGIN_HEADER,
	.name = "pid",
	.version = "0.1.0",
	.summary = "tasks and threads, their ids, namespaces, sessions, groups and zombies",
	.license = "MIT",
	.flags = CKPT_PLUGIN_ESSENTIAL,
	.features = features,
	.records = records,
	.rules = rules,
	.steps = steps,
	.needs = needs,
	.state_free = pid_plan_free,
};
