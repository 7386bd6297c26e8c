/* SPDX-License-Identifier: MIT */
/* The plugin tty: pseudo terminals and what they control. */
#include <fcntl.h>
#include <sys/ioctl.h>

#include "tty.h"

#define LIST(...) ((const char *const[]){ __VA_ARGS__, NULL })

static const struct ckpt_feature features[] = {
	{ "pty", "pseudo terminals, both ends" },
	{ "contained", "those of a devpts that the tree has mounted itself" },
	{ "current", "descriptors of /dev/tty" },
	{ "termios", "settings of terminals" },
	{ "winsize", "window sizes" },
	{ "packet", "packet mode" },
	{ "lock", "slaves that are locked" },
	{ "exclusive", "exclusive mode" },
	{ "controlling", "controlling terminals of sessions" },
	{ "foreground", "foreground process groups" },
	{ "queue", "bytes that wait to be read, and a line that was begun" },
	{ "flow", "output stopped by Ctrl-S or TCOOFF" },
	{ NULL, NULL },
};

static const struct ckpt_record_type records[] = {
	{ TTY_REC_PTY, "pty", &ckpt__tty__pty__descriptor },
	{ TTY_REC_END, "end", &ckpt__tty__end__descriptor },
	{ TTY_REC_CURRENT, "current", &ckpt__tty__current__descriptor },
	{ TTY_REC_OUTER, "outer", &ckpt__tty__outer__descriptor },
	{ 0, NULL, NULL },
};

static const struct ckpt_option options[] = {
	{ .name = "shell-job",
	  .type = CKPT_OPT_BOOL,
	  .def = "no",
	  .help = "the tree is a job of the shell that ckpt is started from (--shell-job)" },
	{ .name = NULL },
};

static const struct ckpt_step steps[] = {
	{ .runs = CKPT_DUMP,
	  .name = "survey",
	  .help = "refuse terminals that cannot be opened as they were",
	  .after = LIST("seized"),
	  .before = LIST("surveyed"),
	  .wants = LIST("ns.survey", "fd.survey", "pid.survey"),
	  .fn = tty_survey },
	{ .runs = CKPT_DUMP | CKPT_VERIFY,
	  .name = "collect",
	  .help = "save how a shell's job stands to the shell's terminal",
	  .after = LIST("surveyed"),
	  .before = LIST("collected"),
	  .fn = tty_collect },
	{ .runs = CKPT_RESTORE,
	  .name = "plan",
	  .help = "check the terminals, and that their numbers are free",
	  .after = LIST("loaded"),
	  .before = LIST("planned"),
	  .wants = LIST("ns.plan"),
	  .fn = tty_plan },
	{ .runs = CKPT_RESTORE,
	  .name = "make",
	  .help = "open pairs with their numbers and settings",
	  .after = LIST("namespaces-made"),
	  .before = LIST("pid.make"),
	  .wants = LIST("mnt.terminals"),
	  .fn = tty_make },
	{ .runs = CKPT_RESTORE,
	  .name = "settle",
	  .help = "foreground groups, packet mode, locks",
	  .after = LIST("files-installed"),
	  .before = LIST("sealed"),
	  .fn = tty_settle,
	  .undo = tty_outer_undo },
	{ .name = NULL },
};

/* Somebody is about to read; the shell is about to take the foreground. */
static const char *const passing[] = { "queue", "foreground-gone", NULL };

static const struct ckpt_extension extensions[] = {
	{ CKPT_FD_POINT, "pty", &tty_kind_pty },
	{ CKPT_FD_POINT, "current", &tty_kind_current },
	{ CKPT_SESSION_POINT, "terminal", &tty_session },
	{ NULL, NULL, NULL },
};

static int probe_peer(struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
	int unlocked = 0;

	if (fd >= 0 && !ioctl(fd, TIOCSPTLCK, &unlocked)) {
		CKPT_AUTO_FD int peer = ioctl(fd, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);

		if (peer >= 0)
			return 0;
	}
	ckpt_fail_sys(err, errno, "/dev/ptmx");
	return ckpt_hint(err, "mount a devpts on /dev/pts; without it terminals are refused");
}

static const struct ckpt_need needs[] = {
	{ "TIOCGPTPEER", false, probe_peer },
	{ NULL, false, NULL },
};

CKPT_PLUGIN{
	CKPT_PLUGIN_HEADER,
	.name = "tty",
	.version = "0.1.0",
	.summary = "pseudo terminals, controlling terminals, foreground groups",
	.license = "MIT",
	.options = options,
	.features = features,
	.records = records,
	.steps = steps,
	.extensions = extensions,
	.needs = needs,
	.state_free = tty_state_free,
	.passing = passing,
};
