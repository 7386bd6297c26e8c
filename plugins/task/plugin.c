/* SPDX-License-Identifier: MIT */
/* The plugin task: registers, signals, credentials, timers, limits: what each thread and process
 * is. */
#include <cpuid.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>

#include "task.h"

#define LIST(...) ((const char *const[]){ __VA_ARGS__, NULL })

static const struct ckpt_record_type records[] = {
	{ TASK_REC_SAVED, "saved", &ckpt__task__saved__descriptor },
	{ TASK_REC_THREAD, "thread", &ckpt__task__thread__descriptor },
	{ TASK_REC_PROCESS, "process", &ckpt__task__process__descriptor },
	{ 0, NULL, NULL },
};

/* What moves by itself in a tree that runs, or comes back in other words. */
static const struct ckpt_field_rule rules[] = {
	{ "Saved", "label", CKPT_EQ_VOLATILE },
	{ "Thread", "registers", CKPT_EQ_VOLATILE },
	{ "Thread", "xstate", CKPT_EQ_VOLATILE },
	{ "Thread", "restarted", CKPT_EQ_VOLATILE },
	{ "IntervalTimer", "value_us", CKPT_EQ_VOLATILE },
	{ "PosixTimer", "value_ns", CKPT_EQ_VOLATILE },
	{ NULL, NULL, CKPT_EQ_VOLATILE },
};

static const struct ckpt_step steps[] = {
	{ CKPT_DUMP, "survey", "refuse what of a task's state cannot be saved", LIST("seized"),
	  LIST("surveyed"), NULL, task_survey, NULL },
	/* late: the less is left to come before task.collect, which task.due sees to */
	{ CKPT_DUMP | CKPT_VERIFY, "peek", "queued signals and rseq, by ptrace", LIST("seized"),
	  LIST("surveyed"),
	  LIST("fd.survey", "mem.survey", "mnt.survey", "ns.survey", "pid.survey"), task_peek,
	  NULL },
	{ CKPT_DUMP | CKPT_VERIFY, "collect", "save threads and processes", LIST("surveyed"),
	  LIST("collected"), NULL, task_collect, NULL },
	/* before mem.save, and so before `memory-saved` */
	{ CKPT_DUMP | CKPT_VERIFY, "due", "add the signals of timers that went off meanwhile",
	  LIST("collected"), LIST("released"), NULL, task_due, NULL },
	{ CKPT_RESTORE, "plan", "check values, privileges and processor", LIST("loaded"),
	  LIST("planned"), LIST("ns.plan"), task_plan, NULL },
	{ CKPT_RESTORE, "ids", "ids and directories that a user namespace does not allow",
	  LIST("memory-mapped"), LIST("threads-made"), NULL, task_ids, NULL },
	{ CKPT_RESTORE, "space", "registrations for membarrier(2), segments", LIST("memory-mapped"),
	  LIST("threads-made"), NULL, task_seal_space, NULL },
	{ CKPT_RESTORE, "process", "signal actions, timers, umask, cwd", LIST("threads-made"),
	  LIST("sealed"), NULL, task_seal_process, NULL },
	{ CKPT_RESTORE, "thread", "names, stacks, rseq, pending signals", LIST("task.process"),
	  LIST("sealed"), NULL, task_seal_thread, NULL },
	{ CKPT_RESTORE, "priority", "nice, scheduler, affinity, I/O priority", LIST("threads-made"),
	  LIST("sealed"), LIST("task.thread"), task_seal_priority, NULL },
	/* whoever needs a privileged task has to be done by now */
	{ CKPT_RESTORE, "creds", "limits, ids and capabilities, dumpable",
	  LIST("task.thread", "task.priority"), LIST("sealed"),
	  LIST("pid.children-ns", "fd.finish"), task_seal_creds, NULL },
	{ CKPT_RESTORE, "final", "registers and signal masks", LIST("task.creds"), LIST("sealed"),
	  NULL, task_seal_final, NULL },
	{ 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL },
};

static int probe_xstate(struct ckpt_error *err)
{
	unsigned eax, ebx, ecx, edx;

	/* ckpt's code reads the enabled components with xgetbv. Not by __builtin_cpu_supports(),
	 * which asks for everything when the plugin is loaded: each cpuid is an exit of a virtual
	 * machine. */
	if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_OSXSAVE))
		return 0;
	return ckpt_fail(err, ENOTSUP, "a processor without XSAVE");
}

static int probe_rseq(struct ckpt_error *err)
{
	/* an impossible length: EINVAL where the call is there */
	if (syscall(SYS_rseq, NULL, 0, 0, 0) < 0 && errno != ENOSYS)
		return 0;
	return ckpt_fail_sys(err, ENOSYS, "rseq(2): programs that use it are refused");
}

static int probe_raise(struct ckpt_error *err)
{
	if (task_may_raise())
		return 0;
	ckpt_hint(err, "run ckpt with CAP_SYS_RESOURCE in the initial user namespace");
	return ckpt_fail(err, EPERM,
			 "hard limits above ckpt's own and a lower oom_score_adj are refused");
}

static const struct ckpt_extension extensions[] = {
	{ CKPT_SHARE_POINT, "fs", &task_share_fs },
	{ NULL, NULL, NULL },
};

static const struct ckpt_need needs[] = {
	{ "XSAVE", true, probe_xstate },
	{ "rseq(2)", false, probe_rseq },
	{ "CAP_SYS_RESOURCE", false, probe_raise },
	{ NULL, false, NULL },
};

static const char *const passing[] = { "timer-due", "restart", "nested-fs", NULL };

CKPT_PLUGIN{
	CKPT_PLUGIN_HEADER,
	.name = "task",
	.version = "0.1.0",
	.summary = "registers, signals, credentials, timers, limits of each thread and process",
	.license = "MIT",
	.flags = CKPT_PLUGIN_ESSENTIAL,
	.features = task_features,
	.records = records,
	.rules = rules,
	.steps = steps,
	.extensions = extensions,
	.needs = needs,
	.passing = passing,
	.state_free = task_state_free,
};
