/* SPDX-License-Identifier: MIT */
/* Syscall scripts in the segment's script area: portions of them, operations first, then data. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

#include "engine/run.h"
#include "process/script.h"
#include "process/set.h"

#define MAX_OPS	  512u
#define DATA_ROOM (AGENT_SCRIPT_SIZE - MAX_OPS * (uint32_t)sizeof(struct agent_op))

_Static_assert(DATA_ROOM > 6 * (33u << 10), "one operation must fit");

static bool has_buffer(const struct script_arg *a)
{
	return a->kind == CKPT_ARG_IN || a->kind == CKPT_ARG_OUT || a->kind == CKPT_ARG_INOUT;
}

static size_t data_of(const struct flight *p, const struct script_op *op)
{
	size_t n = 0;

	for (size_t i = 0; i < op->n_args; i++) {
		const struct script_arg *a = &op->args[i];

		/* a buffer of an earlier portion is brought again; there `len` is the argument's
		 * index */
		if (a->kind == CKPT_ARG_AGAIN && a->value < p->from)
			n += (p->s->ops[a->value].args[a->len].len + 15) & ~(size_t)15;
		else if (has_buffer(a))
			n += (a->len + 15) & ~(size_t)15;
	}
	return n;
}

void portion_cut(struct flight *p)
{
	size_t data = 0;

	p->from = p->to;
	for (; p->to < p->s->n && p->to - p->from < MAX_OPS; p->to++) {
		size_t more = data_of(p, &p->s->ops[p->to]);

		if (data + more > DATA_ROOM)
			break;
		data += more;
	}
	p->len = (p->to - p->from) * sizeof(struct agent_op) + data;
}

static struct segment *segment_of(const struct flight *p)
{
	return p->th->agent->seg;
}

/* The engine's address of what is at that address in the task. */
static uint8_t *in_area(const struct flight *p, uint64_t addr)
{
	const struct segment *seg = segment_of(p);

	return segment_script(seg) + (addr - segment_script_addr(seg));
}

/* Put a buffer behind those that are there and note its address in the task. */
static void place(struct flight *p, struct script_arg *a)
{
	a->addr = segment_script_addr(segment_of(p)) + p->at + p->used;
	/* a script may have no data at all */
	if (a->len)
		memcpy(in_area(p, a->addr), p->s->data + a->data, a->len);
	p->used += (a->len + 15) & ~(size_t)15;
}

static void encode_arg(struct flight *p, struct script_arg *a, struct agent_op *to, size_t i)
{
	struct script_op *ops = p->s->ops;

	switch (a->kind) {
	case CKPT_ARG_CONST:
		to->args[i] = (int64_t)a->value;
		break;
	case CKPT_ARG_RESULT:
		if (a->value >= p->from) {
			to->refs |= (uint8_t)(1u << i);
			to->args[i] = (int64_t)(a->value - p->from);
		} else {
			to->args[i] = ops[a->value].result;
		}
		break;
	case CKPT_ARG_AGAIN:
		/* a buffer of an earlier portion is brought back, with what came out of it */
		if (a->value < p->from) {
			struct script_arg *old = &ops[a->value].args[a->len];

			place(p, old);
		}
		to->args[i] = (int64_t)ops[a->value].args[a->len].addr;
		break;
	case CKPT_ARG_IN:
	case CKPT_ARG_OUT:
	case CKPT_ARG_INOUT:
		place(p, a);
		to->args[i] = (int64_t)a->addr;
		break;
	}
}

static void encode_pointer(const struct flight *p, const struct script_pointer *ptr)
{
	const struct script_arg *in = &p->s->ops[ptr->op].args[ptr->arg];
	const uint64_t addr = p->s->ops[ptr->op2].args[ptr->arg2].addr + ptr->plus;

	if ((size_t)ptr->op >= p->from && (size_t)ptr->op < p->to &&
	    ptr->at + sizeof(addr) <= in->len)
		memcpy(in_area(p, in->addr) + ptr->at, &addr, sizeof(addr));
}

#ifdef CKPT_FAULTS
/* Is this the call that shall fail (tests/lib/faulting.py)? One that ends its task cannot. */
static bool shall_fail(struct ckpt_run *run, long nr)
{
	const char *at = getenv("CKPT_FAULT_CALL");

	return at && ++run->encoded == strtoull(at, NULL, 10) && nr != SYS_exit &&
	       nr != SYS_exit_group;
}
#else
static bool shall_fail(const struct ckpt_run *run, long nr)
{
	return false;
}
#endif

void portion_encode(struct flight *p)
{
	struct agent_op *out = (struct agent_op *)(segment_script(segment_of(p)) + p->at);

	p->used = (p->to - p->from) * sizeof(*out);
	for (size_t i = p->from; i < p->to; i++, out++) {
		struct script_op *op = &p->s->ops[i];

		memset(out, 0, sizeof(*out));
		/* there is no call of that number: ENOSYS */
		out->nr = shall_fail(p->s->run, op->nr) ? -1 : (int32_t)op->nr;
		out->check = op->check;
		out->allow = op->allow;
		out->expect = op->expect;
		for (size_t k = 0; k < op->n_args; k++)
			encode_arg(p, &op->args[k], out, k);
	}
	for (size_t i = 0; i < p->s->n_pointers; i++)
		encode_pointer(p, &p->s->pointers[i]);
}

static void trace(const struct flight *p, uint32_t executed)
{
	char line[512];

	if (!run_logs(p->s->run, CKPT_LOG_SCRIPT))
		return;
	for (size_t i = p->from; i < p->from + executed; i++) {
		script_format(p->s, &p->s->ops[i], line, sizeof(line));
		ckpt_log(p->s->run, CKPT_LOG_SCRIPT, "[%d] %s: %s", (int)p->th->tid, p->s->name,
			 line);
	}
}

void portion_decode(struct flight *p, uint32_t executed)
{
	const struct agent_op *in =
		(const struct agent_op *)(segment_script(segment_of(p)) + p->at);

	p->s->run->calls += executed;
	for (size_t i = p->from; i < p->from + executed; i++, in++) {
		struct script_op *op = &p->s->ops[i];

		op->result = in->result;
		op->ran = true;
		for (size_t k = 0; k < op->n_args; k++) {
			struct script_arg *a = &op->args[k];

			if (a->kind == CKPT_ARG_OUT || a->kind == CKPT_ARG_INOUT)
				memcpy(p->s->data + a->data, in_area(p, a->addr), a->len);
		}
	}
	trace(p, executed);
}

int portion_failed(const struct flight *p, uint32_t executed, struct ckpt_error *err)
{
	const struct script_op *op = &p->s->ops[p->from + executed - 1];
	const struct ckpt_task *t = p->th->task;
	char line[512];
	int e = op->result < 0 && op->result >= -4095 ? (int)-op->result : EPROTO;

	script_format(p->s, op, line, sizeof(line));
	if (op->check == AGENT_CHECK_EXACT)
		return ckpt_fail(err, e, "%s: task %u (%s): %s, expected 0x%llx", p->s->name, t->id,
				 t->comm, line, (long long)op->expect);
	return ckpt_fail(err, e, "%s: task %u (%s): %s", p->s->name, t->id, t->comm, line);
}
