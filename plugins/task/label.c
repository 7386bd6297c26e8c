/* SPDX-License-Identifier: MIT */
/*
 * Labels of security modules: SELinux contexts, AppArmor profiles. A restored task has ckpt's
 * own, so one of another is refused: it would come back out of its confinement.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

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

/*
 * Without the newline or NUL at its end; "": there is none. -ESRCH: the task is gone. Any other
 * error is that of a kernel without that module, or with none at all.
 */
static int look(int dir, const char *path, char *buf, size_t size)
{
	CKPT_AUTO_FD int fd = openat(dir, path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, buf, size - 1);
	const int e = errno;

	buf[n > 0 ? n : 0] = 0;
	buf[strcspn(buf, "\n")] = 0;
	return n < 0 ? -e : 0;
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

#define N_FILES CKPT_ARRAY_SIZE(files)

static void free_own(char *(*own)[N_FILES])
{
	for (size_t i = 0; i < N_FILES; i++)
		free((*own)[i]);
}

/* ckpt's own, of each file. 0: no module of this kernel shows any, of nobody. */
static int read_own(char *own[N_FILES], struct ckpt_error *err)
{
	char path[64], label[TASK_LABEL_SIZE];

	for (size_t i = 0; i < N_FILES; i++) {
		int r;

		snprintf(path, sizeof(path), "/proc/self/attr/%s", files[i]);
		r = look(AT_FDCWD, path, label, sizeof(label));
		if (!i && (r == -EINVAL || r == -ENOENT))
			return 0;
		own[i] = strdup(label);
		if (!own[i])
			return ckpt_fail_sys(err, ENOMEM, "labels");
	}
	return 1;
}

/* Each process is named once. */
static void survey_task(struct ckpt_run *run, const struct ckpt_task *t, char *const own[N_FILES])
{
	char theirs[TASK_LABEL_SIZE], path[96];

	for (size_t k = 0; k < t->n_threads; k++)
		for (size_t i = 0; i < N_FILES; i++) {
			snprintf(path, sizeof(path), "task/%d/attr/%s", (int)t->threads[k]->tid,
				 files[i]);
			if (look(t->procfd, path, theirs, sizeof(theirs)) == -ESRCH)
				break;
			if (strcmp(theirs, own[i])) {
				refuse(run, t, files[i], t->threads[k]->tid, theirs, own[i]);
				return;
			}
			/* no module has anything to say */
			if (!i && !*theirs)
				break;
		}
}

int task_labels_survey(struct ckpt_run *run, struct ckpt_error *err)
{
	__attribute__((cleanup(free_own))) char *own[N_FILES] = { 0 };
	int r = read_own(own, err);

	if (r <= 0)
		return r;
	for (size_t i = 0; i < ckpt_task_count(run); i++)
		if (!ckpt_task_at(run, i)->zombie)
			survey_task(run, ckpt_task_at(run, i), own);
	return 0;
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
