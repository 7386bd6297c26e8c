/* SPDX-License-Identifier: MIT */
/* Check every value of the image. */
#include <sys/mman.h>

#include "ipc.h"

#define BAD(err, ...) ckpt_fail_image((err), __VA_ARGS__)
#define PAGE	      4096ULL
#define USER_END      (1ULL << 47)
#define MAX_SIZE      (1ULL << 46)
#define MAX_VALUE     32767
#define MAX_SETS      32000

static bool is_ipc(struct ckpt_run *run, uint32_t id)
{
	const struct ckpt_ns *ns = ckpt_ns_by_id(run, id);

	return ns && ns->type == CKPT_NS_IPC;
}

static int check_object(struct ckpt_run *run, const Ckpt__Ipc__Object *o, const char *what,
			uint32_t id, struct ckpt_error *err)
{
	if (!o || !is_ipc(run, o->ns))
		return BAD(err, "%s %u: no such ipc namespace", what, id);
	if (o->number > IPC_MAX_NUMBER || o->mode & ~0777U)
		return BAD(err, "%s %u: number %u, mode %o", what, id, o->number, o->mode);
	return 0;
}

static int check_segments(struct ckpt_run *run, struct ckpt_error *err)
{
	CKPT_AUTO_FD int pages = -1;
	uint64_t room = 0;
	int r = ckpt_record_order(run, "ipc.segment", err);

	if (r == 0 && ckpt_record_count(run, "ipc.segment") && !ckpt_plan_only(run) &&
	    ckpt_pages_open(run, IPC_PAGES, &pages, &room, err) == -ENOENT)
		*err = (struct ckpt_error){ 0 };
	for (size_t i = 0; i < ckpt_record_count(run, "ipc.segment") && r == 0; i++) {
		const Ckpt__Ipc__Segment *s = ckpt_record_at(run, "ipc.segment", i);
		uint64_t end = 0, whole = (s->size + PAGE - 1) & ~(PAGE - 1);

		r = check_object(run, s->object, "segment", s->id, err);
		if (r == 0 && (!s->size || s->size > MAX_SIZE))
			r = BAD(err, "segment %u of %llu bytes", s->id,
				(unsigned long long)s->size);
		for (size_t k = 0; k < s->n_runs && r == 0; k++) {
			const Ckpt__Ipc__Run *m = s->runs[k];

			if (m->offset < end || m->offset > whole || m->length > whole - m->offset ||
			    (!ckpt_plan_only(run) && (m->at > room || m->length > room - m->at)))
				r = BAD(err, "segment %u: content out of bounds", s->id);
			end = m->offset + m->length;
		}
		if (r == 0 && !ckpt_plan_only(run) && ckpt_ns_by_id(run, s->object->ns)->own)
			r = ipc_plan_own(run, s, err);
	}
	return r;
}

static int check_attachments(struct ckpt_run *run, struct ckpt_error *err)
{
	for (size_t i = 0; i < ckpt_record_count(run, "ipc.attachment"); i++) {
		const Ckpt__Ipc__Attachment *a = ckpt_record_at(run, "ipc.attachment", i);
		const Ckpt__Ipc__Segment *s = ckpt_record_by_id(run, "ipc.segment", a->segment);
		uint64_t whole = s ? (s->size + PAGE - 1) & ~(PAGE - 1) : 0;

		if (!s || !a->length || a->start % PAGE || a->length % PAGE || a->offset % PAGE ||
		    a->start >= USER_END || a->length > USER_END - a->start || a->offset > whole ||
		    a->length > whole - a->offset ||
		    a->prot & ~(uint32_t)(PROT_READ | PROT_WRITE | PROT_EXEC) ||
		    !ipc_attachment_fits(run, a))
			return BAD(err, "task %u: mapping of segment %u at %llx", a->id, a->segment,
				   (unsigned long long)a->start);
	}
	return 0;
}

static int check_semaphores(struct ckpt_run *run, struct ckpt_error *err)
{
	int r = ckpt_record_order(run, "ipc.semaphores", err);

	for (size_t i = 0; i < ckpt_record_count(run, "ipc.semaphores") && r == 0; i++) {
		const Ckpt__Ipc__Semaphores *s = ckpt_record_at(run, "ipc.semaphores", i);

		r = check_object(run, s->object, "semaphores", s->id, err);
		if (r == 0 && (!s->n_values || s->n_values > MAX_SETS || s->n_users > s->n_values))
			r = BAD(err, "semaphores %u: %zu values, %zu users", s->id, s->n_values,
				s->n_users);
		for (size_t k = 0; k < s->n_values && r == 0; k++)
			if (s->values[k] > MAX_VALUE)
				r = BAD(err, "semaphores %u: value %u", s->id, s->values[k]);
		if (r == 0 && !ckpt_plan_only(run) && ckpt_ns_by_id(run, s->object->ns)->own)
			r = ipc_plan_own_set(run, s);
	}
	return r;
}

static int check_queues(struct ckpt_run *run, struct ckpt_error *err)
{
	int r = ckpt_record_order(run, "ipc.queue", err);

	for (size_t i = 0; i < ckpt_record_count(run, "ipc.queue") && r == 0; i++) {
		const Ckpt__Ipc__Queue *q = ckpt_record_at(run, "ipc.queue", i);

		r = check_object(run, q->object, "queue", q->id, err);
		if (r == 0 && q->limit > INT32_MAX)
			r = BAD(err, "queue %u: limit of %llu bytes", q->id,
				(unsigned long long)q->limit);
		for (size_t k = 0; k < q->n_messages && r == 0; k++)
			if (q->messages[k]->type < 1 || q->messages[k]->text.len > IPC_MAX_MESSAGE)
				r = BAD(err, "queue %u: message %zu", q->id, k);
		if (r == 0 && !ckpt_plan_only(run) && ckpt_ns_by_id(run, q->object->ns)->own)
			r = ipc_plan_own_queue(run, q);
	}
	return r;
}

static int check_namespaces(struct ckpt_run *run, struct ckpt_error *err)
{
	int r = ckpt_record_order(run, "ipc.namespace", err);

	for (size_t i = 0; i < ckpt_record_count(run, "ipc.namespace") && r == 0; i++) {
		const Ckpt__Ipc__Namespace *n = ckpt_record_at(run, "ipc.namespace", i);

		for (size_t k = 0; k < n->n_settings && r == 0; k++)
			if (!ipc_setting_known(n->settings[k]->name) ||
			    strlen(n->settings[k]->value) > 100)
				r = BAD(err, "ipc namespace %u: setting \"%.64s\"", n->id,
					n->settings[k]->name);
	}
	return r;
}

int ipc_plan(struct ckpt_run *run, struct ckpt_error *err)
{
	int r = check_namespaces(run, err);

	if (r == 0)
		r = ipc_plan_counters(run, err);
	if (r == 0)
		r = check_segments(run, err);
	if (r == 0)
		r = check_attachments(run, err);
	if (r == 0)
		r = check_semaphores(run, err);
	if (r == 0)
		r = ipc_plan_undo(run, err);
	if (r == 0)
		r = ipc_plan_mqueues(run, err);
	return r == 0 ? check_queues(run, err) : r;
}
