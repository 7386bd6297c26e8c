/* SPDX-License-Identifier: MIT */
/* Running syscall scripts: in portions that fit into the segment's script area. */
#include <errno.h>
#include <string.h>

#include "engine/run.h"
#include "process/script.h"
#include "process/set.h"

#define MAX_OPS	  512u
#define DATA_AT	  (MAX_OPS * (uint32_t)sizeof(struct agent_op))
#define DATA_ROOM (AGENT_SCRIPT_SIZE - DATA_AT)

_Static_assert(DATA_AT + 6 * (33u << 10) < AGENT_SCRIPT_SIZE, "one operation must fit");

struct portion {
	struct ckpt_script *s;
	const struct segment *seg;
	size_t from, to; /* operations [from, to) */
	size_t used;	 /* bytes of data */
};

static bool has_buffer(const struct script_arg *a)
{
	return a->kind == CKPT_ARG_IN || a->kind == CKPT_ARG_OUT || a->kind == CKPT_ARG_INOUT;
}

static size_t data_of(const struct portion *p, const struct script_op *op)
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

static void cut(struct portion *p)
{
	size_t data = 0;

	for (p->to = p->from; p->to < p->s->n && p->to - p->from < MAX_OPS; p->to++) {
		data += data_of(p, &p->s->ops[p->to]);
		if (data > DATA_ROOM)
			break;
	}
}

/* Put a buffer into the script area and note its address in the task. */
static void place(struct portion *p, struct script_arg *a)
{
	a->addr = segment_script_addr(p->seg) + DATA_AT + p->used;
	/* a script may have no data at all */
	if (a->len)
		memcpy(segment_script(p->seg) + DATA_AT + p->used, p->s->data + a->data, a->len);
	p->used += (a->len + 15) & ~(size_t)15;
}

static void encode_arg(struct portion *p, struct script_arg *a, struct agent_op *to, size_t i)
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

static void encode(struct portion *p)
{
	struct agent_op *out = (struct agent_op *)segment_script(p->seg);

	p->used = 0;
	for (size_t i = p->from; i < p->to; i++, out++) {
		struct script_op *op = &p->s->ops[i];

		memset(out, 0, sizeof(*out));
		out->nr = (int32_t)op->nr;
		out->check = op->check;
		out->allow = op->allow;
		out->expect = op->expect;
		for (size_t k = 0; k < op->n_args; k++)
			encode_arg(p, &op->args[k], out, k);
	}
	for (size_t i = 0; i < p->s->n_pointers; i++) {
		const struct script_pointer *ptr = &p->s->pointers[i];
		const struct script_arg *in, *to;
		uint64_t addr;

		if ((size_t)ptr->op < p->from || (size_t)ptr->op >= p->to)
			continue;
		in = &p->s->ops[ptr->op].args[ptr->arg];
		to = &p->s->ops[ptr->op2].args[ptr->arg2];
		addr = to->addr + ptr->plus;
		if (ptr->at + sizeof(addr) <= in->len)
			memcpy(segment_script(p->seg) + (in->addr - segment_script_addr(p->seg)) +
				       ptr->at,
			       &addr, sizeof(addr));
	}
}

/* Take results and buffers back. */
static void decode(struct portion *p, uint32_t executed)
{
	const struct agent_op *in = (const struct agent_op *)segment_script(p->seg);

	for (size_t i = p->from; i < p->from + executed; i++, in++) {
		struct script_op *op = &p->s->ops[i];

		op->result = in->result;
		op->ran = true;
		for (size_t k = 0; k < op->n_args; k++) {
			struct script_arg *a = &op->args[k];

			if (a->kind != CKPT_ARG_OUT && a->kind != CKPT_ARG_INOUT)
				continue;
			memcpy(p->s->data + a->data,
			       segment_script(p->seg) + (a->addr - segment_script_addr(p->seg)),
			       a->len);
		}
	}
}

static void trace(struct portion *p, struct ckpt_thread *th, uint32_t executed)
{
	char line[512];

	if (!run_logs(p->s->run, CKPT_LOG_SCRIPT))
		return;
	for (size_t i = p->from; i < p->from + executed; i++) {
		script_format(p->s, &p->s->ops[i], line, sizeof(line));
		ckpt_log(p->s->run, CKPT_LOG_SCRIPT, "[%d] %s: %s", (int)th->tid, p->s->name, line);
	}
}

static int report_failed(const struct portion *p, struct ckpt_thread *th, uint32_t executed,
			 struct ckpt_error *err)
{
	const struct script_op *op = &p->s->ops[p->from + executed - 1];
	char line[512];
	int e = op->result < 0 && op->result >= -4095 ? (int)-op->result : EPROTO;

	script_format(p->s, op, line, sizeof(line));
	if (op->check == AGENT_CHECK_EXACT)
		return ckpt_fail(err, e, "%s: task %u (%s): %s, expected 0x%llx", p->s->name,
				 th->task->id, th->task->comm, line, (long long)op->expect);
	return ckpt_fail(err, e, "%s: task %u (%s): %s", p->s->name, th->task->id, th->task->comm,
			 line);
}

static int check(const struct ckpt_script *s, const struct ckpt_thread *th, struct ckpt_error *err)
{
	if (!s || s->failed)
		return ckpt_fail_sys(err, s ? s->failed : ENOMEM, "script %s",
				     s ? s->name : "without memory");
	if (th->agent->state != THREAD_SEATED)
		return ckpt_fail(err, EINVAL, "%s: thread %d has no agent", s->name, (int)th->tid);
	return 0;
}

int ckpt_script_run(struct ckpt_script *s, struct ckpt_thread *th, struct ckpt_error *err)
{
	struct ckpt_agent *a = th->agent;
	struct portion p = { .s = s };

	if (check(s, th, err))
		return -err->err;
	p.seg = a->seg;
	s->run->scripts++;
	for (p.from = 0; p.from < s->n; p.from = p.to) {
		int r;

		cut(&p);
		encode(&p);
		a->seat->n_ops = (uint32_t)(p.to - p.from);
		r = agent_post(a, AGENT_RUN, err);
		if (!r)
			r = agent_wait(a, err);
		if (r)
			return ckpt_wrap(err, "%s", s->name);
		s->run->calls += a->seat->executed;
		decode(&p, a->seat->executed);
		trace(&p, th, a->seat->executed);
		if (a->seat->failed)
			return report_failed(&p, th, a->seat->executed, err);
	}
	return 0;
}

int execute_last(struct ckpt_script *s, struct ckpt_thread *th, struct ckpt_error *err)
{
	struct ckpt_agent *a = th->agent;
	struct portion p = { .s = s, .seg = a->seg };

	if (check(s, th, err))
		return -err->err;
	cut(&p);
	encode(&p);
	a->seat->n_ops = (uint32_t)(p.to - p.from);
	return agent_post(a, AGENT_RUN, err);
}
