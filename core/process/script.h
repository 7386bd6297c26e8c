/* SPDX-License-Identifier: MIT */
/* A syscall script as the engine holds it. */
#ifndef CKPT_PROCESS_SCRIPT_H
#define CKPT_PROCESS_SCRIPT_H

#include <ckpt/script.h>

#include "agent/agent.h"

struct script_arg {
	enum ckpt_arg_kind kind;
	uint64_t value; /* constant; index of the operation for RESULT and AGAIN */
	size_t data;	/* offset of the buffer in the script's data */
	size_t len;
	uint64_t addr; /* of the buffer in the task, in the portion that is being run */
};

struct script_op {
	long nr;
	size_t n_args;
	struct script_arg args[AGENT_MAX_ARGS];
	uint8_t check;
	uint16_t allow;
	int64_t expect, result;
	bool ran;
};

struct script_pointer {
	int op, op2;
	size_t arg, arg2, at, plus;
};

struct ckpt_script {
	struct ckpt_run *run;
	char name[64];
	struct script_op *ops;
	size_t n, cap;
	uint8_t *data;
	size_t data_len, data_cap;
	struct script_pointer *pointers;
	size_t n_pointers;
	int failed; /* what went wrong while it was built */
};

/* Free it, and do not keep it for the next. */
void script_destroy(struct ckpt_script *s);
/* "mmap(0x7000, 4096, ...) = 0x7000" into buf. */
void script_format(const struct ckpt_script *s, const struct script_op *op, char *buf, size_t size);

#endif
