/* SPDX-License-Identifier: MIT */
/* Building syscall scripts. */
#include <errno.h>
#include <seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ckpt/cleanup.h>

#include "engine/run.h"
#include "process/script.h"
#include "process/set.h"

#define MAX_BUFFER (32u << 10)

/*
 * The script that was freed last is kept: fresh memory for another one's operations, three
 * pages, costs more than to write and run it. Not one that was long.
 */
#define KEPT_OPS  64
#define KEPT_DATA (16u << 10)

struct ckpt_script *ckpt_script_new(struct ckpt_run *run, const char *name)
{
	struct proc_set *ps = run ? run_procs(run) : NULL;
	struct ckpt_script *s = ps && ps->spare ? ckpt_steal_ptr(&ps->spare) : NULL;

	if (!s)
		s = calloc(1, sizeof(*s));
	if (s) {
		s->run = run;
		s->n = s->data_len = s->n_pointers = 0;
		s->failed = 0;
		snprintf(s->name, sizeof(s->name), "%s", name);
	}
	return s;
}

void script_destroy(struct ckpt_script *s)
{
	if (!s)
		return;
	free(s->ops);
	free(s->data);
	free(s->pointers);
	free(s);
}

void ckpt_script_free(struct ckpt_script *s)
{
	struct proc_set *ps = s && s->run ? run_procs(s->run) : NULL;

	if (ps && !ps->spare && s->cap <= KEPT_OPS && s->data_cap <= KEPT_DATA)
		ps->spare = s;
	else
		script_destroy(s);
}

/* Room for a buffer of `len` bytes in the script's data; its offset, or -1. */
static ssize_t reserve(struct ckpt_script *s, size_t len)
{
	size_t at = (s->data_len + 15) & ~(size_t)15;

	if (at + len > s->data_cap) {
		size_t cap = 2 * (at + len) + 1024;
		uint8_t *bigger = realloc(s->data, cap);

		if (!bigger)
			return -1;
		s->data = bigger;
		s->data_cap = cap;
	}
	if (s->data)
		memset(s->data + s->data_len, 0, at + len - s->data_len);
	s->data_len = at + len;
	return (ssize_t)at;
}

static int add_arg(struct ckpt_script *s, struct script_arg *to, const struct ckpt_arg *from)
{
	ssize_t at;

	to->kind = from->kind;
	to->value = from->value;
	to->len = from->len;
	if (from->kind == CKPT_ARG_CONST)
		return 0;
	if (from->kind == CKPT_ARG_RESULT || from->kind == CKPT_ARG_AGAIN)
		return from->value < s->n && (from->kind == CKPT_ARG_RESULT ||
					      from->len < s->ops[from->value].n_args)
			       ? 0
			       : -EINVAL;
	if (from->len > MAX_BUFFER)
		return -E2BIG;
	at = reserve(s, from->len);
	if (at < 0)
		return -ENOMEM;
	to->data = (size_t)at;
	if (from->data && from->len)
		memcpy(s->data + at, from->data, from->len);
	return 0;
}

int ckpt_script_op(struct ckpt_script *s, long nr, size_t n, const struct ckpt_arg *args)
{
	struct script_op *op;

	if (!s)
		return -ENOMEM;
	if (n > AGENT_MAX_ARGS)
		return s->failed = -EINVAL;
	if (s->n == s->cap) {
		size_t cap = s->cap ? 2 * s->cap : 32;
		struct script_op *bigger = realloc(s->ops, cap * sizeof(*bigger));

		if (!bigger)
			return s->failed = -ENOMEM;
		s->ops = bigger;
		s->cap = cap;
	}
	op = &s->ops[s->n];
	memset(op, 0, sizeof(*op));
	op->nr = nr;
	op->n_args = n;
	for (size_t i = 0; i < n; i++) {
		int r = add_arg(s, &op->args[i], &args[i]);

		if (r)
			return s->failed = r;
	}
	return (int)s->n++;
}

void ckpt_script_pointer(struct ckpt_script *s, int op, size_t arg, size_t at, int op2, size_t arg2,
			 size_t plus)
{
	struct script_pointer *bigger;

	if (!s || s->failed)
		return;
	bigger = realloc(s->pointers, (s->n_pointers + 1) * sizeof(*bigger));
	if (!bigger) {
		s->failed = -ENOMEM;
		return;
	}
	s->pointers = bigger;
	bigger[s->n_pointers++] = (struct script_pointer){ op, op2, arg, arg2, at, plus };
}

static struct script_op *last_op(struct ckpt_script *s)
{
	return s && s->n && !s->failed ? &s->ops[s->n - 1] : NULL;
}

void ckpt_script_any(struct ckpt_script *s)
{
	struct script_op *op = last_op(s);

	if (op)
		op->check = AGENT_CHECK_ANY;
}

void ckpt_script_expect(struct ckpt_script *s, int64_t result)
{
	struct script_op *op = last_op(s);

	if (op) {
		op->check = AGENT_CHECK_EXACT;
		op->expect = result;
	}
}

void ckpt_script_allow(struct ckpt_script *s, int err)
{
	struct script_op *op = last_op(s);

	if (op)
		op->allow = (uint16_t)err;
}

int64_t ckpt_script_result(const struct ckpt_script *s, int op)
{
	return op >= 0 && (size_t)op < s->n ? s->ops[op].result : -EINVAL;
}

const void *ckpt_script_out(const struct ckpt_script *s, int op, size_t arg)
{
	if (op < 0 || (size_t)op >= s->n || arg >= s->ops[op].n_args)
		return NULL;
	return s->data + s->ops[op].args[arg].data;
}

/* ---- strace notation -------------------------------------------------------------- */

static bool is_text(const uint8_t *p, size_t len)
{
	if (len < 2 || p[len - 1])
		return false;
	for (size_t i = 0; i + 1 < len; i++)
		if (p[i] < 0x20 || p[i] > 0x7e)
			return false;
	return true;
}

static void format_arg(const struct ckpt_script *s, const struct script_arg *a, char *buf,
		       size_t size)
{
	int64_t v = (int64_t)a->value;

	switch (a->kind) {
	case CKPT_ARG_CONST:
		if (v > -4096 && v < 65536)
			snprintf(buf, size, "%lld", (long long)v);
		else
			snprintf(buf, size, "0x%llx", (unsigned long long)v);
		break;
	case CKPT_ARG_RESULT:
		snprintf(buf, size, "%lld", (long long)s->ops[a->value].result);
		break;
	case CKPT_ARG_IN:
		if (is_text(s->data + a->data, a->len)) {
			snprintf(buf, size, "\"%s\"", (const char *)(s->data + a->data));
			break;
		}
		snprintf(buf, size, "<%zu bytes>", a->len);
		break;
	case CKPT_ARG_OUT:
	case CKPT_ARG_INOUT:
	case CKPT_ARG_AGAIN:
		snprintf(buf, size, "<buffer>");
		break;
	}
}

void script_format(const struct ckpt_script *s, const struct script_op *op, char *buf, size_t size)
{
	char *name = seccomp_syscall_resolve_num_arch(SCMP_ARCH_X86_64, (int)op->nr);
	size_t at;

	snprintf(buf, size, "%s(", name ? name : "syscall");
	free(name);
	for (size_t i = 0; i < op->n_args; i++) {
		char arg[160];

		format_arg(s, &op->args[i], arg, sizeof(arg));
		at = strlen(buf);
		snprintf(buf + at, size - at, "%s%s", i ? ", " : "", arg);
	}
	at = strlen(buf);
	if (op->result < 0 && op->result >= -4095)
		snprintf(buf + at, size - at, ") = -1 %s", ckpt_errno_name((int)op->result));
	else if (op->result > 65535 || op->result < 0)
		snprintf(buf + at, size - at, ") = 0x%llx", (unsigned long long)op->result);
	else
		snprintf(buf + at, size - at, ") = %lld", (long long)op->result);
}
