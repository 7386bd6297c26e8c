/* SPDX-License-Identifier: MIT */
/* The plugin's steps. */
#ifndef FD_STEPS_H
#define FD_STEPS_H

#include <ckpt/plugin.h>

int fd_survey(struct ckpt_run *run, struct ckpt_error *err);
int fd_collect(struct ckpt_run *run, struct ckpt_error *err);
int fd_plan(struct ckpt_run *run, struct ckpt_error *err);
int fd_install(struct ckpt_run *run, struct ckpt_error *err);
int fd_reopen(struct ckpt_run *run, struct ckpt_error *err);
int fd_threads_install(struct ckpt_run *run, struct ckpt_error *err);
int fd_finish(struct ckpt_run *run, struct ckpt_error *err);

#endif
