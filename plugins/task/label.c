/* SPDX-License-Identifier: MIT */
/*
 * Labels of security modules: SELinux contexts, AppArmor profiles. A restored task has ckpt's
 * own, so one of another is refused: it would come back out of its confinement.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>

#include "task.h"

/* The first is there for whichever module shows its label; the others are for several, or rare. */
static const char *const files[] = {
	"current",
	"apparmor/current",
	"selinux/current",
	"smack/current",
	"exec",
	"apparmor/exec",
	"selinux/exec",
	"fscreate",
	"keycreate",
	"sockcreate",
	"selinux/fscreate",
	"selinux/keycreate",
	"selinux/sockcreate",
};

/* Without the newline or NUL at its end; "": there is none. */
static int look(int dir, const char *path, char *buf, size_t size)
{
	CKPT_AUTO_FD int fd = openat(dir, path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, buf, size - 1);

	if (n < 0 && errno == ESRCH)
		return -ESRCH;
	/* a kernel without that module, or with none at all */
	buf[n > 0 ? n : 0] = 0;
	buf[strcspn(buf, "\n")] = 0;
	return 0;
}

void task_label_own(char *buf, size_t size)
{
	look(AT_FDCWD, "/proc/self/attr/current", buf, size);
}

static void refuse(struct ckpt_run *run, const struct ckpt_task *t, const char *file, pid_t tid,
		   const char *theirs, const char *ours)
{
	char object[320], reason[320];

	snprintf(object, sizeof(object), "thread %d, attr/%s: \"%.250s\"", (int)tid, file, theirs);
	snprintf(reason, sizeof(reason), "its label is not saved, and ckpt's own is \"%.250s\"",
		 ours);
	task_refuse(
		run, t, "label", object, reason,
		"run ckpt with that label (runcon(1), aa-exec(1)), or allow the loss: its tasks "
		"come back with ckpt's");
}

/* Each process is named once. */
void task_label_survey(struct ckpt_run *run, const struct ckpt_task *t)
{
	char theirs[TASK_LABEL_SIZE], ours[TASK_LABEL_SIZE], path[96];

	for (size_t k = 0; k < t->n_threads; k++)
		for (size_t i = 0; i < CKPT_ARRAY_SIZE(files); i++) {
			snprintf(path, sizeof(path), "task/%d/attr/%s", (int)t->threads[k]->tid,
				 files[i]);
			if (look(t->procfd, path, theirs, sizeof(theirs)) < 0)
				break;
			snprintf(path, sizeof(path), "/proc/self/attr/%s", files[i]);
			look(AT_FDCWD, path, ours, sizeof(ours));
			if (strcmp(theirs, ours)) {
				refuse(run, t, files[i], t->threads[k]->tid, theirs, ours);
				return;
			}
			/* no module has anything to say */
			if (!i && !*theirs)
				break;
		}
}

void task_label_plan(struct ckpt_run *run, const Ckpt__Task__Saved *saved)
{
	char own[TASK_LABEL_SIZE];

	task_label_own(own, sizeof(own));
	if (!*saved->label || !strcmp(saved->label, own))
		return;
	ckpt_unmet(run, CKPT_EXIT_PRIVILEGE, "run ckpt with that label (runcon(1), aa-exec(1))",
		   "the tasks had the label \"%.250s\", and ckpt has \"%.250s\"", saved->label,
		   own);
}
